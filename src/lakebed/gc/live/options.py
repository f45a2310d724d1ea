"""Sizes and ages that bound the work and the garbage of collections. Safety does not depend on them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ServiceOptions"]

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Bound the size of steps and the age of leftovers.

    `part_bytes` ends a Parquet file of an input ("approximately 20MB", document 001), and so does `page_rows`. One call
    writes one such file. `scan_page` is the number of cells in a scan.

    """

    part_bytes: int = 20_000_000
    page_rows: int = 4_000_000
    group_rows: int = 32_768
    scan_page: int = 5_000
    # The next run closes a slice open for this long, because its owner seems dead. A live owner notices and continues
    # in a fresh slice.
    dead_owner_age_ms: int = 24 * HOUR_MS
    # A run that still plans, marks or publishes is abandoned.
    dead_run_age_ms: int = 7 * 24 * HOUR_MS
    # A swept commit's ranges stay for this time after the run began, because readers may list them.
    readers_grace_ms: int = 24 * HOUR_MS
