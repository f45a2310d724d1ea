"""`lakebed://` for programs of asyncio that use fsspec: every call of the file system has a form to await.

The work is done by the file system that is given, in threads, so both have one way through the code. A file of
`open_async` keeps blocks as the one of `open` does: `cache_type`, `block_size` and `cache_options` mean the same.
"""

from __future__ import annotations

import asyncio
import io
from types import TracebackType
from typing import Any, Self

from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

from .filesystem import LakebedFileSystem


class AsyncLakebedFileSystem(AsyncFileSystemWrapper):  # type: ignore[misc]  # fsspec has no types
    """`await fs._cat_file(path)`, `_find`, `_info` and so on, and `open_async`.

    Over `fs`, else over a file system of these options (`LakebedFileSystem`). With `asynchronous=False` the calls
    without an underscore wait, in a loop of fsspec's own.
    """

    def __init__(self, fs: LakebedFileSystem | None = None, *, asynchronous: bool = True, **options: Any) -> None:
        super().__init__(fs or LakebedFileSystem(**options), asynchronous=asynchronous)

    async def open_async(self, path: str, mode: str = "rb", **options: Any) -> AsyncFile:
        """Open a file for `rb`, `wb` or `xb`.

        Raises:
            ValueError: text, or compression. Open bytes, and decode them.
            FileNotFoundError, FileExistsError, PermissionError.
        """
        if "b" not in mode or options.get("compression"):
            raise ValueError("open_async takes bytes: a mode with b, without compression")
        return AsyncFile(await asyncio.to_thread(self.sync_fs.open, path, mode, **options))


class AsyncFile:
    """An open file whose reads and writes are awaited, one after the other. An async context manager.

    A file that was written becomes an object when it is closed; where its block raises, none is written.
    """

    def __init__(self, file: io.IOBase) -> None:
        self.sync = file
        """The same file for code without await: its `cache` counts what was fetched."""
        self._turn = asyncio.Lock()

    async def read(self, length: int = -1) -> bytes:
        async with self._turn:
            data: bytes = await asyncio.to_thread(self.sync.read, length)
            return data

    async def write(self, data: bytes) -> int:
        async with self._turn:
            written: int = await asyncio.to_thread(self.sync.write, data)
            return written

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.sync.seek(offset, whence)

    def tell(self) -> int:
        return self.sync.tell()

    async def close(self) -> None:
        """
        Raises:
            FileExistsError: opened with x, and there is such an object.
        """
        async with self._turn:
            await asyncio.to_thread(self.sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._turn:
            await asyncio.to_thread(self.sync.__exit__, kind, error, trace)
