"""Erasures: what goes, what stays and why, over a real repository, without HTTP. No Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lakebed.base import Conflict
from lakebed.gc import BadWindow, Plan, messages
from lakebed.gc.kinds.erasure.certificate import foreseeing
from lakebed.gc.kinds.erasure.certificate.foreseeing import NothingSelected
from lakebed.gc.live import InvalidHold
from lakebed.gc.messages import ErasureOrder, InvalidRequest, PlanRequest, RunKind, RunState
from lakebed.gc.rules import InvalidSelection, Selection
from lakebed.versions import MultipartNotFound, MultipartRecord, PartRecord, PathExpired, PathNotFound, Versions
from tests.gc.mark.test_holding import address_of, hold
from tests.spark.lakeside import Lakeside
from tests.spark.test_foreign import imported, lay


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakeside]:
    with Lakeside(tmp_path) as found:
        yield found


def erase(lake: Lakeside, *paths: str, shared: bool = False, spark: Any = None, **selected: Any) -> Plan:
    order = ErasureOrder(selection=Selection(paths=paths, **selected), why="request 12", takes_shared=shared)
    return lake.collector.on(spark).plan_erasure(order)


def apply(lake: Lakeside, plan: Plan) -> RunState:
    return lake.collector.apply(None, plan.run_id).state


def versions_of(lake: Lakeside) -> list[str]:
    """Addresses of three versions of `users/ann`: two on main, one on a branch. `users/bob` lies beside."""
    found = []
    for data, branch in ((b"one", "main"), (b"two", "main"), (b"three", "side")):
        if branch == "side":
            lake.branch("side")
        found.append(lake.upload("users/ann", data, branch=branch))
        lake.upload("users/bob", data, branch=branch)
        lake.commit(branch=branch)
    return found


def test_reads_of_an_erased_entry_say_so(lake: Lakeside) -> None:
    versions_of(lake)
    plan = erase(lake, "users/ann")
    apply(lake, plan)

    entry = lake.wait(lake.versions.staging.get("main", b"users/ann"))
    with pytest.raises(PathExpired, match=f"erased by run {plan.run_id}"):
        lake.wait(lake.versions.taken.check(entry))


def test_listings_mark_what_was_erased_though_no_policy_was_ever_set(lake: Lakeside) -> None:
    found = versions_of(lake)
    plan = erase(lake, "users/ann")
    apply(lake, plan)

    shown = lake.wait(lake.versions.taken.shown_at(found[1]))

    assert shown is not None
    assert shown.run == plan.run_id


def test_what_a_diff_would_bring_of_erased_entries_is_counted_though_no_policy_was_ever_set(lake: Lakeside) -> None:
    versions_of(lake)
    apply(lake, erase(lake, "users/ann"))

    assert lake.wait(lake.versions.history.count_expired("main~1", "main")) == 1


def test_a_copy_of_an_erased_entry_is_refused(lake: Lakeside) -> None:
    versions_of(lake)
    apply(lake, erase(lake, "users/ann"))

    with pytest.raises(PathExpired):
        lake.copy("main", "users/ann", "users/copy")


def test_what_is_staged_goes_with_its_entry(lake: Lakeside) -> None:
    draft = lake.upload("users/ann")

    assert apply(lake, erase(lake, "users/ann")) is RunState.ENDED

    assert draft not in lake.addresses()
    with pytest.raises(PathNotFound):
        address_of(lake, "users/ann")


def test_an_apply_says_how_many_staged_entries_and_uploads_it_deleted(lake: Lakeside) -> None:
    for path in ("users/ann", "users/bea", "users/cid"):
        lake.upload(path)
    begin_in_parts(lake, "users/dan")
    plan = erase(lake, "users/ann", "users/bea", "users/cid", "users/dan")
    lake.upload("users/cid", b"since the plan")
    messages: list[str] = []

    dataclasses.replace(lake.collector, progress=messages.append).apply(None, plan.run_id)

    assert "deleted 3 staged entries" in messages


@pytest.mark.parametrize("data", [b"new", b"old"])
def test_what_was_written_since_the_plan_stays_even_if_it_is_the_same(lake: Lakeside, data: bytes) -> None:
    old = lake.upload("users/ann", b"old")
    plan = erase(lake, "users/ann")
    new = lake.upload("users/ann", data)

    apply(lake, plan)

    assert new in lake.addresses()
    assert address_of(lake, "users/ann") == new
    assert old not in lake.addresses()


def test_an_object_that_another_path_names_stays_unless_shared_ones_go_too(lake: Lakeside) -> None:
    shared = lake.upload("users/ann")
    lake.commit()
    lake.copy("main", "users/ann", "all/ann")
    lake.commit()
    lake.wait(lake.versions.cleanup.clean())

    assert lake.collector.taken(erase(lake, "users/ann").run_id) == set()
    apply(lake, erase(lake, "users/ann", shared=True))

    assert shared not in lake.addresses()


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_a_staged_copy_of_another_name_keeps_the_object_and_the_plan_says_so(
    lake: Lakeside, is_committed: bool, shared: bool
) -> None:
    object_ = lake.upload("users/ann")
    if is_committed:
        lake.commit()
    lake.copy("main", "users/ann", "all/ann")
    lake.wait(lake.versions.cleanup.clean())

    plan = erase(lake, "users/ann", shared=shared)
    apply(lake, plan)
    made = lake.collector.on(None).certify(plan.run_id, by="ann")

    reason = "an entry that is not selected names it: all/ann, which is staged on branch main"
    assert lake.collector.taken(plan.run_id) == set()
    assert ("object", object_, reason) in stands(plan)
    assert ("object", object_, reason) in [(one.what, one.where, one.why) for one in made.stands]
    assert address_of(lake, "users/ann") == object_, "the apply drops no name of an object that stays"

    lake.delete("all/ann")
    apply(lake, erase(lake, "users/ann", shared=shared))
    assert object_ not in lake.addresses()


def test_a_staged_entry_at_a_held_path_keeps_its_object_in_the_plan(lake: Lakeside) -> None:
    object_ = lake.upload("users/ann")
    lake.commit()
    lake.copy("main", "users/ann", "users/bob")
    lake.wait(lake.versions.cleanup.clean())
    hold(lake, "users/bob")

    plan = erase(lake, globs=("users/",))
    apply(lake, plan)

    assert lake.collector.taken(plan.run_id) == set()
    assert object_ in lake.addresses()


def test_an_upload_with_a_part_that_must_stay_keeps_its_other_parts_in_the_plan(lake: Lakeside) -> None:
    multipart_id, first = begin_in_parts(lake, "users/ann")
    other = lake.server("other")
    second = lake.wait(other.parts.issue(multipart_id))
    lake.wait(lake.objectstore.put(second, b"more"))
    record = PartRecord(address=second, size_bytes=4, md5="m", modified_ms=1)
    lake.wait(other.parts.put(multipart_id, 2, record))

    plan = erase(lake, "users/ann")
    apply(lake, plan)

    assert lake.collector.taken(plan.run_id) == set()
    assert {first, second} <= lake.addresses()
    assert {first, second} <= {where for _, where, _ in stands(plan)}


def test_a_name_that_comes_after_the_plan_keeps_the_object(lake: Lakeside) -> None:
    shared = lake.upload("users/ann")
    lake.commit()
    plan = erase(lake, "users/ann")
    lake.copy("main", "users/ann", "all/ann")
    lake.commit()
    lake.wait(lake.versions.cleanup.clean())

    apply(lake, plan)

    assert shared in lake.addresses()


def test_what_is_staged_elsewhere_keeps_the_object_even_with_shared_ones(lake: Lakeside) -> None:
    shared = lake.upload("users/ann")
    lake.commit()
    lake.copy("main", "users/ann", "all/ann")
    lake.wait(lake.versions.cleanup.clean())

    apply(lake, erase(lake, "users/ann", shared=True))

    assert shared in lake.addresses()


def test_a_copy_during_the_run_copies_the_bytes(lake: Lakeside) -> None:
    old = lake.upload("users/ann")
    lake.commit()
    plan = erase(lake, "users/ann")
    lake.before["sweeping"] = lambda: lake.copy("main", "users/ann", "all/ann")

    apply(lake, plan)

    assert old not in lake.addresses()
    assert lake.content("all/ann") == b"data"


def test_what_is_held_stays(lake: Lakeside) -> None:
    found = versions_of(lake)
    hold(lake, "users/")

    plan = erase(lake, "users/ann")
    assert lake.collector.taken(plan.run_id) == set()
    apply(lake, plan)

    assert set(found) <= lake.addresses()


def test_what_is_staged_at_a_held_path_stays(lake: Lakeside) -> None:
    drafts = {name: lake.upload(name) for name in ("users/ann", "users/bob")}
    hold(lake, "users/ann")

    plan = erase(lake, *drafts)
    apply(lake, plan)

    assert address_of(lake, "users/ann") == drafts["users/ann"]
    assert stands(plan) == [("object", drafts["users/ann"], "legal hold case-7 keeps it")]
    assert drafts["users/bob"] not in lake.addresses()


def test_a_range_without_a_selected_path_keeps_what_it_names(lake: Lakeside) -> None:
    shared = lake.upload("users/ann")
    lake.commit()
    plan = erase(lake, "users/ann")
    lake.branch("side")
    lake.copy("main", "users/ann", "all/ann", branch="side")
    lake.delete("users/ann", branch="side")
    lake.commit(branch="side")
    lake.wait(lake.versions.cleanup.clean())

    apply(lake, plan)

    assert shared in lake.addresses()


def test_a_hold_that_comes_after_the_plan_stops_the_erasure_before_anything_goes(lake: Lakeside) -> None:
    drafts = {name: lake.upload(name) for name in ("users/ann", "users/bob")}
    plan = erase(lake, *drafts)
    hold(lake, "users/ann")

    with pytest.raises(Conflict, match="legal holds changed"):
        apply(lake, plan)

    assert {name: address_of(lake, name) for name in drafts} == drafts


def test_a_hold_on_a_commit_that_comes_just_before_the_deletes_keeps_all_that_it_has(lake: Lakeside) -> None:
    found = versions_of(lake)
    plan = erase(lake, "users/ann")
    first = list(lake.wait(lake.versions.history.log("main", limit=9))[0])[1]
    lake.before["sweeping"] = lambda: hold(lake, commits=(first.id,))

    report = lake.collector.apply(None, plan.run_id)

    assert (report.objects_held, lake.addresses() & {*found}) == (1, {found[0]})


@pytest.mark.parametrize("by", ["commit", "path"])
def test_a_hold_that_comes_just_before_the_deletes_keeps_what_was_imported(lake: Lakeside, by: str) -> None:
    """Such an object is named by its key alone. By a path only an expired commit says that it was there."""
    lay(lake, "data/imported/ann", b"old", age_days=1)
    for path in ("users/ann", "legal/ann"):
        imported(lake, path, "data/imported/ann", age_days=1)
    lake.commit()
    (first, *_), _ = lake.wait(lake.versions.history.log("main", limit=9))
    plan = erase(lake, "users/ann", shared=True)
    assert plan.totals.all.objects == 1
    held: dict[str, Any] = {"commits": (first.id,)} if by == "commit" else {}
    lake.before["sweeping"] = lambda: hold(lake, *(() if held else ("legal/",)), **held)

    report = lake.collector.apply(None, plan.run_id)

    assert (report.objects_held, lake.addresses()) == (1, {"data/imported/ann"})


def deferred(lake: Lakeside, *others: str, **metadata: str) -> str:
    """Return the address of an old `users/ann`, which a deferred run keeps and no commit has any more.

    Expired commits have it at these other paths, too.
    """
    old = lake.upload("users/ann", metadata=metadata)
    lake.commit(age_days=21)
    for other in others:
        lake.copy("main", "users/ann", other)
        lake.commit(age_days=20)
    for name in ("users/ann", *others):
        lake.delete(name)
    lake.commit(age_days=19)
    lake.wait(lake.versions.cleanup.clean())
    lake.upload("data/now", b"now")
    lake.commit(age_days=1)
    lake.rules(10)
    committed = lake.collector.plan(None, RunKind.COMMITTED)
    lake.collector.apply(None, committed.run_id, window="7d")
    assert old in lake.addresses()
    return old


def test_what_a_deferred_run_keeps_goes_too(lake: Lakeside) -> None:
    old = deferred(lake)

    apply(lake, erase(lake, "users/ann"))

    assert old not in lake.addresses()


OTHERS = pytest.mark.parametrize("other", ["all/ann", "zz/ann"])


@OTHERS
def test_what_goes_of_a_deferred_run_is_counted_in_its_folder(lake: Lakeside, other: str) -> None:
    """Of several paths that of its plan counts: here the last by name."""
    deferred(lake, other)

    plan = erase(lake, "users/ann", shared=True)

    [(folder, total)] = plan.totals.by_prefix.items()
    assert (folder, total.objects) == ("zz/" if other == "zz/ann" else "users/", 1)


@OTHERS
def test_a_hold_on_any_path_of_a_deferred_object_keeps_it(lake: Lakeside, other: str) -> None:
    old = deferred(lake, other)
    hold(lake, other)

    plan = erase(lake, "users/ann", shared=True)
    apply(lake, plan)

    assert old in lake.addresses()
    assert [where for _, where, why in stands(plan) if "legal hold case-7 keeps it" in why] == [old]


@OTHERS
def test_a_hold_that_comes_just_before_the_deletes_keeps_a_deferred_object_by_any_path(
    lake: Lakeside, other: str
) -> None:
    old = deferred(lake, other)
    plan = erase(lake, "users/ann", shared=True)
    assert lake.collector.taken(plan.run_id) == {old}
    lake.before["sweeping"] = lambda: hold(lake, other)

    apply(lake, plan)

    assert old in lake.addresses()


@OTHERS
def test_another_path_keeps_a_deferred_object_unless_shared_ones_go_too(lake: Lakeside, other: str) -> None:
    old = deferred(lake, other)

    plan = erase(lake, "users/ann")
    assert lake.collector.taken(plan.run_id) == set()
    assert [where for _, where, why in stands(plan) if f"not selected name it: {other}" in why] == [old]
    apply(lake, erase(lake, "users/ann", shared=True))

    assert old not in lake.addresses()


@OTHERS
def test_a_deferred_object_all_of_whose_paths_are_selected_goes(lake: Lakeside, other: str) -> None:
    old = deferred(lake, other)

    apply(lake, erase(lake, "users/ann", other))

    assert old not in lake.addresses()


def test_a_deferred_run_that_may_lack_paths_keeps_its_objects_and_is_named(
    lake: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = deferred(lake)
    monkeypatch.setattr(messages, "ALL_PATHS_SINCE", messages.GARBAGE.version + 1)

    plan = erase(lake, "users/ann", shared=True)
    apply(lake, plan)

    assert old in lake.addresses()
    assert "an earlier release planned it" in next(why for what, _, why in stands(plan) if what == "deferred")


def test_what_a_deferred_run_keeps_stays_where_metadata_selects_for_it_is_not_on_record(lake: Lakeside) -> None:
    innocent = deferred(lake, **{"class": "public"})

    apply(lake, erase(lake, globs=("users/",), metadata={"class": "pii"}))

    assert innocent in lake.addresses()


def test_entries_are_selected_by_digest_and_by_metadata(lake: Lakeside) -> None:
    found = versions_of(lake)
    digest = lake.wait(lake.versions.staging.get("main", b"users/ann")).checksum

    plan = erase(lake, digests=(digest,))

    assert lake.collector.taken(plan.run_id) == {found[1], address_of(lake, "users/bob")}
    with pytest.raises(NothingSelected):
        erase(lake, metadata={"class": "pii"})


def test_an_erasure_cannot_be_deferred(lake: Lakeside) -> None:
    versions_of(lake)

    with pytest.raises(BadWindow):
        lake.collector.apply(None, erase(lake, "users/ann").run_id, window="7d")


def test_an_erasure_of_nothing_is_refused(lake: Lakeside) -> None:
    with pytest.raises(InvalidSelection, match="nothing is selected"):
        erase(lake)
    with pytest.raises(InvalidRequest, match="says what it erases"):
        list(lake.collector.on(None).plan(PlanRequest(kinds=(RunKind.ERASURE,))))


def test_runs_of_all_kinds_erase_nothing(lake: Lakeside) -> None:
    versions_of(lake)
    lake.rules(1)

    assert RunKind.ERASURE not in [report.kind for report in lake.collector.run_each(None)]


def stands(plan: Plan) -> list[tuple[str, str, str]]:
    assert plan.outlook is not None
    assert plan.outlook.stands_count == len(plan.outlook.stands)
    return [(one.what, one.where, one.why) for one in plan.outlook.stands]


def test_a_plan_names_what_would_stand_before_anything_goes(lake: Lakeside) -> None:
    shared = lake.upload("users/ann", b"secret")
    held = lake.upload("legal/ann", b"other")
    backup = lake.upload("old/backup", b"secret")
    lake.commit()
    lake.copy("main", "users/ann", "all/ann")
    lake.commit()
    lake.wait(lake.versions.cleanup.clean())
    hold(lake, "legal/")

    assert stands(erase(lake, "users/ann", "legal/ann")) == [
        ("object", shared, "entries that are not selected name it: all/ann"),
        ("object", held, "legal hold case-7 keeps it"),
        ("copy", backup, "has an erased checksum, at old/backup"),
    ]


def test_what_waits_in_the_queue_of_hard_delete_goes_too(lake: Lakeside) -> None:
    lake.wait(lake.versions.hard_delete.change(by="ann", is_on=True, is_paused=True))
    old = lake.upload("users/ann", b"one")
    lake.upload("users/ann", b"two")
    beside = lake.upload("users/bob", b"one")
    lake.upload("users/bob", b"three")

    plan = erase(lake, "users/ann")
    apply(lake, plan)

    assert stands(plan) == []
    assert old not in lake.addresses()
    assert beside in lake.addresses()


def test_what_is_staged_at_a_held_path_stays_though_another_path_gives_the_same_object_up(lake: Lakeside) -> None:
    shared = lake.upload("users/ann")
    lake.copy("main", "users/ann", "users/bob")
    lake.wait(lake.versions.cleanup.clean())
    hold(lake, "users/ann")

    apply(lake, erase(lake, "users/ann", "users/bob"))

    assert address_of(lake, "users/ann") == shared
    assert shared in lake.addresses()


def begin_in_parts(lake: Lakeside, path: str, versions: Versions | None = None) -> tuple[str, str]:
    """The upload's id and the address of its only part."""
    parts = (versions or lake.versions).parts
    record = MultipartRecord(
        branch="main", path=path.encode(), created_ms=lake.clock.now_ms(), content_type="x", metadata={"class": "pii"}
    )
    multipart_id = lake.wait(parts.begin(record))
    address = lake.wait(parts.issue(multipart_id))
    lake.wait(lake.objectstore.put(address, b"part"))
    lake.wait(parts.put(multipart_id, 1, PartRecord(address=address, size_bytes=4, md5="m", modified_ms=1)))
    return multipart_id, address


