"""`lakebed commit`, `log`, `diff` and `merge`: what changed, and when."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from lakebed.base import Conflict, human_size
from lakebed.wire import Commit, Diff, MergeResult

from .arguments import (
    BranchArgument,
    EmptyOption,
    LimitOption,
    MessageOption,
    MetaOption,
    PathsOption,
    RefArgument,
    parse_meta,
    same_repository,
)
from .completion import complete_ref
from .failures import Misuse
from .output import fields, human_time, printable
from .session import Session, command
from .tree import noun
from .uris import RefUri, parse_ref

commit_app = noun("Commit what is uncommitted on a branch.")
log_app = noun("Show the history of a ref.")
diff_app = noun("Show what changed.")
merge_app = noun("Merge one ref into a branch.")

MARKS: Final = {
    "added": ("+", "green"),
    "removed": ("-", "red"),
    "changed": ("~", "yellow"),
    "conflict": ("!", "magenta"),
}
"""For each type of difference its mark and colour; `prefix_changed` has the mark of `changed`."""
CONFLICTS_SHOWN: Final = 10


class StrategyName(StrEnum):
    SOURCE_WINS = "source-wins"
    DEST_WINS = "dest-wins"


@commit_app.command()
@command
def commit(
    session: Session,
    uri: BranchArgument,
    message: MessageOption,
    meta: MetaOption = None,
    date: Annotated[
        str, typer.Option("--date", help="The commit's date instead of now: Unix seconds or ISO 8601.")
    ] = "",
    allow_empty: EmptyOption = False,
) -> None:
    """Commit what is uncommitted on a branch."""
    branch = parse_ref(uri)
    made = session.client.history.commit(
        branch.repository,
        branch.ref,
        message,
        metadata=parse_meta(meta),
        date_s=parse_date(date) if date else None,
        allow_empty=allow_empty,
    )
    session.show(made, lambda _: f"{made.id[:12]} on {branch}: {made.message}")


def parse_date(text: str) -> int:
    """Return Unix seconds of `1767225600`, `2026-01-01` or `2026-01-01T12:00:00+02:00`; UTC where no offset is given.

    Raises:
        Misuse: it is none of these.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise Misuse(f"{text!r} is neither Unix seconds nor an ISO 8601 date") from error
    return int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp())


@log_app.command()
@command
def log(
    session: Session,
    uri: RefArgument,
    limit: LimitOption = None,
    graph: Annotated[bool, typer.Option("--graph", "-g", help="Show one line a commit, with its branches.")] = False,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Leave out the commits that merges brought.")
    ] = False,
    objects: Annotated[list[str] | None, typer.Option("--object", help="Only commits that changed this path.")] = None,
    prefixes: Annotated[
        list[str] | None, typer.Option("--prefix", help="Only commits that changed paths that begin with this.")
    ] = None,
) -> None:
    """Show the history of a ref, newest first."""
    ref = parse_ref(uri)
    commits = session.client.history.log(
        ref.repository, ref.ref, limit=limit, first_parent=first_parent, objects=objects, prefixes=prefixes
    )
    session.show_all(commits, graph_lines if graph else paragraphs)


def paragraphs(commits: Iterable[Commit]) -> Iterator[str]:
    """Yield a paragraph for each commit."""
    for number, commit in enumerate(commits):
        if number:
            yield ""
        yield typer.style(f"commit {commit.id}", fg="yellow")
        parents = [("Merge", " ".join(parent[:12] for parent in commit.parents))] if len(commit.parents) > 1 else []
        committer = [("Author", commit.committer)] if commit.committer else []
        yield from fields([*parents, *committer, ("Date", human_time(commit.creation_date))])
        yield ""
        yield from ("    " + printable(line) for line in commit.message.splitlines())
        for name, value in sorted(commit.metadata.items()):
            yield f"    {printable(name)} = {printable(value)}"


