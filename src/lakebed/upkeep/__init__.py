"""What the live side owes to collection: runs, what is alive and uncommitted, commits, rules, and who may be named."""

from .collector import Collected, Collector, Delete, history_of
from .errors import (
    BadContinuation,
    OutOfOrder,
    RulesChanged,
    RulesNotFound,
    RunMoved,
    RunNotFound,
    StalePlan,
    WrongKind,
)
from .options import UpkeepOptions
from .rules import RuleBook, RulesRecord, RulesSet
from .upkeep import Upkeep

__all__ = [
    "BadContinuation",
    "Collected",
    "Collector",
    "Delete",
    "OutOfOrder",
    "RuleBook",
    "RulesChanged",
    "RulesNotFound",
    "RulesRecord",
    "RulesSet",
    "RunMoved",
    "RunNotFound",
    "StalePlan",
    "Upkeep",
    "UpkeepOptions",
    "WrongKind",
    "history_of",
]
