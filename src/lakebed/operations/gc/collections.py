"""Garbage collection in the contract's words: retention rules in days, and preparing a run. Ours: collectors.py."""

from __future__ import annotations

from typing import Final

from lakebed import wire
from lakebed.operations.operation import (
    LOGGED_IN,
    LONG_BYTES_MAX,
    NOTHING,
    ONE_REPOSITORY,
    REPOSITORY,
    Parameter,
    delete,
    get,
    on,
    post,
    preflight,
    put,
)

_GC: Final = ONE_REPOSITORY + "/gc"
_GET_RULES: Final = on(REPOSITORY, "retention:GetGarbageCollectionRules")
_SET_RULES: Final = on(REPOSITORY, "retention:SetGarbageCollectionRules")
_PREPARE_COMMITS: Final = on(REPOSITORY, "retention:PrepareGarbageCollectionCommits")

GET_GC_RULES: Final = get(
    "getGCRules",
    ONE_REPOSITORY + "/settings/gc_rules",
    wire.GarbageCollectionRules,
    _GET_RULES,
    "Return the retention rules in whole days.",
)
SET_GC_RULES: Final = put(
    "setGCRules",
    ONE_REPOSITORY + "/settings/gc_rules",
    wire.GarbageCollectionRules,
    NOTHING,
    _SET_RULES,
    "Replace the retention rules, in whole days.",
    status=204,
    body_bytes_max=LONG_BYTES_MAX,
)
DELETE_GC_RULES: Final = delete(
    "deleteGCRules",
    ONE_REPOSITORY + "/settings/gc_rules",
    _SET_RULES,
    "Remove the retention rules: committed data stays.",
)
INTERNAL_GET_GARBAGE_COLLECTION_RULES: Final = get(
    "internalGetGarbageCollectionRules",
    _GC + "/rules",
    wire.GarbageCollectionRules,
    _GET_RULES,
    "Return the retention rules in whole days.",
)
INTERNAL_SET_GARBAGE_COLLECTION_RULES: Final = post(
    "internalSetGarbageCollectionRules",
    _GC + "/rules",
    wire.GarbageCollectionRules,
    NOTHING,
    _SET_RULES,
    "Replace the retention rules, in whole days.",
    status=204,
    body_bytes_max=LONG_BYTES_MAX,
)
INTERNAL_DELETE_GARBAGE_COLLECTION_RULES: Final = delete(
    "internalDeleteGarbageCollectionRules", _GC + "/rules", _SET_RULES, "Remove the retention rules."
)
SET_GARBAGE_COLLECTION_RULES_PREFLIGHT: Final = preflight(
    "setGarbageCollectionRulesPreflight",
    _GC + "/rules/set_allowed",
    _SET_RULES,
    "Succeed if the caller may set retention rules.",
)

GET_GARBAGE_COLLECTION_CONFIG: Final = get(
    "getGarbageCollectionConfig",
    "/config/garbage-collection",
    wire.GarbageCollectionConfig,
    LOGGED_IN,
    "Return for how many seconds an address that was handed out may be linked.",
)
PREPARE_GARBAGE_COLLECTION_COMMITS: Final = post(
    "prepareGarbageCollectionCommits",
    _GC + "/prepare_commits",
    NOTHING,
    wire.GarbageCollectionPrepareResponse,
    _PREPARE_COMMITS,
    "Begin a run of committed data, and write which commits are alive and which expired.",
    status=201,
)
PREPARE_GARBAGE_COLLECTION_COMMITS_ASYNC: Final = post(
    "prepareGarbageCollectionCommitsAsync",
    _GC + "/prepare_commits/async",
    NOTHING,
    wire.TaskInfo,
    _PREPARE_COMMITS,
    "Begin prepareGarbageCollectionCommits as a task. Ask prepareGarbageCollectionCommitsStatus for its end.",
    status=202,
)
PREPARE_GARBAGE_COLLECTION_COMMITS_STATUS: Final = get(
    "prepareGarbageCollectionCommitsStatus",
    _GC + "/prepare_commits/status",
    wire.PrepareGarbageCollectionCommitsStatus,
    _PREPARE_COMMITS,
    "Return whether the preparation is done, and then where its tables lie or why it failed.",
    Parameter("id", is_required=True),
)
PREPARE_GARBAGE_COLLECTION_UNCOMMITTED: Final = post(
    "prepareGarbageCollectionUncommitted",
    _GC + "/prepare_uncommited",
    wire.PrepareGCUncommittedRequest,
    wire.PrepareGCUncommittedResponse,
    on(REPOSITORY, "retention:PrepareGarbageCollectionUncommitted"),
    "Write a page of uncommitted objects.",
    status=201,
    is_body_optional=True,
)
