"""What nobody has committed yet: the addresses that the server wrote for this run (table UNCOMMITTED).

The server read cells first, touched the branches, then read uploads and copies (docs/design/protocols.md). Every part
is checked against the manifest that came with the answer: a part less would read as "nobody names these objects".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from lakebed.base import FOREIGN_SLICE
from lakebed.gc import protocol
from lakebed.gc.files import Lake, Work, in_tasks, whole
from lakebed.gc.here import BYTES_HERE, run_here
from lakebed.gc.keys import HELD_MAX, KeyFiles, KeySet, files_of
from lakebed.gc.packing import LiveSet
from lakebed.gc.parts import parts_of, read_part, rows_of_parts, spread
from lakebed.gc.places import Namespace
from lakebed.gc.tables import LIVE, PARTS
from lakebed.objectstore import ObjectStore


def uncommitted_objects(
    spark: SparkSession, lake: Lake, manifest: protocol.Manifest, *, tasks: int, with_keys: bool
) -> DataFrame:
    """LIVE: every address in the input, relative or absolute; foreign keys only if they are wanted.

    Raises:
        BadInput: as `reading_uncommitted`. Parts that differ from the manifest stop the job.
    """
    named = spread(spark, PARTS, rows_of_parts(manifest.parts), tasks=tasks)
    work = reading_uncommitted(manifest, lake.uri, with_keys=with_keys)
    return LIVE.of(named.mapInArrow(in_tasks(lake, work, LIVE), LIVE.spark))


def uncommitted_keys(
    spark: SparkSession, lake: Lake, manifest: protocol.Manifest, *, tasks: int, folder: str
) -> KeyFiles:
    """The foreign keys alone that the input names, written into `folder` (gc/keys.py). A job, unless it is small.

    Raises:
        BadInput: as `uncommitted_objects`.
    """
    rows, work = rows_of_parts(manifest.parts), _reading_keys(manifest, lake.uri, folder)
    if manifest.size_bytes <= BYTES_HERE:
        return files_of(folder, run_here(lake, work, rows, PARTS))
    named = spread(spark, PARTS, rows, tasks=tasks)
    return files_of(folder, named.mapInArrow(in_tasks(lake, work, PARTS), PARTS.spark).toArrow())


def check_table(manifest: protocol.Manifest, table: protocol.Table) -> None:
    if protocol.check_manifest(manifest, name=manifest.folder) is not table:
        raise protocol.BadInput(f"{manifest.folder} is a table of {manifest.table}, not {table.name}", input=table.name)


def reading_uncommitted(manifest: protocol.Manifest, uri: str, *, with_keys: bool) -> Work:
    """The work of `uncommitted_objects`: from PARTS of the input to LIVE. A task holds what `reading_live` does.

    Raises:
        BadInput: the manifest is not one of the table UNCOMMITTED, or of a version not known here.
    """
    check_table(manifest, protocol.UNCOMMITTED)

    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        live, namespace = LiveSet(), Namespace(uri)
        for part in parts_of(whole(share)):
            rows, addresses = await _read(store, manifest, part)
            numbered = rows.filter(pc.not_equal(rows["slice"], FOREIGN_SLICE))
            live.add_numbers(numbered["slice"].to_numpy(), numbered["sequence"].to_numpy())
            if not with_keys:
                live.add_numbers_among(addresses, namespace)
                continue
            live.add_addresses(addresses, namespace)
            if live.keys_held >= HELD_MAX:
                yield live.take_keys()
        yield live.rows()

    return work


def _reading_keys(manifest: protocol.Manifest, uri: str, folder: str) -> Work:
    check_table(manifest, protocol.UNCOMMITTED)

    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        keys, namespace = KeySet(), Namespace(uri)
        for part in parts_of(whole(share)):
            _, addresses = await _read(store, manifest, part)
            keys.add(namespace.places_of(addresses)[0])
            if keys.held >= HELD_MAX:
                yield await keys.write(store, folder)
        if keys.held:
            yield await keys.write(store, folder)

    return work


async def _read(store: ObjectStore, manifest: protocol.Manifest, part: protocol.Part) -> tuple[pa.Table, pa.Array]:
    """The numbers of all rows (FOREIGN_SLICE in place of a slice where there are none), and the addresses of those."""
    data = await read_part(store, manifest.folder, part)
    rows = protocol.read_part(manifest, protocol.UNCOMMITTED, part, data, ["slice", "sequence"])
    is_foreign = pc.equal(rows["slice"], FOREIGN_SLICE)
    if not pc.any(is_foreign).as_py():
        # Texts are most of the bytes, and only foreign addresses need theirs.
        return rows, pa.array([], pa.string())
    texts = protocol.read_part(manifest, protocol.UNCOMMITTED, part, data, ["address"])["address"]
    return rows, texts.filter(is_foreign).combine_chunks()
