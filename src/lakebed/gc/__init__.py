"""Garbage collection: plan what goes, show and compare it, carry it out; why an object stays.

The names below are imported when they are first used: `lakebed.gc.rules` and `lakebed.gc.protocol` are pure, and the
server and the command line use them without loading Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lakebed.gc.protocol import LedgerQuery

    from .admitting import RunNotReady
    from .api import TASKS, Collector, NamespaceMissing
    from .failures import TaskCorrupt, TaskFailed, TaskStopped, TaskUnavailable
    from .fencing import Overtaken
    from .files import Lake
    from .finishing import NotFinished, go_on_command
    from .functions import (
        NoSession,
        Planned,
        UnknownChoice,
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
    from .grace import BadGrace, grace_seconds
    from .http_requests import HttpRequests
    from .java import Java, NoJava, find_java
    from .listed import ListedRun
    from .live_side import LiveSide, RunAbandoned, UnknownAnswer
    from .modes import Mode, UncommittedOptions, options_of
    from .planning_committed import NoRules
    from .quarantine import BadWindow, PurgeReport, check_window
    from .restoring import RestoreReport
    from .runs import Plan, PlanMissing, Total, Totals
    from .saving import NoSavedState
    from .session import (
        BadSessionOptions,
        LocalSession,
        SessionOptions,
        SessionRunning,
        SparkDidNotStart,
        local_session,
        session_options,
    )
    from .standing import Standing, standing_by_record
    from .supposing import NothingToSuppose, NotTheRules
    from .tables import SchemaMismatch
    from .unexpected import SparkFailed, unforeseen
    from .unfinished import OtherUnfinished, UnfinishedRun

__all__ = [
    "TASKS",
    "BadGrace",
    "BadSessionOptions",
    "BadWindow",
    "Collector",
    "HttpRequests",
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
    "NotFinished",
    "NotTheRules",
    "NothingToSuppose",
    "OtherUnfinished",
    "Overtaken",
    "Plan",
    "PlanMissing",
    "Planned",
    "PurgeReport",
    "RestoreReport",
    "RunAbandoned",
    "RunNotReady",
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
    "UncommittedOptions",
    "UnfinishedRun",
    "UnknownAnswer",
    "UnknownChoice",
    "Where",
    "apply",
    "check_window",
    "diff",
    "find_java",
    "go_on_command",
    "grace_seconds",
    "ledger",
    "local_session",
    "options_of",
    "plan",
    "purge",
    "restore",
    "run",
    "session_options",
    "show",
    "standing_by_record",
    "unforeseen",
    "why",
]

_HOME: Final = {
    "BadGrace": ".grace",
    "BadSessionOptions": ".session",
    "BadWindow": ".quarantine",
    "Collector": ".api",
    "HttpRequests": ".http_requests",
    "Java": ".java",
    "Lake": ".files",
    "LedgerQuery": "lakebed.gc.protocol",
    "ListedRun": ".listed",
    "LiveSide": ".live_side",
    "LocalSession": ".session",
    "Mode": ".modes",
    "NamespaceMissing": ".api",
    "NoJava": ".java",
    "NoRules": ".planning_committed",
    "NoSavedState": ".saving",
    "NoSession": ".functions",
    "NotFinished": ".finishing",
    "NotTheRules": ".supposing",
    "NothingToSuppose": ".supposing",
    "OtherUnfinished": ".unfinished",
    "Overtaken": ".fencing",
    "Plan": ".runs",
    "PlanMissing": ".runs",
    "Planned": ".functions",
    "PurgeReport": ".quarantine",
    "RestoreReport": ".restoring",
    "RunAbandoned": ".live_side",
    "RunNotReady": ".admitting",
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
    "UncommittedOptions": ".modes",
    "UnfinishedRun": ".unfinished",
    "UnknownAnswer": ".live_side",
    "UnknownChoice": ".functions",
    "Where": ".functions",
    "apply": ".functions",
    "check_window": ".quarantine",
    "diff": ".functions",
    "find_java": ".java",
    "go_on_command": ".finishing",
    "grace_seconds": ".grace",
    "ledger": ".functions",
    "local_session": ".session",
    "options_of": ".modes",
    "plan": ".functions",
    "purge": ".functions",
    "restore": ".functions",
    "run": ".functions",
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
