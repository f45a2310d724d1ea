"""`lakebed gc job`: collections on the server's machine, so that neither Spark nor the object store is needed here.

Waiting for a job is watching it: Ctrl-C ends the watching and not the job, which `gc job stop` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import click

from lakebed.base import count_of, human_size
from lakebed.cli.kit.arguments import RepositoryArgument, UidOption, YesOption
from lakebed.cli.kit.failures import FAILED
from lakebed.cli.kit.output import fields, human_time, printable
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import parse_repository

from .options import BranchesOption, Deleting, Looking, Working, asked, collectors, messages
from .session import ONLY, policy_file, rules_file

app = noun("Run collections on the server's machine.")

JobArgument = Annotated[str, Argument(metavar="JOB", help="A job's id, as `start` and `list` show it.")]
ActionArgument = Annotated[
    str, Argument(metavar="plan|apply|run|purge|simulate", help="The action; `run` plans, applies and purges.")
]
DeletedOption = Annotated[bool, Option("--deleted", help="Work on a deleted repository: `plan` and `apply` only.")]
POLL_S: Final = 1.0


@app.command("start")
def start(
    session: Session,
    uri: RepositoryArgument,
    action: ActionArgument,
    looking: Looking,
    deleting: Deleting,
    working: Working,
    run: Annotated[str, Argument(metavar="RUN", help="With `apply`: the run to apply.")] = "",
    rules: Annotated[
        Path | None, Option("--rules", metavar="FILE", help="With `plan`: rules to plan by; they are not saved.")
    ] = None,
    days: Annotated[int | None, Option("--days", help="With `simulate`: how many days ahead. Default: 60.")] = None,
    policy: Annotated[
        Path | None, Option("--policy", metavar="FILE", help="With `simulate`: use the policy in this file.")
    ] = None,
    branches: BranchesOption = False,
    deleted: DeletedOption = False,
    uid: UidOption = "",
    wait: Annotated[bool, Option("--wait/--no-wait", help="Wait for the end, and show progress.")] = True,
    yes: YesOption = False,
) -> None:
    """Start a collection on the server."""
    supposed = None if rules is None else rules_file(rules)
    place = _place(uri, deleted=deleted, uid=uid)
    if place.deleted and action == "plan":
        request = asked(action, working, kinds=["deleted"])
    else:
        more = {"days": days, "policy": None if policy is None else policy_file(policy)}
        request = asked(
            action, looking, deleting, working, run_id=run, rules=supposed, branches=branches or None, **more
        )
    if action not in {"plan", "simulate"}:
        what = f"what run {run} names" if run else "everything that is no longer reachable"
        what += ", and the branches that go by the policy," if branches else ""
        session.confirm(f"Delete {what} in {uri}?", yes=yes)
    body = messages.StartJob(request=request)
    session.when_stopped = lambda: f"stopped: the job may have begun; `lakebed gc job list {uri}` shows it"
    job = session.client.do(collectors.START_GC_JOB, place.repository, body=body, query=place.query)
    if wait:
        job = _watched(session, place, job)
    _show(session, job)


@app.command("list")
def list_jobs(session: Session, uri: RepositoryArgument, deleted: DeletedOption = False, uid: UidOption = "") -> None:
    """List the jobs of a repository, newest first."""
    columns: dict[str, Callable[[messages.JobView], object]] = {
        "job": lambda job: job.id,
        "does": _what,
        "state": lambda job: job.state,
        "started": lambda job: human_time(job.started_ms // 1000),
    }
    place = _place(uri, deleted=deleted, uid=uid)
    found = session.client.do(collectors.LIST_GC_JOBS, place.repository, query=place.query).jobs
    session.show_table(found, columns, otherwise="no job")


@app.command("show")
def show(
    session: Session, uri: RepositoryArgument, job: JobArgument, deleted: DeletedOption = False, uid: UidOption = ""
) -> None:
    """Show how far a job has come, or how it ended."""
    session.show(_get(session, _place(uri, deleted=deleted, uid=uid), job), _describe)


@app.command("stop")
def stop(
    session: Session, uri: RepositoryArgument, job: JobArgument, deleted: DeletedOption = False, uid: UidOption = ""
) -> None:
    """Ask a job to stop. Start it again to go on."""
    place = _place(uri, deleted=deleted, uid=uid)
    asked_to_stop = session.client.do(collectors.STOP_GC_JOB, place.repository, job, query=place.query)
    session.show(_watched(session, place, asked_to_stop), lambda found: f"job {found.id} is {found.state}")


class _Place(NamedTuple):
    """Name the repository of the jobs; `deleted` is its uid, or ONLY, where it is deleted."""

    repository: str
    deleted: str

    def __str__(self) -> str:
        return f"lakefs://{self.repository}"

    @property
    def option(self) -> str:
        """Return the option by which commands find this repository."""
        return "" if not self.deleted else " --deleted" if self.deleted == ONLY else f" --uid {self.deleted}"

    @property
    def query(self) -> dict[str, str | int | None]:
        return {"deleted": self.deleted or None}


def _place(uri: str, *, deleted: bool, uid: str) -> _Place:
    return _Place(parse_repository(uri), uid or (ONLY if deleted else ""))


def _get(session: Session, place: _Place, job: str) -> messages.JobView:
    return session.client.do(collectors.GET_GC_JOB, place.repository, job, query=place.query)


def _watched(session: Session, place: _Place, job: messages.JobView) -> messages.JobView:
    """Show new lines as they come, and return the job when it has ended. Ctrl-C ends the watching alone."""
    where = f"{place} {job.id}{place.option}"
    session.when_stopped = lambda: (
        f"stopped watching: job {job.id} goes on at the server; `lakebed gc job show {where}` shows it, "
        f"`lakebed gc job stop {where}` ends it"
    )
    shown: tuple[str, ...] = ()
    while True:
        for line in _new_lines(shown, job.lines):
            session.note(printable(line))
        shown = job.lines
        if job.state is not messages.JobState.RUNNING:
            return job
        time.sleep(POLL_S)
        job = _get(session, place, job.id)


def _new_lines(shown: tuple[str, ...], lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines after `shown`: a job keeps the newest lines only, so the beginning of `lines` is in `shown`."""
    for start in range(len(shown) + 1):
        if shown[start:] == lines[: len(shown) - start]:
            return lines[len(shown) - start :]
    return lines


