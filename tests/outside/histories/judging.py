"""Sum up what the judges find in one recording: what must not be, and what users are warned of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .events import Call
from .lists import Anomaly, check_across, check_lists
from .registers import REPEATED, WITHDRAWN, check_registers

ALLOWED_ACROSS: Final = frozenset(
    {"G-single", "G2-item", "G0-realtime", "G1c-realtime", "G-single-realtime", "G2-item-realtime"}
)
"""A merge is made from the head that its source had when it began, and published later. Read committed is left."""
ALLOWED_OF_REGISTERS: Final = frozenset({REPEATED, WITHDRAWN})
"""A write sets its cell again for every commit that seals the staging area under it. Such a commit may have read the
path before the first cell was there. Then the path shows what was there before, until the second is there."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`forbidden` breaks a promise of docs/guide/isolation.md; `allowed` is what that page warns of."""

    forbidden: list[Anomaly]
    allowed: list[Anomaly]
    calls: dict[str, int]

    @property
    def is_valid(self) -> bool:
        return not self.forbidden


def judge(calls: Sequence[Call]) -> Verdict:
    """Judge each branch, each folder, and the branches together."""
    alone, registers = check_lists(calls), check_registers(calls)
    # A branch that is broken by itself would only be reported again.
    across = [] if alone else check_across(calls)
    allowed = [each for each in across if each.name in ALLOWED_ACROSS]
    allowed += [each for each in registers if each.name in ALLOWED_OF_REGISTERS]
    forbidden = [each for each in (*alone, *registers, *across) if each not in allowed]
    return Verdict(forbidden, allowed, dict(Counter(f"{call.f} {call.outcome}" for call in calls)))
