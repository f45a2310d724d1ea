"""Serve collections from the live side: runs, what is alive and uncommitted, commits, rules, and who may be named."""

from .branch_sweep import BranchSweep, TooManyBranches
from .collection_service import CollectionService, rules_version
from .commits import read_snapshot
from .continuing import Reader
from .deferring import WindowOpen
from .deleted import DeletedCollections, DeletedOnly, open_deleted
from .errors import (
    BadContinuation,
    NotRestored,
    OtherInstallation,
    OtherRepository,
    OutOfOrder,
    PolicyNotFound,
    RulesChanged,
    RulesMoved,
    RulesNotFound,
    RulesVersionNotFound,
    RunMoved,
    RunNotFound,
    StalePlan,
    WrongKind,
)
from .hard_delete import (
    LINGER_MS,
    REASONS,
    Queued,
    QueueWorker,
    Worked,
    count_queue,
    find_deleted,
    find_queued,
)
from .holds import HoldBook, HoldExists, HoldNotFound, HoldsRecord, InvalidHold
from .installation import Installation, InstallationRecord
from .jobs import JobBook, JobNotFound, JobRunning
from .options import ServiceOptions
from .policies import PolicyBook, PolicyRecord
from .potential import PotentialCommits, PotentialNotFound
from .restorable import NotRestorable
from .restoring import Refusal, RestoreDiffers, RestoreOutcome, Restoring
from .rules import RuleBook, RulesRecord, RulesSet
from .searches import Searches, TooManySearches
from .undoing import CountedOn
from .unlisted import NotAdopted, SlicesInUse
from .why import NoQuestion

__all__ = [
    "LINGER_MS",
    "REASONS",
    "BadContinuation",
    "BranchSweep",
    "CollectionService",
    "CountedOn",
    "DeletedCollections",
    "DeletedOnly",
    "HoldBook",
    "HoldExists",
    "HoldNotFound",
    "HoldsRecord",
    "Installation",
    "InstallationRecord",
    "InvalidHold",
    "JobBook",
    "JobNotFound",
    "JobRunning",
    "NoQuestion",
    "NotAdopted",
    "NotRestorable",
    "NotRestored",
    "OtherInstallation",
    "OtherRepository",
    "OutOfOrder",
    "PolicyBook",
    "PolicyNotFound",
    "PolicyRecord",
    "PotentialCommits",
    "PotentialNotFound",
    "QueueWorker",
    "Queued",
    "Reader",
    "Refusal",
    "RestoreDiffers",
    "RestoreOutcome",
    "Restoring",
    "RuleBook",
    "RulesChanged",
    "RulesMoved",
    "RulesNotFound",
    "RulesRecord",
    "RulesSet",
    "RulesVersionNotFound",
    "RunMoved",
    "RunNotFound",
    "Searches",
    "ServiceOptions",
    "SlicesInUse",
    "StalePlan",
    "TooManyBranches",
    "TooManySearches",
    "WindowOpen",
    "Worked",
    "WrongKind",
    "count_queue",
    "find_deleted",
    "find_queued",
    "open_deleted",
    "read_snapshot",
    "rules_version",
]
