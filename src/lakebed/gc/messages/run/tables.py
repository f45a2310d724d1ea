"""Declare the tables that server and collectors exchange, and write them as Parquet parts with a manifest.

The server derives pyarrow schemas from the declarations (`arrow_schema`), the collectors Spark schemas. Manifests have
the table's `version`. A reader accepts all versions up to its own, and reads later columns as empty or null.

An *input* is a folder of parts. Its manifest names every part with rows, bytes and SHA-256. A collector must check each
part against the manifest before it deletes. Every function returns all rows, or raises an error that names the part.
"""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from lakebed.base import Corrupt, pa, pq

__all__ = [
    "ALL_PATHS_SINCE",
    "COMMITS",
    "EXPIRED",
    "GARBAGE",
    "LEDGER",
    "LEFTOVERS",
    "POTENTIAL",
    "POTENTIAL_SETS",
    "REFS",
    "TABLES",
    "TABLE_FILES",
    "UNCOMMITTED",
    "BadInput",
    "Column",
    "Manifest",
    "Part",
    "PartWriter",
    "Table",
    "arrow_schema",
    "check_listing",
    "check_manifest",
    "check_part",
    "check_rows",
    "decode_manifest",
    "decode_part",
    "encode_manifest",
    "encode_part",
    "join_parts",
    "manifest_of",
    "part_of",
    "read_json",
    "read_parquet",
    "read_part",
]

