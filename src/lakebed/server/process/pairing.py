"""Refuse to start when a data folder and its metadata do not belong together.

The folder's marker has an id, and the metadata has one too. Each start records the other's id:

- `metadata` in the folder names the store. So a start without the needed `--kv` is refused. It would otherwise make a
  new, empty installation over the objects of another one, which the collections of both would not know of.
- `server/folder` in the store names the folder of `local://` namespaces. So a second machine that shares the store but
  has its own folder is refused: it would not find any object of the first.

Copies of a store, and data folders restored from a backup, keep both ids.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from lakebed.base import Ids, Invalid, Unavailable
from lakebed.kv import Held, PredicateFailed, Store

from .folder import MARKER_FILE, METADATA_FILE, STORE_FILE, DataFolderFormat

PARTITION: Final = b"server"
FOLDER: Final = b"server/folder"


class WrongMetadata(Invalid):
    """The data folder was served with another database."""


class Pairing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The id of this store, and of the data folder with its objects: empty if no data folder has them."""

    store: str
    folder: str = ""


async def pair(folder: Path, store: Store, ids: Ids, *, holds_objects: bool) -> None:
    """Check that the folder and the store belong together. At their first use together, record both ids.

    Raises:
        WrongMetadata, Invalid: they do not belong together.
    """
    folder_id = _id_of(folder)
    if folder_id is None:
        return  # not a data folder on disk, but a test's or an early release's
    found = await check_pair(folder, store, holds_objects=holds_objects)
    seen = None if found is None else msgspec.json.decode(found.value, type=Pairing)
    if found is None or seen is None or (holds_objects and not seen.folder):
        wanted = Pairing(store=seen.store if seen else ids.fresh(), folder=folder_id if holds_objects else "")
        await _write(store, wanted, found)
        found = await check_pair(folder, store, holds_objects=holds_objects)  # another server may have been faster
        assert found is not None, "no server deletes this record"
    if _known_store(folder) is None:
        _note(folder, msgspec.json.decode(found.value, type=Pairing).store)


def check_file(folder: Path) -> None:
    """Check that the folder's own SQLite file is there, unless no server has run on the folder yet.

    Raises:
        WrongMetadata: the folder was served with another database.
    """
    # Check before the file is opened: opening makes an empty file, which the next command would take for the metadata.
    if not (folder / STORE_FILE).exists() and _known_store(folder) is not None:
        raise _new_beside(folder)


async def check_pair(folder: Path, store: Store, *, holds_objects: bool) -> Held | None:
    """Return the store's record if the two belong together, or None if no server has run on the store yet.

    Raises:
        WrongMetadata, Invalid: they do not belong together.
    """
    folder_id, known = _id_of(folder), _known_store(folder)
    found = await store.get(PARTITION, FOLDER)
    if found is None:
        if known is not None:
            raise _new_beside(folder)
        return None
    pairing = msgspec.json.decode(found.value, type=Pairing)
    if known is not None and known != pairing.store:
        raise WrongMetadata(
            f"{folder} was served with another database than this one: name that one by --kv or LAKEBED_STORE_URI",
            folder=str(folder),
        )
    if holds_objects and folder_id is not None and pairing.folder not in {"", folder_id}:
        raise Invalid(
            f"the objects of this database lie in another data folder than {folder}: mount that folder here and name"
            " it by --data, or keep objects in an object store (LAKEBED_BLOCKSTORE)",
            folder=str(folder),
        )
    return found


def _new_beside(folder: Path) -> WrongMetadata:
    return WrongMetadata(
        f"{folder} was served with another database, and this one is new: name the other by --kv or"
        " LAKEBED_STORE_URI, or copy it here first with `lakebed kv copy`."
        " If it is gone for good, restore a backup; docs/guide/databases.md says how",
        folder=str(folder),
    )


async def _write(store: Store, pairing: Pairing, seen: Held | None) -> None:
    """Write the record, unless another server was faster."""
    with suppress(PredicateFailed):
        await store.set_if(PARTITION, FOLDER, msgspec.json.encode(pairing), seen.predicate if seen else None)


def _id_of(folder: Path) -> str | None:
    try:
        found = json.loads((folder / MARKER_FILE).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataFolderFormat(f"{folder / MARKER_FILE} is damaged", folder=str(folder)) from error
    id_ = found.get("id")
    return id_ if isinstance(id_, str) else None


def _known_store(folder: Path) -> str | None:
    try:
        return (folder / METADATA_FILE).read_text().strip()
    except FileNotFoundError:
        return None


def _note(folder: Path, store_id: str) -> None:
    draft = folder / f"{METADATA_FILE}.{os.getpid()}"
    try:
        draft.touch(mode=0o600)
        draft.write_text(store_id + "\n")
        draft.replace(folder / METADATA_FILE)
    except OSError as error:
        raise Unavailable(f"cannot use {folder}: {error.strerror}", folder=str(folder)) from error
