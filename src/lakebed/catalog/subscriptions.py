"""Subscriptions to the events of a repository: their targets, cursors and deliveries.

A subscription delivers each event after its cursor, in order, and moves the cursor after the receiver accepted it. So
every event is delivered at least once, and never before earlier ones. Two processes may deliver the same events. A
receiver that skips positions it has seen gets each event once.

    subscription/<id>   SubscriptionRecord      cursor/<id>   CursorRecord        (partition of the outbox)
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from msgspec.structs import replace

from lakebed.base import EventKind, Invalid, LakebedError, NotFound
from lakebed.kv import Held, PredicateFailed, scan_prefix
from lakebed.versions import EventRecord, Record, Versions, decode_record, encode_record

from .settings import check_patterns, matching

SUBSCRIPTION: Final = b"subscription/"
CURSOR: Final = b"cursor/"
SUBSCRIPTIONS_MAX: Final = 20
DELIVERED_TOGETHER: Final = 100
ERROR_CHARACTERS_MAX: Final = 500
TARGET_CHARACTERS_MAX: Final = 2_000
BUSY_MS: Final = 30_000
RETRY_MS: Final = 1_000
RETRY_MS_MAX: Final = 300_000

PositionedEvent: TypeAlias = tuple[int, EventRecord]
"""A position and its event."""


class SubscriptionNotFound(NotFound):
    """The repository has no such subscription."""


class DeliveryFailed(LakebedError):
    """A receiver did not accept events. They are delivered again later."""


class SubscriptionRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`refs`: patterns of branches and tags, `operations` and `kinds` of events. Empty selects all. The server sealed
    `secret`.
    """

    target: str
    refs: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    secret: bytes = b""
    created_ms: int
    created_by: str = ""

    def wants(self, event: EventRecord) -> bool:
        return is_wanted(event, refs=self.refs, operations=self.operations, kinds=self.kinds)


def is_wanted(event: EventRecord, *, refs: Sequence[str], operations: Sequence[str], kinds: Sequence[str]) -> bool:
    """Return whether an event is of one of each. Without any, all are."""
    if kinds and event.kind not in kinds:
        return False
    # A pull request is about a branch. A run is about none, so patterns leave it out.
    ref = event.name if event.kind.is_ref else event.about if event.kind is EventKind.PULL else ""
    is_named = not refs or (bool(ref) and matching(refs, ref) is not None)
    return is_named and (not operations or event.operation in operations)


class CursorRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Events up to `position` were delivered or filtered out. `failures`: consecutive failures, the last at
    `tried_ms`.

    `replay` is the id of the latest replay: a delivery that began before it does not move the cursor. Until
    `busy_until_ms` a process is delivering, and others wait. That clock only avoids duplicates, and correctness does
    not depend on it.
    """

    position: int
    replay: str = ""
    busy_until_ms: int = 0
    failures: int = 0
    error: str = ""
    tried_ms: int = 0
    delivered_ms: int = 0


class Send(Protocol):
    def __call__(
        self, subscription_id: str, subscription: SubscriptionRecord, events: Sequence[PositionedEvent], /
    ) -> Awaitable[None]:
        """Send these events, and return once the receiver has them.

        Raises:
            DeliveryFailed: it did not accept them, or the outcome is unknown.
        """
        ...


@dataclass(frozen=True, slots=True)
class Subscription:
    """`behind`: the number of events after its cursor. `missed`: how many of them were removed before delivery."""

    id: str
    record: SubscriptionRecord
    cursor: CursorRecord
    behind: int
    missed: int


class Subscriptions:
    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._outbox = versions.outbox
        self._store = versions.store
        self._partition = versions.outbox.partition
        self._ports = versions.ports

    async def create(
        self, subscription_id: str, record: SubscriptionRecord, *, after: int | None = None
    ) -> Subscription:
        """Deliver every event of a move that begins from now on, or the events `after` a position.

        Raises:
            Invalid: there are too many, or events at that position are not kept.
            TooManyPatterns: see `check_patterns`.
        """
        check_patterns(record.refs)
        if len(record.target) > TARGET_CHARACTERS_MAX:
            raise Invalid(f"a target has at most {TARGET_CHARACTERS_MAX:,} characters")
        if len(await self.records()) >= SUBSCRIPTIONS_MAX:
            raise Invalid(f"a repository has at most {SUBSCRIPTIONS_MAX} subscriptions")
        await self._outbox.start()
        end = await self._outbox.gather()
        if after is not None:
            await self._check_kept(after)
        cursor = CursorRecord(position=end if after is None else after)
        # Write the subscription last: the delivery begins with it.
        await self._store.set(self._partition, CURSOR + subscription_id.encode(), encode_record(cursor))
        await self._store.set(self._partition, SUBSCRIPTION + subscription_id.encode(), encode_record(record))
        # Look again after the write: of requests that come together, the last to look sees all of them.
        if len(await self.records()) > SUBSCRIPTIONS_MAX:
            await self.delete(subscription_id)
            raise Invalid(f"a repository has at most {SUBSCRIPTIONS_MAX} subscriptions")
        return await self.get(subscription_id)

    async def get(self, subscription_id: str) -> Subscription:
        """Return a subscription.

        Raises:
            SubscriptionNotFound: the repository has no such subscription.
        """
        held = await self._store.get(self._partition, SUBSCRIPTION + subscription_id.encode())
        cursor = await self._cursor(subscription_id)
        if held is None or cursor is None:
            raise SubscriptionNotFound(f"subscription {subscription_id} not found", subscription=subscription_id)
        oldest, end = await self._outbox.bounds()
        position = cursor[0].position
        return Subscription(
            id=subscription_id,
            record=decode_record(SubscriptionRecord, held.value),
            cursor=cursor[0],
            behind=max(end - position, 0),
            missed=max(oldest - 1 - position, 0),
        )

    async def list(self) -> Sequence[Subscription]:
        subscriptions = []
        for subscription_id, _ in await self.records():
            with suppress(SubscriptionNotFound):  # it was deleted meanwhile
                subscriptions.append(await self.get(subscription_id))
        return subscriptions

    async def records(self) -> Sequence[tuple[str, SubscriptionRecord]]:
        """Return each subscription without its cursor. Costs one scan."""
        return [
            (key[len(SUBSCRIPTION) :].decode(), decode_record(SubscriptionRecord, value))
            async for key, value in scan_prefix(self._store, self._partition, SUBSCRIPTION)
        ]

    async def delete(self, subscription_id: str) -> None:
        """Delete a subscription and its cursor.

        Raises:
            SubscriptionNotFound: the repository has no such subscription.
        """
        await self.get(subscription_id)
        await self._store.delete(self._partition, SUBSCRIPTION + subscription_id.encode())
        await self._store.delete(self._partition, CURSOR + subscription_id.encode())

    async def replay(self, subscription_id: str, after: int) -> Subscription:
        """Deliver the events after this position, again or in place of waiting events.

        Raises:
            SubscriptionNotFound: the repository has no such subscription.
            Invalid: events at the position are not kept, or do not exist yet.
        """
        await self._check_kept(after)
        while True:
            await self.get(subscription_id)
            cursor = await self._cursor(subscription_id)
            if cursor is None:
                continue  # The subscription was deleted meanwhile: the next look raises the error.
            if await self._moved(
                subscription_id, CursorRecord(position=after, replay=self._ports.ids.fresh()), cursor[1]
            ):
                return await self.get(subscription_id)

    async def events(self, *, after: int, limit: int) -> tuple[Sequence[PositionedEvent], bool]:
        """Return kept events after a position, and whether more follow."""
        found = await self._outbox.events(after, limit=limit + 1)
        return found[:limit], len(found) > limit

    async def deliver(self, subscription_id: str, record: SubscriptionRecord, send: Send) -> bool:
        """Deliver some of the waiting events, if it is time. Return whether there may be more to deliver at once."""
        found = await self._cursor(subscription_id)
        if found is None:
            return False
        cursor, held = found
        now_ms = self._ports.clock.now_ms()
        wait_ms = min(RETRY_MS * 2 ** min(cursor.failures, 20), RETRY_MS_MAX) if cursor.failures else 0
        is_busy = cursor.busy_until_ms - BUSY_MS <= now_ms < cursor.busy_until_ms
        if is_busy or cursor.tried_ms <= now_ms < cursor.tried_ms + wait_ms:
            return False
        events, has_more = await self.events(after=cursor.position, limit=DELIVERED_TOGETHER)
        if not events:
            return False
        wanted = [event for event in events if record.wants(event[1])]
        if wanted:
            busy = replace(cursor, busy_until_ms=now_ms + BUSY_MS)
            taken = await self._moved(subscription_id, busy, held)
            if taken is None:
                return False
            held = taken
        try:
            if wanted:
                await send(subscription_id, record, wanted)
        except DeliveryFailed as error:
            words = str(error)[:ERROR_CHARACTERS_MAX]
            failed = replace(cursor, failures=cursor.failures + 1, error=words, tried_ms=now_ms)
            await self._moved(subscription_id, failed, held)
            return False
        # Move the cursor after the receiver has them. If another process was faster, or a replay began, keep its
        # cursor.
        done = CursorRecord(position=events[-1][0], replay=cursor.replay, delivered_ms=now_ms)
        await self._moved(subscription_id, done, held)
        return has_more

    async def _check_kept(self, after: int) -> None:
        oldest, end = await self._outbox.bounds()
        if not oldest - 1 <= after <= end:
            raise Invalid(f"positions {oldest - 1} to {end} can be replayed from, not {after}", oldest=oldest, end=end)

    async def _cursor(self, subscription_id: str) -> tuple[CursorRecord, Held] | None:
        held = await self._store.get(self._partition, CURSOR + subscription_id.encode())
        return None if held is None else (decode_record(CursorRecord, held.value), held)

    async def _moved(self, subscription_id: str, cursor: CursorRecord, held: Held) -> Held | None:
        """Replace the cursor that was read. Return None if another process moved it, or it was removed."""
        key, value = CURSOR + subscription_id.encode(), encode_record(cursor)
        try:
            return Held(value, await self._store.set_if(self._partition, key, value, held.predicate))
        except PredicateFailed:
            return None
