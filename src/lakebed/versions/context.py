"""Ports, caches and typed records of one repository: all that the parts of `Versions` share.

A flow may read a branch record in three ways, and the choice is part of its proof (docs/design/protocols.md):

    cached       up to `Options.branch_cache_ms` old
    fresh        read after the call began; all that wait for the same branch share the read
    consistent   look, then look whether the record is still the same

Commit records never change once written (but for a note), so they are cached without limit of time (`CommitCache`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from msgspec.structs import replace

from lakebed.base import (
    EMPTY_METARANGE,
    BranchName,
    CommitId,
    MetarangeId,
    OutcomeUnknown,
    Ports,
    RepositoryUid,
    StagingToken,
    Unavailable,
)
from lakebed.kv import SCAN_PAGE, AmortizedReads, Held, Page, Predicate, PredicateFailed, Store, prefix_end, scan_prefix
from lakebed.objectstore import ObjectStore

from . import keys
from .errors import BranchNotFound, CommitNotFound
from .history.ancestors import Ancestors
from .records import (
    BranchRecord,
    ClaimReason,
    ClaimRecord,
    Commit,
    CommitCache,
    CopyRecord,
    DeletedRefRecord,
    IntentRecord,
    Record,
    RefState,
    SliceRecord,
    SweptRecord,
    TagRecord,
    UploadRecord,
    decode_record,
    decode_records,
    encode_record,
)
from .trees import Trees

T = TypeVar("T")
_HAVE_EVENTS: Final = (keys.BRANCH, keys.TAG, keys.PULL, keys.PLANNED, keys.RUN)
_TOUCHED_MAX: Final = 1_000
"""To look at more records one by one costs as much as to read all of them."""
R = TypeVar("R", bound=Record)

LayAside: TypeAlias = Callable[
    [MetarangeId, Sequence[StagingToken], MetarangeId, bytes, bool], Awaitable[MetarangeId | None]
]
"""`Committer.lay` in another process, with its arguments. None: no process does it now, so do it here."""

LOST_MAX = 8
BRANCHES_CACHED_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`owner` names this server instance in slice records. Ages bound garbage and staleness, never safety."""

    owner: str = "lakebed"
    branch_cache_ms: int = 500
    slice_age_ms_max: int = 3_600_000
    slice_size_max: int = 10_000
    claim_age_ms_max: int = 900_000
    creating_age_ms_max: int = 900_000
    upload_ttl_ms: int = 3_600_000 * 24
    deleted_refs_ms: int = 7 * 86_400_000
    reflog_age_ms_max: int = 90 * 86_400_000
    events_age_ms_max: int = 7 * 86_400_000
    # Events that are written under one key, at most 16 (commits/outbox.py).
    events_together: int = 16
    # A file of a table that nothing names is pruned at this age.
    tables_ms: int = 3 * 86_400_000
    scan_page: int = 5_000


@dataclass(frozen=True, slots=True)
class Seen:
    """A branch as it was read."""

    record: BranchRecord
    held: Held

    def is_same(self, other: Seen) -> bool:
        return self.held.value == other.held.value


