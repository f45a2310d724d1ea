"""Checks for every Store driver. The author of a driver inherits the class and opens an empty store:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store_uri(self) -> str:
            return "my://127.0.0.1/fresh-and-empty"

or overrides `store` itself, for a driver that `lakebed.kv.open_store` does not know. A driver whose data outlive the
process inherits DurableStoreContract instead, which has more checks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import ClassVar

import pytest

from lakebed.kv import Held, InvalidKey, PredicateFailed, Store, StoreUnavailable, open_store

from .processes import COUNTER, PARTITION, increment

P = b"partition"
MANY = 3000
"""More than a batch or a page of any driver's own making, we suppose."""

AWKWARD_KEYS = [
    b"\x00",
    b"\x00\x00",
    b"\x00\xff",
    b" ",
    b"%",
    b"/",
    b"A",
    b"_",
    b"a",
    b"a\x00",
    b"a\x00b",
    b"a/",
    b"a/b",
    b"a0",
    b"aa",
    b"b",
    "é".encode(),
    b"\x7f",
    b"\x80",
    b"\xfe\xff",
    b"\xff",
    b"\xff" * 1024,
    b"\xff\x00",
    b"\xff\xff",
]


def numbered(count: int) -> list[tuple[bytes, bytes]]:
    return [(b"key %06d" % number, b"value %d" % number) for number in range(count)]


async def read_all(store: Store, partition: bytes, page_size: int = 1000) -> dict[bytes, bytes]:
    """Read a whole partition by pages. Check each page: in order, within its size, and no key twice."""
    found: dict[bytes, bytes] = {}
    start: bytes | None = b""
    last: bytes | None = None
    while start is not None:
        page = await store.scan(partition, start, page_size)
        assert len(page.keys) == len(page.values) <= page_size
        for key, value in zip(page.keys, page.values, strict=True):
            assert last is None or key > last
            assert type(key) is type(value) is bytes
            found[key] = value
            last = key
        start = page.next_start
    return found


