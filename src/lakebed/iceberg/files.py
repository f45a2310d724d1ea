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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from . import avro
from .metadata import InvalidTable, Metadata, is_below, refusing

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

Read: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, bytes]]]
"""Return the bytes of the first of these files, by URI: of one at least, and of no more than fit in memory at a time.

It raises an error of its own for a file that is not there, or larger than MANIFEST_BYTES_MAX.
"""

Entries: TypeAlias = Mapping[str, tuple[Any, ...]]
"""The paths of entries that are not deleted, each with some of its fields."""

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


Counted: TypeAlias = Entries
"""Files by URI, with the number of their rows, their bytes, and their content: 0 or None for data, more for deletes."""


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
    left: tuple[str, str], right: tuple[str, str], read: Read, *, files_max: int
) -> tuple[Counted, Counted] | None:
    """Return the live files that only one of two lists of manifests has, of each side. A side is a list, empty for no
    snapshot, and the location of its table.

    Only manifests that are in one of the lists are read. None: they have more than `files_max` files.

    Raises:
        InvalidTable: a file lies outside its table's location, or a manifest is no manifest.
        LakebedError: an error of `read`.
    """
    sides = [_Manifests(read, location) for _, location in (left, right)]
    lists = [await side.listed([uri] if uri else []) for side, (uri, _) in zip(sides, (left, right), strict=True)]
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
    async for files in manifests.each(await manifests.of(value.snapshots)):
        for manifest, inside in files.items():
            if here := uris & {manifest, *inside}:
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


def _entries(
    uri: str,
    data: bytes,
    location: str,
    budget: avro.Budget | None = None,
    *,
    path: int,
    status: int = -1,
    more: Sequence[int] = (),
) -> Entries:
    """Decode a few fields of a file in Avro, by the ids of the format, and skip the others: a fifth of the time.

    Returns the paths of entries that are not deleted, each with the fields `more`. Delete vectors share a file: it is
    one path. Each is checked at once: so memory follows the size of the file, whatever it says of the number of its
    entries (`avro.Budget`).
    """
    found: dict[str, tuple[Any, ...]] = {}
    fields = (status, path, *more)
    with refusing(f"{uri} is no manifest of Iceberg", words=avro.words_of, uri=uri):
        for deleted, name, *rest in avro.rows(uri, data, fields, within=_DATA_FILE, budget=budget):
            if not isinstance(name, str) or not name:
                raise avro.Malformed("an entry has no path")
            if deleted != _DELETED:
                _check((name,), location)
                found[name] = tuple(rest)
    return found


_manifests_in: Final = partial(_entries, path=_MANIFEST_PATH)
_files_in: Final = partial(_entries, status=_STATUS, path=_FILE_PATH)
_counted_in: Final = partial(_files_in, more=(_RECORDS, _SIZE, _CONTENT))


class _Manifests:
    """Read manifest lists, each once, and manifests."""

    def __init__(self, read: Read, location: str) -> None:
        self._read = read
        self._location = location
        self._lists: dict[str, Entries] = {}
        self._budget = avro.Budget()

    async def of(self, snapshots: Sequence[Snapshot]) -> set[str]:
        """Return the manifests of snapshots."""
        uris = [uri for one in snapshots if (uri := list_in(one))]
        return await self.listed(uris)

    async def listed(self, uris: Sequence[str]) -> set[str]:
        """Return the manifests in these lists."""
        missing = [uri for uri in uris if uri not in self._lists]
        async for found in self.each(missing, _manifests_in):
            self._lists |= found
        return {manifest for uri in uris for manifest in self._lists[uri]}

    async def counted(self, manifests: Iterable[str], files_max: int) -> Counted | None:
        """Return the files that manifests have as live, with their counts; None if they are more than `files_max`."""
        files: dict[str, tuple[Any, ...]] = {}
        async for found in self.each(manifests, _counted_in):
            for inside in found.values():
                files |= inside
            if len(files) > files_max:
                return None
        return files

    async def files(self, manifests: Iterable[str]) -> set[str]:
        """Return the files that manifests have as live."""
        files: set[str] = set()
        async for found in self.each(manifests):
            files.update(*found.values())
        return files

    async def without(self, files: set[str], manifests: Iterable[str]) -> set[str]:
        """Return those of the files that no manifest has as live. They are never all in memory."""
        left = set(files)
        if left:
            async for found in self.each(manifests):
                left.difference_update(*found.values())
                if not left:
                    break
        return left

    async def each(
        self, uris: Iterable[str], parse: Callable[..., Entries] = _files_in
    ) -> AsyncIterator[dict[str, Entries]]:
        """Yield what each of these files has in it, some files at a time."""
        left = sorted(set(uris))
        _check(left, self._location)
        while left:
            found = await self._read(left[:_AT_ONCE])
            # A thread for each file, one after the other: large files of one table leave turns to other tables.
            place, budget = self._location, self._budget
            yield {uri: await asyncio.to_thread(parse, uri, data, place, budget) for uri, data in found.items()}
            left = [uri for uri in left if uri not in found]


def list_in(snapshot: Snapshot) -> str:
    """Return the URI of a snapshot's list of manifests.

    Raises:
        InvalidTable: it has none.
    """
    if snapshot.manifest_list is None:
        raise InvalidTable(f"snapshot {snapshot.snapshot_id} names no manifest list: such tables are too old")
    return snapshot.manifest_list
