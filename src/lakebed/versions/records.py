"""Declare the records that the key-value store holds of a repository, besides cells (docs/formats/records.md).

A value is one byte of format number, then msgpack. A later release reads the records of an earlier one; an
unknown number is `RecordFormat`, never a guess. Records are immutable here: each change is a `set_if` over the read
one. The legal moves of the records with states are tables (`MOVES`), which the flows run and the tests enumerate.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from lakebed.base import CommitId, Corrupt, MetarangeId, RunKind, RunState, StagingToken, name_in_words

FORMAT: Final = 1
_FORMAT_BYTE: Final = bytes([FORMAT])


class RecordFormat(Corrupt):
    """A record of a format that this release does not know, or no record at all."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Root of all that is stored under one key."""


R = TypeVar("R", bound=Record)

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[Record], msgspec.msgpack.Decoder[Record]] = {}
_list_decoders: dict[type[Record], msgspec.msgpack.Decoder[Any]] = {}


def encode_record(record: Record) -> bytes:
    return _FORMAT_BYTE + _encoder.encode(record)


def decode_record(kind: type[R], data: bytes) -> R:
    """
    Raises:
        RecordFormat: another format number, or bytes that are no such record.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    if data[:1] != _FORMAT_BYTE:
        raise RecordFormat(
            f"{name_in_words(kind)} of format {data[:1].hex() or 'none'}, known is {FORMAT}", kind=kind.__name__
        )
    try:
        record = decoder.decode(memoryview(data)[1:])
    except msgspec.MsgspecError as error:
        raise RecordFormat(f"{name_in_words(kind)} does not decode: {error}", kind=kind.__name__) from error
    assert isinstance(record, kind)
    return record


def decode_records(kind: type[R], values: Sequence[bytes]) -> list[R]:
    """The same for a page of them, in one call, at half the cost.

    Raises:
        RecordFormat: as above, of one of them.
    """
    if not values:
        return []
    decoder = _list_decoders.get(kind)
    if decoder is None:
        many: Any = list[kind]  # type: ignore[valid-type]  # a type that is made here, for msgspec alone
        decoder = _list_decoders[kind] = msgspec.msgpack.Decoder(many)
    if {value[:1] for value in values} == {_FORMAT_BYTE}:
        try:
            # Laid end to end behind one array header, they are themselves msgpack.
            joined = b"\xdd" + len(values).to_bytes(4, "big") + b"".join([value[1:] for value in values])
            found: list[R] = decoder.decode(joined)
        except msgspec.MsgspecError:
            pass
        else:
            return found
    # One by one, so that the error is that of the one at fault.
    return [decode_record(kind, value) for value in values]


class RefState(StrEnum):
    """Say whether a ref is usable. Collectors take it for a root while it is being made, too, and while it is suspended
    because its repository is deleted.
    """

    CREATING = "creating"
    ACTIVE = "active"
    SUSPENDED = "suspended"


class Sealed(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A sealed token. A frozen one holds a copy of the overlay of the tokens that it `stands_for`."""

    token: StagingToken
    stands_for: tuple[StagingToken, ...] = ()


