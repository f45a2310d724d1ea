"""The worker deletes what its queue holds: after the readers' grace, once, with a row of the ledger each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pyarrow as pa
import pytest
from msgspec.structs import replace

from lakebed.base import SERVED_S, RunId, RunKind, RunState
from lakebed.gc.live import (
    HoldBook,
    Installation,
    OtherInstallation,
    QueueWorker,
    Worked,
    count_queue,
    find_deleted,
    find_queued,
)
from lakebed.gc.live.publish import hard_delete
from lakebed.gc.messages import (
    GARBAGE,
    LEDGER_PREFIX,
    LedgerState,
    NewHold,
    StartRun,
    arrow_schema,
    decode_ledger,
    encode_ledger,
    ledger_folder,
    plain_rows,
)
from lakebed.gc.rules import DAY_MS
from lakebed.gc.runs.recording import Outcomes, ledger_rows
from lakebed.kv import StoreUnavailable
from lakebed.objectstore import (
    DeleteFailure,
    MemoryDeleter,
    MemoryObjectStore,
    ObjectExists,
    ObjectOutcomeUnknown,
)
from lakebed.versions import LetGoBy, QueuedRecord
from tests.gc.conftest import Lake
from tests.gc.live.installation.test_installation import clone

GRACE_MS = 1000 * SERVED_S


@pytest.fixture
async def lake(lake: Lake) -> Lake:
    await lake.versions.hard_delete.change(by="ann", is_on=True, grace_s=SERVED_S)
    return lake


def worker(lake: Lake, **how: int) -> QueueWorker:
    return QueueWorker(lake.versions, lake.deleter, **{"linger_ms": 0, **how})


async def overwrite(lake: Lake, path: str = "a") -> str:
    first = await lake.put("main", path, "1")
    await lake.put("main", path, "2")
    return first


async def objects(lake: Lake) -> list[str]:
    return [stat.key async for page in lake.objectstore.list("data/") for stat in page]


async def ledger(lake: Lake) -> list[str]:
    files = [stat.key async for page in lake.objectstore.list(LEDGER_PREFIX) for stat in page]
    tables = [decode_ledger(await lake.objectstore.get(name), name=name) for name in files]
    return [row.address for table in tables for row in plain_rows(table)]


async def test_what_was_overwritten_goes_and_what_replaced_it_stays(lake: Lake) -> None:
    first = await overwrite(lake)
    await worker(lake).work()
    lake.clock.ms += GRACE_MS

    done = await worker(lake).work()

    assert (done.objects_deleted, done.bytes_deleted) == (1, 1)
    assert first not in await objects(lake)
    assert (await lake.versions.staging.get("main", b"a")).address in await objects(lake)
    assert (await count_queue(lake.versions)).objects == 0


async def test_readers_have_their_grace(lake: Lake) -> None:
    first = await overwrite(lake)
    lake.clock.ms += GRACE_MS - 1

    await worker(lake).work()
    assert first in await objects(lake)

    second = await overwrite(lake, "b")
    lake.clock.ms += 1
    await worker(lake).work()
    assert [one in await objects(lake) for one in (first, second)] == [False, True]


async def test_a_page_that_is_not_full_waits_for_more(lake: Lake) -> None:
    first = await overwrite(lake)
    lake.clock.ms += GRACE_MS

    await worker(lake, linger_ms=1).work()
    assert first in await objects(lake)

    lake.clock.ms += 1
    await worker(lake, linger_ms=1).work()
    assert first not in await objects(lake)


async def test_an_object_that_stays_in_the_queue_hurries_no_page(lake: Lake) -> None:
    """Each page makes a file of the ledger."""
    await HoldBook(lake.versions).add(NewHold(name="case 1", globs=("held/**",), why="court"), by="ann")
    await overwrite(lake, "held/a")
    works = worker(lake, linger_ms=60_000)

    for _ in range(72):  # six minutes
        await overwrite(lake, "free/a")
        await works.work()
        lake.clock.ms += 5_000

    files = [stat.key async for page in lake.objectstore.list(LEDGER_PREFIX) for stat in page]
    assert 0 < len(files) <= 6


async def test_the_ledger_says_what_went_and_why(lake: Lake) -> None:
    first = await overwrite(lake)
    [waits] = await _queued(lake, first)
    lake.clock.ms += GRACE_MS
    await worker(lake).work()

    [row] = await find_deleted(lake.versions, address="", path="a", limit=10)

    assert (waits.address, waits.by) == (first, LetGoBy.OVERWRITE)
    assert (row.address, row.reason, row.size_bytes, row.run_id) == (first, "overwritten", 1, "hard-delete")
    assert await find_queued(lake.versions, address=first, path="", limit=10) == []


async def test_the_newest_rows_are_found_first(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_delete, "FILES_MAX", 1)
    addresses = []
    for _ in range(2):
        addresses.append(await overwrite(lake))
        lake.clock.ms += DAY_MS
        await worker(lake).work()

    found = await find_deleted(lake.versions, address="", path="a", limit=10)

    assert {row.address for row in found}.intersection(addresses) == {addresses[1]}


async def test_what_could_not_be_queued_is_queued_by_the_next_call(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await overwrite(lake)

    async def refuse(*_: object) -> None:
        raise StoreUnavailable("later")

    with monkeypatch.context() as patch:
        patch.setattr(lake.versions.hard_delete, "put", refuse)
        with pytest.raises(StoreUnavailable):
            await lake.versions.hard_delete.flush()

    assert [record.address for record in await _queued(lake, first)] == [first]


async def test_a_negative_grace_brings_back_that_of_the_store(lake: Lake) -> None:
    assert (await lake.versions.hard_delete.change(by="ann", grace_s=0)).grace_s == 0
    assert (await lake.versions.hard_delete.change(by="ann", grace_s=-1)).grace_s is None


async def _queued(lake: Lake, address: str) -> list[QueuedRecord]:
    await lake.versions.hard_delete.flush()
    return await find_queued(lake.versions, address=address, path="", limit=10)


async def test_a_worker_that_dies_leaves_a_page_that_is_done_again(lake: Lake) -> None:
    first = await overwrite(lake)
    lake.clock.ms += GRACE_MS

    class Died(Exception):
        pass

    put = lake.objectstore.put

    async def die(*_: object, **__: object) -> None:
        raise Died

    lake.objectstore.put = die  # type: ignore[assignment,method-assign]  # a crash at that request
    with pytest.raises(Died):
        await worker(lake).work()
    lake.objectstore.put = put  # type: ignore[method-assign]  # it comes back

    await worker(lake).work()
    assert await ledger(lake) == [first]


async def test_two_workers_at_one_page_write_one_row(lake: Lake) -> None:
    await overwrite(lake)
    lake.clock.ms += GRACE_MS
    await lake.versions.hard_delete.flush()
    page = await lake.versions.hard_delete.page()
    await worker(lake).work()
    await lake.versions.hard_delete.put([record for _, record in page.items])

    await worker(lake).work()

    assert len(await ledger(lake)) == 1


async def test_two_workers_at_one_page_count_its_objects_once(lake: Lake) -> None:
    await overwrite(lake)
    lake.clock.ms += GRACE_MS
    done = list[Worked]()

    async def other() -> None:
        done.append(await worker(lake).work())

    done.append(await QueueWorker(lake.versions, Meeting(lake.objectstore, other), linger_ms=0).work())

    assert [each.objects_deleted for each in done] == [1, 0]
    assert [each.bytes_deleted for each in done] == [1, 0]


async def test_a_worker_whose_record_has_no_answer_counts_nothing_that_another_one_recorded(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    await overwrite(lake)
    lake.clock.ms += GRACE_MS
    done = list[Worked]()
    put = lake.objectstore.put

    async def unanswered(key: str, data: bytes, **how: bool) -> None:
        try:
            await put(key, data, **how)
        except ObjectExists:
            raise ObjectOutcomeUnknown("the answer was lost") from None

    async def other() -> None:
        done.append(await worker(lake).work())
        lake.clock.ms += 1

    monkeypatch.setattr(lake.objectstore, "put", unanswered)
    done.append(await QueueWorker(lake.versions, Meeting(lake.objectstore, other), linger_ms=0).work())

    assert [each.objects_deleted for each in done] == [1, 0]


class Meeting(MemoryDeleter):
    """Lets another worker do all of its work before this one's delete."""

    def __init__(self, store: MemoryObjectStore, other: Callable[[], Awaitable[object]]) -> None:
        super().__init__(store)
        self._other = other

    async def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        await self._other()
        return [*await super().delete(keys)]


