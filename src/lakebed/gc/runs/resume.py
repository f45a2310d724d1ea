"""Find the runs whose deletes began and that have not ended, their options, and their objects.

Such a run owns the objects of its table until it ends: an apply died, deletes failed, or the run is deferred.

1. `begin` writes `apply.json` before the run may delete; a later apply continues with the same window
2. uncommitted plans treat the run's objects as named (`held_tables`)
3. two runs with plans made side by side may hold one object: if one has a window, `take_turn` admits only one run
4. a nightly `run` first finishes these runs (`finish_each`); a deferred run waits for its window instead

The run's record has the digest of its table. A table that differs, or cannot be read, stops every run that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec
import pyarrow.compute as pc

from lakebed.base import Conflict, Corrupt, LakebedError, NotFound, RunId, Tasks
from lakebed.gc.engines.failures import TaskStopped
from lakebed.gc.messages import (
    COMMITS,
    DELETES_ALLOWED,
    EXPIRED,
    RECHECK,
    BadInput,
    Cleared,
    Manifest,
    Plan,
    PlanMissing,
    RunKind,
    RunMode,
    RunReport,
    RunState,
    RunView,
    decode_recheck,
    read_json,
    run_folder,
)
from lakebed.objectstore import ObjectStore

from .context import Overtaken, Progress, RunContext, find, read_plan, sizes, write_once

APPLY_FILE: Final = "apply.json"
SWEEP_FILE: Final = "sweep.json"
_TURN: Final = "turn."


class OtherUnfinished(Conflict):
    """Another run may hold the same objects, and one of the two has a window. Facts: `run_id` of the other run."""


class WindowTooLate(Conflict):
    """The run cannot be deferred: some objects may be deleted already. Facts: `run_id`."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """`apply.json`: the start of the run's first apply, and the window requested last. Empty: no window."""

    began_ms: int
    window: str = ""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """`sweep.json`: the start of a run's first sweep."""

    started_ms: int

    @property
    def date(self) -> str:
        """Return the date (YYYY-MM-DD, UTC) in the names of the run's ledger."""
        return datetime.fromtimestamp(self.started_ms / 1000, UTC).date().isoformat()


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """`turn.<6 digits>.json`: the run takes its turn, to delete now or after a window (`has_window`).

    With the id of another run, that run goes first.
    """

    run_id: str
    has_window: bool


class UnfinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose deletes may have begun."""

    run_id: str
    kind: RunKind
    state: RunState
    began_ms: int
    # See `Begun`; empty once it is over.
    window: str
    # The run waits for the end of its window.
    is_deferred: bool = False
    # The window is over.
    is_purging: bool = False
    # The run took its turn to delete at once, so a window comes too late.
    may_delete: bool = False
    # Its files were not read: `began_ms` is when the run began, and `window` is unknown.
    is_by_record: bool = False


async def begin(context: RunContext, plan: Plan, window: str | None) -> str | None:
    """Record the window with which the run is carried out, before the run may delete. Return the window, if any.

    A window requested now replaces an earlier one.
    """
    before = await read_begun(context.store, context.ports.tasks, plan.kind, plan.run_id)
    wanted = window or (before.window if before else "")
    if before is None or before.window != wanted:
        began_ms = before.began_ms if before else context.ports.clock.now_ms()
        # Write before any delete is allowed: after a crash the next apply must not delete without the window.
        begun = msgspec.json.encode(Begun(began_ms=began_ms, window=wanted))
        await context.store.put(f"{plan.folder}{APPLY_FILE}", begun)
    return wanted or None


async def read_begun(store: ObjectStore, tasks: Tasks, kind: RunKind, run_id: str) -> Begun | None:
    """Read `apply.json`, or raise BadInput. Return None if no apply of the run began."""
    return (await _read(store, tasks, [(kind, run_id)]))[0]


async def read_started(store: ObjectStore, plan: Plan) -> Started | None:
    """Read `sweep.json`, or raise BadInput. Return None if the run has not reached its first sweep."""
    data = await find(store, f"{plan.folder}{SWEEP_FILE}")
    return None if data is None else _decode_started(data, plan)


async def start_sweep(context: RunContext, plan: Plan) -> Started:
    """Return the start of the run's first sweep, and record it if this is the first. Its date names the ledger."""
    key = f"{plan.folder}{SWEEP_FILE}"
    data = await find(context.store, key)
    # Every apply must find the same ledger, also after midnight, so the first apply fixes the date.
    if data is None:
        started = msgspec.json.encode(Started(started_ms=context.ports.clock.now_ms()))
        data = await write_once(context.store, key, started)
    return _decode_started(data, plan)


def _decode_started(data: bytes, plan: Plan) -> Started:
    return read_json(data, Started, what=f"{plan.folder}{SWEEP_FILE}", name=SWEEP_FILE)


