"""Pull requests: the list, a new one, one with its difference; merge, close and open again."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.operations import history, repositories
from lakebed.server.web.visit import Page, Visit

from .objects import REFS, ROWS

STATUSES: Final = ("open", "closed", "all")


async def show_all(visit: Visit) -> Response:
    [name] = visit.args
    status = visit.query("status", "open")
    pulls = await visit.call(
        repositories.LIST_PULL_REQUESTS, name, status=status, after=visit.query("after"), amount=ROWS
    )
    branches = await visit.look(history.LIST_BRANCHES, name, amount=REFS)
    return visit.render("pulls", name=name, pulls=pulls, status=status, statuses=STATUSES, branches=branches)


async def create(visit: Visit) -> Response:
    [name] = visit.args
    body = wire.PullRequestCreation(
        title=visit.entry("title"),
        description=visit.entry("description"),
        source_branch=visit.entry("source"),
        destination_branch=visit.entry("destination"),
    )
    made = await visit.call(repositories.CREATE_PULL_REQUEST, name, body=body)
    return visit.go("repositories", name, "pulls", made.id, notice="Opened the pull request.")


async def show_one(visit: Visit) -> Response:
    name, number = visit.args
    pull = await visit.call(repositories.GET_PULL_REQUEST, name, number)
    changes = None
    if pull.status == "open":
        changes = await visit.look(
            history.DIFF_REFS,
            name,
            pull.destination_branch,
            pull.source_branch,
            after=visit.query("after"),
            amount=ROWS,
        )
    return visit.render("pull", name=name, pull=pull, changes=changes)


async def merge(visit: Visit) -> Response:
    name, number = visit.args
    await visit.call(repositories.MERGE_PULL_REQUEST, name, number)
    return visit.go("repositories", name, "pulls", number, notice="Merged.")


async def change(visit: Visit) -> Response:
    """Close the pull request, or reopen it."""
    name, number = visit.args
    status = visit.query("status")
    await visit.call(repositories.UPDATE_PULL_REQUEST, name, number, body=wire.PullRequestBasic(status=status))
    return visit.go("repositories", name, "pulls", number, notice=f"The pull request is {status}.")


_ALL: Final = Page(
    method="GET",
    path="/repositories/{repository}/pulls",
    operations=(repositories.LIST_PULL_REQUESTS, history.LIST_BRANCHES),
    handler=show_all,
)
_ONE: Final = Page(
    method="GET",
    path="/repositories/{repository}/pulls/{pull}",
    operations=(repositories.GET_PULL_REQUEST, history.DIFF_REFS),
    handler=show_one,
)
_FORMS: Final = (
    (_ALL, "", repositories.CREATE_PULL_REQUEST, create),
    (_ONE, "/merge", repositories.MERGE_PULL_REQUEST, merge),
    (_ONE, "/status", repositories.UPDATE_PULL_REQUEST, change),
)
PAGES: Final = (
    _ALL,
    _ONE,
    *(
        Page(method="POST", path=page.path + end, operations=(operation,), handler=handler, shown_by=page)
        for page, end, operation, handler in _FORMS
    ),
)
