"""Collections that a server is asked to run: what is said of them over HTTP (JSON). One record a body.

Routes, below `/api/v1/repositories/{repository}/gc`:

    POST   jobs         StartJob  -> JobView    409: one is running in this repository; 501: no Spark there
    GET    jobs                   -> JobList    newest first
    GET    jobs/{id}              -> JobView
    DELETE jobs/{id}              -> JobView    asks it to stop; it does within seconds

A job is a process of the server that asked for nothing more than what its user may ask for: the collector, run on the
server's machine. It survives nothing: where the server ends, or the job's process, the job is `lost` or `failed`, and
whatever it was doing can be begun or gone on with again, for that is what runs are made for.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from lakebed.gc.rules import Rules

from .runs import RunKind

LINES_MAX: Final = 200
"""How many of the newest lines of progress a job keeps."""


class JobAction(enum.StrEnum):
    """`run` plans, applies what it planned, and purges."""

    PLAN = "plan"
    APPLY = "apply"
    RUN = "run"
    PURGE = "purge"


class JobState(enum.StrEnum):
    """`failed`: it ended otherwise than well, or objects could not be deleted. `stopped`: somebody asked it to.
    `lost`: the server that ran it is gone."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


class StartJob(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` None: all, one after the other. `run_id` is for `apply`, and is what it applies. `options` are those of
    `python -m lakebed.gc` for this action, without their dashes, such as {"quarantine": "7d", "clean": ""}: one that
    takes no value has an empty one. `rules` are for `plan`: those to suppose in place of the repository's own.
    """

    action: JobAction
    kind: RunKind | None = None
    run_id: str = ""
    options: dict[str, str] = {}
    rules: Rules | None = None


class JobDeed(enum.StrEnum):
    PLANNED = "planned"
    APPLIED = "applied"
    PURGED = "purged"


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of a plan what it takes, of an applied run what was deleted or moved aside, of a purge (which has no run) what
    was deleted for good; and how many objects could not be."""

    deed: JobDeed
    run_id: str = ""
    kind: RunKind | None = None
    objects: int
    size_bytes: int
    objects_failed: int = 0


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """`lines` are the newest lines of progress. `error` says why it is not `done`."""

    id: str
    action: JobAction
    kind: RunKind | None = None
    run_id: str = ""
    options: dict[str, str] = {}
    state: JobState
    started_by: str
    started_ms: int
    ended_ms: int | None = None
    lines: tuple[str, ...] = ()
    results: tuple[JobResult, ...] = ()
    error: str = ""


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    jobs: tuple[JobView, ...]
