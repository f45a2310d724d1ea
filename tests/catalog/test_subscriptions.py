"""Deliveries of events that meet replays and deaths, and which events a subscription wants."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from lakebed.base import EventKind
from lakebed.catalog import DeliveryFailed, PositionedEvent, Repository, SubscriptionRecord
from lakebed.catalog.subscriptions import CURSOR, Subscriptions, is_wanted
from lakebed.kv import StoreUnavailable
from lakebed.versions import EventRecord, Note
from tests.clocks import TurnableClock
from tests.versions.conftest import HookedStore

RECORD = SubscriptionRecord(target="http://127.0.0.1:1/", created_ms=0)


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


@pytest.fixture
async def subscriptions(repository: Repository) -> Subscriptions:
    """Those of a repository with two events that wait for the subscription `s`."""
    await repository.subscriptions.create("s", RECORD)
    for path in ("a", "b"):
        await repository.objects.upload("main", path, b"x")
        await repository.changes.commit("main", Note(message=path, committer="ann"))
    await repository.versions.outbox.gather()
    return repository.subscriptions


class Receiver:
    """Remembers the positions of each delivery. Each one ends when it may, with an error where it is to `fail`."""

    def __init__(self, *, fail: bool = False) -> None:
        self.positions: list[int] = []
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self._fail = fail

    async def __call__(self, _: str, __: SubscriptionRecord, events: Sequence[PositionedEvent], /) -> None:
        self.positions += [position for position, _ in events]
        self.began.set()
        await self.may_end.wait()
        if self._fail:
            raise DeliveryFailed("the receiver did not want them")

    def begin(self, subscriptions: Subscriptions) -> asyncio.Task[bool]:
        return asyncio.create_task(subscriptions.deliver("s", RECORD, self))


async def test_a_replay_stands_though_a_delivery_of_before_succeeds(
    subscriptions: Subscriptions, clock: TurnableClock
) -> None:
    """Also where another delivery began in the same millisecond, and fails after that."""
    before, amid, after = Receiver(), Receiver(fail=True), Receiver()
    first = before.begin(subscriptions)
    await before.began.wait()
    await subscriptions.replay("s", 0)
    second = amid.begin(subscriptions)
    await amid.began.wait()
    for receiver, task in ((before, first), (amid, second)):
        receiver.may_end.set()
        await task
    clock.ms += 3_600_000

    after.may_end.set()
    await after.begin(subscriptions)

    assert before.positions == amid.positions == after.positions == [1, 2]


async def test_a_subscription_that_dies_half_made_is_none(repository: Repository, store: HookedStore) -> None:
    """Without a cursor it could neither be delivered nor deleted."""

    async def die() -> None:
        raise StoreUnavailable("the process died")

    store.before("set", CURSOR, die)
    with pytest.raises(StoreUnavailable):
        await repository.subscriptions.create("s", RECORD)

    assert await repository.subscriptions.records() == []


def test_a_pattern_of_refs_selects_no_run() -> None:
    run = EventRecord(kind=EventKind.RUN, name="main", operation="end", at_ms=0, log_ms=1, gathered_ms=0)

    assert is_wanted(run, refs=(), operations=(), kinds=())
    assert not is_wanted(run, refs=("*",), operations=(), kinds=())
