"""Simulated ports keep the promises of the ports they stand for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from explorer.scheduling import Simulation
from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidKey, PredicateFailed, StoreUnavailable
from lakebed.objectstore import ObjectExists, ObjectMissing, ShortBody
from sim import DAWN_MS, Actor, Disk, Effect, Fate, Program, Scene, SimPorts, explore, run_alone, run_seed
from sim.ports.ports import SimDeleter


class Fated:
    """Gives each effect of these names a fate, once; otherwise always the first move."""

    def __init__(self, **fates: Fate) -> None:
        self._fates = fates

    def pick(self, count: int) -> int:
        return 0

    def fault(self, what: Effect) -> Fate | str | None:
        return self._fates.pop(what[0], None)

    def amount(self, bound: int) -> int:
        return 0


def play(program: Program, **fates: Fate) -> Disk:
    return Simulation(Scene(name="s", actors=[Actor("a", program)]), Fated(**fates)).play().ending.disk


@pytest.mark.parametrize("versioned", [False, True])
def test_set_if_replaces_only_what_was_read(versioned: bool) -> None:
    async def program(ports: SimPorts) -> None:
        store = ports.store
        first = await store.set_if(b"p", b"k", b"1", None)
        with pytest.raises(PredicateFailed):
            await store.set_if(b"p", b"k", b"2", None)
        await store.set_if(b"p", b"k", b"2", first)
        with pytest.raises(PredicateFailed):
            await store.delete_if(b"p", b"k", first)
        held = await store.get(b"p", b"k")
        assert held is not None
        await store.delete_if(b"p", b"k", held.predicate)
        assert await store.get(b"p", b"k") is None

    run_alone(program, Disk(versioned=versioned))


def test_predicates_by_value_let_a_b_a_pass_and_versions_do_not() -> None:
    async def program(ports: SimPorts) -> None:
        held = await ports.store.get(b"p", b"k")
        assert held is not None
        await ports.store.set(b"p", b"k", b"B")
        await ports.store.delete(b"p", b"k")
        await ports.store.set(b"p", b"k", b"A")
        await ports.store.set_if(b"p", b"k", b"C", held.predicate)

    for versioned in (False, True):
        disk = Disk(versioned=versioned)
        disk.set(b"p", b"k", b"A")
        if versioned:
            with pytest.raises(PredicateFailed):
                run_alone(program, disk)
        else:
            run_alone(program, disk)


def test_a_scan_is_in_byte_order_and_goes_on_where_a_page_ended() -> None:
    async def program(ports: SimPorts) -> None:
        await ports.store.set_many(b"p", [(key, key) for key in (b"b", b"\xff", b"a", b"aa")])
        await ports.store.set(b"other", b"a", b"elsewhere")
        page = await ports.store.scan(b"p", b"", 2)
        assert (page.keys, page.next_start) == ([b"a", b"aa"], b"b")
        page = await ports.store.scan(b"p", b"b", 2)
        assert (page.keys, page.values, page.next_start) == ([b"b", b"\xff"], [b"b", b"\xff"], None)
        assert (await ports.store.scan(b"none", b"", 2)).keys == []

    run_alone(program, Disk())


def test_keys_that_no_driver_takes_are_refused() -> None:
    async def program(ports: SimPorts) -> None:
        with pytest.raises(InvalidKey):
            await ports.store.set(b"p", b"k" * 1025, b"")
        with pytest.raises(InvalidKey):
            await ports.store.set_many(b"p", [(b"", b"")])

    run_alone(program, Disk())


def test_a_lost_answer_is_of_a_write_that_was_done() -> None:
    async def program(ports: SimPorts) -> None:
        with pytest.raises(OutcomeUnknown):
            await ports.store.set(b"p", b"k", b"1")

    assert play(program, set=Fate.LOST).value(b"p", b"k") == b"1"
    assert play(program, set=Fate.VAIN).value(b"p", b"k") is None


def test_a_refused_operation_did_nothing_and_says_so() -> None:
    async def program(ports: SimPorts) -> None:
        with pytest.raises(StoreUnavailable):
            await ports.store.set(b"p", b"k", b"1")
        with pytest.raises(StoreUnavailable):
            await ports.store.get(b"p", b"k")

    assert play(program, set=Fate.REFUSED, get=Fate.REFUSED).value(b"p", b"k") is None


def test_a_batch_is_not_atomic_and_a_crash_may_leave_half_of_it(alone: Callable[..., Scene]) -> None:
    async def writer(ports: SimPorts) -> None:
        await ports.store.set_many(b"p", [(b"a", b"1"), (b"b", b"1")])

    async def reader(ports: SimPorts) -> None:
        found.add(tuple(held is not None for held in await ports.store.get_many(b"p", [b"b", b"a"])))

    found: set[tuple[bool, ...]] = set()
    scene = Scene(name="batch", actors=[Actor("w", writer), Actor("r", reader)], whole_batches=False)
    explore(scene)

    assert found == {(False, False), (False, True), (True, True)}

    found.clear()
    explore(Scene(name="batch", actors=scene.actors, whole_batches=True))

    assert found == {(False, False), (True, True)}


def test_a_batch_that_was_refused_half_way_is_of_unknown_outcome() -> None:
    async def program(ports: SimPorts) -> None:
        await ports.store.set(b"p", b"before", b"")
        with pytest.raises(OutcomeUnknown):
            await ports.store.set_many(b"p", [(b"a", b"1"), (b"b", b"1")])

    class SecondRefused(Fated):
        def fault(self, what: Effect) -> Fate | str | None:
            return Fate.REFUSED if what[:3] == ("set", b"p", b"b") else None

    scene = Scene(name="s", actors=[Actor("a", program)], whole_batches=False)
    disk = Simulation(scene, SecondRefused()).play().ending.disk
    assert disk.value(b"p", b"a") == b"1"
    assert disk.value(b"p", b"b") is None


def test_blocks_are_put_whole_listed_in_order_and_copied() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"cd"

    async def program(ports: SimPorts) -> None:
        objectstore = ports.objectstore
        stored = await objectstore.put("data/1", chunks(), size_bytes=4)
        assert (stored.size_bytes, stored.md5) == (4, "e2fc714c4727ee9395f324cd2e7f331f")
        with pytest.raises(ShortBody):
            await objectstore.put("data/2", chunks(), size_bytes=5)
        with pytest.raises(ObjectExists):
            await objectstore.put("data/1", b"", if_absent=True)
        with pytest.raises(ObjectMissing):
            await objectstore.get("data/2")
        await objectstore.copy("data/1", "data/0")
        assert await objectstore.get("data/0", start=1, end=3) == b"bc"
        assert [stat.key for page in [page async for page in objectstore.list("data/")] for stat in page] == [
            "data/0",
            "data/1",
        ]
        assert (await objectstore.stat("data/1")).modified_ms == DAWN_MS
        assert await SimDeleter().delete(["data/0", "data/9"]) == []
        assert b"".join([chunk async for chunk in objectstore.stream("data/1")]) == b"abcd"

    run_alone(program, Disk())


def test_names_are_fresh_and_follow_from_seed_actor_and_life() -> None:
    def names(actor: str, seed: int, life: int) -> list[str]:
        ids = SimPorts(actor, seed=seed, life=life).ids
        return [ids.fresh() for _ in range(100)]

    assert names("a", 1, 0) == names("a", 1, 0)
    different = [*names("a", 1, 0), *names("b", 1, 0), *names("a", 2, 0), *names("a", 1, 1)]
    assert len(set(different)) == 400
    assert all(len(name) == 20 and set(name) <= set("0123456789abcdefghijklmnopqrstuv") for name in different)


def test_names_sort_by_the_clock() -> None:
    ports = SimPorts("a")
    early = ports.ids.fresh()
    ports.clock.ms += 1

    assert early < ports.ids.fresh()


def test_gathered_strands_interleave_and_the_first_error_comes_after_all_have_ended(
    alone: Callable[..., Scene],
) -> None:
    orders: set[str] = set()

    async def program(ports: SimPorts) -> None:
        order: list[str] = []

        async def strand(name: str) -> str:
            await ports.pause()
            order.append(name)
            if name == "b":
                raise OutcomeUnknown("b")
            return name

        with pytest.raises(OutcomeUnknown):
            await ports.tasks.gather([strand("a"), strand("b"), strand("c")])
        orders.add("".join(order))
        assert await ports.tasks.gather([strand("a"), strand("c")]) == ["a", "c"]

    explored = explore(alone(a=program))

    assert explored.schedules == 6 * 2
    assert orders == {"abc", "acb", "bac", "bca", "cab", "cba"}


def test_a_wait_ends_when_the_event_is_set_or_when_the_scheduler_lets_it_time_out(alone: Callable[..., Scene]) -> None:
    outcomes: set[bool] = set()

    async def program(ports: SimPorts) -> None:
        event = ports.tasks.event()

        async def waiter() -> None:
            outcomes.add(await event.wait(1.5))
            assert outcomes != {False} or ports.clock.ms == DAWN_MS + 1500

        async def setter() -> None:
            await ports.pause()
            event.set()

        await ports.tasks.gather([waiter(), setter()])

    explore(alone(a=program))

    assert outcomes == {True, False}


def test_sleeping_moves_only_the_sleepers_clock(alone: Callable[..., Scene]) -> None:
    times: dict[str, int] = {}

    async def sleeper(ports: SimPorts) -> None:
        await ports.clock.sleep(2)
        times["sleeper"] = ports.clock.now_ms() - DAWN_MS

    async def other(ports: SimPorts) -> None:
        await ports.pause()
        times["other"] = ports.clock.now_ms() - DAWN_MS

    run_seed(alone(a=sleeper, b=other), 1)

    assert times == {"sleeper": 2000, "other": 0}


def test_who_crashes_has_no_more_effects_and_comes_back_with_nothing_in_memory() -> None:
    async def program(ports: SimPorts) -> None:
        try:
            await ports.store.set(b"p", b"first", b"1")
            await ports.store.set(b"p", b"second", b"1")
        finally:
            await ports.store.set(b"p", b"on the way out", b"1")

    async def again(ports: SimPorts) -> None:
        await ports.store.set(b"p", ports.ids.fresh().encode(), b"again")

    class Crashing(Fated):
        def fault(self, what: Effect) -> Fate | str | None:
            return Fate.CRASHED if what[2] == b"second" else None

    ending = Simulation(Scene(name="s", actors=[Actor("a", program, again)]), Crashing()).play().ending

    keys = sorted(ending.disk.cells[b"p"])
    assert len(keys) == 2
    assert b"first" in keys
    assert not ending.crashed
