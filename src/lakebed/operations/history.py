"""Branches, tags, commits, differences and merges."""

from __future__ import annotations

from typing import Final

from lakebed import wire
from lakebed.base import ACTIONS_FOLDER

from .operation import (
    AT_ANY,
    AT_BRANCH,
    AT_REF,
    BRANCH,
    DELIMITER,
    DESTINATION,
    FORCE,
    NEW_BRANCH,
    NEW_TAG,
    NOTHING,
    OBJECT,
    ONE_BRANCH,
    ONE_REF,
    ONE_REPOSITORY,
    PAGE,
    REF,
    REPOSITORY,
    SOURCE_BRANCH,
    SOURCE_TAG,
    TAG,
    At,
    Parameter,
    Permission,
    create,
    delete,
    flag,
    get,
    listing,
    on,
    post,
    put,
)

_BRANCHES: Final = ONE_REPOSITORY + "/branches"
_TAGS: Final = ONE_REPOSITORY + "/tags"
_MERGE: Final = ONE_REPOSITORY + "/refs/{sourceRef}/merge/{destinationBranch}"
_METADATA: Final = ONE_REPOSITORY + "/metadata"
_READ_FILES: Final = (*on(REPOSITORY, "fs:ReadRepository"), *on(REPOSITORY, "fs:ListObjects", at=(AT_ANY,)))

_BOTH: Final = (At("leftRef"), At("rightRef"))

READ_REF: Final = on(REF, "fs:ReadBranch")
"""Look whether a ref is there, in a door that has no operation for it."""
READ_SOURCE: Final = (
    Permission("fs:ReadBranch", SOURCE_BRANCH, when="no statement may deny it, where the source is a branch"),
    Permission("fs:ReadTag", SOURCE_TAG, when="no statement may deny it, where the source is a tag"),
    Permission("fs:ReadCommit", REPOSITORY, AT_REF, when="no statement may deny it, where the source is a commit"),
)
"""An operation that puts the commit of another ref on a branch or a tag may not lead around a denial of that ref."""
CHANGE_ACTIONS: Final = tuple(
    Permission(
        action,
        f"{REPOSITORY}/object/{ACTIONS_FOLDER}{{path}}",
        when="no statement may deny it, at any path, where the commit changes action files",
    )
    for action in ("fs:WriteObject", "fs:DeleteObject")
)
"""Nor may it lead around a denial of changes of action files."""
LIST_BRANCHES: Final = listing(
    "listBranches",
    _BRANCHES,
    wire.RefList,
    on(REPOSITORY, "fs:ListBranches"),
    "List branches by name.",
    flag("show_hidden"),
    flag("details"),
    asked_later=(Permission("fs:ReadCommit", REPOSITORY, AT_BRANCH, when="to show the details of a branch"),),
)
CREATE_BRANCH: Final = create(
    "createBranch",
    _BRANCHES,
    wire.BranchCreation,
    str,
    on(NEW_BRANCH, "fs:CreateBranch"),
    "Make a branch at the commit of `source`, and return the commit's id. Copies no data.",
    asked_later=READ_SOURCE,
    runs_hooks=True,
)
GET_BRANCH: Final = get(
    "getBranch", ONE_BRANCH, wire.Ref, on(BRANCH, "fs:ReadBranch"), "Return a branch and the commit at its head."
)
DELETE_BRANCH: Final = delete(
    "deleteBranch",
    ONE_BRANCH,
    on(BRANCH, "fs:DeleteBranch"),
    "Delete a branch and its uncommitted changes. Its commits stay until retention takes them.",
    FORCE,
    runs_hooks=True,
)
RESET_BRANCH: Final = put(
    "resetBranch",
    ONE_BRANCH,
    wire.ResetCreation,
    NOTHING,
    on(BRANCH, "fs:RevertBranch"),
    "Forget uncommitted changes: of one object, of a prefix, or of the whole branch.",
    status=204,
    # The second of two would drop changes that another writer made between them.
    repeatable=False,
)
HARD_RESET_BRANCH: Final = put(
    "hardResetBranch",
    ONE_BRANCH + "/hard_reset",
    NOTHING,
    NOTHING,
    on(BRANCH, "fs:RevertBranch"),
    "Move a branch to the commit of `ref`. Uncommitted changes are lost.",
    Parameter("ref", is_required=True),
    FORCE,
    flag("refuse_expired"),
    asked_later=(*READ_SOURCE, *CHANGE_ACTIONS),
    status=204,
    repeatable=False,
)
REVERT_BRANCH: Final = post(
    "revertBranch",
    ONE_BRANCH + "/revert",
    wire.RevertCreation,
    NOTHING,
    on(BRANCH, "fs:RevertBranch"),
    "Commit the opposite of a commit's changes.",
    asked_later=(*READ_SOURCE, *CHANGE_ACTIONS),
    status=204,
    runs_hooks=True,
)
CHERRY_PICK: Final = post(
    "cherryPick",
    ONE_BRANCH + "/cherry-pick",
    wire.CherryPickCreation,
    wire.Commit,
    (Permission("fs:CreateCommit", BRANCH), Permission("fs:ReadCommit", REPOSITORY, AT_REF)),
    "Repeat the changes of another commit on this branch.",
    asked_later=(*READ_SOURCE, *CHANGE_ACTIONS),
    status=201,
    runs_hooks=True,
)
COMMIT: Final = post(
    "commit",
    ONE_BRANCH + "/commits",
    wire.CommitCreation,
    wire.Commit,
    on(BRANCH, "fs:CreateCommit"),
    "Commit every uncommitted change of a branch, or the tree of another commit (source_metarange).",
    Parameter("source_metarange"),
    asked_later=(
        Permission("fs:ReadCommit", REPOSITORY, AT_ANY, when="no statement may deny it, with source_metarange"),
    ),
    status=201,
    runs_hooks=True,
)
DIFF_BRANCH: Final = listing(
    "diffBranch",
    ONE_BRANCH + "/diff",
    wire.DiffList,
    on(REPOSITORY, "fs:ListObjects", at=(AT_BRANCH,)),
    "List the uncommitted changes of a branch by path.",
    DELIMITER,
)

