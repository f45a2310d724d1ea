"""Records for operators: the state of a server, and the audit log, line by line."""

from __future__ import annotations

from typing import Final

import msgspec

from .common import Paged

__all__ = [
    "TOOL_HEADER",
    "AuditRecord",
    "AuditRecordList",
    "CollectedKind",
    "ReclaimedWeek",
    "ServerProcess",
    "ServerStatus",
    "UpkeepStep",
]

TOOL_HEADER: Final = "x-lakebed-tool"
"""The header with the name of an agent's tool. The audit log has a line for each request with this header, even a
read.
"""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request: its user, credentials (`through` a key, login or job), operation, time, origin, and whether it was
    allowed.

    `time` is in UTC with milliseconds. `operation` is an id of the API reference, and `what` names its subject.
    `allowed` is false for a failed login and for a missing permission; `reason` is then the message of the answer.
    `tool` is an agent's tool, as its caller names it. `forwarded` is the client's own claim. `skipped` is the number of
    refusals before this one that were too many to write.
    """

    time: str
    user: str
    through: str = ""
    address: str = msgspec.field(name="from", default="")
    forwarded: str = ""
    agent: str = ""
    tool: str = ""
    operation: str
    what: dict[str, str | list[str]]
    status: int
    allowed: bool
    reason: str = ""
    request: str
    skipped: int = 0


class AuditRecordList(Paged[AuditRecord], frozen=True, kw_only=True): ...


class UpkeepStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the upkeep in one process. `done`: the Unix time of its last success, or 0 before the first."""

    name: str
    done: int
    failures: int


class ServerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the server. Processes of one server share a port; figures of other processes are a few seconds
    old.
    """

    process: int
    started: int
    cpu_seconds: float
    memory_bytes: int
    requests: int
    in_progress: int
    draining: bool
    upkeep: list[UpkeepStep]


class CollectedKind(msgspec.Struct, frozen=True, kw_only=True):
    """Ended collections of a kind in a repository. `lag_seconds`: since the newest of them began."""

    repository: str
    kind: str
    lag_seconds: int
    reclaimed_bytes: int


class ReclaimedWeek(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that collections deleted that began in the seven days from `start`, a Unix time."""

    start: int
    reclaimed_bytes: int


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server. `checks` has `ok` or a reason for each part, as `/_ready` has."""

    ready: bool
    checks: dict[str, str]
    version: str
    python: str
    database: str
    object_store: str
    disk_bytes: int
    disk_free_bytes: int
    # Unwritten lines. `collections` and `weeks` (the oldest first) are at most a minute old, and of the first
    # repositories alone.
    audit_failures: int
    processes: list[ServerProcess]
    collections: list[CollectedKind]
    weeks: list[ReclaimedWeek]
