"""Scenes over `lakebed.versions.Versions`: who does what to one small repository.

A client is one actor: a process with its own `Versions`, so with its own caches. What it does is a list of `Do`s, one
after the other. Values are unique in a scene, so that every byte found later can be traced to who wrote it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from lakebed.base import Entry
from lakebed.versions import Options, Versions

from .actors import Actor, Program, Scene
from .checkers import ALWAYS, no_leak
from .moves import branch_moves_are_legal, tokens_leave_with_a_claim
from .operations import Operation
from .ports import Ports
from .trees import SimTrees
from .views import UID

MAIN: Final = "main"
SIDE: Final = "side"
FAR_FUTURE_MS: Final = 10_000_000_000
"""Everything is old then."""

Act: TypeAlias = Callable[[Versions], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class Do:
    """One operation: what checkers will know of it, and the call."""

    operation: Operation
    act: Act


def versions(ports: Ports) -> Versions:
    return Versions(
        uid=UID,
        store=ports.store,
        blocks=ports.blocks,
        trees=SimTrees(ports.blocks),
        world=ports.world,
        options=Options(owner=ports.actor),
    )


def write(name: str, key: str, value: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> None:
        entry = Entry(address=f"s3://elsewhere/{value}", size_bytes=1, checksum=value, modified_ms=0)
        await repo.put(branch, key.encode(), entry)

    return Do(Operation(name, "write", branch, key.encode(), value), act)


def delete(name: str, key: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> None:
        await repo.delete(branch, key.encode())

    return Do(Operation(name, "delete", branch, key.encode()), act)


def commit(name: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> str:
        return (await repo.commit(branch, message=name, committer="sim")).id

    return Do(Operation(name, "commit", branch), act)


def read(name: str, key: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> str:
        return (await repo.get(branch, key.encode())).checksum

    return Do(Operation(name, "read", branch, key.encode()), act)


def reset(name: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> None:
        await repo.reset(branch)

    return Do(Operation(name, "reset", branch), act)


def merge(name: str, source: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> str:
        return (await repo.merge(source, branch, message=name, committer="sim")).id

    return Do(Operation(name, "merge", branch, value=source), act)


def clean(name: str, *, late_ms: int = 0) -> Do:
    """The cleaner, whose clock is `late_ms` ahead."""

    async def act(repo: Versions) -> None:
        clock = repo.world.clock
        clock.ms += late_ms  # type: ignore[attr-defined]  # a SimClock, as in every scene
        await repo.clean()

    return Do(Operation(name, "clean"), act)


def client(name: str, *deeds: Do, again: Sequence[Do] = ()) -> Actor:
    """A process that does these one after the other; after a crash it comes back to do `again`."""
    return Actor(name, _doing(deeds), _doing(again) if again else None)


def scene(
    name: str,
    *actors: Actor,
    staged: Sequence[Do] = (),
    committed: Sequence[Do] = (),
    beside: Sequence[Do] = (),
    clocks_agree: bool = True,
) -> Scene:
    """A repository with one branch; before the actors come, `committed` is done and committed, then `staged`.

    With `beside` there is a second branch, `side`, made from the first and one commit ahead by these operations.

    Where clocks do not agree, a cleaner may take a claim for old that was written just now: then cells may leak, as
    protocols.md says, and nothing else.
    """

    async def prepare(ports: Ports) -> None:
        repo = versions(ports)
        await repo.initialise(MAIN)
        for do in (*committed, *([commit("prepared")] if committed else [])):
            await ports.act(do.operation, _awaited(do.act, repo))
        if beside:
            await repo.create_branch(SIDE, MAIN)
        for do in (*beside, *([commit("prepared beside", branch=SIDE)] if beside else []), *staged):
            await ports.act(do.operation, _awaited(do.act, repo))

    return Scene(
        name=name,
        actors=actors,
        prepare=prepare,
        tidy=_tidy,
        checks=ALWAYS,
        tidy_checks=(no_leak,) if clocks_agree else (),
        step_checks=(branch_moves_are_legal, tokens_leave_with_a_claim) if clocks_agree else (branch_moves_are_legal,),
        clocks_agree=clocks_agree,
    )


async def _tidy(ports: Ports) -> None:
    """All claims are old by now, so a cleaner leaves nothing that is nobody's."""
    ports.clock.ms += 3 * FAR_FUTURE_MS
    await versions(ports).clean()


