"""The lake of asyncio: the same objects and errors, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import lakebed
from lakebed.lake import AsyncLake, AsyncRepository


@pytest.fixture
async def flights(lake: lakebed.Lake, repository: lakebed.Repository) -> AsyncIterator[AsyncRepository]:
    asynchronous = AsyncLake(lake)
    yield await asynchronous.repository(repository.name)
    asynchronous._pool.shutdown()  # the lake itself is shared by the tests of this file


async def test_a_transaction_is_one_commit(flights: AsyncRepository) -> None:
    main = flights.branch()

    async with main.transaction("load", metadata={"run": "7"}) as tx:
        await asyncio.gather(*(tx.write(f"{number}.csv", b"1") for number in range(20)))

    [newest, *_] = [commit async for commit in main.log()]
    assert (newest.id, newest.message, newest.metadata["run"]) == (tx.result, "load", "7")
    assert len([stats async for stats in main.list()]) == 20


async def test_a_block_that_raises_or_is_cancelled_changes_nothing(flights: AsyncRepository) -> None:
    main = flights.branch()

    async def fails() -> None:
        async with main.transaction("fails") as tx:
            await tx.write("a.csv", b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()

    has_written = asyncio.Event()

    async def sleeps() -> None:
        async with main.transaction("cancelled") as tx:
            await tx.write("b.csv", b"1")
            has_written.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(sleeps())
    await has_written.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await main.exists("a.csv")
    assert not await main.exists("b.csv")
    assert [branch.sync.name async for branch in flights.branches()] == ["main"]


async def test_two_that_change_the_same_path_conflict(flights: AsyncRepository) -> None:
    main = flights.branch()

    async def overlap() -> None:
        async with main.transaction("one") as one:
            await one.write("a.csv", b"1")
            async with main.transaction("two") as two:
                await two.write("a.csv", b"2")

    with pytest.raises(lakebed.Conflict):
        await overlap()
    assert await main.read("a.csv") == b"2"


async def test_branches_tags_and_differences(flights: AsyncRepository) -> None:
    main = flights.branch()
    await main.write("a.csv", b"1")
    await main.commit("begin")
    side = await flights.create_branch("side", "main")
    await side.write("a.csv", b"2")
    await side.commit("change")
    tag = await flights.create_tag("v1", "main")

    assert [(change.type, change.path) async for change in main.diff(str(side))] == [("changed", "a.csv")]
    await main.merge(str(side))
    assert await main.read("a.csv") == b"2"
    assert await tag.read("a.csv") == b"1"
    assert [ref.sync.name async for ref in flights.tags()] == ["v1"]
    with pytest.raises(lakebed.NotFound):
        await main.stat("none.csv")


async def test_a_lake_closes_what_it_was_given(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with AsyncLake(lakebed.open_local(tmp_path_factory.mktemp("lake"), environment={})) as lake:
        await lake.create_repository("flights")
        names = [repository.sync.name async for repository in lake.repositories()]
    assert names == ["flights"]
    with pytest.raises(RuntimeError):
        await lake.repository("flights")
