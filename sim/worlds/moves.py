"""Worlds of moves: beside writers, deletes, commits, merges, resets, freezes, other moves, and the queue.

A move is two operations to the checkers: a write of its target, and a delete of its source that may fail. Their code is
the two halves of the shipped move, one after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from explorer.actors import Actor, Ending, Violation
from explorer.disk import Disk
from explorer.operations import Operation
from lakebed.base import Entry, OutcomeUnknown
from lakebed.versions import MovedAsCopy, NoChanges, PathNotFound, Versions, decode_cell, is_gone, keys
from lakebed.versions.cells import version_digest
from sim.checkers.reachable import nothing_queued_is_named
from sim.checkers.views import UID, View
from sim.ports.ports import SimPorts
from sim.ports.scene import Quick, Scene
from sim.scenes import deeds as do
from sim.scenes.doing import MAIN, SIDE, Do, note, versions
from sim.scenes.scenes import client, scene

from .hard_delete import clean_claims, hard, turn_on


def move(name: str, source: str, key: str, *, branch: str = MAIN, to: str = MAIN) -> tuple[Do, Do]:
    """The two halves. The target differs from what was moved in its checksum, so that its value is its own."""

    async def copies(repo: Versions) -> None:
        kept: Any = repo
        shipped: Callable[..., Awaitable[Entry]] = repo.copies.copy
        kept.moved = None

        async def named(*where: Any, alter: Any, **how: Any) -> Entry:
            def own(entry: Entry) -> Entry:
                noted: Entry = alter(entry)
                return replace(noted, checksum=name)

            made: Entry = await shipped(*where, alter=own, **how)
            return made

        setattr(repo.copies, "copy", named)  # noqa: B010  # mypy refuses to assign to a method
        try:
            kept.moved = await repo.moves.copy_out(branch, source.encode(), to, key.encode())
        finally:
            setattr(repo.copies, "copy", shipped)  # noqa: B010  # as above

    async def takes(repo: Versions) -> None:
        kept: Any = repo
        if kept.moved is None:
            raise PathNotFound("nothing was moved")
        await repo.moves.take_away(kept.moved)

    return (
        Do(Operation(name, "write", to, key.encode(), name), copies),
        Do(Operation(name + "-", "delete", branch, source.encode()), takes),
    )


def moves_lose_nothing(ending: Ending) -> None:
    """Check that each acknowledged version of the source is at a path, where no actor deletes or replaces it.

    What a merge brought is not asked where the mover died or got no answer: until a commit its tombstone may hide that,
    or it may have ended before the merge.
    """
    errors = [one.error for one in ending.of("delete")]
    is_known = "m" not in ending.crashed and not any(error and issubclass(error, OutcomeUnknown) for error in errors)
    _lose_nothing(ending, _written(ending) + (_merged(ending) if is_known else []))


def deaths_lose_nothing(ending: Ending) -> None:
    """The same of dead movers, where a commit came after them.

    Not asked where the mover died between its last tombstone and its answer: what a merge brought later is removed.
    """
    if "m" not in ending.crashed or not _is_settled(ending.disk):
        _lose_nothing(ending, _written(ending) + _merged(ending))


def _lose_nothing(ending: Ending, values: Sequence[str]) -> None:
    if any(ending.of(kind) for kind in ("reset", "reset_object")):
        return
    if any(not one.operation.name.endswith("-") for one in ending.of("delete")):
        return
    view = View(ending.disk)
    named = {address for branch in view.branches().values() for address in view.addresses(branch).values()}
    for value in values:
        if not any(held[0] == value.encode() and key in named for key, held in ending.disk.objectstore.items()):
            raise Violation(f"{value} was acknowledged, and no path names it")


def _written(ending: Ending) -> list[str]:
    """Return what an overwriter put; where there is none, and no merge, what was at the source: a move keeps it."""
    newer = [one for one in ending.of("write") if one.operation.name == "w2"]
    if not newer and not ending.of("merge"):
        return ["1"]
    return [str(one.operation.value) for one in newer if one.is_acknowledged]


def _merged(ending: Ending) -> list[str]:
    # A move that ended before the merge leaves a tombstone on top of it, as a delete does.
    taken = next(iter(ending.of("delete")), None)
    merges = [one.operation.name for one in ending.acknowledged("merge")]
    return ["3" for name in merges if taken is None or not taken.is_acknowledged or name in (taken.before or ())]


def tombstones_name_what_they_hide(
    disk: Disk, partition: bytes, key: bytes, old: bytes | None, new: bytes | None
) -> None:
    """Check that a move's tombstone takes the place of a cell, or names the one version that it hides."""
    if old is not None or new is None or partition not in _branch_partitions(disk):
        return
    flags, row = decode_cell(new)
    if is_gone(flags) and row[0] == 0 and row[5]:
        raise Violation(f"the tombstone of a move hides whatever is beneath {key!r}, where nothing was staged")


def _branch_partitions(disk: Disk) -> set[bytes]:
    """Return the partitions of tokens without the one that a freeze is copying into."""
    return {keys.token_partition(UID, token) for branch in View(disk).branches().values() for token in branch.tokens()}


def what_was_moved_stays_away(ending: Ending) -> None:
    """Check that no merge and no commit brings anything back to where an acknowledged move took it from."""
    view = View(ending.disk)
    if ending.acknowledged("delete") and b"a" in view.addresses(view.branches()[MAIN]):
        raise Violation("a move was acknowledged, and something is at its source")


