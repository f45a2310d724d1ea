"""The rules of forgetting in plain Python: the executable specification that the collectors must agree with. Pure."""

from .active import Lines, first_parent_indices, kept_indices, lines_of, places_of, rows_of
from .bases import merge_bases
from .committed import EmptyLiveSet, Namespace, Trees, garbage_addresses, slice_of
from .durations import DAY_MS, DAYS_MAX, FOREVER, Duration, InvalidDuration, parse_duration
from .explaining import Considered, Explanation, RuleChange, diff_rules, explain
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
from .ids import repeated
from .lasting import Ancestry, Stay, StayKind, goes_ms, stays_of
from .metadata import MetadataRule, RunFacts, named_files, old_runs, unnamed_files
from .optimised import NOTHING_SAVED, Saved, new_addresses, optimised_run
from .patterns import InvalidPattern, check_pattern, matches, specificity
from .rules import (
    KEEP_LAST_MAX,
    BranchRule,
    InvalidRules,
    KeepLast,
    Rules,
    check_rules,
    days_rules,
    in_days,
    most_specific_first,
    read_rules,
    with_days,
)
from .uncommitted import CleanRun, check_live, clean_run, committed_addresses

__all__ = [
    "DAYS_MAX",
    "DAY_MS",
    "FOREVER",
    "KEEP_LAST_MAX",
    "NOTHING_SAVED",
    "Ancestry",
    "BranchRule",
    "BrokenHistory",
    "CleanRun",
    "CommitFacts",
    "Considered",
    "Duration",
    "EmptyLiveSet",
    "Explanation",
    "History",
    "InvalidDuration",
    "InvalidPattern",
    "InvalidRules",
    "KeepLast",
    "Lines",
    "MetadataRule",
    "Namespace",
    "RuleChange",
    "Rules",
    "RunFacts",
    "Saved",
    "Stay",
    "StayKind",
    "Trees",
    "Verdict",
    "check_live",
    "check_pattern",
    "check_rules",
    "clean_run",
    "committed_addresses",
    "dangling_commits",
    "days_rules",
    "diff_rules",
    "explain",
    "first_parent_indices",
    "garbage_addresses",
    "goes_ms",
    "in_days",
    "judge_commits",
    "kept_commits",
    "kept_indices",
    "lines_of",
    "main_ancestry",
    "matches",
    "merge_bases",
    "most_specific_first",
    "named_files",
    "new_addresses",
    "old_runs",
    "optimised_run",
    "parse_duration",
    "places_of",
    "read_rules",
    "repeated",
    "rows_of",
    "slice_of",
    "specificity",
    "stays_of",
    "unnamed_files",
    "with_days",
]
