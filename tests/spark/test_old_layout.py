"""Objects that an older system laid out elsewhere in the namespace: collected on request, by age, with great care."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from lakebed.base import Entry, format_address, to_row
from lakebed.gc import Mode
from lakebed.gc.kinds.uncommitted.old_layout import NamespaceInside
from lakebed.gc.mark.sets.places import is_elsewhere
from lakebed.gc.messages import RunKind, RunMode, RunState
from lakebed.gc.rules import DAY_MS
from tests.spark.lakeside import URI, Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lakeside(lakeside: Lakeside) -> Lakeside:
    """Here the object store's clock counts too, so the server's shows the same time."""
    lakeside.clock.ms = time.time_ns() // 1_000_000
    return lakeside


def lay(lakeside: Lakeside, key: str, *, age_days: float = 30) -> str:
    """An object as an older system left it."""
    lakeside.wait(lakeside.objectstore.put(key, b"old"))
    written_s = (lakeside.clock.ms - age_days * DAY_MS) / 1000
    os.utime(lakeside.folder / key, (written_s, written_s))
    return key


def imported(lakeside: Lakeside, path: str, address: str) -> None:
    """An entry as it was imported with the older system's metadata."""
    entry = Entry(address=address, size_bytes=3, checksum="x", modified_ms=1)
    lakeside.wait(lakeside.versions.staging.write("main", path.encode(), 0, to_row(path.encode(), entry)))


def there(lakeside: Lakeside) -> set[str]:
    async def listed() -> set[str]:
        return {stat.key async for page in lakeside.objectstore.list("") for stat in page if stat.key[:8] != "_lakefs/"}

    return lakeside.wait(listed())


def test_what_nothing_names_goes_after_its_age_and_all_else_stays(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    committed, absolute = lay(lakeside, "objects/1"), lay(lakeside, "objects/2")
    staged = lay(lakeside, "data/flat")
    imported(lakeside, "a", committed)
    imported(lakeside, "b", f"{URI}/{absolute}")
    lakeside.commit()
    imported(lakeside, "c", staged)
    garbage = {lay(lakeside, "objects/3"), lay(lakeside, "data/flat2"), lay(lakeside, "top"), lay(lakeside, "dat/x")}
    young = lay(lakeside, "objects/young", age_days=6.9)
    in_slice = lakeside.upload("d")
    lakeside.delete("d")
    beside = lay(lakeside, f"{in_slice}.bak")
    lay(lakeside, "_lakefs/notes")

    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.OLD_LAYOUT)
    assert (plan.mode, plan.totals.all.objects, plan.totals.all.size_bytes) == (RunMode.OLD_LAYOUT, 4, 12)
    report = lakeside.collector.apply(spark, plan.run_id)

    assert (report.objects_deleted, report.objects_failed) == (4, 0)
    assert there(lakeside) == {committed, absolute, staged, young, in_slice, beside}
    assert not garbage & there(lakeside)
    assert (lakeside.folder / "_lakefs/notes").exists()


def test_no_other_run_takes_such_objects_nor_saves_anything_of_this_one(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    old = lay(lakeside, "objects/1")
    clean = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)
    lakeside.collector.apply(spark, clean.run_id)
    deferred = lakeside.collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.OLD_LAYOUT)
    lakeside.collector.apply(spark, deferred.run_id, window="1d")
    beside = lakeside.collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.CLEAN)
    assert (beside.totals.all.objects, old in there(lakeside)) == (0, True)
    lakeside.end_window(deferred.run_id)
    assert lakeside.collector.purge(spark).objects_purged == 1

    after = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    assert clean.totals.all.objects == 0
    assert old not in there(lakeside)
    assert (after.based_on, after.totals.all.objects) == (clean.run_id, 0)
    assert lakeside.collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.CLEAN).unknown_files == ()


def test_what_was_rewritten_after_the_plan_stays_and_the_run_ends(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    rewritten, garbage = lay(lakeside, "table/1"), lay(lakeside, "table/2")
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.OLD_LAYOUT)
    lakeside.wait(lakeside.objectstore.put(rewritten, b"new"))

    report = lakeside.collector.apply(spark, plan.run_id)

    assert there(lakeside) == {rewritten}
    assert (report.objects_deleted, report.objects_kept, report.bytes_kept, report.objects_failed) == (1, 1, 3, 0)
    assert report.state is RunState.ENDED
    assert {row["address"]: row["state"] for row in lakeside.ledger()} == {rewritten: "kept", garbage: "deleted"}


@pytest.mark.parametrize("ahead_days", [8, -8])
def test_what_is_young_by_either_clock_stays(spark: SparkSession | None, lakeside: Lakeside, ahead_days: int) -> None:
    young = lay(lakeside, "table/1", age_days=1 if ahead_days > 0 else 10)
    lakeside.clock.ms += ahead_days * DAY_MS

    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.OLD_LAYOUT)

    assert (plan.listing and plan.listing.objects, plan.totals.all.objects) == (1, 0), young


def test_a_repository_inside_the_namespace_stops_the_plan(spark: SparkSession | None, lakeside: Lakeside) -> None:
    for key in ("table/1", "team/_lakefs/dummy", f"team/{format_address(7, 1)}"):
        lay(lakeside, key)

    with pytest.raises(NamespaceInside, match=f"{URI}/team may be another repository's namespace"):
        lakeside.collector.plan(spark, RunKind.UNCOMMITTED, mode=Mode.OLD_LAYOUT)


@pytest.mark.parametrize("key", ["top", "data/flat", "data/x/y", "a b/ü", "_lakef/x", "data/0000000000000/sub"])
def test_keys_of_old_layouts_are_known(key: str) -> None:
    assert is_elsewhere(key) == (key != "data/0000000000000/sub")


@pytest.mark.parametrize(
    "key",
    [
        "_lakefs/dummy",
        "_lakefs",
        format_address(7, 1),
        "data/0000000000007/x",
        "data/../_lakefs/dummy",
        "a//b",
        "/a",
        ".lakebed-tmp/x",
        "a/.lakebed-tmp/x",
        "team/_lakefs/dummy",
        f"team/{format_address(7, 1)}",
        "",
    ],
)
def test_nothing_of_ours_and_no_tricks_are_keys_of_old_layouts(key: str) -> None:
    assert not is_elsewhere(key)
