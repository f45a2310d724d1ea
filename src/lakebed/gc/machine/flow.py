"""Plan, apply and purge a collection: one flow for every kind, engine and service.

Each function is a coroutine that awaits only ports, so the simulator runs the same code. An apply takes these steps:

1. check the caller, the run, the rules and the store; a refused apply has changed nothing (preflight.py)
2. claim: applies of this repository that began earlier stop at their next check (runs/context.py)
3. record how the run is carried out, so that a later apply can continue it (runs/resume.py)
4. clear: a kind that publishes does so, rechecks, and writes the remaining objects as a second table (kinds/)
5. with a window, defer and stop here; after the window, recheck (docs/design/0010-deferred-delete.md)
6. without a window, wait for readers to end their reads
7. read the legal holds, delete the other objects, and end the run if every delete succeeded (sweep.py)
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec
import pyarrow.compute as pc

from lakebed.base import Conflict, Corrupt, LakebedError, NotFound, RunId, count_of, grace_s_of
from lakebed.gc.engines.failures import TaskStopped
from lakebed.gc.kinds import Kind, kind_of_plan
from lakebed.gc.kinds.lifecycle.tables import write_tables
from lakebed.gc.kinds.saved import save
from lakebed.gc.mark.holding import check_uncommitted, read_held
from lakebed.gc.mark.mark import look_again
from lakebed.gc.mark.tables import broken_tables
from lakebed.gc.messages import (
    COMMITS,
    Apply,
    BadInput,
    BadWindow,
    Cleared,
    Deferred,
    Manifest,
    Plan,
    PurgeReport,
    RecheckInputs,
    RunReport,
    RunState,
    RunView,
    StageReport,
    StartedRun,
    Total,
    check_run_id,
    decode_deferred,
    decode_report,
    encode_deferred,
    encode_report,
    purge_path,
    report_path,
    run_folder,
    window_end_ms,
)
from lakebed.gc.rules import Rules
from lakebed.gc.runs.context import (
    Fence,
    Overtaken,
    RunContext,
    claim,
    find,
    read_plan_file,
    sizes,
    slice_numbers,
    whole,
    write_plan,
)
from lakebed.gc.runs.recording import Ledger, Swept, correct_report, find_gone, settle
from lakebed.gc.runs.resume import (
    begin,
    check_beside,
    check_window,
    read_started,
    recheck_of,
    start_sweep,
    take_turn,
    write_recheck,
)

from .looking import plan_again
from .preflight import Allowed, WhatIf, check_same_store, is_same_place, may_apply, other_store, state_to_apply
from .sweep import let_readers_finish, remove_files, sweep


async def plan(context: RunContext, kind: Kind, *, rules: Rules | None = None) -> Plan:
    """Start a run, plan it and write `plan.json` last. With `rules` the plan only shows the effect of these rules.

    Raises:
        NoRules: the run is of committed data, and the repository has no rules.
        Conflict: an optimised run was requested, and there is no saved state to continue from.
        BadInput, BrokenHistory, EmptyLiveSet, TaskCorrupt: an input cannot be trusted; the message names the input.
        TaskUnavailable: the object store cannot be reached.
        RunAbandoned: the run was ended meanwhile.
    """
    if rules is not None:
        context = replace(context, service=WhatIf(context.service, rules))
    made, _ = await _decide(context, kind)
    tables = await broken_tables(context, made) if made.has_tables and kind.name.takes_named else ()
    made_ms = context.ports.clock.now_ms()
    made = msgspec.structs.replace(made, tables=tables, what_if=rules is not None, made_ms=made_ms)
    plan_file = await write_plan(context.store, made)
    await context.service.planned(made.run_id, made.kind, plan_file)
    return made


async def _decide(context: RunContext, kind: Kind) -> tuple[Plan, StartedRun]:
    """Start a run and have its kind decide. Do not write the plan's file."""
    run = await context.service.start(kind.name)
    if run.namespace.rstrip("/") != context.store.uri.rstrip("/"):
        raise BadInput(f"run {run.run_id} is of {run.namespace}, not of {context.store.uri}", input="namespace")
    try:
        return await kind.plan(context, run), run
    except BaseException as error:
        await _abandon(context, run, error)
        await _check_there(context, error, run.folder)
        raise


