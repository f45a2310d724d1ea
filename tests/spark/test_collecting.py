"""Whole runs over a real repository, without HTTP: what goes, what stays, and what happens in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.handoff import RunKind, RunState
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_uncommitted_garbage_goes_and_whatever_something_names_stays(spark: SparkSession, lakeside: Lakeside) -> None:
    committed = lakeside.upload("a/1")
    lakeside.commit()
    staged = lakeside.upload("a/2")
    overwritten = lakeside.upload("a/3")
    replacing = lakeside.upload("a/3")
    deleted = lakeside.upload("a/4")
    lakeside.delete("a/4")

    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    assert {row.address for row in lakeside.collector.doomed(spark, plan.run_id).collect()} == {overwritten, deleted}
    assert plan.totals.all.objects == 2
    assert lakeside.addresses() == {committed, staged, overwritten, replacing, deleted}

    report = lakeside.collector.apply(spark, plan.run_id)

    assert lakeside.addresses() == {committed, staged, replacing}
    assert (report.state, report.objects_deleted, report.objects_failed) == (RunState.ENDED, 2, 0)


def test_committed_garbage_goes_by_the_rules_and_says_why(spark: SparkSession, lakeside: Lakeside) -> None:
    gone = lakeside.upload("a/1")
    kept = lakeside.upload("b/2")
    lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    newest = lakeside.upload("c/3")
    lakeside.commit(age_days=1)
    lakeside.rules(5, main=7)

    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    rows = lakeside.collector.doomed(spark, plan.run_id).collect()

    assert [(row.address, row.reason, row.rule, row.size_bytes) for row in rows] == [
        (gone, "expired", "main: 7 days", 4)
    ]
    assert set(plan.totals.by_branch) == {"main"}
    assert set(plan.totals.by_prefix) == {"a/"}
    assert lakeside.addresses() == {gone, kept, newest}

    report = lakeside.collector.apply(spark, plan.run_id)

    assert lakeside.addresses() == {kept, newest}
    assert report.commits_condemned == plan.commit_counts.expired
