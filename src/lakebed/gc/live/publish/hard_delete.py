"""Delete at once the objects in the queue of a repository (docs/design/0007-hard-delete.md), and count them.

Nothing here decides that an object is garbage: it is, when its record is in the queue. Of a page of the queue:

    1  the setting, read anew: paused or not, and the readers' grace
    2  whether this installation is the only one: a copy of the store must not delete; then the number of the page
    3  note that a page is under way, then read the legal holds: a hold that comes later names this worker, as too late
    4  delete those that are older than the grace, lie in a slice, are under no hold, and are there
    5  a file of the ledger, named by the number of the page, if it is absent
    6  look whether a run recorded some of them, too: then the page's record gives way, by one more file of its own
    7  remove the records of those that the file names; those that failed stay; then the note, and turn the page

A worker that stops in between leaves records, and the next one does the page again. Any number of workers may be at one
queue. Those that overlap have one number, so one of them records, and the others go by its file. A page is turned after
its file was put, and a worker looks at the objects after it read the number: what is there, no earlier page recorded.

An object that is not there was deleted by a run, or by a worker that stopped before step 7. The ledger says which: of
what it has on record nothing is recorded again. A run that deletes an object in the same moment looks after its own
record is there, as step 6 does: the later of the two sees both (gc/runs/elsewhere.py, `settle`). A worker looks for
runs that began since the objects were written: one may stop for days, and end just before the page is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa

from lakebed.base import RunState, parse_address, slice_opened_at_ms
from lakebed.gc.live.installation.installation import Installation
from lakebed.gc.live.reading.recorded import recorded_since
from lakebed.gc.live.records.holds import RUN_ID, HoldBook
from lakebed.gc.messages import (
    DELETED_AT_ONCE,
    LEDGER,
    LEDGER_PREFIX,
    LedgerQuery,
    LedgerRow,
    LedgerState,
    arrow_schema,
    decode_ledger,
    decode_record,
    encode_ledger,
    give_way,
    giving_way,
    grace_s_of,
    ledger_folder,
    ledger_records,
    plain_rows,
)
from lakebed.gc.rules import DAY_MS
from lakebed.objectstore import Deleter, ObjectExists, ObjectMissing, ObjectOutcomeUnknown
from lakebed.versions import LetGoBy, OpenPage, PageRecord, QueuedRecord, RunRecord, Versions

A = TypeVar("A")
T = TypeVar("T")

FULL_PAGE: Final = 1_000
LINGER_MS: Final = 60_000
"""A page that is not full waits this long after its grace for more: each page makes a file of the ledger."""
AGAIN_MS: Final = 60_000
"""A key that could not be deleted is tried again after this time."""
AT_ONCE: Final = 64
"""How many small requests about single objects a worker has under way."""
COUNTED_MAX: Final = 100_000
FILES_MAX: Final = 1_000

REASONS: Final = {
    LetGoBy.OVERWRITE: "overwritten",
    LetGoBy.DELETE: "deleted",
    LetGoBy.RESET: "reset",
    LetGoBy.REFUSED: "refused",
    LetGoBy.CLEANER: "never committed",
}
"""The reason in the ledger."""
_REFUSED: Final = "not an object that may be deleted"


@dataclass(slots=True)
class Worked:
    """Count the outcomes of a worker. `failed`: by reason."""

    objects_deleted: int = 0
    bytes_deleted: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    def add(self, more: Worked) -> None:
        self.objects_deleted += more.objects_deleted
        self.bytes_deleted += more.bytes_deleted
        self.failed.update(more.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Count the records of a queue, at most COUNTED_MAX. `failed`: by reason. `oldest_ms` 0: it is empty."""

    objects: int
    size_bytes: int
    oldest_ms: int
    by: dict[LetGoBy, int]
    failed: dict[str, int]
    is_complete: bool


