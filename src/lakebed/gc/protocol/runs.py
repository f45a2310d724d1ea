"""Names of collection runs, and the states in which one may delete. States and moves: lakebed.base.runs."""

from __future__ import annotations

from typing import Final

from lakebed.base import Invalid, RunId, RunState


class InvalidRunId(Invalid):
    """Not a name that a run of ours can have."""


DELETES_ALLOWED: Final = frozenset({RunState.MARKED, RunState.SWEEPING})
"""The states in which a sweep may delete what the run's plan names."""

_DIGITS: Final = frozenset("0123456789abcdefghijklmnopqrstuvwxyz-")


def check_run_id(text: str) -> RunId:
    """A run id names a folder: lower-case letters, digits and hyphens, 1 to 64 of them, not starting with a hyphen.

    Raises:
        InvalidRunId: anything else.
    """
    if not 0 < len(text) <= 64 or not _DIGITS.issuperset(text) or text.startswith("-"):
        raise InvalidRunId(f"{text!r} is not a run id", run_id=text)
    return RunId(text)