def graph_lines(commits: Iterable[Commit]) -> Iterator[str]:
    """Yield a line for each commit; its mark stands in the lane of the child that led to it.

    A lane is a commit that is still to come: `*` marks the one that came, `|` those that wait. A merge opens a lane for
    each further parent, at the right; lanes that wait for one commit are one lane.
    """
    lanes: list[str] = []
    for commit in commits:
        if commit.id not in lanes:
            lanes.append(commit.id)
        place = lanes.index(commit.id)
        marks = " ".join("*" if lane == place else "|" for lane in range(len(lanes)))
        first_line = commit.message.partition("\n")[0]
        name = typer.style(commit.id[:12], fg="yellow")
        yield f"{marks}  {name}  {human_time(commit.creation_date)}  {printable(first_line)}"
        came = [parent for parent in commit.parents[:1] if parent not in lanes]
        lanes[place : place + 1] = came
        lanes += [parent for parent in commit.parents[1:] if parent not in lanes]


@diff_app.command()
@command
def diff(
    session: Session,
    uri: RefArgument,
    right: Annotated[
        str, typer.Argument(metavar="REF", help="Compare with this ref.", autocompletion=complete_ref)
    ] = "",
    two_dot: Annotated[
        bool, typer.Option("--two-dot", help="Show all that differs, not only what the second changed.")
    ] = False,
    prefix: PathsOption = "",
    delimiter: Annotated[str, typer.Option("--delimiter", help="Sum up paths that go on after this.")] = "",
    limit: LimitOption = None,
) -> None:
    """Show what changed: + added, - removed, ~ changed, ! changed on both sides.

    Of a branch: what is uncommitted on it. Of two refs: what the second changed since they parted.
    """
    left = parse_ref(uri)
    history = session.client.history
    if right:
        repository = same_repository(left, other := parse_ref(right))
        found = history.diff(
            repository, left.ref, other.ref, two_dot=two_dot, prefix=prefix, delimiter=delimiter, limit=limit
        )
    else:
        found = history.uncommitted(left.repository, left.ref, prefix=prefix, delimiter=delimiter, limit=limit)
    session.show_all(found, diff_lines)


def diff_lines(differences: Iterable[Diff]) -> Iterator[str]:
    """Yield a line for each difference: mark, path, and the size of what was added or changed."""
    for one in differences:
        mark, colour = MARKS.get(one.type, MARKS["changed"])
        size = f"  ({human_size(one.size_bytes)})" if one.size_bytes and one.type in {"added", "changed"} else ""
        yield typer.style(f"{mark} {printable(one.path)}{size}", fg=colour)


@merge_app.command()
@command
def merge(
    session: Session,
    source: RefArgument,
    destination: BranchArgument,
    message: MessageOption = "",
    meta: MetaOption = None,
    strategy: Annotated[
        StrategyName | None, typer.Option("--strategy", "-s", help="Which side wins where both changed a path.")
    ] = None,
    squash: Annotated[bool, typer.Option("--squash", help="Make one commit, without the source's history.")] = False,
    allow_empty: EmptyOption = False,
) -> None:
    """Bring what a ref changed into a branch. A conflict stops it and changes nothing, unless a strategy decides."""
    left, right = parse_ref(source), parse_ref(destination)
    try:
        reference = session.client.history.merge(
            same_repository(left, right),
            left.ref,
            right.ref,
            message=message,
            metadata=parse_meta(meta),
            strategy=strategy.value if strategy else None,
            squash=squash,
            allow_empty=allow_empty,
        )
    except Conflict as error:
        if "conflict found" not in str(error):
            raise
        raise Conflict(_conflict_text(session, left, right), **error.facts) from error
    session.show(MergeResult(reference=reference), lambda _: f"merged {left} into {right}: {reference[:12]}")


def _conflict_text(session: Session, source: RefUri, destination: RefUri) -> str:
    """Name the first paths that both sides changed."""
    found = session.client.history.diff(source.repository, destination.ref, source.ref)
    paths = (printable(one.path) for one in found if one.type == "conflict")
    shown = list(itertools.islice(paths, CONFLICTS_SHOWN + 1))
    more = ", …" if len(shown) > CONFLICTS_SHOWN else ""
    return (
        f"both sides changed {', '.join(shown[:CONFLICTS_SHOWN])}{more}: nothing was merged. "
        f"`lakebed diff {destination} {source}` marks these with !, --strategy decides them"
    )
