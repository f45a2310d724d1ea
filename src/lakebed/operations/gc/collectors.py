"""Garbage collection in our words, which say everything: rules in full, runs, plans, jobs, the ledger, restores.

Kept out of the front door: the records are those of `lakebed.gc.messages`, which loads pyarrow.
"""

from __future__ import annotations

from typing import Final

from lakebed.base import RunKind
from lakebed.gc import messages
from lakebed.gc.rules import Explanation, Rules
from lakebed.operations.operation import (
    AT_ANY,
    AT_BRANCH,
    AT_REF,
    LIST_BYTES_MAX,
    LONG_BYTES_MAX,
    NOTHING,
    OBJECT,
    ONE_REPOSITORY,
    PAGE,
    PREFIX,
    REPOSITORY,
    Operation,
    Parameter,
    Permission,
    flag,
    get,
    on,
    post,
    put,
)

SELECTION_BYTES_MAX: Final = 1 << 20
"""The limit of the paths and digests that an erasure selects."""
CERTIFICATE_BYTES_MAX: Final = 2 << 20
"""The limit of the head of a certificate, which has that selection."""
_GC: Final = ONE_REPOSITORY + "/gc"
_RUNS: Final = _GC + "/runs"
_RUN: Final = _RUNS + "/{run_id}"
_PLANS: Final = _GC + "/plans"
_PLAN: Final = _PLANS + "/{run_id}"
_JOBS: Final = _GC + "/jobs"
_JOB: Final = _JOBS + "/{job_id}"
_PLANNING: Final = on(REPOSITORY, "gc:Plan")
_APPLYING: Final = on(REPOSITORY, "gc:Apply")
_ERASING: Final = on(REPOSITORY, "gc:Erase")
_DELETED: Final = Parameter("deleted")
"""The uid of a deleted repository that had the name, or `only` where one had it: ask after that one."""
_FILES: Final = Parameter("files", "integer", default=0)
"""End a page of a search after about this number of files. By default after what takes a second."""
_READ_RUNS: Final = on(REPOSITORY, "gc:ReadRuns")
_READ_RULES: Final = on(REPOSITORY, "gc:ReadRules")
_WRITE_RULES: Final = on(REPOSITORY, "gc:WriteRules")
_IF_VERSION: Final = Parameter("if_version", "integer")

# Retention rules in our words, which say everything.

GET_FULL_GC_RULES: Final = get(
    "getFullGcRules",
    _GC + "/rules/full",
    messages.RulesVersion,
    _READ_RULES,
    "Return the retention rules in force, or those of a version.",
    Parameter("version", "integer"),
)
SET_FULL_GC_RULES: Final = put(
    "setFullGcRules",
    _GC + "/rules/full",
    Rules,
    messages.RulesWritten,
    _WRITE_RULES,
    "Replace the retention rules, if the version in force is `if_version`.",
    _IF_VERSION,
    # The first of two makes the version of the second an old one.
    repeatable=False,
    body_bytes_max=LONG_BYTES_MAX,
)
DELETE_FULL_GC_RULES: Final = Operation(
    "deleteFullGcRules",
    "DELETE",
    _GC + "/rules/full",
    NOTHING,
    messages.RulesWritten,
    _WRITE_RULES,
    "Remove the retention rules, if the version in force is `if_version`.",
    (_IF_VERSION,),
    repeatable=False,
)
LIST_GC_RULES_HISTORY: Final = get(
    "listGcRulesHistory",
    _GC + "/rules/history",
    messages.RulesHistory,
    _READ_RULES,
    "List the versions of the retention rules, newest first.",
    Parameter("before", "integer"),
    PAGE[1],
)
EXPLAIN_GC_RULES: Final = get(
    "explainGcRules",
    _GC + "/rules/explain",
    Explanation,
    _READ_RULES,
    "Explain the retention rules of a branch.",
    Parameter("branch"),
)

TRY_GC_RULES: Final = post(
    "tryGcRules",
    _GC + "/rules/try",
    Rules,
    messages.RulesTrial,
    (*_READ_RULES, *_PLANNING),
    "Return which commits retention rules would let expire now, and at most how many objects. Saves nothing. With "
    "`files`, they are tried page by page: only the last one, which has no token, has numbers.",
    _FILES,
    Parameter("continuation_token"),
    repeatable=True,
    body_bytes_max=LONG_BYTES_MAX,
)

# Runs of our collectors.