def _doing(deeds: Sequence[Do]) -> Program:
    async def program(ports: Ports) -> None:
        repo = versions(ports)
        for do in deeds:
            await ports.act(do.operation, _awaited(do.act, repo))

    return program


async def _awaited(act: Act, repo: Versions) -> str | None:
    return await act(repo)


def swarm(seed: int) -> Scene:
    """4 to 8 clients, each with one to three operations on two paths, drawn from the seed."""
    rng = random.Random(seed)
    clocks_agree = rng.random() < 0.7
    clients = []
    for number in range(rng.randint(4, 8)):
        name = "abcdefgh"[number]
        deeds = [_drawn(rng, f"{name}{count}", clocks_agree) for count in range(rng.randint(1, 3))]
        clients.append(client(name, *deeds, again=[_drawn(rng, f"{name}9", clocks_agree)]))
    before = [write("w0", "x", "w0"), write("v0", "y", "v0")]
    committed = before[: rng.randint(0, 2)]
    return scene(
        f"swarm {seed}",
        *clients,
        committed=committed,
        beside=[write("t0", "z", "t0", branch=SIDE)],
        staged=[write("u0", "x", rng.choice(("u0", "w0")))],
        clocks_agree=clocks_agree,
    )


def _drawn(rng: random.Random, name: str, clocks_agree: bool) -> Do:
    key = rng.choice("xxy")
    match rng.choices(("write", "commit", "read", "delete", "clean", "merge"), (8, 7, 5, 2, 1, 1))[0]:
        case "write":
            return write(name, key, name if rng.random() < 0.8 else f"{'wv'[key == 'y']}0")
        case "merge":
            return merge(name, SIDE)
        case "commit":
            return commit(name)
        case "read":
            return read(name, key)
        case "delete":
            return delete(name, key)
    return clean(name, late_ms=0 if clocks_agree else rng.choice((0, FAR_FUTURE_MS)))


def small_scenes() -> dict[str, Scene]:
    """Worlds that the explorer finishes in seconds: write × commit × read."""
    w1, w2 = write("w1", "a", "1"), write("w2", "a", "2")
    return {
        one.name: one
        for one in (
            scene("writer, committer", client("w", w1), client("c", commit("c1"))),
            scene("two writers, committer", client("w", w1), client("x", w2), client("c", commit("c1"))),
            scene(
                "writer, two committers",
                client("w", w1),
                client("c", commit("c1")),
                client("d", commit("d1")),
                staged=[write("w0", "b", "0")],
            ),
            scene("writer, committer, reader", client("w", w1), client("c", commit("c1")), client("r", read("r1", "a"))),
            scene(
                "reader that has read before",
                client("w", w1, write("w2", "a", "2")),
                client("c", commit("c1")),
                client("r", read("r1", "a"), read("r2", "a")),
            ),
            scene("writer that commits", client("w", w1, commit("c1")), client("d", commit("d1")), client("x", w2)),
            scene(
                "committer that cleans, reader",
                client("c", commit("c1"), clean("c2")),
                client("r", read("r1", "a")),
                staged=[w1],
            ),
            scene(
                "merger, committer",
                client("m", merge("m1", SIDE)),
                client("c", commit("c1")),
                beside=[write("t0", "z", "t0", branch=SIDE)],
                staged=[w1],
            ),
            scene(
                "writer, committer of nothing, committer",
                client("w", w2),
                client("c", commit("c1")),
                client("d", commit("d1")),
                committed=[w1],
                staged=[write("w3", "a", "1")],
            ),
            scene(
                "deleter, committer, reader",
                client("w", delete("d0", "a")),
                client("c", commit("c1")),
                client("r", read("r1", "a")),
                committed=[w1],
            ),
        )
    }


