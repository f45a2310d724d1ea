"""An object on its way into a folder: a temporary file that becomes visible in one step, or never.

Order is everything here: bytes, fsync of the file, rename (or link, which fails where the name is taken), fsync of the
directory. Temporary files lie in one directory of their own at the root of the namespace: no listing shows them, a put
needs no parent directory before it has all its bytes, and a directory tidied away by a racing delete is made again
right before the rename. The writer holds a `flock` on its temporary file. The kernel drops it when the process dies,
however it dies, so leftovers are recognised without a clock: what can be locked has no writer any more. The first draft
of a store removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Sequence
from typing import Final

from lakebed.objectstore.keys import RESERVED_SEGMENT
from lakebed.objectstore.store import (
    InvalidObjectKey,
    ObjectExists,
    ObjectOutcomeUnknown,
    ObjectStoreUnavailable,
    Stored,
)

from ._folders import Descriptor, Folder, Folders, kind

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS_MAX: Final = 32
"""A directory was tidied away under our hands that often in a row, each time within microseconds: something is odd."""


class AbandonedDraft(Exception):
    """The put was given up before the object became visible."""


class Draft:
    """One put's temporary file. All methods block and do I/O, but `abandon`; no two run at once, but `abandon`."""

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
        """Never become visible, if it is not too late. It is too late once this returns and the object is there."""
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

    def copy_from(self, source: Descriptor, size_bytes: int) -> None:
        """Take the bytes of another file, by reference where the file system can do that."""
        file = self._opened()
        copied = 0
        with contextlib.suppress(OSError, AttributeError):  # not every file system can, nor every system
            while copied < size_bytes:
                done = os.copy_file_range(source.fd, file.fd, min(size_bytes - copied, 1 << 30), copied, copied)
                if not done:
                    break
                copied += done
                self._check()
        os.lseek(file.fd, copied, os.SEEK_SET)
        while chunk := os.pread(source.fd, min(1 << 20, size_bytes - copied), copied):
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
        """What `write` wrote."""
        return Stored(size_bytes=self._size_bytes, md5=self._md5.hexdigest())

    def discard(self) -> None:
        """Remove the temporary file, if there still is one, and give back its space."""
        self._remove_temporary()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            folder, name = self._temporary
            self._temporary = None
            with contextlib.suppress(OSError):  # what cannot be removed now is removed as a leftover
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
                file = Descriptor(os.open(name, _NEW, 0o644, dir_fd=folder.fd))
            except FileNotFoundError:
                self._folders.forget(RESERVED_SEGMENT)
                continue
            self._temporary = (folder, name)
            # Between the two calls a cleaner may take the file for a leftover; then it holds the lock, or has had it.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fd).st_nlink:
                    self._file = file
                    return file
        raise ObjectStoreUnavailable("the directory for temporary files vanishes as often as it is made")

    def _first_folder(self) -> Folder:
        folder = self._folders.make(RESERVED_SEGMENT)
        remove_leftovers(self._folders)
        return folder

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
                    raise ObjectStoreUnavailable("the temporary file was removed by somebody else") from None
                self._folders.forget(path)  # tidied away since we made it
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
    """The error for a name that is taken.

    Its owner may not have come to the fsync of the directory yet. Who hears that the object exists may rest on it, so
    it is made durable first.
    """
    folders.sync(path, folder)
    if kind(folder, name) == stat.S_IFDIR:
        return InvalidObjectKey(f"there are objects below {os.fsdecode(name)!r}, it can be none itself")
    return ObjectExists(f"there is an object {os.fsdecode(name)!r} already", name=os.fsdecode(name))


def remove_leftovers(folders: Folders) -> int:
    """Remove the temporary files of dead writers, and return how many those were. Never touches a live one."""
    folder = folders.find(RESERVED_SEGMENT)
    if folder is None:
        return 0
    removed = 0
    for entry in list(os.scandir(folder.fd)):
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to open; BlockingIOError: its writer lives
            file = Descriptor(os.open(entry.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.fd))
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(entry.name, dir_fd=folder.fd)
            removed += 1
    return removed
