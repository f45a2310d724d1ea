"""The lifecycle policy: its rules as a form and as JSON, a check and simulations of one that is not saved, and the
branches that it deletes.

The form has the path, the period and the branches of each rule. Each row carries its rule as it was, so that its
conditions stay as they are, also under a new name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import accumulate
from typing import Any, Final

import msgspec
from starlette.responses import Response

from lakebed.base import Bar, Basis, Dot, curve, size_ticks
from lakebed.gc import messages
from lakebed.gc.rules.lifecycle import is_wide, read_policy
from lakebed.operations.gc import collectors, lifecycle
from lakebed.server.http.errors import Answer
from lakebed.server.web.visit import MALFORMED, Visit, page_at

from .collections import ways_by

ROOT: Final = "/repositories/{repository}/lifecycle"
PLANS: Final = 5
BRANCHES: Final = 30
EMPTY_ROWS: Final = 2
_DAY_S: Final = 86_400
KIND: Final = next(kind for kind in messages.RunKind if kind.spec.basis is Basis.POLICY)
_FIRST: Final = '{\n  "rules": {\n    "logs": {"prefix": "logs/", "period": "90d"}\n  }\n}'
"""The initial text of the form when no policy is in force."""


@page_at(ROOT)
async def show(visit: Visit, name: str) -> Response:
    return await _page(visit, name)


@show.form("/check")
async def check(visit: Visit, name: str) -> Response:
    """Show every error and warning of the entered policy, which stays in the form and is not saved."""
    text = await _entered(visit)
    checked = await visit.call(lifecycle.VALIDATE_LIFECYCLE_POLICY, name, body=_body(text))
    return await _page(visit, name, text, checked)


@show.form("/simulate")
async def simulate(visit: Visit, name: str) -> Response:
    """Start a job that simulates the policy in force, or the entered one. It deletes nothing."""
    days = visit.entry("days").strip()
    if not (days.isascii() and days.isdigit() and len(days) < 6):
        raise Answer(400, f"Write a number of days, not {days or 'nothing'}.")
    text = "" if visit.query("by") == "saved" else await _entered(visit)
    if text:
        _body(text)
        in_force = await visit.call(lifecycle.GET_LIFECYCLE_POLICY, name)
        # Branches are simulated by the policy in force alone.
        text = "" if _wide(text) == _wide(in_force.text() or "") else text
    request = messages.SimulateRequest(days=int(days), policy=text)
    job = await visit.call(collectors.START_GC_JOB, name, body=messages.StartJob(request=request))
    notice = f"Job {job.id} simulates. It deletes nothing, and saves no policy."
    return visit.go("repositories", name, "lifecycle", notice=notice, simulation=job.id)


@show.form()
async def save(visit: Visit, name: str) -> Response:
    visit.check_typed(name)
    written = await visit.call(
        lifecycle.SET_LIFECYCLE_POLICY,
        name,
        body=_body(await _entered(visit)),
        if_version=visit.entry("if_version") or "0",
    )
    warnings = "".join(f" Warning: {each}." for each in written.warnings[:3])
    return visit.go(
        "repositories",
        name,
        "lifecycle",
        notice=f"Version {written.version} is in force. Nothing was deleted.{warnings}",
    )


@show.form("/remove")
async def remove(visit: Visit, name: str) -> Response:
    visit.check_typed(name)
    await visit.call(lifecycle.DELETE_LIFECYCLE_POLICY, name, if_version=visit.entry("if_version") or "0")
    return visit.go("repositories", name, "lifecycle", notice="No policy is in force. The versions stay.")


@show.form("/branches")
async def sweep(visit: Visit, name: str) -> Response:
    """Delete the branches that the page showed, as far as the policy still lets them go."""
    going = [
        messages.BranchToGo(branch=branch, state=state)
        for branch, state in zip(visit.entered.get("branch", ()), visit.entered.get("state", ()), strict=False)
    ][: messages.SWEEP_MAX]
    visit.check_typed(str(len(going)))
    version = visit.entry("if_version")
    body = messages.SweepBranches(policy_version=int(version) if version.isdecimal() else 0, branches=tuple(going))
    swept = await visit.call(lifecycle.SWEEP_BRANCHES, name, body=body)
    return visit.go("repositories", name, "lifecycle", notice=_swept(swept.branches))


def _swept(branches: Sequence[messages.SweptBranch]) -> str:
    deleted = sum(each.is_deleted for each in branches)
    stays = "".join(f" {each.branch} stays: {each.why}." for each in branches if not each.is_deleted)
    return f"Deleted {deleted} branch{'' if deleted == 1 else 'es'}, which can be undeleted for a while.{stays}"


async def _page(visit: Visit, name: str, text: str = "", checked: messages.PolicyCheck | None = None) -> Response:
    version = await visit.call(lifecycle.GET_LIFECYCLE_POLICY, name, version=visit.query("version"))
    history = await visit.look(lifecycle.LIST_LIFECYCLE_POLICY_HISTORY, name, amount=20)
    plans = await visit.look(collectors.LIST_GC_PLANS, name, kind=KIND.value, amount=PLANS)
    in_force = version.text()
    policy = None if in_force is None else read_policy(in_force.encode())[0]
    branches = None
    if policy is not None and policy.branches:
        branches = await visit.look(
            lifecycle.PLAN_BRANCH_SWEEP,
            name,
            prefix=visit.query("prefix"),
            after=visit.query("after"),
            amount=BRANCHES,
        )
    jobs = await visit.look(collectors.LIST_GC_JOBS, name)
    drawn = None if jobs is None else _simulated(jobs.jobs, visit.query("simulation"), version.version)
    tried = drawn.request.policy if drawn is not None and visit.query("simulation") else ""
    shown = text or visit.entry("policy") or tried or in_force or _FIRST
    entered = _wide(shown)
    return visit.render(
        "lifecycle",
        name=name,
        version=version,
        policy=policy,
        history=history,
        plans=plans,
        branches=branches,
        going=[] if branches is None else [each for each in branches.branches if each.goes],
        checked=checked,
        text=shown,
        rows=_rows_of(entered, () if visit.entered else [rule.id for rule in read_policy(shown.encode())[0].rules]),
        idle_rows=_idle_rows_of(entered),
        kind=KIND,
        simulated=drawn,
        is_running=jobs is not None and _is_running(jobs.jobs),
    )


# Simulations


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One simulation, drawn. `line`: the bytes that went by each day; `before`: the same by the policy in force.

    `dates`: each date with deletes, its day from today, its total, and the number of branches that a sweep deletes.
    `ticks` and `labels`: the even steps of the height and of the days.
    """

    job: messages.JobView
    request: messages.SimulateRequest
    sums: messages.SimulatedSums | None
    line: list[Dot]
    before: list[Dot]
    in_force: messages.SimulatedSums | None
    dates: list[tuple[str, int, messages.Total, int]]
    ticks: list[int]
    labels: list[str]
    # A row of `ways` is of branches without a period of their own.
    has_own: bool
    ways: list[tuple[str, list[tuple[str, messages.Total, Bar]]]]


