"""`lakebed gc deleted`: give back the storage of a deleted repository, once it can be brought back no more.

`plan` decides and deletes nothing; `show` shows a plan; `apply` carries it out. From then on nothing comes back. When
every object is gone, the namespace may be used again (`repo create --reuse`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakebed.base import Denied, count_of
from lakebed.cli.arguments import RepositoryArgument, UidOption, YesOption
from lakebed.cli.failures import FAILED
from lakebed.cli.output import human_time
from lakebed.cli.session import Session, command
from lakebed.cli.tree import noun

from .options import Working, asked
from .session import (
    ONLY,
    RootOption,
    RunArgument,
    adopt_by,
    check,
    check_applies,
    checked_collector,
    collector_of,
    read_run,
    read_run_status,
    run_named,
    with_spark,
)
from .text import amount, objects_text, plan_text, report_text, run_status_text, runs_text

if TYPE_CHECKING:
    # At run time only in the commands: these load Arrow, for which `--help` need not wait.
    from pathlib import Path

    from lakebed.gc import Collector
    from lakebed.gc.protocol import Plan

app = noun("Collect the objects of a deleted repository.")

DAY_S: Final = 86_400


@app.command("plan")
@command
def plan(
    session: Session, uri: RepositoryArgument, working: Working, uid: UidOption = "", local_root: RootOption = None
) -> None:
    """Find every object that is the repository's own by record, and write down what goes. Deletes nothing."""
    request: Any = asked("plan", working, kinds=["deleted"])
    collector = _collector(session, uri, uid, local_root)
    check(session, collector, request)
    with with_spark(session, collector) as collector:
        [made] = collector.plan(request)
    session.show(made, _text)
    if not made.totals.all.objects:
        return
    if until_s := _kept_until_s(session, collector, made.now_ms):
        session.note(f"it can be brought back until {human_time(until_s)}: plan again then, to carry that out")
    else:
        session.note(f"to carry it out: {collector.command(made.run_id, made.kind)}")


@app.command("show")
@command
def show(
    session: Session,
    uri: RepositoryArgument,
    run: RunArgument,
    uid: UidOption = "",
    objects: Annotated[bool, typer.Option("--objects", help="Show each object that goes, not the sums.")] = False,
    local_root: RootOption = None,
) -> None:
    """Show a plan."""
    collector = _collector(session, uri, uid, local_root)
    run = run_named(session, collector, run)
    if objects:
        session.show_all(collector.objects(run), objects_text)
    else:
        session.show(read_run(collector, run), _text)


@app.command("apply")
@command
def apply(
    session: Session,
    uri: RepositoryArgument,
    run: RunArgument,
    working: Working,
    uid: UidOption = "",
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Delete what a plan names. Nothing brings the repository back from then on. May be repeated after a crash."""
    collector = _collector(session, uri, uid, local_root)
    run = run_named(session, collector, run)
    found = read_run(collector, run)
    check_applies(found, "lakebed gc deleted apply")
    request: Any = asked("apply", working, run_id=run)
    check(session, collector, request)
    session.confirm(f"Delete {amount(found.totals.all)} of the deleted repository {uri} for good?", yes=yes)
    with with_spark(session, collector) as collector:
        report = collector.apply(request)
    session.show(report, report_text)
    if report.objects_failed:
        raise typer.Exit(FAILED)
    stays = found.totals.all.objects - report.garbage_objects
    if stays or _named(found):
        session.note(_named_text(found))


@app.command("status")
@command
def status(
    session: Session, uri: RepositoryArgument, run: RunArgument, uid: UidOption = "", local_root: RootOption = None
) -> None:
    """Show how far a run has come."""
    collector = _collector(session, uri, uid, local_root)
    run = run_named(session, collector, run)
    found = read_run_status(collector, run)
    session.show(found, lambda found: run_status_text(found, collector.command(run, found.kind)))


@app.command("list")
@command
def list_runs(session: Session, uri: RepositoryArgument, uid: UidOption = "", local_root: RootOption = None) -> None:
    """List runs, and plans that were never applied, newest first."""
    collector = _collector(session, uri, uid, local_root)
    session.show_all(collector.listed(), runs_text)


@app.command("adopt")
@command
def adopt(session: Session, uri: RepositoryArgument, uid: UidOption = "", yes: YesOption = False) -> None:
    """Let this installation collect it, where a restored backup or another installation stopped that."""
    adopt_by(session, uri, collector_of(session, uri, deleted=uid or ONLY), yes=yes)


def _collector(session: Session, uri: str, uid: str, local_root: Path | None) -> Collector:
    return checked_collector(session, uri, local_root, deleted=uid or ONLY)


def _kept_until_s(session: Session, collector: Collector, planned_ms: int) -> int:
    """Return the end of the window in which this was planned, 0 where it was over: then an apply deletes."""
    try:
        every = [*session.client.repositories.list_deleted(prefix=collector.repository)]
    except Denied:
        # Who may plan need not be one who may list: the apply says the date as well.
        return 0
    for one in every:
        if one.id == collector.repository and one.state == "kept" and collector.deleted in {ONLY, one.uid}:
            # For a day, uploads that were under way at the deletion may still arrive. The server rounds down.
            over_s = max(one.kept_until, one.deletion_date + DAY_S) + 1
            return over_s if planned_ms < over_s * 1000 else 0
    return 0


def _text(found: Plan) -> list[str]:
    lines = [*plan_text(found)]
    if _named(found):
        lines.append(_named_text(found))
    return lines


def _named_text(found: Plan) -> str:
    return f"{count_of(_named(found), 'name')} in other repositories: what they name stays"


def _named(found: Plan) -> int:
    return found.uncommitted.rows if found.uncommitted is not None else 0
