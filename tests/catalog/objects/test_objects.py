"""Objects: paths as they are, bodies whole or not at all, addresses inside and outside the namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from lakebed.base import Conflict, Denied, Entry, Etags, Invalid, InvalidName
from lakebed.catalog import AddressInNamespace, Catalog, Repository
from lakebed.objectstore import ShortBody, open_objectstore
from lakebed.versions import Condition, Note, PathExists, PathNotFound, PreconditionFailed, UploadMissing, UploadRefused
from tests.clocks import TurnableClock
from tests.versions.conftest import HookedStore


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


async def read(repository: Repository, ref: str, path: str) -> bytes:
    return await repository.objects.read(await repository.objects.get(ref, path))


@pytest.mark.parametrize("path", ["a", "/a", "a//b", "a/", "../x", "./a", "%2B+ ", "ü/ß", "a\nb", "x" * 1024])
async def test_a_path_is_kept_byte_for_byte(repository: Repository, path: str) -> None:
    await repository.objects.upload("main", path, b"here")

    assert await read(repository, "main", path) == b"here"
    assert [key for key, _ in (await repository.versions.staging.list("main")).items] == [path.encode()]


@pytest.mark.parametrize("path", ["", "x" * 1025, "ü" * 513, "\ud800"])
async def test_a_path_that_cannot_be_a_key_is_refused(repository: Repository, path: str) -> None:
    with pytest.raises(InvalidName):
        await repository.objects.upload("main", path, b"here")
    with pytest.raises(InvalidName):
        await repository.objects.get("main", path)


async def test_a_body_that_is_shorter_than_declared_stores_nothing(repository: Repository) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"abc"

    with pytest.raises(ShortBody):
        await repository.objects.upload("main", "a", body(), size_bytes=5)

    with pytest.raises(PathNotFound):
        await repository.objects.get("main", "a")
    assert [stat.key async for page in repository.objectstore.list("data/") for stat in page] == []


async def test_an_upload_knows_size_checksum_type_and_metadata(repository: Repository) -> None:
    entry = await repository.objects.upload("main", "a", b"hello", content_type="text/plain", metadata={"k": "v"})

    assert (entry.size_bytes, entry.checksum) == (5, "5d41402abc4b2a76b9719d911017c592")
    assert (entry.content_type, entry.metadata) == ("text/plain", {"k": "v"})
    assert await repository.objects.get("main", "a") == entry


@pytest.mark.parametrize("is_copy", [False, True])
async def test_metadata_and_copies_onto_themselves_keep_an_object_that_comes_meanwhile(
    repository: Repository, store: HookedStore, is_copy: bool
) -> None:
    await repository.objects.upload("main", "a", b"older")
    await repository.versions.commits.commit("main", Note(message="m", committer="c"))

    async def replace() -> None:
        await repository.objects.upload("main", "a", b"newer")

    store.before("set_if", b"a", replace)
    if is_copy:
        await repository.objects.copy("main", "a", "main", "a", alter=lambda entry: entry, shallow=True)
    else:
        entry = await repository.objects.set_metadata("main", "a", {"k": "v"})
        assert entry.metadata == {"k": "v"}

    assert await read(repository, "main", "a") == b"newer"


async def test_a_copy_onto_itself_ends_when_its_object_is_replaced_each_time(
    repository: Repository, store: HookedStore
) -> None:
    attempts = 0

    async def replace() -> None:
        await repository.objects.upload("main", "a", b"%d" % attempts)

    def slow(entry: Entry) -> Entry:
        nonlocal attempts
        attempts += 1
        assert attempts <= 100, "tried without end"
        store.before("set_if", b"a", replace)
        return entry

    await repository.objects.upload("main", "a", b"0")
    with pytest.raises(Conflict, match="replaced during each of 16 attempts"):
        await repository.objects.copy("main", "a", "main", "a", alter=slow, shallow=True)

    assert await read(repository, "main", "a") == b"%d" % attempts


async def test_a_copy_onto_itself_ends_when_its_caller_refuses_the_source(repository: Repository) -> None:
    await repository.objects.upload("main", "a", b"1")
    looks = 0

    def refuse(_: Entry) -> Entry:
        nonlocal looks
        looks += 1
        assert looks < 3, "tried again"
        raise PreconditionFailed("the caller wants another source")

    with pytest.raises(PreconditionFailed, match="the caller wants another source"):
        await repository.objects.copy("main", "a", "main", "a", alter=refuse)


async def test_conditional_uploads_see_what_is_there(repository: Repository) -> None:
    entry = await repository.objects.upload("main", "a", b"1", condition=Condition(if_none_match=True))

    with pytest.raises(PathExists):
        await repository.objects.upload("main", "a", b"2", condition=Condition(if_none_match=True))
    with pytest.raises(PreconditionFailed):
        await repository.objects.upload("main", "a", b"2", condition=Condition(if_match=Etags.of("other")))
    await repository.objects.upload("main", "a", b"3", condition=Condition(if_match=Etags.of(entry.checksum)))

    assert await read(repository, "main", "a") == b"3"


async def test_metadata_is_replaced_and_the_bytes_stay(repository: Repository) -> None:
    await repository.objects.upload("main", "a", b"1", metadata={"old": "x"})
    await repository.objects.set_metadata("main", "a", {"new": "y"})
    assert (await repository.objects.get("main", "a")).metadata == {"new": "y"}

    await repository.changes.commit("main", Note(message="m", committer="esti"))
    await repository.objects.set_metadata("main", "a", {"newer": "z"})

    assert (await repository.objects.get("main", "a")).metadata == {"newer": "z"}
    assert (await repository.objects.get("main@", "a")).metadata == {"new": "y"}
    assert await read(repository, "main", "a") == b"1"


async def test_many_paths_are_deleted_at_once_absent_ones_too(repository: Repository) -> None:
    await repository.objects.upload("main", "a", b"1")

    assert await repository.objects.delete_many("main", ["a", "never"]) == []
    with pytest.raises(Invalid, match="paths a request, got"):
        await repository.objects.delete_many("main", ["a"] * 1001)

    assert (await repository.versions.staging.list("main")).items == []


async def test_a_path_that_none_can_have_stops_no_other_deletion(repository: Repository) -> None:
    await repository.objects.upload("main", "a", b"1")

    failed = await repository.objects.delete_many("main", ["x" * 1025, "a", ""])

    assert [(path, type(error)) for path, error in failed] == [("x" * 1025, InvalidName), ("", InvalidName)]
    assert (await repository.versions.staging.list("main")).items == []


async def test_an_object_is_copied_from_any_ref(repository: Repository) -> None:
    await repository.objects.upload("main", "a", b"1")
    await repository.changes.commit("main", Note(message="m", committer="esti"))
    await repository.changes.create_branch("other", "main")

    await repository.objects.copy("main", "a", "other", "b")

    assert await read(repository, "other", "b") == b"1"
    with pytest.raises(PathNotFound):
        await repository.objects.copy("main", "never", "other", "c")


class TestStage:
    def entry(self, address: str) -> Entry:
        return Entry(address=address, size_bytes=3, checksum="c", modified_ms=1)

    async def test_an_object_outside_the_namespace_is_named_and_read(self, repository: Repository) -> None:
        outside = open_objectstore("mem://somewhere")
        await outside.put("deep/x", b"abc")

        await repository.objects.stage("main", "a", self.entry("mem://somewhere/deep/x"))

        assert await read(repository, "main", "a") == b"abc"

    async def test_a_namespace_made_around_a_staged_address_is_not_read(
        self, catalog: Catalog, repository: Repository, namespace: str
    ) -> None:
        later = f"{namespace}-later"
        await open_objectstore(later).put("x/y", b"abc")
        await repository.objects.stage("main", "a", self.entry(f"{later}/x/y"))
        entry = await repository.objects.get("main", "a")
        assert await repository.objects.read(entry) == b"abc"

        await catalog.create("later", storage_namespace=f"{later}/x")

        with pytest.raises(Denied, match="the object lies in the storage namespace of another"):
            await repository.objects.read(entry)
        with pytest.raises(Denied, match="the object lies in the storage namespace of another"):
            await anext(repository.objects.stream(entry))
        with pytest.raises(Denied, match="the object lies in the storage namespace of another"):
            await repository.objects.presign_get("a", entry, expires_s=60)

    async def test_an_address_inside_the_namespace_cannot_be_staged(self, repository: Repository) -> None:
        inside = await repository.objects.upload("main", "b", b"1")

        full = repository.full_address(inside.address)
        for address in (inside.address, full, full.replace("mem", "MEM", 1), "data/x"):
            with pytest.raises(AddressInNamespace):
                await repository.objects.stage("main", "a", self.entry(address))

    async def test_an_address_that_nobody_here_can_read_is_refused(self, repository: Repository) -> None:
        with pytest.raises(Invalid, match="cannot open what this address names"):
            await repository.objects.stage("main", "a", self.entry("ftp://x/y"))


class TestHandedOut:
    async def test_a_client_puts_the_bytes_and_links_them_once(self, repository: Repository) -> None:
        target = await repository.objects.issue_upload("main", "a", presign_s=None)
        assert target.full_address == repository.full_address(target.address)
        await repository.objectstore.put(target.address, b"abc")

        await repository.objects.link_upload("main", "a", target.full_address, size_bytes=3, checksum='"c"')

        assert await read(repository, "main", "a") == b"abc"
        assert (await repository.objects.get("main", "a")).checksum == "c"
        with pytest.raises(UploadRefused):
            await repository.objects.link_upload("main", "b", target.full_address, size_bytes=3, checksum="c")

    async def test_no_late_put_to_a_signed_url_changes_a_commit(
        self, repository: Repository, clock: TurnableClock
    ) -> None:
        """The store checks the URL when a put begins. So the link copies the bytes also an hour later."""
        for path, late_ms in (("soon", 0), ("late", 3_600_000)):
            target = await repository.objects.issue_upload("main", path, presign_s=900)
            await repository.objectstore.put(target.address, b"first")
            clock.ms += late_ms

            linked = await repository.objects.link_upload("main", path, target.full_address, size_bytes=5, checksum="c")
            await repository.changes.commit("main", Note(message=path, committer="ann"))
            await repository.objectstore.put(target.address, b"other")

            assert linked.address != target.address
            assert await read(repository, "main", path) == b"first"

    async def test_what_was_not_put_or_not_handed_out_cannot_be_linked(self, repository: Repository) -> None:
        target = await repository.objects.issue_upload("main", "a", presign_s=None)
        other = await repository.objects.upload("main", "b", b"abc")

        with pytest.raises(UploadMissing):
            await repository.objects.link_upload("main", "a", target.full_address, size_bytes=3, checksum="c")
        with pytest.raises(UploadMissing):
            await repository.objects.link_upload("main", "a", "mem://elsewhere/x", size_bytes=3, checksum="c")
        with pytest.raises(UploadRefused):
            await repository.objects.link_upload(
                "main", "a", repository.full_address(other.address), size_bytes=3, checksum="c"
            )
        await repository.objectstore.put(target.address, b"ab")
        with pytest.raises(UploadMissing):
            await repository.objects.link_upload("main", "a", target.full_address, size_bytes=3, checksum="c")

    async def test_a_link_tells_nothing_of_an_address_that_was_not_handed_out(self, repository: Repository) -> None:
        stored = repository.full_address((await repository.objects.upload("main", "secret", b"abc")).address)

        for address, size_bytes in ((stored, 3), (stored, 4), (stored + "0", 3)):
            with pytest.raises(UploadRefused) as refused:
                await repository.objects.link_upload("main", "a", address, size_bytes=size_bytes, checksum="c")
            assert str(refused.value) == "this address was not handed out"
