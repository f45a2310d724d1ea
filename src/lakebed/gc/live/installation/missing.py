"""Find and mark commits with missing trees after a restore of an older backup of the key-value store.

Collections after the backup deleted files of trees, and the backup lacks the records of that. Every plan reads every
tree of a commit, so each plan would stop. An administrator lists the commits first, then marks them:

    publish   begin a run of committed data that expires these commits
    retire    retire the ids of their missing files: a commit in progress that needs one fails, or builds again
    bump      bump every branch
    look      read refs, commits and files again: take out commits that a ref names or that are complete again
    swept     write `swept/<commit>` for the rest; the run ends
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec.structs import replace

from lakebed.base import CommitId, Conflict, MetarangeId, RunId, in_waves, parse_slice_name, slice_opened_at_ms
from lakebed.gc.live.reading.commits import Snapshot, is_missing, read_snapshot
from lakebed.gc.live.reading.reading import fresh_secret
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.messages import DATA_PREFIX, AdoptedSlices, MissingCommit, MissingCommits, RunKind, RunState
from lakebed.gc.rules import plain_name
from lakebed.versions import LackingFiles, RunRecord, SliceRecord, Versions

from .installation import Installation

_KIND: Final = RunKind.COMMITTED

TOGETHER: Final = 16

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """Report a step of a search: `files` read since the last step, and `read` in total. A listing counts its keys."""

    files: int
    read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """Hold commits with missing files, named commits first; and the number that a run marked, on request."""

    commits: tuple[MissingCommit, ...]
    marked: int = 0
    run_id: str = ""

    def page(self, after: str, *, most: int) -> tuple[MissingCommits, str | None]:
        """Return the page after a commit, and its last commit if more follow."""
        # Begin at the start if the commit is not listed: two processes may have searched at different times.
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
        """Yield progress, then the commits with missing files.

        With `marks`, mark the commits that no ref names as swept, and yield the others. Only the last step marks.
        Costs a listing of the trees' files and a read of every tree.
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
        ids = {id_ for tree in wanted for id_ in lacking[tree].values()}
        await self._versions.retired.retire(run_id, ids=sorted(ids), runs=[])
        # A bump makes each commit in flight build again, and check for retired ids.
        branches = [branch for branch, _ in await self._versions.context.branches.every()]
        await in_waves(self._versions.ports.tasks, branches, self._versions.fencing.bump)
        snapshot = await read_snapshot(self._versions)
        # Mark only commits that still lack one of the same files. The retired ids cover only those.
        whole = set(wanted) - {tree for tree, still in await self._each(wanted, self._lacks(lacking)) if still}
        swept = sorted(set(wanted) - _named(snapshot) - whole)
        await self._versions.retired.note_swept(run_id, swept)
        record, held = await self._runs.read_as(run_id, _KIND, RunState.EXPIRING)
        await self._runs.write(run_id, replace(record, state=RunState.ENDED, swept=True), held)
        await self._versions.retired.release(run_id, wanted)
        answer = _answer(snapshot, lacking.keys() - whole - set(swept))
        return Lacking(commits=answer.commits, run_id=run_id, marked=len(swept))

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
        """Begin a run that expires these commits: every operation that names one now sees the run, or is seen."""
        ports = self._versions.ports
        run_id = RunId(ports.ids.fresh())
        record = RunRecord(
            kind=_KIND,
            state=RunState.PLANNING,
            started_ms=ports.clock.now_ms(),
            listed="missing",  # Not a digest, so no apply continues this run.
            secret=fresh_secret(ports.ids),
        )
        held = await self._runs.write(run_id, record, None)
        await self._versions.retired.expire(run_id, commits)
        await self._runs.write(run_id, replace(record, state=RunState.EXPIRING), held)
        return run_id

    async def _look(self, snapshot: Snapshot, lacking: dict[CommitId, Mapping[str, str]]) -> AsyncGenerator[int, None]:
        """Add the key and id of each missing file, for each commit that was not swept."""
        trees: dict[MetarangeId, list[CommitId]] = {}
        for id_, facts in snapshot.commits:
            if facts.metarange_id and id_ not in snapshot.swept:
                trees.setdefault(facts.metarange_id, []).append(id_)
        search = LackingFiles(self._versions.objectstore, self._versions.trees, self._versions.ports)
        async for files in search.look(trees):
            yield files
        for tree, lost in search.lost.items():
            lacking.update((id_, lost) for id_ in trees[tree])