def _simulated(jobs: Sequence[messages.JobView], chosen: str, version: int) -> Simulated | None:
    """Return the chosen simulation, or else the newest of the policy in force. Without either return None."""
    ours = [(job, job.request) for job in jobs if isinstance(job.request, messages.SimulateRequest)]
    of_force = [
        (job, request) for job, request in ours if (sums := _sums_of_job(job)) and sums.policy_version == version
    ]
    shown = next(((job, request) for job, request in ours if job.id == chosen), None) or next(iter(of_force), None)
    if shown is None:
        return None
    job, request = shown
    sums = _sums_of_job(job)
    others = (_sums_of_job(job) for job, _ in of_force)
    in_force = next((other for other in others if other and other.days == request.days), None)
    if sums is None or in_force == sums:
        in_force = None
    days = [] if sums is None else _by_day(sums)
    before = [] if in_force is None else _by_day(in_force)
    ticks = size_ticks(max([*days, *before], default=0))
    by_branch = {} if sums is None else {messages.kept_by(name): total for name, total in sums.by_branch.items()}
    return Simulated(
        job=job,
        request=request,
        sums=sums,
        line=curve(range(len(days)), days, highest=ticks[-1]),
        before=curve(range(len(before)), before, highest=ticks[-1]),
        in_force=in_force,
        dates=[] if sums is None else _dates(sums),
        ticks=ticks,
        labels=[] if sums is None else _labels(sums),
        has_own=messages.kept_by(messages.OWN_PERIOD) in by_branch,
        ways=[] if sums is None else ways_by({"by rule": sums.by_rule, "by branch that kept it last": by_branch}),
    )


def _is_running(jobs: Sequence[messages.JobView]) -> bool:
    return any(
        job.state is messages.JobState.RUNNING and isinstance(job.request, messages.SimulateRequest) for job in jobs
    )


def _sums_of_job(job: messages.JobView) -> messages.SimulatedSums | None:
    return next((each.simulation for each in job.results if each.simulation is not None), None)


def _by_day(sums: messages.SimulatedSums) -> list[int]:
    """Return the bytes that went up to each day, from today on."""
    dates = (_day_of(sums, day).isoformat() for day in range(sums.days + 1))
    return list(accumulate(sums.by_date.get(date, messages.Total()).size_bytes for date in dates))


def _dates(sums: messages.SimulatedSums) -> list[tuple[str, int, messages.Total, int]]:
    branches = sums.branches_by_date or {}
    dates = sorted({*sums.by_date, *branches})
    today = _day_of(sums, 0)
    return [
        (each, (date.fromisoformat(each) - today).days, sums.by_date.get(each, messages.Total()), branches.get(each, 0))
        for each in dates
    ]


def _labels(sums: messages.SimulatedSums) -> list[str]:
    """Return the dates below the curve: its two ends, and even steps between them where the days have such."""
    steps = next((count for count in (4, 3, 2) if sums.days % count == 0), 1)
    return [f"{_day_of(sums, sums.days * step // steps):%d %b}" for step in range(steps + 1)]


