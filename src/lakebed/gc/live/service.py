"""The live side of collections for one repository: `lakebed.gc.messages.Requests`. The server's routes call it too.

A collector decides and deletes. The live side says what is alive, keeps the runs' records, and makes sure that writers
and runs see each other. The order of the steps is the proof (docs/design/protocols.md). Three things enforce it here:
the run's state, inputs that are complete, and the sealed cursor in a continuation token.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from lakebed.base import Basis, RunId, RunKind
from lakebed.gc.messages import (
    COMMITS,
    GARBAGE,
    REFS,
    UNCOMMITTED,
    AdoptedSlices,
    Adopting,
    Apply,
    BadInput,
    CertificateHead,
    CertificateKey,
    Defer,
    End,
    Expire,
    FindStaged,
    LeftoversRetired,
    Mark,
    MissingCommits,
    NotePlanned,
    PlannedBy,
    Planning,
    PrepareCommits,
    PreparedCommits,
    Purge,
    Purging,
    Question,
    ReadUncommitted,
    RecheckInputs,
    Restore,
    RestorePage,
    RetireLeftovers,
    RulesVersion,
    RunList,
    RunState,
    RunView,
    StagedPage,
    StartedRun,
    StartRun,
    Sweep,
    UncommittedPage,
    Undo,
    Undone,
    UnlistedSlices,
    Unstage,
    Unstaged,
    WhyAnswer,
    WhyPage,
    check_manifest,
    check_run_id,
    rules_path,
    run_folder,
)
from lakebed.gc.rules import Holds
from lakebed.versions import RunRecord, Versions

from .defer.deferring import Deferring
from .defer.restoring import Refusal, Restoring, refuse_nothing
from .defer.undoing import Undoing
from .errors import (
    OtherRepository,
    PolicyNotFound,
    RulesChanged,
    RulesNotFound,
    RunMoved,
    RunNotFound,
    StalePlan,
    WrongKind,
)
from .explain.searches import Searches
from .explain.why import Why
from .installation.installation import Installation
from .installation.missing import Missing
from .installation.unlisted import Unlisted
from .options import ServiceOptions
from .publish.erasing import Erasing
from .publish.expiring import Expiring
from .publish.metadata import MetadataRuns
from .reading.commits import Snapshot, read_snapshot, read_snapshot_for_metadata, read_swept
from .reading.continuing import Continuations, Reader
from .reading.inputs import Inputs
from .reading.reading import Cursor, Reading
from .records.holds import HoldBook
from .records.planners import Planners
from .records.policies import PolicyBook
from .records.rules import RuleBook, RulesRecord
from .records.runs import RunBook, view
from .records.signing import Certifying


class CollectionService:
    """Any number of these, in any number of processes, may serve one repository."""

    def __init__(
        self,
        versions: Versions,
        options: ServiceOptions | None = None,
        *,
        default_branch: str = "main",
        user_id: str = "",
        is_job: bool = False,
        refusal: Refusal = refuse_nothing,
        continuation_key: bytes = b"",
        certificate_key: bytes = bytes(32),
        searches: Searches | None = None,
    ) -> None:
        """`user_id` asks, by a job of the server if `is_job`, and may restore what `refusal` does not refuse. Without a
        user there is only one person, who trusts each plan (planners.py).

        `continuation_key` seals the tokens of a restore, and of a search for staged entries. A server has one secret
        key for all its processes, and one `Searches` for each process. `certificate_key`, 32 secret bytes, signs
        certificates of erasures.
        """
        self._options = options = options or ServiceOptions()
        self._default_branch = default_branch
        self._user_id = user_id
        self._planners = Planners(versions, user_id=user_id, is_job=is_job)
        self._restoring = Restoring(versions, key=continuation_key, refusal=refusal)
        self._searches = searches or Searches(versions.ports)
        self._versions = versions
        self._runs = RunBook(versions, options)
        self._reading = Reading(versions, options)
        self.rules = RuleBook(versions)
        self.holds = HoldBook(versions)
        self._expiring = Expiring(versions, self._runs, self.rules, self._reading)
        self._deferring = Deferring(versions, self._runs, self._reading, self._expiring)
        self._undoing = Undoing(versions, self._runs, self.rules, self._expiring)
        self._erasing = Erasing(versions, options, key=continuation_key)
        self._certifying = Certifying(versions, self._runs, key=certificate_key, user_id=user_id)
        self._metadata = MetadataRuns(versions, self._runs, options)
        self._why = Why(versions, self.rules)
        self._installation = Installation(versions)
        self._missing = Missing(versions, self._runs)
        self._unlisted = Unlisted(versions, self._installation)

    # Beginning

    async def start(self, body: StartRun) -> StartedRun:
        """Return a run id, once it is known that no other installation goes with the namespace.

        For uncommitted data make the run's record too. Only then read the slices that have closed, and only then the
        addresses that were handed out: one of a closed slice was handed out before it closed, so none is missed.

        Raises:
            OtherInstallation: there is another one, or was one when this one last looked.
            NotRestored: the repository is bare still.
            WrongKind: the repository is not deleted.
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
            uploads = await self._reading.read_uploads(inputs)
            # Before staging is read, never after (commits.py).
            await inputs.write_swept((await read_swept(self._versions, for_good=True)).commits)
        return StartedRun(
            run_id=run_id,
            kind=body.kind,
            state=state,
            namespace=self._versions.objectstore.uri,
            folder=run_folder(body.kind, run_id),
            now_ms=now_ms,
            closed_slices=closed,
            open_slices=len(others),
            open_slice_names=others,
            uploads=uploads,
            uid=self._versions.uid,
        )

    def _check_uid(self, uid: str) -> None:
        """
        Raises:
            OtherRepository: the run is of another one. Its plan says nothing of what this one names.
        """
        if uid and uid != self._versions.uid:
            raise OtherRepository("the run is of a repository that had this name before: plan again", uid=uid)

    # Reading

    async def read_uncommitted(
        self, run_id: str, body: ReadUncommitted, *, reader: Reader = Reader.COLLECTOR
    ) -> UncommittedPage:
        """The next page of everything that is in no commit. A token is good for the reader that it was given to.

        Raises:
            RunNotFound, WrongKind, RunMoved: no run of uncommitted data that marks.
            OutOfOrder: the run has read the commits already.
            BadContinuation: not a token that this reader was given for this run.
        """
        id_ = check_run_id(run_id)
        record = await self._runs.read_marking(id_)
        continuations = Continuations(id_, record, reader)
        inputs = Inputs(self._versions.objectstore, record.kind, id_)
        name = UNCOMMITTED.name
        # Read again after the commits were, staging would lack what was committed in between, and so would they.
        await inputs.check_not_complete(COMMITS.name)
        token = body.continuation_token
        cursor = Cursor(name=name) if token is None else continuations.cursor(token)
        page = await self._reading.read_page(inputs, cursor)
        return UncommittedPage(
            run_id=id_,
            location=inputs.folder(name),
            parts=page.manifest.parts,
            continuation_token=None if page.cursor is None else continuations.token(page.cursor),
            manifest=page.whole,
        )

    async def prepare_commits(self, run_id: str, body: PrepareCommits | None = None) -> PreparedCommits:
        """Every commit record and ref, and the rules, written into the run's folder.

        Raises:
            RunMoved: the run does not mark any more.
            OutOfOrder: a run of uncommitted data has not read that to its end yet.
        """
        id_ = check_run_id(run_id)
        kind = await self._kind_of(id_, (body or PrepareCommits()).kind)
        if not kind.publishes:
            # Else an address that a commit takes out of its cell while we read would be in neither (document 001).
            await Inputs(self._versions.objectstore, kind, id_).check_complete(UNCOMMITTED.name)
        current = await self.rules.read()
        policy = await PolicyBook(self._versions).read() if kind.spec.basis is Basis.POLICY else None
        inputs = Inputs(self._versions.objectstore, kind, id_)
        snapshot = await self._snapshot(kind, inputs)
        refs = await inputs.write_table(REFS, REFS.name, snapshot.refs_table())
        commits = await inputs.write_tables(
            COMMITS, COMMITS.name, snapshot.commits_tables(), self._versions.ports.tasks
        )
        await self._versions.objectstore.put(rules_path(kind, id_), msgspec.json.encode(current))
        prepared = PreparedCommits(
            run_id=id_,
            commits=commits,
            refs=refs,
            rules=current.rules,
            rules_version=current.version,
            holds=await self.holds.in_force(),
            has_lost_trees=snapshot.has_lost_trees,
        )
        if policy is None:
            return prepared
        return msgspec.structs.replace(
            prepared, rules=None, rules_version=policy.version, policy=(policy.policy or b"").decode()
        )

    async def _snapshot(self, kind: RunKind, inputs: Inputs) -> Snapshot:
        if not kind.takes_objects:
            return await read_snapshot_for_metadata(self._versions, grace_ms=self._options.readers_grace_ms)
        if not kind.publishes:
            return await read_snapshot(self._versions, known=await inputs.read_swept(), for_good=True)
        return await read_snapshot(self._versions)

    async def _kind_of(self, run_id: RunId, planned: RunKind) -> RunKind:
        """Only a run of uncommitted data has a record while it plans, and must still be marking."""
        try:
            return (await self._runs.read_marking(run_id)).kind
        except RunNotFound:
            # A run without a record is of a kind that publishes.
            return planned if planned.publishes else PrepareCommits().kind

    # Moving

    async def mark(self, run_id: str, body: Mark) -> RunView:
        """marking → marked, after the last read. From now on the plan may be carried out, as late as one likes.

        Raises:
            RunMoved: the run was abandoned, or is marked with another plan: throw the work away.
            BadInput: the plan's manifest is none.
        """
        check_manifest(body.plan, name="plan")
        if body.plan.table != GARBAGE.name:
            raise BadInput(f"the plan is a {body.plan.table} table", input=body.plan.table)
        id_ = check_run_id(run_id)
        await self._installation.check()
        return view(id_, await self._runs.move(id_, RunState.MARKED, plan=body.plan.digest()))

    async def note_planned(self, run_id: str, body: NotePlanned) -> PlannedBy:
        """Write down who made the plan of a run. See `Planners.note`."""
        return await self._planners.note(check_run_id(run_id), body)

    async def apply(self, run_id: str, body: Apply) -> RunView:
        """Succeed if an apply of this plan may begin; the collector asks before it stops another or writes anything.
        Grants nothing by itself: what an apply needs besides, it asks for when it comes to it. Of one that `begins`,
        that is noted. The answer says whether the apply must look again, for another user made the plan.

        Raises:
            OtherRepository: the run is of one that had the name before.
            NotRestored: the repository is bare still.
            RunNotFound, WrongKind, RunMoved: the run is not where this plan may be carried out.
            StalePlan: the run was marked with another plan.
            RulesNotFound, RulesChanged: the plan's rules are not in force. A run that expires by them is abandoned.
        """
        id_ = check_run_id(run_id)
        self._check_uid(body.uid)
        installation = await self._installation.check()
        if not body.kind.spec.of_deleted:
            await self._installation.check_restored(installation)
        record = await self._runs.read_to_apply(id_, body)
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
        return msgspec.structs.replace(await self._view(id_, record), planned_by=by, looks_again=looks_again)

    async def expire(self, run_id: str, body: Expire) -> RecheckInputs:
        """See `Expiring.expire`.

        Raises:
            RulesNotFound: no rules are set: then nothing may be expiring, and a run that expires is abandoned.
        """
        id_ = check_run_id(run_id)
        self._check_uid(body.uid)
        await self._installation.check_restored(await self._installation.check())
        if not body.kind.spec.by_order:
            await self._require_rules(id_, body.kind)
        return await self._expiring.expire(id_, body)

    async def _require_rules(self, run_id: RunId, kind: RunKind) -> int:
        """The version of the rules in force, or of the lifecycle policy."""
        if kind.spec.basis is Basis.POLICY:
            policy = await PolicyBook(self._versions).read()
            if policy.policy is None:
                await self._abandon_unswept(run_id, kind)
                raise PolicyNotFound("no lifecycle policy is set for this repository")
            return policy.version
        current = await self.rules.read()
        if current.rules is None:
            await self._abandon_unswept(run_id, kind)
            raise RulesNotFound("no retention rules are set for this repository")
        return current.version

    async def _abandon_unswept(self, run_id: RunId, kind: RunKind) -> None:
        with suppress(RunNotFound, WrongKind, RunMoved):
            await self._runs.read_as(run_id, kind, RunState.PLANNING, RunState.EXPIRING)
            await self._finish(run_id, RunState.ABANDONED)

    async def find_staged(self, run_id: str, body: FindStaged) -> StagedPage:
        """See `Erasing.find`."""
        return await self._erasing.find(check_run_id(run_id), body)

    async def unstage(self, run_id: str, body: Unstage) -> Unstaged:
        """See `Erasing.unstage`.

        Raises:
            RunMoved: the run is over, or a collection of metadata took its plan.
        """
        self._check_uid(body.uid)
        await self._installation.check()
        # Without its plan the run cannot end, and no later one finds an object whose entry is deleted here.
        await self._runs.read_published(check_run_id(run_id), RunKind.ERASURE)
        return await self._erasing.unstage(body)

    async def sign_certificate(self, run_id: str, body: CertificateHead) -> CertificateHead:
        """See `Certifying.sign`."""
        await self._installation.check()
        return await self._certifying.sign(check_run_id(run_id), body)

    async def check_certificate(self, run_id: str, body: CertificateHead) -> CertificateHead:
        """See `Certifying.check`."""
        return await self._certifying.check(check_run_id(run_id), body)

    async def certificate_key(self) -> CertificateKey:
        """Return the public key that checks the server's certificates."""
        return self._certifying.key()

    async def retire(self, run_id: str, body: RetireLeftovers) -> LeftoversRetired:
        """See `MetadataRuns.retire`."""
        self._check_uid(body.uid)
        await self._installation.check()
        return await self._metadata.retire(check_run_id(run_id), body)

    async def sweep(self, run_id: str, body: Sweep) -> RunView:
        """See `Expiring.sweep`."""
        id_ = check_run_id(run_id)
        self._check_uid(body.uid)
        await self._installation.check()
        return await self._view(id_, await self._expiring.sweep(id_, body))

    async def defer(self, run_id: str, body: Defer) -> RunView:
        """See `Deferring.defer`."""
        id_ = check_run_id(run_id)
        return await self._view(id_, await self._deferring.defer(id_, body))

    async def purge(self, run_id: str, body: Purge) -> RecheckInputs:
        """See `Deferring.purge`."""
        id_ = check_run_id(run_id)
        await self._installation.check()
        return await self._deferring.purge(id_, body)

    async def undo(self, run_id: str, body: Undo) -> Undone:
        """See `Undoing.undo`."""
        id_ = check_run_id(run_id)
        await self._installation.check()
        return await self._undoing.undo(id_, body)

    async def end(self, run_id: str, body: End) -> RunView:
        """
        Raises:
            RunMoved: it still marks, has not written down yet what it takes, or waits for the end of its window.
            StalePlan: it is not by this plan that it sweeps.
        """
        id_ = check_run_id(run_id)
        record, _ = await self._runs.read(id_)
        if record.plan != body.plan:
            raise StalePlan(f"run {run_id} sweeps by another plan", run_id=run_id)
        ended = await self._finish(id_, RunState.ENDED, saved=body.saved)
        if not ended.kind.takes_objects:
            await self._metadata.forget_runs()
            await self._planners.forget_retired()
        return ended

    async def abandon(self, run_id: str) -> RunView:
        """
        Raises:
            RunMoved: its deletes may have begun, so it can only be resumed and ended.
        """
        return await self._finish(check_run_id(run_id), RunState.ABANDONED)

    async def _finish(self, run_id: RunId, state: RunState, *, saved: str = "") -> RunView:
        record = await self._runs.move(run_id, state, saved=saved)
        await self._expiring.drop_expiring(run_id)
        return view(run_id, record)

    # Being the only one

    async def purging(self) -> Purging:
        """Say where the caller may delete, with a fresh mark by which it knows the store. Each run asks the rest.

        Raises:
            OtherInstallation: see `start`.
        """
        # A copy of the store that was made before this answer lacks the mark.
        return Purging(namespace=self._versions.objectstore.uri, mark=await self._installation.mark())

    async def say_alive(self, *, at_start: bool = False) -> None:
        """Now and then, for each repository, so that a copy of the key-value store notices: `Installation.step_if_due`.

        A server that starts says so at once: it may be a copy, or may be ahead of one that was made while it was down.

        Raises:
            OtherInstallation: it is seen now.
        """
        await (self._installation.step() if at_start else self._installation.step_if_due())

    async def distrust(self) -> None:
        """Let nothing be collected before a person has chosen an installation, nor without the default branch:
        `Installation.distrust`.
        """
        await self._installation.distrust(default_branch=self._default_branch)

    async def adopting(self) -> Adopting:
        """Choose this installation, of several in the namespace. See `Installation.adopt` and `HoldBook.adopt`."""
        # First: once it is adopted, its collections go on.
        await self.holds.adopt(by=self._user_id)
        adopted = await self._installation.adopt(by=self._user_id)
        return Adopting(adopted_by=adopted.adopted_by, adopted_ms=adopted.adopted_ms)

    async def find_slices(self) -> UnlistedSlices:
        """List what `adopt_slices` would put on record, or refuse as it would. Changes nothing."""
        return UnlistedSlices(slices=tuple(await self._unlisted.find()))

    async def adopt_slices(self) -> AdoptedSlices:
        """Put slices on record that have no record. See `Unlisted`."""
        return await self._unlisted.adopt()

    async def find_missing(self, token: str | None = None) -> MissingCommits:
        """Look for a second or so, then answer a page or say how to go on. See `Searches.missing`."""
        return await self._searches.missing(self._versions, self._missing, token)

    async def mark_missing(self, token: str | None = None) -> MissingCommits:
        """The same, and mark what no ref names once all is looked at.

        Raises:
            OtherInstallation: adopt first; the other one may know what became of these commits.
        """
        await self._installation.check()
        return await self._searches.missing(self._versions, self._missing, token, marks=True)

    # Looking

    async def namespace(self) -> str:
        """Return the URI of the storage namespace."""
        return self._versions.objectstore.uri

    async def planning(self) -> Planning:
        """Begin nothing: a caller who may not plan, or cannot, learns it before any slow step."""
        return Planning(has_rules=(await self.rules.read()).rules is not None, namespace=self._versions.objectstore.uri)

    async def rules_in_force(self) -> RulesVersion:
        """Return the rules in force, with their version."""
        return rules_version(await self.rules.read())

    async def holds_in_force(self) -> Holds:
        """Return the legal holds: what no run may delete."""
        return await self.holds.in_force()

    async def run(self, run_id: str) -> RunView:
        """
        Raises:
            RunNotFound: there is none.
        """
        id_ = check_run_id(run_id)
        record, _ = await self._runs.read(id_)
        return msgspec.structs.replace(await self._view(id_, record), planned_by=await self._planners.of(id_))

    async def _view(self, run_id: RunId, record: RunRecord) -> RunView:
        return view(run_id, record, expiring=len(await self._versions.retired.expiring(run_id)))

    async def why(self, *, address: str = "", ref: str = "", path: str = "") -> WhyAnswer:
        """Find what keeps an object, and until when, or which run took it. See `Why.ask`."""
        return await self._why.ask(address=address, ref=ref, path=path)

    async def why_page(self, question: Question, token: str | None = None) -> WhyPage:
        """Search for a second or so, then answer or say how to go on. See `Searches.page`."""
        return await self._searches.page(self._versions, question, token)

    async def restore(self, body: Restore) -> RestorePage:
        """Restore one page. See `Restoring.restore`."""
        return await self._restoring.restore(body, branch=body.branch or self._default_branch)

    async def runs(self) -> RunList:
        planned = await self._planners.every()
        views = await self._runs.views({RunId(one.run_id): one.by for one in planned})
        return RunList(runs=tuple(views), planned=tuple(planned))

    async def close_slices_for_runs(self) -> None:
        """End this server's slice if a run has begun since it was opened, so that the next run may judge what is in it.

        A run's record asks every server for this: the one that answers the run ends its own slice at once.
        """
        now_ms = self._versions.ports.clock.now_ms()
        began = [record.started_ms for _, record in await self._versions.retired.runs()]
        # One that is dated ahead of this clock would end each slice as soon as it is opened.
        began_ms = max((started_ms for started_ms in began if started_ms <= now_ms), default=None)
        if began_ms is not None:
            await self._versions.slices.end(opened_until_ms=began_ms)

    async def abandon_dead_runs(self) -> list[RunId]:
        """Runs that were left marking long ago keep finished records from being cleaned away. Safe at any time.

        And what runs that ended or were abandoned left of the list of what they expired.
        """
        abandoned = await self._runs.abandon_dead()
        await self._expiring.drop_lists(old_age_ms=2 * self._options.dead_run_age_ms)
        return abandoned


def rules_version(record: RulesRecord) -> RulesVersion:
    return RulesVersion(
        version=record.version, rules=record.rules, changed_ms=record.changed_ms, changed_by=record.changed_by
    )
