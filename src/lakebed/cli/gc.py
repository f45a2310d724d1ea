"""`lakebed gc`: what goes, why, and making it go.

`plan` decides and deletes nothing; `show` tells what a plan says; `apply` carries out one plan; `rules` are in
gc_rules.py. Planning and applying run Spark on this machine; where it finds the bytes of a `local://` repository is
said by --data or LAKEBED_BLOCKS_LOCAL_ROOT.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from lakebed.base import LakebedError

from .arguments import RepositoryArgument, YesOption
from .failures import FAILED, Misuse
from .gc_rules import app as rules
from .output import count_of, fields, human_size, human_time, json_record, printable, table
from .session import Session, command
from .tree import noun
from .uris import parse_repository

if TYPE_CHECKING:
    # At run time only in the commands that need them: a client takes long to import, and Spark longer.
    from lakebed.gc import Collector, LocalSession, Plan, Total
    from lakebed.handoff import RunKind, RunReport, RunView

app = noun("Find and delete what nobody can reach any more.")
app.add_typer(rules, name="rules")

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, as `gc plan` and `gc list` say it.")]
CommittedOption = Annotated[bool, typer.Option("--committed", help="Only data of commits that expired by the rules.")]
UncommittedOption = Annotated[bool, typer.Option("--uncommitted", help="Only data that is in no commit.")]
RootOption = Annotated[
    Path | None,
    typer.Option(
        "--data", "--local-root", metavar="DIR", help="The server's data folder, or that of local:// repositories."
    ),
]

TOP: Final = 10
"""How many branches and folders `show` names."""


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as `gc list` shows it. `planned`: only its plan is there; it was not applied."""

    run_id: str
    state: str
    kind: str = ""


@app.command("plan")
@command
def plan(
    session: Session,
    uri: RepositoryArgument,
    committed: CommittedOption = False,
    uncommitted: UncommittedOption = False,
    local_root: RootOption = None,
) -> None:
    """Decide what goes and write it down. Deletes nothing."""
    collector = _collector(session, uri, local_root)
    with _local(session) as local:
        session.show_all((collector.plan(local.spark, kind) for kind in _kinds(committed, uncommitted)), plan_texts)


@app.command("show")
@command
def show(session: Session, uri: RepositoryArgument, run: RunArgument, local_root: RootOption = None) -> None:
    """Show a plan: objects, bytes, why they go, and what it was made from."""
    session.show(_collector(session, uri, local_root).show(run), plan_text)


@app.command("apply")
@command
def apply(
    session: Session, uri: RepositoryArgument, run: RunArgument, yes: YesOption = False, local_root: RootOption = None
) -> None:
    """Carry out one plan: delete what it names. May be repeated after a crash, or where objects failed."""
    collector = _collector(session, uri, local_root)
    total = collector.show(run).totals.all
    session.confirm(f"Delete {_amount(total)} of {uri} for good?", yes=yes)
    with _local(session) as local:
        _show_reports(session, [collector.apply(local.spark, run)])


