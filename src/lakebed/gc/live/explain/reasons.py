"""Judge what a search of why.py found: the reasons that keep an object, in the order of an answer, and its fate.

All of it is pure. Each step is linear in the commits and branches of a snapshot, and in no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import CommitId, MetarangeId, RunId, RunKind
from lakebed.gc.live.reading.commits import Snapshot
from lakebed.gc.live.reading.inputs import CommitColumns, packed, texts
from lakebed.gc.live.reading.naming import Named
from lakebed.gc.messages import CommittedName, Fate
from lakebed.gc.rules import Ancestry, Holds, Rules, Stay, StayKind, goes_ms, parse_duration, plain_name, stays_of
from lakebed.versions import RefState

_TAKES_NAMED: Final = {kind for kind in RunKind if kind.takes_named}
_OF_BRANCHES: Final = {StayKind.BRANCH, StayKind.HEAD, StayKind.KEEP_LAST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Hold facts that are read once for all objects of an answer."""

    snapshot: Snapshot
    ancestry: Ancestry
    rules: Rules | None
    holds: Holds
    now_ms: int
    taken_by: Mapping[CommitId, RunId]
    """The runs of expiring commits, and of swept ones that an undo can bring back (`Snapshot.returnable`)."""
    until_ms: Mapping[RunId, int]
    """The end of the window of each deferred run."""
    default_branch: str
    deleted_until_ms: dict[str, int]
    """The time until which each deleted branch or tag is kept, by its name in the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FateFacts:
    """Hold the facts about one object that decide its fate.

    `modified_ms` is None if the object is not in the store. `deleted_by` names the kinds of runs that recorded its
    deletion. `stays` are those of commits that name the object, or of runs whose undo brings such commits back.
    """

    is_outside: bool = False
    is_own: bool = False
    modified_ms: int | None = None
    deleted_by: AbstractSet[str] = frozenset()
    is_staged: bool = False
    is_held: bool = False
    is_committed: bool = False
    stays: Sequence[Stay] = ()
    deferred_until_ms: int | None = None


def fate_of(facts: FateFacts, rules: Rules | None, *, now_ms: int) -> tuple[Fate, int | None]:
    """Return the fate of an object, and the first instant at which a run may delete it. The first match decides."""
    if facts.is_outside:
        return Fate.OUTSIDE, None
    if facts.modified_ms is None:
        return _fate_of_missing(facts), None
    if facts.is_own:
        return Fate.OWN, None
    if facts.is_staged or facts.is_held:
        return Fate.KEPT, None
    if facts.is_committed:
        until_ms = None if rules is None else goes_ms(facts.stays, now_ms=now_ms)
        return Fate.EXPIRED if until_ms == now_ms else Fate.KEPT, until_ms
    if facts.deferred_until_ms is not None:
        return Fate.DEFERRED, facts.deferred_until_ms
    if facts.stays:
        ends = [stay.until_ms for stay in facts.stays if stay.until_ms is not None]
        return Fate.KEPT, max(now_ms, *ends) if len(ends) == len(facts.stays) else None
    age = None if rules is None else rules.uncommitted_min_age
    until_ms = now_ms if age is None else parse_duration(age).over_ms(facts.modified_ms, now_ms)
    return Fate.UNREFERENCED if until_ms == now_ms else Fate.YOUNG, until_ms


def _fate_of_missing(facts: FateFacts) -> Fate:
    # Only lifecycle runs and erasures delete objects that commits still name.
    was_taken = bool(facts.deleted_by & _TAKES_NAMED if facts.is_committed else facts.deleted_by)
    if facts.is_staged or (facts.is_committed and not was_taken):
        return Fate.MISSING
    return Fate.TAKEN if was_taken else Fate.UNKNOWN


def _ending(stay: Stay, deleted_until_ms: int | None) -> Stay:
    """End the stay of a deleted branch or tag when it can no longer be brought back."""
    if deleted_until_ms is None:
        return stay
    until_ms = deleted_until_ms if stay.until_ms is None else min(stay.until_ms, deleted_until_ms)
    return msgspec.structs.replace(stay, until_ms=until_ms)


def ancestry_of(snapshot: Snapshot) -> Ancestry:
    """Return the snapshot's commits as row numbers. A ref that is being made holds its commit under any rules."""
    ids, parents = snapshot.commits.column("id"), snapshot.commits.column("parents")
    starts = parents.offsets.to_numpy()
    has_parent = np.diff(starts) > 0
    above = parents.values.take(pa.array(starts[:-1][has_parent]))
    # One look-up: to build the index of the ids takes longer than all other steps.
    names = pa.concat_arrays([above, packed([commit for _, _, commit, _ in snapshot.refs])])
    rows = np.asarray(pc.fill_null(pc.index_in(names, value_set=ids), -1).to_numpy(), np.int64)
    first_parent = np.full(len(ids), -1, np.int64)
    first_parent[has_parent] = rows[: len(above)]
    named: dict[str, dict[str, int]] = {"branch": {}, "tag": {}, "intent": {}}
    for (kind, name, _, state), row in zip(snapshot.refs, rows[len(above) :].tolist(), strict=True):
        if row >= 0 and state == RefState.ACTIVE.value:
            named[kind][name] = row
        elif row >= 0:
            named["intent"][f"{kind} {name}"] = row
    return Ancestry(
        ids=_Texts(ids),
        first_parent=first_parent.tolist(),
        created_ms=snapshot.commits.numbers("created_ms").tolist(),
        heads=named["branch"],
        tags=named["tag"],
        held=named["intent"],
    )


