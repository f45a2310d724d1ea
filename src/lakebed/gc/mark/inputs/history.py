"""Turn commit records into metaranges: kept or expired, with the reason in the plan. Pure, on the driver.

A million commits are small (technology.md: a walk over them takes 0.04 s), so no step here needs Spark.
`lakebed.gc.rules` gives the verdict. This module turns it into the table METARANGES, from which all later steps read.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.gc.engines.tables import METARANGES
from lakebed.gc.messages import ExpiringCommit
from lakebed.gc.rules import EmptyLiveSet, Lines, Rules, kept_indices, lines_of, places_of, repeated

EXPIRED = "expired"
DANGLING = "dangling"
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Causes:
    """Give (reason, rule, branch) for each commit, by number. If several branches have a commit, the cause is the
    branch that would keep it longest."""

    distinct: list[tuple[str, str, str]]
    number_of: npt.NDArray[np.int64] | None

    def columns(self, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        numbers = np.zeros(len(rows), np.int64) if self.number_of is None else self.number_of[rows]
        texts = zip(*self.distinct, strict=True)
        taken = [pa.array(text, pa.string()).take(pa.array(numbers)) for text in texts]
        return dict(zip(("reason", "rule", "branch"), taken, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Hold every commit record and its verdict. A swept commit is neither `kept` nor `expired`."""

    commits: pa.Table
    kept: Flags
    expired: Flags
    metaranges: pa.Table
    """METARANGES, live and expired."""
    causes: Causes

    def expired_ids(self) -> pa.Array:
        return self.commits["id"].combine_chunks().filter(pa.array(self.expired))


def judge(commits: pa.Table, refs: pa.Table, rules: Rules, *, now_ms: int) -> Judged:
    """Judge COMMITS and REFS (tables of `lakebed.gc.messages`) by the retention rules. Takes about 0.6 µs a commit.

    Raises:
        BrokenHistory: a ref or a commit names a commit without a record.
    """
    ids = commits["id"].combine_chunks()
    first_parent, heads, pinned = _roots(ids, commits["parents"].combine_chunks(), refs, rules)
    created_ms = commits["creation_date"].cast(pa.int64()).to_numpy()
    lines = lines_of(first_parent=first_parent, heads=heads, rules=rules, now_ms=now_ms)
    kept = kept_indices(
        first_parent=first_parent,
        created_ms=created_ms,
        heads=heads,
        pinned=pinned,
        rules=rules,
        now_ms=now_ms,
        lines=lines,
    )
    causes = _causes(lines, rules)
    swept = commits["swept"].to_numpy()
    kept, expired = kept & ~swept, ~kept & ~swept
    return Judged(
        commits=commits,
        kept=kept,
        expired=expired,
        metaranges=_metaranges(commits, created_ms, kept, expired, causes),
        causes=causes,
    )


def only_active(commits: pa.Table, refs: pa.Table, rules: Rules, *, pinned: Collection[str], now_ms: int) -> pa.Table:
    """Return COMMITS, and mark commits that the retention rules expire as swept, except for `pinned` ones.

    Raises:
        BrokenHistory: see `judge`.
    """
    judged = spare(judge(commits, refs, rules, now_ms=now_ms), pinned)
    gone = pc.or_(commits["swept"], pa.chunked_array([judged.expired]))
    return commits.set_column(commits.schema.get_field_index("swept"), commits.schema.field("swept"), gone)


def spare(judged: Judged, held: Collection[str]) -> Judged:
    """Keep these commits, although the rules expire them."""
    if not held:
        return judged
    is_held = pc.is_in(judged.commits["id"], value_set=pa.array(sorted(held), pa.string()))
    # Only expired commits change: a swept commit has no data to keep.
    flags = is_held.to_numpy() & judged.expired
    kept, expired = judged.kept | flags, judged.expired & ~flags
    created_ms = judged.commits["creation_date"].cast(pa.int64()).to_numpy()
    metaranges = _metaranges(judged.commits, created_ms, kept, expired, judged.causes)
    return replace(judged, kept=kept, expired=expired, metaranges=metaranges)


def expiring(judged: Judged, *, limit: int) -> list[ExpiringCommit]:
    """Return expired commits with reasons, newest first, at most `limit`. They have no messages here."""
    rows = np.flatnonzero(judged.expired)
    created_ms = judged.commits["creation_date"].cast(pa.int64()).to_numpy()
    rows = rows[np.argsort(-created_ms[rows], kind="stable")[:limit]]
    columns = {"id": judged.commits["id"].combine_chunks().take(pa.array(rows)), **judged.causes.columns(rows)}
    return [
        ExpiringCommit(created_ms=made, **row)
        for made, row in zip(created_ms[rows].tolist(), pa.table(columns).to_pylist(), strict=True)
    ]


