"""Delete the objects in a repository's queue (docs/design/0007-hard-delete.md). A queued object is garbage. Per page:

    1  read the setting: paused or not, and the readers' grace
    2  check that this is the only installation, because a copy of the store must not delete; read the page number
    3  note that a page is in progress, then read the legal holds: a later hold reports this worker as too late
    4  delete the objects older than the grace, in a slice, without a hold, and present
    5  write the ledger file named by the page number, if absent
    6  check for runs that recorded the same objects: if so, the page's record gives way, in one more ledger file
    7  remove the records of objects in the file, and keep failed ones; then remove the note, and turn the page

Any number of workers may share a queue. A worker that stops leaves records, and the next worker repeats the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa

from lakebed.base import RunState, grace_s_of, parse_address, slice_opened_at_ms
from lakebed.gc import messages
from lakebed.gc.live.installation.installation import Installation
from lakebed.gc.live.records.settings import RUN_ID, HoldBook
from lakebed.gc.messages import LEDGER_PREFIX, decode_record, deleted_in, ledger_folder, ledger_records
from lakebed.gc.rules import DAY_MS
from lakebed.objectstore import Deleter, ObjectExists, ObjectMissing, ObjectOutcomeUnknown, ObjectStore
from lakebed.versions import LetGoBy, OpenPage, PageRecord, QueuedRecord, RunRecord, Versions

__all__ = ["LINGER_MS", "REASONS", "QueueWorker", "Worked", "count_queue", "find_deleted", "find_queued"]

A = TypeVar("A")
T = TypeVar("T")

FULL_PAGE: Final = 1_000
LINGER_MS: Final = 60_000
"""A partial page waits this long after its grace for more records, because each page makes a ledger file."""
AGAIN_MS: Final = 60_000
"""Time until the next attempt to delete a failed key."""
AT_ONCE: Final = 64
"""Concurrent small requests of a worker."""
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
    """Count the outcomes of a worker. `failed` counts by reason."""

    objects_deleted: int = 0
    bytes_deleted: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    def add(self, more: Worked) -> None:
        self.objects_deleted += more.objects_deleted
        self.bytes_deleted += more.bytes_deleted
        self.failed.update(more.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Count the records of a queue, at most about COUNTED_MAX. `failed` counts by reason. `oldest_ms` is 0 if empty."""

    objects: int
    size_bytes: int
    oldest_ms: int
    by: dict[LetGoBy, int]
    failed: dict[str, int]
    is_complete: bool


