"""The rules of retention and collection in plain Python: the specification that all collectors must match. Pure."""

from .active import Lines, first_parent_indices, kept_indices, lines_of, one_piece, places_of, repeated, rows_of
from .bases import merge_bases
from .committed import EmptyLiveSet, Namespace, Trees, garbage_addresses, slice_of
from .deleted import judge_deleted
from .durations import DAY_MS, DAYS_MAX, FOREVER, HOUR_MS, InvalidDuration, parse_duration
from .erasure import Stands, judge_erasure
from .explaining import Considered, Explanation, RuleChange, diff_rules, explain
from .history import BrokenHistory, CommitFacts, History, Verdict, judge_commits, kept_commits
from .holds import Hold, Holds, held_commits, held_keys
from .lasting import Ancestry, Stay, StayKind, goes_ms, stays_of
from .metadata import MetadataRule, RunFacts, WrittenFacts, named_files, old_runs, old_written, unnamed_files
from .optimised import NOTHING_SAVED, Saved, new_addresses, optimised_run
from .patterns import InvalidPattern, check_pattern, deleted_name, matches, plain_name, specificity
from .rules import (
    KEEP_LAST_MAX,
    BranchRule,
    InvalidRules,
    KeepLast,
    Rules,
    check_rules,
    days_rules,
    in_days,
    read_rules,
    with_days,
)
from .selection import InvalidSelection, Matcher, Selection, Spans, check_globs, check_selection, digests_in
from .uncommitted import check_live, clean_run, committed_addresses

__all__ = [
    "DAYS_MAX",
    "DAY_MS",
    "FOREVER",
    "HOUR_MS",
    "KEEP_LAST_MAX",
    "NOTHING_SAVED",
    "Ancestry",
    "BranchRule",
    "BrokenHistory",
    "CommitFacts",
    "Considered",
    "EmptyLiveSet",
    "Explanation",
    "History",
    "Hold",
    "Holds",
    "InvalidDuration",
    "InvalidPattern",
    "InvalidRules",
    "InvalidSelection",
    "KeepLast",
    "Lines",
    "Matcher",
    "MetadataRule",
    "Namespace",
    "RuleChange",
    "Rules",
    "RunFacts",
    "Saved",
    "Selection",
    "Spans",
    "Stands",
    "Stay",
    "StayKind",
    "Trees",
    "Verdict",
    "WrittenFacts",
    "check_globs",
    "check_live",
    "check_pattern",
    "check_rules",
    "check_selection",
    "clean_run",
    "committed_addresses",
    "days_rules",
    "deleted_name",
    "diff_rules",
    "digests_in",
    "explain",
    "first_parent_indices",
    "garbage_addresses",
    "goes_ms",
    "held_commits",
    "held_keys",
    "in_days",
    "judge_commits",
    "judge_deleted",
    "judge_erasure",
    "kept_commits",
    "kept_indices",
    "lines_of",
    "matches",
    "merge_bases",
    "named_files",
    "new_addresses",
    "old_runs",
    "old_written",
    "one_piece",
    "optimised_run",
    "parse_duration",
    "places_of",
    "plain_name",
    "read_rules",
    "repeated",
    "rows_of",
    "slice_of",
    "specificity",
    "stays_of",
    "unnamed_files",
    "with_days",
]
