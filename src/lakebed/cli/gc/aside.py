"""`lakebed gc purge`, `restore` and `ledger`: delete, give back or look up the objects of earlier runs.

Only a purge may run Spark: the server restores and compares the ledger, and its files are read here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
from msgspec.structs import replace

from lakebed import gc
from lakebed.base import Basis, Denied, NotFound, RunState, count_of, human_size
from lakebed.cli.kit.arguments import RepositoryArgument, YesOption, parse_since
from lakebed.cli.kit.failures import FAILED, Misuse
from lakebed.cli.kit.output import human_time, printable, prose
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session, connect
from lakebed.cli.kit.uris import SCHEME, ObjectUri, RefUri, parse_prefix, parse_repository

from .options import Working, asked, messages
from .session import (
    APPLY_STOPPED,
    LATEST,
    RootOption,
    check,
    check_run,
    checked_collector,
    reader_of,
    run_named,
    with_spark,
)

if TYPE_CHECKING:
    # A client takes long to import.
    from lakebed.client import Client
SHOWN: Final = 20
OCCUPIED: Final = "another object is there"
"""The server's word for an object that would need --overwrite."""
LEDGER: Final[dict[str, Callable[[dict[str, Any]], object]]] = {
    "when": lambda row: human_time(int(row["deleted_at"].timestamp())),
    "state": lambda row: row["state"],
    "size": lambda row: human_size(row["size_bytes"]),
    "object": lambda row: row["path"] or row["address"],
    "run": lambda row: row["run_id"],
    "why": lambda row: row["error"] or row["rule"] or row["reason"],
}
"""The columns for people. JSON has every field."""
DISAGREEMENTS: Final[dict[str, Callable[[dict[str, Any]], object]]] = {
    "run": lambda row: row["run_id"],
    "object": lambda row: row["address"],
    "what": lambda row: DISAGREES[row["what"]],
}
DISAGREES: Final[dict[str, str]] = {
    "unplanned": "no plan has it",
    "unrecorded": "planned, and no row of the ledger has it",
    "there": "deleted by the ledger, and it is there",
    "twice": "deleted by more than one row",
}
PREFIX_MIN: Final = 8
"""A shorter beginning of a run's id is taken for a path."""
TIMEOUT_S: Final = 3600.0
"""Seconds that the server may work on a page in silence. An object may be very large."""


