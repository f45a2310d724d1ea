"""Small protocols whose schedules can be counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakebed.kv import PredicateFailed, Store
from sim import Actor, Ending, Scene, SimPorts, Violation

PARTITION, KEY = b"p", b"k"


async def increment_carelessly(store: Store) -> None:
    held = await store.get(PARTITION, KEY)
    await store.set(PARTITION, KEY, plus_one(held.value if held else b"0"))


async def increment(store: Store) -> None:
    while True:
        held = await store.get(PARTITION, KEY)
        try:
            value = plus_one(held.value if held else b"0")
            await store.set_if(PARTITION, KEY, value, held.predicate if held else None)
        except PredicateFailed:
            continue
        return


def plus_one(value: bytes) -> bytes:
    return str(int(value) + 1).encode()


Counting = Callable[..., Scene]


@pytest.fixture
def counting() -> Counting:
    """Each writer adds one; at the end the sum must be there, if the scene is told to look."""

    def make(writers: int, *, is_careful: bool = True, is_checked: bool = True) -> Scene:
        async def program(ports: SimPorts) -> None:
            await (increment if is_careful else increment_carelessly)(ports.store)

        def check(ending: Ending) -> None:
            found = ending.disk.value(PARTITION, KEY)
            if found != str(writers).encode():
                raise Violation(f"counted to {found!r}, not {writers}")

        actors = [Actor(f"w{number}", program) for number in range(writers)]
        return Scene(name=f"{writers} writers", actors=actors, checks=[check] if is_checked else [])

    return make


@pytest.fixture
def alone() -> Callable[..., Scene]:
    """Scenes without a check, of these programs by name."""

    def make(**programs: Callable[[SimPorts], object]) -> Scene:
        return Scene(name="alone", actors=[Actor(name, program) for name, program in programs.items()])  # type: ignore[arg-type]  # all are coroutine functions

    return make
