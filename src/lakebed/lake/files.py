"""Objects as Python files: reading by ranges, writing at `close`."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Final

from lakebed import wire
from lakebed.client import Client

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

IN_MEMORY_BYTES_MAX: Final = 8 << 20
"""A written object up to this size is kept in memory until it is sent; a larger one is kept in a temporary file."""


class ObjectReader(io.RawIOBase):
    """An object as a seekable file. Each read is one request, so put a buffer around it.

    All reads return the object that existed when the file was opened. A read of a replaced object raises.

    Raises:
        NotFound: the object does not exist.
    """

    def __init__(self, client: Client, repository: str, ref: str, path: str) -> None:
        super().__init__()
        self._client = client
        self._at = (repository, ref, path)
        self.stats: Final = client.objects.stat(repository, ref, path)
        self.name = path
        self.size: Final = self.stats.size_bytes or 0
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if origin + offset < 0:
            raise OSError(f"cannot seek to {origin + offset}")
        self._position = origin + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read into a buffer, and return the number of bytes.

        Raises:
            Unavailable: another writer replaced the object since the file was opened.
        """
        view = memoryview(buffer).cast("B")
        end = min(self._position + len(view), self.size)
        if end <= self._position:
            return 0
        data = self.read_range(self._position, end)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def read_range(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to, not including, `end`. Raises as `readinto`."""
        return self._client.objects.read(*self._at, start=start, end=end, checksum=self.stats.checksum)


class ObjectWriter(io.BufferedIOBase):
    """A file that becomes an object when it is closed, all at once.

    If its `with` block raises, or it is never closed, no object is written. After `close`, `stats` describes the
    object.
    """

    def __init__(
        self,
        client: Client,
        repository: str,
        branch: str,
        path: str,
        *,
        content_type: str,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
    ) -> None:
        super().__init__()
        self._client = client
        self._at = (repository, branch, path)
        self._content_type = content_type
        self._metadata = metadata
        self._if_absent = if_absent
        self._memory = io.BytesIO()
        self._file: IO[bytes] | None = None
        self.name = path
        self.stats: wire.ObjectStats | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return (self._file or self._memory).tell()

    def write(self, data: ReadableBuffer) -> int:
        if self.closed:
            raise ValueError("the file is closed")
        if self._file is None and self._memory.tell() + memoryview(data).nbytes > IN_MEMORY_BYTES_MAX:
            self._file = tempfile.NamedTemporaryFile(prefix="lakebed-")  # noqa: SIM115  # closed by `discard`
            self._file.write(self._memory.getbuffer())
            self._memory = io.BytesIO()
        return (self._file or self._memory).write(data)

    def discard(self) -> None:
        """Close the file without writing an object."""
        if not self.closed:
            super().close()
        self._memory = io.BytesIO()
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Write the object, then discard the buffer.

        Raises:
            AlreadyExists: opened with x, and the object exists.
        """
        if self.closed:
            return
        try:
            self._send()
        finally:
            self.discard()

    def _send(self) -> None:
        if self._file is None:
            self.stats = self._client.objects.write(
                *self._at,
                self._memory.getvalue(),
                content_type=self._content_type,
                metadata=self._metadata,
                if_absent=self._if_absent,
            )
        else:
            self._file.flush()
            self.stats = self._client.files.upload(
                *self._at,
                Path(self._file.name),
                content_type=self._content_type,
                metadata=self._metadata,
                if_absent=self._if_absent,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        super().__exit__(kind, error, trace)

    def __del__(self) -> None:
        # The base class would close the file, and so write half an object.
        self.discard()


class TextWriter(io.TextIOWrapper):
    """Text into an `ObjectWriter`. An error in the `with` block discards the object."""

    def __init__(self, writer: ObjectWriter, *, encoding: str) -> None:
        super().__init__(writer, encoding=encoding)
        self._writer = writer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._writer.discard()
        else:
            super().__exit__(kind, error, trace)

    def __del__(self) -> None:
        self._writer.discard()