class Moved(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The last move of a branch or tag (reflog.py): when, by which operation and user, and from where."""

    at_ms: int
    operation: str
    by: str
    before: CommitId


class BranchRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A branch: its head, its staging token, and its sealed tokens, newest first."""

    state: RefState
    commit_id: CommitId
    staging_token: StagingToken
    sealed: tuple[Sealed, ...] = ()
    # Changes nothing but the record: a flow that acts on an older reading fails.
    epoch: int = 0
    created_ms: int = 0
    moved: Moved | None = None
    # From then on a sweep of branches may delete it. 0: never.
    expires_ms: int = 0
    # The sweep that is about to delete it if no one uses it (`Refs.delete_unused_branch`).
    leaving: str = ""
    # The sandbox that made it, and whose end deletes it. A branch that was brought back has none.
    sandbox: str = ""
    # The flow of this package whose branch it is. No request can set it.
    work_of: str = ""

    def tokens(self) -> tuple[StagingToken, ...]:
        """Every token it holds, newest first."""
        return (self.staging_token, *[sealed.token for sealed in self.sealed])


class TagRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    state: RefState
    commit_id: CommitId
    created_ms: int = 0
    moved: Moved | None = None


class MoveRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A move of a branch or tag, in its log. `before` is empty if the ref was made, `after` if it was deleted."""

    before: CommitId
    after: CommitId
    at_ms: int
    operation: str
    by: str = ""


class RefKind(StrEnum):
    BRANCH = "branch"
    TAG = "tag"


class Change(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A change of a pull request or run, in its own record: one write has both. `after`: the commit of a merge."""

    operation: str
    at_ms: int
    by: str = ""
    after: str = ""


class DeletedRefRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A branch or tag that was deleted, or was about to be. Until `kept_until_ms` collectors take it for a ref."""

    kind: RefKind
    name: str
    commit_id: CommitId
    deleted_ms: int
    deleted_by: str = ""
    kept_until_ms: int
    # Listings left the branch out.
    is_hidden: bool = False


class Commit(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A commit. `id` hashes everything before `published`; `nonce` keeps two equal commits apart."""

    # With `gc=False`: nothing that a commit holds can lead back to it, so Python need not look for cycles through a
    # million of them.
    version: int = 1
    generation: int
    message: str
    committer: str
    created_ms: int
    metarange_id: MetarangeId
    parents: tuple[CommitId, ...]
    metadata: dict[str, str] = {}
    # The branch it was built for.
    made_for: str = ""
    nonce: str = ""
    # A note that the branch took it, written after the fact. Without it, a look into the history of `made_for` decides
    # (`Commits.find_published`).
    published: bool = False
    # Until it is noted: only a `set_if` of the branch `made_for` can publish it.
    tried: bool = False
    # A client may give `created_ms`. This is the clock of the server that wrote the record. Retention counts from
    # `counted_ms`, where that is later.
    written_ms: int = 0
    counted_ms: int = 0
    # These shorten the way to far ancestors (ancestors.py).
    depth: int = 0
    jump: str = ""
    merges: int = 0

    @property
    def id(self) -> CommitId:
        fields = (
            self.version,
            self.generation,
            self.message,
            self.committer,
            self.created_ms,
            self.metarange_id,
            self.parents,
            dict(sorted(self.metadata.items())),
            self.made_for,
            self.nonce,
        )
        return CommitId(hashlib.sha256(_encoder.encode(fields)).hexdigest())


class ClaimReason(StrEnum):
    """Say why tokens leave a branch: after a reset their addresses are garbage, after a freeze another token names
    them.
    """

    COMMIT = "commit"
    FREEZE = "freeze"
    RESET = "reset"
    DELETE = "delete"


class ClaimRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt that may have taken these tokens from this branch; written before it, and noted by cleaners alone."""

    branch: str
    tokens: tuple[StagingToken, ...]
    commit_id: CommitId | None = None
    # The tokens are fresh ones that a freeze fills, not yet the branch's. They may be cleaned only after the branch was
    # bumped, which makes the freeze fail (docs/design/protocols.md, "Giving up on a dead owner").
    building: bool = False
    created_ms: int
    # A record of an older release has none. It counts as a freeze, after which nothing of the tokens may be deleted.
    why: ClaimReason = ClaimReason.FREEZE
    # When a cleaner saw that no branch holds any of the tokens.
    retired_ms: int = 0
    # No write that knew the tokens is under way, by the clock of a cleaner: so cells of conditional writers go, too.
    is_over: bool = False


class SliceState(StrEnum):
    OPEN = "open"
    FENCED = "fenced"
    CLOSED = "closed"


class SliceRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    state: SliceState
    owner: str
    opened_ms: int


class UploadState(StrEnum):
    ISSUED = "issued"
    LINKING = "linking"
    LINKED = "linked"
    EXPIRED = "expired"
    REVOKED = "revoked"


class UploadRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An address handed out to a client, for this path alone. `attempt` names the link that moved it to LINKING."""

    state: UploadState
    branch: str
    issued_ms: int
    expires_ms: int
    path: bytes = b""
    multipart_id: str = ""
    attempt: str = ""
    # The runs that marked when a cleaner first saw it finished.
    watchers: tuple[str, ...] | None = None
    # A URL was signed that can replace the bytes.
    is_signed: bool = False


class MultipartRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An upload in parts that was begun. `algorithm` is the checksum that its client chose; empty: none.

    `branch_created_ms` tells the branch from a later one of the same name. `etag` is set when it was completed.
    `target` is the address that a completion is linking, or was about to link, since `target_ms`. The quota of
    `quota_branch` is charged; empty: that of `branch`.
    """

    branch: str
    etag: str = ""
    branch_created_ms: int = 0
    path: bytes
    created_ms: int
    content_type: str
    metadata: dict[str, str] = {}
    algorithm: str = ""
    checksum_type: str = ""
    user: str = ""
    target: str = ""
    target_ms: int = 0
    quota_branch: str = ""

    @property
    def charged(self) -> str:
        return self.quota_branch or self.branch


class PartRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One part of it, at an address that was handed out. `checksum` is of its upload's algorithm."""

    address: str
    size_bytes: int
    md5: str
    modified_ms: int
    checksum: str = ""


class CopyState(StrEnum):
    PENDING = "pending"
    DONE = "done"
    REVOKED = "revoked"


class CopyRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    state: CopyState
    address: str
    branch: str
    started_ms: int
    attempt: str = ""
    watchers: tuple[str, ...] | None = None


class IntentRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    commit_id: CommitId
    branch: str
    created_ms: int


class RunRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A collection run. The commits it expires are the keys of `expiring_partition`, filled while it is PLANNING,
    which takes nothing, and emptied when it has ended.
    """

    kind: RunKind
    state: RunState
    started_ms: int
    # The latest publication of what is expiring. `listed` is the digest of the list that it published, `recheck` of the
    # commits that it found still expiring, `plan` of the plan. These name what may be deleted, so a plan from an
    # earlier attempt is refused. `listed` is emptied last, when no flow can fill the partition any more.
    attempt: str = ""
    listed: str = ""
    recheck: str = ""
    plan: str = ""
    rules_version: str = ""
    # Seals the continuation tokens of the run, or of its attempt. No answer shows it.
    secret: str = ""
    # Each commit that it takes has its SweptRecord, so it may end.
    swept: bool = False
    # An apply of a MARKED run began, so only this apply may end the run.
    began: bool = False
    # Its deletes are deferred until then, for a `window` that an operator chose. `purging`: the window is over.
    until_ms: int = 0
    window: str = ""
    purging: bool = False
    planned_ms: int = 0
    # The digest of the table that an apply made by looking again, and may delete in place of the plan's.
    sweeps: str = ""
    # The digest of its saved state.
    saved: str = ""
    # When the oldest commit was written that it expires and that has no note of its publication, or 0. Since then
    # something else may have deleted what such a commit names.
    unpublished_ms: int = 0
    # Runs that may still be undone, whose commits the recheck took for gone.
    counts: tuple[str, ...] = ()
    # Runs that were let to delete what the commits of this run name, or that took the same commits. While these may
    # delete, or did, this run cannot be undone. One that is UNDONE took nothing, whatever SweptRecords say: its record
    # is never removed.
    counted_by: tuple[str, ...] = ()
    # Each step that users get an event of, written by `Retired.write_run`.
    changes: tuple[Change, ...] = ()

    @property
    def may_be_undone(self) -> bool:
        """The run deleted nothing yet, and is deferred, or may be. Once it sweeps, False is final."""
        return self.kind.can_wait and self.state in {RunState.MARKED, RunState.SWEEPING} and not self.purging

    @property
    def applied_by(self) -> str:
        """Return the user whose apply began, or an empty string."""
        return next((change.by for change in self.changes if change.operation == _APPLY), "")

    def step_from(self, before: RunRecord | None) -> str:
        """Return what happened between the two for users, or an empty string."""
        was = RunState.PLANNING if before is None else before.state
        if self.state is not was:
            if self.state is RunState.ENDED and was is RunState.MARKED and before is not None and not before.began:
                return "discard"
            step = _STEPS.get(self.state, "")
            if step:
                return step
        if self.purging and not (before is not None and before.purging):
            return "purge"
        if self.until_ms and self.until_ms != (0 if before is None else before.until_ms):
            return "defer"
        return _APPLY if self.began and not (before is not None and before.began) else ""


_APPLY: Final = "apply"
_STEPS: Final = {
    RunState.EXPIRING: _APPLY,
    RunState.ENDED: "end",
    RunState.ABANDONED: "abandon",
    RunState.UNDONE: "undo",
}


class PlannedRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Say who made the plan of a run. `plan` is the SHA-256 of the file `plan.json`. `by_job`: a job of the server made
    it for that user, so no other process wrote it.
    """

    kind: RunKind
    by: str
    plan: str
    made_ms: int
    by_job: bool = False


class SweptRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """This commit's data was given up by this run, for ever; unless the run is UNDONE."""

    run: str


MOVES: Final[dict[type[StrEnum], dict[StrEnum, frozenset[StrEnum]]]] = {
    RefState: {
        RefState.CREATING: frozenset({RefState.ACTIVE}),
        RefState.ACTIVE: frozenset({RefState.SUSPENDED}),
        RefState.SUSPENDED: frozenset({RefState.ACTIVE}),
    },
    SliceState: {
        SliceState.OPEN: frozenset({SliceState.FENCED, SliceState.CLOSED}),
        SliceState.FENCED: frozenset({SliceState.CLOSED}),
        SliceState.CLOSED: frozenset(),
    },
    UploadState: {
        UploadState.ISSUED: frozenset({UploadState.LINKING, UploadState.EXPIRED}),
        UploadState.LINKING: frozenset({UploadState.ISSUED, UploadState.LINKED, UploadState.REVOKED}),
        UploadState.LINKED: frozenset(),
        UploadState.EXPIRED: frozenset(),
        UploadState.REVOKED: frozenset({UploadState.LINKED}),
    },
    CopyState: {
        CopyState.PENDING: frozenset({CopyState.DONE, CopyState.REVOKED}),
        CopyState.DONE: frozenset(),
        CopyState.REVOKED: frozenset({CopyState.DONE}),
    },
}
"""From each state, the states that a `set_if` may go to. A freeze ends REVOKED records as finished ones."""


# Commits in memory

COMMITS_MAX: Final = 50_000
BYTES_MAX: Final = 64 << 20
RECORD_BYTES: Final = 800
"""The bytes of a commit in memory besides its message and metadata, which may have 250,000."""


class CommitCache:
    """The commit records that were read last; the least recently used go first, by count and by size.

    A commit never changes once it is written, but for a note. So no time bounds them.
    """

    __slots__ = ("_commits", "_size_bytes")

    def __init__(self) -> None:
        self._commits: OrderedDict[CommitId, Commit] = OrderedDict()
        self._size_bytes = 0

    def get(self, commit_id: CommitId) -> Commit | None:
        commit = self._commits.get(commit_id)
        if commit is not None:
            self._commits.move_to_end(commit_id)
        return commit

    def keep(self, commit_id: CommitId, commit: Commit) -> Commit:
        """Keep the commit in place of an earlier one of its id, and return it."""
        former = self._commits.pop(commit_id, None)
        self._size_bytes += _size(commit) - (0 if former is None else _size(former))
        self._commits[commit_id] = commit
        while len(self._commits) > COMMITS_MAX or self._size_bytes > BYTES_MAX:
            self._size_bytes -= _size(self._commits.popitem(last=False)[1])
        return commit


def _size(commit: Commit) -> int:
    size = RECORD_BYTES + len(commit.message)
    for key, value in commit.metadata.items():
        size += len(key) + len(value)
    return size