async def test_a_worker_that_turns_the_page_of_yesterday_and_a_slower_one_write_one_row_for_each_object(
    lake: Lake,
) -> None:
    first = await overwrite(lake)
    lake.clock.ms += GRACE_MS
    done = list[Worked]()

    async def other() -> None:
        lake.clock.ms += DAY_MS
        done.append(await worker(lake).work())

    done.append(await QueueWorker(lake.versions, Meeting(lake.objectstore, other), linger_ms=0).work())
    await worker(lake).work()

    assert await ledger(lake) == [first]
    assert [each.objects_deleted for each in done] == [1, 0]
    assert (await count_queue(lake.versions)).objects == 0


async def test_two_workers_whose_pages_overlap_write_one_row_for_each_object(lake: Lake) -> None:
    first = await overwrite(lake, "a")
    lake.clock.ms += GRACE_MS

    async def other() -> None:
        # It comes later, so its page has an object more.
        await overwrite(lake, "b")
        lake.clock.ms += GRACE_MS
        await worker(lake).work()

    slow = QueueWorker(lake.versions, Meeting(lake.objectstore, other), linger_ms=0)
    await slow.work()
    await worker(lake).work()

    rows = await ledger(lake)
    assert len(rows) == len({*rows}) == 2
    assert first in rows
    assert (await count_queue(lake.versions)).objects == 0


