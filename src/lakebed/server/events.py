"""Do the server's part of events: gather them where there are subscriptions, and deliver them to webhooks and brokers.

Every process works on every repository. A delivery that begins notes it in its cursor, so that mostly one process
sends; were two to send, the receiver sees events twice. Commits know nothing of this, and never wait for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from lakebed.auth import ServerKeys
from lakebed.base import LakebedError, Ports
from lakebed.catalog import Catalog, DeliveryFailed, PositionedEvent, Repository, RepositoryNotFound, SubscriptionRecord
from lakebed.hooks import AT_ONCE_MAX, HookOptions, request
from lakebed.server.brokers import SEND_S, Brokers
from lakebed.versions import Look
from lakebed.wire import Delivery, Event

logger = logging.getLogger(__name__)

TICK_S: Final = 1.0
ASK_S: Final = 60.0
"""Seconds between two looks for subscriptions in all repositories. The process that made one knows it at once."""
WHOLE_S: Final = 300.0
"""Seconds between two readings of the log of every ref, for refs that were made and deleted between two looks."""
BEGINS_S: Final = 2 * ASK_S
"""Seconds in which a process looks at every record, beginning when it knows of the first subscription: others may not
know yet, or may have ended before they looked."""
LAST_S: Final = 2.0
"""The most that a process waits for its last look when it ends."""
BACK_OFF_S: Final = 60.0
ROUNDS: Final = 20
"""Deliveries of one subscription before the next look at its record."""
SENDERS_MAX: Final = 64
"""Deliveries of all repositories together, to each kind of receiver. One repository has AT_ONCE_MAX at once: its
slow receivers hold up no other's."""
HUNG_S: Final = 2.0
"""Added to SEND_S, after which a sender counts as hung."""


@dataclass(slots=True)
class _Feed:
    next_s: float = 0.0
    whole_s: float = 0.0
    # From then on it looks at what its own process wrote.
    own_s: float | None = None


