"""What the places of one client may hold, by what it asked for and what came of it.

A client has paths and branches of its own, so it knows what may be there: one value, or several after an answer that
never came. Such a call may still take effect for LATE_S, also over newer values. `absorb` takes the lines of the
journal one by one. So a judge that reads the journal again comes to the same as the client did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from .journal import Line

Values = frozenset[str | None]
ABSENT: Final[Values] = frozenset([None])
Place = tuple[str, str]
"""A branch and a path."""

MAIN: Final = "main"
DUE: Final = "due/"
"""A lifecycle policy takes what is at paths that begin so. Then a place may be absent, or its object be gone."""
LATE_S: Final = 180.0
"""For how long a call without an answer may still take effect."""


def body_of(value: str) -> bytes:
    """Return the bytes of a value: its name, and so many bytes that follow from it. A wrong byte is noticed."""
    seed = hashlib.sha256(value.encode()).digest()
    size = int.from_bytes(seed[:2]) % (1 << 13 if seed[2] < 200 else 1 << 16)
    return value.encode() + b"\n" + (seed * (size // len(seed) + 1))[:size]


def value_of(body: bytes) -> str:
    """Return the value whose bytes these are, or a text that is no value."""
    body = body.removeprefix(PART)
    name = body.partition(b"\n")[0].decode(errors="replace")
    return name if body == body_of(name) else f"(wrong bytes: {len(body)} of {name!r})"


PART: Final = bytes(5 << 20)
"""A first part of an upload in parts is at least so large. A value's own bytes come behind it."""


