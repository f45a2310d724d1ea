"""What may be deleted at once: an address is queued only by who took its last name away, and knows it.

Each race is one writer, stopped at one operation of the store. The simulator walks all orders of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakebed.base import Entry, to_row
from lakebed.kv import Store
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore
from lakebed.versions import (
    EXCLUSIVE,
    ClaimRecord,
    Condition,
    LetGoBy,
    Note,
    PathExists,
    QueuedRecord,
    Versions,
    decode_cell,
    encode_cell,
    keys,
)
from tests.clocks import TurnableClock

from .conftest import HookedStore, body

FAR_MS = 10_000_000


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


@pytest.fixture
async def hard(repo: Versions) -> Versions:
    await repo.hard_delete.change(by="ann", is_on=True)
    return repo


async def put(repo: Versions, path: bytes, data: bytes, branch: str = "main") -> str:
    return (await repo.staging.upload(branch, path, body(repo.objectstore, data))).address


async def queued(repo: Versions) -> list[tuple[str, LetGoBy]]:
    await repo.hard_delete.flush()
    page = await repo.hard_delete.page()
    return [(record.address, record.by) for _, record in page.items]


async def commit(repo: Versions) -> None:
    await repo.commits.commit("main", Note(message="m", committer="c"))


async def test_an_overwritten_object_is_queued(hard: Versions) -> None:
    first = await put(hard, b"a", b"1")
    await put(hard, b"a", b"2")

    assert await queued(hard) == [(first, LetGoBy.OVERWRITE)]


async def test_a_record_says_what_and_since_when(hard: Versions, clock: TurnableClock) -> None:
    first = await put(hard, b"a", b"11")
    await put(hard, b"a", b"2")
    await hard.hard_delete.flush()

    [(_, record)] = (await hard.hard_delete.page()).items

    expected = QueuedRecord(address=first, since_ms=clock.ms, by=LetGoBy.OVERWRITE, path=b"a", size_bytes=2)
    assert record == expected


async def test_a_deleted_object_and_one_that_is_reset_are_queued(hard: Versions) -> None:
    deleted, reset = await put(hard, b"a", b"1"), await put(hard, b"b", b"2")

    await hard.staging.delete("main", b"a")
    await hard.resets.reset_object("main", b"b")

    assert sorted(await queued(hard)) == sorted([(deleted, LetGoBy.DELETE), (reset, LetGoBy.RESET)])


async def test_an_upload_that_its_condition_refuses_late_is_queued(hard: Versions, store: HookedStore) -> None:
    sent: list[str] = []
    store_body = body(hard.objectstore, b"2")

    async def late(address: str):  # type: ignore[no-untyped-def]  # returns an Entry, as `body` does
        sent.append(address)
        await put(hard, b"a", b"1")
        return await store_body(address)

    with pytest.raises(PathExists):
        await hard.staging.upload("main", b"a", late, condition=Condition(if_none_match=True))

    assert await queued(hard) == [(sent[0], LetGoBy.REFUSED)]


async def test_nothing_is_queued_while_it_is_off(repo: Versions) -> None:
    await put(repo, b"a", b"1")
    await put(repo, b"a", b"2")

    assert await queued(repo) == []


async def test_what_a_copy_names_too_is_not_queued(hard: Versions) -> None:
    await put(hard, b"a", b"1")
    await hard.copies.copy("main", b"a", "main", b"b", shallow=True)

    await put(hard, b"a", b"2")

    assert await queued(hard) == []


async def test_what_a_commit_may_have_read_is_not_queued(
    hard: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    """The writer knows the token from its cache; meanwhile a commit seals it, and takes the old object."""
    await put(hard, b"a", b"1")

    async def meanwhile() -> None:
        await commit(another())

    store.before("set_if", b"a", meanwhile)
    await put(hard, b"a", b"2")

    assert await queued(hard) == []


async def test_a_lost_answer_lets_nothing_go(hard: Versions, store: HookedStore) -> None:
    async def nothing() -> None:
        pass

    await put(hard, b"a", b"1")
    store.lose_answer(b"a", nothing)
    await hard.staging.delete("main", b"a")

    assert await queued(hard) == []


async def test_a_mark_of_an_older_release_is_not_believed(hard: Versions) -> None:
    first = await put(hard, b"a", b"1")
    await mark_as_before(hard, b"a")

    await put(hard, b"a", b"2")

    assert first not in [address for address, _ in await queued(hard)]


async def mark_as_before(repo: Versions, key: bytes) -> None:
    token = (await repo.context.branches.fresh("main")).record.staging_token
    partition = keys.token_partition(repo.uid, token)
    held = await repo.store.get(partition, key)
    assert held is not None
    _, row = decode_cell(held.value)
    await repo.store.set(partition, key, encode_cell(2, row))


# The cleaner


async def test_what_a_reset_dropped_is_queued_by_the_cleaner(hard: Versions) -> None:
    first = await put(hard, b"a", b"1")
    await hard.resets.reset("main")

    await hard.cleanup.clean()

    assert await queued(hard) == [(first, LetGoBy.CLEANER)]


async def test_what_a_commit_took_is_not(hard: Versions) -> None:
    await put(hard, b"a", b"1")
    await commit(hard)

    await hard.cleanup.clean()

    assert await queued(hard) == []


async def test_what_a_commit_left_for_a_newer_version_is_queued_by_the_cleaner(
    hard: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    """A commit that ended between its seal and its publication leaves a sealed token; the next one overlays it."""
    first = await put(hard, b"a", b"1")
    await another().commits.seal("main")
    hard.context.branches.forget("main")
    await put(hard, b"a", b"2")
    await commit(hard)

    await hard.cleanup.clean()

    assert await queued(hard) == [(first, LetGoBy.CLEANER)]


async def test_the_same_bytes_again_which_are_no_change_are_queued_by_the_cleaner(hard: Versions) -> None:
    kept = await put(hard, b"a", b"1")
    await commit(hard)
    again = await put(hard, b"a", b"1")
    await put(hard, b"b", b"2")
    await commit(hard)

    await hard.cleanup.clean()

    assert (await hard.staging.get("main", b"a")).address in {kept, again}
    assert (await hard.staging.get("main", b"a")).address not in [one for one, _ in await queued(hard)]
    assert len(await queued(hard)) <= 1


async def test_what_a_freeze_copied_is_not(hard: Versions) -> None:
    await put(hard, b"a", b"1")
    await hard.fencing.freeze("main")

    await hard.cleanup.clean()

    assert await queued(hard) == []


async def test_a_doomed_cell_that_was_not_queued_is_queued_by_the_next_cleaner(
    hard: Versions, store: HookedStore
) -> None:
    first = await put(hard, b"a", b"1")
    await hard.resets.reset("main")

    class Died(Exception):
        pass

    async def die(*_: object) -> None:
        raise Died

    put_records, hard.hard_delete.put = hard.hard_delete.put, die  # type: ignore[assignment,method-assign]  # a crash there
    with pytest.raises(Died):
        await hard.cleanup.clean()
    hard.hard_delete.put = put_records  # type: ignore[method-assign]  # it comes back

    await hard.cleanup.clean()

    assert await queued(hard) == [(first, LetGoBy.CLEANER)]


async def test_a_claim_stays_while_a_cell_of_its_tokens_could_not_be_removed(
    hard: Versions, clock: TurnableClock, store: HookedStore
) -> None:
    await put(hard, b"a", b"1")
    await hard.resets.reset("main")
    [token] = [token async for _, record in claims(hard) for token in record.tokens]
    partition = keys.token_partition(hard.uid, token)
    await hard.cleanup.clean()
    clock.ms += FAR_MS
    await late_write(hard, partition)

    async def changes() -> None:
        await late_write(hard, partition)

    store.before("set_if", b"a", changes)
    await hard.cleanup.clean()
    assert [record async for _, record in claims(hard)] != []

    clock.ms += FAR_MS
    await hard.cleanup.clean()
    assert [record async for _, record in claims(hard)] == []


async def late_write(repo: Versions, partition: bytes) -> None:
    place = await repo.slices.place()
    await repo.slices.leave(place)
    entry = Entry(address=place.address, size_bytes=1, checksum=place.address, modified_ms=0)
    await repo.store.set(partition, b"a", encode_cell(EXCLUSIVE, to_row(b"a", entry)))


def claims(repo: Versions):  # type: ignore[no-untyped-def]  # an iterator of keys and records
    return repo.context.records(ClaimRecord, keys.CLAIM)


async def test_turned_off_it_forgets_what_it_had_not_written(hard: Versions, store: Store) -> None:
    await put(hard, b"a", b"1")
    await put(hard, b"a", b"2")
    await hard.hard_delete.change(by="ann", is_on=False)
    await hard.hard_delete.setting()

    assert await queued(hard) == []


async def test_what_a_commit_took_whose_tree_cannot_be_read_is_not(
    hard: Versions, another: Callable[[], Versions], objectstore: MemoryObjectStore
) -> None:
    await put(hard, b"a", b"1")
    await commit(hard)
    trees = [stat.key async for page in objectstore.list("_lakefs/") for stat in page]
    await MemoryDeleter(objectstore).delete(trees)

    cleaner = another()
    await cleaner.cleanup.clean()

    assert await queued(cleaner) == []


async def test_a_cell_that_keeps_its_address_lets_nothing_go(hard: Versions) -> None:
    row = to_row(b"a", Entry(address="data/0000000000000/00000001", size_bytes=1, checksum="1", modified_ms=0))

    hard.hard_delete.let_go((EXCLUSIVE, row), b"a", LetGoBy.OVERWRITE, instead=row)

    assert await queued(hard) == []
