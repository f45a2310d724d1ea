"""Commits whose trees are gone although no record says so: after a restore of an older backup of the key-value store.

Collections since the backup took files of trees, and the records that say so are not in the backup. Every plan reads
every tree that a commit names, so each would stop there. A person looks first, then marks:

    publish   a run of committed data that expires these commits
    retire    the ids of their missing files: a commit under way that relies on one fails, or builds again
    bump      every branch
    look      at refs, commits and files again: what a ref names, or what is whole again, is taken out
    swept     `swept/<commit>` for the rest; the run ends

A commit that a branch, a tag or a hard reset names is never marked: a person first moves that ref.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from lakebed.base import CommitId, MetarangeId, RunId
from lakebed.gc.protocol import MissingCommit, MissingCommits, RunKind, RunState
from lakebed.gc.rules import plain_name
from lakebed.ranges import metarange_key, range_key
from lakebed.versions import RunRecord, Versions

from .commits import MARKED_MISSING, METARANGES, Snapshot, read_snapshot
from .continuing import fresh_secret
from .runs import RunBook

SHOWN_MAX: Final = 1_000
TOGETHER: Final = 16
_TREES: Final = (METARANGES, "_lakefs/ranges/")


class Missing:
    def __init__(self, versions: Versions, runs: RunBook) -> None:
        self._versions = versions
        self._runs = runs

    async def find(self) -> MissingCommits:
        """Name the commits whose trees lack files. Costs a listing of the trees' files and a read of every tree."""
        snapshot = await read_snapshot(self._versions)
        return _answer(snapshot, await self._lacking(snapshot))

    async def mark(self) -> MissingCommits:
        """Mark as swept those that no ref names, and name the others."""
        snapshot = await read_snapshot(self._versions)
        lacking = await self._lacking(snapshot)
        wanted = sorted(lacking.keys() - _named(snapshot))
        if not wanted:
            return _answer(snapshot, lacking)
        run_id = await self._publish(wanted)
        await self._versions.retired.retire(
            run_id, ids=sorted({id_ for one in wanted for id_ in lacking[one]}), runs=[]
        )
        for branch, _ in await self._versions.context.branches.every():
            await self._versions.fencing.bump(branch)
        snapshot = await read_snapshot(self._versions)
        lacking = await self._lacking(snapshot)
        # Retired ids whose files are missing make a commit that nothing leads to an orphaned one, so it lacks no more.
        swept = sorted(set(wanted) - _named(snapshot) - self._whole(snapshot, lacking))
        await self._versions.retired.note_swept(run_id, swept)
        record, held = await self._runs.read_as(run_id, RunKind.COMMITTED, RunState.EXPIRING)
        await self._runs.write(run_id, replace(record, state=RunState.ENDED, swept=True), held)
        await self._versions.retired.release(run_id, wanted)
        left = {commit: files for commit, files in lacking.items() if commit not in set(swept)}
        return replace(_answer(snapshot, left), run_id=run_id, marked=len(swept))

    def _whole(self, snapshot: Snapshot, lacking: dict[CommitId, list[str]]) -> set[CommitId]:
        return {id_ for id_, _ in snapshot.commits if id_ not in lacking and id_ not in snapshot.swept}

    async def _publish(self, commits: list[CommitId]) -> RunId:
        """Begin a run that expires these commits: from now on nothing names one of them without being seen."""
        ports = self._versions.ports
        run_id = RunId(ports.ids.fresh())
        record = RunRecord(
            kind=RunKind.COMMITTED,
            state=RunState.PLANNING,
            started_ms=ports.clock.now_ms(),
            listed=MARKED_MISSING,
            secret=fresh_secret(ports.ids),
        )
        held = await self._runs.write(run_id, record, None)
        await self._versions.retired.expire(run_id, commits)
        await self._runs.write(run_id, replace(record, state=RunState.EXPIRING), held)
        return run_id

    async def _lacking(self, snapshot: Snapshot) -> dict[CommitId, list[str]]:
        """For each commit that was not swept the ids of files that its tree lacks, where it lacks any."""
        trees: dict[MetarangeId, list[CommitId]] = {}
        for id_, facts in snapshot.commits:
            if facts.metarange_id and id_ not in snapshot.swept:
                trees.setdefault(facts.metarange_id, []).append(id_)
        there = {
            stat.key for prefix in _TREES async for page in self._versions.objectstore.list(prefix) for stat in page
        }
        whole = [tree for tree in trees if metarange_key(tree) in there]
        gone: dict[MetarangeId, list[str]] = {tree: [tree] for tree in trees if metarange_key(tree) not in there}
        for start in range(0, len(whole), TOGETHER):
            batch = whole[start : start + TOGETHER]
            found = await self._versions.ports.tasks.gather([self._versions.trees.ranges(tree) for tree in batch])
            for tree, ranges in zip(batch, found, strict=True):
                if lost := [info.id for info in ranges if range_key(info.id) not in there]:
                    gone[tree] = list(lost)
        return {id_: files for tree, files in gone.items() for id_ in trees[tree]}


def _named(snapshot: Snapshot) -> set[CommitId]:
    """Return what can be read by name. A deleted ref cannot, and a commit that is marked refuses to come back by it."""
    return {commit for _, name, commit, _ in snapshot.refs if plain_name(name) == name}


def _answer(snapshot: Snapshot, lacking: Iterable[CommitId]) -> MissingCommits:
    names: dict[CommitId, list[str]] = {}
    for kind, name, commit, _ in snapshot.refs:
        if plain_name(name) != name:
            continue
        names.setdefault(commit, []).append(f"{kind} {name}")
    # Those that a person has to see to come first.
    found = sorted(lacking, key=lambda commit: (commit not in names, commit))
    shown = [MissingCommit(id=commit, refs=tuple(sorted(names.get(commit, ())))) for commit in found[:SHOWN_MAX]]
    return MissingCommits(
        count=len(found), named=sum(commit in names for commit in found), commits=tuple(shown), run_id="", marked=0
    )
