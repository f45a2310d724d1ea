"""Retire files and run folders for a collection of metadata (docs/design/protocols.md, "A collection of metadata").
The order is the proof:

    record    write the run as `expiring`, with the digest of its list; a run never has another list
    retire    write the id of each file and run under a key that is never removed
    end       end unapplied plans in the list. A run that works, or whose deletes began, is alive; its folder stays
    bump      bump every branch: a committer that asked too early for retired ids fails to publish, and builds again
    look      read swept records, refs, then every commit record: files of a commit that is not swept stay
    sweeping  `set_if`, bound to this look; deletes may begin now
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from lakebed.base import CommitId, RunId, RunKind, RunState, in_waves
from lakebed.gc import messages
from lakebed.gc.live.errors import RunMoved, RunNotFound
from lakebed.gc.live.installation.installation import Installation
from lakebed.gc.live.options import ServiceOptions
from lakebed.gc.live.reading.commits import Snapshot, read_snapshot_for_metadata, unnamed_commits
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.live.records.runs import RunBook, check_uid
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

    async def retire(self, run_id: str, body: messages.RetireLeftovers) -> messages.LeftoversRetired:
        """Retire the ids in the run's list for good, and return the runs and commits whose files must stay.

        Costs a write for each id in the list, two operations for each branch, and a scan of the records.

        Raises:
            Conflict: the run belongs to another repository.
            OtherInstallation: this installation may not collect.
            RunMoved: the run sweeps, ended or was abandoned, or another collection retired its plan.
            BadInput: the list contradicts its manifest, or differs from the list published before.
        """
        id_ = messages.check_run_id(run_id)
        check_uid(self._versions, body.uid)
        await self._installation.check()
        inputs = Inputs(self._versions.objectstore, _KIND, id_)
        table = await inputs.read_table(messages.LEFTOVERS, body.leftovers)
        kinds, ids = table.column("kind").to_pylist(), table.column("id").to_pylist()
        if strange := set(kinds) - {FILE, RUN}:
            raise messages.BadInput(
                f"{body.leftovers.folder} names things of kind {min(strange)}", input=messages.LEFTOVERS.name
            )
        record, held = await self._begin_attempt(id_, body.leftovers)
        pairs = list(zip(kinds, ids, strict=True))
        runs = [RunId(name) for kind, name in pairs if kind == RUN]
        # Before the bump, never after: a commit that is made after it may yet be published.
        loose = await inputs.read_loose()
        alive = await self.publish(id_, files=[name for kind, name in pairs if kind == FILE], runs=runs)
        snapshot = await self.look()
        await self._remove_unpublished(snapshot, loose)
        commits = await inputs.write_tables(
            messages.COMMITS,
            f"{messages.COMMITS.name}.{record.attempt}",
            snapshot.commits_tables(),
            self._versions.ports.tasks,
        )
        refs = await inputs.write_table(messages.REFS, f"{messages.REFS.name}.{record.attempt}", snapshot.refs_table())
        await self._runs.write(id_, replace(record, recheck=commits.digest()), held)
        return messages.LeftoversRetired(
            run_id=id_,
            commits=commits,
            refs=refs,
            runs_alive=tuple(alive),
            has_lost_trees=snapshot.has_lost_trees,
        )

    async def _begin_attempt(self, run_id: RunId, leftovers: messages.Manifest) -> tuple[RunRecord, Held]:
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
            raise messages.BadInput(f"run {run_id} published another list before", input=messages.LEFTOVERS.name)
        record = replace(record, started_ms=before.started_ms)
        return record, await self._runs.write(run_id, record, held)

    async def publish(self, run_id: RunId, *, files: Sequence[str], runs: Sequence[RunId]) -> list[RunId]:
        """Retire, end, bump. Return the live runs: their folders stay."""
        # Files are named by content: a writer may soon need a name that is garbage now, and a delete may sleep for
        # years. A committer checks for retired ids after it read its branch, and gives the content another id. Ids of
        # files that stay are retired too, because another run might still delete such a file.
        await self._versions.retired.retire(run_id, ids=files, runs=runs)
        tasks = self._versions.ports.tasks
        are_over = await in_waves(tasks, runs, self._end_planned)
        # Skip branches that are being made: a committer cannot read them yet, and checks for retired ids after it can.
        branches = await self._versions.context.branches.every()
        active = [name for name, record in branches if record.state is RefState.ACTIVE]
        await in_waves(tasks, active, self._versions.fencing.bump)
        return [run for run, is_over in zip(runs, are_over, strict=True) if not is_over]

    async def _remove_unpublished(self, snapshot: Snapshot, loose: frozenset[CommitId]) -> None:
        """Remove the records of commits that were never published. `loose` had no note before every branch was bumped.

        Their files and objects are garbage to later runs (docs/design/protocols.md, "Commits that were not published").
        """
        tasks = self._versions.ports.tasks
        unnamed = await tasks.apart(partial(unnamed_commits, snapshot, loose))
        for start in range(0, len(unnamed), WRITE_BATCH):
            batch = unnamed[start : start + WRITE_BATCH]
            # A run that took one, or is about to, has its id in lists.
            given_up = await self._versions.retired.given_up_by(batch)
            left = [commit for commit in batch if commit not in given_up]
            await in_waves(tasks, left, self._versions.context.commits.remove_unpublished)

    async def _end_planned(self, run_id: RunId) -> bool:
        """Return whether no process works on this run, now or later. End the run if its plan was not applied."""
        try:
            record, _ = await self._runs.read(run_id)
            if record.state is RunState.MARKED:
                folder = messages.run_folder(record.kind, run_id)
                if await self._has_files(f"{folder}apply.json") or await self._has_files(f"{folder}sweep.json"):
                    return False  # An older release applied it, and it will be applied again: some objects failed.
                record = await self._runs.end_unapplied(run_id)
        except RunNotFound:
            # Planned, perhaps about to be published: its publisher writes the record, then checks for retired ids.
            return True
        except RunMoved:
            return False
        # The record of an undone run is kept, but its files may be deleted.
        return record.state in _OVER | {RunState.UNDONE}

    async def look(self) -> Snapshot:
        return await read_snapshot_for_metadata(self._versions, grace_ms=self._options.readers_grace_ms)

    async def forget_runs(self) -> list[RunId]:
        """Remove the records of finished, retired runs with an empty folder. Safe at any time.

        Their swept commits have their own records, and the ledger has their deletions.
        """
        told = await self._versions.outbox.told()
        over = [(run_id, record) for run_id, record in await self._versions.retired.runs() if record.state in _OVER]
        are_retired = await self._versions.retired.are_retired([run_id for run_id, _ in over])
        forgotten: list[RunId] = []
        for (run_id, record), is_retired in zip(over, are_retired, strict=True):
            if not is_retired or await self._has_files(messages.run_folder(record.kind, run_id)):
                continue
            changes = None if told is None else told(run_id)[1]
            if await self._versions.retired.forget_run(run_id, changes=changes):
                forgotten.append(run_id)
        return forgotten

    async def _has_files(self, folder: str) -> bool:
        async for page in self._versions.objectstore.list(folder):
            if page:
                return True
        return False