@pytest.mark.parametrize(
    "selected", [{"globs": ("users/ann",)}, {"metadata": {"class": "pii"}, "globs": ("users/a*",)}]
)
def test_an_upload_in_parts_is_given_up_and_its_parts_go(lake: Lakeside, selected: dict[str, Any]) -> None:
    multipart_id, part = begin_in_parts(lake, "users/ann")
    other_id, other = begin_in_parts(lake, "users/bob")

    plan = erase(lake, **selected)
    apply(lake, plan)

    assert part not in lake.addresses()
    with pytest.raises(MultipartNotFound):
        lake.wait(lake.versions.parts.get(multipart_id))
    assert other in lake.addresses()
    assert lake.wait(lake.versions.parts.get(other_id)).path == b"users/bob"


def test_an_upload_in_parts_that_comes_after_the_plan_stays_and_is_certified_as_staged(lake: Lakeside) -> None:
    lake.upload("users/ann")
    lake.commit()
    plan = erase(lake, "users/ann")
    _, part = begin_in_parts(lake, "users/ann")
    apply(lake, plan)

    made = lake.collector.on(None).certify(plan.run_id, by="ann")

    assert part in lake.addresses()
    (staged,) = [one.why for one in made.stands if one.what == "staged"]
    assert staged == "is being uploaded in parts to branch main"


