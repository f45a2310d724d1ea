"""Short words for what the tests ask of `Collector`: a session and a kind in place of a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakebed.gc import Collector, Plan, PurgeReport
from lakebed.gc.api.collector import silent
from lakebed.gc.api.http_requests import Caller
from lakebed.gc.messages import (
    ApplyRequest,
    EngineName,
    LedgerQuery,
    Mode,
    PlanRequest,
    Restore,
    RunKind,
    RunReport,
    RunRequest,
)
from lakebed.gc.rules import MetadataRule, Rules
from lakebed.gc.runs.context import Progress
from lakebed.objectstore import ObjectStoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting:
    """`how` are options of plans and runs, as `PlanRequest` has them."""

    client: Caller
    repository: str
    objectstore: ObjectStoreOptions
    tasks: int = 4
    progress: Progress = silent
    metadata: MetadataRule = field(default_factory=MetadataRule)
    how: dict[str, Any] = field(default_factory=dict)
    readers_grace: str | None = "0"

    def on(self, spark: SparkSession | None) -> Collector:
        def session() -> SparkSession:
            assert spark is not None, "no session was needed here"
            return spark

        return Collector(
            client=self.client,
            repository=self.repository,
            objectstore=self.objectstore,
            session=session,
            engine=EngineName.LOCAL if spark is None else EngineName.SPARK,
            tasks=self.tasks,
            progress=self.progress,
            metadata=self.metadata,
        )

    def __getattr__(self, name: str) -> Any:
        """What needs neither a session nor a request."""
        return getattr(self.on(None), name)

    def plan(
        self, spark: SparkSession | None, kind: RunKind, *, mode: Mode | None = None, rules: Rules | None = None
    ) -> Plan:
        (plan,) = self.plan_each(spark, [kind], mode=mode, rules=rules)
        return plan

    def plan_each(
        self,
        spark: SparkSession | None,
        kinds: Sequence[RunKind] = (),
        *,
        mode: Mode | None = None,
        rules: Rules | None = None,
    ) -> Iterator[Plan]:
        how = self.how if mode is None else {**self.how, "mode": mode}
        return self.on(spark).plan(PlanRequest(kinds=tuple(kinds), rules=rules, **how))

    def apply(self, spark: SparkSession | None, run_id: str, *, window: str | None = None) -> RunReport:
        request = ApplyRequest(run_id=run_id, window=window, readers_grace=self.readers_grace)
        return self.on(spark).apply(request)

    def run_each(
        self,
        spark: SparkSession | None,
        kinds: Sequence[RunKind] = (),
        *,
        mode: Mode | None = None,
        window: str | None = None,
    ) -> Iterator[RunReport]:
        how = self.how if mode is None else {**self.how, "mode": mode}
        request = RunRequest(kinds=tuple(kinds), window=window, readers_grace=self.readers_grace, **how)
        return (report for report in self.on(spark).run(request) if isinstance(report, RunReport))

    def run(self, spark: SparkSession | None, kinds: Sequence[RunKind] = (), **how: Any) -> list[RunReport]:
        return list(self.run_each(spark, kinds, **how))

    def purge(self, spark: SparkSession | None) -> PurgeReport:
        return self.on(spark).purge()

    def restore(self, **options: Any) -> Any:
        return self.on(None).restore(Restore(**options))

    def taken(self, run_id: str) -> set[str]:
        """The addresses in a plan."""
        return {one.address for one in self.on(None).objects(run_id)}

    def garbage(self, spark: SparkSession | None, run_id: str) -> DataFrame:
        return self.on(spark).garbage(run_id)

    def expired(self, spark: SparkSession | None, run_id: str) -> DataFrame:
        return self.on(spark).expired(run_id)

    def differing(self, spark: SparkSession | None, a: str, b: str) -> DataFrame:
        return self.on(spark).differing(a, b)

    def ledger(self, spark: SparkSession | None, query: LedgerQuery = LedgerQuery()) -> DataFrame:
        return self.on(spark).ledger(query)
