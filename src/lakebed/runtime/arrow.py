"""One trait of pyarrow that costs every process of ours, undone."""

from __future__ import annotations

import sys
from typing import Final

_PANDAS: Final = "pandas"


def leave_pandas_out() -> None:
    """For processes of our own (never for a library's caller): let pyarrow do without pandas until somebody needs it.

    The first list that becomes an Arrow array makes pyarrow import pandas, where it is installed, only to ask whether
    the list is a Series: 0.6 s of CPU and 50 MiB in each process. pyarrow asks once. It is asked here, while
    pandas cannot be found; `to_pandas` tries again by itself, and finds it.
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
    """A finder of modules that comes before all others and knows this one not to be there."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002 - the protocol's
        if name == _PANDAS:
            raise ModuleNotFoundError(name, name=name)
