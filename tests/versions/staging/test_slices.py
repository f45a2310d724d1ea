"""Addresses that are not yet in a cell: slices, uploads handed out, tracked copies; and giving up on dead owners."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from enum import StrEnum

import pytest
from msgspec.structs import replace

from lakebed.base import Entry, OutcomeUnknown, RunKind, RunState, Unavailable, parse_address, slice_name, to_row
from lakebed.kv import Store
from lakebed.objectstore import ObjectStore, ShortBody
from lakebed.server.http.errors import status_and_message
from lakebed.server.s3.errors import as_s3
from lakebed.versions import (
    EXCLUSIVE,
    MOVES,
    BranchNotFound,
    CopyGivenUp,
    CopyRecord,
    CopyState,
    IntentRecord,
    Note,
    RefState,
    RunRecord,
    SliceRecord,
    SliceState,
    UploadMissing,
    UploadRecord,
    UploadRefused,
    UploadState,
    Versions,
    decode_cell,
    decode_record,
    encode_record,
    keys,
)
from lakebed.versions.staging.conditions import ANY
from tests.clocks import TurnableClock
from tests.versions.conftest import HookedStore, body


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


async def slices(store: Store) -> list[tuple[str, SliceState]]:
    page = await store.scan(b"r1", b"slice/", 100)
    found = zip(page.keys, page.values, strict=True)
    return [(k[6:].decode(), decode_record(SliceRecord, v).state) for k, v in found if k.startswith(b"slice/")]


async def flags_of(repo: Versions, store: Store, path: bytes) -> int:
    token = (await repo.context.branches.fresh("main")).record.staging_token
    held = await store.get(f"r1/{token}".encode(), path)
    assert held is not None
    return decode_cell(held.value)[0]


async def put_bytes(repo: Versions, address: str) -> Entry:
    stored = await repo.objectstore.put(address, b"client")
    return Entry(address=address, size_bytes=stored.size_bytes, checksum=stored.md5, modified_ms=1)


async def test_addresses_of_one_instance_are_dense_in_one_open_slice(repo: Versions, store: Store) -> None:
    found = [(await repo.staging.upload("main", b"p%d" % n, body(repo.objectstore))).address for n in range(3)]

    places = [parse_address(address) for address in found]
    assert all(places)
    [(name, state)] = await slices(store)
    assert [(slice_name(p[0]), p[1]) for p in places if p] == [(name, 0), (name, 1), (name, 2)]
    assert state is SliceState.OPEN


async def test_two_instances_never_share_a_slice(repo: Versions, another: Callable[[], Versions]) -> None:
    other = another()
    ours = parse_address((await repo.staging.upload("main", b"a", body(repo.objectstore))).address)
    theirs = parse_address((await other.staging.upload("main", b"b", body(repo.objectstore))).address)

    assert ours is not None
    assert theirs is not None
    assert ours[0] != theirs[0]


async def test_a_slice_ends_after_an_hour_and_closes(repo: Versions, store: Store, clock: TurnableClock) -> None:
    await repo.staging.upload("main", b"a", body(repo.objectstore))
    clock.ms += repo.context.options.slice_age_ms_max
    await repo.staging.upload("main", b"b", body(repo.objectstore))

    # Newer slices sort first.
    assert [state for _, state in await slices(store)] == [SliceState.OPEN, SliceState.CLOSED]


async def test_a_slice_does_not_close_while_an_upload_in_it_is_under_way(repo: Versions, store: Store) -> None:
    place = await repo.slices.place()
    await repo.slices.end()
    assert [state for _, state in await slices(store)] == [SliceState.OPEN]

    await repo.slices.leave(place)

    assert [state for _, state in await slices(store)] == [SliceState.CLOSED]


def failing(error: BaseException, *, puts: ObjectStore | None = None) -> Callable[[str], Awaitable[Entry]]:
    """A body that fails so; with `puts`, once its bytes are there."""

    async def store_body(address: str) -> Entry:
        if puts is not None:
            await puts.put(address, b"bytes")
        raise error

    return store_body


async def test_a_slice_whose_uploads_all_failed_is_forgotten(repo: Versions, store: Store) -> None:
    for _ in range(2):
        with pytest.raises(ShortBody):
            await repo.staging.upload("main", b"a", failing(ShortBody("broken off")))

    await repo.slices.end()

    assert await slices(store) == []


async def test_a_slice_in_which_a_failed_upload_left_bytes_stays_recorded(repo: Versions, store: Store) -> None:
    with pytest.raises(ShortBody):
        await repo.staging.upload("main", b"a", failing(ShortBody("too late"), puts=repo.objectstore))

    await repo.slices.end()

    assert [state for _, state in await slices(store)] == [SliceState.CLOSED]


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), OutcomeUnknown("lost"), Unavailable("down"), TimeoutError()]
)
async def test_a_slice_in_which_bytes_may_yet_come_stays_recorded(
    repo: Versions, store: Store, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        await repo.staging.upload("main", b"a", failing(error))
    with pytest.raises(ShortBody):
        await repo.staging.upload("main", b"b", failing(ShortBody("broken off")))

    await repo.slices.end()

    assert [state for _, state in await slices(store)] == [SliceState.CLOSED]


async def test_a_slice_that_was_fenced_meanwhile_is_left_to_its_fencer(repo: Versions, store: HookedStore) -> None:
    with pytest.raises(ShortBody):
        await repo.staging.upload("main", b"a", failing(ShortBody("broken off")))
    [(name, _)] = await slices(store)

    async def fence() -> None:
        await repo.fencing.fence_slices([name])

    store.before("delete_if", b"slice/", fence)
    store.before("delete", b"slice/", fence)
    await repo.slices.end()

    assert await slices(store) == [(name, SliceState.CLOSED)]


async def test_an_upload_whose_slice_was_given_up_moves_to_a_fresh_address(repo: Versions, store: Store) -> None:
    async def slow_body(address: str) -> Entry:
        entry = await body(repo.objectstore)(address)
        [(name, _)] = await slices(store)
        assert await repo.fencing.fence_slices([name])
        return entry

    entry = await repo.staging.upload("main", b"a", slow_body)

    states = dict(await slices(store))
    place = parse_address(entry.address)
    assert place is not None
    assert states.pop(slice_name(place[0])) is SliceState.OPEN
    assert list(states.values()) == [SliceState.CLOSED]
    assert await repo.objectstore.get((await repo.staging.get("main", b"a")).address) == b"data"


async def test_a_fresh_upload_is_exclusive_and_a_copied_one_is_not(repo: Versions, store: Store) -> None:
    await repo.staging.upload("main", b"a", body(repo.objectstore))
    assert await flags_of(repo, store, b"a") == EXCLUSIVE

    await repo.copies.copy("main", b"a", "main", b"b")

    assert await flags_of(repo, store, b"a") == 0
    assert await flags_of(repo, store, b"b") == 0


async def test_a_finished_copy_is_recorded_until_no_run_marks(
    repo: Versions, store: Store, clock: TurnableClock
) -> None:
    await repo.staging.upload("main", b"a", body(repo.objectstore))
    run = RunRecord(kind=RunKind.UNCOMMITTED, state=RunState.MARKING, started_ms=clock.ms)
    await store.set(b"r1", b"run/1", encode_record(run))
    await repo.copies.copy("main", b"a", "main", b"b")

    assert (await repo.cleanup.clean()).records == 0
    [watched] = [decode_record(CopyRecord, v) for v in (await store.scan(b"r1", b"copy/", 1)).values]
    assert (watched.state, watched.watchers) == (CopyState.DONE, ("1",))
    await store.delete(b"r1", b"run/1")

    assert (await repo.cleanup.clean()).records == 1


async def test_a_finished_copy_is_recorded_until_every_run_that_marked_then_is_over(
    repo: Versions, store: Store, clock: TurnableClock
) -> None:
    await repo.staging.upload("main", b"a", body(repo.objectstore))
    run = encode_record(RunRecord(kind=RunKind.UNCOMMITTED, state=RunState.MARKING, started_ms=clock.ms))
    for name in (b"run/1", b"run/2"):
        await store.set(b"r1", name, run)
    await repo.copies.copy("main", b"a", "main", b"b")
    assert (await repo.cleanup.clean()).records == 0

    await store.delete(b"r1", b"run/1")
    assert (await repo.cleanup.clean()).records == 0

    await store.delete(b"r1", b"run/2")
    assert (await repo.cleanup.clean()).records == 1


@pytest.mark.parametrize("shallow", [True, False])
async def test_an_object_named_by_its_uri_is_copied_like_one_named_by_its_key(
    repo: Versions, store: Store, shallow: bool
) -> None:
    """Imported metadata may spell addresses so. A copy of such an entry is tracked, or of its own bytes."""
    await repo.objectstore.put("old/1", b"bytes")
    entry = Entry(address=f"{repo.objectstore.uri}/old/1", size_bytes=5, checksum="x", modified_ms=1)
    await repo.staging.write("main", b"a", 0, to_row(b"a", entry))

    if not shallow:
        await repo.commits.commit("main", Note(message="m", committer="c"))
    copied = await repo.copies.copy("main" if shallow else "main@", b"a", "main", b"b")

    assert (copied.address == entry.address) is shallow
    tracked = [key for key in (await store.scan(b"r1", b"copy/", 2)).keys if key.startswith(b"copy/")]
    assert len(tracked) == int(shallow)
    if not shallow:
        assert await repo.objectstore.get(copied.address) == b"bytes"


async def test_a_copy_that_was_given_up_says_that_it_may_be_made_again(repo: Versions) -> None:
    key, pending, held = await repo.copies.begin("data/x/00000001", "main")

    assert await repo.fencing.fence(CopyRecord, key.removeprefix(b"copy/").decode())

    with pytest.raises(CopyGivenUp) as refused:
        await repo.copies.finish(key, replace(pending, state=CopyState.DONE), held)
    assert status_and_message(refused.value)[0] == 409
    assert as_s3(refused.value).code == "OperationAborted"


async def test_an_address_handed_out_is_linked_once(repo: Versions) -> None:
    address = await repo.uploads.issue("main")
    entry = await put_bytes(repo, address)

    await repo.uploads.link("main", b"a", entry)

    assert await repo.staging.get("main", b"a") == entry
    with pytest.raises(UploadRefused):
        await repo.uploads.link("main", b"b", entry)


async def test_only_what_was_handed_out_for_this_branch_and_uploaded_can_be_linked(repo: Versions) -> None:
    await repo.refs.create_branch("dev", "main")
    address = await repo.uploads.issue("dev")

    with pytest.raises(UploadMissing):
        await repo.uploads.link("dev", b"a", Entry(address=address, size_bytes=1, checksum="", modified_ms=1))
    with pytest.raises(UploadRefused):
        await repo.uploads.link("main", b"a", await put_bytes(repo, address))
    with pytest.raises(UploadRefused):
        await repo.uploads.link("dev", b"a", await put_bytes(repo, address[:-1] + "9"))
    with pytest.raises(BranchNotFound):
        await repo.uploads.issue("nope")


async def test_an_address_is_linked_at_the_path_that_it_was_handed_out_for_alone(repo: Versions) -> None:
    address = await repo.uploads.issue("main", b"mine")
    entry = await put_bytes(repo, address)

    with pytest.raises(UploadRefused, match="another path"):
        await repo.uploads.link("main", b"theirs", entry)
    await repo.uploads.link("main", b"mine", entry)

    assert (await repo.staging.get("main", b"mine")).address == address


async def test_an_expired_address_cannot_be_linked_and_is_cleaned(repo: Versions, clock: TurnableClock) -> None:
    address = await repo.uploads.issue("main")
    entry = await put_bytes(repo, address)
    clock.ms += repo.context.options.upload_ttl_ms

    with pytest.raises(UploadRefused, match="expired"):
        await repo.uploads.link("main", b"a", entry)
    await repo.cleanup.clean()
    assert (await repo.uploads.record(address)).state is UploadState.EXPIRED
    await repo.cleanup.clean()

    with pytest.raises(UploadRefused):
        await repo.uploads.record(address)


async def test_an_intent_whose_owner_died_keeps_its_commit_no_longer_than_claims_are_kept(
    repo: Versions, store: Store, clock: TurnableClock
) -> None:
    head = await repo.refs.resolve_commit("main")
    intent = IntentRecord(commit_id=head, branch="main", created_ms=clock.ms)
    await store.set(repo.partition, keys.INTENT + b"1", encode_record(intent))

    await repo.cleanup.clean()
    assert await store.get(repo.partition, keys.INTENT + b"1") is not None
    clock.ms += repo.context.options.claim_age_ms_max
    await repo.cleanup.clean()

    assert await store.get(repo.partition, keys.INTENT + b"1") is None


async def test_a_link_that_was_given_up_is_refused_and_leaves_no_readable_cell(repo: Versions, store: Store) -> None:
    address = await repo.uploads.issue("main")
    entry = await put_bytes(repo, address)
    record, held = await repo.uploads._find(address)
    linking = await repo.uploads._move(address, replace(record, state=UploadState.LINKING, attempt="x"), held)

    assert await repo.fencing.fence(UploadRecord, address)

    assert (await repo.uploads.record(address)).state is UploadState.LINKED
    with pytest.raises(UploadRefused):
        await repo.uploads._move(address, replace(record, state=UploadState.LINKED, attempt="x"), linking)
    with pytest.raises(UploadRefused):
        await repo.uploads.link("main", b"a", entry)


async def test_a_link_is_named_as_revoked_until_the_branch_was_frozen(
    repo: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fencer that dies over the freeze leaves a record by which the next one goes on."""
    address = await repo.uploads.issue("main")
    await put_bytes(repo, address)
    record, held = await repo.uploads._find(address)
    await repo.uploads._move(address, replace(record, state=UploadState.LINKING, attempt="x"), held)
    seen: list[UploadState] = []
    freeze = repo.fencing.freeze

    async def watched(branch: str) -> None:
        seen.append((await repo.uploads.record(address)).state)
        await freeze(branch)

    monkeypatch.setattr(repo.fencing, "freeze", watched)
    assert await repo.fencing.fence(UploadRecord, address)

    assert seen == [UploadState.REVOKED]


