"""Request a sweep of branches from a server: all pages of its plan, then the deletions in turn.

The server decides both; see docs/design/0003-lifecycle.md, "Branches". Needs neither Spark nor the object store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from msgspec.structs import replace

from lakebed.base import Conflict
from lakebed.client import path_to
from lakebed.gc.messages import (
    SWEEP_MAX,
    BranchesPlan,
    BranchesSwept,
    BranchToGo,
    SweepBranches,
    SweptBranch,
    not_tried,
    was_not_tried,
)
from lakebed.operations.gc import lifecycle

from .http_requests import convert

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