T = TypeVar("T")
ColumnType: TypeAlias = Literal["string", "int64", "int32", "bool", "timestamp_ms", "list<string>"]
"""`timestamp_ms` is an instant in UTC, to the millisecond. Columns are not null unless declared `nullable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type: ColumnType
    nullable: bool = False
    since: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str
    version: int
    meaning: str
    columns: tuple[Column, ...]

    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def later_than(self, version: int) -> tuple[Column, ...]:
        """Return the columns that files of this version lack: strings are read as empty, nullable columns as null."""
        return tuple(column for column in self.columns if column.since > version)


def _columns(*pairs: tuple[str, ColumnType], since: int = 1) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=type_, since=since) for name, type_ in pairs)


# An address is stored as text, for people and exact joins, and as (slice, sequence), for bitmaps. A foreign address
# (lakebed.base.addresses) has slice -1 and sequence 0, so only its text identifies the object.
UNCOMMITTED: Final = Table(
    name="uncommitted",
    version=1,
    meaning="one address that a staged cell, an open upload or a tracked copy names; an address may come several times",
    columns=_columns(
        ("address", "string"),
        ("slice", "int64"),
        ("sequence", "int32"),
        ("creation_date", "timestamp_ms"),
        ("source", "string"),  # staging, upload or copy
        ("branch", "string"),  # the branch of the cell, upload or copy
    ),
)

COMMITS: Final = Table(
    name="commits",
    version=1,
    meaning="one commit record of the repository, reachable or not; by generation, then id, each once",
    columns=_columns(
        ("id", "string"),
        ("generation", "int64"),
        ("creation_date", "timestamp_ms"),
        ("metarange_id", "string"),  # empty: the commit without entries
        ("parents", "list<string>"),  # first parent first
        ("swept", "bool"),  # an earlier run deleted its data: it keeps no object, and no run reads its tree
        ("expiring", "bool"),  # false while planning; after `expire`, true for commits that are still expiring
    ),
)

REFS: Final = Table(
    name="refs",
    version=1,
    meaning="one name that holds a commit",
    columns=_columns(
        ("kind", "string"),  # branch, tag or hold
        ("name", "string"),
        ("commit_id", "string"),
        ("state", "string"),  # creating or active; a ref that is being created already keeps its commit
    ),
)

EXPIRED: Final = Table(
    name="expired",
    version=1,
    meaning="one commit whose data a committed run wants to take; each once",
    columns=_columns(("id", "string")),
)

POTENTIAL: Final = Table(
    name="potential",
    version=1,
    meaning="one commit that may name what a lifecycle run has yet to take, by the design document's dates",
    columns=_columns(("id", "string"), ("set", "int32")),  # sorted by id; `set` is a row of POTENTIAL_SETS
)

POTENTIAL_SETS: Final = Table(
    name="potential_sets",
    version=1,
    meaning="one set of branches that reach a potential commit; empty stands for no branch",
    columns=_columns(("set", "int32"), ("branches", "list<string>")),
)

LEFTOVERS: Final = Table(
    name="leftovers",
    version=1,
    meaning="one file of metadata, or folder of a run, that a metadata run wants to take; each once",
    columns=_columns(
        ("kind", "string"),  # file (a range or a metarange) or run
        ("id", "string"),
    ),
)

GARBAGE: Final = Table(
    name="garbage",
    version=5,
    meaning="one object to delete, and why; each address once",
    columns=_columns(
        ("address", "string"),  # relative to the namespace, always
        ("slice", "int64"),
        ("sequence", "int32"),
        ("size_bytes", "int64"),
        ("reason", "string"),
        ("rule", "string"),  # the retention rule that deletes it; empty for uncommitted data
        ("last_seen_at", "timestamp_ms"),  # committed: creation of the newest commit that has it; else the last write
    )
    + _columns(("path", "string"), since=2)  # the object's path in that commit; empty for uncommitted data
    # The object's other paths, and the rules other than `rule`, or null. Before version 4 only lifecycle runs have them
    # (ALL_PATHS_SINCE).
    + (
        Column(name="other_paths", type="list<string>", nullable=True, since=3),
        Column(name="other_rules", type="list<string>", nullable=True, since=3),
    )
    # The range that has the object at `path`, as `range_number`, or null. A restore reads the whole entry there.
    + (Column(name="seen_in", type="int64", nullable=True, since=5),),
)

ALL_PATHS_SINCE: Final = 4
"""From this version on, GARBAGE has every path at which commits had an object at the time of the plan, in every run."""

TABLE_FILES: Final = Table(
    name="table_files",
    version=1,
    meaning="one file of an Iceberg table that a plan takes, by a path at which commits had it",
    columns=_columns(
        ("folder", "string"),  # of the table on a branch, with its slash; empty: the path is of the branch `tables`
        ("file", "string"),  # the rest of the path
    ),
)

LEDGER: Final = Table(
    name="ledger",
    version=4,
    meaning="what a run did with one object: deleted it, tried to, left it alone, or restored it",
    columns=_columns(
        ("run_id", "string"),
        ("address", "string"),
        ("size_bytes", "int64"),
        ("reason", "string"),
        ("deleted_at", "timestamp_ms"),  # the time of the outcome
        ("error", "string"),  # empty: no failure
        ("path", "string"),
        ("rule", "string"),
        ("state", "string"),  # a LedgerState
        ("last_seen_at", "timestamp_ms"),  # as in GARBAGE: shows which version of a path is newer
    ),
)

TABLES: Final = {
    table.name: table
    for table in (
        UNCOMMITTED,
        COMMITS,
        REFS,
        EXPIRED,
        POTENTIAL,
        POTENTIAL_SETS,
        LEFTOVERS,
        GARBAGE,
        TABLE_FILES,
        LEDGER,
    )
}


MANIFEST_FORMAT: Final = 1


class BadInput(Corrupt):
    """An input of a run is missing, short, unreadable, or of an unknown version. Delete nothing.

    Facts: `missing`, the key of a missing file.
    """


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file. `name` is relative to the input's folder. `sha256`: 64 hex digits, over the file's bytes."""

    name: str
    rows: int
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A complete input. `folder` is relative to the storage namespace and ends with a slash."""

    format: int
    table: str
    table_version: int
    folder: str
    parts: tuple[Part, ...]
    rows: int
    size_bytes: int

    def digest(self) -> str:
        """Return the SHA-256 of this manifest's canonical JSON, which identifies the input with all its bytes."""
        return hashlib.sha256(encode_manifest(self)).hexdigest()


def part_of(name: str, data: bytes, *, rows: int) -> Part:
    return Part(name=name, rows=rows, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def manifest_of(table: Table, folder: str, parts: Iterable[Part]) -> Manifest:
    parts = tuple(parts)
    assert folder.endswith("/"), folder
    return Manifest(
        format=MANIFEST_FORMAT,
        table=table.name,
        table_version=table.version,
        folder=folder,
        parts=parts,
        rows=sum(part.rows for part in parts),
        size_bytes=sum(part.size_bytes for part in parts),
    )


def read_json(data: bytes, type_: type[T], *, what: str, name: str) -> T:
    """Decode a file, or raise BadInput. `what` and `name` are for the error."""
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{what} is unreadable: {error}", input=name) from error


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes, *, name: str) -> Manifest:
    """Decode a manifest, or raise BadInput. `name`: the manifest's name in errors."""
    manifest = read_json(data, Manifest, what=f"manifest {name}", name=name)
    check_manifest(manifest, name=name)
    return manifest


