"""The data folder of an embedded installation: what lies in it, and telling whether a folder is one.

lakebed.json    {"format": 2}: this is a data folder, of this format
metadata.db     the key-value store (SQLite); -wal and -shm beside it
objects/        what storage namespaces of local:// lie below
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from lakebed.base import Corrupt, Invalid, Unavailable

MARKER_FILE: Final = "lakebed.json"
STORE_FILE: Final = "metadata.db"
OBJECTS_FOLDER: Final = "objects"
FORMAT: Final = 2


class NotADataFolder(Invalid):
    """The folder holds something else. We do not mix with it."""


class DataFolderFormat(Corrupt):
    """Another release made the folder, or its marker is damaged."""


class DataFolderUnavailable(Unavailable):
    """The folder cannot be made or written: permissions, a full or read-only disk."""


def prepare_folder(folder: Path) -> None:
    """Make the folder, if there is none or an empty one, and check that it is ours. Any number may do this at once.

    Raises:
        NotADataFolder, DataFolderFormat, DataFolderUnavailable: see there.
    """
    marker = folder / MARKER_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not marker.exists():
            _check_empty(folder)
            # Under its name only when it is whole: a second server may start at this moment.
            draft = folder / f"{MARKER_FILE}.{os.getpid()}"
            draft.write_text(json.dumps({"format": FORMAT}) + "\n")
            draft.replace(marker)
        (folder / OBJECTS_FOLDER).mkdir(exist_ok=True)
        found = json.loads(marker.read_text() or "{}")
    except (NotADirectoryError, FileExistsError) as error:
        raise NotADataFolder(f"{folder} is not a folder", folder=str(folder)) from error
    except OSError as error:
        raise DataFolderUnavailable(f"cannot use {folder}: {error.strerror}", folder=str(folder)) from error
    except ValueError as error:
        raise DataFolderFormat(f"{marker} is damaged", folder=str(folder)) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataFolderFormat(
            f"{folder} is of format {found.get('format') if isinstance(found, dict) else None}, and this release reads "
            f"{FORMAT} only: serve it with the release that made it, or name a new folder",
            folder=str(folder),
        )


def _check_empty(folder: Path) -> None:
    """What a server that starts at the same time makes is ours, and `lost+found` is the file system's."""
    for name in sorted(entry.name for entry in folder.iterdir()):
        if not name.startswith((MARKER_FILE, STORE_FILE)) and name not in {OBJECTS_FOLDER, "lost+found"}:
            raise NotADataFolder(
                f"{folder} holds {name!r} and no {MARKER_FILE}: it is not a Lakebed data folder; "
                "name an empty or a new one",
                folder=str(folder),
            )