def purge(
    session: Session,
    uri: RepositoryArgument,
    working: Working,
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Delete the objects of deferred runs whose window is over."""
    collector = checked_collector(session, uri, local_root)
    request: Any = asked("purge", working)
    check(session, collector, request)
    session.confirm(f"Delete deferred objects of {uri} whose window is over?", yes=yes)
    session.when_stopped = lambda: APPLY_STOPPED
    with with_spark(session, collector) as collector:
        report = collector.purge(request)
    session.show(report, purge_text)
    if report.objects_failed:
        raise click.exceptions.Exit(FAILED)


def restore(
    session: Session,
    uri: RepositoryArgument,
    what: Annotated[
        str,
        Argument(metavar="RUN|PATH", help="A run, a path, a folder (with a slash at its end), or an address."),
    ],
    run: Annotated[str, Option("--run", metavar="RUN", help="With a path: the version that this run took.")] = "",
    to: Annotated[str, Option("--to", metavar="URI", help="lakefs://repository/branch or …/branch/prefix.")] = "",
    overwrite: Annotated[bool, Option("--overwrite", help="Replace other objects at these paths.")] = False,
    all_versions: Annotated[
        bool, Option("--all-versions", help="Restore every version of each path, to PATH@RUN/ADDRESS.")
    ] = False,
    undo: Annotated[
        bool, Option("--undo", help="Undo a RUN: its commits can be read again, and no object is deleted.")
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="With --undo: only show what would come back.")] = False,
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Stage objects of deferred runs again, under fresh addresses. Each copy is read back before it counts.

    An object comes back with the content type, metadata and checksum that it had in its commit, and the date of now.
    The server copies, so --data is not needed. It is taken as by other commands. With --undo nothing is staged: the run
    is undone, and its commits can be read again.
    """
    del local_root
    repository = parse_repository(uri)
    if dry_run and not undo:
        raise Misuse("--dry-run is for --undo")
    if undo:
        if run or to or overwrite or all_versions:
            raise Misuse("--undo takes a run and no other option: it restores no single object")
        _undo(session, repository, what, dry_run=dry_run, yes=yes)
        return
    target = _target(to, repository)
    with contextlib.closing(connect(session.settings, attempts=3, timeout_s=TIMEOUT_S)) as client:
        collector = gc.Collector(client=client, repository=repository, progress=session.note)
        run_id, path = (run_named(session, collector, run, waiting=True) if run else "", what)
        if not run and (found := _run_in(session, collector, what)):
            run_id, path = found, ""
        # The server may end the object that it copies. A second command restores nothing twice without --overwrite.
        session.when_stopped = lambda: (
            "stopped: what came back so far is on the branch, uncommitted; run the same command again for the rest"
        )
        report = _restored(
            collector,
            run_id=run_id,
            path=path,
            branch=target.ref,
            prefix=target.path,
            overwrite=overwrite,
            all_versions=all_versions,
        )
        where = "" if session.is_json else _place(client, collector, target, report)
    session.show(report, partial(restore_text, where=where))
    if report.bare:
        session.note(f"{count_of(report.bare, 'object')} came back without metadata: no entry of a commit was found")
    if report.failed:
        raise click.exceptions.Exit(FAILED)


def _undo(session: Session, repository: str, run: str, *, dry_run: bool, yes: bool) -> None:
    with contextlib.closing(connect(session.settings, attempts=3, timeout_s=TIMEOUT_S)) as client:
        collector = gc.Collector(client=client, repository=repository, progress=session.note)
        run_id = run_named(session, collector, run, waiting=True)
        found = collector.undo(run_id, dry_run=True)
        shown = undone_text
        if not dry_run and found.state is not RunState.UNDONE:
            for line in again_text(found):
                session.warn(line)
            session.confirm(f"Undo run {run_id} of {SCHEME}{repository}? {_comes_back(found)}.", yes=yes)
            shown = done_text
        if not dry_run:
            session.when_stopped = lambda: (
                f"stopped: the undo of run {run_id} may have begun, and nothing is deleted by it; "
                "run the same command again: it goes on, or says that the run is undone"
            )
            # Counted before the undo: afterwards only the run's records are left.
            found = replace(collector.undo(run_id), commits=found.commits, objects=found.objects, again=found.again)
    session.show(found, shown)


def _comes_back(undone: messages.Undone) -> str:
    if undone.kind.spec.basis is Basis.POLICY:
        return f"{count_of(undone.objects, 'object')} can be read again, each at its path"
    stays = count_of(undone.objects, "object stays", "objects stay")
    if undone.kind.spec.basis is Basis.RULES:
        return f"{count_of(undone.commits, 'commit')} can be read again, and {stays}"
    return f"{stays}, without a name"


def undone_text(undone: messages.Undone) -> Iterator[str]:
    yield from done_text(undone)
    yield from again_text(undone)


def done_text(undone: messages.Undone) -> Iterator[str]:
    """Say what came back, or would. The warning was written before the question."""
    is_done = undone.state is RunState.UNDONE
    yield from prose(f"run {undone.run_id} {'is' if is_done else 'can be'} undone: {_comes_back(undone)}")


def again_text(undone: messages.Undone) -> Iterator[str]:
    """Warn of objects that the next run would take again."""
    if not undone.kind.publishes:
        yield from prose("WARNING: the next run of uncommitted data takes these objects again: restore those you need")
        return
    if not undone.again:
        return
    is_policy = undone.kind.spec.basis is Basis.POLICY
    by = "the policy" if is_policy else "the rules"
    yield from prose(f"WARNING: the next run takes this again, by {by} in force:")
    for one in undone.again:
        amount = count_of(one.objects, "object") if is_policy else count_of(one.commits, "commit")
        yield f"  {printable(one.rule)}: {amount}"
    change = "`lakebed lifecycle policy set`" if is_policy else "`lakebed gc rules set`"
    yield from prose(f"change it first ({change}), or hold what you need (`lakebed hold add`)")


def _place(client: Client, collector: gc.Collector, target: ObjectUri, report: gc.RestoreReport) -> str:
    """Say where the objects are staged, as far as the caller may know."""
    branch, prefix = target.ref, target.path
    with contextlib.suppress(Denied):
        branch = branch or client.repositories.get(target.repository).default_branch
        view = collector.status(report.run_id) if report.run_id and not prefix and len(report.runs) < 2 else None
        if view is not None and not view.kind.publishes:
            prefix = f"restored/{report.run_id}/"
    return f" to {ObjectUri(target.repository, branch, prefix) if prefix else RefUri(target.repository, branch)}"


def _restored(collector: gc.Collector, *, path: str, **how: Any) -> gc.RestoreReport:
    try:
        return collector.restore(messages.Restore(path=path, **how))
    except NotFound as error:
        if not path or path.endswith("/"):
            raise
        raise NotFound(f"{error}; if it is a folder, write {path}/", **error.facts) from error


def ledger(
    session: Session,
    uri: RepositoryArgument,
    run: Annotated[str, Option("--run", metavar="RUN", help="Only rows of this run.")] = "",
    path: Annotated[str, Option("--path", help="Only this path, or a folder (with a slash at its end).")] = "",
    address: Annotated[str, Option("--address", help="Only this address.")] = "",
    state: Annotated[
        str,
        Option("--state", help="Only rows in this state: deleted, restored, kept, gone or failed."),
    ] = "",
    since: Annotated[
        str, Option("--since", metavar="DATE", help="Only rows since a date, or date and time (ISO 8601, UTC), or 2d.")
    ] = "",
    limit: Annotated[int, Option("--limit", "-n", min=1, help="Show at most this many rows.")] = 1000,
    verify: Annotated[
        bool,
        Option("--verify", help="Compare ledger, plans and store instead. Exits with 1 where they disagree."),
    ] = False,
    local_root: RootOption = None,
) -> None:
    """Show the ledger: a row for each object of a run, with its state. Newest runs first."""
    from itertools import islice

    if verify and any((path, address, state, since)):
        raise Misuse("--verify takes --run, and no other choice of rows")
    collector = reader_of(session, uri, local_root)
    run = run_named(session, collector, run) if run else ""
    if verify:
        _verify(session, collector, run, limit)
        return
    since_ms = parse_since(since) * 1000 if since else None
    query = gc.LedgerQuery(run_id=run, path=path, address=address, state=_state(state), since_ms=since_ms)
    rows = collector.ledger_rows(query, newest_first=True)
    found = list(islice(rows, limit + 1))
    if (
        run
        and run != "hard-delete"
        and not found
        and next(collector.ledger_rows(gc.LedgerQuery(run_id=run)), None) is None
    ):
        check_run(collector, run)
    is_asked = any((run, path, address, state, since))
    otherwise = "the ledger has no such row" if is_asked else "no rows in the ledger: no run has deleted anything"
    session.show_table(found[:limit], LEDGER, otherwise=otherwise)
    if len(found) > limit:
        session.note(f"these are the newest {count_of(limit, 'row')} of more: --limit shows more")


def _verify(session: Session, collector: gc.Collector, run: str, limit: int) -> None:
    if run:
        check_run(collector, run)
    rows: list[dict[str, Any]] = []
    count = 0
    session.when_stopped = lambda: "stopped: not all was compared, and nothing was changed; run the same command again"
    for one in collector.verify_ledger(run_id=run):
        count += 1
        if len(rows) < limit:
            rows.append({"run_id": one.run_id, "address": one.address, "what": one.what.value})
    rows.sort(key=lambda row: (row["run_id"], row["what"], row["address"]))
    session.show_table(rows, DISAGREEMENTS, otherwise="ledger, plans and store agree")
    if count:
        session.note(f"{count_of(count, 'disagreement')}; --limit and -o json show more")
        raise click.exceptions.Exit(FAILED)


def _target(to: str, repository: str) -> ObjectUri:
    if not to:
        return ObjectUri(repository, "", "")
    target = parse_prefix(to)
    if target.repository != repository:
        raise Misuse(f"{to} is in another repository than {repository}")
    return target


def _run_in(session: Session, collector: gc.Collector, what: str) -> str:
    """Return the run that this names, or nothing. A path may look like a run: a beginning needs PREFIX_MIN letters."""
    if "/" in what or (len(what) < PREFIX_MIN and what != LATEST):
        return ""
    run_id = run_named(session, collector, what, waiting=True)
    try:
        return run_id if collector.status(run_id) is not None else ""
    except messages.InvalidRunId:
        return ""


def _state(text: str) -> Any:
    if not text:
        return None
    try:
        return messages.LedgerState(text)
    except ValueError:
        raise Misuse(f"{text!r} is not a state: use {', '.join(messages.LedgerState)}") from None


def purge_text(report: gc.PurgeReport) -> Iterator[str]:
    yield f"purged {count_of(report.objects_purged, 'object')}, {human_size(report.bytes_purged)}"
    if report.objects_failed:
        yield f"{count_of(report.objects_failed, 'object')} could not be deleted: purge again"
        yield from (f"  {printable(error)}" for error in report.errors)
    yield from (f"{run} waits for its window to end" for run in report.waiting)


def restore_text(report: gc.RestoreReport, *, where: str) -> Iterator[str]:
    """Sum up a restore. `where` the objects are staged follows the sums, if any were."""
    runs = f"run {report.run_id}" if len(report.runs) < 2 else f"{len(report.runs)} runs, {' '.join(report.runs)}"
    done = f"restored {count_of(report.restored, 'object')}, {human_size(report.bytes_restored)}, from {runs}"
    yield (
        done
        + (where if report.restored else "")
        + (f"; {report.present:,} {'was' if report.present == 1 else 'were'} there already" if report.present else "")
    )
    if report.older:
        yield (
            f"{count_of(report.older, 'older version')} of these paths stayed where they are: --all-versions restores "
            "each to PATH@RUN/ADDRESS, its address just one"
        )
    if report.failed:
        yield f"{count_of(report.failed, 'object')} could not be restored:"
        yield from (f"  {printable(one.path)}: {_advised(one.error)}" for one in report.failures[:SHOWN])


def _advised(error: str) -> str:
    advice = " (--overwrite, or --to a prefix where nothing is)" if error == OCCUPIED else ""
    return printable(error) + advice
