"""Show a plan: its objects, the commits whose data it takes, and the differences between two plans of one kind.

The table GARBAGE is read part by part; a part is sorted by slice, sequence and address.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from lakebed.base import FOREIGN_SLICE, Invalid, RunKind, np, npt, pa, pc

from .plans import Plan, Total

__all__ = [
    "CommitsDiffer",
    "DifferingObject",
    "ExpiringCommit",
    "GarbageObject",
    "GarbagePage",
    "OnlyIn",
    "PlanDiff",
    "Side",
    "below",
    "diff_plans",
    "garbage_rows",
]


class GarbageObject(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `garbage`. `path` is empty for uncommitted data; `last_seen_ms`: column `last_seen_at`."""

    address: str
    size_bytes: int
    reason: str
    rule: str
    last_seen_ms: int
    path: str


class GarbagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a plan's objects. With the token, ask for more, or to search more of the plan."""

    objects: tuple[GarbageObject, ...]
    continuation_token: str | None = None


class ExpiringCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit whose data a plan deletes. `branch`: the branch whose rule would have kept it longest, or empty."""

    id: str
    created_ms: int
    reason: str
    branch: str
    rule: str
    # The first line. `message` and `author` are empty if the commit cannot be read.
    message: str = ""
    author: str = ""


def below(rows: pa.Table, prefix: str) -> pa.Table:
    """Return the GARBAGE rows whose path or address begins with `prefix`."""
    if not prefix:
        return rows
    return rows.filter(pc.or_(pc.starts_with(rows["path"], prefix), pc.starts_with(rows["address"], prefix)))


def garbage_rows(rows: pa.Table) -> list[GarbageObject]:
    """Return GARBAGE rows as records."""
    names = [name for name in GarbageObject.__struct_fields__ if name != "last_seen_ms"]
    seen_ms = rows["last_seen_at"].cast(pa.int64()).to_pylist()
    return [
        GarbageObject(last_seen_ms=seen, **dict(zip(names, row, strict=True)))
        for seen, *row in zip(seen_ms, *(rows[name].to_pylist() for name in names), strict=True)
    ]


ROWS_SHOWN: Final = 1000
NAMES_SHOWN: Final = 1000
"""The number of names that each way of counting shows. The sum of the smallest other names is under `…`."""
_SHOWN: Final = ("address", "size_bytes", "reason", "rule", "last_seen_at", "path")


class Side(StrEnum):
    """Name the plans that take an object or a commit: only the first, only the second, or both."""

    A = "a"
    B = "b"
    BOTH = "both"


class DifferingObject(msgspec.Struct, frozen=True, kw_only=True):
    side: Side
    address: str
    size_bytes: int
    reason: str
    rule: str
    last_seen_ms: int
    path: str


class OnlyIn(msgspec.Struct, frozen=True, kw_only=True):
    """Sum the objects that only one plan takes. Each way of counting adds up to `all`."""

    # By reason, rule and first folder of the path, as in the rows. No row names a branch.

    all: Total = Total()
    by_reason: dict[str, Total] = {}
    by_rule: dict[str, Total] = {}
    by_prefix: dict[str, Total] = {}


class CommitsDiffer(msgspec.Struct, frozen=True, kw_only=True):
    """Count the commits that only one plan or both plans take, and show some of those of only one plan."""

    a: int = 0
    b: int = 0
    both: int = 0
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()


class PlanDiff(msgspec.Struct, frozen=True, kw_only=True):
    """`by_branch`: each plan's own totals, the first plan's first. `objects`: some that differ, by address."""

    a: str
    b: str
    kind: RunKind
    only_a: OnlyIn
    only_b: OnlyIn
    both: Total
    commits: CommitsDiffer
    by_branch: dict[str, tuple[Total, Total]]
    objects: tuple[DifferingObject, ...]


def diff_plans(
    a: Plan,
    b: Plan,
    objects: tuple[pa.Table, pa.Table],
    commits: tuple[pa.Table, pa.Table],
    *,
    limit: int = ROWS_SHOWN,
) -> PlanDiff:
    """Compare two plans by their tables GARBAGE (`objects`) and EXPIRED (`commits`). Show at most `limit` rows.

    Raises:
        Invalid: the plans are of different kinds.
    """
    if a.kind is not b.kind:
        raise Invalid(f"run {a.run_id} is of kind {a.kind}, run {b.run_id} of kind {b.kind}")
    in_b, in_a = _shared(*objects), _shared(*reversed(objects))
    only_a, only_b = objects[0].filter(pa.array(~in_b)), objects[1].filter(pa.array(~in_a))
    return PlanDiff(
        a=a.run_id,
        b=b.run_id,
        kind=a.kind,
        only_a=_only(only_a),
        only_b=_only(only_b),
        both=_total(objects[0].filter(pa.array(in_b))),
        commits=_commits(*commits, limit=limit),
        by_branch={
            name: (a.totals.by_branch.get(name, Total()), b.totals.by_branch.get(name, Total()))
            for name in sorted({*a.totals.by_branch, *b.totals.by_branch})
        },
        objects=tuple(_rows(only_a, Side.A, limit) + _rows(only_b, Side.B, limit)),
    )


def _shared(left: pa.Table, right: pa.Table) -> npt.NDArray[np.bool_]:
    """Return for each row of the left table whether the right table has its object."""
    # Compare our objects as numbers (slice and sequence), and foreign objects by address.
    shared = np.zeros(left.num_rows, np.bool_)
    own, theirs = (table["slice"].to_numpy() != FOREIGN_SLICE for table in (left, right))
    slices = np.unique(np.concatenate([left["slice"].to_numpy(), right["slice"].to_numpy()]))
    numbers, others = (
        np.searchsorted(slices, table["slice"].to_numpy()[rows]) << 32 | table["sequence"].to_numpy()[rows]
        for table, rows in ((left, own), (right, theirs))
    )
    shared[own] = np.isin(numbers, others)
    foreign = right["address"].filter(pa.array(~theirs)).combine_chunks()
    shared[~own] = pc.is_in(left["address"].filter(pa.array(~own)), value_set=foreign).to_numpy()
    return shared


def _total(rows: pa.Table) -> Total:
    return Total(objects=rows.num_rows, size_bytes=pc.sum(rows["size_bytes"]).as_py() or 0)


def _only(rows: pa.Table) -> OnlyIn:
    # A path without a slash does not match, and is in no folder.
    folders = pc.struct_field(pc.extract_regex(rows["path"], r"^(?P<folder>[^/]*/)"), "folder").fill_null("")
    rows = rows.append_column("prefix", folders)
    return OnlyIn(all=_total(rows), **{f"by_{way}": _by(rows, way) for way in ("reason", "rule", "prefix")})


def _by(rows: pa.Table, way: str) -> dict[str, Total]:
    sums = rows.group_by(way).aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
    ordered = sums.sort_by([("size_bytes_sum", "descending"), (way, "ascending")])
    found = {
        row[way]: Total(objects=row["size_bytes_count"], size_bytes=row["size_bytes_sum"])
        for row in ordered.slice(0, NAMES_SHOWN).to_pylist()
    }
    rest = ordered.slice(NAMES_SHOWN)
    if rest.num_rows:
        objects, size_bytes = (pc.sum(rest[name]).as_py() for name in ("size_bytes_count", "size_bytes_sum"))
        found["…"] = Total(objects=objects, size_bytes=size_bytes)
    return found


def _rows(rows: pa.Table, side: Side, limit: int) -> list[DifferingObject]:
    return [_object(row, side) for row in rows.select(_SHOWN).sort_by("address").slice(0, limit).to_pylist()]


def _object(row: dict[str, Any], side: Side) -> DifferingObject:
    last_seen_ms = int(row.pop("last_seen_at").timestamp() * 1000)
    return DifferingObject(side=side, last_seen_ms=last_seen_ms, **row)


def _commits(a: pa.Table, b: pa.Table, *, limit: int) -> CommitsDiffer:
    in_a, in_b = (frozenset(table["id"].to_pylist()) for table in (a, b))
    return CommitsDiffer(
        a=len(in_a - in_b),
        b=len(in_b - in_a),
        both=len(in_a & in_b),
        only_a=_some(in_a - in_b, limit),
        only_b=_some(in_b - in_a, limit),
    )


def _some(ids: Iterable[str], limit: int) -> tuple[str, ...]:
    ordered: Sequence[str] = sorted(ids)
    return tuple(ordered[:limit])
