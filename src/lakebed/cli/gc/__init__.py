"""`lakebed gc`: what goes, why, and making it go.

`plan` decides and deletes nothing; `show` tells what a plan says, `diff` what differs between two; `why` asks after one
object; `apply` carries out one plan; `purge`, `restore` and `ledger` are in gc_aside.py, `rules` in gc_rules.py.
Planning, applying and purging run Spark on this machine; the rest does not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakebed.base import Conflict, LakebedError
from lakebed.cli.arguments import RepositoryArgument, YesOption
from lakebed.cli.failures import FAILED, Misuse
from lakebed.cli.output import json_record
from lakebed.cli.session import Session, command
from lakebed.cli.tree import noun

from .aside import GraceOption, WindowOption, check_window_option, ledger, purge, purge_text, restore
from .diff import diff_text
from .jobs import app as jobs
from .modes import Looking
from .rules import app as rules
from .session import (
    RootOption,
    RunArgument,
    all_but_failed,
    checked_collector,
    collector_of,
    go_on,
    is_plan,
    local_spark,
    no_such_run,
    read_run,
    read_standing,
    rules_file,
    run_named,
    warn_of_unfinished,
)
from .show import (
    COMMITS_TOLD,
    CommitsOption,
    LimitOption,
    ObjectsOption,
    PrefixOption,
    check_one_by_one,
    expiring_text,
    show_commits,
    show_objects,
)
from .text import (
    amount,
    applied_text,
    outcome,
    plan_text,
    plan_texts,
    report_text,
    runs_text,
    standing_text,
    view_text,
)
from .why import why

if TYPE_CHECKING:
    # At run time only in the commands that need them: a client takes long to import, and Spark longer.
    from lakebed.gc.protocol import RunReport

__all__ = ["app", "plan_text"]

app = noun("Find and delete what nobody can reach any more.")
app.add_typer(rules, name="rules")
app.add_typer(jobs, name="job")


class NothingToAbandon(Conflict):
    """A plan that no apply began: nothing waits for it, and it deletes nothing."""


@app.command("plan")
@command
def plan(
    session: Session,
    uri: RepositoryArgument,
    looking: Looking,
    rules_from: Annotated[
        Path | None,
        typer.Option(
            "--rules", metavar="FILE", help="By the rules of a file, which nobody has saved; not of metadata."
        ),
    ] = None,
    local_root: RootOption = None,
) -> None:
    """Decide what goes and write it down. Deletes nothing."""
    if looking.metadata and rules_from is not None:
        raise Misuse("--rules and --metadata do not go together: metadata goes by no rules")
    supposed = None if rules_from is None else rules_file(rules_from)
    options, kinds = looking.options(), looking.kinds()
    collector = replace(checked_collector(session, uri, local_root), uncommitted=options)
    collector.check_planning(kinds, rules=supposed)
    warn_of_unfinished(session, collector)
    with local_spark(session) as local:
        session.show_all(collector.plan_each(local.spark, kinds, rules=supposed), plan_texts)


@app.command("show")
@command
def show(
    session: Session,
    uri: RepositoryArgument,
    run: RunArgument,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots that needs nothing else.")
    ] = None,
    objects: ObjectsOption = False,
    commits: CommitsOption = False,
    path: PrefixOption = "",
    limit: LimitOption = None,
    local_root: RootOption = None,
) -> None:
    """Show a plan: objects, bytes, why they go, and what it was made from."""
    check_one_by_one(objects=objects, commits=commits, path=path, limit=limit, has_html=html is not None)
    collector = checked_collector(session, uri, local_root)
    run = run_named(session, collector, run)
    found = read_run(collector, run)
    if objects:
        return show_objects(session, collector, found, path=path, limit=limit)
    if commits:
        return show_commits(session, collector, found, limit=limit)
    report = collector.report(run)
    if html is None:
        state = outcome(collector.standing(run), report)
        session.show(found, lambda plan: plan_text(plan, state=state))
        if not session.is_json:
            for line in expiring_text(found, collector.expiring(run, limit=COMMITS_TOLD)):
                session.say(line)
        return None
    from .report import TOP, plan_html

    html.write_text(plan_html(found, report, collector.expiring(run, limit=TOP)), encoding="utf-8")
    return session.done(f"{html}: {amount(found.totals.all)}", file=str(html), run_id=run)


@app.command("diff")
@command
def diff(
    session: Session,
    uri: RepositoryArgument,
    first: Annotated[str, typer.Argument(metavar="RUN", help="A plan.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="Another plan, of the same kind.")],
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most so many objects of either.")] = 20,
    local_root: RootOption = None,
) -> None:
    """Show what only one of two plans takes, and what both do."""
    collector = checked_collector(session, uri, local_root)
    first, second = (run_named(session, collector, name) for name in (first, second))
    session.show(collector.diff(first, second, limit=limit), diff_text)


@app.command("apply")
@command
def apply(
    session: Session,
    uri: RepositoryArgument,
    run: RunArgument,
    quarantine: WindowOption = None,
    readers_grace: GraceOption = None,
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Carry out one plan: delete what it names. May be repeated after a crash, or where objects failed."""
    check_window_option(quarantine)
    collector = replace(checked_collector(session, uri, local_root), readers_grace_s=readers_grace)
    run = run_named(session, collector, run)
    found = read_run(collector, run)
    what = amount(found.totals.all)
    applied = collector.finished(run)
    if applied is not None:
        session.show(applied, applied_text)
        return
    collector.check_applying(run, quarantine=quarantine)
    aside = f"Move {what} of {uri} aside, to be deleted after {quarantine}?"
    if found.totals.all.objects or found.commit_counts.expired:
        session.confirm(aside if quarantine else f"Delete {what} of {uri} for good?", yes=yes)
    with local_spark(session) as local:
        _show_reports(session, [collector.apply(local.spark, run, quarantine=quarantine)])


