"""A move names the object at its target and takes the source away; where the source is another by then, it is a copy.

Each race is one writer, stopped at one operation of the store. The simulator walks all orders of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from lakebed.base import Entry, Etags, OutcomeUnknown, to_row
from lakebed.kv import StoreUnavailable
from lakebed.versions import (
    TOMBSTONE,
    BranchNotFound,
    Condition,
    MovedAsCopy,
    NoChanges,
    Note,
    PathExists,
    PathNotFound,
    Versions,
)
from lakebed.versions.cells import EXCLUSIVE, TOMBSTONE_ROW, decode_cell, encode_cell, is_exclusive, tombstone_of
from lakebed.versions.commits.committer import LOOKED_UP_TOGETHER
from lakebed.versions.staging.moves import Moved
from tests.clocks import TurnableClock
from tests.versions.conftest import HookedStore, body


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


async def put(repo: Versions, path: bytes, data: bytes, branch: str = "main") -> str:
    return (await repo.staging.upload(branch, path, body(repo.objectstore, data))).address


async def commit(repo: Versions, branch: str = "main") -> str:
    return (await repo.commits.commit(branch, Note(message="m", committer="c"))).id


async def shown(repo: Versions, branch: str = "main") -> dict[bytes, str]:
    listing = await repo.staging.list(branch)
    return {key: (await repo.staging.get(branch, key)).address for key, _ in listing.items}


@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_moved_object_keeps_its_bytes_under_its_new_path(repo: Versions, is_committed: bool) -> None:
    address = await put(repo, b"a", b"1")
    if is_committed:
        await commit(repo)

    entry = await repo.moves.move("main", b"a", "main", b"b")

    assert entry.address == address
    assert await shown(repo) == {b"b": address}
    await commit(repo)
    assert await shown(repo) == {b"b": address}


async def test_an_object_moves_to_another_branch(repo: Versions) -> None:
    await repo.refs.create_branch("side", "main")
    address = await put(repo, b"a", b"1")

    await repo.moves.move("main", b"a", "side", b"a")

    assert await shown(repo) == {}
    assert await shown(repo, "side") == {b"a": address}


async def test_a_move_onto_itself_changes_nothing(repo: Versions) -> None:
    address = await put(repo, b"a", b"1")

    await repo.moves.move("main", b"a", "main", b"a")

    assert await shown(repo) == {b"a": address}


async def test_a_move_asks_for_a_source_on_a_branch(repo: Versions) -> None:
    await put(repo, b"a", b"1")
    commit_id = await commit(repo)

    with pytest.raises(PathNotFound):
        await repo.moves.move("main", b"nothing", "main", b"b")
    with pytest.raises(BranchNotFound):
        await repo.moves.move(commit_id, b"a", "main", b"b")


async def test_a_conditional_move_leaves_what_is_at_its_target(repo: Versions) -> None:
    first, second = await put(repo, b"a", b"1"), await put(repo, b"b", b"2")

    with pytest.raises(PathExists):
        await repo.moves.move("main", b"a", "main", b"b", if_none_match=True)

    assert await shown(repo) == {b"a": first, b"b": second}


async def test_a_newer_write_of_the_source_stays_and_the_move_is_a_copy(
    repo: Versions, another: Callable[[], Versions]
) -> None:
    first = await put(repo, b"a", b"1")
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    second = await put(another(), b"a", b"2")

    with pytest.raises(MovedAsCopy):
        await repo.moves.take_away(moved)

    assert await shown(repo) == {b"a": second, b"b": first}


async def test_a_write_at_the_very_moment_of_the_tombstone_stays(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    first = await put(repo, b"a", b"1")
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    written: list[str] = []

    async def overwrite() -> None:
        written.append(await put(another(), b"a", b"2"))

    store.before("set_if", b"a", overwrite)
    with pytest.raises(MovedAsCopy):
        await repo.moves.take_away(moved)

    assert await shown(repo) == {b"a": written[0], b"b": first}


async def test_of_two_moves_one_says_that_it_is_a_copy(repo: Versions, another: Callable[[], Versions]) -> None:
    address = await put(repo, b"a", b"1")
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    await another().moves.move("main", b"a", "main", b"c")

    with pytest.raises(MovedAsCopy):
        await repo.moves.take_away(moved)

    assert await shown(repo) == {b"b": address, b"c": address}


async def merged_version(repo: Versions) -> None:
    await repo.merges.merge("side", "main", Note(message="m", committer="c"))


@pytest.mark.parametrize("is_committed_over", [False, True])
async def test_a_version_that_a_merge_brought_meanwhile_is_not_hidden(
    repo: Versions, another: Callable[[], Versions], store: HookedStore, is_committed_over: bool
) -> None:
    """The merge comes between the look at the source and the tombstone, and a commit may take that."""
    first = await put(repo, b"a", b"1")
    await commit(repo)
    await repo.refs.create_branch("side", "main")
    second = await put(repo, b"a", b"2", branch="side")
    await commit(repo, "side")
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    await commit(repo)
    other = another()

    async def merges() -> None:
        await merged_version(other)

    async def commits() -> None:
        if is_committed_over:
            # The tombstone is of the version that was moved, so a commit leaves the other one.
            with pytest.raises(NoChanges):
                await commit(another())

    async def then() -> None:
        store.before("get", b"branch/main", commits)

    store.before("set_if", b"a", merges)
    store.lose_answer(b"a", then)
    with pytest.raises(MovedAsCopy):
        await repo.moves.take_away(moved)

    assert await shown(repo) == {b"a": second, b"b": first}
    token = (await repo.context.branches.fresh("main")).record.staging_token
    assert await store.get(repo.context.token_partition(token), b"a") is None


async def mover_that_died(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> tuple[Versions, str, str]:
    """It moved `a` to `b`, and left its tombstone over the version that a merge brought meanwhile. Returns another
    process, the address that was moved and that of the merged version.
    """
    first = await put(repo, b"a", b"1")
    await commit(repo)
    await repo.refs.create_branch("side", "main")
    second = await put(repo, b"a", b"2", branch="side")
    await commit(repo, "side")
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")

    async def merges() -> None:
        await merged_version(another())

    async def dies() -> None:
        store.before("get", b"branch/main", fails)

    store.before("set_if", b"a", merges)
    store.lose_answer(b"a", dies)
    with pytest.raises(StoreUnavailable):
        await repo.moves.take_away(moved)
    return another(), first, second


async def test_a_dead_mover_hides_no_version_that_a_merge_brought(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    other, first, second = await mover_that_died(repo, another, store)
    assert await shown(other) == {b"a": second, b"b": first}
    await commit(other)

    assert await shown(other) == {b"a": second, b"b": first}


async def test_a_write_that_asks_for_nothing_at_the_path_is_refused_by_what_a_dead_mover_does_not_hide(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    other, first, second = await mover_that_died(repo, another, store)

    with pytest.raises(PathExists):
        await other.staging.upload("main", b"a", body(other.objectstore, b"3"), condition=Condition(if_none_match=True))
    with pytest.raises(PathExists):
        await other.copies.copy("main", b"b", "main", b"a", shallow=True, condition=Condition(if_none_match=True))
    with pytest.raises(PathExists):
        await other.moves.move("main", b"b", "main", b"a", if_none_match=True)

    assert await shown(other) == {b"a": second, b"b": first}


async def test_a_write_that_names_the_version_that_a_dead_mover_does_not_hide_replaces_it(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    other, first, _ = await mover_that_died(repo, another, store)
    found = await other.staging.get("main", b"a")

    third = await other.staging.upload(
        "main", b"a", body(other.objectstore, b"3"), condition=Condition(if_match=Etags.of(found.checksum))
    )

    assert await shown(other) == {b"a": third.address, b"b": first}


async def test_a_copy_and_a_move_take_what_a_dead_mover_does_not_hide(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    other, first, second = await mover_that_died(repo, another, store)

    await other.copies.copy("main", b"a", "main", b"c", shallow=True)
    await other.moves.move("main", b"a", "main", b"d")

    assert await shown(other) == {b"b": first, b"c": second, b"d": second}
    await commit(other)
    assert await shown(other) == {b"b": first, b"c": second, b"d": second}


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("deed", ["branch", "object", "prefix"])
async def test_a_reset_takes_a_dead_movers_tombstone_away_and_nothing_that_it_does_not_hide(
    repo: Versions, another: Callable[[], Versions], store: HookedStore, deed: str, *, is_sealed: bool
) -> None:
    other, first, second = await mover_that_died(repo, another, store)
    if is_sealed:
        await other.fencing.freeze("main")

    match deed:
        case "branch":
            await other.resets.reset("main")
        case "object":
            await other.resets.reset_object("main", b"a")
        case _:
            await other.resets.reset_prefix("main", b"a")

    there = {b"a": second} | ({} if deed == "branch" else {b"b": first})
    assert await shown(other) == there
    with suppress(NoChanges):
        await commit(other)
    assert await shown(other) == there


@pytest.mark.parametrize("deed", ["link", "import"])
async def test_what_is_named_over_a_dead_movers_tombstone_is_there_and_stays(
    repo: Versions, another: Callable[[], Versions], store: HookedStore, deed: str
) -> None:
    other, first, _ = await mover_that_died(repo, another, store)
    if deed == "link":
        address = await other.uploads.issue("main")
        await other.objectstore.put(address, b"3")
        named = Entry(address=address, size_bytes=1, checksum="3", modified_ms=1)
        with pytest.raises(PathExists):
            await other.uploads.link("main", b"a", named, condition=Condition(if_none_match=True))
        await other.uploads.link("main", b"a", named)
    else:
        named = Entry(address="s3://elsewhere/3", size_bytes=1, checksum="3", modified_ms=1)
        await other.staging.put("main", b"a", named)

    assert await shown(other) == {b"a": named.address, b"b": first}
    await commit(other)
    assert await shown(other) == {b"a": named.address, b"b": first}


async def test_a_copy_finds_no_source_where_a_mover_died_over_what_it_moved(repo: Versions, store: HookedStore) -> None:
    await put(repo, b"a", b"1")
    await commit(repo)
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    await take_away_and_die(repo, store, moved)

    with pytest.raises(PathNotFound):
        await repo.copies.copy("main", b"a", "main", b"c", shallow=True)


async def test_a_copy_shares_the_staged_cell_that_it_finds_beneath_a_tombstone(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    """A late writer replaced the source in a sealed token, and did not repeat it. Its address is named twice now."""
    await put(repo, b"a", b"1")
    _, sleeping = await sealed_by_a_committer_that_sleeps(another(), store)
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    record = (await repo.context.branches.fresh("main")).record
    sealed = repo.context.token_partition(record.sealed[0].token)
    third = await put(repo, b"z", b"3")
    staged = await store.get(repo.context.token_partition(record.staging_token), b"z")
    assert staged is not None
    row = decode_cell(staged.value)[1]
    await take_away_and_die(repo, store, moved)
    await store.set(sealed, b"a", encode_cell(EXCLUSIVE, row))

    copied = await repo.copies.copy("main", b"a", "main", b"c", shallow=True)

    held = await store.get(sealed, b"a")
    assert held is not None
    assert copied.address == third
    assert not is_exclusive(decode_cell(held.value)[0])
    sleeping.cancel()


async def test_many_paths_and_differences_show_what_a_dead_mover_does_not_hide(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    other, first, second = await mover_that_died(repo, another, store)

    found = await other.staging.get_many("main", [b"a", b"b", b"c"])
    differences, _ = await other.history.diff_branch("main")

    assert [entry and entry.address for entry in found] == [second, first, None]
    assert [(one.kind, one.key) for one in differences] == [("added", b"b")]


async def test_a_deletion_of_many_paths_takes_what_a_dead_mover_does_not_hide(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    other, _, _ = await mover_that_died(repo, another, store)

    assert await other.staging.delete_many("main", [b"a", b"b"]) == []

    await commit(other)
    assert await shown(other) == {}


async def test_a_mover_that_died_over_what_it_moved_hides_that(repo: Versions, store: HookedStore) -> None:
    first = await put(repo, b"a", b"1")
    await commit(repo)
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    await take_away_and_die(repo, store, moved)

    assert await shown(repo) == {b"b": first}
    with pytest.raises(PathNotFound):
        await repo.staging.get("main", b"a")


async def fails() -> None:
    raise StoreUnavailable("the process ends here")


async def take_away_and_die(repo: Versions, store: HookedStore, moved: Moved) -> None:
    """Put the tombstone over the source, and end before the second look at the branch."""

    async def dies() -> None:
        store.before("get", b"branch/main", fails)

    store.lose_answer(b"a", dies)
    with pytest.raises(StoreUnavailable):
        await repo.moves.take_away(moved)


async def test_a_version_that_came_over_a_sealed_source_stays(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    """A committer sleeps over the source, then ends. A merge replaces what it committed before the tombstone comes."""
    first = await put(repo, b"a", b"1")
    goes_on, sleeping = await sealed_by_a_committer_that_sleeps(another(), store)
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    other, found = another(), []

    async def replaces() -> None:
        goes_on.set()
        await sleeping
        await other.refs.create_branch("side", "main")
        found.append(await put(other, b"a", b"2", branch="side"))
        await commit(other, "side")
        await merged_version(other)
        store.lose_answer(b"a", then)

    async def then() -> None:
        store.before("get", b"branch/main", commits)

    async def commits() -> None:
        await commit(other)

    store.before("set_if", b"a", replaces)
    with pytest.raises(MovedAsCopy):
        await repo.moves.take_away(moved)

    assert await shown(repo) == {b"a": found[0], b"b": first}


async def sealed_by_a_committer_that_sleeps(
    repo: Versions, store: HookedStore
) -> tuple[asyncio.Event, asyncio.Task[str]]:
    """Until the event, its claim is not written; what is staged is in a sealed token."""
    is_sealed, goes_on = asyncio.Event(), asyncio.Event()

    async def sleeps() -> None:
        is_sealed.set()
        await goes_on.wait()

    store.before("set", b"claim/", sleeps)
    sleeping = asyncio.create_task(commit(repo))
    await is_sealed.wait()
    return goes_on, sleeping


async def test_a_dead_mover_buries_no_version_that_came_over_a_source_in_a_sealed_token(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    first = await put(repo, b"a", b"1")
    other = another()
    goes_on, sleeping = await sealed_by_a_committer_that_sleeps(other, store)
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    second: list[str] = []

    async def replaces_and_dies() -> None:
        goes_on.set()
        await sleeping
        await other.refs.create_branch("side", "main")
        second.append(await put(other, b"a", b"2", branch="side"))
        await commit(other, "side")
        await merged_version(other)
        store.lose_answer(b"a", dies)

    async def dies() -> None:
        store.before("get", b"branch/main", fails)

    store.before("set_if", b"a", replaces_and_dies)
    with pytest.raises(StoreUnavailable):
        await repo.moves.take_away(moved)
    await commit(another())

    assert await shown(another()) == {b"a": second[0], b"b": first}


@pytest.mark.parametrize("is_frozen", [False, True])
async def test_what_is_beneath_a_source_in_a_sealed_token_does_not_come_back(
    repo: Versions, another: Callable[[], Versions], store: HookedStore, is_frozen: bool
) -> None:
    """A dead mover's tombstone is of one version, which a commit takes with it, or a freeze before that."""
    await put(repo, b"a", b"0")
    await commit(repo)
    first = await put(repo, b"a", b"1")
    _, sleeping = await sealed_by_a_committer_that_sleeps(another(), store)
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    await take_away_and_die(repo, store, moved)
    sleeping.cancel()
    if is_frozen:
        await repo.fencing.freeze("main")
    await commit(repo)

    assert await shown(repo) == {b"b": first}


