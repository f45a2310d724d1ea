"""Lock freedom: an actor that goes on while all others have stopped for ever reaches its end, and soon (invariant 4).

What an actor does alone follows from the disk and from where it stands. So each pair of these that any state has is
tried once: the actor runs alone to its end, in at most `steps_max` steps of its own. Of its conditional writes one may
fail for what those who stopped had done, or two where it has several things to do: from then on it has seen everything.
An actor that waits for another's claim, or tries again until another is through, fails.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from .actors import Violation
from .automata import NotDeterministic
from .levels import DISK, NODES, Found, Rows
from .machine import BITS, Machine
from .tables import ABSENT, NumberMap, Numbers

_FAILURES_MAX: Final = 2


class Alone:
    def __init__(self, machine: Machine, steps_max: int) -> None:
        self.longest = 0
        self._machine = machine
        self._steps_max = steps_max
        self._nothing = machine.outcomes.number(None)
        self._tried = [NumberMap() for _ in machine.automata]

    def check(self, rows: Rows) -> None:
        """
        Raises:
            Found: an actor of one of these states does not end alone.
        """
        for index, tried in enumerate(self._tried):
            pairs = rows[:, DISK].astype(np.int64) << BITS | rows[:, NODES + index]
            fresh, places = np.unique(pairs, return_index=True)
            is_new = tried.find(fresh) == ABSENT
            for pair in fresh[is_new].tolist():
                tried.put(pair, 1)
            try:
                self._run(index, fresh[is_new], rows[places[is_new]])
            except (Found, NotDeterministic):
                raise
            except Exception:  # noqa: BLE001  # whatever it is, it is reported there
                # A broken promise on the way alone: the search gets there too, and can say by which schedule.
                return

    def _run(self, index: int, pairs: Numbers, rows: Rows) -> None:
        automaton = self._machine.automata[index]
        disks, nodes = pairs >> BITS, pairs & (1 << BITS) - 1
        failures = np.zeros(len(pairs), np.int64)
        for steps in range(self._steps_max + 1):
            goes_on = automaton.move_counts.take(nodes) > 0
            if (failures > _FAILURES_MAX).any():
                raise Found(rows[int(failures.argmax())], None, Violation(f"{automaton.actor.name} alone fails again"))
            if not goes_on.any():
                self.longest = max(self.longest, steps)
                return
            disks, nodes, failures, rows = disks[goes_on], nodes[goes_on], failures[goes_on], rows[goes_on]
            # Of several strands the first that can go on: a wait times out only where nothing else is left to do.
            moves = automaton.first_moves.take(nodes)
            for move in np.unique(moves).tolist():
                chosen = np.flatnonzero(moves == move)
                after, outcomes = self._machine.carried_out(index, move, nodes[chosen], disks[chosen], None)
                # A grace that others prolong by doing nothing is a matter of time: its end is not waited for here.
                outcomes = np.where(outcomes == self._machine.not_yet, self._nothing, outcomes)
                targets = self._machine.told(index, move, nodes[chosen], outcomes, None)
                disks[chosen], nodes[chosen] = after, targets
                failures[chosen] += outcomes == self._machine.failed
        name = automaton.actor.name
        raise Found(rows[0], None, Violation(f"{name} alone does not end in {self._steps_max} steps of its own"))
