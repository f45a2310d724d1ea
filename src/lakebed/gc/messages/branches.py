"""Declare the messages of branch sweeps: the branches that the policy deletes, and the outcome of each."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "BRANCH_GONE",
    "BRANCH_IN_DOUBT",
    "SWEEP_MAX",
    "BranchToGo",
    "BranchesPlan",
    "BranchesSwept",
    "PlannedBranch",
    "SweepBranches",
    "SweptBranch",
    "is_open",
    "not_tried",
    "was_not_tried",
]

SWEEP_MAX: Final = 100
"""The number of branches that one request deletes."""

BRANCH_GONE: Final = "there is no such branch"
BRANCH_IN_DOUBT: Final = "not known whether it went"
BRANCH_NOT_TRIED: Final = "not tried: the key-value store was away at a branch before it"


class PlannedBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch, and whether a sweep deletes it now (`goes`)."""

    branch: str
    commit_id: str
    goes: bool
    # The reason in words, for each branch.
    why: str
    # The pattern that applies, or empty.
    rule: str
    # The last use.
    active_ms: int
    # The end date that the branch was made with.
    expires_ms: int | None
    # The instant from which a sweep deletes the branch if it stays unused and nothing else keeps it.
    due_ms: int | None
    has_uncommitted: bool
    # All facts that the plan read of the branch. A sweep deletes the branch only if they are the same.
    state: str
    # The first instant at which a sweep deletes it if nothing changes, or None.
    goes_ms: int | None = None


class BranchesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the repository's branches by name, judged by this version of the policy at `now_ms`.

    Version 0: no policy was ever set. The next page begins `after` `next_after`; empty on the last page.
    """

    repository: str
    policy_version: int
    now_ms: int
    branches: tuple[PlannedBranch, ...]
    next_after: str = ""


class BranchToGo(msgspec.Struct, frozen=True, kw_only=True):
    """A branch of a plan, with the `state` that the plan read."""

    branch: str
    state: str


class SweepBranches(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete these branches, at most 100, if the policy still has this version and deletes them now."""

    policy_version: int
    branches: tuple[BranchToGo, ...]


class SweptBranch(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for a branch."""

    branch: str
    is_deleted: bool
    # The reason that it was not deleted. It stays, it does not exist (`BRANCH_GONE`), an error leaves the outcome open
    # (begins with `BRANCH_IN_DOUBT`), or the sweep ended before it (`BRANCH_NOT_TRIED`).
    why: str


class BranchesSwept(msgspec.Struct, frozen=True, kw_only=True):
    branches: tuple[SweptBranch, ...]


def not_tried(branch: str) -> SweptBranch:
    return SweptBranch(branch=branch, is_deleted=False, why=BRANCH_NOT_TRIED)


def was_not_tried(swept: SweptBranch) -> bool:
    return not swept.is_deleted and swept.why == BRANCH_NOT_TRIED


def is_open(swept: SweptBranch) -> bool:
    """Return whether the outcome is unknown, or nothing was tried. Then sweep again."""
    return was_not_tried(swept) or (not swept.is_deleted and swept.why.startswith(BRANCH_IN_DOUBT))
