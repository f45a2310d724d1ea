"""Sweeps of branches as they travel: what goes by the policy, and what became of each."""

from __future__ import annotations

from typing import Final

import msgspec

SWEEP_MAX: Final = 100
"""Branches that one request deletes."""

BRANCH_GONE: Final = "there is no such branch"
BRANCH_IN_DOUBT: Final = "not known whether it went"
BRANCH_NOT_TRIED: Final = "not tried: the key-value store was away at a branch before it"


class PlannedBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch, and whether it goes now. `why` says so in words, also of one that stays; `rule` is the pattern that
    counts, empty if none does.

    `active_ms` is when it was last used. `expires_ms`: it was made to last until then. `due_ms`: when it goes if no one
    uses it and nothing else keeps it. `goes_ms` is the first instant from now on at which a sweep deletes it if nothing
    changes; None: there is no such. `state` names all that the plan saw of it: it goes only if that is still so.
    """

    branch: str
    commit_id: str
    goes: bool
    why: str
    rule: str
    active_ms: int
    expires_ms: int | None
    due_ms: int | None
    has_uncommitted: bool
    state: str
    goes_ms: int | None = None


class BranchesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A page of this repository's branches by name, judged by this version of the policy at `now_ms`; 0: none was ever
    set. The next page is that `after` `next_after`; empty: this is the last.
    """

    repository: str
    policy_version: int
    now_ms: int
    branches: tuple[PlannedBranch, ...]
    next_after: str = ""


class BranchToGo(msgspec.Struct, frozen=True, kw_only=True):
    """A branch of a plan, with the `state` that the plan saw."""

    branch: str
    state: str


class SweepBranches(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete these branches, at most 100, if the policy is still of this version and says so now."""

    policy_version: int
    branches: tuple[BranchToGo, ...]


class SweptBranch(msgspec.Struct, frozen=True, kw_only=True):
    """Say what became of a branch.

    `why` is why it was not deleted: it stays, it is not there (`BRANCH_GONE`), an error leaves it open (a text that
    begins with `BRANCH_IN_DOUBT`), or the sweep ended before it (`BRANCH_NOT_TRIED`).
    """

    branch: str
    is_deleted: bool
    why: str


class BranchesSwept(msgspec.Struct, frozen=True, kw_only=True):
    branches: tuple[SweptBranch, ...]


def not_tried(branch: str) -> SweptBranch:
    return SweptBranch(branch=branch, is_deleted=False, why=BRANCH_NOT_TRIED)


def was_not_tried(swept: SweptBranch) -> bool:
    return not swept.is_deleted and swept.why == BRANCH_NOT_TRIED


def is_open(swept: SweptBranch) -> bool:
    """Return whether it is not known what became of the branch, or nothing was tried: sweep again."""
    return was_not_tried(swept) or (not swept.is_deleted and swept.why.startswith(BRANCH_IN_DOUBT))
