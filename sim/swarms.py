"""Swarms: 4 to 8 clients of all kinds, drawn from a seed, for the searches that are too large to walk."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from .actors import Scene
from .collecting import FENCING, OPTIONS, PAGED, PRIVATE_BESIDE_TREES
from .deeds import (
    cherry_pick,
    close,
    committed_run,
    copy,
    create_branch,
    create_tag,
    delete_branch,
    fence,
    hard_reset,
    link,
    metadata_run,
    purge,
    read_bytes,
    read_listed,
    reset_object,
    restore,
    resume,
    revert,
    set_rules,
    strand,
    uncommitted_run,
)
from .flows import DEFERRED, RULED, deferring, optimised
from .reachable import nothing_queued_is_named
from .scenes import (
    FAR_FUTURE_MS,
    MAIN,
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
from .worlds_hard_delete import clean_claims, hard, turn_on, work
from .worlds_moves import move

SWARM_FAULTS: Final = Faults(
    refuse=0.005, lose_answer=0.02, lose_request=0.01, crash=0.007, late=0.006, delay=0.02, echo=0.2, clock_jump=0.01
)


def swarm(seed: int) -> Scene:
    """Return 4 to 8 clients, each with one to three operations on two paths, drawn from the seed."""
    rng = random.Random(seed)
    clocks_agree = rng.random() < 0.7
    kinds = dict(_KINDS)
    if is_graceful := rng.random() < 0.1:
        # Bytes are read, and runs wait for readers: those that do not are left out.
        kinds = {kind: share for kind, share in kinds.items() if kind not in _WITHOUT_GRACE}
    if resets_objects := rng.random() < 0.2:
        kinds["reset object"] = 1
    if restores := rng.random() < 0.2 and not is_graceful:
        kinds |= {"restore": 1.5, "run deferring": 1, "purge": 0.5}
    # Drawn apart, so that all other seeds stay what they are.
    is_hard = random.Random(f"hard {seed}").random() < 0.2
    clients = []
    for number in range(rng.randint(4, 8)):
        name = "abcdefgh"[number]
        names = [f"{name}{count}" for count in range(rng.randint(1, 3))]
        deeds = [_drawn(rng, one, clocks_agree, kinds, is_graceful=is_graceful) for one in names]
        if is_hard:
            deeds = [hard(do) if do.operation.kind in _LETTING_GO else do for do in deeds]
        if len(deeds) == 3 and rng.random() < 0.5:
            clients.append(server(name, deeds[:1], deeds[1:]))
            continue
        clients.append(
            client(name, *deeds, again=[_drawn(rng, f"{name}9", clocks_agree, kinds, is_graceful=is_graceful)])
        )
    if is_hard:
        clients.append(client("i", work("i0"), clean_claims("i1"), work("i2"), again=[work("i9")]))
    mover = random.Random(f"rename {seed}")
    if is_moving := mover.random() < 0.15:
        clients.append(client("m", *_moved(mover, "m1"), *_moved(mover, "m2"), again=_moved(mover, "m9")))
    committed = [write("w0", "x", "w0"), write("v0", "y", "v0")][: rng.randint(0, 2)]
    made = scene(
        f"swarm {seed}",
        *clients,
        before=[*(DEFERRED if restores else [RULED]), *([turn_on("hd0")] if is_hard else [])],
        committed=committed,
        beside=[write("t0", "z", "t0", branch=SIDE)],
        staged=[write("u0", "x", rng.choice(("u0", "w0")))],
        clocks_agree=clocks_agree,
        # A move may take its tombstone back, too, from a token that a commit has read.
        resets_objects=resets_objects or is_moving,
        private=PRIVATE_BESIDE_TREES,
        others_look=True,
    )
    if is_hard:
        made = replace(made, step_checks=(*made.step_checks, nothing_queued_is_named))
    return deferring(made) if restores else made


_KINDS: Final[dict[str, float]] = {
    "write": 5,
    "upload": 3,
    "commit": 7,
    "read": 4,
    "delete": 2,
    "clean": 1,
    "merge": 1,
    "reset": 1,
    "link": 1,
    "copy": 2,
    "fence": 0.5,
    "run": 2,
    "committed run": 0.7,
    "optimised run": 0.7,
    "metadata run": 0.7,
    "resume": 0.3,
    "tag": 0.5,
    "rules": 0.5,
    "side": 2,
}


def _moved(rng: random.Random, name: str) -> tuple[Do, Do]:
    """Move within the branch, or to it from another one."""
    source, branch = rng.choice((("x", MAIN), ("y", MAIN), ("z", SIDE)))
    return move(name, source, rng.choice(("x", "y", "v")), branch=branch)


_LETTING_GO: Final = frozenset({"write", "delete", "reset_object"})
_WITHOUT_GRACE: Final = ("committed run", "optimised run", "metadata run", "resume")


def _drawn(
    rng: random.Random, name: str, clocks_agree: bool, kinds: dict[str, float], *, is_graceful: bool = False
) -> Do:
    key = rng.choice("xxy")
    match rng.choices(list(kinds), list(kinds.values()))[0]:
        case "write":
            # Now and then what may be there already: a write that changes nothing.
            return write(name, key, name if rng.random() < 0.8 else {"x": "w0", "y": "v0"}[key])
        case "upload":
            return upload(name, key, name)
        case "commit":
            return commit(name)
        case "read":
            if is_graceful and rng.random() < 0.5:
                return read_bytes(name, key)
            return read(name, key) if rng.random() < 0.7 else read_listed(name, key)
        case "delete":
            return delete(name, key)
        case "merge":
            return merge(name, SIDE)
        case "reset":
            return reset(name)
        case "link":
            return link(name, key, name)
        case "copy":
            # The source is staged or committed, here or on the other branch; or it is not there.
            source, ref = rng.choice((("x", "main"), ("y", "main"), ("z", SIDE), ("x", "main~1")))
            return copy(name, source, key, name, ref=ref)
        case "fence":
            return fence(name)
        case "run":
            options = rng.choices((FENCING, PAGED, OPTIONS), (0.3, 0.2, 0.5))[0]
            return uncommitted_run(name, options=options, has_grace=is_graceful)
        case "optimised run":
            return optimised(name)
        case "metadata run":
            return metadata_run(name) if rng.random() < 0.7 else strand(name)
        case "resume":
            return resume(name)
        case "tag":
            return create_tag(name, rng.choice(("main", "main~1", f"{SIDE}~1")))
        case "restore":
            return restore(name, key="a", content=b"1", overwrite=rng.random() < 0.5)
        case "run deferring":
            return committed_run(name, window="7d")
        case "purge":
            return purge(name)
        case "rules":
            return set_rules(name, rng.choice(("4d", "20d")))
        case "committed run":
            return committed_run(name)
        case "reset object":
            return reset_object(name, key)
        case "side":
            return _drawn_beside(rng, name)
    return clean(name, late_ms=0 if clocks_agree else rng.choice((0, FAR_FUTURE_MS)))


def _drawn_beside(rng: random.Random, name: str) -> Do:
    """Do something on the other branch. Only its own path is written there, and its head may move anywhere."""
    match rng.randrange(9):
        case 0:
            return delete_branch(name)
        case 1:
            return create_branch(name)
        case 2:
            where, force = rng.choice(("main", "main~1", f"{SIDE}~1")), rng.random() < 0.5
            return hard_reset(name, where, branch=SIDE, force=force)
        case 3:
            return upload(name, "z", name, branch=SIDE)
        case 4:
            return delete(name, "z", branch=SIDE)
        case 5:
            return commit(name, branch=SIDE)
        case 6:
            return cherry_pick(name, rng.choice(("main", "main~1")), branch=SIDE)
        case 7:
            return revert(name, SIDE, branch=SIDE)
    return close(name)
