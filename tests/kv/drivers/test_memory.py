"""The memory driver keeps the contract, with either kind of predicate."""

from __future__ import annotations

import pytest

from lakebed.kv import PredicateFailed, Store, open_store
from lakebed.testing.contracts import StoreContract

P = b"partition"


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store_uri(self) -> str:
        return "mem://"


class TestMemoryStoreByValue(StoreContract):
    @pytest.fixture
    def store_uri(self) -> str:
        return "mem://?predicates=value"


async def put_back(store: Store) -> None:
    """Read A, let others write B and then A again, and set what we read."""
    predicate = await store.set_if(P, b"key", b"A", None)
    await store.set(P, b"key", b"B")
    await store.set(P, b"key", b"A")
    await store.set_if(P, b"key", b"ours", predicate)


async def test_predicates_by_version_tell_a_value_put_back_from_one_never_changed() -> None:
    with pytest.raises(PredicateFailed):
        await put_back(open_store("mem://"))


async def test_a_version_is_not_used_again_for_an_equal_value() -> None:
    store = open_store("mem://")
    predicate = await store.set_if(P, b"key", b"A", None)
    await store.set(P, b"key", b"A")

    with pytest.raises(PredicateFailed):
        await store.set_if(P, b"key", b"ours", predicate)


async def test_predicates_by_value_do_not() -> None:
    await put_back(open_store("mem://?predicates=value"))


async def test_a_version_is_not_used_again_after_deletion() -> None:
    store = open_store("mem://")
    predicate = await store.set_if(P, b"key", b"A", None)
    await store.delete(P, b"key")
    await store.set(P, b"key", b"A")

    with pytest.raises(PredicateFailed):
        await store.delete_if(P, b"key", predicate)


async def test_each_opening_is_a_store_of_its_own() -> None:
    first, second = open_store("mem://"), open_store("mem://")

    await first.set(P, b"key", b"")

    assert await second.get(P, b"key") is None


def test_no_method_suspends() -> None:
    """A simulator may run one to its end with a single send."""
    store = open_store("mem://")

    with pytest.raises(StopIteration):
        store.set(P, b"key", b"").send(None)
