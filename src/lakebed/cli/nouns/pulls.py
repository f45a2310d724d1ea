"""`lakebed pulls`: ask for a merge, count the paths that it would change, and merge it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from lakebed.base import LakebedError, NotFound, count_of
from lakebed.cli.kit.arguments import LimitOption, RepositoryArgument, YesOption, other_ref
from lakebed.cli.kit.completion import complete_ref
from lakebed.cli.kit.failures import describe
from lakebed.cli.kit.output import hanging, human_date, printable
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import RefUri, parse_ref, parse_repository
from lakebed.wire import MergeResult, PullRequest

from .history import explaining_merge

app = noun("Open, look at, merge and close pull requests.")

PullArgument = Annotated[str, Argument(metavar="PULL", help="The id of a pull request.")]
TitleOption = Annotated[str | None, Option("--title", "-t", help="What it is about, in one line.")]
DescriptionOption = Annotated[str | None, Option("--description", "-d", help="The reason, and points to look at.")]


COUNTED_MAX: Final = 1000
"""At most this many changed paths are counted."""


class Which(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    ALL = "all"


@app.command("list")
def list_pulls(
    session: Session,
    uri: RepositoryArgument,
    status: Annotated[Which, Option("--status", help="Merged ones count as closed.")] = Which.OPEN,
    limit: LimitOption = None,
) -> None:
    """List pull requests, the newest first."""
    columns: dict[str, Callable[[PullRequest], object]] = {
        "pull": lambda pull: pull.id,
        "status": lambda pull: pull.status,
        "from": lambda pull: pull.source_branch,
        "into": lambda pull: pull.destination_branch,
        "author": lambda pull: pull.author,
        "title": lambda pull: pull.title,
    }
    found = session.client.pulls.list(parse_repository(uri), status=status.value, limit=limit)
    which = "" if status is Which.ALL else f"{status.value} "
    session.show_table(found, columns, otherwise=f"no {which}pull request")


@app.command("create")
def create(
    session: Session,
    source: Annotated[str, Argument(metavar="SOURCE", help="lakefs://repository/branch", complete=complete_ref)],
    destination: Annotated[
        str, Argument(metavar="DESTINATION", help="lakefs://repository/branch", complete=complete_ref)
    ],
    title: Annotated[str, Option("--title", "-t", help="What it is about, in one line.")],
    description: DescriptionOption = None,
) -> None:
    """Ask to merge a branch into another."""
    left = parse_ref(source)
    right, repository = other_ref(left, destination), left.repository
    pulls = session.client.pulls
    pull = pulls.get(
        repository, pulls.create(repository, left.ref, right.ref, title=title, description=description or "")
    )
    # Quietly the id alone: nothing else says it, and a script goes on with it.
    text = f"{pull.id}: {left} into {right}"
    session.show(pull, lambda _: pull.id if session.is_quiet else hanging("", text, indent=0))


@app.command("show")
def show(session: Session, uri: RepositoryArgument, pull: PullArgument) -> None:
    """Show a pull request, and how many paths it would change. `lakebed diff DESTINATION SOURCE` lists them."""
    repository = parse_repository(uri)
    found = session.client.pulls.get(repository, pull)
    facts = [
        ("Pull request", found.id),
        ("Title", found.title),
        ("Status", found.status),
        ("From", found.source_branch),
        ("Into", found.destination_branch),
        ("Author", found.author),
        ("Created", human_date(found.creation_date)),
    ]
    if found.closed_date is not msgspec.UNSET:
        facts.append(("Closed", human_date(found.closed_date)))
    if found.merged_commit_id is not msgspec.UNSET:
        facts.append(("Commit", found.merged_commit_id))
    if found.description:
        facts.append(("Description", printable(found.description)))
    if found.status == "open" and not session.is_json:
        facts.append(("Changes", _changes(session, repository, found)))
    session.show_fields(found, facts)


@app.command("edit")
def edit(
    session: Session,
    uri: RepositoryArgument,
    pull: PullArgument,
    title: TitleOption = None,
    description: DescriptionOption = None,
) -> None:
    """Change the title or the description."""
    _update(session, uri, pull, title=title, description=description)


@app.command("close")
def close(session: Session, uri: RepositoryArgument, pull: PullArgument) -> None:
    """Close a pull request without a merge."""
    _update(session, uri, pull, status="closed")


@app.command("reopen")
def reopen(session: Session, uri: RepositoryArgument, pull: PullArgument) -> None:
    """Open a closed pull request again."""
    _update(session, uri, pull, status="open")


@app.command("merge")
def merge(session: Session, uri: RepositoryArgument, pull: PullArgument, yes: YesOption = False) -> None:
    """Merge the source of a pull request into its destination."""
    repository = parse_repository(uri)
    found = session.client.pulls.get(repository, pull)
    session.confirm(f"Merge {found.source_branch} into {found.destination_branch}?", yes=yes)
    source, destination = (RefUri(repository, name) for name in (found.source_branch, found.destination_branch))
    with explaining_merge(session, source, destination, f"`lakebed pulls close {uri} {pull}` ends the request"):
        try:
            reference = session.client.pulls.merge(repository, pull)
        except NotFound as error:
            raise _missing_branch(session, uri, found, error) from error
    session.done(
        f"merged {found.source_branch} into {found.destination_branch}: {reference[:12]}",
        MergeResult(reference=reference),
    )


def _changes(session: Session, repository: str, pull: PullRequest) -> str:
    """Say how many paths a merge would change, and whether it can be merged."""
    try:
        listed = session.client.history.diff(repository, pull.destination_branch, pull.source_branch)
        types = [one.type for one in itertools.islice(listed, COUNTED_MAX + 1)]
    except LakebedError as error:
        return f"unknown: {describe(error)}"
    if not types:
        return "none: there is nothing to merge"
    more = "more than " if len(types) > COUNTED_MAX else ""
    conflicts = types.count("conflict")
    state = f"{count_of(conflicts, 'conflict')}, so it cannot be merged yet" if conflicts else "no conflict"
    return f"{more}{count_of(min(len(types), COUNTED_MAX), 'path')}, {state}"


def _missing_branch(session: Session, uri: str, found: PullRequest, error: NotFound) -> NotFound:
    """Name the branch that a merge misses: servers say only that there is one."""
    repository = parse_repository(uri)
    for name in (found.source_branch, found.destination_branch):
        try:
            session.client.branches.get(repository, name)
        except NotFound:
            return NotFound(
                f"{RefUri(repository, name)} was deleted: `lakebed branch undelete {RefUri(repository, name)}` "
                f"brings it back, `lakebed pulls close {uri} {found.id}` ends the request",
                **error.facts,
            )
    return error


def _update(session: Session, uri: str, pull: str, **changes: str | None) -> None:
    repository = parse_repository(uri)
    session.client.pulls.update(repository, pull, **changes)
    found = session.client.pulls.get(repository, pull)
    session.done(f"{found.id}: {found.status}, {printable(found.title)}", found)
