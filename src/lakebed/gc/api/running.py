"""Collect everything: finish old runs, sweep branches, plan and apply each kind, and purge at the end.

A step that fails does not stop the next one, unless the next would fail, too. The error is raised at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lakebed.base import Corrupt, LakebedError, OutcomeUnknown, Unavailable, count_of
from lakebed.gc.mark.holding import HeldBack
from lakebed.gc.messages import BranchesSwept, Plan, PlanRequest, PurgeReport, RunKind, RunReport, RunRequest
from lakebed.gc.runs.context import Progress
from lakebed.gc.runs.resume import NotFinished, OtherUnfinished, UnfinishedRun, finish_each

from .branches import plan_branches, sweep_branches
from .http_requests import Caller

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a run of every kind. `plan` returns None for a kind that is skipped, and reports why."""

    unfinished: Callable[[], list[UnfinishedRun]]
    check_held: Callable[[RunKind], None]
    plan: Callable[[RunKind], Plan | None]
    apply: Callable[[str, str | None], RunReport]
    purge: Callable[[], PurgeReport]
    client: Caller
    repository: str
    progress: Progress


def collect_each(request: RunRequest, steps: Steps) -> Iterator[RunReport | BranchesSwept | PurgeReport]:
    """Take every step, and yield the report of each.

    Raises:
        NotFinished: see `Collector.run`.
    """
    yield from then_purge(_collected(request, steps), steps.purge, steps.progress)


def _collected(request: RunRequest, steps: Steps) -> Iterator[RunReport | BranchesSwept]:
    left: list[str] = []
    # Finish old runs first: they may have objects that a new plan would select again.
    unfinished = _unfinished_or_left(steps, left)
    yield from finish_each(unfinished, steps.apply, steps.progress, left, window=request.window)
    if request.branches:
        yield from _swept_branches(steps, left)
    for kind in kinds_of(request):
        try:
            steps.check_held(kind)
        except HeldBack as error:
            steps.progress(str(error))
            continue
        try:
            plan = steps.plan(kind)
            if plan is not None:
                yield steps.apply(plan.run_id, request.window)
        except (Corrupt, OtherUnfinished) as error:
            # Next to an unfinished run the error may be its consequence. Note it, and continue with the next kind.
            if not left:
                raise
            left.append(f"{kind.data}: {error}")
    if left:
        raise NotFinished("; ".join(left))


def _unfinished_or_left(steps: Steps, left: list[str]) -> list[UnfinishedRun]:
    """Return unfinished runs, or none if they cannot be read."""
    # Plans and applies look for them again.
    try:
        return steps.unfinished()
    except Corrupt as error:
        left.append(str(error))
        steps.progress(left[-1])
        return []


def _swept_branches(steps: Steps, left: list[str]) -> Iterator[BranchesSwept]:
    """Sweep branches. Add an error to `left`."""
    try:
        plan = plan_branches(steps.client, steps.repository)
        going = sum(branch.goes for branch in plan.branches)
        steps.progress(f"branches: {count_of(going, 'branch', 'branches')} of {len(plan.branches):,} to go")
        yield sweep_branches(steps.client, steps.repository, plan)
    except (Unavailable, OutcomeUnknown):
        # No server answers, so a collection would fail, too.
        raise
    except LakebedError as error:
        # Objects can still be collected.
        left.append(f"branches: {error}")
        steps.progress(left[-1])


def then_purge(reports: Iterator[T], purge: Callable[[], PurgeReport], progress: Progress) -> Iterator[T | PurgeReport]:
    """Yield the reports, then the report of a purge, also after an error. The error is raised after the purge.

    Raises:
        Unavailable, OutcomeUnknown: no server answers. The purge is skipped.
    """
    # Do not skip the purge after an error: a kind that fails tonight may fail every night.
    error: LakebedError | None = None
    try:
        yield from reports
    except (Unavailable, OutcomeUnknown):
        raise
    except LakebedError as found:
        error = found
        progress(str(error))
    yield purge()
    if error is not None:
        raise error


def kinds_of(request: PlanRequest | RunRequest) -> Sequence[RunKind]:
    """Return the kinds of a request in the order of their runs, whatever order it names."""
    if request.kinds:
        return [kind for kind in RunKind if kind in request.kinds]
    # Other rules do not affect metadata, so a plan by such rules leaves it out.
    has_rules = isinstance(request, PlanRequest) and request.rules is not None
    return [kind for kind in RunKind if not kind.spec.only_if_named and (kind.takes_objects or not has_rules)]
