"""The sweep of one part: what it deletes, what it records, and how it is taken up again. No Spark."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence

import pyarrow as pa
import pytest
from msgspec.structs import replace

from lakebed.base import format_address
from lakebed.gc import messages
from lakebed.gc.engines import ROWS_PER_PART, LocalEngine
from lakebed.gc.engines.engine import VERDICTS, no_others
from lakebed.gc.machine.sweep import BATCH_KEYS, remove_files, remove_with, sweep
from lakebed.gc.mark.holding import Held
from lakebed.gc.mark.mark import sum_parts, write_portions
from lakebed.gc.messages import part_name
from lakebed.gc.runs.context import Overtaken, claim
from lakebed.gc.runs.recording import Gone, Ledger
from lakebed.objectstore import (
    DeleteFailure,
    MemoryDeleter,
    MemoryObjectStore,
    ObjectMissing,
    ObjectOutcomeUnknown,
    ObjectStoreUnavailable,
    Stored,
)
from lakebed.runtime import LiveClock, live_ports
from tests.gc.garbage import FOLDER, SEEN, SEEN_MS, plan_of, rule_of, sweep_part, task_of

LEDGER = Ledger(run_id="r1", date="2026-11-21")
Body = bytes | AsyncIterable[bytes]


class StubbornObjectStore(MemoryObjectStore):
    """Its own Deleter: counts what it is asked to delete, refuses some keys, and is out of reach for whole calls."""

    def __init__(self) -> None:
        super().__init__("mem://stubborn")
        self.asked: list[list[str]] = []
        self.refuses: set[str] = set()
        self.out_of_reach = False
        self.is_missing = False

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        self.asked.append([*keys])
        if self.out_of_reach:
            raise ObjectStoreUnavailable("gone fishing")
        if self.is_missing:
            raise ObjectMissing("no such bucket")
        await MemoryDeleter(self).delete([key for key in keys if key not in self.refuses])
        return [DeleteFailure(key=key, reason="not allowed") for key in keys if key in self.refuses]


@pytest.fixture
def store() -> StubbornObjectStore:
    return StubbornObjectStore()


async def ledger_of(store: StubbornObjectStore, plan: messages.Manifest) -> dict[str, str]:
    names = await ledger_files(store)
    rows = messages.decode_record(names, [await store.get(name) for name in names])
    assert messages.ledger_records(names) == [(*names,)]
    assert names[0] == LEDGER.key(plan.parts[0].name)
    return dict(zip(rows["address"].to_pylist(), rows["error"].to_pylist(), strict=True))


async def ledger_files(store: StubbornObjectStore) -> list[str]:
    return [stat.key async for page in store.list(LEDGER.prefix) for stat in page]


async def fill(store: StubbornObjectStore) -> None:
    for key in ("data/a", "data/b", "data/c"):
        await store.put(key, b"1234")


async def keys_in(store: StubbornObjectStore) -> set[str]:
    return {stat.key async for page in store.list("data/") for stat in page}


async def test_every_object_of_the_part_goes_and_nothing_else(store: StubbornObjectStore) -> None:
    for key in ("data/a", "data/b", "data/kept"):
        await store.put(key, b"1234")
    plan = await plan_of(store, ["data/a", "data/b"])

    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert await keys_in(store) == {"data/kept"}
    assert (swept.objects_deleted, swept.bytes_deleted, swept.objects_failed) == (2, 8, 0)
    assert await ledger_of(store, plan) == {"data/a": "", "data/b": ""}


async def test_keys_are_deleted_in_batches(store: StubbornObjectStore) -> None:
    plan = await plan_of(store, [format_address(7, n) for n in range(2 * BATCH_KEYS + 1)])

    await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert [len(batch) for batch in store.asked] == [BATCH_KEYS, BATCH_KEYS, 1]


async def test_every_key_that_was_refused_is_counted_as_failed(store: StubbornObjectStore) -> None:
    store.refuses = {"data/b"}
    await fill(store)
    plan = await plan_of(store, ["data/a", "data/b"])

    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert (swept.objects_deleted, swept.objects_failed, swept.bytes_failed) == (1, 1, 4)
    assert swept.errors == ("data/b: not allowed",)
    assert await ledger_of(store, plan) == {"data/a": "", "data/b": "not allowed"}


async def test_a_call_that_fails_as_a_whole_fails_each_of_its_keys(store: StubbornObjectStore) -> None:
    store.out_of_reach = True
    await fill(store)
    plan = await plan_of(store, ["data/a", "data/b"])

    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert (swept.objects_deleted, swept.objects_failed) == (0, 2)
    assert set((await ledger_of(store, plan)).values()) == {"gone fishing"}


async def test_a_delete_of_what_is_not_found_counts_as_failed(store: StubbornObjectStore) -> None:
    """A store answers so where the bucket was renamed, and then nothing went."""
    store.is_missing = True
    await fill(store)
    plan = await plan_of(store, ["data/a", "data/b"])

    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert (swept.objects_deleted, swept.objects_failed) == (0, 2)
    assert set((await ledger_of(store, plan)).values()) == {"no such bucket"}


async def test_a_done_part_is_left_alone_when_a_sweep_is_resumed(store: StubbornObjectStore) -> None:
    plan = await plan_of(store, ["data/a", "data/b"])
    first = await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    again = await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert len(store.asked) == 1
    assert again.objects_deleted == first.objects_deleted == 2
    assert again.parts_skipped == 1


async def test_only_what_failed_is_tried_again(store: StubbornObjectStore) -> None:
    store.refuses = {"data/b"}
    await fill(store)
    plan = await plan_of(store, ["data/a", "data/b", "data/c"])
    await sweep_part(store, store, plan, plan.parts[0], LEDGER)
    store.refuses = set()

    again = await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert store.asked[1] == ["data/b"]
    assert (again.objects_deleted, again.objects_failed) == (3, 0)
    assert await ledger_of(store, plan) == {"data/a": "", "data/b": "", "data/c": ""}


async def test_a_damaged_file_of_the_ledger_stops_the_sweep_before_it_deletes(store: StubbornObjectStore) -> None:
    plan = await plan_of(store, ["data/a"])
    await store.put(LEDGER.key(plan.parts[0].name), b"PAR1 half a file")

    with pytest.raises(messages.BadInput, match=r"part-00000\.000000"):
        await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert store.asked == []


async def test_only_objects_whose_outcome_changed_are_in_a_later_file(store: StubbornObjectStore) -> None:
    store.refuses = {"data/b", "data/c"}
    await fill(store)
    plan = await plan_of(store, ["data/a", "data/b", "data/c"])
    for still in ({"data/b", "data/c"}, {"data/c"}, {"data/c"}):
        store.refuses = still
        await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    files = await ledger_files(store)
    rows = [messages.decode_ledger(await store.get(name), name=name)["address"].to_pylist() for name in files]
    assert rows == [["data/a", "data/b", "data/c"], ["data/b"]]


async def test_an_object_that_fails_for_another_reason_is_recorded_with_the_latest(store: StubbornObjectStore) -> None:
    store.refuses = {"data/b"}
    await fill(store)
    plan = await plan_of(store, ["data/a", "data/b"])
    await sweep_part(store, store, plan, plan.parts[0], LEDGER)
    store.out_of_reach = True

    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert swept.errors == ("data/b: gone fishing",)
    assert await ledger_of(store, plan) == {"data/a": "", "data/b": "gone fishing"}


class Slow(StubbornObjectStore):
    """Before each put into the ledger it carries out what waits, once."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        if key.startswith(LEDGER.prefix) and self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            await act()
        return await super().put(key, body, size_bytes=size_bytes, if_absent=if_absent)


