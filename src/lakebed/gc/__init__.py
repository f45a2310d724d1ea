"""Garbage collection: plan what goes, show and compare it, carry it out; why an object stays.

The names below are imported when they are first used: `lakebed.gc.rules` and `lakebed.gc.protocol` are pure, and the
server and the command line use them without loading Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lakebed.gc.protocol import (
        ApplyRequest,
        BadGrace,
        BadWindow,
        EngineName,
        InvalidRequest,
        LedgerQuery,
        Mode,
        Plan,
        PlanMissing,
        PlanRequest,
        PurgeRequest,
        RunRequest,
        Total,
        Totals,
        UnknownChoice,
    )

    from .api import TASKS, Collector, NamespaceMissing, NoSession
    from .engines.failures import TaskCorrupt, TaskFailed, TaskStopped, TaskUnavailable
    from .fencing import Overtaken
    from .files import Lake
    from .functions import (
        Planned,
        Where,
        apply,
        diff,
        ledger,
        plan,
        purge,
        restore,
        run,
        show,
        why,
    )
    from .http_requests import HttpRequests
    from .java import Java, NoJava, find_java
    from .kinds.committed import NoRules
    from .kinds.saving import NoSavedState
    from .live_side import LiveSide, RunAbandoned, UnknownAnswer
    from .preflight import RunNotReady
    from .restoring import RestoreReport
    from .resume import NotFinished, OtherUnfinished, UnfinishedRun, WindowTooLate
    from .session import (
        BadSessionOptions,
        LocalSession,
        NoSpark,
        SessionOptions,
        SessionRunning,
        SparkDidNotStart,
        check_spark,
        local_session,
        session_on_demand,
        session_options,
    )
    from .status import ListedRun, RunStatus, go_on_command, run_status_by_record
    from .unexpected import SparkFailed, unforeseen
    from .what_if import NotTheRules

__all__ = [
    "TASKS",
    "ApplyRequest",
    "BadGrace",
    "BadSessionOptions",
    "BadWindow",
    "Collector",
    "EngineName",
    "HttpRequests",
    "InvalidRequest",
    "Java",
    "Lake",
    "LedgerQuery",
    "ListedRun",
    "LiveSide",
    "LocalSession",
    "Mode",
    "NamespaceMissing",
    "NoJava",
    "NoRules",
    "NoSavedState",
    "NoSession",
    "NoSpark",
    "NotFinished",
    "NotTheRules",
    "OtherUnfinished",
    "Overtaken",
    "Plan",
    "PlanMissing",
    "PlanRequest",
    "Planned",
    "PurgeReport",
    "PurgeRequest",
    "RestoreReport",
    "RunAbandoned",
    "RunNotReady",
    "RunRequest",
    "RunStatus",
    "SessionOptions",
    "SessionRunning",
    "SparkDidNotStart",
    "SparkFailed",
    "TaskCorrupt",
    "TaskFailed",
    "TaskStopped",
    "TaskUnavailable",
    "Total",
    "Totals",
    "UnfinishedRun",
    "UnknownAnswer",
    "UnknownChoice",
    "Where",
    "WindowTooLate",
    "apply",
    "check_spark",
    "diff",
    "find_java",
    "go_on_command",
    "ledger",
    "local_session",
    "plan",
    "purge",
    "restore",
    "run",
    "run_status_by_record",
    "session_on_demand",
    "session_options",
    "show",
    "unforeseen",
    "why",
]

_HOME: Final = {
    "ApplyRequest": "lakebed.gc.protocol",
    "BadGrace": "lakebed.gc.protocol",
    "BadSessionOptions": ".session",
    "BadWindow": "lakebed.gc.protocol",
    "Collector": ".api",
    "EngineName": "lakebed.gc.protocol",
    "HttpRequests": ".http_requests",
    "InvalidRequest": "lakebed.gc.protocol",
    "Java": ".java",
    "Lake": ".files",
    "LedgerQuery": "lakebed.gc.protocol",
    "ListedRun": ".status",
    "LiveSide": ".live_side",
    "LocalSession": ".session",
    "Mode": "lakebed.gc.protocol",
    "NamespaceMissing": ".api",
    "NoJava": ".java",
    "NoRules": ".kinds.committed",
    "NoSavedState": ".kinds.saving",
    "NoSession": ".api",
    "NoSpark": ".session",
    "NotFinished": ".resume",
    "NotTheRules": ".what_if",
    "OtherUnfinished": ".resume",
    "Overtaken": ".fencing",
    "Plan": "lakebed.gc.protocol",
    "PlanMissing": "lakebed.gc.protocol",
    "PlanRequest": "lakebed.gc.protocol",
    "Planned": ".functions",
    "PurgeReport": "lakebed.gc.protocol",
    "PurgeRequest": "lakebed.gc.protocol",
    "RestoreReport": ".restoring",
    "RunAbandoned": ".live_side",
    "RunNotReady": ".preflight",
    "RunRequest": "lakebed.gc.protocol",
    "SessionOptions": ".session",
    "SessionRunning": ".session",
    "SparkDidNotStart": ".session",
    "SparkFailed": ".unexpected",
    "RunStatus": ".status",
    "TASKS": ".api",
    "TaskCorrupt": ".engines.failures",
    "TaskFailed": ".engines.failures",
    "TaskStopped": ".engines.failures",
    "TaskUnavailable": ".engines.failures",
    "Total": "lakebed.gc.protocol",
    "Totals": "lakebed.gc.protocol",
    "UnfinishedRun": ".resume",
    "UnknownAnswer": ".live_side",
    "UnknownChoice": "lakebed.gc.protocol",
    "Where": ".functions",
    "WindowTooLate": ".resume",
    "apply": ".functions",
    "check_spark": ".session",
    "diff": ".functions",
    "find_java": ".java",
    "go_on_command": ".status",
    "ledger": ".functions",
    "local_session": ".session",
    "plan": ".functions",
    "purge": ".functions",
    "restore": ".functions",
    "run": ".functions",
    "session_on_demand": ".session",
    "session_options": ".session",
    "show": ".functions",
    "run_status_by_record": ".status",
    "unforeseen": ".unexpected",
    "why": ".functions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name], __name__), name)
