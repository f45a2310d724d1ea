"""Collect garbage: plan runs, show, compare and apply plans, and explain why an object stays.

The names below are imported on first use: `lakebed.gc.rules` and `lakebed.gc.messages` are pure, and the server and the
command line use them without loading Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lakebed.base import BadGrace

    from .api.branches import plan_branches, sweep_branches
    from .api.collector import Collector
    from .api.erasing import ErasureLeft, erase, left_of_erasure
    from .api.functions import Planned, Where, apply, diff, ledger, plan, purge, restore, run, show, why
    from .api.http_requests import HttpRequests, finish
    from .api.reach import NamespaceMissing
    from .api.served import ServedCollector
    from .api.words import OPTIONS
    from .engines.failures import SparkFailed, TaskCorrupt, TaskFailed, TaskStopped, TaskUnavailable, unforeseen
    from .engines.files import Lake
    from .engines.java import Java, find_java
    from .engines.package import NEEDED, Package, write_package
    from .engines.session import (
        LocalSession,
        NoSpark,
        SessionOptions,
        SessionRunning,
        check_spark,
        local_session,
        session_on_demand,
        session_options,
    )
    from .kinds.erasure.certificate.foreseeing import GARBAGE_STAYS
    from .kinds.erasure.certificate.standing import REMAINS
    from .machine.preflight import NotTheRules, RunNotReady
    from .mark.holding import HeldBack
    from .messages import (
        ApplyRequest,
        BadWindow,
        EngineName,
        InvalidRequest,
        LedgerQuery,
        Mode,
        Plan,
        PlanMissing,
        PlanRequest,
        PurgeReport,
        PurgeRequest,
        RestoreReport,
        RunAbandoned,
        RunRequest,
        Total,
        Totals,
        UnknownAnswer,
        UnknownChoice,
    )
    from .rules import NoRules
    from .runs.context import Overtaken
    from .runs.resume import NotFinished, OtherUnfinished, UnfinishedRun, WindowTooLate
    from .runs.status import ListedRun, RunStatus, apply_command, run_status_by_record

__all__ = [
    "GARBAGE_STAYS",
    "NEEDED",
    "OPTIONS",
    "REMAINS",
    "ApplyRequest",
    "BadGrace",
    "BadWindow",
    "Collector",
    "EngineName",
    "ErasureLeft",
    "HeldBack",
    "HttpRequests",
    "InvalidRequest",
    "Java",
    "Lake",
    "LedgerQuery",
    "ListedRun",
    "LocalSession",
    "Mode",
    "NamespaceMissing",
    "NoRules",
    "NoSpark",
    "NotFinished",
    "NotTheRules",
    "OtherUnfinished",
    "Overtaken",
    "Package",
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
    "ServedCollector",
    "SessionOptions",
    "SessionRunning",
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
    "apply_command",
    "check_spark",
    "diff",
    "erase",
    "find_java",
    "finish",
    "ledger",
    "left_of_erasure",
    "local_session",
    "plan",
    "plan_branches",
    "purge",
    "restore",
    "run",
    "run_status_by_record",
    "session_on_demand",
    "session_options",
    "show",
    "sweep_branches",
    "unforeseen",
    "why",
    "write_package",
]

_NAMES: Final = {
    ".api.collector": "Collector",
    ".api.reach": "NamespaceMissing",
    ".api.served": "ServedCollector",
    ".api.erasing": "ErasureLeft erase left_of_erasure",
    ".api.branches": "plan_branches sweep_branches",
    ".kinds.erasure.certificate.foreseeing": "GARBAGE_STAYS",
    ".kinds.erasure.certificate.standing": "REMAINS",
    ".engines.failures": "SparkFailed TaskCorrupt TaskFailed TaskStopped TaskUnavailable unforeseen",
    ".runs.context": "Overtaken",
    ".engines.files": "Lake",
    ".api.functions": "Planned Where apply diff ledger plan purge restore run show why",
    ".api.http_requests": "HttpRequests finish",
    ".engines.java": "Java find_java",
    ".rules": "NoRules",
    ".engines.package": "NEEDED Package write_package",
    ".machine.preflight": "NotTheRules RunNotReady",
    ".mark.holding": "HeldBack",
    ".runs.resume": "NotFinished OtherUnfinished UnfinishedRun WindowTooLate",
    ".engines.session": "LocalSession NoSpark SessionOptions SessionRunning check_spark "
    " local_session session_on_demand session_options",
    ".runs.status": "ListedRun RunStatus apply_command run_status_by_record",
    ".api.words": "OPTIONS",
    "lakebed.base": "BadGrace",
    "lakebed.gc.messages": "ApplyRequest BadWindow EngineName InvalidRequest LedgerQuery Mode Plan "
    "PlanMissing PlanRequest PurgeReport PurgeRequest RestoreReport RunAbandoned RunRequest Total Totals UnknownAnswer "
    "UnknownChoice",
}
_HOME: Final = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name], __name__), name)
