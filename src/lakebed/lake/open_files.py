"""The files that the fsspec file system opens, and its errors: those of Python's own files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fsspec.caching import caches
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from lakebed.base import AlreadyExists, Denied, NotFound

from .files import ObjectReader, ObjectWriter


@contextmanager
def os_errors(name: str) -> Iterator[None]:
    """Translate our errors into those of Python's own files, which fsspec and its users expect."""
    try:
        yield
    except NotFound as error:
        raise FileNotFoundError(str(error) if name in str(error) else f"{name}: {error}") from error
    except AlreadyExists as error:
        raise FileExistsError(f"{name}: {error}") from error
    except Denied as error:
        raise PermissionError(f"{name}: {error}") from error


def check_caching(block_size: object, kind: object) -> None:
    """Check the options of the block cache.

    Raises:
        ValueError: the size is no positive whole number, or fsspec has no cache of this kind.
    """
    if block_size is not None and (isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1):
        raise ValueError(f"block_size is {block_size!r}: give a positive number of bytes, such as 1_000_000")
    if kind not in caches:
        known = ", ".join(sorted(str(one) for one in caches if one))
        raise ValueError(f"cache_type is {kind!r}: fsspec has {known}")


class Reading(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An object behind the block cache that the caller chose."""

    def __init__(
        self,
        fs: AbstractFileSystem,
        path: str,
        reader: ObjectReader,
        block_size: int,
        cache_type: str,
        cache_options: Mapping[str, Any] | None,
    ) -> None:
        self._reader = reader
        super().__init__(
            fs, path, "rb", block_size, cache_type=cache_type, cache_options=cache_options, size=reader.size
        )

    def _fetch_range(self, start: int, end: int) -> bytes:
        with os_errors(self.path):
            return self._reader.read_range(start, min(end, self._reader.size)) if start < self._reader.size else b""


class Writing(ObjectWriter):
    def close(self) -> None:
        with os_errors(self.name):
            super().close()

    def commit(self) -> None:
        """Do nothing: fsspec calls it at the end of a transaction, when the branch already has the object."""
