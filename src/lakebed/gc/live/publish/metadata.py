"""A collection of metadata on the live side: range and metarange files that no commit needs, and folders of old runs
(docs/design/protocols.md, "A collection of metadata").

Files are named by content, so one that is garbage now may be what a writer needs a moment later; and a delete that
slept may come years after. So an id that a run wants is *retired* for ever, before it is deleted: a committer that
writes files asks for it after he read his branch, and gives the same content another id. The run, in this order and no
other:

    record    `expiring`, with the digest of the list; a run has one list and never another
    retire    each file's id and each run's, under a key that is never removed
    end       plans in the list that were never applied; a run that is at work, or whose deletes began, is alive, and
              its folder stays
    bump     every branch: a committer that read it before and asked too early fails to publish now, and builds again
    look      swept records, refs, then every commit record: what one names that is not swept stays
    sweeping  `set_if`, bound to this look; from here on deletes may begin

Ids of files that stay are retired all the same: another run might still delete such a file. That costs a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from lakebed.base import RunId, RunKind, in_waves
from lakebed.gc.live.errors import RunMoved, RunNotFound
from lakebed.gc.live.installation.installation import Installation
from lakebed.gc.live.options import ServiceOptions
from lakebed.gc.live.reading.commits import Snapshot, read_snapshot_for_metadata
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.live.records.runs import RunBook, check_uid
from lakebed.gc.messages import (
    COMMITS,
    LEFTOVERS,
    REFS,
    BadInput,
    LeftoversRetired,
    Manifest,
    RetireLeftovers,
    RunState,
    check_run_id,
    run_folder,
)
from lakebed.kv import Held
from lakebed.versions import RefState, RunRecord, Versions

_KIND: Final = RunKind.METADATA

FILE = "file"
RUN = "run"
WRITE_BATCH = 1_000

_OVER = frozenset({RunState.ENDED, RunState.ABANDONED})


class MetadataRuns:
    def __init__(self, versions: Versions, runs: RunBook, options: ServiceOptions) -> None:
        self._versions = versions
        self._runs = runs
        self._options = options
        self._installation = Installation(versions)

    async def retire(self, run_id: str, body: RetireLeftovers) -> LeftoversRetired:
        """Publish the ids that the run wants, and return those that must stay all the same. Ids are then retired for
        ever.

        Costs one write for each thing in the list, two operations for each branch, and a scan of the records.

        Raises:
            OtherRepository, OtherInstallation: the run is not of this repository, or this may collect nothing.
            RunMoved: the run sweeps, ended or was abandoned, or another collection retired its plan.
            BadInput: the list contradicts its manifest, or is not the one that was published before.
        """
        id_ = check_run_id(run_id)
        check_uid(self._versions, body.uid)
        await self._installation.check()
        inputs = Inputs(self._versions.objectstore, _KIND, id_)
        table = await inputs.read_table(LEFTOVERS, body.leftovers)
        kinds, ids = table.column("kind").to_pylist(), table.column("id").to_pylist()
        if strange := set(kinds) - {FILE, RUN}:
            raise BadInput(f"{body.leftovers.folder} names things of kind {min(strange)}", input=LEFTOVERS.name)
        record, held = await self._begin_attempt(id_, body.leftovers)
        pairs = list(zip(kinds, ids, strict=True))
        runs = [RunId(name) for kind, name in pairs if kind == RUN]
        alive = await self.publish(id_, files=[name for kind, name in pairs if kind == FILE], runs=runs)
        snapshot = await self.look()
        commits = await inputs.write_tables(
            COMMITS, f"{COMMITS.name}.{record.attempt}", snapshot.commits_tables(), self._versions.ports.tasks
        )
        refs = await inputs.write_table(REFS, f"{REFS.name}.{record.attempt}", snapshot.refs_table())
        await self._runs.write(id_, replace(record, recheck=commits.digest()), held)
        return LeftoversRetired(
            run_id=id_,
            commits=commits,
            refs=refs,
            runs_alive=tuple(alive),
            has_lost_trees=snapshot.has_lost_trees,
        )

    async def _begin_attempt(self, run_id: RunId, leftovers: Manifest) -> tuple[RunRecord, Held]:
        ports = self._versions.ports
        record = RunRecord(
            kind=_KIND,
            state=RunState.EXPIRING,
            started_ms=ports.clock.now_ms(),
            attempt=ports.ids.fresh(),
            listed=leftovers.digest(),
        )
        try:
            before, held = await self._runs.read_as(run_id, _KIND, RunState.EXPIRING)
        except RunNotFound:
            now = await self._runs.write(run_id, record, None)
            await self._runs.check_not_retired(run_id)
            return record, now
        if before.listed != record.listed:
            raise BadInput(f"run {run_id} published another list before", input=LEFTOVERS.name)
        record = replace(record, started_ms=before.started_ms)
        return record, await self._runs.write(run_id, record, held)

    async def publish(self, run_id: RunId, *, files: Sequence[str], runs: Sequence[RunId]) -> list[RunId]:
        """Retire, end, bump. The runs that are alive are returned: their folders stay."""
        await self._versions.retired.retire(run_id, ids=files, runs=runs)
        tasks = self._versions.ports.tasks
        are_over = await in_waves(tasks, runs, self._end_planned)
        # One that is being made cannot be read yet: a committer that builds on it asks after this.
        branches = await self._versions.context.branches.every()
        active = [name for name, record in branches if record.state is RefState.ACTIVE]
        await in_waves(tasks, active, self._versions.fencing.bump)
        return [run for run, is_over in zip(runs, are_over, strict=True) if not is_over]

    async def _end_planned(self, run_id: RunId) -> bool:
        """Return whether no process works on this run any more, nor will. A run without a record was planned, and may
        be about to be published: its publisher looks whether it was retired, after its record is there.
        """
        try:
            record, _ = await self._runs.read(run_id)
            if record.state is RunState.MARKED:
                folder = run_folder(record.kind, run_id)
                if await self._has_files(f"{folder}apply.json") or await self._has_files(f"{folder}sweep.json"):
                    return False  # It was applied by an older release, and is to be again: some objects failed.
                record = await self._runs.end_unapplied(run_id)
        except RunNotFound:
            return True
        except RunMoved:
            return False
        # The record of an undone run stays for ever; its files may go.
        return record.state in _OVER | {RunState.UNDONE}

    async def look(self) -> Snapshot:
        return await read_snapshot_for_metadata(self._versions, grace_ms=self._options.readers_grace_ms)

    async def forget_runs(self) -> list[RunId]:
        """Remove the records of runs that are over, were retired, and have no file left in their folder.

        What they swept has records of its own, and their deletions are in the ledger. Safe at any time.
        """
        over = [(run_id, record) for run_id, record in await self._versions.retired.runs() if record.state in _OVER]
        are_retired = await self._versions.retired.are_retired([run_id for run_id, _ in over])
        forgotten: list[RunId] = []
        for (run_id, record), is_retired in zip(over, are_retired, strict=True):
            if not is_retired or await self._has_files(run_folder(record.kind, run_id)):
                continue
            if await self._versions.retired.forget_run(run_id):
                forgotten.append(run_id)
        return forgotten

    async def _has_files(self, folder: str) -> bool:
        async for page in self._versions.objectstore.list(folder):
            if page:
                return True
        return False
