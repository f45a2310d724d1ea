"""Apply: carry out one named plan, and nothing that it does not hold. May be started again after any crash.

Before an apply overtakes another, and before it writes or deletes anything, the server is asked whether the caller may
apply, and whether the run and the rules are those of the plan (`applying`): who is refused has done nothing.

An *uncommitted* run must be `marked` with this very plan. Its garbage cannot come back, so nothing is asked again,
however old the plan is.

A *committed* plan was made in private and may be stale, so it is published first and then asked once more
(docs/design/protocols.md, "Naming a commit while a collection of committed data runs"):

    begin        how it is carried out is written down, for whoever has to go on with it (unfinished.py)
    condemn      the server publishes the commits, touches branches, writes down what is staged, uploaded or copied,
                 and reads refs, commits and rules again; a commit that something names is taken out
    recheck      of the plan's objects, those that are named by any of that, or by a commit that stays now and did not
                 when the plan was made, are let off; what is left is a second table, `doomed.<recheck>`
    sweeping     the server lets the run go on with that table, or refuses; it is asked again by whoever resumes a
                 sweep, for only its answer says that the commits are given up for ever
    grace        readers are given time to end what they began (grace.py)
    sweep        objects are deleted, or moved aside (quarantine.py)
    ended        only if every one of them went; else the run stays as it is, and applying it again tries the rest

A plan of *metadata* goes the same way, but for what is published and rechecked (applying_metadata.py), and is never
moved aside: nobody could use what was restored.

The run's state is read from the server each time; the files in its folder say how far it came in that state. Of
several applies in one repository, of one run or of many, the one that began last goes on (fencing.py).
"""

from __future__ import annotations

import time

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import RunId, count_of
from lakebed.gc import protocol
from lakebed.gc.protocol import (
    Apply,
    BadInput,
    Condemn,
    Condemnation,
    Manifest,
    Quarantine,
    RunKind,
    RunReport,
    RunState,
    RunView,
    StageReport,
    input_folder,
    report_path,
)

from .admitting import admitted, check_how, state_to_apply
from .applying_metadata import recheck_metadata
from .clocks import wall_clock_ms
from .failures import told
from .fencing import Fence, claim
from .files import Files, Lake
from .grace import let_readers_finish
from .history import newly_kept
from .mark import mark_expired
from .quarantine import begin_quarantine
from .read import live_objects, read_ranges, uncommitted_objects
from .recording import Ledger, Swept
from .rereading import reread
from .runs import Plan, Total, read_plan
from .saving import save
from .sweep import remove_files, sweep
from .unfinished import (
    Rechecked,
    begin,
    check_beside,
    recheck_of,
    start_sweep,
    write_recheck,
)
from .verdicts import doomed_again, write_verdicts
from .workshop import Workshop, read_input


