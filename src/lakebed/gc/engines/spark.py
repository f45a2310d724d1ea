"""The Spark engine: deal rows to tasks; each task runs the work on its own event loop.

It uses only DataFrames, so the session may be local, of a cluster, or of Spark Connect. The first step that is worth a
session starts it. Smaller steps run in this process.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Invalid
from lakebed.gc.messages import BadInput, EngineName
from lakebed.objectstore import ObjectStore, open_deleter
from lakebed.runtime import live_ports

from .engine import DeletingWork, Effort, Engine, LocalEngine, Table, Task, Work
from .failures import marked, translated
from .files import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as T  # noqa: N812 - the name that all Spark code uses

R = TypeVar("R")

JOB_S: Final = 1.0
"""With a session, run a step of up to this effort in this process: 64 slices to list, 1,000 ends of files to read."""

TASKS_A_CORE: Final = 4
"""Small shares balance the load: a core that finishes early takes another."""

TASKS_MIN: Final = 16
"""The least number of tasks, for a cluster whose executors have not registered yet."""

_NO_LIMIT: Final = 1 << 20
"""No cluster has this many executors or cores. A larger number in Spark's settings means "no limit"."""

SESSION_S: Final = 10.0
"""Without a session, run a step of up to this effort in this process: a start takes 5 to 10 seconds of two cores."""


