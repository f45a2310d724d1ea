"""An ObjectStore in a local folder, durable: a put that returned survives `kill -9` and a power loss.

An object is a file whose path is its key; `local_files.py` writes it and opens directories. Deletes are unlinks. A
directory that a delete empties is removed, and a racing put makes it again. Listings walk in byte order of full keys,
and read only directories that `prefix` and `start_after` can match.

A small put costs open, write, fsync, rename, fsync of the directory; no path is resolved. Measured on ext4 on a virtual
disk, 2 shared cores, in operations a second: puts of 1 KiB, durable, with 1, 16 and 64 callers 750–950, 1,100–1,700 and
1,000–2,900 (the bare system calls in threads: 800 with 1, 1,220 with 16); without `durable` 13,000–20,000; gets of 1
KiB 55,000–85,000. Listings return 80,000–165,000 objects a second.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeVar

from lakebed.base import LakebedError
from lakebed.objectstore.arguments import (
    RESERVED_SEGMENT,
    can_begin_object_key,
    check_object_key,
    gather,
    is_object_key,
    outlast,
)
from lakebed.objectstore.store import (
    CHUNK_BYTES,
    Body,
    DeleteFailure,
    InvalidObjectKey,
    Level,
    ObjectCorrupt,
    ObjectMissing,
    ObjectStat,
    ObjectStoreDenied,
    ObjectStoreUnavailable,
    Stored,
)

from .local_files import Descriptor, Draft, Folder, Folders, enter, kind, remove_leftovers, reopened, taken

T = TypeVar("T")

INLINE_BYTES: Final = 1 << 16
"""Up to this size, bytes are read, and written if no fsync follows, on the event loop's own thread."""

READ_INLINE_BYTES: Final = 1 << 20
"""Up to this size, bytes in the kernel's memory are read there too: a range file takes a tenth of a millisecond, and
three times as long in a thread.
"""

PAGE_KEYS: Final = 1000
_WORKERS: Final = 16
_threads: Final = threading.local()
_DENIED: Final = {errno.EACCES, errno.EPERM}
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@cache
def _workers() -> ThreadPoolExecutor:
    """Return the one pool for all stores of the process: its size limits how many fsyncs wait at once."""
    return ThreadPoolExecutor(_WORKERS, thread_name_prefix="lakebed-objectstore")


