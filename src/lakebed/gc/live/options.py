"""Sizes and ages that bound the work and the garbage of collections. None of them decides what is safe."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """`part_bytes` is the size at which a Parquet file of an input is cut ("approximately 20MB", document 001), and
    `page_rows` the number of rows: one call writes one such file. `scan_page` cells are read at a time.

    `dead_owner_age_ms`: a slice that was opened so long ago and never closed has lost its owner; it is given up when
    a run begins. An owner that lives after all notices and goes on in a fresh slice. `dead_run_age_ms`: a run that
    still marks after so long was left behind, and is abandoned. `readers_grace_ms`: for so long after a run began that
    swept a commit, the commit's ranges stay, for a reader may be listing it.
    """

    part_bytes: int = 20_000_000
    page_rows: int = 4_000_000
    group_rows: int = 32_768
    scan_page: int = 5_000
    dead_owner_age_ms: int = 24 * HOUR_MS
    dead_run_age_ms: int = 7 * 24 * HOUR_MS
    readers_grace_ms: int = 24 * HOUR_MS
