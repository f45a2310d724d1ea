"""Ask a server to run a collection, over HTTP (JSON). One record a body.

Routes, below `/api/v1/repositories/{repository}/gc`:

    POST   jobs         StartJob -> JobView    409: one is running in this repository; 501: no Spark there
    GET    jobs                  -> JobList    newest first
    GET    jobs/{id}             -> JobView
    DELETE jobs/{id}             -> JobView    asks it to stop; it does within seconds

A job is a process of the server, on its machine, with no more permissions than its user has. It survives nothing: where
the server or the process ends, the job is `lost` or `failed`. Start it again: a run goes on where it was.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from lakebed.base import RunKind

from .requests import Request

LINES_MAX: Final = 200
"""How many of the newest lines of progress a job keeps."""


class JobState(enum.StrEnum):
    """`failed`: it ended with an error, or objects could not be deleted. `stopped`: a user asked it to stop. `lost`:
    the server that ran it is gone."""

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


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """A plan: what it takes. An applied run: what was deleted or deferred. A purge (which has no run): what
    was deleted for good; and how many objects could not be. A sweep (which has no run either): in `objects`, how many
    branches were deleted; in `objects_failed`, of how many that is not known. A certificate: in `objects`, how many are
    absent; in `objects_failed`, how many lines name content that still stands."""

    deed: JobDeed
    run_id: str = ""
    kind: RunKind | None = None
    objects: int
    size_bytes: int
    objects_failed: int = 0


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """`lines` are the newest lines of progress. `error` says why it is not `done`."""

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
