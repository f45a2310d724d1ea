"""The searches: what counts as a schedule, that none is left out, and that equal choices give equal runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import commit
from explorer.effects import Fate, effect
from explorer.footprints import Footprints
from explorer.scheduling import NO_FAULTS, Bursts, Following
from sim import (
    Actor,
    Budget,
    Drawn,
    Ending,
    Faults,
    NotDeterministic,
    Scene,
    Seeded,
    SimPorts,
    Simulation,
    TooManyStates,
    Violation,
    all_schedules,
    explore,
    format_trace,
    run_seed,
)
from sim.checkers.views import PARTITION
from sim.planted.exercised import Exercised
from sim.planted.hunting import MUTANTS
from sim.ports.ports import SimDeleter
from sim.scenes.swarms import SWARM_FAULTS, swarm
from sim.worlds.small import small_worlds
from tests.tiers import has_turn

Counting = Callable[..., Scene]


def test_two_writers_of_two_effects_have_six_schedules(counting: Counting) -> None:
    scene = counting(2, is_careful=False, is_checked=False)

    assert len(list(all_schedules(scene))) == 6
    assert explore(scene).schedules == 6


def test_three_careful_writers_have_498_schedules_and_lose_nothing_in_any(counting: Counting) -> None:
    assert len(list(all_schedules(counting(3)))) == 498
    assert explore(counting(3)).schedules == 498


def test_exploring_counts_schedules_that_nobody_could_run_one_by_one(counting: Counting) -> None:
    explored = explore(counting(4))

    assert explored.violation is None
    assert explored.schedules == 1_033_272
    assert explored.states < 10_000


def test_exploring_finds_the_lost_update_with_a_shortest_schedule(counting: Counting) -> None:
    explored = explore(counting(2, is_careful=False))

    assert explored.violation is not None
    steps = [tuple(line.split()[1:3]) for line in explored.violation.splitlines()[1:]]
    assert sorted(steps[:2]) == [("w0", "get"), ("w1", "get")]
    assert sorted(steps[2:]) == [("w0", "set"), ("w1", "set")]


def test_a_crash_is_tried_at_the_start_and_after_each_write(counting: Counting) -> None:
    explored = explore(counting(1, is_checked=False), Budget(crashes=1))

    # Alone: run to the end, or die at the start. After its only write the writer has ended.
    assert explored.schedules == 2
    assert explored.faults == 1


def test_a_lost_answer_is_tried_done_and_not_done(counting: Counting) -> None:
    explored = explore(counting(1, is_careful=False, is_checked=False), Budget(losses=1))

    # The set: answered; done, but not answered; not done, and not answered.
    assert explored.schedules == 3


def test_a_fault_of_a_schedule_strikes_only_a_step_that_can_have_it(alone: Callable[..., Scene]) -> None:
    """Schedules are kept while the source moves on: then a fault of a write meets a read."""

    async def writer(ports: SimPorts) -> None:
        for _ in range(3):
            await ports.store.get(b"p", b"k")
        await ports.store.set(b"p", b"k", b"v")

    faults = [Fate.VAIN, Fate.LOST, Fate.ECHO, Fate.LATE_WRITE]
    run = Following(alone(a=writer), [("a", fault) for fault in faults]).play()

    assert run.kinds == {Fate.LATE_WRITE.value: 1}
    assert run.ending.disk.value(b"p", b"k") == b"v"


def test_a_late_write_is_tried_at_each_later_moment(alone: Callable[..., Scene]) -> None:
    seen: set[tuple[object, object]] = set()

    async def writer(ports: SimPorts) -> None:
        await ports.store.set(b"p", b"k", b"late")

    async def reader(ports: SimPorts) -> None:
        looks = [await ports.store.get(b"p", b"k") for _ in range(2)]
        seen.add((looks[0] is not None, looks[1] is not None))

    explored = explore(alone(a=writer, b=reader), Budget(late=1))

    # Done at three moments; or sent at each of these, and done then or at each moment after it.
    assert explored.schedules == 3 + (3 + 2 + 1)
    assert explored.faults == 3
    assert seen == {(False, False), (False, True), (True, True)}


def test_a_late_write_may_come_after_its_sender_has_started_again() -> None:
    found: set[bytes | None] = set()

    async def first(ports: SimPorts) -> None:
        await ports.store.set(b"p", b"k", b"first")

    async def second(ports: SimPorts) -> None:
        await ports.store.set(b"p", b"k", b"second")

    def note(ending: Ending) -> None:
        found.add(ending.disk.value(b"p", b"k"))

    scene = Scene(name="s", actors=[Actor("a", first, second)], checks=[note])
    explored = explore(scene, Budget(late=1))

    assert explored.violation is None
    assert found == {b"first", b"second"}
    found.clear()
    traces = [run_seed(scene, seed, faults=Faults(late=0.5), traced=True).trace for seed in range(50)]
    assert found == {b"first", b"second"}
    assert any("done later" in format_trace(trace) for trace in traces)


def test_a_delete_may_be_done_once_more_at_each_later_moment(alone: Callable[..., Scene]) -> None:
    async def deleter(ports: SimPorts) -> None:
        await ports.objectstore.put("a", b"1")
        await SimDeleter().delete(["a"])
        await ports.objectstore.put("a", b"2")

    left: set[bool] = set()

    def note(ending: Ending) -> None:
        left.add("a" in ending.disk.objectstore)

    scene = Scene(name="s", actors=alone(a=deleter).actors, checks=[note])
    assert explore(scene).violation is None
    assert left == {True}
    left.clear()
    explore(scene, Budget(late=1))
    assert left == {False, True}
    left.clear()
    for seed in range(50):
        run_seed(scene, seed, faults=Faults(echo=0.5))
    assert left == {False, True}


def test_who_waits_for_another_does_not_end_alone(alone: Callable[..., Scene]) -> None:
    async def holder(ports: SimPorts) -> None:
        await ports.store.set(b"p", b"lock", b"1")
        await ports.store.delete(b"p", b"lock")

    async def waiter(ports: SimPorts) -> None:
        while await ports.store.get(b"p", b"lock") is not None:
            await ports.clock.sleep(1)

    assert explore(alone(b=waiter), Budget(alone_max=5)).violation is None
    explored = explore(alone(a=holder, b=waiter), Budget(alone_max=5))

    assert "b alone does not end in 5 steps" in (explored.violation or "")


def test_who_goes_on_after_one_failure_ends_alone(counting: Counting) -> None:
    explored = explore(counting(3), Budget(alone_max=3))

    assert explored.violation is None
    # Fail, read again, write.
    assert explored.alone == 3


def test_until_waits_for_keys_and_for_nothing_else(alone: Callable[..., Scene]) -> None:
    order: list[str] = []

    async def reader(ports: SimPorts) -> None:
        await ports.store.set(b"p", b"r", b"")
        await ports.store.delete(b"p", b"r")
        order.append("read")

    async def sweeper(ports: SimPorts) -> None:
        await ports.store.get(b"p", b"r")
        await effect(("until", b"p", (b"r",)))
        order.append("swept")

    for seed in range(50):
        order.clear()
        run_seed(alone(a=reader, b=sweeper), seed)
        assert sorted(order) == ["read", "swept"]
    explored = explore(alone(a=reader, b=sweeper), Budget(crashes=1))
    assert explored.violation is None
    # Where the reader died reading, the sweeper is never through.
    assert explored.endings > 0


def test_a_scene_with_more_states_than_allowed_is_refused(counting: Counting) -> None:
    with pytest.raises(TooManyStates):
        explore(counting(4), states_max=100)


def test_code_that_depends_on_more_than_its_ports_is_found_out(alone: Callable[..., Scene]) -> None:
    leak: list[int] = []

    async def leaky(ports: SimPorts) -> None:
        leak.append(1)
        await ports.store.get(b"p", str(len(leak)).encode())
        await ports.store.get(b"p", b"same")

    async def writer(ports: SimPorts) -> None:
        await ports.store.set(b"p", b"same", b"1")

    with pytest.raises(NotDeterministic, match="asked for"):
        explore(alone(a=leaky, b=writer))


def test_an_assertion_of_the_core_is_a_violation_with_its_schedule(alone: Callable[..., Scene]) -> None:
    async def program(ports: SimPorts) -> None:
        await ports.store.set(b"p", b"k", b"1")
        assert await ports.store.get(b"p", b"k") is None, "somebody wrote"

    assert "somebody wrote" in (explore(alone(a=program)).violation or "")
    with pytest.raises(Violation, match=r"somebody wrote[\s\S]*get p k"):
        run_seed(alone(a=program), 1)


def test_who_waits_for_what_never_comes_is_a_violation(alone: Callable[..., Scene]) -> None:
    async def program(ports: SimPorts) -> None:
        await ports.tasks.event().wait()

    assert "waits for ever" in (explore(alone(a=program)).violation or "")
    with pytest.raises(Violation, match="waits for ever"):
        run_seed(alone(a=program), 1)


def test_equal_seeds_give_equal_traces() -> None:
    for seed in range(20):
        one, other = (run_seed(swarm(seed), seed, faults=SWARM_FAULTS, traced=True) for _ in range(2))

        assert one.trace == other.trace
        assert one.trace


def test_in_bursts_an_actor_takes_many_steps_before_another_does() -> None:
    [scene] = {
        world.scene.name: world.scene for world in small_worlds() if world.scene.name == "committer, run"
    }.values()
    turns, steps = 0, 0

    for seed in range(5):
        trace = Bursts(scene, seed).play().trace
        assert trace == Bursts(scene, seed).play().trace
        turns += sum(one[0] != after[0] for one, after in pairwise(trace))
        steps += len(trace)

    assert 0 < turns < steps / 4


def test_bursts_with_faults_turn_where_another_actor_notices() -> None:
    [scene] = {
        world.scene.name: world.scene for world in small_worlds() if world.scene.name == "writer, committer, reader"
    }.values()
    footprints, faults = Footprints(scene), 0

    for seed in range(40):
        faults += Bursts(scene, seed, footprints=footprints, faults_max=2).play().faults

    assert faults > 0
    assert any(footprints.is_noticed(actor, ("get", PARTITION, b"branch/main")) for actor in range(3))
    assert not any(footprints.is_noticed(actor, ("get", PARTITION, b"nothing/main")) for actor in range(3))


def test_a_narrow_walk_takes_some_states_of_each_level() -> None:
    scene = next(world.scene for world in small_worlds() if world.scene.name == "writer, committer, reader")

    narrow, whole = explore(scene, widths=(8,), is_whole=False), explore(scene)

    assert narrow.violation is None
    assert 0 < narrow.endings < whole.endings
    assert 0 < narrow.states <= 8 * (narrow.depth + 1) < whole.states
    # As wide as every level, it is the whole walk.
    assert explore(scene, widths=(whole.states,), is_whole=False).states == whole.states


def test_a_narrow_walk_ends_where_an_actor_tries_for_ever(alone: Callable[..., Scene]) -> None:
    async def waiting(ports: SimPorts) -> None:
        while await ports.store.get(b"p", b"k") is None:
            await ports.store.set(b"p", b"count", await _next_count(ports))

    async def _next_count(ports: SimPorts) -> bytes:
        held = await ports.store.get(b"p", b"count")
        return b"%d" % (1 + (int(held.value) if held else 0))

    assert explore(alone(a=waiting), widths=(1,), is_whole=False).violation is None


def test_different_seeds_give_different_traces() -> None:
    scene = swarm(3)

    assert len({format_trace(run_seed(scene, seed, traced=True).trace) for seed in range(10)}) == 10


def test_equal_seeds_give_equal_traces_in_a_process_with_another_hash_seed() -> None:
    program = (
        "from sim import run_seed, explore\n"
        "from sim.scenes.swarms import SWARM_FAULTS, swarm\n"
        "from sim.worlds.small import small_worlds\n"
        "for seed in range(10):\n"
        "    for step in run_seed(swarm(seed), seed, faults=SWARM_FAULTS, traced=True).trace: print(step)\n"
        "print(explore(next(iter(small_worlds())).scene))\n"
    )

    def output(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout

    first = output("1")

    assert first == output("2")
    assert first.count("\n") > 500


def test_every_kind_of_fault_happens_in_swarms() -> None:
    fates = {fate.value for fate in Fate} - {Fate.DONE.value, Fate.LATE.value}
    wanted = fates | {"delay", "jump"}
    seen: Counter[str] = Counter()
    for seed in range(600):  # deletes of objects, which alone are done again, are rare
        seen += run_seed(swarm(seed), seed, faults=SWARM_FAULTS).kinds
        if seen.keys() >= wanted:
            break

    assert seen.keys() >= wanted


def test_every_guard_is_reached_by_seeds() -> None:
    """Those of swarms, and of the worlds in which its bug is hunted: a guard that no search comes to is a mistake.

    Each commit asks for another quarter of the guards.
    """
    turn = commit()
    hunted = [mutant for mutant in MUTANTS if not mutant.tests and has_turn(mutant.name, turn, 4)]
    reached = Exercised(hunted)
    scenes = {world.scene.name: world.scene for world in small_worlds()}
    for mutant in hunted:
        # Most are reached by a few seeds. Some only by a lost answer between two steps of another: by one of a hundred.
        places = [*map(scenes.__getitem__, mutant.scenes)] * 200 or [swarm(seed) for seed in range(200)]
        for seed, scene in enumerate(places):
            if reached.guards[mutant.name]:
                break
            with reached:
                run_seed(scene, seed, faults=SWARM_FAULTS if seed % 2 else NO_FAULTS)

    assert not reached.unreached


def test_a_failing_seed_reports_seed_and_trace(counting: Counting) -> None:
    def run_all() -> None:
        for seed in range(50):
            run_seed(counting(3, is_careful=False), seed)

    with pytest.raises(Violation) as caught:
        run_all()

    assert "seed " in str(caught.value)
    assert "set p k" in str(caught.value)


def test_a_seed_with_no_faults_has_none(counting: Counting) -> None:
    run = run_seed(counting(4), 7, faults=Faults())

    assert run.faults == 0
    assert run.steps >= 8


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_no_increment_is_lost_whatever_hypothesis_draws(data: st.DataObject) -> None:
    async def program(ports: SimPorts) -> None:
        held = await ports.store.get(b"p", b"a")
        await ports.store.set(b"p", b"b", held.value if held else b"none")

    actors = [Actor(name, program) for name in "abc"]
    chooser = Drawn(lambda bound: data.draw(st.integers(0, bound - 1)), faults_max=2)

    Simulation(Scene(name="drawn", actors=actors), chooser).play()


def test_hypothesis_shrinks_a_lost_update_to_its_four_steps(counting: Counting) -> None:
    shrunk: list[str] = []

    @settings(max_examples=300, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)
    @given(st.data())
    def search(data: st.DataObject) -> None:
        chooser = Drawn(lambda bound: data.draw(st.integers(0, bound - 1)))
        try:
            Simulation(counting(2, is_careful=False), chooser).play()
        except Violation as violation:
            shrunk.append(str(violation))
            raise

    with pytest.raises(Violation):
        search()

    assert len(shrunk[-1].splitlines()) == 5


def test_a_seed_finds_what_the_explorer_knows_to_be_there() -> None:
    """Every ending that seeds reach, the explorer has reached."""
    world = next(iter(small_worlds()))
    endings: set[object] = set()

    def note(ending: Ending) -> None:
        endings.add(ending.disk.frozen())

    scene = Scene(name="noted", actors=world.scene.actors, prepare=world.scene.prepare, checks=[note])
    explore(scene)
    explored = set(endings)
    endings.clear()
    for seed in range(200):
        Simulation(scene, Seeded(seed)).play()

    assert endings <= explored
    assert len(endings) > len(explored) // 2
