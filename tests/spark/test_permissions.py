"""Planning with a credential that cannot delete, on an S3-compatible server that refuses it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakebed.gc.messages import Plan, RunKind, RunState
from lakebed.gc.rules import DAY_MS
from tests.objectstore.s3_servers import make_bucket, planner_of, serve_s3
from tests.spark.collecting import Collecting
from tests.spark.lakeside import Lakeside
from tests.spark.test_lifecycle import set_policy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lakeside(tmp_path: Path) -> Iterator[Lakeside]:
    with serve_s3() as options, Lakeside(tmp_path, uri=f"s3://{make_bucket(options)}/repo", options=options) as found:
        yield found


def planner_at(lakeside: Lakeside) -> Collecting:
    return replace(lakeside.collector, objectstore=planner_of(lakeside.options))


def test_plans_of_every_kind_need_no_permission_to_delete_and_an_apply_without_it_deletes_nothing(
    spark: SparkSession | None, lakeside: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second apply runs in tasks, as one of many objects does."""
    expired = {lakeside.upload("a/1"), lakeside.upload("a/2")}
    lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.delete("a/2")
    lakeside.commit(age_days=20)
    lakeside.rules(1)
    garbage = {lakeside.upload("b/1")}
    lakeside.delete("b/1")
    set_policy(lakeside, {"all": {"prefix": "", "days": 1}})
    lakeside.clock.ms += 2 * DAY_MS
    powerless = planner_at(lakeside)

    # An erasure has a selection, a deleted repository answers no other request, and these have no tables.
    apart = {RunKind.ERASURE, RunKind.DELETED, RunKind.PRUNING}
    plans: dict[RunKind, Plan] = {kind: powerless.plan(spark, kind) for kind in RunKind if kind not in apart}
    kinds = (RunKind.UNCOMMITTED, RunKind.COMMITTED)
    refused = [powerless.apply(spark, plans[kind].run_id) for kind in kinds]

    assert [plans[kind].totals.all.objects for kind in (*kinds, RunKind.LIFECYCLE)] == [1, 2, 2]
    assert [(report.objects_deleted, report.objects_failed) for report in refused] == [(0, 1), (0, 2)]
    assert [report.state for report in refused] == [RunState.MARKED, RunState.SWEEPING]
    assert lakeside.addresses() == expired | garbage
    assert {(row["state"], "refused" in row["error"]) for row in powerless.ledger_rows()} == {("failed", True)}

    monkeypatch.setattr("lakebed.gc.engines.spark.JOB_S", -1)
    done = [lakeside.collector.apply(spark, plans[kind].run_id) for kind in kinds]

    assert [(report.objects_deleted, report.objects_failed) for report in done] == [(1, 0), (2, 0)]
    assert [report.state for report in done] == [RunState.ENDED, RunState.ENDED]
    assert lakeside.addresses() == set()
