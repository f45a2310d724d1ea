"""Files to objects and back, in pieces, so that an object of any size passes through a megabyte of memory.

Both directions are checked. An upload hashes its bytes and compares with the checksum that the server answers. A
download goes to a temporary file beside its target, is compared in size and checksum with the headers it came with,
and only then takes the target's name: a reader of the target sees the old file or the whole new one, and a failed
download leaves nothing behind. A connection that breaks in the middle of a download is taken up where it broke, if
the object is still the same.

The checksum is an MD5 where it looks like one. Objects that were sent in parts (or that another tool wrote) have
checksums of other kinds; of those only the size is checked.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, Final

from lakebed.base import CONTENT_TYPE_DEFAULT, Conflict, Invalid, Unavailable
from lakebed.operations import objects
from lakebed.wire import ObjectStats, StagingMetadata

from .connection import Noun
from .errors import Damaged, Unreachable
from .http import httpx

CHUNK_BYTES: Final = 1 << 20
_RESUMES_MAX: Final = 5
_SIGNED_MAX_BYTES: Final = 5 << 30
"""Object stores take no more in one request."""
_SSE: Final = "x-amz-server-side-encryption"
_UNSIGNED: Final = (
    "this server signs no URLs: its objects lie in a folder, or LAKEBED_PRESIGN is 0. Leave out presigned"
)
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]*")
_NO_HEADER_VALUE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]|^ | \Z")
"""Spaces at the ends would be lost, and halves of characters are no text."""

Progress = Callable[[int], None]
"""Called with the number of bytes that moved since the last call; negative when a transfer starts again."""


class FileChanged(Conflict):
    """The file's size changed while it was being sent."""


def _ignore(_: int) -> None:
    pass


