"""Plans and simulations by a lifecycle policy, over a real repository, without HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakebed.base import Conflict, Invalid
from lakebed.gc.kinds.lifecycle import NoPolicy
from lakebed.gc.protocol import RunKind
from lakebed.gc.rules import DAY_MS
from lakebed.gc.service import PolicyBook
from lakebed.gc.simulate import BadDays
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGS = {"logs": {"prefix": "logs/", "days": 10, "branch_days": {"dev": 2}}}


@pytest.fixture
def lake(lakeside: Lakeside) -> Lakeside:
    """`logs/old`, `logs/young` (5 days) and `data/old`, committed on `main` and `dev`."""
    for name, days in (("logs/old", 20), ("logs/young", 5), ("data/old", 20)):
        upload(lakeside, name, days=days)
    lakeside.commit()
    lakeside.branch("dev")
    return lakeside


def upload(lakeside: Lakeside, name: str, *, days: float, branch: str = "main") -> str:
    return lakeside.upload(name, branch=branch, modified_ms=lakeside.clock.ms - int(days * DAY_MS))


def set_policy(lakeside: Lakeside, policy: dict[str, Any]) -> None:
    lakeside.wait(PolicyBook(lakeside.versions).write(json.dumps(policy).encode()))


def address_of(lakeside: Lakeside, name: str, ref: str = "main") -> str:
    return lakeside.wait(lakeside.versions.staging.get(ref, name.encode())).address


def test_a_plan_has_what_is_due_on_every_branch_and_says_by_which_rule(
    spark: SparkSession | None, lake: Lakeside
) -> None:
    set_policy(lake, LOGS)
    before = lake.addresses()

    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)

    assert lake.collector.taken(plan.run_id) == {address_of(lake, "logs/old")}
    assert plan.totals.by_rule == {"logs: logs/ 10d, dev 2d": plan.totals.all}
    assert plan.totals.by_reason == {"lifecycle": plan.totals.all}
    assert plan.totals.by_branch.keys() == {"main"}
    assert json.loads(plan.policy) == LOGS
    assert plan.rules_version == 1
    assert lake.addresses() == before


def test_what_only_a_branch_with_a_short_period_has_goes_sooner(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    own = upload(lake, "logs/own", days=4, branch="dev")
    lake.commit(branch="dev")

    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)

    assert lake.collector.taken(plan.run_id) == {address_of(lake, "logs/old"), own}


def test_a_copy_under_a_path_that_no_rule_covers_keeps_the_object(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    lake.copy("main", "logs/old", "data/copy", branch="dev")
    lake.commit(branch="dev")

    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)

    assert lake.collector.taken(plan.run_id) == set()


def test_a_simulation_says_on_which_day_each_object_goes(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)

    found = lake.collector.on(spark).simulate(days=60)

    today = lake.clock.ms // DAY_MS
    assert [(row.objects, row.size_bytes, row.rule, row.branch) for row in found.rows] == [
        (1, 4, "logs: logs/ 10d, dev 2d", "main")
    ] * 2
    days = [int(row.date[-2:]) - int(found.rows[0].date[-2:]) for row in found.rows]
    # Written in the middle of a day five days ago, it is due at the midnight after ten days.
    assert days == [0, 6]
    assert found.policy_version == 1
    assert today == found.now_ms // DAY_MS


def test_a_simulation_may_go_by_a_policy_that_is_not_saved(spark: SparkSession | None, lake: Lakeside) -> None:
    found = lake.collector.on(spark).simulate(days=0, policy=json.dumps({"all": {"prefix": "", "days": 1}}))

    assert (found.total.objects, found.policy_version) == (3, None)
    assert lake.wait(PolicyBook(lake.versions).read()).version == 0


def test_days_that_cannot_be_simulated_are_refused(spark: SparkSession | None, lake: Lakeside) -> None:
    with pytest.raises(BadDays):
        lake.collector.on(spark).simulate(days=-1)


def test_nothing_is_planned_without_a_policy(spark: SparkSession | None, lake: Lakeside) -> None:
    with pytest.raises(NoPolicy):
        lake.collector.plan(spark, RunKind.LIFECYCLE)
    with pytest.raises(NoPolicy):
        lake.collector.on(spark).simulate(days=1)


def test_a_lifecycle_plan_cannot_be_applied(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    before = lake.addresses()
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)

    with pytest.raises((Conflict, Invalid), match="cannot apply"):
        lake.collector.apply(spark, plan.run_id)

    assert lake.addresses() == before


def test_runs_of_all_kinds_leave_lifecycle_out(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    lake.rules(1)

    kinds = [report.kind for report in lake.collector.run_each(spark) if hasattr(report, "kind")]

    assert RunKind.LIFECYCLE not in kinds
