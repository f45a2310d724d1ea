"""Sorted immutable files of entries, cut by content: codecs, cuts, changes, merges. Pure: bytes in, values out."""

from .changing import Change, apply_changes, differing, overlay
from .codec import (
    RangeCorrupt,
    RangeFile,
    RangeInfo,
    decode_range,
    encode_range,
    footer_size,
    range_key,
    read_end,
    summary_of,
)
from .cutting import CUT_RULE, CutRule, Cutter, cut
from .footer import FileCorrupt
from .merging import MergedTable, Strategy, merge_tables
from .metarange import MetarangeCorrupt, decode_metarange, encode_metarange, metarange_columns, metarange_key
from .schema import (
    CHANGES_SCHEMA,
    ENTRIES_SCHEMA,
    TOMBSTONE_ROW,
    changes_from_columns,
    changes_from_rows,
    chunk,
    rows_from_table,
    table_from_rows,
)
from .summary import SliceBitmap, SliceSummary
from .view import KeyColumn, RangeView

__all__ = [
    "CHANGES_SCHEMA",
    "CUT_RULE",
    "ENTRIES_SCHEMA",
    "TOMBSTONE_ROW",
    "Change",
    "CutRule",
    "Cutter",
    "FileCorrupt",
    "KeyColumn",
    "MergedTable",
    "MetarangeCorrupt",
    "RangeCorrupt",
    "RangeFile",
    "RangeInfo",
    "RangeView",
    "SliceBitmap",
    "SliceSummary",
    "Strategy",
    "apply_changes",
    "changes_from_columns",
    "changes_from_rows",
    "chunk",
    "cut",
    "decode_metarange",
    "decode_range",
    "differing",
    "encode_metarange",
    "encode_range",
    "footer_size",
    "merge_tables",
    "metarange_columns",
    "metarange_key",
    "overlay",
    "range_key",
    "read_end",
    "rows_from_table",
    "summary_of",
    "table_from_rows",
]
