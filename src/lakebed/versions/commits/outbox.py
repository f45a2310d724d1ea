"""Write an event for each move of a ref and each change of a pull request or run (docs/design/0015-events.md).

A ref's record and the log of its moves (reflog.py) hold every move, and the records of pull requests and runs hold
their changes, so flows write nothing for events. A *gatherer* copies what is new. Any number may work at once:

    1  read the feed; mark the refs of the events behind its tail; the last of these events is the *end*
    2  read the refs, their marks and the log between the two; then pull requests and runs. Those that this process
       wrote since its last look, or all of them
    3  `set_if` absent the events of all moves and changes, under one key: the position end + 1
    4  read the feed again: no position of ours may be among the removed ones; move the marks on, then the tail

Keys: `feed` FeedRecord, `event/<first position, 15 digits>` EventRecord, `mark/<generation>/<kind>/<name>` MarkRecord.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import CommitId, EventKind, OutcomeUnknown, RunId, RunKind
from lakebed.kv import Held, PredicateFailed, scan_prefix
from lakebed.versions import keys
from lakebed.versions.context import Context, Retry
from lakebed.versions.records import (
    BranchRecord,
    Change,
    MoveRecord,
    PlannedRecord,
    Record,
    RefKind,
    RefState,
    TagRecord,
    decode_record,
    encode_record,
)
from lakebed.versions.refs.reflog import Reflog, last_move

from .marks import DROPPED_MIN, FEED, SOURCES, FeedRecord, MarkRecord, Marks, mark_key

EVENT: Final = b"event/"
_PAGE: Final = 1_000
TOGETHER_MAX: Final = 16
"""Events under one key, in every release: readers look so far back for the key that holds a position."""
_PLAN: Final = "plan"
_REQUEST: Final = "request"
_PLANS: Final = frozenset({_PLAN, _REQUEST})
_REFS: Final[Sequence[tuple[RefKind, bytes, type[BranchRecord] | type[TagRecord]]]] = (
    (RefKind.BRANCH, keys.BRANCH, BranchRecord),
    (RefKind.TAG, keys.TAG, TagRecord),
)

_RefRecord: TypeAlias = BranchRecord | TagRecord
Ref: TypeAlias = tuple[str, str]
"""A kind of ref and its name, or a `Source` and an id."""


class Look(IntEnum):
    """How far a gatherer looks."""

    OWN = 0
    """At what this process wrote since its last look. Of other processes only what they left half done."""
    RECORDS = 1
    """At every ref, pull request and run."""
    LOGS = 2
    """At the log of every ref, too. It tells of refs that were made and deleted since."""


class _Source(StrEnum):
    """Records that hold changes. A run has two: who planned it, and how it went on."""

    PULL = "pull"
    PLANNED = "planned"
    RUN = "run"


class _ChangedRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The fields for events that the records of a pull request and of a run share."""

    changes: tuple[Change, ...] = ()
    kind: str = ""
    destination: str = ""


class EventRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One move of a ref. `before` is empty where the ref was made, `after` where it was deleted.

    `log_ms` is the moment of the move in the ref's log; of a deletion, that of the move before it. For a change of a
    pull request or run it is the number of the change.
    """

    kind: EventKind
    name: str
    operation: str
    before: str = ""
    after: str = ""
    at_ms: int
    by: str = ""
    log_ms: int
    gathered_ms: int
    # The branch into which a pull request asks, or the kind of the run.
    about: str = ""
    # The events at the next positions. They were written together with this one.
    more: tuple[EventRecord, ...] = ()

    @property
    def ref(self) -> Ref:
        """The subject of the mark."""
        if self.kind.is_ref or self.kind is EventKind.PULL:
            return self.kind, self.name
        return _Source.PLANNED if self.operation in _PLANS else _Source.RUN, self.name

    @property
    def mark(self) -> MarkRecord:
        return MarkRecord(log_ms=self.log_ms, is_gone=self.kind.is_ref and not self.after, head=self.after)


@dataclass(slots=True)
class _Pass:
    """One pass of a gatherer: the end, the first position that it wrote or saw, and the marks as they were and are."""

    feed: FeedRecord
    first: int
    end: int
    marks: dict[Ref, MarkRecord] = field(default_factory=dict)
    moved: dict[Ref, MarkRecord] = field(default_factory=dict)
    # Events that are not written yet. Their marks are in `moved`.
    waiting: list[EventRecord] = field(default_factory=list)

    def mark(self, ref: Ref) -> MarkRecord:
        return self.moved.get(ref) or self.marks.get(ref) or MarkRecord()


class Outbox:
    def __init__(self, context: Context, reflog: Reflog) -> None:
        self._context = context
        self._reflog = reflog
        self.partition = keys.events_partition(context.uid)
        self._marks = Marks(context, reflog, self.partition)

    async def start(self) -> None:
        """Have every later move of a ref get its event. Costs a scan of one key for each ref that has a log."""
        if await self._marks.read_feed() is not None:
            return
        generation = self._context.ports.ids.fresh()
        marks: dict[bytes, bytes] = {}
        # First the logs, then the records: a ref that was made between the two is there.
        for kind, _, _ in _REFS:
            async for name, newest in self._reflog.names(kind):
                mark = MarkRecord(log_ms=newest.at_ms, is_gone=True)
                marks[mark_key(generation, kind, name)] = encode_record(mark)
        async for kind, name, record in self._refs():
            if record.state is not RefState.CREATING and record.moved is not None:
                mark = MarkRecord(log_ms=record.moved.at_ms, is_gone=False, head=record.commit_id)
                marks[mark_key(generation, kind, name)] = encode_record(mark)
        marks |= await self._marks_of_changes(generation)
        items = list(marks.items())
        for at in range(0, len(items), _PAGE):
            await self._context.store.set_many(self.partition, items[at : at + _PAGE])
        # The marks belong to this generation alone: a slower starter's would hide moves of today.
        feed = encode_record(FeedRecord(generation=generation, has_changes=True))
        try:
            await self._context.store.set_if(self.partition, FEED, feed, None)
        except PredicateFailed:
            await self._context.store.delete_many(self.partition, list(marks))

    async def _marks_of_changes(self, generation: str) -> dict[bytes, bytes]:
        return {
            mark_key(generation, source, name): encode_record(MarkRecord(log_ms=len(one.changes), is_gone=False))
            async for source, name, _, one in self._changed()
        }

    async def drop_marks(self, *, least: int = DROPPED_MIN) -> int:
        """Forget marks of refs and runs that are long gone, see `Marks.drop`."""
        return await self._marks.drop(least=least)

    async def gather(self, look: Look = Look.LOGS) -> int:
        """Write the events that are due, and return the last position. Without events wanted, return 0.

        Costs two reads where this process wrote nothing. Else a `set_if` for each 16 events; for each ref that moved a
        read and a `set_if`; and a read of its record, mark and log, or a scan of those of all refs.
        """
        retry = Retry()
        # A process that has just begun looks at all records, in the place of one that died.
        touched, self._context.touched = self._context.touched, set()
        try:
            while True:
                try:
                    return await self._gather(touched if look is Look.OWN else None, with_logs=look is Look.LOGS)
                except PredicateFailed:
                    continue  # Another gatherer wrote an event, or moved a mark on.
                except OutcomeUnknown as error:
                    retry.lost(error)
        except BaseException:
            # Also when cancelled: what it was to look at is looked at with all records.
            self._context.touched = None
            raise

    async def _gather(self, touched: Set[bytes] | None, *, with_logs: bool) -> int:
        found = await self._marks.read_feed()
        if found is None:
            return 0
        here = await self._catch_up(found[0])
        seen, gone = await (self._look_at_all(here) if touched is None else self._look_at(here, touched))
        for ref, record in seen.items():
            await self._write_moved(here, ref, record)
        if with_logs:
            gone += [ref for ref in await self._unmarked(here) if ref not in seen and ref not in gone]
        for ref in gone:
            await self._write_gone(here, ref)
        if touched is None or any(key.startswith(tuple(SOURCES.values())) for key in touched):
            await self._write_changes(here)
        await self._write_waiting(here)
        await self._settle(here)
        return here.end

    async def _look_at_all(self, here: _Pass) -> tuple[dict[Ref, _RefRecord], list[Ref]]:
        """Read the mark and the record of every ref. Return those that are there, and those that seem to be deleted."""
        for ref_kind, _, _ in _REFS:
            await self._read_marks(here, ref_kind)
        # One that is being made has made no move. An earlier ref of its name is gone.
        seen: dict[Ref, _RefRecord] = {
            (kind, name): one async for kind, name, one in self._refs() if one.state is not RefState.CREATING
        }
        # By the missing record, not by the log: a deleter that died left no note of the deletion.
        return seen, [ref for ref, mark in here.marks.items() if ref not in seen and not mark.is_gone]

    async def _look_at(self, here: _Pass, touched: Set[bytes]) -> tuple[dict[Ref, _RefRecord], list[Ref]]:
        """Do the same for the refs that have these keys."""
        of = {
            key: ((kind, key[len(prefix) :].decode()), record_type)
            for kind, prefix, record_type in _REFS
            for key in sorted(touched)
            if key.startswith(prefix)
        }
        if not of:
            return {}, []
        refs = [ref for ref, _ in of.values()]
        marks = await self._context.store.get_many(
            self.partition, [mark_key(here.feed.generation, *ref) for ref in refs]
        )
        records = await self._context.get_many(list(of))
        seen: dict[Ref, _RefRecord] = {}
        for (ref, record_type), mark, held in zip(of.values(), marks, records, strict=True):
            if mark is not None:
                here.marks[ref] = decode_record(MarkRecord, mark.value)
            if held is not None and (record := decode_record(record_type, held.value)).state is not RefState.CREATING:
                seen[ref] = record
        return seen, [ref for ref in refs if ref not in seen]

    async def _read_marks(self, here: _Pass, source: str) -> None:
        prefix = mark_key(here.feed.generation, source, "")
        async for key, value in scan_prefix(self._context.store, self.partition, prefix):
            here.marks[source, key[len(prefix) :].decode()] = decode_record(MarkRecord, value)

    async def _write_changes(self, here: _Pass) -> None:
        """Write the events of pull requests and runs that have none yet."""
        for source in _Source:
            await self._read_marks(here, source)
        if not here.feed.has_changes:
            await self._begin_changes(here)
        async for source, name, kind, record in self._changed():
            ref, about = (source, name), record.destination or record.kind
            for number, change in enumerate(record.changes[here.mark(ref).log_ms :], here.mark(ref).log_ms + 1):
                await self._write_one(here, (kind, name), change, number, about=about)

    async def _begin_changes(self, here: _Pass) -> None:
        """Mark the changes of before in an outbox that an older release began.

        Raises:
            PredicateFailed: always. The pass begins again.
        """
        found = await self._marks.read_feed()
        # That release had events of refs only.
        if found is not None and not found[0].has_changes:
            more = await self._marks_of_changes(found[0].generation)
            await self._marks.switch(*found, more=more)
        raise PredicateFailed("changes of pull requests and runs have marks now", generation=here.feed.generation)

    async def _changed(self) -> AsyncIterator[tuple[_Source, str, EventKind, _ChangedRecord]]:
        """Yield the records that hold changes. Runs are read before their plans, and yielded after them."""
        runs = [item async for item in self._context.records(_ChangedRecord, keys.RUN)]
        async for key, planned in self._context.records(PlannedRecord, keys.PLANNED):
            kind = _kind_of_run(planned.kind)
            operation = _PLAN if kind is EventKind.RUN else _REQUEST
            change = Change(operation=operation, at_ms=planned.made_ms, by=planned.by)
            record = _ChangedRecord(changes=(change,), kind=planned.kind)
            yield _Source.PLANNED, key[len(keys.PLANNED) :].decode(), kind, record
        for key, record in runs:
            yield _Source.RUN, key[len(keys.RUN) :].decode(), _kind_of_run(RunKind(record.kind)), record
        async for key, record in self._context.records(_ChangedRecord, keys.PULL):
            yield _Source.PULL, key[len(keys.PULL) :].decode(), EventKind.PULL, record

    async def told(self) -> Callable[[RunId], tuple[int, int]] | None:
        """Write the events that are due. Return what tells how many of a run's plans and changes have theirs.

        None: no events are wanted.
        """
        found = await self._marks.read_feed()
        if found is None:
            return None
        await self.gather()
        here = _Pass(found[0], 1, 0)
        for source in (_Source.PLANNED, _Source.RUN):
            await self._read_marks(here, source)
        return lambda run: (here.mark((_Source.PLANNED, run)).log_ms, here.mark((_Source.RUN, run)).log_ms)

    async def _unmarked(self, here: _Pass) -> Sequence[Ref]:
        """Return the refs whose log is ahead of their mark."""
        # The log of a deleted ref is always ahead, by the note of its deletion.
        return [
            (kind, name)
            for kind, _, _ in _REFS
            async for name, newest in self._reflog.names(kind)
            if newest.at_ms > here.mark((kind, name)).log_ms
        ]

    async def _write_moved(self, here: _Pass, ref: Ref, record: _RefRecord) -> None:
        """Write the events of a ref that is there, up to the last move in its record."""
        mark, last = here.mark(ref), last_move(record)
        if last is not None and mark.log_ms < last.at_ms:
            # All moves before the record's own were logged before it was written. Later ones may be there in part.
            logged = [move for move in await self._logged(ref, mark.log_ms) if move.at_ms < last.at_ms]
            await self._write(here, ref, [*logged, last], is_gone=False)

    async def _logged(self, ref: Ref, after_ms: int) -> Sequence[MoveRecord]:
        return await self._reflog.since(RefKind(ref[0]), ref[1], after_ms)

    async def _write_gone(self, here: _Pass, ref: Ref) -> None:
        """Write the events of a ref that seems to be deleted. Leave it to the next pass if its log still grows."""
        log_ms = here.mark(ref).log_ms
        first = await self._logged(ref, log_ms)
        prefix, record_type = next((prefix, record_type) for kind, prefix, record_type in _REFS if kind is ref[0])
        key = prefix + ref[1].encode()
        held = await self._context.get(key)
        if held is not None and decode_record(record_type, held.value).state is not RefState.CREATING:
            self._context.touch(key)
            return
        # A deletion logs the last move before the record goes. So a log that is the same before and after this look
        # at the record is whole, and the deletion follows its last move.
        logged = await self._logged(ref, log_ms)
        if _moves(first) == _moves(logged):
            await self._write(here, ref, logged, is_gone=True)
        else:
            self._context.touch(key)

    async def _write(self, here: _Pass, ref: Ref, logged: Sequence[MoveRecord], *, is_gone: bool) -> None:
        """Write an event for each move behind the mark, and for the deletions between them and after them."""
        notes = [move for move in logged if not move.after]
        for move in _moves(logged):
            # The move makes the ref anew, so a deletion that no note records took place before it.
            if not move.before and not here.mark(ref).is_gone:
                await self._write_one(here, ref, *self._deletion(here.mark(ref), notes))
            await self._write_one(here, ref, move, move.at_ms)
        if is_gone and not here.mark(ref).is_gone:
            await self._write_one(here, ref, *self._deletion(here.mark(ref), notes))

    def _deletion(self, mark: MarkRecord, notes: Sequence[MoveRecord]) -> tuple[MoveRecord, int]:
        """Return the deletion after the last move. Its note tells who did it and when, if the deleter wrote it."""
        last = MoveRecord(
            before=CommitId(mark.head),
            after=CommitId(""),
            at_ms=max(self._context.ports.clock.now_ms(), mark.log_ms + 1),
            operation="delete",
        )
        return next((note for note in notes if note.before == mark.head), last), mark.log_ms

    async def _write_one(
        self, here: _Pass, ref: Ref, move: MoveRecord | Change, log_ms: int, *, about: str = ""
    ) -> None:
        """Add the event of a move or change to those that wait to be written."""
        event = EventRecord(
            kind=EventKind(ref[0]),
            name=ref[1],
            operation=move.operation,
            before=move.before if isinstance(move, MoveRecord) else "",
            after=move.after,
            at_ms=move.at_ms,
            by=move.by,
            log_ms=log_ms,
            gathered_ms=self._context.ports.clock.now_ms(),
            about=about,
        )
        here.waiting.append(event)
        here.moved[event.ref] = event.mark
        if len(here.waiting) == min(self._context.options.events_together, TOGETHER_MAX):
            await self._write_waiting(here)

    async def _write_waiting(self, here: _Pass) -> None:
        """Write the events that wait at the next position.

        Raises:
            PredicateFailed: another gatherer wrote there, positions were removed, or other marks count by now.
        """
        if not here.waiting:
            return
        # The marks counted when all of them were read; later they may be removed. And where this pass wrote events
        # before, none of their positions had been removed: these follow them.
        await self._read_same_feed(here)
        first, *more = here.waiting
        value = encode_record(replace(first, more=tuple(more)))
        # An event rests on all events before it. A gatherer that was overtaken finds the position taken.
        await self._context.store.set_if(self.partition, _event_key(here.end + 1), value, None)
        here.end += len(here.waiting)
        here.waiting.clear()

    async def _read_same_feed(self, here: _Pass) -> tuple[FeedRecord, Held]:
        """Read the feed once more.

        Raises:
            PredicateFailed: positions of this pass were removed, or other marks count by now.
        """
        found = await self._marks.read_feed()
        # A position that is free because its event was removed is none that a reader comes to.
        if found is None or found[0].oldest > here.first:
            raise PredicateFailed("events were removed meanwhile")
        if found[0].generation != here.feed.generation:
            raise PredicateFailed("other marks count by now")
        return found

    async def _catch_up(self, feed: FeedRecord) -> _Pass:
        """Step 1: write the marks that an earlier gatherer did not come to."""
        end = max(feed.tail, feed.oldest - 1)
        here = _Pass(feed, end + 1, end)
        async for position, first in self._written(end + 1):
            here.end = position + len(first.more)
            here.moved |= {event.ref: event.mark for event in (first, *first.more)}
        await self._settle(here)
        return _Pass(here.feed, here.end + 1, here.end)

    async def _settle(self, here: _Pass) -> None:
        """Move the marks on, then the tail.

        Raises:
            PredicateFailed: another gatherer did, or positions were removed meanwhile.
        """
        if here.end == here.feed.tail:
            return
        feed, held = await self._read_same_feed(here)
        # The marks first: a crash before the tail moves leaves events that `_catch_up` reads again.
        for ref, mark in here.moved.items():
            await self._mark(here, ref, mark)
        if feed.tail < here.end:
            here.feed = replace(feed, tail=here.end)
            await self._context.store.set_if(self.partition, FEED, encode_record(here.feed), held.predicate)

    async def _mark(self, here: _Pass, ref: Ref, mark: MarkRecord) -> None:
        """Move a mark on, never back: a gatherer that slept may be at an old event."""
        key = mark_key(here.feed.generation, *ref)
        held = await self._context.store.get(self.partition, key)
        if held is None or decode_record(MarkRecord, held.value).is_before(mark):
            predicate = None if held is None else held.predicate
            await self._context.store.set_if(self.partition, key, encode_record(mark), predicate)

    async def _refs(self) -> AsyncIterator[tuple[RefKind, str, _RefRecord]]:
        for kind, prefix, record_type in _REFS:
            async for key, value in scan_prefix(self._context.store, self._context.partition, prefix):
                yield kind, key[len(prefix) :].decode(), decode_record(record_type, value)

    # Reading

    async def bounds(self) -> tuple[int, int]:
        """Return the oldest position that is kept and the last that is known: (1, 0) without events."""
        found = await self._marks.read_feed()
        return (1, 0) if found is None else (found[0].oldest, found[0].tail)

    async def events(self, after: int, *, limit: int) -> Sequence[tuple[int, EventRecord]]:
        """Return the kept events behind this position, in order, and their positions."""
        while True:
            oldest, _ = await self.bounds()
            events: list[tuple[int, EventRecord]] = []
            # The event may be in the middle of those that were written together.
            start = max(oldest, after + 2 - TOGETHER_MAX)
            async for position, first in self._written(start, page_size=min(limit + TOGETHER_MAX, _PAGE)):
                alone = (replace(first, more=()), *first.more)
                events += (item for item in enumerate(alone, position) if item[0] > after)
                if len(events) >= limit:
                    break
            # A gatherer that slept may have written at a removed position events that reach to kept ones.
            if (await self.bounds())[0] == oldest:
                return events[:limit]

    async def _written(self, start: int, *, page_size: int = _PAGE) -> AsyncIterator[tuple[int, EventRecord]]:
        """Yield first positions from `start` on, and what was written there."""
        async for key, value in scan_prefix(
            self._context.store, self.partition, EVENT, start=_event_key(start), page_size=page_size
        ):
            yield int(key[len(EVENT) :]), decode_record(EventRecord, value)

    async def clean(self) -> int:
        """Remove events that are too old, delivered or not. Return how many keys went."""
        found = await self._marks.read_feed()
        if found is None:
            return 0
        feed, held = found
        oldest_ms = self._context.ports.clock.now_ms() - self._context.options.events_age_ms_max
        old: list[bytes] = []
        oldest = feed.oldest
        async for position, first in self._written(0):
            # One below was written by a gatherer that slept, or a cleaner died. No reader comes to it. Of the others
            # only such as have their marks: a gatherer that slept must not find an old position free.
            if position >= feed.oldest:
                if position > feed.tail or first.gathered_ms >= oldest_ms:
                    break
                oldest = position + 1 + len(first.more)
            old.append(_event_key(position))
        if oldest > feed.oldest:
            try:
                value = encode_record(replace(feed, oldest=oldest))
                await self._context.store.set_if(self.partition, FEED, value, held.predicate)
            except PredicateFailed:
                return 0
        for at in range(0, len(old), _PAGE):
            await self._context.store.delete_many(self.partition, old[at : at + _PAGE])
        return len(old)


def _moves(logged: Sequence[MoveRecord]) -> Sequence[MoveRecord]:
    """Leave out the notes of deletions: one may be missing, or have come late."""
    return [move for move in logged if move.after]


def _event_key(position: int) -> bytes:
    return EVENT + f"{position:015d}".encode()


def _kind_of_run(kind: RunKind) -> EventKind:
    return EventKind.ERASURE if kind.spec.by_order else EventKind.RUN
