"""Garbage collection with Spark: plan what goes, show and compare it, carry it out; why an object stays."""

from lakebed.handoff import LedgerQuery

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
from .unfinished import OtherUnfinished, UnfinishedRun
from .unforeseen import SparkFailed, unforeseen

__all__ = [
    "TASKS",
    "BadGrace",
    "BadSessionOptions",
    "BadWindow",
    "Collector",
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