def merges_are_read(ending: Ending) -> None:
    """Check that a reader after a merge sees what it brought, unless that was moved itself, or a move ended before.

    So also where a mover looked before the merge, and died with its tombstone on top. A move that ended as a copy may
    have looked like a deletion for a moment: it lost the answer to its last tombstone.
    """
    if any(issubclass(one.error or Exception, MovedAsCopy) for one in ending.of("delete")):
        return
    missed = any(issubclass(one.error or Exception, PathNotFound) for one in ending.of("read"))
    if missed and ending.acknowledged("merge") and not (_is_settled(ending.disk) or _is_taken(ending.disk)):
        raise Violation("a merge was acknowledged, and a read did not see what it brought")


def _is_settled(disk: Disk) -> bool:
    """Answer whether a cell of `a` is a move's tombstone that hides whatever is beneath."""
    cells = [decode_cell(held[b"a"]) for held in disk.cells.values() if b"a" in held]
    return any(is_gone(flags) and row[0] == 0 and row[5] for flags, row in cells)


def _is_taken(disk: Disk) -> bool:
    """Answer whether a move's tombstone names the very version that the head has of `a`."""
    view = View(disk)
    head = view.pairs(view.branches()[MAIN].commit_id)
    versions_there = {version_digest(row) for path, row in head if path == b"a"}
    cells = [decode_cell(held[b"a"]) for held in disk.cells.values() if b"a" in held]
    return any(is_gone(flags) and row[0] in versions_there for flags, row in cells)


def move_scenes() -> Iterator[Scene]:
    a1, a2 = do.upload("w1", "a", "1"), hard(do.upload("w2", "a", "2"))
    m, n = client("m", *move("m1", "a", "b")), client("n", *move("n1", "a", "c"))
    c, w, d = client("c", do.commit("c1")), client("w", a2), client("d", hard(do.delete("d1", "a")))
    yield _scene("mover, committer", m, c, staged=[a1])
    yield _scene("mover, overwriter", m, w, staged=[a1])
    yield _scene("mover, deleter", m, d, staged=[a1])
    yield _scene("two movers", m, n, staged=[a1])
    yield _scene("mover of what is committed, overwriter", m, w, before=[a1, do.commit("p1")])
    # With a crash: a mover that lives beside one that died, and meets its tombstone.
    yield _scene("two movers of what is committed", m, n, before=[a1, do.commit("p1")], alike=[("m", "n")])
    # What is beneath the version that was moved must not come back.
    older = [do.write("w0", "a", "0"), do.commit("p1")]
    yield _scene("mover over an older version, committer", m, c, before=older, staged=[a1])
    d1 = client("d", do.commit("d1"))
    yield _scene("mover over an older version, two committers", m, c, d1, before=older, staged=[a1], quick=Quick.NEVER)
    f = client("f", do.freeze("f1"))
    yield _scene("mover over an older version, freezer", m, f, before=older, staged=[a1])
    resets = client("s", do.reset("s1"), clean_claims("s2"))
    yield _scene("mover, resetter that cleans", m, resets, staged=[a1])
    yield _scene("mover, committer, resetter that cleans", m, c, resets, staged=[a1], quick=Quick.NEVER)
    yield _scene("mover, freezer", m, f, staged=[a1])
    yield _scene("mover, copier", m, client("h", do.copy("h1", "a", "c", "h")), staged=[a1])
    away = client("m", *move("m1", "z", "a", branch=SIDE))
    side = client("c", do.commit("c1", branch=SIDE))
    yield _scene("mover between branches, committer", away, side, beside=[do.upload("w1", "z", "1", branch=SIDE)])
    merger = client("g", do.merge("g1", SIDE))
    beside = [do.upload("w3", "a", "3", branch=SIDE)]
    past = [a1, do.commit("p1")]
    made = _scene("mover of what is committed, merger", m, merger, before=past, beside=beside)
    yield made.also(what_was_moved_stays_away)
    reads = client("g", do.merge("g1", SIDE), do.read("x1", "a"))
    one = "mover of what is committed, merger that reads"
    yield _scene(one, m, reads, before=past, beside=beside, quick=Quick.ALL).also(merges_are_read)
    # No cleaner: the cells show how far a dead mover came.
    one, checks = f"{made.name}, tidied by a commit", (what_was_moved_stays_away, deaths_lose_nothing)
    yield dataclasses.replace(made, name=one, tidy=_commit, tidy_checks=checks)
    merges = client("g", do.merge("g1", SIDE), do.commit("g2"))
    one = "mover of what is committed, merger that commits"
    made = _scene(one, m, merges, before=past, beside=beside, quick=Quick.NO_FAULT)
    yield made.also(what_was_moved_stays_away)
    yield _scene("mover, run", m, client("r", do.uncommitted_run("r1")), staged=[a1])


async def _commit(ports: SimPorts) -> None:
    with suppress(NoChanges):
        await versions(ports).commits.commit(MAIN, note("tidied"))


def _scene(name: str, *actors: Actor, before: Sequence[Do] = (), beside: Sequence[Do] = (), **how: Any) -> Scene:
    # A tombstone may be taken back from a token that a commit has read, as a reset of an object does.
    how |= {"before": [turn_on("hd0"), *before], "beside": beside, "resets_objects": bool(beside)}
    steps = (nothing_queued_is_named, tombstones_name_what_they_hide)
    return scene(name, *actors, **how).also(moves_lose_nothing, steps=steps)
