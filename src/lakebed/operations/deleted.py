"""Deleted repositories, the way back, and protection against deletion."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import NOTHING, PREFIX, Operation, Parameter, Permission, delete, get
from .resources import ALL, NEW_REPOSITORY, ONE_REPOSITORY, REPOSITORY, on

_PROTECTION: Final = ONE_REPOSITORY + "/settings/delete_protection"

LIST_DELETED_REPOSITORIES: Final = get(
    "listDeletedRepositories",
    "/deleted/repositories",
    wire.DeletedRepositoryList,
    on(ALL, "fs:ListRepositories"),
    "List deleted repositories by name, and until when each is kept.",
    PREFIX,
)
UNDELETE_REPOSITORY: Final = Operation(
    "undeleteRepository",
    "POST",
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
    "Return what cannot be deleted: the repository, and branches by pattern.",
)
SET_DELETE_PROTECTION: Final = Operation(
    "setDeleteProtection",
    "PUT",
    _PROTECTION,
    wire.DeleteProtection,
    NOTHING,
    on(REPOSITORY, "branches:SetBranchProtectionRules"),
    "Say what cannot be deleted: the repository, and branches by pattern.",
    status=204,
)