@pytest.mark.parametrize("tries", [1, 2])
async def test_a_slow_apply_puts_no_row_over_that_of_a_faster_one_of_its_run(tries: int) -> None:
    """The slow one looked whether another apply began, fails, and its put arrives after the other one's."""
    store = Slow()
    store.refuses = {"data/a", "data/b"}
    await fill(store)
    plan = await plan_of(store, ["data/a", "data/b"])
    slow, _ = await claim(store, LiveClock(), "r1")
    if tries == 2:
        await sweep_part(store, store, plan, plan.parts[0], LEDGER, slow)
        store.out_of_reach = True  # fails for another reason, which is news

    async def faster() -> None:
        store.refuses, store.out_of_reach = {"data/b"}, False
        other, _ = await claim(store, LiveClock(), "r1")
        await sweep_part(store, store, plan, plan.parts[0], LEDGER, other)

    store.meanwhile = faster
    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER, slow)

    assert (await ledger_of(store, plan))["data/a"] == ""
    assert (swept.objects_deleted, swept.objects_failed) == (1, 1)


class Forgetful(StubbornObjectStore):
    """Answers to puts into the ledger are lost, `lost` times. The put is done, if `is_done`."""

    def __init__(self, *, is_done: bool, lost: int) -> None:
        super().__init__()
        self.is_done, self.lost = is_done, lost

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        if not key.startswith(LEDGER.prefix) or not self.lost:
            return await super().put(key, body, size_bytes=size_bytes, if_absent=if_absent)
        self.lost -= 1
        if self.is_done:
            await super().put(key, body, size_bytes=size_bytes, if_absent=if_absent)
        raise ObjectOutcomeUnknown("no answer")


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_part_whose_record_got_no_answer_is_recorded_once(is_done: bool) -> None:
    store = Forgetful(is_done=is_done, lost=2)
    await fill(store)
    plan = await plan_of(store, ["data/a", "data/b"])

    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert swept.objects_deleted == 2
    assert await ledger_files(store) == [LEDGER.key(plan.parts[0].name)]
    assert await ledger_of(store, plan) == {"data/a": "", "data/b": ""}