class QueueWorker:
    """Works on one repository's queue. `linger_ms`: how long a page waits to be full."""

    def __init__(self, versions: Versions, deleter: Deleter, *, linger_ms: int = LINGER_MS) -> None:
        assert deleter.uri == versions.objectstore.uri, "the right to delete is for another namespace"
        self._versions = versions
        self._queue = versions.hard_delete
        self._deleter = deleter
        self._linger_ms = linger_ms

    async def work(self) -> Worked:
        """Write down the addresses that this process let go, and delete due ones, page by page, the oldest first.

        Raises:
            OtherInstallation: another one may use the namespace. Nothing of this page was deleted.
            ObjectStoreUnavailable, StoreUnavailable, OutcomeUnknown: the next call does the page again.
        """
        await self._queue.flush()
        done = Worked()
        start: bytes | None = b""
        while start is not None:
            setting = await self._queue.setting()
            if setting.is_paused:
                break
            grace_ms = 1000 * grace_s_of(self._versions.objectstore.uri, setting.grace_s)
            page = await self._queue.page(start, FULL_PAGE)
            now_ms = self._versions.ports.clock.now_ms()
            due = [item for item in page.items if now_ms - item[1].since_ms >= grace_ms]
            ready = [item for item in due if not item[1].error or now_ms - item[1].tried_ms >= AGAIN_MS]
            # By what is ready: one record that stays, as a held one does, must not make a page of each newcomer.
            is_full = len(ready) == FULL_PAGE
            if ready and (is_full or now_ms - ready[0][1].since_ms >= grace_ms + self._linger_ms):
                done.add(await self._delete(ready))
            start = page.next_start if len(due) == len(page.items) else None
        return done

    async def _open_page(self) -> OpenPage:
        """Return the page that is next, opened today: its file lies in the ledger under the day on which it was."""
        while True:
            page = await self._queue.open_page()
            if ledger_folder(page.record.opened_ms) >= ledger_folder(self._versions.ports.clock.now_ms()):
                return page
            await self._queue.turn_page(page)

    async def _delete(self, items: Sequence[tuple[bytes, QueuedRecord]]) -> Worked:
        await Installation(self._versions).check()
        # Before it looks which objects are there: what is, no earlier page has recorded.
        page = await self._open_page()
        by_address = {record.address: record for _, record in items if parse_address(record.address) is not None}
        errors = {record.address: _REFUSED for _, record in items if record.address not in by_address}
        # Before the holds are read: who adds one later finds the note.
        note = await self._queue.begin_page()
        errors |= await self._held(by_address.values())
        free = {address: record for address, record in by_address.items() if address not in errors}
        there = await self._there(free)
        failures = await self._deleter.delete(there)
        errors |= {failure.key: failure.reason or "no reason given" for failure in failures}
        before = await self._on_record([record for address, record in free.items() if address not in there])
        gone = [record for address, record in free.items() if address not in errors and address not in before]
        recorded, is_ours = await self._record(gone, page.record) if gone else (frozenset[str](), False)
        done = [(name, record) for name, record in items if record.address in recorded | before]
        of_runs = await self._give_way([record for _, record in done])
        # Last: a worker that stops before this leaves records, by which the page is done again.
        await self._queue.remove([name for name, _ in done])
        failed = [(name, record) for name, record in items if record.address in errors]
        await self._each(failed, lambda one: self._queue.note_failed(*one, errors[one[1].address]))
        # Not where the delete failed: a request of it may take effect yet.
        await self._queue.end_page(note)
        if gone:
            await self._queue.turn_page(page)
        # The worker whose file it is counts them.
        counted = [record for record in gone if is_ours and record.address not in of_runs]
        return Worked(len(counted), sum([record.size_bytes for record in counted]), Counter(errors.values()))

    async def _each(self, items: Sequence[A], act: Callable[[A], Awaitable[T]]) -> list[T]:
        return [result async for _, result in self._versions.ports.tasks.ahead(items, act, most=AT_ONCE)]

    async def _there(self, addresses: Iterable[str]) -> list[str]:
        """Return those of these addresses at which there is an object. Costs a small request each."""

        async def is_there(address: str) -> str:
            try:
                await self._versions.objectstore.stat(address)
            except ObjectMissing:
                return ""
            return address

        return [address for address in await self._each(list(addresses), is_there) if address]

    async def _on_record(self, missing: Sequence[QueuedRecord]) -> frozenset[str]:
        """Return which of these objects that are not there the ledger says to be deleted already."""
        if not missing:
            return frozenset()
        since_ms = min(_nameless_from_ms(record) for record in missing)
        addresses = {record.address for record in missing}
        return frozenset().union(*(await recorded_since(self._versions.objectstore, addresses, since_ms)).values())

    async def _give_way(self, done: Sequence[QueuedRecord]) -> Set[str]:
        """Let pages give way to runs that count the same deletions. Return which of these objects runs count.

        Costs a read of the runs' records. Where a run deletes, or began since the objects were written, also a listing
        of the ledger, and a read of the files that changed since they were queued.

        Raises:
            OutcomeUnknown: see `give_way`.
        """
        if not done:
            return frozenset()
        since_ms = min(record.since_ms for record in done)
        runs = await self._versions.retired.runs()
        began = [record.started_ms for _, record in runs if _may_record(record, min(map(_written_from_ms, done)))]
        if not began:
            return frozenset()
        store, addresses = self._versions.objectstore, {record.address for record in done}
        of_runs: Set[str] = frozenset()

        async def losers() -> list[tuple[Sequence[str], pa.Table]]:
            nonlocal of_runs
            by_record = await recorded_since(store, addresses, since_ms, began_ms=min(began))
            pages = {names: deleted for names, deleted in by_record.items() if DELETED_AT_ONCE in names[0]}
            of_runs = frozenset().union(*(deleted for names, deleted in by_record.items() if names not in pages))
            return [
                (names, giving_way(decode_record(names, [await store.get(name) for name in names]), deleted & of_runs))
                for names, deleted in pages.items()
                if deleted & of_runs
            ]

        await give_way(losers, partial(store.put, if_absent=True))
        return of_runs

    async def _held(self, records: Iterable[QueuedRecord]) -> dict[str, str]:
        """Return why objects stay whose path a legal hold names, by address."""
        holds = await HoldBook(self._versions).in_force()
        names = {one.address: holds.of(path=one.path.decode(errors="replace")) for one in records}
        return {address: f"held by {' or '.join(found)}" for address, found in names.items() if found}

    async def _record(self, gone: Sequence[QueuedRecord], page: PageRecord) -> tuple[frozenset[str], bool]:
        """Put the page's file of the ledger. Return the addresses in it, and whether it is ours or another worker's."""
        now_ms = self._versions.ports.clock.now_ms()
        key = f"{ledger_folder(page.opened_ms)}{RUN_ID}-{page.number:012d}.parquet"
        ours = encode_ledger(_ledger_rows(gone, now_ms))
        try:
            await self._versions.objectstore.put(key, ours, if_absent=True)
        except (ObjectExists, ObjectOutcomeUnknown) as error:
            try:
                theirs = await self._versions.objectstore.get(key)
            except ObjectMissing:
                raise error from None  # Nothing was recorded: the next call does the page again.
            # Equal bytes may be another worker's, too: only where our own put has no answer they count as ours.
            is_ours = isinstance(error, ObjectOutcomeUnknown) and theirs == ours
            return frozenset(decode_ledger(theirs, name=key)["address"].to_pylist()), is_ours
        return frozenset(record.address for record in gone), True

    # For people

    async def count(self) -> Queued:
        return await count_queue(self._versions)