def check_manifest(manifest: Manifest, *, name: str) -> Table:
    """Check a manifest, and return its table.

    Raises:
        BadInput: an unknown format, table or version; wrong sums; a part named twice, or outside the folder.
    """
    table = TABLES.get(manifest.table)
    part_names = [part.name for part in manifest.parts]
    if manifest.format != MANIFEST_FORMAT:
        problem = f"has the unknown format {manifest.format}"
    elif table is None or not 1 <= manifest.table_version <= table.version:
        problem = f"is of the unknown table {manifest.table} version {manifest.table_version}"
    elif len(set(part_names)) != len(part_names):
        problem = "names a part twice"
    elif any("/" in part or not part for part in part_names) or not manifest.folder.endswith("/"):
        problem = "names a part outside its folder"
    elif manifest.rows != sum(part.rows for part in manifest.parts):
        problem = f"says {manifest.rows} rows, but its parts have {sum(part.rows for part in manifest.parts)}"
    elif manifest.size_bytes != sum(part.size_bytes for part in manifest.parts):
        problem = f"says {manifest.size_bytes} bytes, but its parts have another sum"
    else:
        return table
    raise BadInput(f"manifest {name} {problem}", input=name)


def check_listing(manifest: Manifest, listed: Mapping[str, int]) -> list[str]:
    """Compare the manifest with a listing of its folder (part name to bytes).

    Return the listed names that the manifest lacks, sorted. Report these unknown files, and never read them.

    Raises:
        BadInput: a part is missing, short or long. The error names the first such part.
    """
    # A missing part of a live set would mean that its objects are not named, and a run would delete them.
    for part in manifest.parts:
        size_bytes = listed.get(part.name)
        if size_bytes is None:
            key = manifest.folder + part.name
            raise BadInput(f"{key} is missing", missing=key, input=manifest.table, part=part.name)
        if size_bytes != part.size_bytes:
            raise BadInput(
                f"{manifest.folder}{part.name} has {size_bytes} bytes instead of {part.size_bytes}",
                input=manifest.table,
                part=part.name,
            )
    return sorted(set(listed) - {part.name for part in manifest.parts})


def check_part(manifest: Manifest, part: Part, data: bytes) -> None:
    """Check that the bytes are those in the manifest, or raise BadInput."""
    where = f"{manifest.folder}{part.name}"
    if len(data) != part.size_bytes:
        raise BadInput(f"{where} has {len(data)} bytes instead of {part.size_bytes}", part=part.name)
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise BadInput(f"{where} contradicts its digest {part.sha256[:12]}…", part=part.name)


def check_rows(manifest: Manifest, rows_read: int) -> None:
    """Check that the rows read are as many as the writer wrote, or raise BadInput."""
    if rows_read != manifest.rows:
        raise BadInput(f"{manifest.folder} gave {rows_read} rows instead of {manifest.rows}", input=manifest.table)


@functools.cache
def _arrow_types() -> dict[str, pa.DataType]:
    return {
        "string": pa.string(),
        "int64": pa.int64(),
        "int32": pa.int32(),
        "bool": pa.bool_(),
        "timestamp_ms": pa.timestamp("ms", tz="UTC"),
        "list<string>": pa.list_(pa.field("element", pa.string(), nullable=False)),
    }


_DISTINCT: Final = {"address", "path"}
"""Columns without a dictionary, because their values hardly repeat. With one, a part of 100,000 rows takes 25 ms
instead of 14, and is half as large again.
"""


def arrow_schema(table: Table) -> pa.Schema:
    types = _arrow_types()
    return pa.schema([pa.field(column.name, types[column.type], column.nullable) for column in table.columns])


