"""Repositories and their objects as users see them, with the guards and the queue in front of `lakebed.versions`."""

from .deleted import DAY_MS, DELETED_DAYS, DeletedRepositories, DeletedRepository
from .dumps import DumpIds
from .errors import (
    AddressInNamespace,
    DeletedNotFound,
    DeleteProtected,
    FileOfTable,
    InvalidImport,
    NamespaceInUse,
    NamespaceNested,
    NotHeaderText,
    ProtectedBranch,
    ReadOnly,
    RepositoryExists,
    RepositoryNotFound,
    SettingChanged,
    WindowNotOver,
)
from .namespaces import Namespaces, overlap
from .objects.imports import ImportRecord, ImportState
from .objects.multipart import Multipart, PartMissing, etag_of_parts
from .objects.objects import DELETE_MANY_MAX, METADATA_BYTES_MAX, Objects, check_user_metadata
from .objects.sources import Location
from .records import MARKER_KEY, DeletedState, RepositoryRecord, RepositoryState
from .refs.hooks import Event, EventType, HookRefused
from .refs.pulls import PullRecord, Pulls, PullState
from .refs.queue import BranchQueue
from .repositories import Catalog, CatalogOptions
from .repository import Repository
from .settings import Settings, matching
from .subscriptions import DeliveryFailed, PositionedEvent, Subscription, SubscriptionRecord, Subscriptions, is_wanted
from .tasks import TaskKind, TaskRecord
