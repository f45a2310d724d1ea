"""Collection runs, small enough for the explorer: the real pieces in the real order, without the files between them.

What is real: run records and their moves (`RunBook`), the publication of what is expiring (`Expiring`), the reading
of staging step by step, bumps, frozen tokens, uploads and copies (`Reading`), refs and commits (`read_snapshot`),
closed slices, fencing (`Versions`), and what a clean run decides (`lakebed.gc.rules.clean_run`). What stands in:
addresses go from step to step in memory, not through Parquet files of the run's folder; the rules of the committed run
are "what nothing names goes", or "what is in nobody's history goes", or, where somebody may change them, the real ones
with their version. The whole collector runs beside real trees in tests/gc/service/test_races.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from lakebed.base import CommitId, Corrupt, RunId, format_address, from_row
from lakebed.gc.protocol import EXPIRED, Expire, RunKind, RunState, manifest_of
from lakebed.gc.rules import Namespace, clean_run
from lakebed.gc.service import ServiceOptions
from lakebed.gc.service.commit_columns import CommitFacts
from lakebed.gc.service.commits import Snapshot, read_snapshot, read_swept
from lakebed.gc.service.expiring import Expiring
from lakebed.gc.service.reading import Cursor, Phase, Reading
from lakebed.gc.service.rows import Address
from lakebed.gc.service.rules import RuleBook, RulesRecord
from lakebed.gc.service.runs import RunBook
from lakebed.versions import (
    Commit,
    CopyRecord,
    CopyState,
    SliceRecord,
    SliceState,
    SweptRecord,
    UploadRecord,
    UploadState,
    Versions,
    decode_cells,
    encode_record,
    is_gone,
    keys,
)

from .effects import effect
from .ports import SimDeleter
from .trees import SimTrees

OPTIONS = ServiceOptions(scan_page=100, dead_run_age_ms=0)
READERS: Final = b"(readers)"
"""A partition of the simulation's own: who is reading bytes. Nobody looks there but the scheduler of a grace period."""
CELL_BY_CELL = ServiceOptions(scan_page=1, dead_run_age_ms=0)