def encode_part(table: Table, data: pa.Table, *, group_rows: int = 1 << 17) -> bytes:
    """Return a Parquet file of these rows, with `group_rows` rows in a row group.

    `data` must have exactly the declared columns, in order and type.
    """
    assert data.schema.names == list(table.names()), (data.schema.names, table.name)
    # Do not store the Arrow schema, so that any Parquet reader sees plain columns.
    buffer = io.BytesIO()
    rows, dictionaries = data.cast(arrow_schema(table)), _dictionaries(table)
    pq.write_table(rows, buffer, compression="zstd", row_group_size=group_rows, use_dictionary=dictionaries)
    return buffer.getvalue()


def _dictionaries(table: Table) -> list[str]:
    return [name for name in table.names() if name not in _DISTINCT]


class PartWriter:
    """Write a part row group by row group, to cut it at a size. Written rows leave memory."""

    def __init__(self, table: Table) -> None:
        self.rows = 0
        self._schema = arrow_schema(table)
        self._buffer = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._buffer, self._schema, compression="zstd", use_dictionary=_dictionaries(table)
        )

    def write(self, data: pa.Table) -> None:
        """Write one row group. `data` must have exactly the declared columns, in order."""
        self._writer.write_table(data.cast(self._schema), row_group_size=max(1, data.num_rows))
        self.rows += data.num_rows

    @property
    def size_bytes(self) -> int:
        """Return the size written so far, without the footer."""
        return self._buffer.tell()

    def close(self) -> bytes:
        self._writer.close()
        return self._buffer.getvalue()


def group_rows_of(data: bytes, *, name: str) -> list[int]:
    """Return the number of rows in each row group, or raise BadInput. `name`: the file's name in the error."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{name} is not a Parquet file: {error}", part=name) from error
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


_THREADS_FROM_BYTES: Final = 1 << 20
"""Use threads from this size on. For a smaller file the handover takes longer than the read."""


def read_parquet(data: bytes, *, columns: Sequence[str] | None = None, group: int | None = None) -> pa.Table:
    """Return these columns (None: all) of a Parquet file, or of one of its row groups. Leave out missing columns.

    Raises:
        pa.ArrowException, OSError: the data is not Parquet, or cut short.
    """
    file, has_threads = pq.ParquetFile(pa.BufferReader(data)), len(data) >= _THREADS_FROM_BYTES
    if group is not None:
        return file.read_row_group(group, columns=columns, use_threads=has_threads)
    return file.read(columns=columns, use_threads=has_threads)


def decode_part(
    table: Table,
    data: bytes,
    *,
    name: str,
    columns: Sequence[str] | None = None,
    version: int | None = None,
    group: int | None = None,
) -> pa.Table:
    """Return all columns, or `columns`, of a file of this table, or of one row group, or raise BadInput.

    `version`: the file's version of the table; None is the newest. `name`: the file's name in the error.
    """
    try:
        names = list(table.names() if columns is None else columns)
        later = {column.name: column for column in table.later_than(version or table.version) if column.name in names}
        stored = [name for name in names if name not in later]
        found = read_parquet(data, columns=stored, group=group)
        for name_, column in later.items():
            nothing = (
                pa.nulls(found.num_rows, _arrow_types()[column.type]) if column.nullable else pa.repeat("", len(found))
            )
            found = found.append_column(name_, nothing)
        return found.select(names).cast(pa.schema([arrow_schema(table).field(name) for name in names]))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise BadInput(f"{name} is no {table.name} table: {error}", part=name) from error


def read_part(
    manifest: Manifest, table: Table, part: Part, data: bytes, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return one part, or some of its columns, after checking every byte and the row count against the manifest, or
    raise BadInput.
    """
    check_part(manifest, part, data)
    where = f"{manifest.folder}{part.name}"
    rows = decode_part(table, data, name=where, columns=columns, version=manifest.table_version)
    if rows.num_rows != part.rows:
        raise BadInput(f"{where} has {rows.num_rows} rows instead of {part.rows}", part=part.name)
    return rows


def join_parts(manifest: Manifest, table: Table, parts: list[pa.Table]) -> pa.Table:
    """Return all parts of an input as one table, in the manifest's order, or raise BadInput."""
    whole = pa.concat_tables(parts) if parts else arrow_schema(table).empty_table()
    check_rows(manifest, whole.num_rows)
    return whole
