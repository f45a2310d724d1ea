"""The whole table, in the order of its files."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from . import accounts, deleted, events, history, installation, objects, operators, repositories, sandboxes, tables
from .gc import collections, collectors, hard_delete, holds, lifecycle
from .operation import AnyOperation, Operation


def _of(file: ModuleType) -> tuple[AnyOperation, ...]:
    return tuple(value for value in vars(file).values() if isinstance(value, Operation))


NOUNS: Final[Mapping[str, tuple[AnyOperation, ...]]] = {
    "Installation": _of(installation),
    "Logins, users, groups and policies": _of(accounts),
    "Repositories": _of(repositories),
    "What was deleted, and where branches were": _of(deleted),
    "Events": _of(events),
    "Branches, tags and commits": _of(history),
    "Objects": _of(objects),
    "Garbage collection in the contract's words": _of(collections),
    "Garbage collection in Lakebed's words": _of(collectors),
    "Lifecycle policies": _of(lifecycle),
    "Legal holds": _of(holds),
    "Deleting at once": _of(hard_delete),
    "Sandboxes and quotas": _of(sandboxes),
    "Iceberg tables": _of(tables),
    "For operators": _of(operators),
}
OPERATIONS: Final = tuple(operation for found in NOUNS.values() for operation in found)
_OURS: Final = (collectors, deleted, events, hard_delete, holds, lifecycle, operators, sandboxes, tables)
_OURS_TOO: Final = (
    accounts.CREATE_LOGIN_TICKET,
    accounts.DECIDE,
    accounts.DELETE_SESSION,
    accounts.LIST_SESSIONS,
    accounts.LOGOUT,
    accounts.LOG_IN_BY_TICKET,
    accounts.OIDC_LOGIN,
    history.COUNT_AHEAD,
    history.COUNT_EXPIRED,
    objects.LAST_COMMITS,
    objects.MEASURE_OBJECTS,
    objects.MOVE_OBJECT,
)
"""Ours, in files of the contract's operations."""
OURS: Final = frozenset({*_OURS_TOO, *(operation for file in _OURS for operation in _of(file))})
"""The operations that the contract does not have."""
CONTRACT: Final = frozenset(OPERATIONS) - OURS
