"""The state of a server, for people. Programs read the probes and metrics."""

from __future__ import annotations

import msgspec


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


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server. `checks` has `ok` or a reason for each part, as `/_ready` has.

    `audit_failures`: unwritten lines.
    """

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
