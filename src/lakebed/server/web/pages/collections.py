"""Collections: runs and plans, one run, apply with a window, undo, restore, and the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from lakebed.base import Bar, RunKind, RunState, bars, posts, shares
from lakebed.gc import messages
from lakebed.gc.rules import plain_name
from lakebed.operations.gc import collectors
from lakebed.server.http.errors import Answer
from lakebed.server.web.visit import SEARCHED_FILES, Visit, page_at

RUNS: Final = 20
OBJECTS: Final = 50
DIFFERENCES: Final = 25
NAMES: Final = 25
"""Draw at most this many names of a breakdown, the largest. The others are summed."""
ROOT: Final = "/repositories/{repository}/collections"
_BEGUN: Final = frozenset({RunState.SWEEPING, RunState.ENDED, RunState.UNDONE})
KINDS: Final = tuple(kind for kind in RunKind if kind.can_wait)
"""Kinds whose plans can be applied with a window. The command line plans the others."""


@page_at(ROOT)
async def show_all(visit: Visit, name: str) -> Response:
    kind = visit.query("shown")
    plans = await visit.call(collectors.LIST_GC_PLANS, name, kind=kind or None, after=visit.query("after"), amount=RUNS)
    runs = await visit.call(collectors.LIST_GC_RUNS, name)
    jobs = await visit.look(collectors.LIST_GC_JOBS, name)
    states = {run.run_id: run for run in runs.runs}
    return visit.render(
        "collections",
        name=name,
        plans=plans,
        line=line_of(plans, states),
        states=states,
        jobs=jobs,
        is_running=jobs is not None and any(job.state is messages.JobState.RUNNING for job in jobs.jobs),
        kinds=KINDS,
        every_kind=tuple(RunKind),
        shown=kind,
    )


def line_of(plans: messages.PlanList, states: Mapping[str, messages.RunView]) -> list[tuple[float, float, str]]:
    """Return a position, a height and a state for each shown run on a time line. A line needs two runs."""
    shown = plans.plans
    if len({plan.now_ms for plan in shown}) < 2:
        return []
    drawn = posts([plan.now_ms for plan in shown], [plan.total.size_bytes for plan in shown])
    applied = {run_id for run_id, run in states.items() if run.state in _BEGUN}
    return [
        (post.at, post.height, "applied" if plan.run_id in applied else "planned")
        for plan, post in zip(shown, drawn, strict=True)
    ]


@page_at("/repositories/{repository}/storage")
async def show_storage(visit: Visit, name: str) -> Response:
    """Show the storage alone. The overview loads it after the rest of the page. What commits keep is counted here."""
    is_whole = visit.query("committed") == "1"
    storage = await visit.call(
        collectors.GET_GC_STORAGE,
        name,
        committed=is_whole or None,
        files=SEARCHED_FILES if is_whole else None,
        continuation_token=visit.query("continuation_token"),
    )
    if token := storage.continuation_token:
        visit.ask_again("repositories", name, "storage", committed=1, continuation_token=token)
    return visit.render("storage", name=name, storage=storage, stretches=stretches_of(storage))


def stretches_of(storage: messages.Storage) -> list[tuple[str, messages.Total, Bar]]:
    """Return the keepers of the storage, each as a stretch of one bar. `rest` is not yet explained by any record."""
    sums: dict[str, messages.Total] = {}
    for part in storage.parts:
        sums[part.keeper.value] = sums.get(part.keeper.value, messages.Total()).plus(part.total)
    if storage.rest is not None:
        sums["rest"] = storage.rest
    drawn = shares([total.size_bytes for total in sums.values()])
    return [(keeper, total, stretch) for (keeper, total), stretch in zip(sums.items(), drawn, strict=True)]


@page_at(ROOT + "/{run}")
async def show_one(visit: Visit, name: str, run_id: str) -> Response:
    plan = await visit.call(collectors.GET_GC_PLAN, name, run_id)
    state = await state_of(visit, name, run_id)
    objects = await objects_of(visit, name, run_id)
    return visit.render(
        "collection",
        name=name,
        plan=plan,
        difference=await _difference(visit, name, plan) if visit.query("difference") == "1" else None,
        state=state,
        objects=objects,
        ledger=await ledger_of(visit, name, state),
        ways=ways_of(plan),
        # Erasures are applied with a certificate, on their own page.
        may_apply=may_apply(state) and not plan.what_if and plan.kind in KINDS and plan.totals.all.objects > 0,
        may_undo=_may_undo(state),
    )


async def state_of(visit: Visit, name: str, run_id: str) -> messages.RunView | None:
    runs = await visit.call(collectors.LIST_GC_RUNS, name)
    return next((run for run in runs.runs if run.run_id == run_id), None)


async def objects_of(visit: Visit, name: str, run_id: str) -> messages.GarbagePage | None:
    """Return the page of a plan's objects that the address asks for."""
    query = {"prefix": visit.query("prefix"), "after": visit.query("after")}
    return await visit.look(collectors.LIST_GC_PLAN_OBJECTS, name, run_id, amount=OBJECTS, **query)


async def _difference(visit: Visit, name: str, plan: messages.Plan) -> messages.PlanDiff | None:
    """Compare a plan with the previous one of the same kind and by saved rules."""
    before = await visit.call(collectors.LIST_GC_PLANS, name, kind=plan.kind.value, after=plan.run_id, amount=RUNS)
    other = next((each.run_id for each in before.plans if not each.what_if), None)
    if other is None:
        visit.hidden.append("This is the first plan of its kind: there is none before it.")
        return None
    try:
        return await visit.look(collectors.DIFF_GC_PLANS, name, other, plan.run_id, amount=DIFFERENCES)
    except Answer as error:  # The plans have too many objects to compare on a server.
        visit.hidden.append(str(error))
        return None


