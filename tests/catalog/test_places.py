"""The index of namespaces by place: what it finds, what a creation costs, and notes that lack or are too many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.base import AT_ONCE, Ports, RepositoryUid
from lakebed.catalog import Catalog, NamespaceInUse
from lakebed.catalog.namespaces import CHECKED_MS, NAMESPACES, PLACE_BYTES_MAX, Places, first_overlap
from lakebed.kv import Page, Store, open_store
from lakebed.runtime import LiveIds, LiveTasks
from tests.clocks import TurnableClock

_URIS = st.builds(
    lambda scheme, names: scheme + "/".join(names),
    st.sampled_from(["s3://", "az://", "https://acct.blob.core.windows.net/"]),
    st.lists(st.sampled_from(["a", "aa", "a-b", "b", "a" * PLACE_BYTES_MAX]), min_size=1, max_size=4),
)


async def notes(store: Store) -> set[bytes]:
    return set((await store.scan(NAMESPACES, b"", 1000)).keys)


def a_store() -> Store:
    return open_store("mem://")


@given(_URIS, st.lists(_URIS, max_size=6))
async def test_a_namespace_that_overlaps_others_meets_a_note(uri: str, others: list[str]) -> None:
    places = Places(a_store(), Ports(TurnableClock(), LiveIds(), LiveTasks()))
    for number, other in enumerate([uri, *others]):
        await places.note(other, RepositoryUid(f"u{number}"))

    found = await places.near(uri, RepositoryUid("u0"))

    assert found or first_overlap(uri, others) is None


async def test_a_namespace_meets_no_note_of_those_beside_it() -> None:
    places = Places(a_store(), Ports(TurnableClock(), LiveIds(), LiveTasks()))
    for number, other in enumerate(["s3://b/lakes", "gs://b/lake", "s3://b/lake-2", "s3://b2", "s3://b/x/lake"]):
        await places.note(other, RepositoryUid(f"u{number}"))

    assert await places.near("s3://b/lake", RepositoryUid("own")) == set()


async def test_the_folders_around_a_namespace_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    store = a_store()
    scan, under_way, at_once = store.scan, 0, 0

    async def counted(partition: bytes, start: bytes, limit: int) -> Page:
        nonlocal under_way, at_once
        under_way += 1
        at_once = max(at_once, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return await scan(partition, start, limit)

    monkeypatch.setattr(store, "scan", counted)
    places = Places(store, Ports(TurnableClock(), LiveIds(), LiveTasks()))

    assert await places.near("s3://b/one/two/three", RepositoryUid("own")) == set()
    assert at_once == 4
    assert await places.near("s3://b" + "/folder" * 2 * AT_ONCE, RepositoryUid("own")) == set()
    assert at_once == AT_ONCE


async def test_a_creation_reads_no_more_where_there_are_many_repositories(
    catalog: Catalog, store: Store, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        await catalog.create(f"repo-{number}", storage_namespace=f"{namespace}/{number}")
    scan, read = store.scan, []

    async def counted(partition: bytes, start: bytes, limit: int) -> Page:
        page = await scan(partition, start, limit)
        read.extend(page.keys)
        return page

    monkeypatch.setattr(store, "scan", counted)
    await catalog.create("another", storage_namespace=f"{namespace}/another")

    assert len(read) <= 4


async def test_a_process_notes_the_places_that_an_earlier_release_did_not(
    make_catalog: Callable[[], Catalog], store: Store, namespace: str
) -> None:
    one = make_catalog()
    await one.create("old", storage_namespace=f"{namespace}/old")
    await one.create("deleted", storage_namespace=f"{namespace}/deleted")
    await one.delete("deleted")
    there = await notes(store)
    await store.delete_many(NAMESPACES, sorted(there))

    await make_catalog().create("new", storage_namespace=f"{namespace}/new")

    assert there < await notes(store)


async def test_a_process_looks_again_after_a_while_for_places_that_lack(
    make_catalog: Callable[[], Catalog], store: Store, namespace: str, clock: TurnableClock
) -> None:
    one, other = make_catalog(), make_catalog()
    await one.create("first", storage_namespace=f"{namespace}/first")
    before = await notes(store)
    await other.create("second", storage_namespace=f"{namespace}/second")
    theirs = await notes(store) - before
    await store.delete_many(NAMESPACES, sorted(theirs))

    await one.create("third", storage_namespace=f"{namespace}/third")
    at_once = await notes(store)
    clock.ms += CHECKED_MS
    await one.create("fourth", storage_namespace=f"{namespace}/fourth")

    assert not theirs & at_once
    assert theirs < await notes(store)


async def test_a_note_that_no_record_stands_for_is_in_no_way_and_goes(
    catalog: Catalog, store: Store, namespace: str
) -> None:
    await catalog.create("first", storage_namespace=f"{namespace}/first")
    await catalog.places.note(f"{namespace}/second/inside", RepositoryUid("gone"))

    await catalog.create("second", storage_namespace=f"{namespace}/second")

    assert len(await notes(store)) == 2


async def test_a_process_that_looks_at_all_notes_removes_each_that_no_record_stands_for(
    catalog: Catalog, store: Store, namespace: str
) -> None:
    await catalog.places.note(f"{namespace}/elsewhere", RepositoryUid("gone"))

    await catalog.create("first", storage_namespace=f"{namespace}/first")

    assert len(await notes(store)) == 1


async def test_a_creation_that_is_refused_leaves_no_note(catalog: Catalog, store: Store, namespace: str) -> None:
    await catalog.create("first", storage_namespace=namespace)

    for inner in (namespace, f"{namespace}/inside"):
        with pytest.raises(NamespaceInUse):
            await catalog.create("second", storage_namespace=inner)

    assert len(await notes(store)) == 1
