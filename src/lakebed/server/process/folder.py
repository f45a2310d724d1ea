"""The data folder of an embedded installation: its content, and the check that a folder is one.

lakebed.json    {"format": 4, "id": "…"}: marks a data folder of this format
metadata        the id of the store that it was served with (`pairing.py`)
reserve         reserved space, so that a server can still work on a full disk
metadata.db     the key-value store (SQLite); -wal and -shm beside it
objects/        objects of local:// namespaces
audit/          the audit log (`audit.py`)
backup.json     only in a backup, on which no server starts (`backup.py`)
unfinished      only in an unfinished backup or restore, on which no server starts
served.…        the address of a running server, which holds a lock on the file, and the key of its proofs
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lakebed.base import Corrupt, Invalid, Unavailable

MARKER_FILE: Final = "lakebed.json"
STORE_FILE: Final = "metadata.db"
METADATA_FILE: Final = "metadata"
OBJECTS_FOLDER: Final = "objects"
BACKUP_FILE: Final = "backup.json"
UNFINISHED_FILE: Final = "unfinished"
SERVED_FILE: Final = "served."
NONCE_HEADER: Final = "lakebed-nonce"
PROOF_HEADER: Final = "lakebed-proof"
FORMAT: Final = 5

RESERVE_FILE: Final = "reserve"
RESERVE_BYTES: Final = 4 << 20
"""Space for the write-ahead log of the metadata, and for the plan of a collection that frees more."""


class NotADataFolder(Invalid):
    """The folder has other content, which a server must not mix with its own."""


class DataFolderFormat(Corrupt):
    """Another release made the folder, or its marker is damaged."""


def prepare_folder(folder: Path) -> None:
    """Make the folder if it is missing or empty, and check that it is ours. Any number of callers may do this at once.

    Raises:
        NotADataFolder, DataFolderFormat, Unavailable: see those classes.
    """
    marker = folder / MARKER_FILE
    if (folder / BACKUP_FILE).exists():
        raise NotADataFolder(f"{folder} is a backup: restore it into a new folder", folder=str(folder))
    if (folder / UNFINISHED_FILE).exists():
        raise NotADataFolder(f"{folder} holds an unfinished backup or restore: begin it again", folder=str(folder))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not marker.exists():
            _check_empty(folder)
            # Give the marker its name only when it is complete: a second server may start at this moment.
            draft = folder / f"{MARKER_FILE}.{os.getpid()}"
            draft.touch(mode=0o600)
            draft.write_text(json.dumps({"format": FORMAT, "id": secrets.token_hex(16)}) + "\n")
            # If two servers start at once, the first one's id is kept.
            with contextlib.suppress(FileExistsError):
                marker.hardlink_to(draft)
            draft.unlink()
        (folder / OBJECTS_FOLDER).mkdir(mode=0o700, exist_ok=True)
        found = json.loads(marker.read_text() or "{}")
    except (NotADirectoryError, FileExistsError) as error:
        raise NotADataFolder(f"{folder} is not a folder: name an empty or a new one", folder=str(folder)) from error
    except OSError as error:
        raise Unavailable(f"cannot use {folder}: {error.strerror}", folder=str(folder)) from error
    except ValueError as error:
        raise DataFolderFormat(f"{marker} is damaged", folder=str(folder)) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataFolderFormat(
            f"{folder} is of format {found.get('format') if isinstance(found, dict) else None}, and this release reads "
            f"{FORMAT} only: serve it with the release that made it, or name a new folder",
            folder=str(folder),
        )


def keep_reserve(folder: Path) -> bool:
    """Make the reserve if the disk has plenty of space, or delete it if the disk is full. Return whether it deleted
    it.
    """
    reserve = folder / RESERVE_FILE
    try:
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < RESERVE_BYTES and reserve.exists():
            reserve.unlink()
            return True
        if free_bytes > 8 * RESERVE_BYTES and not reserve.exists():
            _allocate(reserve)
    except OSError as error:
        raise Unavailable(f"cannot use {folder}: {error.strerror}", folder=str(folder)) from error
    return False


def _allocate(file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Allocate blocks, not only a length: a sparse file would reserve no space.
        os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
    finally:
        os.close(descriptor)


class Address(NamedTuple):
    """Name the address of a server. Only it and the readers of its folder know `key`."""

    url: str
    key: str


def proof_of(key: str, nonce: str) -> str:
    """Return what a server answers at `/_health` to one who asks whether it is the server of a folder.

    Another one can listen at the address, where the folder's server is in a container with a network of its own.
    """
    return hmac.digest(key.encode(), nonce.encode(), "sha256").hex()


@contextlib.contextmanager
def noting_address(folder: Path, url: str, key: str) -> Iterator[None]:
    """Keep a file with the address of a running server in the folder, for `addresses_of`. A full disk prevents it."""
    file = folder / f"{SERVED_FILE}{secrets.token_hex(8)}"
    draft = file.with_name(f".{file.name}")
    with contextlib.ExitStack() as stack:
        stack.callback(_remove, draft, file)
        with contextlib.suppress(OSError):
            draft.touch(mode=0o600, exist_ok=False)
            stream = stack.enter_context(draft.open("w"))
            # Lock the file before it gets its name: a reader deletes one without a lock.
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.write(f"{url}\n{key}\n")
            stream.flush()
            draft.rename(file)
        yield


def addresses_of(folder: Path) -> list[Address]:
    """Return the addresses of the servers on this machine that serve the folder now.

    The kernel drops the lock of a server that was killed. Its file is deleted.
    """
    found = []
    for file in folder.glob(f"{SERVED_FILE}*"):
        with contextlib.suppress(OSError), file.open() as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                url, _, key = stream.read().partition("\n")
                found.append(Address(url, key.strip()))
            else:
                file.unlink()
    return found


def _remove(*files: Path) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()


def _check_empty(folder: Path) -> None:
    """Refuse a folder with foreign content. Accept the files of a server that starts at the same time, and
    `lost+found` of the file system.
    """
    for name in sorted(entry.name for entry in folder.iterdir()):
        if not name.startswith((MARKER_FILE, STORE_FILE)) and name not in {OBJECTS_FOLDER, "lost+found"}:
            raise NotADataFolder(
                f"{folder} holds {name!r} and no {MARKER_FILE}: it is not a Lakebed data folder; "
                "name an empty or a new one",
                folder=str(folder),
            )
