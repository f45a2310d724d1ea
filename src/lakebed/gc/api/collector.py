"""Plan, show, apply and run collections of one repository from Python.

    with local_session(SessionOptions(), os.environ) as session, Client(…) as client:
        store = ObjectStoreOptions(…)
        lake = Collector(client=client, repository="lake", objectstore=store, session=lambda: session.spark)
        for plan in lake.plan(PlanRequest()):
            print(plan.totals.all)
            report = lake.apply(ApplyRequest(run_id=plan.run_id))

Requests are in `lakebed.gc.messages` (requests.py).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import pyarrow as pa

from lakebed.base import Conflict, Denied, LakebedError, NotFound, count_of, grace_s_of, grace_seconds
from lakebed.gc import messages
from lakebed.gc.engines.engine import GARBAGE, LEDGER, rows_of_parts
from lakebed.gc.engines.files import Files
from lakebed.gc.engines.spark import active_session, frame
from lakebed.gc.kinds import kind_to_plan
from lakebed.gc.kinds.erasure.certificate.certifying import certify, verify
from lakebed.gc.kinds.erasure.plan import Erasure
from lakebed.gc.machine import flow
from lakebed.gc.machine.preflight import RunNotReady, check_apply, check_planning, check_same_store
from lakebed.gc.mark.holding import HeldBack, check_uncommitted
from lakebed.gc.mark.mark import read_rows
from lakebed.gc.rules import MetadataRule, NoRules, check_selection
from lakebed.gc.runs.context import Progress, RunContext, find, list_plans, read_input, read_plan
from lakebed.gc.runs.resume import UnfinishedRun, unfinished_runs
from lakebed.gc.runs.status import (
    ListedRun,
    RunStatus,
    ended_without_deleting,
    go_on_command,
    list_runs,
    reporting_where,
    run_status_of,
)
from lakebed.objectstore import ObjectStoreOptions
from lakebed.runtime import LiveTasks

from .branches import plan_branches
from .http_requests import Caller, RetryingCaller, finish, message_of
from .reach import Reach
from .running import Steps, collect_each, kinds_of
from .showing import expiring_of, ledger_parts, ledger_rows_of, marked_by_side, objects_of, reading_ledger
from .simulate import check_days, simulate, simulate_branches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
ROWS_SHOWN: Final = 1000


def silent(_: str) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Collect the garbage of one repository. `engine` and `tasks` are defaults for requests. With `tasks` None,
    use enough tasks to keep the session's cores busy.
    """

    client: Caller
    repository: str
    # Options to reach the storage namespace from the tasks. `session` is called only when Spark is needed. It may
    # return any session, also of a cluster or of Spark Connect.
    objectstore: ObjectStoreOptions = field(default_factory=ObjectStoreOptions)
    session: Callable[[], SparkSession] = active_session
    engine: messages.EngineName = messages.EngineName.SPARK
    tasks: int | None = None
    progress: Progress = silent
    metadata: MetadataRule = field(default_factory=MetadataRule)
    # Uid of a deleted repository. ONLY selects it by name when the name is unique.
    deleted: str = ""
    # Options that the commands in its messages must repeat, such as `--data DIR`.
    command_options: tuple[str, ...] = ()

    def command(self, run_id: str, kind: messages.RunKind, *, everywhere: bool = False) -> str:
        """Return the command that applies the run. `everywhere` adds that option of an erasure."""
        command = self.command_of_all([run_id], kind)
        return f"{command} --everywhere" if everywhere else command

    def command_of_all(self, run_ids: Sequence[str], kind: messages.RunKind) -> str:
        """Return the command that applies the runs. All have one kind, or kinds with the same command."""
        return go_on_command(self.repository, run_ids, kind, self.command_options)

    def engine_of(self, request: messages.Request) -> messages.EngineName:
        return request.engine or self.engine

    def check_namespace(self) -> None:
        """Check that the namespace is reachable, with one request and one small read.

        Raises:
            NotFound: no such repository.
            NamespaceMissing: `objectstore` does not lead to its storage namespace.
        """
        self._reach.check_namespace()

    def check(self, request: messages.Request) -> None:
        """Run every check that can refuse the request before any slow, writing or deleting step. Starts no session.

        Raises:
            InvalidRequest, InvalidDuration, BadWindow, InvalidRules: see `check` of the request.
            Denied: the caller may not plan, or not delete.
            NoRules: the request names committed data, and no rules are set.
            PlanMissing, RunNotReady, NotTheRules: the run cannot be applied.
        """
        request.check()
        service = self._reach.service()
        match request:
            case messages.PlanRequest():
                finish(check_planning(service, request.kinds, request.rules))
            case messages.ApplyRequest(run_id=run_id):
                grace_s_of(self._reach.lake().uri, _grace_s(request))
                self._reach.read(lambda store: check_apply(service, store, run_id))
            case messages.RunRequest():
                grace_s_of(self._reach.lake().uri, _grace_s(request))
                finish(check_planning(service, request.kinds, None))
                self._reach.read(lambda store: check_same_store(service, store))
            case messages.PlanErasureRequest() | messages.SimulateRequest():
                finish(check_planning(service, (), None))
            case messages.EraseRequest() | messages.PurgeRequest():
                self._reach.read(lambda store: check_same_store(service, store))

    def check_held(self, kind: messages.RunKind) -> None:
        """Check that the present legal holds allow a run of this kind to delete objects.

        Raises:
            HeldBack: the holds keep every object that the run would delete.
            Denied: the caller may not read the holds.
        """
        # Of the other kinds, holds keep some objects at most, and the sweep applies them.
        if not kind.publishes:
            check_uncommitted(finish(self._reach.service().holds()), kind)

    def plan(self, request: messages.PlanRequest) -> Iterator[messages.Plan]:
        """Decide which objects to delete and why. Make one plan for each kind, in turn. Deletes nothing.

        Without kinds, plan every default kind. Committed data without rules is then skipped with a line of progress.
        With `rules`, metadata is left out, and plans are for inspection (preflight.py). A plan of committed data may be
        applied once these rules are set, a plan of uncommitted data never.

        Raises:
            Denied, InvalidRequest, NoRules: see `check`. Nothing was planned.
            Conflict: an optimised run was requested, and no saved state exists to continue from.
            BadInput, BrokenHistory, EmptyLiveSet, TaskCorrupt: an input cannot be trusted, and the message names it.
            RunAbandoned: another user ended the run during the plan.
        """
        self.check(request)
        for kind in kinds_of(request):
            plan = self._planned(request, kind)
            if plan is None:
                continue
            # The plan is stored. A failure of this check is only a line of progress, and its apply checks again.
            try:
                self.check_held(kind)
            except HeldBack as error:
                self.progress(f"{error}: run {plan.run_id} cannot be applied before the hold is released")
            except LakebedError as error:
                self.progress(f"whether legal holds keep what run {plan.run_id} would take is unknown: {error}")
            yield plan

    def apply(self, request: messages.ApplyRequest) -> messages.RunReport:
        """Carry out one plan. Call it again after a crash or failed deletes.

        Raises:
            InvalidRequest, InvalidDuration, BadWindow: see `check`.
            PlanMissing, BadInput, TaskCorrupt: no plan exists, or a file of the run is missing or changed.
            RunNotReady, RunAbandoned: the run may not delete.
            Overtaken, TaskStopped: another apply began in this repository.
            OtherUnfinished: another run may have the same objects, and one of the two has a window.
        """
        request.check()
        run_id = request.run_id
        with reporting_where(
            lambda kind: self.command(run_id, kind), run_id, lambda: self.run_status(run_id), self.progress
        ):
            window, grace_s = request.window, _grace_s(request)
            return self._act(request, lambda context: flow.apply(context, run_id, window=window, grace_s=grace_s))

    def run(
        self, request: messages.RunRequest
    ) -> Iterator[messages.RunReport | messages.BranchesSwept | messages.PurgeReport]:
        """Finish unfinished runs, then plan and apply one kind after the other, as `plan` does, and purge at the end.

        An unfinished run continues as it began. The request's window applies to it only if it had none and can still be
        deferred. With `branches`, the branches due by the lifecycle policy are deleted before the first plan.

        Raises:
            Denied: the caller may not plan, or not apply. Nothing was planned.
            NotFinished: a run could not be finished, the branches not be swept, or a kind not be planned because of an
                unfinished run. All other steps were done.
        """
        self.check(request)

        def apply(run_id: str, window: str | None) -> messages.RunReport:
            grace = request.readers_grace
            how = messages.ApplyRequest(
                run_id=run_id, window=window, readers_grace=grace, engine=request.engine, tasks=request.tasks
            )
            return self.apply(how)

        steps = Steps(
            unfinished=self.unfinished,
            check_held=self.check_held,
            plan=lambda kind: self._planned(request, kind),
            apply=apply,
            purge=lambda: self.purge(messages.PurgeRequest(engine=request.engine, tasks=request.tasks)),
            client=RetryingCaller(self.client, self.progress),
            repository=self.repository,
            progress=self.progress,
        )
        yield from collect_each(request, steps)

    def purge(self, request: messages.PurgeRequest = messages.PurgeRequest()) -> messages.PurgeReport:
        """Delete the objects of deferred runs whose window has ended. Call it again after a crash or failed deletes.

        Raises:
            Conflict, Corrupt, NotFound: a run could not be purged, and none of its objects was deleted. All other runs
                were purged.
        """
        return self._act(request, flow.purge)

    def simulate(
        self, *, days: int, policy: str = "", engine: messages.EngineName | None = None, tasks: int | None = None
    ) -> messages.Simulation:
        """Return the objects and branches that the lifecycle policy would delete on each of the coming days.

        Deletes nothing. See `simulate`.

        Raises:
            Denied: the caller may not plan.
            BadDays, NoPolicy, InvalidPolicy: the simulation is impossible. Nothing was read.
            Conflict: the policy changed during the simulation.
            BadInput, BrokenHistory, EmptyLiveSet, TaskCorrupt: an input cannot be trusted, and the message names it.
        """
        check_days(days)
        finish(check_planning(self._reach.service(), (), None))
        request = messages.PlanRequest(engine=engine, tasks=tasks)
        simulation = self._act(request, lambda context: simulate(context, days=days, policy=policy))
        if policy:
            # The plan of branches is for the policy in force only.
            return simulation
        planned = plan_branches(self.client, self.repository)
        if planned.policy_version != simulation.policy_version:
            raise Conflict("the policy changed while it was simulated; simulate again")
        return msgspec.structs.replace(simulation, branches=simulate_branches(planned, days=days))

    def plan_erasure(
        self, order: messages.ErasureOrder, *, engine: messages.EngineName | None = None, tasks: int | None = None
    ) -> messages.Plan:
        """Plan to erase the objects that the order selects, in every commit and on every branch. Deletes nothing.

        Raises:
            InvalidSelection: the selection is empty or malformed.
            Denied: the caller may not plan, or not erase.
            BadInput, EmptyLiveSet, TaskCorrupt: an input cannot be trusted, and the message names it.
        """
        order = msgspec.structs.replace(order, selection=check_selection(order.selection))
        finish(check_planning(self._reach.service(), (), None))
        request = messages.PlanRequest(engine=engine, tasks=tasks)
        return self._act(request, lambda context: flow.plan(context, Erasure(order)))

    def certify(
        self, run_id: str, *, by: str = "", engine: messages.EngineName | None = None, tasks: int | None = None
    ) -> messages.Certificate:
        """Certify an applied erasure: absent objects, and remaining ones with the reason. Writes the certificate.

        Raises:
            PlanMissing, BadInput: no plan of an erasure exists, or a file of it is missing.
        """
        request = messages.PlanRequest(engine=engine, tasks=tasks)
        return self._act(request, lambda context: certify(context, messages.check_run_id(run_id), by=by))

    def verify(
        self,
        certificate: messages.Certificate,
        *,
        by: str = "",
        engine: messages.EngineName | None = None,
        tasks: int | None = None,
    ) -> messages.Certificate:
        """Check the statements of a certificate again, now.

        Raises:
            BadInput: the certificate is of another namespace.
        """
        request = messages.PlanRequest(engine=engine, tasks=tasks)
        return self._act(request, lambda context: verify(context, certificate, by=by))

    def certificate(self, run_id: str) -> messages.Certificate | None:
        """Return the certificate of a run, or None."""
        data = self._reach.read(lambda store: find(store, messages.certificate_path(messages.check_run_id(run_id))))
        return None if data is None else messages.decode_certificate(data)

    def _planned(
        self, request: messages.PlanRequest | messages.RunRequest, kind: messages.RunKind
    ) -> messages.Plan | None:
        rules = request.rules if isinstance(request, messages.PlanRequest) else None
        of_kind = kind_to_plan(kind, request.uncommitted(), self.metadata)
        try:
            return self._act(request, lambda context: flow.plan(context, of_kind, rules=rules))
        except NoRules as error:
            if request.kinds:
                raise
            self.progress(str(error))
            return None

    def restore(self, request: messages.Restore) -> messages.RestoreReport:
        """Stage objects of deferred runs again, under fresh addresses. Each object is read back before it is staged.
        Select a whole run, a path, all paths below a path that ends with a slash, or an address. See `Restore`.

        Of several versions of a path, restore the one seen last, unless the request has `all_versions`. A repeated call
        skips restored objects. Needs no session.

        Raises:
            NotFound: no deferred run has the object, or no such branch. The message explains its state.
        """
        return finish(self._restored(request))

    def undo(self, run_id: str, *, dry_run: bool = False) -> messages.Undone:
        """Undo a deferred run before its purge: its commits and objects can be read again.

        With `dry_run`, only list the commits and objects, and the rules that would delete them again. Needs no session.

        Raises:
            Conflict: the run is not deferred, its purge began, or other runs rely on it. Nothing changed.
            NotFound: no such run.
        """
        return finish(self._reach.service().undone(messages.check_run_id(run_id), dry_run=dry_run))

    async def _restored(self, request: messages.Restore) -> messages.RestoreReport:
        report = messages.RestoreReport(run_id=request.run_id)
        async for page in self._reach.service().restore(request):
            report = report.plus(page)
            if page.continuation_token is not None:
                self.progress(f"restored {count_of(report.restored, 'object')} so far")
        return report

    def ledger(self, query: messages.LedgerQuery = messages.LedgerQuery()) -> DataFrame:
        """Return LEDGER: one row for each object and its outcome in a run."""
        lake = self._reach.lake()
        with Files(lake) as files:
            parts = files.act(lambda store: ledger_parts(store, query))
        return frame(self.session(), lake, reading_ledger(query), parts, LEDGER, tasks=self.tasks)

    def ledger_rows(
        self, query: messages.LedgerQuery = messages.LedgerQuery(), *, newest_first: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield the ledger's rows without Spark, the oldest or the newest runs first.

        Raises:
            BadInput: a file of the ledger is unreadable.
        """
        with Files(self._reach.lake()) as files:
            yield from files.each(lambda store: ledger_rows_of(store, LiveTasks(), query, newest_first=newest_first))

    def verify_ledger(self, *, run_id: str = "") -> Iterator[messages.Disagreement]:
        """Compare the ledger with plans and the store, for one run or all. Yield each disagreement once.

        Raises:
            BadInput: a file of the ledger or of a plan is damaged.
        """
        pages = self._reach.service().compared(messages.check_run_id(run_id) if run_id else "")
        seen: set[messages.Disagreement] = set()
        while (page := finish(anext(pages, None))) is not None:
            for disagreement in page.disagreements:
                if disagreement not in seen:
                    seen.add(disagreement)
                    yield disagreement

    def show(self, run_id: str) -> messages.Plan:
        """Return a plan.

        Raises:
            PlanMissing: no such plan.
        """
        messages.check_run_id(run_id)
        return self._reach.read(lambda store: read_plan(store, run_id))

    def objects(self, run_id: str, *, prefix: str = "") -> Iterator[messages.GarbageObject]:
        """Yield the objects of a plan whose path or address begins with `prefix`, as they are read. Needs no Spark.

        Raises:
            PlanMissing, BadInput: no such plan, or a file of it is missing or changed.
        """
        plan = self.show(run_id)
        with Files(self._reach.lake()) as files:
            yield from files.each(lambda store: objects_of(store, plan, prefix=prefix))

    def expiring(self, run_id: str, *, limit: int = ROWS_SHOWN) -> list[messages.ExpiringCommit]:
        """Return the commits that a plan expires, the newest first; none for uncommitted data. Needs no Spark. Reads
        the plan's commit records, and gets the message and author of each commit from the server.

        Raises:
            PlanMissing, BadInput: no such plan, or an input of it is missing or changed.
        """
        plan = self.show(run_id)
        commits = self._reach.read(lambda store: expiring_of(store, LiveTasks(), plan, limit=limit))
        return [self._with_message(commit) for commit in commits]

    def garbage(self, run_id: str) -> DataFrame:
        """Return GARBAGE: the objects of a plan, one row each."""
        garbage = self.show(run_id).garbage
        rows = rows_of_parts(garbage.parts)
        return frame(self.session(), self._reach.lake(), read_rows(garbage), rows, GARBAGE, tasks=self.tasks)

    def report(self, run_id: str) -> messages.RunReport | None:
        """Return the outcome of a plan, with the state of its run, or None if it was not applied.

        Raises:
            BadInput: the report is unreadable.
        """
        name = messages.report_path(self.show(run_id).kind, messages.check_run_id(run_id))
        data = self._reach.read(lambda store: find(store, name))
        view = None if data is None else self.status(run_id)
        if data is None or view is None:
            return None
        return msgspec.structs.replace(messages.decode_report(data, name=name), state=view.state)

    def finished(self, run_id: str) -> messages.RunReport | None:
        """Return the report of an ended run, or None if the run still needs an apply. Needs no Spark.

        Raises:
            PlanMissing: no such plan.
            RunNotReady: the run ended without deleting an object: its plan can never be applied.
        """
        view = self.status(run_id)
        if view is not None and (view.state is messages.RunState.ABANDONED or ended_without_deleting(view)):
            how = "was abandoned" if view.state is messages.RunState.ABANDONED else "ended without deleting anything"
            raise RunNotReady(f"run {run_id} {how}: plan again", run_id=run_id)
        report = self.report(run_id)
        return report if report is not None and report.state is messages.RunState.ENDED else None

    def expired(self, run_id: str) -> DataFrame:
        """Return EXPIRED: the commits that a plan would expire; none for uncommitted data."""
        return self.session().createDataFrame(self._commits_of(self.show(run_id)), "id string")

    def diff(self, a: str, b: str, *, limit: int = ROWS_SHOWN) -> messages.PlanDiff:
        """Compare the objects of two plans. Reads both tables without Spark, 40 bytes an object.

        Raises:
            PlanMissing, BadInput: no such plan, or a file of it is missing or changed.
            Invalid: the plans are of different kinds.
        """
        plans = self.show(a), self.show(b)
        objects = self._objects_of(plans[0]), self._objects_of(plans[1])
        commits = self._commits_of(plans[0]), self._commits_of(plans[1])
        return messages.diff_plans(*plans, objects, commits, limit=limit)

    def differing(self, a: str, b: str) -> DataFrame:
        """Return the objects of either plan as GARBAGE, each once. `side` is a, b or both."""
        return marked_by_side(self.garbage(a), self.garbage(b))

    def why(
        self,
        *,
        address: str = "",
        ref: str = "",
        path: str = "",
        progress: Callable[[messages.WhyProgress], None] = lambda _: None,
    ) -> messages.WhyAnswer:
        """Explain why an object exists and until when, or which run deleted it.

        Name it by an address in either spelling, or by a path at a ref.
        """
        # The server searches, so the caller needs neither Spark nor the object store.
        return finish(self._reach.service().why(messages.Question(address=address, ref=ref, path=path), progress))

    def listed(self, *, limit: int = 100) -> list[ListedRun]:
        """Return runs and plans with their totals, the newest first."""
        answer = self.run_list()
        listed = self._reach.read(lambda store: list_runs(store, LiveTasks(), answer.runs, limit=limit))
        known = {planned.run_id: planned for planned in answer.planned}
        return [
            msgspec.structs.replace(run, planned_by=known[run.run_id].by, is_own=known[run.run_id].is_own)
            if run.run_id in known
            else run
            for run in listed
        ]

    def _with_message(self, commit: messages.ExpiringCommit) -> messages.ExpiringCommit:
        try:
            message, author = message_of(self.client, self.repository, commit.id)
        except (Denied, NotFound):
            # The reader may plan without the right to read commits. Show the commit without its message.
            return commit
        return msgspec.structs.replace(commit, message=message, author=author)

    def _objects_of(self, plan: messages.Plan) -> pa.Table:
        return self._reach.read(lambda store: read_input(store, LiveTasks(), plan.garbage, messages.GARBAGE))

    def _commits_of(self, plan: messages.Plan) -> pa.Table:
        expiring = plan.expired
        if expiring is None:
            return messages.arrow_schema(messages.EXPIRED).empty_table()
        return self._reach.read(lambda store: read_input(store, LiveTasks(), expiring, messages.EXPIRED))

    def planned_by(self, run_id: str) -> messages.PlannedBy | None:
        """Return who made the plan of a run, by the server's record, or None without a record."""
        planned = self.run_list().planned
        return next((maker for maker in planned if maker.run_id == run_id), None)

    def plans(self) -> list[str]:
        """Return the ids of runs with a complete plan, oldest first."""
        return self._reach.read(list_plans)

    def run_list(self) -> messages.RunList:
        """Return the server's runs, newest first, and the author of each plan."""
        return finish(self._reach.service().run_list())

    def runs(self) -> tuple[messages.RunView, ...]:
        """Return the server's runs, newest first. A committed run has no record there before its apply."""
        return finish(self._reach.service().runs())

    def status(self, run_id: str) -> messages.RunView | None:
        """Return the server's record of a run. None: the run is not applied yet, or does not exist."""
        return finish(self._reach.service().run(messages.check_run_id(run_id)))

    def unfinished(self) -> list[UnfinishedRun]:
        """Return runs that may have begun their deletes and have not ended. Another process may be applying one now."""
        views = self.runs()
        return self._reach.read(lambda store: unfinished_runs(store, LiveTasks(), views))

    def run_status(self, run_id: str) -> RunStatus:
        """Return the progress of a run.

        Raises:
            PlanMissing: no such run.
            BadInput: a file of the run is unreadable.
        """
        view = self.status(run_id)
        return self._reach.read(lambda store: run_status_of(store, LiveTasks(), run_id, view))

    def abandon(self, run_id: str) -> messages.RunView:
        """End a run that stopped before its deletes began. It can never be applied.

        Raises:
            Conflict: its deletes may have begun. Resume it with `apply`: it cannot be abandoned.
            NotFound: no such run.
        """
        return finish(self._reach.service().abandoned(messages.check_run_id(run_id)))

    def adopt(self) -> messages.Adopting:
        """Let this installation collect again after another one was seen in the namespace. The other one then stops."""
        return finish(self._reach.service().adopting())

    def adopt_slices(self) -> messages.AdoptedSlices:
        """Record slices that have no record, a day after `adopt`. Runs read them from a day later on.

        Raises:
            Conflict: this installation was not adopted a day ago, or another one writes to the namespace.
        """
        return finish(self._reach.service().adopt_slices())

    def missing(self, *, marks: bool = False) -> messages.MissingCommits:
        """Find commits whose trees lack files, as after a restore of an older backup.

        With `marks`, mark commits that no ref names as gone, so that plans continue without them.

        Raises:
            Conflict: another installation uses the namespace. Adopt first.
        """
        return finish(self._reach.service().missing(marks=marks))

    @property
    def _reach(self) -> Reach:
        return Reach(
            client=self.client,
            repository=self.repository,
            objectstore=self.objectstore,
            session=self.session,
            progress=self.progress,
            deleted=self.deleted,
        )

    def _act(self, request: messages.Request, work: Callable[[RunContext], Coroutine[Any, Any, T]]) -> T:
        """Run a flow to its end, in this thread."""
        return self._reach.act(work, engine=self.engine_of(request), tasks=request.tasks or self.tasks)


def _grace_s(request: messages.ApplyRequest | messages.RunRequest) -> int | None:
    return None if request.readers_grace is None else grace_seconds(request.readers_grace)
