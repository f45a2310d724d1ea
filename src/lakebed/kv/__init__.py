"""Mutable metadata: the narrow Store port, the drivers behind it, and how to open one."""

from .opening import InvalidStoreUri, StoreUri, open_store, register_driver, snapshot_store, sqlite_uri
from .store import (
    SCAN_PAGE,
    Held,
    InvalidKey,
    Page,
    Predicate,
    PredicateFailed,
    Store,
    StoreFormat,
    StoreUnavailable,
    check_key,
    prefix_end,
    scan_prefix,
)

__all__ = [
    "SCAN_PAGE",
    "Held",
    "InvalidKey",
    "InvalidStoreUri",
    "Page",
    "Predicate",
    "PredicateFailed",
    "Store",
    "StoreFormat",
    "StoreUnavailable",
    "StoreUri",
    "check_key",
    "open_store",
    "prefix_end",
    "register_driver",
    "scan_prefix",
    "snapshot_store",
    "sqlite_uri",
]