async def test_what_only_the_slower_worker_could_delete_is_recorded_on_its_next_page(lake: Lake) -> None:
    both = {await overwrite(lake, "a"), await overwrite(lake, "b")}
    lake.clock.ms += GRACE_MS
    refused = max(both)

    class RefusingOne(MemoryDeleter):
        async def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
            await super().delete([key for key in keys if key != refused])
            return [DeleteFailure(key=refused, reason="no")]

    async def other() -> None:
        await QueueWorker(lake.versions, RefusingOne(lake.objectstore), linger_ms=0).work()

    await QueueWorker(lake.versions, Meeting(lake.objectstore, other), linger_ms=0).work()
    assert refused not in await ledger(lake)
    lake.clock.ms += 60_000
    await worker(lake).work()

    assert sorted(await ledger(lake)) == sorted(both)


async def test_a_worker_that_deleted_nothing_does_not_turn_the_page_of_a_slower_one(lake: Lake) -> None:
    """Else the slower one and the next would each write a file of the ledger with the same object."""
    first = await overwrite(lake)
    lake.clock.ms += GRACE_MS

    async def others() -> None:
        await QueueWorker(lake.versions, Refusing(lake.objectstore), linger_ms=0).work()
        lake.clock.ms += 60_000
        await worker(lake).work()

    await QueueWorker(lake.versions, Meeting(lake.objectstore, others), linger_ms=0).work()

    assert await ledger(lake) == [first]


