"""The rules of forgetting in plain Python: the executable specification that the collectors must agree with. Pure."""

from .active import first_parent_indices, kept_indices, rows_of
from .committed import EmptyLiveSet, Namespace, Trees, doomed_addresses, slice_of
from .history import (
    BrokenHistory,
    CommitFacts,
    History,
    Verdict,
    dangling_commits,
    judge_commits,
    kept_commits,
    main_ancestry,
)
from .rules import DAY_MS, DAYS_MAX, InvalidRules, Rules, check_rules
from .uncommitted import CleanRun, check_live, clean_run, committed_addresses

__all__ = [
    "DAYS_MAX",
    "DAY_MS",
    "BrokenHistory",
    "CleanRun",
    "CommitFacts",
    "EmptyLiveSet",
    "History",
    "InvalidRules",
    "Namespace",
    "Rules",
    "Trees",
    "Verdict",
    "check_live",
    "check_rules",
    "clean_run",
    "committed_addresses",
    "dangling_commits",
    "doomed_addresses",
    "first_parent_indices",
    "judge_commits",
    "kept_commits",
    "kept_indices",
    "main_ancestry",
    "rows_of",
    "slice_of",
]
