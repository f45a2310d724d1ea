"""Sandboxes: a branch with an end, and a key pair that may write nothing else. Quotas of repositories and users."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import (
    AT_REF,
    NEW_BRANCH,
    NOTHING,
    OBJECT,
    ONE_REPOSITORY,
    REPOSITORY,
    SOURCE_BRANCH,
    SOURCE_TAG,
    USER,
    At,
    Operation,
    Parameter,
    Permission,
    delete,
    get,
    listing,
    on,
    post,
    put,
)

_SANDBOXES: Final = ONE_REPOSITORY + "/sandboxes"
_SANDBOX: Final = _SANDBOXES + "/{sandbox}"
_READ: Final = on(REPOSITORY, "sandbox:Read")
_MADE: Final = At("name", "branch")

LENT: Final = (
    Permission("fs:ReadRepository", REPOSITORY, when="the key may, too"),
    Permission("fs:ReadBranch", SOURCE_BRANCH, when="of the source"),
    Permission("fs:ReadTag", SOURCE_TAG, when="of the source"),
    Permission("fs:ReadCommit", REPOSITORY, AT_REF, when="of the source"),
    Permission("fs:ListCommits", REPOSITORY, AT_REF, when="of the source"),
    Permission("fs:ReadObject", OBJECT, AT_REF, when="for every path of the source"),
    Permission("fs:ListObjects", REPOSITORY, AT_REF, when="of the source"),
    Permission("pr:ReadPullRequest", REPOSITORY, when="the key may, too"),
    Permission("fs:CreateBranch", NEW_BRANCH, when="of the branch that it makes"),
    Permission("fs:WriteObject", OBJECT, _MADE, when="for every path of the branch"),
    Permission("fs:DeleteObject", OBJECT, _MADE, when="for every path of the branch"),
    Permission("fs:CreateCommit", NEW_BRANCH, when="of the branch"),
    Permission("fs:RevertBranch", NEW_BRANCH, when="of the branch"),
    Permission("pr:WritePullRequest", REPOSITORY, _MADE, when="from the branch"),
)
"""Rights that the key of a sandbox gets, and that to make the branch: no user lends out a right that they lack.

`ref` is the source, and `name` the branch.
"""

LIST_SANDBOXES: Final = listing(
    "listSandboxes", _SANDBOXES, wire.SandboxList, _READ, "List the sandboxes of a repository by id."
)
CREATE_SANDBOX: Final = post(
    "createSandbox",
    _SANDBOXES,
    wire.SandboxCreation,
    wire.SandboxWithSecret,
    on(REPOSITORY, "sandbox:Create"),
    "Make a branch with an end, and a key pair that may read `source`, write the branch and open pull requests."
    " The secret key is shown once.",
    asked_later=LENT,
    status=201,
    # The second makes another one.
    repeatable=False,
    runs_hooks=True,
)
GET_SANDBOX: Final = get("getSandbox", _SANDBOX, wire.Sandbox, _READ, "Return a sandbox.")
EXTEND_SANDBOX: Final = post(
    "extendSandbox",
    _SANDBOX + "/extend",
    wire.SandboxExtension,
    wire.Sandbox,
    on(REPOSITORY, "sandbox:Extend"),
    "Let a sandbox last so long from now. Asks for the rights that its key has.",
    asked_later=LENT,
    repeatable=True,
)
END_SANDBOX: Final = Operation(
    "endSandbox",
    "DELETE",
    _SANDBOX,
    NOTHING,
    wire.SandboxEnded,
    on(REPOSITORY, "sandbox:End"),
    "Revoke the key of a sandbox, and delete its branch, which can be undeleted for a while.",
    # The second finds no sandbox.
    repeatable=False,
    runs_hooks=True,
)
PROMOTE_SANDBOX: Final = post(
    "promoteSandbox",
    _SANDBOX + "/promote",
    NOTHING,
    wire.SandboxEnded,
    on(REPOSITORY, "sandbox:Promote"),
    "Revoke the key of a sandbox, and keep its branch for good.",
    repeatable=False,
)

# Quotas

_OF_REPOSITORY: Final = ONE_REPOSITORY + "/quotas"
_OF_USER: Final = "/auth/users/{userId}/quota"
_BRANCH: Final = Parameter("branch")

LIST_QUOTAS: Final = get(
    "listQuotas",
    _OF_REPOSITORY,
    wire.QuotaList,
    on(REPOSITORY, "quota:Read"),
    "List the quotas of a repository and of its branches, or that of one branch.",
    _BRANCH,
)
SET_QUOTA: Final = put(
    "setQuota",
    _OF_REPOSITORY,
    wire.QuotaSetting,
    wire.Quota,
    on(REPOSITORY, "quota:Write"),
    "Limit the bytes that may be stored in a repository or, with `branch`, written to a branch. The first of a"
    " repository counts what is stored.",
    _BRANCH,
)
REMOVE_QUOTA: Final = delete(
    "removeQuota",
    _OF_REPOSITORY,
    on(REPOSITORY, "quota:Write"),
    "Remove the quota of a repository or, with `branch`, of a branch.",
    _BRANCH,
)
COUNT_QUOTA: Final = post(
    "countQuota",
    _OF_REPOSITORY + "/count",
    NOTHING,
    wire.Quota,
    on(REPOSITORY, "quota:Write"),
    "Count what is stored in a repository, in place of what its quota has as used.",
    repeatable=True,
)
GET_USER_QUOTA: Final = get("getUserQuota", _OF_USER, wire.Quota, on(USER, "quota:Read"), "Return the quota of a user.")
SET_USER_QUOTA: Final = put(
    "setUserQuota",
    _OF_USER,
    wire.QuotaSetting,
    wire.Quota,
    on(USER, "quota:Write"),
    "Limit the bytes that a user may write, in all repositories together.",
)
REMOVE_USER_QUOTA: Final = delete("removeUserQuota", _OF_USER, on(USER, "quota:Write"), "Remove the quota of a user.")
