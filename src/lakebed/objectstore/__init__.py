"""Immutable bytes: the ports ObjectStore and Deleter, the drivers behind them, and how to open a storage namespace."""

from .arguments import BLOCK_KEY_BYTES_MAX, check_object_key, is_object_key
from .clock import store_clock_ms
from .drivers.memory import MemoryDeleter, MemoryObjectStore
from .keeping import Versioned, keeps_versions
from .opening import normalise_namespace, open_deleter, open_objectstore, split_address, without_account
from .options import ObjectStoreOptions, environment_of, options_from_environment
from .store import (
    CHUNK_BYTES,
    Body,
    BucketMissing,
    CopiesRanges,
    DeleteFailure,
    Deleter,
    InvalidNamespace,
    InvalidObjectKey,
    Level,
    ObjectCorrupt,
    ObjectExists,
    ObjectMissing,
    ObjectOutcomeUnknown,
    ObjectStat,
    ObjectStore,
    ObjectStoreDenied,
    ObjectStoreUnavailable,
    ShortBody,
    Stored,
    UnlistableKey,
)

__all__ = [
    "BLOCK_KEY_BYTES_MAX",
    "CHUNK_BYTES",
    "Body",
    "BucketMissing",
    "CopiesRanges",
    "DeleteFailure",
    "Deleter",
    "InvalidNamespace",
    "InvalidObjectKey",
    "Level",
    "MemoryDeleter",
    "MemoryObjectStore",
    "ObjectCorrupt",
    "ObjectExists",
    "ObjectMissing",
    "ObjectOutcomeUnknown",
    "ObjectStat",
    "ObjectStore",
    "ObjectStoreDenied",
    "ObjectStoreOptions",
    "ObjectStoreUnavailable",
    "ShortBody",
    "Stored",
    "UnlistableKey",
    "Versioned",
    "check_object_key",
    "environment_of",
    "is_object_key",
    "keeps_versions",
    "normalise_namespace",
    "open_deleter",
    "open_objectstore",
    "options_from_environment",
    "split_address",
    "store_clock_ms",
    "without_account",
]