def _named(snapshot: Snapshot) -> set[CommitId]:
    """Return the commits that a live ref names: an administrator must move the ref first."""
    # Ignore deleted refs: they cannot be read, and a ref to a marked commit cannot be brought back.
    return {commit for _, name, commit, _ in snapshot.refs if plain_name(name) == name}


def _answer(snapshot: Snapshot, lacking: Iterable[CommitId]) -> Lacking:
    names: dict[CommitId, list[str]] = {}
    for kind, name, commit, _ in snapshot.refs:
        if plain_name(name) != name:
            continue
        names.setdefault(commit, []).append(f"{kind} {name}")
    # Named commits first: only an administrator can handle them.
    commits = sorted(lacking, key=lambda commit: (commit not in names, commit))
    return Lacking(
        commits=tuple(MissingCommit(id=commit, refs=tuple(sorted(names.get(commit, ())))) for commit in commits)
    )


ADOPTED_AGE_MS: Final = 86_400_000
"""A server that writes opens a slice each hour."""


# Slices without a record, after the same restore (docs/design/protocols.md, "Slices without a record"). No collection
# lists such a slice, so its objects would stay.
# 1. Check that this installation may collect, and was adopted at least ADOPTED_AGE_MS ago.
# 2. List the folders of `data/`, then read the records. A slice has its record before its first object.
# 3. Refuse if such a slice was opened after the adoption: another live installation opened it.
# 4. `set_if` absent → open, with a dead owner.
# Later runs fence it, as every slice with a dead owner, after `dead_owner_age_ms`. It is closed after every branch was
# frozen. A server that still owns the slice finds another record, and uses a fresh address.


class Unlisted:
    def __init__(self, versions: Versions, installation: Installation) -> None:
        self._versions = versions
        self._installation = installation

    async def adopt(self) -> AdoptedSlices:
        """Record the slices without a record and return their names. Call it again after a lost answer or a crash.

        Costs a listing of folders.

        Raises:
            OtherInstallation, Conflict: see `find`. No slice was recorded.
        """
        unlisted = await self.find()
        return AdoptedSlices(slices=tuple([name for name in unlisted if await self._versions.slices.adopt(name)]))

    async def find(self) -> list[str]:
        """Return the slices without a record, in order, after all checks that they may be adopted.

        Raises:
            OtherInstallation, Conflict: see `Installation`.
        """
        record = await self._installation.check()
        await self._installation.check_restored(record)
        now_ms = self._versions.ports.clock.now_ms()
        if not record.adopted_ms or now_ms - record.adopted_ms < ADOPTED_AGE_MS:
            since = "was chosen less than a day ago" if record.adopted_ms else "was never chosen"
            raise Conflict(
                f"this installation {since}: slices without a record are adopted a day after `lakebed gc adopt`, and"
                " only while nothing else writes to the namespace",
                adopted_ms=record.adopted_ms,
            )
        level = await self._versions.objectstore.level(DATA_PREFIX)
        lying = [folder[len(DATA_PREFIX) : -1] for folder in level.folders]
        # Records after the listing: a slice has its record before its first object.
        known = {name async for name, _ in self._versions.inventory.every(SliceRecord)}
        numbers = {name: number for name in lying if (number := parse_slice_name(name)) is not None}
        unlisted = sorted(numbers.keys() - known)
        for name in unlisted:
            # The owner's clock. Safety does not depend on it: this check only adds a reason to stop.
            opened_ms = slice_opened_at_ms(numbers[name])
            if opened_ms >= record.adopted_ms:
                raise Conflict(
                    f"slice {name} has no record, and was opened after this installation was chosen: another one writes"
                    " to the namespace",
                    slice=name,
                )
        return unlisted