async def _all_begun(store: ObjectStore, tasks: Tasks, views: Sequence[RunView]) -> list[Begun | None]:
    return await _read(store, tasks, [(view.kind, view.run_id) for view in views])


async def _read(store: ObjectStore, tasks: Tasks, runs: Sequence[tuple[RunKind, str]]) -> list[Begun | None]:
    names = [f"{run_folder(kind, RunId(run_id))}{APPLY_FILE}" for kind, run_id in runs]
    files = {key: data async for key, data in tasks.ahead(names, partial(find, store))}
    return [_begun(run_id, files[name]) for (_, run_id), name in zip(runs, names, strict=True)]


def _begun(run_id: str, data: bytes | None) -> Begun | None:
    return None if data is None else read_json(data, Begun, what=f"how run {run_id} was begun", name=APPLY_FILE)


async def unfinished_runs(store: ObjectStore, tasks: Tasks, views: Iterable[RunView]) -> list[UnfinishedRun]:
    """Return the unfinished runs in the order in which to finish them: first those to defer, then the oldest."""
    unfinished = [run for run in await holding_runs(store, tasks, views) if not run.is_deferred]
    turns = [_own_turn(run.run_id, await _turns(store, _folder(run))) for run in unfinished]
    unfinished = [
        msgspec.structs.replace(run, may_delete=turn is not None and not turn.has_window)
        for run, turn in zip(unfinished, turns, strict=True)
    ]
    return sorted(unfinished, key=lambda run: (not run.window, run.run_id))


async def holding_runs(store: ObjectStore, tasks: Tasks, views: Iterable[RunView]) -> list[UnfinishedRun]:
    """Return the runs that may delete objects, now or after a window. Costs a small read for each of them."""
    views = [view for view in views if view.state in DELETES_ALLOWED]
    runs = zip(views, await _all_begun(store, tasks, views), strict=True)
    return [
        UnfinishedRun(
            run_id=view.run_id,
            kind=view.kind,
            state=view.state,
            began_ms=begun.began_ms if begun else view.started_ms,
            window="" if view.is_purging or begun is None else begun.window,
            is_deferred=view.until_ms is not None and not view.is_purging,
            is_purging=view.is_purging,
        )
        for view, begun in runs
        if begun is not None or view.state is RunState.SWEEPING
    ]


async def check_window(context: RunContext, plan: Plan, window: str | None) -> None:
    """Refuse a window for a run that began to delete without one. For a run that is not deferred yet.

    Raises:
        WindowTooLate: an apply without a window took the run's turn.
    """
    if window is None:
        return
    turn = _own_turn(plan.run_id, await _turns(context.store, plan.folder))
    if turn is not None and not turn.has_window:
        raise _too_late(plan)


async def check_beside(context: RunContext, views: Sequence[RunView], plan: Plan, window: str | None) -> None:
    """Refuse an apply that could only wait for another run. Skip the check if the run's deletes may have begun.

    Raises:
        OtherUnfinished: another run may hold the same objects, and one of the two keeps them for a window.
        BadInput: the plan of the other run cannot be read. The message names the run.
    """
    tasks = context.ports.tasks
    own = [view for view in views if view.run_id == plan.run_id]
    # A run whose deletes may have begun is admitted or refused by its turn.
    if not plan.kind.takes_objects or await holding_runs(context.store, tasks, own):
        return
    before = await read_begun(context.store, tasks, plan.kind, plan.run_id)
    for run in await _conflicting(context, views, plan, window or (before.window if before else "")):
        raise _refused(plan, run)


async def take_turn(context: RunContext, plan: Plan, *, asked: str | None, wanted: str | None) -> str | None:
    """Take this run's turn, for good, before all runs that may hold its objects. Return the window in force.

    Call it after the run's record allows deletes, and before the run deletes or is deferred.

    Turns are numbered files in a run's folder, each written once. A run reads its own turns. It then writes the next
    turn of each other run, with its own id. Last it writes its own next turn.

    Raises:
        OtherUnfinished: another run took its turn, or is about to.
        WindowTooLate: an apply without a window took this run's turn.
        Overtaken: an apply with a window took this run's turn.
        BadInput: see `check_beside`.
    """
    if not plan.kind.takes_objects:
        return wanted
    # Two runs cannot both take their turns: each would have read its own turns after the other run wrote there, and
    # before it wrote to the other run. Without a concurrent apply a run succeeds, unless another run took its turn
    # before. That run can continue.
    store, mine = context.store, Turn(run_id=plan.run_id, has_window=bool(wanted))
    turns = await _turns(store, plan.folder)
    taken = _own_turn(plan.run_id, turns)
    for run in await _conflicting(context, await context.service.runs(), plan, wanted or ""):
        if run.is_deferred or run.is_purging or not await _put_behind(store, run, mine, is_asked=taken is None):
            raise _refused(plan, run)
    if taken is None:
        taken = await _write_turn(store, plan.folder, len(turns), mine)
    if taken.run_id != plan.run_id:
        raise OtherUnfinished(f"run {taken.run_id} is about to go first: apply again", run_id=taken.run_id)
    if taken.has_window and not wanted:
        raise Overtaken(f"another apply keeps the objects of run {plan.run_id} for a window", run_id=plan.run_id)
    if asked and not taken.has_window:
        raise _too_late(plan)
    return wanted if taken.has_window else None


