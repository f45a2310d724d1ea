"""What the server must have allowed before an apply or a purge does anything at all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from lakebed.base import Conflict, Denied
from lakebed.gc import NotTheRules
from lakebed.gc.messages import APPLYING_PREFIX, Expire, RunKind, RunState
from lakebed.gc.rules import days_rules
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPLYING = ("applying", "expire", "retire", "sweeping", "ended", "purging")
"""The last words of the routes that need gc:Apply."""


@dataclass(frozen=True, slots=True)
class Planner:
    """A caller who may plan, and nothing more."""

    side: Lakeside
    refused: list[str] = field(default_factory=list)

    def call(self, method: str, path: str, *, json: object = None) -> object:
        word = path.rpartition("/")[2]
        if method == "POST" and word in APPLYING:
            self.refused.append(word)
            raise Denied("insufficient permissions: planner needs gc:Apply")
        return self.side.call(method, path, json=json)


def claims_and_records(lakeside: Lakeside) -> list[str]:
    patterns = (f"{APPLYING_PREFIX}*", "_lakefs/retention/gc/*/*/deferred.json")
    return [str(file) for pattern in patterns for file in lakeside.files(pattern)]


def expire_and_replace(lakeside: Lakeside) -> set[str]:
    """An object that only an expired commit has, and one that none has."""
    expired = lakeside.upload("a/1")
    lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    garbage = lakeside.upload("b/1")
    lakeside.delete("b/1")
    return {expired, garbage}


def test_who_may_only_plan_deletes_writes_and_stops_nothing(spark: SparkSession | None, lakeside: Lakeside) -> None:
    there = expire_and_replace(lakeside)
    planner = Planner(lakeside)
    collector = replace(lakeside.collector, client=planner)
    plans = [collector.plan(spark, kind) for kind in (RunKind.UNCOMMITTED, RunKind.COMMITTED)]
    files = lakeside.files("**/*")

    for plan in plans:
        with pytest.raises(Denied):
            collector.apply(spark, plan.run_id, window="7d")

    assert [plan.totals.all.objects for plan in plans] == [1, 1]
    assert planner.refused == ["applying", "applying"]
    assert lakeside.addresses() == there
    assert lakeside.files("**/*") == files


def test_who_may_only_plan_purges_nothing(spark: SparkSession | None, lakeside: Lakeside) -> None:
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    lakeside.collector.apply(spark, plan.run_id, window="7d")
    lakeside.end_window(plan.run_id)
    files = lakeside.files("**/*")
    planner = Planner(lakeside)

    with pytest.raises(Denied):
        replace(lakeside.collector, client=planner).purge(spark)

    assert planner.refused == ["purging"]
    assert lakeside.files("**/*") == files
    assert lakeside.collector.purge(spark).objects_purged == 1


def test_an_apply_that_is_refused_leaves_one_that_is_under_way_alone(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    expire_and_replace(lakeside)
    collector = lakeside.collector
    garbage = collector.plan(spark, RunKind.UNCOMMITTED)
    stale = collector.plan(spark, RunKind.COMMITTED)
    lakeside.rules(2)
    supposed = collector.plan(spark, RunKind.COMMITTED, rules=days_rules(3))
    seen: list[type[Exception]] = []

    def others() -> None:
        for plan in (stale, supposed):
            with pytest.raises(Conflict) as refused:
                collector.apply(spark, plan.run_id)
            seen.append(refused.type)

    def before_the_sweep(text: str) -> None:
        if text.startswith("deleting"):
            others()

    report = replace(collector, progress=before_the_sweep).apply(spark, garbage.run_id)

    assert (report.state, report.objects_deleted) == (RunState.ENDED, 1)
    assert len(claims_and_records(lakeside)) == 1
    assert seen[1] is NotTheRules


def test_rules_that_change_while_a_run_expires_abandon_it_when_it_is_applied_again(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    expire_and_replace(lakeside)
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    assert plan.expired is not None
    lakeside.wait(lakeside.service.expire(plan.run_id, Expire(commits=plan.expired, rules_version=1)))
    lakeside.rules(2)

    with pytest.raises(Conflict, match="rules changed"):
        lakeside.collector.apply(spark, plan.run_id)

    assert lakeside.wait(lakeside.service.run(plan.run_id)).state is RunState.ABANDONED
    assert claims_and_records(lakeside) == []
