"""Runs whose deletes began and that have not ended: which they are, how they were begun, and what they hold.

An apply may die, or leave objects that could not be deleted. Until the run has ended, what its table of doomed objects
holds is its own: it goes as its apply was told, aside where that was asked for, and nobody else takes it. So

- how an apply is to be carried out is written down (`apply.json`) before the run is let to delete, and whoever goes on
  with the run does as it says;
- a run of uncommitted data counts what such a run holds as named, for commits that were swept name nothing any more;
- of two runs of one kind with plans made side by side, both may hold an object: while one that moves aside is
  unfinished, another that deletes for good is refused.

What a run may delete is bound to its record by a digest. A table that is not that one, or cannot be read, stops whoever
asks: it may hold anything.

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
from lakebed.gc.protocol import (
    COMMITS,
    CONDEMNED,
    DELETES_ALLOWED,
    BadInput,
    Manifest,
    Plan,
    PlanMissing,
    RunKind,
    RunReport,
    RunState,
    RunView,
    decode_quarantine,
    quarantine_path,
    run_folder,
)
from lakebed.objectstore import ObjectStore

from .context import Cleared, Progress, RunContext, read_plan
from .engines.failures import TaskStopped
from .fencing import Overtaken
from .files import find, sizes, write_once

APPLY_FILE: Final = "apply.json"
SWEEP_FILE: Final = "sweep.json"
_RECHECK: Final = "recheck."


class OtherUnfinished(Conflict):
    """Another run moves aside what this one may delete for good, and is unfinished. Facts: `run_id` of the other."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """`apply.json`: when the run's first apply began, and the window for which objects are moved aside (empty: they are
    deleted), as whoever asked for one said last.
    """

    began_ms: int
    window: str = ""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """`sweep.json`: when the first sweep of a run began."""

    started_ms: int

    @property
    def date(self) -> str:
        """Under which its ledger lies: that of the day (YYYY-MM-DD, UTC)."""
        return datetime.fromtimestamp(self.started_ms / 1000, UTC).date().isoformat()


class UnfinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose deletes may have begun. `window` as in `Begun`."""

    run_id: str
    kind: RunKind
    state: RunState
    began_ms: int
    window: str


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
    """When the first apply of the run came to its sweep: all of them must find one ledger, over midnight too."""
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
    names = [(run_folder(kind, RunId(run_id)), quarantine_path(run_id)) for kind, run_id in runs]
    wanted = [key for folder, aside in names for key in (folder + APPLY_FILE, folder + SWEEP_FILE, aside)]
    found = {key: data async for key, data in tasks.ahead(wanted, partial(find, store))}
    return [
        _begun(run_id, found[folder + APPLY_FILE], found[folder + SWEEP_FILE], found[aside])
        for (_, run_id), (folder, aside) in zip(runs, names, strict=True)
    ]


def _begun(run_id: str, asked: bytes | None, swept: bytes | None, aside: bytes | None) -> Begun | None:
    try:
        if asked is not None:
            return msgspec.json.decode(asked, type=Begun)
        if swept is None:
            return None
        # Of an older release, which only wrote down that it moved aside.
        window = "" if aside is None else decode_quarantine(aside, run_id).window
        return Begun(began_ms=msgspec.json.decode(swept, type=Started).started_ms, window=window)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"how run {run_id} was begun is unreadable: {error}", input=APPLY_FILE) from error


async def unfinished_runs(store: ObjectStore, tasks: Tasks, views: Iterable[RunView]) -> list[UnfinishedRun]:
    """In the order in which they are to be finished: those that move aside first, then the oldest. Costs three small
    reads for each plan of uncommitted data that nobody applied, or not to its end.
    """
    views = [view for view in views if view.state in DELETES_ALLOWED]
    runs = zip(views, await _all_begun(store, tasks, views), strict=True)
    found = [
        UnfinishedRun(
            run_id=view.run_id,
            kind=view.kind,
            state=view.state,
            began_ms=begun.began_ms if begun else view.started_ms,
            window=begun.window if begun else "",
        )
        for view, begun in runs
        if begun is not None or view.state is RunState.SWEEPING
    ]
    return sorted(found, key=lambda run: (not run.window, run.run_id))


