"""The collection of a deleted repository on both engines: the same objects go, and what others name stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from lakebed.base import Entry, from_row
from lakebed.gc.engines import LocalEngine
from lakebed.gc.engines.files import Lake
from lakebed.gc.engines.spark import SparkEngine
from lakebed.gc.messages import Service
from lakebed.gc.runs.context import RunContext
from lakebed.objectstore import ObjectStore, ObjectStoreOptions, open_deleter, open_objectstore
from lakebed.runtime import LiveClock
from tests.gc.live.test_deleted import Installation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

URI = "local://lake/repo"


class OnDisk(Installation):
    """Namespaces are folders, whose dates are real: so the deletion lies ten days back."""

    def __init__(self, folder: Path, spark: SparkSession | None) -> None:
        super().__init__()
        self.options = ObjectStoreOptions(local_root=folder, local_durable=False)
        self.spark = spark
        self.clock.ms = LiveClock().now_ms()
        self.days(-10)

    def open(self, uri: str) -> ObjectStore:
        return open_objectstore(uri, self.options)

    async def context(self, name: str = "lake") -> RunContext:
        service = await self.service(name)
        uri = await service.namespace()
        store, spark = self.open(uri), self.spark
        local = LocalEngine(store, self.ports, open_deleter=lambda: open_deleter(uri, self.options), shares=2)
        lake = Lake(uri=uri, options=self.options)
        return RunContext(
            repository=name,
            service=Service(service),
            engine=local if spark is None else SparkEngine(lambda: spark, lake, local, tasks=2, job_s=-1, start_s=-1),
            store=store,
            ports=self.ports,
            progress=lambda _: None,
        )


def test_all_that_is_own_goes_and_what_another_repository_names_stays(
    spark: SparkSession | None, tmp_path: Path
) -> None:
    async def collect() -> tuple[set[str], set[str], str]:
        here = OnDisk(tmp_path, spark)
        made = await here.repository(uri=URI)
        for number in range(5):
            await made.objects.upload("main", f"more/{number}", b"x")
        _, row = (await made.versions.staging.list("main")).items[0]
        assert row is not None
        kept = from_row(row).address
        other = await here.catalog.create("other", storage_namespace="local://lake/other")
        named = Entry(address=f"{URI}/{kept}", size_bytes=1, checksum="x", modified_ms=0)
        await other.versions.staging.put("main", b"theirs", named)
        await here.open(URI).put("imported/x", b"x")
        await here.catalog.delete("lake")
        here.days(9)

        plan = await here.plan()
        report = await here.apply(plan)

        assert report.objects_deleted == plan.totals.all.objects
        return await here.keys(URI), {kept, "imported/x"}, await here.state()

    left, stays, state = asyncio.run(collect())

    assert {key for key in left if key.startswith(("data/", "imported/"))} == stays
    assert not [key for key in left if key.startswith(("_lakefs/ranges/", "_lakefs/metaranges/"))]
    assert state == "collecting"
