"""Back up a data folder while servers write to it, check a backup, and restore it into a new folder.

A backup has the layout of a data folder (`folder.py`), and `backup.json`, which is written last. It has the objects of
`local://` namespaces. Objects in S3 are not copied.

1. Copy the installation marks. A mark is recorded before it is stored, so the snapshot knows every copied mark.
2. Copy the metadata as of one moment.
3. Copy the objects. Objects that this snapshot names exist already, and no writer replaces an object.
4. Check each object and tree file that the snapshot names. A collection may have deleted one since. Then take another
   snapshot, and copy only new files.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from lakebed.base import AlreadyExists, Conflict, Corrupt, NotFound, count_of, human_size
from lakebed.gc.messages import INSTALLATION_PREFIX
from lakebed.kv import check_snapshot, open_store, snapshot_store, sqlite_uri
from lakebed.objectstore import ObjectStore, open_objectstore
from lakebed.runtime import live_ports
from lakebed.server.options import ServerOptions
from lakebed.server.process.folder import (
    BACKUP_FILE,
    MARKER_FILE,
    OBJECTS_FOLDER,
    STORE_FILE,
    UNFINISHED_FILE,
    prepare_folder,
)

from .audit import AUDIT_FOLDER
from .backup_check import Checked, check_named
from .recovery import NoDataFolder

FORMAT: Final = 1
SNAPSHOTS_MAX: Final = 3
_MARKS: Final = f"/{INSTALLATION_PREFIX}"
_TEMPORARY: Final = ".lakebed-tmp"

Say = Callable[[str], object]


class FolderTaken(AlreadyExists):
    """The folder is not empty. A backup and a restore need a new or an empty folder."""


class NotABackup(NotFound):
    """The folder has no `backup.json`: it is no backup, or an unfinished one."""


class BackupDamaged(Corrupt):
    """The backup does not match its `backup.json`, or an object or file that it names is missing."""


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a backup in `backup.json`. `files` counts all files below `objects`, including deleted repositories.

    `files_shared` and `bytes_shared` count the files that are links to an older backup's files and use no extra space.
    """

    format: int = FORMAT
    release: str
    made_ms: int
    blockstore: str
    metadata_bytes: int
    metadata_sha256: str
    files: int
    size_bytes: int
    files_shared: int = 0
    bytes_shared: int = 0
    checked: Checked


def create_backup(options: ServerOptions, target: Path, *, like: Path | None = None, say: Say | None = None) -> Backup:
    """Back the data folder up into a new folder. Objects that the backup `like` also has become links to its files.

    Call `say` at each step. Blocks, and runs its own event loop.

    Raises:
        NoDataFolder, FolderTaken, NotABackup: of the data folder, `target` and `like`.
        BackupDamaged: the live installation itself lacks an object or file that it names.
        Conflict: see that class.
        StoreUnavailable, InvalidStoreUri: the metadata cannot be copied.
    """
    say = say or (lambda _: None)
    source = options.data_dir
    if not (source / MARKER_FILE).exists():
        raise NoDataFolder(f"{source} is not a data folder: it has no {MARKER_FILE}", folder=str(source))
    if like is not None:
        _described(like)
    metadata = options.metadata_uri
    check_snapshot(metadata)  # before anything is made: a corrected command may name the same folder
    unfinished = _begin(target)
    made_ms = live_ports().clock.now_ms()
    objects = _objects_of(options)
    copier = _Copier(objects, target / OBJECTS_FOLDER, None if like is None else like / OBJECTS_FOLDER)
    if objects is not None:
        copier.copy_marks()
    missing: set[str] = set()
    for _ in range(SNAPSHOTS_MAX):
        (target / STORE_FILE).unlink(missing_ok=True)
        snapshot_store(metadata, target / STORE_FILE)
        say(f"copied the metadata: {human_size((target / STORE_FILE).stat().st_size)}")
        if objects is not None:
            copier.copy_objects()
            say(f"copied the objects: {count_of(copier.files, 'file')}, {human_size(copier.size_bytes)}")
        checked = asyncio.run(_check(options, target))
        if not checked.missing_count:
            break
        if missing.intersection(checked.missing):
            # The object was missing before this snapshot, and the snapshot names it: no collection deleted it in
            # between.
            raise _damaged(source, checked)
        missing = set(checked.missing)
        say(f"{count_of(checked.missing_count, 'object')} went meanwhile: once more")
    else:
        raise Conflict(
            "collections deleted objects faster than they were copied: try again while none runs", target=str(target)
        )
    _copy_audit_log(source, target)
    shutil.copyfile(source / MARKER_FILE, _private(target / MARKER_FILE))
    made = Backup(
        release=version("lakebed"),
        made_ms=made_ms,
        blockstore=options.blockstore,
        metadata_bytes=(target / STORE_FILE).stat().st_size,
        metadata_sha256=_sha256(target / STORE_FILE),
        files=copier.files,
        size_bytes=copier.size_bytes,
        files_shared=copier.files_shared,
        bytes_shared=copier.bytes_shared,
        checked=checked,
    )
    # Flush all files to disk before writing the file that marks the backup complete.
    os.sync()
    _private(target / BACKUP_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(made)) + b"\n")
    unfinished.unlink()
    os.sync()
    return made


def verify_backup(options: ServerOptions, folder: Path) -> Checked:
    """Check a backup: its metadata by its digest, its trees by their digests, its objects by their sizes.

    Raises:
        NotABackup, BackupDamaged: see those classes.
    """
    described = _described(folder)
    if _sha256(folder / STORE_FILE) != described.metadata_sha256:
        raise BackupDamaged(f"{folder / STORE_FILE} is not the file that was backed up", folder=str(folder))
    checked = asyncio.run(_check(replace(options, blockstore=described.blockstore), folder))
    if checked.missing_count:
        raise _damaged(folder, checked)
    return checked