def _show(session: Session, job: messages.JobView) -> None:
    session.show(job, _describe)
    if job.state not in {messages.JobState.RUNNING, messages.JobState.DONE}:
        raise click.exceptions.Exit(FAILED)


def _describe(job: messages.JobView) -> Iterator[str]:
    facts: list[tuple[str, str]] = [
        ("job", job.id),
        ("does", _what(job)),
        ("state", str(job.state)),
        ("started", f"{human_time(job.started_ms // 1000)} by {job.started_by}"),
        *([("ended", human_time(job.ended_ms // 1000))] if job.ended_ms is not None else []),
        *([("error", job.error.removeprefix("error: "))] if job.error else []),
        *(("result", _result(one)) for one in job.results),
    ]
    return fields(facts)


def _what(job: messages.JobView) -> str:
    request = job.request
    words = [request.run_id] if isinstance(request, messages.ApplyRequest | messages.EraseRequest) else []
    if isinstance(request, messages.PlanRequest | messages.RunRequest):
        words = [kind.value for kind in request.kinds]
    if isinstance(request, messages.RunRequest) and request.branches:
        words.append("--branches")
    return " ".join([messages.action_of(request), *words])


def _result(one: messages.JobResult) -> str:
    if one.deed is messages.JobDeed.SWEPT:
        left_open = f"; of {one.objects_failed:,} it is not known, or they were not tried" if one.objects_failed else ""
        return f"{one.deed}: {count_of(one.objects, 'branch', 'branches')} deleted{left_open}"
    if one.deed is messages.JobDeed.CERTIFIED:
        stands = f"; {count_of(one.objects_failed, 'thing')} of the content still stands" if one.objects_failed else ""
        return f"{one.deed} run {one.run_id}: {count_of(one.objects, 'object')} absent{stands}"
    if one.simulation is not None:
        due = f"{count_of(one.objects, 'object')}, {human_size(one.size_bytes)}"
        return f"{due}, become due within {count_of(one.simulation.days, 'day')}"
    amount = f"{count_of(one.objects, 'object')}, {human_size(one.size_bytes)}"
    failed = f"; {count_of(one.objects_failed, 'object')} could not be deleted" if one.objects_failed else ""
    run = f" run {one.run_id} ({one.kind})" if one.run_id else " what was deferred"
    return f"{one.deed}{run}: {amount}{failed}"
