"""Import objects that lie elsewhere in the object store: name them on a branch, copy no bytes.

An import commits what it lists, part by part, to a hidden branch of its own. At the end it merges that branch into the
one that was asked for, as one commit in which the source wins. So a reader sees all of it or nothing, however long it
takes, and every step is a move of a branch that the collectors know.

Its record (docs/formats/records.md) is written every few seconds, so any process can answer how far it is. One that was
not written for LOST_AFTER_MS belongs to a process that is gone: the upkeep ends it and removes its branch.

An imported object is an entry with a full URI. No collection deletes what lies outside the namespace. Its checksum is
made of its date and size, because a listing has no digest of the bytes: importing it again unchanged is no change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import (
    OUTCOME_UNKNOWN,
    CommitId,
    Conflict,
    Entry,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Ports,
    Row,
    path_to_key,
    to_row,
)
from lakebed.kv import PredicateFailed
from lakebed.objectstore import ObjectMissing, ObjectStat
from lakebed.ranges import changes_from_rows
from lakebed.versions import BranchNotFound, NoChanges, Note, Record, Versions, decode_record, encode_record

from .changes import Changes
from .errors import InvalidImport
from .guards import Guards
from .namespaces import Namespaces

IMPORT: Final = b"import/"
WORK: Final = "import"
"""The mark of the hidden branches."""
PART_OBJECTS: Final = 100_000
"""Commit this many at a time: about 60 MB of rows."""
BEAT_MS: Final = 2_000
LOST_AFTER_MS: Final = 60_000
KEPT_MS: Final = 7 * 24 * 3_600_000
LOCATIONS_MAX: Final = 1_000


class ImportNotFound(NotFound):
    """There is no import of this id on this branch, or it was so long ago that it was forgotten."""


class ImportEnded(Conflict):
    """The import has ended, so it cannot be cancelled."""


class ImportCancelled(Conflict):
    """A user asked for it."""


class ImportState(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ImportRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`own_branch` is the hidden one. `commit_id` is the branch's head once it is completed."""

    id: str
    branch: str
    own_branch: str
    state: ImportState = ImportState.RUNNING
    objects: int = 0
    started_ms: int
    updated_ms: int
    commit_id: CommitId | None = None
    error: str = ""
    is_stopping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A folder, with all below it, or one object; and the folder or the path that it gets on the branch."""

    source: str
    destination: str
    is_folder: bool


@dataclass(slots=True)
class _Progress:
    """The record of the import under way, as it was last written."""

    record: ImportRecord
    is_stopping: Callable[[], bool]
    refuse: Callable[[Location, str, str], None]


_Change: TypeAlias = Callable[[ImportRecord], ImportRecord]


class Imports:
    def __init__(
        self, versions: Versions, changes: Changes, guards: Guards, namespaces: Namespaces, ports: Ports
    ) -> None:
        self._versions = versions
        self._changes = changes
        self._guards = guards
        self._namespaces = namespaces
        self._ports = ports
        self._records = versions.context

    async def begin(self, branch: str, locations: Sequence[Location], *, force: bool = False) -> ImportRecord:
        """Check everything that can be checked before listing, and record the import. `run` does the work.

        Raises:
            InvalidImport: no location, too many, or one that is no location.
            AddressInNamespace: a location lies in a storage namespace, or around one.
            ForeignAddress: this server does not open such stores.
            BranchNotFound, ReadOnly, ProtectedBranch, UncommittedChanges: the branch cannot take it.
        """
        await self._guards.check_branch_writable(branch, force=force, verb="commit")
        await self._versions.refs.get_branch(branch)
        if not 0 < len(locations) <= LOCATIONS_MAX:
            raise InvalidImport(f"an import has 1 to {LOCATIONS_MAX} paths, not {len(locations)}")
        for location in locations:
            await self._check(location)
        await self._changes.check_clean(branch)
        now_ms = self._ports.clock.now_ms()
        fresh = self._ports.ids.fresh()
        record = ImportRecord(
            id=fresh, branch=branch, own_branch=f"import-{fresh}", started_ms=now_ms, updated_ms=now_ms
        )
        await self._records.set(IMPORT + fresh.encode(), record)
        await self._guards.confirm()
        return record

    async def run(
        self,
        begun: ImportRecord,
        locations: Sequence[Location],
        note: Note,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        refuse: Callable[[Location, str, str], None] = lambda _location, _path, _address: None,
    ) -> ImportRecord:
        """Do all of it, and record how it ended. An error of ours is in the record, and not raised.

        `beat` must be called meanwhile. Once `is_stopping` the import ends before its next page; a merge that began is
        carried out. `refuse` is called with the location, the path and the full URI of each object before it is taken.
        It may raise an error of ours: the import then fails, and the branch stays as it was.
        """
        last = _Progress(begun, is_stopping, refuse)
        try:
            commit_id = await self._import(last, locations, note)
            ended = replace(last.record, state=ImportState.COMPLETED, commit_id=commit_id)
        except ImportCancelled as error:
            ended = replace(last.record, state=ImportState.CANCELLED, error=str(error))
        except OutcomeUnknown as error:
            error_text = f"{OUTCOME_UNKNOWN}, the history of the branch shows it: {error}"
            ended = replace(last.record, state=ImportState.FAILED, error=error_text)
        except LakebedError as error:
            ended = replace(last.record, state=ImportState.FAILED, error=str(error))
        return await self._end(ended)

    async def beat(self, begun: ImportRecord) -> None:
        """Record that the process that runs the import lives."""
        now_ms = self._ports.clock.now_ms()
        await self._change(
            begun.id,
            lambda record: replace(record, updated_ms=now_ms) if record.state is ImportState.RUNNING else record,
        )

    async def stop(self, record: ImportRecord, why: str) -> None:
        """End an import whose process goes away."""
        await self._end(replace(record, state=ImportState.FAILED, error=why))

    async def get(self, branch: str, import_id: str) -> ImportRecord:
        """
        Raises:
            ImportNotFound: there is none.
        """
        held = await self._records.get(IMPORT + import_id.encode())
        record = None if held is None else decode_record(ImportRecord, held.value)
        if record is None or record.branch != branch:
            raise ImportNotFound(f"import {import_id} not found", id=import_id)
        return self._shown(record)

    async def cancel(self, branch: str, import_id: str) -> None:
        """Ask the process that imports to stop. It stops before its next part, and not while it merges.

        Raises:
            ImportNotFound, ImportEnded.
        """
        if (await self.get(branch, import_id)).state is not ImportState.RUNNING:
            raise ImportEnded(f"import {import_id} has ended", id=import_id)
        await self._change(import_id, lambda record: replace(record, is_stopping=True))

    async def clean(self) -> None:
        """End imports whose process is gone, and forget those that ended long ago."""
        now_ms = self._ports.clock.now_ms()
        async for key, record in self._records.records(ImportRecord, IMPORT):
            shown = self._shown(record)
            if shown is not record:
                await self._end(shown)
            elif record.state is not ImportState.RUNNING and now_ms - record.updated_ms >= KEPT_MS:
                await self._records.delete(key)

    async def _check(self, location: Location) -> None:
        if location.is_folder:
            if location.destination:
                path_to_key(location.destination)
            # The source may be a whole bucket, whose URI needs no slash at its end.
            await self._namespaces.check_outside(_folder(location.source), is_folder=True)
        else:
            path_to_key(location.destination)
            await self._namespaces.check_outside(location.source)

    async def _import(self, last: _Progress, locations: Sequence[Location], note: Note) -> CommitId:
        own = last.record.own_branch
        await self._changes.create_branch(own, last.record.branch, force=True, work_of=WORK)
        for location in locations:
            async for keys, rows in self._parts(location, last):
                with suppress(NoChanges):
                    await self._versions.merges.apply(own, changes_from_rows(keys, rows), note)
        try:
            merged = await self._changes.merge(
                own,
                last.record.branch,
                note,
                strategy="source-wins",
                squash=True,
                force=True,
            )
        except NoChanges:
            return (await self._versions.refs.get_branch(last.record.branch)).commit_id
        return merged.id

    async def _parts(self, location: Location, last: _Progress) -> AsyncIterator[tuple[list[bytes], list[Row]]]:
        """Yield keys and rows in order, PART_OBJECTS at a time, and record the progress between pages."""
        keys: list[bytes] = []
        rows: list[Row] = []
        before = last.record.objects
        async for page in self._listed(location):
            for path, address, stat in page:
                last.refuse(location, path, address)
                key = path_to_key(path)
                keys.append(key)
                rows.append(to_row(key, _entry(address, stat)))
            last.record = replace(last.record, objects=last.record.objects + len(page))
            await self._beat(last)
            if len(keys) >= PART_OBJECTS:
                yield keys, rows
                keys, rows = [], []
        if last.record.objects == before:
            raise InvalidImport(f"{location.source}: no object lies below it", path=location.source)
        if keys:
            yield keys, rows

    async def _listed(self, location: Location) -> AsyncIterator[list[tuple[str, str, ObjectStat]]]:
        """Yield pages of path on the branch, full URI, and what the store says of the object."""
        if not location.is_folder:
            objectstore, key = self._namespaces.locate(location.source)
            try:
                yield [(location.destination, location.source, await objectstore.stat(key))]
            except ObjectMissing as error:
                raise InvalidImport(f"{location.source}: there is no such object", path=location.source) from error
            return
        objectstore, folder = self._namespaces.locate(_folder(location.source))
        destination = _folder(location.destination) if location.destination else ""
        async for page in objectstore.list(folder):
            self._namespaces.check_listed(objectstore, page)
            # An empty object whose key ends with a slash is how some tools mark a folder.
            yield [
                (destination + stat.key[len(folder) :], f"{objectstore.uri}/{stat.key}", stat)
                for stat in page
                if not stat.key.endswith("/")
            ]

    async def _beat(self, last: _Progress) -> None:
        """
        Raises:
            ImportCancelled: a user asked for it, or the upkeep took this import for lost.
        """
        if last.is_stopping():
            raise ImportCancelled("the server that imported was stopped: begin again")
        now_ms = self._ports.clock.now_ms()
        if now_ms - last.record.updated_ms < BEAT_MS:
            return
        objects = last.record.objects
        last.record = await self._change(
            last.record.id,
            lambda record: (
                replace(record, objects=objects, updated_ms=now_ms) if record.state is ImportState.RUNNING else record
            ),
        )
        if last.record.is_stopping or last.record.state is not ImportState.RUNNING:
            raise ImportCancelled("the import was cancelled")

    async def _end(self, ended: ImportRecord) -> ImportRecord:
        ended = replace(ended, updated_ms=self._ports.clock.now_ms())
        with suppress(BranchNotFound):
            await self._changes.delete_branch(ended.own_branch, force=True, is_ours=True)
        await self._records.set(IMPORT + ended.id.encode(), ended)
        return ended

    async def _change(self, import_id: str, change: _Change) -> ImportRecord:
        """
        Raises:
            ImportNotFound: the record is gone, with its repository.
        """
        key = IMPORT + import_id.encode()
        while True:
            held = await self._records.get(key)
            if held is None:
                raise ImportNotFound(f"import {import_id} not found", id=import_id)
            changed = change(decode_record(ImportRecord, held.value))
            try:
                await self._records.set_if(key, encode_record(changed), held.predicate)
            except PredicateFailed:
                continue
            return changed

    def _shown(self, record: ImportRecord) -> ImportRecord:
        silent_ms = self._ports.clock.now_ms() - record.updated_ms
        if record.state is not ImportState.RUNNING or silent_ms < LOST_AFTER_MS:
            return record
        return replace(record, state=ImportState.FAILED, error="the server that imported is gone: begin again")


def _folder(text: str) -> str:
    return text if text.endswith("/") else text + "/"


def _entry(address: str, stat: ObjectStat) -> Entry:
    # No 32 hexadecimal digits: clients would take those for an MD5 of the bytes.
    # And no `-N` at the end, by which S3's clients know the number of parts.
    checksum = f"{stat.modified_ms:x}.{stat.size_bytes:x}"
    return Entry(
        address=address,
        size_bytes=stat.size_bytes,
        checksum=checksum,
        modified_ms=stat.modified_ms,
    )
