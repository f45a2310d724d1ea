"""Accounts and an authenticator over the memory store, and a clock that the tests move."""

from __future__ import annotations

import pytest

from lakebed.auth import Accounts, Authenticator, Principals, ServerKeys
from lakebed.base import Ports
from lakebed.kv import Store, open_store
from lakebed.runtime import LiveIds, LiveTasks
from tests.clocks import TurnableClock


@pytest.fixture
def store() -> Store:
    return open_store("mem://")


@pytest.fixture
def ports() -> Ports:
    return Ports(TurnableClock(1_800_000_000_000), LiveIds(), LiveTasks())


@pytest.fixture
def keys() -> ServerKeys:
    return ServerKeys(b"a secret for tests only")


@pytest.fixture
def accounts(store: Store, ports: Ports, keys: ServerKeys) -> Accounts:
    return Accounts(store, ports, keys)


@pytest.fixture
def principals(store: Store, ports: Ports, accounts: Accounts) -> Principals:
    return Principals(store, ports, accounts)


@pytest.fixture
def authenticator(accounts: Accounts, keys: ServerKeys, ports: Ports, principals: Principals) -> Authenticator:
    return Authenticator(accounts, keys, ports, principals)
