"""Uploads in parts: the object is there when the last request was answered, and no part is lost before."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from lakebed.base import BYTES_MD5, Entry, OutcomeUnknown, Ports
from lakebed.catalog import NotHeaderText, PartMissing, ProtectedBranch, Repository
from lakebed.kv import StoreUnavailable
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore, ShortBody
from lakebed.versions import (
    BranchNotFound,
    CompletionUnderWay,
    Condition,
    MultipartNotFound,
    NoChanges,
    Note,
    PartRecord,
    PathExists,
    PathNotFound,
    UploadRecord,
    UploadState,
    keys,
)
from tests.clocks import TurnableClock
from tests.versions.conftest import HookedStore


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


async def begun(repository: Repository, path: str = "a") -> str:
    return await repository.multipart.begin("main", path, content_type="text/plain", metadata={"k": "v"})


async def put(repository: Repository, name: str, number: int, data: bytes) -> PartRecord:
    return await repository.multipart.put_part(name, number, data, size_bytes=len(data), checksums={})


async def complete(repository: Repository, name: str, *parts: PartRecord, if_none_match: bool = False) -> bytes:
    await repository.multipart.complete(
        name,
        repository.multipart.stream(parts),
        size_bytes=sum(part.size_bytes for part in parts),
        checksum="md5-2",
        metadata={"k": "w"},
        condition=Condition(if_none_match),
    )
    return await repository.objects.read(await repository.objects.get("main", "a"))


async def finish(repository: Repository, name: str, parts: list[PartRecord], *, if_none_match: bool = False) -> Entry:
    """Complete an upload as the S3 door does: one part is linked where it lies."""
    if len(parts) == 1:
        return await repository.multipart.link_only_part(
            name, parts[0], md5=parts[0].md5, checksum="md5", metadata={}, condition=Condition(if_none_match)
        )
    size = sum(part.size_bytes for part in parts)
    body = repository.multipart.stream(parts)
    return await repository.multipart.complete(
        name, body, size_bytes=size, checksum="md5", metadata={}, condition=Condition(if_none_match)
    )


async def read(repository: Repository) -> bytes:
    return await repository.objects.read(await repository.objects.get("main", "a"))


async def state_of(repository: Repository, part: PartRecord) -> UploadState | None:
    record = await repository.versions.inventory.find(UploadRecord, part.address)
    return None if record is None else record.state


async def test_the_object_is_made_of_its_parts_in_order(repository: Repository) -> None:
    name = await begun(repository)
    second, first = await put(repository, name, 2, b"world"), await put(repository, name, 1, b"hello ")

    assert [number for number, _ in await repository.versions.parts.every(name)] == [1, 2]
    with pytest.raises(PathNotFound):
        await repository.objects.get("main", "a")
    assert await complete(repository, name, first, second) == b"hello world"

    entry = await repository.objects.get("main", "a")
    assert (entry.checksum, entry.content_type, entry.metadata) == (
        "md5-2",
        "text/plain",
        {"k": "w", BYTES_MD5: hashlib.md5(b"hello world").hexdigest()},
    )
    assert [await state_of(repository, part) for part in (first, second)] == [UploadState.EXPIRED] * 2
    assert await repository.versions.parts.every(name) == []
    assert await complete(repository, name, first, second) == b"hello world"
    assert (await repository.objects.get("main", "a")).address == entry.address


async def test_an_only_part_becomes_the_object_where_it_lies(repository: Repository) -> None:
    name = await begun(repository)
    part = await put(repository, name, 1, b"hello")

    entry = await repository.multipart.link_only_part(name, part, md5=part.md5, checksum="md5-1", metadata={})

    assert (entry.address, entry.checksum) == (part.address, "md5-1")
    assert await state_of(repository, part) is UploadState.LINKED
    with pytest.raises(MultipartNotFound):
        await repository.versions.parts.get(name)


async def test_a_part_that_is_sent_again_takes_the_place_of_the_first(repository: Repository) -> None:
    name = await begun(repository)
    old, new = await put(repository, name, 1, b"old"), await put(repository, name, 1, b"new")

    assert dict(await repository.versions.parts.every(name)) == {1: new}
    assert [await state_of(repository, part) for part in (old, new)] == [UploadState.EXPIRED, UploadState.ISSUED]


async def test_what_is_aborted_gives_up_its_parts_and_those_that_come_late(repository: Repository) -> None:
    name = await begun(repository)
    part = await put(repository, name, 1, b"x")
    address = await repository.versions.parts.issue(name)

    await repository.multipart.abort(name)

    late = PartRecord(address=address, size_bytes=1, md5="m", modified_ms=1)
    with pytest.raises(MultipartNotFound):
        await repository.versions.parts.put(name, 2, late)
    assert [await state_of(repository, each) for each in (part, late)] == [UploadState.EXPIRED] * 2
    assert await repository.versions.parts.every(name) == []
    with pytest.raises(MultipartNotFound):
        await repository.multipart.abort(name)


async def test_a_part_of_an_upload_that_a_crash_ended_halfway_is_cleaned_away(repository: Repository) -> None:
    name = await begun(repository)
    part = await put(repository, name, 1, b"x")
    await repository.versions.context.delete(b"multipart/" + name.encode())

    assert await repository.versions.parts.clean() == 1

    assert await state_of(repository, part) is UploadState.EXPIRED
    assert await repository.versions.parts.clean() == 0


async def test_an_upload_with_a_condition_that_does_not_hold_keeps_its_parts(repository: Repository) -> None:
    await repository.objects.upload("main", "a", b"there")
    name = await begun(repository)
    parts = [await put(repository, name, 1, b"x"), await put(repository, name, 2, b"y")]

    with pytest.raises(PathExists):
        await complete(repository, name, *parts, if_none_match=True)

    assert await complete(repository, name, *parts) == b"xy"


async def crash() -> None:
    raise StoreUnavailable("the process died")


async def killed(
    repository: Repository, store: HookedStore, parts: int, *, before: tuple[str, bytes]
) -> tuple[str, list[PartRecord]]:
    """Upload parts, and die over their completion before this operation on keys of this prefix. Return id and parts."""
    name = await begun(repository)
    stored = [await put(repository, name, number, b"mine") for number in range(1, parts + 1)]
    store.before(*before, crash)
    with pytest.raises(StoreUnavailable):
        await finish(repository, name, stored)
    return name, stored


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_completion_sent_again_after_a_crash_keeps_what_another_wrote_since(
    repository: Repository, store: HookedStore, parts: int
) -> None:
    """Its answer was lost, so its client sends it again; meanwhile another writer overwrote the path."""
    name, stored = await killed(repository, store, parts, before=("set", b"multipart/"))
    assert await read(repository) == b"mine" * parts
    await repository.objects.upload("main", "a", b"theirs")

    with pytest.raises(MultipartNotFound):
        await finish(repository, name, stored)

    assert await read(repository) == b"theirs"


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_completion_sent_again_after_a_crash_finds_its_object(
    repository: Repository, store: HookedStore, parts: int
) -> None:
    name, stored = await killed(repository, store, parts, before=("set", b"multipart/"))
    address = (await repository.objects.get("main", "a")).address

    assert (await finish(repository, name, stored)).address == address

    assert await repository.versions.parts.every(name) == []
    assert (await repository.versions.parts.completed(name)).etag == "md5"


@pytest.mark.parametrize("parts", [1, 2])
async def test_an_abort_after_a_completion_that_died_says_that_it_was_completed(
    repository: Repository, store: HookedStore, parts: int
) -> None:
    name, _ = await killed(repository, store, parts, before=("set", b"multipart/"))

    with pytest.raises(MultipartNotFound, match=r"the upload was completed$"):
        await repository.multipart.abort(name)

    assert await read(repository) == b"mine" * parts


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_completion_that_died_before_its_link_is_done_by_the_next(
    repository: Repository, store: HookedStore, parts: int
) -> None:
    name, stored = await killed(repository, store, parts, before=("set_if", b"upload/"))
    with pytest.raises(PathNotFound):
        await read(repository)

    await finish(repository, name, stored)

    assert await read(repository) == b"mine" * parts


async def test_a_completion_that_died_in_its_link_is_refused_for_good_once_it_cannot_land(
    repository: Repository, store: HookedStore, ports: Ports
) -> None:
    clock = ports.clock
    assert isinstance(clock, TurnableClock)
    name = await begun(repository)
    stored = [await put(repository, name, number, b"mine") for number in (1, 2)]
    store.before("set_if", b"a", crash)
    with pytest.raises(StoreUnavailable):
        await finish(repository, name, stored)

    with pytest.raises(CompletionUnderWay):
        await finish(repository, name, stored)
    clock.ms += 60_000
    with pytest.raises(MultipartNotFound, match="interrupted"):
        await finish(repository, name, stored)

    with pytest.raises(PathNotFound):
        await read(repository)


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_completion_on_a_condition_sent_again_after_a_crash_wins_nothing_beside_another_of_the_same(
    repository: Repository, store: HookedStore, parts: int
) -> None:
    """Its cell comes into a token that is sealed, after another creator looked there. The commit keeps that cell."""
    commits, note = repository.versions.commits, Note(message="m", committer="ann")
    name = await begun(repository)
    stored = [await put(repository, name, number, b"mine") for number in range(1, parts + 1)]
    sealed = []

    async def another_creates_amid_a_commit() -> None:
        sealed.append(await commits.seal("main"))
        there = b"mine" * parts
        await repository.objects.upload(
            "main", "a", there, content_type="text/plain", condition=Condition(if_none_match=True)
        )
        store.before("get", keys.BRANCH, crash)

    store.before("set_if", b"a", another_creates_amid_a_commit)
    with pytest.raises(OutcomeUnknown):
        await finish(repository, name, stored, if_none_match=True)
    await commits._publish_sealed("main", *sealed[0], note, allow_empty=False)  # its second half
    with pytest.raises(NoChanges):
        await commits.commit("main", note)

    with pytest.raises(MultipartNotFound, match="interrupted"):
        await finish(repository, name, stored, if_none_match=True)


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_completion_on_a_condition_sent_again_after_a_crash_finds_its_object(
    repository: Repository, store: HookedStore, parts: int
) -> None:
    name = await begun(repository)
    stored = [await put(repository, name, number, b"mine") for number in range(1, parts + 1)]

    async def crash_at_the_second_look() -> None:
        store.before("get", keys.BRANCH, crash)

    store.before("set_if", b"a", crash_at_the_second_look)
    with pytest.raises(OutcomeUnknown):
        await finish(repository, name, stored, if_none_match=True)

    await finish(repository, name, stored, if_none_match=True)

    assert (await repository.versions.parts.completed(name)).etag == "md5"


async def waiting_to_link(
    repository: Repository, store: HookedStore
) -> tuple[Callable[[], Awaitable[Entry]], asyncio.Future[Entry], asyncio.Event]:
    """Begin a completion that waits before its cell for as long as a link may take. Return how to send it again, the
    waiting one, and what lets it go on."""
    is_there, may_go = asyncio.Event(), asyncio.Event()
    name = await begun(repository)
    stored = [await put(repository, name, number, b"mine") for number in (1, 2)]

    async def wait() -> None:
        is_there.set()
        await may_go.wait()

    store.before("set_if", b"a", wait)
    waiting = asyncio.ensure_future(finish(repository, name, stored))
    await is_there.wait()
    clock = repository.versions.ports.clock
    assert isinstance(clock, TurnableClock)
    clock.ms += 60_000
    return lambda: finish(repository, name, stored), waiting, may_go


async def test_a_completion_that_is_given_up_links_nothing_later(repository: Repository, store: HookedStore) -> None:
    send_again, waiting, may_go = await waiting_to_link(repository, store)

    with pytest.raises(MultipartNotFound, match="interrupted"):
        await send_again()
    may_go.set()

    with pytest.raises(CompletionUnderWay):
        await waiting
    with pytest.raises(PathNotFound):
        await read(repository)


async def test_a_completion_that_is_given_up_may_have_linked_by_then(
    repository: Repository, store: HookedStore
) -> None:
    send_again, waiting, may_go = await waiting_to_link(repository, store)

    async def let_go() -> None:
        may_go.set()
        await waiting

    store.before("set_if", keys.UPLOAD, let_go)
    again = await send_again()

    assert again.address == waiting.result().address


async def test_a_completion_that_dies_over_its_parts_is_on_record(repository: Repository, store: HookedStore) -> None:
    name, _ = await killed(repository, store, 2, before=("delete", keys.PART))

    assert (await repository.versions.parts.completed(name)).etag == "md5"


async def test_an_upload_is_completed_once(repository: Repository) -> None:
    name = await begun(repository)
    await repository.versions.parts.complete(name, "one")

    with pytest.raises(MultipartNotFound):
        await repository.versions.parts.complete(name, "two")

    assert (await repository.versions.parts.completed(name)).etag == "one"


async def test_an_abort_that_dies_halfway_has_ended_the_upload(repository: Repository, store: HookedStore) -> None:
    name = await begun(repository)
    await put(repository, name, 1, b"x")
    store.before("delete", keys.PART, crash)

    with pytest.raises(StoreUnavailable):
        await repository.multipart.abort(name)

    with pytest.raises(MultipartNotFound):
        await repository.versions.parts.get(name)


async def test_a_part_whose_upload_ends_meanwhile_is_refused_and_given_up(
    repository: Repository, store: HookedStore
) -> None:
    name = await begun(repository)
    store.before("set", keys.PART, lambda: repository.multipart.abort(name))

    with pytest.raises(MultipartNotFound):
        await put(repository, name, 1, b"x")

    assert await repository.versions.parts.every(name) == []
    found = [record.state async for _, record in repository.versions.context.records(UploadRecord, keys.UPLOAD)]
    assert found == [UploadState.EXPIRED]


async def test_a_part_that_is_not_replaced_after_all_stays(repository: Repository, store: HookedStore) -> None:
    name = await begun(repository)
    old = await put(repository, name, 1, b"old")
    store.before("set", keys.PART, crash)

    with pytest.raises(StoreUnavailable):
        await put(repository, name, 1, b"new")

    assert await state_of(repository, old) is UploadState.ISSUED


async def test_of_two_completions_at_once_one_makes_the_object(repository: Repository, store: HookedStore) -> None:
    name = await begun(repository)
    stored = [await put(repository, name, number, b"mine") for number in (1, 2)]

    async def another_completes() -> None:
        await finish(repository, name, stored)
        await repository.objects.upload("main", "a", b"theirs")

    store.before("set_if", b"multipart/", another_completes)
    entry = await finish(repository, name, stored)

    assert entry.checksum == "md5"
    assert await read(repository) == b"theirs"


async def test_an_only_part_that_is_too_old_is_refused_at_once_however_often(
    repository: Repository, ports: Ports
) -> None:
    clock = ports.clock
    assert isinstance(clock, TurnableClock)
    name = await begun(repository)
    part = await put(repository, name, 1, b"x")
    clock.ms += repository.versions.context.options.upload_ttl_ms

    before_ms = clock.ms
    for is_clean in (False, False, True):
        if is_clean:
            await repository.versions.cleanup.clean()
        with pytest.raises(PartMissing):
            await finish(repository, name, [part])
    assert clock.ms == before_ms


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_completion_that_loses_on_its_condition_can_be_sent_again_under_another(
    repository: Repository, store: HookedStore, parts: int
) -> None:
    await repository.versions.hard_delete.change(by="ann", is_on=True, grace_s=2)
    name = await begun(repository)
    stored = [await put(repository, name, number, b"mine") for number in range(1, parts + 1)]

    async def another_writes() -> None:
        await repository.objects.upload("main", "a", b"theirs")

    store.before("set_if", b"a", another_writes)
    with pytest.raises(PathExists):
        await finish(repository, name, stored, if_none_match=True)
    await repository.versions.hard_delete.flush()
    queued = [record.path for _, record in (await repository.versions.hard_delete.page()).items]

    assert queued == []
    await finish(repository, name, stored)
    assert await read(repository) == b"mine" * parts


async def test_a_part_that_breaks_off_is_none(repository: Repository) -> None:
    name = await begun(repository)

    async def body() -> AsyncIterator[bytes]:
        yield b"abc"

    with pytest.raises(ShortBody):
        await repository.multipart.put_part(name, 1, body(), size_bytes=5, checksums={})

    assert await repository.versions.parts.every(name) == []


async def test_a_part_whose_bytes_are_gone_makes_no_object(repository: Repository) -> None:
    name = await begun(repository)
    parts = [await put(repository, name, 1, b"x"), await put(repository, name, 2, b"y")]
    store = repository.objectstore
    assert isinstance(store, MemoryObjectStore)
    await MemoryDeleter(store).delete([parts[1].address])

    with pytest.raises(PartMissing):
        await complete(repository, name, *parts)

    with pytest.raises(PathNotFound):
        await repository.objects.get("main", "a")


async def test_what_can_never_be_completed_is_refused_when_it_begins(repository: Repository) -> None:
    begin = repository.multipart.begin
    with pytest.raises(BranchNotFound):
        await begin("nope", "a", content_type="x", metadata={})
    with pytest.raises(NotHeaderText):
        await begin("main", "a", content_type="a\nb", metadata={})
    await repository.set_protection(["main"])
    with pytest.raises(ProtectedBranch):
        await begin("main", "a", content_type="x", metadata={})


async def test_an_upload_ends_with_its_branch_and_not_in_another_of_its_name(
    repository: Repository, ports: Ports
) -> None:
    clock = ports.clock
    assert isinstance(clock, TurnableClock)
    await repository.changes.create_branch("dev", "main")
    name = await repository.multipart.begin("dev", "a", content_type="x", metadata={})
    await repository.changes.delete_branch("dev")
    clock.ms += 1
    await repository.changes.create_branch("dev", "main")

    with pytest.raises(MultipartNotFound):
        await repository.versions.parts.get(name)
    assert await repository.versions.parts.begun_on("dev") == []


@pytest.mark.parametrize("name", ["", "nope", "../branch/main", "x/y"])
async def test_an_id_that_was_never_given_is_unknown(repository: Repository, name: str) -> None:
    with pytest.raises(MultipartNotFound):
        await repository.versions.parts.get(name)
