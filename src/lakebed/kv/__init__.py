"""Mutable metadata: the narrow Store port, the drivers behind it, and how to open one."""

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
    "Page",
    "Predicate",
    "PredicateFailed",
    "Store",
    "StoreFormat",
    "StoreUnavailable",
    "check_key",
    "prefix_end",
    "scan_prefix",
]
