"""Run the work of a collection: the tables between its steps, one port with one method, and the engine of this process.

A step of a collection is a `Work`: an async function from a share of rows to rows. The input rows name files, folders
or buckets. The output rows name the files that the work wrote. So both are small, and all large data passes through the
object store. An engine decides nothing: every engine returns the same rows, and property tests hold them equal.

The local engine does the same work in this process, with the stores and ports that it gets. It needs neither Spark
(spark.py) nor its own event loop, so it also runs inside the simulator.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakebed.base import NotFound, Ports
from lakebed.gc import messages
from lakebed.objectstore import Deleter, ObjectStore

# Tables between steps. Those that travel to or from the server are declared in `lakebed.gc.messages`; the others stay
# in a run. A manifest names each part with its digest, and a reader checks it. So a missing, short or changed part
# stops the run with its name, whichever attempt wrote it.

_STRINGS: Final = pa.list_(pa.field("element", pa.string(), nullable=False))


@dataclass(frozen=True, slots=True)
class Table:
    """`later`: binary columns that files of earlier releases lack, read as empty."""

    meaning: str
    schema: pa.Schema
    later: tuple[str, ...] = ()

    def rows(self, columns: dict[str, object]) -> pa.Table:
        """Return Arrow rows of this table from columns by name, in any order."""
        return pa.table({name: columns[name] for name in self.schema.names}, schema=self.schema)


def required(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, type_, nullable=False) for name, type_ in columns])


def _of_handoff(table: messages.Table) -> pa.Schema:
    """Return the table's schema in Spark, whose only precision of instants is microseconds."""
    micros = pa.timestamp("us", tz="UTC")
    fields = [f.with_type(micros) if pa.types.is_timestamp(f.type) else f for f in messages.arrow_schema(table)]
    return pa.schema(fields)


def check_whole(rows: pa.Table, what: str) -> None:
    """Check that rows have no null.

    Raises:
        BadInput: a null: the code that made the rows is broken. The error calls the rows `what`.
    """
    for name in rows.column_names:
        column = rows[name]
        # A null would fall out of every comparison, and its object would seem unnamed.
        inner = pc.list_flatten(column).null_count if pa.types.is_list(column.type) else 0
        if column.null_count or inner:
            raise messages.BadInput(f"{what}: null in column {name}", input=what, column=name)


def without(rows: pa.Table, ids: pa.Array | pa.ChunkedArray | Collection[str], name: str = "address") -> pa.Table:
    """Return the rows whose text in the column `name` is not among `ids`."""
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    value_set = ids.cast(pa.string()) if isinstance(ids, pa.Array) else pa.array(sorted(ids), pa.string())
    return rows.filter(pc.invert(pc.is_in(rows[name], value_set=value_set))) if len(value_set) else rows


def check_table(manifest: messages.Manifest, table: messages.Table) -> None:
    """Check that the manifest is of this table, or raise BadInput."""
    if messages.check_manifest(manifest, name=manifest.folder) is not table:
        raise messages.BadInput(f"{manifest.folder} is a table of {manifest.table}, not {table.name}", input=table.name)


GARBAGE: Final = Table(messages.GARBAGE.meaning, _of_handoff(messages.GARBAGE))

LEDGER: Final = Table(messages.LEDGER.meaning, _of_handoff(messages.LEDGER))

VERDICTS: Final = Table(
    "garbage, with what the totals of a plan are summed by: branch and first folder of a path that had it",
    pa.schema([*GARBAGE.schema, *required(("branch", pa.string()), ("prefix", pa.string()))]),
)

OTHERS: Final = ("other_paths", "other_rules")


def no_others(count: int) -> dict[str, pa.Array]:
    """Return null columns for this many verdicts with one path and one rule each, seen in no range."""
    return {name: pa.nulls(count, GARBAGE.schema.field(name).type) for name in (*OTHERS, "seen_in")}


