"""A flow whose claim, commit record or intent loses its answer goes on: these records are its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.versions import Note, RefState, Versions, keys
from lakebed.versions.context import LOST_MAX

from .conftest import body

NOTE = Note(message="m", committer="c")


class Losing(MemoryStore):
    """Loses the answers of so many unconditional writes of keys that begin so, once they are carried out or not."""

    def __init__(self) -> None:
        super().__init__()
        self.loses, self.times, self.is_done = b"", 1, True
        self.late: list[tuple[bytes, list[tuple[bytes, bytes]]]] = []

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        await self.set_many(partition, [(key, value)])

    async def set_many(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        is_lost = bool(self.loses and self.times) and any(key.startswith(self.loses) for key, _ in items)
        if not is_lost or self.is_done:
            await super().set_many(partition, items)
        if is_lost:
            self.times -= 1
            self.late.append((partition, list(items)))
            raise OutcomeUnknown("the answer was lost")

    async def arrive(self) -> None:
        """What was lost comes late."""
        for partition, items in self.late:
            await super().set_many(partition, items)


@pytest.fixture
def store() -> Losing:
    return Losing()


async def _commit(repo: Versions) -> None:
    await repo.commits.commit("main", NOTE)


async def _merge(repo: Versions) -> None:
    await repo.refs.create_branch("side", "main")
    await repo.staging.upload("side", b"b", body(repo.objectstore))
    await repo.commits.commit("side", NOTE)
    await repo.merges.merge("side", "main", NOTE)


async def _reset(repo: Versions) -> None:
    await repo.resets.reset("main")


async def _delete(repo: Versions) -> None:
    await repo.refs.create_branch("side", "main")
    await repo.refs.delete_branch("side")


async def _hard_reset(repo: Versions) -> None:
    await repo.resets.hard_reset("main", "main", force=True)


FLOWS: list[tuple[bytes, Callable[[Versions], Awaitable[None]]]] = [
    (keys.CLAIM, _commit),
    (keys.COMMIT, _commit),
    (keys.COMMIT, _merge),
    (keys.CLAIM, _reset),
    (keys.CLAIM, _delete),
    (keys.CLAIM, _hard_reset),
    (keys.INTENT, _hard_reset),
]


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize(("key", "flow"), FLOWS)
async def test_a_flow_that_loses_the_answer_of_a_record_of_its_own_goes_on(
    repo: Versions, store: Losing, key: bytes, flow: Callable[[Versions], Awaitable[None]], is_done: bool
) -> None:
    await repo.staging.upload("main", b"a", body(repo.objectstore))
    store.loses, store.is_done = key, is_done

    await flow(repo)

    assert store.times == 0
    assert (await repo.context.branches.fresh("main")).record.state is RefState.ACTIVE


@pytest.mark.parametrize(("key", "flow"), FLOWS)
async def test_a_store_that_loses_each_answer_is_reported(
    repo: Versions, store: Losing, key: bytes, flow: Callable[[Versions], Awaitable[None]]
) -> None:
    await repo.staging.upload("main", b"a", body(repo.objectstore))
    store.loses, store.times = key, 10 * LOST_MAX

    with pytest.raises(OutcomeUnknown):
        await flow(repo)


@pytest.mark.parametrize("flow", [_commit, _merge])
async def test_a_record_that_comes_late_does_not_unpublish_the_commit(
    repo: Versions, store: Losing, flow: Callable[[Versions], Awaitable[None]]
) -> None:
    await repo.staging.upload("main", b"a", body(repo.objectstore))
    store.loses, store.is_done = keys.COMMIT, False
    await flow(repo)

    await store.arrive()

    head = (await repo.context.branches.fresh("main")).record.commit_id
    found = await repo.inventory.commits([head])
    assert found[0] is not None
    assert found[0].published
