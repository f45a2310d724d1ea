"""Every commit record and everything that names one, as tables.

Refs are read before commits, because a commit is written before it is named. Swept records are read before all else: a
commit that was swept when we began can never be named again, so a run that skips it skips nothing that a later
operation could bring back, but for an undo. A run that could take for garbage what such a commit names reads what was
swept for good (`read_swept`); one that publishes is on the record of each run that it counts on (`counts`).

An *orphaned* commit counts as swept. A committer may sleep between its files and its commit record, while a collection
of metadata deletes the files. The branch was bumped, so the commit cannot be published, but its record is there. A
commit is orphaned when a file that it names was retired and is missing. That is a proof: no file of a commit that is or
will be published is deleted after it was retired (docs/design/protocols.md, "A collection of metadata"). A file that is
missing and was never retired is damage, and stops every reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import CommitId, MetarangeId, RangeId, RunId, RunState, SublistId
from lakebed.gc.messages import COMMITS, REFS, arrow_schema
from lakebed.gc.rules import Rules, deleted_name, first_parent_indices, kept_indices, merge_bases, rows_of
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

from .commit_columns import CommitColumns, packed, read_commits, text_lists, texts

PART_ROWS: Final = 1 << 17
METARANGES: Final = "_lakefs/metaranges/"
SUBLISTS: Final = "_lakefs/sublists/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Hold the commits as rows: arguments of `kept_indices`."""

    first_parent: npt.NDArray[np.int64]
    created_ms: npt.NDArray[np.int64]
    heads: dict[str, int]
    pinned: list[int]

    def kept(self, rules: Rules, *, now_ms: int) -> npt.NDArray[np.bool_]:
        """Return for each commit whether the rules keep it. These are the roots of `rules.tags_pin`."""
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
    """Hold what was read in one pass. `refs` are (kind, name, commit, state); `late` were swept
    after staging was read. `has_lost_trees` is of PreparedCommits. `counts`: runs whose commits are in `swept` and that
    may be undone.
    """

    refs: list[tuple[str, str, CommitId, str]]
    commits: CommitColumns
    swept: frozenset[CommitId]
    late: frozenset[CommitId] = frozenset()
    has_lost_trees: bool = False
    counts: tuple[RunId, ...] = ()

    def refs_table(self) -> pa.Table:
        kinds, names, commits, states = zip(*self.refs, strict=True) if self.refs else ((), (), (), ())
        columns = [list(kinds), list(names), list(commits), list(states)]
        return pa.table(columns, schema=arrow_schema(REFS))

    def commits_tables(self, expiring: AbstractSet[CommitId] = frozenset()) -> Iterator[pa.Table]:
        """Yield COMMITS in batches: there may be a million. About 1 µs a commit. The date is that from which
        retention counts."""
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

    def kept(self, rules: Rules, *, now_ms: int) -> set[CommitId]:
        """Return the commits that the rules keep; and those that a branch or intent names, or a tag where tags pin,
        being made or not.

        Raises:
            BrokenHistory: a commit that something names was not among those read.
        """
        kept = self.roots(tags_pin=rules.tags_pin).kept(rules, now_ms=now_ms)
        return set(texts(self.commits.column("id")).filter(pa.array(kept)).to_pylist())

    def roots(self, *, tags_pin: bool) -> Roots:
        """Return the inputs of retention rules.

        Raises:
            BrokenHistory: a commit that something names was not among those read.
        """
        ids = texts(self.commits.column("id"))
        return Roots(
            first_parent=first_parent_indices(ids, text_lists(self.commits.column("parents"))),
            created_ms=self.commits.numbers("created_ms"),
            heads=self._rows(ids, "branch"),
            pinned=[*self._rows(ids, "intent").values(), *(self._rows(ids, "tag").values() if tags_pin else ())],
        )

    def swept_bases(self) -> list[tuple[CommitId, MetarangeId]]:
        """Return each swept commit, with its tree, that merges and cherry-picks of commits that are there compare with.

        Of two of these the base, if it was swept, is one of two *edge* commits, which have a swept parent, by a way of
        swept commits alone: else the two had met before. So only swept commits are walked.
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
        """Return of each commit whether it was not swept."""
        return pc.invert(pc.is_in(self.commits.column("id"), value_set=packed(sorted(self.swept))))

    def _rows(self, ids: pa.Array, *kinds: str) -> dict[str, int]:
        chosen = [(name, commit) for kind, name, commit, _ in self.refs if kind in kinds]
        found = rows_of(ids, [commit for _, commit in chosen], who=f"a {' or '.join(kinds)}")
        return dict(zip((name for name, _ in chosen), found, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptCommits:
    """Hold what was swept, the runs among those that took it that may be undone, and what these took where it is
    left out.
    """

    commits: frozenset[CommitId]
    counts: tuple[RunId, ...] = ()
    left_out: frozenset[CommitId] = frozenset()


async def read_swept(versions: Versions, *, for_good: bool = False) -> SweptCommits:
    """Return every commit that was swept until now, by runs that were not undone.

    `for_good`: leave out those of runs that may be undone. A commit that is swept for good once is so for ever.
    """
    by_run: dict[RunId, list[CommitId]] = {}
    async for name, swept in versions.inventory.every(SweptRecord):
        by_run.setdefault(RunId(swept.run), []).append(CommitId(name))
    # After the records, never before: a run that is undone in between is seen to be.
    records = dict(await versions.retired.runs()) if by_run else {}
    undone = {run for run in by_run if run in records and records[run].state is RunState.UNDONE}
    counts = {run for run in by_run if run in records and records[run].may_be_undone}
    skipped = undone | counts if for_good else undone
    return SweptCommits(
        commits=frozenset(commit for run, commits in by_run.items() if run not in skipped for commit in commits),
        counts=() if for_good else tuple(sorted(counts)),
        left_out=frozenset(commit for run in (counts if for_good else ()) for commit in by_run[run]),
    )


async def read_snapshot(
    versions: Versions, *, known: frozenset[CommitId] | None = None, for_good: bool = False
) -> Snapshot:
    """Read swept records, then holds, then branches and tags (those being made too), then deleted ones that are kept,
    then every commit record.

    A run that has read staging before passes the commits swept by then as `known`. `for_good`: see `read_swept`.
    """
    found = await read_swept(versions, for_good=for_good)
    swept = found.commits
    refs = [
        ("intent", name, intent.commit_id, RefState.ACTIVE.value)
        async for name, intent in versions.inventory.every(IntentRecord)
    ]
    refs += [
        ("branch", name, branch.commit_id, branch.state.value)
        async for name, branch in versions.inventory.every(BranchRecord)
    ]
    refs += [("tag", name, tag.commit_id, tag.state.value) async for name, tag in versions.inventory.every(TagRecord)]
    # After branches and tags, never before: a deletion is noted here before its ref goes, so one of the two shows it.
    now_ms = versions.ports.clock.now_ms()
    async for key, deleted in versions.inventory.every(DeletedRefRecord):
        if now_ms < deleted.kept_until_ms:
            name = name_of_deleted(key, deleted)
            refs.append((deleted.kind.value, name, deleted.commit_id, RefState.ACTIVE.value))
    snapshot = Snapshot(refs=refs, commits=await read_commits(versions), swept=swept, counts=found.counts)
    if found.left_out and (lost := await _lost(versions, snapshot, found.left_out)):
        # Only where an older backup came back: what names nothing that could be read names nothing that may go.
        swept |= lost
        snapshot = replace(snapshot, swept=swept)
    there = await versions.ports.tasks.apart(snapshot.there)
    orphaned = await find_orphaned(versions, snapshot.commits, there, heads=[commit for _, _, commit, _ in refs])
    # A copy from a commit may set its cell after we read staging, and before another run sweeps that commit: the run
    # sees the cell and spares the object. To us only the commit names it, so it must count as not swept.
    late = frozenset() if known is None else found.commits - known
    return replace(snapshot, swept=(swept | orphaned) - late, late=late) if orphaned or late else snapshot


def name_of_deleted(key: str, deleted: DeletedRefRecord) -> str:
    """Return the name by which a snapshot has a deleted branch or tag."""
    return deleted_name(deleted.name, key.rpartition("-")[2])


async def read_snapshot_for_metadata(versions: Versions, *, grace_ms: int) -> Snapshot:
    """The same, where `swept` leaves out commits whose trees stay although their data is gone.

    These are commits swept by a run that began less than `grace_ms` ago: a reader may have their listing. A run whose
    record is gone began before that. Commits swept by a run that still deletes are added, for a legal hold may name
    paths in them (gc/mark/holding.py). So are those that merges and cherry-picks compare with (gc/rules/bases.py).

    One without a metarange file has no tree that could be read: it was marked as gone for that, or a collection took
    the file and a backup from before that was restored.
    """
    # For good: a run that is undone after its swept records were read keeps the trees of its commits all the same.
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
    """Return which of these commits have trees that cannot be read. Costs as much as `missing_lists`, or nothing."""
    trees = {
        id_: facts.metarange_id
        for id_, facts in (snapshot.commits if recent else ())
        if id_ in recent and facts.metarange_id
    }
    lacking = await _without_lists(versions, set(trees.values())) if trees else set()
    return {CommitId(id_) for id_, tree in trees.items() if tree in lacking}


async def _without_lists(versions: Versions, trees: AbstractSet[MetarangeId]) -> set[MetarangeId]:
    """Return which of these trees lack their metarange or a sublist.

    Costs a listing of all metaranges, and of the sublists where one of these trees is wide; and a read of each tree's
    metarange.
    """
    there = {stat.key async for page in versions.objectstore.list(METARANGES) for stat in page}
    whole = [tree for tree in sorted(trees) if metarange_key(tree) in there]
    read = versions.ports.tasks.ahead(whole, versions.trees.sublists)
    wide = {tree: {sublist_key(info.id) for info in sublists} async for tree, sublists in read if sublists}
    if wide:
        there = {stat.key async for page in versions.objectstore.list(SUBLISTS) for stat in page}
    return {*trees} - {*whole} | {tree for tree, sublists in wide.items() if not sublists <= there}


async def _compared_with(versions: Versions, snapshot: Snapshot) -> set[str]:
    """Return the swept commits whose trees merges of two refs, or cherry-picks, need, and that are whole.

    Of one that nothing needed for a while a run may have deleted files: it keeps nothing, and must not stop the run
    that looks for them. Costs one read of a metarange for each.
    """
    found: set[str] = set()
    for id_, metarange in await versions.ports.tasks.apart(snapshot.swept_bases):
        try:
            sublists = [info.id for info in await versions.context.trees.sublists(metarange)]
            ranges = [info.id for info in await versions.context.trees.ranges(metarange)]
        except MetarangeCorrupt:
            continue
        # A retired id does not mean that its file is gone: this very run retires what it lists, and then looks again.
        taken = await versions.retired.retired_by([metarange, *sublists, *ranges])
        names = [metarange_key(metarange), *map(sublist_key, sublists), *map(range_key, ranges)]
        retired = [name for name, by in zip(names, taken, strict=True) if by]
        if not any([await is_missing(versions, name) for name in retired]):
            found.add(id_)
    return found


class _Lists(Sequence[Sequence[int]]):
    """The rows of each commit's parents, without an object for each commit."""

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
        found: list[int] = self._values[self._offsets[index] : self._offsets[index + 1]].tolist()
        return found