@pytest.mark.parametrize("in_parts", [False, True])
def test_what_another_server_writes_stays_staged_and_stands_until_a_later_erasure_takes_it(
    lake: Lakeside, in_parts: bool
) -> None:
    lake.upload("users/ann", b"committed")
    lake.commit()
    other = lake.server("other")
    if in_parts:
        _, fresh = begin_in_parts(lake, "users/ann", other)
    else:
        fresh = lake.upload("users/ann", b"secret", by=other)

    plan = erase(lake, "users/ann")
    apply(lake, plan)
    made = lake.collector.on(None).certify(plan.run_id, by="ann")

    reason = "its slice is still written to: plan again when its server has moved on"
    assert ("object", fresh, reason) in stands(plan)
    assert (fresh, reason) in [(one.where, one.why) for one in made.stands]
    assert ("staged", "users/ann") in [(one.what, one.where) for one in made.stands]

    lake.wait(other.slices.end())
    apply(lake, erase(lake, "users/ann"))
    assert fresh not in lake.addresses()


def test_an_upload_that_got_another_part_since_the_plan_stays(lake: Lakeside) -> None:
    multipart_id, first = begin_in_parts(lake, "users/ann")
    plan = erase(lake, "users/ann")
    parts = lake.versions.parts
    late = lake.wait(parts.issue(multipart_id))
    lake.wait(parts.put(multipart_id, 2, PartRecord(address=late, size_bytes=4, md5="m", modified_ms=1)))

    apply(lake, plan)

    assert lake.wait(parts.get(multipart_id)).path == b"users/ann"
    assert [part.address for _, part in lake.wait(parts.every(multipart_id))] == [first, late]