# CANDIDATES and LIVE are packed: one row holds many objects of one bucket. A bucket is a slice, or (negative) one of a
# fixed number of hash classes of foreign addresses. So all rows about an object share its bucket
# (gc/mark/sets/packing.py).
CANDIDATES: Final = Table(
    "packed: objects of one bucket that go unless something names them, and why; an object may come several times",
    required(
        ("bucket", pa.int64()),
        ("sequences", pa.binary()),  # uint32, little-endian; empty in a foreign bucket
        ("addresses", _STRINGS),  # keys inside the namespace; empty in a slice
        ("sizes", pa.binary()),  # int64, little-endian, in the order of the sequences or addresses
        ("seen_ms", pa.binary()),  # int64, same order: the last write, or the date of the newest commit that had it
        ("paths", _STRINGS),  # same order: the path in that commit; or no paths at all
        ("seen_in", pa.binary()),  # int64, same order: the `range_number` of the entry's range, or 0; or empty
        ("reason", pa.string()),
        ("rule", pa.string()),
        ("branch", pa.string()),
        ("prefix", pa.string()),
    ),
    later=("seen_in",),
)

LIVE: Final = Table(
    "packed: objects of one bucket that something names; a bucket may come several times",
    required(
        ("bucket", pa.int64()),
        ("bitmap", pa.binary()),  # bit s % 8 of byte s // 8 is sequence s; empty in a foreign bucket
        ("addresses", _STRINGS),  # keys inside the namespace; empty in a slice
    ),
)

CLOSED: Final = Table("slices that were closed when the run began, each once", required(("bucket", pa.int64())))

METARANGES: Final = Table(
    "a distinct metarange to read: live if any commit that stays has it, else what is known of its newest commit",
    required(
        ("metarange_id", pa.string()),
        ("is_live", pa.bool_()),
        ("seen_ms", pa.int64()),
        ("reason", pa.string()),
        ("rule", pa.string()),
        ("branch", pa.string()),
    ),
)

RANGES: Final = Table(
    "a range that some metarange names; the other columns are those of its metarange",
    required(
        ("range_id", pa.string()),
        ("count", pa.int64()),  # number of entries by its metarange; 0 for a sublist
        ("file_bytes", pa.int64()),  # approximate
        ("is_live", pa.bool_()),
        ("seen_ms", pa.int64()),
        ("reason", pa.string()),
        ("rule", pa.string()),
        ("branch", pa.string()),
    ),
)

RANGE_IDS: Final = Table("a range whose objects a run has taken into account", required(("range_id", pa.string())))

PARTS: Final = Table(
    "a Parquet part that a task wrote into the run's folder",
    required(
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("sha256", pa.string()),
        ("note", pa.binary()),  # JSON; further facts from the task, by its kind
    ),
)


async def write_part(store: ObjectStore, folder: str, name: str, data: bytes, *, rows: int, note: object) -> pa.Table:
    """Store the part, and return its PARTS row. A repeated task writes the same bytes under the same name."""
    part = messages.part_of(name, data, rows=rows)
    await store.put(folder + name, data)
    return rows_of_parts([part], notes=[msgspec.json.encode(note)])


async def read_part(store: ObjectStore, folder: str, part: messages.Part) -> bytes:
    """Return the bytes of a part, checked against its manifest, or raise BadInput."""
    key = folder + part.name
    try:
        data = await store.get(key)
    except NotFound as error:
        raise messages.BadInput(f"{key} is missing", missing=key, part=part.name) from error
    if messages.part_of(part.name, data, rows=part.rows) != part:
        raise messages.BadInput(f"{folder}{part.name} contradicts its size or digest", part=part.name)
    return data


def encode(table: Table, rows: pa.Table) -> bytes:
    """Write rows of a table as Parquet."""
    # LZ4 halves a packed listing and reads a million objects in 8 ms. zstd: a third of the size, and 26 ms.
    buffer = io.BytesIO()
    pq.write_table(rows.cast(table.schema), buffer, compression="lz4", use_dictionary=False)
    return buffer.getvalue()


def decode(table: Table, data: bytes, part: messages.Part) -> pa.Table:
    """Read rows of a table from Parquet, or raise BadInput."""
    try:
        rows = messages.read_parquet(data)
        for name in set(table.later) - set(rows.schema.names):
            rows = rows.append_column(name, pa.array([b""] * rows.num_rows, pa.binary()))
        rows = rows.select(table.schema.names).cast(table.schema)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise messages.BadInput(f"{part.name} is not a table of {table.meaning}: {error}", part=part.name) from error
    if rows.num_rows != part.rows:
        raise messages.BadInput(f"{part.name} has {rows.num_rows} rows instead of {part.rows}", part=part.name)
    return rows


def check_numbered(packed: pa.Table, name: str) -> None:
    """Check that CANDIDATES or LIVE have only objects of slices, or raise BadInput."""
    if not pc.all(pc.greater_equal(packed["bucket"], 0), min_count=0).as_py():
        raise messages.BadInput(f"{name} holds objects that are in no slice", part=name)


