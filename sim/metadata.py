"""Collections of metadata in the simulator: trees of several files, runs, deeds, and the worlds they race in.

What is real: records and moves of runs, retiring, bumping and looking again (`MetadataRuns`), revoked commits, and the
committer with everything it asks. What stands in: what a run wants goes from step to step in memory, and every file is
old.

A world here has `RangedTrees`: every entry is a range file of its own, so a tree shares files with the one that it was
made from, and may miss one. Content that returns makes the same ids: `strand` puts the files of a tree there that no
commit names, and a committer writes the same ones a moment later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from lakebed.base import EMPTY_METARANGE, CommitId, Corrupt, MetarangeId, RangeId, RunId, RunKind
from lakebed.gc.protocol import RunState, run_folder
from lakebed.gc.service import ServiceOptions
from lakebed.gc.service.commits import Snapshot
from lakebed.gc.service.metadata import MetadataRuns
from lakebed.gc.service.runs import RunBook
from lakebed.objectstore import ObjectMissing
from lakebed.ranges import FileCorrupt, MetarangeCorrupt, RangeCorrupt, RangeInfo, metarange_key, range_key
from lakebed.versions import Options, RefState, RetiredBy, RunRecord, Versions, keys

from .actors import Actor, Ending, Program, Scene, Violation
from .checkers import ALWAYS
from .collecting import SimCollector
from .moves import branch_moves_are_legal, tokens_leave_with_a_claim
from .operations import Operation
from .ports import SimDeleter, SimPorts
from .reachable import nothing_reachable_is_deleted
from .scenes import FAR_FUTURE_MS, MAIN, SIDE, Do
from .trees import Contents, SimTrees
from .views import UID, View

OPTIONS: Final = ServiceOptions(scan_page=100, dead_run_age_ms=0, readers_grace_ms=0)


class Ranged(tuple[Any, ...]):
    """The pairs of a tree, as checkers read them, and the ids of its ranges."""

    ranges: tuple[str, ...]

    def __new__(cls, pairs: Iterable[Any], ranges: tuple[str, ...]) -> Ranged:
        made = super().__new__(cls, pairs)
        made.ranges = ranges
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranged) and self.ranges == other.ranges and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash((self.ranges, tuple(self)))


class RangedTrees(SimTrees):
    """A tree is a file that names ranges, one an entry. Reading it reads them all, once."""

    def __init__(self, objectstore: Any) -> None:
        super().__init__(objectstore)
        self._ids: dict[MetarangeId, tuple[str, ...]] = {}
        self._unread: dict[MetarangeId, Contents] = {}
        self._replaced = EMPTY_METARANGE

    async def ranges(self, metarange: MetarangeId) -> Sequence[RangeInfo]:
        ids = await self._ranges_of(metarange)
        return [
            RangeInfo(id=RangeId(id_), min_key=b"", max_key=b"", count=1, size_bytes=0, file_bytes=0) for id_ in ids
        ]

    async def contents(self, metarange: MetarangeId) -> Contents:
        assert self._remembered is not None
        if metarange not in self._remembered:
            for id_ in await self._ranges_of(metarange):
                await self._read(range_key(RangeId(id_)), RangeCorrupt, id_)
            self._remembered[metarange] = self._unread.pop(metarange, {})
        return self._remembered[metarange]

    async def apply(self, metarange: MetarangeId, changes: Any, *, retired_by: RetiredBy) -> Any:  # type: ignore[override]  # all ask here
        self._replaced = metarange
        return await super().apply(metarange, changes, retired_by=retired_by)

    async def merge(self, *, destination: MetarangeId, **of: Any) -> Any:
        self._replaced = destination
        return await super().merge(destination=destination, **of)

    async def _write(self, contents: Contents, retired_by: RetiredBy) -> MetarangeId:
        if not contents:
            return EMPTY_METARANGE
        safe = await self._ranges_of(self._replaced)
        pairs = sorted(contents.items())
        ranges = [id_of(repr((key, row[0])), "") for key, row in pairs]
        written: list[str] = []
        for place, (key, row) in enumerate(pairs):
            while ranges[place] not in safe and (salt := (await retired_by([ranges[place]]))[0]):
                ranges[place] = id_of(repr((key, row[0])), salt)
            if ranges[place] not in safe:
                written.append(ranges[place])
        for id_ in written:
            await self._objectstore.put_value(range_key(RangeId(id_)), id_, 100)
        tree = MetarangeId(id_of(repr(ranges), ""))
        while tree != self._replaced and (salt := (await retired_by([tree]))[0]):
            tree = MetarangeId(id_of(repr(ranges), salt))
        self._ids[tree] = tuple(ranges)
        assert self._remembered is not None
        self._remembered[tree] = dict(pairs)
        if tree != self._replaced:
            await self._objectstore.put_value(metarange_key(tree), Ranged(pairs, tuple(ranges)), 100 * len(pairs))
        return tree

    async def _ranges_of(self, metarange: MetarangeId) -> tuple[str, ...]:
        if metarange == EMPTY_METARANGE:
            return ()
        if metarange not in self._ids:
            found: Ranged = await self._read(metarange_key(metarange), MetarangeCorrupt, metarange)
            self._ids[metarange] = found.ranges
            self._unread[metarange] = dict(found)
        return self._ids[metarange]

    async def _read(self, key: str, error: type[FileCorrupt], id_: str) -> Any:
        try:
            return await self._objectstore.get_value(key)
        except ObjectMissing as missing:
            raise error(id_, "the file is missing") from missing


def id_of(content: str, salt: str) -> str:
    return hashlib.sha256((content + salt).encode()).hexdigest()


class SimMetadata:
    """A run of metadata, step by step."""

    def __init__(self, repo: Versions) -> None:
        self.repo = repo
        self.runs = RunBook(repo, OPTIONS)
        self.metadata = MetadataRuns(repo, self.runs, OPTIONS)

    async def collect(self) -> None:
        repo, run_id = self.repo, RunId(self.repo.ports.ids.fresh())
        listed = [stat.key async for page in repo.objectstore.list("_lakefs/") for stat in page]
        files = {key.rpartition("/")[2].removesuffix(".parquet"): key for key in listed}
        named = await self.named(await self.metadata.look())
        wanted = sorted(files.keys() - named)
        if not wanted:
            return
        record = RunRecord(
            kind=RunKind.METADATA, state=RunState.EXPIRING, started_ms=repo.ports.clock.now_ms(), listed="x"
        )
        held = await self.runs.write(run_id, record, None)
        await self.metadata.publish(run_id, files=wanted, runs=[])
        named = await self.named(await self.look_again())
        garbage = [files[id_] for id_ in wanted if id_ not in named]
        plan = f"|{' '.join(garbage)}"
        await self.runs.write(run_id, replace(record, state=RunState.SWEEPING, plan=plan), held)
        await self.sweep(run_id, plan)

    async def look_again(self) -> Snapshot:
        return await self.metadata.look()

    async def sweep(self, run_id: RunId, plan: str) -> None:
        await SimDeleter().delete(plan.removeprefix("|").split())
        await self.runs.move(run_id, RunState.ENDED)

    async def resume(self) -> None:
        """Carry on with what sweeps: what another apply of the same run does, too, who may still be at it."""
        for run_id, run in await self.repo.retired.runs():
            if run.kind is RunKind.METADATA and run.state is RunState.SWEEPING:
                await self.sweep(run_id, run.plan)

    async def apply_plan(self) -> None:
        """The beginning of `Expiring.expire`: the record, then the look whether the plan was retired."""
        record = RunRecord(kind=RunKind.COMMITTED, state=RunState.EXPIRING, started_ms=0)
        await self.runs.write(PLAN, record, None)
        await self.runs.check_not_retired(PLAN)

    async def named(self, snapshot: Snapshot) -> set[str]:
        trees = {one.metarange_id for id_, one in snapshot.commits if id_ not in snapshot.swept} - {EMPTY_METARANGE}
        found: set[str] = {*trees}
        for tree in sorted(trees):
            found |= {info.id for info in await self.repo.trees.ranges(tree)}
        return found


# Deeds


def metadata_run(name: str) -> Do:
    async def act(repo: Versions) -> None:
        await SimMetadata(repo).collect()

    return Do(Operation(name, "run"), act)


def read_trees(name: str) -> Do:
    """The part of every run that reads what commits name."""

    async def act(repo: Versions) -> None:
        await SimCollector(repo).read_committed()

    return Do(Operation(name, "run"), act)


def run_beside(name: str) -> Do:
    """A collection of uncommitted data as it is beside one of metadata."""

    async def act(repo: Versions) -> None:
        await SimCollector(repo).collect_uncommitted(is_beside_metadata=True)

    return Do(Operation(name, "run"), act)


def resume_metadata(name: str) -> Do:
    async def act(repo: Versions) -> None:
        await SimMetadata(repo).resume()

    return Do(Operation(name, "run"), act)


def strand(name: str, *, branch: str = MAIN) -> Do:
    """Write the files of the tree that a commit of the branch would make now, and nothing else."""

    async def act(repo: Versions) -> None:
        record = (await repo.context.branches.fresh(branch)).record  # the first half of a commit
        changes = await repo.commits._changes(record.tokens())  # noqa: SLF001  # likewise
        await repo.trees.apply(
            await repo.context.commits.metarange(record.commit_id), changes, retired_by=repo.retired.retired_by
        )  # likewise

    return Do(Operation(name, "run"), act)


def strand_merge(name: str, source: str, *, branch: str = MAIN) -> Do:
    """The same for a merge."""

    async def act(repo: Versions) -> None:
        head, other = await repo.refs.resolve_commit(branch), await repo.refs.resolve_commit(source)
        base = (await repo.history.merge_base(source, branch)).id
        await repo.merges._three_way(base, other, head, "none")  # noqa: SLF001  # as above

    return Do(Operation(name, "run"), act)


PLAN: Final = RunId("p")
_FOLDER: Final = f"{run_folder(RunKind.COMMITTED, PLAN)}plan.json"


def write_plan(name: str) -> Do:
    """The folder of a committed run that nobody published yet."""

    async def act(repo: Versions) -> None:
        await repo.objectstore.put(_FOLDER, b"plan")

    return Do(Operation(name, "run"), act)


def apply_plan(name: str) -> Do:
    """Publish it, and go by what is in its folder."""

    async def act(repo: Versions) -> None:
        await SimMetadata(repo).apply_plan()
        try:
            await repo.objectstore.stat(_FOLDER)
        except ObjectMissing:
            raise Violation("the folder of a run was deleted while somebody works on it") from None

    return Do(Operation(name, "run"), act)


def take_plan(name: str) -> Do:
    """A run of metadata that wants this folder."""

    async def act(repo: Versions) -> None:
        if not await SimMetadata(repo).metadata.publish(RunId("m"), files=[], runs=[PLAN]):
            await SimDeleter().delete([_FOLDER])

    return Do(Operation(name, "run"), act)


# Scenes


def ranged_versions(ports: SimPorts) -> Versions:
    return Versions(
        uid=UID,
        store=ports.store,
        objectstore=ports.objectstore,
        trees=RangedTrees(ports.objectstore),
        ports=ports.ports,
        options=Options(owner=ports.actor),
    )


def ranged_client(name: str, *deeds: Do, again: Sequence[Do] = ()) -> Actor:
    return Actor(name, _doing(deeds), _doing(again) if again else None)


def _doing(deeds: Sequence[Do]) -> Program:
    async def program(ports: SimPorts) -> None:
        repo = ranged_versions(ports)
        for do in deeds:
            await ports.act(do.operation, _awaited(do, repo))

    return program


async def _awaited(do: Do, repo: Versions) -> str | None:
    return await do.act(repo)


def metadata_scene(name: str, *actors: Actor, before: Sequence[Do], sweeps: bool = False) -> Scene:
    """A branch `main`, and one `side` made from it where the deeds before ask for it.

    `sweeps`: commits are swept, and their trees may go. Then what looks into every commit of a history is not checked.
    """

    async def prepare(ports: SimPorts) -> None:
        repo = ranged_versions(ports)
        await repo.commits.initialise(MAIN)
        for do in before:
            if do.operation.branch == SIDE and len(await repo.context.branches.every()) == 1:
                await repo.refs.create_branch(SIDE, MAIN)
            await ports.act(do.operation, _awaited(do, repo))
        await repo.slices.end()

    return Scene(
        name=name,
        actors=actors,
        prepare=prepare,
        tidy=_tidy,
        checks=(*(() if sweeps else ALWAYS), trees_are_whole, runs_read_on, nothing_reachable_is_deleted),
        tidy_checks=(trees_are_whole, unnamed_files_go),
        step_checks=() if sweeps else (branch_moves_are_legal, tokens_leave_with_a_claim),
    )


async def _tidy(ports: SimPorts) -> None:
    """All is old, and nobody is left. One run of each kind, of metadata last; none may stumble over what is there."""
    ports.clock.ms += 3 * FAR_FUTURE_MS
    repo = ranged_versions(ports)
    await SimMetadata(repo).resume()
    await SimCollector(repo).resume()
    await repo.cleanup.clean()
    await SimCollector(repo).collect_committed(keeps_history=True)
    await SimMetadata(repo).collect()
    # What a commit names that nobody published stays until it expires, so the last look is after that.
    await SimMetadata(repo).collect()


def _files(ending: Ending, commits: Sequence[CommitId]) -> set[str]:
    """Keys of every file of these commits' trees.

    Raises:
        Violation: a tree is missing.
    """
    view = View(ending.disk)
    found: set[str] = set()
    for commit_id in commits:
        tree = view.commit(commit_id).metarange_id
        if tree == EMPTY_METARANGE:
            continue
        held = ending.disk.objectstore.get(metarange_key(tree))
        if held is None:
            raise Violation(f"commit {commit_id[:12]} names tree {tree[:12]}, which is gone")
        found |= {metarange_key(tree), *(range_key(RangeId(id_)) for id_ in held[0].ranges)}
    return found


def _needed(ending: Ending) -> list[CommitId]:
    """Heads, whatever was swept; and all in their history that was not."""
    view = View(ending.disk)
    heads = [one.commit_id for one in view.branches().values() if one.state is RefState.ACTIVE]
    found: dict[CommitId, bool] = {}
    waiting = list(heads)
    while waiting:
        commit_id = waiting.pop()
        if commit_id not in found:
            is_swept = ending.disk.value(keys.repository_partition(UID), keys.SWEPT + commit_id.encode()) is not None
            found[commit_id] = commit_id in heads or not is_swept
            waiting += view.commit(commit_id).parents
    return [commit_id for commit_id, is_needed in found.items() if is_needed]


def trees_are_whole(ending: Ending) -> None:
    """Nothing that a commit needs is deleted: its tree, and every range of that."""
    missing = _files(ending, _needed(ending)) - ending.disk.objectstore.keys()
    if missing:
        raise Violation(f"deleted although a commit names them: {sorted(missing)}")


def runs_read_on(ending: Ending) -> None:
    """No run stops because another one of metadata took what it was about to read."""
    for run in ending.of("run"):
        if run.ended is not None and run.ended.error is not None and issubclass(run.ended.error, Corrupt):
            raise Violation(f"{run.operation.name} met a file that is missing")


def unnamed_files_go(ending: Ending) -> None:
    """After full runs only files that a commit needs are left, and the trees that these are compared with."""
    view, needed = View(ending.disk), _needed(ending)
    # A cherry-pick compares a commit with its parent, whose data may be gone (gc/rules/bases.py).
    compared = {parent for commit_id in needed for parent in view.commit(commit_id).parents}
    left = {key for key in ending.disk.objectstore if key.startswith("_lakefs/")}
    allowed = _files(ending, needed)
    for commit_id in sorted(compared):
        with suppress(Violation):  # it was not needed for a while, and went
            allowed |= _files(ending, [commit_id])
    if garbage := left - allowed:
        raise Violation(f"files of no tree stay: {sorted(garbage)}")
