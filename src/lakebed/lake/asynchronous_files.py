"""`lakebed://` for programs of asyncio that use fsspec: every call of the file system has a form to await.

The work is done by the file system that is given, in threads, so both have one way through the code. A file of
`open_async` keeps blocks as the one of `open` does: `cache_type`, `block_size` and `cache_options` mean the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import io
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

from .filesystem import LakebedFileSystem

T = TypeVar("T")


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

    A call that is cancelled raises only when its thread has ended, so the next call never runs beside it.

    A file that was written becomes an object when it is closed; where its block raises, none is written.
    """

    def __init__(self, file: io.IOBase) -> None:
        self.sync = file
        """The same file for code without await: its `cache` counts what was fetched."""
        self._turn = asyncio.Lock()

    async def read(self, length: int = -1) -> bytes:
        """Read at most `length` bytes, or all that follow. A cancelled read leaves the position where it was."""
        async with self._turn:
            position = self.sync.tell()
            try:
                data: bytes = await _in_thread(self.sync.read, length)
            except asyncio.CancelledError:
                self.sync.seek(position)
                raise
            return data

    async def write(self, data: bytes) -> int:
        async with self._turn:
            written: int = await _in_thread(self.sync.write, data)
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
            await _in_thread(self.sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._turn:
            await _in_thread(self.sync.__exit__, kind, error, trace)


async def _in_thread(call: Callable[..., T], *args: object) -> T:
    """Call in a thread, and outlast it. Where the task is cancelled meanwhile, raise that afterwards.

    A thread cannot be stopped, and the file is not for two threads at once.
    """
    work = partial(contextvars.copy_context().run, call, *args)
    # A bare future: a loop that ends cancels every task, but not this.
    thread = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        while not thread.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([thread])
        thread.cancelled() or thread.exception()  # taken, or asyncio would complain of it
        raise
