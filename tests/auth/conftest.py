"""Accounts and an authenticator over the memory store, and a clock that the tests move."""

from __future__ import annotations

import pytest

from lakebed.auth import Accounts, Authenticator, ServerKeys
from lakebed.base import World
from lakebed.kv import Store, open_store
from lakebed.runtime import LiveIds, LiveTasks


class HandClock:
    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms

    async def sleep(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


@pytest.fixture
def store() -> Store:
    return open_store("mem://")


@pytest.fixture
def world() -> World:
    return World(HandClock(), LiveIds(), LiveTasks())


@pytest.fixture
def keys() -> ServerKeys:
    return ServerKeys(b"a secret for tests only")


@pytest.fixture
def accounts(store: Store, world: World, keys: ServerKeys) -> Accounts:
    return Accounts(store, world, keys)


@pytest.fixture
def authenticator(accounts: Accounts, keys: ServerKeys, world: World) -> Authenticator:
    return Authenticator(accounts, keys, world)
