"""Moving aside, restoring, purging, the ledger, and applies that race: the whole way through Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakebed.base import NotFound, Ports
from lakebed.gc import BadWindow, LedgerQuery, Overtaken, TaskStopped
from lakebed.gc.protocol import LedgerState, PurgeRequest, RunKind, RunState, quarantine_path
from lakebed.gc.quarantine import PurgeReport, purge_quarantines
from lakebed.gc.rules import DAY_MS
from lakebed.runtime import live_ports
from lakebed.versions.keys import RUN
from tests.clocks import TurnableClock
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Died(Exception):
    """The process is gone."""


def die() -> None:
    raise Died


def expire(lakeside: Lakeside, *paths: str) -> set[str]:
    """Objects that only a commit names whose time is over: their addresses."""
    gone = {lakeside.upload(path, path.encode()) for path in paths}
    lakeside.commit(age_days=30)
    for path in paths:
        lakeside.delete(path)
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    return gone


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan counts as large, and is swept by tasks."""
    monkeypatch.setattr("lakebed.gc.engines.spark.JOB_S", -1)


@pytest.mark.usefixtures("large")
def test_objects_move_aside_return_and_are_purged_when_the_window_is_over(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    gone = expire(lakeside, "a/1", "a/2")
    kept = lakeside.upload("kept")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.COMMITTED)

    report = collector.apply(spark, plan.run_id, quarantine="7d")

    assert (report.objects_quarantined, report.objects_deleted, report.state) == (2, 0, RunState.ENDED)
    assert report.quarantined_until_ms is not None
    assert lakeside.addresses() == {kept}
    assert collector.purge(spark).waiting == (plan.run_id,)

    back = collector.restore(run_id=plan.run_id)

    assert (back.restored, back.failed) == (2, 0)
    assert (lakeside.content("a/1"), lakeside.content("a/2")) == (b"a/1", b"a/2")
    assert not lakeside.addresses() & gone

    lakeside.end_window(plan.run_id)
    purged = collector.purge(spark)

    assert (purged.purged, purged.objects_purged, purged.objects_failed) == ((plan.run_id,), 2, 0)
    assert lakeside.files("_lakefs/retention/gc/quarantine*/**/*.*") == []
    assert collector.purge(spark).purged == ()
    with pytest.raises(NotFound, match=f"run {plan.run_id} moved it aside by the rule default: 1d, and it was purged"):
        collector.restore(path="a/1")
    states = Counter((row["path"], row["state"]) for row in collector.ledger_rows())
    assert states == {(path, state): 1 for path in ("a/1", "a/2") for state in ("quarantined", "restored", "purged")}
    found = collector.ledger_rows(LedgerQuery(path="a/1", state=LedgerState.PURGED))
    assert [(row["address"] in gone, row["rule"], row["kept_until"]) for row in found] == [(True, "default: 1d", None)]