async def test_a_freeze_changes_no_content_and_retires_every_token(repo: Versions, store: Store) -> None:
    await repo.staging.upload("main", b"kept", body(repo.objectstore))
    await repo.staging.upload("main", b"gone", body(repo.objectstore))
    await repo.commits.commit("main", Note(message="m", committer="me"))
    await repo.staging.upload("main", b"new", body(repo.objectstore))
    await repo.staging.delete("main", b"gone")
    before = [row for _, row in (await repo.staging.list("main")).items]
    tokens = (await repo.context.branches.fresh("main")).record.tokens()

    await repo.fencing.freeze("main")

    record = (await repo.context.branches.fresh("main")).record
    assert set(tokens).isdisjoint(record.tokens())
    assert set(record.sealed[0].stands_for) == set(tokens)
    assert [row for _, row in (await repo.staging.list("main")).items] == before
    await repo.cleanup.clean()
    await repo.commits.commit("main", Note(message="m", committer="me"))
    assert [row for _, row in (await repo.staging.list("main@")).items] == before


async def test_a_late_write_into_a_frozen_token_is_read_by_nobody(
    repo: Versions, another: Callable[[], Versions]
) -> None:
    late = (await repo.context.branches.cached("main")).record
    await another().fencing.freeze("main")
    await repo.staging.set_cell(late, b"late", EXCLUSIVE, (1, 1, 1, "", 1, "", 1, "", b""), ANY)

    assert (await repo.staging.list("main")).items == []


