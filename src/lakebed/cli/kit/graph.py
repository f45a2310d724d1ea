"""Draw a history as lines: one lane for each line of descent, and a commit in its lane."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import click

from lakebed.cli.kit.output import hanging, human_time, printable, terminal_width
from lakebed.wire import Commit


def refs_text(names: Mapping[str, Sequence[str]], commit: Commit) -> str:
    return f"({', '.join(map(printable, names[commit.id]))})" if commit.id in names else ""


def fits(line: str) -> bool:
    return not sys.stdout.isatty() or len(click.unstyle(line)) <= terminal_width()


def one_lines(commits: Iterable[Commit], names: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Iterator[str]:
    """Yield a line for each commit: the beginning of its id, the first line of its message, and its refs."""
    for commit in commits:
        label = f"{click.style(commit.id[:12], fg='yellow')}  "
        yield from _beside(label, printable(commit.message.partition("\n")[0]), refs_text(names, commit))


def graph_lines(
    commits: Iterable[Commit], names: Mapping[str, Sequence[str]] = MappingProxyType({}), *, is_whole: bool = True
) -> Iterator[str]:
    """Yield a line for each commit, its mark in the lane of the child that led to it, and below it how lanes turn.

    A lane is a commit that is still to come: `*` marks the one that came, `|` those that wait. A merge opens a lane for
    each further parent, at its right; where two lanes wait for one commit they join. A history with gaps (not
    `is_whole`) has one lane: the links between its commits are not shown.
    """
    lanes: list[str] = []
    turns: list[str] = []
    for commit in commits:
        yield from turns
        if commit.id not in lanes:
            lanes.append(commit.id)
        place = lanes.index(commit.id)
        marks = " ".join("*" if lane == place else "|" for lane in range(len(lanes)))
        first_line = commit.message.partition("\n")[0]
        name = click.style(commit.id[:12], fg="yellow")
        label = f"{marks}  {name}  {human_time(commit.creation_date)}  "
        first, *more = _beside(label, printable(first_line), refs_text(names, commit))
        yield first
        waiting = marks.replace("*", "|" if commit.parents else " ")
        yield from (f"{waiting}{line[len(waiting) :]}" for line in more)
        if is_whole:
            turns = _turn(lanes, place, commit.parents)
        else:
            lanes.clear()


def _beside(label: str, message: str, refs: str) -> Iterator[str]:
    """Yield the lines of a commit: its refs behind the message where they fit there, else below it."""
    indent = len(click.unstyle(label))
    *lines, last = hanging(label, message, indent=indent)
    yield from lines
    if not refs:
        yield last
        return
    # Colours have no width, so text that has them is never wrapped.
    if fits(beside := f"{last}  {click.style(refs, fg='cyan')}"):
        yield beside
        return
    yield last
    for line in hanging(" " * indent, refs, indent=indent):
        yield line[:indent] + click.style(line[indent:], fg="cyan")


def _turn(lanes: list[str], place: int, parents: Sequence[str]) -> list[str]:
    """Let lanes wait for the parents of the commit at `place`; return lines that draw how they turn, mostly none."""
    if not parents:
        del lanes[place]
        return [_drawn(place, left=range(place + 1, len(lanes) + 1))] if place < len(lanes) else []
    drawn = []
    lanes[place] = parents[0]
    for parent in parents[1:]:
        if parent not in lanes:
            lanes.insert(place + 1, parent)
            drawn.append(_drawn(place + 1, right=range(place + 1, len(lanes))))
        elif (other := lanes.index(parent)) < place:
            drawn.append(_drawn(len(lanes), left=[place], across=range(other, place - 1)))
        elif other > place:
            drawn.append(_drawn(len(lanes), right=[place + 1], across=range(place + 1, other)))
    low, *doubled = (lane for lane, waiting in enumerate(lanes) if waiting == parents[0])
    for high in doubled:
        drawn.append(_drawn(high, left=range(high, len(lanes)), across=range(low, high - 1)))
        del lanes[high]
    return drawn


def _drawn(bars: int, *, left: Iterable[int] = (), right: Iterable[int] = (), across: Iterable[int] = ()) -> str:
    """Draw `|` in the first lanes, a slash before those that turn left or right, and a line behind those it crosses."""
    cells = {2 * lane: "|" for lane in range(bars)}
    cells |= {2 * lane - 1: "/" for lane in left}
    cells |= {2 * lane - 1: "\\" for lane in right}
    cells |= {2 * lane + 1: "_" for lane in across}
    return "".join(cells.get(column, " ") for column in range(max(cells) + 1))
