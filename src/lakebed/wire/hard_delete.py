"""Deleting replaced objects at once: the setting of a repository, what waits, and what became of an object."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

GRACE_S_MAX: Final = 10 * 366 * 24 * 3600


class SetHardDelete(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Change settings of hard delete: what is left out stays as it is.

    `grace_s`: how long readers have; -1 brings back that of the object store.
    """

    is_on: bool | None = None
    is_paused: bool | None = None
    grace_s: Annotated[int, msgspec.Meta(ge=-1, le=GRACE_S_MAX)] | None = None


class HardDeleteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The setting, and what waits in the queue: how many objects, by what let them go, and the errors of those that
    failed. `is_complete`: false where there are more than were counted. `oldest_ms` 0: nothing waits.
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
    """One object that waits until `due_ms`, or that was deleted. `error`: of the last attempt."""

    address: str
    path: str
    reason: str
    size_bytes: int
    since_ms: int
    due_ms: int = 0
    deleted_ms: int = 0
    error: str = ""


class HardDeletedList(msgspec.Struct, frozen=True, kw_only=True):
    """`is_paused`: what waits goes no sooner than the worker is resumed."""

    results: list[HardDeleted]
    is_paused: bool = False
