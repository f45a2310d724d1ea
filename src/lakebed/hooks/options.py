"""Settings of hooks, their secrets, and the limits that all hooks share."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from lakebed.base import Invalid, LakebedError

HOOK_VARIABLES: Final = ("LAKEBED_ACTION_", "LAKEFSACTION_")
"""Action files may name environment variables that begin so, and no others."""
OUTPUT_CHARACTERS_MAX: Final = 64 << 10
TIMEOUT_S: Final = 60.0
TIMEOUT_HOLDING_S: Final = 20.0
"""The default for hooks before a change: its caller, and the commits behind it, wait for them."""
TIMEOUT_S_MAX: Final = 600.0
_SECRET: Final = re.compile(r"\{\{\s*ENV\.([A-Za-z0-9_]+)\s*\}\}")


class Log(Protocol):
    def __call__(self, line: str, limit: int = ..., /) -> object:
        """Keep a line of output, or its first `limit` characters after secrets are hidden."""
        ...


class HookFailed(LakebedError):
    """A hook did not succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookOptions:
    """`loopback`: webhooks may go to this machine and its link-local neighbours. `private`: and to private networks."""

    enabled: bool = True
    loopback: bool = False
    private: bool = False
    # Lua hooks may run.
    lua: bool = True
    # Lua scripts may send HTTP requests. `environment` holds the variables that action files may name.
    lua_network: bool = False
    lua_memory_bytes: int = 64 << 20
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


def hook_options(environment: Mapping[str, str]) -> HookOptions:
    """Read LAKEBED_ACTIONS (`0`), LAKEBED_ACTIONS_LOOPBACK (`1`), LAKEBED_ACTIONS_PRIVATE (`1`),
    LAKEBED_ACTIONS_LUA (`0`), LAKEBED_ACTIONS_LUA_NETWORK (`1`), and the variables that action files may name."""
    return HookOptions(
        enabled=environment.get("LAKEBED_ACTIONS") != "0",
        loopback=environment.get("LAKEBED_ACTIONS_LOOPBACK") == "1",
        private=environment.get("LAKEBED_ACTIONS_PRIVATE") == "1",
        lua=environment.get("LAKEBED_ACTIONS_LUA") != "0",
        lua_network=environment.get("LAKEBED_ACTIONS_LUA_NETWORK") == "1",
        environment={name: value for name, value in environment.items() if name.startswith(HOOK_VARIABLES)},
    )


class Secrets:
    """Fill in `{{ ENV.NAME }}`, and keep the values out of outputs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._used: set[str] = set()

    def fill(self, value: Any) -> Any:
        """Return the value with every name in it replaced.

        Raises:
            Invalid: the server has no such variable, or it is not one for actions.
        """
        if isinstance(value, str):
            return _SECRET.sub(self._value, value)
        if isinstance(value, dict):
            return {str(name): self.fill(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.fill(each) for each in value]
        return value

    def _value(self, match: re.Match[str]) -> str:
        name = match[1]
        if name not in self._environment:
            prefixes = " or ".join(HOOK_VARIABLES)
            raise Invalid(f"the server has no variable {name} for actions (their names begin with {prefixes})")
        self._used.add(self._environment[name])
        return self._environment[name]

    def hide(self, text: str) -> str:
        for secret in sorted(self._used, key=len, reverse=True):
            if secret:
                text = text.replace(secret, "***")
        return text


def bare_environment() -> dict[str, str]:
    """Return the environment of a child process: of the server's only the place of Python."""
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
