"""Deleted repositories, branches and tags, the way back, and protection against deletion."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import (
    ALL,
    BRANCH,
    NEW_REPOSITORY,
    NOTHING,
    ONE_BRANCH,
    ONE_REPOSITORY,
    PAGE,
    PREFIX,
    REPOSITORY,
    TAG,
    Parameter,
    Permission,
    delete,
    flag,
    get,
    header,
    on,
    post,
    put,
)

_PROTECTION: Final = ONE_REPOSITORY + "/settings/delete_protection"

LIST_DELETED_REPOSITORIES: Final = get(
    "listDeletedRepositories",
    "/deleted/repositories",
    wire.DeletedRepositoryList,
    on(ALL, "fs:ListRepositories"),
    "List deleted repositories by name, and until when each is kept. A page has all of a name.",
    PREFIX,
    *PAGE,
)
UNDELETE_REPOSITORY: Final = post(
    "undeleteRepository",
    ONE_REPOSITORY + "/undelete",
    wire.RepositoryUndeletion,
    wire.Repository,
    on(REPOSITORY, "fs:CreateRepository"),
    "Bring a deleted repository back with all that it had, under its name or a new one.",
    status=201,
    asked_later=(Permission("fs:CreateRepository", NEW_REPOSITORY, when="the body has a name"),),
)
FORGET_REPOSITORY: Final = delete(
    "forgetRepository",
    ONE_REPOSITORY + "/deleted",
    on(REPOSITORY, "fs:DeleteRepository"),
    "Remove the records of a deleted repository for good. Its objects stay, and no collection can take them later.",
    Parameter("uid"),
)
GET_DELETE_PROTECTION: Final = get(
    "getDeleteProtection",
    _PROTECTION,
    wire.DeleteProtection,
    on(REPOSITORY, "branches:GetBranchProtectionRules"),
    "Return the protection from being deleted, of the repository and of branches by pattern. The ETag is its version.",
)
SET_DELETE_PROTECTION: Final = put(
    "setDeleteProtection",
    _PROTECTION,
    wire.DeleteProtection,
    NOTHING,
    on(REPOSITORY, "branches:SetBranchProtectionRules"),
    "Protect the repository, and branches by pattern, against being deleted, if it still has the version in If-Match.",
    header("If-Match"),
    status=204,
    # The first of two makes the version of the second an old one.
    repeatable=False,
)
LIST_DELETED_BRANCHES: Final = get(
    "listDeletedBranches",
    ONE_REPOSITORY + "/deleted/branches",
    wire.DeletedRefList,
    on(REPOSITORY, "fs:ListBranches"),
    "List deleted branches that can come back, by name, the newest of a name first.",
    PREFIX,
    flag("show_hidden"),
    *PAGE,
)
LIST_DELETED_TAGS: Final = get(
    "listDeletedTags",
    ONE_REPOSITORY + "/deleted/tags",
    wire.DeletedRefList,
    on(REPOSITORY, "fs:ListTags"),
    "List deleted tags that can come back, by name, the newest of a name first.",
    PREFIX,
    *PAGE,
)
UNDELETE_BRANCH: Final = post(
    "undeleteBranch",
    ONE_BRANCH + "/undelete",
    NOTHING,
    wire.Ref,
    on(BRANCH, "fs:CreateBranch"),
    "Make a deleted branch again at the commit that it named, without its uncommitted changes.",
    status=201,
    creates=True,
    runs_hooks=True,
)
UNDELETE_TAG: Final = post(
    "undeleteTag",
    ONE_REPOSITORY + "/tags/{tag}/undelete",
    NOTHING,
    wire.Ref,
    on(TAG, "fs:CreateTag"),
    "Make a deleted tag again.",
    status=201,
    creates=True,
    runs_hooks=True,
)
FORGET_BRANCH: Final = delete(
    "forgetBranch",
    ONE_BRANCH + "/deleted",
    on(BRANCH, "fs:DeleteBranch"),
    "Give up the way back to a deleted branch. Its commits expire by the rules alone from then on.",
)
FORGET_TAG: Final = delete(
    "forgetTag",
    ONE_REPOSITORY + "/tags/{tag}/deleted",
    on(TAG, "fs:DeleteTag"),
    "Give up the way back to a deleted tag. Its commit expires by the rules alone from then on.",
)
LIST_BRANCH_MOVES: Final = get(
    "listBranchMoves",
    ONE_BRANCH + "/reflog",
    wire.RefMoveList,
    on(BRANCH, "fs:ReadBranch"),
    "List the moves of a branch, the newest first: who moved it, from where, when, by which operation.",
    *PAGE,
)
LIST_TAG_MOVES: Final = get(
    "listTagMoves",
    ONE_REPOSITORY + "/tags/{tag}/reflog",
    wire.RefMoveList,
    on(TAG, "fs:ReadTag"),
    "List when a tag was made, deleted and made again, the newest first: by whom, and at which commit.",
    *PAGE,
)
