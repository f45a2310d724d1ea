"""Find the files that a change of metadata adds to a table or removes. The cost follows the change, not the table.

Manifests never change, and most stay when a snapshot is added. So an append reads two manifest lists and the manifests
that only the new one lists.

    added     what new snapshots reach through manifests that the snapshot before them did not list
    removed   what only snapshots that go did reach. Only then are the lists of all other snapshots read.

A file may be in manifests that go and in others that stay, after a rewrite. So where files would go, the manifests that
stay are read, too: a file goes only if none of them has it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from . import avro
from .metadata import InvalidTable, Metadata, is_below, refusing

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

Read: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, bytes]]]
"""Return the bytes of the first of these files, by URI: of one at least, and of no more than fit in memory at a time.

It raises an error of its own for a file that is not there, or larger than MANIFEST_BYTES_MAX.
"""

T = TypeVar("T")
Parse: TypeAlias = Callable[[str, bytes, str, avro.Budget | None], T]

MANIFEST_BYTES_MAX: Final = 64 << 20
"""The size of a manifest, or of a list of manifests: a writer of a table may name any file of it as one.

Engines begin another one at 8 MiB."""

_MANIFEST_PATH: Final = 500
_STATUS: Final = 0
_DATA_FILE: Final = 2
_FILE_PATH: Final = 100
_RECORDS: Final = 103
_SIZE: Final = 104
_CONTENT: Final = 134
_DELETED: Final = 2
_AT_ONCE: Final = 64
"""Manifests that are in memory at the same time."""


Counted: TypeAlias = dict[str, tuple[int, int, int]]
"""Files by URI, with the number of their rows, their bytes, and their content: 0 for data, more for deletes."""


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
    # A client may remove a snapshot and add another with the same id.
    known = {(one.snapshot_id, one.manifest_list) for one in old.value.snapshots} if old else set()
    kept = {(one.snapshot_id, one.manifest_list) for one in new.value.snapshots}
    fresh = [one for one in new.value.snapshots if (one.snapshot_id, one.manifest_list) not in known]
    gone = [one for one in old.value.snapshots if (one.snapshot_id, one.manifest_list) not in kept] if old else []
    lists = _Manifests(read, new.location)
    _check(after - before, new.location)

    added = set(after - before)
    if fresh:
        manifests = await lists.of(fresh) - await lists.of(_parents(fresh, old))
        added |= manifests
        added |= await lists.files(manifests)
    removed = set(before - after)
    if gone:
        staying = await lists.of(new.value.snapshots)
        going = await lists.of(gone) - staying
        files = await lists.files(going)
        removed |= going | await lists.without(files, staying)
    return Change(frozenset(added), frozenset(removed - added))


async def files_apart(
    left: str, right: str, read: Read, *, locations: tuple[str, str], files_max: int
) -> tuple[Counted, Counted] | None:
    """Return the live files that only one of two lists of manifests has, of each side. An empty list is of no snapshot.

    Only manifests that are in one of the lists are read. None: they have more than `files_max` files.

    Raises:
        InvalidTable: a file lies outside its table's location, or a manifest is no manifest.
        LakebedError: an error of `read`.
    """
    sides = [_Manifests(read, location) for location in locations]
    lists = [await side.listed([uri] if uri else []) for side, uri in zip(sides, (left, right), strict=True)]
    only_left = await sides[0].counted(lists[0] - lists[1], files_max)
    only_right = await sides[1].counted(lists[1] - lists[0], files_max)
    if only_left is None or only_right is None:
        return None
    # A rewrite of manifests has the same files in others.
    return (
        {uri: count for uri, count in only_left.items() if uri not in only_right},
        {uri: count for uri, count in only_right.items() if uri not in only_left},
    )


@dataclass(frozen=True, slots=True)
class Reached:
    """`files`: those that are reached. `snapshots`: the ids of those that reach one, in the order of the metadata."""

    files: frozenset[str]
    snapshots: tuple[int, ...]
    # The current snapshot is among them, or the metadata file itself is one of the files.
    is_current: bool


async def reached_by(metadata: Metadata, uris: Set[str], read: Read) -> Reached:
    """Return which of these files the metadata reaches, and by which snapshots. Reads each manifest once.

    Raises:
        InvalidTable, LakebedError: see `change_of`.
    """
    value, manifests = metadata.value, _Manifests(read, metadata.location)
    found = set(_direct(metadata) & uris)
    hit: set[str] = set()
    async for files in manifests.each_files(await manifests.of(value.snapshots)):
        for manifest, inside in files.items():
            if here := inside & uris | ({manifest} & uris):
                found |= here
                hit.add(manifest)
    snapshots = [
        one.snapshot_id for one in value.snapshots if one.manifest_list in uris or hit & await manifests.of([one])
    ]
    is_current = metadata.uri in uris or value.current_snapshot_id in snapshots
    return Reached(frozenset(found), tuple(snapshots), is_current)


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
        if not is_below(uri, location):
            raise InvalidTable(f"{uri} is no file of this table: they lie below {location}", uri=uri)


class _Manifests:
    """Read manifest lists, each once, and manifests."""

    def __init__(self, read: Read, location: str) -> None:
        self._read = read
        self._location = location
        self._lists: dict[str, frozenset[str]] = {}
        self._budget = avro.Budget()

    async def of(self, snapshots: Sequence[Snapshot]) -> set[str]:
        """Return the manifests of snapshots."""
        uris = [uri for one in snapshots if (uri := _list_of(one))]
        return await self.listed(uris)

    async def listed(self, uris: Sequence[str]) -> set[str]:
        """Return the manifests in these lists."""
        missing = [uri for uri in uris if uri not in self._lists]
        async for found in self._each(missing, _manifests_in):
            self._lists |= found
        return {manifest for uri in uris for manifest in self._lists[uri]}

    async def counted(self, manifests: Iterable[str], files_max: int) -> Counted | None:
        """Return the files that manifests have as live, with their counts; None if they are more than `files_max`."""
        files: Counted = {}
        async for found in self._each(manifests, _counted_in):
            for inside in found.values():
                files |= inside
            if len(files) > files_max:
                return None
        return files

    def each_files(self, manifests: Iterable[str]) -> AsyncIterator[dict[str, frozenset[str]]]:
        """Yield the files that manifests have as live, by manifest, some manifests at a time."""
        return self._each(manifests, _files_in)

    async def files(self, manifests: Iterable[str]) -> set[str]:
        """Return the files that manifests have as live."""
        files: set[str] = set()
        async for found in self.each_files(manifests):
            files.update(*found.values())
        return files

    async def without(self, files: set[str], manifests: Iterable[str]) -> set[str]:
        """Return those of the files that no manifest has as live. They are never all in memory."""
        left = set(files)
        if left:
            async for found in self.each_files(manifests):
                left.difference_update(*found.values())
                if not left:
                    break
        return left

    async def _each(self, uris: Iterable[str], parse: Parse[T]) -> AsyncIterator[dict[str, T]]:
        """Yield what files have in them, some files at a time."""
        left = sorted(set(uris))
        _check(left, self._location)
        while left:
            found = await self._read(left[:_AT_ONCE])
            # A thread for each file, one after the other: large files of one table leave turns to other tables.
            place, budget = self._location, self._budget
            yield {uri: await asyncio.to_thread(parse, uri, data, place, budget) for uri, data in found.items()}
            left = [uri for uri in left if uri not in found]


def _list_of(snapshot: Snapshot) -> str:
    if snapshot.manifest_list is None:
        raise InvalidTable(f"snapshot {snapshot.snapshot_id} names no manifest list: such tables are too old")
    return snapshot.manifest_list


def _manifests_in(uri: str, data: bytes, location: str, budget: avro.Budget | None = None) -> frozenset[str]:
    return frozenset(_paths(uri, data, location, budget, path=_MANIFEST_PATH))


def _files_in(uri: str, data: bytes, location: str, budget: avro.Budget | None = None) -> frozenset[str]:
    """Return the paths of live entries. Delete vectors share a file: it is one path."""
    return frozenset(_paths(uri, data, location, budget, status=_STATUS, path=_FILE_PATH))


def _counted_in(uri: str, data: bytes, location: str, budget: avro.Budget | None = None) -> Counted:
    """Return the live entries with rows, bytes and kind of content. Delete vectors of one file count as one."""
    more = (_RECORDS, _SIZE, _CONTENT)
    found = _paths(uri, data, location, budget, status=_STATUS, path=_FILE_PATH, more=more)
    return {path: (rows or 0, size or 0, content or 0) for path, (rows, size, content) in found.items()}


def _paths(
    uri: str,
    data: bytes,
    location: str,
    budget: avro.Budget | None,
    *,
    path: int,
    status: int = -1,
    more: Sequence[int] = (),
) -> dict[str, tuple[Any, ...]]:
    """Decode a few fields of a file in Avro, by the ids of the format, and skip the others: a fifth of the time.

    Returns the paths of entries that are not deleted, each with the fields `more`. Each is checked at once: so memory
    follows the size of the file, whatever it says of the number of its entries (`avro.Budget`).
    """
    found: dict[str, tuple[Any, ...]] = {}
    fields = (status, path, *more)
    with refusing(f"{uri} is no manifest of Iceberg", words=avro.words_of, uri=uri):
        for deleted, name, *rest in avro.rows(uri, data, fields, within=_DATA_FILE, budget=budget):
            _check_path(name)
            if deleted != _DELETED:
                _check((name,), location)
                found[name] = tuple(rest)
    return found


def _check_path(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise avro.Malformed("an entry has no path")


class Bytes:
    """A file in memory, as the library's reader wants it."""

    def __init__(self, location: str, data: bytes) -> None:
        self.location = location
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def open(self, seekable: bool = True) -> io.BytesIO:  # noqa: ARG002 - the library's signature
        return io.BytesIO(self._data)
