"""The Python API: plan, show, apply and run a collection of one repository.

    with local_session(SessionOptions(), os.environ) as session, Client(…) as client:
        lake = Collector(client=client, repository="lake", objectstore=ObjectStoreOptions(…))
        plan = lake.plan(session.spark, RunKind.COMMITTED)
        print(plan.totals.all)
        report = lake.apply(session.spark, plan.run_id)

`spark` may be any session, also one of a cluster or of Spark Connect; only DataFrames are used. `objectstore` says how
the storage namespace is reached from where the tasks run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all Spark code uses

from lakebed.base import Corrupt, Denied, NotFound
from lakebed.gc import protocol
from lakebed.gc.protocol import (
    Adopting,
    DoomedObject,
    ExpiringCommit,
    LedgerQuery,
    PlanDiff,
    Restore,
    RunKind,
    RunReport,
    RunState,
    RunView,
    WhyAnswer,
    check_run_id,
    decode_report,
    diff_plans,
    report_path,
)
from lakebed.gc.rules import MetadataRule, Rules
from lakebed.objectstore import ObjectStoreOptions

from .admitting import RunNotReady, check_apply, check_how, check_planning
from .applying import apply_run
from .files import Files, Lake
from .finishing import NotFinished, finish_each, go_on_command, telling_where
from .http_requests import Caller, HttpRequests
from .ledger_query import ledger_frame, ledger_rows_of
from .listed import ListedRun, ended_without_deleting, list_runs
from .live_side import LiveSide
from .modes import Mode, UncommittedOptions
from .patience import Patient
from .planning import plan_run
from .planning_committed import NoRules
from .quarantine import PurgeReport, purge_quarantines
from .restoring import RestoreReport, restore
from .runs import Plan, Progress, list_plans, read_plan
from .showing import expiring_of, objects_of
from .standing import Standing, standing_of
from .supposing import Supposing, check_supposed
from .unfinished import OtherUnfinished, UnfinishedRun, unfinished_runs
from .verdicts import doomed_objects
from .workshop import Workshop, read_input

TASKS: Final = 16
"""For a session of which nothing is known. Of one on this machine: `SessionOptions.tasks`."""
ROWS_SHOWN: Final = 1000
MARKER: Final = "_lakefs/dummy"
"""Every namespace in use has this file."""


class NamespaceMissing(NotFound):
    """The storage namespace is not where this process was told to look for it."""


def silent(_: str) -> None:
    """The progress of those who do not want to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Garbage collection of one repository."""

    client: Caller
    repository: str
    objectstore: ObjectStoreOptions = field(default_factory=ObjectStoreOptions)
    tasks: int = TASKS
    progress: Progress = silent
    uncommitted: UncommittedOptions = field(default_factory=UncommittedOptions)
    metadata: MetadataRule = field(default_factory=MetadataRule)
    readers_grace_s: int | None = None
    """How long an apply leaves readers of what it deletes, in seconds. None: what is usual for the namespace."""

    def check(self) -> None:
        """Find what would fail later before anything slow begins: one request and one small read.

        Raises:
            NotFound: there is no such repository.
            NamespaceMissing: its storage namespace is not where `objectstore` says.
        """
        lake = self._lake()
        with Files(lake) as files:
            if files.find(MARKER) is None:
                root = self.objectstore.local_root
                where = f"below {root}" if root is not None and lake.uri.startswith("local://") else "there"
                raise NamespaceMissing(f"storage namespace {lake.uri} is not {where}: it has no {MARKER}", uri=lake.uri)

    def check_planning(self, kinds: Sequence[RunKind] = (), *, rules: Rules | None = None) -> None:
        """Whatever is known to refuse `plan_each`, without Spark: two small requests.

        Raises:
            Denied: the caller may not plan.
            NothingToSuppose, NoRules: see there.
        """
        check_planning(self._live_side(), kinds, rules)

    def check_applying(self, run_id: str, *, quarantine: str | None = None) -> None:
        """Whatever is known to refuse `apply`, without Spark; see there for what it raises."""
        check_apply(self._live_side(), self._lake(), run_id, window=quarantine, grace_s=self.readers_grace_s)

    def check_running(self, kinds: Sequence[RunKind] = (), *, quarantine: str | None = None) -> None:
        """Whatever is known to refuse `run_each`, without Spark.

        Raises:
            Denied: the caller may not plan, or not apply.
            NoRules, InvalidDuration, BadWindow, BadGrace: see `plan_each` and `apply`.
        """
        check_how(self._lake(), window=quarantine, grace_s=self.readers_grace_s)
        self.check_planning(kinds)
        self.check_purging()

    def check_purging(self) -> None:
        """
        Raises:
            Denied: the caller may not delete.
        """
        self._live_side().purging()

    def plan(self, spark: SparkSession, kind: RunKind, *, mode: Mode | None = None, rules: Rules | None = None) -> Plan:
        """Decide what goes and why, and write it down. Deletes nothing, and needs no permission to. `mode` is for
        uncommitted data, and takes the place of that in `uncommitted`.

        With `rules` that nobody saved the plan is one to look at (supposing.py): of committed data it may be applied
        once they are the repository's, of uncommitted data never.

        Raises:
            NothingToSuppose: metadata, and `rules` were given.
            NoRules: committed data, and no rules are set.
            NoSavedState: an optimised run was asked for, and there is nothing that it could go on from.
            BadInput, BrokenHistory, EmptyLiveSet, TaskCorrupt: an input cannot be trusted, and the message names it.
            RunAbandoned: somebody ended the run meanwhile.
        """
        check_supposed([kind], rules)
        options = self.uncommitted if mode is None else replace(self.uncommitted, mode=mode)
        shop = self._shop(spark)
        if rules is not None:
            caller = Patient(self.client, self.progress)
            service = Supposing(HttpRequests(caller, self.repository), rules)
            shop = replace(shop, live_side=LiveSide(caller, self.repository, service))
        return plan_run(shop, kind, options)

    def apply(self, spark: SparkSession, run_id: str, *, quarantine: str | None = None) -> RunReport:
        """Carry out one plan, and nothing else. After a crash, or where objects failed: again.

        `quarantine` is a duration (`7d`): for so long objects are kept aside and can be restored.

        Raises:
            PlanMissing, BadInput, TaskCorrupt: there is no plan, or what it rests on is not what it was.
            RunNotReady, RunAbandoned: the run may not delete.
            Overtaken, TaskStopped: another apply began in this repository.
            OtherUnfinished: it deletes for good what another run may be moving aside.
        """
        command = go_on_command(self.repository, run_id)
        with telling_where(run_id, lambda: self.standing(run_id), command, self.progress):
            return apply_run(self._shop(spark), run_id, window=quarantine, grace_s=self.readers_grace_s)

    def purge(self, spark: SparkSession) -> PurgeReport:
        """Delete for good what lies in quarantine past its window. After a crash, or where objects failed: again.

        Raises:
            BadInput, TaskCorrupt: a quarantine's record or ledger is unreadable: nothing of that run was purged.
        """
        return purge_quarantines(self._shop(spark))

    def restore(
        self,
        *,
        run_id: str = "",
        path: str = "",
        branch: str = "",
        prefix: str = "",
        overwrite: bool = False,
        all_versions: bool = False,
    ) -> RestoreReport:
        """Stage what lies in quarantine again, under fresh addresses, each read back before it is: all of a run, or
        what has this path, is below it (with a slash at its end), or had this address. See
        `lakebed.gc.protocol.Restore`.
        Of several versions of a path the one seen last, unless all are asked for. Repeated, it leaves alone what is
        there already.

        Raises:
            NotFound: nothing such lies in quarantine, or there is no such branch; the message says what became of it.
        """
        request = Restore(
            branch=branch, run_id=run_id, path=path, prefix=prefix, overwrite=overwrite, all_versions=all_versions
        )
        return restore(self._live_side(), request, self.progress)

    def ledger(self, spark: SparkSession, query: LedgerQuery = LedgerQuery()) -> DataFrame:
        """LEDGER: one row for each object and what a run did with it."""
        return ledger_frame(spark, self._lake(), query, tasks=self.tasks)

    def ledger_rows(
        self, query: LedgerQuery = LedgerQuery(), *, newest_first: bool = False
    ) -> Iterator[dict[str, Any]]:
        """The same as plain rows, the oldest runs or the newest first, without Spark.

        Raises:
            BadInput: a file of the ledger is unreadable.
        """
        with Files(self._lake()) as files:
            yield from ledger_rows_of(files, query, newest_first=newest_first)

    def plan_each(
        self,
        spark: SparkSession,
        kinds: Sequence[RunKind] = (),
        *,
        mode: Mode | None = None,
        rules: Rules | None = None,
    ) -> Iterator[Plan]:
        """A plan of each of these kinds, one after the other. Without kinds: of every kind, and where no rules are set
        committed data is passed over with a word, for then nothing of it ever goes; with `rules` metadata is left out,
        for it goes by none.

        Raises:
            Denied: the caller may not plan.
            NothingToSuppose: metadata was asked for, and `rules` were given. Nothing was planned.
            NoRules: committed data was asked for, and no rules are set. Nothing was planned.
        """
        self.check_planning(kinds, rules=rules)
        every = (kind for kind in RunKind if rules is None or kind is not RunKind.METADATA)
        for kind in kinds or every:
            plan = self._planned(spark, kind, is_asked=bool(kinds), mode=mode, rules=rules)
            if plan is not None:
                yield plan

    def _planned(
        self, spark: SparkSession, kind: RunKind, *, is_asked: bool, mode: Mode | None, rules: Rules | None = None
    ) -> Plan | None:
        try:
            return self.plan(spark, kind, mode=mode, rules=rules)
        except NoRules as error:
            if is_asked:
                raise
            self.progress(str(error))
            return None

    def run_each(
        self,
        spark: SparkSession,
        kinds: Sequence[RunKind] = (),
        *,
        mode: Mode | None = None,
        quarantine: str | None = None,
    ) -> Iterator[RunReport]:
        """Finish what is unfinished, each run in the way it was begun, or moving aside if that is asked for now; then
        plan and apply, one kind after the other, as in `plan_each`.

        Raises:
            Denied: the caller may not plan, or not apply. Nothing was planned.
            NotFinished: a run could not be finished, or nothing be planned beside it. All else was done.
        """
        self.check_running(kinds, quarantine=quarantine)
        left: list[str] = []
        yield from finish_each(
            self._unfinished_or_told(left),
            lambda run_id, asked: self.apply(spark, run_id, quarantine=asked),
            self.progress,
            left,
            quarantine=quarantine,
        )
        for kind in kinds or RunKind:
            try:
                plan = self._planned(spark, kind, is_asked=bool(kinds), mode=mode)
                if plan is not None:
                    yield self.apply(spark, plan.run_id, quarantine=quarantine)
            except (Corrupt, OtherUnfinished) as error:
                if not left:
                    raise
                left.append(f"{kind.value} data: {error}")
        if left:
            raise NotFinished("; ".join(left))

    def _unfinished_or_told(self, left: list[str]) -> list[UnfinishedRun]:
        """None where it cannot be read which they are: whoever is planned or applied beside them looks again."""
        try:
            return self.unfinished()
        except Corrupt as error:
            left.append(str(error))
            self.progress(left[-1])
            return []

    def run(
        self,
        spark: SparkSession,
        kinds: Sequence[RunKind] = (),
        *,
        mode: Mode | None = None,
        quarantine: str | None = None,
    ) -> list[RunReport]:
        """`run_each`, all of it."""
        return list(self.run_each(spark, kinds, mode=mode, quarantine=quarantine))

    def show(self, run_id: str) -> Plan:
        """
        Raises:
            PlanMissing: there is none.
        """
        check_run_id(run_id)
        with Files(self._lake()) as files:
            return read_plan(files, run_id)

    def objects(self, run_id: str, *, prefix: str = "") -> Iterator[DoomedObject]:
        """The objects of a plan whose path or address begins with `prefix`, as they are read; without Spark.

        Raises:
            PlanMissing, BadInput: there is no such plan, or something of it is missing or changed.
        """
        plan = self.show(run_id)
        with Files(self._lake()) as files:
            yield from objects_of(files, plan, prefix=prefix)

    def expiring(self, run_id: str, *, limit: int = ROWS_SHOWN) -> list[ExpiringCommit]:
        """The commits whose data a plan gives up, the newest first; none for uncommitted data. Without Spark: reads the
        plan's commit records, and asks the server for each commit's message.

        Raises:
            PlanMissing, BadInput: there is no such plan, or something it rests on is missing or changed.
        """
        plan = self.show(run_id)
        with Files(self._lake()) as files:
            found = expiring_of(files, plan, limit=limit)
        return [msgspec.structs.replace(commit, message=self._message(commit.id)) for commit in found]

    def doomed(self, spark: SparkSession, run_id: str) -> DataFrame:
        """DOOMED: the objects of a plan, one row each."""
        return doomed_objects(spark, self._lake(), self.show(run_id).doomed, tasks=self.tasks)

    def report(self, run_id: str) -> RunReport | None:
        """What came of a plan, and the state of its run; None where it was not applied.

        Raises:
            BadInput: the report is unreadable.
        """
        name = report_path(self.show(run_id).kind, check_run_id(run_id))
        with Files(self._lake()) as files:
            data = files.find(name)
        view = None if data is None else self.status(run_id)
        if data is None or view is None:
            return None
        return msgspec.structs.replace(decode_report(data, name=name), state=view.state)

    def finished(self, run_id: str) -> RunReport | None:
        """The report of a run that is over; None where there is something left to apply. Without Spark.

        Raises:
            PlanMissing: there is no plan.
            RunNotReady: the run is over, and deleted nothing: its plan can never be applied.
        """
        view = self.status(run_id)
        if view is not None and (view.state is RunState.ABANDONED or ended_without_deleting(view)):
            how = "was abandoned" if view.state is RunState.ABANDONED else "ended without deleting anything"
            raise RunNotReady(f"run {run_id} {how}: plan again", run_id=run_id)
        report = self.report(run_id)
        return report if report is not None and report.state is RunState.ENDED else None

    def condemned(self, spark: SparkSession, run_id: str) -> DataFrame:
        """CONDEMNED: the commits whose data a plan would give up; none for uncommitted data."""
        return spark.createDataFrame(self._commits_of(self.show(run_id)), "id string")

    def diff(self, a: str, b: str, *, limit: int = ROWS_SHOWN) -> PlanDiff:
        """What only one of two plans takes, or both. Needs no Spark: both tables are read here, 40 bytes an object.

        Raises:
            PlanMissing, BadInput: there is no such plan, or something of it is missing or changed.
            DifferentKinds: one is of committed data, the other of uncommitted data.
        """
        plans = self.show(a), self.show(b)
        objects = self._objects_of(plans[0]), self._objects_of(plans[1])
        commits = self._commits_of(plans[0]), self._commits_of(plans[1])
        return diff_plans(*plans, objects, commits, limit=limit)

    def differing(self, spark: SparkSession, a: str, b: str) -> DataFrame:
        """The objects of either plan, each once, as DOOMED has them; `side` is a, b or both."""
        marked = [
            self.doomed(spark, run_id).withColumn("in_a", F.lit(place == 0)).withColumn("in_b", F.lit(place == 1))
            for place, run_id in enumerate((a, b))
        ]
        facts = [name for name in protocol.DOOMED.names() if name != "address"]
        each = marked[0].unionByName(marked[1]).groupBy("address")
        row = F.max(F.struct(*facts)).alias("row")
        either = each.agg(row, F.max("in_a").alias("in_a"), F.max("in_b").alias("in_b"))
        side = F.when(F.col("in_a") & F.col("in_b"), "both").when(F.col("in_a"), "a").otherwise("b")
        return either.select("address", "row.*", side.alias("side"))

    def why(self, *, address: str = "", ref: str = "", path: str = "") -> WhyAnswer:
        """Why an object is there and until when, or which run took it: by an address in either spelling, or by a path
        at a ref. The server looks: neither Spark nor access to the object store is needed here.
        """
        return self._live_side().why(address=address, ref=ref, path=path)

    def listed(self, *, limit: int = 100) -> list[ListedRun]:
        """Runs and plans with what they take, the newest first."""
        with Files(self._lake()) as files:
            return list_runs(files, self.runs(), limit=limit)

    def _message(self, commit: str) -> str:
        try:
            return self._live_side().message_of(commit)
        except (Denied, NotFound):
            return ""

    def _objects_of(self, plan: Plan) -> pa.Table:
        with Files(self._lake()) as files:
            return read_input(files, plan.doomed, protocol.DOOMED)

    def _commits_of(self, plan: Plan) -> pa.Table:
        if plan.condemned is None:
            return protocol.arrow_schema(protocol.CONDEMNED).empty_table()
        with Files(self._lake()) as files:
            return read_input(files, plan.condemned, protocol.CONDEMNED)

    def plans(self) -> list[str]:
        """Ids of the runs with a finished plan, oldest first."""
        with Files(self._lake()) as files:
            return list_plans(files)

    def runs(self) -> tuple[RunView, ...]:
        """The runs that the server knows, newest first. A committed run is not among them before it is applied."""
        return self._live_side().runs()

    def status(self, run_id: str) -> RunView | None:
        """None where the server has no record: not applied yet, or no run at all."""
        return self._live_side().run(check_run_id(run_id))

    def unfinished(self) -> list[UnfinishedRun]:
        """Runs whose deletes may have begun and that have not ended. Somebody may be applying one just now."""
        with Files(self._lake()) as files:
            return unfinished_runs(files, self.runs())

    def standing(self, run_id: str) -> Standing:
        """How far a run has come.

        Raises:
            PlanMissing: there is no such run.
            BadInput: a file of it is unreadable.
        """
        view = self.status(run_id)
        with Files(self._lake()) as files:
            return standing_of(files, run_id, view)

    def abandon(self, run_id: str) -> RunView:
        """End a run that was left behind before its deletes began; it can never be applied.

        Raises:
            Conflict: its deletes may have begun: then it is resumed by `apply`, never abandoned.
            NotFound: there is no such run.
        """
        return self._live_side().abandoned(check_run_id(run_id))

    def adopt(self) -> Adopting:
        """Let this installation collect again after another one was seen in the namespace; that one then stops."""
        return self._live_side().adopting()

    def _shop(self, spark: SparkSession) -> Workshop:
        live_side = LiveSide(Patient(self.client, self.progress), self.repository)
        return Workshop(
            spark=spark,
            live_side=live_side,
            lake=Lake(uri=live_side.namespace(), options=self.objectstore),
            tasks=self.tasks,
            progress=self.progress,
            metadata=self.metadata,
        )

    def _live_side(self) -> LiveSide:
        return LiveSide(self.client, self.repository)

    def _lake(self) -> Lake:
        return Lake(uri=self._live_side().namespace(), options=self.objectstore)
