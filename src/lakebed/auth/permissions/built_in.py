"""Declare the policies and groups that every installation has. They are code, not records: no user can change them.

    group          its policies
    Admins         AllAccess
    SuperUsers     FSFullAccess, RepoManagementReadAll, GCPlanner, AuthManageOwnCredentials
    Developers     FSReadWriteAll, RepoManagementReadAll, GCViewer, AuthManageOwnCredentials
    Viewers        FSReadAll, RepoManagementReadAll, GCViewer, AuthManageOwnCredentials
    GCPlanners     GCPlanner, AuthManageOwnCredentials
    GCOperators    GCOperator, AuthManageOwnCredentials
    Monitors       Monitor

The contract's access levels (ACL) are the first four: Admin, Super, Write, Read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .statements import EVERYTHING, Statement

__all__ = ["ADMINS"]

ADMINS: Final = "Admins"
UID: Final = "built-in"
"""Stand in for the uid of a stored record: these are never made a second time."""

_SELF: Final = "arn:lakefs:auth:::user/${user}"


def _allow(*actions: str, resource: str = EVERYTHING) -> Statement:
    return Statement(effect="allow", actions=actions, resource=resource)


_READ: Final = _allow("fs:List*", "fs:Read*", "pr:List*", "pr:Read*")
_SEE_COLLECTIONS: Final = _allow("gc:Read*", "gc:Explain", "lifecycle:Read*", "fs:ReadConfig", "fs:ReadRepository")
_PLAN: Final = _allow("gc:Plan", "gc:Abandon")

POLICIES: Final[dict[str, tuple[Statement, ...]]] = {
    "AllAccess": (_allow(EVERYTHING),),
    "AuthFullAccess": (_allow("auth:*"),),
    "AuthManageOwnCredentials": (
        _allow(
            "auth:CreateCredentials",
            "auth:DeleteCredentials",
            "auth:ListCredentials",
            "auth:ReadCredentials",
            "auth:ReadUser",
            resource=_SELF,
        ),
    ),
    "FSFullAccess": (_allow("fs:*", "pr:*", "sandbox:*"),),
    "FSReadAll": (_READ,),
    "FSReadWriteAll": (
        _READ,
        _allow(
            "fs:CreateBranch",
            "fs:CreateCommit",
            "fs:CreateMetaRange",
            "fs:CreateTag",
            "fs:DeleteBranch",
            "fs:DeleteObject",
            "fs:DeleteTag",
            "fs:RevertBranch",
            "fs:WriteObject",
            "pr:*",
        ),
    ),
    "GCOperator": (_SEE_COLLECTIONS, _PLAN, _allow("gc:Apply", "gc:Restore", "gc:WriteRules", "lifecycle:WritePolicy")),
    "GCPlanner": (_SEE_COLLECTIONS, _PLAN),
    "GCViewer": (_SEE_COLLECTIONS,),
    "Monitor": (_allow("ops:ReadMetrics"),),
    "RepoManagementFullAccess": (_allow("branches:*", "ci:*", "fs:ReadConfig", "fs:UpdateRepository", "retention:*"),),
    "RepoManagementReadAll": (_allow("branches:Get*", "ci:Read*", "fs:ReadConfig", "retention:Get*"),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInGroup:
    description: str
    policies: tuple[str, ...]


ACL: Final[dict[str, tuple[str, ...]]] = {
    "Admin": ("AllAccess",),
    "Super": ("FSFullAccess", "RepoManagementReadAll", "GCPlanner", "AuthManageOwnCredentials"),
    "Write": ("FSReadWriteAll", "RepoManagementReadAll", "GCViewer", "AuthManageOwnCredentials"),
    "Read": ("FSReadAll", "RepoManagementReadAll", "GCViewer", "AuthManageOwnCredentials"),
}

GROUPS: Final[dict[str, BuiltInGroup]] = {
    ADMINS: BuiltInGroup(description="May do everything", policies=ACL["Admin"]),
    "Developers": BuiltInGroup(description="Read and write all repositories", policies=ACL["Write"]),
    "GCOperators": BuiltInGroup(
        description="Plan and apply garbage collections, restore where they may write, and set retention rules",
        policies=("GCOperator", "AuthManageOwnCredentials"),
    ),
    "GCPlanners": BuiltInGroup(
        description="Plan garbage collections and explain them; delete nothing",
        policies=("GCPlanner", "AuthManageOwnCredentials"),
    ),
    "Monitors": BuiltInGroup(description="Read the server's metrics, and nothing else", policies=("Monitor",)),
    "SuperUsers": BuiltInGroup(
        description="Everything with repositories, and planning garbage collections", policies=ACL["Super"]
    ),
    "Viewers": BuiltInGroup(description="Read all repositories", policies=ACL["Read"]),
}
