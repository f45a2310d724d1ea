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
from .known import KnownRanges
from .merging import Choices, MergedTable, Strategy, merge_tables
from .metarange import (
    InfoList,
    MetarangeCorrupt,
    RangeList,
    SublistCorrupt,
    SublistInfo,
    SublistList,
    decode_metarange,
    decode_sublist,
    encode_metarange,
    encode_sublist,
    ends_sublist,
    metarange_key,
    sublist_key,
)
from .schema import (
    CHANGES_SCHEMA,
    ENTRIES_SCHEMA,
    TOMBSTONE_ROW,
    changes_from_rows,
    chunk,
    rows_from_table,
    table_from_rows,
)
from .sealed import FileCorrupt
from .summary import SliceSummary
from .view import KeyColumn, RangeView

__all__ = [
    "CHANGES_SCHEMA",
    "CUT_RULE",
    "ENTRIES_SCHEMA",
    "TOMBSTONE_ROW",
    "Change",
    "Choices",
    "CutRule",
    "Cutter",
    "FileCorrupt",
    "InfoList",
    "KeyColumn",
    "KnownRanges",
    "MergedTable",
    "MetarangeCorrupt",
    "RangeCorrupt",
    "RangeFile",
    "RangeInfo",
    "RangeList",
    "RangeView",
    "SliceSummary",
    "Strategy",
    "SublistCorrupt",
    "SublistInfo",
    "SublistList",
    "apply_changes",
    "changes_from_rows",
    "chunk",
    "cut",
    "decode_metarange",
    "decode_range",
    "decode_sublist",
    "differing",
    "encode_metarange",
    "encode_range",
    "encode_sublist",
    "ends_sublist",
    "footer_size",
    "merge_tables",
    "metarange_key",
    "overlay",
    "range_key",
    "read_end",
    "rows_from_table",
    "sublist_key",
    "summary_of",
    "table_from_rows",
]
