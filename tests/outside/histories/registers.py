"""Judge registers: paths of a branch that are uploaded, deleted, read and listed. A folder's paths are judged together.

*Linearizable*: each call can be given a moment between its beginning and its end. Each read then shows the write
with the last moment before it. A listing has one moment for all its paths. A call whose outcome is unknown may have its
moment at any later time, or none. The search goes through the recording once and keeps every possible state (Lowe,
"Testing for linearizability", 2016). A folder has few paths and few calls at once, so these states are few.

Where that fails, weaker promises give the anomaly a more telling name. Two are for writes under way, which are staged
again for each commit: the same write may take effect several times, and be withdrawn in between. The weakest is for a
single read: it shows a write that no acknowledged write had replaced before the read began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from .events import Call, Micro
from .lists import Anomaly

REGISTER_KINDS: Final = frozenset({"w", "get"})
STATES_MAX: Final = 200_000
REPEATED: Final = "repeated-write"
WITHDRAWN: Final = "withdrawn-write"

Layer = tuple[Any, int]
"""A value, and the call that wrote it; SETTLED where no call can take it back."""
SETTLED: Final = -1
State = tuple[tuple[Layer, ...], ...]
"""For each path its value, last, over what the path goes back to where the write of that value is withdrawn."""
Possible = tuple[State, frozenset[int]]
"""The value that each path shows, and those of the calls under way that have had their moment."""


class TooManyStates(Exception):
    """The recording is too entangled to be judged."""


def check_registers(calls: Iterable[Call]) -> list[Anomaly]:
    """Every anomaly, at most one of each name for a folder."""
    folders: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        for folder in {_folder(key) for _, key, _ in call.only(REGISTER_KINDS)}:
            folders[folder].append(call)
    return [anomaly for folder in sorted(folders) for anomaly in _check_folder(folder, folders[folder])]


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _check_folder(folder: str, calls: Sequence[Call]) -> list[Anomaly]:
    own = [(call, [micro for micro in call.only(REGISTER_KINDS) if _folder(micro[1]) == folder]) for call in calls]
    paths = sorted({path for _, micros in own for _, path, _ in micros})
    found = [anomaly for path in paths for anomaly in _check_reads(path, own)]
    if found:
        return found
    try:
        stuck = linearize(own)
        if stuck is None:
            return []
        if linearize(own, repeating=True) is None:
            text = "an upload under way took effect again, after another had replaced it"
            return [Anomaly(REPEATED, folder, text, _around(own, folder, stuck))]
        if linearize(own, repeating=True, withdrawing=True) is None:
            text = "an upload under way was shown and, before it was acknowledged, the value before it again"
            return [Anomaly(WITHDRAWN, folder, text, _around(own, folder, stuck))]
        for path in paths:
            alone = linearize(_of_path(own, path), repeating=True, withdrawing=True)
            if alone is not None:
                text = "no order of the calls explains the last one"
                return [Anomaly("not-linearizable", path, text, _around(own, path, alone))]
        text = "each path by itself is explained, and no one moment shows them all"
        return [Anomaly("torn-listing", folder, text, _around(own, folder, stuck))]
    except TooManyStates:
        return [Anomaly("undecided", folder, f"more than {STATES_MAX:,} states are possible at once")]


def _of_path(own: Sequence[tuple[Call, list[Micro]]], path: str) -> list[tuple[Call, list[Micro]]]:
    return [(call, mine) for call, micros in own if (mine := [micro for micro in micros if micro[1] == path])]


def _around(own: Sequence[tuple[Call, list[Micro]]], key: str, stuck: Call) -> tuple[Call, ...]:
    """The call that cannot be explained, after the last that began before it ended; a person reads them."""
    chosen = [call for call, micros in own if any(path.startswith(key) for _, path, _ in micros)]
    before = [call for call in chosen if call.began < stuck.ended and call.outcome != "fail" and call is not stuck]
    return (*before[-12:], stuck)


def _check_reads(path: str, own: Sequence[tuple[Call, list[Micro]]]) -> Iterator[Anomaly]:
    """Each read by itself: its value was written, did not fail, and no acknowledged write lies wholly between."""
    writes: dict[Any, list[Call]] = defaultdict(list)
    reads: list[tuple[Call, Any]] = []
    for call, micros in own:
        for kind, name, value in micros:
            if name == path and kind == "w":
                writes[value].append(call)
            elif name == path and call.outcome == "ok":
                reads.append((call, value))
    acknowledged = [call for each in writes.values() for call in each if call.outcome == "ok"]
    named: set[str] = set()
    for read, value in reads:
        anomaly = _explain(path, read, value, writes.get(value, []), acknowledged)
        if anomaly is not None and anomaly.name not in named:
            named.add(anomaly.name)
            yield anomaly


def _explain(path: str, read: Call, value: Any, writers: list[Call], acknowledged: list[Call]) -> Anomaly | None:
    possible = [call for call in writers if call.outcome != "fail"]
    if not possible and value is not None:
        if writers:
            return Anomaly("aborted-read", path, f"{value} was read, and its write failed", (writers[0], read))
        return Anomaly("garbage-read", path, f"{value} was read, and no call wrote it", (read,))
    if value is not None and all(call.began > read.ended for call in possible):
        return Anomaly("future-read", path, f"{value} was read before it was written", (read, possible[0]))
    # Before the first write there is nothing: as if a delete had ended before all else.
    ends = [call.ended for call in possible] + ([-1.0] if value is None else [])
    for end in ends:
        between = [call for call in acknowledged if end < call.began and call.ended < read.began]
        if not between:
            return None
    return Anomaly("stale-read", path, f"{value} was read after a later write", (*possible[-1:], between[-1], read))


def linearize(
    own: Sequence[tuple[Call, list[Micro]]], *, repeating: bool = False, withdrawing: bool = False
) -> Call | None:
    """The first call that no order explains; None where all are explained.

    `repeating`: a write may take effect several times while it is under way. `withdrawing`: the path may also go back
    to what that write replaced; it must take effect once more before it ends.

    Raises:
        TooManyStates: more than STATES_MAX.
    """
    search = _Search(own, repeating=repeating, withdrawing=withdrawing)
    moments = [(call.began, 0, number) for number, (call, _) in search.calls.items()]
    moments += [(call.ended, 1, number) for number, (call, _) in search.calls.items() if call.outcome == "ok"]
    for _, is_end, number in sorted(moments):
        if not is_end:
            search.begin(number)
        elif not search.end(number):
            return search.calls[number][0]
    return None


class _Search:
    def __init__(self, own: Sequence[tuple[Call, list[Micro]]], *, repeating: bool, withdrawing: bool) -> None:
        paths = sorted({path for _, micros in own for _, path, _ in micros})
        self._place = {path: place for place, path in enumerate(paths)}
        answered = [micro for call, micros in own if call.outcome == "ok" for micro in micros]
        shown = {(path, value) for kind, path, value in answered if kind == "get"}
        self.calls = {
            number: (call, micros)
            for number, (call, micros) in enumerate(own)
            # A write of unknown outcome that no read shows may be left out: the others are explained without it.
            if call.outcome == "ok"
            or (call.outcome == "info" and any(kind == "w" and (path, value) in shown for kind, path, value in micros))
        }
        self._repeating = repeating
        self._withdrawing = withdrawing
        self._under_way: set[int] = set()
        self._possible: set[Possible] = {((((None, SETTLED),),) * len(paths), frozenset())}

    def begin(self, number: int) -> None:
        self._under_way.add(number)
        if self._is_read(number):
            self._possible = {self._with_reads(state, done) for state, done in self._possible}

    def end(self, number: int) -> bool:
        """Keep the states in which this call has had its moment; whether there are any."""
        waiting = list(self._possible)
        reached = set(waiting)
        writes = [each for each in self._under_way if not self._is_read(each)]
        while waiting:
            state, done = waiting.pop()
            # A state that has what is asked for need not go on: later ends take it further.
            if number in done and not self._repeating:
                continue
            steps = [
                (self._written(state, each), done | {each}) for each in writes if each not in done or self._repeating
            ]
            if self._withdrawing:
                steps += [
                    (self._withdrawn(state, path), done - {state[path][-1][1]})
                    for path in range(len(state))
                    if state[path][-1][1] != SETTLED
                ]
            for step in steps:
                further = self._with_reads(*step)
                if further not in reached:
                    reached.add(further)
                    waiting.append(further)
            if len(reached) > STATES_MAX:
                raise TooManyStates
        self._under_way.discard(number)
        self._possible = {(self._settled(state, number), done - {number}) for state, done in reached if number in done}
        return bool(self._possible)

    def _is_read(self, number: int) -> bool:
        return all(kind == "get" for kind, _, _ in self.calls[number][1])

    def _written(self, state: State, number: int) -> State:
        after = list(state)
        for kind, path, value in self.calls[number][1]:
            if kind == "w":
                place = self._place[path]
                below = tuple(each for each in state[place] if each[1] != number) if self._withdrawing else ()
                after[place] = (*below, (value, number if self._withdrawing else SETTLED))
        return tuple(after)

    def _withdrawn(self, state: State, place: int) -> State:
        return (*state[:place], state[place][:-1], *state[place + 1 :])

    def _settled(self, state: State, number: int) -> State:
        """An acknowledged write stays: what it replaced never comes back."""
        after = list(state)
        for place, layers in enumerate(state):
            for depth, (value, each) in enumerate(layers):
                if each == number:
                    after[place] = ((value, SETTLED), *layers[depth + 1 :])
        return tuple(after)

    def _with_reads(self, state: State, done: frozenset[int]) -> Possible:
        """Give its moment to every read under way that this state explains. Reads change nothing: no choice is lost."""
        fitting = [
            number
            for number in self._under_way
            if number not in done
            and self._is_read(number)
            and all(state[self._place[path]][-1][0] == value for _, path, value in self.calls[number][1])
        ]
        return (state, done | frozenset(fitting)) if fitting else (state, done)
