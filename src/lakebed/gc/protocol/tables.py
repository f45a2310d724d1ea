"""The tables that server and collectors exchange: each declared once, as plain names and types.

The server derives pyarrow schemas from these (`arrow_schema`), the collectors Spark schemas; a column that is not here
does not travel. `version` goes into every manifest; a reader stops at a version it does not know. It knows all earlier
ones: a column that came `since` a later version is then read as empty.

Addresses travel twice: as text, for people and for exact joins, and as (slice, sequence), for bitmaps. A foreign
address (lakebed.base.addresses) has slice -1 and sequence 0 and only its text counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

ColumnType: TypeAlias = Literal["string", "int64", "int32", "bool", "timestamp_ms", "list<string>"]
"""`timestamp_ms` is an instant in UTC, to the millisecond. No column is ever null unless its table says so."""


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
        """The columns that files of this version do not have: strings, read as empty, or nullable, read as null."""
        return tuple(column for column in self.columns if column.since > version)


def _columns(*pairs: tuple[str, ColumnType], since: int = 1) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=type_, since=since) for name, type_ in pairs)


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
        ("branch", "string"),  # whose it is
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
        ("swept", "bool"),  # an earlier run took its data: it keeps nothing, and nothing of it is read again
        ("expiring", "bool"),  # while planning always false; after `expire`: what is still expiring
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
        ("state", "string"),  # creating or active; one that is being created is a root already
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
    columns=_columns(("id", "string"), ("set", "int32")),  # in the order of their ids; a row of POTENTIAL_SETS
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
    version=2,
    meaning="one object to delete, and why; each address once",
    columns=_columns(
        ("address", "string"),  # relative to the namespace, always
        ("slice", "int64"),
        ("sequence", "int32"),
        ("size_bytes", "int64"),
        ("reason", "string"),
        ("rule", "string"),  # the retention rule that let it go; empty for uncommitted data
        ("last_seen_at", "timestamp_ms"),  # committed: creation of the newest commit that held it; else last written
    )
    + _columns(("path", "string"), since=2),  # under which that commit had it; empty for uncommitted data
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
        ("deleted_at", "timestamp_ms"),  # when that was
        ("error", "string"),  # empty: it was done
        ("path", "string"),
        ("rule", "string"),
        ("state", "string"),  # as in GARBAGE; a LedgerState
        ("last_seen_at", "timestamp_ms"),  # as in GARBAGE: of versions, which is newer
    ),
)

TABLES: Final = {
    table.name: table
    for table in (UNCOMMITTED, COMMITS, REFS, EXPIRED, POTENTIAL, POTENTIAL_SETS, LEFTOVERS, GARBAGE, LEDGER)
}
