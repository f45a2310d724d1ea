"""Repositories and their objects as users see them, with the guards and the queue in front of `lakebed.versions`."""

from .changes import Changes
from .errors import (
    AddressInNamespace,
    BytesInNamespace,
    CommitQueueTimeout,
    DefaultBranchKept,
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
    StorageMissing,
    TooManyPaths,
    TooMuchMetadata,
    UploadMissing,
)
from .guards import Guards
from .imports import (
    CommitNote,
    ImportCancelled,
    ImportEnded,
    ImportNotFound,
    ImportRecord,
    Imports,
    ImportState,
    Location,
)
from .multipart import Multipart, PartMissing
from .namespaces import Namespaces, OpenNamespace
from .objects import DEFAULT_CONTENT_TYPE, DELETE_MANY_MAX, Objects, UploadTarget
from .queue import BranchQueue
from .records import (
    DELETED_REPOSITORIES,
    MARKER_KEY,
    BranchProtection,
    DeletedRecord,
    HiddenBranch,
    RepositoryRecord,
    RepositoryState,
)
from .repositories import Catalog, CatalogOptions, MakeVersions
from .repository import Repository
from .settings import Settings

__all__ = [
    "DEFAULT_CONTENT_TYPE",
    "DELETED_REPOSITORIES",
    "DELETE_MANY_MAX",
    "MARKER_KEY",
    "AddressInNamespace",
    "BranchProtection",
    "BranchQueue",
    "BytesInNamespace",
    "Catalog",
    "CatalogOptions",
    "Changes",
    "CommitNote",
    "CommitQueueTimeout",
    "DefaultBranchKept",
    "DeletedRecord",
    "ForeignAddress",
    "Guards",
    "HiddenBranch",
    "ImportCancelled",
    "ImportEnded",
    "ImportNotFound",
    "ImportRecord",
    "ImportState",
    "Imports",
    "InvalidImport",
    "Location",
    "MakeVersions",
    "Multipart",
    "NamespaceInUse",
    "NamespaceNested",
    "NamespaceUnclear",
    "Namespaces",
    "NotHeaderText",
    "Objects",
    "OpenNamespace",
    "PartMissing",
    "ProtectedBranch",
    "ReadOnly",
    "Repository",
    "RepositoryExists",
    "RepositoryNotFound",
    "RepositoryRecord",
    "RepositoryState",
    "SettingChanged",
    "Settings",
    "StorageMissing",
    "TooManyPaths",
    "TooMuchMetadata",
    "UploadMissing",
    "UploadTarget",
]