async def test_a_touch_makes_an_older_reading_fail_and_nothing_else(repo: Versions) -> None:
    before = await repo.context.branches.fresh("main")
    await repo.fencing.bump("main", only_sealed=True)
    assert (await repo.context.branches.fresh("main")).is_same(before)

    await repo.fencing.bump("main")

    assert (await repo.context.branches.fresh("main")).record == replace(before.record, epoch=1)


@pytest.mark.parametrize("states", list(MOVES), ids=lambda states: states.__name__)
def test_every_state_has_its_legal_moves_and_some_state_is_the_last(states: type[StrEnum]) -> None:
    moves = MOVES[states]

    assert set(moves) == set(states)
    assert set(itertools.chain.from_iterable(moves.values())) <= set(states)
    # A branch is suspended and active again with its repository.
    assert any(not targets for targets in moves.values()) or states is RefState


async def test_cells_of_a_reset_branch_are_cleaned(repo: Versions, store: Store, objectstore: ObjectStore) -> None:
    await repo.staging.upload("main", b"a", body(objectstore))
    token = (await repo.context.branches.fresh("main")).record.staging_token
    await repo.resets.reset("main")

    assert (await repo.cleanup.clean()).cells == 1
    assert (await store.scan(f"r1/{token}".encode(), b"", 1)).keys == []
