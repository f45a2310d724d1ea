"""`lakebed gc`: plan collections, look at plans, apply them, and explain what became of an object.

`plan` decides and deletes nothing; `show` shows a plan, `diff` compares two plans; `apply` carries out one
plan; `why` explains one object. `purge`, `restore` and `ledger` are in aside.py, the rules in rules.py. Planning,
applying and purging may run Spark on this machine; the rest does not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import click
import msgspec

from lakebed import gc
from lakebed.base import RUN_MOVES, Conflict, LakebedError, RunState, count_of, human_size
from lakebed.cli.kit.arguments import RepositoryArgument, YesOption
from lakebed.cli.kit.failures import FAILED, Misuse
from lakebed.cli.kit.output import human_time, json_record, printable, prose
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import parse_repository

from . import text
from .aside import ledger, purge, purge_text, restore
from .branches import swept_text
from .deleted import app as deleted
from .jobs import app as jobs
from .options import BranchesOption, Deleting, Looking, Working, asked, messages, objectstore, option
from .rules import app as rules
from .session import (
    APPLY_STOPPED,
    PLAN_STOPPED,
    RootOption,
    RunArgument,
    RunsArgument,
    adopt_by,
    check,
    check_applies,
    checked_collector,
    collector_of,
    is_plan,
    no_such_run,
    read_run,
    read_run_status,
    reader_of,
    rules_file,
    run_named,
    service_of,
    warn_of_unfinished,
    with_spark,
)
from .text import plan_text
from .why import storage, why

__all__ = ["app", "apply_question", "plan_text"]

app = noun(
    "Plan and apply collections: delete data that is no longer reachable.",
    "lakebed gc rules set-default lakefs://lake 30d    # how long old data stays",
    "lakebed gc plan lakefs://lake                     # deletes nothing",
    "lakebed gc show lakefs://lake latest-committed --objects",
    "lakebed gc apply lakefs://lake latest-committed --window 7d",
    "lakebed gc restore lakefs://lake logs/            # the way back, for 7 days",
    "lakebed gc why lakefs://lake/main/logs/a.parquet  # why it stays, until when",
)
app.add_command(rules, "rules")
app.add_command(jobs, "job")
app.add_command(deleted, "deleted")
app.command("storage")(storage)

SHOWN: Final = 100
COMMITS_SHOWN: Final = 10
"""Show this many of the commits that expire, below a plan's sums."""

ObjectsOption = Annotated[bool, Option("--objects", help="Show each object instead of the sums.")]
CommitsOption = Annotated[bool, Option("--commits", help="Show each expiring commit instead of the sums.")]
PathOption = Annotated[
    str,
    Option("--path", metavar="PREFIX", help="With --objects: only those whose path or address begins with this."),
]
RowsOption = Annotated[
    int | None,
    Option("--limit", "-n", min=1, help="Show at most this many. Default: 100; with -o json all objects."),
]


@app.command("plan")
def plan(
    session: Session,
    uri: RepositoryArgument,
    looking: Looking,
    working: Working,
    rules_from: Annotated[Path | None, option("rules")] = None,
    local_root: RootOption = None,
) -> None:
    """Decide which objects a run would delete, and save the plan. Deletes nothing."""
    rules = None if rules_from is None else rules_file(rules_from)
    request: Any = asked("plan", looking, working, rules=rules)
    collector = checked_collector(session, uri, local_root)
    session.when_stopped = lambda: PLAN_STOPPED
    check(session, collector, request)
    warn_of_unfinished(session, collector)
    with with_spark(session, collector) as collector:
        plans: list[messages.Plan] = []

        def noted() -> Iterator[messages.Plan]:
            for plan in collector.plan(request):
                plans.append(plan)
                yield plan

        command = None if session.is_quiet else collector.command_of_all
        session.show_all(noted(), partial(text.plan_texts, command=command))
    _check_names(session, plans)
    if any(found.kind.value == "committed" and not found.commit_counts.expired for found in plans):
        session.note(
            "no commit expired: each is younger than its period. To try a collection, date a "
            "commit back (`lakebed commit --date`), or make a lake with a history (`lakebed quickstart`)"
        )