class Retry:
    """Counts the answers that one flow lost.

    A store that loses one after the other (a disk whose every sync fails) is broken. Without a limit a flow would only
    start again and never report it.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = LOST_MAX

    def lost(self, error: OutcomeUnknown) -> None:
        """
        Raises:
            OutcomeUnknown: `error`, when it is the last of LOST_MAX.
        """
        self._left -= 1
        if not self._left:
            raise error


class Context:
    """One repository, as the parts see it. Users of the package use `Versions`."""

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
        self.options = options or Options()
        self.lay_aside = lay_aside
        self.partition = keys.repository_partition(uid)
        self._reads = AmortizedReads(store, self.partition, ports.tasks)
        self.touched: set[bytes] | None = None
        """Keys of the refs, pull requests and runs that this process wrote since it last looked for events
        (commits/outbox.py). None: it has not looked, or wrote many since.
        """
        self.branches = BranchRecords(self)
        self.commits = CommitRecords(self)

    # Records of the repository's partition

    async def get(self, key: bytes) -> Held | None:
        return await self.store.get(self.partition, key)

    async def get_many(self, record_keys: Sequence[bytes]) -> list[Held | None]:
        return await self.store.get_many(self.partition, record_keys)

    async def get_shared(self, key: bytes) -> Held | None:
        """Read after this call began; calls that wait together share one read."""
        return await self._reads.get(key)

    async def read(self, kind: type[R], key: bytes) -> tuple[R, Held] | None:
        """Decode the answer of `get_shared`."""
        held = await self._reads.get(key)
        return None if held is None else (decode_record(kind, held.value), held)

    async def records(self, kind: type[R], prefix: bytes, *, start: bytes = b"") -> AsyncIterator[tuple[bytes, R]]:
        """Yield every record under this prefix at or after `start`, ascending."""
        async for key, value in scan_prefix(self.store, self.partition, prefix, start=start):
            yield key, decode_record(kind, value)

    async def scan(self, prefix: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield every key and value under this prefix, ascending."""
        async for key, value in scan_prefix(self.store, self.partition, prefix):
            yield key, value

    async def set(self, key: bytes, record: Record) -> None:
        try:
            await self.store.set(self.partition, key, encode_record(record))
        finally:
            self.touch(key)

    async def set_all(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Write them all, in one call."""
        if len(items) == 1:
            await self.store.set(self.partition, *items[0])
        else:
            await self.store.set_many(self.partition, items)

    async def set_own(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Write records under keys that this attempt made, again where an answer is lost: twice the same is once.

        Only where it does no harm that one comes late, when another flow has removed it.
        """
        retry = Retry()
        while True:
            try:
                return await self.set_all(items)
            except OutcomeUnknown as error:
                retry.lost(error)

    async def delete(self, key: bytes) -> None:
        await self.store.delete(self.partition, key)

    async def set_if(self, key: bytes, value: bytes, predicate: Predicate | None) -> Held:
        """Write exactly over the record that was read. The caller handles the errors."""
        try:
            return Held(value, await self.store.set_if(self.partition, key, value, predicate))
        finally:
            self.touch(key)

    async def delete_if(self, key: bytes, predicate: Predicate) -> None:
        try:
            await self.store.delete_if(self.partition, key, predicate)
        finally:
            self.touch(key)

    def touch(self, key: bytes) -> None:
        """Have the next look for events read this record. Call it after a write, whatever its answer: who looks before
        does not see it.
        """
        if self.touched is not None and key.startswith(_HAVE_EVENTS):
            self.touched.add(key)
            if len(self.touched) > _TOUCHED_MAX:
                self.touched = None

    async def after_lost(self, look: Awaitable[T]) -> T:
        """Look for a write whose answer was lost.

        Raises:
            OutcomeUnknown: the store did not answer. Its own error would say that nothing happened.
        """
        try:
            return await look
        except Unavailable as error:
            raise OutcomeUnknown(
                f"an answer was lost, and the store cannot be asked: {error}", **error.facts
            ) from error

    # Tokens

    def token_partition(self, token: StagingToken) -> bytes:
        return keys.token_partition(self.uid, token)

    def fresh_token(self) -> StagingToken:
        return StagingToken(self.ports.ids.fresh())

    async def claim(
        self,
        operation: str,
        attempt: int,
        branch: str,
        tokens: Iterable[str],
        commit_id: CommitId | None = None,
        *,
        why: ClaimReason,
        building: bool = False,
        also: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Write, under a key of its own, that this attempt may take these tokens. Always before the attempt.

        `also` are other records that have to be there before it.
        """
        record = ClaimRecord(
            branch=branch,
            tokens=tuple(tokens),  # type: ignore[arg-type]  # StagingToken is a str at run time
            commit_id=commit_id,
            building=building,
            why=why,
            created_ms=self.ports.clock.now_ms(),
        )
        # One that comes late names tokens that no branch takes back. The cleaner looks, and removes it.
        await self.set_own([(keys.CLAIM + f"{operation}/{attempt:04d}".encode(), encode_record(record)), *also])


class BranchRecords:
    """Branch records, read and replaced."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cache: dict[str, tuple[Seen, int]] = {}

    def known(self, branch: str) -> Seen | None:
        """Return the cached record, unless it is too old."""
        cached = self._cache.get(branch)
        context = self._context
        if cached is not None and 0 <= context.ports.clock.now_ms() - cached[1] < context.options.branch_cache_ms:
            return cached[0]
        return None

    async def cached(self, branch: str) -> Seen:
        """
        Raises:
            BranchNotFound: the last look found none.
        """
        return self.known(branch) or await self.fresh(branch)

    async def fresh(self, branch: str) -> Seen:
        """
        Raises:
            BranchNotFound: there is none, it is being made, or its repository is deleted.
        """
        held = await self._context.get_shared(keys.BRANCH + branch.encode())
        if held is None:
            self._cache.pop(branch, None)
            raise BranchNotFound(f"branch {branch} not found", branch=branch)
        cached = self._cache.get(branch)
        if cached is not None and cached[0].held.value == held.value:
            seen = cached[0] if cached[0].held.predicate == held.predicate else Seen(cached[0].record, held)
        else:
            seen = Seen(decode_record(BranchRecord, held.value), held)
        if seen.record.state is not RefState.ACTIVE:
            raise BranchNotFound(f"branch {branch} is {seen.record.state}", branch=branch)
        self._remember(branch, seen)
        return seen

    async def used(self, branch: str) -> Seen:
        """Return `fresh` for a writer that is about to acknowledge its cell, and take a sweep's mark off the branch.

        Raises:
            BranchNotFound: as `fresh`.
        """
        retry = Retry()
        while True:
            seen = await self.fresh(branch)
            if not seen.record.leaving:
                return seen
            # The sweep may have looked before the cell was there. It ends, for the record that it marked is gone.
            try:
                return await self.set(branch, replace(seen.record, leaving=""), seen)
            except PredicateFailed:
                continue
            except OutcomeUnknown as error:
                retry.lost(error)

    def _remember(self, branch: str, seen: Seen) -> None:
        if len(self._cache) >= BRANCHES_CACHED_MAX:
            self._cache.clear()
        self._cache[branch] = (seen, self._context.ports.clock.now_ms())

    def forget(self, branch: str) -> None:
        self._cache.pop(branch, None)

    async def set(self, branch: str, record: BranchRecord, seen: Seen) -> Seen:
        """Replace exactly the record that was `seen`. The caller handles the errors."""
        if record.commit_id != seen.record.commit_id:
            await self._context.commits.note_head(seen.record.commit_id)
        value = encode_record(record)
        # Forget first: if the write fails or its answer is lost, the cached record may be out of date.
        self.forget(branch)
        held = await self._context.set_if(keys.BRANCH + branch.encode(), value, seen.held.predicate)
        now = Seen(record, held)
        self._remember(branch, now)
        return now

    async def consistent(self, branch: str, look: Callable[[BranchRecord], Awaitable[T]]) -> T:
        """Return the result of `look` in one state of the branch: document 002's reader.

        Look, then read the record again. If it changed, start again with the new one.
        """
        seen = await self.cached(branch)
        while True:
            result = await look(seen.record)
            again = await self.fresh(branch)
            # Compare the whole record: a merge moves only the head, and a commit without change only takes tokens.
            if again.is_same(seen):
                return result
            seen = again

    async def every(self) -> list[tuple[BranchName, BranchRecord]]:
        """Return every branch record in order of name, `creating` ones too: they are roots."""
        return [(branch_of(key), record) async for key, record in self._context.records(BranchRecord, keys.BRANCH)]


class CommitRecords:
    """Commit records, read, cached and written."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cache = CommitCache()
        self.ancestors = Ancestors(self.read, self.read_many)

    async def read(self, commit_id: CommitId) -> Commit:
        """Return the record, published or not.

        Raises:
            CommitNotFound: there is none.
        """
        commit = self._cache.get(commit_id)
        if commit is None:
            held = await self._context.get(keys.COMMIT + commit_id.encode())
            if held is None:
                raise CommitNotFound("commit not found", commit=commit_id)
            commit = self._cache.keep(commit_id, decode_record(Commit, held.value))
        return commit

    async def read_many(self, ids: Sequence[CommitId]) -> dict[CommitId, Commit]:
        """Return the records of these commits, without those that are missing. Costs one `get_many` or nothing."""
        cached = {id_: commit for id_ in ids if (commit := self._cache.get(id_)) is not None}
        wanted = [id_ for id_ in ids if id_ not in cached]
        if not wanted:
            return cached
        found = await self._context.get_many([keys.COMMIT + id_.encode() for id_ in wanted])
        there = [(id_, held.value) for id_, held in zip(wanted, found, strict=True) if held is not None]
        commits = decode_records(Commit, [value for _, value in there])
        for (id_, _), commit in zip(there, commits, strict=True):
            cached[id_] = self._cache.keep(id_, commit)
        return cached

    async def read_published(self, commit_id: CommitId) -> Commit:
        """
        Raises:
            CommitNotFound: there is none, or no branch ever took it.
        """
        commit = await self.read(commit_id)
        if not commit.published and not await self.is_published(commit_id):
            raise CommitNotFound("commit not found", commit=commit_id)
        return commit

    async def metarange(self, commit_id: CommitId) -> MetarangeId:
        return (await self.read(commit_id)).metarange_id if commit_id else EMPTY_METARANGE

    async def write(self, commit: Commit, *, also: Sequence[tuple[bytes, bytes]] = ()) -> CommitId:
        """Write the record, and `also` others that have to be there before the commit is published."""
        commit_id = commit.id
        await self._context.set_all([(keys.COMMIT + commit_id.encode(), encode_record(commit)), *also])
        self._cache.keep(commit_id, commit)
        return commit_id

    async def is_published(self, commit_id: CommitId) -> bool:
        """Answer whether a branch took this commit.

        One look, unless the process that made it died before it could note it.
        """
        commit, _ = await self._latest(commit_id)
        if commit.published:
            return True
        # Never noted: the history it was made for decides.
        try:
            head = (await self._context.branches.fresh(commit.made_for)).record.commit_id
        except BranchNotFound:
            return False
        if not await self.is_in_chain(commit_id, commit.generation, head):
            return False
        await self.note_published(commit_id, commit)
        return True

    async def note_published(self, commit_id: CommitId, commit: Commit) -> None:
        """Note that a branch took the commit. Never fails: a commit that was published must not fail for its note."""
        noted = replace(commit, published=True, tried=False)
        # The note only spares later callers a walk along the branch.
        with suppress(Unavailable, OutcomeUnknown):
            await self._context.set(keys.COMMIT + commit_id.encode(), noted)
            # Not before: a note that is only remembered here would keep `note_head` from writing it.
            self._cache.keep(commit_id, noted)

    async def note_head(self, commit_id: CommitId) -> None:
        """Note that a branch took the commit that is its head, before the branch moves or goes.

        Afterwards no history may show it, and it could be found no more. Costs nothing where the cached record has the
        note. It lacks the note if the process of its committer died, or the store failed.
        """
        commit, held = await self._latest(commit_id)
        if commit.published or held is None:
            return
        noted = replace(commit, published=True, tried=False)
        # Noted meanwhile, maybe with a later time from which retention counts: then leave it.
        with suppress(PredicateFailed):
            await self._context.set_if(keys.COMMIT + commit_id.encode(), encode_record(noted), held.predicate)
            self._cache.keep(commit_id, noted)

    async def remove_unpublished(self, commit_id: CommitId) -> None:
        """Remove the record of a commit that was tried and has no note. The caller knows that no branch has it."""
        held = await self._context.get(keys.COMMIT + commit_id.encode())
        if held is None or not decode_record(Commit, held.value).tried:
            return
        # As it was read: who moves a branch away from a commit notes it first.
        with suppress(PredicateFailed):
            await self._context.delete_if(keys.COMMIT + commit_id.encode(), held.predicate)

    async def _latest(self, commit_id: CommitId) -> tuple[Commit, Held | None]:
        """Return the record, and its value in the store where that was read.

        Raises:
            CommitNotFound: there is none.
        """
        commit = await self.read(commit_id)
        # A cached record may be older than the note that a branch took the commit.
        held = None if commit.published else await self._context.get(keys.COMMIT + commit_id.encode())
        return commit if held is None else self._cache.keep(commit_id, decode_record(Commit, held.value)), held

    async def is_in_chain(self, commit_id: CommitId, generation: int, head: CommitId) -> bool:
        """Answer whether `commit_id` is `head` or a first-parent ancestor of it."""
        start = (head, await self.read(head))
        return (await self.ancestors.up(start, generation=generation, past_merges=True))[0] == commit_id


_PREFIXES: Final[dict[type[Record], bytes]] = {
    BranchRecord: keys.BRANCH,
    TagRecord: keys.TAG,
    IntentRecord: keys.INTENT,
    Commit: keys.COMMIT,
    SliceRecord: keys.SLICE,
    UploadRecord: keys.UPLOAD,
    CopyRecord: keys.COPY,
    SweptRecord: keys.SWEPT,
    DeletedRefRecord: keys.DELETED,
}


@dataclass(frozen=True, slots=True)
class RecordPage(Generic[R]):
    """Consecutive records of one kind. `next_start` begins the next page; None after the last."""

    names: list[str]
    records: list[R]
    next_start: bytes | None

    def __iter__(self) -> Iterator[tuple[str, R]]:
        return zip(self.names, self.records, strict=True)


class Inventory:
    """Read records and cells in bulk, as collectors do: always from the store, never from a cache.

    A name is the rest of a record's key after the prefix: a branch's or tag's name, an address, an id.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    async def page(
        self, kind: type[R], start: bytes = b"", limit: int = SCAN_PAGE, *, of: type[Record] | None = None
    ) -> RecordPage[R]:
        """Return records from `start` on, a `next_start` of the page before. `of`: decode those of another kind."""
        prefix = _PREFIXES[of or kind]
        found = await self._context.store.scan(self._context.partition, start or prefix, limit)
        # Nearly all pages are whole.
        is_whole = not found.keys or found.keys[-1].startswith(prefix)
        mine = len(found.keys) if is_whole else bisect_left(found.keys, prefix_end(prefix) or b"")
        names = [key[len(prefix) :].decode() for key in found.keys[:mine]]
        is_last = mine < len(found.keys) or found.next_start is None
        return RecordPage(names, decode_records(kind, found.values[:mine]), None if is_last else found.next_start)

    async def pages(self, kind: type[R], *, of: type[Record] | None = None) -> AsyncIterator[RecordPage[R]]:
        """Yield every record of this kind by the page. 3 µs for a commit."""
        start: bytes | None = b""
        while start is not None:
            page = await self.page(kind, start, of=of)
            yield page
            start = page.next_start
            if start is not None:
                await self._context.ports.clock.sleep(0)  # An embedded store reads without ever waiting.

    async def every(self, kind: type[R]) -> AsyncIterator[tuple[str, R]]:
        """Yield the name and record of everything of this kind, in order of name."""
        async for page in self.pages(kind):
            for named in page:
                yield named

    async def find(self, kind: type[R], name: str) -> R | None:
        held = await self._context.get(_PREFIXES[kind] + name.encode())
        return None if held is None else decode_record(kind, held.value)

    async def next_branches(self, after: str, limit: int) -> list[tuple[str, BranchRecord]]:
        """Return up to `limit` branches behind this name, ascending, with their records. None: there is none."""
        # The least name behind `after` is `after` and a zero byte: `a-b` follows `a`, and sorts before `a/`.
        start = keys.BRANCH + after.encode() + (b"\0" if after else b"")
        page = await self.page(BranchRecord, start, limit)
        return list(zip(page.names, page.records, strict=True))

    async def cells(self, token: StagingToken, start: bytes, limit: int) -> Page:
        return await self._context.store.scan(self._context.token_partition(token), start, limit)

    async def commits(self, ids: Sequence[CommitId]) -> list[Commit | None]:
        """Return the records of these commits, in their order; None where there is none."""
        found = await self._context.get_many([keys.COMMIT + id_.encode() for id_ in ids])
        return [None if held is None else decode_record(Commit, held.value) for held in found]


def branch_of(key: bytes) -> BranchName:
    """Return the name in a `branch/<name>` key."""
    return BranchName(key[len(keys.BRANCH) :].decode())