async def test_a_part_that_cannot_be_recorded_stops_the_sweep() -> None:
    store = Forgetful(is_done=False, lost=1000)
    plan = await plan_of(store, ["data/a"])

    with pytest.raises(ObjectOutcomeUnknown):
        await sweep_part(store, store, plan, plan.parts[0], LEDGER)


@pytest.mark.parametrize("key", ["_lakefs/dummy", "x", "data/../_lakefs/dummy"])
async def test_a_key_outside_data_is_never_asked_for_and_counts_as_failed(store: StubbornObjectStore, key: str) -> None:
    plan = await plan_of(store, [key], as_found=False)

    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert store.asked == []
    assert (swept.objects_deleted, swept.objects_failed) == (0, 1)


@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
async def test_a_part_that_is_not_what_the_manifest_says_deletes_nothing(
    store: StubbornObjectStore, damage: str
) -> None:
    await store.put("data/a", b"1234")
    plan = await plan_of(store, ["data/a"])
    key = FOLDER + "part-00000.parquet"
    data = await store.get(key)
    if damage == "missing":
        await MemoryDeleter(store).delete([key])
    else:
        await store.put(key, data[:-1] if damage == "short" else data[:50] + b"!" + data[51:])

    with pytest.raises(messages.BadInput, match="part-00000"):
        await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert await keys_in(store) == {"data/a"}


async def test_a_sweep_begins_no_part_once_another_apply_began(store: StubbornObjectStore) -> None:
    keys = [format_address(7, 1), format_address(7, 2)]
    for key in keys:
        await store.put(key, b"1234")
    plans = [await plan_of(store, [key], part=part_name(number)) for number, key in enumerate(keys)]
    whole = messages.manifest_of(messages.GARBAGE, FOLDER, [plan.parts[0] for plan in plans])
    fence, _ = await claim(store, LiveClock(), "r1")

    class Overtaking(StubbornObjectStore):
        async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
            await claim(store, LiveClock(), "r2")
            return await store.delete(keys)

    ports = live_ports()
    engine = LocalEngine(store, ports, open_deleter=Overtaking)
    with pytest.raises(Overtaken, match="r2"):
        await sweep(engine, whole, LEDGER, rule=rule_of(FOLDER), fence=fence, held=Held(), gone=Gone())

    assert await keys_in(store) == {keys[1]}


class Died(BaseException):
    """The executor was killed."""


@pytest.mark.parametrize("calls", [1, 13, 34])
async def test_a_sweep_that_died_asks_again_for_ten_thousand_objects_at_most(
    store: StubbornObjectStore, calls: int
) -> None:
    """It goes on behind the last part that is recorded, however large the plan is."""
    plan = await planned(store, 35_000)
    fence, _ = await claim(store, LiveClock(), "r1")

    class Dying(StubbornObjectStore):
        async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
            if len(store.asked) == calls:
                raise Died
            return await store.delete(keys)

    dying = LocalEngine(store, live_ports(), open_deleter=Dying)
    with pytest.raises(Died):
        await sweep(dying, plan, LEDGER, rule=rule_of(FOLDER), fence=fence, held=Held(), gone=Gone())
    before = {key for batch in store.asked for key in batch}
    store.asked.clear()
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: store)
    swept = await sweep(engine, plan, LEDGER, rule=rule_of(FOLDER), fence=fence, held=Held(), gone=Gone())

    asked = [key for batch in store.asked for key in batch]
    assert len(before) == calls * BATCH_KEYS
    assert len(before.intersection(asked)) == calls * BATCH_KEYS % ROWS_PER_PART <= 10_000
    assert len(asked) == len({*asked})
    assert len(before.union(asked)) == swept.objects_deleted == 35_000


async def planned(store: StubbornObjectStore, count: int) -> messages.Manifest:
    """A plan of `count` objects of one slice, in parts as a task writes them."""
    same = {name: pa.repeat("", count) for name in ("reason", "rule", "branch", "prefix", "path")}
    columns: dict[str, object] = {
        "address": [format_address(7, number) for number in range(count)],
        "slice": [7] * count,
        "sequence": [*range(count)],
        "size_bytes": [4] * count,
        "last_seen_at": [SEEN] * count,
    }

    async def verdicts() -> AsyncIterator[pa.Table]:
        yield VERDICTS.rows(columns | same | no_others(count))

    parts = [rows async for rows in write_portions(task_of(store), FOLDER, verdicts(), now_ms=SEEN_MS)]
    return sum_parts(pa.concat_tables(parts), FOLDER)[0]


