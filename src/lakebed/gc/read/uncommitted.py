"""What nobody has committed yet: the addresses that the server wrote for this run (table UNCOMMITTED).

The server read cells first, touched the branches, then read uploads and copies (docs/design/protocols.md). Every part
is checked against the manifest that came with the answer: a part less would read as "nobody names these objects".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from lakebed import handoff
from lakebed.base import FOREIGN_SLICE
from lakebed.blocks import BlockStore
from lakebed.gc.files import Lake, Work, in_tasks, whole
from lakebed.gc.keys import HELD_MAX, write_held
from lakebed.gc.packing import LiveSet
from lakebed.gc.parts import parts_of, read_part, rows_of_parts, spread
from lakebed.gc.places import Namespace
from lakebed.gc.tables import LIVE, PARTS


def uncommitted_objects(
    spark: SparkSession, lake: Lake, manifest: handoff.Manifest, *, tasks: int, keys_into: str | None = None
) -> DataFrame:
    """LIVE: every address in the input, relative or absolute. `keys_into`: as for `live_objects`.

    Raises:
        BadInput: as `reading_uncommitted`. Parts that differ from the manifest stop the job.
    """
    named = spread(spark, PARTS, rows_of_parts(manifest.parts), tasks=tasks)
    return LIVE.of(
        named.mapInArrow(in_tasks(lake, reading_uncommitted(manifest, lake.uri, keys_into), LIVE), LIVE.spark)
    )


def check_table(manifest: handoff.Manifest, table: handoff.Table) -> None:
    if handoff.check_manifest(manifest, name=manifest.folder) is not table:
        raise handoff.BadInput(f"{manifest.folder} is a table of {manifest.table}, not {table.name}", input=table.name)


def reading_uncommitted(manifest: handoff.Manifest, uri: str, keys_into: str | None = None) -> Work:
    """The work of `uncommitted_objects`: from PARTS of the input to LIVE.

    Raises:
        BadInput: the manifest is not one of the table UNCOMMITTED, or of a version not known here.
    """
    check_table(manifest, handoff.UNCOMMITTED)

    async def work(store: BlockStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        live = LiveSet()
        for part in parts_of(whole(share)):
            data = await read_part(store, manifest.folder, part)
            rows = handoff.read_part(manifest, handoff.UNCOMMITTED, part, data, ["slice", "sequence"])
            if pc.any(pc.equal(rows["slice"], FOREIGN_SLICE)).as_py():
                # Texts are most of the bytes, and only foreign addresses need theirs.
                rows = handoff.read_part(manifest, handoff.UNCOMMITTED, part, data)
            add_named(live, rows, Namespace(uri))
            if keys_into is not None:
                await write_held(store, keys_into, live, most=HELD_MAX)
        if keys_into is not None:
            await write_held(store, keys_into, live)
        yield live.rows()

    return work


def add_named(live: LiveSet, rows: pa.Table, namespace: Namespace) -> None:
    """Add what `rows` (columns slice, sequence, address as entries have them) name inside the namespace. The address
    is asked for only where a slice is foreign."""
    slices = rows["slice"].to_numpy()
    numbered = slices != FOREIGN_SLICE
    live.add_numbers(slices[numbered], rows["sequence"].to_numpy()[numbered])
    if numbered.all():
        return
    addresses = rows["address"]
    if numbered.any():
        addresses = addresses.filter(pa.array(~numbered))
    live.add_addresses(addresses.combine_chunks(), namespace)
