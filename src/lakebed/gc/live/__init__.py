"""Serve collections from the live side: runs, uncommitted addresses, commits, rules, holds, restores, explanations."""

from .defer.deferring import WindowOpen
from .defer.restorable import NotRestorable
from .defer.restoring import Refusal, RestoreDiffers, Restoring
from .defer.undoing import CountedOn
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
from .explain.searches import Searches, TooManySearches
from .explain.trees import committed_parts
from .explain.trying import try_rules
from .explain.why import NoQuestion
from .installation.installation import Installation, InstallationRecord
from .installation.unlisted import NotAdopted, SlicesInUse
from .options import ServiceOptions
from .publish.branch_sweep import BranchSweep, TooManyBranches
from .publish.hard_delete import LINGER_MS, REASONS, QueueWorker, Worked, count_queue, find_deleted, find_queued
from .publish.potential import PotentialCommits
from .reading.commits import read_snapshot
from .reading.elsewhere import Elsewhere, NamedElsewhere
from .reading.naming import Search
from .reading.reading import Reader
from .records.holds import HoldBook, HoldExists, HoldNotFound, HoldsRecord, InvalidHold
from .records.jobs import JobBook, JobNotFound, JobRunning
from .records.settings import PolicyBook, PolicyRecord, RuleBook, RulesRecord, RulesSet, rules_version
from .service import CollectionService

__all__ = [
    "LINGER_MS",
    "REASONS",
    "BadContinuation",
    "BranchSweep",
    "CollectionService",
    "CountedOn",
    "DeletedCollections",
    "DeletedOnly",
    "Elsewhere",
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
    "NamedElsewhere",
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
    "QueueWorker",
    "Reader",
    "Refusal",
    "RestoreDiffers",
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
    "Search",
    "Searches",
    "ServiceOptions",
    "SlicesInUse",
    "StalePlan",
    "TooManyBranches",
    "TooManySearches",
    "WindowOpen",
    "Worked",
    "WrongKind",
    "committed_parts",
    "count_queue",
    "find_deleted",
    "find_queued",
    "open_deleted",
    "read_snapshot",
    "rules_version",
    "try_rules",
]
