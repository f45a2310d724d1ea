"""Import httpx without its own command line, which would import `rich` where that is installed: 80 ms of CPU."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["httpx"]

_COMMAND_LINE = "httpx._main"
_modules: dict[str, Any] = sys.modules
# None marks a module that cannot be imported.
_is_first = _modules.setdefault(_COMMAND_LINE, None) is None
import httpx  # noqa: E402  # the line before makes httpx take its command line for one that is not installed

if _is_first:
    del _modules[_COMMAND_LINE]
