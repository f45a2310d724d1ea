"""Moving a part's objects aside and purging them, stopped anywhere, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lakebed.gc import protocol
from lakebed.gc.files import Files, Lake
from lakebed.gc.protocol import Quarantine, decode_quarantine, encode_quarantine, quarantine_path, quarantined_run
from lakebed.gc.quarantine import begin_quarantine
from lakebed.gc.rules import DAY_MS
from lakebed.objectstore import (
    DeleteFailure,
    MemoryDeleter,
    MemoryObjectStore,
    ObjectStoreOptions,
    ObjectStoreUnavailable,
)
from tests.clocks import TurnableClock
from tests.gc.doomed import ASIDE, FOLDER, LEDGER, PART, context_of, plan_of, purge_part, sweep_part

GARBAGE = ["data/a", "data/b", "data/c"]
FAR_MS = 2**42
"""Later than any store's clock."""


class Stopped(Exception):
    """The process is gone."""


class Mortal(MemoryObjectStore):
    """Its own Deleter. Dies at its n-th operation that changes something (0: never): before it, or right after."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.after = False
        self.refuses: set[str] = set()

    async def put(self, key: str, body: Any, **options: Any) -> Any:
        self._before()
        found = await super().put(key, body, **options)
        self._done()
        return found

    async def copy(self, source: str, target: str) -> None:
        if source in self.refuses:
            raise ObjectStoreUnavailable("gone fishing")
        self._before()
        await super().copy(source, target)
        self._done()

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        self._before()
        await MemoryDeleter(self).delete([key for key in keys if key not in self.refuses])
        self._done()
        return [DeleteFailure(key=key, reason="not allowed") for key in keys if key in self.refuses]

    def _before(self) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Stopped

    def _done(self) -> None:
        if self.left == 0 and self.after:
            raise Stopped


@pytest.fixture
async def store() -> Mortal:
    store = Mortal()
    for key in [*GARBAGE, "data/kept"]:
        await MemoryObjectStore.put(store, key, key.encode())
    await MemoryObjectStore.put(store, quarantine_path("r1"), encode_quarantine(ASIDE))
    return store


async def keys_in(store: MemoryObjectStore, prefix: str = "data/") -> list[str]:
    return [stat.key async for page in store.list(prefix) for stat in page]


async def states_in(store: MemoryObjectStore, key: str) -> dict[str, str]:
    rows = protocol.decode_ledger(await store.get(key), name=key)
    return dict(zip(rows["address"].to_pylist(), rows["state"].to_pylist(), strict=True))


async def test_objects_are_moved_and_not_deleted(store: Mortal) -> None:
    plan = await plan_of(store, GARBAGE)

    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)

    assert await keys_in(store) == ["data/kept"]
    assert [await store.get(ASIDE.key(key)) for key in GARBAGE] == [key.encode() for key in GARBAGE]
    assert (swept.objects_quarantined, swept.bytes_quarantined, swept.objects_deleted) == (3, 18, 0)
    rows = protocol.decode_ledger(await store.get(LEDGER.key(PART)), name="x").to_pylist()
    assert {(row["state"], row["kept_until"].timestamp()) for row in rows} == {("quarantined", 2.0)}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 6))
async def test_a_process_that_dies_at_any_step_loses_nothing_and_another_goes_on(
    store: Mortal, step: int, after: bool
) -> None:
    """Five steps change something: three copies, a delete, and the ledger."""
    plan = await plan_of(store, GARBAGE)
    store.left, store.after = step, after
    with pytest.raises(Stopped):
        await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)
    store.left = 0
    somewhere = {*await keys_in(store), *(key.partition("r1/")[2] for key in await keys_in(store, "_lakefs/"))}

    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)

    assert somewhere >= set(GARBAGE)
    assert (swept.objects_quarantined, swept.objects_failed) == (3, 0)
    assert await keys_in(store) == ["data/kept"]
    assert await states_in(store, LEDGER.key(PART)) == dict.fromkeys(GARBAGE, "quarantined")


async def test_what_cannot_be_copied_is_not_deleted_and_counts_as_failed(store: Mortal) -> None:
    store.refuses = {"data/b"}
    plan = await plan_of(store, GARBAGE)

    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)

    assert await keys_in(store) == ["data/b", "data/kept"]
    assert (swept.objects_quarantined, swept.objects_failed, swept.errors) == (2, 1, ("data/b: gone fishing",))


async def test_what_is_gone_already_is_not_said_to_lie_in_quarantine(store: Mortal) -> None:
    plan = await plan_of(store, GARBAGE)
    await MemoryDeleter(store).delete(["data/a"])

    await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)

    assert (await states_in(store, LEDGER.key(PART)))["data/a"] == "deleted"


async def test_a_purge_deletes_what_was_moved_and_says_so_in_rows_of_its_own(store: Mortal) -> None:
    plan = await plan_of(store, GARBAGE)
    await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)

    swept = await purge_part(store, store, ASIDE, PART, now_ms=2_000)

    assert await keys_in(store, protocol.QUARANTINE_PREFIX) == []
    assert await keys_in(store) == ["data/kept"]
    assert (swept.objects_deleted, swept.bytes_deleted) == (3, 18)
    assert await states_in(store, LEDGER.purge_key(PART)) == dict.fromkeys(GARBAGE, "purged")
    assert await states_in(store, LEDGER.key(PART)) == dict.fromkeys(GARBAGE, "quarantined")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [1, 2])
async def test_a_purge_that_dies_at_any_step_is_gone_on_with(store: Mortal, step: int, after: bool) -> None:
    plan = await plan_of(store, GARBAGE)
    await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)
    store.left, store.after = step, after
    with pytest.raises(Stopped):
        await purge_part(store, store, ASIDE, PART, now_ms=2_000)
    store.left = 0

    swept = await purge_part(store, store, ASIDE, PART, now_ms=2_000)

    assert (swept.objects_deleted, swept.objects_failed) == (3, 0)
    assert await keys_in(store, protocol.QUARANTINE_PREFIX) == []


async def test_a_purge_tries_again_just_what_failed(store: Mortal) -> None:
    plan = await plan_of(store, GARBAGE)
    await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)
    store.refuses = {ASIDE.key("data/b")}
    first = await purge_part(store, store, ASIDE, PART, now_ms=2_000)
    store.refuses = set()

    again = await purge_part(store, store, ASIDE, PART, now_ms=2_000)

    assert (first.objects_deleted, first.objects_failed, first.errors) == (2, 1, ("data/b: not allowed",))
    assert (again.objects_deleted, again.objects_failed) == (3, 0)


LONGER = replace(ASIDE, until_ms=9_000)


@pytest.mark.parametrize("record", [ASIDE, LONGER, None])
async def test_a_purge_that_began_with_an_old_record_leaves_what_an_apply_moved_since(
    store: Mortal, record: Quarantine | None
) -> None:
    """Whatever became of the record: each row has a window of its own."""
    plan = await plan_of(store, GARBAGE)
    await sweep_part(store, store, plan, plan.parts[0], LEDGER, LONGER)
    await MemoryDeleter(store).delete([quarantine_path("r1")])
    if record is not None:
        await store.put(quarantine_path("r1"), encode_quarantine(record))

    swept = await purge_part(store, store, ASIDE, PART, now_ms=8_999)

    assert (swept.objects_deleted, swept.objects_quarantined) == (0, 3)
    assert [await store.get(ASIDE.key(key)) for key in GARBAGE] == [key.encode() for key in GARBAGE]


async def test_a_longer_window_holds_for_what_the_run_moved_before(store: Mortal) -> None:
    plan = await plan_of(store, GARBAGE)
    await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)
    await store.put(quarantine_path("r1"), encode_quarantine(LONGER))

    early = await purge_part(store, store, ASIDE, PART, now_ms=8_999)
    late = await purge_part(store, store, ASIDE, PART, now_ms=9_000)

    assert (early.objects_deleted, late.objects_deleted) == (0, 3)


async def test_a_purge_that_finds_a_damaged_record_stops(store: Mortal) -> None:
    plan = await plan_of(store, GARBAGE)
    await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)
    await store.put(quarantine_path("r1"), b"{")

    with pytest.raises(protocol.BadInput, match="unreadable"):
        await purge_part(store, store, ASIDE, PART, now_ms=2_000)


async def test_a_purge_leaves_alone_what_was_deleted_for_good(store: Mortal) -> None:
    plan = await plan_of(store, GARBAGE)
    await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    swept = await purge_part(store, store, ASIDE, PART, now_ms=2_000)

    assert swept.all.objects == 0


def test_a_record_survives_its_own_encoding() -> None:
    assert decode_quarantine(encode_quarantine(ASIDE), "r1") == ASIDE


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "unreadable"),
        (encode_quarantine(ASIDE).replace(b'"format":1', b'"format":2'), "unknown format 2"),
        (encode_quarantine(ASIDE).replace(b"r1", b"r2"), "that of run r2"),
    ],
)
def test_a_record_that_cannot_be_trusted_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(protocol.BadInput, match=said):
        decode_quarantine(data, "r1")


@pytest.mark.parametrize(("name", "run"), [("r1.json", "r1"), ("r1", None), ("A b.json", None), (".json", None)])
def test_a_file_of_somebody_else_is_no_record(name: str, run: str | None) -> None:
    assert quarantined_run(name) == run


# What an apply moved and died before it wrote the rows

UNRECORDED = LEDGER.unrecorded_key(PART)


async def dies_moving(store: Mortal, step: int) -> Quarantine:
    """Killed before this change of the sweep; its third is the delete, its fourth the ledger."""
    plan = await plan_of(store, GARBAGE[:2])
    aside = replace(ASIDE, doomed=plan)
    await MemoryObjectStore.put(store, quarantine_path("r1"), encode_quarantine(aside))
    store.left = step
    with pytest.raises(Stopped):
        await sweep_part(store, store, plan, plan.parts[0], LEDGER, aside)
    store.left = 0
    return aside


async def test_a_purge_takes_what_an_apply_moved_and_has_no_rows_of(store: Mortal) -> None:
    aside = await dies_moving(store, 4)
    assert await keys_in(store) == ["data/c", "data/kept"]

    swept = await purge_part(store, store, aside, PART, now_ms=2_000)

    assert (swept.objects_deleted, swept.objects_failed) == (2, 0)
    assert await keys_in(store, protocol.QUARANTINE_PREFIX) == []
    assert await states_in(store, UNRECORDED) == {"data/a": "purged", "data/b": "purged"}


async def test_a_purge_leaves_a_copy_whose_object_is_still_at_its_address(store: Mortal) -> None:
    aside = await dies_moving(store, 3)

    swept = await purge_part(store, store, aside, PART, now_ms=2_000)

    assert (swept.all.objects, len(await keys_in(store, protocol.QUARANTINE_PREFIX))) == (0, 2)


async def test_what_has_no_rows_stays_while_the_window_lasts(store: Mortal) -> None:
    aside = await dies_moving(store, 4)

    early = await purge_part(store, store, aside, PART, now_ms=1_999)
    # An apply that goes on writes a longer window before it moves anything.
    await store.put(quarantine_path("r1"), encode_quarantine(replace(aside, until_ms=9_000)))
    longer = await purge_part(store, store, aside, PART, now_ms=2_000)

    assert (early.objects_quarantined, longer.objects_quarantined) == (2, 2)
    assert len(await keys_in(store, protocol.QUARANTINE_PREFIX)) == 2


async def test_a_purge_of_what_has_no_rows_tries_again_just_what_failed(store: Mortal) -> None:
    aside = await dies_moving(store, 4)
    store.refuses = {aside.key("data/b")}
    first = await purge_part(store, store, aside, PART, now_ms=2_000)
    store.refuses.clear()

    again = await purge_part(store, store, aside, PART, now_ms=2_000)

    assert (first.objects_deleted, first.objects_failed, again.objects_deleted) == (1, 1, 1)
    assert await states_in(store, UNRECORDED) == {"data/a": "purged", "data/b": "purged"}


async def test_an_apply_goes_on_after_such_a_purge(store: Mortal) -> None:
    aside = await dies_moving(store, 4)
    assert aside.doomed
    await purge_part(store, store, aside, PART, now_ms=2_000)

    swept = await sweep_part(store, store, aside.doomed, aside.doomed.parts[0], LEDGER, aside)

    assert (swept.objects_deleted, swept.objects_failed) == (2, 0)


async def test_a_purge_without_a_plan_of_a_part_does_nothing(store: Mortal) -> None:
    aside = await dies_moving(store, 4)
    await MemoryDeleter(store).delete([plan_folder(aside) + PART])

    for quarantine in (ASIDE, aside):
        assert (await purge_part(store, store, quarantine, PART, now_ms=2_000)).all.objects == 0
    assert len(await keys_in(store, protocol.QUARANTINE_PREFIX)) == 2


def plan_folder(quarantine: Quarantine) -> str:
    assert quarantine.doomed
    return quarantine.doomed.folder


# How long, where a run is applied again


DOOMED = protocol.manifest_of(protocol.DOOMED, FOLDER, [protocol.Part(name=PART, rows=2, size_bytes=9, sha256="")])


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    lake = Lake(uri="local://lake/repo", options=ObjectStoreOptions(local_root=tmp_path, local_durable=False))
    with Files(lake) as opened:
        yield opened


def begun(files: Files, night: int, *, is_asked: bool = False) -> tuple[int, int]:
    """When all of it may be purged, and when what moves this night: in days since the first."""
    clock = TurnableClock(FAR_MS + night * DAY_MS)
    found = files.act(
        lambda store: begin_quarantine(
            context_of(store, clock=clock),
            "r1",
            ledger_date="2026-11-21",
            window="7d",
            is_asked=is_asked,
            doomed=DOOMED,
        )
    )
    assert found is not None
    written, moving = found
    assert decode_quarantine(files.read(quarantine_path("r1")), "r1") == written
    return (written.until_ms - FAR_MS) // DAY_MS, (moving.until_ms - FAR_MS) // DAY_MS


def record_all(files: Files) -> None:
    files.write(LEDGER.key(PART), b"rows")


def test_trying_again_what_failed_leaves_what_was_moved_its_window(files: Files) -> None:
    assert begun(files, 0, is_asked=True) == (7, 7)
    record_all(files)

    assert [begun(files, night) for night in (1, 6, 12, 30)] == [(7, 8), (7, 13), (7, 19), (7, 37)]


def test_who_asks_for_a_window_again_makes_it_longer_for_all(files: Files) -> None:
    begun(files, 0, is_asked=True)
    record_all(files)

    assert begun(files, 6, is_asked=True) == (13, 13)
    assert begun(files, 9) == (13, 16)


def test_an_apply_that_goes_on_moving_makes_the_window_longer(files: Files) -> None:
    """Of what it moves there are no rows until a part is done: only the record says how long."""
    begun(files, 0, is_asked=True)

    assert begun(files, 6) == (13, 13)


async def test_what_was_moved_is_purged_though_one_object_never_goes(store: Mortal) -> None:
    plan = await plan_of(store, GARBAGE)
    store.refuses = {"data/b"}
    await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)
    await sweep_part(store, store, plan, plan.parts[0], LEDGER, LONGER)

    swept = await purge_part(store, store, ASIDE, PART, now_ms=2_000)

    assert (swept.objects_deleted, swept.objects_quarantined) == (2, 0)


async def test_what_is_moved_after_a_purge_has_a_window_of_its_own(store: Mortal) -> None:
    plan = await plan_of(store, GARBAGE)
    store.refuses = {"data/b"}
    await sweep_part(store, store, plan, plan.parts[0], LEDGER, ASIDE)
    await purge_part(store, store, ASIDE, PART, now_ms=2_000)
    store.refuses.clear()
    await sweep_part(store, store, plan, plan.parts[0], LEDGER, LONGER)

    early = await purge_part(store, store, ASIDE, PART, now_ms=8_999)
    there = await keys_in(store, protocol.QUARANTINE_PREFIX)
    await purge_part(store, store, ASIDE, PART, now_ms=9_000)

    assert (early.objects_deleted, there) == (0, [ASIDE.key("data/b")])
    assert await keys_in(store, protocol.QUARANTINE_PREFIX) == []
    assert await states_in(store, LEDGER.purge_key(PART)) == dict.fromkeys(GARBAGE, "purged")
