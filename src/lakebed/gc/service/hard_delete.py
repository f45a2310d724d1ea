"""Delete at once what the queue of a repository holds (docs/design/0007-hard-delete.md), and say what it holds.

Nothing here decides that an object is garbage: it is, when its record is in the queue. Of a page of the queue:

    1  the setting, read anew: paused or not, and the readers' grace
    2  whether this installation is the only one of the namespace: a copy of the store must not delete
    3  note that a page is under way, then read the legal holds: a hold that comes later names this worker, as too late
    4  delete those that are older than the grace, lie in a slice, and are under no hold
    5  a file of the ledger
    6  remove their records; those that failed stay; then the note

A worker that stops in between leaves records, and the next one does the page again. The file of the ledger is named by
what is in it, so the same page makes the same file. Any number of workers may be at one queue.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from lakebed.base import parse_address
from lakebed.gc.protocol import (
    LEDGER,
    LEDGER_PREFIX,
    LedgerQuery,
    LedgerRow,
    LedgerState,
    arrow_schema,
    decode_ledger,
    encode_ledger,
    grace_s_of,
    ledger_folder,
    plain_rows,
)
from lakebed.objectstore import Deleter
from lakebed.versions import LetGoBy, QueuedRecord, Versions

from .holds import RUN_ID, HoldBook
from .installation import Installation

FULL_PAGE: Final = 1_000
LINGER_MS: Final = 60_000
"""A page that is not full waits this long after its grace for more: each page makes a file of the ledger."""
AGAIN_MS: Final = 60_000
"""A key that could not be deleted is tried again after this time."""
COUNTED_MAX: Final = 100_000
FILES_MAX: Final = 1_000

REASONS: Final = {
    LetGoBy.OVERWRITE: "overwritten",
    LetGoBy.DELETE: "deleted",
    LetGoBy.RESET: "reset",
    LetGoBy.REFUSED: "refused",
    LetGoBy.CLEANER: "never committed",
}
"""What the ledger gives for a reason."""
_REFUSED: Final = "not an object that may be deleted"


@dataclass(slots=True)
class Worked:
    """Count what a worker did. `failed`: by reason."""

    objects_deleted: int = 0
    bytes_deleted: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    def add(self, more: Worked) -> None:
        self.objects_deleted += more.objects_deleted
        self.bytes_deleted += more.bytes_deleted
        self.failed.update(more.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Count what is in a queue, at most COUNTED_MAX records of it. `failed`: by reason. `oldest_ms` 0: it is empty."""

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
        """Write down what this process let go, and delete what is due, page by page, the oldest first.

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

    async def _delete(self, items: Sequence[tuple[bytes, QueuedRecord]]) -> Worked:
        await Installation(self._versions).check()
        by_address = {record.address: record for _, record in items if parse_address(record.address) is not None}
        errors = {record.address: _REFUSED for _, record in items if record.address not in by_address}
        # Before the holds are read: who adds one later finds the note.
        note = await self._queue.begin_page()
        errors |= await self._held(by_address.values())
        failures = await self._deleter.delete([address for address in by_address if address not in errors])
        errors |= {failure.key: failure.reason or "no reason given" for failure in failures}
        gone = [record for address, record in by_address.items() if address not in errors]
        if gone:
            await self._record(gone)
        # Last: a worker that stops before this leaves records, by which the page is done again.
        await self._queue.remove([name for name, record in items if record.address not in errors])
        now_ms = self._versions.ports.clock.now_ms()
        failed = [record for _, record in items if record.address in errors]
        await self._queue.put([replace(record, error=errors[record.address], tried_ms=now_ms) for record in failed])
        # Not where the delete failed: a request of it may take effect yet.
        await self._queue.end_page(note)
        return Worked(len(gone), sum([record.size_bytes for record in gone]), Counter(errors.values()))

    async def _held(self, records: Iterable[QueuedRecord]) -> dict[str, str]:
        """Return why objects stay whose path a legal hold names, by address."""
        holds = await HoldBook(self._versions).in_force()
        names = {one.address: holds.of(path=one.path.decode(errors="replace")) for one in records}
        return {address: f"held by {' or '.join(found)}" for address, found in names.items() if found}

    async def _record(self, gone: Sequence[QueuedRecord]) -> None:
        now_ms = self._versions.ports.clock.now_ms()
        digest = hashlib.blake2b("\n".join(sorted([record.address for record in gone])).encode(), digest_size=10)
        key = f"{ledger_folder(now_ms)}{RUN_ID}-{digest.hexdigest()}.parquet"
        await self._versions.objectstore.put(key, encode_ledger(_ledger_rows(gone, now_ms)))

    # For people

    async def count(self) -> Queued:
        return await count_queue(self._versions)


async def count_queue(versions: Versions) -> Queued:
    """Count what is in the queue. Costs a scan of it."""
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
    for name in sorted(names, reverse=True)[:FILES_MAX]:
        found += plain_rows(query.select(decode_ledger(await versions.objectstore.get(name), name=name)))
        if len(found) >= limit:
            break
    return found[:limit]


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