async def _abandon(context: RunContext, run: StartedRun, error: BaseException) -> None:
    """Abandon the run. The server does not clean up while a run is marking."""
    # A closed coroutine may await nothing. A run that is only planned has no record to abandon.
    if isinstance(error, GeneratorExit) or run.state is RunState.PLANNING:
        return
    # The run may be marked or abandoned already, or the server is unreachable. Report the first error.
    with suppress(LakebedError):
        await context.service.abandoned(run.run_id)


class RepositoryGone(NotFound):
    """The repository was deleted while a run read it. The missing files were collected; they are not damaged."""


async def _check_there(context: RunContext, error: BaseException, folder: str) -> None:
    """Find out why a file is missing: the repository was deleted during the run, or this process reads another store.

    Raises:
        RepositoryGone: the repository was deleted and collected.
        OtherStore: a file is missing in the run's folder, where only the server has written so far.
    """
    if not isinstance(error, Conflict | Corrupt):
        return
    try:
        uri = await context.service.namespace()
    except NotFound:
        uri = ""
    except LakebedError:
        return  # The server is unreachable: report the first error.
    if not is_same_place(uri, context.store.uri):
        message = f"repository {context.repository} was deleted while the run read it"
        raise RepositoryGone(message, repository=context.repository) from error
    if isinstance(error, Corrupt) and str(error.facts.get("missing", "")).startswith(folder):
        raise other_store(f"{error}, and the server wrote it for this run", context.store) from error


