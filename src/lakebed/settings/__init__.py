"""Where the server is and who we are: flag, then environment, then the configuration file, then the default.

The file is TOML with the keys of `Settings`, readable by its owner alone, at `$LAKEBED_CONFIG`, else
`$XDG_CONFIG_HOME/lakebed/config.toml`, else `~/.config/lakebed/config.toml`.
"""

from __future__ import annotations

import json
import os
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from lakebed.base import Invalid

ENDPOINT_DEFAULT: Final = "http://127.0.0.1:8000"
VARIABLES: Final = {
    "endpoint": "LAKEBED_ENDPOINT",
    "access_key_id": "LAKEBED_ACCESS_KEY_ID",
    "secret_access_key": "LAKEBED_SECRET_ACCESS_KEY",
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the file. Empty: not set."""

    endpoint: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""


class BadSettings(Invalid):
    """The configuration file cannot be understood."""


def settings_path(environment: Mapping[str, str]) -> Path:
    if explicit := environment.get("LAKEBED_CONFIG"):
        return Path(explicit).expanduser()
    folder = environment.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "lakebed" / "config.toml"


def read_settings(path: Path) -> Settings:
    """Read the file; nothing is set where there is none.

    Raises:
        BadSettings: not TOML, an unknown key, or a value that is not text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Settings()
    except UnicodeDecodeError as error:
        raise BadSettings(f"{path}: not UTF-8") from error
    try:
        return msgspec.convert(tomllib.loads(text), Settings)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadSettings(f"{path}: {error}") from error


def write_settings(path: Path, settings: Settings) -> None:
    """Replace the file at once, readable by its owner alone from its first byte on. Makes folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = msgspec.to_builtins(settings)
    # A JSON string is a TOML string.
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items() if value)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def source_of(name: str, environment: Mapping[str, str]) -> str:
    """Return where a setting comes from that was not given as an option: a variable or the file; empty where it is not
    set.
    """
    if environment.get(VARIABLES[name]):
        return VARIABLES[name]
    path = settings_path(environment)
    return str(path) if getattr(read_settings(path), name) else ""


def effective_settings(environment: Mapping[str, str], *, endpoint: str | None = None) -> Settings:
    """Return the settings in force; the endpoint is always set. Each of the three is decided by itself.

    Raises:
        BadSettings: as `read_settings`.
    """
    found = msgspec.to_builtins(read_settings(settings_path(environment)))
    found |= {name: environment[variable] for name, variable in VARIABLES.items() if environment.get(variable)}
    if endpoint:
        found["endpoint"] = endpoint
    return msgspec.convert({**found, "endpoint": found["endpoint"] or ENDPOINT_DEFAULT}, Settings)
