"""The ground every flow stands on: one repository's ports, caches and typed access to its records.

Branch records are read in three ways, and which one a flow may use is part of its proof
(docs/design/protocols.md): `_cached` may be up to `Options.branch_cache_ms` old; `_fresh` began after the call did and
is shared by all that wait for the same branch; both give a `Seen`, whose predicate a `set_if` needs.
Commit records never change once written (but for a note), so they are cached without limit of time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

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
from lakebed.kv import Held, Store, scan_prefix
from lakebed.objectstore import ObjectStore

from . import keys
from .amortized import AmortizedReads
from .errors import BranchNotFound, CommitNotFound
from .records import BranchRecord, Commit, Record, RefState, decode_record, encode_record
from .trees import Trees

T = TypeVar("T")
R = TypeVar("R", bound=Record)


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
    scan_page: int = 5_000


@dataclass(frozen=True, slots=True)
class Seen:
    """A branch as it was read."""

    record: BranchRecord
    held: Held

    def is_same(self, other: Seen) -> bool:
        return self.held.value == other.held.value


LOST_MAX = 8
COMMITS_CACHED_MAX = 50_000
BRANCHES_CACHED_MAX = 10_000


class Patience:
    """Counts the answers that one flow lost. A store that loses one after the other (a disk whose every sync fails) is
    broken, and a flow that only ever started again would never say so.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = LOST_MAX

    def lost(self, error: OutcomeUnknown) -> None:
        """
        Raises:
            OutcomeUnknown: `error`, when it was the last that can be borne.
        """
        self._left -= 1
        if not self._left:
            raise error


class Repo:
    """One repository, as the flows see it. Not for users of the package: they use `Versions`."""

    def __init__(
        self,
        *,
        uid: RepositoryUid,
        store: Store,
        objectstore: ObjectStore,
        trees: Trees,
        ports: Ports,
        options: Options | None = None,
    ) -> None:
        self.uid = uid
        self.store = store
        self.objectstore = objectstore
        self.trees = trees
        self.ports = ports
        self.options = options or Options()
        self.partition = keys.repository_partition(uid)
        self._reads = AmortizedReads(store, self.partition, ports.tasks)
        self._branches: dict[str, tuple[Seen, int]] = {}
        self._commits: OrderedDict[CommitId, Commit] = OrderedDict()

    # Branch records

    async def _cached(self, branch: str) -> Seen:
        """
        Raises:
            BranchNotFound: there was none, when last looked.
        """
        cached = self._branches.get(branch)
        if cached is not None and 0 <= self.ports.clock.now_ms() - cached[1] < self.options.branch_cache_ms:
            return cached[0]
        return await self._fresh(branch)

    async def _fresh(self, branch: str) -> Seen:
        """
        Raises:
            BranchNotFound: there is none, or it is still being made.
        """
        held = await self._reads.get(keys.BRANCH + branch.encode())
        if held is None:
            self._branches.pop(branch, None)
            raise BranchNotFound(f"branch {branch} not found", branch=branch)
        cached = self._branches.get(branch)
        if cached is not None and cached[0].held.value == held.value:
            seen = Seen(cached[0].record, held)
        else:
            seen = Seen(decode_record(BranchRecord, held.value), held)
        if seen.record.state is not RefState.ACTIVE:
            raise BranchNotFound(f"branch {branch} is still being made", branch=branch)
        self._remember(branch, seen)
        return seen

    def _remember(self, branch: str, seen: Seen) -> None:
        if len(self._branches) >= BRANCHES_CACHED_MAX:
            self._branches.clear()
        self._branches[branch] = (seen, self.ports.clock.now_ms())

    async def _set_branch(self, branch: str, record: BranchRecord, seen: Seen) -> Seen:
        """Replace exactly the record that was `seen`. The caller knows what its errors mean."""
        value = encode_record(record)
        # Whatever comes of it, what the cache holds is not to be trusted any more.
        self._branches.pop(branch, None)
        predicate = await self.store.set_if(self.partition, keys.BRANCH + branch.encode(), value, seen.held.predicate)
        now = Seen(record, Held(value, predicate))
        self._remember(branch, now)
        return now

    async def _consistent(self, branch: str, look: Callable[[BranchRecord], Awaitable[T]]) -> T:
        """Document 002's reader: look, then look whether the record is still the same, else start again with the new.

        If *anything* changed: a merge moves only the head, and a commit without change only takes tokens.
        """
        seen = await self._cached(branch)
        while True:
            result = await look(seen.record)
            again = await self._fresh(branch)
            if again.is_same(seen):
                return result
            seen = again

    async def _after_lost(self, look: Awaitable[T]) -> T:
        """What a look tells of a write whose answer was lost.

        Raises:
            OutcomeUnknown: the store could not be asked. Its own error would say that nothing happened.
        """
        try:
            return await look
        except Unavailable as error:
            raise OutcomeUnknown(f"an answer was lost, and nobody can be asked: {error}", **error.facts) from error

    # Commit records

    async def _commit_record(self, commit_id: CommitId) -> Commit:
        """The record, published or not.

        Raises:
            CommitNotFound: there is none.
        """
        commit = self._commits.get(commit_id)
        if commit is None:
            held = await self.store.get(self.partition, keys.COMMIT + commit_id.encode())
            if held is None:
                raise CommitNotFound("commit not found", commit=commit_id)
            commit = self._keep_commit(commit_id, decode_record(Commit, held.value))
        return commit

    def _keep_commit(self, commit_id: CommitId, commit: Commit) -> Commit:
        if len(self._commits) >= COMMITS_CACHED_MAX:
            self._commits.popitem(last=False)
        self._commits[commit_id] = commit
        return commit

    async def _metarange(self, commit_id: CommitId) -> MetarangeId:
        return (await self._commit_record(commit_id)).metarange_id if commit_id else EMPTY_METARANGE

    # Any record

    async def _read(self, kind: type[R], key: bytes) -> tuple[R, Held] | None:
        """Amortised: as of some moment after the call began."""
        held = await self._reads.get(key)
        return None if held is None else (decode_record(kind, held.value), held)

    async def _records(self, kind: type[R], prefix: bytes, *, start: bytes = b"") -> AsyncIterator[tuple[bytes, R]]:
        """Every record under this prefix at or after `start`, ascending."""
        async for key, value in scan_prefix(self.store, self.partition, prefix, start=start):
            yield key, decode_record(kind, value)

    async def _set_record(self, key: bytes, record: Record) -> None:
        await self.store.set(self.partition, key, encode_record(record))

    def _token_partition(self, token: StagingToken) -> bytes:
        return keys.token_partition(self.uid, token)

    def _fresh_token(self) -> StagingToken:
        return StagingToken(self.ports.ids.fresh())


def branch_of(key: bytes) -> BranchName:
    """The name in a `branch/<name>` key."""
    return BranchName(key[len(keys.BRANCH) :].decode())
