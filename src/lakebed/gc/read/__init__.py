"""What exists and what is named, as DataFrames: the namespace's listing, the ranges of commits, uncommitted data."""

from lakebed.gc.protocol import Found

from .held import held_keys, held_objects
from .listing import SIZE_UNKNOWN, UNREFERENCED, Issued, list_slices, listing_into
from .live import gather_live, read_live, write_live
from .ranges import expired_objects, live_objects, named_keys, named_ranges, read_ranges, reading_live
from .uncommitted import check_table, reading_uncommitted, uncommitted_keys, uncommitted_objects

__all__ = [
    "SIZE_UNKNOWN",
    "UNREFERENCED",
    "Found",
    "Issued",
    "check_table",
    "expired_objects",
    "gather_live",
    "held_keys",
    "held_objects",
    "list_slices",
    "listing_into",
    "live_objects",
    "named_keys",
    "named_ranges",
    "read_live",
    "read_ranges",
    "reading_live",
    "reading_uncommitted",
    "uncommitted_keys",
    "uncommitted_objects",
    "write_live",
]
