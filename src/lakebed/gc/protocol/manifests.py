"""Manifests: what an input consists of, so that a reader knows when something is missing. Fail closed.

An input is a folder of Parquet parts. Its manifest names every part with rows, bytes and SHA-256, and the table and
version they follow. A collector that deletes on the word of an input must hold a manifest of it and check each part
against it: a missing part of a *live* set would read as "nothing names these objects". So no function here returns less
than all; each names what is wrong (missing, short, unreadable, unknown) and raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from lakebed.base import Corrupt

from .tables import TABLES, Table

MANIFEST_FORMAT: Final = 1


class BadInput(Corrupt):
    """An input of a run is missing, short, unreadable, or of a version this program does not know. Delete nothing."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file. `name` is relative to the input's folder; `sha256` are 64 hex digits over its bytes."""

    name: str
    rows: int
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A complete input. `folder` is relative to the storage namespace and ends with a slash."""

    format: int
    table: str
    table_version: int
    folder: str
    parts: tuple[Part, ...]
    rows: int
    size_bytes: int

    def digest(self) -> str:
        """SHA-256 over the canonical JSON of this manifest: names the input with all its bytes."""
        return hashlib.sha256(encode_manifest(self)).hexdigest()


def part_of(name: str, data: bytes, *, rows: int) -> Part:
    return Part(name=name, rows=rows, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def manifest_of(table: Table, folder: str, parts: Iterable[Part]) -> Manifest:
    parts = tuple(parts)
    assert folder.endswith("/"), folder
    return Manifest(
        format=MANIFEST_FORMAT,
        table=table.name,
        table_version=table.version,
        folder=folder,
        parts=parts,
        rows=sum(part.rows for part in parts),
        size_bytes=sum(part.size_bytes for part in parts),
    )


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes, *, name: str) -> Manifest:
    """`name` is what errors call it.

    Raises:
        BadInput: not a manifest, not of a format and table version known here, or its sums are wrong.
    """
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"manifest {name} is unreadable: {error}", input=name) from error
    check_manifest(manifest, name=name)
    return manifest


def check_manifest(manifest: Manifest, *, name: str) -> Table:
    """The table it follows, if this program can trust it as it stands.

    Raises:
        BadInput: unknown format, table or table version; sums that do not add up; a part named twice or outside.
    """
    table = TABLES.get(manifest.table)
    part_names = [part.name for part in manifest.parts]
    if manifest.format != MANIFEST_FORMAT:
        problem = f"has the unknown format {manifest.format}"
    elif table is None or not 1 <= manifest.table_version <= table.version:
        problem = f"is of the unknown table {manifest.table} version {manifest.table_version}"
    elif len(set(part_names)) != len(part_names):
        problem = "names a part twice"
    elif any("/" in part or not part for part in part_names) or not manifest.folder.endswith("/"):
        problem = "names a part outside its folder"
    elif manifest.rows != sum(part.rows for part in manifest.parts):
        problem = f"says {manifest.rows} rows, but its parts have {sum(part.rows for part in manifest.parts)}"
    elif manifest.size_bytes != sum(part.size_bytes for part in manifest.parts):
        problem = f"says {manifest.size_bytes} bytes, but its parts have another sum"
    else:
        return table
    raise BadInput(f"manifest {name} {problem}", input=name)


def check_listing(manifest: Manifest, listed: Mapping[str, int]) -> list[str]:
    """Compare with a listing of the folder (part name to bytes): raise for what is missing or of another size.

    Returns the names that lie there and are not in the manifest, sorted: unknown files, to be reported and never read.

    Raises:
        BadInput: naming the first part that is missing, short or long.
    """
    for part in manifest.parts:
        size_bytes = listed.get(part.name)
        if size_bytes is None:
            raise BadInput(f"{manifest.folder}{part.name} is missing", input=manifest.table, part=part.name)
        if size_bytes != part.size_bytes:
            raise BadInput(
                f"{manifest.folder}{part.name} has {size_bytes} bytes instead of {part.size_bytes}",
                input=manifest.table,
                part=part.name,
            )
    return sorted(set(listed) - {part.name for part in manifest.parts})


def check_part(manifest: Manifest, part: Part, data: bytes) -> None:
    """Check that these are the bytes the manifest means.

    Raises:
        BadInput: they are not.
    """
    where = f"{manifest.folder}{part.name}"
    if len(data) != part.size_bytes:
        raise BadInput(f"{where} has {len(data)} bytes instead of {part.size_bytes}", part=part.name)
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise BadInput(f"{where} contradicts its digest {part.sha256[:12]}…", part=part.name)


def check_rows(manifest: Manifest, rows_read: int) -> None:
    """Check that a reader counted at the end of an input what its writer counted.

    Raises:
        BadInput: it is not.
    """
    if rows_read != manifest.rows:
        raise BadInput(f"{manifest.folder} gave {rows_read} rows instead of {manifest.rows}", input=manifest.table)
