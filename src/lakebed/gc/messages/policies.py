"""Declare the messages of a repository's lifecycle policy: its JSON as set, with its version."""

from __future__ import annotations

import msgspec

from lakebed.gc.rules.lifecycle import Problem

__all__ = [
    "PolicyCheck",
    "PolicyHistory",
    "PolicyVersion",
    "PolicyWritten",
    "PotentialBegun",
    "PotentialPage",
    "SetPolicy",
]


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
