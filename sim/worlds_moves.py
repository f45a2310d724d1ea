"""Worlds of moves: beside writers, deletes, commits, merges, resets, freezes, other moves, and the queue.

A move is two operations to the checkers: a write of its target, and a delete of its source that may fail. Their code is
the two halves of the shipped move, one after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from lakebed.base import Entry, from_row
from lakebed.versions import PathNotFound, Versions, decode_cell, is_gone, keys

from .actors import Actor, Ending, Scene, Violation
from .deeds import copy, freeze, uncommitted_run
from .disk import Disk
from .files import pairs_in
from .flows import Quick
from .operations import Operation
from .reachable import nothing_queued_is_named
from .scenes import MAIN, SIDE, Do, client, commit, delete, merge, reset, scene, upload
from .views import UID, View
from .worlds_hard_delete import clean_claims, hard, turn_on

_NO_FAULT: Final[Quick] = (True, False, False)
_NONE: Final[Quick] = (False, False, False)


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
    """Each version of the source that was acknowledged is at a path of the branch, where no actor deletes or resets it.

    Not asked where the mover died: then its tombstone may hide what a merge brought in that very moment.
    """
    if "m" in ending.crashed or any(ending.of(kind) for kind in ("reset", "reset_object")):
        return
    if any(not one.operation.name.endswith("-") for one in ending.of("delete")):
        return
    values = [str(one.operation.value) for one in ending.acknowledged("write") if one.operation.name == "w2"]
    taken = next(iter(ending.of("delete")))
    # A move that ended before the merge leaves a tombstone on top of it, as a delete does.
    merges = [one.operation.name for one in ending.acknowledged("merge")]
    values += ["3" for name in merges if not taken.is_acknowledged or name in (taken.before or ())]
    named = _named(ending.disk)
    for value in values:
        if not any(held[0] == value.encode() and key in named for key, held in ending.disk.objectstore.items()):
            raise Violation(f"{value} was acknowledged, and no path of the branch names it")


def _named(disk: Disk) -> set[str]:
    view = View(disk)
    branch = view.branches()[MAIN]
    metarange = view.commit(branch.commit_id).metarange_id
    found: dict[bytes, str | None] = {
        path: from_row(row).address for path, row in (pairs_in(disk, metarange) if metarange else ())
    }
    for token in reversed(branch.tokens()):
        for path, value in disk.cells.get(keys.token_partition(UID, token), {}).items():
            flags, row = decode_cell(value)
            found[path] = None if is_gone(flags) else from_row(row).address
    return {address for address in found.values() if address is not None}


def move_scenes() -> Iterator[tuple[Scene, Quick]]:
    a1, a2 = upload("w1", "a", "1"), hard(upload("w2", "a", "2"))
    m, n = client("m", *move("m1", "a", "b")), client("n", *move("n1", "a", "c"))
    c, w, d = client("c", commit("c1")), client("w", a2), client("d", hard(delete("d1", "a")))
    yield _scene("mover, committer", m, c, staged=[a1]), _NO_FAULT
    yield _scene("mover, overwriter", m, w, staged=[a1]), _NO_FAULT
    yield _scene("mover, deleter", m, d, staged=[a1]), _NO_FAULT
    yield _scene("two movers", m, n, staged=[a1]), _NO_FAULT
    yield _scene("mover of what is committed, overwriter", m, w, before=[a1, commit("p1")]), _NO_FAULT
    resets = client("s", reset("s1"), clean_claims("s2"))
    yield _scene("mover, resetter that cleans", m, resets, staged=[a1]), _NO_FAULT
    yield _scene("mover, committer, resetter that cleans", m, c, resets, staged=[a1]), _NONE
    yield _scene("mover, freezer", m, client("f", freeze("f1")), staged=[a1]), _NO_FAULT
    yield _scene("mover, copier", m, client("h", copy("h1", "a", "c", "h")), staged=[a1]), _NO_FAULT
    away = client("m", *move("m1", "z", "a", branch=SIDE))
    side = client("c", commit("c1", branch=SIDE))
    yield (
        _scene("mover between branches, committer", away, side, beside=[upload("w1", "z", "1", branch=SIDE)]),
        _NO_FAULT,
    )
    merger = client("g", merge("g1", SIDE))
    beside = [upload("w3", "a", "3", branch=SIDE)]
    yield _scene("mover of what is committed, merger", m, merger, before=[a1, commit("p1")], beside=beside), _NO_FAULT
    merges = client("g", merge("g1", SIDE), commit("g2"))
    one = "mover of what is committed, merger that commits"
    yield _scene(one, m, merges, before=[a1, commit("p1")], beside=beside), _NO_FAULT
    yield _scene("mover, run", m, client("r", uncommitted_run("r1")), staged=[a1]), _NO_FAULT


def _scene(
    name: str,
    *actors: Actor,
    before: Sequence[Do] = (),
    beside: Sequence[Do] = (),
    staged: Sequence[Do] = (),
) -> Scene:
    # A tombstone may be taken back from a token that a commit has read, as a reset of an object does.
    made = scene(
        name, *actors, before=[turn_on("hd0"), *before], beside=beside, staged=staged, resets_objects=bool(beside)
    )
    return dataclasses.replace(
        made,
        checks=(*made.checks, moves_lose_nothing),
        step_checks=(*made.step_checks, nothing_queued_is_named),
    )
