"""Where branches were, and branches and tags that come back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakebed.kv import Store
from lakebed.objectstore import ObjectStore
from lakebed.versions import (
    BadRef,
    BranchExists,
    BranchNotFound,
    DeletedRefNotFound,
    MoveRecord,
    Note,
    RefKind,
    RefNotFound,
    TagExists,
    TagNotFound,
    Versions,
    keys,
)
from tests.clocks import TurnableClock
from tests.versions.conftest import body

HOUR_S = 3_600


async def commit(
    repo: Versions, clock: TurnableClock, name: str, *, branch: str = "main", after_s: int = HOUR_S
) -> str:
    await clock.sleep(after_s)
    await repo.staging.upload(branch, name.encode(), body(repo.objectstore))
    return (await repo.commits.commit(branch, Note(message=name, committer="esti"))).id


def shown(moves: object) -> list[tuple[str, str]]:
    assert isinstance(moves, list)
    return [(move.operation, move.by) for move in moves if isinstance(move, MoveRecord)]


async def test_every_move_of_a_branch_is_in_its_log_with_operation_and_user(
    repo: Versions, clock: TurnableClock
) -> None:
    first = await repo.refs.resolve_commit("main")
    one = await commit(repo, clock, "1")
    await repo.refs.create_branch("topic", "main", by="vera")
    two = await commit(repo, clock, "2", branch="topic")
    merged = await repo.merges.merge("topic", "main", Note(committer="max"))
    await repo.resets.hard_reset("main", one, by="root")

    moves, has_more = await repo.refs.moves(RefKind.BRANCH, "main")
    on_topic, _ = await repo.refs.moves(RefKind.BRANCH, "topic")

    assert shown(moves) == [("hard-reset", "root"), ("merge", "max"), ("commit", "esti"), ("create", "")]
    assert [(move.before, move.after) for move in moves] == [
        (merged.id, one),
        (one, merged.id),
        (first, one),
        ("", first),
    ]
    assert [(move.operation, move.by, move.after) for move in on_topic] == [
        ("commit", "esti", two),
        ("create", "vera", one),
    ]
    assert not has_more


async def test_what_does_not_move_the_head_is_no_move(repo: Versions, clock: TurnableClock) -> None:
    await commit(repo, clock, "1")
    before, _ = await repo.refs.moves(RefKind.BRANCH, "main")

    await repo.commits.seal("main")
    await repo.fencing.bump("main")
    await repo.resets.reset("main")

    assert (await repo.refs.moves(RefKind.BRANCH, "main"))[0] == before


async def test_a_ref_says_where_a_branch_was_by_moves_and_by_time(repo: Versions, clock: TurnableClock) -> None:
    made = await repo.refs.resolve_commit("main")
    commits = [await commit(repo, clock, f"{number}", after_s=24 * HOUR_S) for number in range(3)]
    await clock.sleep(HOUR_S)

    async def at(when: str) -> str:
        return await repo.refs.resolve_commit(f"main@{{{when}}}")

    assert [await at(when) for when in ("0", "1", "2", "3")] == [*reversed(commits), made]
    assert await at("yesterday") == await at("1 day ago") == await at("24h") == commits[1]
    assert await at("2 Days  ago") == await at("49 hours ago") == commits[0]
    assert await repo.refs.resolve_commit("main@{1}~1") == commits[0]
    assert (await repo.refs.resolve("main@{0}")).branch is None


async def test_a_ref_takes_dates(repo: Versions, clock: TurnableClock) -> None:
    one = await commit(repo, clock, "1")
    then = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    await commit(repo, clock, "2", after_s=48 * HOUR_S)

    dates = (
        f"{then + timedelta(days=1):%Y-%m-%d}",
        then.isoformat(),
        f"{then + timedelta(hours=3):%Y-%m-%d %H:%M}+02:00",
    )
    for when in dates:
        assert await repo.refs.resolve_commit(f"main@{{{when}}}") == one, when


@pytest.mark.parametrize(
    "expression", ["main@{}", "main@{soon}", "main@{-1}", "main@{1", "v/1@{1}", "main@{2023-13-01}"]
)
async def test_what_is_no_time_is_refused(repo: Versions, expression: str) -> None:
    with pytest.raises(BadRef):
        await repo.refs.resolve_commit(expression)


async def test_a_time_before_the_log_is_refused_and_says_so(repo: Versions, clock: TurnableClock) -> None:
    await commit(repo, clock, "1")

    with pytest.raises(RefNotFound, match="does not go back so far"):
        await repo.refs.resolve_commit("main@{900 days ago}")
    with pytest.raises(RefNotFound, match="was not there before that move"):
        await repo.refs.resolve_commit("main@{2}")
    with pytest.raises(RefNotFound, match="has 2 moves"):
        await repo.refs.resolve_commit("main@{3}")
    with pytest.raises(RefNotFound, match="the log of nowhere"):
        await repo.refs.resolve_commit("nowhere@{yesterday}")


async def test_a_deleted_branch_comes_back_where_it_was_and_its_log_goes_on(
    repo: Versions, clock: TurnableClock
) -> None:
    await repo.refs.create_branch("topic", "main")
    head = await commit(repo, clock, "1", branch="topic")
    await clock.sleep(HOUR_S)
    await repo.refs.delete_branch("topic", by="vera")
    [listed] = await repo.refs.list_deleted(RefKind.BRANCH)
    await clock.sleep(HOUR_S)
    with pytest.raises(RefNotFound, match="was deleted then"):
        await repo.refs.resolve_commit("topic@{1h}")

    await repo.refs.undelete_branch("topic", by="max")

    assert (listed.name, listed.commit_id, listed.deleted_by) == ("topic", head, "vera")
    assert (await repo.refs.get_branch("topic")).commit_id == head
    assert shown((await repo.refs.moves(RefKind.BRANCH, "topic"))[0]) == [
        ("undelete", "max"),
        ("delete", "vera"),
        ("commit", "esti"),
        ("create", ""),
    ]
    assert await repo.refs.resolve_commit("topic@{2h}") == head
    with pytest.raises(RefNotFound, match="was not there before that move"):
        await repo.refs.resolve_commit("topic@{1}")
    with pytest.raises(RefNotFound, match="has 4 moves"):
        await repo.refs.resolve_commit("topic@{5}")
    with pytest.raises(BranchExists):
        await repo.refs.undelete_branch("topic")


@pytest.mark.parametrize("kind", RefKind)
async def test_moves_of_one_millisecond_are_all_in_the_log_and_in_their_order(repo: Versions, kind: RefKind) -> None:
    """The clock of the test stands still, as a fast machine's does between two moves."""
    refs = repo.refs
    is_branch = kind is RefKind.BRANCH
    create, delete, undelete = (
        (refs.create_branch, refs.delete_branch, refs.undelete_branch)
        if is_branch
        else (refs.create_tag, refs.delete_tag, refs.undelete_tag)
    )
    head = await create("topic", "main", by="vera")
    await delete("topic", by="max")
    await undelete("topic", by="esti")
    await delete("topic", by="max")
    await create("topic", "main", by="root")

    moves, _ = await refs.moves(kind, "topic")
    paged = [await refs.moves(kind, "topic", before_ms=move.at_ms, limit=1) for move in moves]

    assert shown(moves) == [
        ("create", "root"),
        ("delete", "max"),
        ("undelete", "esti"),
        ("delete", "max"),
        ("create", "vera"),
    ]
    assert [page for page, _ in paged] == [[move] for move in moves[1:]] + [[]]
    assert await refs.resolve_commit("topic@{2}") == head