@show_all.form()
async def plan(visit: Visit, name: str) -> Response:
    """Start a job that plans one kind. It deletes nothing."""
    jobs = await visit.call(collectors.LIST_GC_JOBS, name)
    running = [job.id for job in jobs.jobs if job.state is messages.JobState.RUNNING]
    if running:
        raise Answer(409, f"Job {running[0]} is running in this repository. Wait for its end.")
    kind = next((kind for kind in KINDS if kind.value == visit.entry("kind")), None)
    if kind is None:
        raise Answer(400, "Choose which data to plan for.")
    job = await visit.call(
        collectors.START_GC_JOB, name, body=messages.StartJob(request=messages.PlanRequest(kinds=(kind,)))
    )
    return visit.go("repositories", name, "collections", notice=f"Job {job.id} plans. It deletes nothing.")


@show_one.form("/apply")
async def apply(visit: Visit, name: str, run_id: str) -> Response:
    """Start a job that applies a plan, after the user typed the number of its objects."""
    found = await visit.call(collectors.GET_GC_PLAN, name, run_id)
    visit.check_typed(str(found.totals.all.objects))
    request = messages.ApplyRequest(run_id=run_id, window=visit.entry("window").strip() or None)
    job = await visit.call(collectors.START_GC_JOB, name, body=messages.StartJob(request=request))
    return visit.go("repositories", name, "collections", notice=f"Job {job.id} applies the plan of run {run_id}.")


@show_one.form("/undo")
async def undo(visit: Visit, name: str, run_id: str) -> Response:
    visit.check_typed(run_id)
    undone = await visit.call(collectors.UNDO_GC_RUN, name, run_id, body=messages.Undo())
    rest = "" if undone.is_done else " Some of its records are left: undo it once more."
    return visit.go(
        "repositories", name, "collections", run_id, notice=f"Run {run_id} is undone: its objects stay.{rest}"
    )


@show_one.form("/restore")
async def restore(visit: Visit, name: str, run_id: str) -> Response:
    """Restore a page of a run's objects: one object, a folder, or all."""
    body = messages.Restore(
        run_id=run_id,
        path=visit.entry("path"),
        branch=visit.entry("branch"),
        prefix=visit.entry("prefix"),
        continuation_token=visit.entry("token_of_page") or None,
    )
    page = await visit.call(collectors.RESTORE_GC_OBJECTS, name, body=body)
    return visit.render("restored", name=name, run_id=run_id, body=body, page=page)


async def ledger_of(visit: Visit, name: str, run: messages.RunView | None) -> messages.LedgerPage | None:
    """Return the first rows of the ledger of a run whose deletes may have begun."""
    if run is None or run.state not in _BEGUN:
        return None
    return await visit.look(collectors.LIST_GC_LEDGER, name, run_id=run.run_id, amount=OBJECTS)


def ways_of(plan: messages.Plan) -> list[tuple[str, list[tuple[str, messages.Total, Bar]]]]:
    """Return each breakdown of a plan's objects, without empty ones."""
    totals = plan.totals
    age = ("by age: when it was last written, or a commit last had it", _bars(totals.in_order_of_age()))
    # An erasure has one reason and no rule, and several branches may name one of its objects.
    others = {
        "by reason": totals.by_reason,
        "by rule": totals.by_rule,
        "by branch": plan.by_branch(),
        "by folder": totals.by_prefix,
    }
    if plan.erasure is not None:
        others = {
            "by branch: its head or staged on it; several branches may name an object": plan.by_branch(),
            "by folder": totals.by_prefix,
        }
    return [*([age] if age[1] else []), *ways_by(others)]


def ways_by(
    sums: Mapping[str, Mapping[str, messages.Total]],
) -> list[tuple[str, list[tuple[str, messages.Total, Bar]]]]:
    """Return the rows of each breakdown, the largest first, without empty ones."""
    return [(title, _bars(_largest_first(totals))) for title, totals in sums.items() if totals]


def _largest_first(totals: Mapping[str, messages.Total]) -> dict[str, messages.Total]:
    return dict(sorted(totals.items(), key=lambda row: (-row[1].size_bytes, row[0])))


def _bars(totals: Mapping[str, messages.Total]) -> list[tuple[str, messages.Total, Bar]]:
    """Return the rows of one breakdown."""
    rows = list(totals.items())
    shown, others = rows[:NAMES], rows[NAMES:]
    if others:
        rest = messages.Total()
        for _, total in others:
            rest = rest.plus(total)
        shown.append((f"({len(others):,} others)", rest))
    drawn = bars([total.size_bytes for _, total in shown])
    return [(ref_label(name) or "(none)", total, bar) for (name, total), bar in zip(shown, drawn, strict=True)]


def ref_label(name: str) -> str:
    """Return the name of a branch or tag for people, who know a deleted one by its old name."""
    plain = plain_name(name)
    return name if plain == name else f"{plain} (deleted)"


def may_apply(state: messages.RunView | None) -> bool:
    return state is None or (state.state in {RunState.PLANNING, RunState.MARKED} and not state.until_ms)


def _may_undo(state: messages.RunView | None) -> bool:
    return state is not None and bool(state.until_ms) and not state.is_purging and not state.state.is_over