@app.command("show")
def show(
    session: Session,
    uri: RepositoryArgument,
    run: RunArgument,
    html: Annotated[Path | None, Option("--html", metavar="FILE", help="Write the plan as one HTML file.")] = None,
    objects: ObjectsOption = False,
    commits: CommitsOption = False,
    path: PathOption = "",
    limit: RowsOption = None,
    local_root: RootOption = None,
) -> None:
    """Show a plan: its objects and bytes, the reasons, and its inputs."""
    _check_ways(objects=objects, commits=commits, path=path, limit=limit, has_html=html is not None)
    collector = reader_of(session, uri, local_root)
    run = run_named(session, collector, run)
    found = read_run(collector, run)
    if objects:
        return _show_objects(session, collector, found, path=path, limit=limit)
    if commits:
        return _show_commits(session, collector, found, limit=limit)
    report = collector.report(run)
    is_served = isinstance(collector, gc.ServedCollector)
    if html is None:
        state = text.outcome(collector.run_status(run), report)
        session.show(found, lambda plan: plan_text(plan, state=state))
        if not session.is_json:
            maker = collector.planned_by(run)
            session.say(f"planned by {maker.by}" if maker else "planned by an unknown user")
            if (view := collector.status(run)) is not None and view.applied_by:
                session.say(f"applied by {view.applied_by}")
            expiring = collector.expiring(run, limit=COMMITS_SHOWN)
            for line in text.expiring_text(found, expiring):
                session.say(line)
            if found.commit_counts.expired and is_served:
                session.note("the expiring commits were not read: they are in the plan's files")
        return None
    if is_served:
        raise Misuse("--html reads the files of a plan: --data names the server's data folder")
    from .report import TOP, plan_html

    html.write_text(plan_html(found, report, collector.expiring(run, limit=TOP)), encoding="utf-8")
    return session.done(f"{html}: {text.amount(found.totals.all)}", file=str(html), run_id=run)


@app.command("diff")
def diff(
    session: Session,
    uri: RepositoryArgument,
    first: Annotated[str, Argument(metavar="RUN", help="A plan.")],
    second: Annotated[str, Argument(metavar="OTHER_RUN", help="Another plan, of the same kind.")],
    limit: Annotated[int, Option("--limit", "-n", min=0, help="Show at most this many objects of either.")] = 20,
    local_root: RootOption = None,
) -> None:
    """Compare two plans: objects of only one of them, and objects of both."""
    collector = reader_of(session, uri, local_root)
    first, second = (run_named(session, collector, name) for name in (first, second))
    session.show(collector.diff(first, second, limit=limit), text.diff_text)


def apply(name: str) -> Callable[..., None]:
    """Return the command `lakebed NAME apply`, which takes plans of its kinds and of no other."""

    def act(
        session: Session,
        uri: RepositoryArgument,
        runs: RunsArgument,
        deleting: Deleting,
        working: Working,
        yes: YesOption = False,
        local_root: RootOption = None,
    ) -> None:
        """Carry out plans in turn: delete their objects. May be repeated after a crash, or where objects failed."""
        request: Any = asked("apply", deleting, working, run_id=runs[0])
        collector = checked_collector(session, uri, local_root)
        plans: dict[str, messages.Plan] = {}
        # All names, checks and questions first: a wrong name, a refusal or a "no" comes before anything is deleted.
        for run in (run_named(session, collector, run) for run in runs):
            plans[run] = read_run(collector, run)
            check_applies(plans[run], f"lakebed {name} apply")
        applied = {run: collector.finished(run) for run in plans}
        asks = {run: msgspec.structs.replace(request, run_id=run) for run in plans if applied[run] is None}
        for ask in asks.values():
            check(session, collector, ask)
        for run, ask in asks.items():
            _confirm(session, collector, uri, plans[run], ask, yes=yes)
        reports: list[messages.RunReport] = []
        session.when_stopped = lambda: APPLY_STOPPED
        error: LakebedError | KeyboardInterrupt | None = None
        try:
            with with_spark(session, collector) as collector:
                for run, report in applied.items():
                    if report is None:
                        reports.append(collector.apply(asks[run]))
                    elif session.is_json:
                        reports.append(report)
                    else:
                        for line in prose(text.applied_text(report)):
                            session.say(line)
        except (LakebedError, KeyboardInterrupt) as stopped:
            error = stopped
        _show_reports(session, reports, error)

    return act