def _day_of(sums: messages.SimulatedSums, days: int) -> date:
    return datetime.fromtimestamp(sums.now_ms // 1000 + days * _DAY_S, UTC).date()


# The form


async def _entered(visit: Visit) -> str:
    """Return the policy of either form as JSON."""
    if visit.query("by") != "fields":
        return visit.entry("policy")
    version = await visit.call(lifecycle.GET_LIFECYCLE_POLICY, visit.args[0])
    policy = _wide(version.text() or "{}")
    rows = _columns(visit, "id", "was", "path", "period", "exceptions")
    policy["rules"] = {
        id_.strip(): _rule(_before(was), path, period.strip(), exceptions)
        for id_, was, path, period, exceptions in rows
        if id_.strip()
    }
    policy["branches"] = {
        pattern.strip(): {**_before(was), "idle": idle.strip()}
        for pattern, was, idle in _columns(visit, "pattern", "idle_was", "idle")
        if pattern.strip()
    }
    kept = {part: value for part, value in policy.items() if value}
    return msgspec.json.format(msgspec.json.encode(kept), indent=2).decode()


def _columns(visit: Visit, *fields: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the form. One that lacks a field would lose a rule or a condition."""
    columns = [visit.entered.get(each, []) for each in fields]
    if len({len(column) for column in columns}) > 1:
        raise Answer(400, f"Each row has the fields {', '.join(fields)}")
    return zip(*columns, strict=True)


def _before(text: str) -> dict[str, Any]:
    """Return the rule that a row was made of. An empty row has none."""
    try:
        rule = msgspec.json.decode((text or "{}").encode())
    except MALFORMED as error:
        raise Answer(400, f"This is no rule: {error}") from error
    if not _is_map(rule):
        raise Answer(400, "This is no rule")
    return dict(rule)


def _rule(before: Mapping[str, Any], path: str, period: str, exceptions: str) -> dict[str, Any]:
    """Return a rule with the entered path and periods, and its other fields as they were."""
    changed = {"prefix", "path", "days", "period", "branch_days", "branches"}
    rule = {field: value for field, value in before.items() if field not in changed}
    # A glob stays one without a star, too: as a prefix it would reach more. Until changed, a prefix may have a star.
    is_prefix = before.get("prefix") == path or ("path" not in before and "*" not in path)
    rule["prefix" if is_prefix else "path"] = path
    if period:
        rule["period"] = period
    pairs = [line.partition("=") for line in exceptions.replace(",", " ").split()]
    if wrong := next((pair[0] for pair in pairs if not (pair[0] and pair[2])), None):
        raise Answer(400, f"{wrong!r} is not BRANCH=PERIOD")
    if pairs:
        rule["branches"] = {branch: value for branch, _, value in pairs}
    return rule


def _path_of(rule: Mapping[str, Any]) -> str:
    return str(rule.get("prefix", rule.get("path", "")))


def _rows_of(policy: Mapping[str, Any], order: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the rules of a policy as rows of the form, these first, and empty rows for new ones."""
    found = policy.get("rules", {})
    rules = found if _is_map(found) else {}
    rows = []
    for id_ in dict.fromkeys([*order, *rules]):
        rule = rules.get(id_)
        if not isinstance(rule, dict):
            continue
        days, branch_days, branches = rule.get("days"), rule.get("branch_days", {}), rule.get("branches", {})
        exceptions = {branch: f"{value}d" for branch, value in branch_days.items()} if _is_map(branch_days) else {}
        exceptions |= branches if _is_map(branches) else {}
        period = f"{days}d" if days is not None else str(rule.get("period", ""))
        on_branches = " ".join(f"{branch}={value}" for branch, value in exceptions.items())
        rows.append((id_, _json(rule), _path_of(rule), period, on_branches))
    return [*rows, *[("",) * 5] * EMPTY_ROWS]


def _idle_rows_of(policy: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    branches = policy.get("branches", {})
    found = branches.items() if _is_map(branches) else ()
    rows = [(pattern, _json(rule), str(rule.get("idle", ""))) for pattern, rule in found if _is_map(rule)]
    return [*rows, ("", "", "")]


def _json(rule: Mapping[str, Any]) -> str:
    return msgspec.json.encode(rule).decode()


def _wide(text: str) -> dict[str, Any]:
    """Return a policy in the wide form. Empty if it is no JSON object."""
    try:
        policy = msgspec.json.decode(text.encode())
    except MALFORMED:
        return {}
    if not _is_map(policy):
        return {}
    return policy if is_wide(policy) else {"rules": policy}


def _is_map(value: object) -> bool:
    return isinstance(value, dict)


def _body(text: str) -> messages.SetPolicy:
    try:
        msgspec.json.decode(text.encode())
    except MALFORMED as error:
        raise Answer(400, f"This is no JSON: {error}") from error
    return messages.SetPolicy(policy=msgspec.Raw(text.encode()))
