"""Calls that wait at the same time are carried out together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lakebed.base import LakebedError, OutcomeUnknown
from lakebed.kv.remote.gathered import Gathered
from lakebed.kv.remote.store import Place, RemoteStore, SetIf
from lakebed.kv.store import Held, Predicate, PredicateFailed, StoreFormat


class Request:
    """What carries calls out: each answer is the number asked, doubled. It waits while `is_open` is not set."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self.arrivals = asyncio.Semaphore(0)
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def __call__(self, asked: Sequence[int]) -> list[int | Exception]:
        self.begun.append(list(asked))
        self.arrivals.release()
        await self.is_open.wait()
        if 13 in asked:
            raise OutcomeUnknown("unlucky", number=13)
        return [LakebedError("negative") if number < 0 else 2 * number for number in asked]


@pytest.fixture
def request_() -> Request:
    return Request()


@pytest.fixture
def gathered(request_: Request) -> Gathered[int, int]:
    return Gathered(request_, most=4)


async def test_what_comes_in_one_turn_of_the_loop_is_one_request(
    gathered: Gathered[int, int], request_: Request
) -> None:
    answers = await asyncio.gather(*(gathered.do(number) for number in range(3)))

    assert answers == [0, 2, 4]
    assert request_.begun == [[0, 1, 2]]


async def test_a_request_takes_no_more_than_its_most(gathered: Gathered[int, int], request_: Request) -> None:
    assert await asyncio.gather(*(gathered.do(number) for number in range(6))) == [0, 2, 4, 6, 8, 10]
    assert request_.begun == [[0, 1, 2, 3], [4, 5]]


async def test_equal_calls_that_share_count_as_one_and_go_together(request_: Request) -> None:
    reads = Gathered(request_, most=2, equal_share=True)

    assert await asyncio.gather(*(reads.do(number) for number in (1, 2, 3, 1, 3, 1))) == [2, 4, 6, 2, 6, 2]

    assert request_.begun == [[1, 1, 1, 2], [3, 3]]


