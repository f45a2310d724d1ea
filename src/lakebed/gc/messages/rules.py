"""Declare retention rules as the server and its clients exchange them (JSON)."""

from __future__ import annotations

import msgspec

from lakebed.gc.rules import Rules

from .run.plans import Total

__all__ = ["RulesHistory", "RulesTrial", "RulesVersion", "RulesWritten", "TriedBranch", "TriedCommit", "TriedDay"]


class RulesVersion(msgspec.Struct, frozen=True, kw_only=True):
    """`rules` None: no rules apply from this version on. `changed_by`: a user's id, or empty if no user signed in."""

    # Version 0: the repository's rules were never set.
    version: int
    rules: Rules | None
    changed_ms: int
    changed_by: str


class RulesHistory(msgspec.Struct, frozen=True, kw_only=True):
    versions: tuple[RulesVersion, ...]
    has_more: bool


class RulesWritten(msgspec.Struct, frozen=True, kw_only=True):
    """`counts_after`: runs that expire or sweep by the former rules. The change does not apply to these runs."""

    version: int
    counts_after: tuple[str, ...]


class TriedBranch(msgspec.Struct, frozen=True, kw_only=True):
    """Count the commits that are first in this branch's history, and how many of them would expire.

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
    """Count the commits that would be expired `days` from now, without new commits, and what they name (`at_most`)."""

    days: int
    expired: int
    at_most: Total | None = None


class RulesTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The commits that the retention rules of a request would expire now. Nothing is saved or deleted."""

    now_ms: int
    # Numbers of commits.
    kept: int
    expired: int
    # Commits swept before.
    gone: int
    # The number by the rules in force, or None without rules.
    expired_in_force: int | None
    # The largest; `commits`: the newest.
    branches: tuple[TriedBranch, ...]
    branches_count: int
    commits: tuple[TriedCommit, ...]
    days: tuple[TriedDay, ...]
    # The objects that only expired commits name; None if they are too many to add up. Staged data, open uploads, and
    # the holds named by `path_holds` may keep some of them.
    at_most: Total | None
    path_holds: tuple[str, ...]
