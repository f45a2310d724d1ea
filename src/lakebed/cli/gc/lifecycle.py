"""`lakebed lifecycle`: delete objects by path, branch and age although commits still name them.

`policy` sets, shows and checks the policy, a file in JSON. The server keeps every version. `plan` shows the objects
that are due now, `simulate` those of each coming day; both delete nothing. `apply` carries out a plan. `why` explains
one object. `branches` deletes branches themselves (branches.py).
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from lakebed.base import Basis, Invalid, count_of, human_size
from lakebed.cli.kit.arguments import LimitOption, RepositoryArgument, YesOption
from lakebed.cli.kit.failures import FAILED, describe
from lakebed.cli.kit.output import hanging, human_time, prose, table
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import parse_repository

from . import apply
from .branches import app as branches
from .options import Working, asked, collectors, lifecycle, messages, option, policy_rules
from .session import PLAN_STOPPED, RootOption, check, checked_collector, policy_file, versions_of, with_spark
from .text import plan_texts, state_text
from .why import lifecycle_why

BAR = 40
"""Columns of the longest bar of a plot."""
app = noun(
    "Delete objects by path, branch and age although commits still name them.",
    "lakebed lifecycle policy set lakefs://lake policy.json",
    "lakebed lifecycle simulate lakefs://lake --days 60     # what goes on each day",
    "lakebed lifecycle plan lakefs://lake                   # deletes nothing",
    "lakebed lifecycle apply lakefs://lake latest-lifecycle --window 7d",
    "lakebed lifecycle why lakefs://lake/main/logs/a.log    # when it is due",
)
policies = noun("Set, show and check the lifecycle policy, and list its versions.")
app.add_command(policies, "policy")
app.add_command(branches, "branches")

FileArgument = Annotated[Path, Argument(metavar="FILE", help="JSON, as `show` shows it.")]


@policies.command("show")
def get_policy(
    session: Session,
    uri: RepositoryArgument,
    version: Annotated[int | None, Option("--version", min=1, help="Show this version.")] = None,
) -> None:
    """Show the policy: its JSON, as it was set."""
    query = {"version": version}
    session.show(session.client.do(lifecycle.GET_LIFECYCLE_POLICY, parse_repository(uri), query=query), _policy_text)


@policies.command("set")
def set_policy(session: Session, uri: RepositoryArgument, file: FileArgument) -> None:
    """Replace the policy by a file's. Deletes nothing."""
    from lakebed.client import BadRequest

    repository = parse_repository(uri)
    found = session.client.do(lifecycle.GET_LIFECYCLE_POLICY, repository)
    query = {"if_version": found.version}
    try:
        written = session.client.do(lifecycle.SET_LIFECYCLE_POLICY, repository, body=_read(file), query=query)
    except BadRequest as error:
        shows = f"`lakebed lifecycle policy validate {uri} {shlex.quote(str(file))}` shows all errors"
        raise Invalid(f"{describe(error)}; {shows}", **error.facts) from error
    for warning in written.warnings:
        session.warn(f"warning: {_place(warning)}{warning.message}")
    session.done(f"{uri}: the policy is that of {file}, version {written.version}", version=written.version)


@policies.command("validate")
def validate(session: Session, uri: RepositoryArgument, file: FileArgument) -> None:
    """Check a file: all errors and warnings, with rule and place. Changes nothing."""
    found = session.client.do(lifecycle.VALIDATE_LIFECYCLE_POLICY, parse_repository(uri), body=_read(file))
    session.show(found, _check_text)
    if not found.is_valid:
        raise click.exceptions.Exit(FAILED)


@policies.command("unset")
def unset(session: Session, uri: RepositoryArgument, yes: YesOption = False) -> None:
    """Remove the policy: from then on nothing is due by it."""
    repository = parse_repository(uri)
    found = session.client.do(lifecycle.GET_LIFECYCLE_POLICY, repository)
    session.confirm(f"Remove the lifecycle policy of {uri}?", yes=yes)
    session.client.do(lifecycle.DELETE_LIFECYCLE_POLICY, repository, query={"if_version": found.version})
    session.done(f"{uri} has no lifecycle policy", unset=None)


@policies.command("history")
def history(session: Session, uri: RepositoryArgument, limit: LimitOption = None) -> None:
    """List the versions of the policy, newest first: who set it, and when."""
    found = versions_of(session, lifecycle.LIST_LIFECYCLE_POLICY_HISTORY, parse_repository(uri), limit)
    session.show_all(found, _history_text, otherwise="no lifecycle policy was ever set")


@app.command("plan")
def plan(
    session: Session,
    uri: RepositoryArgument,
    working: Working,
    clean: Annotated[bool, Option("--clean", help="Read everything: use no saved state of an earlier run.")] = False,
    active_only: Annotated[bool, option("active-only")] = False,
    local_root: RootOption = None,
) -> None:
    """Find the objects that are due by the policy, and save the plan. Deletes nothing."""
    mode = "clean" if clean else None
    request: Any = asked("plan", working, kinds=["lifecycle"], mode=mode, active_only=active_only or None)
    collector = checked_collector(session, uri, local_root)
    session.when_stopped = lambda: PLAN_STOPPED
    check(session, collector, request)
    with with_spark(session, collector) as collector:
        session.show_all(
            collector.plan(request), partial(plan_texts, command=None if session.is_quiet else collector.command_of_all)
        )