class Files(Noun):
    """The operations on objects as files. Got from `Client.files`."""

    def upload(
        self,
        repository: str,
        branch: str,
        path: str,
        source: Path,
        *,
        content_type: str = CONTENT_TYPE_DEFAULT,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        presigned: bool = False,
        progress: Progress = _ignore,
    ) -> ObjectStats:
        """Send a file. Repeated from the start when the connection breaks, unless `if_absent`.

        `presigned`: put the bytes into the object store by a URL that the server signs; only the link to the path goes
        through the server. A file of up to 5 GiB, by one request.

        Raises:
            Taken: `if_absent`, and the path exists.
            FileChanged: the file grew or shrank meanwhile.
            Damaged: the server stored other bytes than were sent.
            Unavailable: `presigned`, and the server signs no URLs, or the object store refused.
            Invalid: no header can carry the content type or metadata; or `presigned`, and the file is larger than
                5 GiB.
        """
        size_bytes = source.stat().st_size
        sent = _Moved(progress)

        def content() -> Iterator[bytes]:
            sent.restart()
            with source.open("rb") as file:
                while sent.size_bytes < size_bytes and (
                    chunk := file.read(min(CHUNK_BYTES, size_bytes - sent.size_bytes))
                ):
                    sent.add(chunk)
                    yield chunk
                if sent.size_bytes < size_bytes or file.read(1):
                    raise FileChanged(f"{source} changed while it was being sent", path=str(source))

        headers = upload_headers(content_type, metadata, size_bytes=size_bytes, if_absent=if_absent)
        if not presigned:
            return self._upload(repository, branch, path, content, headers, sent)
        if size_bytes > _SIGNED_MAX_BYTES:
            raise Invalid(f"{source} is larger than 5 GiB: send it without a signed URL", path=str(source))
        place = self._connection.do(
            objects.GET_PHYSICAL_ADDRESS, repository, branch, query={"path": path, "presign": True}
        )
        if place.presigned_url is None:
            raise Unavailable(_UNSIGNED, path=path)
        own = {"Content-Length": str(size_bytes)}
        with self._connection.open_signed(
            "PUT", place.presigned_url, about=path, content=content, headers=own
        ) as response:
            # Encryption by other keys than the store's own makes a tag that looks like an MD5 and is none.
            encryption = response.headers.get(_SSE, "AES256")
            if encryption == "AES256" and f"{_SSE}-customer-algorithm" not in response.headers:
                sent.check(path, None, response.headers.get("ETag", "").strip('"'))
        return self._connection.do(
            objects.LINK_PHYSICAL_ADDRESS,
            repository,
            branch,
            body=StagingMetadata(
                staging=place,
                checksum=sent.checksum,
                size_bytes=size_bytes,
                user_metadata=dict(metadata or {}),
                content_type=content_type,
            ),
            query={"path": path},
            headers={"If-None-Match": "*"} if if_absent else None,
        )

    def upload_stream(
        self,
        repository: str,
        branch: str,
        path: str,
        source: BinaryIO,
        *,
        content_type: str = CONTENT_TYPE_DEFAULT,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        progress: Progress = _ignore,
    ) -> ObjectStats:
        """Send a stream of unknown length that can be read only once, such as a pipe. Never repeated.

        Raises:
            Taken, Damaged, Invalid: as `upload`.
        """
        sent = _Moved(progress)

        def content() -> Iterator[bytes]:
            while chunk := source.read(CHUNK_BYTES):
                sent.add(chunk)
                yield chunk

        headers = upload_headers(content_type, metadata, size_bytes=None, if_absent=if_absent)
        return self._upload(repository, branch, path, content, headers, sent, once=True)

    def download(
        self,
        repository: str,
        ref: str,
        path: str,
        target: Path,
        *,
        presigned: bool = False,
        progress: Progress = _ignore,
    ) -> int:
        """Fetch an object into a file, all or nothing, as the head of this file says; its size in bytes.

        Folders above the target must exist. `presigned`: as `download_to`.

        Raises:
            Missing: no such object.
            Damaged: the bytes do not match the announced size or checksum.
            Unreachable: the connection broke again and again.
            Unavailable: `presigned`, and the server signs no URLs, or the object store refused.
        """
        with _replacing(target) as file:
            return self.download_to(repository, ref, path, file, presigned=presigned, progress=progress, seekable=True)

    def download_to(
        self,
        repository: str,
        ref: str,
        path: str,
        file: IO[bytes],
        *,
        presigned: bool = False,
        progress: Progress = _ignore,
        seekable: bool = False,
    ) -> int:
        """Fetch an object into an open file, and check it at the end. Its size in bytes.

        Where the file is not `seekable`, an object that changes while its connection breaks is an error; else it is
        fetched again from its start. `presigned`: the bytes come from the object store, by a URL that the server signs.

        Raises:
            As `download`.
        """
        received, etag, size_bytes = _Moved(progress), "", None
        signed = self._sign(repository, ref, path) if presigned else None
        for resumes in range(_RESUMES_MAX + 1):
            try:
                with self._open_at(repository, ref, path, received.size_bytes, etag, signed) as response:
                    if received.size_bytes and response.status_code == 200:
                        _start_over(file, received, path, seekable=seekable)
                    if not received.size_bytes:
                        etag, size_bytes = _announced(response)
                    for chunk in response.iter_raw():
                        file.write(chunk)
                        received.add(chunk)
                break
            except httpx.TransportError as error:
                if resumes == _RESUMES_MAX:
                    raise Unreachable(
                        f"{path}: the connection broke {resumes + 1} times: {error}", path=path
                    ) from error
        if signed is not None:
            # The store's own tag is an MD5 only sometimes, and may look like one: encryption changes it.
            received.check(path, signed.size_bytes, signed.checksum)
        else:
            received.check(path, size_bytes, etag.strip('"'))
        return received.size_bytes

    def _sign(self, repository: str, ref: str, path: str) -> ObjectStats:
        """Return the object with a signed URL as its address."""
        stats = self._connection.do(objects.STAT_OBJECT, repository, ref, query={"path": path, "presign": True})
        if stats.physical_address_expiry is None:
            raise Unavailable(_UNSIGNED, path=path)
        return stats

    def _upload(
        self,
        repository: str,
        branch: str,
        path: str,
        content: Callable[[], Iterator[bytes]],
        headers: Mapping[str, str],
        sent: _Moved,
        *,
        once: bool = False,
    ) -> ObjectStats:
        stats = self._connection.do(
            objects.UPLOAD_OBJECT,
            repository,
            branch,
            query={"path": path},
            content=content,
            headers=headers,
            once=once,
        )
        sent.check(path, stats.size_bytes, stats.checksum)
        return stats

    @contextmanager
    def _open_at(
        self, repository: str, ref: str, path: str, start: int, etag: str, signed: ObjectStats | None
    ) -> Iterator[httpx.Response]:
        """The object from `start` on if it is still the one of this etag (206), or whole (200)."""
        # Without this httpx asks for compressed bytes, and neither sizes nor ranges would be those of the object.
        headers = {"Accept-Encoding": "identity"}
        if start and etag:
            headers |= {"Range": byte_range(start, None), "If-Range": etag}
        with (
            self._connection.open(objects.GET_OBJECT, repository, ref, query={"path": path}, headers=headers)
            if signed is None
            else self._connection.open_signed("GET", signed.physical_address, about=path, headers=headers)
        ) as response:
            if response.status_code == 206 and response.headers.get("ETag", "") != etag:
                raise Unavailable(f"{path} changed while it was being fetched", path=path)
            yield response