def apply_run(shop: Workshop, run_id: str, *, window: str | None = None, grace_s: int | None = None) -> RunReport:
    """Carry out the plan of this run. A run that ended already is left alone, and its report returned.

    With a `window` objects are moved aside for so long (`7d`) before they are deleted. Readers are given `grace_s`
    seconds, or what is usual for the namespace. The report says how many objects failed; where any did, the run has not
    ended and may be applied again.

    Raises:
        PlanMissing, BadInput, TaskCorrupt: there is no plan, or what it rests on is not what it was.
        Denied: the caller may not apply. Nothing was written or deleted, and an apply that is under way goes on.
        RunNotReady, RunAbandoned, NotTheRules: the run may not delete. Nothing was deleted.
        OtherUnfinished: it deletes for good, and another run of its kind that moves aside is unfinished. As above.
        InvalidDuration, BadWindow, BadGrace: no window that a quarantine can have, no grace. Nothing was deleted.
        Overtaken, TaskStopped: another apply began in this repository. What was deleted until then is recorded.
    """
    protocol.check_run_id(run_id)
    grace_s = check_how(shop.lake, window=window, grace_s=grace_s)
    with told(), Files(shop.lake) as files:
        plan = read_plan(files, run_id)
        view = shop.live_side.run(run_id)
        state = state_to_apply(view, plan)
        if state is RunState.ENDED:
            return _report_of_ended(files, plan)
        window = asked = None if plan.kind is RunKind.METADATA else window
        rules_version = admitted(shop.live_side, plan, state)
        check_beside(files, shop.live_side.runs(), plan, window)
        began_s = time.perf_counter()
        fence = _claim(shop.lake, files, run_id)
        # Again, for another may have begun meanwhile; whoever begins now overtakes this one.
        check_beside(files, shop.live_side.runs(), plan, window)
        if plan.kind is RunKind.UNCOMMITTED:
            request = Apply(kind=plan.kind, plan=plan.doomed.digest(), rules_version=rules_version, begins=True)
            shop.live_side.applying(run_id, request)
        window = begin(files, plan, window)
        doomed, condemned = _cleared(shop, files, plan, view, rules_version)
        cleared_s = time.perf_counter()
        started = start_sweep(files, plan)
        ledger = Ledger(run_id=plan.run_id, date=started.date)
        if doomed.rows and plan.kind is not RunKind.METADATA:
            since_ms = plan.made_ms if plan.kind is RunKind.UNCOMMITTED and plan.made_ms else started.started_ms
            let_readers_finish(since_ms, grace_s, check=lambda: files.act(fence.check), progress=shop.progress)
        files.act(fence.check)
        waited_s = time.perf_counter()
        begun = begin_quarantine(
            files, run_id, ledger_date=ledger.date, window=window, is_asked=asked is not None, doomed=doomed
        )
        quarantine, moving = begun or (None, None)
        shop.progress(f"{'moving aside' if quarantine else 'deleting'} {count_of(doomed.rows, 'object')}")
        swept = sweep(shop.spark, shop.lake, doomed, ledger, tasks=shop.tasks, fence=fence, quarantine=moving)
        ledger_keys = [ledger.key(part.name) for part in plan.doomed.parts]
        save(files, plan, ledger_keys, objects_failed=swept.objects_failed)
        stages = (
            _stage("recheck", plan.totals.all, cleared_s - began_s),
            _stage("sweep", swept.all, time.perf_counter() - waited_s),
        )
        report = _report(plan, doomed, swept, quarantine, condemned=condemned, stages=stages)
        # Before the run ends, so that one that has ended always has a report.
        files.write(report_path(plan.kind, RunId(run_id)), protocol.encode_report(report))
        if swept.objects_failed:
            return report
        shop.live_side.ended(run_id, doomed)
        return msgspec.structs.replace(report, state=RunState.ENDED)


def _claim(lake: Lake, files: Files, run_id: str) -> Fence:
    fence, outdated = files.act(lambda store: claim(store, run_id))
    remove_files(lake, outdated)
    return fence


def _cleared(
    shop: Workshop, files: Files, plan: Plan, view: RunView | None, rules_version: int
) -> tuple[Manifest, int]:
    """What may be deleted now (table DOOMED), and how many commits were condemned for it."""
    if plan.kind is RunKind.UNCOMMITTED:
        return plan.doomed, 0
    if view is not None and view.state is RunState.SWEEPING:
        rechecked = recheck_of(files, plan, view)
    elif plan.kind is RunKind.METADATA:
        doomed, commits = recheck_metadata(shop, files, plan)
        rechecked = write_recheck(files, plan, Rechecked(doomed=doomed, commits=commits, condemned=0))
    else:
        shop.progress(f"condemning {count_of(_condemned_rows(plan), 'commit')}")
        assert plan.condemned is not None, "committed plans have one"
        request = Condemn(commits=plan.condemned, rules_version=rules_version)
        rechecked = reread(
            shop,
            files,
            lambda: shop.live_side.condemn(plan.run_id, request),
            lambda answer: recheck(shop, files, plan, answer),
            commits_of=lambda answer: _whole(answer)[0],
        )
    shop.live_side.sweeping(plan.run_id, rechecked.doomed, rechecked.commits)
    return rechecked.doomed, rechecked.condemned


def _condemned_rows(plan: Plan) -> int:
    return plan.condemned.rows if plan.condemned else 0


def _whole(answer: Condemnation) -> tuple[Manifest, Manifest]:
    if answer.commits is None or answer.uncommitted is None:
        raise BadInput("the server condemned without saying what must be kept", run_id=answer.run_id)
    return answer.commits, answer.uncommitted


