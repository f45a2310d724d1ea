"""Whole runs over a real repository, without HTTP: what goes, what stays, and what happens in between."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakebed.base import Conflict, Corrupt
from lakebed.gc import NoRules, RunAbandoned, RunNotReady
from lakebed.gc.messages import RunKind, RunState
from lakebed.gc.rules import KeepLast, Rules
from lakebed.versions import CommitExpired
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Died(Exception):
    """The collector's process ended here."""


def die() -> None:
    raise Died


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def flip_a_bit(file: Path) -> None:
    """In what a live range is read for, its slice summary; elsewhere in the middle."""
    data = bytearray(file.read_bytes())
    summary = data.rfind(b"lakebed.slices")
    data[summary + 60 if summary > 0 else len(data) // 2] ^= 1
    file.write_bytes(data)


def remove(file: Path) -> None:
    file.unlink()


def test_uncommitted_garbage_goes_and_whatever_something_names_stays(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    committed = lakeside.upload("a/1")
    lakeside.commit()
    staged = lakeside.upload("a/2")
    overwritten = lakeside.upload("a/3")
    replacing = lakeside.upload("a/3")
    deleted = lakeside.upload("a/4")
    lakeside.delete("a/4")

    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    assert lakeside.collector.taken(plan.run_id) == {overwritten, deleted}
    assert plan.totals.all.objects == 2
    assert lakeside.addresses() == {committed, staged, overwritten, replacing, deleted}

    report = lakeside.collector.apply(spark, plan.run_id)

    assert lakeside.addresses() == {committed, staged, replacing}
    assert (report.state, report.objects_deleted, report.objects_failed) == (RunState.ENDED, 2, 0)


def test_uncommitted_garbage_younger_than_the_rules_say_is_in_no_plan(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    old, young = lakeside.upload("a/1"), lakeside.upload("a/1")
    lakeside.upload("a/1")
    for address, age_s in ((old, 86_500), (young, 86_300)):
        (file,) = lakeside.files(f"**/{address}")
        uploaded_s = lakeside.clock.ms / 1000 - age_s
        os.utime(file, (uploaded_s, uploaded_s))
    lakeside.wait(lakeside.service.rules.write(Rules(default="forever", uncommitted_min_age="1d")))

    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    assert lakeside.collector.taken(plan.run_id) == {old}
    assert plan.totals.all.objects == 1
    assert young in lakeside.addresses()


def test_the_last_commits_of_a_branch_stay_however_old_they_are(spark: SparkSession | None, lakeside: Lakeside) -> None:
    objects = []
    for age_days in (40, 30, 20):
        objects.append(lakeside.upload("a/1", f"{age_days}".encode()))
        lakeside.commit(age_days=age_days)
    rules = Rules(default="36h", keep_last=(KeepLast(pattern="m*", commits=2),))
    lakeside.wait(lakeside.service.rules.write(rules))

    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    lakeside.collector.apply(spark, plan.run_id)

    assert list(plan.totals.by_rule) == ["default: 36h"]
    assert lakeside.addresses() == set(objects[1:])


def test_committed_garbage_goes_by_the_rules_and_says_why(spark: SparkSession | None, lakeside: Lakeside) -> None:
    gone = lakeside.upload("a/1")
    kept = lakeside.upload("b/2")
    lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    newest = lakeside.upload("c/3")
    lakeside.commit(age_days=1)
    lakeside.rules(5, main=7)

    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    rows = list(lakeside.collector.objects(plan.run_id))

    assert [(row.address, row.reason, row.rule, row.path, row.size_bytes) for row in rows] == [
        (gone, "expired", "main: 7d", "a/1", 4)
    ]
    assert set(plan.totals.by_branch) == {"main"}
    assert set(plan.totals.by_prefix) == {"a/"}
    assert lakeside.addresses() == {gone, kept, newest}

    report = lakeside.collector.apply(spark, plan.run_id)

    assert lakeside.addresses() == {kept, newest}
    assert [(row["address"], row["rule"], row["path"], row["state"]) for row in lakeside.ledger()] == [
        (gone, "main: 7d", "a/1", "deleted")
    ]
    assert report.commits_expired == plan.commit_counts.expired
    assert [(stage.name, stage.rows, stage.size_bytes) for stage in report.stages] == [
        ("recheck", 1, 4),
        ("sweep", 1, 4),
    ]


def test_planning_without_rules_is_refused(spark: SparkSession | None, lakeside: Lakeside) -> None:
    lakeside.upload("a/1")
    lakeside.commit(age_days=30)

    with pytest.raises(NoRules):
        lakeside.collector.plan(spark, RunKind.COMMITTED)


def test_a_run_of_all_kinds_goes_on_where_no_rules_are_set(spark: SparkSession | None, lakeside: Lakeside) -> None:
    kept, dropped = lakeside.upload("a/1"), lakeside.upload("a/2")
    lakeside.delete("a/2")
    lakeside.commit(age_days=30)
    told: list[str] = []

    reports = replace(lakeside.collector, progress=told.append).run(spark)

    assert [report.kind for report in reports] == [RunKind.UNCOMMITTED, RunKind.METADATA]
    assert lakeside.addresses() == {kept} != {kept, dropped}
    assert [line for line in told if "no retention rules are set" in line]


def test_what_is_staged_again_before_a_committed_plan_is_applied_is_let_off(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    revived = lakeside.upload("a/1")
    gone = lakeside.upload("a/2")
    old = lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.delete("a/2")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    lakeside.copy(old.id, "a/1", "b/1")

    lakeside.collector.apply(spark, plan.run_id)

    assert plan.totals.all.objects == 2
    assert revived in lakeside.addresses()
    assert gone not in lakeside.addresses()


def test_a_branch_made_on_an_expired_commit_between_plan_and_apply_saves_its_objects(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    saved = lakeside.upload("a/1")
    old = lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    lakeside.branch("rescue", old.id)

    report = lakeside.collector.apply(spark, plan.run_id)

    assert plan.totals.all.objects == 1
    assert lakeside.addresses() == {saved}
    assert report.objects_deleted == 0


def test_rules_that_were_loosened_between_plan_and_apply_end_the_run(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    saved = lakeside.upload("a/1")
    lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    lakeside.rules(60)

    with pytest.raises(Conflict, match="rules changed"):
        lakeside.collector.apply(spark, plan.run_id)

    assert lakeside.addresses() == {saved}


def test_a_run_abandoned_while_it_marks_deletes_nothing(spark: SparkSession | None, lakeside: Lakeside) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    lakeside.before["marked"] = lakeside.abandon_all

    with pytest.raises(RunAbandoned):
        lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    assert lakeside.collector.plans() == []
    assert lakeside.addresses() == {garbage}


def test_an_upload_during_the_run_survives(spark: SparkSession | None, lakeside: Lakeside) -> None:
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    fresh: list[str] = []
    lakeside.before["uncommitted"] = lambda: fresh.append(lakeside.upload("a/2"))
    lakeside.before["marked"] = lambda: fresh.append(lakeside.upload("a/3"))

    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    lakeside.collector.apply(spark, plan.run_id)

    assert lakeside.addresses() == set(fresh)
    assert len(fresh) == 2


def test_a_plan_is_applied_once_and_its_report_stays(spark: SparkSession | None, lakeside: Lakeside) -> None:
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    first = lakeside.collector.apply(spark, plan.run_id)
    again = lakeside.collector.apply(spark, plan.run_id)

    assert again == first
    assert [view.state for view in lakeside.collector.runs()] == [RunState.ENDED]


def test_an_apply_that_died_after_the_sweep_ends_when_it_is_started_again(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    lakeside.before["ended"] = die
    with pytest.raises(Died):
        lakeside.collector.apply(spark, plan.run_id)
    ledger = lakeside.files("_lakefs/retention/gc/ledger/date=*/*.parquet")

    report = lakeside.collector.apply(spark, plan.run_id)

    assert (report.state, report.objects_deleted) == (RunState.ENDED, 1)
    assert lakeside.addresses() == set()
    assert lakeside.files("_lakefs/retention/gc/ledger/date=*/*.parquet") == ledger


def test_where_an_object_cannot_be_deleted_the_run_does_not_end(spark: SparkSession | None, lakeside: Lakeside) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.plan_of(garbage, "data/../no key of a store")

    report = lakeside.collector.apply(spark, plan.run_id)

    assert (report.objects_deleted, report.objects_failed, report.state) == (1, 1, RunState.MARKED)
    assert [view.state for view in lakeside.collector.runs()] == [RunState.MARKED]
    assert lakeside.addresses() == set()


def test_what_failed_is_tried_once_more_when_the_run_is_applied_again(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    lakeside.before["ended"] = die
    with pytest.raises(Died):
        lakeside.collector.apply(spark, plan.run_id)
    lakeside.wait(lakeside.objectstore.put(garbage, b"left"))
    lakeside.fail_in_ledger()

    report = lakeside.collector.apply(spark, plan.run_id)

    assert (report.objects_deleted, report.objects_failed, report.state) == (1, 0, RunState.ENDED)
    assert lakeside.addresses() == set()


@pytest.mark.parametrize("step", ["expire", "sweeping"])
def test_an_apply_that_died_before_the_sweep_deletes_nothing_and_can_be_started_again(
    spark: SparkSession | None, lakeside: Lakeside, step: str
) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    lakeside.before[step] = die

    with pytest.raises(Died):
        lakeside.collector.apply(spark, plan.run_id)
    left = lakeside.addresses()
    lakeside.collector.apply(spark, plan.run_id)

    assert left == {garbage}
    assert lakeside.addresses() == set()


def test_a_sweep_that_goes_on_makes_sure_first_that_its_commits_stay_given_up(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    """The server died when the run was `sweeping` and before it had written which commits are swept for ever."""
    lakeside.upload("a/1")
    old = lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    lakeside.before["ended"] = die
    with pytest.raises(Died):
        lakeside.collector.apply(spark, plan.run_id)
    lakeside.forget_swept()

    lakeside.collector.apply(spark, plan.run_id)

    with pytest.raises(CommitExpired):
        lakeside.branch("rescue", old.id)


def test_of_two_applies_at_once_one_is_refused_and_leaves_the_other_s_table_alone(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    lakeside.upload("a/2")
    old = lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.delete("a/2")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    lakeside.copy(old.id, "a/1", "b/1")
    lakeside.wait(lakeside.versions.cleanup.clean())
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)

    def overtake(line: str) -> None:
        if line.startswith("rechecking"):
            lakeside.delete("b/1")
            lakeside.before["ended"] = die
            with pytest.raises(Died):
                lakeside.collector.apply(spark, plan.run_id)

    with pytest.raises(RunAbandoned):
        replace(lakeside.collector, progress=overtake).apply(spark, plan.run_id)
    report = lakeside.collector.apply(spark, plan.run_id)

    assert (report.state, report.objects_deleted) == (RunState.ENDED, 2)
    assert lakeside.addresses() == set()


def test_a_plan_whose_run_ended_without_a_sweep_says_so(spark: SparkSession | None, lakeside: Lakeside) -> None:
    lakeside.upload("a/1")
    lakeside.commit(age_days=30)
    lakeside.rules(1)
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    lakeside.before["expire"] = lambda: lakeside.rules(60)
    with pytest.raises(Conflict, match="rules changed"):
        lakeside.collector.apply(spark, plan.run_id)

    with pytest.raises(RunNotReady, match="without deleting"):
        lakeside.collector.apply(spark, plan.run_id)


def test_a_plan_that_fails_leaves_no_run_marking(spark: SparkSession | None, lakeside: Lakeside) -> None:
    lakeside.upload("a/1")
    lakeside.commit()
    remove(lakeside.files("_lakefs/metaranges/*.parquet")[0])

    with pytest.raises(Corrupt):
        lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    assert [view.state for view in lakeside.collector.runs()] == [RunState.ABANDONED]


@pytest.mark.parametrize(
    ("kind", "what", "damage"),
    [
        (RunKind.COMMITTED, "ranges", cut_short),
        (RunKind.COMMITTED, "ranges", flip_a_bit),
        (RunKind.COMMITTED, "metaranges", remove),
        (RunKind.UNCOMMITTED, "ranges", remove),
        (RunKind.UNCOMMITTED, "ranges", flip_a_bit),
        (RunKind.UNCOMMITTED, "metaranges", flip_a_bit),
    ],
)
def test_a_damaged_file_of_a_tree_is_named_and_nothing_is_planned(
    spark: SparkSession | None, lakeside: Lakeside, kind: RunKind, what: str, damage: Callable[[Path], None]
) -> None:
    for number in range(3):
        lakeside.upload(f"a/{number}")
    lakeside.commit(age_days=30)
    lakeside.rules(1)
    file = lakeside.files(f"_lakefs/{what}/*.parquet")[0]
    damage(file)

    with pytest.raises(Corrupt, match=file.stem):
        lakeside.collector.plan(spark, kind)

    assert lakeside.collector.plans() == []
    assert len(lakeside.addresses()) == 3


@pytest.mark.parametrize(("what", "damage"), [("garbage", flip_a_bit), ("garbage", remove), ("commits", cut_short)])
def test_a_damaged_part_of_a_plan_is_named_and_nothing_is_deleted(
    spark: SparkSession | None, lakeside: Lakeside, what: str, damage: Callable[[Path], None]
) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    damage(lakeside.files(f"_lakefs/retention/gc/committed/{plan.run_id}/{what}/*.parquet")[0])

    with pytest.raises(Corrupt, match=r"part-\d+"):
        lakeside.collector.apply(spark, plan.run_id)

    assert lakeside.addresses() == {garbage}


def test_a_bit_flipped_anywhere_in_a_range_that_may_go_is_found(spark: SparkSession | None, lakeside: Lakeside) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.commit(age_days=30)
    expired = lakeside.files("_lakefs/ranges/*.parquet")[0]
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    data = bytearray(expired.read_bytes())
    data[20] ^= 1
    expired.write_bytes(data)

    with pytest.raises(Corrupt, match=expired.stem):
        lakeside.collector.plan(spark, RunKind.COMMITTED)

    assert lakeside.addresses() == {garbage}


def test_unknown_files_are_reported_and_survive(spark: SparkSession | None, lakeside: Lakeside) -> None:
    slice_folder = (lakeside.folder / lakeside.upload("a/1")).parent
    lakeside.delete("a/1")
    names = [
        "mine",
        "theirs/2020/x",
        "data/mine",
        "data/mine too/x",
        f"{slice_folder.relative_to(lakeside.folder)}/README",
        f"{slice_folder.relative_to(lakeside.folder)}/sub/x",
        "_lakefs/mine",
        "_lakefs/ranges/notes.txt",
        "_lakefs/metaranges/mine/x.parquet",
        "_lakefs/retention/gc/committed/r1/.plan.json.swp",
        "_lakefs/retention/gc/uncommitted/x.parquet",
        "_lakefs/retention/lc/x",
    ]
    unknown_files = [lakeside.folder / name for name in names]
    for stray in unknown_files:
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_text("x")

    plans = [lakeside.collector.plan(spark, kind) for kind in (RunKind.UNCOMMITTED, RunKind.METADATA)]
    for plan in plans:
        lakeside.collector.apply(spark, plan.run_id)

    expected = {"theirs/2020/x": "theirs/", "data/mine too/x": "data/mine too/"}
    everywhere = {expected.get(name, name) for name in names}
    assert set(plans[0].unknown_files) == everywhere
    assert set(plans[1].unknown_files) == {one for one in everywhere if not one.startswith(f"data/{slice_folder.name}")}
    assert [plan.unknown_files_count for plan in plans] == [len(plan.unknown_files) for plan in plans]
    assert all(stray.exists() for stray in unknown_files)


def test_an_unmarked_run_is_not_applied(spark: SparkSession | None, lakeside: Lakeside) -> None:
    """Its plan is there, but the server never heard of it: another server's namespace, or one restored from a copy."""
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    lakeside.forget_runs()

    with pytest.raises(RunNotReady):
        lakeside.collector.apply(spark, plan.run_id)

    assert lakeside.addresses() == {garbage}


def test_a_repository_without_anything_plans_nothing(spark: SparkSession | None, lakeside: Lakeside) -> None:
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    assert plan.totals.all.objects == 0
    assert lakeside.collector.apply(spark, plan.run_id).objects_deleted == 0
