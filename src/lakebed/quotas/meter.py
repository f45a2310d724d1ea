"""Admit writes within quotas, without a request to the store for most of them.

A process takes a *grant* from the record of a quota by `set_if`, and admits writes from it. Bytes used and granted
never exceed the limit, so no process admits a byte too many. A write is refused too early by the writes in flight, and
by the unused grants of other processes: at most a 1024th of the limit each, given back once idle.

    reserve   from the grant; with too little left: 1 read the record   2 `set_if`: what ended is used, a larger grant
    keep      the bytes are stored, or may be       give_back   they are not, and none can come
    settle    what ended is used, and the rest of the grant goes back: by upkeep, and when the process stops
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from lakebed.base import Denied, Event, LakebedError, OutcomeUnknown, Ports, RepositoryUid, Unavailable
from lakebed.kv import Held, PredicateFailed, Store
from lakebed.versions import Record, decode_record, encode_record, keys

QUOTA: Final = b"quota/"
USERS_PARTITION: Final = b"auth"
"""The partition of users: a backup takes both."""
DEAD_MS: Final = 15 * 60_000
"""A grant that is older counts as used. Its process is dead, or stalled: a live one asks again each minute."""
CACHE_MS: Final = 5_000
"""A process uses a record that it read for so long. Then a new quota, or another limit, holds everywhere."""
GRANT_BYTES_MAX: Final = 16 << 20
GRANT_SHARE: Final = 1024
SCOPES_MAX: Final = 10_000


class Scope(NamedTuple):
    """Name what a quota is of. `title` is for messages."""

    partition: bytes
    key: bytes
    title: str


def of_repository(uid: RepositoryUid) -> Scope:
    return Scope(keys.repository_partition(uid), QUOTA + b"repository", "the repository")


def of_branch(uid: RepositoryUid, branch: str) -> Scope:
    return Scope(keys.repository_partition(uid), QUOTA + b"branch/" + branch.encode(), f"branch {branch}")


def of_user(user_id: str) -> Scope:
    return Scope(USERS_PARTITION, QUOTA + b"user/" + user_id.encode(), f"user {user_id}")


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that a process may admit without asking again. `at_ms`: when it last asked."""

    size_bytes: int
    at_ms: int
    # The part of what it admitted since its first grant that `used_bytes` has. So an answer that was lost, and a
    # settlement that is repeated, count nothing twice.
    spent_bytes: int = 0


class QuotaRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A quota. `used_bytes` were written, and `grants` may have been: the sum is never over the limit by a grant.

    `counting` names the count under way, which was alive at `counting_ms`; `since_bytes` were settled since it began.
    """

    limit_bytes: int
    used_bytes: int = 0
    grants: dict[str, Grant] = msgspec.field(default_factory=dict)
    set_ms: int = 0
    set_by: str = ""
    counting: str = ""
    counting_ms: int = 0
    since_bytes: int = 0
    # When the last one ended, 0: never.
    counted_ms: int = 0
    # Objects were deleted since.
    is_stale: bool = False

    def alive(self, now_ms: int) -> dict[str, Grant]:
        return {owner: grant for owner, grant in self.grants.items() if now_ms - grant.at_ms < DEAD_MS}

    @property
    def granted_bytes(self) -> int:
        return sum(grant.size_bytes for grant in self.grants.values())


async def read(store: Store, scope: Scope) -> tuple[QuotaRecord, Held] | None:
    held = await store.get(scope.partition, scope.key)
    return None if held is None else (decode_record(QuotaRecord, held.value), held)


async def replace_record(store: Store, scope: Scope, record: QuotaRecord, held: Held | None) -> None:
    """Write over exactly what was read.

    Raises:
        PredicateFailed: it is another by now.
        OutcomeUnknown: an answer was lost, and the record is not this one.
    """
    value = encode_record(record)
    try:
        await store.set_if(scope.partition, scope.key, value, held.predicate if held else None)
    except OutcomeUnknown as error:
        try:
            now = await store.get(scope.partition, scope.key)
        except Unavailable:
            raise error from None  # Its own error would say that nothing happened.
        if now is None or now.value != value:
            raise


class QuotaExceeded(Denied):
    """A quota has no room for this write. Facts: `limit_bytes`, `used_bytes`."""


@dataclass(slots=True)
class Account:
    """The state of a quota in this process. `granted` covers what is `flying`, and what was `spent` and not `settled`.

    `generation` changes when the grant is no longer ours: writes that it admitted are counted with it.
    """

    has_quota: bool = False
    asked_ms: int | None = None
    granted: int = 0
    spent: int = 0
    settled: int = 0
    flying: int = 0
    generation: int = 0
    asking: Event | None = None
    owner: str = ""
    """The name of its grant. A lost one's is never used again."""

    @property
    def left(self) -> int:
        return self.granted - (self.spent - self.settled) - self.flying

    def is_idle(self, now_ms: int) -> bool:
        """Return whether the record was not read for a while, or ever."""
        return self.asked_ms is None or not 0 <= now_ms - self.asked_ms < CACHE_MS

    def lose_grant(self) -> None:
        self.granted = self.spent = self.settled = self.flying = 0
        self.generation += 1
        self.owner = ""