async def test_the_newest_deletion_of_a_name_comes_back(repo: Versions, clock: TurnableClock) -> None:
    await repo.refs.create_branch("topic", "main")
    await repo.refs.delete_branch("topic")
    await clock.sleep(1)
    await repo.refs.create_branch("topic", "main")
    head = await commit(repo, clock, "1", branch="topic")
    await repo.refs.delete_branch("topic")

    [listed] = await repo.refs.list_deleted(RefKind.BRANCH)
    assert listed.commit_id == await repo.refs.undelete_branch("topic") == head
    assert await repo.refs.list_deleted(RefKind.BRANCH) == []


async def test_what_was_not_deleted_is_not_undeleted_and_is_said_to_exist(repo: Versions) -> None:
    await repo.refs.create_tag("v1", "main")

    with pytest.raises(BranchExists, match="branch main exists: it was not deleted"):
        await repo.refs.undelete_branch("main")
    with pytest.raises(TagExists, match="tag v1 exists: it was not deleted"):
        await repo.refs.undelete_tag("v1")


async def test_a_deleted_tag_comes_back(repo: Versions) -> None:
    head = await repo.refs.create_tag("v1-a", "main")
    await repo.refs.create_tag("v1", "main")
    await repo.refs.delete_tag("v1-a", by="vera")
    with pytest.raises(TagNotFound):
        await repo.refs.get_tag("v1-a")

    [listed] = await repo.refs.list_deleted(RefKind.TAG)
    with pytest.raises(DeletedRefNotFound):
        await repo.refs.undelete_tag("v2")
    await repo.refs.undelete_tag("v1-a")

    assert (listed.name, listed.deleted_by) == ("v1-a", "vera")
    assert await repo.refs.get_tag("v1-a") == head


