"""Which storage namespaces are free, by what lies in the store, also where no record tells of it."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.base import Denied, Entry, Invalid, Ports, RepositoryUid, Unavailable, slice_name
from lakebed.catalog import MARKER_KEY, AddressInNamespace, Catalog, CatalogOptions, NamespaceInUse, namespaces, overlap
from lakebed.catalog.namespaces import OPENED_MAX, Namespaces, first_overlap
from lakebed.kv import open_store
from lakebed.objectstore import (
    Body,
    MemoryObjectStore,
    ObjectStat,
    ObjectStore,
    ObjectStoreDenied,
    ObjectStoreOptions,
    ObjectStoreUnavailable,
    Stored,
    open_objectstore,
)
from lakebed.objectstore.opening import without_account
from lakebed.versions import Options, TreeCache, Trees, Versions
from tests.objectstore.s3_servers import make_bucket, serve_s3

SLICE = slice_name(7)


@pytest.mark.parametrize(
    ("prefix", "meets"),
    [
        ("s3://b/lake/r", True),
        ("s3://b/la", True),
        ("s3://b", True),
        ("s3://b/lake/r2", False),
        ("s3://b/lake/rx", False),
    ],
)
async def test_a_prefix_that_a_namespace_begins_with_meets_it(prefix: str, meets: bool) -> None:
    async def known() -> list[str]:
        return ["s3://b/lake/r"]

    spaces = Namespaces(MemoryObjectStore, known=known)
    if meets:
        with pytest.raises(AddressInNamespace, match="the folder meets"):
            await spaces.check_outside(prefix, is_folder=True)
    else:
        await spaces.check_outside(prefix, is_folder=True)


def test_stores_that_callers_name_are_not_all_kept_and_one_in_use_is() -> None:
    opened: list[str] = []
    kept: weakref.WeakSet[ObjectStore] = weakref.WeakSet()

    def opening(uri: str) -> ObjectStore:
        opened.append(uri)
        kept.add(store := MemoryObjectStore(uri))
        return store

    spaces = Namespaces(opening)
    for number in range(2 * OPENED_MAX):
        spaces.locate(f"s3://bucket-{number}/a")
        spaces.locate("s3://in-use/a")

    assert len(kept) == OPENED_MAX
    assert opened.count("s3://in-use") == 1


class Counting(MemoryObjectStore):
    """Counts looks. Shows nothing of itself to who may not list."""

    def __init__(self, *keys: str) -> None:
        super().__init__("mem://new")
        self.looks = 0
        self.may_list = True
        self.keeps_conditions = True
        self.answer: ObjectStoreUnavailable | None = None
        for key in keys:
            self.objects[key] = (b"x", 1)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        self.looks += 1
        if not self.may_list:
            raise ObjectStoreDenied("access denied")
        async for page in super().list(prefix, start_after=start_after):
            yield page

    async def stat(self, key: str) -> ObjectStat:
        self.looks += 1
        if self.answer is not None:
            raise self.answer
        return await super().stat(key)

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        return await super().put(key, body, size_bytes=size_bytes, if_absent=if_absent and self.keeps_conditions)


async def mark(objectstore: ObjectStore, marker: str = "mine", *, trust_denials: bool = False) -> None:
    opened = Namespaces(
        lambda uri: objectstore if uri == objectstore.uri else MemoryObjectStore(uri), trust_denials=trust_denials
    )
    await opened.mark(objectstore, marker)


def many(folder: str, count: int) -> list[str]:
    return [f"{folder}/{number:06d}" for number in range(count)]


@pytest.mark.parametrize(
    ("key", "inner"),
    [
        ("team/_lakefs/dummy", "team"),
        ("a/b/c/d/_lakefs/dummy", "a/b/c/d"),
        ("data/team/_lakefs/dummy", "data/team"),
        ("team/_lakefs/ranges/x", "team"),
        (f"team/data/{SLICE}/00000001", "team"),
    ],
)
async def test_a_namespace_around_another_one_is_in_use(key: str, inner: str) -> None:
    objectstore = Counting("a/readme", key, "z/readme")

    with pytest.raises(NamespaceInUse) as caught:
        await mark(objectstore)

    assert caught.value.facts["namespace"] == f"mem://new/{inner}"
    assert [key async for page in objectstore.list("_lakefs/") for key in page] == []


async def test_one_behind_many_objects_is_found_a_level_at_a_time() -> None:
    objectstore = Counting(
        *many("a", 5_000), *many("b/x", 5_000), "b/y/aaa", "b/y/_lakefs/dummy", *many("b/y/A", 5_000)
    )

    with pytest.raises(NamespaceInUse):
        await mark(objectstore)

    assert objectstore.looks < 20


async def test_other_things_in_a_namespace_are_in_nobodys_way() -> None:
    objectstore = Counting("readme", "old/table/1", "old/_lakefs-x", f"data/{SLICE}/00000001", "data/flat")

    await mark(objectstore)

    assert await objectstore.get(MARKER_KEY) == b"mine"


async def test_an_empty_namespace_costs_a_listing_of_one_page() -> None:
    objectstore = Counting()

    await mark(objectstore)

    assert objectstore.looks == 2


@pytest.mark.parametrize("keys", [[f"x{n:06d}" for n in range(20_000)], [f"{n:06d}/x" for n in range(3_000)]])
async def test_looking_around_has_an_end(keys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "LOOKS_MAX", 10)
    objectstore = Counting(*keys)

    await mark(objectstore)

    assert objectstore.looks == 10 + 1


async def test_who_marked_the_namespace_before_finds_it_free_whatever_lies_inside() -> None:
    objectstore = Counting("data/x", "inner/_lakefs/dummy")
    await objectstore.put(MARKER_KEY, b"mine")

    await mark(objectstore)


async def test_who_may_not_list_makes_a_repository_only_by_explicit_choice() -> None:
    objectstore = Counting("team/_lakefs/dummy")
    objectstore.may_list = False

    with pytest.raises(Unavailable, match="list"):
        await mark(objectstore)
    await mark(objectstore, trust_denials=True)


async def test_who_may_not_look_for_a_marker_makes_a_repository_only_by_explicit_choice() -> None:
    objectstore = Counting()
    objectstore.answer = ObjectStoreDenied("access denied")

    with pytest.raises(Unavailable, match="LAKEBED_TRUST_DENIALS"):
        await mark(objectstore)
    await mark(objectstore, trust_denials=True)


async def test_a_store_that_cannot_be_asked_now_has_said_nothing_of_a_marker() -> None:
    objectstore = Counting()
    objectstore.answer = ObjectStoreUnavailable("503 SlowDown")

    for trust_denials in (False, True):
        with pytest.raises(ObjectStoreUnavailable, match="SlowDown"):
            await mark(objectstore, trust_denials=trust_denials)


async def test_a_store_that_reads_past_conditions_does_not_give_a_namespace_away_twice() -> None:
    objectstore = Counting()
    objectstore.keeps_conditions = False
    await mark(objectstore, "theirs")

    with pytest.raises(NamespaceInUse):
        await mark(objectstore, "mine")

    assert await objectstore.get(MARKER_KEY) == b"theirs"


async def test_a_namespace_around_one_of_another_installation_or_of_a_deleted_repository_is_in_use(
    ports: Ports, tmp_path: Path
) -> None:
    here, there = installation(ports, tmp_path), installation(ports, tmp_path)
    await here.create("inner", storage_namespace="local://lake/one/inner")
    await there.create("inner", storage_namespace="local://lake/two/inner")
    await there.delete("inner")

    for uri in ("local://lake/one", "local://lake/two"):
        with pytest.raises(NamespaceInUse):
            await there.create("outer", storage_namespace=uri)
    await there.create("outer", storage_namespace="local://lake/three")


async def test_an_address_in_a_namespace_of_anybody_cannot_be_staged(ports: Ports, tmp_path: Path) -> None:
    here, there = installation(ports, tmp_path), installation(ports, tmp_path)
    repository = await here.create("ours", storage_namespace="local://lake/ours")
    await here.create("beside", storage_namespace="local://lake/deep/beside")
    await there.create("theirs", storage_namespace="local://lake/theirs")
    await there.create("gone", storage_namespace="local://lake/gone")
    await there.delete("gone")

    for place in ("deep/beside/data/x", "theirs/_lakefs/dummy", "theirs/a/b/c", "gone/data/x"):
        with pytest.raises(AddressInNamespace):
            await repository.objects.stage("main", "a", staged(f"local://lake/{place}"))
    await repository.objects.stage("main", "a", staged("local://lake/deep/x"))
    await repository.objects.stage("main", "a", staged("local://lake/theirs-too/x"))


async def test_nothing_is_staged_from_where_nobody_may_look() -> None:
    outside = Counting()
    outside.answer = ObjectStoreDenied("access denied")

    with pytest.raises(Unavailable, match="cannot find out whether a repository lies there: the object"):
        await Namespaces(lambda _: outside).check_outside("mem://new/x")
    await Namespaces(lambda _: outside, trust_denials=True).check_outside("mem://new/x")


async def test_folders_without_a_marker_are_looked_at_again_with_the_next_list_of_namespaces() -> None:
    outside, lists = Counting(), [["mem://one"], ["mem://one", "mem://two"]]

    async def known_lately() -> Sequence[str]:
        return lists[0]

    opened = Namespaces(lambda _: outside, known_lately=known_lately)
    await opened.check_outside("mem://new/a/x")
    looked = outside.looks
    await opened.check_outside("mem://new/a/y")
    assert outside.looks == looked
    await outside.put(f"a/{MARKER_KEY}", b"theirs")

    lists.pop(0)

    with pytest.raises(AddressInNamespace):
        await opened.check_outside("mem://new/a/y")


async def test_in_s3_it_is_the_same() -> None:
    with serve_s3() as options:
        uri = f"s3://{make_bucket(options)}/a"
        inner = open_objectstore(f"{uri}/b/c", options)
        await inner.put(MARKER_KEY, b"theirs")
        opened = Namespaces(partial(open_objectstore, options=options))

        with pytest.raises(NamespaceInUse):
            await opened.mark(opened.open(uri), "mine")
        await inner.close()
        await opened.close()


async def test_an_address_by_the_url_of_the_own_azure_account_is_the_object_of_its_container() -> None:
    known = ["az://container/lake"]

    async def known_lately() -> Sequence[str]:
        return known

    options = ObjectStoreOptions(azure_account="ours", azure_key="a2V5")
    opened = Namespaces(partial(open_objectstore, options=options), known_lately=known_lately)
    url = "https://ours.blob.core.windows.net/container"

    objectstore, key = opened.locate(f"{url}/old/data/x")
    assert (objectstore.uri, key) == ("az://container", "old/data/x")
    for elsewhere in (url.replace("ours", "theirs"), "https://example.com/container"):
        with pytest.raises(Invalid, match="cannot open what this address names"):
            opened.locate(f"{elsewhere}/old/data/x")
    with pytest.raises(Invalid, match="write az://container/key"):
        opened.locate(f"{url}/old/a%20b")
    with pytest.raises(Denied, match="the object lies in the storage namespace of another"):
        await opened.locate_outside(f"{url}/lake/data/x", own="az://container/other")
    await opened.close()


def test_a_namespace_overlaps_another_spelling_of_itself() -> None:
    url = "https://ours.blob.core.windows.net/container/lake"
    assert overlap("az://container/lake/inner", url)
    assert overlap(url, "az://container/lake")
    assert not overlap(url, "az://container/lakes")


_URIS = st.builds(
    lambda scheme, names: scheme + "/".join(names),
    st.sampled_from(["s3://", "az://", "https://acct.blob.core.windows.net/"]),
    st.lists(st.sampled_from(["a", "aa", "b", "a\nb", "s3:"]), min_size=1, max_size=4),
)


@given(_URIS, st.lists(_URIS, max_size=6))
def test_the_first_namespace_that_overlaps_is_found_whatever_lies_beside_it(uri: str, others: list[str]) -> None:
    def touches(other: str) -> bool:
        one, two = without_account(uri) + "/", without_account(other) + "/"
        return one.startswith(two) or two.startswith(one)

    assert first_overlap(uri, others) == next(filter(touches, others), None)


def test_a_namespace_is_held_against_all_others_at_once() -> None:
    others = ["s3://b/lakes", "gs://b/lake", "s3://b/lake-2", "s3://b/lake/x", "s3://b", "s3://b/lake"]
    assert first_overlap("s3://b/lake", others) == "s3://b/lake/x"
    assert first_overlap("s3://b/lake", others[:3]) is None
    assert first_overlap("s3://b/other", others) == "s3://b"


def staged(address: str) -> Entry:
    return Entry(address=address, size_bytes=3, checksum="c", modified_ms=1)


def installation(ports: Ports, folder: Path) -> Catalog:
    """A server with records of its own on the same object store."""
    store, cache = open_store("mem://"), TreeCache(1 << 20)

    def make_versions(uid: RepositoryUid, objectstore: ObjectStore, salt: str) -> Versions:
        trees = Trees(objectstore, cache, ports, salt=salt)
        return Versions(
            uid=uid, store=store, objectstore=objectstore, trees=trees, ports=ports, options=Options(owner=uid)
        )

    return Catalog(
        store=store,
        ports=ports,
        open_namespace=partial(open_objectstore, options=ObjectStoreOptions(local_root=folder, local_durable=False)),
        make_versions=make_versions,
        options=CatalogOptions(queue_wait_s_max=0.05),
    )
