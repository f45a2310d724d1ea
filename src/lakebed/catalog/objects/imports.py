"""Import objects from elsewhere in the object store: name them on a branch, copy no bytes.

An import commits the listed objects, part by part, to a hidden branch of its own. At the end it merges that branch
into the requested one, as one commit in which the source wins. So a reader sees all of it or nothing, and every step
is a branch move that the collectors know.

Its record (docs/formats/records.md) is written every few seconds, so any process can show its progress. If it was not
written for LOST_AFTER_MS, its process is dead: the upkeep ends the import and removes its branch.

An imported object is an entry with a full URI. No collection deletes objects outside the namespace. sources.py
computes the changes of a location. One conditional write cancels an import, and another begins its merge: the first
one wins.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import (
    OUTCOME_UNKNOWN,
    CommitId,
    Conflict,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Ports,
    Row,
    path_to_key,
)
from lakebed.catalog.errors import InvalidImport
from lakebed.catalog.guards import Guards
from lakebed.catalog.namespaces import Namespaces
from lakebed.catalog.refs.changes import Changes
from lakebed.kv import PredicateFailed
from lakebed.quotas import Charges, Reservation
from lakebed.ranges import changes_from_rows
from lakebed.versions import BranchNotFound, NoChanges, Note, Record, Versions, decode_record, encode_record

from .sources import Location, Refuse, Sources

IMPORT: Final = b"import/"
WORK: Final = "import"
"""The mark of the hidden branches."""
PART_OBJECTS: Final = 100_000
"""Commit this many objects at a time: about 60 MB of rows."""
BEAT_MS: Final = 2_000
LOST_AFTER_MS: Final = 60_000
KEPT_MS: Final = 7 * 24 * 3_600_000
LOCATIONS_MAX: Final = 1_000
LEFT_OUT_SHOWN: Final = 100
CANCELLED: Final = "Canceled"
"""The contract's word, which its clients look for."""
SIZE_BYTES: Final = 4
"""The place of the object's size in a row."""


class ImportCancelled(Conflict):
    """A user cancelled the import, or its server stopped."""


