"""Why an object is there, until when, or which run took it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakebed.base import CommitId, Entry, Invalid
from lakebed.gc.live import CollectionService
from lakebed.gc.live.explain.reasons import FateFacts, Known, fate_of, stays_sorted
from lakebed.gc.messages import GC_PREFIX, LEDGER, Fate, WhyObject, arrow_schema, encode_part
from lakebed.gc.rules import DAY_MS, Ancestry, Holds, Rules, Stay, StayKind, days_rules
from lakebed.ranges import RangeCorrupt
from tests.gc.conftest import Lake
from tests.gc.deferred import defer

RULES = days_rules(7, {"main": 20})


async def only(lake: Lake, **asked: str) -> WhyObject:
    (found,) = (await lake.service.why.ask(**asked)).objects
    return found


async def replaced(lake: Lake) -> str:
    """An object that was committed on main and replaced by the next commit, ten days ago."""
    address = await lake.put("main", "events/a", "one")
    await lake.commit("main")
    lake.days(5)
    await lake.put("main", "events/a", "two")
    await lake.commit("main")
    lake.days(10)
    return address


def undo(until_ms: int | None = None) -> Stay:
    return Stay(kind=StayKind.UNDO, name="run", commit=CommitId("c"), until_ms=until_ms)


@pytest.mark.parametrize(
    ("facts", "fate", "until_days"),
    [
        (FateFacts(is_outside=True, is_staged=True), Fate.OUTSIDE, None),
        (FateFacts(), Fate.UNKNOWN, None),
        (FateFacts(is_staged=True, deleted_by={"uncommitted"}), Fate.MISSING, None),
        (FateFacts(is_committed=True, deleted_by={"committed"}), Fate.MISSING, None),
        (FateFacts(is_committed=True, deleted_by={"committed", "erasure"}), Fate.TAKEN, None),
        (FateFacts(is_own=True, deleted_by={"metadata"}), Fate.TAKEN, None),
        (FateFacts(modified_ms=0, is_own=True, is_committed=True), Fate.OWN, None),
        (FateFacts(modified_ms=0, is_staged=True, deferred_until_ms=9 * DAY_MS), Fate.KEPT, None),
        (FateFacts(modified_ms=0, is_held=True, is_committed=True), Fate.KEPT, None),
        (FateFacts(modified_ms=0, is_committed=True, deferred_until_ms=9 * DAY_MS), Fate.EXPIRED, 5),
        (FateFacts(modified_ms=0, is_committed=True, stays=[undo()]), Fate.KEPT, None),
        (FateFacts(modified_ms=0, deferred_until_ms=9 * DAY_MS), Fate.DEFERRED, 9),
        (FateFacts(modified_ms=0, stays=[undo(2 * DAY_MS), undo(8 * DAY_MS)]), Fate.KEPT, 8),
        (FateFacts(modified_ms=0, stays=[undo(8 * DAY_MS), undo()]), Fate.KEPT, None),
        (FateFacts(modified_ms=0, stays=[undo(2 * DAY_MS)]), Fate.KEPT, 5),
        (FateFacts(modified_ms=0), Fate.UNREFERENCED, 5),
        (FateFacts(modified_ms=3 * DAY_MS - 1), Fate.YOUNG, 6),
    ],
)
def test_the_first_fact_that_matches_decides_the_fate(facts: FateFacts, fate: Fate, until_days: int | None) -> None:
    until_ms = None if until_days is None else until_days * DAY_MS

    assert fate_of(facts, Rules(default="7d", uncommitted_min_age="3d"), now_ms=5 * DAY_MS) == (fate, until_ms)


async def test_an_object_of_a_head_stays_while_it_is_there(lake: Lake) -> None:
    address = await lake.put("main", "events/a")
    head = await lake.commit("main")
    await lake.service.rules.write(RULES)

    found = await only(lake, ref="main", path="events/a")

    assert (found.address, found.fate, found.goes_ms) == (address, Fate.KEPT, None)
    assert [(stay.kind, stay.name) for stay in found.stays] == [("head", "main")]
    assert [(name.commit, name.path) for name in found.commits] == [(head.id, "events/a")]


def test_a_tag_is_not_sorted_by_the_branch_of_its_name() -> None:
    ids = [CommitId(letter * 64) for letter in "abc"]
    ancestry = Ancestry(
        ids=ids,
        first_parent=[-1, 0, 0],
        created_ms=[1, 2, 3],
        heads={"main": 1, "b": 2},
        tags=dict.fromkeys(("main", "b", "a"), 0),
        held={},
    )
    no_snapshot: Any = None
    known = Known(
        snapshot=no_snapshot,
        ancestry=ancestry,
        rules=None,
        holds=Holds(),
        now_ms=DAY_MS,
        taken_by={},
        until_ms={},
        default_branch="main",
        deleted_until_ms={},
    )

    assert [(stay.kind, stay.name) for stay in stays_sorted(known, [0], [])] == [
        ("branch", "main"),
        ("branch", "b"),
        ("tag", "a"),
        ("tag", "b"),
        ("tag", "main"),
    ]


@pytest.mark.parametrize("kind", ["branch", "tag"])
async def test_a_ref_that_came_back_keeps_an_object_once(lake: Lake, kind: str) -> None:
    await lake.put("main", "events/a")
    head = await lake.commit("main")
    refs = lake.versions.refs
    await (refs.create_branch if kind == "branch" else refs.create_tag)("v1", head.id)
    await (refs.delete_branch if kind == "branch" else refs.delete_tag)("v1")
    gone = await only(lake, ref="main", path="events/a")
    await (refs.undelete_branch if kind == "branch" else refs.undelete_tag)("v1")

    back = await only(lake, ref="main", path="events/a")

    assert sum(stay.name.startswith("v1@{") for stay in gone.stays) == 1
    assert sorted(stay.name for stay in back.stays) == ["main", "v1"]


async def test_a_replaced_object_goes_when_the_period_since_then_is_over(lake: Lake) -> None:
    address = await replaced(lake)
    await lake.service.rules.write(RULES)

    found = await only(lake, address=address)

    assert (found.fate, found.goes_ms) == (Fate.KEPT, lake.clock.ms + 10 * DAY_MS + 1)
    assert [(stay.kind, stay.rule) for stay in found.stays] == [("branch", "main: 20d")]


async def test_absolute_and_relative_addresses_are_one_object(lake: Lake) -> None:
    address = await replaced(lake)

    relative = await only(lake, address=address)
    absolute = await only(lake, address=f"{lake.objectstore.uri}/{address}")

    assert relative == absolute


async def test_what_only_expired_commits_name_goes_with_the_next_run(lake: Lake) -> None:
    address = await replaced(lake)
    await lake.service.rules.write(days_rules(3))

    found = await only(lake, address=address)

    assert (found.fate, found.goes_ms) == (Fate.EXPIRED, lake.clock.ms)
    assert not any(stay.keeps_at(lake.clock.ms) for stay in found.stays)


async def test_without_rules_what_was_committed_never_goes(lake: Lake) -> None:
    answer = await lake.service.why.ask(address=await replaced(lake))

    assert not answer.has_rules
    assert [(found.fate, found.goes_ms) for found in answer.objects] == [(Fate.KEPT, None)]


async def test_a_tag_and_a_branch_made_from_an_old_commit_keep_it(lake: Lake) -> None:
    address = await replaced(lake)
    await lake.versions.refs.create_tag("v1", "main~1")
    await lake.versions.refs.create_branch("old", "main~1")
    await lake.service.rules.write(days_rules(1))

    found = await only(lake, address=address)

    assert found.fate is Fate.KEPT
    assert [(stay.kind, stay.name) for stay in found.stays if stay.keeps_at(lake.clock.ms)] == [
        ("head", "old"),
        ("tag", "v1"),
    ]


async def test_of_branches_that_keep_it_alike_the_default_one_is_named_first_then_the_newest(lake: Lake) -> None:
    address = await lake.put("main", "a", "one")
    await lake.commit("main")
    for name in ("alpha", "beta"):
        await lake.versions.refs.create_branch(name, "main")
    lake.days(1)
    await lake.put("beta", "b", "two")
    await lake.commit("beta")

    found = await only(lake, address=address)

    assert [stay.name for stay in found.stays] == ["main", "beta", "alpha"]


async def test_a_staged_cell_keeps_what_expired_commits_name(lake: Lake) -> None:
    address = await replaced(lake)
    await lake.versions.copies.copy("main~1", b"events/a", "main", b"again", shallow=True)
    await lake.service.rules.write(days_rules(1))

    found = await only(lake, address=address)

    assert (found.fate, found.goes_ms) == (Fate.KEPT, None)
    assert {(name.source, name.branch, name.path) for name in found.uncommitted} == {
        ("staging", "main", "again"),
        ("copy", "main", ""),
    }


async def test_an_open_upload_keeps_its_address(lake: Lake) -> None:
    address = await lake.versions.uploads.issue("main")
    await lake.objectstore.put(address, b"bytes that nobody has linked yet")

    found = await only(lake, address=address)

    assert (found.fate, found.slice_closed) == (Fate.KEPT, False)
    assert [name.source for name in found.uncommitted] == ["upload"]


async def test_what_was_overwritten_before_a_commit_is_named_by_nothing(lake: Lake) -> None:
    address = await lake.put("main", "a", "one")
    await lake.put("main", "a", "two")

    assert (await only(lake, address=address)).fate is Fate.UNREFERENCED


async def test_an_object_that_nothing_names_stays_for_the_least_age(lake: Lake) -> None:
    address = await lake.put("main", "a", "one")
    await lake.put("main", "a", "two")
    await lake.service.rules.write(Rules(default="7d", uncommitted_min_age="2d"))
    lake.clock.ms = (await lake.objectstore.stat(address)).modified_ms

    found = await only(lake, address=address)

    assert (found.fate, found.goes_ms) == (Fate.YOUNG, lake.clock.ms + 2 * DAY_MS + 1)


async def test_what_lies_outside_is_never_taken(lake: Lake) -> None:
    await lake.versions.staging.put(
        "main", b"linked", Entry(address="s3://elsewhere/x", size_bytes=1, checksum="c", modified_ms=1)
    )
    await lake.commit("main")

    linked = await only(lake, ref="main", path="linked")

    assert (linked.fate, linked.address) == (Fate.OUTSIDE, "s3://elsewhere/x")
    assert [name.path for name in linked.commits] == ["linked"]


async def test_a_file_of_our_own_stays_while_commits_name_it(lake: Lake) -> None:
    await lake.put("main", "a")
    first = await lake.commit("main")
    (range_,) = [stat.key async for page in lake.objectstore.list("_lakefs/ranges/") for stat in page]
    await lake.put("main", "b")
    second = await lake.commit("main")

    metarange = await only(lake, address=f"_lakefs/metaranges/{first.metarange_id}.parquet")
    other = await only(lake, address="_lakefs/dummy")
    names = {name.commit for name in (await only(lake, address=range_)).commits}

    assert (metarange.fate, [name.commit for name in metarange.commits]) == (Fate.OWN, [first.id])
    assert names <= {first.id, second.id}
    assert first.id in names
    assert (other.fate, other.commits) == (Fate.UNKNOWN, ())


async def test_an_object_that_something_names_and_that_is_not_there_is_missing(lake: Lake) -> None:
    address = await lake.put("main", "a")
    await lake.commit("main")
    await lake.deleter.delete([address])

    assert (await only(lake, address=address)).fate is Fate.MISSING


async def test_an_address_that_nobody_knows_is_unknown(lake: Lake) -> None:
    assert (await only(lake, address="data/0000000000000/00000001")).fate is Fate.UNKNOWN


async def write_ledger(lake: Lake, name: str, **facts: object) -> None:
    """A file of the ledger with one row."""
    row = {
        "run_id": "r1",
        "address": "data/x",
        "size_bytes": 3,
        "reason": "expired",
        "deleted_at": lake.clock.ms,
        "error": "",
        "path": "events/a",
        "rule": "default: 3d",
        "state": "deleted",
        "last_seen_at": lake.clock.ms,
    }
    rows = pa.Table.from_pylist([row | facts], arrow_schema(LEDGER))
    await lake.objectstore.put(f"{GC_PREFIX}ledger/date=2026-11-21/{name}.parquet", encode_part(LEDGER, rows))


async def taken(lake: Lake) -> tuple[str, str]:
    """An address, and the run that took it, with the row of the ledger that a run writes."""
    address = await replaced(lake)
    await lake.service.rules.write(days_rules(3))
    collected = await lake.collector().collect_committed()
    await write_ledger(lake, f"{collected.run_id}-part-00000", run_id=collected.run_id, address=address)
    return address, collected.run_id


async def test_of_what_a_run_took_the_ledger_says_which_run_when_and_by_which_rule(lake: Lake) -> None:
    address, run_id = await taken(lake)

    found = await only(lake, address=address)

    assert found.fate is Fate.TAKEN
    assert [(it.run_id, it.rule, it.path, it.deleted_ms) for it in found.taken] == [
        (run_id, "default: 3d", "events/a", lake.clock.ms)
    ]


async def test_of_what_a_deferred_run_holds_the_run_is_told_and_when_it_goes(lake: Lake) -> None:
    address, gone = "data/0000000000000/00000001", "data/0000000000000/00000002"
    await defer(lake.versions, [address, gone], run="r7")
    await lake.deleter.delete([gone])

    (by_address,) = (await lake.service.why.ask(address=address)).objects
    (by_path,) = (await lake.service.why.ask(ref="main", path="events/0")).objects
    (deleted,) = (await lake.service.why.ask(address=gone)).objects

    for found in (by_address, by_path):
        assert (found.address, found.fate, found.run) == (address, Fate.DEFERRED, "r7")
        assert found.goes_ms == lake.clock.ms + DAY_MS
    assert deleted.fate is Fate.UNKNOWN


async def test_what_is_named_again_is_kept_though_a_deferred_run_holds_it(lake: Lake) -> None:
    address = await lake.put("main", "a")
    await defer(lake.versions, [address], run="r7")

    (found,) = (await lake.service.why.ask(address=address)).objects

    assert (found.fate, found.run) == (Fate.KEPT, "")


async def test_the_latest_deed_is_told_first_and_one_that_failed_took_nothing(lake: Lake) -> None:
    gone, tried = "data/0000000000000/00000001", "data/0000000000000/00000002"
    await write_ledger(lake, "r1-restore-1", address=gone, state="restored")
    await write_ledger(lake, "r1-part-1", address=gone, state="deleted", deleted_at=lake.clock.ms + 5)
    await write_ledger(lake, "r1-part-2", address=tried, state="failed", error="denied")

    (taken,) = (await lake.service.why.ask(address=gone)).objects
    (unclear,) = (await lake.service.why.ask(address=tried)).objects

    assert (taken.fate, [row.state for row in taken.taken]) == (Fate.TAKEN, ["deleted", "restored"])
    assert (unclear.fate, [row.error for row in unclear.taken]) == (Fate.UNKNOWN, ["denied"])


async def test_a_path_of_a_swept_commit_is_answered_whether_its_files_are_there_or_not(lake: Lake) -> None:
    address, _ = await taken(lake)

    known = await lake.service.why.ask(ref="main~1", path="events/a")
    ranges = [stat.key async for page in lake.objectstore.list("_lakefs/ranges/") for stat in page]
    metarange = (await lake.versions.history.log("main", limit=2))[0][1].metarange_id
    for info in await lake.versions.trees.ranges(metarange):
        await lake.deleter.delete([key for key in ranges if info.id in key])
    lake.versions = lake.server()
    forgotten = await CollectionService(lake.versions).why.ask(ref="main~1", path="events/a")

    assert [(found.address, found.fate) for found in known.objects] == [(address, Fate.TAKEN)]
    assert not forgotten.at_ref
    fates = {found.address: found.fate for found in forgotten.objects}
    assert fates.pop(address) is Fate.TAKEN
    assert [*fates.values()] == [Fate.KEPT]


async def test_a_path_that_was_deleted_is_answered_by_what_it_had(lake: Lake) -> None:
    address = await lake.put("main", "a")
    await lake.commit("main")
    await lake.versions.staging.delete("main", b"a")
    await lake.commit("main")

    answer = await lake.service.why.ask(ref="main", path="a")
    of_no_branch = await lake.service.why.ask(ref="no-such-branch", path="a")

    assert (answer.at_ref, [found.address for found in answer.objects]) == (False, [address])
    assert of_no_branch.objects == answer.objects


async def test_a_commit_that_cannot_be_read_is_named(lake: Lake) -> None:
    address = await lake.put("main", "a")
    await lake.commit("main")
    (range_,) = [stat.key async for page in lake.objectstore.list("_lakefs/ranges/") for stat in page]
    await lake.deleter.delete([range_])

    with pytest.raises(RangeCorrupt, match=range_.split("/")[-1][:12]):
        await lake.service.why.ask(address=address)


@pytest.mark.parametrize(
    "asked", [{}, {"ref": "main"}, {"path": "a"}, {"address": "data/x", "ref": "main", "path": "a"}]
)
async def test_a_question_must_be_about_one_thing(lake: Lake, asked: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="say an address, or a ref and a path"):
        await lake.service.why.ask(**asked)