async def count_queue(versions: Versions) -> Queued:
    """Count the records of the queue. Costs a scan of it."""
    by: Counter[LetGoBy] = Counter()
    failed: Counter[str] = Counter()
    size_bytes = oldest_ms = 0
    start: bytes | None = b""
    while start is not None and by.total() < COUNTED_MAX:
        page = await versions.hard_delete.page(start)
        for _, record in page.items:
            by[record.by] += 1
            size_bytes += record.size_bytes
            oldest_ms = oldest_ms or record.since_ms
            if record.error:
                failed[record.error] += 1
        start = page.next_start
    return Queued(
        objects=by.total(),
        size_bytes=size_bytes,
        oldest_ms=oldest_ms,
        by=dict(by),
        failed=dict(failed),
        is_complete=start is None,
    )


async def find_queued(versions: Versions, *, address: str, path: str, limit: int) -> list[QueuedRecord]:
    """Return records of this address or path that wait in the queue, the oldest first. Costs a scan of it."""
    found: list[QueuedRecord] = []
    start: bytes | None = b""
    while start is not None and len(found) < limit:
        page = await versions.hard_delete.page(start)
        found += [record for _, record in page.items if address == record.address or path.encode() == record.path]
        start = page.next_start
    return found[:limit]


async def find_deleted(versions: Versions, *, address: str, path: str, limit: int) -> list[LedgerRow]:
    """Return rows of the ledger about this address or path that a queue's worker wrote, newest files first.

    Costs a listing of the ledger, and a read of at most FILES_MAX files.
    """
    pages = versions.objectstore.list(LEDGER_PREFIX)
    query = LedgerQuery(run_id=RUN_ID, address=address, path=path)
    names = [stat.key async for page in pages for stat in page if query.matches(stat.key)]
    found: list[LedgerRow] = []
    for files in ledger_records(names)[: -FILES_MAX - 1 : -1]:
        found += plain_rows(
            query.select(decode_record(files, [await versions.objectstore.get(name) for name in files]))
        )
        if len(found) >= limit:
            break
    return found[:limit]


def _may_record(run: RunRecord, written_ms: int) -> bool:
    """Return whether a run may have recorded objects that were written since then.

    By when it began, and not by when they were queued: it may have stopped for days, and ended just now.
    """
    if not run.kind.spec.meets_hard_delete or run.state is RunState.ABANDONED:
        return False
    is_sweeping = run.state is RunState.SWEEPING or (run.state is RunState.MARKED and bool(run.began))
    return is_sweeping or run.started_ms >= written_ms - DAY_MS


def _written_from_ms(record: QueuedRecord) -> int:
    """Return when the slice of an object was opened: no run that began before can have a plan with it."""
    place = parse_address(record.address)
    return record.since_ms if place is None else min(record.since_ms, slice_opened_at_ms(place[0]))


def _nameless_from_ms(record: QueuedRecord) -> int:
    """Return from when on a run may have deleted an object. What a cleaner queues may have had no name for days."""
    return _written_from_ms(record) if record.by is LetGoBy.CLEANER else record.since_ms


def _ledger_rows(gone: Sequence[QueuedRecord], now_ms: int) -> pa.Table:
    columns = {
        "run_id": [RUN_ID] * len(gone),
        "address": [record.address for record in gone],
        "size_bytes": [record.size_bytes for record in gone],
        "reason": [REASONS[record.by] for record in gone],
        "deleted_at": [now_ms] * len(gone),
        "error": [""] * len(gone),
        "path": [record.path.decode(errors="replace") for record in gone],
        "rule": [""] * len(gone),
        "state": [LedgerState.DELETED.value] * len(gone),
        "last_seen_at": [record.since_ms for record in gone],
    }
    schema = arrow_schema(LEDGER)
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
