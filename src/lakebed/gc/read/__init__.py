"""What exists and what is named, as DataFrames: the namespace's listing, the ranges of commits, uncommitted data."""

from lakebed.handoff import Found

from .listing import list_slices
from .live import read_live, write_live
from .ranges import expired_objects, live_objects, named_ranges
from .uncommitted import check_table, uncommitted_objects

__all__ = [
    "Found",
    "check_table",
    "expired_objects",
    "list_slices",
    "live_objects",
    "named_ranges",
    "read_live",
    "uncommitted_objects",
    "write_live",
]
