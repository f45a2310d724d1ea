"""Swarms: 4 to 8 clients of all kinds, drawn from a seed, for the searches that are too large to walk."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from explorer.scheduling import Faults
from lakebed.base import RunKind
from sim.checkers.endings import CREATES, conditions_hold
from sim.checkers.reachable import nothing_queued_is_named
from sim.ports.scene import Scene
from sim.worlds.erasure import erase_staged
from sim.worlds.hard_delete import clean_claims, hard, turn_on, work
from sim.worlds.lifecycle import DUE, set_policy
from sim.worlds.moves import move
from sim.worlds.multipart import send, with_parts
from sim.worlds.undoing import undo

from . import deeds as do
from .collecting import FENCING, OPTIONS, PAGED, PRIVATE_BESIDE_TREES
from .doing import FAR_FUTURE_MS, MAIN, SIDE, Do
from .flows import DEFERRED, RULED, deferring, optimised
from .scenes import client, scene, server

SWARM_FAULTS: Final = Faults(
    refuse=0.005, lose_answer=0.02, lose_request=0.01, crash=0.007, late=0.006, delay=0.02, echo=0.2, clock_jump=0.01
)


def swarm(seed: int, *, has_due: bool = False) -> Scene:
    """Return 4 to 8 clients, each with one to three operations on two paths, drawn from the seed.

    `has_due`: what commits have at the first path is due, and clients run lifecycle and erasures of it. Its seeds are
    its own; hard delete and moves are in half of them each.
    """
    drawn_from = f"due {seed}" if has_due else seed
    paths = _WITH_DUE if has_due else _PATHS
    rng = random.Random(drawn_from)
    clocks_agree = rng.random() < 0.7
    kinds = _KINDS | _TAKING if has_due else dict(_KINDS)
    if is_graceful := rng.random() < 0.1:
        # Bytes are read, and runs wait for readers: those that do not are left out.
        kinds = {kind: share for kind, share in kinds.items() if kind not in _WITHOUT_GRACE}
    if resets_objects := rng.random() < 0.2:
        kinds["reset object"] = 1
    if restores := rng.random() < 0.2 and not is_graceful and not has_due:
        kinds |= {"restore": 1.5, "run deferring": 1, "purge": 0.5}
    # Drawn apart, so that all other seeds stay what they are.
    if restores_due := has_due and not is_graceful and random.Random(f"restore {seed}").random() < 0.3:
        kinds |= {"restore of what was due": 2, "lifecycle run deferring": 1, "purge": 1}
    if has_due and random.Random(f"policy {seed}").random() < 0.3:
        # Refs are made and moved while what counts as due changes. Else these seldom meet a run (meetings.py).
        kinds |= {"policy": 3, "side": 8, "lifecycle run": 4}
    is_hard = random.Random(f"hard {drawn_from}").random() < (0.5 if has_due else 0.2)
    # The worker waits for no reader here.
    is_hard = is_hard and not (has_due and is_graceful)
    drawing, clients = _Drawing(rng, paths, kinds, clocks_agree, is_graceful), []
    for name in "abcdefgh"[: rng.randint(4, 8)]:
        names = [f"{name}{count}" for count in range(rng.randint(1, 3))]
        deeds = [drawing.drawn(one) for one in names]
        if is_hard:
            deeds = [hard(deed) if deed.operation.kind in _LETTING_GO else deed for deed in deeds]
        if len(deeds) == 3 and rng.random() < 0.5:
            clients.append(server(name, deeds[:1], deeds[1:]))
            continue
        clients.append(client(name, *deeds, again=[drawing.drawn(f"{name}9")]))
    if is_hard:
        clients.append(client("i", *_worked(work("i0"), clean_claims("i1"), work("i2")), again=_worked(work("i9"))))
    mover = random.Random(f"rename {drawn_from}")
    if is_moving := mover.random() < (0.5 if has_due else 0.15):
        moved = [_moved(mover, name, paths) for name in ("m1", "m2", "m9")]
        clients.append(client("m", *moved[0], *moved[1], again=moved[2]))
    further = random.Random(f"further {drawn_from}")
    if is_further := not has_due and further.random() < 0.3:
        for name in "no":
            deeds = [_drawn_further(further, f"{name}{count}", paths, deferred=restores) for count in range(3)]
            clients.append(client(name, *deeds[:2], again=deeds[2:]))
    put = do.upload if has_due else do.write
    committed = [put("w0", paths[0], "w0"), put("v0", paths[-1], "v0")][: rng.randint(1 if has_due else 0, 2)]
    made = scene(
        f"swarm {drawn_from}",
        *clients,
        before=[
            *(DEFERRED if restores else [RULED]),
            *([turn_on("hd0")] if is_hard else []),
            *([set_policy("q1")] if has_due else []),
            *(_DEFERRED_BY_POLICY if restores_due else ()),
        ],
        committed=committed,
        beside=[do.write("t0", "z", "t0", branch=SIDE)],
        staged=[put("u0", paths[0], rng.choice(("u0", "w0")))],
        clocks_agree=clocks_agree,
        # A move may take its tombstone back, too, from a token that a commit has read.
        resets_objects=resets_objects or is_moving or is_further,
        private=PRIVATE_BESIDE_TREES,
        others_look=True,
        due=_EVER_DUE if has_due else (),
    )
    if is_hard:
        made = made.also(steps=[nothing_queued_is_named])
    if is_further:
        made = made.also(conditions_hold)
        # By a clock that jumps, an upload in parts may be old before it is through.
        made = with_parts(made) if clocks_agree else made
    if restores_due:
        # An erasure also takes what a run holds for a window, where it holds it for the path of the order.
        return deferring(made, due=_EVER_DUE, erased=DUE)
    return deferring(made) if restores else made


DEFERRED_DUE: Final = "ab"
"""A path that is due, of which a lifecycle run holds an object until its window is over."""
_NOTHING_DUE: Final = b'{"due": {"prefix": "q", "days": 1}}'
_EVER_DUE: Final = (DUE, DEFERRED_DUE.encode())
_DEFERRED_BY_POLICY: Final = (
    do.upload("v1", DEFERRED_DUE, "1"),
    do.commit("v2"),
    do.collect("v3", RunKind.LIFECYCLE, window="7d"),
)
_PATHS: Final = "xxy"
"""A client draws one of these. Of the first path there is a committed version that it may write again."""
_WITH_DUE: Final = "aab"
_TAKING: Final[dict[str, float]] = {
    "upload": 5,
    "copy": 5,
    "lifecycle run": 2,
    "lifecycle run deferring": 0.5,
    "purge": 0.5,
    "erasure": 2,
}
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


def _moved(rng: random.Random, name: str, paths: str) -> tuple[Do, Do]:
    """Move within the branch, or to it from another one."""
    first, second = paths[0], paths[-1]
    source, branch = rng.choice(((first, MAIN), (second, MAIN), ("z", SIDE)))
    copies, takes = move(name, source, rng.choice((first, second, "v")), branch=branch)
    return copies.called("move"), takes.called("move")


def _worked(*deeds: Do) -> Sequence[Do]:
    return [deed.called("hard delete") for deed in deeds]


_LETTING_GO: Final = frozenset({"write", "delete", "reset_object"})
_WITHOUT_GRACE: Final = ("committed run", "optimised run", "metadata run", "resume", "purge")


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Draws operations of these kinds, each with its share, on these paths."""

    rng: random.Random
    paths: str
    kinds: Mapping[str, float]
    clocks_agree: bool
    is_graceful: bool

    def drawn(self, name: str) -> Do:
        key = self.rng.choice(self.paths)
        kind = self.rng.choices(list(self.kinds), list(self.kinds.values()))[0]
        deed = _MADE[kind](self, name, key)
        return deed if kind == "side" else deed.called("uncommitted run" if kind == "run" else kind)

    def is_hit(self, share: float) -> bool:
        return self.rng.random() < share

    def written(self, name: str, key: str) -> Do:
        """Write, now and then what may be there already: a write that changes nothing."""
        return do.write(name, key, name if self.is_hit(0.8) else {self.paths[0]: "w0", self.paths[-1]: "v0"}[key])

    def read(self, name: str, key: str) -> Do:
        if self.is_graceful and self.is_hit(0.5):
            return do.read_bytes(name, key)
        return do.read(name, key) if self.is_hit(0.7) else do.read_listed(name, key)

    def copied(self, name: str, key: str) -> Do:
        """Copy what is staged or committed, here or on the other branch; or what is not there."""
        first, second = self.paths[0], self.paths[-1]
        source, ref = self.rng.choice(((first, "main"), (second, "main"), ("z", SIDE), (first, "main~1")))
        return do.copy(name, source, key, name, ref=ref)

    def run(self, name: str, _: str) -> Do:
        options = self.rng.choices((FENCING, PAGED, OPTIONS), (0.3, 0.2, 0.5))[0]
        return do.uncommitted_run(name, options=options, has_grace=self.is_graceful)

    def lifecycle(self, name: str, *, window: str | None = None) -> Do:
        return do.collect(name, RunKind.LIFECYCLE, window=window, has_grace=self.is_graceful)

    def cleaned(self, name: str, _: str) -> Do:
        return do.clean(name, late_ms=0 if self.clocks_agree else self.rng.choice((0, FAR_FUTURE_MS)))