LIST_GC_RUNS: Final = get(
    "listGcRuns",
    _RUNS,
    messages.RunList,
    _READ_RUNS,
    "List runs, newest first. With `forgotten`, also runs without a record that took objects of commits.",
    Parameter("forgotten", "boolean"),
    _DELETED,
)
START_GC_RUN: Final = post(
    "startGcRun", _RUNS, messages.StartRun, messages.StartedRun, _PLANNING, "Begin a run.", _DELETED, status=201
)
GET_GC_RUN: Final = get("getGcRun", _RUN, messages.RunView, _READ_RUNS, "Return a run.", _DELETED)
READ_GC_UNCOMMITTED: Final = post(
    "readGcUncommitted",
    _RUN + "/uncommitted",
    messages.ReadUncommitted,
    messages.UncommittedPage,
    _PLANNING,
    "Write a page of objects that are staged, being uploaded or copied into the run's folder.",
    _DELETED,
    is_body_optional=True,
)
READ_GC_COMMITS: Final = post(
    "readGcCommits",
    _RUN + "/commits",
    messages.PrepareCommits,
    messages.PreparedCommits,
    _PLANNING,
    "Write the commits and refs into the run's folder.",
    _DELETED,
    is_body_optional=True,
)
MARK_GC_RUN: Final = post(
    "markGcRun",
    _RUN + "/marked",
    messages.Mark,
    messages.RunView,
    _PLANNING,
    "End planning: the run has this plan.",
    body_bytes_max=LIST_BYTES_MAX,
)
NOTE_GC_PLAN: Final = post(
    "noteGcPlan",
    _RUN + "/planned",
    messages.NotePlanned,
    messages.PlannedBy,
    _PLANNING,
    "Write down that the caller made the plan of a run.",
    _DELETED,
    asked_later=(Permission("gc:Erase", REPOSITORY, when="the run is an erasure"),),
)
FIND_BROKEN_TABLES: Final = post(
    "findBrokenTables",
    _RUN + "/tables",
    messages.FindTables,
    messages.BrokenTables,
    _PLANNING,
    "Name the Iceberg tables, and their snapshots, that a plan would make unreadable.",
    body_bytes_max=LIST_BYTES_MAX,
)
CHECK_GC_PLANNING: Final = post(
    "checkGcPlanning",
    _GC + "/planning",
    NOTHING,
    messages.Planning,
    _PLANNING,
    "Succeed if the caller may plan. Begins nothing.",
    _DELETED,
)
CHECK_GC_PURGING: Final = post(
    "checkGcPurging",
    _GC + "/purging",
    NOTHING,
    messages.Purging,
    _APPLYING,
    "Succeed if the caller may purge. Put a mark into the namespace, and return both. Begins nothing.",
    _DELETED,
)
CHOOSE_GC_INSTALLATION: Final = post(
    "chooseGcInstallation",
    _GC + "/adopting",
    NOTHING,
    messages.Adopting,
    on(REPOSITORY, "gc:Adopt"),
    "Let this installation go on, where several share a namespace.",
    _DELETED,
)
FIND_GC_SLICES: Final = get(
    "findGcSlices",
    _GC + "/slices",
    messages.UnlistedSlices,
    on(REPOSITORY, "gc:Adopt"),
    "List the slices that adoptGcSlices would put on record, or refuse as it would.",
)
ADOPT_GC_SLICES: Final = post(
    "adoptGcSlices",
    _GC + "/slices",
    NOTHING,
    messages.AdoptedSlices,
    on(REPOSITORY, "gc:Adopt"),
    "Put slices on record that have no record, as after a restore of an older backup, for collections to list.",
)
FIND_GC_MISSING: Final = get(
    "findGcMissing",
    _GC + "/missing",
    messages.MissingCommits,
    _READ_RUNS,
    "Find commits whose trees lack files, as after a restore of an older backup.",
    Parameter("continuation_token"),
)
MARK_GC_MISSING: Final = post(
    "markGcMissing",
    _GC + "/missing",
    NOTHING,
    messages.MissingCommits,
    on(REPOSITORY, "gc:Adopt"),
    "Mark as gone the commits whose trees lack files, but for those that a ref names.",
    Parameter("continuation_token"),
)
APPLY_GC_RUN: Final = post(
    "applyGcRun",
    _RUN + "/applying",
    messages.Apply,
    messages.RunView,
    _APPLYING,
    "Succeed if this plan may be applied now.",
    _DELETED,
)
EXPIRE_GC_COMMITS: Final = post(
    "expireGcCommits",
    _RUN + "/expire",
    messages.Expire,
    messages.RecheckInputs,
    _APPLYING,
    "Publish the commits that expire, and write the objects that are alive now.",
    _DELETED,
    asked_later=(
        Permission("gc:Erase", REPOSITORY, when="the run is an erasure"),
        Permission("gc:CollectDeleted", REPOSITORY, when="the repository is deleted"),
    ),
    body_bytes_max=LIST_BYTES_MAX,
)
FIND_GC_STAGED: Final = post(
    "findGcStaged",
    _RUN + "/staged",
    messages.FindStaged,
    messages.StagedPage,
    _ERASING,
    "Return staged entries that an erasure selects.",
    repeatable=True,
    body_bytes_max=SELECTION_BYTES_MAX,
)
UNSTAGE_GC_ENTRIES: Final = post(
    "unstageGcEntries",
    _RUN + "/unstage",
    messages.Unstage,
    messages.Unstaged,
    _ERASING,
    "Delete staged entries that an erasure takes, where they did not change.",
    repeatable=True,
    body_bytes_max=LIST_BYTES_MAX,
)
SIGN_GC_CERTIFICATE: Final = post(
    "signGcCertificate",
    _RUN + "/certificate",
    messages.CertificateHead,
    messages.CertificateHead,
    _ERASING,
    "Sign the head of the certificate of an erasure that was applied, with who asked and when.",
    repeatable=True,
    body_bytes_max=CERTIFICATE_BYTES_MAX,
)
CHECK_GC_CERTIFICATE: Final = post(
    "checkGcCertificate",
    _RUN + "/certificate/check",
    messages.CertificateHead,
    messages.CertificateHead,
    _ERASING,
    "Return the head of a certificate that the server signed and that agrees with its run. Refuse any other.",
    repeatable=True,
    body_bytes_max=CERTIFICATE_BYTES_MAX,
)
GET_GC_CERTIFICATE: Final = get(
    "getGcCertificate",
    _RUN + "/certificate",
    bytes,
    _READ_RUNS,
    "Return the file with the certificate of an erasure, as it lies in the namespace.",
)
GET_GC_CERTIFICATE_KEY: Final = get(
    "getGcCertificateKey",
    _GC + "/certificate-key",
    messages.CertificateKey,
    _ERASING,
    "Return the public key with which certificates of erasures are checked.",
)
RETIRE_GC_IDS: Final = post(
    "retireGcIds",
    _RUN + "/retire",
    messages.RetireLeftovers,
    messages.LeftoversRetired,
    _APPLYING,
    "Publish the ids of metadata files that no writer may use again.",
    body_bytes_max=LIST_BYTES_MAX,
)
SWEEP_GC_RUN: Final = post(
    "sweepGcRun",
    _RUN + "/sweeping",
    messages.Sweep,
    messages.RunView,
    _APPLYING,
    "Allow the deletion of a plan that was looked at again.",
    _DELETED,
    body_bytes_max=LIST_BYTES_MAX,
)
DEFER_GC_RUN: Final = post(
    "deferGcRun",
    _RUN + "/deferred",
    messages.Defer,
    messages.RunView,
    _APPLYING,
    "Keep the objects of a run until the end of a window.",
    body_bytes_max=LIST_BYTES_MAX,
)
PURGE_GC_RUN: Final = post(
    "purgeGcRun",
    _RUN + "/purging",
    messages.Purge,
    messages.RecheckInputs,
    _APPLYING,
    "Let a deferred run delete, and write the objects that are alive now.",
    is_body_optional=True,
)
UNDO_GC_RUN: Final = post(
    "undoGcRun",
    _RUN + "/undone",
    messages.Undo,
    messages.Undone,
    _APPLYING,
    "Undo a deferred run, while nothing of it was purged.",
    is_body_optional=True,
)
END_GC_RUN: Final = post(
    "endGcRun",
    _RUN + "/ended",
    messages.End,
    messages.RunView,
    _APPLYING,
    "End a run: all of its plan is deleted.",
    _DELETED,
)
ABANDON_GC_RUN: Final = post(
    "abandonGcRun",
    _RUN + "/abandoned",
    NOTHING,
    messages.RunView,
    on(REPOSITORY, "gc:Abandon"),
    "End a run that deletes nothing more.",
    _DELETED,
)
WHY_GC_OBJECT: Final = get(
    "whyGcObject",
    _GC + "/why",
    messages.WhyPage,
    on(REPOSITORY, "gc:Explain", at=(AT_REF,)),
    "Return why an object is there and until when, or which run took it.",
    Parameter("address"),
    Parameter("ref"),
    Parameter("path"),
    Parameter("continuation_token"),
    _FILES,
    _DELETED,
)

