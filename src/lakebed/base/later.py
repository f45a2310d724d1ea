"""Import a package when it is first used: a plain install has only some, and a client should not wait for the rest."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """Stands for a module. Its names are those of the module, which is imported when the first is asked for.

    Raises:
        ModuleNotFoundError: then, the package is not installed.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # What looks at any object, as pickle does, asks for such.
            raise AttributeError(name)
        found = getattr(importlib.import_module(self._module), name)
        setattr(self, name, found)  # so that it is asked for once
        return found
