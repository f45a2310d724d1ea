"""Find where the server is and who we are: option, then environment, then the configuration file, then the default.

The file is TOML with the keys of `Settings`, readable by its owner alone, at `$LAKEBED_CONFIG`, else
`$XDG_CONFIG_HOME/lakebed/config.toml`, else `~/.config/lakebed/config.toml`. Tables `[profile.NAME]` hold the same keys
for other servers; `--profile NAME` or `$LAKEBED_PROFILE` takes one of them whole, without the keys at the top.

Who comes from lakeFS need not log in again. Where nothing of ours is set, no option, variable or file, the settings of
lakectl count: `$LAKECTL_SERVER_ENDPOINT_URL`, `$LAKECTL_CREDENTIALS_…`, then `$LAKECTL_CONFIG_FILE`, else
`~/.lakectl.yaml`. They count all together, so that no key pair goes to a server that it was not meant for.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from lakebed.base import Invalid

ENDPOINT_DEFAULT: Final = "http://127.0.0.1:8000"
VARIABLES: Final = {
    "endpoint": "LAKEBED_ENDPOINT",
    "access_key_id": "LAKEBED_ACCESS_KEY_ID",
    "secret_access_key": "LAKEBED_SECRET_ACCESS_KEY",
    "data": "LAKEBED_DATA",
}
PROFILE_VARIABLE: Final = "LAKEBED_PROFILE"
LAKECTL_VARIABLES: Final = {
    "endpoint": "LAKECTL_SERVER_ENDPOINT_URL",
    "access_key_id": "LAKECTL_CREDENTIALS_ACCESS_KEY_ID",
    "secret_access_key": "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY",
}
_LAKECTL_KEYS: Final = {
    "endpoint": ("server", "endpoint_url"),
    "access_key_id": ("credentials", "access_key_id"),
    "secret_access_key": ("credentials", "secret_access_key"),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one server. Empty: not set. `data` is its data folder, for collections on this machine."""

    endpoint: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    data: str = ""


class _File(Settings, frozen=True, kw_only=True):
    profile: dict[str, Settings] = {}


class BadSettings(Invalid):
    """The configuration file cannot be understood."""


def settings_path(environment: Mapping[str, str]) -> Path:
    if explicit := environment.get("LAKEBED_CONFIG"):
        return Path(explicit).expanduser()
    folder = environment.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "lakebed" / "config.toml"


def read_settings(path: Path, profile: str = "") -> Settings:
    """Read the file, or one profile of it; nothing is set where there is none.

    Raises:
        BadSettings: not TOML, an unknown key, or a value that is not text.
    """
    file = _read_file(path)
    if profile:
        return file.profile.get(profile, Settings())
    return Settings(**{name: getattr(file, name) for name in Settings.__struct_fields__})


def profiles(path: Path) -> list[str]:
    """The names of the profiles in the file. Raises as `read_settings`."""
    return sorted(_read_file(path).profile)


def _read_file(path: Path) -> _File:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return _File()
    except UnicodeDecodeError as error:
        raise BadSettings(f"{path}: not UTF-8") from error
    try:
        return msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadSettings(f"{path}: {error}") from error


def is_of(stored: Settings, endpoint: str) -> bool:
    """Return whether stored settings are those of the server at an endpoint. Empty ones mean the default."""
    kept, asked = (one.rstrip("/").removesuffix("/api/v1") for one in (stored.endpoint or ENDPOINT_DEFAULT, endpoint))
    return kept == (asked or ENDPOINT_DEFAULT)


def write_settings(path: Path, settings: Settings, profile: str = "") -> None:
    """Replace the top of the file, or one profile, at once. Its owner alone may read it, from its first byte on.

    Makes folders above it.

    Raises:
        BadSettings: the file that is there makes no sense.
    """
    file = _read_file(path)
    tables = {"": asdict(settings) if not profile else {name: getattr(file, name) for name in VARIABLES}}
    others = {**file.profile, profile: settings} if profile else file.profile
    tables |= {f"[profile.{json.dumps(name)}]\n": asdict(one) for name, one in sorted(others.items())}
    path.parent.mkdir(parents=True, exist_ok=True)
    # A JSON string is a TOML string.
    text = "\n".join(
        head + "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items() if value)
        for head, table in tables.items()
    )
    temporary = path.with_name(f".lakebed-{secrets.token_hex(12)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as writer:
            writer.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def source_of(name: str, environment: Mapping[str, str]) -> str:
    """Return where a setting that was not given as an option comes from: a variable or a file, or neither (empty)."""
    if environment.get(VARIABLES[name]):
        return VARIABLES[name]
    if _is_ours(environment):
        path = settings_path(environment)
        return str(path) if getattr(read_settings(path, environment.get(PROFILE_VARIABLE, "")), name) else ""
    variable = LAKECTL_VARIABLES.get(name, "")
    if environment.get(variable):
        return variable
    return str(_lakectl_path(environment)) if getattr(_of_lakectl(environment), name) else ""


def effective_settings(
    environment: Mapping[str, str], *, endpoint: str | None = None, profile: str | None = None
) -> Settings:
    """Return the settings in force; the endpoint is always set. Each of ours is decided by itself.

    Raises:
        BadSettings: as `read_settings`, there is no such profile, or the bytes of a variable are not UTF-8.
    """
    for variable in (*(VARIABLES[field] for field in VARIABLES if field != "data"), *LAKECTL_VARIABLES.values()):
        # A folder may have any name. The others are sent.
        if not _is_utf8(environment.get(variable, "")):
            raise BadSettings(f"{variable}: its bytes are not UTF-8")
    path = settings_path(environment)
    name = profile or environment.get(PROFILE_VARIABLE, "")
    if name and name not in (known := profiles(path)):
        raise BadSettings(
            f"{path} has no profile {name!r}"
            + (
                f": it has {', '.join(known)}"
                if known
                else f": `lakebed config set --profile {shlex.quote(name)} --endpoint URL` makes one"
            )
        )
    is_ours = bool(name or endpoint) or _is_ours(environment)
    found = asdict(read_settings(path, name) if is_ours else _of_lakectl(environment))
    found |= {name: environment[variable] for name, variable in VARIABLES.items() if environment.get(variable)}
    if endpoint:
        found["endpoint"] = endpoint
    return Settings(**{**found, "endpoint": found["endpoint"] or ENDPOINT_DEFAULT})


def _is_utf8(text: str) -> bool:
    """Return whether the system handed over valid bytes: others arrive as surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_ours(environment: Mapping[str, str]) -> bool:
    """Return whether a variable of ours or our file sets anything."""
    return any(environment.get(variable) for variable in VARIABLES.values()) or settings_path(environment).exists()


def _lakectl_path(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("LAKECTL_CONFIG_FILE") or Path.home() / ".lakectl.yaml").expanduser()


def _of_lakectl(environment: Mapping[str, str]) -> Settings:
    found = {name: environment.get(variable, "") for name, variable in LAKECTL_VARIABLES.items()}
    path = _lakectl_path(environment)
    if not all(found.values()) and path.exists():
        import yaml  # here, since few need it

        try:
            file: Any = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            for name, (section, key) in _LAKECTL_KEYS.items():
                found[name] = found[name] or str((file.get(section) or {}).get(key) or "")
        except (yaml.YAMLError, AttributeError, UnicodeDecodeError) as error:
            raise BadSettings(f"{path} is not a configuration of lakectl: {error}") from error
    return Settings(**found)