def test_a_run_that_began_to_move_aside_goes_on_so_whoever_applies_it(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    lakeside.before["ended"] = die
    with pytest.raises(Died):
        lakeside.collector.apply(spark, plan.run_id, quarantine="7d")
    for file in lakeside.files("_lakefs/retention/gc/ledger/date=*/*"):
        file.unlink()

    report = lakeside.collector.apply(spark, plan.run_id)

    assert (report.objects_quarantined, report.objects_deleted) == (1, 0)
    back = lakeside.collector.restore(path=garbage, prefix="back")
    assert back.restored == 1
    assert lakeside.content(f"back/{garbage}") == b"data"


def test_what_an_apply_moved_that_wrote_no_ledger_is_restored_and_purged(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.UNCOMMITTED)
    lakeside.before["ended"] = die
    with pytest.raises(Died):
        collector.apply(spark, plan.run_id, quarantine="1h")
    for file in lakeside.files("_lakefs/retention/gc/ledger/date=*/*"):
        file.unlink()

    assert collector.restore(run_id=plan.run_id, prefix="back").restored == 1
    assert collector.purge(spark).objects_purged == 0
    lakeside.end_window(plan.run_id)
    purged = collector.purge(spark)

    assert (purged.objects_purged, purged.objects_failed) == (1, 0)
    assert lakeside.files("_lakefs/retention/gc/quarantine/**/*.*") == []
    assert (garbage, "purged") in [(row["address"], row["state"]) for row in collector.ledger_rows()]
    assert collector.apply(spark, plan.run_id).state is RunState.ENDED


def test_a_purge_beside_an_apply_that_makes_the_window_longer_takes_nothing(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    """The purge has read that the window is over when somebody resumes the run."""
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.UNCOMMITTED)
    lakeside.before["ended"] = die
    with pytest.raises(Died):
        collector.apply(spark, plan.run_id, quarantine="1h")
    lakeside.end_window(plan.run_id)

    def resume(line: str) -> None:
        if line.startswith("purging what"):
            collector.apply(spark, plan.run_id, quarantine="7d")

    report = replace(collector, progress=resume).purge(spark)

    assert (report.purged, report.waiting, report.objects_purged) == ((), (plan.run_id,), 0)
    assert collector.restore(path=garbage, prefix="back").restored == 1


def test_of_a_run_that_the_server_does_not_know_objects_are_purged_and_the_record_stays(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    """A backup from before the run was restored. A newer one may follow, whose run goes on."""
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.UNCOMMITTED)
    collector.apply(spark, plan.run_id, quarantine="1h")
    lakeside.end_window(plan.run_id)
    here = lakeside.versions
    lakeside.wait(here.store.delete(here.partition, RUN + plan.run_id.encode()))
    said: list[str] = []

    report = replace(collector, progress=said.append).purge(spark)

    assert report.objects_purged == 1
    assert lakeside.files("_lakefs/retention/gc/quarantine/**/*.*") == []
    assert len(lakeside.files(quarantine_path(plan.run_id))) == 1
    assert "does not know run" in said[-1]
    assert "its record stays" in said[-1]


def test_a_clock_that_jumped_ahead_purges_nothing_and_one_that_is_behind_neither(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    report = lakeside.collector.apply(spark, plan.run_id, quarantine="1h")
    until_ms = report.quarantined_until_ms
    assert until_ms is not None
    said: list[str] = []
    collector = replace(lakeside.collector, progress=said.append)

    def purge_at(ms: int) -> PurgeReport:
        live = live_ports()
        ports = Ports(TurnableClock(ms), live.ids, live.tasks)
        return collector.on(spark)._act(
            PurgeRequest(), lambda context: purge_quarantines(replace(context, ports=ports))
        )

    ahead = purge_at(until_ms + 30 * DAY_MS)
    behind = purge_at(until_ms - 30 * DAY_MS)

    assert ahead.purged == behind.purged == ()
    assert "by the object store's clock the window" in said[0]
    assert "this clock shows a time before" in said[1]


def test_a_window_without_an_end_is_refused_before_anything_is_touched(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    with pytest.raises(BadWindow):
        lakeside.collector.apply(spark, plan.run_id, quarantine="forever")

    assert lakeside.addresses() == {garbage}


@pytest.mark.usefixtures("large")
def test_of_two_runs_that_are_applied_at_once_the_one_that_began_last_goes_on(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    expired = expire(lakeside, "a/1")
    uncommitted = lakeside.upload("b/1")
    lakeside.delete("b/1")
    first = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    second = lakeside.collector.plan(spark, RunKind.COMMITTED)

    def overtake(line: str) -> None:
        if line.startswith("deleting"):
            lakeside.collector.apply(spark, second.run_id)

    with pytest.raises((Overtaken, TaskStopped), match=f"of run {second.run_id}"):
        replace(lakeside.collector, progress=overtake).apply(spark, first.run_id)

    assert lakeside.addresses() == {uncommitted}
    assert expired
    report = lakeside.collector.apply(spark, first.run_id)
    assert (report.objects_deleted, report.state) == (1, RunState.ENDED)
    assert lakeside.addresses() == set()


def test_of_two_applies_of_one_run_at_once_the_one_that_began_last_goes_on(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("b/1")
    lakeside.delete("b/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    def overtake(line: str) -> None:
        if line.startswith("deleting"):
            lakeside.collector.apply(spark, plan.run_id)

    with pytest.raises(Overtaken, match="another apply has begun"):
        replace(lakeside.collector, progress=overtake).apply(spark, plan.run_id)

    assert lakeside.addresses() == set()
    assert [row["state"] for row in lakeside.ledger()] == ["deleted"]
    assert lakeside.collector.apply(spark, plan.run_id).state is RunState.ENDED