class ImportState(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ImportRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`own_branch` is the hidden branch. `commit_id` is the branch's head after a completed import."""

    id: str
    branch: str
    own_branch: str
    state: ImportState = ImportState.RUNNING
    objects: int = 0
    left_out_objects: int = 0
    left_out: tuple[str, ...] = ()
    """The first addresses that cannot be imported."""
    started_ms: int
    updated_ms: int
    commit_id: CommitId | None = None
    error: str = ""
    cancelled_ms: int = 0
    """The time of its cancellation, or 0. Its process may go on to the end of a page."""
    is_merging: bool = False


@dataclass(slots=True)
class _Progress:
    """The record of a running import, as last written."""

    record: ImportRecord
    is_stopping: Callable[[], bool]
    refuse: Refuse


_Change: TypeAlias = Callable[[ImportRecord], ImportRecord]


class Imports:
    def __init__(
        self,
        versions: Versions,
        changes: Changes,
        guards: Guards,
        charges: Charges,
        namespaces: Namespaces,
        ports: Ports,
    ) -> None:
        self._versions = versions
        self._changes = changes
        self._guards = guards
        self._charges = charges
        self._namespaces = namespaces
        self._sources = Sources(versions, namespaces)
        self._ports = ports
        self._records = versions.context

    async def begin(self, branch: str, locations: Sequence[Location], *, force: bool = False) -> ImportRecord:
        """Check all conditions that need no listing, and record the import. `run` does the work.

        Raises:
            InvalidImport: there are too many locations, or one is invalid.
            AddressInNamespace: a location is inside a storage namespace, or contains one.
            Invalid: this server does not open such stores.
            BranchNotFound, ReadOnly, UncommittedChanges: the branch cannot be changed.
        """
        # Allow protected branches: an import works on its own branch, and ends in a merge.
        self._guards.check_writable(force=force)
        await self._versions.refs.get_branch(branch)
        if len(locations) > LOCATIONS_MAX:
            raise InvalidImport(f"an import has at most {LOCATIONS_MAX} paths, not {len(locations)}")
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
        refuse: Refuse = lambda _location, _path, _address: None,
        force: bool = False,
        merged: Callable[[CommitId], Awaitable[None]] | None = None,
    ) -> ImportRecord:
        """Run the import, and record its outcome. An error of ours is stored in the record, not raised.

        Call `beat` meanwhile. When `is_stopping` returns True, the import ends before its next page, but finishes a
        merge that began. `refuse` is called before each object. If it raises an error of ours, the import fails and
        the branch is not changed. So it does where it would change files of a table, and `force` is not set.
        `merged` is called before the record says that the import is done; an error of ours there changes nothing.
        """
        last = _Progress(begun, is_stopping, refuse)
        try:
            with await self._charges.reserve(begun.branch, note.committer, 0, elsewhere=True) as reservation:
                try:
                    commit_id = await self._import(last, locations, note, reservation, force=force)
                except BaseException:
                    if not last.record.is_merging:
                        reservation.give_back()  # All went to its own branch, which goes.
                    raise
            ended = replace(last.record, state=ImportState.COMPLETED, commit_id=commit_id)
            if merged is not None:
                with suppress(LakebedError):
                    await merged(commit_id)
        except ImportCancelled as error:
            ended = replace(last.record, state=ImportState.CANCELLED, error=str(error))
        except OutcomeUnknown as error:
            error_text = f"{OUTCOME_UNKNOWN}, the history of the branch shows it: {error}"
            ended = replace(last.record, state=ImportState.FAILED, error=error_text)
        except LakebedError as error:
            ended = replace(last.record, state=ImportState.FAILED, error=str(error))
        return await self._end(ended)

    async def beat(self, begun: ImportRecord) -> None:
        """Record that the process of the import is alive."""
        now_ms = self._ports.clock.now_ms()
        await self._change(
            begun.id,
            lambda record: replace(record, updated_ms=now_ms) if record.state is ImportState.RUNNING else record,
        )

    async def stop(self, record: ImportRecord, why: str) -> None:
        """End an import whose process stops."""
        await self._end(replace(record, state=ImportState.FAILED, error=why))

    async def get(self, branch: str, import_id: str) -> ImportRecord:
        """Return the record of an import.

        Raises:
            NotFound: the branch has no import of this id.
        """
        held = await self._records.get(IMPORT + import_id.encode())
        record = None if held is None else decode_record(ImportRecord, held.value)
        if record is None or record.branch != branch:
            raise NotFound(f"import {import_id} not found", id=import_id)
        return self._shown(record)

    async def cancel(self, branch: str, import_id: str) -> None:
        """Cancel an import, so that it never changes the branch. Its process stops before its next part.

        Do nothing if it was cancelled before.

        Raises:
            NotFound: the branch has no import of this id.
            Conflict: it ended, or began to change the branch.
        """
        state = (await self.get(branch, import_id)).state
        if state is ImportState.CANCELLED:
            return
        if state is not ImportState.RUNNING:
            raise Conflict(f"import {import_id} has ended", id=import_id)

        def cancelled(record: ImportRecord) -> ImportRecord:
            if record.is_merging or record.state is not ImportState.RUNNING:
                raise Conflict(f"import {import_id} has ended, or is about to", id=import_id)
            return replace(record, cancelled_ms=record.cancelled_ms or self._ports.clock.now_ms())

        await self._change(import_id, cancelled)

    async def clean(self) -> None:
        """End imports whose process is dead, and remove records of imports that ended long ago."""
        now_ms = self._ports.clock.now_ms()
        async for key, record in self._records.records(ImportRecord, IMPORT):
            if self._is_lost(record):
                await self._end(self._shown(record))
            elif record.state is not ImportState.RUNNING and abs(now_ms - record.updated_ms) >= KEPT_MS:
                await self._records.delete(key)

    async def _check(self, location: Location) -> None:
        if location.is_folder:
            if location.destination:
                path_to_key(location.destination)
            await self._namespaces.check_outside(location.source, is_folder=True)
        else:
            path_to_key(location.destination)
            await self._namespaces.check_outside(location.source)

    async def _import(
        self, last: _Progress, locations: Sequence[Location], note: Note, reservation: Reservation, *, force: bool
    ) -> CommitId:
        own = last.record.own_branch
        head = await self._changes.create_branch(own, last.record.branch, force=True, work_of=WORK)
        for location in locations:
            async for keys, rows in self._parts(location, head, last):
                await self._guards.check_tables(last.record.branch, keys, force=force)
                await reservation.more(sum([row[SIZE_BYTES] for row in rows if row is not None]))
                with suppress(NoChanges):
                    await self._versions.merges.apply(own, changes_from_rows(keys, rows), note)
            head = (await self._versions.refs.get_branch(own)).commit_id
        await self._begin_merge(last)
        try:
            merged = await self._changes.merge(
                own,
                last.record.branch,
                note,
                strategy="source-wins",
                squash=True,
                force=True,
                # An import without paths only makes a commit with its message, which clients look for.
                allow_empty=not locations,
            )
        except NoChanges:
            return (await self._versions.refs.get_branch(last.record.branch)).commit_id
        return merged.id

    async def _parts(
        self, location: Location, onto: CommitId, last: _Progress
    ) -> AsyncIterator[tuple[list[bytes], list[Row | None]]]:
        """Yield keys and rows in order, PART_OBJECTS at a time, and record the progress between pages."""
        keys: list[bytes] = []
        rows: list[Row | None] = []
        async for page in self._sources.changes(location, onto, last.refuse):
            keys += page.keys
            rows += page.rows
            record = last.record
            last.record = replace(
                record,
                objects=record.objects + page.objects,
                left_out_objects=record.left_out_objects + len(page.left_out),
                left_out=(record.left_out + tuple(page.left_out))[:LEFT_OUT_SHOWN],
            )
            await self._beat(last)
            if len(keys) >= PART_OBJECTS:
                yield keys, rows
                keys, rows = [], []
        if keys:
            yield keys, rows

    async def _beat(self, last: _Progress) -> None:
        """Record the progress if it is time, and check whether to stop.

        Raises:
            ImportCancelled: a user cancelled it, the server stops, or the upkeep ended this import as lost.
        """
        if last.is_stopping():
            raise ImportCancelled("the server that imported was stopped: begin again")
        now_ms = self._ports.clock.now_ms()
        if 0 <= now_ms - last.record.updated_ms < BEAT_MS:
            return
        now = last.record

        def alive(record: ImportRecord) -> ImportRecord:
            if record.state is not ImportState.RUNNING:
                return record
            return replace(
                record,
                objects=now.objects,
                left_out_objects=now.left_out_objects,
                left_out=now.left_out,
                updated_ms=now_ms,
            )

        last.record = await self._change(now.id, alive)
        if last.record.cancelled_ms or last.record.state is not ImportState.RUNNING:
            raise ImportCancelled(CANCELLED)

    async def _begin_merge(self, last: _Progress) -> None:
        """Record that the merge begins: from now on the import cannot be cancelled.

        Raises:
            ImportCancelled: it was cancelled, or the upkeep ended it as lost.
        """
        objects, now_ms = last.record.objects, self._ports.clock.now_ms()

        def merging(record: ImportRecord) -> ImportRecord:
            if record.cancelled_ms or record.state is not ImportState.RUNNING:
                raise ImportCancelled(CANCELLED)
            return replace(record, is_merging=True, objects=objects, updated_ms=now_ms)

        changed = await self._change(last.record.id, merging)
        last.record = replace(last.record, is_merging=changed.is_merging, updated_ms=changed.updated_ms)

    async def _end(self, ended: ImportRecord) -> ImportRecord:
        key = IMPORT + ended.id.encode()
        with suppress(BranchNotFound):
            await self._changes.delete_branch(ended.own_branch, force=True, is_ours=True)
        held = await self._records.get(key)
        cancelled_ms = 0 if held is None else decode_record(ImportRecord, held.value).cancelled_ms
        # To its watchers a cancelled import ended when it was cancelled.
        ended = replace(ended, cancelled_ms=cancelled_ms, updated_ms=cancelled_ms or self._ports.clock.now_ms())
        await self._records.set(key, ended)
        return ended

    async def _change(self, import_id: str, change: _Change) -> ImportRecord:
        """Change the record by a conditional write, repeated after lost races.

        Raises:
            NotFound: the record was removed with its repository.
        """
        key = IMPORT + import_id.encode()
        while True:
            held = await self._records.get(key)
            if held is None:
                raise NotFound(f"import {import_id} not found", id=import_id)
            changed = change(decode_record(ImportRecord, held.value))
            try:
                await self._records.set_if(key, encode_record(changed), held.predicate)
            except PredicateFailed:
                continue
            return changed

    def _shown(self, record: ImportRecord) -> ImportRecord:
        if record.state is ImportState.RUNNING and record.cancelled_ms:
            return replace(record, state=ImportState.CANCELLED, error=CANCELLED, updated_ms=record.cancelled_ms)
        if self._is_lost(record):
            return replace(record, state=ImportState.FAILED, error="the server that imported is gone: begin again")
        return record

    def _is_lost(self, record: ImportRecord) -> bool:
        silent_ms = abs(self._ports.clock.now_ms() - record.updated_ms)  # The clock may have been ahead.
        return record.state is ImportState.RUNNING and silent_ms >= LOST_AFTER_MS
