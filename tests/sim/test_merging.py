"""Walking less than every history finds what walking every history finds."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

import pytest

from explorer.actors import Life
from explorer.memory import digest_of
from explorer.operations import UNORDERED
from sim import Actor, Budget, Ending, Explored, Scene, SimPorts, explore
from sim.planted.hunting import MUTANTS
from sim.planted.planting import Mutant
from sim.worlds.small import small_worlds

SCENES = {world.scene.name: world.scene for world in small_worlds()}
WALKED_TWICE = (
    "writer, committer",
    "committer, merger",
    "committer that cleans, reader",
    "writer, committer, resetter",
    "writer, deleter that creates again and cleans",
    "uploader, committer",
    "writer, gentle hard resetter",
)
FORESEEN = (
    "writer, committer",
    "uploader, committer",
    "committer, merger",
    "committer that cleans, reader",
    "overwriter, copier, worker",
)
BUDGETS = (Budget(), Budget(crashes=1), Budget(losses=1))


def endings_of(scene: Scene, budget: Budget, *, merges: bool) -> tuple[Explored, set[object]]:
    found: set[object] = set()

    def note(ending: Ending) -> None:
        # Who crashes after his last read may have ended what nobody waits for, or not: that is no difference.
        records = [record for record in ending.records.items() if record[1].operation.kind not in UNORDERED]
        found.add((ending.disk.frozen(), tuple(sorted(records)), ending.crashed))

    noted = dataclasses.replace(scene, checks=[note], tidy=None, tidy_checks=())
    return explore(noted, budget, merges=merges), found


@pytest.mark.parametrize("name", WALKED_TWICE)
def test_merged_histories_lead_to_the_same_ends_by_as_many_schedules(name: str) -> None:
    for budget in BUDGETS if name.count(",") < 2 else BUDGETS[:2]:
        merged, ends = endings_of(SCENES[name], budget, merges=True)
        whole, all_ends = endings_of(SCENES[name], budget, merges=False)

        assert ends == all_ends
        assert budget.crashes or merged.schedules == whole.schedules
        assert merged.schedules >= whole.schedules
        assert merged.states <= whole.states


@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if set(one.scenes) & set(WALKED_TWICE)], ids=lambda m: m.name
)
def test_merged_histories_show_the_same_planted_bugs(mutant: Mutant) -> None:
    scene = SCENES[next(name for name in mutant.scenes if name in WALKED_TWICE)]
    with mutant.planted():
        merged, whole = explore(scene), explore(scene, merges=False)

    assert (merged.violation is None) == (whole.violation is None)
    assert merged.depth == whole.depth


@pytest.mark.parametrize(
    ("name", "budgets"), [("uploader that closes, run", BUDGETS[:2]), ("uploader that comes back, run", BUDGETS[:1])]
)
def test_steps_that_no_other_actor_notices_need_no_orders(name: str, budgets: Sequence[Budget]) -> None:
    """Crashes of the longer scene would take a minute, and meet the same shortening."""
    scene = SCENES[name]
    for budget in budgets:
        shortened, ends = endings_of(scene, budget, merges=True)
        whole, all_ends = endings_of(dataclasses.replace(scene, shortens=False), budget, merges=True)

        assert ends == all_ends
        assert shortened.states < whole.states


@pytest.mark.parametrize("name", FORESEEN)
def test_reads_that_no_later_write_meets_need_no_orders(name: str) -> None:
    scene = SCENES[name]
    for budget in (*BUDGETS[: 3 if name == "writer, committer" else 2], Budget(late=1)):
        foreseen, ends = endings_of(dataclasses.replace(scene, foresees=True), budget, merges=True)
        whole, all_ends = endings_of(scene, budget, merges=True)

        assert ends == all_ends
        assert foreseen.states < whole.states


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if set(one.scenes) & set(FORESEEN)], ids=lambda m: m.name)
def test_foreseen_reads_show_the_same_planted_bugs(mutant: Mutant) -> None:
    scene = SCENES[next(name for name in mutant.scenes if name in FORESEEN)]
    with mutant.planted():
        foreseen, whole = explore(dataclasses.replace(scene, foresees=True)), explore(scene)

    assert (foreseen.violation is None) == (whole.violation is None)


def test_a_write_that_only_some_schedules_lead_to_is_foreseen(alone: Callable[..., Scene]) -> None:
    """The reader is tried first. What the second does depends on the third, and a crash."""
    seen: set[tuple[object, ...]] = set()

    async def reader(ports: SimPorts) -> None:
        seen.add(tuple([(await ports.store.get(b"p", b"k")) is not None for _ in range(3)]))

    async def second(ports: SimPorts) -> None:
        if await ports.store.get(b"p", b"flag") is not None:
            await ports.store.set(b"p", b"k", b"1")

    async def third(ports: SimPorts) -> None:
        await ports.store.set(b"p", b"flag", b"1")

    scene = dataclasses.replace(alone(a=reader, b=second, c=third), keeps_order=False)
    whole = explore(scene)
    all_seen = set(seen)
    seen.clear()
    foreseen = explore(dataclasses.replace(scene, foresees=True))

    assert seen == all_seen
    assert len(seen) == 4
    assert foreseen.states < whole.states


def test_actors_that_are_alike_meet_the_same_when_they_fail() -> None:
    scene = SCENES["two writers, committer"]
    assert [tuple(kind) for kind in scene.alike] == [("v", "w")]

    one, other, both, committers, none = [
        explore(dataclasses.replace(scene, alike=alike), budget)
        for alike, budget in (
            ([("v", "w")], Budget(crashes=1)),
            ([("w", "v")], Budget(crashes=1)),
            ([], Budget(crashes=1)),
            ([("c", "v", "w")], Budget(crashes=1)),
            ([], Budget()),
        )
    ]

    assert (one.states, one.schedules, one.endings) == (other.states, other.schedules, other.endings)
    of_one_writer = one.schedules - committers.schedules
    assert of_one_writer > 0
    assert both.schedules == committers.schedules + 2 * of_one_writer
    assert committers.schedules > none.schedules


def lives(*programs: object) -> list[Life]:
    return [Life("a", program, SimPorts("a")) for program in programs]  # type: ignore[arg-type]  # coroutine functions


def test_lives_that_remember_the_same_have_one_digest() -> None:
    async def program(ports: SimPorts) -> None:
        total = 0
        for number in [1, 2, 3]:
            await ports.store.get(b"p", b"k")
            total += number

    one, other = lives(program, program)

    assert digest_of(one) == digest_of(other) is not None
    one.resume(one.pending[""], None)
    assert digest_of(one) != digest_of(other)
    other.resume(other.pending[""], None)
    assert digest_of(one) == digest_of(other)


@pytest.mark.parametrize("place", ["local", "stack", "iterator", "attribute", "closure", "generator"])
def test_lives_that_differ_anywhere_in_memory_have_two_digests(place: str) -> None:
    def program(mine: int) -> object:
        async def look(ports: SimPorts, value: object) -> None:
            def inner() -> object:
                return value

            await ports.store.get(b"p", b"k")
            inner()

        async def numbers(ports: SimPorts) -> object:
            yield mine
            await ports.store.get(b"p", b"k")

        async def run(ports: SimPorts) -> None:
            match place:
                case "local":
                    value = mine
                    await ports.pause()
                    print(value)
                case "stack":
                    print(mine, [mine, await ports.store.get(b"p", b"k")])
                case "iterator":
                    for _ in iter([7] * mine):
                        await ports.pause()
                case "attribute":
                    ports.clock.ms += mine
                    await ports.pause()
                case "closure":
                    await look(ports, mine)
                case _:
                    async for _ in numbers(ports):  # type: ignore[attr-defined]  # an async generator
                        pass

        return run

    one, other = lives(program(3), program(4))

    assert digest_of(one) not in (None, digest_of(other))


def test_a_life_that_holds_what_cannot_be_seen_is_like_no_other() -> None:
    async def program(ports: SimPorts) -> None:
        opaque = memoryview(b"abc")
        await ports.pause()
        print(opaque)

    (life,) = lives(program)

    assert digest_of(life) is None
    assert explore(Scene(name="s", actors=[Actor("a", program)])).violation is None


async def test_an_event_loop_that_runs_beside_makes_no_difference() -> None:
    scene = SCENES["linker, expirer that runs"]

    inside = explore(scene)
    outside = await asyncio.to_thread(explore, scene)

    assert inside == outside
