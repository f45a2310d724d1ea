"""Load the package `pyiceberg`: an extra, so no module of ours imports it at the top."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Final

_MODULES: Final = ("pyiceberg.table.metadata", "pyiceberg.table.update", "pyiceberg.manifest", "pyiceberg.avro.file")


def is_installed() -> bool:
    """Return whether the package is there: `lakebed[iceberg]` brings it."""
    return importlib.util.find_spec("pyiceberg") is not None


_loaded: list[str] = []


def load() -> None:
    """Import the package. It takes a second: a server does it in a thread."""
    for name in _MODULES:
        importlib.import_module(name)
    _loaded.append("pyiceberg")


def is_loaded() -> bool:
    return bool(_loaded)