async def test_a_tag_has_a_log_of_its_own_with_operation_and_user(repo: Versions, clock: TurnableClock) -> None:
    one = await commit(repo, clock, "1")
    await repo.refs.create_tag("v1.0", "main", by="vera")
    await clock.sleep(HOUR_S)
    await repo.refs.delete_tag("v1.0", by="max")
    await clock.sleep(HOUR_S)
    await repo.refs.undelete_tag("v1.0", by="esti")
    await clock.sleep(HOUR_S)
    await repo.refs.delete_tag("v1.0", by="max")
    two = await commit(repo, clock, "2")
    await repo.refs.create_tag("v1.0", "main", by="root")

    moves, has_more = await repo.refs.moves(RefKind.TAG, "v1.0")
    newest, more = await repo.refs.moves(RefKind.TAG, "v1.0", limit=1)

    assert shown(moves) == [
        ("create", "root"),
        ("delete", "max"),
        ("undelete", "esti"),
        ("delete", "max"),
        ("create", "vera"),
    ]
    assert [(move.before, move.after) for move in moves] == [("", two), (one, ""), ("", one), (one, ""), ("", one)]
    assert not has_more
    assert (newest, more) == (moves[:1], True)


async def test_a_tag_resolves_to_where_it_was(repo: Versions, clock: TurnableClock) -> None:
    one = await commit(repo, clock, "1")
    await repo.refs.create_tag("v1.0", "main")
    await clock.sleep(HOUR_S)
    await repo.refs.delete_tag("v1.0")
    two = await commit(repo, clock, "2")
    await repo.refs.create_tag("v1.0", "main")

    assert await repo.refs.resolve_commit("v1.0@{0}") == two
    assert await repo.refs.resolve_commit("v1.0@{2}") == one
    assert await repo.refs.resolve_commit("v1.0@{90 minutes ago}") == one
    with pytest.raises(RefNotFound, match="was deleted then"):
        await repo.refs.resolve_commit("v1.0@{30m}")


async def test_the_log_of_a_deleted_tag_is_read_by_its_name(repo: Versions, clock: TurnableClock) -> None:
    one = await commit(repo, clock, "1")
    await repo.refs.create_tag("v1", "main")
    await clock.sleep(HOUR_S)
    await repo.refs.delete_tag("v1", by="vera")

    assert shown((await repo.refs.moves(RefKind.TAG, "v1"))[0]) == [("delete", "vera"), ("create", "")]
    assert await repo.refs.resolve_commit("v1@{1}") == one
    with pytest.raises(TagNotFound):
        await repo.refs.moves(RefKind.TAG, "v2")
    with pytest.raises(BranchNotFound):
        await repo.refs.moves(RefKind.BRANCH, "v1")


