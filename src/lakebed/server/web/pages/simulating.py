"""Draw what rules would delete in the coming days: trials of retention rules, and simulations of a lifecycle policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final

from lakebed.base import Bar, Dot, bars, curve
from lakebed.gc.messages import JobState, JobView, RulesTrial, SimulatedSums, SimulateRequest, Total, TriedDay

from .collections import ways_by

_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One simulation, drawn. `line`: the bytes that went by each day; `before`: the same by the policy in force.

    `dates`: each date with deletes, its total, and the number of branches that a sweep deletes.
    """

    job: JobView
    request: SimulateRequest
    sums: SimulatedSums | None
    line: list[Dot]
    before: list[Dot]
    in_force: SimulatedSums | None
    dates: list[tuple[str, Total, int]]
    ways: list[tuple[str, list[tuple[str, Total, Bar]]]]


def simulated(jobs: Sequence[JobView], chosen: str, version: int) -> Simulated | None:
    """Return the chosen simulation, or else the newest of the policy in force. Without either return None."""
    ours = [(job, job.request) for job in jobs if isinstance(job.request, SimulateRequest)]
    of_force = [
        (job, request) for job, request in ours if (sums := sums_of_job(job)) and sums.policy_version == version
    ]
    shown = next(((job, request) for job, request in ours if job.id == chosen), None) or next(iter(of_force), None)
    if shown is None:
        return None
    job, request = shown
    sums = sums_of_job(job)
    others = (sums_of_job(job) for job, _ in of_force)
    in_force = next((other for other in others if other and other.days == request.days), None)
    if sums is None or in_force == sums:
        in_force = None
    days = [] if sums is None else _by_day(sums)
    before = [] if in_force is None else _by_day(in_force)
    highest = max([*days, *before], default=0)
    return Simulated(
        job=job,
        request=request,
        sums=sums,
        line=curve(range(len(days)), days, highest=highest),
        before=curve(range(len(before)), before, highest=highest),
        in_force=in_force,
        dates=[] if sums is None else _dates(sums),
        ways=[] if sums is None else ways_by({"by rule": sums.by_rule, "by branch that kept it last": sums.by_branch}),
    )


def is_running(jobs: Sequence[JobView]) -> bool:
    return any(job.state is JobState.RUNNING and isinstance(job.request, SimulateRequest) for job in jobs)


def sums_of_job(job: JobView) -> SimulatedSums | None:
    return next((each.simulation for each in job.results if each.simulation is not None), None)


def _by_day(sums: SimulatedSums) -> list[int]:
    """Return the bytes that went up to each day, from today on."""
    today = sums.now_ms // 1000
    dates = (datetime.fromtimestamp(today + day * _DAY_S, UTC).date().isoformat() for day in range(sums.days + 1))
    return list(accumulate(sums.by_date.get(date, Total()).size_bytes for date in dates))


def _dates(sums: SimulatedSums) -> list[tuple[str, Total, int]]:
    branches = sums.branches_by_date or {}
    dates = sorted({*sums.by_date, *branches})
    return [(date, sums.by_date.get(date, Total()), branches.get(date, 0)) for date in dates]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A trial of retention rules, drawn: each day with its bar, and the bytes over the days (empty: not counted)."""

    days: list[tuple[TriedDay, Bar]]
    line: list[Dot]


def tried(trial: RulesTrial) -> Tried:
    rows = [TriedDay(days=0, expired=trial.expired, at_most=trial.at_most), *trial.days]
    sizes = [day.at_most.size_bytes for day in rows if day.at_most is not None]
    is_counted = len(sizes) == len(rows)
    values = sizes if is_counted else [day.expired for day in rows]
    return Tried(
        days=list(zip(rows, bars(values), strict=True)),
        line=curve([day.days for day in rows], sizes, highest=max(sizes)) if is_counted else [],
    )
