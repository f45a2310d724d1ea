"""Which files a change of metadata adds to a table, and which it removes. The cost follows the change, not the table.

A table's metadata reaches: its own file and those of its log, manifest lists, the manifests that they list, the files
that the manifests have as live, and statistics. Manifests never change, and most stay when a snapshot is added. So an
append reads two manifest lists and the manifests that only the new one lists.

    added     what new snapshots reach through manifests that the snapshot before them did not list
    removed   what only snapshots that go did reach. Only then are the lists of all other snapshots read.

A file may be in manifests that go and in others that stay, after a rewrite. So where files would go, the manifests that
stay are read, too: a file goes only if none of them has it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .metadata import InvalidTable, Metadata

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

Read: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, bytes]]]
"""Return the bytes of files by URI. It raises an error of its own for a file that is not there."""

Parse: TypeAlias = Callable[[str, bytes], frozenset[str]]

_MANIFEST_PATH: Final = 500
_STATUS: Final = 0
_DATA_FILE: Final = 2
_FILE_PATH: Final = 100
_DELETED: Final = 2
_AT_ONCE: Final = 64
"""Manifests that are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class Change:
    """The URIs of files, without the metadata file that the change itself writes."""

    added: frozenset[str]
    removed: frozenset[str]


async def change_of(old: Metadata | None, new: Metadata, read: Read) -> Change:
    """Compare two metadata of a table. `old` is None for a table that was not there.

    Raises:
        InvalidTable: a file lies outside the table's location, or a manifest is no manifest.
        LakebedError: an error of `read`.
    """
    before, after = _direct(old), _direct(new)
    known = {one.snapshot_id for one in old.value.snapshots} if old else set()
    kept_ids = {one.snapshot_id for one in new.value.snapshots}
    fresh = [one for one in new.value.snapshots if one.snapshot_id not in known]
    gone = [one for one in old.value.snapshots if one.snapshot_id not in kept_ids] if old else []
    lists = _Manifests(read, new.location)
    _check(after - before, new.location)

    added = set(after - before)
    if fresh:
        manifests = await lists.of(fresh) - await lists.of(_parents(fresh, old))
        _check(manifests, new.location)
        added |= manifests
        added |= await lists.files(manifests)
    removed = set(before - after)
    if gone:
        staying = await lists.of(new.value.snapshots)
        going = await lists.of(gone) - staying
        files = await lists.files(going)
        if files:
            files -= await lists.files(staying)
        removed |= going | files
    _check(added, new.location)
    return Change(frozenset(added), frozenset(removed - added))


def _direct(metadata: Metadata | None) -> set[str]:
    """Return the files that the metadata names itself."""
    if metadata is None:
        return set()
    value = metadata.value
    found = {entry.metadata_file for entry in value.metadata_log}
    if metadata.uri:
        found.add(metadata.uri)
    found.update(one.manifest_list for one in value.snapshots if one.manifest_list)
    found.update(one.statistics_path for one in (*value.statistics, *value.partition_statistics))
    return found


def _parents(fresh: Sequence[Snapshot], old: Metadata | None) -> list[Snapshot]:
    """Return the old snapshots that fresh ones were made from: their manifests are entries already."""
    if old is None:
        return []
    ids = {one.parent_snapshot_id for one in fresh} | {old.value.current_snapshot_id}
    return [one for one in old.value.snapshots if one.snapshot_id in ids]


def _check(uris: Iterable[str], location: str) -> None:
    for uri in uris:
        rest = uri.removeprefix(location + "/")
        if rest == uri or not rest or {"", ".", ".."} & set(rest.split("/")):
            raise InvalidTable(f"{uri} is no file of this table: they lie below {location}", uri=uri)


class _Manifests:
    """Read manifest lists and manifests, each once."""

    def __init__(self, read: Read, location: str) -> None:
        self._read = read
        self._location = location
        self._lists: dict[str, frozenset[str]] = {}
        self._files: dict[str, frozenset[str]] = {}

    async def of(self, snapshots: Sequence[Snapshot]) -> set[str]:
        """Return the manifests of snapshots."""
        uris = [uri for one in snapshots if (uri := _list_of(one))]
        await self._fill(self._lists, uris, _manifests_in)
        return {manifest for uri in uris for manifest in self._lists[uri]}

    async def files(self, manifests: Iterable[str]) -> set[str]:
        """Return the files that manifests have as live."""
        uris = list(manifests)
        await self._fill(self._files, uris, _files_in)
        return {file for uri in uris for file in self._files[uri]}

    async def _fill(self, known: dict[str, frozenset[str]], uris: Sequence[str], parse: Parse) -> None:
        missing = sorted({uri for uri in uris if uri not in known})
        _check(missing, self._location)
        for start in range(0, len(missing), _AT_ONCE):
            found = await self._read(missing[start : start + _AT_ONCE])
            known |= await asyncio.to_thread(_parsed, parse, found)


def _parsed(parse: Parse, found: Mapping[str, bytes]) -> dict[str, frozenset[str]]:
    return {uri: parse(uri, data) for uri, data in found.items()}


def _list_of(snapshot: Snapshot) -> str:
    if snapshot.manifest_list is None:
        raise InvalidTable(f"snapshot {snapshot.snapshot_id} names no manifest list: such tables are too old")
    return snapshot.manifest_list


def _manifests_in(uri: str, data: bytes) -> frozenset[str]:
    return frozenset(path for _, path in _rows(uri, data, path=_MANIFEST_PATH))


def _files_in(uri: str, data: bytes) -> frozenset[str]:
    """Return the paths of live entries. Delete vectors share a file: it is one path."""
    rows = _rows(uri, data, status=_STATUS, path=_FILE_PATH)
    return frozenset(path for status, path in rows if status != _DELETED)


def _rows(uri: str, data: bytes, *, path: int, status: int = -1) -> list[tuple[Any, str]]:
    """Decode two fields of a file in Avro, by the ids of the format, and skip the others: a fifth of the time."""
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.avro.reader import StructReader
    from pyiceberg.typedef import Record

    at = {status: 0, path: 1}

    def narrowed(reader: StructReader) -> StructReader:
        """Return a reader that skips the fields that do not count."""
        readers: list[tuple[int | None, Any]] = []
        for field, (_, inner) in zip(reader.struct.fields, reader.field_readers, strict=True):
            if field.field_id == _DATA_FILE and isinstance(inner, StructReader):
                readers.append((1, narrowed(inner)))
            else:
                readers.append((at.get(field.field_id), inner))
        return StructReader(tuple(readers), Record, reader.struct)

    try:
        with AvroFile[Record](_Bytes(uri, data)) as rows:  # type: ignore[arg-type]  # it needs no more of a file
            assert isinstance(rows.reader, StructReader)
            rows.reader = narrowed(rows.reader)
            found = [(row[0], row[1] if isinstance(row[1], str) else row[1][1]) for row in rows]
    except Exception as error:
        raise InvalidTable(f"{uri} is no manifest of Iceberg: {type(error).__name__}", uri=uri) from error
    if not all(isinstance(one, str) for _, one in found):
        raise InvalidTable(f"{uri} is no manifest of Iceberg: an entry has no path", uri=uri)
    return found


class _Bytes:
    """A file in memory, as the library's reader wants it."""

    def __init__(self, location: str, data: bytes) -> None:
        self.location = location
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def open(self, seekable: bool = True) -> io.BytesIO:  # noqa: ARG002 - the library's signature
        return io.BytesIO(self._data)