async def test_a_name_that_passed_from_a_branch_to_a_tag_means_the_ref_that_is_there(
    repo: Versions, clock: TurnableClock
) -> None:
    await repo.refs.create_branch("beta", "main")
    one = await commit(repo, clock, "1", branch="beta")
    await clock.sleep(HOUR_S)
    await repo.refs.delete_branch("beta")
    await clock.sleep(HOUR_S)
    assert await repo.refs.resolve_commit("beta@{90 minutes ago}") == one

    await repo.refs.create_tag("beta", one)

    with pytest.raises(RefNotFound, match="does not go back so far"):
        await repo.refs.resolve_commit("beta@{90 minutes ago}")
    assert await repo.refs.resolve_commit("beta@{0}") == one


async def test_old_moves_of_tags_are_removed_by_the_cleaner(repo: Versions, clock: TurnableClock, store: Store) -> None:
    await repo.refs.create_tag("old", "main")
    await repo.refs.delete_tag("old")
    await clock.sleep(91 * 24 * HOUR_S)
    await repo.refs.create_tag("new", "main")
    await repo.refs.delete_tag("new")

    await repo.cleanup.clean()

    found = (await store.scan(repo.partition, keys.TAG_REFLOG, 10)).keys
    assert {key.split(b"/")[1] for key in found if key.startswith(keys.TAG_REFLOG)} == {b"new"}


async def test_after_the_window_nothing_comes_back_and_its_note_goes(
    repo: Versions, clock: TurnableClock, store: Store
) -> None:
    await repo.refs.create_branch("topic", "main")
    await repo.refs.delete_branch("topic")
    await clock.sleep(7 * 24 * HOUR_S + 1)

    with pytest.raises(DeletedRefNotFound):
        await repo.refs.undelete_branch("topic")
    assert await repo.refs.list_deleted(RefKind.BRANCH) == []
    await repo.cleanup.clean()

    page = await store.scan(repo.partition, keys.DELETED, 1)
    assert not page.keys[0].startswith(keys.DELETED)


async def test_a_branch_of_this_package_is_not_kept(repo: Versions) -> None:
    await repo.refs.create_branch("own", "main")
    await repo.refs.delete_branch("own", is_kept=False)

    assert await repo.refs.list_deleted(RefKind.BRANCH) == []


async def test_old_moves_are_removed_and_the_others_stay(repo: Versions, clock: TurnableClock) -> None:
    for number in range(3):
        await commit(repo, clock, f"{number}", after_s=40 * 24 * HOUR_S)
    await repo.refs.create_branch("topic", "main")

    await repo.cleanup.clean()

    assert shown((await repo.refs.moves(RefKind.BRANCH, "main"))[0]) == [("commit", "esti")] * 3
    await clock.sleep(60 * 24 * HOUR_S)
    await repo.cleanup.clean()
    assert shown((await repo.refs.moves(RefKind.BRANCH, "main"))[0]) == [("commit", "esti")]
    assert shown((await repo.refs.moves(RefKind.BRANCH, "topic"))[0]) == [("create", "")]


async def test_a_log_is_read_in_pages(repo: Versions, clock: TurnableClock) -> None:
    for number in range(4):
        await commit(repo, clock, f"{number}", after_s=0)  # The clock stands: the log moves on all the same.
    whole, _ = await repo.refs.moves(RefKind.BRANCH, "main")

    first, more = await repo.refs.moves(RefKind.BRANCH, "main", limit=2)
    second, still_more = await repo.refs.moves(RefKind.BRANCH, "main", before_ms=first[-1].at_ms, limit=3)

    assert (list(first) + list(second), more, still_more) == (whole, True, False)


async def test_what_never_was_has_no_log(repo: Versions, objectstore: ObjectStore) -> None:
    with pytest.raises(BranchNotFound):
        await repo.refs.moves(RefKind.BRANCH, "nowhere")
