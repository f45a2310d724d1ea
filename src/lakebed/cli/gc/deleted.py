"""`lakebed gc deleted`: give back the storage of a deleted repository, once it can be brought back no more.

`plan` decides and deletes nothing; `show` shows a plan, `diff` compares two plans; `apply` carries one out; `why`
explains one object. Once an apply began nothing comes back. When every object is gone, the namespace may be used again
(`repo create --reuse`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click

from lakebed import gc
from lakebed.base import Conflict, count_of
from lakebed.cli.kit.arguments import RepositoryArgument, UidOption, YesOption
from lakebed.cli.kit.failures import FAILED, Misuse
from lakebed.cli.kit.output import human_time, prose
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import parse_repository

from .options import Working, asked, messages
from .session import (
    APPLY_STOPPED,
    ONLY,
    PLAN_STOPPED,
    RootOption,
    RunArgument,
    adopt_by,
    check,
    check_applies,
    checked_collector,
    read_run,
    read_run_status,
    reader_of,
    run_named,
    with_spark,
)
from .text import amount, diff_text, objects_text, plan_text, report_text, run_status_text, runs_text
from .why import deleted_why

app = noun("Collect the objects of a deleted repository.")


@app.command("plan")
def plan(
    session: Session, uri: RepositoryArgument, working: Working, uid: UidOption = "", local_root: RootOption = None
) -> None:
    """Find every object that the repository's records name as its own, and save the plan. Deletes nothing."""
    request: Any = asked("plan", working, kinds=["deleted"])
    collector = _collector(session, uri, uid, local_root)
    session.when_stopped = lambda: PLAN_STOPPED
    check(session, collector, request)
    with with_spark(session, collector) as collector:
        [made] = collector.plan(request)
    session.show(made, _text)
    if not made.totals.all.objects:
        return
    if made.now_ms < made.delete_from_ms:
        # Rounded up: at the second that is named the window is over.
        until_s = -(-made.delete_from_ms // 1000)
        session.note(f"it can be brought back until {human_time(until_s)}: plan again then, to carry that out")
    else:
        session.note(f"to carry it out: {collector.command(made.run_id, made.kind)}")


@app.command("show")
def show(
    session: Session,
    uri: RepositoryArgument,
    run: RunArgument,
    uid: UidOption = "",
    objects: Annotated[bool, Option("--objects", help="Show each object instead of the sums.")] = False,
    local_root: RootOption = None,
) -> None:
    """Show a plan."""
    collector = reader_of(session, uri, local_root, deleted=uid or ONLY)
    run = run_named(session, collector, run)
    if objects:
        session.show_all(collector.objects(run), objects_text)
    else:
        session.show(read_run(collector, run), _text)


@app.command("diff")
def diff(
    session: Session,
    uri: RepositoryArgument,
    first: Annotated[str, Argument(metavar="RUN", help="A plan.")],
    second: Annotated[str, Argument(metavar="OTHER_RUN", help="Another plan.")],
    limit: Annotated[int, Option("--limit", "-n", min=0, help="Show at most this many objects of either.")] = 20,
    uid: UidOption = "",
    local_root: RootOption = None,
) -> None:
    """Compare two plans: objects of only one of them, and objects of both."""
    collector = reader_of(session, uri, local_root, deleted=uid or ONLY)
    first, second = (run_named(session, collector, name) for name in (first, second))
    session.show(collector.diff(first, second, limit=limit), diff_text)


@app.command("apply")
def apply(
    session: Session,
    uri: RepositoryArgument,
    run: RunArgument,
    working: Working,
    uid: UidOption = "",
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Delete the objects of a plan. From then on the repository cannot come back. May be repeated after a crash."""
    collector = _collector(session, uri, uid, local_root)
    run = run_named(session, collector, run)
    found = read_run(collector, run)
    check_applies(found, "lakebed gc deleted apply")
    if found.now_ms < found.delete_from_ms:  # Such a plan is never applied: refuse it before the question.
        raise Conflict(
            f"this plan was made while {uri} can be brought back still, before"
            f" {human_time(-(-found.delete_from_ms // 1000))}: plan again then"
        )
    request: Any = asked("apply", working, run_id=run)
    check(session, collector, request)
    session.confirm(f"Delete {amount(found.totals.all)} of the deleted repository {uri} for good?", yes=yes)
    session.when_stopped = lambda: APPLY_STOPPED
    with with_spark(session, collector) as collector:
        report = collector.apply(request)
    session.show(report, lambda found: prose(report_text(found)))
    if report.objects_failed:
        raise click.exceptions.Exit(FAILED)
    stays = found.totals.all.objects - report.garbage_objects
    if stays or _named(found):
        session.note(_named_text(found))


@app.command("status")
def status(
    session: Session, uri: RepositoryArgument, run: RunArgument, uid: UidOption = "", local_root: RootOption = None
) -> None:
    """Show how far a run has come."""
    collector = reader_of(session, uri, local_root, deleted=uid or ONLY)
    run = run_named(session, collector, run)
    found = read_run_status(collector, run)
    session.show(found, lambda found: run_status_text(found, collector.command(run, found.kind)))


@app.command("list")
def list_runs(session: Session, uri: RepositoryArgument, uid: UidOption = "", local_root: RootOption = None) -> None:
    """List runs, and plans that were never applied, newest first."""
    collector = reader_of(session, uri, local_root, deleted=uid or ONLY)
    session.show_all(collector.listed(), runs_text, otherwise="no runs and no plans")


@app.command("adopt")
def adopt(
    session: Session,
    uri: RepositoryArgument,
    slices: Annotated[bool, Option("--slices", help="Refused: see `gc adopt`, which does it once it is back.")] = False,
    uid: UidOption = "",
    yes: YesOption = False,
) -> None:
    """Let this installation collect it, where a restored backup or another installation stopped that."""
    parse_repository(uri)  # the advice below names it
    if slices:
        chosen = f"{uri} --uid {uid}" if uid else uri
        raise Misuse(
            "no collection of a deleted repository takes a slice that has no record: its objects stay, as unknown"
            f" files. Bring it back while its window lasts (`lakebed repo undelete {chosen}`), run `lakebed gc adopt"
            f" {uri} --slices`, and delete it again. Or remove these folders of data/ with the object store's own tools"
        )
    adopt_by(session, uri, yes=yes, deleted=uid or ONLY)


# At the end, so that the help has the commands in this order.
app.command("why")(deleted_why)


def _collector(session: Session, uri: str, uid: str, local_root: Path | None) -> gc.Collector:
    return checked_collector(session, uri, local_root, deleted=uid or ONLY)


def _text(found: messages.Plan) -> list[str]:
    lines = [*plan_text(found)]
    if _named(found):
        lines.append(_named_text(found))
    return lines


def _named_text(found: messages.Plan) -> str:
    return f"{count_of(_named(found), 'name')} in other repositories: what they name stays"


def _named(found: messages.Plan) -> int:
    return found.uncommitted.rows if found.uncommitted is not None else 0