@pytest.mark.parametrize("days", [0, 5])
async def test_a_worker_does_not_count_what_a_run_deletes_and_records_meanwhile(lake: Lake, days: int) -> None:
    """A run that deletes is asked however long ago it began."""
    run_id = (await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))).run_id
    record = await lake.versions.retired.find_run(RunId(run_id))
    assert record is not None
    await lake.versions.retired.write_run(
        RunId(run_id), replace(record[0], state=RunState.MARKED, began=True), record[1]
    )
    lake.clock.ms += days * DAY_MS
    address = await overwrite(lake)
    lake.clock.ms += GRACE_MS

    async def run() -> None:
        [row] = await _queued(lake, address)
        garbage = {"address": address, "size_bytes": 1, "reason": "overwritten", "path": "a", "rule": ""}
        objects = pa.Table.from_pylist([garbage | {"last_seen_at": row.since_ms}], schema=arrow_schema(GARBAGE))
        rows = ledger_rows(objects, Outcomes(errors={}, states={}), run_id=run_id, now_ms=lake.clock.ms)
        began = ledger_folder(lake.clock.ms - days * DAY_MS)
        await lake.objectstore.put(f"{began}{run_id}-part-00000.000000.parquet", encode_ledger(rows))

    done = await QueueWorker(lake.versions, Meeting(lake.objectstore, run), linger_ms=0).work()

    assert (done.objects_deleted, done.bytes_deleted) == (0, 0)
    rows = await find_deleted(lake.versions, address=address, path="", limit=10)
    assert [each.state for each in rows] == [LedgerState.GONE]


async def test_a_slow_worker_puts_no_record_back_that_another_one_removed(lake: Lake) -> None:
    first = await overwrite(lake)
    lake.clock.ms += GRACE_MS

    class Slow(MemoryDeleter):
        async def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
            await worker(lake).work()
            return [DeleteFailure(key=key, reason="no") for key in keys]

    await QueueWorker(lake.versions, Slow(lake.objectstore), linger_ms=0).work()

    assert await ledger(lake) == [first]
    assert (await count_queue(lake.versions)).objects == 0


async def test_an_object_that_is_queued_twice_is_counted_once(lake: Lake) -> None:
    """Two cleaners may each find a doomed cell, and queue its object at two times."""
    first = await overwrite(lake)
    await lake.versions.hard_delete.flush()
    [(_, record)] = (await lake.versions.hard_delete.page()).items
    lake.clock.ms += GRACE_MS
    await worker(lake).work()
    await lake.versions.hard_delete.put([replace(record, since_ms=record.since_ms + 1)])
    lake.clock.ms += 1

    done = await worker(lake).work()

    assert done.objects_deleted == 0
    assert await ledger(lake) == [first]
    assert (await count_queue(lake.versions)).objects == 0


async def test_a_page_that_was_opened_on_an_earlier_day_is_recorded_under_today(lake: Lake) -> None:
    for path in ("a", "b"):
        await overwrite(lake, path)
        lake.clock.ms += DAY_MS
        await worker(lake).work()

    files = [stat.key async for page in lake.objectstore.list(LEDGER_PREFIX) for stat in page]
    assert len({name.split("/")[-2] for name in files}) == 2


async def test_a_pause_keeps_all_and_goes_on_queueing(lake: Lake) -> None:
    await lake.versions.hard_delete.change(by="ann", is_paused=True)
    first = await overwrite(lake)
    lake.clock.ms += GRACE_MS

    await worker(lake).work()
    assert first in await objects(lake)
    assert (await count_queue(lake.versions)).by == {LetGoBy.OVERWRITE: 1}

    await lake.versions.hard_delete.change(by="ann", is_paused=False)
    await worker(lake).work()
    assert first not in await objects(lake)


async def test_a_pause_ends_a_worker_after_its_page(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_delete, "FULL_PAGE", 1)
    addresses = {await overwrite(lake, "a"), await overwrite(lake, "b")}
    lake.clock.ms += GRACE_MS

    async def pause() -> None:
        await lake.versions.hard_delete.change(by="ann", is_paused=True)

    await QueueWorker(lake.versions, Meeting(lake.objectstore, pause), linger_ms=0).work()

    assert len(addresses.intersection(await objects(lake))) == 1


