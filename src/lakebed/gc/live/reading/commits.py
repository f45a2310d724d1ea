"""Read every commit record, and every record that names a commit, as tables.

The order: swept records, then refs, then commits. A run that could delete objects of a swept commit reads only commits
swept for good (`read_swept`). A run that publishes adds itself to the record of each run that it relies on (`counts`).

An *orphaned* commit is treated as swept: see `find_orphaned`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import CommitId, MetarangeId, RangeId, RunId, RunState, SublistId
from lakebed.catalog.tables import TABLES
from lakebed.gc.messages import COMMITS, REFS, arrow_schema
from lakebed.gc.rules import Rules, deleted_name, kept_indices, merge_bases, places_of
from lakebed.objectstore import ObjectMissing
from lakebed.ranges import MetarangeCorrupt, metarange_key, range_key, sublist_key
from lakebed.versions import (
    BranchRecord,
    DeletedRefRecord,
    IntentRecord,
    RefState,
    SweptRecord,
    TagRecord,
    Versions,
)

from .inputs import CommitColumns, CommitReading, packed, text_lists, texts

__all__ = ["Snapshot", "read_snapshot"]

PART_ROWS: Final = 1 << 17
RECORDS_A_FILE: Final = 50
COMMITS_A_FILE: Final = 200
"""This many records to read, or commits to judge, cost as much as reading the end of a range."""
METARANGES: Final = "_lakefs/metaranges/"
SUBLISTS: Final = "_lakefs/sublists/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Hold commits as row numbers: the arguments of `kept_indices`."""

    first_parent: npt.NDArray[np.int64]
    created_ms: npt.NDArray[np.int64]
    heads: dict[str, int]
    pinned: list[int]

    def kept(self, rules: Rules, *, now_ms: int) -> npt.NDArray[np.bool_]:
        """Return a flag for each commit: the rules keep it. Make these roots with `tags_pin=rules.tags_pin`."""
        return kept_indices(
            first_parent=self.first_parent,
            created_ms=self.created_ms,
            heads=self.heads,
            pinned=self.pinned,
            rules=rules,
            now_ms=now_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Hold the result of one read. `refs` are (kind, name, commit, state). `late` commits were swept after the read of
    staging. `has_lost_trees`: see PreparedCommits. `returnable`: see SweptCommits.
    """

    refs: list[tuple[str, str, CommitId, str]]
    commits: CommitColumns
    swept: frozenset[CommitId]
    late: frozenset[CommitId] = frozenset()
    has_lost_trees: bool = False
    returnable: Mapping[CommitId, RunId] = field(default_factory=dict[CommitId, RunId])

    def refs_table(self) -> pa.Table:
        kinds, names, commits, states = zip(*self.refs, strict=True) if self.refs else ((), (), (), ())
        columns = [list(kinds), list(names), list(commits), list(states)]
        return pa.table(columns, schema=arrow_schema(REFS))

    def commits_tables(self, expiring: AbstractSet[CommitId] = frozenset()) -> Iterator[pa.Table]:
        """Yield COMMITS in batches. Costs about 1 µs a commit. The date is the one that retention uses."""
        schema = arrow_schema(COMMITS)
        sets = [packed(sorted(ids)) for ids in (self.swept, expiring)]
        for start in range(0, len(self.commits), PART_ROWS):
            rows = self.commits.table.slice(start, PART_ROWS).combine_chunks()
            ids = rows["id"].chunk(0)
            columns = [
                texts(ids),
                rows["generation"],
                rows["created_ms"].cast(schema.field("creation_date").type),
                texts(rows["metarange_id"].chunk(0)),
                text_lists(rows["parents"].chunk(0)).cast(schema.field("parents").type),
                *(pc.is_in(ids, value_set=those) for those in sets),
            ]
            yield pa.table(columns, schema=schema)

    def without(self, own: frozenset[CommitId]) -> Snapshot:
        """Return the snapshot in which these commits count as swept."""
        return replace(self, swept=self.swept | own) if own else self

    def kept(self, rules: Rules, *, now_ms: int) -> set[CommitId]:
        """Return the commits that the rules keep, and those named by a branch, an intent, or a tag where tags pin, or
        raise BrokenHistory.

        Refs that are still being made are included.
        """
        kept = self.roots(tags_pin=rules.tags_pin).kept(rules, now_ms=now_ms)
        return set(texts(self.commits.column("id")).filter(pa.array(kept)).to_pylist())

    def roots(self, *, tags_pin: bool) -> Roots:
        """Return the inputs of retention rules, or raise BrokenHistory."""
        ids = texts(self.commits.column("id"))
        heads = [(name, commit) for kind, name, commit, _ in self.refs if kind == "branch"]
        pins = ("intent", "tag") if tags_pin else ("intent",)
        pinned = [(f"the {kind} {name}", commit) for kind, name, commit, _ in self.refs if kind in pins]
        named = [*((f"branch {name}", commit) for name, commit in heads), *pinned]
        first_parent, rows = places_of(ids, text_lists(self.commits.column("parents")), named)
        return Roots(
            first_parent=first_parent,
            created_ms=self.commits.numbers("created_ms"),
            heads=dict(zip((name for name, _ in heads), rows[: len(heads)], strict=True)),
            pinned=rows[len(heads) :],
        )

    def swept_bases(self) -> list[tuple[CommitId, MetarangeId]]:
        """Return each swept commit, with its tree, that merges and cherry-picks of present commits compare with.

        If the merge base of two present commits was swept, it is also a base of two *edge* commits: present commits
        with a swept parent. The paths from these to the base have only swept commits, so only swept commits are walked.
        """
        if not self.swept:
            return []
        ids, column = texts(self.commits.column("id")), self.commits.column("parents")
        starts = column.offsets.to_numpy().astype(np.int64)
        names = column.values.slice(starts[0], starts[-1] - starts[0])
        rows = pc.fill_null(pc.index_in(names, value_set=self.commits.column("id")), -1).to_numpy().astype(np.int64)
        there = self.there().to_numpy(zero_copy_only=False)
        is_swept = (rows >= 0) & ~there[rows]
        counts = np.add.reduceat(np.append(is_swept, False), starts[:-1] - starts[0]) * (np.diff(starts) > 0)
        swept_parents = _Lists(np.append(0, np.cumsum(counts)), rows[is_swept])
        edge = np.flatnonzero(there & (counts > 0))
        wanted = merge_bases(swept_parents, self.commits.numbers("generation").tolist(), edge.tolist())
        wanted |= {parent for row in edge.tolist() for parent in swept_parents[row]}
        trees = self.commits.column("metarange_id")
        swept = sorted(row for row in wanted if not there[row] and texts(trees.slice(row, 1))[0].as_py())
        return [(CommitId(ids[row].as_py()), MetarangeId(texts(trees.slice(row, 1))[0].as_py())) for row in swept]

    def there(self) -> pa.Array:
        """Return a flag for each commit: it was not swept."""
        return pc.invert(pc.is_in(self.commits.column("id"), value_set=packed(sorted(self.swept))))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptCommits:
    """Hold swept commits. `returnable` are the commits of runs that may be undone, with the run."""

    commits: frozenset[CommitId]
    returnable: Mapping[CommitId, RunId]


async def read_swept(versions: Versions, *, for_good: bool = False) -> SweptCommits:
    """Return every commit that was swept, by runs that were not undone.

    With `for_good`, omit commits of runs that may be undone. A commit swept for good stays swept.
    """
    by_run: dict[RunId, list[CommitId]] = {}
    async for name, swept in versions.inventory.every(SweptRecord):
        by_run.setdefault(RunId(swept.run), []).append(CommitId(name))
    # Read runs after the swept records, never before, to see an undo in between.
    records = dict(await versions.retired.runs()) if by_run else {}
    undone = {run for run in by_run if run in records and records[run].state is RunState.UNDONE}
    returning = {run for run in by_run if run in records and records[run].may_be_undone}
    skipped = undone | returning if for_good else undone
    return SweptCommits(
        commits=frozenset(commit for run, commits in by_run.items() if run not in skipped for commit in commits),
        returnable={commit: run for run in returning for commit in by_run[run]},
    )


async def read_snapshot(
    versions: Versions, *, known: frozenset[CommitId] | None = None, for_good: bool = False
) -> Snapshot:
    """Return the last of `snapshot_steps`."""
    snapshot: Snapshot | None = None
    async for step in snapshot_steps(versions, known=known, for_good=for_good):
        snapshot = step if isinstance(step, Snapshot) else None
    assert snapshot is not None, "the last step is the snapshot"
    return snapshot


async def snapshot_steps(
    versions: Versions, *, known: frozenset[CommitId] | None = None, for_good: bool = False
) -> AsyncIterator[int | Snapshot]:
    """Read swept records, intents, branches and tags (also those being made), kept deleted refs, then every commit.

    Yield the number of records after each page of them, and the snapshot last. A run that has read staging passes the
    commits swept before as `known`. `for_good`: see `read_swept`.
    """
    # First: a swept commit can never be named again, except after an undo. So skipping it misses no later name.
    swept_records = await read_swept(versions, for_good=for_good)
    swept = swept_records.commits
    refs = [
        ("intent", name, intent.commit_id, RefState.ACTIVE.value)
        async for name, intent in versions.inventory.every(IntentRecord)
    ]
    async for branches in versions.inventory.pages(BranchRecord):
        refs += [("branch", name, branch.commit_id, branch.state.value) for name, branch in branches]
        yield len(branches.names)
    async for tags in versions.inventory.pages(TagRecord):
        refs += [("tag", name, tag.commit_id, tag.state.value) for name, tag in tags]
        yield len(tags.names)
    # After branches and tags, never before: a deletion writes this record before it removes the ref.
    now_ms = versions.ports.clock.now_ms()
    async for key, deleted in versions.inventory.every(DeletedRefRecord):
        if now_ms < deleted.kept_until_ms:
            name = name_of_deleted(key, deleted)
            refs.append((deleted.kind.value, name, deleted.commit_id, RefState.ACTIVE.value))
    # Commits last: a commit is written before a ref names it.
    reading = CommitReading(versions)
    async for count in reading.pages():
        yield count
    commits, returnable = await reading.columns(), swept_records.returnable
    snapshot = Snapshot(refs=refs, commits=commits, swept=swept, returnable=returnable)
    if for_good and returnable and (lost := await _lost(versions, snapshot, returnable.keys())):
        # Happens only after a restored older backup. A commit without a readable tree protects no object.
        swept |= lost
        snapshot = replace(snapshot, swept=swept)
    there = await versions.ports.tasks.apart(snapshot.there)
    orphaned = await find_orphaned(versions, snapshot.commits, there, heads=[commit for _, _, commit, _ in refs])
    # A copy from a commit may set its cell after our read of staging, and before another run sweeps that commit. That
    # run sees the cell and keeps the object. In our read only the commit names it, so treat the commit as not swept.
    late = frozenset() if known is None else swept_records.commits - known
    yield replace(snapshot, swept=(swept | orphaned) - late, late=late) if orphaned or late else snapshot


async def without_tables(versions: Versions, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot for a run that takes named objects: commits of the hidden branch of tables count as swept.

    So they keep no object of it. See docs/design/0016-tables.md, "Pruning".
    """
    return snapshot.without(await commits_of_tables(versions, snapshot))


async def commits_of_tables(versions: Versions, snapshot: Snapshot) -> frozenset[CommitId]:
    """Return the commits of the hidden branch that no other ref reaches. Without that branch there are none.

    The branch that a commit was made for says nothing: a user may have had one of that name. A commit that no ref
    reaches counts as a user's, and keeps the objects that it names.
    """
    if not await versions.refs.is_work_of(TABLES, TABLES):
        return frozenset()

    def find() -> frozenset[CommitId]:
        commits, heads = snapshot.commits, {True: list[CommitId](), False: list[CommitId]()}
        for kind, name, commit, _ in snapshot.refs:
            heads[(kind, name) == ("branch", TABLES)].append(commit)
        is_own = np.frombuffer(_walked(heads[True], commits), np.bool_)
        is_other = np.frombuffer(_walked(heads[False], commits), np.bool_)
        chosen = texts(commits.column("id").filter(pa.array(is_own & ~is_other)))
        return frozenset(map(CommitId, chosen.to_pylist()))

    return await versions.ports.tasks.apart(find)


def name_of_deleted(key: str, deleted: DeletedRefRecord) -> str:
    """Return the name of a deleted branch or tag in a snapshot."""
    return deleted_name(deleted.name, key.rpartition("-")[2])


async def read_snapshot_for_metadata(versions: Versions, *, grace_ms: int) -> Snapshot:
    """Read a snapshot whose `swept` omits commits with trees that must stay although their data was deleted.

    It omits commits of runs that began less than `grace_ms` ago: readers may have listed them. A run without a record
    is older. It omits commits of runs that still sweep: a legal hold may name their paths (gc/mark/holding.py). It
    omits commits that merges and cherry-picks compare with (gc/rules/history.py).

    A commit without its metarange or a sublist stays in `swept`: it was marked as missing, or a backup from before the
    deletion was restored.
    """
    # For good: a run undone after the read of swept records still needs the trees of its commits.
    snapshot = await read_snapshot(versions, for_good=True)
    since_ms = versions.ports.clock.now_ms() - grace_ms
    young = {
        run
        for run, record in await versions.retired.runs()
        if record.started_ms > since_ms or record.state is RunState.SWEEPING
    }
    stays = await _compared_with(versions, snapshot)
    lost: set[CommitId] = set()
    if young:
        swept = [(name, record.run) async for name, record in versions.inventory.every(SweptRecord)]
        recent = {name for name, run in swept if run in young}
        stays |= recent
        lost = await _lost(versions, snapshot, recent)
    if not stays:
        return snapshot
    return replace(snapshot, swept=snapshot.swept - (stays - lost), has_lost_trees=bool(lost))


async def _lost(versions: Versions, snapshot: Snapshot, recent: AbstractSet[str]) -> set[CommitId]:
    """Return which of these commits have unreadable trees. Costs as much as `_without_lists`, or nothing."""
    trees = {
        id_: facts.metarange_id
        for id_, facts in (snapshot.commits if recent else ())
        if id_ in recent and facts.metarange_id
    }
    lacking = await _without_lists(versions, set(trees.values())) if trees else set()
    return {CommitId(id_) for id_, tree in trees.items() if tree in lacking}


async def _without_lists(versions: Versions, trees: AbstractSet[MetarangeId]) -> set[MetarangeId]:
    """Return which of these trees lack their metarange or a sublist.

    Costs a listing of all metaranges and a read of each tree's metarange. If a tree has sublists, costs a listing of
    all sublists too.
    """
    there = {stat.key async for page in versions.objectstore.list(METARANGES) for stat in page}
    whole = [tree for tree in sorted(trees) if metarange_key(tree) in there]
    read = versions.ports.tasks.ahead(whole, versions.trees.sublists)
    wide = {tree: {sublist_key(info.id) for info in sublists} async for tree, sublists in read if sublists}
    if wide:
        there = {stat.key async for page in versions.objectstore.list(SUBLISTS) for stat in page}
    return {*trees} - {*whole} | {tree for tree, sublists in wide.items() if not sublists <= there}


async def _compared_with(versions: Versions, snapshot: Snapshot) -> set[str]:
    """Return the swept commits with complete trees that merges of two refs, or cherry-picks, need.

    Skips a tree with missing files: a run may have deleted them while no merge needed the tree. Costs a read of a
    metarange for each commit.
    """
    compared: set[str] = set()
    for id_, metarange in await versions.ports.tasks.apart(snapshot.swept_bases):
        try:
            sublists = [info.id for info in await versions.context.trees.sublists(metarange)]
            ranges = [info.id for info in await versions.context.trees.ranges(metarange)]
        except MetarangeCorrupt:
            continue
        # A retired id does not prove a deleted file: this run retires the ids that it lists, then checks again.
        taken = await versions.retired.retired_by([metarange, *sublists, *ranges])
        names = [metarange_key(metarange), *map(sublist_key, sublists), *map(range_key, ranges)]
        retired = [name for name, by in zip(names, taken, strict=True) if by]
        if not any([await is_missing(versions, name) for name in retired]):
            compared.add(id_)
    return compared


class _Lists(Sequence[Sequence[int]]):
    """Hold the parent rows of each commit without a Python object for each commit."""

    def __init__(self, offsets: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> None:
        self._offsets, self._values = offsets, values

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> list[int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...

    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        numbers: list[int] = self._values[self._offsets[index] : self._offsets[index + 1]].tolist()
        return numbers


Id = TypeVar("Id", RangeId, SublistId)


async def find_orphaned(
    versions: Versions, commits: CommitColumns, there: pa.Array, *, heads: Iterable[CommitId]
) -> frozenset[CommitId]:
    """Return the orphaned commits among those that are `there`, a flag for each commit: it was not swept.

    A commit is orphaned if a file of its tree was retired and is missing. That is a proof: no file of a commit that is
    or will be published is deleted after it was retired (docs/design/protocols.md, "A collection of metadata").
    A missing file that was never retired is damage, and stops every reader. `heads` are all commits that a ref names.

    Costs nothing if every commit is noted as published. Else costs one or two lookups and a metarange for each tree
    that no published commit has.
    """
    # A committer may sleep between its files and its commit record while a collection of metadata deletes the files.
    # The bump of the branch prevents publication of that commit, but its record exists.
    loose, suspects = await versions.ports.tasks.apart(partial(_find_suspects, commits, there))
    if not suspects:
        return frozenset()
    broken = set()
    for tree, taken_by in zip(suspects, await versions.retired.retired_by(suspects), strict=True):
        # A metarange may exist without its ranges: its writer slept before it, and wrote it after their deletes.
        # Missing but never retired is damage, not an orphan.
        is_gone = bool(taken_by) and await is_missing(versions, metarange_key(MetarangeId(tree)))
        if is_gone or await _lacks_files(versions, MetarangeId(tree)):
            broken.add(tree)
    is_orphaned = pc.is_in(loose["metarange_id"].combine_chunks(), value_set=packed(sorted(broken)))
    orphaned = frozenset(map(CommitId, texts(loose["id"].combine_chunks().filter(is_orphaned)).to_pylist()))
    # A commit that a ref reaches is damaged, not orphaned: keep it, so that its readers stop.
    return orphaned - _reachable(heads, commits, orphaned) if orphaned else orphaned


def loose_commits(commits: CommitColumns) -> frozenset[CommitId]:
    """Return the commits that were tried and have no note of their publication."""
    return frozenset(map(CommitId, texts(commits.column("id").filter(commits.column("tried"))).to_pylist()))


def unnamed_commits(snapshot: Snapshot, among: frozenset[CommitId]) -> list[CommitId]:
    """Return which of these commits have no note of their publication, while no ref, intent or commit leads to them."""
    left = among & loose_commits(snapshot.commits)
    if not left:
        return []
    left -= _reachable([commit for _, _, commit, _ in snapshot.refs], snapshot.commits, left)
    parents = pc.unique(snapshot.commits.column("parents").values)
    is_parent = pc.is_in(packed(sorted(left)), value_set=parents).to_pylist()
    return [id_ for id_, is_used in zip(sorted(left), is_parent, strict=True) if not is_used]


def _find_suspects(commits: CommitColumns, there: pa.Array) -> tuple[pa.Table, list[str]]:
    """Return the present commits not noted as published, and the trees that only such commits have."""
    is_noted = commits.column("published")
    loose = commits.table.filter(pc.and_(there, pc.invert(is_noted))).select(["id", "metarange_id"])
    if not loose.num_rows:
        return loose, []
    trees = pc.unique(loose["metarange_id"].combine_chunks())
    noted = commits.column("metarange_id").filter(pc.and_(there, is_noted))
    noted = pc.unique(noted.filter(pc.is_in(noted, value_set=trees)))
    return loose, sorted(set(texts(trees).to_pylist()) - set(texts(noted).to_pylist()) - {""})


async def _lacks_files(versions: Versions, tree: MetarangeId) -> bool:
    try:
        sublists = [info.id for info in await versions.trees.sublists(tree)]
        # First: the ranges cannot be read without all sublists.
        if sublists and await _lacks_retired(versions, sublists, sublist_key):
            return True
        ranges = [info.id for info in await versions.trees.ranges(tree)]
    except MetarangeCorrupt:
        return False
    return await _lacks_retired(versions, ranges, range_key)


async def _lacks_retired(versions: Versions, ids: Sequence[Id], key_of: Callable[[Id], str]) -> bool:
    taken = [id_ for id_, by in zip(ids, await versions.retired.retired_by(ids), strict=True) if by]
    for id_ in taken:
        if await is_missing(versions, key_of(id_)):
            return True
    return False


async def is_missing(versions: Versions, key: str) -> bool:
    try:
        await versions.objectstore.stat(key)
    except ObjectMissing:
        return True
    return False


def _reachable(heads: Iterable[CommitId], commits: CommitColumns, wanted: frozenset[CommitId]) -> set[CommitId]:
    """Return the wanted commits that these heads reach."""
    ids, is_found = commits.column("id"), _walked(heads, commits)
    rows = zip(sorted(wanted), _rows(ids, packed(sorted(wanted))).tolist(), strict=True)
    return {id_ for id_, row in rows if row >= 0 and is_found[row]}


def _walked(heads: Iterable[CommitId], commits: CommitColumns) -> bytearray:
    """Return a flag for each commit: these heads reach it."""
    ids, parents = commits.column("id"), commits.column("parents")
    ends = parents.offsets.to_numpy()
    above = _rows(ids, parents.values)
    is_found = bytearray(len(ids))
    waiting = [row for row in _rows(ids, packed(list(heads))).tolist() if row >= 0]
    while waiting:
        row = waiting.pop()
        if not is_found[row]:
            is_found[row] = 1
            waiting += [parent for parent in above[ends[row] : ends[row + 1]].tolist() if parent >= 0]
    return is_found


def _rows(ids: pa.Array, names: pa.Array) -> npt.NDArray[np.int64]:
    """Return the row of each of these commits, or -1 if there is no record."""
    return np.asarray(pc.fill_null(pc.index_in(names, value_set=ids), -1).to_numpy()).astype(np.int64)
