"""From commit records to metaranges: which stay, which go, and what a plan says of each that goes. Pure, on the driver.

A million commits are small (technology.md: a walk over them takes 0.04 s), so nothing of this needs Spark. The verdict
itself is `lakebed.retention`'s; here it is turned into the table METARANGES, from which everything else is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.retention import EmptyLiveSet, Rules, first_parent_indices, kept_indices, rows_of

from .tables import METARANGES

EXPIRED = "expired"
DANGLING = "dangling"
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Every commit record, and the verdict on it. A commit that was swept is in neither `kept` nor `expired`."""

    commits: pa.Table
    kept: Flags
    expired: Flags
    metaranges: pa.Table
    """METARANGES: the live ones and the expired ones."""

    def expired_ids(self) -> pa.Array:
        return self.commits["id"].combine_chunks().filter(pa.array(self.expired))


def judge(commits: pa.Table, refs: pa.Table, rules: Rules, *, now_ms: int) -> Judged:
    """The verdict of the retention rules on COMMITS and REFS (tables of `lakebed.handoff`).

    Raises:
        BrokenHistory: a ref or a commit names a commit without a record.
        EmptyLiveSet: there are commits with entries, and none of them would stay.
    """
    ids = commits["id"].combine_chunks()
    first_parent = first_parent_indices(ids, commits["parents"].combine_chunks())
    heads, pinned = _roots(ids, refs, rules)
    created_ms = commits["creation_date"].cast(pa.int64()).to_numpy()
    kept = kept_indices(
        first_parent=first_parent, created_ms=created_ms, heads=heads, pinned=pinned, rules=rules, now_ms=now_ms
    )
    swept = commits["swept"].to_numpy()
    kept, expired = kept & ~swept, ~kept & ~swept
    causes = _causes(first_parent, heads, rules, now_ms=now_ms)
    return Judged(
        commits=commits, kept=kept, expired=expired, metaranges=_metaranges(commits, created_ms, kept, expired, causes)
    )


def metaranges_of_all(commits: pa.Table) -> pa.Table:
    """METARANGES of every commit that was not swept, reachable or not, all live: what an uncommitted run must keep."""
    there = ~commits["swept"].to_numpy()
    nothing = np.zeros(len(there), np.bool_)
    return _metaranges(commits, np.zeros(len(there), np.int64), there, nothing, [("", "", "")] * len(there))


def newly_kept(planned: pa.Table, now: pa.Table) -> tuple[pa.Table, pa.Table]:
    """What a recheck must read: METARANGES of commits that stay now but not in the plan, and that stay in both.

    `planned` has the ids that the plan kept; `now` is COMMITS as the server wrote it when it condemned.
    """
    kept = ~now["condemned"].to_numpy() & ~now["swept"].to_numpy()
    known = pc.is_in(now["id"].combine_chunks(), value_set=planned["id"].combine_chunks()).to_numpy(
        zero_copy_only=False
    )
    none = np.zeros(len(kept), np.bool_)
    zeros, causes = np.zeros(len(kept), np.int64), [("", "", "")] * len(kept)
    new = _metaranges(now, zeros, kept & ~known, none, causes)
    old = _metaranges(now, zeros, kept & known, none, causes)
    return new, old


def _roots(ids: pa.Array, refs: pa.Table, rules: Rules) -> tuple[dict[str, int], list[int]]:
    """Rows of branch heads by name, and of what stays whatever the rules say: holds, refs being made, tags that pin."""
    heads: dict[str, int] = {}
    pinned: list[str] = []
    for ref in refs.to_pylist():
        if ref["kind"] == "branch" and ref["state"] == "active":
            heads[ref["name"]] = rows_of(ids, [ref["commit_id"]], who=f"branch {ref['name']}")[0]
        elif ref["kind"] != "tag" or ref["state"] != "active" or rules.tags_pin:
            pinned.append(ref["commit_id"])
    return heads, rows_of(ids, pinned, who="a ref")


def _causes(
    first_parent: npt.NDArray[np.int64], heads: dict[str, int], rules: Rules, *, now_ms: int
) -> list[tuple[str, str, str]]:
    """(reason, rule, branch) for each commit: of the branch, among those it lies on, that would keep it longest."""
    default = f"default: {rules.default}"
    causes: list[tuple[str, str, str]] = [(DANGLING, default, "")] * len(first_parent)
    passed = bytearray(len(first_parent))
    parents = first_parent.tolist()
    for branch in sorted(heads, key=lambda name: (rules.since_ms(name, now_ms), name)):
        found = rules.rule_of(branch)
        rule = default if found is None else f"{found.pattern}: {found.period}"
        commit = heads[branch]
        while commit >= 0 and not passed[commit]:
            passed[commit] = 1
            causes[commit] = (EXPIRED, rule, branch)
            commit = parents[commit]
    return causes


def _metaranges(
    commits: pa.Table,
    created_ms: npt.NDArray[np.int64],
    kept: Flags,
    expired: Flags,
    causes: list[tuple[str, str, str]],
) -> pa.Table:
    """One row a metarange of the commits in either set; live where any kept commit has it."""
    names = commits["metarange_id"].combine_chunks()
    has_entries = pc.not_equal(names, "").to_numpy(zero_copy_only=False)
    chosen = np.flatnonzero((kept | expired) & has_entries)
    codes: Any = names.take(pa.array(chosen)).dictionary_encode()
    numbers = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.lexsort((created_ms[chosen], kept[chosen], numbers))
    last = order[np.r_[numbers[order][1:] != numbers[order][:-1], True]] if len(order) else order
    commit = chosen[last]
    reasons = [causes[row] for row in commit.tolist()]
    return METARANGES.rows(
        {
            "metarange_id": names.take(pa.array(commit)),
            "is_live": kept[commit],
            "seen_ms": created_ms[commit],
            "reason": [reason for reason, _, _ in reasons],
            "rule": [rule for _, rule, _ in reasons],
            "branch": [branch for _, _, branch in reasons],
        }
    )


def check_live(metaranges: pa.Table, live_ranges: int) -> None:
    """
    Raises:
        EmptyLiveSet: commits with entries stay, and yet they have no range at all: something was not read.
    """
    if not live_ranges and pc.any(metaranges["is_live"]).as_py():
        raise EmptyLiveSet("commits with entries are kept, but no range of theirs was read")
