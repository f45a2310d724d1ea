"""Publish the commits that a run expires, check again, and begin its sweep. The order is the proof
(docs/design/protocols.md, "Naming a commit while a collection of committed data runs"):

    publish   write the run as `planning`, which deletes nothing; its commits; then the run as `expiring`
    bump      bump the branches that these commits were made for, so that a `set_if` that slept fails
    read      read staging and bump, then uploads and copies (reading.py)
    look      read refs, commits, the rules, then the legal holds. Changed rules or holds end the run
    recheck   take out commits that a record names or the rules keep now
    sweeping  `set_if`, bound to this recheck; then write `swept/<commit>` for the rest. Deletes may begin now
    ended     only after the record notes that all of them are written
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from lakebed.base import AT_ONCE, FOREIGN_SLICE, Basis, CommitId, RunId, RunState, in_waves
from lakebed.gc import messages
from lakebed.gc.live.errors import BadContinuation, RulesChanged, RunMoved, RunNotFound, StalePlan, WrongKind
from lakebed.gc.live.installation.installation import Installation
from lakebed.gc.live.reading.commits import Snapshot, read_snapshot, read_swept, without_tables
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.live.reading.reading import Continuations, Cursor, Phase, Reader, Reading, fresh_secret
from lakebed.gc.live.records.runs import RunBook, check_uid
from lakebed.gc.live.records.settings import HoldBook, PolicyBook, RuleBook
from lakebed.gc.rules.lifecycle import check_policy
from lakebed.objectstore import ObjectMissing
from lakebed.versions import ERASED, PRUNED, Numbers, RunRecord, TakingRecord, Versions, keys

WRITE_BATCH = 1_000

BUMPED_A_PAGE = 64 * AT_ONCE
"""Branches bumped in one request. Keeps it short enough for its caller, even if each bump waits for a network."""


class Expiring:
    def __init__(self, versions: Versions, runs: RunBook, rules: RuleBook, reading: Reading) -> None:
        self._versions = versions
        self._runs = runs
        self._rules = rules
        self._reading = reading
        self._policies = PolicyBook(versions)
        self._holds = HoldBook(versions)
        self._installation = Installation(versions)

    async def expire(self, run_id: RunId, body: messages.Expire) -> messages.RecheckInputs:
        """Do one page. The first page publishes, the first pages bump, later pages read staging, the last rechecks.

        A call without a token begins a new *attempt*, for example after a lost answer.

        Raises:
            RunMoved: the run sweeps, ended or was abandoned, or a collection of metadata retired its plan.
            RulesChanged: the rules, the policy or the holds changed after the plan. The run has ended.
            BadInput: the list contradicts its manifest, or a listed commit does not exist.
            BadContinuation: the token belongs to another attempt or is invalid.
        """
        inputs = Inputs(self._versions.objectstore, body.kind, run_id)
        if body.continuation_token is None:
            record = await self._publish(run_id, inputs, body)
            await self._write_before_staging(inputs, record.attempt)
            cursor = Cursor(name=uncommitted_name(record.attempt), phase=Phase.BUMP_FIRST)
        else:
            record, _ = await self._runs.read_as(run_id, body.kind, RunState.EXPIRING)
            cursor = Continuations(run_id, record, Reader.COLLECTOR).cursor(body.continuation_token)
            if record.listed != body.commits.digest():
                raise BadContinuation("this token is of another list of commits", run_id=run_id)
        whole: messages.Manifest | None = None
        further: Cursor | None = cursor
        if cursor.phase is Phase.BUMP_FIRST:
            further = await self._bump_first(inputs, body, cursor)
        if further is not None and further.phase is not Phase.BUMP_FIRST:
            page = await self._reading.read_page(inputs, further)
            further, whole = page.cursor, page.whole
        if further is not None:
            token = Continuations(run_id, record, Reader.COLLECTOR).token(further)
            return messages.RecheckInputs(run_id=run_id, continuation_token=token)
        assert whole is not None
        return await self._recheck(run_id, inputs, record.attempt, body, whole)

    async def _publish(self, run_id: RunId, inputs: Inputs, body: messages.Expire) -> RunRecord:
        """Check the list of commits and begin an attempt."""
        commits = await self._commits(inputs, body)
        _, unpublished_ms = await self._look_at(commits)
        return await self._begin_attempt(
            run_id, self._versions.ports.ids.fresh(), body, commits, unpublished_ms=unpublished_ms
        )

    async def _write_before_staging(self, inputs: Inputs, attempt: str) -> None:
        """Store closed slices and swept commits, on the first page only: a repeated later page is too late."""
        # Before the read of staging: an upload that sets its cell again during the read is in no closed slice.
        closed, _ = await self._runs.closed_slices()
        await inputs.write_closed(attempt, closed)
        # Also before: a commit swept later may be the source of a copy that our read of staging missed.
        await inputs.write_swept((await read_swept(self._versions)).commits, attempt=attempt)

    async def _commits(self, inputs: Inputs, body: messages.Expire) -> list[CommitId]:
        table = await inputs.read_table(messages.EXPIRED, body.commits)
        return [CommitId(id_) for id_ in table.column("id").to_pylist()]

    async def _bump_first(self, inputs: Inputs, body: messages.Expire, cursor: Cursor) -> Cursor:
        """Bump the next branches after `cursor.branch`. Return the next cursor: after the last branch, staging."""
        # The run is published. A collection of metadata may have looked at the list just before, and removed a commit.
        made_for, _ = await self._look_at(await self._commits(inputs, body), may_miss=True)
        ahead = [name for name in made_for if name > cursor.branch]
        branches = ahead[:BUMPED_A_PAGE]
        await in_waves(self._versions.ports.tasks, branches, self._versions.fencing.bump)
        if len(branches) < len(ahead):
            return replace(cursor, branch=branches[-1])
        return Cursor(name=cursor.name)

    async def _begin_attempt(
        self, run_id: RunId, attempt: str, body: messages.Expire, commits: list[CommitId], *, unpublished_ms: int
    ) -> RunRecord:
        now_ms = self._versions.ports.clock.now_ms()
        record = RunRecord(
            kind=body.kind,
            state=RunState.PLANNING,
            started_ms=now_ms,
            attempt=attempt,
            listed=body.commits.digest(),
            rules_version=str(body.rules_version),
            planned_ms=body.planned_ms,
            secret=fresh_secret(self._versions.ports.ids),
            unpublished_ms=unpublished_ms,
        )
        try:
            before, held = await self._runs.read_as(run_id, body.kind, RunState.PLANNING, RunState.EXPIRING)
        except RunNotFound:
            held = await self._runs.write(run_id, record, None)
            await self._runs.check_not_retired(run_id)
        else:
            record = replace(record, state=before.state, started_ms=before.started_ms)
            held = await self._runs.write(run_id, record, held)
        # After the record has this attempt: a plan from an earlier recheck cannot be swept.
        await self._versions.retired.expire(run_id, commits)
        if record.state is RunState.PLANNING:
            # Only after the list is complete: this write makes all its commits expiring at once.
            record = replace(record, state=RunState.EXPIRING)
            await self._runs.write(run_id, record, held)
        return record

    async def _look_at(self, commits: list[CommitId], *, may_miss: bool = False) -> tuple[list[str], int]:
        """Return the distinct branches that these commits were made for, and the run's `unpublished_ms` (RunRecord)."""
        branches, unpublished_ms = set[str](), list[int]()
        for start in range(0, len(commits), WRITE_BATCH):
            batch = commits[start : start + WRITE_BATCH]
            found = await self._versions.inventory.commits(batch)
            for commit, record in zip(batch, found, strict=True):
                if record is None:
                    if may_miss:
                        continue
                    # Or it was never published, and a collection of metadata removed it since the plan.
                    raise messages.BadInput(f"expiring commit {commit} does not exist: plan again", commit=commit)
                branches.add(record.made_for)
                if not record.published:
                    unpublished_ms.append(max(record.written_ms, 1))
        return sorted(branches - {""}), min(unpublished_ms, default=0)

    async def _recheck(
        self, run_id: RunId, inputs: Inputs, attempt: str, body: messages.Expire, uncommitted: messages.Manifest
    ) -> messages.RecheckInputs:
        """Look and recheck. Reads the record first and replaces it last, so a change in between voids the recheck."""
        record, held = await self._runs.read_as(run_id, body.kind, RunState.EXPIRING)
        if record.attempt != attempt:
            raise RunMoved(f"run {run_id} was published again", run_id=run_id, state=record.state.value)
        # Another call may have published more commits. This call did not bump their branches, so skip them.
        ours = (await inputs.read_table(messages.EXPIRED, body.commits)).column("id").to_pylist()
        published = set(await self._versions.retired.expiring(run_id)).intersection(ours)
        # An operation writes the name of a commit, then checks whether the commit is expiring. This run published
        # before it reads names. So the operation sees the run, or the run sees the name.
        snapshot = await read_snapshot(self._versions, known=await inputs.read_swept(attempt=attempt))
        if record.kind.takes_named:
            snapshot = await without_tables(self._versions, snapshot)
        kept = await self._kept(run_id, record, snapshot)
        holds = await self._holds.in_force()
        if holds.version != body.holds_version:
            await self._end_outdated(run_id, record, "legal holds", holds.version, by=body.holds_version)
        # Commits taken out stay published until the run sweeps. Releasing a commit too early would be unsafe.
        expiring = published - kept - snapshot.swept - snapshot.late
        commits = await inputs.write_tables(
            messages.COMMITS,
            f"{messages.COMMITS.name}.{attempt}",
            snapshot.commits_tables(expiring),
            self._versions.ports.tasks,
        )
        refs = await inputs.write_table(messages.REFS, f"{messages.REFS.name}.{attempt}", snapshot.refs_table())
        counts = tuple(sorted({*snapshot.returnable.values()}))
        await self._runs.write(run_id, replace(record, recheck=commits.digest(), counts=counts), held)
        return messages.RecheckInputs(
            run_id=run_id,
            commits=commits,
            refs=refs,
            uncommitted=uncommitted,
            closed_slices=await inputs.read_closed(attempt),
            expiring=len(expiring),
            taken_out=len(published) - len(expiring),
        )

    async def _kept(self, run_id: RunId, record: RunRecord, snapshot: Snapshot) -> set[CommitId]:
        """Return the commits that the rules keep now. End the run if the rules or the policy changed."""
        if record.kind.spec.basis is None:
            return set()
        if record.kind.spec.basis is Basis.POLICY:
            policy = await self._policies.read()
            if policy.policy is None or str(policy.version) != record.rules_version:
                await self._end_outdated(run_id, record, "lifecycle policy", policy.version)
            return set()
        current = await self._rules.read()
        if current.rules is None or str(current.version) != record.rules_version:
            await self._end_outdated(run_id, record, "retention rules", current.version)
        assert current.rules is not None
        now_ms = self._versions.ports.clock.now_ms()
        return await self._versions.ports.tasks.apart(partial(snapshot.kept, current.rules, now_ms=now_ms))

    async def _end_outdated(
        self, run_id: RunId, record: RunRecord, what: str, now: int, *, by: int | None = None
    ) -> NoReturn:
        await self._runs.move(run_id, RunState.ENDED)
        await self.drop_expiring(run_id)
        raise RulesChanged(
            f"the {what} changed since this run was planned; it has ended, plan again",
            run_id=run_id,
            planned_by=record.rules_version if by is None else by,
            now=now,
        )

    async def sweep(self, run_id: str, body: messages.Sweep) -> messages.RunView:
        """Move the run to `sweeping` and write its swept commits. From then on deletes may begin.

        A metadata run, which expires no commits, uses this step too. A lifecycle or erasure run records its addresses
        in `<uid>/taken` (versions/taken.py). Until then a copy of a commit's entry copies the bytes.

        Raises:
            Conflict: the run belongs to another repository.
            OtherInstallation: this installation may not collect.
            RunMoved: the run is neither expiring nor sweeping.
            WrongKind: runs of this kind do not publish.
            StalePlan: the plan was not made from the latest recheck, the run sweeps by another plan, or a run that this
                run relies on was undone.
            BadInput: an input contradicts its manifest.
        """
        id_ = messages.check_run_id(run_id)
        check_uid(self._versions, body.uid)
        await self._installation.check()
        messages.check_manifest(body.plan, name="plan")
        if body.plan.table != messages.GARBAGE.name:
            raise messages.BadInput(f"the plan is a {body.plan.table} table", input=body.plan.table)
        kind = (await self._runs.read(id_))[0].kind
        if not kind.publishes:
            raise WrongKind(f"run {run_id} is of kind {kind.value}, which publishes nothing", run_id=run_id)
        record, held = await self._runs.read_as(id_, kind, RunState.EXPIRING, RunState.SWEEPING)
        if record.recheck != body.commits.digest():
            raise StalePlan("the plan was not made from the latest recheck of this run", run_id=run_id)
        inputs = Inputs(self._versions.objectstore, kind, id_)
        expiring = _expiring_in(await inputs.read_table(messages.COMMITS, body.commits))
        if record.state is RunState.EXPIRING:
            # A run that selects by path did not see the paths of swept commits, even if it deletes nothing.
            if body.plan.rows or kind.spec.by_order:
                await self._runs.count_on(id_, record.counts)
            record = replace(record, state=RunState.SWEEPING, plan=body.plan.digest())
            await self._runs.write(id_, record, held)
        elif record.plan != body.plan.digest():
            raise StalePlan("the run sweeps by another plan", run_id=run_id)
        if kind.takes_named and not record.swept:
            await self._write_taken(id_, record, body.plan)
        await self._write_swept(id_, expiring)
        await self._versions.retired.release(id_, set(await self._versions.retired.expiring(id_)) - set(expiring))
        return await self._runs.view(id_, record)

    async def _write_taken(self, run_id: RunId, record: RunRecord, plan: messages.Manifest) -> None:
        """Record the objects that the run deletes, for readers and copies. Repeated from the start after a crash."""
        if not plan.folder.startswith(messages.run_folder(record.kind, run_id)):
            raise messages.BadInput(f"{plan.folder} is not in the folder of run {run_id}", input=plan.table)
        version, rules = int(record.rules_version), [ERASED if record.kind.spec.by_order else PRUNED]
        if record.kind.spec.basis is Basis.POLICY:
            policy = await self._policies.version(version)
            rules = [rule.text() for rule in check_policy(policy.policy or b"").rules]
        now_ms = self._versions.ports.clock.now_ms()
        taken = self._versions.taken
        taking = TakingRecord(policy_version=version, taken_ms=now_ms, rules=tuple(rules))
        if record.kind.spec.basis is None:
            # Listings check for taken objects only if a policy or this record exists.
            await self._versions.context.set(keys.ERASED, taking)
        await taken.begin(run_id, taking)
        for part in plan.parts:
            rows = await read_garbage(self._versions, plan, part)
            await taken.add(run_id, _by_rule(rows, rules))

    async def _write_swept(self, run_id: RunId, commits: list[CommitId]) -> None:
        # Count on other runs that swept the same commits: their undo would bring back objects that this run deletes.
        while others := await self._versions.retired.note_swept(run_id, commits):
            with suppress(StalePlan):
                await self._runs.count_on(run_id, sorted(others))
                break
        await self._runs.note_swept(run_id)

    async def drop_expiring(self, run_id: RunId) -> None:
        """Empty the list of a run that no longer expires or sweeps. Swept commits have their own records."""
        await self._versions.retired.release(run_id, set(await self._versions.retired.expiring(run_id)))

    async def drop_lists(self, *, old_age_ms: int) -> None:
        """Empty the lists of finished and deferred runs.

        A collector that slept may write to the list of its abandoned run again. So repeat this for each run until its
        age is `old_age_ms`.
        """
        now_ms = self._versions.ports.clock.now_ms()
        for run_id, record in await self._versions.retired.runs():
            is_over = record.state.is_over
            # Commits of a deferred run have `swept/<commit>` records, as those of an ended run.
            if not record.listed or not (is_over or record.until_ms):
                continue
            await self.drop_expiring(run_id)
            if is_over and now_ms - record.started_ms >= old_age_ms:
                with suppress(RunMoved):
                    _, held = await self._runs.read(run_id)
                    await self._runs.write(run_id, replace(record, listed=""), held)


