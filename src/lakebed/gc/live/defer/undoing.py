"""Undo a deferred run before its purge begins: its commits and objects are readable again
(docs/design/0010-deferred-delete.md).

One conditional write decides: the run's record becomes `undone`. It replaces the record as read. So it excludes a
purge, a longer window, and another run that begins to rely on this one (`RunBook.count_on`).

    refuse    a run that is not deferred, that purges, or that another run relies on
    undone    `set_if`; readers, writers and collectors now ignore the run's swept and taken records
    tidy      remove its `swept/<commit>` records, or its part of `<uid>/taken`, and its list; repeat after a crash
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from lakebed.base import Basis, CommitId, Conflict, RunId
from lakebed.gc.live.errors import RunMoved, RunNotFound, WrongKind
from lakebed.gc.live.installation.installation import Installation
from lakebed.gc.live.publish.expiring import Expiring
from lakebed.gc.live.reading.commits import read_snapshot
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.live.records.settings import PolicyBook, RuleBook
from lakebed.gc.messages import RunKind, RunState, TakesAgain, Undo, Undone, check_run_id
from lakebed.gc.rules import Rules
from lakebed.gc.rules.lifecycle import check_policy
from lakebed.versions import RunRecord, SweptRecord, Versions

from .deferring import DeferredRun, DeferredRuns

TIDIED: Final = 10_000
"""The number of records that one call removes at most."""


class Undoing:
    def __init__(self, versions: Versions, runs: RunBook, rules: RuleBook, expiring: Expiring) -> None:
        self._versions = versions
        self._runs = runs
        self._rules = rules
        self._expiring = expiring
        self._deferred = DeferredRuns(versions)
        self._installation = Installation(versions)

    async def undo(self, run_id: str, body: Undo) -> Undone:
        """Undo the run, or continue to remove the records of an undone run.

        Costs a scan of commits and swept records, or of all taken records of lifecycle runs.

        Raises:
            OtherInstallation: see `Installation.check`.
            RunNotFound: no run has this id.
            WrongKind: runs of this kind are never deferred.
            RunMoved: the run is not deferred, its purge began, or another call just moved it.
            Conflict: other runs delete objects because its commits are swept.
        """
        id_ = check_run_id(run_id)
        await self._installation.check()
        record, held = await self._runs.read(id_)
        undone = Undone(run_id=id_, kind=record.kind, state=record.state)
        if record.state is not RunState.UNDONE:
            self._check_deferred(id_, record)
            await self._check_uncounted(id_, record)
            undone = await self._look(id_, record)
            if body.dry_run:
                return undone
            # Later runs ignore the saved state of an undone run: it lacks this run's candidates.
            # This record is never removed: a call that slept may write the run's swept or taken records again.
            record = replace(record, state=RunState.UNDONE, until_ms=0, window="")
            await self._runs.write(id_, record, held)
            undone = replace(undone, state=RunState.UNDONE)
        return undone if body.dry_run else replace(undone, is_done=await self._tidy(id_, record.kind))

    def _check_deferred(self, run_id: RunId, record: RunRecord) -> None:
        if not record.kind.can_wait:
            raise WrongKind(
                f"run {run_id} is of kind {record.kind.value}: only deferred runs are undone", run_id=run_id
            )
        if record.state is RunState.ENDED:
            what = f"run {run_id} has ended, and cannot be undone: `gc ledger --run {run_id}` lists what it deleted"
            raise RunMoved(what, run_id=run_id, state=record.state.value)
        if record.purging:
            what = f"the purge of run {run_id} began, and objects may be gone: `gc restore` brings back what is left"
            raise RunMoved(what, run_id=run_id, state=record.state.value)
        if not record.may_be_undone or not record.until_ms:
            what = (
                f"run {run_id} is {record.state.value} and not deferred: only a run that waits for its window is undone"
            )
            raise RunMoved(what, run_id=run_id, state=record.state.value)

    async def _check_uncounted(self, run_id: RunId, record: RunRecord) -> None:
        """Check that no other run relies on this run.

        Call it after the record was read: a run that adds itself later changes the record, and the undo fails.
        """
        waiting: list[str] = []
        lost: list[str] = []
        for other in record.counted_by:
            try:
                its = (await self._runs.read(RunId(other)))[0]
            except RunNotFound:
                lost.append(other)
                continue
            # These runs have not deleted any object.
            if its.state in {RunState.ABANDONED, RunState.UNDONE} or (its.state is RunState.ENDED and not its.swept):
                continue
            # A run that may be undone, or only expires, can make room. Every other run deletes or deleted objects.
            (waiting if its.may_be_undone or its.state is RunState.EXPIRING else lost).append(other)
        if lost:
            what = (
                f"run {run_id} cannot be undone: run {lost[-1]} deletes, or deleted, objects since it took its commits"
            )
        elif waiting:
            runs = ", ".join(reversed(waiting))
            what = (
                f"later runs count on what run {run_id} took: undo them first, or abandon them, in this order: {runs}"
            )
        else:
            return
        raise Conflict(what, run_id=run_id, runs=(*lost, *waiting))

    async def _look(self, run_id: RunId, record: RunRecord) -> Undone:
        """Return the number of commits that become readable, and the rules that select them again."""
        table = await self._deferred.table_of(DeferredRun(run_id=run_id, kind=record.kind, until_ms=record.until_ms))
        undone = Undone(run_id=run_id, kind=record.kind, state=record.state, objects=0 if table is None else table.rows)
        if record.kind.spec.basis is Basis.POLICY:
            return replace(undone, again=await self._due_again(run_id))
        if record.kind.spec.basis is Basis.RULES:
            commits = [CommitId(n) async for n, one in self._versions.inventory.every(SweptRecord) if one.run == run_id]
            return replace(undone, commits=len(commits), again=await self._expire_again(commits))
        return undone

    async def _expire_again(self, commits: Sequence[CommitId]) -> tuple[TakesAgain, ...]:
        rules = (await self._rules.read()).rules
        if rules is None:
            return ()
        snapshot = await read_snapshot(self._versions)
        kept = snapshot.kept(rules, now_ms=self._versions.ports.clock.now_ms())
        branches = {name for kind, name, _, _ in snapshot.refs if kind == "branch"}
        counts: Counter[str] = Counter()
        gone = [commit for commit in commits if commit not in kept]
        for start in range(0, len(gone), 1_000):
            for one in await self._versions.inventory.commits(gone[start : start + 1_000]):
                branch = one.made_for if one is not None and one.made_for in branches else None
                counts[_rule_text(rules, branch)] += 1
        return tuple(TakesAgain(rule=rule, commits=count) for rule, count in counts.most_common())

    async def _due_again(self, run_id: RunId) -> tuple[TakesAgain, ...]:
        policy = (await PolicyBook(self._versions).read()).policy
        taking = await self._versions.taken.find_run(run_id)
        if policy is None or taking is None:
            return ()
        # An estimate: rules are compared by text, and dates are not evaluated again.
        now = {rule.text() for rule in check_policy(policy).rules}
        counts = await self._versions.taken.count(run_id)
        return tuple(
            TakesAgain(rule=text, objects=counts[number])
            for number, text in enumerate(taking.rules)
            if text in now and number in counts
        )

    async def _tidy(self, run_id: RunId, kind: RunKind) -> bool:
        """Remove the records of an undone run. Return whether all are removed."""
        await self._expiring.drop_expiring(run_id)
        if kind.takes_named:
            await self._versions.taken.withdraw(run_id)
        if kind.spec.basis is Basis.RULES:
            # Fewer removed records than the limit means that no record is left.
            return await self._versions.retired.forget_swept(run_id, TIDIED) < TIDIED
        return True


def _rule_text(rules: Rules, branch: str | None) -> str:
    rule = None if branch is None else rules.rule_of(branch)
    return f"default: {rules.default}" if rule is None else f"{rule.pattern}: {rule.period}"
