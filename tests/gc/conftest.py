"""One repository and its service over in-memory stores: real drivers, real trees, a clock that the test turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from lakebed.base import Entry, Ports, RepositoryUid, Row, from_row
from lakebed.gc.live import CollectionService, ServiceOptions
from lakebed.gc.rules import DAY_MS
from lakebed.kv import Store
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore
from lakebed.ranges import CUT_RULE, CutRule
from lakebed.runtime import live_ports
from lakebed.server.app import create_app, opened
from lakebed.server.options import ServerOptions
from lakebed.versions import Commit, Note, Options, TreeCache, Trees, Versions
from tests.clocks import TurnableClock
from tests.gc.shipped import Collector


class Lake:
    """A repository as a story needs it: short words for what people do, and for what is left of the objects."""

    def __init__(
        self,
        store: Store,
        objectstore: MemoryObjectStore,
        options: ServiceOptions | None = None,
        *,
        rule: CutRule = CUT_RULE,
    ) -> None:
        self.store = store
        self._rule = rule
        self.objectstore = objectstore
        self.deleter = MemoryDeleter(objectstore)
        self.clock = TurnableClock()
        self._options = options
        self.versions = self.server()
        self.service = CollectionService(self.versions, options, user_id="ann")

    def server(self) -> Versions:
        """Another server instance on the same repository, with caches and slices of its own."""
        live = live_ports()
        ports = Ports(self.clock, live.ids, live.tasks)
        return Versions(
            uid=RepositoryUid("r1"),
            store=self.store,
            objectstore=self.objectstore,
            trees=Trees(self.objectstore, TreeCache(64 << 20), ports, rule=self._rule),
            ports=ports,
            options=Options(owner="server"),
        )

    def service_with(self, options: ServiceOptions) -> CollectionService:
        return CollectionService(self.versions, options)

    async def put(self, branch: str, path: str, data: str = "data", *, server: Versions | None = None) -> str:
        """Upload; returns the address."""
        entry = await (server or self.versions).staging.upload(branch, path.encode(), self.body(data))
        return entry.address

    def body(self, data: str = "data") -> Callable[[str], Awaitable[Entry]]:
        async def store_body(address: str) -> Entry:
            stored = await self.objectstore.put(address, data.encode())
            return Entry(address=address, size_bytes=stored.size_bytes, checksum=stored.md5, modified_ms=self.clock.ms)

        return store_body

    async def commit(self, branch: str, message: str = "m") -> Commit:
        return await self.versions.commits.commit(branch, Note(message=message, committer="me"))

    async def objects(self) -> set[str]:
        return {stat.key async for page in self.objectstore.list("data/") for stat in page}

    def versions_address(self, row: Row) -> str:
        return from_row(row).address

    def days(self, count: float) -> None:
        self.clock.ms += int(count * DAY_MS)

    def collector(self, service: CollectionService | None = None) -> Collector:
        return Collector(self.versions, service or self.service, self.deleter.delete)


@pytest.fixture
async def lake() -> Lake:
    lake = Lake(MemoryStore(), MemoryObjectStore("mem://tests"))
    await lake.versions.commits.initialise("main")
    return lake


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client with credentials, and a repository `lake` with an empty branch `main`."""
    async with opened(ServerOptions(data_dir=tmp_path, store_uri="mem://")) as state:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1/") as client:
            issued = (await client.post("setup_lakefs", json={"username": "admin"})).json()
            client.auth = httpx.BasicAuth(issued["access_key_id"], issued["secret_access_key"])
            made = await client.post("repositories", json={"name": "lake", "storage_namespace": "local://lake"})
            assert made.status_code == 201, made.text
            yield client
