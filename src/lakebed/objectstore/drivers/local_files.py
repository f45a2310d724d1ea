"""Files of one namespace on disk: its open directories, and drafts of objects.

**Directories** are never reached through a symbolic link. Every step down is `openat` with O_NOFOLLOW from the parent:
no key leads out of the root, and no directory can become a link between a check and its use.

**A draft** is an unfinished object: a temporary file that becomes visible in one step, or never. The order is bytes,
fsync of the file, rename (or link, which fails if the name is taken), fsync of the directory. A put needs no parent
directory before it has all its bytes; right before the rename it makes a directory again that a racing delete removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import resource
import secrets
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lakebed.objectstore.arguments import RESERVED_SEGMENT
from lakebed.objectstore.store import (
    InvalidObjectKey,
    ObjectExists,
    ObjectOutcomeUnknown,
    ObjectStoreUnavailable,
    Stored,
)

OPEN_FOLDERS_MAX: Final = 8
"""Enough for the slice being written, ranges, metaranges, temporary files, and a few directories that are read.

For each store: many stores may be open, and descriptors are scarce.
"""
ALL_FOLDERS_MAX: Final = max(32, min(1_024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16))
"""For all stores of this process together: upkeep opens each repository's."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS_MAX: Final = 32
"""Give up when a directory was removed this often in a row, each time within microseconds: that is no normal race."""


class Descriptor:
    """An open file or directory. It closes with its last reference, so no thread loses a descriptor that it uses."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Close it now; only its sole user may. A traceback can keep a reference for long."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        try:  # noqa: SIM105  # `suppress` costs more than the close, and each read of an object ends here
            self.close()
        except OSError:
            pass


class Folder(Descriptor):
    """An open directory. `is_linked`: its existence is known to be durable, up to the root."""

    __slots__ = ("_began", "_failure", "_turn", "is_linked")

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.is_linked = False
        self._turn = threading.Lock()
        self._began = 0
        """The number of fsync calls that began."""
        self._failure: OSError | None = None

    def sync(self) -> None:
        """Make all links and unlinks before this call durable. Calls that wait together share one fsync.

        The shared fsync must begin after all these calls: an fsync under way may miss their changes.

        Raises:
            OSError: this fsync failed, or an earlier one. The kernel reports a failure once to each descriptor. The
                failed fsync may have covered this caller's changes, even if it ended before this call.
        """
        before = self._began
        with self._turn:
            if self._failure is not None:
                raise OSError(self._failure.errno, self._failure.strerror)
            if self._began > before:
                return
            self._began += 1
            try:
                os.fsync(self.fd)
            except OSError as error:
                self._failure = error
                raise


class Folders:
    """A cache of open directories, so a put costs no path resolution.

    A path is that of a key, or empty for the namespace itself.

    `base` is the operator's and may be reached through links; the segments `inside` it, like those of keys, may not. A
    delete, even of another process, may remove a cached directory. The open descriptor keeps its inode from reuse:
    every use of it then fails with ENOENT, and the path is walked anew.
    """

    def __init__(self, base: Path, inside: tuple[str, ...], *, durable: bool) -> None:
        self._base = base
        self._inside = tuple(segment.encode() for segment in inside)
        self._durable = durable
        self._open: OrderedDict[str, Folder] = OrderedDict()
        self._lock = threading.Lock()

    def cached(self, path: str) -> Folder | None:
        """Return the open directory, or None. It may have been removed since."""
        with self._lock:
            folder = self._open.get(path)
            if folder is not None:
                self._open.move_to_end(path)
            return folder

    def find(self, path: str) -> Folder | None:
        """Walk to the directory, ignoring the cache. Return None if it does not exist.

        Raises:
            InvalidObjectKey: a symbolic link is in the way.
        """
        try:
            folder: Folder | None = Folder(os.open(self._base, _DIRECTORY))
        except (FileNotFoundError, NotADirectoryError):
            return None
        for name in self._names(path):
            assert folder is not None
            folder = enter(folder, name)
            if folder is None:
                return None
        assert folder is not None
        return self._remember(path, folder)

    def make(self, path: str) -> Folder:
        """Return the directory, made with its missing parents; `sync` makes it durable.

        While it is empty, any process may remove it.

        Raises:
            InvalidObjectKey: a symbolic link or an object is in the way.
        """
        folder = self.cached(path)
        if folder is None:
            folder = self._make_base()
            for name in self._names(path):
                folder = _make_inside(folder, name)
            folder = self._remember(path, folder)
        return folder

    def sync(self, path: str, folder: Folder) -> None:
        """Make durable all links and unlinks in this directory before the call, and the directory's own existence.

        Its existence is synced once for each directory, and only here: between `make` and the rename no step may be
        slow, or a racing delete could remove the directory again and again.
        """
        if not self._durable:
            return
        try:
            folder.sync()
        except OSError:
            self._forget(path, folder)  # later callers open it anew; all that used this one get the error
            raise
        if folder.is_linked:
            return
        above = Folder(os.open(self._base, _DIRECTORY))
        for name in self._names(path):
            os.fsync(above.fd)
            below = enter(above, name)
            if below is None:
                return  # its objects were deleted meanwhile, and the directory with them
            above = below
        folder.is_linked = os.path.samestat(os.fstat(folder.fd), os.fstat(above.fd))

    def forget(self, path: str) -> None:
        with self._lock:
            self._open.pop(path, None)

    def _forget(self, path: str, folder: Folder) -> None:
        with self._lock:
            if self._open.get(path) is folder:
                del self._open[path]

    def close(self) -> None:
        with self._lock:
            self._open.clear()

    def _names(self, path: str) -> tuple[bytes, ...]:
        return (*self._inside, *path.encode().split(b"/")) if path else self._inside

    def _remember(self, path: str, folder: Folder) -> Folder:
        with self._lock:
            known = self._open.get(path)
            if known is not None and os.path.samestat(os.fstat(known.fd), os.fstat(folder.fd)):
                return known
            self._open[path] = folder
            self._open.move_to_end(path)
            if len(self._open) > OPEN_FOLDERS_MAX:
                self._open.popitem(last=False)
        _ALL.note(self, path)
        return folder

    def _make_base(self) -> Folder:
        try:
            return Folder(os.open(self._base, _DIRECTORY))
        except FileNotFoundError:
            missing = [self._base, *(parent for parent in self._base.parents if not parent.exists())]
            self._base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._durable:
            for path in missing:
                parent = Folder(os.open(path.parent, _DIRECTORY))
                os.fsync(parent.fd)
        return Folder(os.open(self._base, _DIRECTORY))


class _All:
    """The directories that stores of this process opened, in that order. They may have closed some since."""

    def __init__(self) -> None:
        self._opened: OrderedDict[tuple[int, str], weakref.ref[Folders]] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, folders: Folders, path: str) -> None:
        """Note a directory, and let stores forget those that were opened first, where there are too many."""
        first: list[tuple[weakref.ref[Folders], str]] = []
        with self._lock:
            key = (id(folders), path)
            self._opened[key] = weakref.ref(folders)
            self._opened.move_to_end(key)
            while len(self._opened) > ALL_FOLDERS_MAX:
                (_, other), store = self._opened.popitem(last=False)
                first.append((store, other))
        for store, other in first:
            if (found := store()) is not None:
                found.forget(other)


_ALL: Final = _All()


def _make_inside(parent: Folder, name: bytes) -> Folder:
    while True:
        # Try to enter first: most of a path exists, and a mkdir that fails costs twice as much.
        folder = enter(parent, name)
        if folder is None:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent.fd)
            folder = enter(parent, name)
        if folder is not None:
            return folder
        if kind(parent, name) not in {None, stat.S_IFDIR}:
            raise InvalidObjectKey(f"{os.fsdecode(name)!r} is not a directory, and the key needs one there")
        # Another writer removed it between the two calls. If the parent was removed too, mkdir raises
        # FileNotFoundError.


def enter(parent: Folder, name: bytes) -> Folder | None:
    """Return the directory of this name, or None.

    Raises:
        InvalidObjectKey: it is a symbolic link.
    """
    try:
        return Folder(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent.fd))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
    if kind(parent, name) == stat.S_IFLNK:
        raise InvalidObjectKey(f"{os.fsdecode(name)!r} is a symbolic link, which no key may lead through")
    return None


def reopened(folder: Folder) -> Folder:
    """Open the same directory again, to read its entries.

    Threads that read entries through one descriptor share its position: each would miss entries that the other read.
    """
    return Folder(os.open(".", _DIRECTORY, dir_fd=folder.fd))


def kind(folder: Folder, name: bytes) -> int | None:
    """Return the type bits of a name (such as stat.S_IFREG), not following links; None if it does not exist."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=folder.fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


