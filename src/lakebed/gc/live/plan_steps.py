"""Serve the steps of a plan, in this order only: start, read staging, read the commits, mark.

The run's state, complete inputs and the sealed cursor in a token enforce the order. The reasons are in
docs/design/protocols.md.
"""

from __future__ import annotations

import msgspec

from lakebed.base import Basis, RunId, RunKind, RunState
from lakebed.gc import messages
from lakebed.versions import Versions

from .errors import RunNotFound, WrongKind
from .installation.installation import Installation
from .options import ServiceOptions
from .reading.commits import (
    Snapshot,
    commits_of_tables,
    loose_commits,
    read_snapshot,
    read_snapshot_for_metadata,
    read_swept,
)
from .reading.inputs import Inputs
from .reading.reading import Continuations, Cursor, Reader, Reading
from .records.runs import RunBook, view
from .records.settings import HoldBook, PolicyBook, RuleBook


class PlanSteps:
    def __init__(self, versions: Versions, options: ServiceOptions) -> None:
        self._versions = versions
        self._options = options
        self._runs = RunBook(versions, options)
        self._reading = Reading(versions, options)
        self._installation = Installation(versions)

    async def start(self, body: messages.StartRun) -> messages.StartedRun:
        """Start a run, after a check that no other installation uses the namespace.

        For uncommitted data, also write the run's record, then read closed slices, then issued upload addresses.

        Raises:
            OtherInstallation: another installation uses the namespace, or did at the last check.
            Conflict: the repository is still bare.
            WrongKind: the kind is for deleted repositories only.
        """
        if body.kind.spec.of_deleted:
            raise WrongKind("the repository is in use: only a deleted one is collected as a whole")
        await self._installation.check_restored(await self._installation.step())
        if not body.kind.publishes:
            run_id, record = await self._runs.start_marking(body.kind)
            state, now_ms = RunState.MARKING, record.started_ms
        else:
            run_id = RunId(self._versions.ports.ids.fresh())
            state, now_ms = RunState.PLANNING, self._versions.ports.clock.now_ms()
        closed, others = await self._runs.closed_slices() if body.kind.takes_objects else ((), ())
        uploads = None
        if not body.kind.publishes:
            inputs = Inputs(self._versions.objectstore, body.kind, run_id)
            # After the slices closed: addresses in a closed slice were issued before, so this read misses none.
            uploads = await self._reading.read_uploads(inputs)
            # Before the read of staging, never after (commits.py).
            await inputs.write_swept((await read_swept(self._versions, for_good=True)).commits)
        return messages.StartedRun(
            run_id=run_id,
            kind=body.kind,
            state=state,
            namespace=self._versions.objectstore.uri,
            folder=messages.run_folder(body.kind, run_id),
            now_ms=now_ms,
            closed_slices=closed,
            open_slices=len(others),
            open_slice_names=others,
            uploads=uploads,
            uid=self._versions.uid,
        )

    async def read_uncommitted(
        self, run_id: str, body: messages.ReadUncommitted, *, reader: Reader = Reader.COLLECTOR
    ) -> messages.UncommittedPage:
        """Write and return the next page of uncommitted addresses. A token is valid only for its reader.

        Raises:
            RunNotFound, WrongKind, RunMoved: the run does not exist, publishes, or does not mark.
            OutOfOrder: the run has already read the commits.
            BadContinuation: the token is not one of this reader and run.
        """
        id_ = messages.check_run_id(run_id)
        record = await self._runs.read_marking(id_)
        continuations = Continuations(id_, record, reader)
        inputs = Inputs(self._versions.objectstore, record.kind, id_)
        name = messages.UNCOMMITTED.name
        # After the read of commits, a new read of staging misses addresses committed in between, and so did that read.
        await inputs.check_not_complete(messages.COMMITS.name)
        token = body.continuation_token
        cursor = Cursor(name=name) if token is None else continuations.cursor(token)
        page = await self._reading.read_page(inputs, cursor)
        return messages.UncommittedPage(
            run_id=id_,
            location=inputs.folder(name),
            parts=page.manifest.parts,
            continuation_token=None if page.cursor is None else continuations.token(page.cursor),
            manifest=page.whole,
        )

    async def prepare_commits(
        self, run_id: str, body: messages.PrepareCommits | None = None
    ) -> messages.PreparedCommits:
        """Write every commit record and ref, and the rules, into the run's folder.

        Raises:
            RunMoved: the run no longer marks.
            OutOfOrder: a run of uncommitted data has not read staging to its end.
        """
        id_ = messages.check_run_id(run_id)
        body = body or messages.PrepareCommits()
        kind = await self._kind_of(id_, body.kind)
        if not kind.publishes:
            # Otherwise an address that a commit moves out of its cell meanwhile is in neither (document 001).
            await Inputs(self._versions.objectstore, kind, id_).check_complete(messages.UNCOMMITTED.name)
        current = await RuleBook(self._versions).read()
        policy = await PolicyBook(self._versions).read() if kind.spec.basis is Basis.POLICY else None
        inputs = Inputs(self._versions.objectstore, kind, id_)
        snapshot = await self._snapshot(kind, inputs, for_good=body.for_good)
        own = await commits_of_tables(self._versions, snapshot) if kind.takes_named else frozenset()
        of_tables = own if kind.spec.of_tables else frozenset()
        if not kind.spec.of_tables:
            snapshot = snapshot.without(own)
        # A plan that asks for both keeps the files of each.
        suffix = ".for-good" if body.for_good else ""
        refs = await inputs.write_table(messages.REFS, f"{messages.REFS.name}{suffix}", snapshot.refs_table())
        commits = await inputs.write_tables(
            messages.COMMITS,
            f"{messages.COMMITS.name}{suffix}",
            snapshot.commits_tables(of_tables),
            self._versions.ports.tasks,
        )
        if not kind.takes_objects and (loose := loose_commits(snapshot.commits)):
            await inputs.write_loose(loose)
        await self._versions.objectstore.put(messages.rules_path(kind, id_), msgspec.json.encode(current))
        prepared = messages.PreparedCommits(
            run_id=id_,
            commits=commits,
            refs=refs,
            rules=current.rules,
            rules_version=current.version,
            holds=await HoldBook(self._versions).in_force(),
            has_lost_trees=snapshot.has_lost_trees,
            # The hidden branch has at least the commit that it began with.
            tables_ms=self._versions.context.options.tables_ms if own else None,
        )
        if policy is None:
            return prepared
        return msgspec.structs.replace(
            prepared, rules=None, rules_version=policy.version, policy=(policy.policy or b"").decode()
        )

    async def _snapshot(self, kind: RunKind, inputs: Inputs, *, for_good: bool) -> Snapshot:
        if not kind.takes_objects:
            return await read_snapshot_for_metadata(self._versions, grace_ms=self._options.readers_grace_ms)
        if not kind.publishes:
            return await read_snapshot(self._versions, known=await inputs.read_swept(), for_good=True)
        return await read_snapshot(self._versions, for_good=for_good)

    async def _kind_of(self, run_id: RunId, planned: RunKind) -> RunKind:
        """Return the kind of a run. Kinds that do not publish have a record while they plan, and must still mark.

        Raises:
            RunNotFound: `planned` does not publish, and the run has no record.
        """
        try:
            return (await self._runs.read_marking(run_id)).kind
        except RunNotFound:
            if not planned.publishes:
                raise
            return planned

    async def mark(self, run_id: str, body: messages.Mark) -> messages.RunView:
        """Move the run from marking to marked, after the last read. From now on the plan may be applied at any time.

        Raises:
            RunMoved: the run was abandoned, or is marked with another plan. Discard the work.
            BadInput: the plan's manifest is invalid.
        """
        messages.check_manifest(body.plan, name="plan")
        if body.plan.table != messages.GARBAGE.name:
            raise messages.BadInput(f"the plan is a {body.plan.table} table", input=body.plan.table)
        id_ = messages.check_run_id(run_id)
        await self._installation.check()
        return view(id_, await self._runs.move(id_, RunState.MARKED, plan=body.plan.digest()))
