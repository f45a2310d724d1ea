"""Immutable bytes: the BlockStore port, the drivers behind it, and how to open a storage namespace."""

from .store import (
    CHUNK_BYTES,
    BlockCorrupt,
    BlockExists,
    BlockNotFound,
    BlockStat,
    BlockStore,
    BlocksUnavailable,
    Body,
    DeleteFailure,
    InvalidBlockKey,
    InvalidNamespace,
    ShortBody,
    Stored,
)

__all__ = [
    "CHUNK_BYTES",
    "BlockCorrupt",
    "BlockExists",
    "BlockNotFound",
    "BlockStat",
    "BlockStore",
    "BlocksUnavailable",
    "Body",
    "DeleteFailure",
    "InvalidBlockKey",
    "InvalidNamespace",
    "ShortBody",
    "Stored",
]