async def _put_behind(store: ObjectStore, run: UnfinishedRun, turn: Turn, *, is_asked: bool) -> bool:
    """Make `run` wait for the run of `turn`; without `is_asked` only look. Return False if `run` took its own turn."""
    turns = await _turns(store, _folder(run))
    while _own_turn(run.run_id, turns) is None and is_asked:
        # `run` may wait behind us already. Its apply may have read that turn, and be about to take the next one.
        turns.append(await _write_turn(store, _folder(run), len(turns), turn))
        is_asked = turns[-1] != turn
    return _own_turn(run.run_id, turns) is None


def _own_turn(run_id: str, turns: Sequence[Turn]) -> Turn | None:
    return next((turn for turn in turns if turn.run_id == run_id), None)


async def _turns(store: ObjectStore, folder: str) -> list[Turn]:
    turns: list[Turn] = []
    while (data := await find(store, _turn_key(folder, len(turns)))) is not None:
        turns.append(_decode_turn(data, folder))
    return turns


async def _write_turn(store: ObjectStore, folder: str, number: int, turn: Turn) -> Turn:
    """Write the turn of this number if it is free, and return the turn's content."""
    return _decode_turn(await write_once(store, _turn_key(folder, number), msgspec.json.encode(turn)), folder)


def _turn_key(folder: str, number: int) -> str:
    return f"{folder}{_TURN}{number:06d}.json"


def _decode_turn(data: bytes, folder: str) -> Turn:
    return read_json(data, Turn, what=f"a turn in {folder}", name="turn")


def _folder(run: UnfinishedRun) -> str:
    return run_folder(run.kind, RunId(run.run_id))


async def _conflicting(context: RunContext, views: Sequence[RunView], plan: Plan, window: str) -> list[UnfinishedRun]:
    """Return the runs that may hold the plan's objects, where they or this run have a window."""
    same = [view for view in views if view.kind.may_share(plan.kind) and view.run_id != plan.run_id]
    return [
        run
        for run in await holding_runs(context.store, context.ports.tasks, same)
        # Without a window both runs delete now, and deleting twice is harmless.
        if (window or run.window) and not await _is_apart(context, plan, run)
    ]


def _refused(plan: Plan, run: UnfinishedRun) -> OtherUnfinished:
    how = "keeps objects until the end of a window" if run.window else "has begun to delete"
    return OtherUnfinished(
        f"run {run.run_id} {how}, and run {plan.run_id} may hold the same: plan again"
        + ("" if run.is_deferred else f", once run {run.run_id} is applied to its end"),
        run_id=run.run_id,
    )


def _too_late(plan: Plan) -> WindowTooLate:
    return WindowTooLate(
        f"run {plan.run_id} has begun to delete, and cannot be deferred any more: apply it without a window",
        run_id=plan.run_id,
    )


async def _is_apart(context: RunContext, plan: Plan, other: UnfinishedRun) -> bool:
    """Return whether no object can be in both plans.

    Two plans are apart if one was made knowing the other run. They are apart, too, if this plan knew all commits that
    the other run expires, and expires none of them. Objects of a commit that this plan did not know may be in it.
    """
    if other.run_id in plan.beside:
        return True
    try:
        theirs = await read_plan(context.store, other.run_id)
        if plan.expired is None or theirs.expired is None:
            # Objects of an old layout are in no slice. Objects of all other plans are.
            modes = {plan.mode, theirs.mode}
            return plan.run_id in theirs.beside or (RunMode.OLD_LAYOUT in modes and len(modes) > 1)
        wanted = (await context.read(theirs.expired, EXPIRED))["id"].combine_chunks()
    except (PlanMissing, BadInput) as error:
        if not other.window:
            # Without its plan the other run cannot delete. When its plan is restored, its apply checks for this run.
            return True
        raise BadInput(
            f"run {other.run_id} keeps objects until the end of a window, and what it takes is unknown: {error}",
            input="plan",
        ) from error
    ours = (await context.read(plan.expired, EXPIRED))["id"].combine_chunks()
    known = (await context.read(plan.commits, COMMITS))["id"].combine_chunks()
    return bool(
        pc.all(pc.is_in(wanted, value_set=known), min_count=0).as_py()
        and not pc.any(pc.is_in(wanted, value_set=ours), min_count=0).as_py()
    )


