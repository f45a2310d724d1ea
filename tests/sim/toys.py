"""Small protocols whose schedules can be counted by hand."""

from __future__ import annotations

from collections.abc import Callable

from lakebed.kv import PredicateFailed, Store
from lakebed.testing.sim import Actor, Ending, Ports, Program, Scene, Violation

P, K = b"p", b"k"


async def increment_carelessly(store: Store) -> None:
    held = await store.get(P, K)
    await store.set(P, K, _plus_one(held.value if held else b"0"))


async def increment(store: Store) -> None:
    while True:
        held = await store.get(P, K)
        try:
            await store.set_if(P, K, _plus_one(held.value if held else b"0"), held.predicate if held else None)
        except PredicateFailed:
            continue
        return


def _plus_one(value: bytes) -> bytes:
    return str(int(value) + 1).encode()


def counting(writers: int, *, careful: bool = True) -> Scene:
    """Each writer adds one; at the end the sum must be there."""

    async def program(ports: Ports) -> None:
        await (increment if careful else increment_carelessly)(ports.store)

    return Scene(
        name=f"{writers} {'careful' if careful else 'careless'} writers",
        actors=[Actor(f"w{number}", program) for number in range(writers)],
        checks=[] if not careful else [counts_to(writers)],
    )


def counts_to(total: int) -> Callable[[Ending], None]:
    def check(ending: Ending) -> None:
        found = ending.disk.value(P, K)
        if found != str(total).encode():
            raise Violation(f"counted to {found!r}, not {total}")

    return check


def alone(program: Program) -> Scene:
    return Scene(name="alone", actors=[Actor("a", program)])
