"""The sweep of committed data that lies in no slice: what somebody wrote again since it was committed stays."""

from __future__ import annotations

import msgspec
import pytest

from lakebed.base import format_address
from lakebed.gc import messages
from lakebed.gc.runs.recording import Gone, Outcomes, Swept, ledger_rows
from lakebed.objectstore import (
    Adoption,
    AdoptionMoved,
    AdoptionState,
    AdoptionUnreadable,
    MemoryDeleter,
    read_adoption,
    write_adoption,
)
from tests.gc.garbage import LEDGER, PART, Dated, plan_of, sweep_part

OURS = format_address(7, 1)
KEYS = [OURS, "data/imported/a", "data/imported/b"]


@pytest.fixture
async def store() -> Dated:
    store = Dated()
    for key in KEYS:
        await store.put(key, b"1234")
    return store


async def swept(store: Dated, keys: list[str] = KEYS) -> Swept:
    plan = await plan_of(store, keys, as_found=False)
    return await sweep_part(store, MemoryDeleter(store), plan, plan.parts[0], LEDGER)


async def left(store: Dated) -> list[str]:
    return [stat.key async for page in store.list("data/") for stat in page]


@pytest.mark.parametrize("earlier_ms", [0, 1, 60_000])
async def test_what_is_as_it_was_committed_goes(store: Dated, earlier_ms: int) -> None:
    store.ms -= earlier_ms
    await store.put("data/imported/a", b"1234")

    found = await swept(store)

    assert await left(store) == []
    assert (found.all.objects, found.objects_kept, found.objects_failed) == (3, 0, 0)


@pytest.mark.parametrize(
    ("data", "later_ms"), [(b"12345", 0), (b"12345", -60_000), (b"5678", 1_000), (b"1234", 60_000)]
)
async def test_what_was_written_again_since_it_was_committed_stays_and_is_no_failure(
    store: Dated, data: bytes, later_ms: int
) -> None:
    store.ms += later_ms
    await store.put("data/imported/a", data)

    found = await swept(store)
    again = await swept(store)

    assert await left(store) == ["data/imported/a"]
    assert await store.get("data/imported/a") == data
    assert (found.objects_kept, found.bytes_kept, found.objects_failed, found.all.objects) == (1, 4, 0, 3)
    assert (again.objects_kept, again.parts_skipped) == (1, 1)
    rows = messages.decode_ledger(await store.get(LEDGER.key(PART)), name="x").to_pylist()
    assert [row["address"] for row in rows if row["state"] == "kept"] == ["data/imported/a"]


async def test_addresses_of_slices_go_without_a_look(store: Dated) -> None:
    store.ms += 60_000
    await store.put(OURS, b"12345")

    found = await swept(store)

    assert (await left(store), found.objects_kept) == ([], 0)
    assert store.asked == ["data/imported/a", "data/imported/b"]


async def test_what_cannot_be_looked_at_stays_and_counts_as_failed(store: Dated) -> None:
    store.unknown = {"data/imported/a"}

    found = await swept(store)

    assert (found.objects_failed, found.errors) == (1, ("data/imported/a: gone fishing",))
    assert await left(store) == ["data/imported/a"]


async def test_what_lies_outside_data_is_refused_whatever_the_plan_says(store: Dated) -> None:
    await store.put("imported/a.csv", b"1234")

    found = await swept(store, ["imported/a.csv"])

    assert found.errors == ("imported/a.csv: not an object that may be deleted",)
    assert await store.get("imported/a.csv") == b"1234"


CLAIM = Adoption(marker="m", state=AdoptionState.KEPT, server="http://old")


@pytest.mark.parametrize("states", [[], [AdoptionState.ADOPTED], [AdoptionState.ADOPTED, AdoptionState.KEPT]])
async def test_what_an_old_server_wrote_stays_until_its_adoption_is_final(
    store: Dated, states: list[AdoptionState]
) -> None:
    line = await write_adoption(store, CLAIM, after=None)
    for state in states:
        line = await write_adoption(store, msgspec.structs.replace(line, state=state), after=line)

    found = await swept(store)

    assert await left(store) == ["data/imported/a", "data/imported/b"]
    assert found.objects_failed == 2
    assert "its adoption is not final" in found.errors[0]

    await write_adoption(store, msgspec.structs.replace(line, state=AdoptionState.FINAL), after=line)
    await swept(store)
    assert await left(store) == []


async def test_an_adoption_that_cannot_be_read_stops_the_sweep(store: Dated) -> None:
    await store.put("_lakefs/old-server/00000001.json", b'{"format":2,"marker":"m","state":"final","server":""}')

    with pytest.raises(AdoptionUnreadable):
        await swept(store)

    assert len(await left(store)) == 3


@pytest.mark.parametrize(("later_ms", "goes"), [(60_000, True), (60_001, False)])
async def test_of_an_adopted_namespace_what_was_compared_goes_though_it_is_a_younger_copy(
    store: Dated, later_ms: int, goes: bool
) -> None:
    compared_ms = store.ms + 60_000
    final = msgspec.structs.replace(CLAIM, state=AdoptionState.FINAL, compared_ms=compared_ms)
    await write_adoption(store, final, after=None)
    store.ms += later_ms // 60_000 * 60_000 + (later_ms % 60_000) * 1_000
    await store.put("data/imported/a", b"1234")

    await swept(store)

    assert await left(store) == ([] if goes else ["data/imported/a"])


async def test_one_writer_makes_a_line_and_nothing_follows_the_last_word(store: Dated) -> None:
    first = await write_adoption(store, CLAIM, after=None)
    with pytest.raises(AdoptionMoved):
        await write_adoption(store, CLAIM, after=None)
    final = await write_adoption(store, msgspec.structs.replace(first, state=AdoptionState.FINAL), after=first)
    with pytest.raises(AdoptionMoved):
        await write_adoption(store, first, after=first)
    with pytest.raises(AdoptionMoved):
        await write_adoption(store, first, after=final)

    assert await read_adoption(store) == final


async def test_a_key_that_was_written_again_since_something_deleted_it_is_deleted_once_more(store: Dated) -> None:
    """One that is not there any more is not."""
    plan = await plan_of(store, KEYS, as_found=False)
    rows = messages.read_part(plan, messages.GARBAGE, plan.parts[0], await store.get(plan.folder + PART))
    page = f"{messages.ledger_folder(0)}hard-delete-1.parquet"
    on_record = ledger_rows(rows.slice(1), Outcomes(errors={}, states={}), run_id="hard-delete", now_ms=0)
    await store.put(page, messages.encode_ledger(on_record))
    await MemoryDeleter(store).delete(["data/imported/b"])

    gone = Gone(last_page=page.replace("1.", "0."))
    found = await sweep_part(store, MemoryDeleter(store), plan, plan.parts[0], LEDGER, gone=gone)

    left = messages.decode_ledger(await store.get(LEDGER.key(PART)), name="x").to_pylist()
    assert {row["address"]: row["state"] for row in left} == {
        OURS: "deleted",
        "data/imported/a": "deleted",
        "data/imported/b": "gone",
    }
    assert (found.objects_deleted, found.objects_gone) == (2, 1)
