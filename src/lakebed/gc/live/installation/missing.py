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

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec.structs import replace

from lakebed.base import CommitId, MetarangeId, RunId, in_waves
from lakebed.gc.live.reading.commits import Snapshot, is_missing, read_snapshot
from lakebed.gc.live.reading.reading import fresh_secret
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.messages import MissingCommit, MissingCommits, RunKind, RunState
from lakebed.gc.rules import plain_name
from lakebed.versions import LackingFiles, RunRecord, Versions

_KIND: Final = RunKind.COMMITTED

TOGETHER: Final = 16

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A step of a search: `files` were read since the last one, `read` in all. A listing counts by its keys."""

    files: int
    read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """Commits whose trees lack files, those that refs name first; and what a run marked, if it was asked to."""

    commits: tuple[MissingCommit, ...]
    marked: int = 0
    run_id: str = ""

    def page(self, after: str, *, most: int) -> tuple[MissingCommits, str | None]:
        """Return the page that follows a commit, and the last commit of it if more follow.

        From the start where that commit is not listed: two processes may have looked at different times.
        """
        start = next((number for number, commit in enumerate(self.commits, 1) if commit.id == after), 0)
        shown = self.commits[start : start + most]
        page = MissingCommits(
            count=len(self.commits),
            named=sum(bool(commit.refs) for commit in self.commits),
            commits=shown,
            marked=self.marked,
            run_id=self.run_id,
        )
        return page, shown[-1].id if start + len(shown) < len(self.commits) else None


class Missing:
    def __init__(self, versions: Versions, runs: RunBook) -> None:
        self._versions = versions
        self._runs = runs

    async def steps(self, *, marks: bool) -> AsyncGenerator[Looked | Lacking, None]:
        """Name the commits whose trees lack files. With `marks` mark as swept those that no ref names, name the others.

        Costs a listing of the trees' files and a read of every tree. What marks is one step, the last.
        """
        snapshot = await read_snapshot(self._versions)
        lacking: dict[CommitId, Mapping[str, str]] = {}
        read = 0
        async for files in self._look(snapshot, lacking):
            read += files
            yield Looked(files=files, read=read)
        if marks and (wanted := sorted(lacking.keys() - _named(snapshot))):
            yield await self._mark(wanted, lacking)
        else:
            yield _answer(snapshot, lacking)

    async def _mark(self, wanted: list[CommitId], lacking: dict[CommitId, Mapping[str, str]]) -> Lacking:
        run_id = await self._publish(wanted)
        ids = {id_ for one in wanted for id_ in lacking[one].values()}
        await self._versions.retired.retire(run_id, ids=sorted(ids), runs=[])
        branches = [branch for branch, _ in await self._versions.context.branches.every()]
        await in_waves(self._versions.ports.tasks, branches, self._versions.fencing.bump)
        snapshot = await read_snapshot(self._versions)
        # One that lacks other files than before is not looked for, and stays: only what still lacks the same may go.
        whole = set(wanted) - {one for one, still in await self._each(wanted, self._lacks(lacking)) if still}
        swept = sorted(set(wanted) - _named(snapshot) - whole)
        await self._versions.retired.note_swept(run_id, swept)
        record, held = await self._runs.read_as(run_id, _KIND, RunState.EXPIRING)
        await self._runs.write(run_id, replace(record, state=RunState.ENDED, swept=True), held)
        await self._versions.retired.release(run_id, wanted)
        found = _answer(snapshot, lacking.keys() - whole - set(swept))
        return Lacking(commits=found.commits, run_id=run_id, marked=len(swept))

    def _lacks(self, lacking: dict[CommitId, Mapping[str, str]]) -> Callable[[CommitId], Awaitable[bool]]:
        seen: dict[str, bool] = {}

        async def look(commit: CommitId) -> bool:
            for key in lacking[commit]:
                if key not in seen:
                    seen[key] = await is_missing(self._versions, key)
                if seen[key]:
                    return True
            return False

        return look

    async def _each(self, items: Sequence[T], do: Callable[[T], Awaitable[R]]) -> list[tuple[T, R]]:
        return [done async for done in self._versions.ports.tasks.ahead(items, do, most=TOGETHER)]

    async def _publish(self, commits: list[CommitId]) -> RunId:
        """Begin a run that expires these commits: from now on nothing names one of them without being seen."""
        ports = self._versions.ports
        run_id = RunId(ports.ids.fresh())
        record = RunRecord(
            kind=_KIND,
            state=RunState.PLANNING,
            started_ms=ports.clock.now_ms(),
            listed="missing",  # In the place of a digest: no apply goes on with this run.
            secret=fresh_secret(ports.ids),
        )
        held = await self._runs.write(run_id, record, None)
        await self._versions.retired.expire(run_id, commits)
        await self._runs.write(run_id, replace(record, state=RunState.EXPIRING), held)
        return run_id

    async def _look(self, snapshot: Snapshot, lacking: dict[CommitId, Mapping[str, str]]) -> AsyncGenerator[int, None]:
        """Fill in key and id of the files that a commit's tree lacks, for each commit that was not swept."""
        trees: dict[MetarangeId, list[CommitId]] = {}
        for id_, facts in snapshot.commits:
            if facts.metarange_id and id_ not in snapshot.swept:
                trees.setdefault(facts.metarange_id, []).append(id_)
        found = LackingFiles(self._versions.objectstore, self._versions.trees, self._versions.ports)
        async for files in found.look(trees):
            yield files
        for tree, lost in found.lost.items():
            lacking.update((id_, lost) for id_ in trees[tree])


def _named(snapshot: Snapshot) -> set[CommitId]:
    """Return what can be read by name. A deleted ref cannot, and a commit that is marked refuses to come back by it."""
    return {commit for _, name, commit, _ in snapshot.refs if plain_name(name) == name}


def _answer(snapshot: Snapshot, lacking: Iterable[CommitId]) -> Lacking:
    names: dict[CommitId, list[str]] = {}
    for kind, name, commit, _ in snapshot.refs:
        if plain_name(name) != name:
            continue
        names.setdefault(commit, []).append(f"{kind} {name}")
    # Those that a person has to see to come first.
    found = sorted(lacking, key=lambda commit: (commit not in names, commit))
    return Lacking(commits=tuple(MissingCommit(id=one, refs=tuple(sorted(names.get(one, ())))) for one in found))