async def test_what_was_queued_when_it_went_off_is_still_deleted(lake: Lake) -> None:
    first = await overwrite(lake)
    await lake.versions.hard_delete.flush()
    await lake.versions.hard_delete.change(by="ann", is_on=False)
    lake.clock.ms += GRACE_MS

    await worker(lake).work()

    assert first not in await objects(lake)


async def test_a_key_that_stays_is_counted_and_tried_again(lake: Lake) -> None:
    first = await overwrite(lake)
    lake.clock.ms += GRACE_MS
    refusing = Refusing(lake.objectstore)

    done = await QueueWorker(lake.versions, refusing, linger_ms=0).work()
    await worker(lake).work()
    assert done.failed == {"no": 1}
    assert (await count_queue(lake.versions)).failed == {"no": 1}
    assert first in await objects(lake)

    lake.clock.ms += 60_000
    await worker(lake).work()
    assert first not in await objects(lake)


class Refusing(MemoryDeleter):
    async def delete(self, keys):  # type: ignore[no-untyped-def]  # as its base
        return [DeleteFailure(key=key, reason="no") for key in keys]


async def test_a_write_does_not_wait_for_a_worker_that_hangs(lake: Lake) -> None:
    """The queue grows meanwhile, and another worker takes it."""
    first = await overwrite(lake)
    lake.clock.ms += GRACE_MS
    begun = asyncio.Event()
    hangs = Hanging(lake.objectstore, begun)
    hanging = asyncio.create_task(QueueWorker(lake.versions, hangs, linger_ms=0).work())
    await begun.wait()

    second = await overwrite(lake, "b")
    lake.clock.ms += GRACE_MS
    await worker(lake).work()

    assert {first, second}.isdisjoint(await objects(lake))
    assert not hanging.done()
    hanging.cancel()


class Hanging(MemoryDeleter):
    def __init__(self, store: MemoryObjectStore, begun: asyncio.Event) -> None:
        super().__init__(store)
        self._begun = begun

    async def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        self._begun.set()
        await asyncio.Event().wait()
        raise AssertionError(keys)


async def test_the_note_of_a_worker_that_died_goes_with_a_later_page(lake: Lake) -> None:
    await lake.versions.hard_delete.begin_page()
    lake.clock.ms += lake.versions.context.options.claim_age_ms_max
    await overwrite(lake)
    lake.clock.ms += GRACE_MS

    assert await lake.versions.hard_delete.is_deleting()
    await worker(lake).work()
    assert not await lake.versions.hard_delete.is_deleting()


async def test_what_a_legal_hold_names_stays_until_its_release(lake: Lake) -> None:
    held = await overwrite(lake, "held/a")
    free = await overwrite(lake, "free/a")
    await HoldBook(lake.versions).add(NewHold(name="case 1", globs=("held/**",), why="court"), by="ann")
    lake.clock.ms += GRACE_MS

    await worker(lake).work()
    assert held in await objects(lake)
    assert free not in await objects(lake)
    assert (await count_queue(lake.versions)).failed == {"held by case 1": 1}

    await HoldBook(lake.versions).release("case 1", by="ann", why="over")
    lake.clock.ms += 60_000
    await worker(lake).work()
    assert held not in await objects(lake)


async def test_what_is_no_address_of_a_slice_is_never_deleted(lake: Lake) -> None:
    await lake.objectstore.put("users/file", b"1")
    wrong = QueuedRecord(address="users/file", since_ms=0, by=LetGoBy.OVERWRITE)
    await lake.versions.hard_delete.put([wrong])

    await worker(lake).work()

    assert await lake.objectstore.get("users/file") == b"1"


async def test_a_copy_of_the_store_deletes_nothing(lake: Lake) -> None:
    await Installation(lake.versions).step()
    first = await overwrite(lake)
    await lake.versions.hard_delete.flush()
    other = clone(lake)
    await Installation(lake.versions).step()
    lake.clock.ms += GRACE_MS
    other.clock.ms += GRACE_MS

    with pytest.raises(OtherInstallation):
        await QueueWorker(other.versions, other.deleter, linger_ms=0).work()

    assert first in await objects(lake)
