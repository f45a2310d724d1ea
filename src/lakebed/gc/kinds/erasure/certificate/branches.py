"""Count an erasure's objects by the branches whose heads or staged entries name them.

1. read which ranges with selected entries each distinct tree of a head has, one metarange for each
2. add up the objects of each distinct set of ranges: branches of one tree, or of trees that differ elsewhere, share it
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.gc import messages
from lakebed.gc.engines.engine import Effort, Table, Task, required
from lakebed.gc.kinds.erasure.erasing import key_of
from lakebed.gc.mark.holding import metaranges_of
from lakebed.gc.mark.inputs.ranges import read_metaranges, read_sublists
from lakebed.gc.messages import InBranch, PreparedCommits, StagedEntry
from lakebed.gc.rules import Selection, Spans
from lakebed.gc.runs.context import RunContext

TREES_MAX: Final = 1_000
"""Count by branch only if the heads have at most this many trees. A task reads each by itself."""
ROWS_MAX: Final = 5_000_000
"""Count only if the sets of ranges name at most this many objects in all."""
BRANCHES_MAX: Final = 100
"""Name at most this many branches, those with the most bytes."""

_OF_TREES: Final = Table(
    "a range with selected entries, and a tree that has it",
    required(("metarange_id", pa.string()), ("range_id", pa.string())),
)


async def count_by_branch(
    context: RunContext,
    prepared: PreparedCommits,
    selection: Selection,
    *,
    found: pa.Table,
    taken: pa.Table,
    staged: Iterable[StagedEntry],
) -> tuple[InBranch, ...] | None:
    """Return the objects of `taken` (GARBAGE) that each branch names, the largest first; an object may be in several.

    The last row, without a name, has those of no branch: commits or tags name them. `found` (NAMES) are the selected
    entries. None if there are too many trees or objects.
    """
    trees = await _trees(context, prepared)
    if len(set(trees.values())) > TREES_MAX:
        return None
    sizes: dict[str, int] = dict(zip(taken["address"].to_pylist(), taken["size_bytes"].to_pylist(), strict=True))
    in_ranges: dict[str, set[str]] = {}
    goes = found.filter(pc.is_in(found["address"], value_set=taken["address"].combine_chunks()))
    for range_id, address in zip(goes["range_id"].to_pylist(), goes["address"].to_pylist(), strict=True):
        in_ranges.setdefault(range_id, set()).add(address)
    ranges_of = await _ranges_of_trees(context, set(trees.values()), selection)
    by_set: dict[frozenset[str], set[str]] = {}
    names: dict[str, set[str]] = {}
    rows = 0
    for branch, tree in trees.items():
        ranges = frozenset(ranges_of.get(tree, set()) & in_ranges.keys())
        if ranges not in by_set:
            by_set[ranges] = set().union(*(in_ranges[each] for each in ranges))
            if (rows := rows + len(by_set[ranges])) > ROWS_MAX:
                return None
        names[branch] = by_set[ranges]
    for entry in staged:
        if (address := key_of(entry, context.store.uri)) in sizes and entry.branch:
            names[entry.branch] = names.get(entry.branch, set()) | {address}
    totals = [_total(branch, named, sizes) for branch, named in names.items() if named]
    totals.sort(key=lambda row: (-row.size_bytes, row.branch))
    nowhere = sizes.keys() - set().union(*by_set.values(), *names.values())
    return (*totals[:BRANCHES_MAX], *([_total("", nowhere, sizes)] if nowhere else []))


async def _trees(context: RunContext, prepared: PreparedCommits) -> dict[str, str]:
    """Return the tree of each branch's head. Leave out branches without entries."""
    refs = (await context.read(prepared.refs, messages.REFS)).to_pylist()
    heads = {row["name"]: row["commit_id"] for row in refs if row["kind"] == "branch"}
    commits = await context.read(prepared.commits, messages.COMMITS)
    wanted = commits.filter(pc.is_in(commits["id"], value_set=pa.array(sorted(set(heads.values())), pa.string())))
    tree_of = {row["id"]: row["metarange_id"] for row in wanted.to_pylist() if not row["swept"]}
    return {branch: tree for branch, commit in sorted(heads.items()) if (tree := tree_of.get(commit))}


async def _ranges_of_trees(context: RunContext, trees: Iterable[str], selection: Selection) -> Mapping[str, set[str]]:
    """Return for each tree its ranges that may have selected entries."""
    spans = Spans(selection)

    def meets(min_key: bytes, max_key: bytes, _: bool) -> bool | None:
        return True if spans.meets(min_key, max_key) else None

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        for at in range(share.num_rows):
            tree = share.slice(at, 1)
            ranges, sublists = await read_metaranges(task, tree, meets)
            more = await read_sublists(task, sublists, meets) if sublists.num_rows else ranges.slice(0, 0)
            ids = [*ranges["range_id"].to_pylist(), *more["range_id"].to_pylist()]
            yield _OF_TREES.rows({"metarange_id": tree["metarange_id"].to_pylist() * len(ids), "range_id": ids})

    metaranges = metaranges_of(dict.fromkeys(sorted(trees), True))
    rows = await context.engine.run(work, metaranges, _OF_TREES, effort=Effort(requests=4 * metaranges.num_rows))
    of_trees: dict[str, set[str]] = {}
    for row in rows.to_pylist():
        of_trees.setdefault(row["metarange_id"], set()).add(row["range_id"])
    return of_trees


def _total(branch: str, addresses: Iterable[str], sizes: Mapping[str, int]) -> InBranch:
    named = [sizes[address] for address in addresses]
    return InBranch(branch=branch, objects=len(named), size_bytes=sum(named))