class _Moved:
    """Size and MD5 of the bytes that moved so far, reported to the progress callback as they move."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._md5 = hashlib.md5(usedforsecurity=False)
        self.size_bytes = 0

    def restart(self) -> None:
        if self.size_bytes:
            self._progress(-self.size_bytes)
        self._md5 = hashlib.md5(usedforsecurity=False)
        self.size_bytes = 0

    def add(self, chunk: bytes) -> None:
        self._md5.update(chunk)
        self.size_bytes += len(chunk)
        self._progress(len(chunk))

    @property
    def checksum(self) -> str:
        return self._md5.hexdigest()

    def check(self, path: str, size_bytes: int | None, checksum: str) -> None:
        if size_bytes is not None and size_bytes != self.size_bytes:
            raise Damaged(f"{path}: {self.size_bytes} bytes moved, but it is {size_bytes} bytes long", path=path)
        if _MD5.fullmatch(checksum) and checksum != self.checksum:
            raise Damaged(f"{path}: its checksum is {checksum}, that of the bytes {self.checksum}", path=path)


def byte_range(start: int, end: int | None) -> str:
    """An HTTP Range header for the bytes from `start` up to, not including, `end`."""
    return f"bytes={start}-{'' if end is None else end - 1}"


def upload_headers(
    content_type: str, metadata: Mapping[str, str] | None, *, size_bytes: int | None, if_absent: bool
) -> dict[str, str]:
    """Headers of an upload; without a size the body is sent in chunks.

    Raises:
        Invalid: the content type, or a name or value of the metadata, cannot be that of a header.
    """
    if not (content_type.isascii() and content_type.isprintable()):
        raise Invalid(f"content type {content_type!a} has characters that no HTTP header can have")
    for name, value in (metadata or {}).items():
        if not _HEADER_NAME.fullmatch(name):
            raise Invalid(f"metadata name {name!a} has characters that no HTTP header can have", name=name)
        if not isinstance(value, str):
            raise Invalid(f"metadata {name}: {value!a} is not text", name=name)
        if _NO_HEADER_VALUE.search(value):
            raise Invalid(
                f"metadata {name}: {value!a} has control characters, or spaces at its ends, that no HTTP header can"
                " have",
                name=name,
            )
    headers = {"Content-Type": content_type}
    headers |= {f"x-lakefs-meta-{name}": value for name, value in (metadata or {}).items()}
    if size_bytes is not None:
        headers["Content-Length"] = str(size_bytes)
    if if_absent:
        headers["If-None-Match"] = "*"
    return headers


def _start_over(file: IO[bytes], received: _Moved, path: str, *, seekable: bool) -> None:
    if not seekable:
        raise Unavailable(f"{path} could not be taken up where its connection broke", path=path)
    file.seek(0)
    file.truncate()
    received.restart()


def _announced(response: httpx.Response) -> tuple[str, int | None]:
    length = response.headers.get("Content-Length")
    return response.headers.get("ETag", ""), None if length is None else int(length)


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """A temporary file beside `target` that takes its name when the block ends well, and else vanishes."""
    # Without the target's name: a name of 255 bytes, the most that a disk takes, has no room for more.
    temporary = target.with_name(f".lakebed-{secrets.token_hex(12)}.part")
    with temporary.open("xb") as file:
        try:
            yield file
            file.close()
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
