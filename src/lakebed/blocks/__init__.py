"""Immutable bytes: the BlockStore port, the drivers behind it, and how to open a storage namespace."""

from .drivers.memory import MemoryBlocks
from .keys import BLOCK_KEY_BYTES_MAX, check_block_key, is_block_key
from .opening import (
    BlockOptions,
    environment_of,
    namespaces_overlap,
    normalise_namespace,
    open_blocks,
    options_from_environment,
)
from .store import (
    CHUNK_BYTES,
    BlockCorrupt,
    BlockExists,
    BlockNotFound,
    BlockOutcomeUnknown,
    BlockStat,
    BlockStore,
    BlocksUnavailable,
    Body,
    DeleteFailure,
    InvalidBlockKey,
    InvalidNamespace,
    Level,
    ShortBody,
    Stored,
    UnlistableKey,
)

__all__ = [
    "BLOCK_KEY_BYTES_MAX",
    "CHUNK_BYTES",
    "BlockCorrupt",
    "BlockExists",
    "BlockNotFound",
    "BlockOptions",
    "BlockOutcomeUnknown",
    "BlockStat",
    "BlockStore",
    "BlocksUnavailable",
    "Body",
    "DeleteFailure",
    "InvalidBlockKey",
    "InvalidNamespace",
    "Level",
    "MemoryBlocks",
    "ShortBody",
    "Stored",
    "UnlistableKey",
    "check_block_key",
    "environment_of",
    "is_block_key",
    "namespaces_overlap",
    "normalise_namespace",
    "open_blocks",
    "options_from_environment",
]
