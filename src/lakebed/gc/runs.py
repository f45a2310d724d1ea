"""What a run leaves in its folder besides the inputs: its plan, and how the plan's totals add up.

The records and their bytes are `lakebed.gc.protocol`'s (plans.py), for the server shows plans too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from lakebed.base import RunId
from lakebed.gc.protocol import (
    CommitCounts,
    Plan,
    PlanMissing,
    PreparedCommits,
    RangeCounts,
    RunKind,
    StartedRun,
    Total,
    Totals,
    decode_plan,
    encode_plan,
    plan_path,
    run_folder,
)

from .files import Files

__all__ = [
    "TOTALS_MAX",
    "WAYS",
    "CommitCounts",
    "Plan",
    "PlanMissing",
    "Progress",
    "RangeCounts",
    "Total",
    "Totals",
    "list_plans",
    "plan_frame",
    "read_plan",
    "sum_totals",
    "write_plan",
]

TOTALS_MAX: Final = 1000
"""How many branches, prefixes and slices a plan tells apart; the smallest beyond that are summed under `…`."""


WAYS: Final = ("reason", "rule", "branch", "prefix", "slice", "age")


def plan_frame(run: StartedRun, prepared: PreparedCommits, repository: str) -> dict[str, Any]:
    """What a plan of either kind says first."""
    return {
        "run_id": run.run_id,
        "kind": run.kind,
        "repository": repository,
        "namespace": run.namespace,
        "now_ms": run.now_ms,
        "settled_slices": len(run.settled_slices),
        "open_slices": run.open_slices,
        "rules": prepared.rules,
        "rules_version": prepared.rules_version,
        "commits": prepared.commits,
        "refs": prepared.refs,
    }


def write_plan(files: Files, plan: Plan) -> None:
    files.write(plan_path(plan.kind, plan.run_id), encode_plan(plan))


def read_plan(files: Files, run_id: str) -> Plan:
    """
    Raises:
        PlanMissing: there is none in the namespace.
        BadInput: it is unreadable, of an unknown format, or was changed.
    """
    for kind in RunKind:
        data = files.find(plan_path(kind, run_id))
        if data is not None:
            return decode_plan(data, run_id)
    raise PlanMissing(f"run {run_id} has no finished plan", run_id=run_id)


def list_plans(files: Files) -> list[str]:
    """Ids of the runs with a finished plan, oldest first."""
    found: list[str] = []
    for kind in RunKind:
        root = run_folder(kind, RunId("x")).removesuffix("x/")
        found += [name.removesuffix("/plan.json") for name in files.sizes(root) if name.endswith("/plan.json")]
    return sorted(found)


def sum_totals(parts: Iterable[Totals]) -> Totals:
    """Of many parts, one; what is small among very many is summed under `…`."""
    whole = Total()
    ways: dict[str, dict[str, Total]] = {way: {} for way in WAYS}
    for part in parts:
        whole = whole.plus(part.all)
        for way, sums in ways.items():
            for name, total in getattr(part, f"by_{way}").items():
                sums[name] = sums.get(name, Total()).plus(total)
    return Totals(all=whole, **{f"by_{way}": _largest(sums) for way, sums in ways.items()})


def _largest(sums: dict[str, Total]) -> dict[str, Total]:
    ordered = sorted(sums.items(), key=lambda item: (-item[1].size_bytes, -item[1].objects, item[0]))
    rest = Total()
    for _, total in ordered[TOTALS_MAX:]:
        rest = rest.plus(total)
    return dict(ordered[:TOTALS_MAX]) | ({"…": rest} if rest.objects else {})


Progress = Callable[[str], None]
"""Told, in a line for people, what is being done."""