def runs_over(views: Iterable[RunView]) -> frozenset[str]:
    """Return the ids of runs that have ended. Call it before any listing."""
    return frozenset(view.run_id for view in views if view.state is RunState.ENDED)


async def held_tables(
    context: RunContext, views: Sequence[RunView], over_before: Collection[str]
) -> dict[str, Manifest]:
    """Return the objects of runs whose deletes may have begun: tables GARBAGE by run id, newest run first.

    Leave out the runs in `over_before`, which had ended before. Include a run that ended meanwhile: a listing may
    still have its objects.

    Raises:
        BadInput: a table is missing, or its digest differs from the run's record. The message names the run.
    """
    may_hold = DELETES_ALLOWED | {RunState.ENDED}
    views = [
        view
        for view in views
        if view.state in may_hold and view.plan and view.kind.takes_objects and view.run_id not in over_before
    ]
    # The plan treats these objects as named: a swept commit names nothing, so no other input keeps them out.
    begun = await _all_begun(context.store, context.ports.tasks, views)
    # A plan that no apply began holds no objects, even where a metadata run has deleted the plan.
    holding = [view for view, one in zip(views, begun, strict=True) if one is not None or view.kind.publishes]
    return {view.run_id: await garbage_of(context.store, view) for view in holding}


async def garbage_of(store: ObjectStore, view: RunView) -> Manifest:
    """Return the table that a run may carry out, or has carried out, by its record.

    Raises:
        BadInput: the table is missing, or its digest differs from the record.
    """
    try:
        plan = await read_plan(store, view.run_id)
        if plan.kind.publishes:
            return (await recheck_of(store, plan, view)).garbage
    except (PlanMissing, BadInput) as error:
        raise BadInput(
            f"run {view.run_id} may be deleting, and what it takes is unknown: {error}", input="plan"
        ) from error
    if plan.garbage.digest() != view.plan:
        raise BadInput(f"run {view.run_id} may be deleting, and its plan is not that of its record", input="plan")
    return plan.garbage


async def taken_tables(context: RunContext, views: Sequence[RunView], held: Collection[str]) -> dict[str, Manifest]:
    """Return by run the objects (tables GARBAGE) that ended runs deleted although commits go on naming them."""
    # A metadata run may have deleted the table of an old run. A later run may list these objects again, and
    # finds them missing.
    tables: dict[str, Manifest] = {}
    for view in views:
        if view.kind.takes_named and view.state is RunState.ENDED and view.plan and view.run_id not in held:
            try:
                tables[view.run_id] = await garbage_of(context.store, view)
            except BadInput:
                context.progress(f"what run {view.run_id} took is not known any more")
    return tables


async def write_recheck(store: ObjectStore, plan: Plan, cleared: Cleared) -> None:
    name = cleared.commits.digest()[:16]
    await store.put(f"{plan.folder}{RECHECK}{name}.json", msgspec.json.encode(cleared))


async def recheck_of(store: ObjectStore, plan: Plan, view: RunView) -> Cleared:
    """Return the recheck whose table the run may sweep; a kind that publishes nothing records its last recheck.

    Raises:
        BadInput: the recheck is missing or unreadable.
    """
    digest = view.plan if plan.kind.publishes else view.sweeps
    for name in sorted(await sizes(store, plan.folder + RECHECK)):
        key = f"{plan.folder}{RECHECK}{name}"
        cleared = decode_recheck(await store.get(key), name=key)
        if cleared.is_of(digest):
            return cleared
    raise BadInput(f"run {plan.run_id} is sweeping, and what it may sweep is missing", input="recheck")


class NotFinished(LakebedError):
    """A run whose deletes began could not be finished. The message gives the run and the reason."""


def finish_each(
    runs: Iterable[UnfinishedRun],
    apply: Callable[[str, str | None], RunReport],
    progress: Progress,
    left: list[str],
    *,
    window: str | None = None,
) -> Iterator[RunReport]:
    """Apply each run again, with the window that it was begun with. Report runs that fail, and add them to `left`.

    `window` applies to a run that has no window yet, and can still have one.

    Raises:
        Unavailable, Denied, Overtaken, …: errors that stop every run.
    """
    for run in runs:
        is_set = run.window or run.is_purging or run.may_delete or not run.kind.can_wait
        asked = None if is_set else window
        how = f", deferring for {run.window or asked}" if run.window or asked else ""
        progress(f"finishing run {run.run_id} ({run.kind}), which began to delete and has not ended{how}")
        try:
            yield apply(run.run_id, asked)
        except (Overtaken, TaskStopped):
            raise
        except (Conflict, Corrupt, NotFound) as error:
            # Continue: this run blocks only runs that may not be planned beside it. The caller reports `left`.
            left.append(f"run {run.run_id} could not be finished: {error}")
            progress(left[-1])
