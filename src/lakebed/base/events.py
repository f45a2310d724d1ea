"""Kinds of events."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["EventKind"]


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
