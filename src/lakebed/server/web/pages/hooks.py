"""Programs that follow the repository: runs of hooks with their output, and subscriptions to events."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.base import ACTIONS_FOLDER, NotFound
from lakebed.operations import events, objects, repositories
from lakebed.server.http.errors import Answer
from lakebed.server.web.visit import Visit, page_at

RUNS: Final = 50
OUTPUT_MAX: Final = 100_000
ROOT: Final = "/repositories/{repository}/hooks"
EVENTS: Final = "/repositories/{repository}/events"
EVENTS_SHOWN: Final = 30
SUBSCRIPTIONS: Final = 50


@page_at(ROOT)
async def show_all(visit: Visit, name: str) -> Response:
    """Show the runs, and the action files of a branch."""
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
        return await visit.look(
            objects.LIST_OBJECTS, name, ref, prefix=ACTIONS_FOLDER, amount=RUNS, user_metadata=False
        )
    except NotFound:  # The repository is bare, or the branch was deleted but its runs are kept.
        return None


@page_at(ROOT + "/{run}")
async def show_one(visit: Visit, name: str, run_id: str) -> Response:
    run = await visit.call(repositories.GET_RUN, name, run_id)
    hooks = await visit.call(repositories.LIST_RUN_HOOKS, name, run_id, after=visit.query("after"), amount=RUNS)
    output, hook = None, visit.query("hook")
    if hook:
        output = (await visit.call(repositories.GET_RUN_HOOK_OUTPUT, name, run_id, hook))[:OUTPUT_MAX]
    return visit.render("hook_run", name=name, run=run, hooks=hooks, hook=hook, output=output)


@page_at(EVENTS)
async def show_events(visit: Visit, name: str) -> Response:
    """Show the subscriptions, and a page of events: the last ones, or those behind a position."""
    every = (await visit.call(events.LIST_EVENT_SUBSCRIPTIONS, name)).results
    after = visit.query("after")
    page = await visit.look(events.LIST_EVENTS, name, after=after or None, amount=EVENTS_SHOWN if after else 1)
    if page is not None and not after and page.last > 1:
        page = await visit.look(events.LIST_EVENTS, name, after=max(0, page.last - EVENTS_SHOWN), amount=EVENTS_SHOWN)
    return visit.render("events", name=name, subscriptions=every, most=SUBSCRIPTIONS, events=page, rows=EVENTS_SHOWN)


@show_events.form()
async def subscribe(visit: Visit, name: str) -> Response:
    body = wire.NewSubscription(
        target=visit.entry("target").strip(),
        refs=visit.entry("refs").split(),
        operations=visit.entry("operations").split(),
    )
    made = await visit.call(events.CREATE_EVENT_SUBSCRIPTION, name, body=body)
    return visit.render("subscribed", name=name, subscription=made)


@show_events.form("/{subscription}/replay")
async def replay(visit: Visit, name: str, subscription: str) -> Response:
    after = visit.entry("after").strip()
    if not (after.isascii() and after.isdigit() and len(after) < 16):
        raise Answer(400, f"Write the position of an event, not {after or 'nothing'}.")
    await visit.call(events.REPLAY_EVENTS, name, subscription, body=wire.Replay(after=int(after)))
    notice = f"{subscription} gets the events behind position {after} again."
    return visit.go("repositories", name, "events", notice=notice)


end = show_events.carry_out(
    "/{subscription}/end",
    events.DELETE_EVENT_SUBSCRIPTION,
    "repository subscription",
    "Ended the subscription {subscription}.",
    typed="subscription",
)