class QueueWorker:
    """Delete the objects in one repository's queue. `linger_ms` is the time that a partial page waits."""

    def __init__(self, versions: Versions, deleter: Deleter, *, linger_ms: int = LINGER_MS) -> None:
        assert deleter.uri == versions.objectstore.uri, "the right to delete is for another namespace"
        self._versions = versions
        self._queue = versions.hard_delete
        self._deleter = deleter
        self._linger_ms = linger_ms

    async def work(self) -> Worked:
        """Write this process's released addresses to the queue, and delete due objects page by page, oldest first.

        Raises:
            OtherInstallation: another installation may use the namespace. This page deleted nothing.
            ObjectStoreUnavailable, StoreUnavailable, OutcomeUnknown: the next call repeats the page.
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
            # Judge by the oldest ready record: a record that stays, as a held one, must not end the wait each time.
            is_full = len(ready) == FULL_PAGE
            if ready and (is_full or now_ms - ready[0][1].since_ms >= grace_ms + self._linger_ms):
                done.add(await self._delete(ready))
            start = page.next_start if len(due) == len(page.items) else None
        return done

    async def _open_page(self) -> OpenPage:
        """Return the open page. Turn a page opened before today: its ledger file is stored under its opening day."""
        while True:
            page = await self._queue.open_page()
            if messages.ledger_folder(page.record.opened_ms) >= messages.ledger_folder(
                self._versions.ports.clock.now_ms()
            ):
                return page
            # A slower worker may be at this page. With its file there, empty if need be, it records nothing more.
            await self._record([], page.record)
            await self._queue.turn_page(page)

    async def _delete(self, items: Sequence[tuple[bytes, QueuedRecord]]) -> Worked:
        await Installation(self._versions).check()
        # Before the check for present objects. A page is turned after its file was written, so no earlier page
        # recorded an object that is present now. Overlapping workers have the same number, so only one writes the file.
        page = await self._open_page()
        by_address = {record.address: record for _, record in items if parse_address(record.address) is not None}
        errors = {record.address: _REFUSED for _, record in items if record.address not in by_address}
        # Before the read of holds: a user who adds a hold later sees the note.
        note = await self._queue.begin_page()
        errors |= await self._held(by_address.values())
        free = {address: record for address, record in by_address.items() if address not in errors}
        there = await self._there(free)
        failures = await self._deleter.delete(there)
        errors |= {failure.key: failure.reason or "no reason given" for failure in failures}
        # A run, or a worker that stopped before step 7, deleted the absent objects. Record only those that the ledger
        # lacks.
        before = await self._on_record([record for address, record in free.items() if address not in there])
        gone = [record for address, record in free.items() if address not in errors and address not in before]
        recorded, is_ours = await self._record(gone, page.record) if gone else (frozenset[str](), False)
        done = [(name, record) for name, record in items if record.address in recorded | before]
        of_runs = await self._give_way([record for _, record in done])
        # Last: the next worker repeats the page from the records that are left.
        await self._queue.remove([name for name, _ in done])
        failed = [(name, record) for name, record in items if record.address in errors]
        await self._each(failed, lambda item: self._queue.note_failed(*item, errors[item[1].address]))
        # Skipped if an earlier step raised: a delete request may still take effect.
        await self._queue.end_page(note)
        if gone:
            await self._queue.turn_page(page)
        # Only the worker that wrote the file counts its objects.
        counted = [record for record in gone if is_ours and record.address not in of_runs]
        return Worked(len(counted), sum([record.size_bytes for record in counted]), Counter(errors.values()))

    async def _each(self, items: Sequence[A], act: Callable[[A], Awaitable[T]]) -> list[T]:
        return [result async for _, result in self._versions.ports.tasks.ahead(items, act, most=AT_ONCE)]

    async def _there(self, addresses: Iterable[str]) -> list[str]:
        """Return the addresses with a present object. Costs a small request for each address."""

        async def is_there(address: str) -> str:
            try:
                await self._versions.objectstore.stat(address)
            except ObjectMissing:
                return ""
            return address

        return [address for address in await self._each(list(addresses), is_there) if address]

    async def _on_record(self, missing: Sequence[QueuedRecord]) -> frozenset[str]:
        """Return the addresses of absent objects that the ledger records as deleted."""
        if not missing:
            return frozenset()
        # The clock of the process that queued one may have been ahead: then a run took the object "before". Few pages
        # miss an object, so more files to read cost little.
        since_ms = min(_nameless_from_ms(record) for record in missing) - DAY_MS
        addresses = {record.address for record in missing}
        return frozenset().union(*(await recorded_since(self._versions.objectstore, addresses, since_ms)).values())

    async def _give_way(self, done: Sequence[QueuedRecord]) -> Set[str]:
        """Let pages give way to runs that recorded the same deletions. Return the addresses that runs recorded.

        Costs a read of the runs' records. Also costs a listing of the ledger, and a read of its later files, if a run
        deletes or began after the objects were written.

        Raises:
            OutcomeUnknown: see `give_way`.
        """
        if not done:
            return frozenset()
        since_ms = min(record.since_ms for record in done)
        # A run that deletes an object at the same time checks after it wrote its own record, as this worker does. So
        # the later of the two sees both records (gc/runs/recording.py, `settle`).
        runs = await self._versions.retired.runs()
        began = [record.started_ms for _, record in runs if _may_record(record, min(map(_written_from_ms, done)))]
        if not began:
            return frozenset()
        store, addresses = self._versions.objectstore, {record.address for record in done}
        of_runs: Set[str] = frozenset()

        async def losers() -> list[tuple[Sequence[str], pa.Table]]:
            nonlocal of_runs
            by_record = await recorded_since(store, addresses, since_ms, began_ms=min(began))
            pages = {names: deleted for names, deleted in by_record.items() if messages.DELETED_AT_ONCE in names[0]}
            of_runs = frozenset().union(*(deleted for names, deleted in by_record.items() if names not in pages))
            return [
                (
                    names,
                    messages.giving_way(
                        messages.decode_record(names, [await store.get(name) for name in names]), deleted & of_runs
                    ),
                )
                for names, deleted in pages.items()
                if deleted & of_runs
            ]

        await messages.give_way(losers, partial(store.put, if_absent=True))
        return of_runs

    async def _held(self, records: Iterable[QueuedRecord]) -> dict[str, str]:
        """Return, by address, the reason for each object whose path a legal hold covers."""
        holds = await HoldBook(self._versions).in_force()
        names = {record.address: holds.of(path=record.path.decode(errors="replace")) for record in records}
        return {address: f"held by {' or '.join(hold_names)}" for address, hold_names in names.items() if hold_names}

    async def _record(self, gone: Sequence[QueuedRecord], page: PageRecord) -> tuple[frozenset[str], bool]:
        """Write the page's ledger file if absent. Return the addresses in it, and whether this worker wrote it."""
        now_ms = self._versions.ports.clock.now_ms()
        key = f"{messages.ledger_folder(page.opened_ms)}{RUN_ID}-{page.number:012d}.parquet"
        ours = messages.encode_ledger(_ledger_rows(gone, now_ms))
        try:
            await self._versions.objectstore.put(key, ours, if_absent=True)
        except (ObjectExists, ObjectOutcomeUnknown) as error:
            try:
                theirs = await self._versions.objectstore.get(key)
            except ObjectMissing:
                raise error from None  # Nothing was recorded: the next call repeats the page.
            # Equal bytes may also come from another worker. Treat them as ours only if our put has no answer.
            is_ours = isinstance(error, ObjectOutcomeUnknown) and theirs == ours
            return frozenset(messages.decode_ledger(theirs, name=key)["address"].to_pylist()), is_ours
        return frozenset(record.address for record in gone), True

    # Reports

    async def count(self) -> Queued:
        return await count_queue(self._versions)


