"""Find far ancestors of a commit without reading every commit between.

Along first parents a history is a list. Each commit record names, besides its first parent, one *jump*: an ancestor
farther up, as in the list of E. W. Myers, "An applicative random-access stack" (1983). `depth` says how far the list
goes on, and depth alone decides how far a jump leads (`jump_span`). So any ancestor is a logarithmic number of reads
away, and writing a commit costs at most one read more.

1. `depth` 0 is the first commit, or one from an older release: it has no jump, and a walk passes it by its parent.
2. `merges` counts the commits of several parents on the way. If a commit and an ancestor have equal counts, nothing
   but single parents lie between, so the ancestor is all that can be reached there.
3. None of the three is part of a commit's id: they follow from the parents. Records of commits are never removed,
   so a jump leads to a record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import CommitId
from lakebed.versions.records import Commit

Located: TypeAlias = tuple[CommitId, Commit]
"""A commit behind its id, which costs a digest to compute."""
READ_TOGETHER: Final = 200
"""Read at most this many commits ahead: an embedded store reads them in one stretch of the event loop."""


def jump_span(depth: int) -> int:
    """Return how many first parents the jump of a commit of this depth passes: the last digit of the skew-binary
    number, whose digits are 1, 3, 7, 15 and so on. 0 for depth 0.
    """
    span = 0
    while depth:
        span = (1 << (depth + 1).bit_length() - 1) - 1
        depth -= span
    return span


def jump_of(commit: Commit) -> CommitId:
    """Return where the jump of a commit leads that has a depth."""
    return CommitId(commit.jump) if commit.jump else commit.parents[0]


def place(commit: Commit, parent: Commit | None, middle: Commit | None) -> Commit:
    """Return the commit with depth, jump and merges. `middle` is where the parent's jump leads, if it is there."""
    depth, jump = (0 if parent is None else parent.depth + 1), ""
    if parent is not None and jump_span(depth) > 1:
        # Two jumps of one length follow each other from the parent on. The new one passes both, and the parent.
        if middle is None or middle.depth != parent.depth - jump_span(parent.depth):
            parent, depth = None, 0  # An older release wrote that record anew: a list begins here.
        else:
            jump = jump_of(middle)
    merges = 0 if parent is None else parent.merges + (len(commit.parents) > 1)
    return replace(commit, depth=depth, jump=jump, merges=merges)


def place_all(commits: Mapping[CommitId, Commit]) -> dict[CommitId, Commit]:
    """Do the same for commits whose parents are all among them."""
    placed: dict[CommitId, Commit] = {}
    for id_ in sorted(commits, key=lambda one: commits[one].generation):
        parents = commits[id_].parents
        parent = placed[parents[0]] if parents else None
        placed[id_] = place(
            commits[id_], parent, placed[jump_of(parent)] if parent is not None and parent.depth else None
        )
    return placed


class Ancestors:
    """`read` and `read_many` return commit records; the latter leaves out those that are missing."""

    def __init__(
        self,
        read: Callable[[CommitId], Awaitable[Commit]],
        read_many: Callable[[Sequence[CommitId]], Awaitable[Mapping[CommitId, Commit]]],
    ) -> None:
        self._read = read
        self._read_many = read_many

    async def placed(self, commit: Commit) -> Commit:
        """Return the commit with depth, jump and merges, as its parents give them. Costs at most two reads."""
        if not commit.parents:
            return place(commit, None, None)
        parent = await self._read(commit.parents[0])
        middle = await self._read_many([jump_of(parent)]) if jump_span(parent.depth + 1) > 1 else {}
        return place(commit, parent, next(iter(middle.values()), None))

    async def nth(self, commit_id: CommitId, count: int) -> CommitId | None:
        """Return the commit that many first parents up; None where the history is shorter."""
        while count:
            commit = await self._read(commit_id)
            if not commit.parents:
                return None
            span = jump_span(commit.depth)
            is_far = 1 < span <= count
            commit_id = jump_of(commit) if is_far else commit.parents[0]
            count -= span if is_far else 1
        return commit_id

    async def up(self, start: Located, *, generation: int, past_merges: bool) -> Located:
        """Return the farthest first-parent ancestor, or the commit itself, of at least this generation.

        Without `past_merges`: the farthest of those that every commit on the way has for its only parent.
        """
        place = start
        while True:
            for way in ways_up(place[1]):
                above = await self.way_up(place[1], way, past_merges=past_merges)
                if above is not None and above[1].generation >= generation:
                    place = above
                    break
            else:
                return place

    async def way_up(self, commit: Commit, way: tuple[CommitId, int], *, past_merges: bool) -> Located | None:
        """Return where this way leads. Without `past_merges`: if all between has one parent, else None."""
        id_, span = way
        if span == 1 and len(commit.parents) > 1 and not past_merges:
            return None
        above = await self._read(id_)
        # Equal counts tell only where both began at the same commit, and then the depths differ by the span.
        has_same_count = above.merges == commit.merges and above.depth == commit.depth - span
        return (id_, above) if past_merges or span == 1 or has_same_count else None

    async def ahead(self, start: Located, count: int, *, first_parent: bool = False) -> dict[CommitId, Commit]:
        """Read the ancestors that are at most `count` parents up, in few batches: jumps lead into the middle, and from
        there both halves are read at the same time. Stop where `count` of them are read.
        """
        count = min(count, READ_TOGETHER)
        known: dict[CommitId, Commit] = {}
        passed = {start[0]: 0}
        newest: Mapping[CommitId, Commit] = {start[0]: start[1]}
        while newest and len(known) < count:
            wanted: list[CommitId] = []
            for id_, commit in newest.items():
                others = [] if first_parent else [(parent, 1) for parent in commit.parents[1:]]
                for above, span in (*ways_up(commit), *others):
                    if above not in passed and passed[id_] + span <= count:
                        passed[above] = passed[id_] + span
                        wanted.append(above)
            newest = await self._read_many(wanted)
            known.update(newest)
        return known


def ways_up(commit: Commit) -> Iterator[tuple[CommitId, int]]:
    """Yield its jump and its first parent, where it has them, and how far each leads: the farther one first."""
    if commit.jump:
        yield CommitId(commit.jump), jump_span(commit.depth)
    for parent in commit.parents[:1]:
        yield parent, 1