@app.command("run")
@command
def run_all(
    session: Session,
    uri: RepositoryArgument,
    looking: Looking,
    quarantine: WindowOption = None,
    readers_grace: GraceOption = None,
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Finish what is unfinished, plan and apply, one kind after the other; then purge what is past its quarantine."""
    check_window_option(quarantine)
    options, kinds = looking.options(), looking.kinds()
    collector = replace(checked_collector(session, uri, local_root), uncommitted=options, readers_grace_s=readers_grace)
    collector.check_running(kinds, quarantine=quarantine)
    question = f"Delete whatever nobody can reach any more in {uri} for good?"
    if quarantine:
        question = f"Move whatever nobody can reach any more in {uri} aside, to be deleted after {quarantine}?"
        if not kinds or looking.metadata:
            question += " Files of metadata are deleted at once."
    session.confirm(question, yes=yes)
    reports: list[RunReport] = []
    with local_spark(session) as local:
        try:
            left = all_but_failed(reports, collector.run_each(local.spark, kinds, quarantine=quarantine))
            if left is not None:
                session.note(str(left))
            purged = collector.purge(local.spark)
        except LakebedError:
            # What one kind deleted is told even where the next one fails: `extend` keeps what came before an error.
            _tell_reports(session, reports)
            raise
    if purged.purged:
        session.note("; ".join(purge_text(purged)))
    _show_reports(session, reports)
    if left is not None:
        raise left
    if purged.objects_failed:
        raise typer.Exit(FAILED)


@app.command("list")
@command
def list_runs(
    session: Session,
    uri: RepositoryArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 50,
    local_root: RootOption = None,
) -> None:
    """List runs, newest first: those the server knows, and plans that were never applied."""
    collector = checked_collector(session, uri, local_root)
    session.show_all(collector.listed(limit=limit), runs_text)
    warn_of_unfinished(session, collector)


@app.command("status")
@command
def status(session: Session, uri: RepositoryArgument, run: RunArgument, local_root: RootOption = None) -> None:
    """Show how far a run has come."""
    collector = collector_of(session, uri, local_root)
    run = run_named(session, collector, run)
    found = read_standing(collector, run)
    session.show(found, lambda found: standing_text(found, go_on(collector, run)))


@app.command("abandon")
@command
def abandon(session: Session, uri: RepositoryArgument, run: RunArgument, yes: YesOption = False) -> None:
    """End a run that was left behind before its deletes began."""
    collector = collector_of(session, uri)
    if collector.status(run) is None:
        if is_plan(session, collector, run):
            raise NothingToAbandon(f"{run} is a plan nobody applied: nothing to abandon", run_id=run)
        raise no_such_run(collector, run)
    session.confirm(f"Abandon run {run} of {uri}? It can never be applied then.", yes=yes)
    session.show(collector.abandon(run), view_text)


@app.command("adopt")
@command
def adopt(session: Session, uri: RepositoryArgument, yes: YesOption = False) -> None:
    """Choose this installation, where collections stopped because another one was seen in the namespace."""
    session.confirm(
        f"Collect in {uri} by what this server knows? What only another installation, or a newer state of this one,"
        " names may then be deleted.",
        yes=yes,
    )
    session.show(collector_of(session, uri).adopt(), lambda adopted: [f"adopted by {adopted.adopted_by}"])


# Here, for the help has the commands in this order
app.command("why")(command(why))
app.command("purge")(command(purge))
app.command("restore")(command(restore))
app.command("ledger")(command(ledger))


def _show_reports(session: Session, reports: list[RunReport]) -> None:
    """A partial failure is no success: it ends the command with an exit code of its own."""
    _tell_reports(session, reports)
    if any(report.objects_failed for report in reports):
        raise typer.Exit(FAILED)


def _tell_reports(session: Session, reports: list[RunReport]) -> None:
    if not reports:
        return
    if session.is_json:
        session.say(json_record(reports[0] if len(reports) == 1 else reports))
    else:
        for report in reports:
            session.say(report_text(report))
