"""A merge where a run took an object, and equal content that can be read is on one of its sides."""

from __future__ import annotations

import pytest

from lakebed.gc.live import PolicyBook
from lakebed.gc.messages import RunKind
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.versions import NoChanges, Note, PathExpired
from tests.gc.live.defer.test_undoing import POLICY, Story

NOTE = Note(message="together", committer="tests")


@pytest.fixture
async def lake() -> Story:
    lake = await Story.opened(MemoryStore())
    await PolicyBook(lake.versions).write(POLICY)
    return lake


async def both_have(lake: Story, content: str) -> None:
    """Commit `a` on main, and let `side` begin there. Both move on, so that no file of their trees is the same."""
    await lake.put("main", "a", content)
    await lake.commit("main")
    await lake.versions.refs.create_branch("side", "main")
    for branch in ("main", "side"):
        await lake.put(branch, f"z-{branch}", branch)
        await lake.commit(branch)


async def uploaded_again(lake: Story, branch: str) -> str:
    address = await lake.put(branch, "a", "same")
    await lake.commit(branch)
    return address


async def address(lake: Story, ref: str) -> str:
    return (await lake.versions.staging.get(ref, b"a")).address


async def test_a_merge_brings_what_the_source_uploaded_again_in_place_of_a_taken_object(lake: Story) -> None:
    await both_have(lake, "same")
    lake.days(4)
    await lake.run(RunKind.LIFECYCLE)
    again = await uploaded_again(lake, "side")
    with pytest.raises(PathExpired):
        await lake.read("main")

    await lake.versions.merges.merge("side", "main", NOTE)

    assert await address(lake, "main") == again
    assert await lake.read("main") == "same"


async def test_so_does_a_merge_where_both_sides_came_to_the_same_content(lake: Story) -> None:
    await both_have(lake, "before")
    await uploaded_again(lake, "main")
    lake.days(4)
    await lake.run(RunKind.LIFECYCLE)
    again = await uploaded_again(lake, "side")

    await lake.versions.merges.merge("side", "main", NOTE)

    assert await address(lake, "main") == again


async def test_so_does_a_cherry_pick(lake: Story) -> None:
    await both_have(lake, "same")
    lake.days(4)
    await lake.run(RunKind.LIFECYCLE)
    again = await uploaded_again(lake, "side")

    await lake.versions.merges.cherry_pick("main", "side", NOTE)

    assert await address(lake, "main") == again


async def test_equal_content_stays_no_change_where_no_run_took_an_object(lake: Story) -> None:
    await both_have(lake, "same")
    lake.days(4)
    before = await address(lake, "main")
    await lake.versions.staging.delete("side", b"a")
    await lake.commit("side")
    await uploaded_again(lake, "side")

    await lake.versions.merges.merge("side", "main", NOTE)

    assert await address(lake, "main") == before


@pytest.mark.parametrize("moves_on", [False, True])
async def test_a_revert_of_what_was_uploaded_again_keeps_what_can_be_read(lake: Story, *, moves_on: bool) -> None:
    """Without another change since, the file of the commit's parent would come over whole."""
    await both_have(lake, "same")
    lake.days(4)
    await lake.run(RunKind.LIFECYCLE)
    again = await uploaded_again(lake, "main")
    reverted = await lake.versions.refs.resolve_commit("main")
    if moves_on:
        await lake.put("main", "b", "other")
        await lake.commit("main")

    with pytest.raises(NoChanges):
        await lake.versions.merges.revert("main", reverted, NOTE)

    assert await address(lake, "main") == again
