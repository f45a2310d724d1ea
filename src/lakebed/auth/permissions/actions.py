"""Names of actions, and names that stand for one another.

An action is `service:Verb`. The contract's services use the names that its clients send in policies. Lakebed adds `gc:`
for collections, `ops:` for operators, `quota:` and `sandbox:`. A policy names actions by pattern: `fs:Read*`, `*`.
"""

from __future__ import annotations

import re
from typing import Final

from lakebed.base import Invalid

from .conditions import compile_glob

__all__ = ["ACTIONS", "InvalidAction"]

FS: Final = (
    "fs:AttachStorageNamespace",
    "fs:CreateBranch",
    "fs:CreateCommit",
    "fs:CreateMetaRange",
    "fs:CreateRepository",
    "fs:CreateTag",
    "fs:DeleteBranch",
    "fs:DeleteObject",
    "fs:DeleteRepository",
    "fs:DeleteTag",
    "fs:ImportCancel",
    "fs:ImportFromStorage",
    "fs:ListBranches",
    "fs:ListCommits",
    "fs:ListObjects",
    "fs:ListRepositories",
    "fs:ListTags",
    "fs:ReadBranch",
    "fs:ReadCommit",
    "fs:ReadConfig",
    "fs:ReadObject",
    "fs:ReadRepository",
    "fs:ReadTag",
    "fs:RevertBranch",
    "fs:UpdateRepository",
    "fs:WriteObject",
)
AUTH: Final = (
    "auth:AddGroupMember",
    "auth:AttachPolicy",
    "auth:CreateCredentials",
    "auth:CreateGroup",
    "auth:CreatePolicy",
    "auth:CreateUser",
    "auth:CreateUserExternalPrincipal",
    "auth:DeleteCredentials",
    "auth:DeleteGroup",
    "auth:DeletePolicy",
    "auth:DeleteUser",
    "auth:DeleteUserExternalPrincipal",
    "auth:DetachPolicy",
    "auth:ListCredentials",
    "auth:ListGroups",
    "auth:ListPolicies",
    "auth:ListUsers",
    "auth:ReadCredentials",
    "auth:ReadExternalPrincipal",
    "auth:ReadGroup",
    "auth:ReadPolicy",
    "auth:ReadUser",
    "auth:RemoveGroupMember",
    "auth:UpdatePolicy",
)
OTHERS: Final = (
    "branches:GetBranchProtectionRules",
    "branches:SetBranchProtectionRules",
    "ci:ReadAction",
    "pr:ListPullRequests",
    "pr:ReadPullRequest",
    "pr:WritePullRequest",
    "retention:GetGarbageCollectionRules",
    "retention:PrepareGarbageCollectionCommits",
    "retention:PrepareGarbageCollectionUncommitted",
    "retention:SetGarbageCollectionRules",
)
GC: Final = (
    "gc:Abandon",
    "gc:AddHold",
    "gc:Adopt",
    "gc:Apply",
    "gc:CollectDeleted",
    "gc:Erase",
    "gc:Explain",
    "gc:Plan",
    "gc:ReadHardDelete",
    "gc:ReadLedger",
    "gc:ReadRules",
    "gc:ReadRuns",
    "gc:ReleaseHold",
    "gc:Restore",
    "gc:WriteHardDelete",
    "gc:WriteRules",
)
EVENTS: Final = ("events:ReadEvents", "events:ReadSubscriptions", "events:WriteSubscriptions")
LIFECYCLE: Final = ("lifecycle:ReadPolicy", "lifecycle:WritePolicy")
OPS: Final = ("ops:ReadAudit", "ops:ReadMetrics")
QUOTA: Final = ("quota:Read", "quota:Write")
SANDBOX: Final = ("sandbox:Create", "sandbox:End", "sandbox:Extend", "sandbox:Promote", "sandbox:Read")
ACTIONS: Final = frozenset((*FS, *AUTH, *OTHERS, *GC, *EVENTS, *LIFECYCLE, *OPS, *QUOTA, *SANDBOX))
SERVICES: Final = frozenset(
    {
        "auth",
        "branches",
        "catalog",
        "ci",
        "events",
        "fs",
        "gc",
        "lifecycle",
        "ops",
        "pr",
        "quota",
        "retention",
        "sandbox",
    }
)

ALSO: Final[dict[str, str]] = {
    "gc:ReadRules": "retention:GetGarbageCollectionRules",
    "gc:WriteRules": "retention:SetGarbageCollectionRules",
    "retention:GetGarbageCollectionRules": "gc:ReadRules",
    "retention:SetGarbageCollectionRules": "gc:WriteRules",
    "retention:PrepareGarbageCollectionCommits": "gc:Plan",
    "retention:PrepareGarbageCollectionUncommitted": "gc:Plan",
}
"""Map a needed action to its other name: a statement over either name counts. The contract's preparation is a part of
planning, so `gc:Plan` covers it, and not the other way round."""

REFS_OF: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(
        ("fs:ListCommits", "fs:ListObjects", "fs:ReadBranch", "fs:ReadCommit", "fs:ReadObject", "gc:Explain"),
        frozenset({"branch", "tag", "ref"}),
    ),
    **dict.fromkeys(
        (
            "fs:CreateBranch",
            "fs:CreateCommit",
            "fs:DeleteBranch",
            "fs:DeleteObject",
            "fs:ImportCancel",
            "fs:ImportFromStorage",
            "fs:RevertBranch",
            "fs:WriteObject",
            "pr:WritePullRequest",
        ),
        frozenset({"branch", "ref"}),
    ),
    **dict.fromkeys(("fs:CreateTag", "fs:DeleteTag", "fs:ReadTag"), frozenset({"tag", "ref"})),
}
"""Map an action to the keys of conditions that a request for it may have. All others name no branch and no tag."""

_PATTERN: Final = re.compile(r"\*|[a-z]+:[A-Za-z*]+")


class InvalidAction(Invalid):
    """The text is no pattern of actions, or names a service that does not exist."""


def check_action(action: str) -> str:
    """Return the name of an action that exists.

    Raises:
        InvalidAction: there is no such action, or the text is a pattern.
    """
    if action not in ACTIONS:
        raise InvalidAction(f"{action!r}: there is no such action", action=action)
    return action


def check_action_pattern(pattern: str, *, must_match: bool) -> str:
    """Return a pattern of actions that is valid, or raise InvalidAction.

    With `must_match`, which statements that deny need, the pattern must match an action. A misspelled deny would stop
    nothing.
    """
    if not _PATTERN.fullmatch(pattern):
        raise InvalidAction(f"{pattern!r} is not an action: `service:Name`, with * as a wildcard", action=pattern)
    service = pattern.partition(":")[0]
    if service != "*" and service not in SERVICES:
        raise InvalidAction(f"{pattern!r}: there is no service {service!r}", action=pattern)
    if must_match and not any(map(compile_glob(pattern), sorted(ACTIONS))):
        raise InvalidAction(f"{pattern!r} denies nothing: there is no such action", action=pattern)
    return pattern
