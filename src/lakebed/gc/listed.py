"""The runs of a repository in one list: those that the server knows, and plans that nobody applied."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lakebed.gc.protocol import Plan, RunKind, RunState, RunView

from .files import Files
from .runs import list_plans, read_plan
from .unfinished import unfinished_runs


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is that of the run's record; `planned` or, by supposed rules, `supposed` where it has none. `objects` and
    `size_bytes` are what the plan takes, None where there is no finished plan, or where the run ended and none of it
    was deleted (`nothing_deleted`). `has_begun`: its deletes may have begun, and it has not ended.
    """

    run_id: str
    kind: RunKind
    state: str
    started_ms: int
    objects: int | None = None
    size_bytes: int | None = None
    what_if: bool = False
    nothing_deleted: bool = False
    has_begun: bool = False


def list_runs(files: Files, views: Iterable[RunView], *, limit: int) -> list[ListedRun]:
    """The newest first, at most `limit`. Costs a listing of the run folders, and one read for each that is shown."""
    known = {view.run_id: view for view in views}
    planned = set(list_plans(files))
    newest = sorted({*known, *planned}, reverse=True)[:limit]
    begun = {run.run_id for run in unfinished_runs(files, [known[id_] for id_ in newest if id_ in known])}
    found = [_listed(id_, known.get(id_), read_plan(files, id_) if id_ in planned else None) for id_ in newest]
    return [msgspec.structs.replace(run, has_begun=run.run_id in begun) for run in found]


def ended_without_deleting(view: RunView) -> bool:
    """A run that ended has a plan on its record only if that was, or may have been, carried out."""
    return view.state is RunState.ENDED and not view.plan


def _listed(run_id: str, view: RunView | None, plan: Plan | None) -> ListedRun:
    if view is not None and ended_without_deleting(view):
        return ListedRun(
            run_id=run_id, kind=view.kind, state=view.state.value, started_ms=view.started_ms, nothing_deleted=True
        )
    if plan is None:
        assert view is not None, "a run is listed for its record or for its plan"
        return ListedRun(run_id=run_id, kind=view.kind, state=view.state.value, started_ms=view.started_ms)
    return ListedRun(
        run_id=run_id,
        kind=plan.kind,
        state=view.state.value if view is not None else "supposed" if plan.what_if else "planned",
        started_ms=plan.now_ms,
        objects=plan.totals.all.objects,
        size_bytes=plan.totals.all.size_bytes,
        what_if=plan.what_if,
    )