class Reservation:
    """Bytes that a write may bring. End it once, by `keep` or `give_back`, or by a `with` around the write.

    `is_stored`: some are stored, so that an error gives none back.
    """

    __slots__ = ("_meter", "_scopes", "_taken", "is_stored")

    def __init__(self, meter: Meter, scopes: Sequence[Scope]) -> None:
        self._meter = meter
        self._scopes = scopes
        self._taken: list[tuple[Account, int, int]] = []
        self.is_stored = False

    async def more(self, size_bytes: int) -> None:
        """Reserve more.

        Raises:
            QuotaExceeded.
        """
        # A client may state the size of what it stored. One below zero would make room for others.
        size_bytes = max(size_bytes, 0)
        for scope in self._scopes:
            account = await self._meter.take(scope, size_bytes)
            if account is not None:
                self._taken.append((account, account.generation, size_bytes))

    def stored(self) -> None:
        """Bytes are stored: from now on an error gives none back."""
        self.is_stored = True

    async def store(self, size_bytes: int) -> Callable[[], None]:
        """Reserve more, for bytes that are stored right after. Return what to call then.

        Raises:
            QuotaExceeded.
        """
        await self.more(size_bytes)
        return self.stored

    async def metered(self, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Yield chunks, each after it was reserved."""
        async for chunk in chunks:
            await self.more(len(chunk))
            yield chunk

    def keep(self) -> None:
        """The bytes are stored, or may be."""
        for account, generation, size_bytes in self._taken:
            if account.generation == generation:
                account.flying -= size_bytes
                account.spent += size_bytes
        self._taken.clear()

    def give_back(self) -> None:
        """The bytes are not stored, and none can come."""
        for account, generation, size_bytes in self._taken:
            if account.generation == generation:
                account.flying -= size_bytes
        self._taken.clear()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        # Cancelled, or without a clear answer, the bytes may yet come: they count.
        is_clear = isinstance(error, Exception) and not isinstance(error, OutcomeUnknown | Unavailable | TimeoutError)
        if is_clear and not self.is_stored:
            self.give_back()
        else:
            self.keep()


class Meter:
    """One for each process."""

    def __init__(self, store: Store, ports: Ports) -> None:
        self.store = store
        self.ports = ports
        self._accounts: dict[Scope, Account] = {}

    async def reserve(self, scopes: Sequence[Scope], size_bytes: int) -> Reservation:
        """Reserve bytes in each of the scopes that has a quota.

        Raises:
            QuotaExceeded: one of them has no room. Nothing is reserved.
        """
        reservation = Reservation(self, scopes)
        try:
            await reservation.more(size_bytes)
        except BaseException:
            reservation.give_back()
            raise
        return reservation

    async def take(self, scope: Scope, size_bytes: int) -> Account | None:
        """Reserve bytes in one scope. None: it has no quota."""
        while True:
            # Looked up again after each wait: a settlement may have dropped it meanwhile, and then settles it no more.
            account = self._accounts.get(scope) or self._open(scope)
            if account.asking is not None:
                await account.asking.wait()
                continue
            if not account.is_idle(self.ports.clock.now_ms()):
                if not account.has_quota:
                    return None
                if size_bytes <= account.left:
                    account.flying += size_bytes
                    return account
            await self._alone(account, scope, size_bytes)

    def forget(self, scope: Scope) -> None:
        """Read the record again before the next write: it was changed through this process."""
        if scope in self._accounts:
            self._accounts[scope].asked_ms = None

    async def settle(self, *, is_stopping: bool = False) -> None:
        """Give back grants that are not in use; when the process stops, all."""
        for scope, account in list(self._accounts.items()):
            is_idle = account.is_idle(self.ports.clock.now_ms())
            if account.asking is None and (is_idle or is_stopping) and account.granted:
                try:
                    await self._alone(account, scope, None)
                except LakebedError:
                    continue  # The next pass tries again. After DEAD_MS the grant counts as used.
            elif account.asking is None and is_idle and self._accounts.get(scope) is account:
                del self._accounts[scope]

    def _open(self, scope: Scope) -> Account:
        if len(self._accounts) >= SCOPES_MAX:
            # Those without a grant have nothing to lose.
            kept = {key: one for key, one in self._accounts.items() if one.granted or one.asking is not None}
            self._accounts = kept
        return self._accounts.setdefault(scope, Account())

    async def _alone(self, account: Account, scope: Scope, wanted: int | None) -> None:
        """Ask for more, or settle with None. Writes of the same scope wait meanwhile."""
        account.asking = asking = self.ports.tasks.event()
        try:
            await self._ask(account, scope, wanted)
        finally:
            account.asking = None
            asking.set()

    async def _ask(self, account: Account, scope: Scope, wanted: int | None) -> None:
        """
        Raises:
            QuotaExceeded: there is no room for these bytes.
        """
        while True:
            found = await read(self.store, scope)
            now_ms = self.ports.clock.now_ms()
            account.has_quota = found is not None
            if found is None:
                account.lose_grant()
                account.asked_ms = now_ms
                return
            record, held = found
            grants = record.alive(now_ms)
            mine = grants.pop(account.owner, None)
            if mine is None:
                # Our first one, or it counts as used, with all that it admitted.
                account.lose_grant()
            else:
                account.settled = mine.spent_bytes
            dead = sum(grant.size_bytes for grant in record.grants.values() if now_ms - grant.at_ms >= DEAD_MS)
            spent, size_bytes = account.spent, account.flying
            used = spent - account.settled + dead
            if wanted is not None:
                granted = sum(grant.size_bytes for grant in grants.values())
                size_bytes += _grant(record, used + granted + size_bytes, wanted, scope)
            if size_bytes:
                account.owner = account.owner or self.ports.ids.fresh()
                grants[account.owner] = Grant(size_bytes, now_ms, spent)
            value = encode_record(_settled(record, used, grants))
            try:
                await self.store.set_if(scope.partition, scope.key, value, held.predicate)
            except (PredicateFailed, OutcomeUnknown):
                continue  # Whether it came or not, the record says now how many of our spent bytes are settled.
            # What ended meanwhile moved from `flying` to `spent`: the new grant covers it.
            account.settled, account.granted, account.asked_ms = spent, size_bytes, now_ms
            if not size_bytes:
                account.lose_grant()
            return


def _grant(record: QuotaRecord, taken: int, wanted: int, scope: Scope) -> int:
    """Return how many bytes to take: more than wanted, where there is room.

    Raises:
        QuotaExceeded: there is none.
    """
    room = record.limit_bytes - record.used_bytes - taken
    if wanted and wanted > room:
        raise QuotaExceeded(
            f"the quota of {scope.title} has no room for {wanted:,} bytes: {record.limit_bytes:,} may be written, and"
            f" {record.used_bytes + taken:,} are, or are being written",
            limit_bytes=record.limit_bytes,
            used_bytes=record.used_bytes + taken,
        )
    return max(0, min(room, wanted + min(GRANT_BYTES_MAX, record.limit_bytes // GRANT_SHARE)))


def _settled(record: QuotaRecord, used: int, grants: dict[str, Grant]) -> QuotaRecord:
    return replace(
        record,
        used_bytes=record.used_bytes + used,
        since_bytes=record.since_bytes + used if record.counting else 0,
        grants=grants,
    )


class Charges:
    """Charge the writes of one repository to its own quota, to that of the branch, and to that of the user.

    A repository counts bytes that are stored in its namespace. A branch and a user count these and, of addresses
    elsewhere, the sizes that the entries have. Copies that move no bytes, and moves, count nothing.
    """

    def __init__(self, meter: Meter, uid: RepositoryUid) -> None:
        self._meter = meter
        self._uid = uid
        self._repository = of_repository(uid)

    async def reserve(self, branch: str, by: str, size_bytes: int, *, elsewhere: bool = False) -> Reservation:
        """Reserve the bytes of a write. `elsewhere`: none are stored in the namespace. Without a user none is charged.

        Raises:
            QuotaExceeded.
        """
        scopes = [of_branch(self._uid, branch)]
        if by:
            scopes.append(of_user(by))
        if not elsewhere:
            scopes.append(self._repository)
        return await self._meter.reserve(scopes, size_bytes)

    async def reserve_stored(self, size_bytes: int) -> Reservation:
        """Reserve bytes that are stored once more, and were charged to branch and user before."""
        return await self._meter.reserve([self._repository], size_bytes)

    async def check(self, branch: str, by: str) -> None:
        """Refuse a write whose size is not known yet, if nothing is left.

        Raises:
            QuotaExceeded.
        """
        (await self.reserve(branch, by, 1)).give_back()
