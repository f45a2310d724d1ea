"""Walk a history from its heads down, children before parents: the log, the merge base of two commits, and how far
they are apart.

The order is total: falling generation, then falling date, then id. A child has a higher generation than its parents, so
the commits that were reached and not yet shown (`Walk`'s queue) decide all that follows. Two walks that reach the same
commits go on alike, and a page of a log can go on where the page before ended.

Records are read in batches: the first few for one page, and twice as many each time. Every twenty commits the others
get a turn, or every hundred of a plain log, for an embedded store reads without ever waiting.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lakebed.base import CommitId, NotFound
from lakebed.versions.context import Context
from lakebed.versions.records import Commit

from .ancestors import READ_TOGETHER, Located, ways_up

TURN: Final = 20
TURN_OF_READS: Final = 100
"""A walk that only reads commits gives the others a turn this often."""
FIRST_READ: Final = 16
TOGETHER_MAX: Final = 8
"""Pass over stretches of history for at most this many commits of one generation at once."""


class Walk:
    """Yield each commit that the heads reach, once."""

    def __init__(self, context: Context, *, first_parent: bool = False, turn: int = TURN) -> None:
        self._context = context
        self._first_parent = first_parent
        self._turn = turn
        self._expected = 0
        self._queue: list[tuple[int, int, CommitId, Commit]] = []
        self._queued: set[CommitId] = set()
        self._last: Located | None = None
        self._ahead: dict[CommitId, Commit] = {}
        self._count = 0

    def expect(self, count: int) -> None:
        """Read this many commits ahead of the last one, then twice as many each time."""
        self._expected = count

    async def begin(self, ids: Iterable[CommitId]) -> None:
        for id_ in ids:
            self._push(id_, await self._context.commits.read(id_))

    async def peek(self) -> Located | None:
        """Return the next commit, and leave it there; None after the last."""
        self._count += 1
        if self._count % self._turn == 0:
            await self._context.ports.clock.sleep(0)
        if self._last is not None:
            child, self._last = self._last, None
            for id_ in child[1].parents[:1] if self._first_parent else child[1].parents:
                if id_ not in self._queued:
                    self._push(id_, self._ahead.pop(id_) if id_ in self._ahead else await self._read(id_, child))
        return (self._queue[0][2], self._queue[0][3]) if self._queue else None

    def pass_it(self) -> None:
        """Go on behind the commit that `peek` returned."""
        _, _, id_, commit = heapq.heappop(self._queue)
        self._queued.discard(id_)
        self._last = id_, commit

    async def next(self) -> Located | None:
        """Return the next commit; None after the last."""
        if (place := await self.peek()) is not None:
            self.pass_it()
        return place

    def others(self) -> list[CommitId]:
        """Return the commits from which the walk goes on, beside the parents of the last one."""
        return sorted(self._queued)

    async def skip_to(self, target: Located) -> bool:
        """Go on behind this commit. Return whether the walk reaches it. Costs a few reads for each merge above it.

        Stretches of single parents are passed by jumps, and along first parents merges are, too.
        """
        goal = _order(*target)
        while (place := await self.peek()) is not None and _order(*place) < goal:
            self.pass_it()
            id_, commit = await self._context.commits.ancestors.up(
                place, generation=target[1].generation, past_merges=self._first_parent
            )
            if id_ != place[0]:
                self._last = None
                self._push(id_, commit)
        if place is None or place[0] != target[0]:
            return False
        self.pass_it()
        return True

    def _push(self, id_: CommitId, commit: Commit) -> None:
        if id_ not in self._queued:
            self._queued.add(id_)
            heapq.heappush(self._queue, (*_order(id_, commit), commit))

    async def _read(self, id_: CommitId, child: Located) -> Commit:
        if self._expected:
            ancestors = self._context.commits.ancestors
            self._ahead |= await ancestors.ahead(child, self._expected, first_parent=self._first_parent)
            self._expected = min(2 * self._expected, READ_TOGETHER)
        return self._ahead.pop(id_) if id_ in self._ahead else await self._context.commits.read(id_)


def _order(id_: CommitId, commit: Commit) -> tuple[int, int, CommitId]:
    return -commit.generation, -commit.created_ms, id_


_LEFT, _RIGHT, _BOTH = 1, 2, 3


class Meeting:
    """Find the best common ancestor of two commits: of those with the highest generation, the youngest.

    Costs a few reads for each merge above the ancestor, and some hundred at most where there are none.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    async def of(self, left: CommitId, right: CommitId) -> Located:
        """
        Raises:
            NotFound: the two have no common ancestor.
        """
        front = _Front(self._context)
        await front.begin(left, right)
        while level := front.pop_level():
            for place, side in level:
                if side == _BOTH:
                    return place
            await front.go_on(level)
        raise NotFound("the two refs have no common ancestor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """The numbers of commits that only the left reaches (`ahead`), and that only the right reaches (`behind`).

    Without `is_complete` they are lower bounds.
    """

    ahead: int
    behind: int
    is_complete: bool


class Apart:
    """Count the commits that one of two heads reaches and the other does not.

    Ends where only common commits are left. Costs a few reads for each merge that is not common.
    """

    def __init__(self, context: Context, *, steps_max: int) -> None:
        self._context = context
        self._steps_max = steps_max

    async def of(self, left: CommitId, right: CommitId) -> Distance:
        """Count, and stop after about `steps_max` commits and stretches of commits."""
        front = _Front(self._context)
        await front.begin(left, right)
        counts = {_LEFT: 0, _RIGHT: 0, _BOTH: 0}
        steps = 0
        while front.one_sided and steps < self._steps_max:
            level = front.pop_level()
            steps += len(level)
            for side, passed in await front.go_on(level):
                counts[side] += passed
        return Distance(ahead=counts[_LEFT], behind=counts[_RIGHT], is_complete=not front.one_sided)


class _Front:
    """The commits that a walk down two histories at once has reached, with the sides that reached each.

    A commit leaves after all its descendants, so its sides are final by then. Where all commits of a level have single
    parents for a while, the walk passes them by jumps, as long as no two of them arrive at the same commit.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queue: list[tuple[int, int, CommitId, Commit]] = []
        self._sides: dict[CommitId, int] = {}
        self._count = 0
        self.one_sided = 0
        """Count the commits that one side alone has reached."""

    async def begin(self, left: CommitId, right: CommitId) -> None:
        for id_, side in ((left, _LEFT), (right, _RIGHT)):
            self._push((id_, await self._context.commits.read(id_)), side)

    def pop_level(self) -> list[tuple[Located, int]]:
        """Take all commits of the highest generation. No other commit that was reached leads to one of them."""
        level: list[tuple[Located, int]] = []
        generation = self._queue[0][0] if self._queue else 0
        while self._queue and self._queue[0][0] == generation:
            _, _, id_, commit = heapq.heappop(self._queue)
            side = self._sides.pop(id_)
            self.one_sided -= side != _BOTH
            level.append(((id_, commit), side))
        return level

    async def go_on(self, level: list[tuple[Located, int]]) -> list[tuple[int, int]]:
        """Reach the commits below a level. Return its sides, and how many commits each commit of it stands for."""
        floor = -self._queue[0][0] if self._queue else 1
        lower = await self._pass_together([place for place, _ in level], floor)
        passed: list[tuple[int, int]] = []
        for (place, side), (id_, commit) in zip(level, lower, strict=True):
            if id_ != place[0]:
                passed.append((side, place[1].generation - commit.generation))
                self._push((id_, commit), side)
            else:
                passed.append((side, 1))
                for parent in commit.parents:
                    self._push((parent, await self._context.commits.read(parent)), side)
            self._count += 1
            if self._count % TURN == 0:
                await self._context.ports.clock.sleep(0)
        return passed

    def _push(self, place: Located, side: int) -> None:
        before = self._sides.get(place[0], 0)
        if not before:
            heapq.heappush(self._queue, (*_order(*place), place[1]))
        after = self._sides[place[0]] = before | side
        self.one_sided += (after != _BOTH) - (before in {_LEFT, _RIGHT})

    async def _pass_together(self, level: list[Located], floor: int) -> list[Located]:
        """Return ancestors of these commits of one generation, at least `floor`; or the commits themselves."""
        # Each passes single parents only, and no two have met: so no passed commit is common to two of them. Below
        # `floor` a passed commit could be in the history of another commit of the queue.
        ancestors = self._context.commits.ancestors
        if len(level) == 1:
            return [await ancestors.up(level[0], generation=floor, past_merges=False)]
        if len(level) > TOGETHER_MAX:
            return level
        while (lower := await self._step_together(level, floor)) is not None:
            level = lower
        return level

    async def _step_together(self, level: list[Located], floor: int) -> list[Located] | None:
        first, *others = level
        ancestors = self._context.commits.ancestors
        for way in ways_up(first[1]):
            goal = await ancestors.way_up(first[1], way, past_merges=False)
            if goal is None or goal[1].generation < floor:
                continue
            generation, lower = goal[1].generation, [goal]
            for place in others:
                above = await ancestors.up(place, generation=generation, past_merges=False)
                if above[1].generation != generation:
                    break
                lower.append(above)
            if len({id_ for id_, _ in lower}) == len(level):
                return lower
        return None
