"""Repositories and their objects as users see them, with the guards and the queue in front of `lakebed.versions`."""

from .changes import Changes
from .deleted import DAY_MS, DELETED_DAYS, DeletedRepositories, DeletedRepository
from .dump_files import DUMPS
from .dumps import DumpIds, Dumps, TreesTaken
from .errors import (
    AddressInNamespace,
    BytesInNamespace,
    CommitQueueTimeout,
    DefaultBranchKept,
    DeletedNotFound,
    DeleteProtected,
    ForeignAddress,
    InvalidImport,
    NamespaceInUse,
    NamespaceNested,
    NamespaceUnclear,
    NotHeaderText,
    ProtectedBranch,
    ReadOnly,
    RepositoryExists,
    RepositoryNotFound,
    SettingChanged,
    SeveralDeleted,
    StorageMissing,
    TooManyPaths,
    TooManyPatterns,
    TooMuchMetadata,
    UploadMissing,
    WindowNotOver,
)
from .guards import Guards
from .hooks import Event, EventType, HookRefused, Hooks, NoHooks
from .imports import ImportRecord, Imports, ImportState
from .multipart import Multipart, PartMissing, etag_of_parts
from .namespaces import Namespaces, overlap
from .objects import DELETE_MANY_MAX, METADATA_BYTES_MAX, Objects, check_user_metadata
from .pulls import PullRecord, Pulls, PullState
from .queue import BranchQueue
from .records import (
    DELETED_REPOSITORIES,
    MARKER_KEY,
    BranchProtection,
    DeletedRecord,
    DeletedState,
    RepositoryRecord,
    RepositoryState,
)
from .repositories import Catalog, CatalogOptions
from .repository import Repository
from .settings import Settings, matching
from .sources import Location
from .tasks import TaskKind, TaskRecord, Tasks

__all__ = [
    "DAY_MS",
    "DELETED_DAYS",
    "DELETED_REPOSITORIES",
    "DELETE_MANY_MAX",
    "DUMPS",
    "MARKER_KEY",
    "METADATA_BYTES_MAX",
    "AddressInNamespace",
    "BranchProtection",
    "BranchQueue",
    "BytesInNamespace",
    "Catalog",
    "CatalogOptions",
    "Changes",
    "CommitQueueTimeout",
    "DefaultBranchKept",
    "DeleteProtected",
    "DeletedNotFound",
    "DeletedRecord",
    "DeletedRepositories",
    "DeletedRepository",
    "DeletedState",
    "DumpIds",
    "Dumps",
    "Event",
    "EventType",
    "ForeignAddress",
    "Guards",
    "HookRefused",
    "Hooks",
    "ImportRecord",
    "ImportState",
    "Imports",
    "InvalidImport",
    "Location",
    "Multipart",
    "NamespaceInUse",
    "NamespaceNested",
    "NamespaceUnclear",
    "Namespaces",
    "NoHooks",
    "NotHeaderText",
    "Objects",
    "PartMissing",
    "ProtectedBranch",
    "PullRecord",
    "PullState",
    "Pulls",
    "ReadOnly",
    "Repository",
    "RepositoryExists",
    "RepositoryNotFound",
    "RepositoryRecord",
    "RepositoryState",
    "SettingChanged",
    "Settings",
    "SeveralDeleted",
    "StorageMissing",
    "TaskKind",
    "TaskRecord",
    "Tasks",
    "TooManyPaths",
    "TooManyPatterns",
    "TooMuchMetadata",
    "TreesTaken",
    "UploadMissing",
    "WindowNotOver",
    "check_user_metadata",
    "etag_of_parts",
    "matching",
    "overlap",
]
