"""What a run leaves in its folder besides the inputs: the plan, and how its totals add up (docs/formats/gc-plan.md).

`plan.json` is written last of all, so a folder that has one holds a complete plan; it carries a digest of itself and,
through the manifests in it, of every file the plan rests on. A plan that was changed by anybody is no plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from lakebed.base import NotFound, RunId
from lakebed.handoff import BadInput, Manifest, PreparedCommits, RunKind, StartedRun, run_folder
from lakebed.retention import Rules

from .files import Files
from .read import Found

PLAN_FORMAT: Final = 1
TOTALS_MAX: Final = 1000
"""How many branches, prefixes and slices a plan tells apart; the smallest beyond that are summed under `…`."""


class PlanMissing(NotFound):
    """The run has no plan: it is another repository's, it is still planning, or it stopped before it was done."""


class Total(msgspec.Struct, frozen=True, kw_only=True):
    objects: int = 0
    size_bytes: int = 0

    def plus(self, more: Total) -> Total:
        return Total(objects=self.objects + more.objects, size_bytes=self.size_bytes + more.size_bytes)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The doomed objects, counted in several ways; each way adds up to `all`."""

    all: Total = Total()
    by_reason: dict[str, Total] = {}
    by_rule: dict[str, Total] = {}
    by_branch: dict[str, Total] = {}
    by_prefix: dict[str, Total] = {}
    by_slice: dict[str, Total] = {}


WAYS: Final = ("reason", "rule", "branch", "prefix", "slice")


class CommitCounts(msgspec.Struct, frozen=True, kw_only=True):
    all: int
    kept: int
    expired: int
    swept: int


class RangeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`expired` ranges are those that no kept commit has: the only ones that were read for what may go."""

    live: int
    expired: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict and all it rests on. `listing` is for uncommitted runs, `condemned` and `rules` for committed ones."""

    run_id: str
    kind: RunKind
    repository: str
    namespace: str
    now_ms: int
    settled_slices: int
    rules: Rules | None
    rules_version: int
    commits: Manifest
    refs: Manifest
    uncommitted: Manifest | None = None
    condemned: Manifest | None = None
    listing: Found | None = None
    last_read_slice: str = ""
    commit_counts: CommitCounts
    range_counts: RangeCounts
    doomed: Manifest
    totals: Totals
    strays: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return run_folder(self.kind, RunId(self.run_id))


def plan_frame(run: StartedRun, prepared: PreparedCommits, repository: str) -> dict[str, Any]:
    """What a plan of either kind says first."""
    return {
        "run_id": run.run_id,
        "kind": run.kind,
        "repository": repository,
        "namespace": run.namespace,
        "now_ms": run.now_ms,
        "settled_slices": len(run.settled_slices),
        "rules": prepared.rules,
        "rules_version": prepared.rules_version,
        "commits": prepared.commits,
        "refs": prepared.refs,
    }


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    sha256: str
    plan: msgspec.Raw


def write_plan(files: Files, plan: Plan) -> None:
    body = msgspec.json.encode(plan)
    sealed = _Sealed(format=PLAN_FORMAT, sha256=hashlib.sha256(body).hexdigest(), plan=msgspec.Raw(body))
    files.write(_plan_path(plan.kind, plan.run_id), msgspec.json.encode(sealed))


def read_plan(files: Files, run_id: str) -> Plan:
    """
    Raises:
        PlanMissing: there is none in the namespace.
        BadInput: it is unreadable, of an unknown format, or was changed.
    """
    for kind in RunKind:
        data = files.find(_plan_path(kind, run_id))
        if data is not None:
            return _decode(data, run_id)
    raise PlanMissing(f"run {run_id} has no finished plan", run_id=run_id)


def list_plans(files: Files) -> list[str]:
    """Ids of the runs with a finished plan, oldest first."""
    found: list[str] = []
    for kind in RunKind:
        root = run_folder(kind, RunId("x")).removesuffix("x/")
        found += [name.removesuffix("/plan.json") for name in files.sizes(root) if name.endswith("/plan.json")]
    return sorted(found)


def _plan_path(kind: RunKind, run_id: str) -> str:
    return f"{run_folder(kind, RunId(run_id))}plan.json"


def _decode(data: bytes, run_id: str) -> Plan:
    name = f"plan of run {run_id}"
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        if sealed.format != PLAN_FORMAT:
            raise BadInput(f"the {name} has the unknown format {sealed.format}", input="plan")
        if hashlib.sha256(bytes(sealed.plan)).hexdigest() != sealed.sha256:
            raise BadInput(f"the {name} contradicts its digest", input="plan")
        plan = msgspec.json.decode(sealed.plan, type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"the {name} is unreadable: {error}", input="plan") from error
    if plan.run_id != run_id:
        raise BadInput(f"the {name} is that of run {plan.run_id}", input="plan")
    return plan


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
