"""Find the ranges that may have due rows by a lifecycle policy, and the periods of these rows.

Branches whose periods come from the same patterns are one class. So the work does not grow as branches times rows:

1. Walk the commits once: each gets the set of classes that reach it (gc/rules/lifecycle/reach.py).
2. Read the metaranges (trees.py): each range gets the union of the sets of all commits that have it.
3. Separate the ranges without due rows. Judge the rest row by row (rows.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.gc.engines.engine import Table, required
from lakebed.gc.rules import BrokenHistory, EmptyLiveSet, one_piece
from lakebed.gc.rules.lifecycle import NO_BRANCH, BranchClasses, Policy, bits_of, classes_of, parse_period, reach

REACHED: Final = Table(
    "a metarange, and the number of a set of classes that reach a commit with it; each pair once",
    required(("metarange_id", pa.string()), ("set", pa.int32())),
)
DUE_RANGES: Final = Table(
    "a range to read, and the number of its cut-offs",
    required(
        ("range_id", pa.string()),
        ("count", pa.int64()),
        ("file_bytes", pa.int64()),
        ("terms", pa.int32()),
    ),
)
SPANS: Final = Table(
    "the first and the last key of a range",
    # Keys of all ranges together may exceed the 2 GiB of an array of `binary`.
    required(("min_key", pa.large_binary()), ("max_key", pa.large_binary())),
)

Periods = tuple[str, ...] | None
"""The periods of a rule on all branches of a set. The longest applies. With None no row is ever due."""


class Terms(NamedTuple):
    """Hold the terms of a range's rows. By rule: its periods, and the branch whose period keeps objects longest.

    `classes` reach the range. They are set only if a rule keeps versions, because versions are counted by branch.
    """

    periods: tuple[Periods, ...]
    branches: tuple[str, ...]
    classes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Hold `metaranges` (REACHED), and the sets by number as bits of classes. Class `pinned` keeps everything."""

    metaranges: pa.Table
    sets: list[int]
    classes: BranchClasses
    pinned: int

    def masks(self) -> dict[str, int]:
        """Return for each metarange the union of its sets."""
        found: dict[str, int] = {}
        for name, number in zip(*(self.metaranges[column].to_pylist() for column in REACHED.schema.names), strict=True):
            found[name] = found.get(name, 0) | self.sets[number]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Hold ranges (DUE_RANGES): `due` have rows that may be due by `terms`, `whole` have none.

    Many ranges are in files of tasks, and both are PARTS of these (sorting.py). Otherwise `spans` belong to `due`.
    """

    due: pa.Table
    terms: list[Terms]
    whole: pa.Table
    spans: pa.Table = field(default_factory=SPANS.schema.empty_table)


def keeps_versions(policy: Policy) -> bool:
    return any(rule.keep_versions for rule in policy.rules)


def reach_metaranges(commits: pa.Table, refs: pa.Table, policy: Policy) -> Reached:
    """Return the classes of branches that reach the trees of commits that were not swept.

    Raises:
        BrokenHistory: a ref or a commit names a missing commit, or a ref has an unknown kind.
    """
    named: dict[str, list[tuple[str, str]]] = {"branch": [], "tag": [], "intent": []}
    for row in refs.to_pylist():
        kind, name, commit = row["kind"], row["name"], row["commit_id"]
        if kind not in named:
            raise BrokenHistory(f"{kind} {name} names commit {commit}, and what that means is not known", commit=commit)
        named[kind].append((name, commit))
        if row["state"] != "active":
            # A ref that is being made may yet get another name. So all periods of each rule apply to its commits.
            named["intent"].append((name, commit))
    # Versions are counted by branch, so no two branches may share a class then.
    classes = classes_of(policy, sorted(name for name, _ in named["branch"]), each_alone=keeps_versions(policy))
    nowhere = classes.of[NO_BRANCH]
    roots: dict[str, set[int]] = {}
    for name, commit in named["branch"]:
        roots.setdefault(commit, set()).add(classes.of[name])
    for _, commit in named["intent"]:
        roots.setdefault(commit, set()).add(nowhere)
    ids, parents = one_piece(commits["id"]), one_piece(commits["parents"])
    generations = commits["generation"].to_numpy()
    bits_by_root = {commit: sorted(bits) for commit, bits in roots.items()}
    swept = commits["swept"].to_numpy()
    found = reach(ids, parents, generations, bits_by_root, swept=swept, nowhere=1 << nowhere)
    pinned = len(classes.periods)
    pins = pinned_commits(refs, policy)
    is_pinned = pc.is_in(ids, value_set=pa.array(sorted(pins), pa.string())).to_numpy(zero_copy_only=False)
    # The second half of the numbers has the same sets, pinned.
    sets = [*found.sets, *(set_ | 1 << pinned for set_ in found.sets)]
    numbers = found.set_of + is_pinned.astype(np.int32) * np.int32(len(found.sets))
    there = pc.and_(pc.invert(commits["swept"]), pc.not_equal(commits["metarange_id"], ""))
    rows = pa.table({"metarange_id": commits["metarange_id"], "set": pa.array(numbers)}).filter(there)
    distinct = rows.group_by(["metarange_id", "set"]).aggregate([]).sort_by("metarange_id")
    return Reached(
        metaranges=REACHED.rows({name: distinct[name] for name in REACHED.schema.names}),
        sets=sets,
        classes=classes,
        pinned=pinned,
    )


def pinned_commits(refs: pa.Table, policy: Policy) -> set[str]:
    """Return the commits that the policy pins, by id or by tag. Their objects are never due."""
    tags = refs.filter(pc.equal(refs["kind"], "tag"))
    named = zip(tags["name"].to_pylist(), tags["commit_id"].to_pylist(), strict=True)
    return {*policy.pins.commits, *(commit for tag, commit in named if policy.pins_tag(tag))}


def check_found(reached: Reached, ranges: int) -> None:
    """Check that commits with entries have ranges, or raise EmptyLiveSet."""
    if reached.metaranges.num_rows and not ranges:
        raise EmptyLiveSet("there are commits with entries, but no range of theirs was read")


def sort_out(ranges: pa.Table, masks: Sequence[int], reached: Reached, policy: Policy) -> Ranges:
    """Separate the ranges (MASKED_RANGES) that may have due rows from the others, or raise EmptyLiveSet. `masks` are
    their masks by number.
    """
    check_found(reached, ranges.num_rows)
    mask_of = ranges["mask"].to_numpy()
    in_use, first = np.unique(mask_of, return_index=True)
    numbers: dict[Terms, int] = {}
    number_of_mask = np.zeros(len(masks), np.int32)
    for mask in in_use[np.argsort(first)].tolist():
        found = terms(masks[mask], reached, policy)
        number_of_mask[mask] = numbers.setdefault(found, len(numbers))
    number_of = number_of_mask[mask_of]
    is_due = np.zeros(ranges.num_rows, np.bool_)
    for at, rule in enumerate(policy.rules):
        # A rule that keeps versions counts all versions of a path, so read also ranges where no row is ever due.
        counts = np.array([one.periods[at] is not None or rule.keep_versions > 0 for one in numbers], np.bool_)
        if counts.any():
            is_due |= counts[number_of] & _meets(ranges, rule.pattern.literal_beginning())
    columns = {"terms": pa.array(number_of), **{name: ranges[name] for name in DUE_RANGES.schema.names[:-1]}}
    rows = DUE_RANGES.rows(columns)
    due = pa.array(is_due)
    spans = ranges.select(SPANS.schema.names).filter(due)
    return Ranges(due=rows.filter(due), terms=list(numbers), whole=rows.filter(pc.invert(due)), spans=spans)


def _meets(ranges: pa.Table, start: bytes) -> npt.NDArray[np.bool_]:
    """Return for each range whether it may have keys that begin with `start`."""
    least, greatest = (pc.binary_slice(ranges[name], 0, len(start)) for name in ("min_key", "max_key"))
    meets = pc.and_(pc.less_equal(least, start), pc.less_equal(start, greatest))
    found: npt.NDArray[np.bool_] = meets.to_numpy()
    return found


def terms(mask: int, reached: Reached, policy: Policy) -> Terms:
    """Return the terms of rows that the classes in this mask reach."""
    bits = bits_of(mask)
    classes = tuple(bits) if keeps_versions(policy) else ()
    if reached.pinned in bits:
        return Terms(tuple(None for _ in policy.rules), tuple("" for _ in policy.rules), classes)
    periods: list[Periods] = []
    branches: list[str] = []
    for number in range(len(policy.rules)):
        of_class = {bit: reached.classes.periods[bit][number] for bit in bits}
        all_ = {period for found in of_class.values() for period in found}
        periods.append(None if None in all_ else tuple(sorted(str(period) for period in all_)))
        branches.append(_longest(of_class, {bit: reached.classes.labels[bit][number] for bit in bits}))
    return Terms(tuple(periods), tuple(branches), classes)


def _longest(of_class: Mapping[int, Iterable[str | None]], labels: Mapping[int, str]) -> str:
    """Return the label of the class that keeps objects longest, of equals the first. Only people read it."""
    kept = {
        bit: max(_NEVER if period is None else parse_period(period).due_ms(0) for period in periods)
        for bit, periods in of_class.items()
    }
    return labels[max(kept, key=lambda bit: (kept[bit], -bit))]


_NEVER: Final = 1 << 62
