"""Collections of metadata on Spark: files of trees that no commit needs, folders of old runs."""

from __future__ import annotations

import random
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakebed.base import Conflict, Corrupt, Invalid, MetarangeId
from lakebed.gc import Mode, PlanMissing
from lakebed.gc.engines.files import Lake
from lakebed.gc.engines.spark import open_engine
from lakebed.gc.live import CollectionService, ServiceOptions
from lakebed.gc.mark.inputs.listing import Special, list_special
from lakebed.gc.messages import EngineName, RunKind, RunState
from lakebed.gc.rules import MetadataRule
from lakebed.versions import CommitExpired, keys
from lakebed.versions.commits.committer import Note
from tests.gc.specified import MetadataSpecification
from tests.spark.collecting import Collecting
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANY_AGE = -(10**13)
FILES = MetadataRule(file_age_ms_min=ANY_AGE)
ALL = MetadataRule(file_age_ms_min=ANY_AGE, runs_newest=0, run_age_ms_min=ANY_AGE)


def collector(lakeside: Lakeside, rule: MetadataRule = FILES) -> Collecting:
    """Nobody reads what was swept."""
    lakeside.service = CollectionService(lakeside.versions, ServiceOptions(readers_grace_ms=0))
    return replace(lakeside.collector, metadata=rule)


def tell_past(lakeside: Lakeside, spark: SparkSession | None) -> str:
    """Three commits before the head, of which two were swept. The tree of the second stays for its child, the first's
    does not. Returns the id of the second."""
    lakeside.upload("a/0")
    lakeside.commit(age_days=40)
    lakeside.delete("a/0")
    lakeside.upload("a/1")
    first = lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.upload("a/2")
    lakeside.commit(age_days=20)
    lakeside.upload("a/3")
    lakeside.commit()
    lakeside.rules(1)
    lakeside.collector.apply(spark, lakeside.collector.plan(spark, RunKind.COMMITTED).run_id)
    return first.id


def trees(lakeside: Lakeside) -> set[str]:
    folders = ("ranges", "sublists", "metaranges")
    return {file.stem for folder in folders for file in lakeside.files(f"_lakefs/{folder}/*.parquet")}


def strand(lakeside: Lakeside, path: str) -> str:
    """Stage an object, and leave the file of its tree there, as a commit does that then fails."""

    async def write() -> str:
        versions = lakeside.versions
        record = (await versions.context.branches.fresh("main")).record
        base = await versions.context.commits.metarange(record.commit_id)
        return await versions.commits.lay(base, record.tokens())

    lakeside.upload(path)
    return lakeside.wait(write())


def test_files_of_swept_commits_and_folders_of_old_runs_go(spark: SparkSession | None, lakeside: Lakeside) -> None:
    first = tell_past(lakeside, spark)
    before = trees(lakeside)

    plan = collector(lakeside, ALL).plan(spark, RunKind.METADATA)
    report = collector(lakeside, ALL).apply(spark, plan.run_id)

    gone = {row["address"] for row in lakeside.ledger() if row["run_id"] == plan.run_id}
    assert {Path(key).stem for key in gone if "ranges/" in key} == before - trees(lakeside)
    assert len(before) - len(trees(lakeside)) == plan.range_counts.expired >= 2
    assert set(plan.totals.by_reason) == {"unnamed", "old-run"}
    assert (report.state, report.objects_deleted, report.objects_failed) == (RunState.ENDED, len(gone), 0)
    assert lakeside.content("a/3") == b"data"
    assert not lakeside.files("_lakefs/retention/gc/committed/*/plan.json")
    assert [view.kind for view in collector(lakeside).runs()] == [RunKind.METADATA]
    with pytest.raises(CommitExpired):
        lakeside.branch("again", first)
    assert collector(lakeside).plan(spark, RunKind.METADATA).totals.all.objects == 0


def test_young_files_new_runs_and_what_readers_may_see_stay(spark: SparkSession | None, lakeside: Lakeside) -> None:
    tell_past(lakeside, spark)

    by_age = lakeside.collector.plan(spark, RunKind.METADATA)
    by_grace = replace(lakeside.collector, metadata=FILES).plan(spark, RunKind.METADATA)

    assert (by_age.totals.all.objects, by_grace.totals.all.objects) == (0, 0)


