"""Repositories, their metadata, and the rules that protect their branches."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import (
    ALL,
    AT_ANY,
    BRANCH,
    FORCE,
    NAMESPACE,
    NEW_REPOSITORY,
    NOTHING,
    ONE_REPOSITORY,
    PAGE,
    REPOSITORY,
    At,
    Operation,
    Parameter,
    Permission,
    create,
    delete,
    flag,
    get,
    header,
    listing,
    on,
    post,
    preflight,
    put,
)

_READ_REFS: Final = on(REPOSITORY, "fs:ListBranches", "fs:ListTags", "fs:ListCommits")
_WRITE_REFS: Final = on(REPOSITORY, "fs:CreateBranch", "fs:CreateTag", "fs:CreateCommit", at=(AT_ANY,))
_PROTECTION: Final = ONE_REPOSITORY + "/settings/branch_protection"
_OLD_PROTECTION: Final = ONE_REPOSITORY + "/branch_protection"
_READ_PROTECTION: Final = on(REPOSITORY, "branches:GetBranchProtectionRules")
_SET_PROTECTION: Final = on(REPOSITORY, "branches:SetBranchProtectionRules")

LIST_REPOSITORIES: Final = listing(
    "listRepositories",
    "/repositories",
    wire.RepositoryList,
    on(ALL, "fs:ListRepositories"),
    "List repositories by name; `search` keeps those whose name contains it.",
    Parameter("search"),
)
CREATE_REPOSITORY: Final = create(
    "createRepository",
    "/repositories",
    wire.RepositoryCreation,
    wire.Repository,
    (Permission("fs:CreateRepository", NEW_REPOSITORY), Permission("fs:AttachStorageNamespace", NAMESPACE)),
    "Make a repository over an unused storage namespace, with a first commit and a default branch (not if `bare`).",
    flag("bare"),
    flag("reuse"),
)
GET_REPOSITORY: Final = get(
    "getRepository", ONE_REPOSITORY, wire.Repository, on(REPOSITORY, "fs:ReadRepository"), "Return a repository."
)
DELETE_REPOSITORY: Final = delete(
    "deleteRepository",
    ONE_REPOSITORY,
    on(REPOSITORY, "fs:DeleteRepository"),
    "Delete a repository. It is kept for a while and can be undeleted; its objects stay in the storage namespace.",
    FORCE,
)
GET_REPOSITORY_METADATA: Final = get(
    "getRepositoryMetadata",
    ONE_REPOSITORY + "/metadata",
    dict[str, str],
    on(REPOSITORY, "fs:ReadRepository"),
    "Return the metadata of a repository.",
)
SET_REPOSITORY_METADATA: Final = post(
    "setRepositoryMetadata",
    ONE_REPOSITORY + "/metadata",
    wire.RepositoryMetadataSet,
    NOTHING,
    on(REPOSITORY, "fs:UpdateRepository"),
    "Set some keys of a repository's metadata.",
    status=204,
    repeatable=True,
)
DELETE_REPOSITORY_METADATA: Final = Operation(
    "deleteRepositoryMetadata",
    "DELETE",
    ONE_REPOSITORY + "/metadata",
    wire.RepositoryMetadataKeys,
    NOTHING,
    on(REPOSITORY, "fs:UpdateRepository"),
    "Remove some keys of a repository's metadata.",
    status=204,
)
GET_BRANCH_PROTECTION_RULES: Final = get(
    "getBranchProtectionRules",
    _PROTECTION,
    list[wire.BranchProtectionRule],
    _READ_PROTECTION,
    "Return the patterns of protected branches. The ETag is the version of the setting.",
)
SET_BRANCH_PROTECTION_RULES: Final = put(
    "setBranchProtectionRules",
    _PROTECTION,
    list[wire.BranchProtectionRule],
    NOTHING,
    _SET_PROTECTION,
    "Replace the patterns of protected branches, if the setting still has the version in If-Match.",
    header("If-Match"),
    status=204,
    # The first of two makes the version of the second an old one.
    repeatable=False,
)
INTERNAL_GET_BRANCH_PROTECTION_RULES: Final = get(
    "internalGetBranchProtectionRules",
    _OLD_PROTECTION,
    list[wire.BranchProtectionRule],
    _READ_PROTECTION,
    "Return the patterns of protected branches.",
)
CREATE_BRANCH_PROTECTION_RULE_PREFLIGHT: Final = preflight(
    "createBranchProtectionRulePreflight",
    _OLD_PROTECTION + "/set_allowed",
    _SET_PROTECTION,
    "Succeed if the caller may protect branches.",
)
INTERNAL_CREATE_BRANCH_PROTECTION_RULE: Final = post(
    "internalCreateBranchProtectionRule",
    _OLD_PROTECTION,
    wire.BranchProtectionRule,
    NOTHING,
    _SET_PROTECTION,
    "Protect one pattern more.",
    status=204,
    repeatable=True,
)
INTERNAL_DELETE_BRANCH_PROTECTION_RULE: Final = Operation(
    "internalDeleteBranchProtectionRule",
    "DELETE",
    _OLD_PROTECTION,
    wire.BranchProtectionRule,
    NOTHING,
    _SET_PROTECTION,
    "Protect one pattern less.",
    status=204,
)

DUMP_REFS: Final = put(
    "dumpRefs",
    ONE_REPOSITORY + "/refs/dump",
    NOTHING,
    wire.RefsDump,
    _READ_REFS,
    "Write branches, tags and commits to the namespace, in Lakebed's own format (docs/formats), and name the files.",
    status=201,
)
RESTORE_REFS: Final = put(
    "restoreRefs",
    ONE_REPOSITORY + "/refs/restore",
    wire.RefsRestore,
    NOTHING,
    _WRITE_REFS,
    "Make the branches, tags and commits of a dump in a bare repository, once every commit is checked.",
)
DUMP_SUBMIT: Final = post(
    "dumpSubmit",
    ONE_REPOSITORY + "/dump",
    NOTHING,
    wire.TaskInfo,
    _READ_REFS,
    "Begin a dump, as dumpRefs. Ask dumpStatus for its end.",
    status=202,
    repeatable=True,
)
DUMP_STATUS: Final = get(
    "dumpStatus",
    ONE_REPOSITORY + "/dump",
    wire.RepositoryDumpStatus,
    _READ_REFS,
    "Return whether a dump is done, and then its files or why it failed.",
    Parameter("task_id", is_required=True),
)
RESTORE_SUBMIT: Final = post(
    "restoreSubmit",
    ONE_REPOSITORY + "/restore",
    wire.RefsRestore,
    wire.TaskInfo,
    _WRITE_REFS,
    "Begin a restore, as restoreRefs. Ask restoreStatus for its end.",
    status=202,
    repeatable=True,
)
RESTORE_STATUS: Final = get(
    "restoreStatus",
    ONE_REPOSITORY + "/restore",
    wire.RepositoryRestoreStatus,
    _WRITE_REFS,
    "Return whether a restore is done, and why it failed if it did.",
    Parameter("task_id", is_required=True),
)

_RUNS: Final = ONE_REPOSITORY + "/actions/runs"
_READ_RUNS: Final = on(REPOSITORY, "ci:ReadAction")
LIST_REPOSITORY_RUNS: Final = get(
    "listRepositoryRuns",
    _RUNS,
    wire.ActionRunList,
    _READ_RUNS,
    "List the runs of hooks, newest first; those of a branch, or of a commit.",
    *PAGE,
    Parameter("branch"),
    Parameter("commit"),
)
GET_RUN: Final = get("getRun", _RUNS + "/{run_id}", wire.ActionRun, _READ_RUNS, "Return a run of hooks.")
LIST_RUN_HOOKS: Final = get(
    "listRunHooks", _RUNS + "/{run_id}/hooks", wire.HookRunList, _READ_RUNS, "List the hooks of a run.", *PAGE
)
GET_RUN_HOOK_OUTPUT: Final = get(
    "getRunHookOutput", _RUNS + "/{run_id}/hooks/{hook_run_id}/output", str, _READ_RUNS, "Return the output of a hook."
)

_PULLS: Final = ONE_REPOSITORY + "/pulls"
_PULL: Final = _PULLS + "/{pull_request}"
_WRITE_PULL: Final = on(REPOSITORY, "pr:WritePullRequest")
LIST_PULL_REQUESTS: Final = listing(
    "listPullRequests",
    _PULLS,
    wire.PullRequestsList,
    on(REPOSITORY, "pr:ListPullRequests"),
    "List pull requests, newest first. Closed: merged ones too.",
    Parameter("status", choices=("all", "open", "closed")),
)
CREATE_PULL_REQUEST: Final = post(
    "createPullRequest",
    _PULLS,
    wire.PullRequestCreation,
    wire.PullRequestCreationResponse,
    on(REPOSITORY, "pr:WritePullRequest", at=(At("source_branch", "branch"),)),
    "Open a pull request.",
    status=201,
)
GET_PULL_REQUEST: Final = get(
    "getPullRequest", _PULL, wire.PullRequest, on(REPOSITORY, "pr:ReadPullRequest"), "Return a pull request."
)
UPDATE_PULL_REQUEST: Final = Operation(
    "updatePullRequest",
    "PATCH",
    _PULL,
    wire.PullRequestBasic,
    NOTHING,
    _WRITE_PULL,
    "Change the texts of a pull request, close it, or open it again.",
    status=204,
    repeatable=True,
)
MERGE_PULL_REQUEST: Final = put(
    "mergePullRequest",
    _PULL + "/merge",
    NOTHING,
    wire.MergeResult,
    _WRITE_PULL,
    "Merge the source of a pull request into its destination.",
    asked_later=(Permission("fs:CreateCommit", BRANCH, when="of the destination"),),
    repeatable=False,
    runs_hooks=True,
)
