"""`lakebed diff`: what is uncommitted on a branch, or what differs between two refs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from lakebed.base import human_size
from lakebed.wire import Diff

from .arguments import LimitOption, RefArgument
from .branch import same_repository
from .completion import complete_ref
from .output import printable
from .session import Session, command
from .tree import noun
from .uris import parse_ref

app = noun("Show what changed.")

MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow"), "conflict": ("!", "magenta")}
"""For each type of difference its mark and colour; `prefix_changed` has the mark of `changed`."""


@app.command()
@command
def diff(
    session: Session,
    uri: RefArgument,
    right: Annotated[
        str, typer.Argument(metavar="REF", help="Compare with this ref.", autocompletion=complete_ref)
    ] = "",
    two_dot: Annotated[
        bool, typer.Option("--two-dot", help="All that differs, not only what the second changed since they parted.")
    ] = False,
    prefix: Annotated[str, typer.Option("--prefix", help="Only paths that begin so.")] = "",
    delimiter: Annotated[str, typer.Option("--delimiter", help="Sum up paths that go on after this.")] = "",
    limit: LimitOption = None,
) -> None:
    """Show what changed.

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
    """A line for each difference: mark, path, and the size of what was added or changed."""
    for one in differences:
        mark, colour = MARKS.get(one.type, MARKS["changed"])
        size = f"  ({human_size(one.size_bytes)})" if one.size_bytes and one.type in {"added", "changed"} else ""
        yield typer.style(f"{mark} {printable(one.path)}{size}", fg=colour)
