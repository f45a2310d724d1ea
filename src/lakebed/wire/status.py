"""The state of a server: for people, beside the probes and metrics that programs read."""

from __future__ import annotations

import msgspec


class UpkeepStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the upkeep in one process. `done`: when it last ended well, in Unix seconds; 0: not yet."""

    name: str
    done: int
    failures: int


class ServerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the server. Those of one server share a port; figures of the others are a few seconds old."""

    process: int
    started: int
    cpu_seconds: float
    memory_bytes: int
    requests: int
    in_progress: int
    draining: bool
    upkeep: list[UpkeepStep]


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`checks` has `ok` or a reason for each part, as `/_ready` has. `audit_failures`: lines that were not written."""

    ready: bool
    checks: dict[str, str]
    version: str
    python: str
    database: str
    object_store: str
    disk_bytes: int
    disk_free_bytes: int
    audit_failures: int
    processes: list[ServerProcess]