async def test_what_comes_during_a_request_begins_after_it_together(
    gathered: Gathered[int, int], request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.kv.remote.gathered.PATIENCE_S", 600)
    request_.is_open.clear()
    first = asyncio.ensure_future(gathered.do(1))
    await request_.arrivals.acquire()
    later = [asyncio.ensure_future(gathered.do(number)) for number in (2, 3)]
    await asyncio.sleep(0)
    assert request_.begun == [[1]]

    request_.is_open.set()

    assert await asyncio.gather(first, *later) == [2, 4, 6]
    assert request_.begun == [[1], [2, 3]]


async def test_a_call_that_equals_one_under_way_is_carried_out_after_it(request_: Request) -> None:
    reads = Gathered(request_, most=2, equal_share=True)
    request_.is_open.clear()
    first = asyncio.ensure_future(reads.do(1))
    await request_.arrivals.acquire()
    second = asyncio.ensure_future(reads.do(1))
    await asyncio.sleep(0)

    request_.is_open.set()

    assert [await first, await second] == [2, 2]
    assert request_.begun == [[1], [1]]


async def test_what_its_callers_ask_next_goes_with_what_waited_for_a_request(
    gathered: Gathered[int, int], request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.kv.remote.gathered.PATIENCE_S", 600)

    async def one_after_the_other() -> None:
        await gathered.do(1)
        await gathered.do(2)

    request_.is_open.clear()
    first = asyncio.ensure_future(one_after_the_other())
    await request_.arrivals.acquire()
    later = asyncio.ensure_future(gathered.do(3))
    await asyncio.sleep(0)

    request_.is_open.set()
    await asyncio.gather(first, later)

    assert request_.begun == [[1], [3, 2]]


async def test_a_request_that_hangs_holds_nothing_up_for_long(gathered: Gathered[int, int], request_: Request) -> None:
    request_.is_open.clear()
    first = asyncio.ensure_future(gathered.do(1))
    await request_.arrivals.acquire()
    second = asyncio.ensure_future(gathered.do(2))

    await request_.arrivals.acquire()

    assert not first.done()
    request_.is_open.set()
    assert [await first, await second] == [2, 4]


async def test_a_caller_that_is_cancelled_leaves_the_others_their_answers(
    gathered: Gathered[int, int], request_: Request
) -> None:
    request_.is_open.clear()
    callers = [asyncio.ensure_future(gathered.do(number)) for number in range(3)]
    await request_.arrivals.acquire()
    waiting = asyncio.ensure_future(gathered.do(7))
    await asyncio.sleep(0)

    callers[1].cancel()
    waiting.cancel()
    request_.is_open.set()

    assert [await callers[0], await callers[2]] == [0, 4]
    assert await gathered.do(8) == 16
    assert request_.begun == [[0, 1, 2], [8]]


async def test_an_answer_may_be_an_error_of_one_and_a_failure_is_an_error_of_each(
    gathered: Gathered[int, int],
) -> None:
    outcomes = await asyncio.gather(gathered.do(1), gathered.do(-1), return_exceptions=True)
    assert outcomes[0] == 2
    assert isinstance(outcomes[1], LakebedError)

    failures = await asyncio.gather(gathered.do(13), gathered.do(1), return_exceptions=True)

    assert [type(failure) for failure in failures] == [OutcomeUnknown, OutcomeUnknown]
    assert failures[0] is not failures[1]
    assert await gathered.do(2) == 4


class DamagedAtOneKey:
    """A database that cannot read or write the key `damaged`. Its other writes wait until `is_open` is set."""

    batch_keys_max = 10
    batch_bytes_max = 10
    batches_at_once = 2
    reads_together = True

    def __init__(self) -> None:
        self.values: dict[Place, bytes] = {}
        self.is_open = asyncio.Event()

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        self._check(keys)
        found = {key: self.values[partition, key] for key in keys if (partition, key) in self.values}
        return {key: Held(value, value) for key, value in found.items()}

    async def write_if(self, partition: bytes, key: bytes, value: bytes, held: Predicate | None) -> Predicate | None:
        self._check([key])
        await self.is_open.wait()
        if self.values.get((partition, key)) != held:
            return None
        self.values[partition, key] = value
        return value

    async def write_ifs(self, asked: Sequence[SetIf]) -> list[Predicate | Exception | None]:
        self._check([one[1] for one in asked])
        assert len({one[:2] for one in asked}) == len(asked), "a request may have a key once"
        return [await self.write_if(*one) for one in asked]

    async def close(self) -> None: ...

    def _check(self, keys: Sequence[bytes]) -> None:
        if b"damaged" in keys:
            raise StoreFormat("a page is damaged")


@pytest.fixture
def damaged() -> DamagedAtOneKey:
    return DamagedAtOneKey()


@pytest.fixture
def store(damaged: DamagedAtOneKey) -> RemoteStore:
    database: Any = damaged
    return RemoteStore(database, name="damaged", wait_s=60)


async def test_a_damaged_key_takes_no_read_of_another_key_along(damaged: DamagedAtOneKey, store: RemoteStore) -> None:
    damaged.values[b"p", b"whole"] = b"1"

    whole, lost = await asyncio.gather(store.get(b"p", b"whole"), store.get(b"p", b"damaged"), return_exceptions=True)

    assert isinstance(whole, Held)
    assert whole.value == b"1"
    assert isinstance(lost, StoreFormat)


@pytest.mark.parametrize("size", [1, 9], ids=["in one batch", "in two batches"])
async def test_a_damaged_key_takes_no_write_of_another_key_along(
    damaged: DamagedAtOneKey, store: RemoteStore, size: int
) -> None:
    """A writer that is answered while its write goes on would take the value for one that never comes."""
    value = bytes(size)
    both = asyncio.gather(
        store.set_if(b"p", b"whole", value, None), store.set_if(b"p", b"damaged", value, None), return_exceptions=True
    )
    for _ in range(20):
        await asyncio.sleep(0)
    assert not both.done()
    damaged.is_open.set()

    written, lost = await both

    assert written == value == damaged.values[b"p", b"whole"]
    assert isinstance(lost, StoreFormat)


async def test_of_two_conditional_writes_of_a_key_at_one_moment_one_fails(
    damaged: DamagedAtOneKey, store: RemoteStore
) -> None:
    damaged.is_open.set()

    outcomes = await asyncio.gather(
        *(store.set_if(b"p", b"whole", value, None) for value in (b"1", b"2")), return_exceptions=True
    )

    assert sum(isinstance(one, PredicateFailed) for one in outcomes) == 1
    assert damaged.values[b"p", b"whole"] in outcomes