class LocalObjectStore:
    """An ObjectStore in the directory `base/inside…`, which the first put makes.

    `base` must be trusted: links in it are followed; below it no link is. `durable=False` skips every fsync, for tests:
    objects are as atomic, but a power loss may take one. Each store keeps up to 8 directories open until `close`.
    """

    def __init__(self, uri: str, base: Path, inside: tuple[str, ...] = (), *, durable: bool = True) -> None:
        self._uri = uri
        self._durable = durable
        self._folders = Folders(base, inside, durable=durable)

    @property
    def uri(self) -> str:
        return self._uri

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        check_object_key(key)
        if if_absent and not isinstance(body, bytes):
            # An early check, to spare the transfer of a body whose name is taken. The link at its end decides.
            await _in_thread(partial(self._check_absent, key))
        head, rest = await gather(body, size_bytes, small_bytes=INLINE_BYTES)
        draft = Draft(self._folders, durable=self._durable)
        if rest is None:
            whole = partial(self._put_whole, draft, key, head, if_absent=if_absent)
            # An fsync takes 0.1 to tens of milliseconds, so a durable put runs in a worker thread. Without fsync,
            # passing the put to a thread would cost more than the put.
            if self._durable or len(head) > INLINE_BYTES:
                return await _outlasting(draft.abandon, whole)
            return _translated(whole)
        try:
            await self._write_rest(draft, head, rest)
            return await _outlasting(draft.abandon, partial(_publish, draft, key, if_absent=if_absent))
        finally:
            await _outlasting(draft.abandon, draft.discard)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        file, size_bytes = _translated(partial(self._open, key))
        start, end = _cut(start, end, size_bytes)
        # RWF_NOWAIT returns only bytes in the kernel's memory. Only a read that waits for the disk needs a thread.
        data = _read_cached(file, start, end - start) if end - start <= READ_INLINE_BYTES else None
        if data is None:
            data = await _in_thread(partial(_read, file, start, end - start))
        return _whole(key, data, end - start)

    async def stream(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        file, size_bytes = _translated(partial(self._open, key))
        start, end = _cut(start, end, size_bytes)
        for offset in range(start, end, CHUNK_BYTES):
            length = min(CHUNK_BYTES, end - offset)
            yield _whole(key, await _in_thread(partial(_read, file, offset, length)), length)

    async def stat(self, key: str) -> ObjectStat:
        check_object_key(key)
        found = _translated(partial(self._at, key, _stat))
        if stat.S_ISLNK(found.st_mode):
            raise _translate(OSError(errno.ELOOP, key))
        if not stat.S_ISREG(found.st_mode):
            raise _not_found(key)
        return _object_stat(key, found)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        # Uses no thread if the directory is missing, as in a namespace that is about to be made.
        if _translated(partial(self._folders.find, "")) is None:
            return
        walk = self._walk(prefix, start_after)
        while page := await _in_thread(lambda: [*islice(walk, PAGE_KEYS)]):
            yield page

    async def list_all(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        """See `lakebed.objectstore.ListsAll`. A name that is not UTF-8 has lone surrogates."""
        walk = self._walk(prefix, start_after, shows=_is_anything)
        while page := await _in_thread(lambda: [*islice(walk, PAGE_KEYS)]):
            yield page

    async def level(self, folder: str = "") -> Level:
        return await _in_thread(partial(self._level, folder))

    async def copy(self, source: str, target: str) -> None:
        check_object_key(source)
        check_object_key(target)
        draft = Draft(self._folders, durable=self._durable)
        await _outlasting(draft.abandon, partial(self._copy, draft, source, target))

    async def copy_range(self, source: str, target: str, *, start: int, end: int) -> Stored:
        """See `lakebed.objectstore.CopiesRanges`. The bytes are read once, for their MD5."""
        check_object_key(source)
        check_object_key(target)
        draft = Draft(self._folders, durable=self._durable)
        return await _outlasting(draft.abandon, partial(self._copy_range, draft, source, target, start, end))

    async def presign_get(
        self,
        key: str,
        *,
        expires_s: int,  # noqa: ARG002 - the port's parameters
        file_name: str = "",  # noqa: ARG002 - the port's parameters
    ) -> str | None:
        check_object_key(key)
        return None

    async def presign_put(self, key: str, *, expires_s: int) -> str | None:  # noqa: ARG002 - the port's parameters
        check_object_key(key)
        return None

    async def close(self) -> None:
        self._folders.close()

    async def remove_leftovers(self) -> int:
        """Remove the unfinished files of killed processes, and return their number. Does not affect running puts.

        The first put of every store does this too.
        """
        return await _in_thread(partial(remove_leftovers, self._folders))

    def _put_whole(self, draft: Draft, key: str, data: bytes, *, if_absent: bool) -> Stored:
        if if_absent:
            self._check_absent(key)
        try:
            draft.write([data])
            return _publish(draft, key, if_absent=if_absent)
        finally:
            draft.discard()

    def _check_absent(self, key: str) -> None:
        path, _, name = key.rpartition("/")
        folder = self._folders.cached(path) or self._folders.find(path)
        if folder is not None and kind(folder, name.encode()) is not None:
            raise taken(self._folders, path, folder, name.encode())

    async def _write_rest(self, draft: Draft, head: bytes, rest: AsyncIterator[bytes]) -> None:
        """Write in pieces of about CHUNK_BYTES, each in a thread. The body's next piece is fetched during a write."""
        waiting, waiting_bytes = [head], len(head)
        writing: asyncio.Future[None] | None = None
        try:
            async for chunk in rest:
                waiting.append(chunk)
                waiting_bytes += len(chunk)
                if waiting_bytes >= CHUNK_BYTES:
                    if writing is not None:
                        await writing
                    writing = asyncio.ensure_future(_outlasting(draft.abandon, partial(draft.write, waiting)))
                    waiting, waiting_bytes = [], 0
        finally:
            if writing is not None:
                await writing
        await _outlasting(draft.abandon, partial(draft.write, waiting))

    def _copy(self, draft: Draft, source: str, target: str) -> None:
        file, size_bytes = self._open(source)
        try:
            draft.copy_from(file, 0, size_bytes)
            _publish(draft, target, if_absent=False)
        finally:
            draft.discard()
            file.close()

    def _copy_range(self, draft: Draft, source: str, target: str, start: int, end: int) -> Stored:
        file, size_bytes = self._open(source)
        try:
            if end > size_bytes:
                raise ObjectCorrupt(f"{source!r} ends before byte {end}", key=source, missing_bytes=end - size_bytes)
            draft.copy_from(file, start, end)
            md5 = _md5_of(file, start, end)
            _publish(draft, target, if_absent=False)
        finally:
            draft.discard()
            file.close()
        return Stored(size_bytes=end - start, md5=md5)

    def _open(self, key: str) -> tuple[Descriptor, int]:
        file = self._at(check_object_key(key), _open)
        found = os.fstat(file.fd)
        if not stat.S_ISREG(found.st_mode):
            raise _not_found(key)
        return file, found.st_size

    def _at(self, key: str, act: Callable[[Folder, bytes], T]) -> T:
        """Call `act` with the key's directory and name.

        If a cached directory lacks the name, call it again after a fresh walk.
        """
        path, _, name = key.rpartition("/")
        folder = self._folders.cached(path)
        if folder is not None:
            try:  # Not `contextlib.suppress`, which costs each read more than the look-up.
                return act(folder, name.encode())
            except FileNotFoundError:
                pass
        folder = self._folders.find(path)
        if folder is None:
            raise _not_found(key)
        try:
            return act(folder, name.encode())
        except FileNotFoundError:
            raise _not_found(key) from None

    def _level(self, folder: str) -> Level:
        keys: list[str] = []
        folders: list[str] = []
        found = self._folders.find(folder.removesuffix("/")) if can_begin_object_key(folder) else None
        if found is not None:
            found = reopened(found)
            with os.scandir(found.fd) as scan:
                for entry in scan:
                    key = folder + _decoded(entry.name)
                    if not is_object_key(key):
                        continue  # another program's file, or the directory of temporary files
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(key + "/")
                    elif entry.is_file(follow_symlinks=False):
                        keys.append(key)
        return Level(keys=sorted(keys), folders=sorted(folders))

    def _walk(
        self, prefix: str, start_after: str, shows: Callable[[str], bool] = is_object_key
    ) -> Iterator[ObjectStat]:
        if not can_begin_object_key(prefix):
            return
        path, slash, _ = prefix.rpartition("/")
        folder = self._folders.find(path)
        if folder is not None:
            yield from _walk_folder(reopened(folder), path + slash, prefix, start_after, shows)


class LocalDeleter:
    """Deletes objects of the namespace that a LocalObjectStore with the same arguments reads and writes."""

    def __init__(self, uri: str, base: Path, inside: tuple[str, ...] = (), *, durable: bool = True) -> None:
        self._uri = uri
        self._folders = Folders(base, inside, durable=durable)

    @property
    def uri(self) -> str:
        return self._uri

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        """Delete objects, and directories that become empty. A deletion survives a power loss.

        A cancelled caller stops it: no key is deleted after its CancelledError was raised.
        """
        for key in keys:
            check_object_key(key)
        failures: list[DeleteFailure] = []
        stop = threading.Event()
        for first in range(0, len(keys), PAGE_KEYS):
            page = sorted(keys[first : first + PAGE_KEYS])
            failures += await _outlasting(stop.set, partial(self._delete, page, stop))
        return failures

    async def close(self) -> None:
        self._folders.close()

    def _delete(self, keys: Sequence[str], stop: threading.Event) -> Sequence[DeleteFailure]:
        failures: list[DeleteFailure] = []
        by_path: dict[str, list[str]] = {}
        for key in keys:
            by_path.setdefault(key.rpartition("/")[0], []).append(key)
        for path, group in by_path.items():
            try:
                folder = self._folders.find(path)
                if folder is None:
                    continue
                failures += [failure for key in group if not stop.is_set() and (failure := _unlink(folder, key))]
                self._folders.sync(path, folder)
            except (OSError, InvalidObjectKey) as error:
                failed = {failure.key for failure in failures}
                failures += [DeleteFailure(key=key, reason=str(error)) for key in group if key not in failed]
            else:
                self._tidy(path)
        return failures

    def _tidy(self, path: str) -> None:
        """Remove this directory if it is empty, then each empty parent. The namespace's own directory is kept."""
        while path:
            parent, _, name = path.rpartition("/")
            folder = self._folders.find(parent)
            if folder is None:
                return
            try:
                os.rmdir(name.encode(), dir_fd=folder.fd)
            except OSError:  # mostly: not empty. After any other error, an empty directory does no harm
                return
            self._folders.forget(path)
            path = parent


def _is_anything(key: str) -> bool:
    return RESERVED_SEGMENT not in key.split("/")


def _walk_folder(
    folder: Folder, above: str, prefix: str, start_after: str, shows: Callable[[str], bool]
) -> Iterator[ObjectStat]:
    """Yield objects below a directory whose keys begin with `above`. No other thread may use `folder`.

    A directory sorts as its name with a slash at the end: `a-b` before the objects in `a`, and `a0` after them, in the
    byte order of full keys.
    """
    entries: list[tuple[str, os.DirEntry[str]]] = []
    with os.scandir(folder.fd) as scan:
        for entry in scan:
            key = above + _decoded(entry.name)
            if not shows(key):
                continue  # another program's file, or the directory of temporary files
            if entry.is_dir(follow_symlinks=False):
                key += "/"
                if key.startswith(prefix) and (key > start_after or start_after.startswith(key)):
                    entries.append((key, entry))
            elif key > start_after and key.startswith(prefix) and entry.is_file(follow_symlinks=False):
                entries.append((key, entry))
    entries.sort(key=itemgetter(0))
    for key, entry in entries:
        if key.endswith("/"):
            below = enter(folder, os.fsencode(entry.name))
            if below is not None:
                yield from _walk_folder(below, key, prefix, start_after, shows)
        else:
            try:  # Not `contextlib.suppress`, which costs a tenth of a listing.
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # deleted during the walk
            yield _object_stat(key, found)


def _decoded(name: str) -> str:
    """Return the name as UTF-8, whatever the locale's encoding.

    A name that is not UTF-8 gets lone surrogates, and is no key.
    """
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "surrogateescape")


def _publish(draft: Draft, key: str, *, if_absent: bool) -> Stored:
    path, _, name = key.rpartition("/")
    draft.publish(path, name, if_absent=if_absent)
    return draft.stored()


def _open(folder: Folder, name: bytes) -> Descriptor:
    # Without O_NONBLOCK, opening a pipe at this path would block the event loop.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    return Descriptor(os.open(name, flags, dir_fd=folder.fd))


def _stat(folder: Folder, name: bytes) -> os.stat_result:
    return os.stat(name, dir_fd=folder.fd, follow_symlinks=False)


def _unlink(folder: Folder, key: str) -> DeleteFailure | None:
    name = key.rpartition("/")[2].encode()
    try:
        found = kind(folder, name)
        if found == stat.S_IFREG:
            os.unlink(name, dir_fd=folder.fd)
        elif found not in {None, stat.S_IFDIR}:
            return DeleteFailure(key=key, reason="it is not a regular file, so no object of ours")
    except FileNotFoundError:
        return None
    except OSError as error:
        return DeleteFailure(key=key, reason=str(error))
    return None


def _object_stat(key: str, found: os.stat_result) -> ObjectStat:
    return ObjectStat(key=key, size_bytes=found.st_size, modified_ms=found.st_mtime_ns // 1_000_000)


def _cut(start: int, end: int | None, size_bytes: int) -> tuple[int, int]:
    end = size_bytes if end is None else min(end, size_bytes)
    return min(start, end), end


def _read_cached(file: Descriptor, start: int, length: int) -> bytes | None:
    """Return the bytes if the kernel has all of them in memory; None if it would have to wait for the disk."""
    buffer = _scratch()[:length]
    try:
        return bytes(buffer) if os.preadv(file.fd, [buffer], start, os.RWF_NOWAIT) == length else None
    except (OSError, AttributeError):  # BlockingIOError; or a file system or kernel without this flag
        return None


def _scratch() -> memoryview:
    """Return this thread's read buffer: new memory would first be filled with zeros, which takes as long as the
    read.
    """
    try:
        found: memoryview = _threads.scratch
    except AttributeError:
        found = _threads.scratch = memoryview(bytearray(READ_INLINE_BYTES))
    return found


def _read(file: Descriptor, start: int, length: int) -> bytes:
    """Return these bytes, or fewer if the file ends earlier."""
    data = os.pread(file.fd, length, start)
    while len(data) < length and (more := os.pread(file.fd, length - len(data), start + len(data))):
        data += more
    return data


def _md5_of(file: Descriptor, start: int, end: int) -> str:
    md5 = hashlib.md5(usedforsecurity=False)
    for offset in range(start, end, READ_INLINE_BYTES):
        md5.update(_read(file, offset, min(READ_INLINE_BYTES, end - offset)))
    return md5.hexdigest()


def _whole(key: str, data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise ObjectCorrupt(f"{key!r} became shorter while it was read", key=key, missing_bytes=length - len(data))
    return data


def _not_found(key: str) -> ObjectMissing:
    return ObjectMissing(f"there is no object {key!r}", key=key)


def _translated(work: Callable[[], T]) -> T:
    try:
        return work()
    except OSError as error:
        raise _translate(error) from error


def _translate(error: OSError) -> LakebedError:
    if error.errno == errno.ELOOP:
        return InvalidObjectKey("a symbolic link lies where an object should be, and no key may lead through one")
    if error.errno == errno.ENAMETOOLONG:
        return InvalidObjectKey("a segment of the key is too long for this file system")
    if error.errno in _DENIED:
        return ObjectStoreDenied(f"the folder refused us: {error}", errno=error.errno)
    reason = "the disk is full" if error.errno in _FULL else "the folder refused us"
    return ObjectStoreUnavailable(f"{reason}: {error}", errno=error.errno)


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_workers(), partial(_translated, work))


async def _outlasting(abandon: Callable[[], None], work: Callable[[], T]) -> T:
    """Do work in a thread, to its end. A cancelled caller abandons it."""
    future = asyncio.get_running_loop().run_in_executor(_workers(), partial(_translated, work))
    return await outlast(future, abandon)


os.register_at_fork(after_in_child=_workers.cache_clear)
