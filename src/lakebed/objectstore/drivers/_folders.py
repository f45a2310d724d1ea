"""The directories of one namespace on disk, held open, never reached through a symbolic link.

Every step down is `openat` with O_NOFOLLOW from the directory above: whatever lies inside the root, no key leads out of
it, and nobody can swap a directory for a link between a check and its use. Directories in use stay open in a small
cache, so a put costs no path resolution at all. A cached directory may have been removed meanwhile (tidied after a
delete, perhaps by another process). It cannot be mistaken for one made anew under its name, since the open descriptor
keeps its inode from being used again: everything in it fails with ENOENT, and then the path is walked afresh.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from lakebed.objectstore.store import InvalidObjectKey

OPEN_FOLDERS_MAX: Final = 8
"""Enough for the slice being written, ranges, metaranges, temporaries, and a few that are read. Per store: many stores
may be open, and descriptors are scarce."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Descriptor:
    """An open file or directory. It closes with its last reference, so that no thread ever loses one it works on."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Close it now; only its sole user may. A traceback can keep a reference for long."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


class Folder(Descriptor):
    """An open directory. `is_linked`: that it exists is known to be durable, all the way up to the root."""

    __slots__ = ("is_linked",)

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.is_linked = False


class Folders:
    """Paths are those of keys: relative to the namespace, `/` between segments, empty for the namespace itself.

    `base` is the operator's and may be reached through links; the segments `inside` it, like those of keys, may not.
    """

    def __init__(self, base: Path, inside: tuple[str, ...], *, durable: bool) -> None:
        self._base = base
        self._inside = tuple(segment.encode() for segment in inside)
        self._durable = durable
        self._open: OrderedDict[str, Folder] = OrderedDict()
        self._lock = threading.Lock()

    def cached(self, path: str) -> Folder | None:
        """The directory if it is open already. It may be a removed one."""
        with self._lock:
            folder = self._open.get(path)
            if folder is not None:
                self._open.move_to_end(path)
            return folder

    def find(self, path: str) -> Folder | None:
        """Walk to the directory, whatever is cached; None where there is none.

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
        """The directory, made with all its parents where it is missing; `sync` makes that durable. As long as it is
        empty, anybody may tidy it away again.

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
        """Make durable what was linked into and unlinked from this directory before the call, and that it exists.

        That is looked after once for each directory, and only here: between `make` and the rename there must be nothing
        slow, or a racing delete could tidy the directory away again and again.
        """
        if not self._durable:
            return
        os.fsync(folder.fd)
        if folder.is_linked:
            return
        above = Folder(os.open(self._base, _DIRECTORY))
        for name in self._names(path):
            os.fsync(above.fd)
            below = enter(above, name)
            if below is None:
                return  # all in it has been deleted meanwhile, and it with that
            above = below
        folder.is_linked = os.path.samestat(os.fstat(folder.fd), os.fstat(above.fd))

    def forget(self, path: str) -> None:
        with self._lock:
            self._open.pop(path, None)

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
            return folder

    def _make_base(self) -> Folder:
        try:
            return Folder(os.open(self._base, _DIRECTORY))
        except FileNotFoundError:
            missing = [self._base, *(parent for parent in self._base.parents if not parent.exists())]
            self._base.mkdir(parents=True, exist_ok=True)
        if self._durable:
            for path in missing:
                parent = Folder(os.open(path.parent, _DIRECTORY))
                os.fsync(parent.fd)
        return Folder(os.open(self._base, _DIRECTORY))


def _make_inside(parent: Folder, name: bytes) -> Folder:
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent.fd)
        folder = enter(parent, name)
        if folder is not None:
            return folder
        if kind(parent, name) not in {None, stat.S_IFDIR}:
            raise InvalidObjectKey(f"{os.fsdecode(name)!r} is no directory, and the key needs one there")
        # Tidied away by somebody between the two calls. If the parent went too, mkdir raises FileNotFoundError.


def enter(parent: Folder, name: bytes) -> Folder | None:
    """The directory of this name, or None.

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


def kind(folder: Folder, name: bytes) -> int | None:
    """The type bits of what lies there (stat.S_IFREG and its like), not following links; None where nothing does."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=folder.fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None