class Model:
    """State what one client's places may hold. A place that is not here was never written, and is absent."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.own = ""
        self.into = f"into-{number}"
        self.current: dict[Place, Values] = {}
        self.committed: dict[Place, Values] = {}
        self.commits: dict[str, tuple[str, dict[str, Values]]] = {}
        """Commits by id, with their branch and what their trees may have of this client's paths."""
        self.tags: dict[str, str] = {}
        """Tags that are there for sure, by name, with their commits."""
        self.wrong: list[str] = []
        self._late: dict[Place, list[tuple[float, Values]]] = {}
        self._unknown_commits: dict[str, float] = {}
        """For each branch, until when a commit without an answer may take what is there."""
        self._begun: dict[int, tuple[Line, dict[Place, Values]]] = {}

    def absorb(self, line: Line) -> None:
        """Take the next line of this client."""
        if "begin" in line:
            self._begun[line["call"]] = line, dict(self.current)
            return
        begun, before = self._begun.pop(line["call"])
        # What came of a call of `put new` is for `_put_new`, and so with each kind of call.
        done: Callable[[Line, Line, dict[Place, Values]], None] = getattr(self, f"_{begun['f'].replace(' ', '_')}")
        done(begun, line, before)

    def finish(self) -> None:
        """Take what had no answer when the storm ended."""
        for call in list(self._begun):
            t = self._begun[call][0]["t"]
            self.absorb({"t": t, "call": call, "end": "unknown"})

    def at(self, place: Place) -> Values:
        values = self.current.get(place, ABSENT)
        return values | ABSENT if place[1].startswith(DUE) else values

    # What a call does

    def _put(self, begun: Line, end: Line, _: object) -> None:
        self._write(begun, end, frozenset([begun["value"]]))

    def _put_new(self, begun: Line, end: Line, _: object) -> None:
        place = _place(begun)
        if end["end"] == "ok" and None not in self.at(place):
            self._report(begun, "it was made, and something was there")
        if end["end"] == "refused" and self.at(place) == ABSENT:
            self._report(begun, "it was refused, and nothing was there")
        self._write(begun, end, frozenset([begun["value"]]))

    def _put_over(self, begun: Line, end: Line, _: object) -> None:
        place, expected = _place(begun), begun["over"]
        if end["end"] == "ok" and expected not in self.at(place):
            self._report(begun, f"it replaced {expected}, which was not there")
        if end["end"] == "refused" and self.at(place) == frozenset([expected]):
            self._report(begun, f"it was refused, and {expected} was there")
        self._write(begun, end, frozenset([begun["value"]]))

    def _delete(self, begun: Line, end: Line, _: object) -> None:
        self._write(begun, end, ABSENT)

    def _move(self, begun: Line, end: Line, before: Mapping[Place, Values]) -> None:
        source, place = _source(begun), _place(begun)
        values = before.get(source, ABSENT)
        if end["end"] == "ok":
            self._set(place, values - ABSENT, begun["t"])
            self._set(source, ABSENT, begun["t"])
        elif end["end"] == "absent":
            self._must_be_absent(begun, source)
        else:
            # A move that ends as a copy met a newer source; one without an answer may have got anywhere.
            self._may(place, values - ABSENT, end)
            self._may(source, ABSENT, end)

    def _copy(self, begun: Line, end: Line, before: Mapping[Place, Values]) -> None:
        source, place = _source(begun), _place(begun)
        values = before.get(source, ABSENT) - ABSENT
        if end["end"] == "ok":
            self._set(place, values, begun["t"])
        elif end["end"] == "absent":
            self._must_be_absent(begun, source)
        else:
            self._may(place, values, end)

    def _reset(self, begun: Line, end: Line, _: object) -> None:
        prefix = begun["prefix"]
        for place in [each for each in self.current if each[0] == begun["branch"] and each[1].startswith(prefix)]:
            committed = self.committed.get(place, ABSENT)
            if end["end"] == "ok":
                self._set(place, committed, begun["t"])
            elif end["end"] == "unknown":
                self._may(place, committed, end)

    def _commit(self, begun: Line, end: Line, before: Mapping[Place, Values]) -> None:
        """A commit takes each place as it was at some moment since it began."""
        if end["end"] == "refused":
            return  # no change, or none that was there when it looked
        branch, is_known = begun["branch"], end["end"] == "ok"
        taken = {
            place: before.get(place, ABSENT) | values for place, values in self.current.items() if place[0] == branch
        }
        for place, values in taken.items() if branch != MAIN else ():
            is_exact = is_known and not self._is_open(branch, begun["t"])
            self.committed[place] = values if is_exact else self.committed.get(place, ABSENT) | values
        if not is_known:
            self._unknown_commits[branch] = end["t"] + LATE_S
        else:
            self.commits[end["id"]] = branch, {place[1]: values for place, values in taken.items()}

    def _merge(self, begun: Line, end: Line, _: object) -> None:
        """A merge brings what `own` has committed into `into`, where nothing else writes."""
        if end["end"] == "refused":
            return
        for place in [each for each in self.committed if each[0] == begun["branch"]]:
            target = self.into, place[1]
            values = self.committed[place]
            if end["end"] == "ok":
                self._set(target, values, begun["t"])
                self.committed[target] = self.current[target]
            else:
                self._may(target, values, end)
                self.committed[target] = self.committed.get(target, ABSENT) | values

    def _read(self, begun: Line, end: Line, before: Mapping[Place, Values]) -> None:
        place = _place(begun)
        if end["end"] != "ok":
            return
        values = before.get(place, ABSENT) | self.at(place)
        if end["value"] not in values:
            self._report(begun, f"it read {end['value']!r}, and {shown(values)} may be there")

    def _read_commit(self, begun: Line, end: Line, _: object) -> None:
        branch, tree = self.commits[begun["id"]]
        if end["end"] == "gone" and branch == MAIN and not begun["path"].startswith(DUE):
            self._report(begun, "a commit of main is kept for ever, and its object is gone")
        if end["end"] != "ok":
            return
        values = tree.get(begun["path"], ABSENT)
        if end["value"] not in values:
            self._report(begun, f"it read {end['value']!r}, and {shown(values)} may be there")

    def _make_branch(self, begun: Line, end: Line, _: object) -> None:
        if end["end"] != "ok":
            return  # its name is never used again
        self.own = begun["branch"]
        for place in [each for each in self.committed if each[0] == self.into]:
            self.current[self.own, place[1]] = self.committed[self.own, place[1]] = self.committed[place]

    def _delete_branch(self, begun: Line, _: Line, __: object) -> None:
        for places in (self.current, self.committed):
            for place in [place for place in places if place[0] == begun["branch"]]:
                del places[place]

    def _make_tag(self, begun: Line, end: Line, _: object) -> None:
        if end["end"] == "ok":
            self.tags[begun["tag"]] = begun["id"]

    def _delete_tag(self, begun: Line, _: Line, __: object) -> None:
        self.tags.pop(begun["tag"], None)

    # What they have in common

    def _write(self, begun: Line, end: Line, values: Values) -> None:
        if end["end"] == "ok":
            self._set(_place(begun), values, begun["t"])
        elif end["end"] == "unknown":
            self._may(_place(begun), values, end)

    def _set(self, place: Place, values: Values, began_s: float) -> None:
        late = [each for each in self._late.get(place, ()) if each[0] >= began_s]
        self._late[place] = late
        self._hold(place, values.union(*[each[1] for each in late]), began_s)

    def _may(self, place: Place, values: Values, end: Line) -> None:
        self._late.setdefault(place, []).append((end["t"] + LATE_S, values))
        self._hold(place, self.current.get(place, ABSENT) | values, end["t"])

    def _hold(self, place: Place, values: Values, at_s: float) -> None:
        self.current[place] = values
        # Nothing here asks for what main has committed: each client commits there at any time.
        if place[0] != MAIN and self._is_open(place[0], at_s):
            self.committed[place] = self.committed.get(place, ABSENT) | values

    def _is_open(self, branch: str, at_s: float) -> bool:
        return self._unknown_commits.get(branch, -1.0) >= at_s

    def _must_be_absent(self, begun: Line, place: Place) -> None:
        if None not in self.at(place):
            self._report(begun, f"404, and only {shown(self.at(place))} may be at {place}")

    def _report(self, begun: Line, text: str) -> None:
        call = {name: value for name, value in begun.items() if name not in {"begin", "client"}}
        self.wrong.append(f"client {self.number}: {call}: {text}")


def shown(values: Values) -> list[str]:
    return sorted(map(str, values))


def _place(begun: Mapping[str, Any]) -> Place:
    return begun["branch"], begun["path"]


def _source(begun: Mapping[str, Any]) -> Place:
    return begun["from"][0], begun["from"][1]