class SparkEngine:
    """Run large steps as Spark jobs. `session` is called when a session is first needed. A step of more effort than
    `job_s` becomes a job; before the session starts, a step of more than `start_s`."""

    def __init__(
        self,
        session: Callable[[], SparkSession],
        lake: Lake,
        local: LocalEngine,
        *,
        tasks: int | None,
        job_s: float,
        start_s: float,
    ) -> None:
        self._session = session
        self._spark: SparkSession | None = None
        self._lake = lake
        self._local = local
        self._tasks = tasks
        self._job_s = job_s
        self._start_s = start_s

    async def run(self, work: Work, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:
        """Run a small step in this process, and a large one as a job.

        Raises:
            TaskCorrupt, TaskUnavailable, TaskStopped: a task raised an error of that family.
        """
        if self._is_small(rows, effort):
            return await self._local.run(work, rows, out, effort=effort)
        return self._collect(work, rows, out)

    async def run_deleting(self, work: DeletingWork, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:
        if self._is_small(rows, effort):
            return await self._local.run_deleting(work, rows, out, effort=effort)
        return self._collect(_with_deleter(self._lake, work), rows, out)

    def _is_small(self, rows: pa.Table, effort: Effort) -> bool:
        # A job costs Spark more than reading a few files.
        limit_s = self._start_s if self._spark is None else self._job_s
        return not rows.num_rows or effort.seconds <= limit_s

    def _collect(self, work: Work, rows: pa.Table, out: Table) -> pa.Table:
        if self._spark is None:
            self._spark = self._session()
        run = in_tasks(self._lake, work, out, counts_rows=True)
        with translated():
            answer = spread(self._spark, rows, tasks=self._tasks).mapInArrow(run, schema_of(_counted(out)))
            found: pa.Table = answer.toArrow()
        is_count = found[_DEALT].is_valid()
        dealt = pc.sum(found.filter(is_count)[_DEALT]).as_py() or 0
        if dealt != rows.num_rows:
            # A row that no task got would mean "no file names these objects".
            raise BadInput(f"Spark's tasks were dealt {dealt} rows of {rows.num_rows}", input="rows of a step")
        return found.filter(pc.invert(is_count)).select(out.schema.names).cast(out.schema)


_DEALT: Final = "dealt"


def _counted(out: Table) -> Table:
    """Return `out` with one more column. Each share adds a row with only its number of dealt rows."""
    fields = [field.with_nullable(True) for field in out.schema]
    return Table(out.meaning, pa.schema([*fields, pa.field(_DEALT, pa.int64())]))


def open_engine(
    name: EngineName,
    lake: Lake,
    store: ObjectStore,
    *,
    session: Callable[[], SparkSession],
    tasks: int | None,
) -> Engine:
    """Open the engine of this name. `auto` starts no session for a run with little work."""
    ports = live_ports()
    local = LocalEngine(store, ports, open_deleter=lambda: open_deleter(lake.uri, lake.options))
    if name is EngineName.LOCAL:
        return local
    start_s = SESSION_S if name is EngineName.AUTO else JOB_S
    return SparkEngine(session, lake, local, tasks=tasks, job_s=JOB_S, start_s=start_s)


def tasks_of(spark: SparkSession) -> int:
    """Return the number of tasks for the cluster of this session."""
    return tasks_for(_cores_now(spark), lambda name: spark.conf.get(name, ""))


def tasks_for(cores: int, setting: Callable[[str], str | None]) -> int:
    """Return four tasks a core, at least TASKS_MIN. Includes executors that the settings promise."""
    each = _count(setting("spark.executor.cores")) or 1
    promised = _count(setting("spark.executor.instances"))
    if setting("spark.dynamicAllocation.enabled") == "true":
        promised = max(promised, _count(setting("spark.dynamicAllocation.maxExecutors")))
    return max(TASKS_MIN, TASKS_A_CORE * max(cores, each * promised))


def _count(value: str | None) -> int:
    """Return the number of a setting, or 0 if it has none or one that means "no limit"."""
    number = int(value) if value and value.isdecimal() else 0
    return number if number < _NO_LIMIT else 0


def _cores_now(spark: SparkSession) -> int:
    from pyspark.errors import PySparkAttributeError
    from pyspark.sql import functions as F  # noqa: N812 - the name that all Spark code uses

    try:
        return spark.sparkContext.defaultParallelism
    except PySparkAttributeError:
        # A client of Spark Connect has no context. Spark makes one partition of a range for each core.
        return spark.range(_NO_LIMIT).select(F.spark_partition_id()).distinct().count()


_TASK: Final = "task"
"""The column with the number of each row's task."""

InTask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def frame(spark: SparkSession, lake: Lake, work: Work, rows: pa.Table, out: Table, *, tasks: int | None) -> DataFrame:
    """Return a DataFrame of `out` whose rows are computed on use."""
    return spread(spark, rows, tasks=tasks).mapInArrow(in_tasks(lake, work, out), schema_of(out))


def spread(spark: SparkSession, rows: pa.Table, *, tasks: int | None) -> DataFrame:
    """Deal rows to at most `tasks` tasks, by default as many as fit the session. Each row names a file, a folder or a
    bucket."""
    # Count at each step: a cluster's executors come and go, and few have registered at the first step.
    tasks = tasks or tasks_of(spark)
    tasks = max(1, min(tasks, rows.num_rows))
    # Deal in turn. `repartition` deals at random: with 25 rows, some of 16 tasks get three or four, and others none.
    dealt = rows.append_column(_TASK, pa.array(np.arange(rows.num_rows, dtype=np.int32) % tasks))
    # One chunk: from a table whose first chunk is empty, Spark makes a DataFrame without rows.
    df = spark.createDataFrame(dealt.combine_chunks(), schema_of(Table("rows of a step", dealt.schema)))
    df = df.repartitionById(tasks, _TASK) if deals_in_turn(spark.version) else df.repartition(tasks)
    return df.drop(_TASK)


def deals_in_turn(version: str) -> bool:
    """Return whether this version of Spark has `repartitionById` (4.1 and later). With Spark Connect, pass the server's
    version.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= (4, 1)


def in_tasks(lake: Lake, work: Work, out: Table, *, counts_rows: bool = False) -> InTask:
    """Return the function for `mapInArrow`: `work` over a partition's rows. A partition without rows costs nothing."""
    schema = _counted(out).schema if counts_rows else out.schema

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        share = [batch for batch in batches if batch.num_rows]
        if not share:
            return
        rows = pa.Table.from_batches(share)
        with marked():
            for table in _stepwise(lake, work, rows):
                found = table.select(out.schema.names)
                if counts_rows:
                    found = found.append_column(_DEALT, pa.nulls(found.num_rows, pa.int64()))
                yield from found.cast(schema).to_batches()
            if counts_rows:
                yield from pa.Table.from_pylist([{_DEALT: rows.num_rows}], schema).to_batches()

    return run


def _stepwise(lake: Lake, work: Work, share: pa.Table) -> Iterator[pa.Table]:
    from pyspark import TaskContext

    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    with asyncio.Runner() as runner:
        store = lake.open()
        rows = work(Task(store=store, ports=live_ports(), number=number), share)
        try:
            while (found := runner.run(_next(rows))) is not None:
                yield found
        finally:
            runner.run(store.close())


async def _next(rows: AsyncIterator[R]) -> R | None:
    return await anext(rows, None)


def _with_deleter(lake: Lake, work: DeletingWork) -> Work:
    async def deleting(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        deleter = open_deleter(lake.uri, lake.options)
        try:
            async for rows in work(task, deleter, share):
                yield rows
        finally:
            await deleter.close()

    return deleting


def schema_of(table: Table) -> T.StructType:
    from pyspark.sql import types as T  # noqa: N812 - the name that all Spark code uses

    return T.StructType([T.StructField(f.name, _spark_type(f.type), f.nullable) for f in table.schema])


def _spark_type(type_: pa.DataType) -> T.DataType:
    from pyspark.sql import types as T  # noqa: N812 - the name that all Spark code uses

    known: dict[pa.DataType, T.DataType] = {
        pa.bool_(): T.BooleanType(),
        pa.int32(): T.IntegerType(),
        pa.int64(): T.LongType(),
        pa.string(): T.StringType(),
        pa.binary(): T.BinaryType(),
        pa.timestamp("us", tz="UTC"): T.TimestampType(),
    }
    return T.ArrayType(T.StringType(), containsNull=False) if pa.types.is_list(type_) else known[type_]


def active_session() -> SparkSession:
    """Return the active session of this process.

    Raises:
        Invalid: no session is active.
    """
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        raise Invalid("no Spark session was given and none is active")
    return spark
