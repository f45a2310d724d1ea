"""Find the date at which each path of an object is due by the lifecycle policy: a part of why.py's answer.

`due_of` decides (gc/rules/lifecycle/due.py), the specification that runs agree with. Other parts of the answer cover
staging, uploads, copies and holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import MetarangeId, path_to_key
from lakebed.gc.live.reading.commits import Snapshot
from lakebed.gc.live.reading.inputs import packed
from lakebed.gc.live.reading.naming import Named, Search, Work
from lakebed.gc.messages import DueName
from lakebed.gc.rules.lifecycle import NEVER_MS, Due, Entry, PathVersions, Policy, bits_of, branch_sets, due_of

BRANCHES_SHOWN: Final = 10

EntriesOf = dict[MetarangeId, list[Named]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Identify commits that every rule treats alike: their set of branches, and whether they are pinned."""

    set: int
    is_pinned: bool


@dataclass(slots=True)
class _Commits:
    """Count the commits of one place with equal entries. Rows are in the order of generations."""

    newest: int = -1
    count: int = 0

    def add(self, rows: Sequence[int]) -> None:
        self.newest = max(self.newest, *rows)
        self.count += len(rows)


@dataclass(slots=True)
class DueNames:
    """Judge all objects of an answer by the policy, with the branches of each commit."""

    policy: Policy
    snapshot: Snapshot
    _set_of: npt.NDArray[np.int32] = field(init=False)
    _sets: list[list[str]] = field(init=False)
    _pinned: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        """Compute the branches and the pin of each commit, or raise BrokenHistory."""
        refs = self.snapshot.refs
        commits = pa.concat_tables(self.snapshot.commits_tables())
        # Intents, and refs that are being made, hold their commits beside the branches (NO_BRANCH).
        branches, names = branch_sets(
            commits,
            branches={name: commit for kind, name, commit, _ in refs if kind == "branch"},
            held=[commit for kind, _, commit, state in refs if kind == "intent" or state != "active"],
        )
        self._set_of, self._sets = branches.set_of, [[names[bit] for bit in bits_of(set_)] for set_ in branches.sets]
        pins = {*self.policy.pins.commits}
        pins |= {commit for kind, name, commit, _ in refs if kind == "tag" and self.policy.pins_tag(name)}
        is_pinned = pc.is_in(commits["id"], value_set=pa.array(sorted(pins), pa.string()))
        self._pinned = is_pinned.to_numpy()

    def counted_paths(self, named: EntriesOf) -> list[bytes]:
        """Return the paths whose versions a rule counts. Their versions must all be found first."""
        counted = [rule.pattern for rule in self.policy.rules if rule.keep_versions]
        paths = {row.path for rows in named.values() for row in rows}
        return [path_to_key(path) for path in sorted(paths) if any(pattern.matches(path) for pattern in counted)]

    async def find_versions(
        self, search: Search, named: EntriesOf, trees: Sequence[MetarangeId], found: EntriesOf
    ) -> AsyncIterator[Work]:
        """Find every entry ever at the paths whose versions a rule counts."""
        if paths := self.counted_paths(named):
            async for work in search.entries_at(paths, trees, found):
                yield work

    def of(self, address: str, named: EntriesOf, versions: EntriesOf) -> list[DueName]:
        """Return the paths of one object, latest due date first."""
        counted = self._count(versions)
        entries: dict[Named, dict[_Place, _Commits]] = {}
        for tree, rows in named.items():
            for row in dict.fromkeys(row for row in rows if row.address == address):
                for place, commits in self._places(tree).items():
                    entries.setdefault(row, {}).setdefault(place, _Commits()).add(commits)
        due_names = [
            self._name(row, place, commits, counted)
            for row, places in entries.items()
            for place, commits in places.items()
        ]
        # A path that is never due comes first: it keeps the object.
        return sorted(due_names, key=lambda name: (-(NEVER_MS if name.due_ms is None else name.due_ms), name.path))

    def _count(self, versions: EntriesOf) -> PathVersions:
        counted = PathVersions()
        for tree, rows in versions.items():
            for place in self._places(tree):
                for row in rows:
                    counted.add(row.path, row.address, row.modified_ms, self._sets[place.set])
        return counted

    def _places(self, tree: MetarangeId) -> dict[_Place, list[int]]:
        """Return the rows of commits with this tree that were not swept, by place."""
        is_named = pc.is_in(self.snapshot.commits.column("metarange_id"), value_set=packed([tree]))
        places: dict[_Place, list[int]] = {}
        for row in np.flatnonzero(pc.and_(is_named, self.snapshot.there()).to_numpy(zero_copy_only=False)).tolist():
            places.setdefault(_Place(int(self._set_of[row]), bool(self._pinned[row])), []).append(row)
        return places

    def _name(self, row: Named, place: _Place, commits: _Commits, counted: PathVersions) -> DueName:
        branches = self._sets[place.set]
        due = self._due(row, branches, is_pinned=place.is_pinned, counted=counted)
        return DueName(
            path=row.path,
            modified_ms=row.modified_ms,
            rule="" if due.rule is None else self.policy.rules[due.rule].text(),
            due_ms=None if due.due_ms >= NEVER_MS else due.due_ms,
            keeps=due.keeps,
            branch=due.branch,
            branches=tuple(branches[:BRANCHES_SHOWN]),
            branches_count=len(branches),
            commit=self.snapshot.commits.column("id")[commits.newest].as_py().hex(),
            commits_count=commits.count,
        )

    def _due(self, row: Named, branches: list[str], *, is_pinned: bool, counted: PathVersions) -> Due:
        metadata = msgspec.msgpack.decode(row.metadata, type=dict[str, str]) if row.metadata else {}
        entry = Entry(
            path=row.path,
            address=row.address,
            modified_ms=row.modified_ms,
            size_bytes=row.size_bytes,
            metadata=metadata,
        )
        return due_of(self.policy, entry, row.address, branches, is_pinned=is_pinned, versions=counted)
