"""Objects of expired commits that lie in no slice: imported, and perhaps somebody else's by now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lakebed.base import Entry, to_row
from lakebed.gc.messages import RunKind, RunState
from lakebed.gc.rules import DAY_MS
from tests.spark.lakeside import URI, Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lay(lakeside: Lakeside, key: str, data: bytes = b"old", *, age_days: float) -> None:
    lakeside.wait(lakeside.objectstore.put(key, data))
    written_s = (lakeside.clock.ms - age_days * DAY_MS) / 1000
    os.utime(lakeside.folder / key, (written_s, written_s))


def imported(lakeside: Lakeside, path: str, address: str, *, age_days: float = 40) -> None:
    """An entry as an import makes it: with size and date of the object."""
    modified_ms = int(lakeside.clock.ms - age_days * DAY_MS)
    entry = Entry(address=address, size_bytes=3, checksum="x", modified_ms=modified_ms)
    lakeside.wait(lakeside.versions.staging.write("main", path.encode(), 0, to_row(path.encode(), entry)))


def test_what_expired_commits_imported_goes_if_it_is_still_that_and_nothing_else_names_it(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    objects = ["same", "rewritten", "grown", "undated", "late", "shared", "staged", "later"]
    for name in objects:
        lay(lakeside, f"data/imported/{name}", age_days=40)
        imported(lakeside, name, f"data/imported/{name}", age_days=50_000 if name == "undated" else 40)
    lay(lakeside, "imported/a.csv", age_days=40)
    imported(lakeside, "outside", "imported/a.csv")
    imported(lakeside, "far", "s3://elsewhere/data/imported/same")
    lakeside.commit(age_days=30)
    for name in [*objects, "outside", "far"]:
        lakeside.delete(name)
    imported(lakeside, "kept", f"{URI}/data/imported/shared")
    lakeside.commit(age_days=20)
    imported(lakeside, "now", f"{URI}/data/imported/staged")
    lay(lakeside, "data/imported/rewritten", b"new", age_days=10)
    lay(lakeside, "data/imported/grown", b"longer", age_days=40)
    # Between the date that its entry has and the commit: the commit may mean it, somebody else may too.
    lay(lakeside, "data/imported/late", b"new", age_days=35)
    lakeside.rules(5)

    plan = lakeside.collector.plan(spark, RunKind.COMMITTED)
    lay(lakeside, "data/imported/later", b"new", age_days=0)
    report = lakeside.collector.apply(spark, plan.run_id)

    # What is staged is looked for when the plan is applied.
    assert plan.totals.all.objects == 7
    stays = set(objects) - {"same"}
    assert lakeside.addresses() == {f"data/imported/{name}" for name in stays}
    assert (lakeside.folder / "imported/a.csv").exists()
    assert (report.objects_deleted, report.objects_kept, report.objects_failed) == (1, 5, 0)
    assert report.state is RunState.ENDED
    states = {row["path"]: row["state"] for row in lakeside.ledger()}
    assert states == dict.fromkeys(("rewritten", "grown", "undated", "late", "later"), "kept") | {"same": "deleted"}