class Addresses:
    """What a reading finds; takes the place of `AddressRows`."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def add(self, address: Address, *, source: str, branch: str) -> None:  # noqa: ARG002  # as AddressRows has it
        self.found.add(address.foreign or format_address(address.slice_, address.sequence))

    def add_cells(self, values: Sequence[bytes], *, branch: str, namespace: str) -> None:  # noqa: ARG002  # as above
        self.found |= {from_row(row).address for flags, row in decode_cells(values) if not is_gone(flags)}


class SimCollector:
    def __init__(self, repo: Versions, options: ServiceOptions = OPTIONS) -> None:
        self.repo = repo
        self.runs = RunBook(repo, options)
        self.reading = Reading(repo, options)
        self.rules = RuleBook(repo)
        self.expiring = Expiring(repo, self.runs, self.rules, self.reading)

    async def collect_uncommitted(
        self,
        *,
        fences: bool = False,
        is_last: bool = False,
        has_grace: bool = False,
        is_beside_metadata: bool = False,
        meanwhile: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """A clean run. `is_last`: leave out commits that a committed run swept, which costs one step. `has_grace`:
        those who were reading when it had marked are through before it deletes. `is_beside_metadata`: it reads commits
        as planners do, which costs a few more.

        Raises:
            RunMoved: the run was abandoned while it marked; nothing was deleted.
        """
        run_id, _ = await self.runs.start_marking()
        if fences:
            await self.fence_all()
        closed = await self._closed()
        known = await read_swept(self.repo) if is_beside_metadata else frozenset()
        listing = [stat.key async for page in self.repo.objectstore.list("data/") for stat in page]
        uncommitted = await self.read_staging()
        if is_beside_metadata:
            committed = await self.read_committed(known)
            committed |= await self.held()
        else:
            swept = await self._swept() if is_last else frozenset()
            commits = [commit async for id_, commit in self.repo.inventory.every(Commit) if id_ not in swept]
            committed = await self._addresses(commits) | (await self.held() if is_last else set())
        found = clean_run(
            listing,
            committed=committed,
            uncommitted=uncommitted,
            namespace=Namespace(uri=self.repo.objectstore.uri, closed=closed),
        )
        await self.runs.move(run_id, RunState.MARKED)
        if has_grace:
            await self.grace()
        if meanwhile is not None:
            await meanwhile()
        await SimDeleter().delete(sorted(found.garbage))

    async def held(self) -> set[str]:
        """What runs of committed data hold that sweep: swept commits name it no longer."""
        runs = [run for _, run in await self.repo.retired.runs() if run.state is RunState.SWEEPING]
        return {key for run in runs if run.kind is RunKind.COMMITTED for key in run.plan.split("|")[1].split()}

    async def read_committed(self, known: frozenset[CommitId] | None = None) -> set[str]:
        """Every address that a commit names. Where files are missing, again without the commits that are gone now
        (gc/context.py)."""
        snapshot = await self.look_again(known)
        while True:
            there = {id_: commit for id_, commit in snapshot.commits if id_ not in snapshot.swept}
            try:
                return await self._addresses(there.values())
            except Corrupt:
                snapshot = await self.look_again(known)
                if not there.keys() & snapshot.swept:
                    raise

    async def grace(self) -> None:
        """A period longer than any read, which is all that a reader has: begun after the run's last look."""
        page = await self.repo.store.scan(READERS, b"", 100)
        await effect(("until", READERS, tuple(page.keys)))

    async def collect_committed(
        self, *, keeps_history: bool = False, by_rules: bool = False, has_grace: bool = False
    ) -> None:
        """Expire, recheck and sweep what no ref names (`keeps_history`: what is in the history of none; `by_rules`:
        what the rules in force let go). `has_grace`: those who were reading when it expired them are through before it
        deletes.

        Raises:
            RunMoved: the run was abandoned while it marked; nothing was deleted.
            RulesChanged: they are not those of the plan any more; nothing was deleted.
        """
        repo, run_id = self.repo, RunId(self.repo.ports.ids.fresh())
        rules = await self.rules.read() if by_rules else RulesRecord(version=0, changed_ms=0)
        if by_rules and rules.rules is None:
            return
        plan = await read_snapshot(repo)
        if rules.rules is None:
            kept = _kept(plan, keeps_history=keeps_history)
        else:
            kept = plan.kept(rules.rules, now_ms=repo.ports.clock.now_ms())
        expired = {id_ for id_, _ in plan.commits} - kept - plan.swept
        if not expired:
            return
        await self._publish(run_id, sorted(expired), plan, rules.version)
        closed = await self._closed()
        known = await read_swept(self.repo)
        uncommitted = await self.read_staging()
        record, held = await self.runs.read_as(run_id, RunKind.COMMITTED, RunState.EXPIRING)
        now = await self.look_again(known)
        if rules.rules is None:
            kept = _kept(now, keeps_history=keeps_history)
        else:
            kept = await self.expiring._kept(run_id, record, now)  # noqa: SLF001  # a step of it
        expiring = expired - kept - now.late
        needed = await self.needed(now, expiring)
        lost = await self._addresses([commit for id_, commit in now.commits if id_ in expiring])
        namespace = Namespace(uri=repo.objectstore.uri, closed=closed)
        garbage = [key for key in sorted(lost - needed - uncommitted) if namespace.may_take(key)]
        plan_text = f"{' '.join(sorted(expiring))}|{' '.join(garbage)}"
        await self.runs.write(run_id, replace(record, state=RunState.SWEEPING, plan=plan_text), held)
        await self.sweep(run_id, plan_text, has_grace=has_grace)

    async def _publish(self, run_id: RunId, expired: Sequence[CommitId], plan: Snapshot, rules: int = 0) -> None:
        """Steps 2 and 3: record and list, then a bump of each branch that the commits were made for."""
        body = Expire(commits=manifest_of(EXPIRED, f"{run_id}/", ()), rules_version=rules)
        attempt = self.repo.ports.ids.fresh()
        await self.expiring._begin_attempt(run_id, attempt, body, list(expired))  # noqa: SLF001  # a step of it
        commits = dict(plan.commits)
        for branch in sorted({commits[id_].made_for for id_ in expired} - {""}):
            await self.repo.fencing.bump(branch)

    async def look_again(self, known: frozenset[CommitId] | None = None) -> Snapshot:
        """Step 5: intents, refs, commits."""
        return await read_snapshot(self.repo, known=known)

    async def needed(self, now: Snapshot, expiring: set[CommitId]) -> set[str]:
        """What commits name that stay."""
        return await self._addresses([commit for id_, commit in now.commits if id_ not in expiring | now.swept])

    async def sweep(self, run_id: RunId, plan: str, *, has_grace: bool = False) -> None:
        """Steps 7 to 9. The plan is the expiring commits, then the keys of garbage; the run's record keeps it."""
        commits, garbage = (part.split() for part in plan.split("|"))
        await self.write_swept(run_id, commits)
        if has_grace:
            await self.grace()
        await SimDeleter().delete(garbage)
        await self.runs.move(run_id, RunState.ENDED)
        await self.expiring.drop_expiring(run_id)

    async def write_swept(self, run_id: RunId, commits: Sequence[str]) -> None:
        value = encode_record(SweptRecord(run=run_id))
        await self.repo.store.set_many(self.repo.partition, [(keys.SWEPT + id_.encode(), value) for id_ in commits])
        await self.runs.note_swept(run_id)

    async def end(self) -> None:
        """What somebody does by hand who takes runs that sweep for done."""
        for run_id, run in await self.repo.retired.runs():
            if run.state is RunState.SWEEPING and not run.until_ms:
                await self.runs.move(run_id, RunState.ENDED)
                await self.expiring.drop_expiring(run_id)

    async def resume(self) -> None:
        """Runs that still mark are abandoned, those that sweep are taken to their end; then lists that are left go."""
        await self.runs.abandon_dead()
        await self.carry_on()
        await self.expiring.drop_lists(old_age_ms=0)

    async def carry_on(self) -> None:
        """Take what sweeps to its end, as another apply of the same run does, who may still be at it."""
        for run_id, run in await self.repo.retired.runs():
            if run.state is RunState.SWEEPING and not run.until_ms:
                await self.sweep(run_id, run.plan)

    async def read_staging(self) -> set[str]:
        """Steps 5 to 7 of a run of uncommitted data, 4 of the other: cells, bump and frozen, uploads, copies.

        One step of the cursor after the other, as they are cut into pages: a page keeps nothing else.
        """
        rows = Addresses()
        cursor = Cursor(name="sim")
        while cursor.phase is not Phase.DONE:
            cursor = await self.reading._step(cursor, rows)  # type: ignore[arg-type]  # noqa: SLF001  # its steps, not its files
        return rows.found

    async def fence_all(self) -> None:
        """Take every owner for dead. Safe at any time; those that live find themselves fenced."""
        repo = self.repo
        slices = [name async for name, one in repo.inventory.every(SliceRecord) if one.state in _OPEN_SLICES]
        await repo.fencing.fence_slices(slices)
        uploads = [name async for name, one in repo.inventory.every(UploadRecord) if one.state in _OPEN_UPLOADS]
        for name in uploads:
            await repo.fencing.fence(UploadRecord, name)
        copies = [name async for name, one in repo.inventory.every(CopyRecord) if one.state is not CopyState.DONE]
        for name in copies:
            await repo.fencing.fence(CopyRecord, name)

    async def _closed(self) -> frozenset[str]:
        return frozenset((await self.runs.closed_slices())[0])

    async def _swept(self) -> frozenset[str]:
        return frozenset([id_ async for id_, _ in self.repo.inventory.every(SweptRecord)])

    async def _addresses(self, commits: Iterable[Commit | CommitFacts]) -> set[str]:
        trees = self.repo.trees
        assert isinstance(trees, SimTrees)
        found: set[str] = set()
        for metarange in sorted({commit.metarange_id for commit in commits}):
            try:
                contents = await trees.contents(metarange)
            except AssertionError:
                # Nobody published the commit: a collection of metadata retired its tree (`gc/service/orphaned.py`).
                if not (await self.repo.retired.retired_by([metarange]))[0]:
                    raise
                continue
            found |= {from_row(row).address for row in contents.values()}
        return found


_OPEN_SLICES = (SliceState.OPEN, SliceState.FENCED)
_OPEN_UPLOADS = (UploadState.LINKING, UploadState.REVOKED)


def _kept(snapshot: Snapshot, *, keeps_history: bool) -> set[CommitId]:
    """What a branch, tag or intent names, being made or not; with its history, if that is kept."""
    kept = {commit for _, _, commit, _ in snapshot.refs}
    if keeps_history:
        for id_, commit in reversed(list(snapshot.commits)):
            if id_ in kept:
                kept.update(commit.parents)
    return kept
