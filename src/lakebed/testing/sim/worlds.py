"""Which scenes are searched: small ones for the explorer, with the faults allowed in each, and swarms for the seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .actors import Scene
from .exploring import NO_BUDGET, Budget
from .scenes import (
    FAR_FUTURE_MS,
    SIDE,
    Do,
    clean,
    client,
    commit,
    delete,
    merge,
    read,
    reset,
    scene,
    server,
    upload,
    write,
)
from .scheduling import Faults

A_CRASH: Final = Budget(crashes=1)
A_LOSS: Final = Budget(losses=1)

SWARM_FAULTS: Final = Faults(refuse=0.005, lose_answer=0.02, lose_request=0.01, crash=0.01, delay=0.02, clock_jump=0.01)


@dataclass(frozen=True, slots=True)
class World:
    """`is_quick`: the tests walk it; the rest is left to the command."""

    scene: Scene
    budget: Budget
    is_quick: bool


def small_worlds() -> Iterator[World]:
    """Every small scene without faults, with a crash at any step, and with a lost answer or request at any step."""
    for one, quick in _small_scenes():
        for budget, is_quick in zip((NO_BUDGET, A_CRASH, A_LOSS), quick, strict=True):
            yield World(one, budget, is_quick)


_ALL: Final = (True, True, True)
_NO_LOSS: Final = (True, True, False)
_NONE: Final = (False, False, False)


def _small_scenes() -> Iterator[tuple[Scene, tuple[bool, bool, bool]]]:
    """With each, which budgets are quick."""
    a1, a2 = write("w1", "a", "1"), write("w2", "a", "2")
    b0, beside = write("w0", "b", "0"), write("t0", "z", "t0", branch=SIDE)
    w, c, d, r = client("w", a2), client("c", commit("c1")), client("d", commit("d1")), client("r", read("r1", "a"))
    s, k, m = client("s", reset("s1")), client("k", clean("k1")), client("m", merge("m1", SIDE))
    # The cheapest first: a bug shows in the first scene that has it.
    yield scene("writer, committer", w, c, staged=[a1]), _ALL
    yield scene("committer, resetter", c, s, staged=[a1]), _ALL
    yield scene("committer, merger", c, m, beside=[beside], staged=[a1]), _ALL
    yield scene("committer that cleans, reader", client("c", commit("c1"), clean("c2")), r, staged=[a1]), _ALL
    yield scene("writer, committer that comes back", w, client("c", commit("c1"), again=[commit("c2")])), _ALL
    yield scene("writer, resetter that commits", w, client("s", reset("s1"), commit("c1")), staged=[a1]), _ALL
    yield scene("writer, resetter, cleaner", w, s, k, staged=[a1]), _ALL
    yield scene("uploader, committer", client("w", upload("w2", "a", "2")), c, staged=[a1]), _ALL
    commits_twice = client("c", commit("c1"), write("w3", "a", "3"), commit("c2"))
    yield scene("committer of two commits, cleaner", commits_twice, k, staged=[a1]), _ALL
    yield scene("writer, committer, reader", w, c, r), _ALL
    yield scene("writer, committer, cleaner", w, c, k, staged=[a1]), _ALL
    yield scene("writer, committer, resetter", w, c, s, staged=[a1]), _ALL
    yield scene("committer, reader, cleaner", c, r, k, staged=[a1]), _ALL
    yield scene("deleter, committer, reader", client("w", delete("d0", "a")), c, r, committed=[a1]), _ALL
    yield scene("two writers, committer", client("v", a1), w, c), _NO_LOSS
    yield scene("writer, committer, merger", w, c, m, beside=[beside], staged=[a1]), _NO_LOSS
    yield scene("writer, two committers", w, c, d, staged=[b0]), _NO_LOSS
    yield scene("writer of the same, two committers", w, c, d, committed=[a1], staged=[write("w3", "a", "1")]), _NO_LOSS
    yield scene("server of a writer and a reader", server("h", [a2], [read("r1", "a")]), staged=[a1]), _ALL
    twice = client("r", read("r1", "a"), read("r2", "a"))
    yield scene("writer, committer, reader that has read before", w, c, twice, staged=[a1]), _NO_LOSS
    writer_too = client("w", a1, write("w2", "a", "2"))
    yield scene("writer of two, committer, reader that has read before", writer_too, c, twice), _NONE


def swarm(seed: int) -> Scene:
    """4 to 8 clients, each with one to three operations on two paths, drawn from the seed."""
    rng = random.Random(seed)
    clocks_agree = rng.random() < 0.7
    clients = []
    for number in range(rng.randint(4, 8)):
        name = "abcdefgh"[number]
        deeds = [_drawn(rng, f"{name}{count}", clocks_agree) for count in range(rng.randint(1, 3))]
        if len(deeds) == 3 and rng.random() < 0.5:
            clients.append(server(name, deeds[:1], deeds[1:]))
            continue
        clients.append(client(name, *deeds, again=[_drawn(rng, f"{name}9", clocks_agree)]))
    committed = [write("w0", "x", "w0"), write("v0", "y", "v0")][: rng.randint(0, 2)]
    return scene(
        f"swarm {seed}",
        *clients,
        committed=committed,
        beside=[write("t0", "z", "t0", branch=SIDE)],
        staged=[write("u0", "x", rng.choice(("u0", "w0")))],
        clocks_agree=clocks_agree,
    )


_KINDS: Final = {"write": 6, "upload": 2, "commit": 7, "read": 5, "delete": 2, "clean": 1, "merge": 1, "reset": 1}


def _drawn(rng: random.Random, name: str, clocks_agree: bool) -> Do:
    key = rng.choice("xxy")
    match rng.choices(list(_KINDS), list(_KINDS.values()))[0]:
        case "write":
            # Now and then what may be there already: a write that changes nothing.
            return write(name, key, name if rng.random() < 0.8 else {"x": "w0", "y": "v0"}[key])
        case "upload":
            return upload(name, key, name)
        case "commit":
            return commit(name)
        case "read":
            return read(name, key)
        case "delete":
            return delete(name, key)
        case "merge":
            return merge(name, SIDE)
        case "reset":
            return reset(name)
    return clean(name, late_ms=0 if clocks_agree else rng.choice((0, FAR_FUTURE_MS)))