def successes(outcomes: Sequence[object]) -> int:
    """Count the conditional writes that succeeded. Every other outcome must be PredicateFailed."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(failure, PredicateFailed) for failure in failures), failures
    return len(outcomes) - len(failures)


async def value_of(store: Store, partition: bytes, key: bytes) -> bytes | None:
    held = await store.get(partition, key)
    return None if held is None else held.value


async def held(store: Store, partition: bytes, key: bytes) -> Held:
    found = await store.get(partition, key)
    assert found is not None
    return found


class Program:
    """Operations on a store, each also carried out on a dictionary, with the answers compared."""

    KEYS = (b"a", b"b", b"b\x00", b"\xff")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.cells: dict[bytes, bytes] = {}
        self.seen: dict[bytes, Held | None] = {}
        self.changed_since: set[bytes] = set()
        """Keys that were written since they were read, perhaps back to the value that was read."""

    async def step(self, rng: random.Random) -> None:
        key, value = rng.choice(self.KEYS), rng.choice([b"", b"1", b"2", bytes(5000)])
        match rng.choice(["read", "read", "set", "set_if", "set_if", "delete", "delete_if", "set_many", "delete_many"]):
            case "read":
                self.seen[key] = await self.store.get(P, key)
                self.changed_since.discard(key)
                assert await value_of(self.store, P, key) == self.cells.get(key)
            case "set":
                await self.store.set(P, key, value)
                self._change({key: value})
            case "set_if":
                before = self.seen.get(key)
                predicate = None if before is None else before.predicate
                if await self._succeeds(key, self.store.set_if(P, key, value, predicate)):
                    self._change({key: value})
            case "delete":
                await self.store.delete(P, key)
                self._change({key: None})
            case "delete_if" if (before := self.seen.get(key)) is not None:
                if await self._succeeds(key, self.store.delete_if(P, key, before.predicate)):
                    self._change({key: None})
            case "set_many":
                items = [(rng.choice(self.KEYS), rng.choice([b"", b"3"])) for _ in range(rng.randrange(5))]
                await self.store.set_many(P, items)
                self._change(dict(items))
            case "delete_many":
                keys = rng.sample(self.KEYS, rng.randrange(3))
                await self.store.delete_many(P, keys)
                self._change(dict.fromkeys(keys))

    async def _succeeds(self, key: bytes, attempt: Awaitable[object]) -> bool:
        """Carry out a conditional write. Check its success or failure wherever the port defines it."""
        before = self.seen.get(key)
        is_as_read = self.cells.get(key) == (before and before.value)
        try:
            await attempt
        except PredicateFailed:
            # A driver with versions notices that a value was replaced and put back. Absence has no version.
            assert not is_as_read or (before is not None and key in self.changed_since)
            return False
        assert is_as_read
        return True

    def _change(self, cells: Mapping[bytes, bytes | None]) -> None:
        for key, value in cells.items():
            self.changed_since.add(key)
            self.cells.pop(key, None)
            if value is not None:
                self.cells[key] = value


class StoreContract:
    """Override `store_uri` (an empty store, new for each test) or `store`. A slow service may set smaller numbers."""

    many: ClassVar[int] = MANY
    """More keys than a page of any database."""
    program_steps: ClassVar[int] = 120
    steady: ClassVar[int] = 300
    """Keys that are kept while other keys are written and deleted."""
    increments: ClassVar[int] = 50
    """Increments of each of four processes."""

    @pytest.fixture
    def store_uri(self) -> str:
        raise NotImplementedError("a contract's test class says which store it is about")

    @pytest.fixture
    async def store(self, store_uri: str) -> AsyncIterator[Store]:
        store = open_store(store_uri)
        yield store
        await store.close()

    # Keys and values

    async def test_keys_come_back_in_byte_order(self, store: Store) -> None:
        shuffled = random.Random(1).sample(AWKWARD_KEYS, len(AWKWARD_KEYS))

        for key in shuffled:
            await store.set(P, key, b"value of " + key)

        page = await store.scan(P, b"", 1000)
        assert page.keys == sorted(AWKWARD_KEYS)
        assert page.values == [b"value of " + key for key in sorted(AWKWARD_KEYS)]
        assert page.next_start is None

    async def test_a_value_may_be_any_bytes(self, store: Store) -> None:
        every_byte = bytes(range(256))
        for value in (every_byte, b"\x00", b"\xff", b"text", "é\U0001f41f".encode()):
            await store.set(P, b"key", value)

            assert await value_of(store, P, b"key") == value

    async def test_an_empty_value_is_not_absence(self, store: Store) -> None:
        predicate = await store.set_if(P, b"key", b"", None)

        assert await value_of(store, P, b"key") == b""
        assert (await store.scan(P, b"", 10)).values == [b""]
        with pytest.raises(PredicateFailed):
            await store.set_if(P, b"key", b"x", None)
        await store.delete_if(P, b"key", predicate)
        assert await value_of(store, P, b"key") is None

    async def test_values_of_300_kb_are_nothing_special(self, store: Store) -> None:
        value, other = random.Random(2).randbytes(300_000), random.Random(3).randbytes(300_000)

        await store.set_many(P, [(b"a", value), (b"b", other)])
        predicate = await store.set_if(P, b"c", value, None)
        await store.set_if(P, b"c", other, predicate)

        assert await read_all(store, P) == {b"a": value, b"b": other, b"c": other}
        assert [found and found.value for found in await store.get_many(P, [b"b", b"a"])] == [other, value]

    async def test_keys_and_partitions_may_have_1024_bytes(self, store: Store) -> None:
        partition, key = b"\xfe" * 1024, b"\xff" * 1024
        predicate = await store.set_if(partition, key, b"v", None)
        await store.set(partition, key[:-1], b"w")

        page = await store.scan(partition, b"", 1)
        assert (page.keys, page.next_start is None) == ([key[:-1]], False)
        await store.delete_if(partition, key, predicate)
        assert await read_all(store, partition) == {key[:-1]: b"w"}

    @pytest.mark.parametrize(
        ("partition", "key"),
        [(P, b""), (P, b"k" * 1025), (b"", b"k"), (b"p" * 1025, b"k")],
        ids=["no key", "long key", "no partition", "long partition"],
    )
    async def test_no_write_takes_an_empty_or_longer_one(self, store: Store, partition: bytes, key: bytes) -> None:
        attempts = [
            store.set(partition, key, b""),
            store.set_many(partition, [(b"fine", b""), (key, b"")]),
            store.set_if(partition, key, b"", None),
            store.delete(partition, key),
            store.delete_many(partition, [key]),
            store.delete_if(partition, key, b"whatever"),
        ]
        for attempt in attempts:
            with pytest.raises(InvalidKey):
                await attempt

        assert await value_of(store, P, b"fine") is None

    # Reading and writing

    async def test_what_was_never_set_is_absent(self, store: Store) -> None:
        assert await store.get(P, b"key") is None
        assert await store.get_many(P, [b"a", b"b"]) == [None, None]
        page = await store.scan(P, b"", 10)
        assert (page.keys, page.values, page.next_start) == ([], [], None)

    async def test_a_read_sees_every_write_answered_before_it(self, store: Store) -> None:
        for number in range(20):
            value = b"%d" % number
            await store.set(P, b"key", value)

            assert await value_of(store, P, b"key") == value
            assert (await store.scan(P, b"", 10)).values == [value]
            assert [found and found.value for found in await store.get_many(P, [b"key"])] == [value]

    async def test_deleting_makes_absent_and_absent_stays_absent(self, store: Store) -> None:
        await store.set_many(P, [(b"a", b"1"), (b"b", b"2")])

        await store.delete(P, b"a")
        await store.delete(P, b"a")
        await store.delete(P, b"never there")

        assert await read_all(store, P) == {b"b": b"2"}

    async def test_writes_of_many_tasks_at_once_are_all_done(self, store: Store) -> None:
        items = numbered(200)
        await store.set(P, b"old", b"")

        await asyncio.gather(store.delete(P, b"old"), *(store.set(P, key, value) for key, value in items))

        assert await read_all(store, P) == dict(items)

    # Batches

    async def test_get_many_answers_in_the_order_asked_with_repeats(self, store: Store) -> None:
        await store.set_many(P, [(b"a", b"1"), (b"b", b""), (b"c", b"3")])

        found = await store.get_many(P, [b"c", b"x", b"a", b"c", b"b", b"x"])

        assert [one and one.value for one in found] == [b"3", None, b"1", b"3", b"", None]
        assert await store.get_many(P, []) == []

    async def test_batches_may_be_larger_than_any_page(self, store: Store) -> None:
        items = numbered(self.many)
        shuffled = random.Random(4).sample(items, self.many)

        await store.set_many(P, shuffled)
        found = await store.get_many(P, [key for key, _ in shuffled])
        await store.delete_many(P, [key for key, _ in shuffled[: self.many // 2]])

        assert [one and one.value for one in found] == [value for _, value in shuffled]
        assert await read_all(store, P) == dict(shuffled[self.many // 2 :])

    async def test_the_last_of_a_key_in_a_batch_counts(self, store: Store) -> None:
        await store.set_many(P, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
        await store.delete_many(P, [b"b", b"b", b"absent"])

        assert await read_all(store, P) == {b"a": b"2"}

    async def test_batches_that_share_keys_are_all_done(self, store: Store) -> None:
        keys, others = [key for key, _ in numbered(20)], [(b"other %d" % number, b"") for number in range(20)]

        await asyncio.gather(*(store.set_many(P, [(key, b"of %d" % writer) for key in keys]) for writer in range(4)))
        written = await read_all(store, P)
        await asyncio.gather(store.set_many(P, others), *(store.delete_many(P, keys) for _ in range(4)))

        assert list(written) == keys
        assert set(written.values()) <= {b"of %d" % writer for writer in range(4)}
        assert await read_all(store, P) == dict(others)

    async def test_an_empty_batch_does_nothing(self, store: Store) -> None:
        await store.set_many(P, [])
        await store.delete_many(P, [])

        assert await read_all(store, P) == {}

    # Compare and set

    async def test_set_if_none_sets_only_what_is_absent(self, store: Store) -> None:
        await store.set_if(P, b"key", b"first", None)
        with pytest.raises(PredicateFailed):
            await store.set_if(P, b"key", b"second", None)
        assert await value_of(store, P, b"key") == b"first"

        await store.delete(P, b"key")
        await store.set_if(P, b"key", b"third", None)

        assert await value_of(store, P, b"key") == b"third"

    async def test_the_predicate_that_set_if_returns_is_good_at_once(self, store: Store) -> None:
        predicate = await store.set_if(P, b"key", b"1", None)
        for value in (b"2", b"3", b""):
            predicate = await store.set_if(P, b"key", value, predicate)

        assert await value_of(store, P, b"key") == b""
        await store.delete_if(P, b"key", predicate)
        assert await store.get(P, b"key") is None

    async def test_every_read_and_write_yields_a_good_predicate(self, store: Store) -> None:
        await store.set_many(P, [(b"a", b"1"), (b"b", b"1")])
        await store.set_if(P, b"a", b"2", (await held(store, P, b"a")).predicate)
        (found,) = await store.get_many(P, [b"b"])
        assert found is not None

        await store.set_if(P, b"b", b"2", found.predicate)

        assert await read_all(store, P) == {b"a": b"2", b"b": b"2"}

    async def test_a_stale_predicate_changes_nothing(self, store: Store) -> None:
        await store.set(P, b"key", b"old")
        stale = (await held(store, P, b"key")).predicate
        await store.set(P, b"key", b"new")

        with pytest.raises(PredicateFailed):
            await store.set_if(P, b"key", b"mine", stale)
        with pytest.raises(PredicateFailed):
            await store.delete_if(P, b"key", stale)

        assert await value_of(store, P, b"key") == b"new"

    @pytest.mark.parametrize("how", ["delete", "delete_many", "delete_if"])
    async def test_a_deleted_value_fails_every_predicate_but_none(self, store: Store, how: str) -> None:
        predicate = await store.set_if(P, b"key", b"value", None)
        if how == "delete":
            await store.delete(P, b"key")
        elif how == "delete_many":
            await store.delete_many(P, [b"key"])
        else:
            await store.delete_if(P, b"key", predicate)

        with pytest.raises(PredicateFailed):
            await store.set_if(P, b"key", b"mine", predicate)
        with pytest.raises(PredicateFailed):
            await store.delete_if(P, b"key", predicate)

        assert await read_all(store, P) == {}

    async def test_of_many_who_create_a_key_one_wins(self, store: Store) -> None:
        creators = [store.set_if(P, b"key", b"%d" % number, None) for number in range(64)]

        outcomes = await asyncio.gather(*creators, return_exceptions=True)

        assert successes(outcomes) == 1
        (winner,) = [number for number, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
        assert await value_of(store, P, b"key") == b"%d" % winner

    async def test_of_many_who_replace_or_delete_a_value_one_wins(self, store: Store) -> None:
        for attempt in range(10):
            predicate = (await held(store, P, b"key")).predicate if attempt else None
            if predicate is None:
                predicate = await store.set_if(P, b"key", b"start", None)
            replacers = [store.set_if(P, b"key", b"%d" % number, predicate) for number in range(16)]
            deleters = [store.delete_if(P, b"key", predicate) for _ in range(16)]

            outcomes = await asyncio.gather(*replacers, *deleters, return_exceptions=True)

            assert successes(outcomes) == 1
            replaced = successes(outcomes[:16]) == 1
            assert (await store.get(P, b"key") is not None) == replaced
            await store.set(P, b"key", b"again %d" % attempt)

    async def test_no_increment_is_lost(self, store: Store) -> None:
        await asyncio.gather(*(increment(store, times=10) for _ in range(8)))

        assert await value_of(store, PARTITION, COUNTER) == b"80"

    async def test_a_failed_condition_fails_no_other_write(self, store: Store) -> None:
        await store.set(P, b"taken", b"")
        items = numbered(20)

        outcomes = await asyncio.gather(
            *(store.set_if(P, b"taken", b"mine", None) for _ in range(20)),
            *(store.set_if(P, key, value, None) for key, value in items),
            return_exceptions=True,
        )

        assert successes(outcomes) == successes(outcomes[20:]) == 20
        assert await read_all(store, P) == {b"taken": b"", **dict(items)}

    @pytest.mark.parametrize("seed", range(3))
    async def test_a_random_program_gets_the_answers_of_a_dictionary(self, store: Store, seed: int) -> None:
        """Run the same programs for every driver, so that every driver gives the same answers."""
        rng, program = random.Random(seed), Program(store)
        for number in range(self.program_steps):
            await program.step(rng)

            assert await read_all(store, P, page_size=1 + number % 3) == program.cells

    # Partitions

    async def test_partitions_share_nothing(self, store: Store) -> None:
        partitions = [b"a", b"a/b", b"a/", b"ab", b"a\x00", b"A", b"\x00", b"\xff", b"\xff\xff"]
        keys = [b"k", b"b", b"/b", b"b/k", b"\x00k", b"\xff"]
        for partition in partitions:
            await store.set_many(partition, [(key, partition + b" " + key) for key in keys])

        await store.delete_many(b"a", keys)
        predicate = (await held(store, b"a/b", b"k")).predicate
        await store.set_if(b"a/b", b"k", b"changed", predicate)
        await store.set_if(b"a", b"k", b"changed", None)

        for partition in partitions:
            whole = {key: partition + b" " + key for key in keys}
            if partition == b"a":
                whole = {b"k": b"changed"}
            elif partition == b"a/b":
                whole[b"k"] = b"changed"
            assert await read_all(store, partition, page_size=2) == whole

    # Scans

    async def test_a_scan_begins_at_or_after_its_start(self, store: Store) -> None:
        await store.set_many(P, [(b"b", b"1"), (b"b\x00", b"2"), (b"d", b"3")])

        for start, expected in [
            (b"", [b"b", b"b\x00", b"d"]),
            (b"a", [b"b", b"b\x00", b"d"]),
            (b"b", [b"b", b"b\x00", b"d"]),
            (b"b\x00", [b"b\x00", b"d"]),
            (b"b\x00\x00", [b"d"]),
            (b"d", [b"d"]),
            (b"d\x00", []),
            (b"\xff" * 1024, []),
        ]:
            assert (await store.scan(P, start, 10)).keys == expected

    @pytest.mark.parametrize("page_size", [1, 2, 3, 29, 30, 31, 1000])
    async def test_pages_join_to_the_whole(self, store: Store, page_size: int) -> None:
        items = numbered(30)
        await store.set_many(P, items)

        assert await read_all(store, P, page_size) == dict(items)

    async def test_a_large_partition_is_read_by_pages(self, store: Store) -> None:
        items = numbered(self.many)
        await store.set_many(P, items)

        assert await read_all(store, P, 1000) == dict(items)
        assert len((await store.scan(P, b"", self.many + 1)).keys) == self.many

    async def test_keys_that_differ_by_a_trailing_nul_may_lie_on_both_sides_of_a_page_s_edge(
        self, store: Store
    ) -> None:
        """The second scan begins one key later, so that edges of a driver's own pages fall between such keys too."""
        keys = [key + end for key, _ in numbered(self.many // 2) for end in (b"", b"\x00")]
        await store.set_many(P, [(key, b"") for key in keys])

        for skipped, page_size in ((0, self.many), (1, self.many), (0, 999)):
            found: list[bytes] = []
            start: bytes | None = keys[skipped]
            while start is not None:
                page = await store.scan(P, start, page_size)
                found += page.keys
                start = page.next_start
            assert found == keys[skipped:]

    async def test_the_key_that_begins_the_next_page_may_vanish(self, store: Store) -> None:
        await store.set_many(P, numbered(10))
        page = await store.scan(P, b"", 5)
        assert page.next_start is not None

        await store.delete(P, b"key 000005")
        rest = await store.scan(P, page.next_start, 10)

        assert rest.keys == [key for key, _ in numbered(10)[6:]]

    async def test_a_scan_returns_every_key_present_throughout_it_once(self, store: Store) -> None:
        steady = dict(numbered(self.steady))
        await store.set_many(P, list(steady.items()))
        scanning = True

        async def come_and_go(seed: int) -> None:
            rng = random.Random(seed)
            while scanning:
                passing = [b"key %06d passing %d" % (rng.randrange(self.steady), seed) for _ in range(5)]
                await store.set_many(P, [(key, b"") for key in passing])
                await asyncio.sleep(0)
                await store.delete_many(P, passing)
                await asyncio.sleep(0)

        disturbers = [asyncio.ensure_future(come_and_go(seed)) for seed in range(3)]
        for page_size in (7, 50, 1000):
            found: dict[bytes, bytes] = {}
            start: bytes | None = b""
            while start is not None:
                page = await store.scan(P, start, page_size)
                assert page.keys == sorted(set(page.keys))
                assert not found.keys() & set(page.keys)
                found.update(zip(page.keys, page.values, strict=True))
                start = page.next_start
                await asyncio.sleep(0)
            assert {key: value for key, value in found.items() if b"passing" not in key} == steady
        scanning = False
        await asyncio.gather(*disturbers)

    # The end

    async def test_a_closed_store_refuses_everything(self, store: Store) -> None:
        await store.set(P, b"key", b"")

        await store.close()
        await store.close()

        attempts = [
            store.get(P, b"key"),
            store.get_many(P, [b"key"]),
            store.scan(P, b"", 1),
            store.set(P, b"key", b""),
            store.set_many(P, [(b"key", b"")]),
            store.set_if(P, b"key", b"", None),
            store.delete(P, b"key"),
            store.delete_many(P, [b"key"]),
            store.delete_if(P, b"key", b""),
        ]
        for attempt in attempts:
            with pytest.raises(StoreUnavailable):
                await attempt