app.command("apply")(apply("gc"))


def _confirm(
    session: Session,
    collector: gc.Collector,
    uri: str,
    found: messages.Plan,
    request: messages.ApplyRequest,
    *,
    yes: bool,
) -> None:
    if found.totals.all.objects or found.commit_counts.expired:
        session.confirm(apply_question(uri, found, collector.run_status(found.run_id), request.window or ""), yes=yes)


def apply_question(uri: str, found: messages.Plan, status: gc.RunStatus, window: str) -> str:
    """Ask in the words that fit this run: deferred, begun with a window, or deleting at once."""
    what = text.amount(found.totals.all)
    if not window and status.until_ms is not None and status.until_ms > time.time_ns() // 1_000_000:
        until = human_time(-(-status.until_ms // 1000))
        return f"Apply run {found.run_id}? It deletes {what} of {uri} after {until}; until then they can be restored."
    if status.until_ms is None:
        window = window or status.window
    if window and found.kind.takes_objects:
        return f"Defer {what} of {uri}, to be deleted after {window}?"
    return f"Delete {what} of {uri} for good?"


@app.command("run")
def run_all(
    session: Session,
    uri: RepositoryArgument,
    looking: Looking,
    deleting: Deleting,
    working: Working,
    branches: BranchesOption = False,
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Finish unfinished runs, plan and apply each kind in turn, then purge deferred runs whose window is over."""
    request: Any = asked("run", looking, deleting, working, branches=branches or None)
    collector = checked_collector(session, uri, local_root)
    check(session, collector, request)
    question = _question(uri, looking, deleting)
    session.confirm(f"{question} And delete the branches that go by the policy?" if branches else question, yes=yes)
    done: list[messages.RunReport | messages.BranchesSwept | gc.PurgeReport] = []
    session.when_stopped = lambda: APPLY_STOPPED
    error: LakebedError | KeyboardInterrupt | None = None
    with with_spark(session, collector) as collector:
        try:
            # `extend` keeps the reports from before an error: they are shown even where the next kind fails.
            done.extend(collector.run(request))
        except (LakebedError, KeyboardInterrupt) as found:
            error = found
    purges = [one for one in done if isinstance(one, gc.PurgeReport)]
    sweeps = [one for one in done if isinstance(one, messages.BranchesSwept)]
    for swept in sweeps:
        for line in swept_text(swept):
            session.note(line)
    for purged in purges:
        if purged.purged:
            session.note("; ".join(purge_text(purged)))
    _show_reports(session, [one for one in done if isinstance(one, messages.RunReport)], error)
    if any(purged.objects_failed for purged in purges) or any(
        messages.is_open(one) for each in sweeps for one in each.branches
    ):
        raise click.exceptions.Exit(FAILED)


def _question(uri: str, looking: Looking, deleting: Deleting) -> str:
    if not deleting.window:
        return f"Delete everything in {uri} that is no longer reachable, for good?"
    is_of_metadata = looking.metadata or not (looking.committed or looking.uncommitted)
    return f"Defer everything in {uri} that is no longer reachable, to be deleted after {deleting.window}?" + (
        " Files of metadata are deleted at once." if is_of_metadata else ""
    )


@app.command("list")
def list_runs(
    session: Session,
    uri: RepositoryArgument,
    limit: Annotated[int, Option("--limit", "-n", min=1, help="Show at most this many.")] = 50,
    local_root: RootOption = None,
) -> None:
    """List runs, and plans that were never applied, newest first."""
    collector = reader_of(session, uri, local_root)
    session.show_all(collector.listed(limit=limit), text.runs_text, otherwise="no runs and no plans")
    warn_of_unfinished(session, collector)


@app.command("status")
def status(session: Session, uri: RepositoryArgument, run: RunArgument, local_root: RootOption = None) -> None:
    """Show how far a run has come."""
    collector = reader_of(session, uri, local_root)
    run = run_named(session, collector, run)
    found = read_run_status(collector, run)
    session.show(found, lambda found: text.run_status_text(found, collector.command(run, found.kind)))


@app.command("abandon")
def abandon(
    session: Session, uri: RepositoryArgument, run: RunArgument, yes: YesOption = False, local_root: RootOption = None
) -> None:
    """End a run that was left behind before its deletes began."""
    collector = collector_of(session, uri, local_root)
    run = run_named(session, collector, run)
    view = collector.status(run)
    if view is None:
        if is_plan(session, collector, run):
            raise Conflict(f"{run} is a plan that was not applied: there is nothing to abandon", run_id=run)
        raise no_such_run(collector, run)
    if view.until_ms is not None and not view.is_purging:
        raise Conflict(
            f"run {run} is deferred until {human_time(view.until_ms // 1000)}: "
            "`gc restore` takes its objects back, and with --undo all of it",
            run_id=run,
        )
    if view.state is RunState.ABANDONED:
        session.show(view, text.view_text)
        return
    if RunState.ABANDONED not in RUN_MOVES[view.kind][view.state]:
        raise Conflict(f"run {run} is {_why_not_abandoned(collector, view)}", run_id=run)
    session.confirm(f"Abandon run {run} of {uri}? It can never be applied then.", yes=yes)
    session.show(collector.abandon(run), text.view_text)


def _why_not_abandoned(collector: gc.Collector, view: messages.RunView) -> str:
    """Return the state's word in `gc list`, and the next step."""
    state = {RunState.ENDED: "over", RunState.MARKED: "planned, or being applied"}.get(view.state, "applying")
    # The run's files know more than its record, but this machine may not reach them.
    with contextlib.suppress(LakebedError):
        state = text.run_state_text(collector.run_status(view.run_id))
    if view.state in {RunState.ENDED, RunState.UNDONE}:
        return f"{state}: there is nothing to abandon"
    goes_on = f"`{collector.command(view.run_id, view.kind)}`"
    if state == text.state_text(RunState.MARKED):
        return f"{state}: it deletes nothing before {goes_on}, so there is nothing to abandon"
    return f"{state}, and its deletes may have begun: {goes_on} goes on with it"


@app.command("adopt")
def adopt(
    session: Session,
    uri: RepositoryArgument,
    slices: Annotated[
        bool, Option("--slices", help="A day later: let runs look into slices that have no record, too.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Let this installation collect where collections stopped because another one uses the namespace."""
    if not slices:
        adopt_by(session, uri, yes=yes)
        return
    service = service_of(session.client, parse_repository(uri))
    # The server may refuse, and it does so before the question.
    if found := gc.finish(service.find_slices()).slices:
        session.confirm(
            f"Collect in {count_of(len(found), 'slice')} of {uri}, too, that no record here names? What only another"
            " installation names in them, or a newer state of this one, is deleted.",
            yes=yes,
        )
    adopted = gc.finish(service.adopt_slices()) if found else messages.AdoptedSlices()
    count = count_of(len(adopted.slices), "slice")
    after = "; runs look into them a day from now" if adopted.slices else " without a record"
    session.show(adopted, lambda _: [f"adopted {count}{after}"])


@app.command("missing")
def missing(
    session: Session,
    uri: RepositoryArgument,
    mark: Annotated[bool, Option("--mark", help="Mark those that no ref names as gone, for ever.")] = False,
    yes: YesOption = False,
) -> None:
    """List commits whose trees lack files, as after a restore of an older backup; they stop every plan."""
    if mark:
        session.confirm(
            f"Mark commits of {uri} whose trees lack files as gone? They can never be named again.", yes=yes
        )
    service = service_of(session.client, parse_repository(uri))
    session.show(gc.finish(service.missing(marks=mark)), text.missing_text)


@app.command("package")
def package(
    session: Session,
    file: Annotated[
        Path | None, Argument(metavar="FILE", help="Default: lakebed-VERSION.zip in the current folder.")
    ] = None,
) -> None:
    """Write this package as a zip, for Spark's --py-files: workers then need no installation of it."""
    made = gc.write_package(file)
    session.done(f"{made.file}: {count_of(made.files, 'file')}, {human_size(made.size_bytes)}", made)
    session.note(f"workers need {', '.join(gc.NEEDED)} besides")


def _check_ways(*, objects: bool, commits: bool, path: str, limit: int | None, has_html: bool) -> None:
    if objects + commits + has_html > 1:
        raise Misuse("--objects, --commits and --html do not go together")
    if path and not objects:
        raise Misuse("--path is for --objects")
    if limit is not None and not (objects or commits):
        raise Misuse("--limit is for --objects or --commits")


def _show_objects(
    session: Session, collector: gc.Collector, plan: messages.Plan, *, path: str, limit: int | None
) -> None:
    """Show objects. As JSON each is written as it is read."""
    found = collector.objects(plan.run_id, prefix=path)
    if limit is None and session.is_json:
        session.show_all(found, text.objects_text)
        return
    shown = list(islice(found, limit or SHOWN))
    session.show_all(shown, text.objects_text)
    if next(found, None) is not None:
        whole = "" if path else f" of {plan.totals.all.objects:,}"
        session.note(f"these are {len(shown):,}{whole}; --limit says how many are shown")


def _show_commits(session: Session, collector: gc.Collector, plan: messages.Plan, *, limit: int | None) -> None:
    shown = collector.expiring(plan.run_id, limit=limit or SHOWN)
    if isinstance(collector, gc.ServedCollector) and plan.commit_counts.expired:
        raise Misuse("the commits of a plan are read from its files: --data names the server's data folder")
    session.show_all(shown, text.commits_text)
    if len(shown) < plan.commit_counts.expired:
        session.note(
            f"these are the newest {len(shown):,} of {plan.commit_counts.expired:,}; --limit says how many are shown"
        )


# At the end, so that the help has the commands in this order.
app.command("why")(why)
app.command("purge")(purge)
app.command("restore")(restore)
app.command("ledger")(ledger)


def _show_reports(
    session: Session, reports: list[messages.RunReport], error: LakebedError | KeyboardInterrupt | None = None
) -> None:
    """Show the reports, then the error. Objects that could not be deleted are a failure too."""
    if session.is_json and reports:
        session.say(json_record(reports[0] if len(reports) == 1 else reports))
    elif not session.is_json:
        for report in reports:
            for line in prose(text.report_text(report)):
                session.say(line)
    if error is not None:
        raise error
    _check_names(session, reports)
    if any(report.objects_failed for report in reports):
        raise click.exceptions.Exit(FAILED)


def _check_names(session: Session, seen: Sequence[messages.Plan | messages.RunReport]) -> None:
    """End with a failure where runs went on beside names that they can do nothing with."""
    names = sorted({name for each in seen for name in objectstore.names_of_no_keys(each.unknown_files)})
    for name in names:
        session.note(f"{printable(name)} lies in the namespace, and is not a key: every run keeps it. Move it away")
    if names:
        raise click.exceptions.Exit(FAILED)
