"""`lakebed log`: the history of a ref, newest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from lakebed.wire import Commit

from .arguments import RefArgument
from .output import fields, human_time, printable
from .session import Session, command
from .tree import noun
from .uris import parse_ref

app = noun("Show the history of a ref.")


@app.command()
@command
def log(
    session: Session,
    uri: RefArgument,
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=1, help="At most so many commits.")] = None,
    graph: Annotated[bool, typer.Option("--graph", "-g", help="One line a commit, with lines of descent.")] = False,
    first_parent: Annotated[bool, typer.Option("--first-parent", help="Not the commits that merges brought.")] = False,
    objects: Annotated[list[str] | None, typer.Option("--object", help="Commits that changed this path.")] = None,
    prefixes: Annotated[list[str] | None, typer.Option("--prefix", help="Commits that changed paths below.")] = None,
) -> None:
    """Show the history of a ref, newest first."""
    ref = parse_ref(uri)
    commits = session.client.history.log(
        ref.repository, ref.ref, limit=limit, first_parent=first_parent, objects=objects, prefixes=prefixes
    )
    session.show_all(commits, graph_lines if graph else paragraphs)


def paragraphs(commits: Iterable[Commit]) -> Iterator[str]:
    """A paragraph for each commit."""
    for number, commit in enumerate(commits):
        if number:
            yield ""
        yield typer.style(f"commit {commit.id}", fg="yellow")
        parents = [("Merge", " ".join(parent[:12] for parent in commit.parents))] if len(commit.parents) > 1 else []
        committer = [("Author", printable(commit.committer))] if commit.committer else []
        yield from fields([*parents, *committer, ("Date", human_time(commit.creation_date))])
        yield ""
        yield from ("    " + printable(line) for line in commit.message.splitlines())
        for name, value in sorted(commit.metadata.items()):
            yield f"    {printable(name)} = {printable(value)}"


def graph_lines(commits: Iterable[Commit]) -> Iterator[str]:
    """A line for each commit; its mark stands in the lane of the child that led to it.

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