async def check_beside(context: RunContext, views: Iterable[RunView], plan: Plan, window: str | None) -> None:
    """For a run that is about to be applied.

    Raises:
        OtherUnfinished: it would delete for good, and its plan may hold what another run is to move aside.
        BadInput: the plan of that one cannot be read. The message names the run.
    """
    before = await read_begun(context.store, context.ports.tasks, plan.kind, plan.run_id)
    if window or (before and before.window) or not plan.kind.takes_objects:
        return
    same = [view for view in views if view.kind is plan.kind and view.run_id != plan.run_id]
    for run in await unfinished_runs(context.store, context.ports.tasks, same):
        if run.window and not await _is_apart(context, plan, run):
            raise OtherUnfinished(
                f"run {run.run_id} moves objects aside and is unfinished, and run {plan.run_id} may hold them too: "
                f"apply {run.run_id} first, or this one with a quarantine",
                run_id=run.run_id,
            )


async def _is_apart(context: RunContext, plan: Plan, other: UnfinishedRun) -> bool:
    """Whether no object can be in both plans: one of them was made knowing the other; or the commits that the other run
    condemns were all known to this plan, and it condemns none of them. What one names that the plan did not know, as it
    came later, the plan may hold.
    """
    if other.run_id in plan.beside:
        return True
    try:
        theirs = await read_plan(context.store, other.run_id)
        if not plan.kind.publishes:
            return plan.run_id in theirs.beside
        if plan.condemned is None or theirs.condemned is None:
            return False
        wanted = (await context.read(theirs.condemned, CONDEMNED))["id"].combine_chunks()
    except (PlanMissing, BadInput) as error:
        raise BadInput(
            f"run {other.run_id} moves objects aside and is unfinished, and what it takes is unknown: {error}",
            input="plan",
        ) from error
    ours = (await context.read(plan.condemned, CONDEMNED))["id"].combine_chunks()
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
    """What runs hold whose deletes may have begun, but for those that were over before (by their ids): tables DOOMED
    by run, the newest first. Of one that ended meanwhile a listing may still have had what it took.

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
    # A plan that nobody began to apply holds nothing, also where a collection of metadata took it.
    held = [view for view, one in zip(views, begun, strict=True) if one is not None or view.kind.publishes]
    return {view.run_id: await doomed_of(context.store, view) for view in held}


async def doomed_of(store: ObjectStore, view: RunView) -> Manifest:
    """The table that a run may carry out, or has, by its record.

    Raises:
        BadInput: it is missing, or is not the one of the record.
    """
    try:
        plan = await read_plan(store, view.run_id)
        if plan.kind.publishes:
            return (await recheck_of(store, plan, view)).doomed
    except (PlanMissing, BadInput) as error:
        raise BadInput(
            f"run {view.run_id} may be deleting, and what it takes is unknown: {error}", input="plan"
        ) from error
    if plan.doomed.digest() != view.plan:
        raise BadInput(f"run {view.run_id} may be deleting, and its plan is not that of its record", input="plan")
    return plan.doomed


async def write_recheck(store: ObjectStore, plan: Plan, cleared: Cleared) -> None:
    name = cleared.commits.digest()[:16]
    await store.put(f"{plan.folder}{_RECHECK}{name}.json", msgspec.json.encode(cleared))


async def recheck_of(store: ObjectStore, plan: Plan, view: RunView) -> Cleared:
    """The recheck with whose table the run was let to sweep.

    Raises:
        BadInput: it is missing or unreadable.
    """
    for name in sorted(await sizes(store, plan.folder + _RECHECK)):
        try:
            cleared = msgspec.json.decode(await store.get(f"{plan.folder}{_RECHECK}{name}"), type=Cleared)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadInput(f"{plan.folder}{_RECHECK}{name} is unreadable: {error}", input="recheck") from error
        if cleared.doomed.digest() == view.plan:
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
    quarantine: str | None = None,
) -> Iterator[RunReport]:
    """Apply each again, by its id: in the way it was begun, or with the window of `quarantine`, if nobody asked for one
    before and the run can have one. What could not be finished is told, and added to `left`.

    Raises:
        Unavailable, Denied, Overtaken, …: what stops every run.
    """
    for run in runs:
        asked = None if run.window or run.kind is RunKind.METADATA else quarantine
        window = run.window or asked
        how = f", moving aside for {window}" if window else ""
        progress(f"finishing run {run.run_id} ({run.kind}), which began to delete and has not ended{how}")
        try:
            yield apply(run.run_id, asked)
        except (Overtaken, TaskStopped):
            raise
        except (Conflict, Corrupt, NotFound) as error:
            left.append(f"run {run.run_id} could not be finished: {error}")
            progress(left[-1])