_MADE: Final[dict[str, Callable[[_Drawing, str, str], Do]]] = {
    "write": _Drawing.written,
    "upload": lambda _, name, key: do.upload(name, key, name),
    "commit": lambda _, name, __: do.commit(name),
    "read": _Drawing.read,
    "delete": lambda _, name, key: do.delete(name, key),
    "clean": _Drawing.cleaned,
    "merge": lambda _, name, __: do.merge(name, SIDE),
    "reset": lambda _, name, __: do.reset(name),
    "link": lambda _, name, key: do.link(name, key, name),
    "copy": _Drawing.copied,
    "fence": lambda _, name, __: do.fence(name),
    "run": _Drawing.run,
    "optimised run": lambda _, name, __: optimised(name),
    "metadata run": lambda drawing, name, _: do.metadata_run(name) if drawing.is_hit(0.7) else do.strand(name),
    "resume": lambda _, name, __: do.resume(name),
    "tag": lambda drawing, name, _: do.create_tag(name, drawing.rng.choice(("main", "main~1", f"{SIDE}~1"))),
    "restore": lambda drawing, name, _: do.restore(name, content=b"1", overwrite=drawing.is_hit(0.5)),
    "restore of what was due": lambda drawing, name, _: do.restore(
        name, key=DEFERRED_DUE, content=b"1", overwrite=drawing.is_hit(0.5)
    ),
    "run deferring": lambda _, name, __: do.committed_run(name, window="7d"),
    "purge": lambda _, name, __: do.purge(name),
    "rules": lambda drawing, name, _: do.set_rules(name, drawing.rng.choice(("4d", "20d"))),
    "committed run": lambda _, name, __: do.committed_run(name),
    "reset object": lambda _, name, key: do.reset_object(name, key),
    "lifecycle run": lambda drawing, name, _: drawing.lifecycle(name),
    "lifecycle run deferring": lambda drawing, name, _: drawing.lifecycle(name, window="7d"),
    # By the second one nothing is due that any path has.
    "policy": lambda drawing, name, _: set_policy(name, *([] if drawing.is_hit(0.5) else [_NOTHING_DUE])),
    "erasure": lambda drawing, name, _: erase_staged(name, has_grace=drawing.is_graceful),
    "side": lambda drawing, name, _: _drawn_beside(drawing.rng, name),
}