async def apply(
    context: RunContext, run_id: str, *, window: str | None = None, grace_s: int | None = None
) -> RunReport:
    """Carry out the plan of this run.

    If the run has ended, return its report. Do the same if it waits for its window and gets no new one.

    With a `window` (`7d`) delete nothing until the window is over. The report gives the end of the window, and a later
    apply deletes. Readers get `grace_s` seconds, or the namespace's default. The report counts the objects that failed.
    A run with failed objects has not ended and may be applied again.

    Raises:
        PlanMissing, BadInput, TaskCorrupt: the plan or a file of the run is missing or changed.
        Denied: the caller may not apply. Nothing was written or deleted, and a concurrent apply continues.
        OtherStore: this process reads a copy of the server's store, or another store. Nothing was written or deleted.
        RunNotReady, RunAbandoned, NotTheRules: the run may not delete. Nothing was deleted.
        HeldBack: legal holds keep every object of the plan. Nothing was deleted.
        OtherUnfinished: another run may hold the same objects, and one of the two has a window. Nothing was deleted.
        WindowTooLate: an apply of this run without a window has begun to delete.
        InvalidDuration, BadWindow, BadGrace: the window or the grace is invalid. Nothing was deleted.
        Overtaken, TaskStopped: another apply began in this repository. The ledger has every delete until then.
    """
    check_run_id(run_id)
    if window is not None:
        window_end_ms(window, 0)
    grace_s = grace_s_of(context.store.uri, grace_s)
    plan, plan_file = await read_plan_file(context.store, run_id)
    # The service decides the state. The files in the run's folder only show the progress within it.
    view = await context.service.run(run_id)
    state = state_to_apply(view, plan)
    if state is RunState.ENDED:
        return await _report_of_ended(context, plan)
    if window is not None and plan.kind.spec.no_window:
        raise BadWindow(plan.kind.spec.no_window, window=window)
    asked = window if plan.kind.takes_objects else None
    allowed = await may_apply(context.service, plan, state, plan_file=plan_file)
    if view is not None and asked is None and _waits(view, context.ports.clock.now_ms()):
        return await _report_of_deferred(context, plan, view)
    await check_same_store(context.service, context.store)
    run = _Run(context=context, plan=plan, plan_file=plan_file, kind=kind_of_plan(plan), view=view, allowed=allowed)
    check_uncommitted(await context.service.holds(), plan.kind)
    if view is None or view.until_ms is None:
        return await _first_apply(run, asked, grace_s)
    return await _apply_deferred(run, asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Hold a run whose plan may be applied, with the run's record as read at the start of the apply."""

    context: RunContext
    plan: Plan
    plan_file: str
    kind: Kind
    view: RunView | None
    allowed: Allowed


async def _first_apply(run: _Run, asked: str | None, grace_s: int) -> RunReport:
    """Apply a plan that is not deferred: defer it, or wait for readers and delete."""
    context, plan = run.context, run.plan
    await check_window(context, plan, asked)
    await check_beside(context, await context.service.runs(), plan, asked)
    began_ms = context.ports.clock.now_ms()
    fence, wanted = await _claim(run, asked)
    cleared, looked = await _clear(context, run.kind, plan, run.view, run.allowed, run.plan_file)
    wanted = await take_turn(context, looked, asked=asked, wanted=wanted)
    took_ms = context.ports.clock.now_ms() - began_ms
    # Two users made the reduced plan, so no later run may continue from its state.
    saves = plan.leaves_state and not run.allowed.looks_again
    # A run of commits that have no objects of their own is deferred, too: it can be undone until its purge.
    if wanted and (cleared.garbage.rows or cleared.expiring):
        return await _defer(context, plan, cleared, fence, window=wanted, took_ms=took_ms, saves=saves)
    ledger = await _wait_for_readers(context, plan, cleared.garbage, fence, grace_s)
    return await _delete(run, cleared, _bound(plan, cleared), fence, ledger, took_ms=took_ms, saves=saves)


async def _apply_deferred(run: _Run, asked: str | None) -> RunReport:
    """Apply a deferred run: delete when its window is over, or make the window longer."""
    context, plan = run.context, run.plan
    began_ms = context.ports.clock.now_ms()
    fence, wanted = await _claim(run, asked)
    cleared, _ = await _clear(context, run.kind, plan, run.view, run.allowed, run.plan_file)
    took_ms = context.ports.clock.now_ms() - began_ms
    if wanted and (cleared.garbage.rows or cleared.expiring) and asked is not None:
        return await _defer(context, plan, cleared, fence, window=wanted, took_ms=took_ms, saves=False)
    try:
        left = await _look_again(context, plan, cleared, fence, run.plan_file)
    except Conflict:
        # The window ends by the clocks of the service and the object store, so ask the service again.
        now = await context.service.run(plan.run_id)
        if now is None or now.until_ms is None or now.is_purging:
            raise
        return await _report_of_deferred(context, plan, now)
    # The run took its turn when it was deferred, and the window was the readers' grace: skip both waits.
    ledger = await _wait_for_readers(context, plan, left.garbage, fence, 0)
    return await _delete(run, left, _bound(plan, cleared), fence, ledger, took_ms=took_ms, saves=False)


async def _claim(run: _Run, asked: str | None) -> tuple[Fence, str | None]:
    """Stop applies that began earlier, and record how this apply is carried out. Return the run's window, if any."""
    context, plan = run.context, run.plan
    fence, outdated = await claim(context.store, context.ports.clock, plan.run_id)
    await remove_files(context.engine, outdated)
    return fence, await begin(context, plan, asked)


def _bound(plan: Plan, cleared: Cleared) -> Manifest:
    """Return the table in the run's record, which ends the run. A recheck may have removed rows from it."""
    return cleared.garbage if plan.kind.publishes else plan.garbage


async def _delete(
    run: _Run, cleared: Cleared, bound: Manifest, fence: Fence, ledger: Ledger, *, took_ms: int, saves: bool
) -> RunReport:
    """Delete the cleared objects that no legal hold keeps. Write the report, and end the run if no object failed."""
    context, plan = run.context, run.plan
    garbage = cleared.garbage
    await fence.check(context.store)
    held = await read_held(context, plan, cleared)
    gone, seen = await find_gone(context, plan, fence, ledger)
    waited_ms = context.ports.clock.now_ms()
    context.progress(f"deleting {count_of(garbage.rows, 'object')}")
    try:
        swept = await sweep(context.engine, garbage, ledger, rule=run.kind.rule, fence=fence, held=held, gone=gone)
    except (Overtaken, TaskStopped):
        # The other apply may have missed this apply's last rows. A later apply of the run settles them again.
        with suppress(LakebedError):
            await settle(context, plan, ledger, seen)
        raise
    swept = swept.less(await settle(context, plan, ledger, seen))
    saved = ""
    if saves:
        saved = await save(context.store, plan, bound, ledger, objects_failed=swept.objects_failed)
    now_ms = context.ports.clock.now_ms()
    stages = (_stage("recheck", plan.totals.all, took_ms), _stage("sweep", swept.all, now_ms - waited_ms))
    report = _report(plan, cleared, swept, size_bytes=swept.all.size_bytes, stages=stages, now_ms=now_ms)
    # Write the report before ending the run, so that every ended run has a report.
    await context.store.put(report_path(plan.kind, RunId(plan.run_id)), encode_report(report))
    report = await correct_report(context, plan.kind, ledger) or report
    if plan.policy:
        await write_tables(context, plan, garbage, ledger, report)
    if swept.objects_failed:
        if saved:
            await _note(context, plan, run.plan_file, saved=saved)
        return report
    await context.service.ended(plan.run_id, bound, saved=saved)
    return msgspec.structs.replace(report, state=RunState.ENDED)


def _waits(view: RunView, now_ms: int) -> bool:
    return view.until_ms is not None and not view.is_purging and now_ms < view.until_ms


async def _defer(
    context: RunContext, plan: Plan, cleared: Cleared, fence: Fence, *, window: str, took_ms: int, saves: bool
) -> RunReport:
    """Keep the objects for the window. From now on the run deletes only after the window."""
    # Check after `sweeping` and before the window: a later apply sees the objects that this run holds.
    await fence.check(context.store)
    objects = count_of(cleared.garbage.rows, "object")
    context.progress(f"deferring {objects} for {window}")
    # The next run continues from this state, and skips the objects that this run holds.
    saved = await save(context.store, plan, cleared.garbage, None, objects_failed=0) if saves else ""
    view = await context.service.deferred(plan.run_id, cleared.garbage, window, saved=saved)
    report = _report(
        plan,
        cleared,
        Swept(),
        size_bytes=cleared.size_bytes,
        stages=(_stage("recheck", plan.totals.all, took_ms),),
        now_ms=context.ports.clock.now_ms(),
    )
    report = msgspec.structs.replace(report, deferred_until_ms=view.until_ms)
    await context.store.put(report_path(plan.kind, RunId(plan.run_id)), encode_report(report))
    return report


async def _report_of_deferred(context: RunContext, plan: Plan, view: RunView) -> RunReport:
    name = report_path(plan.kind, RunId(plan.run_id))
    data = await find(context.store, name)
    if data is not None:
        return msgspec.structs.replace(decode_report(data, name=name), deferred_until_ms=view.until_ms)
    # The apply that deferred the run died before it wrote the report.
    cleared = await _resumed(context, plan, view)
    report = _report(
        plan, cleared, Swept(), size_bytes=cleared.size_bytes, stages=(), now_ms=context.ports.clock.now_ms()
    )
    return msgspec.structs.replace(report, deferred_until_ms=view.until_ms)


async def _look_again(context: RunContext, plan: Plan, cleared: Cleared, fence: Fence, plan_file: str) -> Cleared:
    """Ask the service to delete after the window, and leave out the objects that an entry names by now.

    Every apply uses the same list once the ledger has a part. Until then each apply rechecks, because the list of an
    apply that died may be old.

    Raises:
        Conflict: the window is not over.
        Overtaken: another apply began.
    """
    listed = await _listed(context, plan)
    if listed is None or not await _has_ledger(context, plan):
        context.progress(f"the window of run {plan.run_id} is over: looking again at what names its objects")

        async def look(answer: RecheckInputs) -> Cleared:
            decided = cleared.commits if plan.kind.yields_to_commits else whole(answer)[0]
            commits = await context.read(decided, COMMITS)
            garbage, _ = await look_again(
                context,
                plan,
                cleared.garbage,
                kept=commits.filter(pc.invert(pc.or_(commits["swept"], commits["expiring"]))),
                commits=whole(answer)[0],
                uncommitted=whole(answer)[1],
                closed=slice_numbers(answer.closed_slices),
            )
            return Cleared(garbage=garbage, commits=whole(answer)[0])

        looked = await context.reread(
            lambda: context.service.purged(plan.run_id), look, commits_of=lambda answer: whole(answer)[0]
        )
        listed = Deferred(run_id=plan.run_id, kind=plan.kind, garbage=looked.garbage)
        # An apply that began since then rechecks later than this one: keep its list.
        await fence.check(context.store)
        await write_recheck(context.store, plan, looked)
        await context.store.put(purge_path(plan.kind, plan.run_id), encode_deferred(listed))
        await _note(context, plan, plan_file, sweeps=looked.garbage.digest())
    return msgspec.structs.replace(cleared, garbage=listed.garbage)


async def _listed(context: RunContext, plan: Plan) -> Deferred | None:
    """Return the list of an earlier apply if the run's record names it. A planner can write such a file, too."""
    data = await find(context.store, purge_path(plan.kind, plan.run_id))
    if data is None:
        return None
    listed, view = decode_deferred(data, plan.run_id), await context.service.run(plan.run_id)
    return listed if view is not None and listed.garbage.digest() == view.sweeps else None


async def _note(context: RunContext, plan: Plan, plan_file: str, *, sweeps: str = "", saved: str = "") -> None:
    """Write a digest into the run's record, so that later steps accept only this apply's file."""
    request = Apply(
        kind=plan.kind,
        plan=plan.garbage.digest(),
        rules_version=plan.rules_version,
        uid=plan.uid,
        plan_file=plan_file,
        sweeps=sweeps,
        saved=saved,
    )
    await context.service.applying(plan.run_id, request)


async def _has_ledger(context: RunContext, plan: Plan) -> bool:
    """Return whether the ledger has a part of the run."""
    started = await read_started(context.store, plan)
    if started is None:
        return False
    return bool(await sizes(context.store, Ledger(run_id=plan.run_id, date=started.date).prefix))


async def purge(context: RunContext, *, grace_s: int | None = None) -> PurgeReport:
    """Apply each deferred run whose window is over, oldest first. Repeat after a crash or failed deletes.

    Raises:
        Denied: the caller may not purge. Nothing was written or deleted.
        OtherStore: this process reads a copy of the server's store, or another store.
        Conflict, Corrupt, NotFound: a run could not be purged, and none of its objects were deleted. The others were.
    """
    await check_same_store(context.service, context.store)
    purged: list[RunReport] = []
    waiting: list[str] = []
    wrong: LakebedError | None = None
    for view in reversed(await context.service.runs()):
        if view.until_ms is None or view.state is RunState.ENDED:
            continue
        try:
            report = await apply(context, view.run_id, grace_s=grace_s)
        except (Overtaken, TaskStopped):
            raise
        except (Conflict, Corrupt, NotFound) as error:
            context.progress(f"run {view.run_id} could not be purged: {error}")
            wrong = wrong or error
            continue
        if report.deferred_until_ms is None:
            purged.append(report)
        else:
            waiting.append(view.run_id)
    if wrong is not None:
        raise wrong
    return PurgeReport(
        purged=tuple(report.run_id for report in purged),
        waiting=tuple(waiting),
        objects_purged=sum(report.objects_deleted for report in purged),
        bytes_purged=sum(report.bytes_deleted for report in purged),
        objects_failed=sum(report.objects_failed for report in purged),
        errors=tuple(error for report in purged for error in report.errors),
    )


async def _clear(
    context: RunContext, kind: Kind, plan: Plan, view: RunView | None, allowed: Allowed, plan_file: str
) -> tuple[Cleared, Plan]:
    """Publish and recheck, unless an earlier apply did. From now on the run may delete.

    Return the cleared objects and their plan: the reduced plan where another user made the plan.
    """
    if view is not None and view.state is RunState.SWEEPING:
        cleared = await _resumed(context, plan, view)
    else:
        try:
            if not plan.kind.publishes:
                return await _clear_unpublished(context, kind, plan, view, allowed, plan_file)
            if allowed.looks_again:
                kind, plan = await _plan_again(context, plan, allowed)
            cleared = await kind.clear(context, plan, allowed.rules_version)
        except (Conflict, Corrupt) as error:
            await _check_there(context, error, run_folder(plan.kind, check_run_id(plan.run_id)))
            raise
        await write_recheck(context.store, plan, cleared)
    # An apply that resumes a sweep asks again: only this answer confirms that the commits are given up for good.
    await context.service.sweeping(plan.run_id, cleared.garbage, cleared.commits, uid=plan.uid)
    return cleared, plan


async def _clear_unpublished(
    context: RunContext, kind: Kind, plan: Plan, view: RunView | None, allowed: Allowed, plan_file: str
) -> tuple[Cleared, Plan]:
    cleared = await kind.clear(context, plan, allowed.rules_version)
    if view is not None and view.sweeps:
        return await recheck_of(context.store, plan, view), plan
    if not allowed.looks_again:
        return cleared, plan
    _, both = await _plan_again(context, plan, allowed)
    cleared = Cleared(garbage=both.garbage, commits=both.commits, size_bytes=both.totals.all.size_bytes)
    await write_recheck(context.store, plan, cleared)
    await _note(context, plan, plan_file, sweeps=both.garbage.digest())
    return cleared, both


async def _plan_again(context: RunContext, plan: Plan, allowed: Allowed) -> tuple[Kind, Plan]:
    by = (
        f"{allowed.planned_by} planned run {plan.run_id}"
        if allowed.planned_by
        else f"who planned run {plan.run_id} is unknown"
    )
    context.progress(f"{by}: planning again, to delete only what both plans take")
    return await plan_again(context, plan, _decide)


async def _resumed(context: RunContext, plan: Plan, view: RunView) -> Cleared:
    """Return the objects that an earlier apply cleared."""
    if plan.kind.publishes or view.sweeps:
        return await recheck_of(context.store, plan, view)
    return Cleared(garbage=plan.garbage, commits=plan.commits, size_bytes=plan.totals.all.size_bytes)


async def _wait_for_readers(context: RunContext, plan: Plan, garbage: Manifest, fence: Fence, grace_s: int) -> Ledger:
    """Return the ledger of the run's sweeps once no reader can still use the objects."""
    started = await start_sweep(context, plan)
    if garbage.rows and plan.kind.has_readers:
        # A plan that publishes nothing was final when it was made: no read has resolved its objects since then.
        since_ms = plan.made_ms if plan.made_ms and not plan.kind.publishes else started.started_ms
        await let_readers_finish(
            since_ms,
            grace_s,
            clock=context.ports.clock,
            check=lambda: fence.check(context.store),
            progress=context.progress,
        )
    return Ledger(run_id=plan.run_id, date=started.date)


def _stage(name: str, objects: Total, took_ms: int) -> StageReport:
    wall_s = max(0, took_ms) / 1000
    return StageReport(name=name, rows=objects.objects, size_bytes=objects.size_bytes, wall_s=wall_s)


def _report(
    plan: Plan, cleared: Cleared, swept: Swept, *, size_bytes: int, stages: tuple[StageReport, ...], now_ms: int
) -> RunReport:
    inputs = {"commits": plan.commits, "refs": plan.refs, "uncommitted": plan.uncommitted, "garbage": cleared.garbage}
    return RunReport(
        run_id=plan.run_id,
        kind=plan.kind,
        state=RunState.SWEEPING if plan.kind.publishes else RunState.MARKED,
        repository=plan.repository,
        namespace=plan.namespace,
        run_start_time_ms=plan.now_ms,
        run_end_time_ms=now_ms,
        dry_run=False,
        mode=plan.mode,
        based_on=plan.based_on,
        token_expiry_ms=plan.token_expiry_ms,
        slices_skipped=plan.slices_skipped,
        last_read_slice=plan.last_read_slice,
        slices_listed=plan.listing.slices if plan.listing else 0,
        inputs={name: manifest.digest() for name, manifest in inputs.items() if manifest is not None},
        garbage_objects=cleared.garbage.rows,
        garbage_bytes=size_bytes,
        objects_deleted=swept.objects_deleted,
        bytes_deleted=swept.bytes_deleted,
        objects_kept=swept.objects_kept,
        bytes_kept=swept.bytes_kept,
        objects_gone=swept.objects_gone,
        bytes_gone=swept.bytes_gone,
        objects_failed=swept.objects_failed,
        objects_held=swept.objects_held,
        errors=swept.errors,
        tables=plan.tables,
        commits_expired=cleared.expiring,
        unknown_files=plan.unknown_files,
        stages=stages,
    )


async def _report_of_ended(context: RunContext, plan: Plan) -> RunReport:
    name = report_path(plan.kind, RunId(plan.run_id))
    data = await find(context.store, name)
    if data is None:
        raise BadInput(f"run {plan.run_id} has ended, but {name} is missing", input="report")
    return msgspec.structs.replace(decode_report(data, name=name), state=RunState.ENDED)
