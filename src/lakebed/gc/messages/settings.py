"""Declare retention rules, legal holds and lifecycle policies as the server and its clients exchange them (JSON)."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from lakebed.gc.rules import Hold, Rules
from lakebed.gc.rules.lifecycle import Problem

from .run.plans import Total
from .why import WhyProgress

__all__ = [
    "HoldsHistory",
    "HoldsVersion",
    "HoldsWritten",
    "NewHold",
    "PolicyCheck",
    "PolicyHistory",
    "PolicyVersion",
    "PolicyWritten",
    "PotentialBegun",
    "PotentialPage",
    "RulesHistory",
    "RulesTrial",
    "RulesVersion",
    "RulesWritten",
    "SetPolicy",
    "TriedBranch",
    "TriedCommit",
    "TriedDay",
]


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
    # By the rules in force, now (0 days) and on the days of `days`; empty without rules.
    in_force: tuple[TriedDay, ...]
    # The largest; `commits`: the newest.
    branches: tuple[TriedBranch, ...]
    branches_count: int
    commits: tuple[TriedCommit, ...]
    days: tuple[TriedDay, ...]
    # The objects that only expired commits name; None if they are too many to add up. Staged data, open uploads, and
    # the holds named by `path_holds` may keep some of them.
    at_most: Total | None
    path_holds: tuple[str, ...]
    # Ask again with it: no number is here yet. `progress`: how far the search is.
    continuation_token: str | None = None
    progress: WhyProgress | None = None


NAMES_MAX: Final = 1_000
"""The limit for each kind of name in one hold."""
_Names: TypeAlias = Annotated[tuple[str, ...], msgspec.Meta(max_length=NAMES_MAX)]


class NewHold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold the objects at paths that match `globs`, in `commits`, or at `tags`. `why`: a text for people, not empty."""

    name: str
    globs: _Names = ()
    commits: _Names = ()
    tags: _Names = ()
    why: str
    keeps_uncommitted: bool = True


class HoldsVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The holds of a version. `changed_by`: the id of the user who made it."""

    version: int
    holds: tuple[Hold, ...]
    changed_ms: int
    changed_by: str
    what: str = ""


class HoldsHistory(msgspec.Struct, frozen=True, kw_only=True):
    versions: tuple[HoldsVersion, ...]
    has_more: bool


class HoldsWritten(msgspec.Struct, frozen=True, kw_only=True):
    """`counts_after`: runs that had begun to take commits or objects. Objects deleted before are lost."""

    version: int
    counts_after: tuple[str, ...] = ()


class SetPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`policy` is JSON (docs/formats/lifecycle-policy.md)."""

    policy: msgspec.Raw


class PolicyVersion(msgspec.Struct, frozen=True, kw_only=True):
    """`policy` null: no policy applies from then on. `changed_by`: a user's id, or empty if no user signed in."""

    version: int
    # msgspec reads only null for a union of Raw and None.
    policy: msgspec.Raw
    changed_ms: int
    changed_by: str

    def text(self) -> str | None:
        """Return the policy as its author wrote it, or None without a policy."""
        text = bytes(self.policy).decode()
        return None if text == "null" else text


class PolicyHistory(msgspec.Struct, frozen=True, kw_only=True):
    versions: tuple[PolicyVersion, ...]
    has_more: bool


class PolicyWritten(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    warnings: tuple[Problem, ...] = ()


class PotentialBegun(msgspec.Struct, frozen=True, kw_only=True):
    """The potential commits are in this run's folder, in this many pages, numbered from 0."""

    run_id: str
    commits: int
    pages: int


class PotentialPage(msgspec.Struct, frozen=True, kw_only=True):
    """`commits`: ids with the number of a set. `sets`: the branches of each number. "" stands for no branch."""

    commits: tuple[tuple[str, int], ...]
    sets: dict[int, tuple[str, ...]]


class PolicyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Every problem of a policy, errors before warnings. `is_valid`: the policy has no errors."""

    is_valid: bool
    problems: tuple[Problem, ...]
