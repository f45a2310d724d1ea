"""Find the runs whose deletes began and that have not ended, how they were begun, and their objects.

An apply may die, leave objects that could not be deleted, or defer its deletes. Until the run has ended, what its
table of garbage holds is its own, and no other run takes it. So

- how an apply is to be carried out is written down (`apply.json`) before the run is let to delete, and an apply that
  goes on with the run does as it says;
- a run of uncommitted data counts what such a run holds as named, for commits that were swept name nothing any more;
- of two runs of one kind with plans made side by side, both may hold an object: where one of them keeps objects for a
  window, one takes its turn (`take_turn`), and the other is refused until that one has ended.

A deferred run is not unfinished: it waits for the end of its window.

What a run may delete is bound to its record by a digest. A table that is not that one, or cannot be read, stops every
run that asks: it may hold anything.

A nightly `run` begins with such runs, each in the way it was begun (`finish_each`). One that cannot be finished stops
only what may not be planned beside it, and is reported at the end as an error.
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
    run_folder,
)
from lakebed.objectstore import ObjectStore

from .context import Progress, RunContext, find, read_plan, sizes, write_once
from .fencing import Overtaken

APPLY_FILE: Final = "apply.json"
SWEEP_FILE: Final = "sweep.json"
_TURN: Final = "turn."


class OtherUnfinished(Conflict):
    """Another run may hold the same objects, and one of the two has a window. Facts: `run_id` of the other."""


class WindowTooLate(Conflict):
    """Some objects of the run may be gone, so it cannot be deferred any more. Facts: `run_id`."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """`apply.json`: when the run's first apply began, and the window that was asked for last (empty: none)."""

    began_ms: int
    window: str = ""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """`sweep.json`: when the first sweep of a run began."""

    started_ms: int

    @property
    def date(self) -> str:
        """Under which its ledger lies: that of the day (YYYY-MM-DD, UTC)."""
        return datetime.fromtimestamp(self.started_ms / 1000, UTC).date().isoformat()


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """`turn.<6 digits>.json`: the run deletes now, or keeps its objects for a window (`has_window`); or, with the id of
    another run, lets that one go first.
    """

    run_id: str
    has_window: bool


class UnfinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose deletes may have begun. `window` as in `Begun`, empty once it is over. `is_deferred`: it waits for
    the end of its window; `is_purging`: that is over; `may_delete`: it took its turn to delete at once, so a window
    comes too late.
    """

    run_id: str
    kind: RunKind
    state: RunState
    began_ms: int
    window: str
    is_deferred: bool = False
    is_purging: bool = False
    may_delete: bool = False


async def begin(context: RunContext, plan: Plan, window: str | None) -> str | None:
    """Write down how the run is carried out, before it is let to delete: the window that counts, which is the one that
    is asked for now, or was before.
    """
    before = await read_begun(context.store, context.ports.tasks, plan.kind, plan.run_id)
    wanted = window or (before.window if before else "")
    if before is None or before.window != wanted:
        began_ms = before.began_ms if before else context.ports.clock.now_ms()
        begun = msgspec.json.encode(Begun(began_ms=began_ms, window=wanted))
        await context.store.put(f"{plan.folder}{APPLY_FILE}", begun)
    return wanted or None


async def read_begun(store: ObjectStore, tasks: Tasks, kind: RunKind, run_id: str) -> Begun | None:
    """None: no apply of the run began.

    Raises:
        BadInput: what is there is unreadable.
    """
    return (await _read(store, tasks, [(kind, run_id)]))[0]


async def read_started(store: ObjectStore, plan: Plan) -> Started | None:
    """None: the run has not come to its first sweep.

    Raises:
        BadInput: what is there is unreadable.
    """
    data = await find(store, f"{plan.folder}{SWEEP_FILE}")
    return None if data is None else _decode_started(data, plan)


async def start_sweep(context: RunContext, plan: Plan) -> Started:
    """Return when the first apply of the run came to its sweep: all must find one ledger, over midnight too."""
    key = f"{plan.folder}{SWEEP_FILE}"
    data = await find(context.store, key)
    if data is None:
        started = msgspec.json.encode(Started(started_ms=context.ports.clock.now_ms()))
        data = await write_once(context.store, key, started)
    return _decode_started(data, plan)


def _decode_started(data: bytes, plan: Plan) -> Started:
    try:
        return msgspec.json.decode(data, type=Started)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{plan.folder}{SWEEP_FILE} is unreadable: {error}", input=SWEEP_FILE) from error


async def _all_begun(store: ObjectStore, tasks: Tasks, views: Sequence[RunView]) -> list[Begun | None]:
    return await _read(store, tasks, [(view.kind, view.run_id) for view in views])


async def _read(store: ObjectStore, tasks: Tasks, runs: Sequence[tuple[RunKind, str]]) -> list[Begun | None]:
    names = [f"{run_folder(kind, RunId(run_id))}{APPLY_FILE}" for kind, run_id in runs]
    found = {key: data async for key, data in tasks.ahead(names, partial(find, store))}
    return [_begun(run_id, found[name]) for (_, run_id), name in zip(runs, names, strict=True)]


def _begun(run_id: str, data: bytes | None) -> Begun | None:
    try:
        return None if data is None else msgspec.json.decode(data, type=Begun)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"how run {run_id} was begun is unreadable: {error}", input=APPLY_FILE) from error


async def unfinished_runs(store: ObjectStore, tasks: Tasks, views: Iterable[RunView]) -> list[UnfinishedRun]:
    """In the order in which they are to be finished: those that are to be deferred first, then the oldest."""
    found = [run for run in await holding_runs(store, tasks, views) if not run.is_deferred]
    turns = [_own_turn(run.run_id, await _turns(store, _folder(run))) for run in found]
    found = [
        msgspec.structs.replace(run, may_delete=turn is not None and not turn.has_window)
        for run, turn in zip(found, turns, strict=True)
    ]
    return sorted(found, key=lambda run: (not run.window, run.run_id))


async def holding_runs(store: ObjectStore, tasks: Tasks, views: Iterable[RunView]) -> list[UnfinishedRun]:
    """Runs that may delete what they hold, now or after a window. Costs a small read for each plan that was not applied
    to its end.
    """
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
    """For a run that is about to be applied with this window, and was not deferred before.

    Raises:
        WindowTooLate: it was applied without a window before, and that apply took the run's turn.
    """
    if window is None:
        return
    turn = _own_turn(plan.run_id, await _turns(context.store, plan.folder))
    if turn is not None and not turn.has_window:
        raise _too_late(plan)


async def check_beside(context: RunContext, views: Sequence[RunView], plan: Plan, window: str | None) -> None:
    """For a run that is about to be applied: refuse what would only wait for another run. Of one whose deletes may have
    begun, its turn decides.

    Raises:
        OtherUnfinished: another run may hold the same objects, and one of the two keeps them for a window.
        BadInput: the plan of that one cannot be read. The message names the run.
    """
    tasks = context.ports.tasks
    own = [view for view in views if view.run_id == plan.run_id]
    if not plan.kind.takes_objects or await holding_runs(context.store, tasks, own):
        return
    before = await read_begun(context.store, tasks, plan.kind, plan.run_id)
    for run in await _conflicting(context, views, plan, window or (before.window if before else "")):
        raise _refused(plan, run)


async def take_turn(context: RunContext, plan: Plan, *, asked: str | None, wanted: str | None) -> str | None:
    """Decide, for ever, that this run goes first among those that may hold its objects. Return the window in force.

    Comes after the run's record lets it delete, and before it does, or defers.

    Turns are numbered files in a run's folder, each written once. A run reads its own, looks at the others, puts each
    of them behind itself by that run's next turn, and then takes its own next turn. Of two runs not both can: each
    would have read its turns after it was put behind, and before it put the other behind. An apply that is alone
    takes the turn, unless the other run has, which then can go on.

    Raises:
        OtherUnfinished: another run took its turn, or is about to.
        WindowTooLate: an apply without a window took the turn of this run.
        Overtaken: an apply with a window did.
        BadInput: as `check_beside`.
    """
    if not plan.kind.takes_objects:
        return wanted
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
    """Let `run` wait for that of `turn`; or, if that is not asked, look. False: it took its own turn."""
    turns = await _turns(store, _folder(run))
    while _own_turn(run.run_id, turns) is None and is_asked:
        # Where it stands behind us already, an apply of it may have read that, and be about to take its next turn.
        turns.append(await _write_turn(store, _folder(run), len(turns), turn))
        is_asked = turns[-1] != turn
    return _own_turn(run.run_id, turns) is None


def _own_turn(run_id: str, turns: Sequence[Turn]) -> Turn | None:
    return next((turn for turn in turns if turn.run_id == run_id), None)


async def _turns(store: ObjectStore, folder: str) -> list[Turn]:
    found: list[Turn] = []
    while (data := await find(store, _turn_key(folder, len(found)))) is not None:
        found.append(_decode_turn(data, folder))
    return found


async def _write_turn(store: ObjectStore, folder: str, number: int, turn: Turn) -> Turn:
    """Return the content of the turn of this number."""
    return _decode_turn(await write_once(store, _turn_key(folder, number), msgspec.json.encode(turn)), folder)


def _turn_key(folder: str, number: int) -> str:
    return f"{folder}{_TURN}{number:06d}.json"


def _decode_turn(data: bytes, folder: str) -> Turn:
    try:
        return msgspec.json.decode(data, type=Turn)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"a turn in {folder} is unreadable: {error}", input="turn") from error


def _folder(run: UnfinishedRun) -> str:
    return run_folder(run.kind, RunId(run.run_id))


async def _conflicting(context: RunContext, views: Sequence[RunView], plan: Plan, window: str) -> list[UnfinishedRun]:
    """Return runs that may hold the plan's objects, where they or this one keep them for a window."""
    same = [view for view in views if view.kind.may_share(plan.kind) and view.run_id != plan.run_id]
    return [
        run
        for run in await holding_runs(context.store, context.ports.tasks, same)
        # Where neither has a window both delete now: deleting twice is deleting once.
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
    """Return whether no object can be in both plans. That is so where one of them was made knowing the other. It is so,
    too, where this plan knew all the commits that the other run expires, and expires none of them. What a commit names
    that the plan did not know, as it came later, the plan may hold.
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
            # Without its plan it deletes nothing more; with the plan back, its apply looks for this run.
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
    """Ids of those that have ended: to be asked for before anything is listed."""
    return frozenset(view.run_id for view in views if view.state is RunState.ENDED)


async def held_tables(
    context: RunContext, views: Sequence[RunView], over_before: Collection[str]
) -> dict[str, Manifest]:
    """Return what runs hold whose deletes may have begun: tables GARBAGE by run, the newest first. Runs in `over`,
    which had ended before, are left out. A run that ended meanwhile counts: a listing may still have had what it took.

    Raises:
        BadInput: such a table is missing, or is not the one that the run was let to take. The message names the run.
    """
    may_hold = DELETES_ALLOWED | {RunState.ENDED}
    views = [
        view
        for view in views
        if view.state in may_hold and view.plan and view.kind.takes_objects and view.run_id not in over_before
    ]
    begun = await _all_begun(context.store, context.ports.tasks, views)
    # A plan that no apply began holds nothing, also where a collection of metadata took it.
    held = [view for view, one in zip(views, begun, strict=True) if one is not None or view.kind.publishes]
    return {view.run_id: await garbage_of(context.store, view) for view in held}


async def garbage_of(store: ObjectStore, view: RunView) -> Manifest:
    """The table that a run may carry out, or has, by its record.

    Raises:
        BadInput: it is missing, or is not the one of the record.
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


async def write_recheck(store: ObjectStore, plan: Plan, cleared: Cleared) -> None:
    name = cleared.commits.digest()[:16]
    await store.put(f"{plan.folder}{RECHECK}{name}.json", msgspec.json.encode(cleared))


async def recheck_of(store: ObjectStore, plan: Plan, view: RunView) -> Cleared:
    """The recheck with whose table the run was let to sweep; of a kind that publishes nothing, that of its second look.

    Raises:
        BadInput: it is missing or unreadable.
    """
    digest = view.plan if plan.kind.publishes else view.sweeps
    for name in sorted(await sizes(store, plan.folder + RECHECK)):
        key = f"{plan.folder}{RECHECK}{name}"
        cleared = decode_recheck(await store.get(key), name=key)
        if cleared.is_of(digest):
            return cleared
    raise BadInput(f"run {plan.run_id} is sweeping, and what it may sweep is missing", input="recheck")


class NotFinished(LakebedError):
    """A run whose deletes began could not be finished. The message says which and why; all else was done."""


def finish_each(
    runs: Iterable[UnfinishedRun],
    apply: Callable[[str, str | None], RunReport],
    progress: Progress,
    left: list[str],
    *,
    window: str | None = None,
) -> Iterator[RunReport]:
    """Apply each again, by its id: in the way it was begun, or with this `window`, if none was asked for before and the
    run can still have one. What could not be finished is reported, and added to `left`.

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
            left.append(f"run {run.run_id} could not be finished: {error}")
            progress(left[-1])
