"""Objects that may be deleted at once: the queue between those who take the last name away and the worker that deletes.

A writer *lets go* of an address where it took an owned cell away from a token that it then saw to be still current
(docs/design/0007-hard-delete.md). It waits for nothing: the address stays in memory until this process's worker writes
it down, about a second later. An address that a crash loses there is garbage for the offline collector, as all in
doubt.

Marks in cells are kept whatever the setting says. So it may be turned on and off at any time: it decides only whether
addresses are queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from lakebed.base import FOREIGN_SLICE, Row, format_address
from lakebed.kv import Held, PredicateFailed

from . import keys
from .cells import EXCLUSIVE, TOMBSTONE_ROW, Cell, is_exclusive, is_gone
from .context import Context
from .records import Record, decode_record, encode_record

WAITING_MAX: Final = 100_000
"""More than a worker writes in a second. Where no worker runs, later addresses are left to the offline collector."""
BATCH: Final = 1_000


class LetGoBy(StrEnum):
    """Name the operation that took the last name away."""

    OVERWRITE = "overwrite"
    DELETE = "delete"
    RESET = "reset"
    REFUSED = "refused"
    CLEANER = "cleaner"


class HardDeleteRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The setting. `grace_s` None: as long as signed URLs last, or 2 s where all reads go through the server."""

    is_on: bool = False
    is_paused: bool = False
    grace_s: int | None = None
    changed_ms: int = 0
    changed_by: str = ""


class QueuedRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An address that nothing names since `since_ms`. `error`, `tried_ms`: of the last attempt that failed."""

    address: str
    since_ms: int
    by: LetGoBy
    path: bytes = b""
    size_bytes: int = 0
    error: str = ""
    tried_ms: int = 0


class DeletingRecord(Record, frozen=True, kw_only=True):
    """A page that a worker is about to delete. It is gone when the page is done."""

    started_ms: int


class PageRecord(Record, frozen=True, kw_only=True):
    """The page that workers delete and record next. All of them name its file of the ledger by `number` and day."""

    number: int
    opened_ms: int


@dataclass(frozen=True, slots=True)
class OpenPage:
    """The page's record, as read."""

    record: PageRecord
    held: Held


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Consecutive records, oldest first. `next_start` begins the next page; None after the last."""

    items: list[tuple[bytes, QueuedRecord]]
    next_start: bytes | None


class HardDelete:
    """The setting and the queue. `is_on` is the last setting that this process's worker read, and costs no read."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._partition = keys.garbage_partition(context.uid)
        self._waiting: list[QueuedRecord] = []
        self.is_on = False

    # For those who take names away

    def let_go(self, cell: Cell, path: bytes, by: LetGoBy, *, instead: Row = TOMBSTONE_ROW) -> None:
        """Queue the address of a cell that was taken away, if the cell owned it. `instead`: the entry that the path
        names now.
        """
        # The caller took the cell by a conditional write that was answered, in a token that was current after that.
        if self.is_on and is_owner(cell) and not same_address(cell[1], instead):
            self._wait(self.queued(cell, path, by))

    def let_go_unnamed(self, row: Row, path: bytes, by: LetGoBy) -> None:
        """Queue the address of a row that no cell ever had."""
        if self.is_on and row[1] != FOREIGN_SLICE:
            self._wait(self.queued((EXCLUSIVE, row), path, by))

    def queued(self, cell: Cell, path: bytes, by: LetGoBy) -> QueuedRecord:
        """Return the record of an address that its cell owned until now."""
        _, slice_, sequence, _, size_bytes, *_ = cell[1]
        now_ms = self._context.ports.clock.now_ms()
        address = format_address(slice_, sequence)
        return QueuedRecord(address=address, since_ms=now_ms, by=by, path=path, size_bytes=size_bytes)

    def _wait(self, queued: QueuedRecord) -> None:
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(queued)

    # For the worker

    async def flush(self) -> int:
        """Write down the addresses that wait in this process; return how many. A failed write leaves them for the next
        one.
        """
        written = 0
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            try:
                await self.put(batch)
            except BaseException:
                self._waiting = [*batch, *self._waiting]
                raise
            written += len(batch)
        return written

    async def put(self, records: Sequence[QueuedRecord]) -> None:
        """Write records, each under its time and address. The same ones again change nothing."""
        for start in range(0, len(records), BATCH):
            items = [(_key(record), encode_record(record)) for record in records[start : start + BATCH]]
            await self._context.store.set_many(self._partition, items)

    async def page(self, start: bytes = b"", limit: int = BATCH) -> QueuePage:
        page = await self._context.store.scan(self._partition, start, limit)
        records = [decode_record(QueuedRecord, value) for value in page.values]
        return QueuePage(list(zip(page.keys, records, strict=True)), page.next_start)

    async def remove(self, names: Sequence[bytes]) -> None:
        """Take records out of the queue, by their names in a page."""
        await self._context.store.delete_many(self._partition, names)

    async def note_failed(self, name: bytes, record: QueuedRecord, error: str) -> None:
        """Write down that a try failed, if the queue still has just this record. Another worker may have removed it."""
        failed = replace(record, error=error, tried_ms=self._context.ports.clock.now_ms())
        held = await self._context.store.get(self._partition, name)
        if held is not None and decode_record(QueuedRecord, held.value) == record:
            with suppress(PredicateFailed):
                await self._context.store.set_if(self._partition, name, encode_record(failed), held.predicate)

    async def open_page(self) -> OpenPage:
        """Return the next page. Read it before the queue: then no earlier page recorded its addresses."""
        while True:
            held = await self._context.get(keys.QUEUE_PAGE)
            if held is not None:
                return OpenPage(decode_record(PageRecord, held.value), held)
            first = PageRecord(number=0, opened_ms=self._context.ports.clock.now_ms())
            with suppress(PredicateFailed):
                await self._context.set_if(keys.QUEUE_PAGE, encode_record(first), None)

    async def turn_page(self, page: OpenPage) -> None:
        """Make the page after this one the next, unless another worker did. To be done last of a recorded page."""
        after = PageRecord(number=page.record.number + 1, opened_ms=self._context.ports.clock.now_ms())
        with suppress(PredicateFailed):
            await self._context.set_if(keys.QUEUE_PAGE, encode_record(after), page.held.predicate)

    async def begin_page(self) -> bytes:
        """Note that a page is about to be deleted; return the name of the note. Notes of dead workers go."""
        now_ms = self._context.ports.clock.now_ms()
        async for name, other in self._context.records(DeletingRecord, keys.DELETING):
            if now_ms - other.started_ms >= self._context.options.claim_age_ms_max:
                await self._context.delete(name)
        name = keys.DELETING + self._context.ports.ids.fresh().encode()
        await self._context.set(name, DeletingRecord(started_ms=now_ms))
        return name

    async def end_page(self, name: bytes) -> None:
        await self._context.delete(name)

    async def is_deleting(self) -> bool:
        """Answer whether a worker may be in the middle of a page, by its reads before this call."""
        return [name async for name, _ in self._context.scan(keys.DELETING)] != []

    # The setting

    async def setting(self) -> HardDeleteRecord:
        """Read the setting, and take note of it: writers of this process go by it from now on."""
        record, _ = await self._read()
        self.is_on = record.is_on
        if not self.is_on:
            self._waiting.clear()
        return record

    async def change(
        self, *, by: str, is_on: bool | None = None, is_paused: bool | None = None, grace_s: int | None = None
    ) -> HardDeleteRecord:
        """Change the given fields only. A negative `grace_s` brings back that of the store."""
        while True:
            record, held = await self._read()
            changed = replace(
                record,
                is_on=record.is_on if is_on is None else is_on,
                is_paused=record.is_paused if is_paused is None else is_paused,
                grace_s=record.grace_s if grace_s is None else grace_s if grace_s >= 0 else None,
                changed_ms=self._context.ports.clock.now_ms(),
                changed_by=by,
            )
            try:
                await self._context.set_if(keys.HARD_DELETE, encode_record(changed), held.predicate if held else None)
            except PredicateFailed:
                continue
            self.is_on = changed.is_on
            return changed

    async def _read(self) -> tuple[HardDeleteRecord, Held | None]:
        held = await self._context.get(keys.HARD_DELETE)
        return (HardDeleteRecord() if held is None else decode_record(HardDeleteRecord, held.value)), held


def is_owner(cell: Cell) -> bool:
    """Answer whether nothing but this cell names its address, which lies in a slice. Doubt is no."""
    flags, row = cell
    return is_exclusive(flags) and not is_gone(flags) and row[1] != FOREIGN_SLICE


def same_address(one: Row, other: Row) -> bool:
    return one[1:4] == other[1:4]


def _key(record: QueuedRecord) -> bytes:
    # Time first, so that the worker reads due addresses only.
    return f"{record.since_ms:013d}/{record.address}".encode()
