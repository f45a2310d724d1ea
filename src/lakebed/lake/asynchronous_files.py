"""`lakebed://` for asyncio programs that use fsspec: every call of the file system has an awaitable form.

The given synchronous file system does the work in threads, so both run the same code. A file of `open_async` caches
blocks as a file of `open` does: `cache_type`, `block_size` and `cache_options` mean the same.
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
    """The awaitable file system: `await fs._cat_file(path)`, `_find`, `_info` and so on, and `open_async`.

    Wraps `fs`, else a new file system with these options (`LakebedFileSystem`). With `asynchronous=False`, calls
    without an underscore block, in fsspec's own loop.
    """

    def __init__(self, fs: LakebedFileSystem | None = None, *, asynchronous: bool = True, **options: Any) -> None:
        super().__init__(fs or LakebedFileSystem(**options), asynchronous=asynchronous)

    async def open_async(self, path: str, mode: str = "rb", **options: Any) -> AsyncFile:
        """Open a file for `rb`, `wb` or `xb`.

        Raises:
            ValueError: text mode, or compression. Open bytes, and decode them.
            FileNotFoundError, FileExistsError, PermissionError.
        """
        if "b" not in mode or options.get("compression"):
            raise ValueError("open_async takes bytes: a mode with b, without compression")
        return AsyncFile(await asyncio.to_thread(self.sync_fs.open, path, mode, **options))


class AsyncFile:
    """An open file with awaited reads and writes, one at a time. An async context manager.

    A cancelled call raises only when its thread has ended, so the next call never runs beside it.

    Closing a written file makes its object. If its block raises, no object is written.
    """

    def __init__(self, file: io.IOBase) -> None:
        self.sync = file
        """The synchronous file, for code without await. Its `cache` counts the fetched bytes."""
        self._turn = asyncio.Lock()

    async def read(self, length: int = -1) -> bytes:
        """Read at most `length` bytes, or all that follow. A cancelled read restores the position."""
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
        """Close the file; a written file becomes an object.

        Raises:
            FileExistsError: opened with x, and the object exists.
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
    """Call in a thread, and wait for its end even if the task is cancelled; raise the cancellation then.

    A thread cannot be stopped, and two threads must not use the file at once.
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
        thread.cancelled() or thread.exception()  # retrieved, or asyncio would log it
        raise
