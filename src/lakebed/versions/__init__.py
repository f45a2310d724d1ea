"""History and staging of one repository, lock-free over the key-value store and the object store.

`Versions` is one class in layers, a file for each flow; each uses those above it:

    repo        ports, caches, typed records          amortized   one read for all that wait
    listing     merging layers, page by page          cells       what a staging token holds
    slices      where uploads put their bytes         runs        which commits may not be named
    refs        branches, tags, expressions, log      trees       the contents of commits
    staging     the writer and the reader
    tracking    addresses handed out or copied
    committing  seal, build, claim, publish
    merging     merge, revert, cherry-pick
    resetting   reset, hard reset
    diffs       differences, the log of a path
    giving_up   fences, freezes and touches
    cleaning    what nobody needs any more

The flows and what they promise: docs/design/protocols.md. They await their ports and nothing else.
"""

from . import keys
from .cells import DOOMED, EXCLUSIVE, TOMBSTONE, Cell, cell_columns, decode_cell, decode_cells, encode_cell, is_gone
from .cleaning import Cleaned, Cleaning
from .diffs import Difference
from .errors import (
    AddressNotAllowed,
    BadRef,
    BranchExists,
    BranchMoved,
    BranchNotFound,
    CommitNotFound,
    CommitOvertaken,
    Condemned,
    ContentsGone,
    InvalidNote,
    MergeConflict,
    NoChanges,
    PathExists,
    PathNotFound,
    PreconditionFailed,
    RefNotFound,
    TagExists,
    TagNotFound,
    UncommittedChanges,
    UploadRefused,
)
from .listing import Listing
from .merging import STRATEGY_KEY, Strategy
from .records import (
    MOVES,
    BranchRecord,
    ClaimRecord,
    Commit,
    CopyRecord,
    CopyState,
    HoldRecord,
    Record,
    RecordFormat,
    RefState,
    RunKind,
    RunRecord,
    RunState,
    Sealed,
    SliceRecord,
    SliceState,
    SweptRecord,
    TagRecord,
    UploadRecord,
    UploadState,
    decode_record,
    decode_records,
    encode_record,
)
from .refs import Branch, Resolved, Tag
from .repo import Options
from .trees import Applied, Merged, Trees
from .trees_building import Salts, no_salts
from .trees_cache import TreeCache
from .trees_diff import DiffRow


class Versions(Cleaning):
    """One repository's versions. Any number of instances, in any number of processes, may work on one repository."""


__all__ = [
    "DOOMED",
    "EXCLUSIVE",
    "MOVES",
    "STRATEGY_KEY",
    "TOMBSTONE",
    "AddressNotAllowed",
    "Applied",
    "BadRef",
    "Branch",
    "BranchExists",
    "BranchMoved",
    "BranchNotFound",
    "BranchRecord",
    "Cell",
    "ClaimRecord",
    "Cleaned",
    "Commit",
    "CommitNotFound",
    "CommitOvertaken",
    "Condemned",
    "ContentsGone",
    "CopyRecord",
    "CopyState",
    "DiffRow",
    "Difference",
    "HoldRecord",
    "InvalidNote",
    "Listing",
    "MergeConflict",
    "Merged",
    "NoChanges",
    "Options",
    "PathExists",
    "PathNotFound",
    "PreconditionFailed",
    "Record",
    "RecordFormat",
    "RefNotFound",
    "RefState",
    "Resolved",
    "RunKind",
    "RunRecord",
    "RunState",
    "Salts",
    "Sealed",
    "SliceRecord",
    "SliceState",
    "Strategy",
    "SweptRecord",
    "Tag",
    "TagExists",
    "TagNotFound",
    "TagRecord",
    "TreeCache",
    "Trees",
    "UncommittedChanges",
    "UploadRecord",
    "UploadRefused",
    "UploadState",
    "Versions",
    "cell_columns",
    "decode_cell",
    "decode_cells",
    "decode_record",
    "decode_records",
    "encode_cell",
    "encode_record",
    "is_gone",
    "keys",
    "no_salts",
]
