"""Writers with a condition beside one another and beside commits: one wins at most, also with equal bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from lakebed.base import Entry, Etags
from lakebed.versions import Condition, NoChanges, Note, PathExists, PreconditionFailed, Versions
from lakebed.versions.staging.conditions import OwnCell, Owning
from tests.versions.conftest import HookedStore, body

NOTE = Note(message="m", committer="c")


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


async def beside(
    repo: Versions,
    another: Callable[[], Versions],
    store: HookedStore,
    write: Callable[[Versions], Awaitable[object]],
    *,
    commits: int,
) -> list[str]:
    """Have two do the same write to `lock`. A commit comes before the cell of the first; then the second, and commits.

    Return who was acknowledged.
    """
    other, won = another(), []
    await repo.staging.upload("main", b"x", body(repo.objectstore))  # So that the commit has a change.

    async def second() -> None:
        await write(other)
        won.append("second")
        for number in range(commits):
            await other.staging.upload("main", b"x", body(other.objectstore, b"%d" % number))
            await other.commits.commit("main", NOTE)

    async def commit() -> None:
        await another().commits.commit("main", NOTE)
        store.before("get", b"branch/main", second)  # When the first one looks again.

    store.before("set_if", b"lock", commit)
    try:
        await write(repo)
        won.append("first")
    except (PathExists, PreconditionFailed):
        pass
    return won


@pytest.mark.parametrize("commits", [0, 1])
async def test_of_two_who_create_equal_objects_one_wins(
    repo: Versions, another: Callable[[], Versions], store: HookedStore, commits: int
) -> None:
    async def create(by: Versions) -> None:
        await by.staging.upload(
            "main", b"lock", body(by.objectstore, b"locked"), condition=Condition(if_none_match=True)
        )

    assert await beside(repo, another, store, create, commits=commits) == ["second"]


@pytest.mark.parametrize("commits", [0, 1])
async def test_of_two_who_replace_an_object_by_equal_ones_one_wins(
    repo: Versions, another: Callable[[], Versions], store: HookedStore, commits: int
) -> None:
    old = await repo.staging.upload("main", b"lock", body(repo.objectstore, b"open"))
    await repo.commits.commit("main", NOTE)

    async def replace(by: Versions) -> None:
        await by.staging.upload(
            "main", b"lock", body(by.objectstore, b"locked"), condition=Condition(if_match=Etags.of(old.checksum))
        )

    assert await beside(repo, another, store, replace, commits=commits) == ["second"]


@pytest.mark.parametrize("commits", [0, 1])
async def test_of_two_who_copy_one_object_to_a_new_path_one_wins(
    repo: Versions, another: Callable[[], Versions], store: HookedStore, commits: int
) -> None:
    """Both entries name the address of the source, and are equal in all."""
    await repo.staging.upload("main", b"source", body(repo.objectstore, b"locked"))
    await repo.commits.commit("main", NOTE)

    async def copy(by: Versions) -> None:
        await by.copies.copy("main", b"source", "main", b"lock", shallow=True, condition=Condition(if_none_match=True))

    assert await beside(repo, another, store, copy, commits=commits) == ["second"]


async def test_a_copy_does_not_take_the_equal_copy_of_another_for_its_own(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    await repo.staging.upload("main", b"source", body(repo.objectstore, b"locked"))
    await repo.commits.commit("main", NOTE)

    async def copy() -> None:
        await another().copies.copy(
            "main", b"source", "main", b"lock", shallow=True, condition=Condition(if_none_match=True)
        )

    store.before("get", b"lock", copy)
    with pytest.raises(PathExists):
        await repo.copies.copy(
            "main", b"source", "main", b"lock", shallow=True, condition=Condition(if_none_match=True)
        )


async def test_a_committed_entry_of_equal_content_is_no_own_one(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    """A merge brings it between the commit that took our token, without our cell, and our next look."""
    await repo.refs.create_branch("side", "main")
    await repo.staging.upload("side", b"lock", body(repo.objectstore, b"locked"))
    await repo.commits.commit("side", NOTE)
    await repo.staging.upload("main", b"x", body(repo.objectstore))

    async def commit() -> None:
        await another().commits.commit("main", NOTE)
        await another().merges.merge("side", "main", NOTE)

    store.before("set_if", b"lock", commit)
    with pytest.raises(PathExists):
        await repo.staging.upload(
            "main", b"lock", body(repo.objectstore, b"locked"), condition=Condition(if_none_match=True)
        )


async def test_a_commit_between_does_not_hinder_one_who_is_alone(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    async def commit() -> None:
        await another().commits.commit("main", NOTE)

    async def when_the_cell_is_set() -> None:
        store.before("get", b"branch/main", commit)

    store.before("set_if", b"lock", when_the_cell_is_set)
    made = await repo.staging.upload(
        "main", b"lock", body(repo.objectstore, b"locked"), condition=Condition(if_none_match=True)
    )

    assert (await another().staging.get("main", b"lock")).address == made.address


async def test_a_commit_between_does_not_hinder_one_who_deletes_alone(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    old = await repo.staging.upload("main", b"lock", body(repo.objectstore, b"locked"))
    await repo.commits.commit("main", NOTE)
    await repo.staging.upload("main", b"x", body(repo.objectstore))

    async def commit() -> None:
        await another().commits.commit("main", NOTE)

    async def when_the_cell_is_set() -> None:
        store.before("get", b"branch/main", commit)

    store.before("set_if", b"lock", when_the_cell_is_set)
    await repo.staging.delete("main", b"lock", if_match=Etags.of(old.checksum))

    assert await another().staging.get_row("main", b"lock") is None


@pytest.mark.parametrize("commits", [False, True])
async def test_a_delete_on_a_condition_keeps_what_comes_before_its_tombstone(
    repo: Versions, another: Callable[[], Versions], store: HookedStore, commits: bool
) -> None:
    old = await repo.staging.upload("main", b"lock", body(repo.objectstore, b"locked"))
    made: list[Entry] = []

    async def replace() -> None:
        if commits:
            await another().commits.commit("main", NOTE)
        made.append(await another().staging.upload("main", b"lock", body(repo.objectstore, b"newer")))

    store.before("set_if", b"lock", replace)
    with pytest.raises(PreconditionFailed):
        await repo.staging.delete("main", b"lock", if_match=Etags.of(old.checksum))

    assert await another().staging.get("main", b"lock") == made[0]


async def test_a_cell_that_came_late_into_a_sealed_token_gives_way_to_an_equal_one_that_was_acknowledged(
    repo: Versions, another: Callable[[], Versions]
) -> None:
    """The commit that took the second one took it for no change. The simulator has the whole story."""
    before = (await repo.context.branches.fresh("main")).record
    await repo.staging.upload("main", b"lock", body(repo.objectstore, b"locked"))
    row = await repo.staging.get_row("main", b"lock")
    assert row is not None
    await repo.commits.commit("main", NOTE)
    mine = OwnCell(before.staging_token, before.commit_id, row, is_fresh=True)

    async def is_own() -> bool:
        record = (await repo.context.branches.fresh("main")).record
        return await Owning(repo.context).is_own(record, b"lock", row, [mine])

    assert await is_own()
    await another().staging.upload("main", b"lock", body(repo.objectstore, b"locked"))
    with pytest.raises(NoChanges):
        await another().commits.commit("main", NOTE)
    assert not await is_own()
