"""What a quota counts where writes, settlements and counts meet, and where a write fails half-way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lakebed.base import Ports, Unavailable
from lakebed.catalog import Catalog, ImportState, Location, Repository
from lakebed.kv import Held, Store
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore, ShortBody, open_objectstore
from lakebed.quotas import Books, Meter, QuotaRecord, Scope, meter, of_branch, of_repository, of_user
from lakebed.quotas.books import COUNT_BEAT_MS, COUNT_MS_MAX, GoOn
from lakebed.quotas.meter import CACHE_MS, read
from lakebed.versions import Note, PathNotFound
from tests.clocks import TurnableClock

KIM = of_user("kim")
LIMIT = 1 << 20


async def test_a_write_that_waits_for_the_settlement_of_an_idle_quota_leaves_no_grant(
    store: Store, ports: Ports, clock: TurnableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(store: Store, scope: Scope) -> tuple[QuotaRecord, Held] | None:
        await asyncio.sleep(0)
        return await read(store, scope)

    monkeypatch.setattr(meter, "read", slow)
    one = Meter(store, ports)
    await Books(one).set(KIM, limit_bytes=LIMIT, by="ada")
    (await one.reserve([KIM], 10)).keep()
    clock.ms += 2 * CACHE_MS

    async def write() -> None:
        (await one.reserve([KIM], 10)).keep()

    await asyncio.gather(one.settle(), write())
    await one.settle(is_stopping=True)

    record = await Books(one).get(KIM)
    assert (record.used_bytes, record.grants) == (20, {})


async def test_a_long_count_is_not_taken_for_dead(store: Store, ports: Ports, clock: TurnableClock) -> None:
    books = Books(Meter(store, ports))
    await books.set(KIM, limit_bytes=LIMIT, by="ada")

    async def measure(go_on: GoOn) -> int:
        for _ in range(2 * COUNT_MS_MAX // COUNT_BEAT_MS):
            clock.ms += COUNT_BEAT_MS
            await go_on()
        assert not await books.is_due(KIM)
        clock.ms += COUNT_MS_MAX
        assert await books.is_due(KIM), "it went silent"
        return 7

    assert (await books.count(KIM, measure)).used_bytes == 7


async def test_a_signed_upload_counts_twice_in_the_repository_as_its_bytes_are_stored_twice(
    catalog: Catalog, repository: Repository
) -> None:
    books = Books(catalog.meter)
    scopes = of_repository(repository.versions.uid), of_branch(repository.versions.uid, "main")
    for scope in scopes:
        await books.set(scope, limit_bytes=LIMIT, by="ada")
    target = await repository.objects.issue_upload("main", "a", presign_s=900)
    await repository.objectstore.put(target.address, b"12345")

    await repository.objects.link_upload("main", "a", target.full_address, size_bytes=5, checksum="c")

    await catalog.meter.settle(is_stopping=True)
    assert [(await books.get(scope)).used_bytes for scope in scopes] == [10, 5]


async def test_a_copy_that_stored_nothing_counts_nothing(catalog: Catalog, repository: Repository) -> None:
    books, scope = Books(catalog.meter), of_branch(repository.versions.uid, "main")
    await repository.changes.create_branch("dev", "main")
    entry = await repository.objects.upload("dev", "a", b"12345")
    await books.set(scope, limit_bytes=LIMIT, by="ada")
    assert isinstance(repository.objectstore, MemoryObjectStore)
    await MemoryDeleter(repository.objectstore).delete([entry.address])

    with pytest.raises(PathNotFound):
        await repository.objects.copy("dev", "a", "main", "b")

    await catalog.meter.settle(is_stopping=True)
    assert (await books.get(scope)).used_bytes == 0


async def test_a_completion_that_failed_gives_back_what_signed_parts_have(
    catalog: Catalog, repository: Repository
) -> None:
    books, scope = Books(catalog.meter), of_branch(repository.versions.uid, "main")
    await books.set(scope, limit_bytes=LIMIT, by="ada")
    name = await repository.multipart.begin("main", "a", content_type="text/plain", metadata={})

    async def short() -> AsyncIterator[bytes]:
        yield b"123"

    with pytest.raises(ShortBody):
        await repository.multipart.complete(name, short(), size_bytes=5, checksum="c", metadata={}, uncounted_bytes=5)

    await catalog.meter.settle(is_stopping=True)
    assert (await books.get(scope)).used_bytes == 0


async def test_an_import_that_failed_counts_nothing(catalog: Catalog, repository: Repository, namespace: str) -> None:
    books, scope = Books(catalog.meter), of_branch(repository.versions.uid, "main")
    await books.set(scope, limit_bytes=LIMIT, by="ada")
    source = open_objectstore(f"{namespace}-source")
    for key in ("a", "b"):
        await source.put(key, b"12345")
    locations = [Location(source=f"{source.uri}/{key}", destination=key, is_folder=False) for key in ("a", "b")]

    def refuse(location: Location, _: str, __: str) -> None:
        if location is locations[1]:
            raise Unavailable("the store did not answer")

    begun = await repository.imports.begin("main", locations)
    ended = await repository.imports.run(begun, locations, Note(message="m", committer="ann"), refuse=refuse)

    assert ended.state is ImportState.FAILED
    await catalog.meter.settle(is_stopping=True)
    assert (await books.get(scope)).used_bytes == 0
