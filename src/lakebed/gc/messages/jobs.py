"""Ask a server to run a collection, over HTTP (JSON). Each body is one record.

A job is a process of the server, with its user's permissions. When the server or the process ends, the job is `lost`
or `failed`. Start it again: the run continues.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from lakebed.base import RunKind

from .requests import Request
from .simulation import SimulatedSums

__all__ = ["LINES_MAX", "JobDeed", "JobList", "JobResult", "JobState", "JobView", "StartJob"]

LINES_MAX: Final = 200
"""The number of newest progress lines that a job keeps."""


class JobState(enum.StrEnum):
    """`failed`: the job ended with an error, or objects could not be deleted. `stopped`: a user asked the job to stop.
    `lost`: the server that ran it is gone.
    """

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


class StartJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request: Request


class JobDeed(enum.StrEnum):
    PLANNED = "planned"
    APPLIED = "applied"
    PURGED = "purged"
    SWEPT = "swept"
    CERTIFIED = "certified"
    SIMULATED = "simulated"


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step.

    A plan: the objects to delete. An applied run: the objects deleted or deferred. A purge (no run): the objects
    deleted for good. `objects_failed` counts the objects that could not be deleted.
    A sweep of branches (no run): `objects` counts deleted branches, `objects_failed` branches with unknown outcome.
    A certificate: `objects` counts absent objects, `objects_failed` the lines of content that can still be read.
    A simulation: the objects that become due, with their sums in `simulation`.
    """

    deed: JobDeed
    run_id: str = ""
    kind: RunKind | None = None
    objects: int
    size_bytes: int
    objects_failed: int = 0
    simulation: SimulatedSums | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """`lines`: the newest lines of progress. `error`: the reason that the job is not `done`."""

    id: str
    request: Request
    state: JobState
    started_by: str
    started_ms: int
    ended_ms: int | None = None
    lines: tuple[str, ...] = ()
    results: tuple[JobResult, ...] = ()
    error: str = ""


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    jobs: tuple[JobView, ...]
