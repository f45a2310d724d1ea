"""One flow stopped at one operation of the store while another runs, or while that operation fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from lakebed.base import Entry, OutcomeUnknown, RunId, RunKind, RunState, to_row
from lakebed.kv import StoreUnavailable
from lakebed.versions import (
    ClaimRecord,
    CommitExpired,
    Condition,
    CopyRecord,
    CopyState,
    NoChanges,
    Note,
    PathExists,
    PathNotFound,
    RunRecord,
    SliceRecord,
    SliceState,
    UncommittedChanges,
    UploadRecord,
    UploadState,
    Versions,
    decode_record,
    encode_record,
    keys,
)
from lakebed.versions.cells import encode_cell
from tests.clocks import TurnableClock

from .conftest import HookedStore, body


async def unreachable() -> None:
    raise StoreUnavailable("pulled the plug")


async def slice_states(store: HookedStore) -> list[SliceState]:
    page = await store.scan(b"r1", b"slice/", 100)
    found = zip(page.keys, page.values, strict=True)
    return [decode_record(SliceRecord, value).state for key, value in found if key.startswith(b"slice/")]


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


async def test_a_commit_whose_branch_was_bumped_reads_its_cells_again(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    """A late writer replaced what it read, so a collection that bumps may have taken that."""
    await repo.staging.upload("main", b"k", body(repo.objectstore))
    other = another()

    async def replaces_and_bumps() -> None:
        sealed = (await other.context.branches.fresh("main")).record.sealed[0].token
        late = to_row(b"k", Entry(address="s3://elsewhere/2", size_bytes=1, checksum="2", modified_ms=1))
        await store.set(other.context.token_partition(sealed), b"k", encode_cell(0, late))
        await other.fencing.bump("main")

    store.before("set", b"claim/", replaces_and_bumps)
    await repo.commits.commit("main", Note(message="m", committer="c"))

    assert (await repo.staging.get("main", b"k")).address == "s3://elsewhere/2"


async def test_an_object_reset_while_a_commit_has_read_it_does_not_come_back(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    await repo.staging.upload("main", b"k", body(repo.objectstore))
    other = another()
    publish = asyncio.Event()
    committed: list[asyncio.Task[object]] = []

    async def commit_up_to_its_claim() -> None:
        claimed = asyncio.Event()

        async def wait() -> None:
            claimed.set()
            await publish.wait()

        store.before("set", b"claim/", wait)
        committed.append(asyncio.ensure_future(other.commits.commit("main", Note(message="m", committer="c"))))
        await claimed.wait()

    store.before("delete_if", b"k", commit_up_to_its_claim)
    await repo.resets.reset_object("main", b"k")
    publish.set()
    await committed[0]

    with pytest.raises(PathNotFound):
        await another().staging.get("main", b"k")


async def test_an_object_reset_does_not_undo_a_merge_that_ran_beside_it(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    await repo.refs.create_branch("dev", "main")
    await repo.staging.upload("dev", b"k", body(repo.objectstore, b"merged"))
    await repo.commits.commit("dev", Note(message="m", committer="c"))
    await repo.staging.upload("main", b"k", body(repo.objectstore, b"staged"))
    await repo.commits.seal("main")  # a committer that died

    async def merge() -> None:
        await another().merges.merge("dev", "main", Note(committer="c"))

    store.before("set_if", b"k", merge)
    await repo.resets.reset_object("main", b"k")

    assert (await repo.staging.get("main", b"k")).size_bytes == len(b"merged")


async def seal_what_replaces_what_is_committed(repo: Versions) -> Entry:
    await repo.staging.upload("main", b"k", body(repo.objectstore, b"committed"))
    await repo.commits.commit("main", Note(message="m", committer="c"))
    committed = await repo.staging.get("main", b"k")
    await repo.staging.upload("main", b"k", body(repo.objectstore, b"staged"))
    await repo.commits.seal("main")  # a committer that died
    return committed


async def copies(repo: Versions) -> list[CopyRecord]:
    return [record async for _, record in repo.context.records(CopyRecord, keys.COPY)]


async def test_what_an_object_reset_puts_on_top_of_a_commit_under_way_is_tracked_until_it_is_there(
    repo: Versions, store: HookedStore
) -> None:
    committed = await seal_what_replaces_what_is_committed(repo)
    tracked: list[CopyRecord] = []

    async def look() -> None:
        tracked.extend(await copies(repo))

    store.before("set_if", b"k", look)
    await repo.resets.reset_object("main", b"k")

    assert [(record.state, record.address) for record in tracked] == [(CopyState.PENDING, committed.address)]
    assert [record.state for record in await copies(repo)] == [CopyState.DONE]
    assert await repo.staging.get("main", b"k") == committed


async def test_an_object_reset_whose_copy_was_given_up_starts_again(repo: Versions, store: HookedStore) -> None:
    committed = await seal_what_replaces_what_is_committed(repo)

    async def give_up() -> None:
        [name] = [name async for name, _ in repo.inventory.every(CopyRecord)]
        await repo.fencing.fence(CopyRecord, name)

    store.before("set_if", b"k", give_up)
    await repo.resets.reset_object("main", b"k")

    assert await repo.staging.get("main", b"k") == committed
    assert {record.state for record in await copies(repo)} == {CopyState.DONE}


async def test_an_object_reset_does_not_put_back_what_a_collection_is_about_to_take(repo: Versions) -> None:
    await seal_what_replaces_what_is_committed(repo)
    run = RunId("run1")
    record = RunRecord(kind=RunKind.COMMITTED, state=RunState.EXPIRING, started_ms=0)
    await repo.store.set(repo.partition, keys.RUN + run.encode(), encode_record(record))
    head = (await repo.refs.get_branch("main")).commit_id
    await repo.store.set(keys.expiring_partition(repo.uid, run), head.encode(), b"")

    with pytest.raises(CommitExpired, match="run1"):
        await repo.resets.reset_object("main", b"k")

    assert (await repo.staging.get("main", b"k")).size_bytes == len(b"staged")
    assert await copies(repo) == []


async def test_a_commit_that_was_published_succeeds_though_it_cannot_be_noted(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    await repo.staging.upload("main", b"k", body(repo.objectstore))

    async def fail_the_note() -> None:
        store.before("set", b"commit/", unreachable)

    store.before("set", b"claim/", fail_the_note)
    commit = await repo.commits.commit("main", Note(message="m", committer="c"))

    assert (await another().refs.get_branch("main")).commit_id == commit.id
    assert await another().history.get_commit(commit.id)


async def test_a_merge_of_which_nobody_can_say_whether_it_happened_says_so(repo: Versions, store: HookedStore) -> None:
    await repo.refs.create_branch("dev", "main")
    await repo.staging.upload("dev", b"k", body(repo.objectstore))
    await repo.commits.commit("dev", Note(message="m", committer="c"))

    async def lose() -> None:
        store.before("get", b"branch/main", unreachable)
        raise OutcomeUnknown("no answer")

    store.before("set_if", b"branch/main", lose)
    with pytest.raises(OutcomeUnknown):
        await repo.merges.merge("dev", "main", Note(committer="c"))


async def test_a_hard_reset_succeeds_though_its_hold_cannot_be_removed(repo: Versions, store: HookedStore) -> None:
    await repo.staging.upload("main", b"k", body(repo.objectstore))
    store.before("delete", b"intent/", unreachable)

    await repo.resets.hard_reset("main", "main", force=True)

    with pytest.raises(PathNotFound):
        await repo.staging.get("main", b"k")


async def test_a_hard_reset_without_force_refuses_what_was_staged_while_it_looked(
    repo: Versions, store: HookedStore
) -> None:
    async def write() -> None:
        await repo.staging.upload("main", b"k", body(repo.objectstore))

    store.before("set_if", b"branch/main", write)

    with pytest.raises(UncommittedChanges):
        await repo.resets.hard_reset("main", "main")
    assert await repo.staging.get("main", b"k")


async def test_a_hard_reset_without_force_keeps_what_is_staged_after_it_looked(
    repo: Versions, store: HookedStore
) -> None:
    async def write() -> None:
        await repo.staging.upload("main", b"k", body(repo.objectstore))

    store.before("set", b"claim/", write)

    await repo.resets.hard_reset("main", "main")

    assert await repo.staging.get("main", b"k")


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_hard_reset_without_force_whose_answer_was_lost_is_told_from_the_branch(
    repo: Versions, store: HookedStore, is_done: bool
) -> None:
    """Done if the head is there and the token gone; else nobody can say what the store may still do."""
    first = (await repo.refs.get_branch("main")).commit_id
    await repo.staging.upload("main", b"k", body(repo.objectstore))
    await repo.commits.commit("main", Note(message="m", committer="c"))

    async def lose() -> None:
        if is_done:
            await repo.resets.hard_reset("main", first)
        raise OutcomeUnknown("no answer")

    async def lose_the_next() -> None:
        store.before("set_if", b"branch/main", lose)

    store.before("set", b"claim/", lose_the_next)
    if is_done:
        assert await repo.resets.hard_reset("main", first) == first
    else:
        with pytest.raises(OutcomeUnknown):
            await repo.resets.hard_reset("main", first)


async def test_an_upload_that_was_staged_succeeds_though_its_slice_cannot_be_closed_yet(
    repo: Versions, store: HookedStore
) -> None:
    async def close_and_fail() -> None:
        await repo.slices.end()
        store.before("set_if", b"slice/", unreachable)

    store.before("set_if", b"k", close_and_fail)
    await repo.staging.upload("main", b"k", body(repo.objectstore))
    assert await slice_states(store) == [SliceState.OPEN]

    await repo.slices.end()
    assert await slice_states(store) == [SliceState.CLOSED]


@pytest.mark.parametrize("error", [asyncio.CancelledError(), OutcomeUnknown("no answer")])
async def test_a_slice_with_an_upload_that_may_yet_land_is_not_closed_by_its_owner(
    repo: Versions, store: HookedStore, error: BaseException
) -> None:
    async def end() -> None:
        store.before("get", b"k", unreachable)
        raise error

    store.before("set_if", b"k", end)
    with pytest.raises(type(error)):
        await repo.staging.upload("main", b"k", body(repo.objectstore))
    await repo.slices.end()

    assert await slice_states(store) == [SliceState.OPEN]


async def test_an_idle_instance_ends_its_slice_after_an_hour(
    repo: Versions, store: HookedStore, clock: TurnableClock
) -> None:
    await repo.staging.upload("main", b"k", body(repo.objectstore))
    await repo.cleanup.clean()
    assert await slice_states(store) == [SliceState.OPEN]

    clock.ms += repo.context.options.slice_age_ms_max
    await repo.cleanup.clean()
    assert await slice_states(store) == [SliceState.CLOSED]


async def test_a_conditional_link_minds_what_another_instance_has_merged(
    repo: Versions, another: Callable[[], Versions]
) -> None:
    other = another()
    await other.refs.create_branch("dev", "main")
    await other.staging.upload("dev", b"k", body(repo.objectstore))
    await other.commits.commit("dev", Note(message="m", committer="c"))
    address = await repo.uploads.issue("main")
    stored = await repo.objectstore.put(address, b"client")
    await repo.refs.get_branch("main")
    await other.merges.merge("dev", "main", Note(committer="c"))

    with pytest.raises(PathExists):
        await repo.uploads.link(
            "main",
            b"k",
            Entry(address=address, size_bytes=stored.size_bytes, checksum=stored.md5, modified_ms=1),
            condition=Condition(if_none_match=True),
        )


async def test_a_conditional_upload_of_what_the_head_has_succeeds_though_a_commit_takes_it_for_no_change(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    await repo.staging.upload("main", b"k", body(repo.objectstore))
    await repo.commits.commit("main", Note(message="m", committer="c"))
    await repo.staging.delete("main", b"k")

    async def commit_when_the_cell_is_set() -> None:
        with pytest.raises(NoChanges):
            await another().commits.commit("main", Note(message="m", committer="c"))

    async def wait_for_the_cell() -> None:
        store.before("get", b"branch/main", commit_when_the_cell_is_set)

    store.before("set_if", b"k", wait_for_the_cell)
    await repo.staging.upload("main", b"k", body(repo.objectstore), condition=Condition(if_none_match=True))

    assert (await another().staging.get("main", b"k")).size_bytes == len(b"data")


@pytest.mark.parametrize(("if_none_match", "error"), [(True, OutcomeUnknown), (False, StoreUnavailable)])
async def test_a_conditional_upload_that_cannot_look_after_its_cell_is_set_does_not_say_that_nothing_happened(
    repo: Versions, store: HookedStore, if_none_match: bool, error: type[Exception]
) -> None:
    """Sent again it would meet what it wrote itself. One without a condition may be sent again."""

    async def fail_the_second_look() -> None:
        store.before("get", b"branch/main", unreachable)

    store.before("set_if", b"k", fail_the_second_look)
    with pytest.raises(error):
        await repo.staging.upload("main", b"k", body(repo.objectstore), condition=Condition(if_none_match))

    assert (await repo.staging.get("main", b"k")).size_bytes == len(b"data")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), StoreUnavailable("gone"), OutcomeUnknown("no answer")])
async def test_a_branch_that_could_not_be_made_can_be_made_at_once(
    repo: Versions, store: HookedStore, error: BaseException
) -> None:
    async def fail() -> None:
        raise error

    async def fail_the_next() -> None:
        store.before("set_if", b"branch/dev", fail)

    store.before("set_if", b"branch/dev", fail_the_next)
    with pytest.raises(type(error)):
        await repo.refs.create_branch("dev", "main")

    await repo.refs.create_branch("dev", "main")


@pytest.mark.parametrize("flow", ["put", "commit", "freeze", "bump", "reset_object", "give_up"])
async def test_a_store_that_loses_every_answer_is_reported_and_not_asked_for_ever(
    repo: Versions, flow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry(address="s3://elsewhere/x", size_bytes=1, checksum="", modified_ms=1)
    flows: dict[str, Callable[[], Awaitable[object]]] = {
        "put": lambda: repo.staging.put("main", b"k", entry),
        "commit": lambda: repo.commits.commit("main", Note(message="m", committer="c")),
        "freeze": lambda: repo.fencing.freeze("main"),
        "bump": lambda: repo.fencing.bump("main"),
        "reset_object": lambda: repo.resets.reset_object("main", b"there"),
        "give_up": lambda: repo.fencing.fence(UploadRecord, address),
    }

    await repo.staging.put("main", b"there", entry)
    address = await repo.uploads.issue("main")
    record, held = await repo.uploads._find(address)
    await repo.uploads._move(address, replace(record, state=UploadState.LINKING), held)

    async def lose(*_: object) -> None:
        raise OutcomeUnknown("the sync failed")

    for operation in ("set_if", "delete_if"):  # a disk that is broken from now on
        monkeypatch.setattr(repo.store, operation, lose)
    with pytest.raises(OutcomeUnknown):
        await flows[flow]()


async def test_a_branch_whose_deletion_was_done_without_an_answer_is_deleted(
    repo: Versions, store: HookedStore
) -> None:
    await repo.refs.create_branch("dev", "main")

    async def do_and_lose() -> None:
        await store.delete(b"r1", b"branch/dev")
        raise OutcomeUnknown("no answer")

    store.before("delete_if", b"branch/dev", do_and_lose)
    await repo.refs.delete_branch("dev")


async def test_cells_of_a_committer_that_slept_longer_than_claims_are_kept_are_cleaned_all_the_same(
    repo: Versions, another: Callable[[], Versions], store: HookedStore, clock: TurnableClock
) -> None:
    await repo.staging.upload("main", b"k", body(repo.objectstore))
    [token] = (await repo.context.branches.fresh("main")).record.tokens()

    async def sleep() -> None:
        for _ in range(2):
            clock.ms += repo.context.options.claim_age_ms_max
            assert (await another().cleanup.clean()).claims == 0

    async def sleep_before_publishing() -> None:
        store.before("set_if", b"branch/main", sleep)

    store.before("set", b"claim/", sleep_before_publishing)
    await repo.commits.commit("main", Note(message="m", committer="c"))
    first = await another().cleanup.clean()
    clock.ms += repo.context.options.claim_age_ms_max
    second = await another().cleanup.clean()

    assert (first.cells, first.claims, second.claims) == (1, 0, 1)
    assert not (await store.scan(repo.context.token_partition(token), b"", 1)).keys


async def test_cells_set_after_a_sleeping_committer_published_are_cleaned(
    repo: Versions, another: Callable[[], Versions], store: HookedStore, clock: TurnableClock
) -> None:
    """A writer and the committer wake together: the claim is old, and the token was retired this very moment."""
    await repo.staging.upload("main", b"k", body(repo.objectstore))
    [token] = (await repo.context.branches.fresh("main")).record.tokens()
    committer = another()

    async def sleep() -> None:
        clock.ms += repo.context.options.claim_age_ms_max

    async def sleep_before_publishing() -> None:
        store.before("set_if", b"branch/main", sleep)

    async def commit_and_clean() -> None:
        store.before("set", b"claim/", sleep_before_publishing)
        await committer.commits.commit("main", Note(message="m", committer="c"))
        await another().cleanup.clean()
        await another().cleanup.clean()

    store.before("set_if", b"late", commit_and_clean)
    await repo.staging.upload("main", b"late", body(repo.objectstore))
    for _ in range(2):
        clock.ms += repo.context.options.claim_age_ms_max
        await another().cleanup.clean()

    assert not (await store.scan(repo.context.token_partition(token), b"", 1)).keys
    assert [key async for key, _ in repo.context.records(ClaimRecord, keys.CLAIM)] == []


async def test_uploads_that_come_while_a_slice_is_opened_share_it(repo: Versions, store: HookedStore) -> None:
    async def take_a_while() -> None:
        await asyncio.sleep(0.01)

    store.before("set_if", b"slice/", take_a_while)
    places = await asyncio.gather(*[repo.slices.place() for _ in range(20)])

    assert len({place.address for place in places}) == 20
    assert len(await slice_states(store)) == 1


async def test_an_upload_opens_a_slice_where_the_opening_it_waited_for_failed(
    repo: Versions, store: HookedStore
) -> None:
    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise StoreUnavailable("pulled the plug")

    store.before("set_if", b"slice/", fail)
    failed, opened = await asyncio.gather(repo.slices.place(), repo.slices.place(), return_exceptions=True)

    assert isinstance(failed, StoreUnavailable)
    assert not isinstance(opened, BaseException)
