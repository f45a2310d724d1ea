"""Restoring what deferred runs hold: fresh addresses, nothing overwritten unasked, nothing twice, all read back."""

from __future__ import annotations

import base64
import hashlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from lakebed.base import Entry, Invalid, format_address, from_row, slice_number
from lakebed.gc.live import BadContinuation, NotRestorable, Restoring
from lakebed.gc.live.defer.restoring import Occupant, Step, _newness, decide
from lakebed.gc.messages import (
    GARBAGE,
    LEDGER_PREFIX,
    RESTORED_FROM,
    BadInput,
    Manifest,
    Restore,
    RestorePage,
    RunKind,
    decode_ledger,
    deferred_path,
    encode_part,
    manifest_of,
    part_of,
    read_part,
)
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore
from lakebed.versions import BranchNotFound, PathNotFound
from tests.gc.conftest import Lake
from tests.gc.deferred import defer, hold, purge
from tests.gc.garbage import PART

KEY = b"of the server"
LATER = datetime(2100, 1, 1, tzinfo=UTC)
"""Objects may be seen later than they were written."""


@pytest.mark.parametrize(
    ("there", "unasked", "with_overwrite", "by_address"),
    [
        (None, Step.STAGE, Step.STAGE, Step.STAGE),
        (Occupant(), Step.REFUSE, Step.STAGE, Step.REFUSE),
        (Occupant(is_taken=True), Step.STAGE, Step.STAGE, Step.STAGE),
        (Occupant(is_same=True), Step.KEEP, Step.RECORD, Step.KEEP),
        (Occupant(is_ours=True), Step.REPLACE, Step.REPLACE, Step.REPLACE),
        (Occupant(is_ours=True, is_same=True), Step.RECORD, Step.RECORD, Step.KEEP),
        (Occupant(is_newest=True), Step.KEEP_NEWER, Step.KEEP_NEWER, Step.KEEP_NEWER),
        (Occupant(is_newest=True, is_ours=True, is_same=True), Step.KEEP, Step.KEEP, Step.KEEP),
    ],
)
def test_the_entry_at_the_path_decides_the_step(
    there: Occupant | None, unasked: Step, with_overwrite: Step, by_address: Step
) -> None:
    assert decide(there, overwrite=False, by_address=False) is unasked
    assert decide(there, overwrite=True, by_address=False) is with_overwrite
    assert decide(there, overwrite=False, by_address=True) is by_address


async def restored(lake: Lake, body: Restore = Restore(run_id="r1"), *, branch: str = "main") -> RestorePage:
    """All pages, added up."""
    restoring, total = Restoring(lake.versions, key=KEY), RestorePage(run_id="")
    while True:
        page = await restoring.restore(body, branch=branch)
        total = replace(
            page,
            restored=total.restored + page.restored,
            bytes_restored=total.bytes_restored + page.bytes_restored,
            present=total.present + page.present,
            older=total.older + page.older,
            failed=total.failed + page.failed,
            failures=total.failures + page.failures,
        )
        if page.continuation_token is None:
            return total
        body = replace(body, continuation_token=page.continuation_token)


async def paths(lake: Lake, branch: str = "main") -> dict[str, str]:
    """What lies at each path of a branch."""
    found = await lake.versions.staging.list(branch, limit=10_000)
    entries = [(key.decode(), from_row(row)) for key, row in found.items if row is not None]
    return {path: (await lake.objectstore.get(entry.address)).decode() for path, entry in entries}


