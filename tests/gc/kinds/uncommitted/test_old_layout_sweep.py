"""The sweep of an old layout: what was written again since the plan stays, and what is another repository's too."""

from __future__ import annotations

import pytest

from lakebed.base import slice_name
from lakebed.gc import messages
from lakebed.gc.runs.recording import Swept
from lakebed.objectstore import MemoryDeleter
from tests.gc.garbage import LEDGER, PART, Dated, plan_of, sweep_part

FOLDER = "_lakefs/retention/gc/uncommitted/r1/garbage.elsewhere/"
KEYS = ["data/flat", "t/a", "t/b"]


@pytest.fixture
async def store() -> Dated:
    store = Dated()
    for key in KEYS:
        await store.put(key, b"1234")
    return store


async def swept(store: Dated, keys: list[str] = KEYS) -> Swept:
    plan = await plan_of(store, keys, folder=FOLDER, as_found=False)
    return await sweep_part(store, MemoryDeleter(store), plan, plan.parts[0], LEDGER)


async def left(store: Dated) -> list[str]:
    return [stat.key async for page in store.list() for stat in page if not stat.key.startswith("_lakefs/")]


async def states(store: Dated) -> dict[str, str]:
    rows = messages.decode_ledger(await store.get(LEDGER.key(PART)), name="x")
    return dict(zip(rows["address"].to_pylist(), rows["state"].to_pylist(), strict=True))


async def test_what_is_as_it_was_planned_goes(store: Dated) -> None:
    found = await swept(store)

    assert await left(store) == []
    assert (found.objects_deleted, found.objects_kept, found.objects_failed) == (3, 0, 0)


@pytest.mark.parametrize(("data", "later_ms"), [(b"12345", 0), (b"5678", 1_000), (b"5678", -1_000)])
async def test_what_was_written_again_since_the_plan_stays_and_is_no_failure(
    store: Dated, data: bytes, later_ms: int
) -> None:
    store.ms += later_ms
    await store.put("t/a", data)

    found = await swept(store)

    assert await left(store) == ["t/a"]
    assert await store.get("t/a") == data
    assert (found.objects_kept, found.bytes_kept, found.objects_failed, found.all.objects) == (1, 4, 0, 3)
    assert (await states(store))["t/a"] == "kept"


async def test_what_is_kept_once_is_kept_when_the_run_is_applied_again(store: Dated) -> None:
    store.ms += 60_000
    await store.put("t/a", b"5678")
    first = await swept(store)

    again = await swept(store)

    assert (again.objects_kept, again.all, again.parts_skipped) == (1, first.all, 1)
    assert await left(store) == ["t/a"]


async def test_what_cannot_be_looked_at_stays_and_counts_as_failed_until_it_can(store: Dated) -> None:
    store.unknown = {"t/a"}
    first = await swept(store)
    kept = await left(store)
    store.unknown = set()

    again = await swept(store)

    assert (first.objects_failed, first.errors, kept) == (1, ("t/a: gone fishing",), ["t/a"])
    assert (again.objects_failed, again.objects_kept, await left(store)) == (0, 0, [])


@pytest.mark.parametrize("milliseconds", [0, 999])
async def test_a_store_that_drops_milliseconds_tells_the_same_date(store: Dated, milliseconds: int) -> None:
    store.ms += milliseconds
    await store.put("t/a", b"1234")

    assert (await swept(store)).objects_kept == 0


async def test_what_is_gone_counts_as_deleted(store: Dated) -> None:
    await MemoryDeleter(store).delete(["t/a"])

    assert (await swept(store)).objects_deleted == 3


@pytest.mark.parametrize(
    "key", ["t/_lakefs/dummy", "data/t/_lakefs/ranges/x", f"t/u/data/{slice_name(7)}/00000001", "_lakefs/dummy"]
)
async def test_a_key_of_another_repository_is_refused_whatever_the_plan_says(store: Dated, key: str) -> None:
    await store.put(key, b"1234")

    found = await swept(store, ["t/a", key])

    assert (found.objects_failed, found.errors) == (1, (f"{key}: not an object that may be deleted",))
    assert await store.get(key) == b"1234"
