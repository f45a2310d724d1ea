"""Kinds of events, and what each may say."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = ["EVENT_OPERATIONS", "EventKind"]


class EventKind(StrEnum):
    """The subject of an event."""

    BRANCH = "branch"
    TAG = "tag"
    PULL = "pull"
    RUN = "run"
    ERASURE = "erasure"

    @property
    def is_ref(self) -> bool:
        return self in {EventKind.BRANCH, EventKind.TAG}


_OF_REFS: Final = frozenset(
    {
        "cherry-pick",
        "commit",
        "create",
        "delete",
        "hard-reset",
        "import",
        "merge",
        "migrate",
        "revert",
        "undelete",
    }
)
EVENT_OPERATIONS: Final[Mapping[EventKind, frozenset[str]]] = {
    EventKind.BRANCH: _OF_REFS,
    EventKind.TAG: _OF_REFS,
    EventKind.PULL: frozenset({"change", "close", "create", "merge", "reopen"}),
    EventKind.RUN: frozenset({"abandon", "apply", "defer", "discard", "end", "plan", "purge", "undo"}),
    EventKind.ERASURE: frozenset({"abandon", "apply", "certify", "end", "request"}),
}
"""The operations of events. A subscription to another one would never get an event."""