def _drawn_further(rng: random.Random, name: str, paths: str, *, deferred: bool) -> Do:
    """Do what no other client does: write on a condition, upload in parts, reset a prefix, bring refs back, undo."""
    # No other client writes the last of these.
    key, equal = rng.choice((paths[0], paths[-1], "c", "c")), rng.random() < 0.5
    match rng.randrange(9 if deferred else 8):
        case 0 | 1:
            # Of equal content, too: that of another client's is no own one.
            return do.upload(name, key, "e0" if equal else name, if_none_match=True).called(CREATES)
        case 2:
            return do.upload(name, key, "e0" if equal else name, if_match=rng.choice(("w0", "e0")))
        case 3:
            return send(name, key)
        case 4:
            return do.reset_prefix(name, key if equal else "")
        case 5:
            return do.delete_branch(name)
        case 6:
            return do.undelete_branch(name)
        case 7:
            return rng.choice((do.create_tag(name, MAIN), do.delete_tag(name), do.undelete_tag(name)))
    return undo(name)


def _drawn_beside(rng: random.Random, name: str) -> Do:
    """Do something on the other branch. Only its own path is written there, and its head may move anywhere."""
    deeds: tuple[Callable[[], Do], ...] = (
        lambda: do.delete_branch(name),
        lambda: do.create_branch(name),
        lambda: do.hard_reset(name, rng.choice(("main", "main~1", f"{SIDE}~1")), branch=SIDE, force=rng.random() < 0.5),
        lambda: do.upload(name, "z", name, branch=SIDE),
        lambda: do.delete(name, "z", branch=SIDE),
        lambda: do.commit(name, branch=SIDE),
        lambda: do.cherry_pick(name, rng.choice(("main", "main~1")), branch=SIDE),
        lambda: do.revert(name, SIDE, branch=SIDE),
        lambda: do.close(name),
    )
    return rng.choice(deeds)()