def restore_backup(options: ServerOptions, folder: Path) -> Checked:
    """Verify a backup, then make a new data folder from it. The backup is not changed.

    Raises:
        NotABackup, BackupDamaged: of the backup.
        FolderTaken: the data folder exists.
    """
    target = options.data_dir
    checked = verify_backup(options, folder)
    unfinished = _begin(target)
    shutil.copyfile(folder / STORE_FILE, _private(target / STORE_FILE))
    _Copier(folder / OBJECTS_FOLDER, target / OBJECTS_FOLDER, None).copy_objects(with_marks=True)
    _copy_audit_log(folder, target)
    shutil.copyfile(folder / MARKER_FILE, _private(target / MARKER_FILE))
    # Flush all files to disk before a server may start on the folder.
    os.sync()
    unfinished.unlink()
    prepare_folder(target)
    return checked


class _Copier:
    """Copy object files from one folder to another, each once."""

    def __init__(self, source: Path | None, target: Path, like: Path | None) -> None:
        self._source = source
        self._target = target
        self._like = like
        self.files = self.files_shared = 0
        self.size_bytes = self.bytes_shared = 0
        target.mkdir(mode=0o700)

    def copy_marks(self) -> None:
        for path in self._found():
            if _MARKS in f"/{path}":
                self._copy(path)

    def copy_objects(self, *, with_marks: bool = False) -> None:
        for path in self._found():
            if with_marks or _MARKS not in f"/{path}":
                self._copy(path)

    def _found(self) -> Iterator[str]:
        """Yield the paths of files, relative to the source. Skip drafts, which are no objects yet."""
        if self._source is None or not self._source.exists():
            return
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            with os.scandir(self._source / folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting += [f"{folder}{entry.name}/"] if entry.name != _TEMPORARY else []
                    elif entry.is_file(follow_symlinks=False):
                        yield folder + entry.name

    def _copy(self, path: str) -> None:
        assert self._source is not None
        target = self._target / path
        try:
            found = (self._source / path).stat(follow_symlinks=False)
            if target.exists() and _same(target.stat(), found):
                return
            _make_folders(target.parent)
            target.unlink(missing_ok=True)
            if self._link(path, found):
                self.files_shared += 1
                self.bytes_shared += found.st_size
            else:
                shutil.copyfile(self._source / path, _private(target), follow_symlinks=False)
                os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
        except FileNotFoundError:
            # A collection deleted the file meanwhile. The check reports whether the snapshot names it.
            target.unlink(missing_ok=True)
            return
        self.files += 1
        self.size_bytes += found.st_size

    def _link(self, path: str, found: os.stat_result) -> bool:
        if self._like is None:
            return False
        known = self._like / path
        try:
            if not _same(known.stat(follow_symlinks=False), found):
                return False
            (self._target / path).hardlink_to(known)
        except OSError:  # the other backup lacks the file, or is on another disk
            return False
        return True


def _copy_audit_log(source: Path, target: Path) -> None:
    """Copy the audit files as far as they are written. A server may still append to the last one."""
    for file in sorted((source / AUDIT_FOLDER).glob("*")):
        _make_folders(target / AUDIT_FOLDER)
        shutil.copyfile(file, _private(target / AUDIT_FOLDER / file.name))


def _make_folders(folder: Path) -> None:
    """Make the folder and its parents, accessible to their owner alone."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        _make_folders(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns)


async def _check(options: ServerOptions, folder: Path) -> Checked:
    stores = options.objectstore
    if options.blockstore == "local":
        stores = replace(stores, local_root=folder / OBJECTS_FOLDER)

    def open_namespace(uri: str) -> ObjectStore:
        return open_objectstore(uri, stores)

    store = open_store(sqlite_uri(folder / STORE_FILE) + "?mode=read")
    try:
        return await check_named(store, open_namespace, live_ports())
    finally:
        await store.close()


def _objects_of(options: ServerOptions) -> Path | None:
    """Return the folder of the objects, or None if they are not stored in a folder."""
    if options.blockstore != "local":
        return None
    return options.objectstore.local_root or options.data_dir / OBJECTS_FOLDER


def _described(folder: Path) -> Backup:
    try:
        found = msgspec.json.decode((folder / BACKUP_FILE).read_bytes(), type=Backup)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotABackup(
            f"{folder} is not a finished backup: it has no {BACKUP_FILE}. Name a folder that `backup create` made",
            folder=str(folder),
        ) from error
    except msgspec.MsgspecError as error:
        raise BackupDamaged(f"{folder / BACKUP_FILE} is unreadable: {error}", folder=str(folder)) from error
    if found.format != FORMAT:
        raise BackupDamaged(
            f"{folder} is a backup of format {found.format}, made by release {found.release}; this one reads {FORMAT}",
            folder=str(folder),
        )
    return found


def _begin(folder: Path) -> Path:
    """Make the folder and its `unfinished` file. No server starts on the folder until the file is deleted."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderTaken(f"{folder} is not empty: name a new folder", folder=str(folder))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _private(folder / UNFINISHED_FILE)


def _damaged(folder: Path, checked: Checked) -> BackupDamaged:
    shown = "; ".join(checked.missing[:3])
    return BackupDamaged(f"{folder}: {checked.missing_count:,} missing: {shown}", folder=str(folder))


def _private(file: Path) -> Path:
    """Make an empty file that its owner alone can read."""
    file.touch(mode=0o600)
    return file


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
