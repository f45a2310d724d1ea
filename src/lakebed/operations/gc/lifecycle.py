"""Lifecycle policies: which objects go by path, branch and age although commits still name them.

Kept out of the front door: the records are those of `lakebed.gc.messages`, which loads pyarrow.
"""

from __future__ import annotations

from typing import Final

from lakebed.gc import messages
from lakebed.operations.operation import (
    BRANCH,
    NOTHING,
    ONE_REPOSITORY,
    PAGE,
    PREFIX,
    REPOSITORY,
    Operation,
    Parameter,
    Permission,
    get,
    on,
    post,
    put,
)

_LIFECYCLE: Final = ONE_REPOSITORY + "/lifecycle"
_READ: Final = on(REPOSITORY, "lifecycle:ReadPolicy")
_WRITE: Final = on(REPOSITORY, "lifecycle:WritePolicy")
_PLAN: Final = on(REPOSITORY, "gc:Plan")
_IF_VERSION: Final = Parameter("if_version", "integer")
_POLICY_BYTES_MAX: Final = 4 << 20

GET_LIFECYCLE_POLICY: Final = get(
    "getLifecyclePolicy",
    _LIFECYCLE + "/policy",
    messages.PolicyVersion,
    _READ,
    "Return the lifecycle policy in force, or that of a version.",
    Parameter("version", "integer"),
)
SET_LIFECYCLE_POLICY: Final = put(
    "setLifecyclePolicy",
    _LIFECYCLE + "/policy",
    messages.SetPolicy,
    messages.PolicyWritten,
    _WRITE,
    "Replace the lifecycle policy, if the version in force is `if_version`.",
    _IF_VERSION,
    # The first of two makes the version of the second an old one.
    repeatable=False,
    body_bytes_max=_POLICY_BYTES_MAX,
)
DELETE_LIFECYCLE_POLICY: Final = Operation(
    "deleteLifecyclePolicy",
    "DELETE",
    _LIFECYCLE + "/policy",
    NOTHING,
    messages.PolicyWritten,
    _WRITE,
    "Remove the lifecycle policy, if the version in force is `if_version`.",
    (_IF_VERSION,),
    repeatable=False,
)
LIST_LIFECYCLE_POLICY_HISTORY: Final = get(
    "listLifecyclePolicyHistory",
    _LIFECYCLE + "/policy/history",
    messages.PolicyHistory,
    _READ,
    "List the versions of the lifecycle policy, newest first.",
    Parameter("before", "integer"),
    PAGE[1],
)
FIND_POTENTIAL_COMMITS: Final = post(
    "findPotentialCommits",
    _LIFECYCLE + "/potential",
    NOTHING,
    messages.PotentialBegun,
    _PLAN,
    "Write the commits that may name objects that the policy has yet to take into the folder of a run, in pages.",
    repeatable=True,
)
GET_POTENTIAL_COMMITS: Final = get(
    "getPotentialCommits",
    _LIFECYCLE + "/potential/{runId}",
    messages.PotentialPage,
    _PLAN,
    "Return a page of the commits that were found, with the branches that reach them.",
    Parameter("page", "integer"),
)
PLAN_BRANCH_SWEEP: Final = get(
    "planBranchSweep",
    _LIFECYCLE + "/branches",
    messages.BranchesPlan,
    _PLAN,
    "List branches by name, and whether each goes by the policy now, and why. Changes nothing.",
    PREFIX,
    *PAGE,
)
SWEEP_BRANCHES: Final = post(
    "sweepBranches",
    _LIFECYCLE + "/branches/sweep",
    messages.SweepBranches,
    messages.BranchesSwept,
    on(REPOSITORY, "gc:Apply"),
    "Delete branches of a plan, as far as they still may go. They can come back for a while.",
    asked_later=(Permission("fs:DeleteBranch", BRANCH, when="for each of the branches"),),
    # Who repeats it finds that they are gone, or others by now.
    repeatable=True,
)
VALIDATE_LIFECYCLE_POLICY: Final = post(
    "validateLifecyclePolicy",
    _LIFECYCLE + "/policy/validate",
    messages.SetPolicy,
    messages.PolicyCheck,
    _READ,
    "Return all errors and warnings of a policy. Changes nothing.",
    repeatable=True,
    body_bytes_max=_POLICY_BYTES_MAX,
)
