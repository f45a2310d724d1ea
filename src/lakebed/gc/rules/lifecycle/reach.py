"""Find the branches, or classes of branches, that reach each commit: for millions of commits, columns in, columns out.

A set of classes is an integer with one bit for each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakebed.base import np, npt, pa
from lakebed.gc.rules.active import find_ids, one_piece
from lakebed.gc.rules.history import BrokenHistory
from lakebed.gc.rules.rules import matches

from .document import potential_since_ms
from .due import NO_BRANCH
from .policy import Policy

__all__ = ["BranchClasses", "Potential", "Reach", "bits_of", "branch_sets", "classes_of", "potential_rows", "reach"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Give the number of each commit's set. `sets` are the sets as bits."""

    set_of: npt.NDArray[np.int32]
    sets: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Potential:
    """List potential commits: `rows` of the history, and the number of each one's set. `sets` name branches by bit."""

    rows: npt.NDArray[np.int64]
    set_of: npt.NDArray[np.int32]
    sets: list[int]
    names: list[str]

    def branches(self, number: int) -> list[str]:
        return [self.names[bit] for bit in bits_of(self.sets[number])]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchClasses:
    """Group branches into classes: branches of a class have the same patterns under all rules. `of`: a branch's bit.
    `periods` has the periods of each class by rule. None stands for an uncovered branch. NO_BRANCH has all periods of
    a rule.

    `labels` gives the source of a period for people, by class and rule: the branch, or the pattern that several match.
    """

    of: dict[str, int]
    periods: list[tuple[frozenset[str | None], ...]]
    labels: list[tuple[str, ...]]


def classes_of(policy: Policy, branches: Sequence[str], *, each_alone: bool = False) -> BranchClasses:
    """Return the classes; class 0 is NO_BRANCH. With `each_alone` each branch has its own class."""
    members: dict[tuple[str, ...], list[str]] = {}
    # Rules share patterns, and most branches match the same patterns.
    patterns = sorted({pattern for rule in policy.rules for pattern, _ in rule.branches})
    of_matching: dict[tuple[bool, ...], tuple[str, ...]] = {}
    for branch in branches:
        matching = tuple(matches(pattern, branch) for pattern in patterns)
        if matching not in of_matching:
            of_matching[matching] = tuple(rule.pattern_of(branch) for rule in policy.rules)
        members.setdefault(of_matching[matching], []).append(branch)
    of = {NO_BRANCH: 0}
    periods = [tuple(frozenset((rule.period, *rule.periods())) for rule in policy.rules)]
    labels = [tuple(NO_BRANCH for _ in policy.rules)]
    for counting, names in members.items():
        own = tuple(frozenset({rule.period_of(names[0])}) for rule in policy.rules)
        label = counting if len(names) > 1 else tuple(names[0] for _ in policy.rules)
        for together in ([name] for name in names) if each_alone else [names]:
            of |= dict.fromkeys(together, len(periods))
            periods.append(own)
            labels.append(label)
    return BranchClasses(of=of, periods=periods, labels=labels)


def bits_of(set_: int) -> list[int]:
    """Return the numbers of the bits that are set, ascending."""
    found = []
    while set_:
        lowest = set_ & -set_
        found.append(lowest.bit_length() - 1)
        set_ ^= lowest
    return found


def potential_rows(
    commits: pa.Table,
    *,
    branches: Mapping[str, str],
    held: Sequence[str],
    earliest: Mapping[str, int | None],
) -> Potential:
    """Return the potential commits of a table COMMITS: `potential_commits` for millions of commits, in one walk, or
    raise BrokenHistory.

    `branches` are the heads by name, `held` the commits that intents name.
    """
    found, names = branch_sets(commits, branches=branches, held=held)
    by_date: dict[int, int] = {}
    for bit, name in enumerate(names):
        since_ms = potential_since_ms(earliest, [name])
        by_date[since_ms] = by_date.get(since_ms, 0) | 1 << bit
    latest = sorted(by_date.items(), reverse=True)
    since = np.array([next(date for date, mask in latest if set_ & mask) for set_ in found.sets], np.int64)
    created_ms = commits["creation_date"].cast(pa.int64()).to_numpy()
    rows = np.flatnonzero(~commits["swept"].to_numpy() & (created_ms >= since[found.set_of]))
    return Potential(rows=rows, set_of=found.set_of[rows], sets=found.sets, names=names)


def branch_sets(commits: pa.Table, *, branches: Mapping[str, str], held: Sequence[str]) -> tuple[Reach, list[str]]:
    """Return the set of branches that reach each commit of a table COMMITS, and the branches' names by bit, or raise
    BrokenHistory.

    Bit 0 is NO_BRANCH. `branches` are the heads by name, `held` the commits that intents name.
    """
    names = [NO_BRANCH, *sorted(branches)]
    roots: dict[str, list[int]] = {commit: [0] for commit in held}
    for bit, name in enumerate(names[1:], 1):
        roots.setdefault(branches[name], []).append(bit)
    ids, parents = (one_piece(commits[name]) for name in ("id", "parents"))
    swept = commits["swept"].to_numpy()
    return reach(ids, parents, commits["generation"].to_numpy(), roots, swept=swept, nowhere=1), names


def reach(
    ids: pa.Array,
    parents: pa.Array,
    generations: npt.NDArray[np.int64],
    roots: Mapping[str, Sequence[int]],
    *,
    swept: npt.NDArray[np.bool_],
    nowhere: int,
) -> Reach:
    """Return the set of each commit, or raise BrokenHistory. `roots` maps named commits to the bits of the refs that
    name them. A commit that no root reaches gets the set `nowhere`. Its ancestors get that set too, unless it was swept
    (`branches_of`).
    """
    offsets = parents.offsets.to_numpy()
    values = parents.values.slice(offsets[0], offsets[-1] - offsets[0])
    names = pa.chunked_array([values.cast(pa.string()), pa.array(list(roots), pa.string())])
    rows = find_ids(ids, names)
    if rows.null_count:
        missing = next(at for at in range(len(rows)) if not rows[at].is_valid)
        raise BrokenHistory(f"something names commit {names[missing]}, which has no record", commit=str(names[missing]))
    found = rows.to_numpy()
    # Memory views give numbers as fast as lists do, in a tenth of the memory.
    above, starts, is_swept = found.data, (offsets - offsets[0]).data, swept.view(np.uint8).data
    masks = [0] * len(ids)
    for row, bits in zip(found[len(values) :].tolist(), roots.values(), strict=True):
        for bit in bits:
            masks[row] |= 1 << bit
    # A commit's generation is higher than its parents' generations. So by falling generation each commit's set is
    # complete before its parents get it.
    for row in np.argsort(-generations, kind="stable").data:
        mask = masks[row]
        if not mask:
            if is_swept[row]:
                continue
            # A branch may reach the commit later, and with it the ancestors.
            mask = masks[row] = nowhere
        for at in range(starts[row], starts[row + 1]):
            parent = above[at]
            have = masks[parent]
            # Most parents have one child. Both then share one integer, and none is allocated.
            masks[parent] = mask if not have else have if have is mask else have | mask
    # A history has few distinct sets, so give each a small number.
    numbers: dict[int, int] = {}
    each = (numbers.setdefault(mask or nowhere, len(numbers)) for mask in masks)
    set_of = np.fromiter(each, np.int32, len(masks))
    return Reach(set_of=set_of, sets=list(numbers))