def recheck(shop: Workshop, files: Files, plan: Plan, answer: Condemnation) -> Rechecked:
    """Of the plan's objects those that nothing names now either, written down under a name of this recheck.

    Only ranges that the plan did not count as live are read again: what is new since, and what was taken out.
    """
    commits, uncommitted = _whole(answer)
    name = commits.digest()[:16]
    now = read_input(files, commits, protocol.COMMITS)
    new, old = newly_kept(_kept_by(files, plan), now)
    # The other way round than in planning: a range is "live" here if the plan kept it, so that only new ones are left.
    either = pa.concat_tables([_flag(new, live=False), _flag(old, live=True)]) if new.num_rows else new
    ranges = read_ranges(shop.spark, shop.lake, either, tasks=shop.tasks)
    fresh = ranges.filter(pc.invert(ranges["is_live"])) if new.num_rows else ranges
    objects, new_ranges = count_of(plan.doomed.rows, "object"), count_of(fresh.num_rows, "new range")
    shop.progress(f"rechecking {objects} against {new_ranges} and what is staged")
    verdicts = mark_expired(
        doomed_again(shop.spark, shop.lake, plan.doomed, tasks=shop.tasks),
        live_objects(shop.spark, shop.lake, fresh, tasks=shop.tasks, with_keys=True),
        uncommitted_objects(shop.spark, shop.lake, uncommitted, tasks=shop.tasks, with_keys=True),
        shop.settled(answer.settled_slices),
    )
    folder = input_folder(plan.kind, RunId(plan.run_id), f"{protocol.DOOMED.name}.{name}")
    doomed, _ = write_verdicts(verdicts, shop.lake, folder=folder, now_ms=plan.now_ms)
    return write_recheck(files, plan, Rechecked(doomed=doomed, commits=commits, condemned=answer.condemned))


def _kept_by(files: Files, plan: Plan) -> pa.Table:
    """The ids of the commits whose objects the plan counted as live."""
    assert plan.condemned is not None, "committed plans have one"
    commits = read_input(files, plan.commits, protocol.COMMITS)
    condemned = read_input(files, plan.condemned, protocol.CONDEMNED)["id"].combine_chunks()
    stays = pc.invert(pc.or_(commits["swept"], pc.is_in(commits["id"], value_set=condemned)))
    return commits.filter(stays)


def _flag(metaranges: pa.Table, *, live: bool) -> pa.Table:
    place = metaranges.schema.get_field_index("is_live")
    flags = pa.repeat(pa.scalar(live), metaranges.num_rows)
    return metaranges.set_column(place, metaranges.schema.field("is_live"), flags)


def _stage(name: str, objects: Total, wall_s: float) -> StageReport:
    return StageReport(name=name, rows=objects.objects, size_bytes=objects.size_bytes, wall_s=round(wall_s, 3))


def _report(
    plan: Plan,
    doomed: Manifest,
    swept: Swept,
    quarantine: Quarantine | None,
    *,
    condemned: int,
    stages: tuple[StageReport, ...],
) -> RunReport:
    inputs = {"commits": plan.commits, "refs": plan.refs, "uncommitted": plan.uncommitted, "doomed": doomed}
    return RunReport(
        run_id=plan.run_id,
        kind=plan.kind,
        state=RunState.MARKED if plan.kind is RunKind.UNCOMMITTED else RunState.SWEEPING,
        repository=plan.repository,
        namespace=plan.namespace,
        run_start_time_ms=plan.now_ms,
        run_end_time_ms=wall_clock_ms(),
        dry_run=False,
        mode=plan.mode,
        based_on=plan.based_on,
        token_expiry_ms=plan.token_expiry_ms,
        slices_skipped=plan.slices_skipped,
        last_read_slice=plan.last_read_slice,
        slices_listed=plan.listing.slices if plan.listing else 0,
        inputs={name: manifest.digest() for name, manifest in inputs.items() if manifest is not None},
        objects_doomed=doomed.rows,
        bytes_doomed=swept.all.size_bytes,
        objects_deleted=swept.objects_deleted,
        bytes_deleted=swept.bytes_deleted,
        objects_quarantined=swept.objects_quarantined,
        bytes_quarantined=swept.bytes_quarantined,
        quarantined_until_ms=quarantine.until_ms if quarantine else None,
        objects_kept=swept.objects_kept,
        bytes_kept=swept.bytes_kept,
        objects_failed=swept.objects_failed,
        commits_condemned=condemned,
        strays=plan.strays,
        stages=stages,
    )


def _report_of_ended(files: Files, plan: Plan) -> RunReport:
    name = report_path(plan.kind, RunId(plan.run_id))
    data = files.find(name)
    if data is None:
        raise BadInput(f"run {plan.run_id} has ended, but {name} is missing", input="report")
    return msgspec.structs.replace(protocol.decode_report(data, name=name), state=RunState.ENDED)
