"""The Python API: plan, show, apply and run a collection of one repository.

    with local_session(SessionOptions(), os.environ) as session, Client(…) as client:
        lake = Collector(client=client, repository="lake", blocks=BlockOptions(…))
        plan = lake.plan(session.spark, RunKind.COMMITTED)
        print(plan.totals.all)
        report = lake.apply(session.spark, plan.run_id)

`spark` may be any session, also one of a cluster or of Spark Connect; only DataFrames are used. `blocks` says how the
storage namespace is reached from where the tasks run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from lakebed.base import NotFound
from lakebed.blocks import BlockOptions
from lakebed.handoff import RunKind, RunReport, RunView, check_run_id

from .applying import apply_run
from .files import Files, Lake
from .live_side import Caller, LiveSide
from .planning import plan_run
from .runs import Plan, Progress, list_plans, read_plan
from .verdicts import doomed_objects
from .workshop import Workshop

TASKS = 16
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
    blocks: BlockOptions = field(default_factory=BlockOptions)
    tasks: int = TASKS
    progress: Progress = silent

    def check(self) -> None:
        """Find what would fail later before anything slow begins: one request and one small read.

        Raises:
            NotFound: there is no such repository.
            NamespaceMissing: its storage namespace is not where `blocks` says.
        """
        lake = self._lake()
        with Files(lake) as files:
            if files.find(MARKER) is None:
                root = self.blocks.local_root
                where = f"below {root}" if root is not None and lake.uri.startswith("local://") else "there"
                raise NamespaceMissing(f"storage namespace {lake.uri} is not {where}: it has no {MARKER}", uri=lake.uri)

    def plan(self, spark: SparkSession, kind: RunKind) -> Plan:
        """Decide what goes and why, and write it down. Deletes nothing, and needs no permission to.

        Raises:
            NoRules: committed data, and no rules are set.
            BadInput, BrokenHistory, EmptyLiveSet, TaskCorrupt: an input cannot be trusted, and the message names it.
            RunAbandoned: somebody ended the run meanwhile.
        """
        return plan_run(self._shop(spark), kind)

    def apply(self, spark: SparkSession, run_id: str) -> RunReport:
        """Carry out one plan, and nothing else. After a crash, or where objects failed: again.

        Raises:
            PlanMissing, BadInput, TaskCorrupt: there is no plan, or what it rests on is not what it was.
            RunNotReady, RunAbandoned: the run may not delete.
        """
        return apply_run(self._shop(spark), run_id)

    def run(self, spark: SparkSession, kinds: Sequence[RunKind] = tuple(RunKind)) -> list[RunReport]:
        """Plan and apply, one kind after the other."""
        return [self.apply(spark, self.plan(spark, kind).run_id) for kind in kinds]

    def show(self, run_id: str) -> Plan:
        """
        Raises:
            PlanMissing: there is none.
        """
        check_run_id(run_id)
        with Files(self._lake()) as files:
            return read_plan(files, run_id)

    def doomed(self, spark: SparkSession, run_id: str) -> DataFrame:
        """DOOMED: the objects of a plan, one row each."""
        return doomed_objects(spark, self._lake(), self.show(run_id).doomed, tasks=self.tasks)

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

    def abandon(self, run_id: str) -> RunView:
        """End a run that was left behind before its deletes began; it can never be applied.

        Raises:
            Conflict: its deletes may have begun: then it is resumed by `apply`, never abandoned.
            NotFound: there is no such run.
        """
        return self._live_side().abandoned(check_run_id(run_id))

    def _shop(self, spark: SparkSession) -> Workshop:
        live_side = self._live_side()
        return Workshop(spark=spark, live_side=live_side, lake=self._lake(), tasks=self.tasks, progress=self.progress)

    def _live_side(self) -> LiveSide:
        return LiveSide(self.client, self.repository)

    def _lake(self) -> Lake:
        return Lake(uri=self._live_side().namespace(), options=self.blocks)