def test_what_a_commit_came_to_name_since_the_plan_stays(spark: SparkSession | None, lakeside: Lakeside) -> None:
    stranded = strand(lakeside, "a/1")
    plan = collector(lakeside).plan(spark, RunKind.METADATA)
    assert lakeside.commit().metarange_id == stranded
    lakeside.versions = lakeside.versions.__class__(
        uid=lakeside.versions.uid,
        store=lakeside.versions.store,
        objectstore=lakeside.objectstore,
        trees=lakeside.versions.trees,
        ports=lakeside.versions.ports,
    )

    report = collector(lakeside).apply(spark, plan.run_id)

    assert plan.totals.all.objects == 2
    assert (report.objects_deleted, report.garbage_objects) == (0, 0)
    assert lakeside.content("a/1") == b"data"


def leave_commit(lakeside: Lakeside, path: str) -> set[Path]:
    """The record and the files of a commit whose committer died before it was published. Its files."""
    before = set(lakeside.files("_lakefs/*ranges/*.parquet"))
    tree = MetarangeId(strand(lakeside, path))

    async def write() -> None:
        versions = lakeside.versions
        head = (await versions.refs.get_branch("main")).commit_id
        note = Note(message="dead", committer="tests", metadata={}, created_ms=lakeside.clock.ms)
        await versions.context.commits.write(await versions.commits.new_commit("main", tree, (head,), note))

    lakeside.wait(write())
    return set(lakeside.files("_lakefs/*ranges/*.parquet")) - before


def take(lakeside: Lakeside, files: set[Path]) -> None:
    """What a collection of metadata does that looked before the commit's record was there."""
    given_up = [(file.stem.encode(), b"run") for file in files]
    lakeside.wait(lakeside.versions.store.set_many(keys.retired_partition(lakeside.versions.uid), given_up))
    for file in files:
        file.unlink()


@pytest.mark.parametrize(
    ("kind", "mode", "message"),
    [
        (RunKind.UNCOMMITTED, Mode.CLEAN, "marking against"),
        (RunKind.UNCOMMITTED, Mode.OLD_LAYOUT, "marking against"),
        (RunKind.COMMITTED, None, "marking "),
        (RunKind.METADATA, None, "reading 2 metaranges"),
    ],
)
def test_a_plan_goes_on_though_metadata_is_collected_of_a_commit_it_was_about_to_read(
    spark: SparkSession | None, lakeside: Lakeside, kind: RunKind, mode: Mode | None, message: str
) -> None:
    lakeside.upload("a/1")
    lakeside.commit()
    lakeside.rules(1)
    files = leave_commit(lakeside, "a/2")
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if line.startswith(message) and all(file.exists() for file in files):
            take(lakeside, files)

    plan = replace(lakeside.collector, progress=tell).plan(spark, kind, mode=mode)

    assert any("1 commit went meanwhile" in line for line in told)
    assert (plan.commit_counts.swept, plan.totals.all.objects) == (1, 0)


