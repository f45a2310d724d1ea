"""Hard delete of replaced objects: a repository's setting, its queue, and the outcome for an object."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

__all__ = ["HardDeleteStatus", "HardDeleted", "HardDeletedList", "SetHardDelete"]

GRACE_S_MAX: Final = 10 * 366 * 24 * 3600


class SetHardDelete(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of the settings of hard delete. A setting that is absent is kept."""

    is_on: bool | None = None
    is_paused: bool | None = None
    # The grace for readers; -1 restores that of the object store.
    grace_s: Annotated[int, msgspec.Meta(ge=-1, le=GRACE_S_MAX)] | None = None


class HardDeleteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The setting and the queue of hard delete: waiting objects by the operation that released them, and failures by
    error.

    `is_complete` is false if more objects wait than were counted. `oldest_ms` is 0 if no object waits.
    """

    is_on: bool
    is_paused: bool
    grace_s: int
    changed_ms: int = 0
    changed_by: str = ""
    queued: int = 0
    queued_bytes: int = 0
    oldest_ms: int = 0
    by: dict[str, int] = {}
    failed: dict[str, int] = {}
    is_complete: bool = True


class HardDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """One object that waits until `due_ms`, or was deleted. `error` is that of the last attempt."""

    address: str
    path: str
    reason: str
    size_bytes: int
    since_ms: int
    due_ms: int = 0
    deleted_ms: int = 0
    error: str = ""


class HardDeletedList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of objects. With `is_paused`, no object is deleted until the worker is resumed."""

    results: list[HardDeleted]
    is_paused: bool = False
