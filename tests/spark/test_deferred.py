"""Deferring, restoring, purging, the ledger, and applies that race: the whole way, on both engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakebed.base import Conflict, Corrupt, NotFound, Ports, to_row
from lakebed.gc import BadWindow, LedgerQuery, Mode, Overtaken, PurgeReport, TaskStopped, WindowTooLate
from lakebed.gc.machine import flow
from lakebed.gc.messages import LedgerState, PurgeRequest, RunKind, RunState, Service, deferred_path
from lakebed.gc.rules import DAY_MS
from lakebed.runtime import live_ports
from lakebed.versions import CommitExpired, ContentsGone
from lakebed.versions.keys import RUN
from tests.clocks import TurnableClock
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Died(Exception):
    """The process is gone."""


def die() -> None:
    raise Died


def dies_at(words: str) -> Callable[[str], None]:
    """The process is gone when it says this."""

    def progress(line: str) -> None:
        if line.startswith(words):
            raise Died

    return progress


def expire(lakeside: Lakeside, *paths: str) -> set[str]:
    """Objects that only a commit names whose time is over: their addresses."""
    gone = {lakeside.upload(path, path.encode(), metadata={"owner": "ann"}) for path in paths}
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
def test_objects_stay_return_and_go_when_the_window_is_over(spark: SparkSession | None, lakeside: Lakeside) -> None:
    gone = expire(lakeside, "a/1", "a/2")
    kept = lakeside.upload("kept")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.COMMITTED)

    report = collector.apply(spark, plan.run_id, window="7d")

    assert (report.garbage_objects, report.garbage_bytes, report.objects_deleted) == (2, 6, 0)
    assert (report.state, report.deferred_until_ms is None) == (RunState.SWEEPING, False)
    assert lakeside.addresses() == {kept, *gone}
    assert collector.purge(spark).waiting == (plan.run_id,)
    assert collector.run_status(plan.run_id).state == "deferred"
    assert collector.unfinished() == []

    back = collector.restore(run_id=plan.run_id)

    assert (back.restored, back.bare, back.failed) == (2, 0, 0)
    assert (lakeside.content("a/1"), lakeside.content("a/2")) == (b"a/1", b"a/2")
    assert {lakeside.metadata(path)["owner"] for path in ("a/1", "a/2")} == {"ann"}
    assert len(lakeside.addresses()) == 5

    lakeside.end_window(plan.run_id)
    purged = collector.purge(spark)

    assert (purged.purged, purged.objects_purged, purged.objects_failed) == ((plan.run_id,), 2, 0)
    assert not lakeside.addresses() & gone
    assert (lakeside.content("a/1"), lakeside.content("a/2")) == (b"a/1", b"a/2")
    assert collector.purge(spark).purged == ()
    assert collector.apply(spark, plan.run_id).state is RunState.ENDED
    with pytest.raises(NotFound, match=f"run {plan.run_id} deleted it at .* by the rule default: 1d"):
        collector.restore(path="a/1")
    states = Counter((row["path"], row["state"]) for row in collector.ledger_rows())
    assert states == {(path, state): 1 for path in ("a/1", "a/2") for state in ("restored", "deleted")}
    found = collector.ledger_rows(LedgerQuery(path="a/1", state=LedgerState.DELETED))
    assert [(row["address"] in gone, row["rule"]) for row in found] == [(True, "default: 1d")]


def test_reads_of_a_commit_end_when_its_run_is_deferred(spark: SparkSession | None, lakeside: Lakeside) -> None:
    address = lakeside.upload("a/1")
    old = lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)

    lakeside.collector.apply(spark, plan.run_id, window="7d")

    with pytest.raises((CommitExpired, ContentsGone)):
        lakeside.content("a/1", ref=old.id)
    assert address in lakeside.addresses()


def test_runs_go_on_beside_a_deferred_one_and_count_none_of_its_objects(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    gone = expire(lakeside, "a/1")
    garbage = lakeside.upload("b/1")
    lakeside.delete("b/1")
    collector = lakeside.collector
    for kind in (RunKind.COMMITTED, RunKind.UNCOMMITTED):
        collector.apply(spark, collector.plan(spark, kind).run_id, window="7d")
    more = lakeside.upload("c/1")
    lakeside.delete("c/1")

    uncommitted = [
        collector.plan(spark, RunKind.UNCOMMITTED, mode=mode) for mode in (Mode.OPTIMISED, Mode.CLEAN, Mode.OLD_LAYOUT)
    ]
    others = [collector.plan(spark, kind) for kind in (RunKind.COMMITTED, RunKind.METADATA)]
    reports = [collector.apply(spark, plan.run_id) for plan in (uncommitted[0], others[0], uncommitted[1])]

    assert [plan.totals.all.objects for plan in uncommitted] == [1, 1, 0]
    assert others[0].totals.all.objects == 0
    assert [report.state for report in reports] == [RunState.ENDED] * 3
    assert lakeside.addresses() == {*gone, garbage}
    assert more not in lakeside.addresses()


def test_every_night_may_defer_beside_the_nights_before(spark: SparkSession | None, lakeside: Lakeside) -> None:
    collector = lakeside.collector
    garbage = []
    for night in range(3):
        garbage.append(lakeside.upload(f"n/{night}"))
        lakeside.delete(f"n/{night}")
        for kind in (RunKind.UNCOMMITTED, RunKind.METADATA):
            collector.apply(spark, collector.plan(spark, kind).run_id, window="7d")
    runs = [run.run_id for run in collector.listed() if run.state == "deferred"]
    assert (len(runs), lakeside.addresses()) == (3, set(garbage))

    lakeside.end_window(runs[1])
    purged = collector.purge(spark)

    assert (purged.purged, set(purged.waiting)) == ((runs[1],), {runs[0], runs[2]})
    assert lakeside.addresses() == {garbage[0], garbage[2]}


def test_what_came_to_be_named_within_the_window_stays(spark: SparkSession | None, lakeside: Lakeside) -> None:
    """As nothing of ours would name it: by an older key-value store, or by a mistake."""
    garbage, other = lakeside.upload("a/1"), lakeside.upload("a/2")
    entries = [lakeside.wait(lakeside.versions.staging.get("main", path)) for path in (b"a/1", b"a/2")]
    lakeside.delete("a/1")
    lakeside.delete("a/2")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.UNCOMMITTED)
    collector.apply(spark, plan.run_id, window="7d")
    for path, entry in zip((b"x/staged", b"x/committed"), entries, strict=True):
        lakeside.wait(lakeside.versions.staging.write("main", path, 0, to_row(path, entry)))
        if path == b"x/staged":
            lakeside.commit()
    lakeside.end_window(plan.run_id)

    purged = collector.purge(spark)

    assert (purged.purged, purged.objects_purged, purged.objects_failed) == ((plan.run_id,), 0, 0)
    assert lakeside.addresses() == {garbage, other}


def test_what_came_to_be_named_after_a_purge_that_died_before_it_deleted_stays(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    garbage = lakeside.upload("a/1")
    entry = lakeside.wait(lakeside.versions.staging.get("main", b"a/1"))
    lakeside.delete("a/1")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.UNCOMMITTED)
    collector.apply(spark, plan.run_id, window="7d")
    lakeside.end_window(plan.run_id)
    with pytest.raises(Died):
        replace(collector, progress=dies_at("deleting")).purge(spark)
    lakeside.wait(lakeside.versions.staging.write("main", b"x", 0, to_row(b"x", entry)))

    purged = collector.purge(spark)

    assert (purged.purged, purged.objects_purged) == ((plan.run_id,), 0)
    assert lakeside.addresses() == {garbage}


@pytest.mark.parametrize("at", ["deferring", "deferred"])
def test_an_apply_that_died_about_its_window_defers_again(
    spark: SparkSession | None, lakeside: Lakeside, at: str
) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    if at == "deferred":
        lakeside.before["deferred"] = die
        dying = lakeside.collector
    else:
        dying = replace(lakeside.collector, progress=dies_at("deferring"))
    with pytest.raises(Died):
        dying.apply(spark, plan.run_id, window="7d")
    assert [run.run_id for run in lakeside.collector.unfinished()] == [plan.run_id]

    report = lakeside.collector.apply(spark, plan.run_id)

    assert report.deferred_until_ms is not None
    assert lakeside.addresses() == {garbage}
    assert lakeside.collector.restore(path=garbage, prefix="back").restored == 1
    assert lakeside.content(f"back/{garbage}") == b"data"


def test_a_run_that_began_to_delete_gets_no_window_and_a_nightly_run_goes_on_without_one(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.UNCOMMITTED)
    lakeside.before["ended"] = die
    with pytest.raises(Died):
        collector.apply(spark, plan.run_id)
    assert lakeside.addresses() == set()

    with pytest.raises(WindowTooLate, match=f"run {plan.run_id} has begun to delete"):
        collector.apply(spark, plan.run_id, window="7d")
    report = collector.run(spark, [RunKind.METADATA], window="7d")[0]

    assert (report.run_id, report.state, report.objects_deleted) == (plan.run_id, RunState.ENDED, 1)


@pytest.mark.parametrize("at", ["the window", "rechecking", "deleting", "ended"])
def test_a_purge_that_died_is_gone_on_with_and_takes_the_same(
    spark: SparkSession | None, lakeside: Lakeside, at: str
) -> None:
    expire(lakeside, "a/1", "a/2")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.COMMITTED)
    collector.apply(spark, plan.run_id, window="7d")
    lakeside.end_window(plan.run_id)
    if at == "ended":
        lakeside.before["ended"] = die
        dying = collector
    else:
        dying = replace(collector, progress=dies_at(at))
    with pytest.raises(Died):
        dying.purge(spark)
    kept = lakeside.upload("kept")

    (report,) = [one for one in collector.run_each(spark, [RunKind.UNCOMMITTED]) if one.run_id == plan.run_id] or [
        collector.apply(spark, plan.run_id)
    ]

    assert (report.state, report.objects_deleted, report.deferred_until_ms) == (RunState.ENDED, 2, None)
    assert lakeside.addresses() == {kept}
    assert Counter(row["state"] for row in lakeside.ledger()) == {"deleted": 2}


def test_an_apply_makes_the_window_longer_and_never_shorter(spark: SparkSession | None, lakeside: Lakeside) -> None:
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.UNCOMMITTED)
    first = collector.apply(spark, plan.run_id, window="7d").deferred_until_ms

    unasked = collector.apply(spark, plan.run_id).deferred_until_ms
    shorter = collector.apply(spark, plan.run_id, window="1d").deferred_until_ms
    longer = collector.apply(spark, plan.run_id, window="8d").deferred_until_ms

    assert unasked == shorter == first
    assert first is not None
    assert longer is not None
    assert longer >= first + DAY_MS


def test_of_a_purge_and_a_longer_window_one_comes_first(spark: SparkSession | None, lakeside: Lakeside) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.UNCOMMITTED)
    collector.apply(spark, plan.run_id, window="1h")
    lakeside.end_window(plan.run_id)
    service = Service(lakeside.service)

    def lengthen() -> None:
        plan_ = collector.show(plan.run_id)
        lakeside.wait(service.deferred(plan.run_id, plan_.garbage, "7d"))

    lakeside.before["purging"] = lengthen
    report = collector.purge(spark)

    assert (report.purged, report.waiting) == ((), (plan.run_id,))
    assert lakeside.addresses() == {garbage}
    lakeside.end_window(plan.run_id)
    lakeside.wait(service.purged(plan.run_id))
    with pytest.raises(Conflict, match=r"window .* is over"):
        collector.apply(spark, plan.run_id, window="7d")
    assert collector.apply(spark, plan.run_id).objects_deleted == 1


def test_a_backup_that_knows_nothing_of_the_run_loses_nothing(spark: SparkSession | None, lakeside: Lakeside) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.UNCOMMITTED)
    collector.apply(spark, plan.run_id, window="1h")
    here = lakeside.versions
    lakeside.wait(here.store.delete(here.partition, RUN + plan.run_id.encode()))

    report = collector.purge(spark)

    assert (report.purged, report.waiting) == ((), ())
    assert lakeside.addresses() == {garbage}


def test_a_clock_that_jumped_ahead_purges_nothing_and_one_that_is_behind_neither(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    until_ms = lakeside.collector.apply(spark, plan.run_id, window="1h").deferred_until_ms
    assert until_ms is not None

    def purge_at(ms: int) -> PurgeReport:
        live = live_ports()
        ports = Ports(TurnableClock(ms), live.ids, live.tasks)
        return lakeside.collector.on(spark)._act(
            PurgeRequest(), lambda context: flow.purge(replace(context, ports=ports))
        )

    for ms in (until_ms + 30 * DAY_MS, until_ms - 30 * DAY_MS):
        assert purge_at(ms).waiting == (plan.run_id,)
    assert lakeside.addresses() == {garbage}


def test_a_list_of_what_waits_that_is_damaged_stops_a_restore_and_no_purge(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    collector = lakeside.collector
    plan = collector.plan(spark, RunKind.UNCOMMITTED)
    collector.apply(spark, plan.run_id, window="1h")
    (file,) = lakeside.files(deferred_path(RunKind.UNCOMMITTED, plan.run_id))
    file.write_bytes(b"{")
    lakeside.end_window(plan.run_id)

    with pytest.raises(Corrupt):
        collector.restore(run_id=plan.run_id)
    # A purge goes by the plan, which is bound to the run's record.
    assert collector.purge(spark).objects_purged == 1


def test_a_run_that_cannot_be_purged_stops_no_other(spark: SparkSession | None, lakeside: Lakeside) -> None:
    collector = lakeside.collector
    plans = []
    for path in ("a/1", "a/2"):
        lakeside.upload(path)
        lakeside.delete(path)
        plans.append(collector.plan(spark, RunKind.UNCOMMITTED))
        collector.apply(spark, plans[-1].run_id, window="1h")
        lakeside.end_window(plans[-1].run_id)
    for file in lakeside.files(f"_lakefs/retention/gc/uncommitted/{plans[0].run_id}/plan.json"):
        file.unlink()

    with pytest.raises(NotFound, match=plans[0].run_id):
        collector.purge(spark)

    assert len(lakeside.addresses()) == 1


def test_a_window_without_an_end_is_refused_before_anything_is_touched(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    with pytest.raises(BadWindow):
        lakeside.collector.apply(spark, plan.run_id, window="forever")

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
