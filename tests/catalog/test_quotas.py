"""What a quota counts where writes, settlements and counts meet, and where a write fails half-way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lakebed.base import OutcomeUnknown, Ports, Unavailable
from lakebed.catalog import Catalog, ImportState, Location, Repository
from lakebed.kv import Held, Store
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore, ShortBody, open_objectstore
from lakebed.quotas import (
    Books,
    Meter,
    QuotaExceeded,
    QuotaRecord,
    Scope,
    mark_stale,
    meter,
    of_branch,
    of_repository,
    of_user,
)
from lakebed.quotas.books import COUNT_BEAT_MS, COUNT_MS_MAX, GoOn
from lakebed.quotas.meter import CACHE_MS, read
from lakebed.versions import Note, PathNotFound
from tests.clocks import TurnableClock

KIM, LEE = of_user("kim"), of_user("lee")
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


async def test_a_write_that_one_quota_refuses_takes_nothing_of_another(store: Store, ports: Ports) -> None:
    both = Meter(store, ports)
    for user, limit_bytes in ((KIM, LIMIT), (LEE, 50)):
        await Books(both).set(user, limit_bytes=limit_bytes, by="ada")

    with pytest.raises(QuotaExceeded):
        await both.reserve([KIM, LEE], 100)

    assert await _settled(both) == 0


@pytest.mark.parametrize(
    ("error", "used"),
    [
        (ShortBody("the body broke off"), 0),
        (OutcomeUnknown("no answer came"), 100),
        (Unavailable("the store did not answer"), 100),
        (TimeoutError(), 100),
        (asyncio.CancelledError(), 100),
    ],
)
async def test_a_write_whose_bytes_may_be_stored_counts(
    store: Store, ports: Ports, error: BaseException, used: int
) -> None:
    one = Meter(store, ports)
    await Books(one).set(KIM, limit_bytes=LIMIT, by="ada")

    with pytest.raises(type(error)), await one.reserve([KIM], 100):
        raise error

    assert await _settled(one) == used


async def test_no_chunk_is_stored_before_it_is_admitted(store: Store, ports: Ports) -> None:
    one = Meter(store, ports)
    await Books(one).set(KIM, limit_bytes=10, by="ada")
    stored: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        yield b"12345678"
        yield b"12345678"

    async def store_all() -> None:
        with await one.reserve([KIM], 0) as reservation:
            async for chunk in reservation.metered(body()):
                stored[:] = [*stored, chunk]

    with pytest.raises(QuotaExceeded):
        await store_all()

    assert len(stored) == 1


async def test_a_quota_that_begins_anew_counts_what_was_admitted_before(store: Store, ports: Ports) -> None:
    one = Meter(store, ports)
    await Books(one).set(KIM, limit_bytes=LIMIT, by="ada")
    reservation = await one.reserve([KIM], 100)

    await Books(one).set(KIM, limit_bytes=LIMIT, by="ada", restart=True)
    reservation.keep()

    assert await _settled(one) == 100


async def test_a_count_does_not_hide_deletions_that_came_meanwhile(store: Store, ports: Ports) -> None:
    books = Books(Meter(store, ports))
    await books.set(KIM, limit_bytes=LIMIT, by="ada")

    async def measure(_: GoOn) -> int:
        await mark_stale(store, KIM)
        return 7

    await books.count(KIM, measure)

    assert await books.is_due(KIM)


async def test_a_count_lists_objects_alone(store: Store, ports: Ports, repository: Repository) -> None:
    await repository.objects.upload("main", "a", b"12345")
    await repository.changes.commit("main", Note(message="m", committer="ann"))
    books, uid = Books(Meter(store, ports)), repository.versions.uid
    await books.set(of_repository(uid), limit_bytes=LIMIT, by="ada")

    assert (await books.count_stored(uid, repository.objectstore)).used_bytes == 5


@pytest.mark.parametrize("is_signed", [False, True])
async def test_an_upload_in_parts_counts_once(catalog: Catalog, repository: Repository, *, is_signed: bool) -> None:
    """Of the user and the branch, once; of the repository, its parts and the object that is made of them."""
    books, uid = Books(catalog.meter), repository.versions.uid
    scopes = of_user("kim"), of_branch(uid, "main"), of_repository(uid)
    for scope in scopes:
        await books.set(scope, limit_bytes=LIMIT, by="ada")
    uploads = repository.multipart
    name = await uploads.begin("main", "a", content_type="text/plain", metadata={}, user="kim")
    for number in (1, 2):
        if is_signed:
            await uploads.hand_out_part(name, number, presign_s=900, by="kim")
            await repository.objectstore.put((await repository.versions.parts.every(name))[-1][1].address, b"12345")
        else:
            await uploads.put_part(name, number, b"12345", size_bytes=5, checksums={}, by="kim")
    parts = await uploads.find_stored([part for _, part in await repository.versions.parts.every(name)])

    await uploads.complete(
        name,
        uploads.stream(parts),
        size_bytes=10,
        checksum="c",
        metadata={},
        uncounted_bytes=10 if is_signed else 0,
        by="kim",
    )

    await catalog.meter.settle(is_stopping=True)
    assert [(await books.get(scope)).used_bytes for scope in scopes] == [10, 10, 20]


async def test_a_write_of_less_than_nothing_makes_no_room(catalog: Catalog, repository: Repository) -> None:
    """A client states the size of what it links, and its bytes are looked at after the quota."""
    scope = of_branch(repository.versions.uid, "main")
    await Books(catalog.meter).set(scope, limit_bytes=LIMIT, by="ada")

    with await catalog.meter.reserve([scope], -(10**12)), pytest.raises(QuotaExceeded):
        await catalog.meter.reserve([scope], LIMIT + 1)


async def _settled(meter: Meter) -> int:
    """Return what Kim used, once nothing is under way. Nothing is left granted."""
    await meter.settle(is_stopping=True)
    record = await Books(meter).get(KIM)
    assert record.grants == {}
    return record.used_bytes
