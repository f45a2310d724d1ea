"""Runs whose apply died: what other runs leave alone, and how they are finished."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakebed.base import Corrupt
from lakebed.gc import Mode, NotFinished, OtherUnfinished, PurgeReport
from lakebed.gc.messages import RunKind, RunRequest, RunState
from lakebed.gc.rules import DAY_MS
from tests.spark.collecting import Collecting
from tests.spark.lakeside import Lakeside
from tests.spark.test_deferred import Died, dies_at, expire
from tests.spark.test_old_layout import lay, there

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def dying(lakeside: Lakeside, at: str) -> Collecting:
    """Dies when it says this."""
    return replace(lakeside.collector, progress=dies_at(at))


def test_what_an_interrupted_run_has_expired_stays_for_its_window(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    gone = expire(lakeside, "a/1", "a/2")
    lakeside.upload("kept")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.COMMITTED)
    with pytest.raises(Died):
        dying(lakeside, "deferring").apply(spark, plan.run_id, window="7d")
    before, run_status = lakeside.addresses(), collector.run_status(plan.run_id)

    other = collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.CLEAN)
    collector.apply(spark, other.run_id)

    assert other.totals.all.objects == 0
    assert lakeside.addresses() == before
    assert (run_status.is_unfinished, run_status.window, run_status.ended_ms) == (True, "7d", None)
    assert (run_status.objects_done, run_status.objects) == (0, 2)
    assert [run.has_begun for run in collector.listed() if run.run_id == plan.run_id] == [True]
    assert collector.apply(spark, plan.run_id).deferred_until_ms is not None
    assert collector.run_status(plan.run_id).ended_ms is None
    assert lakeside.addresses() >= gone
    assert collector.restore(run_id=plan.run_id).restored == 2
    assert (lakeside.content("a/1"), lakeside.content("a/2")) == (b"a/1", b"a/2")


def test_an_optimised_run_and_one_of_an_old_layout_leave_an_unfinished_run_alone(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    collector = lakeside.collector
    lakeside.upload("base")
    collector.apply(spark, collector.plan(spark, RunKind.UNCOMMITTED).run_id)
    old = lay(lakeside, "old/1")
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    elsewhere = collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.OLD_LAYOUT)
    first = collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.OPTIMISED)
    for run in (elsewhere, first):
        assert run.totals.all.objects == 1
        with pytest.raises(Died):
            dying(lakeside, "deferring").apply(spark, run.run_id, window="7d")

    again = collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.OPTIMISED)
    elsewhere_again = collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.OLD_LAYOUT)

    assert (again.totals.all.objects, elsewhere_again.totals.all.objects) == (0, 0)
    assert garbage in lakeside.addresses()
    assert old in there(lakeside)


def test_a_run_is_refused_while_another_keeps_what_it_may_hold(spark: SparkSession | None, lakeside: Lakeside) -> None:
    """Both plans were made before either was applied."""
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    collector = lakeside.collector
    first, second = (collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.CLEAN) for _ in range(2))
    with pytest.raises(Died):
        dying(lakeside, "deferring").apply(spark, first.run_id, window="7d")

    with pytest.raises(OtherUnfinished, match=f"once run {first.run_id} is applied"):
        collector.apply(spark, second.run_id)

    assert lakeside.addresses() == {garbage}
    since = collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.CLEAN)
    assert collector.apply(spark, since.run_id).state is RunState.ENDED
    assert lakeside.addresses() == {garbage}
    collector.apply(spark, first.run_id)
    for window in (None, "7d"):
        with pytest.raises(OtherUnfinished, match="plan again"):
            collector.apply(spark, second.run_id, window=window)
    assert collector.restore(run_id=first.run_id, prefix="back").restored == 1


def test_a_window_is_refused_while_another_run_deletes_what_it_may_hold(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    collector = lakeside.collector
    first, second = (collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.CLEAN) for _ in range(2))
    with pytest.raises(Died):
        dying(lakeside, "deleting").apply(spark, first.run_id)

    with pytest.raises(OtherUnfinished, match="has begun to delete"):
        collector.apply(spark, second.run_id, window="7d")

    assert collector.apply(spark, second.run_id).state is RunState.ENDED


def test_a_run_that_cannot_know_what_another_holds_stops_and_names_it(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    expire(lakeside, "a/1")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.COMMITTED)
    with pytest.raises(Died):
        dying(lakeside, "deferring").apply(spark, plan.run_id, window="7d")
    before = lakeside.addresses()
    for lost in ("plan.json", "recheck.*.json", "garbage.*/*.parquet"):
        (file,) = lakeside.files(f"_lakefs/retention/gc/committed/{plan.run_id}/{lost}")
        data = file.read_bytes()
        file.unlink()

        with pytest.raises(Corrupt, match=plan.run_id):
            collector.plan(spark, RunKind.UNCOMMITTED)

        file.write_bytes(data)
    assert lakeside.addresses() == before


def test_a_nightly_run_first_finishes_what_was_begun_in_the_way_it_was_begun(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    gone = expire(lakeside, "a/1", "a/2")
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    with pytest.raises(Died):
        dying(lakeside, "deferring").apply(spark, plan.run_id, window="7d")
    said: list[str] = []
    nightly = replace(lakeside.collector, progress=said.append)

    finished, uncommitted = nightly.run(spark, [RunKind.UNCOMMITTED])

    assert (
        said[0] == f"finishing run {plan.run_id} (committed), which began to delete and has not ended, deferring for 7d"
    )
    assert (finished.run_id, finished.garbage_objects, finished.objects_deleted) == (plan.run_id, 2, 0)
    assert finished.deferred_until_ms is not None
    assert uncommitted.garbage_objects == 0
    assert nightly.unfinished() == []
    assert lakeside.addresses() >= gone
    assert nightly.restore(run_id=plan.run_id).restored == 2
    assert (lakeside.content("a/1"), lakeside.content("a/2")) == (b"a/1", b"a/2")


def test_a_run_that_cannot_be_finished_is_told_at_the_end_and_others_are_made(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    expire(lakeside, "a/1")
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    with pytest.raises(Died):
        dying(lakeside, "deferring").apply(spark, plan.run_id, window="7d")
    before = lakeside.addresses()
    for file in lakeside.files(f"_lakefs/retention/gc/committed/{plan.run_id}/plan.json"):
        file.unlink()
    each = lakeside.collector.run_each(spark, [RunKind.UNCOMMITTED, RunKind.METADATA])

    assert next(each).kind is RunKind.METADATA
    with pytest.raises(NotFinished, match=f"run {plan.run_id} could not be finished: .*; uncommitted data: "):
        next(each)
    assert lakeside.addresses() == before


def test_who_interrupts_an_apply_is_told_how_far_it_came_and_how_to_go_on(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    said: list[str] = []

    def interrupted(line: str) -> None:
        said.append(line)
        if line.startswith("deleting"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace(lakeside.collector, progress=interrupted).apply(spark, plan.run_id)

    assert said[-1] == (
        f"stopped: 0 of 1 object of run {plan.run_id} recorded as done; "
        f"the next `gc run` goes on with it, or at once: lakebed gc apply lakefs://repo {plan.run_id}"
    )


def test_two_runs_of_committed_data_are_apart_if_they_expire_different_commits(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    expire(lakeside, "a/1")
    collector = lakeside.collector
    first, second = (collector.plan(spark, RunKind.COMMITTED) for _ in range(2))
    with pytest.raises(Died):
        dying(lakeside, "deferring").apply(spark, first.run_id, window="7d")
    with pytest.raises(OtherUnfinished):
        collector.apply(spark, second.run_id)
    lakeside.upload("b/1")
    lakeside.commit(age_days=10)
    lakeside.delete("b/1")
    lakeside.commit(age_days=5)
    third = collector.plan(spark, RunKind.COMMITTED)

    report = collector.apply(spark, third.run_id)

    assert (report.objects_deleted, report.state) == (1, RunState.ENDED)
    assert collector.apply(spark, first.run_id).deferred_until_ms is not None


def test_a_stale_plan_is_not_apart_from_a_run_whose_commits_it_did_not_know(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    """An object of a commit that the stale plan expires came to be named by a later one, which the other expires."""
    address = lakeside.upload("a/1")
    first = lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.upload("z")
    lakeside.commit(age_days=20)
    lakeside.branch("side")
    lakeside.rules(7)
    collector = lakeside.collector
    stale = collector.plan(spark, RunKind.COMMITTED)
    lakeside.copy(first.id, "a/1", "a/2", branch="side")
    lakeside.commit(branch="side")
    collector.apply(spark, collector.plan(spark, RunKind.COMMITTED).run_id)
    lakeside.delete("a/2", branch="side")
    lakeside.commit(branch="side")
    lakeside.clock.ms += 10 * DAY_MS
    lakeside.wait(lakeside.versions.cleanup.clean())
    defers = collector.plan(spark, RunKind.COMMITTED)
    with pytest.raises(Died):
        dying(lakeside, "deferring").apply(spark, defers.run_id, window="7d")

    with pytest.raises(OtherUnfinished):
        collector.apply(spark, stale.run_id)

    assert address in lakeside.addresses()
    assert collector.apply(spark, defers.run_id).deferred_until_ms is not None


@pytest.mark.parametrize("damage", ["ranges/*", "retention/gc/uncommitted/{run}/apply.json"])
def test_a_nightly_run_purges_also_where_nothing_can_be_planned_or_finished(
    spark: SparkSession | None, lakeside: Lakeside, damage: str
) -> None:
    lakeside.upload("kept")
    lakeside.commit()
    collector = lakeside.collector
    runs = []
    for path in ("a/1", "a/2"):
        lakeside.upload(path)
        lakeside.delete(path)
        runs.append(collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.CLEAN).run_id)
        if path == "a/1":
            collector.apply(spark, runs[0], window="7d")
    first, second = runs
    lakeside.end_window(first)
    with pytest.raises(Died):
        dying(lakeside, "deferring").apply(spark, second, window="7d")
    for file in lakeside.files("_lakefs/" + damage.format(run=second)):
        file.write_bytes(b"{")
    told = collector.on(spark).run(RunRequest(kinds=(RunKind.UNCOMMITTED,), mode=Mode.CLEAN, readers_grace="0"))

    records: list[object] = []
    with pytest.raises((Corrupt, NotFinished)):
        records.extend(told)

    assert isinstance(records[-1], PurgeReport)
    assert records[-1].objects_purged == 1