def test_copies_in_many_rows_are_looked_for_on_request(lake: Lakeside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreseeing, "COPIES_ROWS_MAX", 1)
    lake.upload("users/ann", b"secret")
    copy = lake.upload("old/backup", b"secret")
    lake.commit()
    order = ErasureOrder(selection=Selection(paths=("users/ann",)), why="request 12")

    plain = lake.collector.on(None).plan_erasure(order)
    asked = lake.collector.on(None).plan_erasure(replace(order, finds_copies=True))

    assert stands(plain) == []
    assert plain.outlook is not None
    assert "copies at other paths were not looked for" in plain.outlook.remains[0]
    assert stands(asked) == [("copy", copy, "has an erased checksum, at old/backup")]


def test_a_path_that_matches_nothing_is_named_and_refused_where_nothing_does(lake: Lakeside) -> None:
    versions_of(lake)

    plan = erase(lake, "users/ann", "users/nan", globs=("logs/", "users/b*"), digests=("0" * 32,))
    with pytest.raises(NothingSelected, match="nothing was planned"):
        erase(lake, "users/nan")

    assert plan.outlook is not None
    assert plan.outlook.unmatched == ("users/nan", "0" * 32, "logs/")


def test_a_plan_counts_the_objects_that_each_branch_names(lake: Lakeside, monkeypatch: pytest.MonkeyPatch) -> None:
    versions_of(lake)
    lake.branch("twin")
    lake.upload("users/ann", b"staged", branch="twin")
    lake.branch("other")
    lake.upload("logs/a", b"x", branch="other")
    lake.commit(branch="other")

    plan = erase(lake, "users/ann")
    monkeypatch.setattr(foreseeing, "TREES_MAX", 1)
    uncounted = erase(lake, "users/ann")

    # "one" is in the history of main alone. The trees of main, twin and other have "two" in one range or in another.
    counts = {name: (total.objects, total.size_bytes) for name, total in plan.by_branch().items()}
    of_none = counts.pop("(no branch: history or tags)")
    assert counts == {"twin": (2, 9), "side": (1, 5), "main": (1, 3), "other": (1, 3)}
    assert of_none == (1, 3)
    assert plan.totals.all.objects == 4
    assert uncounted.by_branch() == {}


