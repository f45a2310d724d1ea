"""What every stage of a run works with, and how it reads the inputs that the server wrote for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakebed.base import parse_slice_name
from lakebed.gc import protocol
from lakebed.gc.protocol import BadInput, Manifest
from lakebed.gc.rules import MetadataRule

from .files import Files, Lake
from .live_side import LiveSide
from .read import check_table
from .runs import Progress
from .tables import SETTLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """`session` returns one of this machine, of a cluster, or of Spark Connect; it is called when Spark is needed.
    Files and folders are dealt into `tasks` tasks: about four for each core of the cluster is good.
    """

    session: Callable[[], SparkSession]
    live_side: LiveSide
    lake: Lake
    tasks: int
    progress: Progress
    metadata: MetadataRule = field(default_factory=MetadataRule)

    @property
    def spark(self) -> SparkSession:
        return self.session()

    def settled(self, names: Sequence[str]) -> DataFrame:
        """SETTLED: the slices in which objects may be doomed."""
        return self.spark.createDataFrame(SETTLED.rows({"bucket": slice_numbers(names)}), SETTLED.spark)


def slice_numbers(names: Sequence[str]) -> list[int]:
    """Ascending, each once.

    Raises:
        BadInput: a name that no slice has.
    """
    numbers: set[int] = set()
    for name in names:
        number = parse_slice_name(name)
        if number is None:
            raise BadInput(f"{name!r} is listed as a settled slice, and no slice is called so", input="settled slices")
        numbers.add(number)
    return sorted(numbers)


def read_input(files: Files, manifest: Manifest, table: protocol.Table) -> pa.Table:
    """A whole input, on the driver, checked against its manifest to the last byte. For commits, refs and the like.

    Raises:
        BadInput: it is another table; a part is missing, short or changed.
    """
    check_table(manifest, table)
    present = files.sizes(manifest.folder)
    protocol.check_listing(manifest, present)
    data = files.read_all([manifest.folder + part.name for part in manifest.parts])
    parts = [
        protocol.read_part(manifest, table, part, bytes_) for part, bytes_ in zip(manifest.parts, data, strict=True)
    ]
    return protocol.join_parts(manifest, table, parts)


def write_input(files: Files, folder: str, table: protocol.Table, rows: pa.Table) -> Manifest:
    """An input of one part, of our own making."""
    data = protocol.encode_part(table, rows)
    name = protocol.part_name(0)
    files.write(folder + name, data)
    return protocol.manifest_of(table, folder, [protocol.part_of(name, data, rows=rows.num_rows)])
