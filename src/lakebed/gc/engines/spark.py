"""The Spark engine: deal rows to tasks; each task runs the work on its own event loop.

It uses only DataFrames, so the session may be local, of a cluster, or of Spark Connect. The first step that is worth a
session starts it. Smaller steps run in this process.
"""

from __future__ import annotations

import asyncio
import gc
import io
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

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

ROWS_A_JOB: Final = 100_000
BYTES_A_JOB: Final = 10_000_000
"""A step with more rows or bytes is several jobs, for each task of a job receives all its rows."""

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
        step = min(ROWS_A_JOB, max(1, rows.num_rows * BYTES_A_JOB // max(1, rows.nbytes)))
        starts = range(0, rows.num_rows, step)
        with translated():
            found = pa.concat_tables(
                spread(
                    self._spark, rows.slice(start, step), run, _counted(out), tasks=self._tasks, first=start
                ).toArrow()
                for start in starts
            )
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


InTask: TypeAlias = Callable[[int, pa.Table], Iterator[pa.RecordBatch]]
"""Make rows of the share with this number."""


def frame(spark: SparkSession, lake: Lake, work: Work, rows: pa.Table, out: Table, *, tasks: int | None) -> DataFrame:
    """Return a DataFrame of `out` whose rows are computed on use."""
    return spread(spark, rows, in_tasks(lake, work, out), out, tasks=tasks)


def spread(
    spark: SparkSession, rows: pa.Table, run: InTask, out: Table, *, tasks: int | None, first: int = 0
) -> DataFrame:
    """Deal rows in turn to at most `tasks` tasks, by default as many as fit the session, and return what `run` makes of
    each share. Each row names a file, a folder or a bucket. The numbers of shares begin at `first`."""
    # Count at each step: a cluster's executors come and go, and few have registered at the first step.
    tasks = tasks or tasks_of(spark)
    tasks = max(1, min(tasks, rows.num_rows))
    # Each task receives all rows with the function, and takes its share. Rows of a DataFrame would be dealt by a
    # shuffle, which is a second job: a third of the time of all JVMs.
    sent = _sent(rows)

    def of_share(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                received = pa.ipc.open_stream(sent).read_all()
                yield from run(number, received.take(np.arange(number - first, received.num_rows, tasks)))

    return spark.range(first, first + tasks, 1, tasks).mapInArrow(of_share, schema_of(out))


def _sent(rows: pa.Table) -> bytes:
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, rows.schema) as writer:
        writer.write_table(rows)
    return buffer.getvalue()


def in_tasks(lake: Lake, work: Work, out: Table, *, counts_rows: bool = False) -> InTask:
    """Return `work` over a share of rows, for tasks. A share without rows costs nothing."""
    schema = _counted(out).schema if counts_rows else out.schema

    def run(number: int, share: pa.Table) -> Iterator[pa.RecordBatch]:
        if not share.num_rows:
            return
        with marked():
            for table in _stepwise(lake, work, number, share):
                found = table.select(out.schema.names)
                if counts_rows:
                    found = found.append_column(_DEALT, pa.nulls(found.num_rows, pa.int64()))
                yield from found.cast(schema).to_batches()
            if counts_rows:
                yield from pa.Table.from_pylist([{_DEALT: share.num_rows}], schema).to_batches()
        _freeze_modules()

    return run


@cache
def _freeze_modules() -> None:
    """Spare the worker's later searches for cycles, one behind each task, the modules that its first task loaded."""
    gc.collect()
    gc.freeze()


def _stepwise(lake: Lake, work: Work, number: int, share: pa.Table) -> Iterator[pa.Table]:
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
    """Return the active session of this process, or raise Invalid."""
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        raise Invalid("no Spark session was given and none is active")
    return spark
