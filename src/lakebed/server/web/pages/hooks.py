"""Runs of hooks, one run with its hooks, and the output of a hook."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.base import NotFound
from lakebed.operations import objects, repositories
from lakebed.server.web.visit import Page, Visit

RUNS: Final = 50
OUTPUT_MAX: Final = 100_000
FOLDER: Final = "_lakefs_actions/"
ROOT: Final = "/repositories/{repository}/hooks"


async def show_all(visit: Visit) -> Response:
    """Show the runs, and the action files of a branch."""
    [name] = visit.args
    runs = await visit.call(
        repositories.LIST_REPOSITORY_RUNS, name, branch=visit.query("branch"), after=visit.query("after"), amount=RUNS
    )
    ref = visit.query("branch")
    if not ref and (repository := await visit.look(repositories.GET_REPOSITORY, name)) is not None:
        ref = repository.default_branch
    actions = await _actions(visit, name, ref) if ref else None
    return visit.render("hooks", name=name, ref=ref, runs=runs, actions=actions)


async def _actions(visit: Visit, name: str, ref: str) -> wire.ObjectStatsList | None:
    try:
        return await visit.look(objects.LIST_OBJECTS, name, ref, prefix=FOLDER, amount=RUNS, user_metadata=False)
    except NotFound:  # The repository is bare, or the branch was deleted but its runs are kept.
        return None


async def show_one(visit: Visit) -> Response:
    name, run_id = visit.args
    run = await visit.call(repositories.GET_RUN, name, run_id)
    hooks = await visit.call(repositories.LIST_RUN_HOOKS, name, run_id, after=visit.query("after"), amount=RUNS)
    output, hook = None, visit.query("hook")
    if hook:
        output = (await visit.call(repositories.GET_RUN_HOOK_OUTPUT, name, run_id, hook))[:OUTPUT_MAX]
    return visit.render("hook_run", name=name, run=run, hooks=hooks, hook=hook, output=output)


PAGES: Final = (
    Page(
        method="GET",
        path=ROOT,
        operations=(repositories.GET_REPOSITORY, repositories.LIST_REPOSITORY_RUNS, objects.LIST_OBJECTS),
        handler=show_all,
    ),
    Page(
        method="GET",
        path=ROOT + "/{run}",
        operations=(repositories.GET_RUN, repositories.LIST_RUN_HOOKS, repositories.GET_RUN_HOOK_OUTPUT),
        handler=show_one,
    ),
)
