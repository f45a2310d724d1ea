"""Judge transactions over append-only lists by Elle's method (Kingsbury and Alvaro, VLDB 2020).

Every read of a list shows the order of all appends before it. So the longest read is the order of versions, and from
it follow the dependencies between transactions, without a search:

    ww  two appends that follow each other           wr  a read and the last append that it saw
    rw  a read and the first append that it missed   rt  one transaction ended before the other began

Transactions that depend on each other in a cycle did not happen one after the other. Which dependencies are needed for
the cycle gives the anomaly its name, as Adya has them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .events import LIST_KINDS, Call

Edges = Mapping[Call, Mapping[Call, frozenset[str]]]
"""For each call the calls that must come after it, and the dependencies that say so."""

LEVELS: Final = (("ww",), ("ww", "wr"), ("ww", "wr", "rw"))
"""Cycles over the first level are G0, over the second G1c, over the third G-single (one rw) or G2-item."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """`key` is a branch, a path or a folder; empty where several are needed."""

    name: str
    key: str
    text: str
    calls: tuple[Call, ...] = ()

    def __str__(self) -> str:
        where = f" on {self.key}" if self.key else ""
        return "\n".join([f"{self.name}{where}: {self.text}", *(f"    {call}" for call in self.calls)])


def check_lists(calls: Iterable[Call]) -> list[Anomaly]:
    """Every anomaly of one list by itself."""
    calls = [call for call in calls if call.only(LIST_KINDS)]
    keys = sorted({key for call in calls for _, key, _ in call.only(LIST_KINDS)})
    found: list[Anomaly] = []
    for key in keys:
        mine = [call for call in calls if any(micro[1] == key for micro in call.only(LIST_KINDS))]
        reads = [(call, values) for call in mine for values in _reads(call, key)]
        log = _Log(key, mine, reads)
        found += log.check()
        found += _cycles(_dependencies([log], mine), key)
    return found


def check_across(calls: Iterable[Call]) -> list[Anomaly]:
    """Cycles that need more than one list. Not all of them are forbidden: docs/guide/isolation.md."""
    calls = [call for call in calls if call.only(LIST_KINDS)]
    keys = sorted({key for call in calls for _, key, _ in call.only(LIST_KINDS)})
    logs = [_Log(key, calls, [(call, values) for call in calls for values in _reads(call, key)]) for key in keys]
    return _cycles(_dependencies(logs, calls), "")


def _reads(call: Call, key: str) -> list[list[Any]]:
    if call.outcome != "ok":
        return []
    return [values for kind, name, values in call.value if kind == "r" and name == key and values is not None]


class _Log:
    """One list: who appended what, who read what, and the order of versions."""

    def __init__(self, key: str, calls: Sequence[Call], reads: list[tuple[Call, list[Any]]]) -> None:
        self.key = key
        self.reads = reads
        self.appends: dict[Any, Call] = {}
        self.appended: dict[Call, list[Any]] = defaultdict(list)
        for call in calls:
            for kind, name, value in call.value:
                if kind == "append" and name == key:
                    assert value not in self.appends, f"{value} is appended to {key} twice: values must be unique"
                    self.appends[value] = call
                    self.appended[call].append(value)
        self.order: list[Any] = max([values for _, values in reads], key=len, default=[])

    def check(self) -> list[Anomaly]:
        return [*self._order(), *self._contents(), *self._lost(), *self._internal()]

    def _order(self) -> Iterator[Anomaly]:
        longest = next((call for call, values in self.reads if values is self.order), None)
        for call, values in self.reads:
            if longest is not None and values != self.order[: len(values)]:
                yield Anomaly("incompatible-order", self.key, "neither log begins with the other", (longest, call))
            doubled = sorted({value for value in values if values.count(value) > 1}) if _has_double(values) else []
            if doubled:
                yield Anomaly("duplicate-append", self.key, f"{doubled} are in the log twice", (call,))

    def _contents(self) -> Iterator[Anomaly]:
        for call, values in self.reads:
            for value in values:
                writer = self.appends.get(value)
                if writer is None:
                    yield Anomaly("garbage-read", self.key, f"{value} is in the log, and no call appended it", (call,))
                elif writer.outcome == "fail":
                    yield Anomaly("G1a", self.key, f"{value} is in the log, and its append failed", (call, writer))
            last = self.appends.get(values[-1]) if values else None
            if last is not None and last is not call and self.appended[last][-1] != values[-1]:
                yield Anomaly("G1b", self.key, f"the log ends within a transaction, at {values[-1]}", (call, last))

    def _lost(self) -> Iterator[Anomaly]:
        shown = set(self.order)
        for value, writer in self.appends.items():
            if writer.outcome == "ok" and value not in shown:
                later = next((call for call, _ in self.reads if call.began > writer.ended), None)
                if later is not None:
                    yield Anomaly("lost-append", self.key, f"{value} was acknowledged and is gone", (writer, later))

    def _internal(self) -> Iterator[Anomaly]:
        """Find transactions whose read does not continue what they read and appended before."""
        for call in {call: None for call, _ in self.reads}:
            known: list[Any] | None = None
            own: list[Any] = []
            for kind, name, value in call.value:
                if name != self.key or value is None:
                    continue
                if kind == "append":
                    own.append(value)
                elif kind == "r":
                    expected = own if known is None else [*known, *own]
                    is_right = value == expected if known is not None else value[len(value) - len(own) :] == own
                    if not is_right:
                        yield Anomaly("internal", self.key, f"the log should end with {expected}", (call,))
                    known, own = value, []

    def dependencies(self) -> Iterator[tuple[Call, Call, str]]:
        for earlier, later in zip(self.order, self.order[1:], strict=False):
            if earlier in self.appends and later in self.appends:
                yield self.appends[earlier], self.appends[later], "ww"
        places = {value: place for place, value in enumerate(self.order)}
        for call, values in self.reads:
            seen = values[: len(values) - self._own_at_end(call, values)]
            if seen and seen[-1] in self.appends:
                yield self.appends[seen[-1]], call, "wr"
            following = places.get(values[-1], len(self.order)) + 1 if values else 0
            if following < len(self.order) and self.order[following] in self.appends:
                yield call, self.appends[self.order[following]], "rw"

    def _own_at_end(self, call: Call, values: list[Any]) -> int:
        own = set(self.appended[call]) if call in self.appended else set()
        count = 0
        while count < len(values) and values[-1 - count] in own:
            count += 1
        return count


def _has_double(values: list[Any]) -> bool:
    return len(set(values)) != len(values)


def _dependencies(logs: Sequence[_Log], calls: Sequence[Call]) -> Edges:
    """All dependencies of the logs, and of real time among those calls that may have happened."""
    found: dict[Call, dict[Call, frozenset[str]]] = defaultdict(dict)

    def add(before: Call, after: Call, kind: str) -> None:
        if before is not after:
            found[before][after] = found[before].get(after, frozenset()) | {kind}

    for log in logs:
        for before, after, kind in log.dependencies():
            add(before, after, kind)
    for before, after in real_time([call for call in calls if call.outcome == "ok"]):
        add(before, after, "rt")
    return found


def real_time(calls: Sequence[Call]) -> Iterator[tuple[Call, Call]]:
    """Pairs (before, after) from which every pair of calls that do not overlap follows; few of them."""
    moments = [(call.began, 1, number, call) for number, call in enumerate(calls)]
    moments += [(call.ended, 0, number, call) for number, call in enumerate(calls)]
    frontier: list[Call] = []
    before: dict[Call, list[Call]] = {}
    for _, is_begin, _, call in sorted(moments, key=lambda moment: moment[:3]):
        if is_begin:
            before[call] = list(frontier)
            yield from ((earlier, call) for earlier in frontier)
        else:
            # What ended before this call began is implied by this call from now on.
            frontier = [earlier for earlier in frontier if earlier not in before[call]] + [call]


def _cycles(edges: Edges, key: str) -> list[Anomaly]:
    """The cycles of each level that no level before it has, one of each strongly connected component."""
    found: list[Anomaly] = []
    seen: set[Call] = set()
    for extra in ((), ("rt",)):
        for level in LEVELS:
            kinds = frozenset((*level, *extra))
            for component in components(edges, kinds):
                if seen.isdisjoint(component):
                    seen |= component
                    name, cycle = _shortest(edges, component, kinds)
                    text = "in a cycle, each before the next and the last before the first"
                    found.append(Anomaly(name, key, text, tuple(cycle)))
    return found


def _shortest(edges: Edges, component: Collection[Call], kinds: frozenset[str]) -> tuple[str, list[Call]]:
    suffix = "-realtime" if "rt" in kinds else ""
    if "rw" not in kinds:
        return ("G1c" if "wr" in kinds else "G0") + suffix, _cycle(edges, component, kinds, lambda _: True)
    for before in component:
        for after, has in edges.get(before, {}).items():
            if after in component and "rw" in has:
                way = _way(edges, component, kinds - {"rw"}, after, before)
                if way is not None:
                    return "G-single" + suffix, way
    return "G2-item" + suffix, _cycle(edges, component, kinds, lambda has: "rw" in has)


def _cycle(
    edges: Edges, component: Collection[Call], kinds: frozenset[str], starts: Callable[[frozenset[str]], bool]
) -> list[Call]:
    ways = [
        way
        for before in component
        for after, has in edges.get(before, {}).items()
        if after in component and has & kinds and starts(has)
        if (way := _way(edges, component, kinds, after, before)) is not None
    ]
    return min(ways, key=len)


def _way(
    edges: Edges, component: Collection[Call], kinds: frozenset[str], start: Call, goal: Call
) -> list[Call] | None:
    """The shortest way within the component over these kinds; None where there is none."""
    came_from: dict[Call, Call | None] = {start: None}
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        if here is goal:
            way: list[Call] = []
            step: Call | None = here
            while step is not None:
                way.append(step)
                step = came_from[step]
            return way[::-1]
        for after, has in edges.get(here, {}).items():
            if after in component and has & kinds and after not in came_from:
                came_from[after] = here
                waiting.append(after)
    return None


def components(edges: Edges, kinds: frozenset[str]) -> list[frozenset[Call]]:
    """Strongly connected components of more than one call (Tarjan), without recursion."""
    found: list[frozenset[Call]] = []
    numbers: dict[Call, int] = {}
    lowest: dict[Call, int] = {}
    stack: list[Call] = []
    on_stack: set[Call] = set()

    def following(call: Call) -> Iterator[Call]:
        return iter([after for after, has in edges.get(call, {}).items() if has & kinds])

    for root in edges:
        if root in numbers:
            continue
        work = [(root, following(root))]
        numbers[root] = lowest[root] = len(numbers)
        stack.append(root)
        on_stack.add(root)
        while work:
            call, rest = work[-1]
            after = next(rest, None)
            if after is None:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[call])
                if lowest[call] == numbers[call]:
                    place = stack.index(call)
                    if len(stack) - place > 1:
                        found.append(frozenset(stack[place:]))
                    on_stack.difference_update(stack[place:])
                    del stack[place:]
            elif after not in numbers:
                numbers[after] = lowest[after] = len(numbers)
                stack.append(after)
                on_stack.add(after)
                work.append((after, following(after)))
            elif after in on_stack:
                lowest[call] = min(lowest[call], numbers[after])
    return found