# Plans, jobs, the ledger, restores.

LIST_GC_PLANS: Final = get(
    "listGcPlans",
    _PLANS,
    messages.PlanList,
    _READ_RUNS,
    "List plans, newest first.",
    Parameter("kind", choices=("", *RunKind)),
    *PAGE,
    _DELETED,
)
GET_GC_PLAN: Final = get("getGcPlan", _PLAN, messages.Plan, _READ_RUNS, "Return the plan of a run.", _DELETED)
LIST_GC_PLAN_OBJECTS: Final = get(
    "listGcPlanObjects",
    _PLAN + "/objects",
    messages.GarbagePage,
    _READ_RUNS,
    "List the objects that a plan deletes.",
    PREFIX,
    *PAGE,
    _DELETED,
)
DIFF_GC_PLANS: Final = get(
    "diffGcPlans",
    _PLAN + "/diff/{other_run_id}",
    messages.PlanDiff,
    _READ_RUNS,
    "Return the difference of two plans.",
    PAGE[1],
    _DELETED,
)
GET_GC_STORAGE: Final = get(
    "getGcStorage",
    _GC + "/storage",
    messages.Storage,
    (*_READ_RUNS, *on(REPOSITORY, "fs:ListObjects")),
    "Sum up bytes by the reason they stay, from records of runs and lists of ranges. With `files`, `committed` is "
    "counted page by page: only the last one, which has no token, has the sums.",
    flag("committed"),
    _FILES,
    Parameter("continuation_token"),
)
LIST_GC_JOBS: Final = get("listGcJobs", _JOBS, messages.JobList, _READ_RUNS, "List jobs, newest first.", _DELETED)
START_GC_JOB: Final = post(
    "startGcJob",
    _JOBS,
    messages.StartJob,
    messages.JobView,
    _READ_RUNS,
    "Start a collector on the server.",
    _DELETED,
    asked_later=(
        Permission("gc:Plan", REPOSITORY, when="the job plans, or certifies an erasure"),
        Permission("gc:Apply", REPOSITORY, when="the job applies or purges"),
        Permission("gc:Erase", REPOSITORY, when="the job plans or carries out an erasure"),
        Permission("gc:CollectDeleted", REPOSITORY, when="the job applies, and the repository is deleted"),
    ),
    body_bytes_max=LONG_BYTES_MAX,
    status=201,
)
GET_GC_JOB: Final = get(
    "getGcJob", _JOB, messages.JobView, _READ_RUNS, "Return a job, its state and last lines.", _DELETED
)
STOP_GC_JOB: Final = Operation(
    "stopGcJob",
    "DELETE",
    _JOB,
    NOTHING,
    messages.JobView,
    on(REPOSITORY, "gc:Abandon"),
    "Ask a job to stop.",
    (_DELETED,),
)
LIST_GC_LEDGER: Final = get(
    "listGcLedger",
    _GC + "/ledger",
    messages.LedgerPage,
    on(REPOSITORY, "gc:ReadLedger"),
    "List the fate of objects.",
    Parameter("run_id"),
    Parameter("path"),
    Parameter("address"),
    Parameter("state", choices=("", *messages.LedgerState)),
    Parameter("since_ms", "integer"),
    flag("newest_first"),
    *PAGE,
)
COMPARE_GC_LEDGER: Final = get(
    "compareGcLedger",
    _GC + "/ledger/comparison",
    messages.DisagreementPage,
    (*_READ_RUNS, *on(REPOSITORY, "gc:ReadLedger")),
    "Compare a page of the ledger with plans and with the object store, and return where they disagree.",
    Parameter("run_id"),
    Parameter("continuation_token"),
    _DELETED,
)
RESTORE_GC_OBJECTS: Final = post(
    "restoreGcObjects",
    _GC + "/restore",
    messages.Restore,
    messages.RestorePage,
    on(REPOSITORY, "gc:Restore"),
    "Restore a page of the objects that a run took.",
    asked_later=(
        Permission("fs:WriteObject", OBJECT, AT_BRANCH, when="for the path of each object that is restored"),
        Permission("fs:ReadObject", OBJECT, AT_ANY, when="for the path that it had, where that is another one"),
    ),
)