class AbandonedDraft(Exception):
    """The put was abandoned before the object became visible."""


class Draft:
    """One put's temporary file. All methods but `abandon` block and do I/O, and never run at the same time.

    Temporary files are in one directory at the root of the namespace, which no listing shows. The writer holds a
    `flock` on its file, which the kernel drops when the process dies. So a file that can be locked has no writer: the
    first draft of a store removes such leftovers, without a clock.
    """

    def __init__(self, folders: Folders, *, durable: bool) -> None:
        self._folders = folders
        self._durable = durable
        self._file: Descriptor | None = None
        self._temporary: tuple[Folder, bytes] | None = None
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._size_bytes = 0
        self._decision = threading.Lock()
        self._abandoned = False

    def abandon(self) -> None:
        """Never become visible, unless the object is visible already when this returns."""
        with self._decision:
            self._abandoned = True

    def write(self, chunks: Sequence[bytes]) -> None:
        file = self._opened()
        for chunk in chunks:
            self._check()
            self._md5.update(chunk)
            self._size_bytes += len(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(file.fd, rest) :]

    def copy_from(self, source: Descriptor, start: int, end: int) -> None:
        """Copy these bytes of another file, by reference if the file system supports it."""
        file = self._opened()
        copied, size_bytes = 0, end - start
        with contextlib.suppress(OSError, AttributeError):  # not every file system or kernel supports it
            while copied < size_bytes:
                count = min(size_bytes - copied, 1 << 30)
                done = os.copy_file_range(source.fd, file.fd, count, start + copied, copied)
                if not done:
                    break
                copied += done
                self._check()
        os.lseek(file.fd, copied, os.SEEK_SET)
        while chunk := os.pread(source.fd, min(1 << 20, size_bytes - copied), start + copied):
            self.write([chunk])
            copied += len(chunk)

    def publish(self, path: str, name: str, *, if_absent: bool) -> None:
        """Become visible under this name, durably.

        Raises:
            ObjectExists: `if_absent`, and the name is taken, durably.
            AbandonedDraft: it was abandoned.
            ObjectOutcomeUnknown: the object is visible, and the disk failed to make that durable.
        """
        file = self._opened()
        if self._durable:
            os.fsync(file.fd)
        folder = self._link(path, name.encode(), if_absent=if_absent)
        try:
            self._folders.sync(path, folder)
        except OSError as error:
            raise ObjectOutcomeUnknown(f"{name!r} is stored, and may not outlast a loss of power: {error}") from error

    def stored(self) -> Stored:
        """Return the size and digest of the written bytes."""
        return Stored(size_bytes=self._size_bytes, md5=self._md5.hexdigest())

    def discard(self) -> None:
        """Remove the temporary file, if it still exists, and free its space."""
        self._remove_temporary()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            folder, name = self._temporary
            self._temporary = None
            with contextlib.suppress(OSError):  # a file that cannot be removed now is removed later as a leftover
                os.unlink(name, dir_fd=folder.fd)

    def _check(self) -> None:
        if self._abandoned:
            raise AbandonedDraft

    def _opened(self) -> Descriptor:
        if self._file is not None:
            return self._file
        for _ in range(_ATTEMPTS_MAX):
            self._check()
            name = secrets.token_hex(12).encode()
            try:
                folder = self._folders.cached(RESERVED_SEGMENT) or self._first_folder()
                file = Descriptor(os.open(name, _NEW, 0o600, dir_fd=folder.fd))
            except FileNotFoundError:
                self._folders.forget(RESERVED_SEGMENT)
                continue
            self._temporary = (folder, name)
            # Between the two calls a cleaner may treat the file as a leftover; then it holds the lock, or held it.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fd).st_nlink:
                    self._file = file
                    return file
        raise ObjectStoreUnavailable("the directory for temporary files vanishes as often as it is made")

    def _first_folder(self) -> Folder:
        remove_leftovers(self._folders)
        return self._folders.make(RESERVED_SEGMENT)

    def _link(self, path: str, name: bytes, *, if_absent: bool) -> Folder:
        assert self._file is not None
        assert self._temporary is not None
        for _ in range(_ATTEMPTS_MAX):
            try:
                folder = self._folders.make(path)
                with self._decision:
                    self._check()
                    self._link_once(folder, name, if_absent=if_absent)
            except FileNotFoundError:
                if not os.fstat(self._file.fd).st_nlink:
                    raise ObjectStoreUnavailable("another program removed the temporary file") from None
                self._folders.forget(path)  # removed since `make` made it
                continue
            except FileExistsError:
                raise taken(self._folders, path, folder, name) from None
            except IsADirectoryError:
                raise InvalidObjectKey(
                    f"there are objects below {os.fsdecode(name)!r}, it can be none itself"
                ) from None
            return folder
        raise ObjectStoreUnavailable(f"the directory {path!r} vanishes as often as it is made")

    def _link_once(self, folder: Folder, name: bytes, *, if_absent: bool) -> None:
        assert self._temporary is not None
        source, temporary = self._temporary
        if if_absent:
            os.link(temporary, name, src_dir_fd=source.fd, dst_dir_fd=folder.fd, follow_symlinks=False)
            self._remove_temporary()
        else:
            os.rename(temporary, name, src_dir_fd=source.fd, dst_dir_fd=folder.fd)
            self._temporary = None


def taken(folders: Folders, path: str, folder: Folder, name: bytes) -> Exception:
    """Return the error for a name that is taken.

    The writer of the object may not have synced the directory yet. The caller of this put may rely on the object's
    existence, so make it durable first.
    """
    folders.sync(path, folder)
    if kind(folder, name) == stat.S_IFDIR:
        return InvalidObjectKey(f"there are objects below {os.fsdecode(name)!r}, it can be none itself")
    return ObjectExists(f"there is an object {os.fsdecode(name)!r} already", name=os.fsdecode(name))


def remove_leftovers(folders: Folders) -> int:
    """Remove the temporary files of dead writers, and return their number. Never touches the file of a live writer."""
    folder = folders.find(RESERVED_SEGMENT)
    if folder is None:
        return 0
    removed = 0
    folder = reopened(folder)
    for entry in list(os.scandir(folder.fd)):
        with contextlib.suppress(OSError):  # removed meanwhile, or not ours to open; BlockingIOError: its writer lives
            file = Descriptor(os.open(entry.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.fd))
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(entry.name, dir_fd=folder.fd)
            removed += 1
    return removed
