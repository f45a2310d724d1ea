"""History and staging of one repository, lock-free over the key-value store and the object store.

`Versions` holds a part for each question. They share a `Context`; each may use those before it in `__init__`:

    refs        branches, tags, expressions         commits     seal, build, claim, publish
    history     log, merge base, differences        merges      merge, revert, cherry-pick
    staging     the writer and the reader           resets      reset, hard reset
    slices      where uploads put their bytes       uploads     addresses handed out to clients
    copies      copies and moves without bytes      fencing     owners that died; bumps of branches
    inventory   records in bulk, for collectors     cleanup     remove records that nothing names
    recorder    commits of existing trees           retired     which commits and files may not be named
    hard_delete objects that are deleted at once    taken       objects that a lifecycle policy took
"""

from lakebed.base import Ports, RepositoryUid
from lakebed.kv import Store
from lakebed.objectstore import ObjectStore

from . import keys
from .cells import (
    DOOMED,
    EXCLUSIVE,
    TOMBSTONE,
    cell_columns,
    decode_cell,
    decode_cells,
    encode_cell,
    is_exclusive,
    is_gone,
)
from .cleanup import Cleanup
from .commits.committer import Committer, Note
from .commits.marks import FeedRecord
from .commits.merger import Merger, Settle, Settlement, Sides, Strategy
from .commits.outbox import EventRecord, Look, Outbox
from .commits.recorder import Recorder
from .commits.resetter import Resetter
from .context import Context, Inventory, LayAside, Options
from .errors import (
    AddressNotAllowed,
    AnotherObject,
    BadRef,
    BranchExists,
    BranchNotFound,
    CommitExpired,
    CommitNotFound,
    CommitOvertaken,
    CompletionUnderWay,
    ContentsGone,
    CopyGivenUp,
    DeletedRefNotFound,
    InvalidNote,
    MergeConflict,
    MovedAsCopy,
    MultipartNotFound,
    NameTaken,
    NoChanges,
    PathExists,
    PathExpired,
    PathNotFound,
    PreconditionFailed,
    RefNotFound,
    TagExists,
    TagNotFound,
    UncommittedChanges,
    UploadMissing,
    UploadRefused,
)
from .fencing import Fencing
from .hard_delete import HardDelete, LetGoBy, OpenPage, PageRecord, QueuedRecord
from .history.ancestors import place_all
from .history.history import SOUGHT_IN_MAX, Difference, History
from .records import (
    MOVES,
    BranchRecord,
    Change,
    ClaimReason,
    ClaimRecord,
    Commit,
    CopyRecord,
    CopyState,
    DeletedRefRecord,
    IntentRecord,
    MoveRecord,
    MultipartRecord,
    PartRecord,
    PlannedRecord,
    Record,
    RecordFormat,
    RefKind,
    RefState,
    RunRecord,
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
from .refs.expressions import name_in
from .refs.reflog import Reflog
from .refs.refs import Branch, Refs
from .retired import Retired
from .staging.conditions import ANY, Condition
from .staging.copies import Copies
from .staging.entries import Staging
from .staging.layers import Layers, Listing
from .staging.moves import Moves
from .staging.parts import PART_NUMBER_MAX, Parts
from .staging.slices import Slices
from .staging.uploads import Uploads
from .taken import ERASED, PRUNED, Numbers, Taken, TakenBy, TakingRecord
from .trees import Applied, Merged, Trees
from .trees.builder import RetiredBy, none_retired
from .trees.cache import TreeCache
from .trees.diff import DiffRow
from .trees.lacking import LackingFiles, LackingObjects


class Versions:
    """One repository's versions. Any number of instances, in any number of processes, may work on one repository."""

    def __init__(
        self,
        *,
        uid: RepositoryUid,
        store: Store,
        objectstore: ObjectStore,
        trees: Trees,
        ports: Ports,
        options: Options | None = None,
        lay_aside: LayAside | None = None,
    ) -> None:
        self.uid = uid
        self.store = store
        self.objectstore = objectstore
        self.trees = trees
        self.ports = ports
        self.context = context = Context(
            uid=uid,
            store=store,
            objectstore=objectstore,
            trees=trees,
            ports=ports,
            options=options,
            lay_aside=lay_aside,
        )
        self.partition = context.partition
        self.retired = retired = Retired(context)
        self.taken = taken = Taken(context)
        self.inventory = Inventory(context)
        reflog = Reflog(context)
        self.outbox = Outbox(context, reflog)
        self.refs = refs = Refs(context, retired, reflog)
        layers = Layers(context)
        self.history = history = History(context, retired=retired, taken=taken, refs=refs, layers=layers)
        self.slices = slices = Slices(context)
        self.hard_delete = hard_delete = HardDelete(context)
        self.staging = staging = Staging(
            context,
            retired=retired,
            taken=taken,
            refs=refs,
            layers=layers,
            slices=slices,
            hard_delete=hard_delete,
        )
        self.uploads = Uploads(context, slices, staging)
        self.parts = Parts(context, self.uploads)
        self.copies = Copies(context, retired=retired, taken=taken, refs=refs, staging=staging)
        self.moves = Moves(context, self.copies)
        self.commits = committer = Committer(context, retired, taken, refs, reflog)
        self.merges = Merger(
            context, retired=retired, taken=taken, refs=refs, reflog=reflog, history=history, committer=committer
        )
        self.recorder = Recorder(context, retired=retired, inventory=self.inventory, merger=self.merges)
        self.resets = Resetter(
            context,
            retired=retired,
            taken=taken,
            refs=refs,
            reflog=reflog,
            layers=layers,
            staging=staging,
            copies=self.copies,
            committer=committer,
            hard_delete=hard_delete,
        )
        self.fencing = Fencing(context, layers)
        self.cleanup = Cleanup(
            context,
            retired=retired,
            refs=refs,
            reflog=reflog,
            slices=slices,
            uploads=self.uploads,
            fencing=self.fencing,
            hard_delete=hard_delete,
        )