def metaranges_of_all(commits: pa.Table) -> pa.Table:
    """Return METARANGES of every unswept commit, reachable or not, all live."""
    # A run of uncommitted data must keep the objects of every commit.
    there = ~commits["swept"].to_numpy()
    return _metaranges(commits, np.zeros(len(there), np.int64), there, np.zeros(len(there), np.bool_), _NO_CAUSES)


def newly_kept(planned: pa.Table, now: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the METARANGES that a recheck must read: of commits kept only now, and of those kept in the plan, too.

    `planned` has the ids that the plan kept. `now` is COMMITS as the server wrote it when it published the expiry.
    """
    kept = ~now["expiring"].to_numpy() & ~now["swept"].to_numpy()
    known = pc.is_in(now["id"].combine_chunks(), value_set=planned["id"].combine_chunks()).to_numpy(
        zero_copy_only=False
    )
    none = np.zeros(len(kept), np.bool_)
    zeros = np.zeros(len(kept), np.int64)
    new = _metaranges(now, zeros, kept & ~known, none, _NO_CAUSES)
    old = _metaranges(now, zeros, kept & known, none, _NO_CAUSES)
    return new, old


def _roots(
    ids: pa.Array, parents: pa.Array, refs: pa.Table, rules: Rules
) -> tuple[npt.NDArray[np.int64], dict[str, int], list[int]]:
    """Return the first parents, the rows of branch heads by name, and the rows of pinned commits: holds, refs that are
    being made, and tags if they pin."""
    branches: list[str] = []
    pinned: list[tuple[str, str]] = []
    named: list[tuple[str, str]] = []
    for kind, name, commit, state in zip(
        *(refs[column].to_pylist() for column in ("kind", "name", "commit_id", "state")), strict=True
    ):
        if kind == "branch" and state == "active":
            branches.append(name)
            named.append((f"branch {name}", commit))
        elif kind != "tag" or state != "active" or rules.tags_pin:
            pinned.append(("a ref", commit))
    first_parent, rows = places_of(ids, parents, [*named, *pinned])
    return first_parent, dict(zip(branches, rows, strict=False)), rows[len(branches) :]


_NO_CAUSES: Final = Causes([("", "", "")], None)


def _causes(lines: Lines, rules: Rules) -> Causes:
    default = f"default: {rules.default}"
    distinct = []
    for branch in lines.branches:
        found = rules.rule_of(branch)
        distinct.append((EXPIRED, default if found is None else f"{found.pattern}: {found.period}", branch))
    # A dangling commit has the last cause.
    number_of = np.where(lines.branch_of < 0, len(distinct), lines.branch_of)
    return Causes([*distinct, (DANGLING, default, "")], number_of)


def _metaranges(
    commits: pa.Table, created_ms: npt.NDArray[np.int64], kept: Flags, expired: Flags, causes: Causes
) -> pa.Table:
    """Return one row a metarange of the commits in either set. It is live if any kept commit has it. Otherwise it has
    the cause of the newest commit."""
    names = commits["metarange_id"].combine_chunks()
    has_entries = pc.not_equal(names, "").to_numpy(zero_copy_only=False)
    chosen = np.flatnonzero((kept | expired) & has_entries)
    if len(chosen) < len(names):
        names = names.take(pa.array(chosen))
    last = _last_of_each(names, kept[chosen], created_ms[chosen])
    commit = chosen[last]
    return METARANGES.rows(
        {
            "metarange_id": names.take(pa.array(last)),
            "is_live": kept[commit],
            "seen_ms": created_ms[commit],
            **causes.columns(commit),
        }
    )


def _last_of_each(ids: pa.Array, kept: Flags, created_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return one row for each id: a kept one if there is one, else the newest. Ascending."""
    rows, numbers = repeated(ids)
    # `lexsort` sorts by its last key first: by id, then kept, then date. So the last row of each id is the one to
    # return.
    order = np.lexsort((created_ms[rows], kept[rows], numbers))
    is_last = np.ones(len(ids), np.bool_)
    is_last[rows] = False
    is_last[rows[order[np.diff(numbers[order], append=-1) != 0]]] = True
    return np.flatnonzero(is_last)


def check_live(metaranges: pa.Table, live_ranges: int) -> None:
    """Check that kept commits with entries have ranges.

    Raises:
        EmptyLiveSet: no range of the kept commits was read: an input is missing.
    """
    if not live_ranges and pc.any(metaranges["is_live"]).as_py():
        raise EmptyLiveSet("commits with entries are kept, but no range of theirs was read")