def test_an_apply_goes_on_though_metadata_is_collected_of_a_commit_it_was_about_to_recheck(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    lakeside.commit(age_days=9)
    lakeside.delete("a/1")
    lakeside.upload("a/2")
    lakeside.commit(age_days=8)
    lakeside.upload("a/3")
    lakeside.commit()
    lakeside.rules(1)
    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    files = leave_commit(lakeside, "a/4")

    def tell(line: str) -> None:
        if line.startswith("rechecking") and all(file.exists() for file in files):
            take(lakeside, files)

    report = replace(lakeside.collector, progress=tell).apply(spark, plan.run_id)

    assert (report.state, report.objects_deleted) == (RunState.ENDED, 1)
    assert lakeside.content("a/3") == lakeside.content("a/4") == b"data"


def test_after_a_crash_the_same_run_goes_on(spark: SparkSession | None, lakeside: Lakeside) -> None:
    strand(lakeside, "a/1")
    plan = collector(lakeside).plan(spark, RunKind.METADATA)

    def die() -> None:
        raise KeyboardInterrupt

    for route in ("retire", "sweeping", "ended"):
        lakeside.before[route] = die
        with pytest.raises(KeyboardInterrupt):
            collector(lakeside).apply(spark, plan.run_id)
    report = collector(lakeside).apply(spark, plan.run_id)

    assert (report.state, report.objects_deleted) == (RunState.ENDED, 2)


def test_a_plan_whose_folder_another_run_took_cannot_be_applied(spark: SparkSession | None, lakeside: Lakeside) -> None:
    old = collector(lakeside).plan(spark, RunKind.METADATA)
    plan = collector(lakeside, ALL).plan(spark, RunKind.METADATA)
    collector(lakeside, ALL).apply(spark, plan.run_id)

    with pytest.raises(PlanMissing):
        collector(lakeside).apply(spark, old.run_id)


def test_a_plan_that_another_run_gave_up_and_did_not_delete_yet_is_refused(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    old = collector(lakeside).plan(spark, RunKind.METADATA)
    plan = collector(lakeside, ALL).plan(spark, RunKind.METADATA)

    def die() -> None:
        raise KeyboardInterrupt

    lakeside.before["sweeping"] = die
    with pytest.raises(KeyboardInterrupt):
        collector(lakeside, ALL).apply(spark, plan.run_id)

    with pytest.raises(Conflict, match="retired"):
        collector(lakeside).apply(spark, old.run_id)


def test_what_was_applied_since_the_plan_keeps_its_folder_and_what_it_saved(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    lakeside.upload("a/2")
    lakeside.commit()
    old = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    plan = collector(lakeside, ALL).plan(spark, RunKind.METADATA)
    lakeside.collector.apply(spark, old.run_id, window="7d")

    report = collector(lakeside, ALL).apply(spark, plan.run_id)

    assert plan.totals.by_reason["old-run"].objects > 0
    assert report.garbage_objects == plan.totals.all.objects - plan.totals.by_reason["old-run"].objects
    assert lakeside.collector.show(old.run_id) == old
    assert old.run_id in {view.run_id for view in lakeside.collector.runs()}
    assert lakeside.collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.OPTIMISED).based_on == old.run_id


def test_a_run_that_was_applied_with_failures_can_be_applied_again(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    """Whether its deletes began before the plan of metadata or after it."""
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    lakeside.upload("a/2")
    lakeside.commit()
    old = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    before = collector(lakeside, ALL).plan(spark, RunKind.METADATA)

    def die() -> None:
        raise KeyboardInterrupt

    lakeside.before["ended"] = die
    with pytest.raises(KeyboardInterrupt):
        lakeside.collector.apply(spark, old.run_id)
    collector(lakeside, ALL).apply(spark, before.run_id)
    after = collector(lakeside, ALL).plan(spark, RunKind.METADATA)

    assert after.totals.by_reason.keys() == {"old-run"}
    assert old.run_id not in {address.split("/")[4] for address in lakeside.collector.taken(after.run_id)}
    assert lakeside.collector.apply(spark, old.run_id).state is RunState.ENDED


def test_an_unknown_file_in_the_folder_of_an_old_run_survives(spark: SparkSession | None, lakeside: Lakeside) -> None:
    old = collector(lakeside).plan(spark, RunKind.METADATA)
    stray = lakeside.folder / old.folder / "notes.txt"
    stray.write_text("x")

    plan = collector(lakeside, ALL).plan(spark, RunKind.METADATA)
    collector(lakeside, ALL).apply(spark, plan.run_id)

    assert f"{old.folder}notes.txt" in plan.unknown_files
    assert [file.name for file in (lakeside.folder / old.folder).iterdir()] == ["notes.txt"]


def test_tasks_list_what_the_driver_would(
    spark: SparkSession | None, lakeside: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        strand(lakeside, f"b/{number}")
    for name in ("_lakefs/mine", "_lakefs/ranges/notes.txt", "_lakefs/sublists/f/x"):
        (stray := lakeside.folder / name).parent.mkdir(parents=True, exist_ok=True)
        stray.write_text("x")
    store = lakeside.versions.objectstore
    # In a test as in a large folder: pages end, folders are cut, and listings begin in the middle of one.
    monkeypatch.setattr("lakebed.objectstore.drivers.local.PAGE_KEYS", 1)
    monkeypatch.setattr("lakebed.gc.mark.inputs.listing.KEYS_A_STRETCH", 1)
    monkeypatch.setattr("lakebed.gc.mark.inputs.listing.FROM_THE_START", ())
    monkeypatch.setattr("lakebed.gc.engines.spark.JOB_S", -1)
    engine = open_engine(
        EngineName.LOCAL if spark is None else EngineName.SPARK,
        Lake(uri=store.uri, options=lakeside.collector.objectstore),
        store,
        session=lambda: spark or pytest.fail("no session was needed here"),
        tasks=2,
    )

    async def listed(here: int) -> tuple[Special, list[dict[str, Any]]]:
        monkeypatch.setattr("lakebed.gc.mark.inputs.listing.LISTED_HERE", here)
        found = await list_special(engine, store, folder="_lakefs/retention/gc/metadata/r1/special/")
        rows = [row async for files in found.tree_files(store) for row in files.to_pylist()]
        return found, sorted(rows, key=itemgetter("key"))

    by_driver, expected = lakeside.wait(listed(1000))
    by_tasks, found = lakeside.wait(listed(1))

    assert found == expected
    assert len(found) >= 8
    assert by_tasks.unknown_files == by_driver.unknown_files
    assert by_driver.unknown_files.keys == ("_lakefs/mine", "_lakefs/ranges/notes.txt", "_lakefs/sublists/f/x")
    assert not by_driver.file_parts.parts
    assert len(by_tasks.file_parts.parts) > 1


@pytest.mark.parametrize("harm", ["remove", "cut", "flip", "version"])
@pytest.mark.parametrize("pattern", ["metadata/*/commits/*", "metadata/*/garbage/*", "metadata/*/leftovers/*"])
def test_an_input_that_is_not_what_it_was_stops_the_apply(
    spark: SparkSession | None, lakeside: Lakeside, pattern: str, harm: str
) -> None:
    stranded = strand(lakeside, "a/1")
    plan = collector(lakeside).plan(spark, RunKind.METADATA)
    [file] = lakeside.files(f"_lakefs/retention/gc/{pattern}")
    data = file.read_bytes()
    match harm:
        case "remove":
            file.unlink()
        case "cut":
            file.write_bytes(data[:-9])
        case "flip":
            file.write_bytes(data[:30] + bytes([data[30] ^ 1]) + data[31:])
        case _:
            table = file.parent.name
            of_plan = lakeside.folder / plan.folder / "plan.json"
            text = of_plan.read_text()
            assert f'"table":"{table}"' in text
            of_plan.write_text(
                text.replace(f'"table":"{table}","table_version":', f'"table":"{table}","table_version":9')
            )

    with pytest.raises((Corrupt, Invalid)):
        collector(lakeside).apply(spark, plan.run_id)

    assert stranded in trees(lakeside)


def test_a_metarange_that_is_missing_stops_the_plan(spark: SparkSession | None, lakeside: Lakeside) -> None:
    strand(lakeside, "a/1")
    named = lakeside.commit().metarange_id
    (lakeside.folder / "_lakefs" / "metaranges" / f"{named}.parquet").unlink()

    with pytest.raises(Corrupt, match=named):
        collector(lakeside).plan(spark, RunKind.METADATA)


def test_plans_go_on_once_a_commit_without_a_metarange_is_marked_and_all_ranges_stay(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.branch("gone")
    lakeside.upload("a/1", branch="gone")
    lost = lakeside.commit(branch="gone").metarange_id
    lakeside.wait(lakeside.versions.refs.delete_branch("gone"))
    stranded = strand(lakeside, "a/2")
    (lakeside.folder / "_lakefs" / "metaranges" / f"{lost}.parquet").unlink()
    with pytest.raises(Corrupt, match=f"{lost}: missing; `lakebed gc missing`"):
        collector(lakeside).plan(spark, RunKind.METADATA)
    lakeside.wait(lakeside.service.mark_missing())
    ranges = lakeside.files("_lakefs/ranges/*.parquet")
    lakeside.service = CollectionService(lakeside.versions)
    metadata = replace(lakeside.collector, metadata=FILES)

    plan = metadata.plan(spark, RunKind.METADATA)
    metadata.apply(spark, plan.run_id)

    assert len(ranges) == 2
    assert lakeside.files("_lakefs/ranges/*.parquet") == ranges
    assert stranded not in trees(lakeside)
    later = collector(lakeside)
    later.apply(spark, later.plan(spark, RunKind.METADATA).run_id)
    assert lakeside.files("_lakefs/ranges/*.parquet") == []


@pytest.mark.parametrize("seed", range(2))
def test_the_planner_agrees_with_the_plain_one_on_random_histories(
    spark: SparkSession | None, lakeside: Lakeside, seed: int
) -> None:
    rng = random.Random(seed)
    branches = ["main"]
    for number in range(14):
        branch = rng.choice(branches)
        lakeside.upload(rng.choice("abc") + "/" + rng.choice("12"), f"{number}".encode(), branch=branch)
        if rng.random() < 0.3:
            strand(lakeside, "s")
        lakeside.commit(branch=branch, age_days=60 - 4 * number)
        if rng.random() < 0.3:
            branches.append(f"b{number}")
            lakeside.branch(branches[-1], branch)
    lakeside.rules(rng.choice((1, 20)))
    lakeside.collector.apply(spark, lakeside.collector.plan(spark, RunKind.COMMITTED).run_id)
    planned = collector(lakeside, ALL).plan(spark, RunKind.METADATA)

    plain = MetadataSpecification(lakeside.versions, lakeside.service, ALL)
    expected = lakeside.wait(plain.plan())

    garbage = collector(lakeside).taken(planned.run_id)
    files = {key for key in garbage if "ranges/" in key}
    assert files == set(expected.files.values())
    assert files
    folders = {key.split("/")[4] for key in garbage - files}
    assert folders == {run for run, keys in expected.runs.items() if keys}