def test_what_a_hold_keeps_in_a_deferred_run_is_not_nothing(lake: Lakeside) -> None:
    old = deferred(lake)
    hold(lake, "users/")

    plan = erase(lake, "users/ann")

    assert lake.collector.taken(plan.run_id) == set()
    assert [where for what, where, why in stands(plan) if "legal hold case-7 keeps it" in why] == [old]


@pytest.mark.parametrize("digest", ["", "not a digest", "abc", "ä" * 32, "0" * 200])
def test_a_digest_that_can_be_none_is_refused(lake: Lakeside, digest: str) -> None:
    with pytest.raises(InvalidSelection, match="not a checksum"):
        erase(lake, digests=(digest,))


def test_a_digest_in_capitals_is_the_same(lake: Lakeside) -> None:
    found = lake.upload("users/ann")
    lake.commit()
    digest = lake.wait(lake.versions.staging.get("main", b"users/ann")).checksum

    assert lake.collector.taken(erase(lake, digests=(digest.upper(),)).run_id) == {found}


@pytest.mark.parametrize("path", ["", "a" * 1_025, "\ud800", "lakefs://lake/main/a"])
def test_a_path_that_no_entry_can_have_is_refused_in_erasures_and_holds(lake: Lakeside, path: str) -> None:
    with pytest.raises(InvalidSelection):
        erase(lake, path)
    with pytest.raises(InvalidHold):
        hold(lake, path)


