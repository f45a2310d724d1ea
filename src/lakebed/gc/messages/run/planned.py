"""Show a plan: its single objects, the commits whose data it takes, and what differs between two plans of one kind.

    GET  plans/{run}/objects      -> GarbagePage      ?prefix=PREFIX&amount=N, then &after=TOKEN

below `/api/v1/repositories/{repository}/gc`. A plan's table GARBAGE is read a part at a time, in its order: by slice,
sequence and address within a part.

Two plans: objects of ours are compared as numbers (slice and sequence), others by their address. Totals are those of
the plans' tables, by what a row says: reason, rule, first folder of the path, age. A row does not name a branch; by
branch the two plans' own totals stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lakebed.base import FOREIGN_SLICE, Invalid, Later, RunKind

from .plans import Plan, Total

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import pyarrow.compute as pc
else:  # only where they are used: a plain install has neither, and most of what is here needs none
    np = Later("numpy")
    pa = Later("pyarrow")
    pc = Later("pyarrow.compute")


class GarbageObject(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `garbage`. `path` is empty for uncommitted data; `last_seen_ms` as there."""

    address: str
    size_bytes: int
    reason: str
    rule: str
    last_seen_ms: int
    path: str


class GarbagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a plan's objects. More, or a look into more of the plan, with the token."""

    objects: tuple[GarbageObject, ...]
    continuation_token: str | None = None


class ExpiringCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit whose data a plan gives up. `branch` is the one whose rule would have kept it longest, empty for one on
    no branch; `message` the first line, and `author` who made it, both empty where they cannot be read."""

    id: str
    created_ms: int
    reason: str
    branch: str
    rule: str
    message: str = ""
    author: str = ""


def below(rows: pa.Table, prefix: str) -> pa.Table:
    """Return those GARBAGE rows whose path, or whose address, begins with `prefix`."""
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
"""At most this many names of a way are shown; the smallest beyond that are summed under `…`."""
_SHOWN: Final = ("address", "size_bytes", "reason", "rule", "last_seen_at", "path")


class DifferentKinds(Invalid):
    """Plans of two kinds have nothing to compare."""


class Side(StrEnum):
    """Say which of the two plans takes it: only the first, only the second, or both."""

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
    """Sum what only one of the plans takes; each way adds up to `all`."""

    all: Total = Total()
    by_reason: dict[str, Total] = {}
    by_rule: dict[str, Total] = {}
    by_prefix: dict[str, Total] = {}


class CommitsDiffer(msgspec.Struct, frozen=True, kw_only=True):
    """Count the commits that only the one, only the other and both take, and show some of those of one only."""

    a: int = 0
    b: int = 0
    both: int = 0
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()


class PlanDiff(msgspec.Struct, frozen=True, kw_only=True):
    """`by_branch` has each plan's own totals, the first's first. `objects` are some of what differs, by address."""

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
    """`objects` are the tables GARBAGE of both plans, `commits` their tables EXPIRED; at most `limit` rows are shown.

    Raises:
        DifferentKinds: the plans are of different kinds.
    """
    if a.kind is not b.kind:
        raise DifferentKinds(f"run {a.run_id} is of kind {a.kind}, run {b.run_id} of kind {b.kind}")
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
    """For each row of the left table whether the right one has the object too."""
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
    # Where a path has no slash, so that nothing is found, it lies in no folder.
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
