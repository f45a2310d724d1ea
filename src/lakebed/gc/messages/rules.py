"""Retention rules as the server and its clients exchange them (JSON), beside the contract's form in days.

Routes, below `/api/v1/repositories/{repository}/gc/rules`:

    GET    full                                   -> RulesVersion    ?version=N: that one instead of the one in force
    PUT    full      lakebed.gc.rules.Rules      -> RulesWritten    ?if_version=N: only if that one is in force
    DELETE full      (empty)                      -> RulesWritten    likewise
    GET    history                                -> RulesHistory    newest first; ?before=N, ?amount=N
    GET    explain                                -> lakebed.gc.rules.Explanation    ?branch=NAME, or what is on none
    POST   try       lakebed.gc.rules.Rules      -> RulesTrial      saves nothing, deletes nothing

412 says that another version is in force. Version 0 is that of a repository whose rules were never set.
"""

from __future__ import annotations

import msgspec

from lakebed.gc.rules import Rules

from .run.plans import Total


class RulesVersion(msgspec.Struct, frozen=True, kw_only=True):
    """`rules` None: none count from this version on. `changed_by` is a user's id, empty where no user signed in."""

    version: int
    rules: Rules | None
    changed_ms: int
    changed_by: str


class RulesHistory(msgspec.Struct, frozen=True, kw_only=True):
    versions: tuple[RulesVersion, ...]
    has_more: bool


class RulesWritten(msgspec.Struct, frozen=True, kw_only=True):
    """`counts_after` are runs that expire or sweep by the former rules: for these the change comes too late."""

    version: int
    counts_after: tuple[str, ...]


class TriedBranch(msgspec.Struct, frozen=True, kw_only=True):
    """Count the commits that are first in the history of this branch, and those of them that would expire.

    `branch` is empty for commits on no branch.
    """

    branch: str
    rule: str
    commits: int
    expired: int


class TriedCommit(msgspec.Struct, frozen=True, kw_only=True):
    """Name a commit that would expire, its branch, and the rule."""

    id: str
    created_ms: int
    branch: str
    rule: str


class TriedDay(msgspec.Struct, frozen=True, kw_only=True):
    """Count the commits that would be expired `days` from now, if no commit comes until then."""

    days: int
    expired: int


class RulesTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Show the commits that the retention rules of a request would let expire now. Nothing is saved or deleted.

    `kept` and `expired` count commits; `gone` those that went before. `expired_in_force`: by the rules in force, None
    where none are. `branches` and `commits` are the first of their kind, the largest and the newest.
    `at_most`: the objects that only expired commits name; None where these are too many to add up. Staged data, open
    uploads, and the holds that `path_holds` names may keep some of them.
    """

    now_ms: int
    kept: int
    expired: int
    gone: int
    expired_in_force: int | None
    branches: tuple[TriedBranch, ...]
    branches_count: int
    commits: tuple[TriedCommit, ...]
    days: tuple[TriedDay, ...]
    at_most: Total | None
    path_holds: tuple[str, ...]