def test_an_erasure_planned_again_counts_only_what_is_still_there(lake: Lakeside) -> None:
    first, _, _ = versions_of(lake)
    apply(lake, erase(lake, "users/ann"))
    lake.wait(lake.objectstore.put(first, b"late"))

    again = erase(lake, "users/ann")

    assert again.totals.all.objects == 1
    assert apply(lake, again) is RunState.ENDED
    assert [row["address"] for row in lake.ledger() if row["run_id"] == again.run_id] == [first]


def test_what_is_staged_goes_though_its_bytes_come_only_after_the_plan(lake: Lakeside) -> None:
    address = lake.upload("users/ann", b"late")
    (lake.folder / address).unlink()
    plan = erase(lake, "users/ann")
    lake.wait(lake.objectstore.put(address, b"late"))

    apply(lake, plan)

    assert plan.totals.all.objects == 1
    assert address not in lake.addresses()


def test_an_erasure_that_failed_goes_on(lake: Lakeside) -> None:
    found = versions_of(lake)
    plan = erase(lake, "users/ann")

    def die() -> None:
        raise Conflict("the power went")

    lake.before["ended"] = die
    with pytest.raises(Conflict, match="power"):
        apply(lake, plan)

    assert apply(lake, plan) is RunState.ENDED
    assert not set(found) & lake.addresses()