async def test_a_freeze_leaves_what_was_set_over_the_source_in_its_token(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    """A late writer replaces the source in the sealed token, and dies before he repeats it; then the mover dies."""
    await put(repo, b"a", b"1")
    _, sleeping = await sealed_by_a_committer_that_sleeps(another(), store)
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    sealed = (await repo.context.branches.fresh("main")).record.sealed[0].token
    await take_away_and_die(repo, store, moved)
    sleeping.cancel()
    late = to_row(b"a", Entry(address="s3://elsewhere/2", size_bytes=1, checksum="2", modified_ms=1))
    await store.set(repo.context.token_partition(sealed), b"a", encode_cell(0, late))
    await repo.fencing.freeze("main")

    assert (await shown(repo))[b"a"] == "s3://elsewhere/2"
    await commit(repo)
    assert (await shown(repo))[b"a"] == "s3://elsewhere/2"


async def test_a_move_whose_tombstone_and_source_were_frozen_into_one_token_ends(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    await put(repo, b"a", b"0")
    await commit(repo)
    first = await put(repo, b"a", b"1")
    _, sleeping = await sealed_by_a_committer_that_sleeps(another(), store)
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")

    async def freezes() -> None:
        await another().fencing.freeze("main")

    store.lose_answer(b"a", freezes)
    await repo.moves.take_away(moved)
    sleeping.cancel()
    await commit(repo)

    assert await shown(repo) == {b"b": first}


async def test_a_commit_that_took_the_tombstone_ends_the_move(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    address = await put(repo, b"a", b"1")
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    other = another()

    async def then() -> None:
        await commit(other)

    store.lose_answer(b"a", then)
    await repo.moves.take_away(moved)

    assert await shown(repo) == {b"b": address}


async def test_a_delete_beside_a_move_that_gives_way_is_not_undone(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    await put(repo, b"a", b"1")
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    other = another()

    async def replaces_and_deletes() -> None:
        await put(other, b"a", b"2")
        await other.staging.delete("main", b"a")

    store.before("set_if", b"a", replaces_and_deletes)
    with pytest.raises(MovedAsCopy):
        await repo.moves.take_away(moved)

    assert b"a" not in await shown(repo)


async def test_nothing_of_a_move_is_deleted_at_once(repo: Versions) -> None:
    await repo.hard_delete.change(by="ann", is_on=True)
    await put(repo, b"a", b"1")
    await repo.moves.move("main", b"a", "main", b"b")
    await repo.resets.reset("main")
    await repo.cleanup.clean()
    await repo.hard_delete.flush()

    assert (await repo.hard_delete.page()).items == []


async def test_a_delete_that_met_the_tombstone_of_a_move_holds(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    """It saw the version that a merge had brought, and deletes that; the move then takes its own tombstone back."""
    await put(repo, b"a", b"1")
    await commit(repo)
    await repo.refs.create_branch("side", "main")
    await put(repo, b"a", b"2", branch="side")
    await commit(repo, "side")
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    other = another()

    async def merges() -> None:
        await merged_version(other)

    async def deletes() -> None:
        await other.staging.write("main", b"a", TOMBSTONE, TOMBSTONE_ROW)

    store.before("set_if", b"a", merges)
    store.lose_answer(b"a", deletes)
    with pytest.raises(MovedAsCopy):
        await repo.moves.take_away(moved)

    assert b"a" not in await shown(repo)


async def side_with_another_version(repo: Versions) -> tuple[str, str]:
    first = await put(repo, b"a", b"1")
    await commit(repo)
    await repo.refs.create_branch("side", "main")
    second = await put(repo, b"a", b"2", branch="side")
    await commit(repo, "side")
    return first, second


async def test_no_later_merge_brings_back_what_a_finished_move_took_away(repo: Versions) -> None:
    first, _ = await side_with_another_version(repo)
    await repo.moves.move("main", b"a", "main", b"b")

    await merged_version(repo)
    assert await shown(repo) == {b"b": first}
    await commit(repo)

    assert await shown(repo) == {b"b": first}


async def test_a_finished_move_whose_last_answers_were_lost_stays_finished(repo: Versions, store: HookedStore) -> None:
    first, _ = await side_with_another_version(repo)
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")

    async def loses_the_next() -> None:
        store.lose_answer(b"a", nothing)

    store.lose_answer(b"a", loses_the_next)
    await repo.moves.take_away(moved)
    await merged_version(repo)
    await commit(repo)

    assert await shown(repo) == {b"b": first}


async def nothing() -> None:
    pass


async def test_a_commit_that_spares_what_a_merge_brought_makes_the_move_a_copy(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    """Both come after the mover's second look, before its tombstone hides more than the one version."""
    first, second = await side_with_another_version(repo)
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")

    async def merges_and_commits() -> None:
        await merged_version(another())
        with pytest.raises(NoChanges):
            await commit(another())

    async def not_the_first() -> None:
        store.before("set_if", b"a", merges_and_commits)

    await commit(repo)
    store.before("set_if", b"a", not_the_first)
    with pytest.raises(MovedAsCopy):
        await repo.moves.take_away(moved)

    assert await shown(repo) == {b"a": second, b"b": first}


async def test_a_tombstone_that_came_late_is_taken_back_too(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    """Its answer was lost; then a merge brought another version."""
    first, second = await side_with_another_version(repo)
    moved = await repo.moves.copy_out("main", b"a", "main", b"b")
    partition = repo.context.token_partition((await repo.context.branches.fresh("main")).record.staging_token)

    async def not_the_first() -> None:
        store.before("set_if", b"a", loses)

    async def loses() -> None:
        await merged_version(another())
        store.before("delete_if", b"a", comes_late)
        raise OutcomeUnknown("it is still under way")

    async def comes_late() -> None:
        held = await store.get(partition, b"a")
        assert held is not None
        await store.set_if(partition, b"a", moved.tombstone(hides_all=True), held.predicate)

    store.before("set_if", b"a", not_the_first)
    with pytest.raises(MovedAsCopy):
        await repo.moves.take_away(moved)

    assert await shown(repo) == {b"a": second, b"b": first}


async def test_a_commit_of_many_dead_movers_spares_what_merges_brought_and_lets_others_have_a_turn(
    repo: Versions, clock: TurnableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [b"%04d" % number for number in range(2 * LOOKED_UP_TOGETHER + 2)]
    rows = [
        to_row(path, Entry(address="s3://elsewhere/1", size_bytes=1, checksum="1", modified_ms=1)) for path in paths
    ]
    partition = repo.context.token_partition((await repo.context.branches.fresh("main")).record.staging_token)
    await repo.context.store.set_many(
        partition, [(path, encode_cell(0, row)) for path, row in zip(paths, rows, strict=True)]
    )
    await commit(repo)
    partition = repo.context.token_partition((await repo.context.branches.fresh("main")).record.staging_token)
    brought = {paths[0], paths[LOOKED_UP_TOGETHER], paths[-1]}
    hidden = [
        (path, row if path not in brought else (1, *row[1:-1], b"x")) for path, row in zip(paths, rows, strict=True)
    ]
    await repo.context.store.set_many(
        partition, [(path, encode_cell(TOMBSTONE, tombstone_of(row, "m"))) for path, row in hidden]
    )
    turns: list[float] = []
    plain = clock.sleep

    async def noted(seconds: float) -> None:
        turns.append(seconds)
        await plain(seconds)

    monkeypatch.setattr(clock, "sleep", noted)
    await commit(repo)

    assert {key for key, _ in (await repo.staging.list("main")).items} == brought
    # After the page of cells, twice among look-ups, and among what the range files are read and written for.
    assert turns == [0] * 8
