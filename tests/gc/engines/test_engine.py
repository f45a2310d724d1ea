"""Steps of a run are done without a session of Spark where they are small."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakebed.gc.engines import Effort
from lakebed.gc.engines.engine import REQUESTS_A_SECOND, Table
from lakebed.gc.engines.files import Lake
from lakebed.gc.engines.spark import open_engine
from lakebed.gc.messages import EngineName
from lakebed.objectstore import ObjectStoreOptions
from lakebed.objectstore.drivers.memory import MemoryObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = Table("rows", pa.schema([pa.field("row", pa.int64(), nullable=False)]))


class SessionWanted(Exception):
    pass


def no_session() -> SparkSession:
    raise SessionWanted


async def double(_: object, rows: pa.Table) -> AsyncIterator[pa.Table]:
    yield pa.table({"row": pc.multiply(rows["row"], 2)}, schema=ROWS.schema)


async def double_and_delete(_: object, __: object, rows: pa.Table) -> AsyncIterator[pa.Table]:
    yield rows


@pytest.mark.parametrize(
    ("engine", "rows", "seconds", "is_wanted"),
    [
        (EngineName.SPARK, [], 1_000.0, False),
        (EngineName.SPARK, [1, 2], 0.5, False),
        (EngineName.SPARK, [1, 2], 2.0, True),
        (EngineName.AUTO, [1, 2], 2.0, False),
        (EngineName.AUTO, [1, 2], 20.0, True),
        (EngineName.LOCAL, [1, 2], 1_000.0, False),
    ],
)
async def test_nothing_to_do_starts_no_session_and_little_to_do_neither(
    engine: EngineName, rows: list[int], seconds: float, is_wanted: bool
) -> None:
    store = MemoryObjectStore("mem://tests")
    opened = open_engine(
        engine, Lake(uri="mem://tests", options=ObjectStoreOptions()), store, session=no_session, tasks=2
    )
    table, effort = pa.table({"row": rows}, schema=ROWS.schema), Effort(requests=seconds * REQUESTS_A_SECOND)

    if is_wanted:
        for run in (
            opened.run(double, table, ROWS, effort=effort),
            opened.run_deleting(double_and_delete, table, ROWS, effort=effort),
        ):
            with pytest.raises(SessionWanted):
                await run
    else:
        assert (await opened.run(double, table, ROWS, effort=effort))["row"].to_pylist() == [2 * row for row in rows]
