"""Collect everything: finish old runs, sweep branches, plan and apply each kind, and purge at the end.

A step that fails does not stop the next one, unless the next would fail, too. The error is raised at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlencode

from msgspec.structs import replace

from lakebed.base import Conflict, Corrupt, LakebedError, OutcomeUnknown, Unavailable, count_of
from lakebed.client import path_to
from lakebed.gc.mark.holding import HeldBack
from lakebed.gc.messages import (
    SWEEP_MAX,
    BranchesPlan,
    BranchesSwept,
    BranchToGo,
    Plan,
    PlanRequest,
    PurgeReport,
    RunKind,
    RunReport,
    RunRequest,
    SweepBranches,
    SweptBranch,
    not_tried,
    was_not_tried,
)
from lakebed.gc.runs.context import Progress
from lakebed.gc.runs.resume import NotFinished, OtherUnfinished, UnfinishedRun, finish_each
from lakebed.operations.gc import lifecycle

from .http_requests import Caller, convert

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


if TYPE_CHECKING:
    from .http_requests import Caller

PAGE: Final = 1_000


def plan_branches(client: Caller, repository: str, *, prefix: str = "") -> BranchesPlan:
    """Read all pages of a plan. Deletes nothing.

    Raises:
        Conflict: the policy changed during the reads.
        NotFound, Denied, Unavailable: no such repository, no permission to plan, no answer.
    """
    path = path_to(lifecycle.PLAN_BRANCH_SWEEP, repository)
    pages: list[BranchesPlan] = []
    while not pages or pages[-1].next_after:
        asked = {"prefix": prefix, "after": pages[-1].next_after if pages else "", "amount": str(PAGE)}
        query = urlencode({name: text for name, text in asked.items() if text}, quote_via=quote, safe="")
        pages.append(convert(client.call("GET", f"{path}?{query}"), BranchesPlan))
        if pages[-1].policy_version != pages[0].policy_version:
            raise Conflict("the policy changed while its plan was read; plan again")
    return replace(pages[-1], branches=tuple(branch for page in pages for branch in page.branches))


def sweep_branches(client: Caller, repository: str, plan: BranchesPlan) -> BranchesSwept:
    """Delete the branches that a plan selects, if they are still due. Stops when the server's store is unavailable.

    Raises:
        Conflict: the policy has another version than the plan. Branches of earlier requests are deleted.
        Denied: the caller may not apply, or not delete a branch. Branches of earlier requests are deleted.
    """
    going = [BranchToGo(branch=branch.branch, state=branch.state) for branch in plan.branches if branch.goes]
    swept: list[SweptBranch] = []
    for at in range(0, len(going), SWEEP_MAX):
        body = SweepBranches(policy_version=plan.policy_version, branches=tuple(going[at : at + SWEEP_MAX]))
        path = path_to(lifecycle.SWEEP_BRANCHES, repository)
        answer = convert(client.call(lifecycle.SWEEP_BRANCHES.method, path, json=body), BranchesSwept)
        swept += answer.branches
        # The server's store is unavailable. List the remaining branches as not tried.
        if any(was_not_tried(branch) for branch in answer.branches):
            break
    swept += [not_tried(branch.branch) for branch in going[len(swept) :]]
    return BranchesSwept(branches=tuple(swept))
