"""The cache of decoded files: bounded by bytes, one load for those who miss together, nothing kept of a failure."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from lakebed.runtime import live_ports
from lakebed.versions.trees.cache import Name, TreeCache


@dataclass(frozen=True)
class Value:
    nbytes: int


def name(key: str) -> Name:
    return ("mem://here", key)


class Loads:
    """Loads values of a size, counting; fails as often as it is told to."""

    def __init__(self, nbytes: int = 10, failures: int = 0) -> None:
        self.count = 0
        self._nbytes = nbytes
        self._failures = failures

    async def __call__(self) -> Value:
        self.count += 1
        await asyncio.sleep(0)
        if self.count <= self._failures:
            raise OSError("not this time")
        return Value(self._nbytes)


async def put(cache: TreeCache, key: str, nbytes: int) -> None:
    await cache.load(name(key), Value, Loads(nbytes), live_ports().tasks)


async def test_the_least_recently_used_goes_first() -> None:
    cache = TreeCache(100)
    for key in "abcd":
        await put(cache, key, 25)

    assert cache.find(name("a"), Value) is not None
    await put(cache, "e", 20)

    assert [key for key in "abcde" if cache.find(name(key), Value)] == ["a", "c", "d", "e"]
    assert cache.size_bytes == 95


async def test_a_value_too_large_is_handed_out_and_not_kept() -> None:
    cache = TreeCache(100)
    await put(cache, "a", 20)

    value = await cache.load(name("big"), Value, Loads(26), live_ports().tasks)

    assert value.nbytes == 26
    assert cache.find(name("big"), Value) is None
    assert cache.find(name("a"), Value) is not None


async def test_a_value_kept_in_place_of_another_counts_alone() -> None:
    cache = TreeCache(100)

    for nbytes in (20, 25, 10):
        cache.keep(name("a"), Value(nbytes))

    assert cache.find(name("a"), Value) == Value(10)
    assert cache.size_bytes == 10


async def test_the_same_key_in_two_namespaces_is_two_values() -> None:
    cache = TreeCache(100)
    await put(cache, "a", 10)

    assert cache.find(("mem://there", "a"), Value) is None


@pytest.mark.parametrize("limit", [0, 1000])
async def test_those_who_miss_together_share_one_load_even_if_it_is_not_kept(limit: int) -> None:
    cache, loads = TreeCache(limit), Loads()

    values = await asyncio.gather(*[cache.load(name("a"), Value, loads, live_ports().tasks) for _ in range(5)])

    assert values == [Value(10)] * 5
    assert loads.count == 1


async def test_after_a_failed_load_the_next_in_line_tries_and_nothing_is_kept_of_it() -> None:
    cache, loads = TreeCache(1000), Loads(failures=2)

    outcomes = await asyncio.gather(
        *[cache.load(name("a"), Value, loads, live_ports().tasks) for _ in range(4)], return_exceptions=True
    )

    assert [type(outcome) for outcome in outcomes] == [OSError, OSError, Value, Value]
    assert loads.count == 3


async def test_a_load_that_is_cancelled_does_not_leave_others_waiting() -> None:
    cache, loads = TreeCache(1000), Loads()
    first = asyncio.create_task(cache.load(name("a"), Value, loads, live_ports().tasks))
    second = asyncio.create_task(cache.load(name("a"), Value, loads, live_ports().tasks))
    await asyncio.sleep(0)

    first.cancel()

    assert await second == Value(10)