def rows_of_parts(parts: Sequence[messages.Part], notes: Sequence[bytes] = ()) -> pa.Table:
    return PARTS.rows(
        {
            "name": [part.name for part in parts],
            "rows": [part.rows for part in parts],
            "size_bytes": [part.size_bytes for part in parts],
            "sha256": [part.sha256 for part in parts],
            "note": list(notes) or [b""] * len(parts),
        }
    )


def rows_by_key(tables: Iterable[messages.Manifest | messages.Pieces]) -> pa.Table:
    """Return PARTS of several folders, each named by its whole key."""
    return rows_of_parts(
        [msgspec.structs.replace(part, name=table.folder + part.name) for table in tables for part in table.parts]
    )


def parts_of(rows: pa.Table) -> list[messages.Part]:
    columns = rows.select(["name", "rows", "size_bytes", "sha256"]).to_pylist()
    return [messages.Part(**row) for row in columns]


A = TypeVar("A")
T = TypeVar("T")

REQUESTS_A_SECOND: Final = 1024
BYTES_A_SECOND: Final = 64 << 20

ROWS_PER_PART: Final = 10_000
"""A part is the unit of progress: a core that loses its executor repeats one part, and two cores share at least one. A
plan of ten million objects has a thousand parts. Tenfold parts would save half the bytes and 2 s of CPU in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Give one share of work its tools: the namespace, its own ports, and the number of the share. A part of a plan has
    at most `rows_per_part` rows.
    """

    store: ObjectStore
    ports: Ports
    number: int = 0
    rows_per_part: int = ROWS_PER_PART

    def ahead(self, items: Sequence[A], read: Callable[[A], Awaitable[T]]) -> AsyncIterator[tuple[A, T]]:
        """Yield each item with the result of `read`, in order, several at a time."""
        return self.ports.tasks.ahead(items, read)


Work: TypeAlias = Callable[[Task, pa.Table], AsyncIterator[pa.Table]]
"""Read or write the files that the rows of one share name, and yield rows. A share has at least one row."""

DeletingWork: TypeAlias = Callable[[Task, Deleter, pa.Table], AsyncIterator[pa.Table]]
"""A `Work` with the right to delete. Only sweep.py has such work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Estimate the cost of a step in one process: small reads as requests, large reads by their bytes."""

    requests: float = 0
    size_bytes: int = 0

    @property
    def seconds(self) -> float:
        return self.requests / REQUESTS_A_SECOND + self.size_bytes / BYTES_A_SECOND


class Engine(Protocol):
    async def run(self, work: Work, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:
        """Deal `rows` into shares, run `work` over each, and return all yielded rows, as rows of `out`.

        Without rows no work runs. The order of shares is free. A share may run twice, even concurrently: work writes
        equal bytes under equal names.
        """
        ...

    async def run_deleting(self, work: DeletingWork, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:
        """Do as `run`, for the sweep."""
        ...


class LocalEngine:
    """Run shares one after the other. Only `run_deleting` calls `open_deleter`. Only the simulator sets
    `rows_per_part`, to get small parts.
    """

    def __init__(
        self,
        store: ObjectStore,
        ports: Ports,
        *,
        open_deleter: Callable[[], Deleter],
        shares: int = 1,
        rows_per_part: int = ROWS_PER_PART,
    ) -> None:
        self._store = store
        self._ports = ports
        self._open_deleter = open_deleter
        self._shares = shares
        self._rows_per_part = rows_per_part

    async def run(self, work: Work, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:  # noqa: ARG002 - the port's
        found = [out.schema.empty_table()]
        shares = min(self._shares, rows.num_rows)
        for number in range(shares):
            task = Task(store=self._store, ports=self._ports, number=number, rows_per_part=self._rows_per_part)
            share = rows.take(pa.array(range(number, rows.num_rows, shares)))
            found += [table.select(out.schema.names) async for table in work(task, share)]
        return pa.concat_tables(found)

    async def run_deleting(self, work: DeletingWork, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:
        if not rows.num_rows:
            return out.schema.empty_table()
        deleter = self._open_deleter()

        def with_deleter(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
            return work(task, deleter, share)

        try:
            return await self.run(with_deleter, rows, out, effort=effort)
        finally:
            await deleter.close()