async def test_a_sweep_deletes_no_further_batch_of_a_part_once_another_apply_began(store: StubbornObjectStore) -> None:
    """A part has up to ten batches. The first one goes, and is recorded."""
    keys = [format_address(7, number) for number in range(BATCH_KEYS + 1)]
    for key in keys:
        await store.put(key, b"1234")
    plan = await plan_of(store, keys)
    fence, _ = await claim(store, LiveClock(), "r1")

    class Overtaking(StubbornObjectStore):
        async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
            await claim(store, LiveClock(), "r2")
            return await store.delete(keys)

    engine = LocalEngine(store, live_ports(), open_deleter=Overtaking)
    with pytest.raises(Overtaken, match="r2"):
        await sweep(engine, plan, LEDGER, rule=rule_of(FOLDER), fence=fence, held=Held(), gone=Gone())

    assert await keys_in(store) == {keys[-1]}
    recorded = await ledger_of(store, plan)
    assert recorded.keys() == {*keys}
    assert [key for key, error in recorded.items() if error] == [keys[-1]]


@pytest.mark.parametrize("run_id", ["r1", "r2", ""])
async def test_what_an_overtaken_second_try_deleted_is_recorded_beside_what_the_other_apply_did(
    store: StubbornObjectStore, run_id: str
) -> None:
    """The other one is of the same run, of another run that never writes this file, or the server's claim."""
    store.refuses = {"data/b", "data/c"}
    await fill(store)
    plan = await plan_of(store, ["data/a", "data/b", "data/c"])
    fence, _ = await claim(store, LiveClock(), "r1")
    await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    class Overtaking(StubbornObjectStore):
        async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
            store.refuses = {"data/c"}
            failures = await store.delete(keys)
            other, _ = await claim(store, LiveClock(), run_id)
            if run_id == "r1":
                store.refuses = {"data/b"}
                await sweep_part(store, store, plan, plan.parts[0], LEDGER, other)
            return failures

    engine = LocalEngine(store, live_ports(), open_deleter=Overtaking)
    with pytest.raises(Overtaken):
        await sweep(engine, plan, LEDGER, rule=rule_of(FOLDER), fence=fence, held=Held(), gone=Gone())

    c = "" if run_id == "r1" else "not allowed"
    assert await ledger_of(store, plan) == {"data/a": "", "data/b": "", "data/c": c}


async def test_an_overtaken_second_try_that_deleted_nothing_records_nothing(store: StubbornObjectStore) -> None:
    store.refuses = {"data/b"}
    await fill(store)
    plan = await plan_of(store, ["data/a", "data/b"])
    fence, _ = await claim(store, LiveClock(), "r1")
    await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    class Overtaking(StubbornObjectStore):
        async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
            await claim(store, LiveClock(), "r2")
            return await store.delete(keys)

    engine = LocalEngine(store, live_ports(), open_deleter=Overtaking)
    with pytest.raises(Overtaken):
        await sweep(engine, plan, LEDGER, rule=rule_of(FOLDER), fence=fence, held=Held(), gone=Gone())

    assert await ledger_files(store) == [LEDGER.key(plan.parts[0].name)]
    assert await ledger_of(store, plan) == {"data/a": "", "data/b": "not allowed"}


async def test_of_a_plan_whose_sums_do_not_add_up_nothing_goes(store: StubbornObjectStore) -> None:
    await fill(store)
    plan = await plan_of(store, ["data/a", "data/b"])
    wrong = replace(plan, size_bytes=plan.size_bytes + 1)
    fence, _ = await claim(store, LiveClock(), "r1")
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: store)

    with pytest.raises(messages.BadInput, match="its parts have another sum"):
        await sweep(engine, wrong, LEDGER, rule=rule_of(FOLDER), fence=fence, held=Held(), gone=Gone())

    assert await keys_in(store) == {"data/a", "data/b", "data/c"}


async def test_beside_objects_only_files_of_the_collectors_are_removed(store: StubbornObjectStore) -> None:
    await fill(store)
    key = f"{messages.GC_PREFIX}applying/1"
    await store.put(key, b"{}")
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: store)

    with pytest.raises(ValueError, match="only files below"):
        await remove_with(store, [key, "data/a"])
    assert store.asked == []

    await remove_files(engine, [key])

    assert [stat.key async for page in store.list(messages.GC_PREFIX) for stat in page] == []
    assert await keys_in(store) == {"data/a", "data/b", "data/c"}