async def count_queue(versions: Versions) -> Queued:
    """Count the records of the queue. Costs a scan of the queue, up to about COUNTED_MAX records."""
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
    """Return the queued records of this address or path, oldest first. Costs a scan of the queue."""
    queued: list[QueuedRecord] = []
    start: bytes | None = b""
    while start is not None and len(queued) < limit:
        page = await versions.hard_delete.page(start)
        queued += [record for _, record in page.items if address == record.address or path.encode() == record.path]
        start = page.next_start
    return queued[:limit]


async def find_deleted(versions: Versions, *, address: str, path: str, limit: int) -> list[messages.LedgerRow]:
    """Return ledger rows of queue workers about this address or path, newest files first.

    Costs a listing of the ledger, and a read of at most FILES_MAX files.
    """
    pages = versions.objectstore.list(messages.LEDGER_PREFIX)
    query = messages.LedgerQuery(run_id=RUN_ID, address=address, path=path)
    names = [stat.key async for page in pages for stat in page if query.matches(stat.key)]
    rows: list[messages.LedgerRow] = []
    for files in messages.ledger_records(names)[: -FILES_MAX - 1 : -1]:
        rows += messages.plain_rows(
            query.select(messages.decode_record(files, [await versions.objectstore.get(name) for name in files]))
        )
        if len(rows) >= limit:
            break
    return rows[:limit]


def _may_record(run: RunRecord, written_ms: int) -> bool:
    """Return whether a run may have recorded objects that were written at this time or later."""
    if not run.kind.takes_objects or run.state is RunState.ABANDONED:
        return False
    # By the start of the run, not by the time of queueing: a run may stop for days, and end just before this check.
    is_sweeping = run.state is RunState.SWEEPING or (run.state is RunState.MARKED and bool(run.began))
    return is_sweeping or run.started_ms >= written_ms - DAY_MS


def _written_from_ms(record: QueuedRecord) -> int:
    """Return when the slice of an object was opened. No plan of a run that began earlier has the object."""
    numbers = parse_address(record.address)
    return record.since_ms if numbers is None else min(record.since_ms, slice_opened_at_ms(numbers[0]))


def _nameless_from_ms(record: QueuedRecord) -> int:
    """Return the earliest time at which a run may have deleted an object.

    An object that a cleaner queued may have had no name for days before.
    """
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
        "state": [messages.LedgerState.DELETED.value] * len(gone),
        "last_seen_at": [record.since_ms for record in gone],
    }
    schema = messages.arrow_schema(messages.LEDGER)
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


SLACK_MS: Final = 600_000
"""Allowed clock difference between servers and object store. Reading an older file than needed does no harm."""


async def recorded_since(
    store: ObjectStore, addresses: Set[str], since_ms: int, *, began_ms: int | None = None
) -> dict[Sequence[str], Set[str]]:
    """Return the addresses that ledger files written since `since_ms` record as deleted, by record.

    Costs a listing of the ledger from the day before on, and a read of each such file. A run's files are stored under
    the day on which its first sweep began. `began_ms` is that time, for a run that stopped for days in between.
    """
    first_ms = since_ms if began_ms is None else min(since_ms, began_ms)
    changed_ms: dict[str, int] = {}
    async for page in store.list(LEDGER_PREFIX, start_after=ledger_folder(first_ms - DAY_MS)):
        changed_ms |= {stat.key: stat.modified_ms for stat in page}
    recorded: dict[Sequence[str], Set[str]] = {}
    for names in ledger_records(changed_ms):
        # A record may have several files, and a later file may change an earlier one: read all or none.
        if max(changed_ms[name] for name in names) >= since_ms - SLACK_MS:
            rows = decode_record(names, [await store.get(name) for name in names])
            if deleted := addresses & deleted_in(rows):
                recorded[names] = deleted
    return recorded
