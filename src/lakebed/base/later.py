"""Import a package on its first use: a plain install has only some packages, and importing all would delay a client."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["Later", "np", "npt", "pa", "pc", "pq"]


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


# A plain install has neither package. Most functions of the modules that import these names need neither.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    np, npt = Later("numpy"), Later("numpy.typing")
    pa, pc, pq = Later("pyarrow"), Later("pyarrow.compute"), Later("pyarrow.parquet")
