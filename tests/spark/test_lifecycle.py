"""Plans and simulations by a lifecycle policy, over a real repository, without HTTP."""

from __future__ import annotations

import csv
import dataclasses
import json
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from lakebed.base import Conflict
from lakebed.gc import NoRules, OtherUnfinished
from lakebed.gc.api.simulate import BadDays
from lakebed.gc.kinds.lifecycle.plan import NoPolicy
from lakebed.gc.live import HoldBook, PolicyBook
from lakebed.gc.messages import (
    Fate,
    InvalidRequest,
    NewHold,
    PlanRequest,
    RunKind,
    RunMode,
    RunState,
    decode_saved_dues,
    encode_saved,
    request_of,
)
from lakebed.gc.rules import DAY_MS
from lakebed.gc.rules.lifecycle import InvalidPolicy
from lakebed.runtime import LiveClock
from lakebed.versions import Commit, PathExpired
from tests.gc.kinds.erasure.test_plan import apply, erase
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


def day_of(ms: int) -> date:
    return datetime.fromtimestamp(ms / 1000, UTC).date()


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


def test_a_simulation_names_the_period_that_keeps_an_object_and_no_branch_that_never_had_it(
    spark: SparkSession | None, lake: Lakeside
) -> None:
    for branch in ("a", "dev-1", "dev-2", "z"):
        lake.branch(branch)
    for branch in ("main", "dev-2", "z"):
        upload(lake, f"new/{branch}", days=1, branch=branch)
        lake.commit(branch=branch)
    # Periods are equal. `a` and `dev-1` come first, and never had the objects.
    branches = {"a": "5d", "z": "5d", "dev-*": "5d"}
    policy = {"rules": {"new": {"prefix": "new/", "period": "5d", "branches": branches}}}

    found = lake.collector.on(spark).simulate(days=60, policy=json.dumps(policy))

    assert {row.branch: row.objects for row in found.rows} == {"*": 1, "dev-*": 1, "z": 1}


def test_a_simulation_of_a_policy_that_changes_meanwhile_is_refused(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)

    def change(text: str) -> None:
        if "will go within" in text:
            set_policy(lake, {"rules": {}, "branches": {"*": {"idle": "1d"}}})

    collector = dataclasses.replace(lake.collector, progress=change).on(spark)

    with pytest.raises(Conflict, match="simulate again"):
        collector.simulate(days=60)


def test_a_simulation_may_go_by_a_policy_that_is_not_saved(spark: SparkSession | None, lake: Lakeside) -> None:
    found = lake.collector.on(spark).simulate(days=0, policy=json.dumps({"all": {"prefix": "", "days": 1}}))

    assert (found.total.objects, found.policy_version) == (3, None)
    assert lake.wait(PolicyBook(lake.versions).read()).version == 0