async def read_garbage(versions: Versions, garbage: messages.Manifest, part: messages.Part) -> pa.Table:
    """Read one part of a table GARBAGE and check it against its manifest, or raise BadInput."""
    name = garbage.folder + part.name
    try:
        data = await versions.objectstore.get(name)
    except ObjectMissing as error:
        raise messages.BadInput(f"{name} is missing", part=part.name) from error
    # Apart: a part may have a million rows, and decoding them would block the event loop.
    return await versions.ports.tasks.apart(partial(messages.read_part, garbage, messages.GARBAGE, part, data))


def _by_rule(rows: pa.Table, rules: Sequence[str]) -> Iterator[tuple[int, Numbers, Numbers, list[str]]]:
    """Yield for each rule: its index, slices with a sequence each, and addresses outside of slices."""
    for text in pc.unique(rows["rule"]).to_pylist():
        if text not in rules:
            raise messages.BadInput(f"the plan names a rule that its policy does not have: {text}", rule=text)
        mine = rows.filter(pc.equal(rows["rule"], text))
        own = mine.filter(pc.not_equal(mine["slice"], FOREIGN_SLICE))
        others = mine.filter(pc.equal(mine["slice"], FOREIGN_SLICE))["address"].to_pylist()
        yield rules.index(text), own["slice"].to_numpy(), own["sequence"].to_numpy().astype(np.int64), others


def uncommitted_name(attempt: str) -> str:
    return f"uncommitted.{attempt}"


def _expiring_in(table: pa.Table) -> list[CommitId]:
    chosen = table.filter(pc.field("expiring")).column("id").to_pylist()
    return [CommitId(id_) for id_ in chosen]