Id = TypeVar("Id", RangeId, SublistId)


async def find_orphaned(
    versions: Versions, commits: CommitColumns, there: pa.Array, *, heads: Iterable[CommitId]
) -> frozenset[CommitId]:
    """Return the orphaned ones of the commits that are `there` (a flag for each: it was not swept).

    `heads` are all commits that anything names.

    Costs nothing where every commit is noted as published; else a look or two and a metarange for each tree that only
    others have.
    """
    loose, suspects = await versions.ports.tasks.apart(partial(_find_suspects, commits, there))
    if not suspects:
        return frozenset()
    broken = set()
    for tree, taken_by in zip(suspects, await versions.retired.retired_by(suspects), strict=True):
        # A tree that is there may lack what it lists: its writer slept between the two, and put it after the deletes.
        is_gone = bool(taken_by) and await is_missing(versions, metarange_key(MetarangeId(tree)))
        if is_gone or await _lacks_files(versions, MetarangeId(tree)):
            broken.add(tree)
    is_orphaned = pc.is_in(loose["metarange_id"].combine_chunks(), value_set=packed(sorted(broken)))
    orphaned = frozenset(map(CommitId, texts(loose["id"].combine_chunks().filter(is_orphaned)).to_pylist()))
    # One that something names is damaged instead: it stays, for its readers to stop.
    return orphaned - _reachable(heads, commits, orphaned) if orphaned else orphaned


def _find_suspects(commits: CommitColumns, there: pa.Array) -> tuple[pa.Table, list[str]]:
    """Return the commits that are there and not noted as published; and the trees that only such commits have."""
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
        # First: without one of these the ranges cannot be read.
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
    """Return which of the wanted commits these heads lead to."""
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
    rows = zip(sorted(wanted), _rows(ids, packed(sorted(wanted))).tolist(), strict=True)
    return {id_ for id_, row in rows if row >= 0 and is_found[row]}


def _rows(ids: pa.Array, names: pa.Array) -> npt.NDArray[np.int64]:
    """Return where each of these commits is; -1: nowhere."""
    return np.asarray(pc.fill_null(pc.index_in(names, value_set=ids), -1).to_numpy()).astype(np.int64)