LIST_TAGS: Final = listing("listTags", _TAGS, wire.RefList, on(REPOSITORY, "fs:ListTags"), "List tags by name.")
CREATE_TAG: Final = create(
    "createTag",
    _TAGS,
    wire.TagCreation,
    wire.Ref,
    on(NEW_TAG, "fs:CreateTag"),
    "Name the commit of `ref` for good.",
    asked_later=READ_SOURCE,
    runs_hooks=True,
)
GET_TAG: Final = get("getTag", _TAGS + "/{tag}", wire.Ref, on(TAG, "fs:ReadTag"), "Return a tag and its commit.")
DELETE_TAG: Final = delete(
    "deleteTag", _TAGS + "/{tag}", on(TAG, "fs:DeleteTag"), "Delete a tag.", FORCE, runs_hooks=True
)

GET_COMMIT: Final = get(
    "getCommit",
    ONE_REPOSITORY + "/commits/{commitId}",
    wire.Commit,
    on(REPOSITORY, "fs:ReadCommit", at=(At("commitId"),)),
    "Return a commit, by its id or by any expression that names it.",
)
CREATE_COMMIT_RECORD: Final = post(
    "CreateCommitRecord",
    ONE_REPOSITORY + "/commits",
    wire.CommitRecordCreation,
    NOTHING,
    on(REPOSITORY, "fs:CreateCommit"),
    "Write the record of a commit, with the tree of another one and the id of its contents. No branch has it yet.",
    status=204,
    repeatable=True,
)
LOG_COMMITS: Final = get(
    "logCommits",
    ONE_REF + "/commits",
    wire.CommitList,
    on(REF, "fs:ReadBranch", at=(AT_REF, At("stop_at", is_optional=True))),
    "List the commits that a ref leads to, newest first. A page with `objects`, `prefixes` or `committer` may end"
    " early, even empty, while `has_more` is true: go on from `next_offset`.",
    *PAGE,
    Parameter("objects", "list"),
    Parameter("prefixes", "list"),
    Parameter("committer"),
    flag("limit"),
    flag("first_parent"),
    Parameter("since"),
    Parameter("stop_at"),
)
DIFF_REFS: Final = listing(
    "diffRefs",
    ONE_REPOSITORY + "/refs/{leftRef}/diff/{rightRef}",
    wire.DiffList,
    on(REPOSITORY, "fs:ListObjects", at=_BOTH),
    "List changes of the right since it parted from the left, or all differences (two_dot).",
    DELIMITER,
    Parameter("type", choices=("three_dot", "two_dot")),
    flag("include_right_stats"),
    asked_later=(
        Permission("fs:ReadObject", OBJECT, At("rightRef"), when="for each row that is to have the right side's stats"),
    ),
)
COUNT_EXPIRED: Final = get(
    "countExpired",
    ONE_REPOSITORY + "/refs/{leftRef}/expired/{rightRef}",
    wire.ExpiredCount,
    on(REPOSITORY, "fs:ListObjects", at=_BOTH),
    "Count the objects of the right that differ from the left and that lifecycle runs took.",
)
COUNT_AHEAD: Final = get(
    "countAhead",
    ONE_REPOSITORY + "/refs/{leftRef}/ahead/{rightRef}",
    wire.AheadCount,
    on(REPOSITORY, "fs:ListCommits", at=_BOTH),
    "Count the commits that only the left reaches, and those that only the right reaches.",
)
MERGE_INTO_BRANCH: Final = post(
    "mergeIntoBranch",
    _MERGE,
    wire.Merge,
    wire.MergeResult,
    on(DESTINATION, "fs:CreateCommit"),
    "Merge a ref into a branch, and return the id of the commit that resulted.",
    asked_later=READ_SOURCE,
    is_body_optional=True,
    runs_hooks=True,
)
FIND_MERGE_BASE: Final = get(
    "findMergeBase",
    _MERGE,
    wire.FindMergeBaseResult,
    on(REPOSITORY, "fs:ListCommits", at=(At("sourceRef"), At("destinationBranch"))),
    "Return the commit from which two refs parted.",
)

GET_META_RANGE: Final = get(
    "getMetaRange",
    _METADATA + "/meta_range/{meta_range}",
    wire.StorageUri,
    _READ_FILES,
    "Return where the file lies that lists the ranges of a tree.",
)
GET_RANGE: Final = get(
    "getRange", _METADATA + "/range/{range}", wire.StorageUri, _READ_FILES, "Return where a range of a tree lies."
)
GET_METADATA_OBJECT: Final = get(
    "getMetadataObject",
    _METADATA + "/object/{type}/{object_id}",
    bytes,
    _READ_FILES,
    "Return a file of a tree, in Lakebed's own format (docs/formats), or redirect to a signed URL (presign).",
    flag("presign"),
    asked_later=(Permission("fs:ReadObject", OBJECT, AT_ANY, when="no statement may deny it, at any path"),),
    other_statuses=(302,),
)