async def test_objects_return_to_their_paths_under_fresh_addresses(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd", "data/efgh"])

    page = await restored(lake)

    assert (page.restored, page.bytes_restored, page.failed) == (2, 8, 0)
    assert await paths(lake) == {"events/0": "abcd", "events/1": "efgh"}
    assert len(await lake.objects()) == 4
    entry = await lake.versions.staging.get("main", b"events/0")
    assert (entry.size_bytes, entry.checksum) == (4, "e2fc714c4727ee9395f324cd2e7f331f")


async def test_a_restored_object_is_committed_like_any_other(lake: Lake) -> None:
    garbage = await defer(lake.versions, ["data/abcd"])
    await restored(lake)

    await lake.commit("main")
    await purge(lake.versions, lake.deleter, garbage)
    await lake.collector().collect_uncommitted()

    assert await paths(lake) == {"events/0": "abcd"}


@pytest.mark.parametrize(
    ("prefix", "with_paths", "path"),
    [
        ("", False, "restored/r1/data/abcd"),
        ("back", False, "back/data/abcd"),
        ("back", True, "back/events/0"),
        ("back/", True, "back/events/0"),
    ],
)
async def test_where_objects_return_to(lake: Lake, prefix: str, with_paths: bool, path: str) -> None:
    await defer(lake.versions, ["data/abcd"], paths=with_paths)

    await restored(lake, Restore(run_id="r1", prefix=prefix))

    assert await paths(lake) == {path: "abcd"}


async def test_a_branch_may_be_named(lake: Lake) -> None:
    await lake.versions.refs.create_branch("side", "main")
    await defer(lake.versions, ["data/abcd"])

    await restored(lake, branch="side")

    assert (await paths(lake), await paths(lake, "side")) == ({}, {"events/0": "abcd"})


async def test_a_branch_that_is_not_there_is_an_error(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd"])

    with pytest.raises(BranchNotFound):
        await restored(lake, branch="nowhere")


async def test_repeated_it_does_nothing_twice(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd", "data/efgh"])
    await restored(lake)
    objects = await lake.objects()

    again = await restored(lake)

    assert (again.restored, again.present, again.failed) == (0, 2, 0)
    assert await lake.objects() == objects


async def test_another_object_at_the_path_stays_and_counts_as_a_failure(lake: Lake) -> None:
    await lake.put("main", "events/0", "mine")
    await defer(lake.versions, ["data/abcd", "data/efgh"])

    page = await restored(lake)

    assert (page.restored, page.failed) == (1, 1)
    assert [(failure.path, failure.error) for failure in page.failures] == [("events/0", "another object is there")]
    assert await paths(lake) == {"events/0": "mine", "events/1": "efgh"}


async def test_another_object_at_the_path_is_replaced_where_that_is_asked_for(lake: Lake) -> None:
    await lake.put("main", "events/0", "mine")
    await defer(lake.versions, ["data/abcd"])

    page = await restored(lake, Restore(run_id="r1", overwrite=True))

    assert (page.restored, page.failed) == (1, 0)
    assert await paths(lake) == {"events/0": "abcd"}


@pytest.mark.parametrize(
    ("path", "back"),
    [("events/1", ["events/1"]), ("data/abcd", ["events/0"]), ("events/", ["events/0", "events/1"])],
)
async def test_a_path_a_folder_or_an_address_names_what_returns(lake: Lake, path: str, back: list[str]) -> None:
    await defer(lake.versions, ["data/abcd", "data/efgh"])

    page = await restored(lake, Restore(path=path))

    assert page.run_id == "r1"
    assert sorted(await paths(lake)) == back


@pytest.mark.parametrize(("path", "back"), [("old/b", ["old/b"]), ("old/", ["old/a", "old/b"]), ("old", [])])
async def test_another_path_of_an_object_brings_it_back_there(lake: Lake, path: str, back: list[str]) -> None:
    await defer(lake.versions, ["data/abcd"], at=["new/a"], others=["old/a", "old/b", "other"])

    with suppress(NotRestorable):
        await restored(lake, Restore(path=path))

    assert await paths(lake) == dict.fromkeys(back, "abcd")


async def test_what_was_seen_last_at_a_path_comes_before_what_had_it_among_others(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd"], at=["new/a"], others=["old/a"], seen=[LATER])
    await defer(lake.versions, ["data/efgh"], run="r0", at=["old/a"])

    await restored(lake, Restore(path="old/"))

    assert await paths(lake) == {"old/a": "efgh"}


@pytest.mark.parametrize(("path", "back"), [("old/a", {"old/a": "efgh"}), ("new/a", {"new/a": "abcd"})])
async def test_a_path_comes_from_an_earlier_run_if_the_latest_had_it_among_others(
    lake: Lake, path: str, back: dict[str, str]
) -> None:
    await defer(lake.versions, ["data/efgh"], run="r0", at=["old/a"], seen=[LATER])
    await defer(lake.versions, ["data/abcd"], run="r2", at=["new/a"], others=["old/a"])

    await restored(lake, Restore(path=path))

    assert await paths(lake) == back


async def test_a_folder_brings_an_object_back_to_each_of_its_paths_there(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd"], at=["old/a"], others=["old/b", "other"])

    page = await restored(lake, Restore(path="old/"))

    assert await paths(lake) == {"old/a": "abcd", "old/b": "abcd"}
    assert (page.restored, page.bytes_restored) == (2, 8)


async def test_a_path_without_a_run_means_the_latest_that_holds_it(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd"])
    await defer(lake.versions, ["data/efgh"], run="r2")

    page = await restored(lake, Restore(path="events/0"))

    assert page.run_id == "r2"
    assert await paths(lake) == {"events/0": "efgh"}


# Several versions of a path


async def took_versions(lake: Lake, *contents: str) -> Manifest:
    """A run holds versions of path `events/0`, each in a part of its own, and each seen on the day that it tells."""
    keys = [f"data/v{number}" for number in range(len(contents))]
    seen = [LATER + timedelta(days=int(text[-1])) for text in contents]
    garbage = await defer(lake.versions, keys, parts=len(keys), seen=seen)
    for key, text in zip(keys, contents, strict=True):
        await lake.objectstore.put(key, text.encode())
    return garbage


ORDERS = [("day1", "day2", "day3"), ("day3", "day2", "day1"), ("day2", "day3", "day1"), ("day2", "day1", "day3")]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("order", ORDERS)
async def test_of_the_versions_of_a_path_the_one_seen_last_returns(
    lake: Lake, order: tuple[str, ...], overwrite: bool
) -> None:
    await took_versions(lake, *order)

    page = await restored(lake, Restore(run_id="r1", overwrite=overwrite))

    assert await paths(lake) == {"events/0": "day3"}
    assert (page.restored, page.older, page.bytes_restored, page.failed) == (1, 2, 4, 0)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("order", ORDERS)
async def test_of_versions_the_one_seen_last_returns_when_the_restore_is_repeated(
    lake: Lake, order: tuple[str, ...], overwrite: bool
) -> None:
    await took_versions(lake, *order)
    await restored(lake, Restore(run_id="r1", overwrite=overwrite))

    page = await restored(lake, Restore(run_id="r1", overwrite=overwrite))

    assert await paths(lake) == {"events/0": "day3"}
    assert (page.restored, page.present, page.older, page.failed) == (0, 1, 2, 0)


@pytest.mark.parametrize("order", ORDERS)
async def test_of_versions_the_one_seen_last_returns_where_its_bytes_were_there_anyway(
    lake: Lake, order: tuple[str, ...]
) -> None:
    await lake.put("main", "events/0", "day3")
    await took_versions(lake, *order)

    await restored(lake, Restore(run_id="r1", overwrite=True))

    assert await paths(lake) == {"events/0": "day3"}


async def defer_one_path(lake: Lake, *, versions: int) -> None:
    """A run holds so many versions of path `events/0` in one part."""
    garbage = await defer(lake.versions, [f"data/v{number}" for number in range(versions)])
    rows = read_part(garbage, GARBAGE, garbage.parts[0], await lake.objectstore.get(garbage.folder + PART))
    same = rows.set_column(rows.schema.get_field_index("path"), "path", [["events/0"] * versions]).cast(rows.schema)
    data = encode_part(GARBAGE, same)
    await lake.objectstore.put(garbage.folder + PART, data)
    await hold(lake.versions, manifest_of(GARBAGE, garbage.folder, [part_of(PART, data, rows=versions)]))


async def test_versions_in_one_part_do_not_race(lake: Lake) -> None:
    await defer_one_path(lake, versions=4)

    page = await restored(lake)

    assert (page.restored, page.older, page.failed) == (1, 3, 0)


async def test_an_older_version_returns_where_the_newest_is_gone(lake: Lake) -> None:
    await took_versions(lake, "day1", "day2")
    await lake.deleter.delete(["data/v1"])

    page = await restored(lake)

    assert (await paths(lake), page.restored, page.failed) == ({"events/0": "day1"}, 1, 1)


async def test_a_path_with_another_object_fails_once_for_all_of_its_versions(lake: Lake) -> None:
    await lake.put("main", "events/0", "mine")
    await defer_one_path(lake, versions=4)

    page = await restored(lake)

    assert (page.restored, page.older, page.failed) == (0, 3, 1)
    assert [(failure.path, failure.error) for failure in page.failures] == [("events/0", "another object is there")]


async def test_all_versions_return_to_paths_of_their_own(lake: Lake) -> None:
    await took_versions(lake, "day1", "day2")

    page = await restored(lake, Restore(run_id="r1", prefix="back", all_versions=True))

    assert await paths(lake) == {"back/events/0@r1/data/v0": "day1", "back/events/0@r1/data/v1": "day2"}
    assert (page.restored, page.older) == (2, 0)


async def test_an_address_brings_back_an_older_version_in_the_place_of_a_newer_one(lake: Lake) -> None:
    await took_versions(lake, "day1", "day2")
    await restored(lake)

    page = await restored(lake, Restore(path="data/v0", overwrite=True))

    assert (await paths(lake), page.restored, page.older) == ({"events/0": "day1"}, 1, 0)


async def test_what_an_earlier_restore_staged_is_not_replaced_unasked(lake: Lake) -> None:
    await took_versions(lake, "day1", "day2")
    await restored(lake, Restore(path="data/v0"))

    page = await restored(lake)

    assert (await paths(lake), page.restored, page.failed) == ({"events/0": "day1"}, 0, 1)


async def test_a_copy_of_what_was_restored_elsewhere_is_no_version_of_this_path(lake: Lake) -> None:
    await defer(lake.versions, ["data/old0", "data/old1"])
    await defer(lake.versions, ["data/new0"], run="r2", seen=[LATER])
    await restored(lake, Restore(run_id="r2"))
    await lake.versions.copies.copy(source_ref="main", source_key=b"events/0", branch="main", key=b"events/1")

    unasked = await restored(lake, Restore(path="events/1"))
    page = await restored(lake, Restore(path="events/1", overwrite=True))

    assert (unasked.restored, unasked.older, unasked.failed) == (0, 0, 1)
    assert (page.restored, page.older, page.failed) == (1, 0, 0)
    assert await paths(lake) == {"events/0": "new0", "events/1": "old1"}


async def test_a_copy_of_a_whole_branch_knows_the_versions_of_its_paths(lake: Lake) -> None:
    await defer(lake.versions, ["data/old0"])
    await defer(lake.versions, ["data/new0"], run="r2", seen=[LATER])
    await restored(lake, Restore(run_id="r2"))
    await lake.commit("main")
    await lake.versions.refs.create_branch("other", "main")

    page = await restored(lake, Restore(path="events/", overwrite=True), branch="other")

    assert (await paths(lake, "other"), page.restored) == ({"events/0": "new0"}, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"run": 1}',
        '{"path":"events/0","run":"r1","address":"z","seen_ms":9e99,"restore":"x"}',
        pytest.param('{"x":' + "[" * 1_900, id="nested"),
    ],
)
async def test_metadata_that_somebody_made_up_is_no_version(lake: Lake, text: str) -> None:
    async def store_body(address: str) -> Entry:
        await lake.objectstore.put(address, b"mine")
        return Entry(address=address, size_bytes=4, checksum="x", modified_ms=0, metadata={RESTORED_FROM: text})

    await lake.versions.staging.upload("main", b"events/0", store_body)
    await took_versions(lake, "day1")

    page = await restored(lake, Restore(run_id="r1", overwrite=True))

    assert (await paths(lake), page.restored) == ({"events/0": "day1"}, 1)


# Several runs


async def test_a_folder_that_several_runs_took_comes_back_whole(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd", "data/efgh"])
    await defer(lake.versions, ["data/ijkl"], run="r2", seen=[LATER + timedelta(days=1)])
    await defer(lake.versions, ["data/mnop"], run="r3", seen=[LATER - timedelta(days=1)])

    page = await restored(lake, Restore(path="events/"))

    assert await paths(lake) == {"events/0": "ijkl", "events/1": "efgh"}
    assert (page.restored, page.older, page.failed) == (2, 2, 0)


async def test_a_folder_of_one_run_is_what_that_run_took(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd", "data/efgh"])
    await defer(lake.versions, ["data/ijkl"], run="r2")

    page = await restored(lake, Restore(run_id="r2", path="events/"))

    assert (await paths(lake), page.older) == ({"events/0": "ijkl"}, 0)


# Many objects, many files


async def test_a_table_that_was_altered_stops_the_restore(lake: Lake) -> None:
    garbage = await defer(lake.versions, ["data/abcd"])
    await lake.objectstore.put(garbage.folder + PART, b"altered")

    with pytest.raises(BadInput, match="part-00000"):
        await restored(lake)


async def test_very_many_objects_come_in_pages(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakebed.gc.live.defer.restorable.PAGE_OBJECTS", 3)
    await defer(lake.versions, [f"data/a{number:03d}" for number in range(14)], parts=2, paths=False)

    page = await restored(lake)

    assert (page.restored, page.failed, len(await paths(lake))) == (14, 0, 14)


async def test_a_page_ends_where_its_objects_get_large(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakebed.gc.live.defer.restorable.PAGE_BYTES", 5)
    await defer(lake.versions, ["data/abcd", "data/efgh", "data/ijkl"])

    page = await Restoring(lake.versions, key=KEY).restore(Restore(run_id="r1"), branch="main")

    assert (page.restored, page.continuation_token is None) == (2, False)


class Counted(MemoryObjectStore):
    """Counts the files of tables and of the ledger that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def get(self, key: str, **options: Any) -> bytes:
        if key.endswith(".parquet"):
            self.read.append(key)
        return await super().get(key, **options)


@pytest.fixture
async def counted() -> Lake:
    """Two runs of five parts each, of which the first took ten addresses and the other one five of them."""
    lake = Lake(MemoryStore(), Counted())
    await lake.versions.commits.initialise("main")
    keys = [f"data/a{number:03d}" for number in range(10)]
    for run in ("r1", "r2"):
        await defer(lake.versions, keys if run == "r1" else keys[:5], run=run, parts=5, paths=False)
    return lake


@pytest.mark.parametrize("looked", [1, 2, 8])
@pytest.mark.parametrize(
    ("body", "run", "restored_"),
    [
        (Restore(path="data/a004"), "r2", 1),
        (Restore(path="data/a009"), "r1", 1),
        (Restore(run_id="r1", path="data/a009"), "r1", 1),
        (Restore(run_id="r2", prefix="back"), "r2", 5),
        (Restore(path="nowhere"), "", 0),
        (Restore(run_id="r1", path="nowhere"), "", 0),
        (Restore(run_id="r9"), "", 0),
    ],
)
async def test_one_request_looks_into_few_files_and_many_find_what_there_is(
    counted: Lake, body: Restore, run: str, restored_: int, looked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.gc.live.defer.restorable.FILES_LOOKED", looked)
    objectstore, restoring, total, told = counted.objectstore, Restoring(counted.versions, key=KEY), 0, ""
    assert isinstance(objectstore, Counted)
    while True:
        objectstore.read.clear()
        try:
            page = await restoring.restore(body, branch="main")
        except NotRestorable:
            break
        finally:
            assert len(objectstore.read) <= 2 * looked
        total, told = total + page.restored, page.run_id
        if page.continuation_token is None:
            break
        body = replace(body, continuation_token=page.continuation_token)

    assert (total, told if restored_ else "") == (restored_, run)


async def test_a_run_that_is_purged_between_two_pages_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakebed.gc.live.defer.restorable.PAGE_OBJECTS", 1)
    garbage = await defer(lake.versions, ["data/abcd", "data/efgh"])
    page = await Restoring(lake.versions, key=KEY).restore(Restore(run_id="r1"), branch="main")
    await purge(lake.versions, lake.deleter, garbage)

    with pytest.raises(NotRestorable, match="run r1 deleted it at"):
        await restored(lake, Restore(run_id="r1", continuation_token=page.continuation_token))


async def test_a_search_goes_on_in_the_next_run_where_one_ends_between_two_pages(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.gc.live.defer.restorable.PAGE_OBJECTS", 1)
    await defer(lake.versions, ["data/abcd", "data/efgh"], run="r1")
    garbage = await defer(lake.versions, ["data/ijkl", "data/mnop"], run="r2")
    body = Restore(path="events/", prefix="back", all_versions=True)
    page = await Restoring(lake.versions, key=KEY).restore(body, branch="main")
    await purge(lake.versions, lake.deleter, garbage, run="r2")

    await restored(lake, replace(body, continuation_token=page.continuation_token))

    assert sorted((await paths(lake)).values()) == ["abcd", "efgh", "ijkl"]


async def test_what_was_restored_is_in_the_ledger_with_the_path_it_has_now(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd", "data/efgh"])
    await lake.put("main", "back/events/1", "mine")

    await restored(lake, Restore(run_id="r1", prefix="back"))

    keys = [stat.key async for page in lake.objectstore.list(LEDGER_PREFIX) for stat in page if "-restore-" in stat.key]
    rows = [row for key in keys for row in decode_ledger(await lake.objectstore.get(key), name=key).to_pylist()]
    assert [(row["address"], row["path"], row["state"], row["rule"]) for row in rows] == [
        ("data/abcd", "back/events/0", "restored", "main: 1 days")
    ]


async def test_what_was_deleted_for_good_is_told_with_run_date_and_rule(lake: Lake) -> None:
    await purge(lake.versions, lake.deleter, await defer(lake.versions, ["data/abcd"]))

    for body in (Restore(run_id="r1"), Restore(path="events/0"), Restore(path="data/abcd"), Restore(path="events/")):
        with pytest.raises(NotRestorable, match=r"run r1 deleted it at 20..-..-.. ..:..:..Z by the rule main"):
            await restored(lake, body)


async def test_a_search_of_the_ledger_goes_on_behind_the_last_file_that_it_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.gc.live.defer.restorable.FILES_LOOKED", 1)
    for run, key in (("r1", "data/abcd"), ("r2", "data/efgh")):
        await purge(lake.versions, lake.deleter, await defer(lake.versions, [key], run=run), run=run)

    for run, key in (("r1", "data/abcd"), ("r2", "data/efgh")):
        with pytest.raises(NotRestorable, match=f"run {run} deleted it at"):
            await restored(lake, Restore(path=key))


def test_of_versions_of_one_date_the_one_that_was_uploaded_last_is_newer() -> None:
    before, after = (slice_number(opened_at_ms=opened_ms, random_bits=1) for opened_ms in (1_000_000, 2_000_000))
    ascending = ["s3://elsewhere/a", format_address(before, 7), format_address(after, 1), format_address(after, 2)]

    assert sorted(ascending, key=lambda address: _newness(7, "r1", address)) == ascending
    assert _newness(8, "r1", ascending[0]) > _newness(7, "r1", ascending[-1])


async def test_an_entry_of_another_checksum_than_the_commit_had_is_another_one(lake: Lake) -> None:
    sums = [hashlib.md5(data, usedforsecurity=False).hexdigest() for data in (b"abcd", b"efgh")]
    known, there = (Entry(address="data/abcd", size_bytes=4, checksum=one, modified_ms=0) for one in sums)
    await lake.objectstore.put("data/abcd", b"abcd")
    restoring = Restoring(lake.versions, key=KEY)

    assert await restoring._is_same(known, "data/abcd", known)
    assert not await restoring._is_same(there, "data/abcd", known)


async def test_what_no_run_ever_took_is_told(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd"])

    for body in (Restore(run_id="r9"), Restore(path="nowhere"), Restore(run_id="r1", path="nowhere")):
        with pytest.raises(NotRestorable, match=r"and no ledger says that it (was )?deleted"):
            await restored(lake, body)
    with pytest.raises(Invalid, match="`path`"):
        await restored(lake, Restore())


async def test_a_purge_that_is_faster_fails_the_restore_and_nothing_else(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd", "data/efgh"])
    await lake.put("main", "mine", "mine")
    await lake.deleter.delete(["data/abcd"])

    page = await restored(lake)

    assert [(failure.path, failure.error) for failure in page.failures] == [("events/0", "it was deleted meanwhile")]
    assert await paths(lake) == {"events/1": "efgh", "mine": "mine"}


class Unreliable(MemoryObjectStore):
    """What happens when an object is copied to its fresh address."""

    def __init__(self, mishap: str) -> None:
        super().__init__()
        self._mishap = mishap

    async def copy(self, source: str, target: str) -> None:
        if self._mishap == "purged":
            await MemoryDeleter(self).delete([source])
        await super().copy(source, target)
        if self._mishap == "garbled":
            await self.put(target, b"????")


@pytest.mark.parametrize(
    ("mishap", "said"),
    [
        ("purged", "it was deleted meanwhile"),
        ("garbled", "what was read back is not what was copied"),
    ],
)
async def test_nothing_is_staged_that_could_not_be_read_back(mishap: str, said: str) -> None:
    lake = Lake(MemoryStore(), Unreliable(mishap))
    await lake.versions.commits.initialise("main")
    await defer(lake.versions, ["data/abcd"])

    page = await restored(lake)

    assert [failure.error for failure in page.failures] == [said]
    with pytest.raises(PathNotFound):
        await lake.versions.staging.get("main", b"events/0")


async def test_an_object_of_another_size_than_the_plan_says_is_not_restored(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd"])
    await lake.objectstore.put("data/abcd", b"longer than that")

    page = await restored(lake)

    assert [failure.error for failure in page.failures] == ["it has 16 bytes, and the plan says 4"]


async def test_what_may_not_be_restored_fails_and_tells_why_and_nothing_is_read(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd", "data/efgh"])
    asked: list[tuple[str, str]] = []

    def refusal(path: str, target: str) -> str:
        asked.append((path, target))
        return "not yours" if path == "events/0" else ""

    page = await Restoring(lake.versions, key=KEY, refusal=refusal).restore(
        Restore(run_id="r1", prefix="mine"), branch="main"
    )

    assert sorted(asked) == [("events/0", "mine/events/0"), ("events/1", "mine/events/1")]
    assert (page.restored, page.failed) == (1, 1)
    assert [(failure.path, failure.error) for failure in page.failures] == [("mine/events/0", "not yours")]


@pytest.mark.parametrize("token", ["", "x", "AAAA", "ZZZZ===="])
async def test_a_token_of_somebody_else_is_refused(lake: Lake, token: str) -> None:
    await defer(lake.versions, ["data/abcd"])

    with pytest.raises(BadContinuation):
        await Restoring(lake.versions, key=KEY).restore(Restore(continuation_token=token), branch="main")


async def test_a_token_is_good_for_the_restore_that_was_given_it_alone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.gc.live.defer.restorable.PAGE_OBJECTS", 1)
    await defer(lake.versions, ["data/abcd", "data/efgh"])
    await lake.versions.refs.create_branch("other", "main")
    asked = Restore(run_id="r1")
    restoring = Restoring(lake.versions, key=KEY)
    token = (await restoring.restore(asked, branch="main")).continuation_token
    assert token is not None
    place = base64.urlsafe_b64decode(token)[32:]
    made_up = base64.urlsafe_b64encode(hashlib.sha256(place).digest() + place).decode()
    following = replace(asked, continuation_token=token)

    for held, body, branch in (
        (restoring, replace(asked, continuation_token=made_up), "main"),
        (restoring, replace(following, run_id="r2"), "main"),
        (restoring, replace(following, path="events/1"), "main"),
        (restoring, replace(following, overwrite=True), "main"),
        (restoring, following, "other"),
        (Restoring(lake.versions, key=b"of another server"), following, "main"),
    ):
        with pytest.raises(BadContinuation):
            await held.restore(body, branch=branch)
    assert (await restoring.restore(following, branch="main")).restored == 1


async def test_a_damaged_list_of_what_waits_stops_the_restore(lake: Lake) -> None:
    await defer(lake.versions, ["data/abcd"])
    await lake.objectstore.put(deferred_path(RunKind.COMMITTED, "r1"), b"{")

    with pytest.raises(BadInput):
        await restored(lake)