@app.command("simulate")
def simulate(
    session: Session,
    uri: RepositoryArgument,
    working: Working,
    days: Annotated[int | None, option("days")] = None,
    policy: Annotated[Path | None, option("policy")] = None,
    local_root: RootOption = None,
) -> None:
    """Show how much becomes due on each coming day, by rule and branch. Deletes nothing."""
    request: Any = asked("plan", working, kinds=["lifecycle"])
    ahead = messages.SimulateRequest().days if days is None else days
    text = "" if policy is None else policy_file(policy)
    collector = checked_collector(session, uri, local_root)
    session.when_stopped = lambda: (
        "stopped: nothing was deleted and nothing is kept of the simulation; run the same command again"
    )
    with with_spark(session, collector) as collector:
        session.show(
            collector.simulate(days=ahead, policy=text, engine=request.engine, tasks=request.tasks), _simulation_text
        )


app.command("apply")(apply("lifecycle"))
app.command("why")(lifecycle_why)


@app.command("status")
def status(session: Session, uri: RepositoryArgument) -> None:
    """Show the policy in force and its runs, newest first, with their states."""
    repository = parse_repository(uri)
    policy = session.client.do(lifecycle.GET_LIFECYCLE_POLICY, repository)
    views = session.client.do(collectors.LIST_GC_RUNS, repository).runs
    runs = tuple(view for view in views if view.kind.spec.basis is Basis.POLICY)
    session.show(LifecycleStatus(policy=policy, runs=runs), _status_text)


class LifecycleStatus(msgspec.Struct, kw_only=True):
    """The policy in force, and the lifecycle runs that were applied, newest first."""

    policy: messages.PolicyVersion
    runs: tuple[messages.RunView, ...]


def _read(file: Path) -> messages.SetPolicy:
    return messages.SetPolicy(policy=msgspec.Raw(policy_file(file).encode()))


# Texts


def _policy_text(found: messages.PolicyVersion) -> Iterator[str]:
    text = found.text()
    yield "no lifecycle policy is set" if text is None else text.strip("\n")


def _place(problem: policy_rules.Problem) -> str:
    return f"{problem.place}: " if problem.place else ""


def _check_text(found: messages.PolicyCheck) -> Iterator[str]:
    for problem in found.problems:
        label = f"{'warning' if problem.is_warning else 'error'}: "
        yield from hanging(label, f"{_place(problem)}{problem.message}", indent=len(label))
    errors = sum(not problem.is_warning for problem in found.problems)
    yield "the policy is valid" if found.is_valid else count_of(errors, "error")


def _simulation_text(found: messages.Simulation) -> Iterator[str]:
    rows = [
        (row.date, row.rule, messages.kept_by(row.branch), f"{row.objects:,}", human_size(row.size_bytes))
        for row in found.rows
    ]
    yield from table(("day", "rule", "last kept by", "objects", "bytes"), rows)
    by_day: dict[str, int] = {}
    for row in found.rows:
        by_day[row.date] = by_day.get(row.date, 0) + row.size_bytes
    if by_day:
        yield ""
        most = max(by_day.values())
        for date, size_bytes in by_day.items():
            yield f"{date}  {'█' * round(BAR * size_bytes / (most or 1)):<{BAR}}  {human_size(size_bytes)}"
        yield ""
    yield from _simulated_branches(found)
    total = found.total
    objects, size = count_of(total.objects, "object"), human_size(total.size_bytes)
    yield from prose(f"{objects}, {size}, within {count_of(found.days, 'day')} if no one writes meanwhile")


def _simulated_branches(found: messages.Simulation) -> Iterator[str]:
    """Yield the branches that sweeps would delete, and how many on each day."""
    if found.branches is None:
        yield "branches are not simulated: they go by the policy in force"
    if not found.branches:
        return
    rows = [(one.date, one.branch, one.rule or "made to last until then") for one in found.branches]
    yield from table(("day", "branch", "by rule"), rows)
    yield ""
    by_day = Counter(one.date for one in found.branches)
    for date, count in by_day.items():
        drawn = "█" * round(BAR * count / max(by_day.values()))
        yield f"{date}  {drawn:<{BAR}}  {count_of(count, 'branch', 'branches')}"
    yield ""
    every = count_of(len(found.branches), "branch", "branches")
    yield from prose(f"{every}, where `lakebed lifecycle branches apply` runs each day")


def _status_text(found: LifecycleStatus) -> Iterator[str]:
    policy = found.policy
    if policy.text() is None:
        yield "no lifecycle policy is set"
    else:
        by = f" by {policy.changed_by}" if policy.changed_by else ""
        yield from prose(f"policy version {policy.version}, set {human_time(policy.changed_ms // 1000)}{by}")
    yield ""
    rows = [(view.run_id, human_time(view.started_ms // 1000), _state(view)) for view in found.runs]
    yield from table(("run", "applied", "state"), rows) if rows else ["no run was applied yet"]


def _state(view: messages.RunView) -> str:
    if view.until_ms is None or view.state.value == "ended":
        return state_text(view.state.value)
    return "purging" if view.is_purging else f"waits until {human_time(view.until_ms // 1000)}"


def _history_text(versions: Iterable[messages.PolicyVersion]) -> Iterator[str]:
    rows = [
        (
            str(version.version),
            human_time(version.changed_ms // 1000),
            version.changed_by,
            "removed" if version.text() is None else f"{len(bytes(version.policy)):,} bytes",
        )
        for version in versions
    ]
    return table(("version", "changed", "by", "policy"), rows)
