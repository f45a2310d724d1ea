"""The same verdict as `history.kept_commits`, for histories of millions: columns in, a boolean column out.

Along first parents the history is a forest. What a commit needs to know is the longest retention of all branches whose
main ancestry it is in; so the heads are walked in that order, longest first, and a walk ends where an earlier one
passed: all below has a period at least as long. Every commit is passed once, whatever the number of branches.
So it is with the newest commits that a rule pins, counted from each head. A property test holds this equal to the
specification.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .history import BrokenHistory
from .rules import Rules


def kept_indices(
    *,
    first_parent: npt.NDArray[np.int64],
    created_ms: npt.NDArray[np.int64],
    heads: Mapping[str, int],
    pinned: Sequence[int],
    rules: Rules,
    now_ms: int,
) -> npt.NDArray[np.bool_]:
    """Which commits keep their data. Commits are rows; `first_parent` is -1 where there is none.

    `pinned` are kept whatever the rules say: held commits, refs being made, and tags where `rules.tags_pin`.
    Linear in commits; about 0.3 µs each.
    """
    parents = first_parent.tolist()
    limits = np.full(len(parents), np.iinfo(np.int64).max, np.int64)
    walks = sorted((rules.since_ms(branch, now_ms), head) for branch, head in heads.items())
    on_branches = _walk(parents, [head for _, head in walks])
    dangling = np.flatnonzero(on_branches == 0)
    default = rules.since_ms(None, now_ms)
    _set_limits(parents, limits, _merged(walks, default, dangling))
    active = created_ms >= limits
    kept = active.copy()
    above = first_parent[active]
    kept[above[above >= 0]] = True
    kept[list(heads.values())] = True
    kept[list(pinned)] = True
    kept[_last_of_branches(parents, [(rules.keep_last_of(branch), head) for branch, head in heads.items()])] = True
    return kept


def _last_of_branches(parents: list[int], walks: Iterable[tuple[int, int]]) -> list[int]:
    """The newest commits of each (how many, head). All walks go at once, those with more left to go first: so the one
    that is first at a commit has the most left there, and no commit is passed twice.
    """
    starts: dict[int, list[int]] = {}
    for count, head in walks:
        starts.setdefault(count, []).append(head)
    seen = bytearray(len(parents))
    found: list[int] = []
    reached: list[int] = []
    for left in range(max(starts, default=0), 0, -1):
        here: list[int] = []
        for commit in (*reached, *starts.get(left, ())):
            if not seen[commit]:
                seen[commit] = 1
                here.append(commit)
        found += here
        reached = [parents[commit] for commit in here if parents[commit] >= 0]
    return found


def _merged(
    walks: list[tuple[int, int]], default: int, dangling: npt.NDArray[np.int64]
) -> list[tuple[int, Sequence[int]]]:
    """Starting points by limit, ascending; dangling commits stand with the default."""
    grouped: dict[int, list[int]] = {}
    for since, head in walks:
        grouped.setdefault(since, []).append(head)
    grouped.setdefault(default, []).extend(dangling.tolist())
    return sorted(grouped.items())


def _walk(parents: list[int], starts: Sequence[int]) -> npt.NDArray[np.uint8]:
    seen = bytearray(len(parents))
    for start in starts:
        commit = start
        while commit >= 0 and not seen[commit]:
            seen[commit] = 1
            commit = parents[commit]
    return np.frombuffer(seen, np.uint8)


def _set_limits(parents: list[int], limits: npt.NDArray[np.int64], groups: Sequence[tuple[int, Sequence[int]]]) -> None:
    seen = bytearray(len(parents))
    for since, starts in groups:
        passed: list[int] = []
        for start in starts:
            commit = start
            while commit >= 0 and not seen[commit]:
                seen[commit] = 1
                passed.append(commit)
                commit = parents[commit]
        limits[passed] = since


def first_parent_indices(ids: pa.Array, parents: pa.Array) -> npt.NDArray[np.int64]:
    """The row of each commit's first parent, -1 where it has none. `parents` is a list column, first parent first.

    Raises:
        BrokenHistory: a first parent is not among `ids`.
    """
    offsets = parents.offsets.to_numpy()
    found = np.full(len(ids), -1, np.int64)
    has_parent = np.flatnonzero(np.diff(offsets) > 0)
    if len(has_parent):
        found[has_parent] = _rows_of(ids, parents.values.take(pa.array(offsets[has_parent])), "a commit")
    return found


def rows_of(ids: pa.Array, names: Sequence[str], *, who: str) -> list[int]:
    """The rows of these commits, in the order given.

    Raises:
        BrokenHistory: one is not among `ids`; `who` is what the error says names it.
    """
    return _rows_of(ids, pa.array(names, pa.string()), who).tolist() if names else []


def _rows_of(ids: pa.Array, names: pa.Array, who: str) -> npt.NDArray[np.int64]:
    rows = pc.index_in(names, value_set=ids)
    if rows.null_count:
        missing = names.filter(pc.is_null(rows))[0].as_py()
        raise BrokenHistory(f"{who} names commit {missing}, which has no record", commit=missing)
    return np.asarray(rows.to_numpy(), np.int64)