def test_a_simulation_does_not_count_what_an_erasure_took(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    apply(lake, erase(lake, "logs/young", spark=spark))

    found = lake.collector.on(spark).simulate(days=60)

    assert found.total.objects == 1  # `logs/old`


def test_what_plans_applies_and_simulations_write_is_known(spark: SparkSession | None, lake: Lakeside) -> None:
    data = {"prefix": "data/", "period": "9d"}
    set_policy(lake, {"rules": {"logs": {"prefix": "logs/", "period": "10d", "keep_versions": 1}, "data": data}})
    lake.collector.on(spark).simulate(days=60)
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    later = upload(lake, "logs/later", days=1)
    lake.commit()
    lake.collector.apply(spark, plan.run_id)

    found = lake.collector.plan(spark, RunKind.METADATA)

    folders = {file.parent.name for file in lake.files("_lakefs/retention/gc/lifecycle/**/*.arrow")}
    assert later in lake.addresses()
    assert {"due", "stays", "versions"} <= folders
    assert (found.unknown_files, found.unknown_files_count) == ((), 0)


def test_a_policy_that_would_be_refused_is_not_simulated(spark: SparkSession | None, lake: Lakeside) -> None:
    policy = json.dumps({"logs": {"prefix": "logs/", "branch_days": {"mian": 1}}})

    with pytest.raises(InvalidPolicy, match="there is no branch mian"):
        lake.collector.on(spark).simulate(days=1, policy=policy)


def test_days_that_cannot_be_simulated_are_refused(spark: SparkSession | None, lake: Lakeside) -> None:
    with pytest.raises(BadDays):
        lake.collector.on(spark).simulate(days=-1)


def test_nothing_is_planned_without_a_policy(spark: SparkSession | None, lake: Lakeside) -> None:
    with pytest.raises(NoPolicy):
        lake.collector.plan(spark, RunKind.LIFECYCLE)
    with pytest.raises(NoPolicy):
        lake.collector.on(spark).simulate(days=1)


def test_an_apply_deletes_what_the_plan_has_and_nothing_else(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    old, before = address_of(lake, "logs/old"), lake.addresses()
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)

    report = lake.collector.apply(spark, plan.run_id)

    assert lake.addresses() == before - {old}
    assert (report.state, report.objects_deleted, report.objects_failed) == (RunState.ENDED, 1, 0)
    (row,) = lake.ledger()
    assert (row["address"], row["path"], row["reason"], row["rule"]) == (
        old,
        "logs/old",
        "lifecycle",
        "logs: logs/ 10d, dev 2d",
    )
    assert lake.collector.apply(spark, plan.run_id).objects_deleted == 1


def test_an_apply_leaves_the_documents_tables(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    old = address_of(lake, "logs/old")
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    day_before = day_of(LiveClock().now_ms())

    lake.collector.apply(spark, plan.run_id)

    (addresses,) = lake.files("_lakefs/retention/lc/addresses/date=*/*.parquet")
    (policy,) = lake.files("_lakefs/retention/lc/policy/*.parquet")
    (stats,) = lake.files("_lakefs/retention/lc/stats/*/*.csv")
    rules = ["logs: logs/ 10d, dev 2d"]
    row = {"run_id": plan.run_id, "address": old, "paths": ["logs/old"], "matched_rules": rules}
    assert pq.ParquetFile(addresses).read().to_pylist() == [row]
    rows = pq.ParquetFile(policy).read().to_pylist()
    assert [(one["rule_id"], one["prefix"], one["branch"]) for one in rows] == [
        ("logs", "logs/", ""),
        ("logs", "logs/", "dev"),
    ]
    today = day_of(lake.clock.ms)
    ten_days, two_days = (one["date_to_be_deleted"] for one in rows)
    assert (ten_days.date(), two_days.date()) == (today - timedelta(days=10), today - timedelta(days=2))
    assert addresses.parent.name in {f"date={day}" for day in (day_before, day_of(LiveClock().now_ms()))}
    assert (addresses.parent.name, stats.stem) == (stats.parent.name, plan.run_id)
    header, one = csv.reader(stats.read_text().splitlines())
    assert dict(zip(header, one, strict=True)) | {"began": "", "ended": ""} == {
        "run_id": plan.run_id,
        "policy_version": "1",
        "state": "ended",
        "objects": "1",
        "bytes": "4",
        "failed": "0",
        "began": "",
        "ended": "",
    }
    assert lake.collector.plan(spark, RunKind.METADATA).unknown_files == ()


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_table_of_addresses_has_all_paths_and_rules_as_in_the_document(
    spark: SparkSession | None, lake: Lakeside, goes_on: bool
) -> None:
    """The document's example of deduplication. A later run goes on from the one before, and joins nothing."""
    paths = {"foo/bar/a": 1, "foo/bar/b": 4, "foo/tar/a": 1, "foo/tar/b": 2, "foo/other/c": 2}
    objects: dict[int, str] = {}
    policy = {"one": {"prefix": "foo/bar/", "days": 10}, "two": {"prefix": "foo/tar/", "days": 10}}
    set_policy(lake, policy)
    if goes_on:
        lake.collector.apply(spark, lake.collector.plan(spark, RunKind.LIFECYCLE).run_id)
    for path, number in paths.items():
        if number in objects:
            lake.copy("main", next(name for name in paths if paths[name] == number), path)
        else:
            objects[number] = upload(lake, path, days=20)
    lake.commit()
    # A copy has a date of its own, and for a while it keeps the object.
    lake.clock.ms += 11 * DAY_MS
    lake.wait(lake.versions.cleanup.clean())

    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    lake.collector.apply(spark, plan.run_id)

    rows = [
        row
        for file in lake.files("_lakefs/retention/lc/addresses/date=*/*.parquet")
        for row in pq.ParquetFile(file).read().to_pylist()
    ]
    one, two = "one: foo/bar/ 10d", "two: foo/tar/ 10d"
    assert {row["address"]: (row["paths"], row["matched_rules"]) for row in rows} == {
        objects[1]: (["foo/bar/a", "foo/tar/a"], [one, two]),
        objects[4]: (["foo/bar/b"], [one]),
    }
    assert {row["run_id"] for row in rows} == {plan.run_id}
    assert plan.mode is (RunMode.OPTIMISED if goes_on else RunMode.CLEAN)


def test_each_run_writes_a_file_of_its_own_about_itself_so_that_none_loses_a_row_to_another(
    spark: SparkSession | None, lake: Lakeside
) -> None:
    set_policy(lake, LOGS)
    first = lake.collector.plan(spark, RunKind.LIFECYCLE)
    lake.collector.apply(spark, first.run_id)
    lake.clock.ms += 6 * DAY_MS
    second = lake.collector.plan(spark, RunKind.LIFECYCLE)
    lake.collector.apply(spark, second.run_id)

    rows = {
        file.stem: [row.split(",")[0] for row in file.read_text().splitlines()[1:]]
        for file in lake.files("_lakefs/retention/lc/stats/*/*.csv")
    }

    assert rows == {first.run_id: [first.run_id], second.run_id: [second.run_id]}


def test_why_says_which_run_took_an_object_that_commits_still_name(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    lake.collector.apply(spark, plan.run_id)

    (found,) = lake.wait(lake.service.why.ask(ref="main", path="logs/old")).objects

    assert found.fate is Fate.TAKEN
    assert [(row.run_id, row.rule) for row in found.taken] == [(plan.run_id, "logs: logs/ 10d, dev 2d")]


VERSIONS = {"rules": {"logs": {"prefix": "logs/", "days": 10}, "all": {"path": "**", "days": 99, "keep_versions": 1}}}
"""A policy of which a run saves no hours."""


@pytest.mark.parametrize("policy", [LOGS, VERSIONS])
def test_what_was_taken_is_in_no_later_plan(spark: SparkSession | None, lake: Lakeside, policy: dict[str, Any]) -> None:
    set_policy(lake, policy)
    lake.collector.apply(spark, lake.collector.plan(spark, RunKind.LIFECYCLE).run_id)
    assert lake.collector.plan(spark, RunKind.LIFECYCLE).totals.all.objects == 0

    lake.clock.ms += 6 * DAY_MS

    assert lake.collector.taken(lake.collector.plan(spark, RunKind.LIFECYCLE).run_id) == {
        address_of(lake, "logs/young")
    }


def test_two_plans_are_compared_object_by_object(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    first = lake.collector.plan(spark, RunKind.LIFECYCLE)
    lake.clock.ms += 6 * DAY_MS
    second = lake.collector.plan(spark, RunKind.LIFECYCLE)

    found = lake.collector.on(spark).diff(first.run_id, second.run_id)

    assert (found.kind, found.both.objects) == (RunKind.LIFECYCLE, 1)
    assert (found.only_a.all.objects, found.only_b.all.objects) == (0, 1)
    assert [row.address for row in found.objects] == [address_of(lake, "logs/young")]


def test_the_next_run_goes_on_from_the_one_before(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    first = lake.collector.plan(spark, RunKind.LIFECYCLE)
    assert lake.collector.plan(spark, RunKind.LIFECYCLE).mode_note == "no run has saved its state yet"
    lake.collector.apply(spark, first.run_id)
    lake.clock.ms += 6 * DAY_MS

    second = lake.collector.plan(spark, RunKind.LIFECYCLE)

    assert (first.mode, second.mode, second.based_on) == (RunMode.CLEAN, RunMode.OPTIMISED, first.run_id)
    assert lake.collector.taken(second.run_id) == {address_of(lake, "logs/young")}


def test_another_policy_begins_anew(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    first = lake.collector.plan(spark, RunKind.LIFECYCLE)
    lake.collector.apply(spark, first.run_id)
    young = address_of(lake, "logs/young")
    set_policy(lake, {"logs": {"prefix": "logs/", "days": 1}})

    second = lake.collector.plan(spark, RunKind.LIFECYCLE)

    assert (second.mode, second.mode_note) == (RunMode.CLEAN, f"the policy is not that of run {first.run_id}")
    assert young in lake.collector.taken(second.run_id)


@pytest.mark.parametrize("what", ["hours-00000", "ranges-all", "trees-*", "saved", "plan"])
def test_a_state_of_which_something_is_amiss_is_no_state(spark: SparkSession | None, lake: Lakeside, what: str) -> None:
    set_policy(lake, LOGS)
    run = lake.collector.plan(spark, RunKind.LIFECYCLE).run_id
    lake.collector.apply(spark, run)
    lake.clock.ms += 6 * DAY_MS
    if what == "plan":
        # As after the repository was made anew in its namespace: the record has another plan.
        saved = lake.folder / f"_lakefs/retention/gc/lifecycle/{run}/saved.json"
        other = decode_saved_dues(saved.read_bytes(), run)
        saved.write_bytes(encode_saved(replace(other, plan="0" * 64)))
    else:
        [file] = lake.files(f"_lakefs/retention/gc/lifecycle/{run}/**/{what}.*")
        file.write_bytes(file.read_bytes()[:-1] + b"x")

    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)

    assert plan.mode is RunMode.CLEAN
    assert lake.collector.taken(plan.run_id) == {address_of(lake, "logs/young")}


def test_what_came_to_be_named_after_the_plan_stays(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, {"logs": {"prefix": "logs/", "days": 2}, "tmp": {"prefix": "tmp/", "days": 2}})
    staged, committed, forked = (upload(lake, f"tmp/{name}", days=9) for name in ("staged", "committed", "forked"))
    lake.commit()
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    assert {staged, committed, forked} <= lake.collector.taken(plan.run_id)
    lake.copy("main", "tmp/committed", "data/committed")
    lake.commit()
    lake.copy("main", "tmp/staged", "data/staged")

    report = lake.collector.apply(spark, plan.run_id)

    assert {staged, committed} <= lake.addresses()
    assert forked not in lake.addresses()
    assert report.state is RunState.ENDED


def test_a_branch_made_after_the_plan_keeps_by_its_own_period(spark: SparkSession | None, lake: Lakeside) -> None:
    policy = {"rules": {"logs": {"prefix": "logs/", "period": "10d", "branches": {"audit": "forever"}}}}
    lake.branch("audit")
    set_policy(lake, policy)
    lake.wait(lake.versions.refs.delete_branch("audit"))
    old = address_of(lake, "logs/old")
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    assert lake.collector.taken(plan.run_id) == {old}
    lake.branch("audit", "dev")

    report = lake.collector.apply(spark, plan.run_id)

    assert old in lake.addresses()
    assert (report.state, report.objects_deleted) == (RunState.ENDED, 0)


def test_what_a_merge_under_way_brings_along_counts_for_its_branch_too(
    spark: SparkSession | None, lake: Lakeside
) -> None:
    """Its commit is written, and the branch may take it when the run has long ended."""
    set_policy(lake, {"logs": {"prefix": "logs/", "branch_days": {"dev": 2}}})
    own = upload(lake, "logs/own", days=4, branch="dev")
    lake.commit(branch="dev")
    lake.delete("logs/own", branch="dev")
    dev = lake.commit(branch="dev")
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    assert lake.collector.taken(plan.run_id) == {own}
    write_merge(lake, dev)

    report = lake.collector.apply(spark, plan.run_id)

    assert own in lake.addresses()
    assert (report.state, report.objects_deleted) == (RunState.ENDED, 0)
    assert lake.collector.taken(lake.collector.plan(spark, RunKind.LIFECYCLE).run_id) == set()


def write_merge(lake: Lakeside, source: Commit) -> None:
    """What a merge into `main` does before it moves the branch."""
    head = lake.wait(lake.versions.refs.resolve_commit("main"))
    note = replace(source, parents=(head, source.id), generation=source.generation + 1, made_for="main")
    lake.wait(lake.versions.context.commits.write(replace(note, nonce="m", published=False)))


def test_a_policy_that_changed_stops_the_apply(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    before = lake.addresses()
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    set_policy(lake, {"logs": {"prefix": "logs/", "days": 100}})

    with pytest.raises(Conflict, match="lifecycle policy changed"):
        lake.collector.apply(spark, plan.run_id)

    assert lake.addresses() == before


def test_a_policy_that_changes_while_the_run_looks_again_ends_it(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    before = lake.addresses()
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    lake.before["expire"] = lambda: set_policy(lake, {"logs": {"prefix": "logs/", "days": 100}})

    with pytest.raises(Conflict, match="lifecycle policy changed"):
        lake.collector.apply(spark, plan.run_id)

    assert lake.addresses() == before


def test_objects_stay_for_the_window_and_read_as_expired(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    old, before = address_of(lake, "logs/old"), lake.addresses()
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)

    report = lake.collector.apply(spark, plan.run_id, window="7d")

    assert (report.state, report.garbage_objects, report.objects_deleted) == (RunState.SWEEPING, 1, 0)
    assert lake.addresses() == before
    assert taken_by(lake, "logs/old") == (plan.run_id, "logs: logs/ 10d, dev 2d", 1)
    with pytest.raises(PathExpired):
        lake.copy("main", "logs/old", "data/copy")
    assert lake.collector.purge(spark).waiting == (plan.run_id,)
    assert old not in lake.collector.taken(lake.collector.plan(spark, RunKind.LIFECYCLE).run_id)

    lake.end_window(plan.run_id)
    purged = lake.collector.purge(spark)

    assert (purged.purged, purged.objects_purged) == ((plan.run_id,), 1)
    assert lake.addresses() == before - {old}


def test_what_was_taken_and_deferred_returns_under_a_fresh_address(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    old = address_of(lake, "logs/old")
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    lake.collector.apply(spark, plan.run_id, window="7d")

    back = lake.collector.restore(run_id=plan.run_id)

    assert (back.restored, back.failed) == (1, 0)
    assert lake.content("logs/old") == b"data"
    assert (address_of(lake, "logs/old"), address_of(lake, "logs/old", "dev")) != (old, old)
    assert taken_by(lake, "logs/old") is None
    assert taken_by(lake, "logs/old", "dev") is not None
    lake.commit()
    lake.end_window(plan.run_id)
    lake.collector.purge(spark)
    assert old not in lake.addresses()
    assert lake.content("logs/old") == b"data"


def test_a_commit_that_names_it_later_does_not_save_what_a_run_took(spark: SparkSession | None, lake: Lakeside) -> None:
    """Its entries say so to whoever reads them; else the object would stay for ever, and no one could read it."""
    set_policy(lake, LOGS)
    old = address_of(lake, "logs/old")
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    lake.collector.apply(spark, plan.run_id, window="7d")
    upload(lake, "logs/more", days=1)
    lake.commit()
    lake.end_window(plan.run_id)

    assert lake.collector.purge(spark).objects_purged == 1
    assert old not in lake.addresses()


def test_a_run_ends_only_once_it_wrote_down_what_it_takes(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    found: list[object] = []
    lake.before["ended"] = lambda: found.append(taken_by(lake, "logs/old"))

    lake.collector.apply(spark, plan.run_id)

    assert found == [(plan.run_id, "logs: logs/ 10d, dev 2d", 1)]


def taken_by(lake: Lakeside, path: str, ref: str = "main") -> tuple[str, str, int] | None:
    [by] = lake.wait(lake.versions.taken.find([address_of(lake, path, ref)]))
    return None if by is None else (by.run, by.rule, by.policy_version)


def test_a_copy_during_the_run_copies_the_bytes(spark: SparkSession | None, lake: Lakeside) -> None:
    """The run has read what is staged already, so it would not see the name."""
    set_policy(lake, LOGS)
    old = address_of(lake, "logs/old")
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    lake.before["sweeping"] = lambda: lake.copy("main", "logs/old", "data/copy")

    lake.collector.apply(spark, plan.run_id)

    copy = address_of(lake, "data/copy")
    assert old not in lake.addresses()
    assert copy != old
    assert lake.content("data/copy") == b"data"


def test_a_copy_of_what_went_is_refused(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    lake.collector.apply(spark, lake.collector.plan(spark, RunKind.LIFECYCLE).run_id)

    with pytest.raises(PathExpired, match=r"expired by policy version 1, logs: logs/ 10d"):
        lake.copy("main", "logs/old", "data/copy")


def test_a_copy_of_what_went_is_refused_when_the_run_is_forgotten(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    lake.collector.apply(spark, lake.collector.plan(spark, RunKind.LIFECYCLE).run_id)
    lake.wait(PolicyBook(lake.versions).write(None))
    lake.forget_runs()

    with pytest.raises(PathExpired, match=r"expired by policy version 1, logs: logs/ 10d"):
        lake.copy("main", "logs/old", "data/copy")


def test_what_a_deferred_run_keeps_is_in_no_lifecycle_plan(spark: SparkSession | None, lake: Lakeside) -> None:
    """Its objects can be restored until the window is over."""
    set_policy(lake, LOGS)
    lake.rules(1)
    lake.collector.on(spark)
    old = address_of(lake, "logs/old")
    lake.delete("logs/old")
    lake.delete("logs/old", branch="dev")
    lake.clock.ms += 3 * DAY_MS
    for branch in ("main", "dev"):
        lake.commit(branch=branch)
        lake.upload("data/next", branch=branch)
        lake.clock.ms += 3 * DAY_MS
        lake.commit(branch=branch)
    lake.clock.ms += 3 * DAY_MS
    plan = lake.collector.plan(spark, RunKind.LIFECYCLE)
    committed = lake.collector.plan(spark, RunKind.COMMITTED)
    assert old in lake.collector.taken(plan.run_id) & lake.collector.taken(committed.run_id)
    lake.collector.apply(spark, committed.run_id, window="7d")

    with pytest.raises(OtherUnfinished):
        lake.collector.apply(spark, plan.run_id)

    assert old in lake.addresses()
    again = lake.collector.plan(spark, RunKind.LIFECYCLE)
    assert old not in lake.collector.taken(again.run_id)
    assert lake.collector.apply(spark, again.run_id).state is RunState.ENDED
    assert old in lake.addresses()


def test_runs_of_all_kinds_leave_lifecycle_out(spark: SparkSession | None, lake: Lakeside) -> None:
    set_policy(lake, LOGS)
    lake.rules(1)

    kinds = [report.kind for report in lake.collector.run_each(spark) if hasattr(report, "kind")]

    assert RunKind.LIFECYCLE not in kinds


# Together with retention: only active commits count


@pytest.fixture
def replaced(lake: Lakeside) -> str:
    """Let a commit that retention lets go have `logs/old` at a path that no rule covers, too. Returns its id."""
    lake.copy("main", "logs/old", "data/copy")
    expired = lake.commit()
    lake.delete("data/copy")
    lake.commit()
    lake.clock.ms += 3 * DAY_MS
    lake.wait(lake.versions.cleanup.clean())  # The record of the copy names the object, too.
    set_policy(lake, {"logs": {"prefix": "logs/", "days": 10}})
    return expired.id


def taken(lake: Lakeside, spark: SparkSession | None, *, active_only: bool) -> tuple[set[str], str]:
    [plan] = lake.collector.on(spark).plan(PlanRequest(kinds=(RunKind.LIFECYCLE,), active_only=active_only))
    return lake.collector.taken(plan.run_id), plan.run_id


def test_commits_that_retention_lets_go_keep_nothing_where_only_active_ones_count(
    spark: SparkSession | None, lake: Lakeside, replaced: str
) -> None:
    lake.rules(2)

    usual, _ = taken(lake, spark, active_only=False)
    active, run_id = taken(lake, spark, active_only=True)
    report = lake.collector.apply(spark, run_id)

    assert usual == set()
    assert active == {address_of(lake, "logs/old")}
    assert (report.garbage_objects, active & lake.addresses()) == (1, set())
    with pytest.raises(PathExpired):
        lake.wait(lake.versions.staging.open(replaced, b"data/copy"))


def test_an_active_commit_keeps_as_ever(spark: SparkSession | None, lake: Lakeside, replaced: str) -> None:
    lake.rules(10)

    assert taken(lake, spark, active_only=True)[0] == set()


def test_a_commit_that_is_named_since_the_plan_is_active_again(
    spark: SparkSession | None, lake: Lakeside, replaced: str
) -> None:
    lake.rules(2)
    active, run_id = taken(lake, spark, active_only=True)
    lake.branch("again", replaced)

    report = lake.collector.apply(spark, run_id)

    assert report.garbage_objects == 0
    assert active <= lake.addresses()


def test_rules_that_keep_longer_since_the_plan_count_when_it_is_applied(
    spark: SparkSession | None, lake: Lakeside, replaced: str
) -> None:
    lake.rules(2)
    active, run_id = taken(lake, spark, active_only=True)
    lake.rules(30)

    lake.collector.apply(spark, run_id)

    assert active <= lake.addresses()


def test_a_hold_on_an_expired_commit_keeps_its_objects_where_only_active_ones_count(
    spark: SparkSession | None, lake: Lakeside, replaced: str
) -> None:
    lake.rules(2)
    lake.wait(HoldBook(lake.versions).add(NewHold(name="h", globs=("data/copy",), why="law")))

    assert taken(lake, spark, active_only=True)[0] == set()


def test_without_retention_rules_no_commit_is_inactive(
    spark: SparkSession | None, lake: Lakeside, replaced: str
) -> None:
    with pytest.raises(NoRules):
        taken(lake, spark, active_only=True)


def test_active_only_is_for_lifecycle_runs() -> None:
    with pytest.raises(InvalidRequest, match="for lifecycle runs"):
        request_of("plan", kinds=["committed"], active_only=True)
    with pytest.raises(InvalidRequest, match="do not go together"):
        request_of("plan", kinds=["lifecycle"], active_only=True, mode="optimised")


def test_a_commit_that_the_policy_pins_keeps_its_objects_where_only_active_ones_count(
    spark: SparkSession | None, lake: Lakeside, replaced: str
) -> None:
    lake.rules(2)
    set_policy(lake, {"rules": {"logs": {"prefix": "logs/", "days": 10}}, "pins": {"commits": [replaced]}})

    active, run_id = taken(lake, spark, active_only=True)
    lake.collector.apply(spark, run_id)

    assert (taken(lake, spark, active_only=False)[0], active) == (set(), set())
