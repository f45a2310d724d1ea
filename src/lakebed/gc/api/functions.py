"""Run collections as functions that return DataFrames, for notebooks and jobs.

    found = lakebed.gc.plan("lake", client=client, spark=spark, kind="committed")
    found.objects.groupBy("reason").sum("size_bytes").show()
    lakebed.gc.apply("lake", found.run_id, client=client, spark=spark)

Each function passes a request to `Collector` (collector.py), which documents the errors. All take `Where`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Required, TypedDict, Unpack

from lakebed.gc.engines.spark import active_session
from lakebed.gc.mark.mark import WAYS
from lakebed.gc.messages import LedgerQuery, Plan, PurgeReport, Restore, RestoreReport, RunReport, WhyAnswer, request_of
from lakebed.gc.rules import Rules
from lakebed.gc.runs.context import Progress
from lakebed.objectstore import ObjectStoreOptions

from .collector import Collector, silent
from .http_requests import Caller

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Where(TypedDict, total=False):
    """Name the target and the tools of a collection. Only `client` is required.

    `client` calls the server. `spark` is any session, by default the active one. `objectstore` has the options to reach
    the storage namespace from the tasks. `tasks` is the number of tasks, and `engine` is `spark`, `local` or `auto`.
    """

    client: Required[Caller]
    spark: SparkSession
    objectstore: ObjectStoreOptions
    tasks: int
    engine: str
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Hold a plan. Its tables need a session, and only on use."""

    plan: Plan
    collector: Collector

    @property
    def run_id(self) -> str:
        return self.plan.run_id

    @property
    def objects(self) -> DataFrame:
        """Return GARBAGE: address, size_bytes, reason, rule, last_seen_at, path."""
        return self.collector.garbage(self.run_id)

    @property
    def commits(self) -> DataFrame:
        """Return the `id` of each commit that would expire."""
        return self.collector.expired(self.run_id)

    @property
    def totals(self) -> DataFrame:
        """Return objects and bytes by each `way` (reason, rule, branch, prefix, slice, age) and `name`."""
        rows = [
            (way, name, total.objects, total.size_bytes)
            for way in WAYS
            for name, total in getattr(self.plan.totals, f"by_{way}").items()
        ]
        columns = "way string, name string, objects long, size_bytes long"
        return self.collector.session().createDataFrame(rows, columns)


def plan(
    repository: str,
    *,
    kind: str = "committed",
    mode: str = "automatic",
    rules: Rules | None = None,
    **where: Unpack[Where],
) -> Planned:
    """Decide which objects to delete and why. Deletes nothing. `mode` is for uncommitted data: `clean`, `optimised`,
    `old-layout`. With `rules`, show the committed or uncommitted data that these rules would delete.
    """
    collector = _collector(repository, where)
    request = _asked("plan", where, kinds=[kind], mode=mode, rules=rules)
    return Planned(plan=next(iter(collector.plan(request))), collector=collector)


def show(repository: str, run_id: str, **where: Unpack[Where]) -> Planned:
    """Return an existing plan."""
    collector = _collector(repository, where)
    return Planned(plan=collector.show(run_id), collector=collector)


def diff(repository: str, a: str, b: str, **where: Unpack[Where]) -> DataFrame:
    """Return the objects of either plan, each once. `side` is a, b or both."""
    return _collector(repository, where).differing(a, b)


def apply(
    repository: str,
    run_id: str,
    *,
    window: str | None = None,
    readers_grace: str | None = None,
    **where: Unpack[Where],
) -> RunReport:
    """Carry out one plan. Call it again after a crash or failed deletes. With `window` (`7d`), defer the run: its
    objects are deleted by a purge after that time."""
    request = _asked("apply", where, run_id=run_id, window=window, readers_grace=readers_grace)
    return _collector(repository, where).apply(request)


def run(
    repository: str,
    *,
    kinds: Iterable[str] = (),
    mode: str = "automatic",
    window: str | None = None,
    readers_grace: str | None = None,
    **where: Unpack[Where],
) -> list[RunReport]:
    """Finish unfinished runs, plan and apply one kind after the other, and purge. Without kinds, run every
    default kind, and committed data only if rules are set. `mode` as for `plan`."""
    how: dict[str, Any] = {"mode": mode, "window": window, "readers_grace": readers_grace}
    reports = _collector(repository, where).run(_asked("run", where, kinds=[*kinds], **how))
    return [report for report in reports if isinstance(report, RunReport)]


def purge(repository: str, **where: Unpack[Where]) -> PurgeReport:
    """Delete the objects of deferred runs whose window has ended."""
    return _collector(repository, where).purge(_asked("purge", where))


def restore(
    repository: str,
    *,
    run_id: str = "",
    path: str = "",
    branch: str = "",
    prefix: str = "",
    overwrite: bool = False,
    all_versions: bool = False,
    **where: Unpack[Where],
) -> RestoreReport:
    """Stage objects of deferred runs again: see `Collector.restore`. Needs no session."""
    request = Restore(
        branch=branch, run_id=run_id, path=path, prefix=prefix, overwrite=overwrite, all_versions=all_versions
    )
    return _collector(repository, where).restore(request)


def ledger(repository: str, query: LedgerQuery = LedgerQuery(), **where: Unpack[Where]) -> DataFrame:
    """Return the ledger: one row for each object and its outcome in a run."""
    return _collector(repository, where).ledger(query)


def why(repository: str, *, address: str = "", ref: str = "", path: str = "", **where: Unpack[Where]) -> WhyAnswer:
    """Explain why an object exists and until when, or which run deleted it. Needs no session."""
    return _collector(repository, where).why(address=address, ref=ref, path=path)


def _asked(action: str, where: Where, **options: object) -> Any:
    """Return the request of this action."""
    return request_of(action, engine=where.get("engine"), tasks=where.get("tasks"), **options)


def _collector(repository: str, where: Where) -> Collector:
    given = where.get("spark")
    return Collector(
        client=where["client"],
        repository=repository,
        objectstore=where.get("objectstore", ObjectStoreOptions()),
        session=active_session if given is None else lambda: given,
        tasks=where.get("tasks"),
        progress=where.get("progress", silent),
    )