@app.command("run")
@command
def run_all(
    session: Session,
    uri: RepositoryArgument,
    committed: CommittedOption = False,
    uncommitted: UncommittedOption = False,
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Plan and apply, one kind after the other."""
    session.confirm(f"Delete whatever nobody can reach any more in {uri} for good?", yes=yes)
    collector = _collector(session, uri, local_root)
    reports: list[RunReport] = []
    with _local(session) as local:
        try:
            for kind in _kinds(committed, uncommitted):
                reports += collector.run(local.spark, [kind])
        except LakebedError:
            # What one kind deleted is told even where the next one fails.
            _tell_reports(session, reports)
            raise
    _show_reports(session, reports)


@app.command("list")
@command
def list_runs(session: Session, uri: RepositoryArgument, local_root: RootOption = None) -> None:
    """List runs, newest first: those the server knows, and plans that were never applied."""
    collector = _collector(session, uri, local_root)
    runs = {view.run_id: ListedRun(run_id=view.run_id, state=view.state, kind=view.kind) for view in collector.runs()}
    for run_id in collector.plans():
        runs.setdefault(run_id, ListedRun(run_id=run_id, state="planned", kind="committed"))
    session.show_all([runs[run_id] for run_id in sorted(runs, reverse=True)], _run_table)


@app.command("status")
@command
def status(session: Session, uri: RepositoryArgument, run: RunArgument, local_root: RootOption = None) -> None:
    """Show how far a run has come."""
    collector = _unchecked(session, uri, local_root)
    view = collector.status(run)
    if view is not None:
        session.show(view, _view_text)
        return
    found = collector.show(run)
    session.show(ListedRun(run_id=run, state="planned", kind=found.kind), lambda it: f"{it.run_id}: {it.state}")


@app.command("abandon")
@command
def abandon(session: Session, uri: RepositoryArgument, run: RunArgument, yes: YesOption = False) -> None:
    """End a run that was left behind before its deletes began."""
    session.confirm(f"Abandon run {run} of {uri}? It can never be applied then.", yes=yes)
    session.show(_unchecked(session, uri, None).abandon(run), _view_text)


def _kinds(committed: bool, uncommitted: bool) -> list[RunKind]:
    """Both, unless one is asked for."""
    from lakebed.handoff import RunKind

    asked = {RunKind.COMMITTED: committed, RunKind.UNCOMMITTED: uncommitted}
    return [kind for kind in RunKind if asked[kind] or not (committed or uncommitted)]


def _collector(session: Session, uri: str, local_root: Path | None) -> Collector:
    """For what reads or writes the namespace: a mistake in where it lies is told before Spark is started.

    Raises:
        Misuse: nobody said where local:// repositories lie.
    """
    from lakebed.blocks import InvalidNamespace

    collector = _unchecked(session, uri, local_root)
    try:
        collector.check()
    except InvalidNamespace as error:
        if collector.blocks.local_root is None and str(error.facts["uri"]).startswith("local://"):
            raise Misuse("say where local:// repositories lie: --data with the server's data folder") from error
        raise
    return collector


def _unchecked(session: Session, uri: str, local_root: Path | None) -> Collector:
    """For what only asks the server."""
    from dataclasses import replace

    from lakebed.blocks import options_from_environment
    from lakebed.gc import Collector

    repository = parse_repository(uri)
    blocks = options_from_environment(session.environment)
    if local_root is not None:
        blocks = replace(blocks, local_root=_objects_in(local_root))
    return Collector(client=session.client, repository=repository, blocks=blocks, progress=session.note)


def _objects_in(folder: Path) -> Path:
    """The folder of repositories itself, or where a server keeps it in its data folder."""
    objects = folder.absolute() / "objects"
    return objects if objects.is_dir() else folder.absolute()


@contextlib.contextmanager
def _local(session: Session) -> Iterator[LocalSession]:
    from lakebed.gc import local_session, session_options

    session.note("starting Spark")
    with local_session(session_options(session.environment), session.environment) as running:
        yield running


def plan_texts(plans: Iterable[Plan]) -> Iterator[str]:
    for found in plans:
        yield from plan_text(found)


def plan_text(plan: Plan) -> Iterator[str]:
    """A plan for people: what goes and why, then what that rests on."""
    commits = plan.commit_counts
    yield from fields(
        [
            ("plan", f"{plan.run_id} ({plan.kind})"),
            ("made", human_time(plan.now_ms // 1000)),
            ("goes", _amount(plan.totals.all)),
            ("commits", f"{commits.all:,}, of which {commits.expired:,} expire and {commits.swept:,} went before"),
            ("ranges", f"{plan.range_counts.live:,} stay, {plan.range_counts.expired:,} go"),
            *([("listed", _listing(plan))] if plan.listing else []),
            *([("strays", f"{len(plan.strays):,}, reported and never deleted")] if plan.strays else []),
        ]
    )
    for title, sums in (
        ("reason", plan.totals.by_reason),
        ("rule", plan.totals.by_rule),
        ("branch", plan.totals.by_branch),
        ("folder", plan.totals.by_prefix),
    ):
        yield from _top(title, sums)
    yield from (f"stray: {printable(key)}" for key in plan.strays[:TOP])


def _listing(plan: Plan) -> str:
    assert plan.listing is not None, "the caller asked"
    found = plan.listing
    return f"{count_of(found.objects, 'object')}, {human_size(found.size_bytes)} in {count_of(found.slices, 'slice')}"


def _top(title: str, sums: dict[str, Total]) -> Iterator[str]:
    if not any(sums):
        return
    yield ""
    rows = [
        (printable(name) or "(none)", f"{total.objects:,}", human_size(total.size_bytes))
        for name, total in [*sums.items()][:TOP]
    ]
    yield from table((title, "objects", "size"), rows)


def _amount(total: Total) -> str:
    return f"{count_of(total.objects, 'object')}, {human_size(total.size_bytes)}"


def _show_reports(session: Session, reports: list[RunReport]) -> None:
    """A partial failure is no success: it ends the command with an exit code of its own."""
    _tell_reports(session, reports)
    if any(report.objects_failed for report in reports):
        raise typer.Exit(FAILED)


def _tell_reports(session: Session, reports: list[RunReport]) -> None:
    if not reports:
        return
    if session.is_json:
        typer.echo(json_record(reports[0] if len(reports) == 1 else reports))
    else:
        for report in reports:
            typer.echo(_report_text(report))


def _report_text(report: RunReport) -> str:
    gone = f"deleted {count_of(report.objects_deleted, 'object')}, {human_size(report.bytes_deleted)}"
    if not report.objects_failed:
        return f"{report.run_id} ({report.kind}): {gone}"
    return (
        f"{report.run_id} ({report.kind}): {gone}; {count_of(report.objects_failed, 'object')} could not be deleted: "
        f"apply the run again"
    )


def _view_text(view: RunView) -> Iterator[str]:
    facts: list[tuple[str, Any]] = [
        ("run", f"{view.run_id} ({view.kind})"),
        ("state", view.state),
        ("started", human_time(view.started_ms // 1000)),
        ("condemns", count_of(view.condemned, "commit")),
    ]
    return fields(facts)


def _run_table(runs: Iterable[ListedRun]) -> Iterable[str]:
    rows = [(run.run_id, run.kind, run.state) for run in runs]
    return table(("run", "kind", "state"), rows) if rows else ()
