"""Legal holds in collections on both engines. tests/gc/mark/test_holding.py has what no engine changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lakebed.gc.live import PolicyBook
from lakebed.gc.messages import RunKind, RunState
from tests.gc.mark.test_holding import expired, hold, plan, release
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_commit_with_a_held_path_does_not_expire(spark: SparkSession | None, lakeside: Lakeside) -> None:
    old = expired(lakeside)
    hold(lakeside, "legal/")

    made = plan(lakeside, spark)
    report = lakeside.collector.apply(spark, made.run_id)

    assert lakeside.collector.taken(made.run_id) == {old["logs/b"]}
    assert report.state is RunState.ENDED
    assert {old["legal/a"], old["logs/a"]} <= lakeside.addresses()


def test_a_hold_that_comes_while_the_run_deletes_keeps_what_is_left(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    """Its commits are expired by then; its objects stay, until the release, and no other run takes them."""
    old = expired(lakeside)
    made = plan(lakeside, spark)
    lakeside.before["sweeping"] = lambda: hold(lakeside, "legal/")

    report = lakeside.collector.apply(spark, made.run_id)

    assert (report.objects_deleted, report.objects_held, report.state) == (2, 1, RunState.SWEEPING)
    assert report.errors == (f"{old['legal/a']}: held by legal hold case-7",)
    assert old["legal/a"] in lakeside.addresses()
    assert old["logs/a"] not in lakeside.addresses()
    again = lakeside.collector.apply(spark, made.run_id)
    assert again.objects_held == 1
    release(lakeside)
    assert lakeside.collector.apply(spark, made.run_id).state is RunState.ENDED
    assert old["legal/a"] not in lakeside.addresses()


def test_a_lifecycle_plan_leaves_out_what_is_held(spark: SparkSession | None, lakeside: Lakeside) -> None:
    old = expired(lakeside)
    policy = {"all": {"prefix": "", "days": 1}}
    lakeside.wait(PolicyBook(lakeside.versions).write(json.dumps(policy).encode()))
    hold(lakeside, "legal/*")

    made = plan(lakeside, spark, RunKind.LIFECYCLE)
    report = lakeside.collector.apply(spark, made.run_id)

    assert report.state is RunState.ENDED
    assert old["legal/a"] in lakeside.addresses()
    assert old["logs/a"] not in lakeside.addresses()
