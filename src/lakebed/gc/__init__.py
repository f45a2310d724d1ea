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
        PlanRequest,
        PurgeRequest,
        RunRequest,
        UnknownChoice,
    )

    from .admitting import RunNotReady
    from .api import TASKS, Collector, NamespaceMissing, NoSession
    from .failures import TaskCorrupt, TaskFailed, TaskStopped, TaskUnavailable
    from .fencing import Overtaken
    from .files import Lake
    from .finishing import NotFinished, go_on_command
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
    from .listed import ListedRun
    from .live_side import LiveSide, RunAbandoned, UnknownAnswer
    from .planning_committed import NoRules
    from .quarantine import PurgeReport
    from .restoring import RestoreReport
    from .runs import Plan, PlanMissing, Total, Totals
    from .saving import NoSavedState
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
    from .standing import Standing, standing_by_record
    from .supposing import NotTheRules
    from .tables import SchemaMismatch
    from .unexpected import SparkFailed, unforeseen
    from .unfinished import OtherUnfinished, UnfinishedRun

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
    "SchemaMismatch",
    "SessionOptions",
    "SessionRunning",
    "SparkDidNotStart",
    "SparkFailed",
    "Standing",
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
    "session_on_demand",
    "session_options",
    "show",
    "standing_by_record",
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
    "ListedRun": ".listed",
    "LiveSide": ".live_side",
    "LocalSession": ".session",
    "Mode": "lakebed.gc.protocol",
    "NamespaceMissing": ".api",
    "NoJava": ".java",
    "NoRules": ".planning_committed",
    "NoSavedState": ".saving",
    "NoSession": ".api",
    "NoSpark": ".session",
    "NotFinished": ".finishing",
    "NotTheRules": ".supposing",
    "OtherUnfinished": ".unfinished",
    "Overtaken": ".fencing",
    "Plan": ".runs",
    "PlanMissing": ".runs",
    "PlanRequest": "lakebed.gc.protocol",
    "Planned": ".functions",
    "PurgeReport": ".quarantine",
    "PurgeRequest": "lakebed.gc.protocol",
    "RestoreReport": ".restoring",
    "RunAbandoned": ".live_side",
    "RunNotReady": ".admitting",
    "RunRequest": "lakebed.gc.protocol",
    "SchemaMismatch": ".tables",
    "SessionOptions": ".session",
    "SessionRunning": ".session",
    "SparkDidNotStart": ".session",
    "SparkFailed": ".unexpected",
    "Standing": ".standing",
    "TASKS": ".api",
    "TaskCorrupt": ".failures",
    "TaskFailed": ".failures",
    "TaskStopped": ".failures",
    "TaskUnavailable": ".failures",
    "Total": ".runs",
    "Totals": ".runs",
    "UnfinishedRun": ".unfinished",
    "UnknownAnswer": ".live_side",
    "UnknownChoice": "lakebed.gc.protocol",
    "Where": ".functions",
    "apply": ".functions",
    "check_spark": ".session",
    "diff": ".functions",
    "find_java": ".java",
    "go_on_command": ".finishing",
    "ledger": ".functions",
    "local_session": ".session",
    "plan": ".functions",
    "purge": ".functions",
    "restore": ".functions",
    "run": ".functions",
    "session_on_demand": ".session",
    "session_options": ".session",
    "show": ".functions",
    "standing_by_record": ".standing",
    "unforeseen": ".unexpected",
    "why": ".functions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name], __name__), name)