class Eventing:
    """One for each process of a server."""

    def __init__(
        self, catalog: Catalog, keys: ServerKeys, options: HookOptions, ports: Ports, brokers: Brokers
    ) -> None:
        self._catalog = catalog
        self._keys = keys
        self._options = options
        self._ports = ports
        self.brokers = brokers
        self._feeds: dict[str, _Feed] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        # By the kind of receiver: brokers that are slow or dead hold up no webhook, nor each other.
        self._senders: defaultdict[str, Senders] = defaultdict(lambda: Senders(SENDERS_MAX))
        self._turns: defaultdict[tuple[str, str], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(AT_ONCE_MAX)
        )
        self._ask_s = 0.0

    def seal(self, subscription_id: str, secret: str) -> bytes:
        nonce = self._ports.ids.bits(96).to_bytes(12, "big")
        return self._keys.seal(secret, access_key_id=_bound_to(subscription_id), nonce=nonce)

    def watch(self, repository: str) -> None:
        """Work on this repository from the next step on."""
        self._feeds[repository] = _Feed()

    async def run(self) -> None:
        """Gather and deliver, again and again, until cancelled."""
        try:
            while True:
                await asyncio.sleep(TICK_S * random.uniform(0.5, 1.5))  # noqa: S311  # no secret, only spread
                await self.step(asyncio.get_running_loop().time())
        finally:
            for task in self._sending.values():
                task.cancel()
            # What this process wrote since its last look is in no other one's mind.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look_last(), LAST_S)

    async def _look_last(self) -> None:
        for name in self._feeds:
            await self._guarded(self._look_own(name), name)

    async def _look_own(self, name: str) -> None:
        await (await self._catalog.get(name)).versions.outbox.gather(Look.OWN)

    async def step(self, now_s: float) -> None:
        """Gather the events of each repository with subscriptions, and begin to deliver what waits."""
        if now_s >= self._ask_s:
            self._ask_s = now_s + ASK_S
            await self._guarded(self._ask(), "repositories")
        for name, feed in list(self._feeds.items()):
            if now_s >= feed.next_s and not await self._guarded(self._work(name, feed, now_s), name):
                feed.next_s = now_s + BACK_OFF_S

    async def wait(self) -> None:
        """Wait for the deliveries that are under way."""
        await asyncio.gather(*self._sending.values())

    async def _ask(self) -> None:
        async for repository in self._catalog.each():
            if repository.id not in self._feeds and await repository.subscriptions.records():
                self.watch(repository.id)

    async def _work(self, name: str, feed: _Feed, now_s: float) -> None:
        try:
            repository = await self._catalog.get(name)
            subscriptions = await repository.subscriptions.records()
        except RepositoryNotFound:
            subscriptions = []
        if not subscriptions:
            self._feeds.pop(name, None)
            return
        is_whole = now_s >= feed.whole_s
        if feed.own_s is None:
            feed.own_s = now_s + BEGINS_S
        look = Look.LOGS if is_whole else Look.OWN if now_s >= feed.own_s else Look.RECORDS
        await repository.versions.outbox.gather(look)
        if is_whole:
            feed.whole_s = now_s + WHOLE_S
            await repository.versions.outbox.drop_marks()
        for subscription_id, record in subscriptions:
            task = self._sending.get(subscription_id)
            if task is None or task.done():
                delivering = self._guarded(self._deliver(repository, subscription_id, record), subscription_id)
                self._sending[subscription_id] = asyncio.create_task(_ended(delivering))
        self._sending = {key: task for key, task in self._sending.items() if not task.done()}

    async def _deliver(self, repository: Repository, subscription_id: str, record: SubscriptionRecord) -> None:
        scheme, _, place = record.target.partition(":")
        kind = scheme if scheme in {"nats", "kafka"} else "webhook"

        async def send(_: str, __: SubscriptionRecord, events: Sequence[PositionedEvent], /) -> None:
            if kind == "webhook":
                delivery = Delivery(
                    repository=repository.id,
                    subscription=subscription_id,
                    events=[shown(event) for event in events],
                )
                work = partial(self._post, subscription_id, record, msgspec.json.encode(delivery))
            else:
                to_broker = self.brokers.to_nats if kind == "nats" else self.brokers.to_kafka
                work = partial(to_broker, place, _messages(repository.id, subscription_id, events))
            await self._senders[kind].run(work, wait_s=SEND_S + HUNG_S)

        for _ in range(ROUNDS):
            # The turn first: the time in which a delivery is under way does not pass in a queue.
            async with self._turns[repository.versions.uid, kind]:
                has_more = await repository.subscriptions.deliver(subscription_id, record, send)
            if not has_more:
                return

    def _post(self, subscription_id: str, record: SubscriptionRecord, body: bytes) -> None:
        try:
            secret = self._keys.unseal(record.secret, access_key_id=_bound_to(subscription_id))
            timestamp = str(self._ports.clock.now_ms() // 1000)
            headers = {
                "content-type": "application/json",
                "x-lakebed-timestamp": timestamp,
                "x-lakebed-signature": signature(secret, timestamp, body),
            }
            answer = request("POST", record.target, headers, body, timeout_s=SEND_S, options=self._options)
        except LakebedError as error:
            raise DeliveryFailed(str(error)) from error
        if not 200 <= answer.status < 300:
            raise DeliveryFailed(f"the webhook answered {answer.reason}")

    async def _guarded(self, work: Awaitable[None], what: str) -> bool:
        """Await it, and log an error. Return whether there was none."""
        try:
            await work
        except LakebedError as error:
            logger.warning("events of %s: %s", what, error)
            return False
        except Exception:  # a bug in one repository must not end the others, nor the server
            logger.exception("events of %s failed", what)
            return False
        return True


class Senders:
    """Threads for calls that may hang. A process that ends waits for none of them.

    Slow receivers must not keep uploads from the threads of the server, nor the server from its end.
    """

    def __init__(self, at_once_max: int) -> None:
        self._free = asyncio.Semaphore(at_once_max)

    async def run(self, work: Callable[[], object], *, wait_s: float) -> None:
        """Do it in a thread, and raise its error.

        Raises:
            DeliveryFailed: it takes longer than `wait_s`, and its thread counts until it ends; or no thread can start.
        """
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            self._free.release()
            if ended.done():
                return  # nothing waits for it any more
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        def act() -> None:
            error: Exception | None = None
            try:
                work()
            except Exception as found:  # noqa: BLE001  # it is raised where the call waits
                error = found
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, error)

        try:
            threading.Thread(target=act, name="event", daemon=True).start()
        except RuntimeError as error:  # the system is out of threads or memory
            self._free.release()
            raise DeliveryFailed(f"no thread can send it: {error}") from error
        try:
            await asyncio.wait_for(ended, wait_s)
        except TimeoutError as error:
            raise DeliveryFailed(f"the receiver has not ended the delivery after {wait_s:g} s") from error


def _messages(repository: str, subscription_id: str, events: Sequence[PositionedEvent]) -> Sequence[tuple[str, bytes]]:
    """Return a key and a body for each event."""
    return [
        (
            f"{repository}/{event.kind}/{event.name}",
            msgspec.json.encode(
                Delivery(repository=repository, subscription=subscription_id, events=[shown((position, event))])
            ),
        )
        for position, event in events
    ]


def shown(event: PositionedEvent) -> Event:
    position, record = event
    return Event(
        position=position,
        kind=record.kind,
        name=record.name,
        operation=record.operation,
        before=record.before,
        after=record.after,
        at_ms=record.at_ms,
        by=record.by,
        about=record.about,
    )


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the header by which a receiver knows the sender and the time."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


async def _ended(work: Awaitable[bool]) -> None:
    await work


def _bound_to(subscription_id: str) -> str:
    return f"subscription/{subscription_id}"
