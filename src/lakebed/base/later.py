"""Import a package on its first use: a plain install has only some packages, and importing all would delay a client."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Later"]


class Later:
    """A stand-in for a module, which is imported when one of its names is first used.

    Raises:
        ModuleNotFoundError: the package is not installed; raised at that first use.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # tools that inspect any object, such as pickle, ask for such names
            raise AttributeError(name)
        found = getattr(importlib.import_module(self._module), name)
        setattr(self, name, found)  # cached, so that the next use skips this method
        return found
