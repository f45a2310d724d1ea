"""The recording: JSON lines as Elle and Jepsen have them, and the calls that they tell of.

A call is an `invoke` and at most one completion by the same process: `ok` (it happened), `fail` (it did not), `info`
(unknown: it may still happen at any later time). A process whose call ends with `info` makes no further one.

Its value is a list of micro-operations, all of which happen at one moment:

    ["append", branch, value]     a commit or a merge on the branch; its message is the value
    ["r", branch, values]         the log of the branch, oldest first; None until it is known
    ["w", path, value]            an upload, or with None a delete
    ["get", path, value]          an object, by itself or in a listing; None where nothing is
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

Micro = tuple[str, str, Any]
LIST_KINDS: Final = frozenset({"append", "r"})


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`time` is in nanoseconds of a monotonic clock. `f` names the operation for people; no judge reads it."""

    index: int
    type: Literal["invoke", "ok", "fail", "info"]
    process: int
    time: int
    f: str
    value: list[Micro]
    error: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Equal only to itself. `began` and `ended` are times; `ended` is infinite while the outcome is unknown."""

    outcome: Literal["ok", "fail", "info"]
    f: str
    process: int
    began: float
    ended: float
    value: tuple[Micro, ...]

    def __str__(self) -> str:
        micros = ", ".join(f"{kind} {key} {_short(value)}" for kind, key, value in self.value)
        ended = "?" if math.isinf(self.ended) else f"{self.ended / 1e9:.4f}"
        return f"{self.f} of {self.process} at {self.began / 1e9:.4f}..{ended} s ({self.outcome}): {micros}"

    def only(self, kinds: frozenset[str]) -> tuple[Micro, ...]:
        return tuple(micro for micro in self.value if micro[0] in kinds)


def _short(value: object) -> str:
    if isinstance(value, list) and len(value) > 8:
        return f"[... {', '.join(map(str, value[-8:]))}]"
    return str(value)


class BadRecording(ValueError):
    """The events are no recording: a completion without a call, or two calls at once in one process."""


def calls_of(events: Iterable[Event]) -> list[Call]:
    """Pair each call with its completion, in order of their beginning. A call without one has outcome `info`.

    Raises:
        BadRecording: see there.
    """
    began: dict[int, Event] = {}
    completed: dict[int, Event] = {}
    order: list[Event] = []
    for event in events:
        if event.type == "invoke":
            if event.process in began:
                raise BadRecording(f"process {event.process} calls before its last call ended", event)
            began[event.process] = event
            order.append(event)
        elif event.process not in began:
            raise BadRecording(f"process {event.process} has no call that could end", event)
        else:
            completed[began[event.process].index] = event
            if event.type != "info":
                del began[event.process]
    return [_call(event, completed.get(event.index)) for event in order]


def _call(invoke: Event, completion: Event | None) -> Call:
    is_known = completion is not None and completion.type != "info"
    return Call(
        outcome="info" if completion is None or completion.type == "invoke" else completion.type,
        f=invoke.f,
        process=invoke.process,
        began=invoke.time,
        ended=completion.time if completion is not None and is_known else math.inf,
        value=tuple(completion.value if completion is not None and completion.type == "ok" else invoke.value),
    )


def write_events(path: Path, events: Iterable[Event]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))


def read_events(path: Path) -> list[Event]:
    return [msgspec.json.decode(line, type=Event) for line in path.read_bytes().splitlines()]


def elle_lines(events: Sequence[Event], *, alone: bool = False) -> bytes:
    """The transactions over logs, as JSON lines for Elle's list-append checkers.

    `alone` leaves out what merges read, so that each transaction is of one branch: these must be strictly serializable.
    """
    lines = []
    for event in events:
        micros = [micro for micro in event.value if micro[0] in LIST_KINDS]
        if event.type == "ok":
            # A checker takes null for a list without elements. Here it is a read whose result no answer brought.
            micros = [micro for micro in micros if micro[2] is not None]
        if alone and any(kind == "append" for kind, _, _ in micros):
            micros = [micro for micro in micros if micro[0] == "append"]
        if micros:
            fields = {"index": event.index, "type": event.type, "process": event.process, "time": event.time}
            lines.append(msgspec.json.encode({**fields, "f": "txn", "value": micros}) + b"\n")
    return b"".join(lines)
