"""`lakebed gc job`: collections on the server's machine, so that neither Spark nor the object store is needed here.

A composition root: what is asked and answered is `lakebed.gc.protocol`'s. Waiting for a job is watching it: who stops
watching (Ctrl-C) does not stop the job, `gc job stop` does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import typer

from lakebed.base import count_of, human_size
from lakebed.cli.arguments import RepositoryArgument, YesOption
from lakebed.cli.failures import FAILED, Misuse
from lakebed.cli.output import fields, human_time, printable, table
from lakebed.cli.session import Session, command
from lakebed.cli.tree import noun
from lakebed.cli.uris import parse_repository

from .session import rules_file

if TYPE_CHECKING:
    # At run time only in the commands: what says these loads Arrow, for which `--help` need not wait.
    from lakebed.gc.protocol import JobResult, JobView

E = TypeVar("E", bound=StrEnum)

app = noun("Collections on the server's machine.")

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, as `start` and `list` say it.")]
ActionArgument = Annotated[
    str, typer.Argument(metavar="plan|apply|run|purge", help="What to do; `run` plans, applies and purges.")
]
POLL_S: Final = 1.0


@app.command("start")
@command
def start(
    session: Session,
    uri: RepositoryArgument,
    action: ActionArgument,
    run: Annotated[str, typer.Argument(metavar="RUN", help="With `apply`: the run to apply.")] = "",
    kind: Annotated[str, typer.Option("--kind", help="committed, uncommitted or metadata; default: all.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME[=VALUE]",
            help="As of `python -m lakebed.gc`: quarantine=7d, clean. May be repeated.",
        ),
    ] = None,
    rules: Annotated[
        Path | None, typer.Option("--rules", metavar="FILE", help="With `plan`: rules to suppose, not saved.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Tell the progress, and how it ended.")] = True,
    yes: YesOption = False,
) -> None:
    """Start a collection on the server."""
    from lakebed.gc.protocol import JobAction, JobView, RunKind, StartJob

    body = StartJob(
        action=_known(JobAction, action),
        kind=_known(RunKind, kind) if kind else None,
        run_id=run,
        options={name: value for name, _, value in (text.partition("=") for text in option or [])},
        rules=None if rules is None else rules_file(rules),
    )
    if (body.action is JobAction.APPLY) != bool(run):
        raise Misuse("`apply` needs the id of a run, and nothing else has one")
    if body.action is not JobAction.PLAN:
        what = f"what run {run} names" if run else "whatever nobody can reach any more"
        session.confirm(f"Delete {what} in {uri}?", yes=yes)
    job = msgspec.convert(session.client.call("POST", _path(uri), json=body), JobView)
    if wait:
        job = _watched(session, uri, job)
    _show(session, job)


@app.command("list")
@command
def list_jobs(session: Session, uri: RepositoryArgument) -> None:
    """List the jobs of a repository, newest first."""
    from lakebed.gc.protocol import JobList

    found = msgspec.convert(session.client.call("GET", _path(uri)), JobList)
    session.show_all(found.jobs, _job_table)


@app.command("show")
@command
def show(session: Session, uri: RepositoryArgument, job: JobArgument) -> None:
    """Show how far a job has come, or how it ended."""
    session.show(_get(session, uri, job), _describe)


@app.command("stop")
@command
def stop(session: Session, uri: RepositoryArgument, job: JobArgument) -> None:
    """Ask a job to stop. What it was doing can be begun, or gone on with, again."""
    session.client.call("DELETE", _path(uri, job))
    session.show(_watched(session, uri, _get(session, uri, job)), lambda found: f"job {found.id} is {found.state}")


def _known(names: type[E], text: str) -> E:
    """
    Raises:
        Misuse: none of the enumeration.
    """
    try:
        return names(text)
    except ValueError as error:
        raise Misuse(f"{text!r} is none of {', '.join(names)}") from error


def _path(uri: str, *rest: str) -> str:
    from lakebed.client import api_path

    return api_path("repositories", parse_repository(uri), "gc", "jobs", *rest)


def _get(session: Session, uri: str, job: str) -> JobView:
    from lakebed.gc.protocol import JobView

    return msgspec.convert(session.client.call("GET", _path(uri, job)), JobView)


def _watched(session: Session, uri: str, job: JobView) -> JobView:
    """The job when it has ended; until then its new lines are told as they come."""
    from lakebed.gc.protocol import JobState

    told: tuple[str, ...] = ()
    while True:
        for line in _new_lines(told, job.lines):
            session.note(printable(line))
        told = job.lines
        if job.state is not JobState.RUNNING:
            return job
        time.sleep(POLL_S)
        job = _get(session, uri, job.id)


def _new_lines(told: tuple[str, ...], lines: tuple[str, ...]) -> tuple[str, ...]:
    """What came since: a job keeps the newest lines only, so the beginning of `lines` is somewhere in `told`."""
    for start in range(len(told) + 1):
        if told[start:] == lines[: len(told) - start]:
            return lines[len(told) - start :]
    return lines


def _show(session: Session, job: JobView) -> None:
    from lakebed.gc.protocol import JobState

    session.show(job, _describe)
    if job.state not in {JobState.RUNNING, JobState.DONE}:
        raise typer.Exit(FAILED)


def _describe(job: JobView) -> Iterator[str]:
    facts: list[tuple[str, str]] = [
        ("job", job.id),
        ("does", _what(job)),
        ("state", str(job.state)),
        ("started", f"{human_time(job.started_ms // 1000)} by {printable(job.started_by)}"),
        *([("ended", human_time(job.ended_ms // 1000))] if job.ended_ms is not None else []),
        *([("error", printable(job.error.removeprefix("error: ")))] if job.error else []),
        *(("result", _result(one)) for one in job.results),
    ]
    return fields(facts)


def _what(job: JobView) -> str:
    return " ".join([str(job.action), *([str(job.kind)] if job.kind else []), *([job.run_id] if job.run_id else [])])


def _result(one: JobResult) -> str:
    amount = f"{count_of(one.objects, 'object')}, {human_size(one.size_bytes)}"
    failed = f"; {count_of(one.objects_failed, 'object')} could not be deleted" if one.objects_failed else ""
    run = f" run {one.run_id} ({one.kind})" if one.run_id else " what lay in quarantine past its window"
    return f"{one.deed}{run}: {amount}{failed}"


def _job_table(jobs: Iterable[Any]) -> Iterable[str]:
    rows = [(job.id, _what(job), str(job.state), human_time(job.started_ms // 1000)) for job in jobs]
    return table(("job", "does", "state", "started"), rows) if rows else ()
