"""Serve the steps of an apply: check that it may begin, publish, end or abandon.

Each step checks the repository and the installation again, because another one may have appeared since the last step.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from lakebed.base import Basis, RunId, RunKind
from lakebed.gc.messages import Apply, End, Expire, RecheckInputs, RunState, RunView, check_run_id
from lakebed.versions import Versions

from .errors import PolicyNotFound, RulesChanged, RulesNotFound, RunMoved, RunNotFound, StalePlan, WrongKind
from .installation.installation import Installation
from .publish.expiring import Expiring
from .publish.metadata import MetadataRuns
from .records.runs import Planners, RunBook, check_uid, view
from .records.settings import PolicyBook, RuleBook


class ApplySteps:
    def __init__(
        self, versions: Versions, runs: RunBook, planners: Planners, expiring: Expiring, metadata: MetadataRuns
    ) -> None:
        self._versions = versions
        self._runs = runs
        self._planners = planners
        self._expiring = expiring
        self._metadata = metadata
        self._installation = Installation(versions)

    async def apply(self, run_id: str, body: Apply) -> RunView:
        """Succeed if an apply of this plan may begin. The collector calls this before it stops another or writes.

        Grants nothing: later steps check again. With `begins`, record that the apply began. `looks_again` in the answer
        is true if another user made the plan.

        Raises:
            Conflict: the run belongs to an earlier repository of this name, or the repository is still bare.
            RunNotFound, WrongKind, RunMoved: the run's kind or state does not allow this apply.
            StalePlan: the run was marked with another plan.
            RulesNotFound, PolicyNotFound, RulesChanged: the plan's rules are not in force. A run that expires by them
                is abandoned.
        """
        id_ = check_run_id(run_id)
        check_uid(self._versions, body.uid)
        installation = await self._installation.check()
        # Not for a deleted repository: its branches are suspended.
        if not body.kind.spec.of_deleted:
            await self._installation.check_restored(installation)
        record = await self._runs.read_to_apply(id_, body)
        # New rules come too late for a sweeping run.
        basis = body.kind.spec.basis
        if basis is not None and record.state is not RunState.SWEEPING:
            now = await self._require_rules(id_, body.kind)
            if record.rules_version not in ("", str(now)):
                await self._abandon_unswept(id_, body.kind)
            if body.rules_version != now:
                raise RulesChanged(
                    f"the {basis.value} changed since this run was planned; plan again",
                    run_id=run_id,
                    planned_by=body.rules_version,
                    now=now,
                )
        began = body.begins and not body.kind.publishes
        if began or body.sweeps or body.saved:
            states = (RunState.MARKED, RunState.SWEEPING)
            record = await self._runs.note(id_, *states, began=began, sweeps=body.sweeps, saved=body.saved)
        by, looks_again = await self._planners.judge(id_, body)
        return msgspec.structs.replace(await self._runs.view(id_, record), planned_by=by, looks_again=looks_again)

    async def expire(self, run_id: str, body: Expire) -> RecheckInputs:
        """See `Expiring.expire`.

        Raises:
            RulesNotFound, PolicyNotFound: no rules are set. A run that expires is abandoned.
        """
        id_ = check_run_id(run_id)
        check_uid(self._versions, body.uid)
        await self._installation.check_restored(await self._installation.check())
        # An erasure follows its order, and pruning no rules.
        if body.kind.spec.basis is not None:
            await self._require_rules(id_, body.kind)
        return await self._expiring.expire(id_, body)

    async def _require_rules(self, run_id: RunId, kind: RunKind) -> int:
        """Return the version of the rules or of the lifecycle policy in force. Without them, abandon the run."""
        if kind.spec.basis is Basis.POLICY:
            policy = await PolicyBook(self._versions).read()
            if policy.policy is None:
                await self._abandon_unswept(run_id, kind)
                raise PolicyNotFound("no lifecycle policy is set for this repository")
            return policy.version
        current = await RuleBook(self._versions).read()
        if current.rules is None:
            await self._abandon_unswept(run_id, kind)
            raise RulesNotFound("no retention rules are set for this repository")
        return current.version

    async def _abandon_unswept(self, run_id: RunId, kind: RunKind) -> None:
        with suppress(RunNotFound, WrongKind, RunMoved):
            # A sweeping run may have deleted objects, so it must be resumed instead.
            await self._runs.read_as(run_id, kind, RunState.PLANNING, RunState.EXPIRING)
            await self._finish(run_id, RunState.ABANDONED)

    async def end(self, run_id: str, body: End) -> RunView:
        """End a run after its last delete.

        Raises:
            RunMoved: the run still marks, has not written its swept commits yet, or waits for the end of its window.
            StalePlan: the run sweeps by another plan.
        """
        id_ = check_run_id(run_id)
        record, _ = await self._runs.read(id_)
        if record.plan != body.plan:
            raise StalePlan(f"run {run_id} sweeps by another plan", run_id=run_id)
        ended = await self._finish(id_, RunState.ENDED, saved=body.saved)
        # A metadata run has just emptied the folders of old runs, so their records can be removed.
        if not ended.kind.takes_objects:
            await self._metadata.forget_runs()
            await self._planners.forget_retired()
        return ended

    async def abandon(self, run_id: str) -> RunView:
        """Abandon a run.

        Raises:
            RunMoved: the run's deletes may have begun, so it can only be resumed and ended.
        """
        return await self._finish(check_run_id(run_id), RunState.ABANDONED)

    async def _finish(self, run_id: RunId, state: RunState, *, saved: str = "") -> RunView:
        # Move first: the commits of a run that may still sweep must stay expiring.
        record = await self._runs.move(run_id, state, saved=saved)
        await self._expiring.drop_expiring(run_id)
        return view(run_id, record)
