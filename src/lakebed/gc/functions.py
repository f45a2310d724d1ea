"""Collections as functions that return DataFrames, for notebooks and jobs.

    found = lakebed.gc.plan("lake", client=client, spark=spark, kind="committed")
    found.objects.groupBy("reason").sum("size_bytes").show()
    lakebed.gc.apply("lake", found.run_id, client=client, spark=spark)

Each is a call of `Collector` (api.py), which says what it raises. All take the same keywords (`Where`): `client` speaks
to the server; `spark` is any session, by default the active one; `objectstore` says how the storage namespace is
reached from where the tasks run, `tasks` into how many its files are dealt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Required, TypedDict, TypeVar, Unpack

from pyspark.sql import DataFrame, SparkSession

from lakebed.base import Invalid
from lakebed.gc.protocol import LedgerQuery, Plan, RunKind, RunReport, WhyAnswer
from lakebed.gc.rules import Rules
from lakebed.objectstore import ObjectStoreOptions

from .api import TASKS, Collector, silent
from .live_side import Caller
from .modes import Mode
from .quarantine import PurgeReport
from .restoring import RestoreReport
from .runs import WAYS, Progress

Choice = TypeVar("Choice", bound=StrEnum)


class NoSession(Invalid):
    """No Spark session was given, and none is active."""


class UnknownChoice(Invalid):
    """A kind or a mode that there is not. The message lists those there are."""


class Where(TypedDict, total=False):
    """What every function here needs besides its question. Only `client` must be given."""

    client: Required[Caller]
    spark: SparkSession
    objectstore: ObjectStoreOptions
    tasks: int
    progress: Progress
    readers_grace_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with its tables.

    `objects` are DOOMED: address, size_bytes, reason, rule, last_seen_at, path. `commits` has the `id` of each commit
    that would be given up. `totals` counts the objects in every `way` (reason, rule, branch, prefix, slice, age) by
    `name`: objects, size_bytes.
    """

    plan: Plan
    objects: DataFrame
    commits: DataFrame
    totals: DataFrame

    @property
    def run_id(self) -> str:
        return self.plan.run_id


def plan(
    repository: str,
    *,
    kind: RunKind | str = RunKind.COMMITTED,
    mode: Mode | str = Mode.AUTOMATIC,
    rules: Rules | None = None,
    **where: Unpack[Where],
) -> Planned:
    """Decide what goes and why, and write it down. Deletes nothing. `mode` is for uncommitted data: `clean`,
    `optimised`, `old-layout`. With `rules`: what they would take of committed or
    uncommitted data.
    """
    asked, how = _known(RunKind, kind), _known(Mode, mode)
    collector, spark = _collector(repository, where), _spark(where)
    return _planned(collector, spark, collector.plan(spark, asked, mode=how, rules=rules))


def show(repository: str, run_id: str, **where: Unpack[Where]) -> Planned:
    """A plan that was made."""
    collector = _collector(repository, where)
    return _planned(collector, _spark(where), collector.show(run_id))


def diff(repository: str, a: str, b: str, **where: Unpack[Where]) -> DataFrame:
    """The objects of either plan, each once; `side` is a, b or both."""
    return _collector(repository, where).differing(_spark(where), a, b)


def apply(repository: str, run_id: str, *, quarantine: str | None = None, **where: Unpack[Where]) -> RunReport:
    """Carry out one plan, and nothing else. After a crash, or where objects failed: again. With `quarantine` (`7d`)
    objects are moved aside for so long."""
    return _collector(repository, where).apply(_spark(where), run_id, quarantine=quarantine)


def run(
    repository: str,
    *,
    kinds: Iterable[RunKind | str] = (),
    mode: Mode | str = Mode.AUTOMATIC,
    quarantine: str | None = None,
    **where: Unpack[Where],
) -> list[RunReport]:
    """Plan and apply, one kind after the other; without kinds all, but committed data only where rules are set. `mode`
    as for `plan`."""
    asked = [_known(RunKind, kind) for kind in kinds]
    return _collector(repository, where).run(_spark(where), asked, mode=_known(Mode, mode), quarantine=quarantine)


def purge(repository: str, **where: Unpack[Where]) -> PurgeReport:
    """Delete for good what lies in quarantine past its window."""
    return _collector(repository, where).purge(_spark(where))


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
    """Stage what lies in quarantine again, each object read back before it is: see `Collector.restore`. Needs no
    session."""
    collector = _collector(repository, where)
    return collector.restore(
        run_id=run_id, path=path, branch=branch, prefix=prefix, overwrite=overwrite, all_versions=all_versions
    )


def ledger(repository: str, query: LedgerQuery = LedgerQuery(), **where: Unpack[Where]) -> DataFrame:
    """What runs did with objects, a row each."""
    return _collector(repository, where).ledger(_spark(where), query)


def why(repository: str, *, address: str = "", ref: str = "", path: str = "", **where: Unpack[Where]) -> WhyAnswer:
    """Why an object is there and until when, or which run took it. Needs no session."""
    return _collector(repository, where).why(address=address, ref=ref, path=path)


def _known(choices: type[Choice], word: str) -> Choice:
    """
    Raises:
        UnknownChoice: it is none of them.
    """
    try:
        return choices(word)
    except ValueError:
        raise UnknownChoice(f"{word!r} is not known: say {', '.join(choices)}", word=word) from None


def _collector(repository: str, where: Where) -> Collector:
    return Collector(
        client=where["client"],
        repository=repository,
        objectstore=where.get("objectstore", ObjectStoreOptions()),
        tasks=where.get("tasks", TASKS),
        progress=where.get("progress", silent),
        readers_grace_s=where.get("readers_grace_s"),
    )


def _spark(where: Where) -> SparkSession:
    spark = where.get("spark") or SparkSession.getActiveSession()
    if spark is None:
        raise NoSession("no Spark session was given and none is active")
    return spark


def _planned(collector: Collector, spark: SparkSession, found: Plan) -> Planned:
    totals = [
        (way, name, total.objects, total.size_bytes)
        for way in WAYS
        for name, total in getattr(found.totals, f"by_{way}").items()
    ]
    return Planned(
        plan=found,
        objects=collector.doomed(spark, found.run_id),
        commits=collector.condemned(spark, found.run_id),
        totals=spark.createDataFrame(totals, "way string, name string, objects long, size_bytes long"),
    )