class _Texts(Sequence[CommitId]):
    """Make texts of the ids that are asked for. Most never are."""

    def __init__(self, ids: pa.Array) -> None:
        self._ids: list[bytes] = ids.to_pylist()

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, row: Any) -> Any:
        return CommitId(self._ids[row].hex())


def without_returned(snapshot: Snapshot) -> Snapshot:
    """Omit a deleted ref if a live ref has its name and commit: it keeps nothing more.

    Its record stays until the end of its period, so that every collector sees one of the two (`read_snapshot`).
    """
    if all(plain_name(name) == name for _, name, _, _ in snapshot.refs):
        return snapshot
    live = {(kind, name, commit) for kind, name, commit, state in snapshot.refs if state == RefState.ACTIVE.value}
    return replace(
        snapshot,
        refs=[
            ref
            for ref in snapshot.refs
            if plain_name(ref[1]) == ref[1] or (ref[0], plain_name(ref[1]), ref[2]) not in live
        ],
    )


def trees_of(snapshot: Snapshot, *, returnable: bool = False) -> list[MetarangeId]:
    """Return the distinct metaranges of commits that were not swept, newest first. Add `returnable` ones on request."""
    wanted = pc.or_(snapshot.there(), are_returnable(snapshot)) if returnable else snapshot.there()
    there = snapshot.commits.column("metarange_id").filter(wanted)
    trees = pc.unique(there.take(pa.array(np.arange(len(there))[::-1])))
    return [MetarangeId(tree) for tree in texts(trees).to_pylist() if tree]


def are_returnable(snapshot: Snapshot) -> pa.Array:
    """Return a flag for each commit: an undo can bring it back."""
    return pc.is_in(snapshot.commits.column("id"), value_set=packed(sorted(snapshot.returnable)))


def stays_sorted(known: Known, rows: Sequence[int], returnable: Sequence[CommittedName]) -> list[Stay]:
    """Return the stays of these commits, and one for each run whose undo brings some back. Those that keep come first.
    Of branches that keep an object alike, the default one comes first, then those with the newest heads.

    `returnable` has the names in commits that an undo brings back, newest first.
    """
    stays = [
        _ending(stay, known.deleted_until_ms.get(stay.name))
        for stay in stays_of(known.ancestry, rows, known.rules, now_ms=known.now_ms)
    ]
    newest = {name.run: name for name in reversed(returnable)}
    stays += [
        Stay(kind=StayKind.UNDO, name=run, commit=CommitId(name.commit), until_ms=known.until_ms.get(RunId(run)))
        for run, name in newest.items()
    ]

    def order(stay: Stay) -> tuple[bool, str, int, bool, int, str]:
        # A tag, too, may have the name of a branch.
        head = known.ancestry.heads.get(stay.name) if stay.kind in _OF_BRANCHES else None
        made_ms = 0 if head is None else known.ancestry.created_ms[head]
        is_other = head is None or stay.name != known.default_branch
        return not stay.keeps_at(known.now_ms), stay.kind, -(stay.until_ms or 0), is_other, -made_ms, stay.name

    return sorted(stays, key=order)


def holds_on(names: Sequence[CommittedName], holds: Holds) -> tuple[str, ...]:
    return tuple(dict.fromkeys(hold for name in names for hold in holds.of(path=name.path, commit=name.commit)))


@dataclass(frozen=True, slots=True)
class Naming:
    """The commits that name an object: their rows, newest first, and the least path in the tree of each."""

    known: Known
    rows: Sequence[int]
    paths: Mapping[MetarangeId, str]

    def __len__(self) -> int:
        return len(self.rows)

    def names(self, rows: Sequence[int] | None = None) -> list[CommittedName]:
        """Return these rows as names; 4 µs each."""
        rows = self.rows if rows is None else rows
        table = self.known.snapshot.commits.table.take(pa.array(rows, pa.int64()))
        return [
            CommittedName(
                commit=id_,
                created_ms=commit.created_ms,
                path=self.paths[commit.metarange_id],
                run=self.known.taken_by.get(id_, ""),
            )
            for id_, commit in CommitColumns(table)
        ]


def commits_naming(address: str, known: Known, committed: dict[MetarangeId, list[Named]], wanted: pa.Array) -> Naming:
    paths = {
        metarange: min(row.path for row in rows if row.address == address)
        for metarange, rows in committed.items()
        if any(row.address == address for row in rows)
    }
    named = pc.is_in(known.snapshot.commits.column("metarange_id"), value_set=packed(sorted(paths)))
    rows = np.flatnonzero(pc.and_(named, wanted).to_numpy(zero_copy_only=False))
    return Naming(known, rows[::-1].tolist(), paths)
