"""An exclusive mark says that no other cell and no commit names the address: it must be true whenever it is there.

Each test stops a writer at one operation of the store. Online deletion of replaced objects rests on these marks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from lakebed.base import Entry, OutcomeUnknown, StagingToken, from_row
from lakebed.versions import (
    EXCLUSIVE,
    ClaimReason,
    ClaimRecord,
    Condition,
    CopyRecord,
    Note,
    PathExists,
    UploadRecord,
    Versions,
    decode_cell,
    keys,
)
from lakebed.versions.cells import is_exclusive
from tests.versions.conftest import HookedStore, body


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


async def nothing() -> None:
    pass


async def current(repo: Versions) -> StagingToken:
    return (await repo.context.branches.fresh("main")).record.staging_token


async def cell(repo: Versions, token: StagingToken, key: bytes) -> tuple[int, Entry]:
    held = await repo.store.get(repo.context.token_partition(token), key)
    assert held is not None
    flags, row = decode_cell(held.value)
    return flags, from_row(row)


async def commit(repo: Versions) -> None:
    await repo.commits.commit("main", Note(message="m", committer="c"))


async def handed_out(repo: Versions) -> Entry:
    address = await repo.uploads.issue("main")
    stored = await repo.objectstore.put(address, b"client")
    return Entry(address=address, size_bytes=stored.size_bytes, checksum=stored.md5, modified_ms=1)


async def take_for_dead(collector: Versions, entry: Entry) -> None:
    """Revoke the record of the address, as a collector does whose owner of it seems to be dead."""
    assert await collector.fencing.fence(UploadRecord, entry.address)


async def test_a_mark_that_a_copy_took_off_is_not_set_again_after_a_lost_answer(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    async def copy() -> None:
        await another().copies.copy("main", b"k", "main", b"copied", shallow=True)

    store.lose_answer(b"k", copy)
    entry = await repo.staging.upload("main", b"k", body(repo.objectstore))

    flags, found = await cell(repo, await current(repo), b"k")
    assert found.address == entry.address == (await repo.staging.get("main", b"copied")).address
    assert not is_exclusive(flags)


async def test_a_write_whose_answer_was_lost_and_whose_cell_is_there_is_done(
    repo: Versions, store: HookedStore
) -> None:
    store.lose_answer(b"k", nothing)
    entry = await repo.staging.upload("main", b"k", body(repo.objectstore))

    flags, found = await cell(repo, await current(repo), b"k")
    assert (is_exclusive(flags), found.address) == (True, entry.address)


async def test_an_address_whose_cell_was_replaced_after_a_lost_answer_is_never_set_again(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    first: list[str] = []

    async def overwrite() -> None:
        first.append((await cell(repo, await current(repo), b"k"))[1].address)
        await another().staging.upload("main", b"k", body(repo.objectstore, b"theirs"))

    store.lose_answer(b"k", overwrite)
    entry = await repo.staging.upload("main", b"k", body(repo.objectstore, b"ours"))

    assert entry.address not in first
    assert await repo.objectstore.get(entry.address) == b"ours"
    assert (await repo.staging.get("main", b"k")).address == entry.address


async def test_a_conditional_upload_that_moves_to_a_fresh_address_does_not_meet_itself(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    """Its first cell was committed and cleaned away: what is visible is its own."""

    async def commit_and_clean() -> None:
        await commit(another())
        await another().cleanup.clean()

    store.before("get", b"branch/main", nothing)

    async def commit_after_the_cell() -> None:
        store.before("get", b"branch/main", commit_and_clean)

    store.before("set_if", b"k", commit_after_the_cell)
    entry = await repo.staging.upload("main", b"k", body(repo.objectstore), condition=Condition(if_none_match=True))

    assert (await repo.staging.get("main", b"k")).checksum == entry.checksum


async def test_a_conditional_upload_of_what_another_wrote_is_refused_though_it_is_equal(repo: Versions) -> None:
    await repo.staging.upload("main", b"k", body(repo.objectstore))

    with pytest.raises(PathExists):
        await repo.staging.upload("main", b"k", body(repo.objectstore), condition=Condition(if_none_match=True))


async def test_a_link_whose_cell_was_replaced_after_a_lost_answer_does_not_say_that_it_was_refused(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    async def overwrite() -> None:
        await another().staging.upload("main", b"k", body(repo.objectstore, b"theirs"))

    entry = await handed_out(repo)
    store.lose_answer(b"k", overwrite)
    with pytest.raises(OutcomeUnknown):
        await repo.uploads.link("main", b"k", entry)

    assert (await repo.staging.get("main", b"k")).size_bytes == len(b"theirs")


async def stop_between_cell_and_second_look(store: HookedStore, hook: Callable[[], object]) -> None:
    """Run `hook` when the cell of `k` is set and its writer is about to read the branch again."""

    async def arm() -> None:
        store.before("get", b"branch/main", hook)  # type: ignore[arg-type]  # an async function of no arguments

    store.before("set_if", b"k", arm)


async def test_a_repeat_in_another_token_leaves_no_mark_on_either_cell(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    old = await current(repo)

    async def seal() -> None:
        await another().commits.seal("main")

    await stop_between_cell_and_second_look(store, seal)
    entry = await repo.staging.upload("main", b"k", body(repo.objectstore))

    for token in (old, await current(repo)):
        flags, found = await cell(repo, token, b"k")
        assert (is_exclusive(flags), found.address) == (False, entry.address)


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_mark_that_is_taken_off_without_an_answer_is_off_before_the_repeat(
    repo: Versions, another: Callable[[], Versions], store: HookedStore, is_done: bool
) -> None:
    old = await current(repo)

    async def fail() -> None:
        raise OutcomeUnknown("the request was lost")

    async def seal() -> None:
        await another().commits.seal("main")
        if is_done:
            store.lose_answer(b"k", nothing)
        else:
            store.before("set_if", b"k", fail)

    await stop_between_cell_and_second_look(store, seal)
    entry = await repo.staging.upload("main", b"k", body(repo.objectstore))

    flags, found = await cell(repo, old, b"k")
    assert (is_exclusive(flags), found.address) == (False, entry.address)
    assert (await cell(repo, await current(repo), b"k"))[1].address == entry.address


async def test_a_repeat_whose_first_cell_was_replaced_goes_to_a_fresh_address(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    addresses: list[str] = []

    async def overwrite_and_seal() -> None:
        addresses.append((await cell(repo, await current(another()), b"k"))[1].address)
        await another().staging.upload("main", b"k", body(repo.objectstore, b"theirs"))
        await another().commits.seal("main")

    await stop_between_cell_and_second_look(store, overwrite_and_seal)
    entry = await repo.staging.upload("main", b"k", body(repo.objectstore, b"ours"))

    assert entry.address not in addresses
    flags, found = await cell(repo, await current(repo), b"k")
    assert (is_exclusive(flags), found.address) == (True, entry.address)


async def test_a_link_whose_first_cell_was_replaced_does_not_say_that_it_was_refused(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    async def overwrite_and_seal() -> None:
        await another().staging.upload("main", b"k", body(repo.objectstore, b"theirs"))
        await another().commits.seal("main")

    entry = await handed_out(repo)
    await stop_between_cell_and_second_look(store, overwrite_and_seal)

    with pytest.raises(OutcomeUnknown):
        await repo.uploads.link("main", b"k", entry)


async def test_a_link_that_is_taken_for_dead_once_its_cell_is_there_is_done(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    entry = await handed_out(repo)

    async def arm() -> None:
        store.before("set_if", keys.UPLOAD + entry.address.encode(), partial(take_for_dead, another(), entry))

    await stop_between_cell_and_second_look(store, arm)
    await repo.uploads.link("main", b"k", entry)

    assert (await repo.staging.get("main", b"k")).address == entry.address


async def test_a_link_that_is_taken_for_dead_before_its_second_look_does_not_say_that_it_was_refused(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    entry = await handed_out(repo)

    await stop_between_cell_and_second_look(store, partial(take_for_dead, another(), entry))
    with pytest.raises(OutcomeUnknown):
        await repo.uploads.link("main", b"k", entry)

    assert (await repo.staging.get("main", b"k")).address == entry.address


async def test_a_creation_that_a_commit_took_before_another_write_came_does_not_say_that_it_was_refused(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    async def commit_and_overwrite() -> None:
        await another().commits.commit("main", Note(message="m", committer="c"))
        await another().staging.upload("main", b"k", body(repo.objectstore, b"theirs"))

    await stop_between_cell_and_second_look(store, commit_and_overwrite)
    with pytest.raises(OutcomeUnknown):
        await repo.staging.upload("main", b"k", body(repo.objectstore), condition=Condition(if_none_match=True))

    assert (await repo.staging.get("main@", b"k")).size_bytes == len(b"data")


async def test_a_copy_that_is_taken_for_dead_once_its_cell_is_there_is_done(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    await repo.staging.upload("main", b"source", body(repo.objectstore))

    async def give_up() -> None:
        [name] = (await store.scan(b"r1", keys.COPY, 1)).keys
        assert await another().fencing.fence(CopyRecord, name.removeprefix(keys.COPY).decode())

    async def arm() -> None:
        store.before("set_if", keys.COPY, give_up)

    await stop_between_cell_and_second_look(store, arm)
    await repo.copies.copy("main", b"source", "main", b"k")

    assert await repo.objectstore.get((await repo.staging.get("main", b"k")).address) == b"data"


async def test_a_mark_of_an_older_release_is_not_believed(repo: Versions) -> None:
    older = 2  # It knew one bit, which it set again after a lost answer.

    assert not is_exclusive(older)
    assert is_exclusive(EXCLUSIVE)
    assert EXCLUSIVE & older, "a server of an older release beside this one takes off what it knows"


async def reasons(repo: Versions) -> set[ClaimReason]:
    return {record.why async for _, record in repo.context.records(ClaimRecord, keys.CLAIM)}


async def test_a_claim_says_for_what_it_was_made(repo: Versions) -> None:
    await repo.staging.upload("main", b"k", body(repo.objectstore))
    assert await reasons(repo) == set()

    await repo.fencing.freeze("main")
    assert await reasons(repo) == {ClaimReason.FREEZE}
    await commit(repo)
    assert await reasons(repo) == {ClaimReason.FREEZE, ClaimReason.COMMIT}
    await repo.resets.reset("main")
    assert await reasons(repo) == {ClaimReason.FREEZE, ClaimReason.COMMIT, ClaimReason.RESET}
    await repo.refs.create_branch("dev", "main")
    await repo.refs.delete_branch("dev")
    assert await reasons(repo) == set(ClaimReason)


async def test_a_claim_of_an_older_release_counts_as_that_of_a_freeze() -> None:
    assert ClaimRecord(branch="main", tokens=(), created_ms=1).why is ClaimReason.FREEZE
