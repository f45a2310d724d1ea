"""A catalog over memory: a store, a namespace that no other test has, a clock that tests move."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from lakebed.base import Ports, RepositoryUid
from lakebed.catalog import Catalog, CatalogOptions, Repository
from lakebed.kv import Store, open_store
from lakebed.objectstore import ObjectStore, open_objectstore
from lakebed.runtime import LiveIds, LiveTasks
from lakebed.versions import Options, TreeCache, Trees, Versions
from tests.clocks import TurnableClock

_names = itertools.count()


@pytest.fixture
def store() -> Store:
    return open_store("mem://")


@pytest.fixture
def clock() -> TurnableClock:
    return TurnableClock(1_800_000_000_000)


@pytest.fixture
def ports(clock: TurnableClock) -> Ports:
    return Ports(clock, LiveIds(), LiveTasks())


@pytest.fixture
def namespace() -> str:
    """A storage namespace that nobody used before."""
    return f"mem://catalog-{next(_names)}"


@pytest.fixture
def open_namespace() -> Callable[[str], ObjectStore]:
    return open_objectstore


@pytest.fixture
def make_catalog(store: Store, ports: Ports, open_namespace: Callable[[str], ObjectStore]) -> Callable[[], Catalog]:
    """Each call is another server process on the same store."""

    def make() -> Catalog:
        cache = TreeCache(1 << 20)
        options = Options(owner=ports.ids.fresh())

        def make_versions(uid: RepositoryUid, objectstore: ObjectStore, salt: str) -> Versions:
            trees = Trees(objectstore, cache, ports, salt=salt)
            return Versions(uid=uid, store=store, objectstore=objectstore, trees=trees, ports=ports, options=options)

        return Catalog(
            store=store,
            ports=ports,
            open_namespace=open_namespace,
            make_versions=make_versions,
            options=CatalogOptions(queue_wait_s_max=0.05),
        )

    return make


@pytest.fixture
def catalog(make_catalog: Callable[[], Catalog]) -> Catalog:
    return make_catalog()


@pytest.fixture
async def repository(catalog: Catalog, namespace: str) -> Repository:
    return await catalog.create("repo", storage_namespace=namespace)
