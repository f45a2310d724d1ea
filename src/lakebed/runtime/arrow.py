"""Keep pyarrow from importing pandas where our processes do not need it."""

from __future__ import annotations

import sys
from typing import Final

_PANDAS: Final = "pandas"


def leave_pandas_out() -> None:
    """Let pyarrow work without pandas until a caller uses `to_pandas`. Call it in processes of our own only.

    pyarrow imports an installed pandas with the first list that becomes an Arrow array, only to check whether the
    list is a Series. That costs 0.6 s of CPU and 50 MiB in each process. pyarrow checks once, so this function makes
    it check while pandas cannot be found. `to_pandas` looks again by itself, and finds pandas.
    """
    if _PANDAS in sys.modules:
        return
    import pyarrow as pa

    blocker = _NoPandas()
    sys.meta_path.insert(0, blocker)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(blocker)


class _NoPandas:
    """Answer, before all other finders of modules, that pandas is not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002 - the protocol's
        if name == _PANDAS:
            raise ModuleNotFoundError(name, name=name)
