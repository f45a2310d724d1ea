"""`lakebed.gc.plan(…)` and the others: what they return, supposed rules, differences, and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lakebed.gc as gc
from lakebed.gc.messages import Fate, RunKind, RunState
from lakebed.gc.rules import Rules, days_rules
from lakebed.objectstore import ObjectStoreOptions

from .lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.gc import LocalSession


@pytest.fixture
def spark(session: LocalSession) -> SparkSession:
    """These tests are about DataFrames."""
    return session.spark


def replaced(lakeside: Lakeside) -> tuple[str, str]:
    """Two objects that were replaced on main: 20 and 5 days ago."""
    old = lakeside.upload("logs/a", b"first")
    lakeside.commit(age_days=30)
    middle = lakeside.upload("logs/a", b"the second")
    lakeside.commit(age_days=20)
    lakeside.upload("logs/a", b"third")
    lakeside.commit(age_days=5)
    return old, middle


def where(lakeside: Lakeside, spark: SparkSession) -> gc.Where:
    return {"client": lakeside, "spark": spark, "objectstore": lakeside.options, "tasks": 2}


def test_plans_are_data_frames_and_supposed_rules_say_what_they_would_take(
    spark: SparkSession, lakeside: Lakeside
) -> None:
    old, middle = replaced(lakeside)
    lakeside.rules(10)
    here = where(lakeside, spark)

    found = gc.plan("repo", **here)
    supposed = gc.plan("repo", rules=days_rules(3), **here)
    sides = {
        row.address: (row.side, row.path) for row in gc.diff("repo", found.run_id, supposed.run_id, **here).collect()
    }
    listed = {run.run_id: run.state for run in lakeside.collector.listed()}
    told = lakeside.collector.diff(found.run_id, supposed.run_id)
    with pytest.raises(gc.NotTheRules):
        gc.apply("repo", supposed.run_id, **here)

    assert [(row.address, row.rule) for row in found.objects.collect()] == [(old, "default: 10d")]
    assert {row.way: (row.name, row.objects) for row in found.totals.collect()} == {
        "reason": ("expired", 1),
        "rule": ("default: 10d", 1),
        "branch": ("main", 1),
        "prefix": ("logs/", 1),
        "slice": (old.split("/")[1], 1),
        "age": ("30-90d", 1),
    }
    assert found.commits.count() == 1
    assert supposed.plan.what_if
    assert sides == {old: ("both", "logs/a"), middle: ("b", "logs/a")}
    assert (told.only_b.all.objects, told.both.objects, told.commits.b) == (1, 1, 1)
    assert listed == {found.run_id: "planned", supposed.run_id: "supposed"}
    assert lakeside.addresses() >= {old, middle}


def test_a_supposed_plan_applies_once_its_rules_are_the_repositorys_and_why_knows_the_run(
    spark: SparkSession, lakeside: Lakeside
) -> None:
    old, middle = replaced(lakeside)
    here = where(lakeside, spark)

    supposed = gc.plan("repo", rules=days_rules(10), **here)
    before = gc.why("repo", address=old, client=lakeside)
    lakeside.rules(10)
    planned = gc.why("repo", address=old, client=lakeside)
    report = gc.apply("repo", supposed.run_id, **here)
    (after,) = gc.why("repo", address=old, client=lakeside).objects
    (kept,) = gc.why("repo", ref="main~1", path="logs/a", client=lakeside).objects

    assert [found.fate for answer in (before, planned) for found in answer.objects] == [Fate.KEPT, Fate.EXPIRED]
    assert (report.state, report.objects_deleted) == (RunState.ENDED, 1)
    assert (after.fate, [(taking.run_id, taking.rule) for taking in after.taken]) == (
        Fate.TAKEN,
        [(supposed.run_id, "default: 10d")],
    )
    assert (kept.address, kept.fate, kept.stays[0].rule) == (middle, Fate.KEPT, "default: 10d")


def test_a_supposed_run_of_uncommitted_data_shows_what_goes_and_can_never_be_applied(
    spark: SparkSession, lakeside: Lakeside
) -> None:
    garbage = lakeside.upload("a", b"one")
    lakeside.upload("a", b"two")
    lakeside.commit()
    here = where(lakeside, spark)

    supposed = gc.plan("repo", kind="uncommitted", rules=Rules(default="forever"), **here)

    assert [row.address for row in supposed.objects.collect()] == [garbage]
    with pytest.raises(gc.RunNotReady, match="abandoned"):
        gc.apply("repo", supposed.run_id, **here)
    assert garbage in lakeside.addresses()


def test_rules_are_supposed_of_objects_and_never_of_metadata(spark: SparkSession, lakeside: Lakeside) -> None:
    lakeside.upload("a", b"one")
    lakeside.commit()
    here = where(lakeside, spark)

    plans = [*lakeside.collector.plan_each(spark, rules=days_rules(3))]

    assert {(plan.kind, plan.what_if) for plan in plans} == {("uncommitted", True), ("committed", True)}
    with pytest.raises(gc.InvalidRequest):
        gc.plan("repo", kind="metadata", rules=days_rules(3), **here)
    with pytest.raises(gc.InvalidRequest):
        next(lakeside.collector.plan_each(spark, [*RunKind], rules=days_rules(3)))
    assert len(lakeside.collector.plans()) == 2


def test_a_kind_or_mode_that_there_is_not_is_told_with_those_there_are(spark: SparkSession, lakeside: Lakeside) -> None:
    here = where(lakeside, spark)

    with pytest.raises(gc.UnknownChoice, match="'foo' is not known: use uncommitted, committed, metadata"):
        gc.plan("repo", kind="foo", **here)
    with pytest.raises(gc.UnknownChoice, match="'foo' is not known: use uncommitted, committed, metadata"):
        gc.run("repo", kinds=["foo"], **here)
    with pytest.raises(gc.UnknownChoice, match="'quick' is not known: use automatic, clean"):
        gc.plan("repo", kind="uncommitted", mode="quick", **here)


def test_the_guides_example_runs_as_it_stands(
    spark: SparkSession, lakeside: Lakeside, capsys: pytest.CaptureFixture[str]
) -> None:
    lakeside.upload("logs/a.parquet", b"one")
    lakeside.upload("logs/a.parquet", b"two")
    lakeside.commit()
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "explaining.md").read_text()
    preparation, example = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    prepared: dict[str, Any] = {}

    exec(preparation, prepared)
    prepared["client"].close()
    # What it opens are a server and a folder of the reader's; the names that the example needs are all there.
    exec(example, {**prepared, "client": lakeside, "spark": spark, "objectstore": lakeside.options})

    said = capsys.readouterr().out
    assert isinstance(prepared["objectstore"], ObjectStoreOptions)
    assert prepared["local_session"] is gc.local_session
    assert isinstance(prepared["SessionOptions"](), gc.SessionOptions)
    assert "unreferenced" in said
    assert said.endswith("1\nhead main  None\n")
