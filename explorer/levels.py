"""Levels of a search: arrays with a row a state, the steps that lead from one to the next, and who is to blame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from .effects import Fate
from .tables import Numbers

Rows = npt.NDArray[np.int32]
"""A row a state: disk, order, faults left of each kind, the write of a dead actor that is under way (its effect and 1,
or 0), then the node of each actor."""

DISK, ORDER, CRASHES, LOSSES, LATE, UNDER_WAY, NODES = range(7)
NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Label:
    """One actor's move, or its crash, and what becomes of it; NOBODY's is the write that was under way."""

    actor: int
    move: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class Level:
    """States, how many schedules lead to each, and for each one of the states of the level before that lead to it."""

    rows: Rows
    ways: npt.NDArray[np.float64]
    sources: Numbers


class Found(Exception):
    """A violation at this state, or at the step with this label from it."""

    def __init__(self, row: Rows, label: Label | None, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.row = row
        self.label = label
        self.error = error


class Steps:
    """The steps found from some states: which state each comes from, and the state after it."""

    def __init__(self, rows_from: Rows) -> None:
        self.rows_from = rows_from
        self.foreseen = np.zeros(len(rows_from), np.bool_)
        """Where the only step is a read that no other actor's write will meet (futures.py)."""
        self.sources: list[Numbers] = []
        self.rows: list[Rows] = []
        self.labels: list[Label] = []
        self.count = 0
        self.faults = 0

    def add(self, sources: Numbers, rows: Rows, label: Label) -> None:
        if len(sources):
            self.sources.append(sources)
            self.rows.append(rows)
            self.labels.append(label)
            self.count += len(rows)
            self.faults += len(rows) * (label.fate is not Fate.DONE)


@dataclass(frozen=True, slots=True)
class At:
    """Hold which states ask for something, and by which step."""

    steps: Steps
    sources: Numbers
    label: Label

    def of(self, part: npt.NDArray[np.bool_]) -> At:
        return At(self.steps, self.sources[part], self.label)

    def found(self, place: int, error: Exception) -> Found:
        return Found(self.steps.rows_from[self.sources[place]], self.label, error)


def merged(rows: Rows, ways: npt.NDArray[np.float64], sources: Numbers) -> Level:
    """Merge equal rows. They are brought together by a hash; what merges is compared in full."""
    mixed = np.zeros(len(rows), np.uint64)
    for column in range(rows.shape[1]):
        mixed = (mixed ^ rows[:, column].astype(np.uint64)) * _MIX
        mixed ^= mixed >> np.uint64(29)
    order = np.argsort(mixed, kind="stable")
    sorted_ = rows[order]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (sorted_[1:] != sorted_[:-1]).any(axis=1)
    firsts = np.flatnonzero(is_first)
    return Level(sorted_[firsts], np.add.reduceat(ways[order], firsts), sources[order[firsts]])


_MIX: Final = np.uint64(0xD6E8FEB86659FD93)
