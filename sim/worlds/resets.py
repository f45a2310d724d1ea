"""Worlds of resets that look at more than a page: of what is under a prefix, and of a whole branch.

A page shows one cell. So each look at what is staged goes on from where another actor may have changed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lakebed.base import RunKind
from lakebed.versions import Versions
from sim.ports.actors import Quick, Scene
from sim.ports.operations import Operation
from sim.scenes.deeds import collect, copy, create_branch, delete_branch, freeze, hard_reset, uncommitted_run
from sim.scenes.flows import RULED
from sim.scenes.processes import in_pages
from sim.scenes.scenes import MAIN, Do, clean, client, commit, delete, merge, reset, scene, upload, write

from .moves import move


def reset_prefix(name: str, prefix: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> None:
        await repo.resets.reset_prefix(branch, prefix.encode())

    return Do(Operation(name, "reset_prefix", branch, prefix.encode()), act)


def reset_scenes() -> Iterator[Scene]:
    yield from _of_a_prefix()
    yield from _of_a_branch()


def _of_a_prefix() -> Iterator[Scene]:
    staged = [upload("w1", "aa", "1"), upload("w2", "ab", "2"), upload("w3", "b", "3")]
    past = [write("w0", "aa", "0")]
    s = client("s", in_pages(reset_prefix("s1", "a")))
    c, f, k = client("c", commit("c1")), client("f", freeze("f1")), client("k", clean("k1"))
    how: dict[str, Any] = {"staged": staged, "committed": past, "resets_objects": True}
    yield scene("prefix resetter, freezer", s, f, **how)
    yield scene("prefix resetter, committer", s, c, **how, quick=Quick.NO_FAULT)
    w = client("w", write("w4", "ab", "4"))
    yield scene("prefix resetter, writer, committer", s, w, c, **how, quick=Quick.NEVER)
    gone = client("w", delete("w4", "ab"))
    yield scene("prefix resetter, deleter, freezer", s, gone, f, **how, quick=Quick.NEVER)
    yield scene("prefix resetter, committer, cleaner", s, c, k, **how, quick=Quick.NEVER)
    m = client("m", *move("m1", "aa", "b"))
    yield scene("prefix resetter, mover", s, m, **how, quick=Quick.NO_FAULT)
    yield scene("prefix resetter, mover, freezer", s, m, f, **how, quick=Quick.NEVER)
    copier = client("h", copy("w5", "aa", "ab", "5"))
    r = client("r", uncommitted_run("r1"))
    yield scene("prefix resetter, copier, run", s, copier, r, **how)
    resets = client("s", in_pages(reset_prefix("s1", "a")), commit("c9"))
    old: dict[str, Any] = {
        "before": [upload("w0", "aa", "0"), commit("p0"), RULED],
        "staged": staged,
        "resets_objects": True,
    }
    goes = client("r", commit("c1"), collect("r1", RunKind.COMMITTED), commit("c2"))
    yield scene("prefix resetter that commits, committer that runs", resets, goes, **old)


def _of_a_branch() -> Iterator[Scene]:
    # The first cells say what the head has. Only a later page has a change.
    past = [write("p1", "a", "1"), commit("p2"), write("p3", "a", "2"), write("p4", "b", "3"), commit("p5")]
    same, change = [write("w1", "a", "2"), write("w2", "b", "3")], write("w3", "c", "4")
    gentle = client("h", in_pages(hard_reset("h1", "main~1", force=False)))
    c, f, w = client("c", commit("c1")), client("f", in_pages(freeze("f1"))), client("w", change)
    yield scene("gentle hard resetter in pages, freezer", gentle, f, before=past, staged=[*same, change])
    yield scene("gentle hard resetter in pages, committer", gentle, c, before=past, staged=[*same, change])
    yield scene("gentle hard resetter in pages, writer", gentle, w, before=past, staged=same)
    yield scene(
        "gentle hard resetter in pages, writer, freezer", gentle, w, f, before=past, staged=same, quick=Quick.NEVER
    )
    forced = client("h", in_pages(hard_reset("h1", "main~1")), in_pages(clean("k1")))
    # Of more states than a walk ends with.
    many_states: dict[str, Any] = {"before": past, "staged": [*same, change], "quick": Quick.NEVER}
    yield scene("hard resetter that cleans in pages, committer", forced, c, **many_states)
    s = client("s", in_pages(reset("s1")), in_pages(clean("k1")))
    many = [*same, change, upload("w4", "d", "5")]
    yield scene("resetter that cleans in pages, freezer in pages", s, f, before=past, staged=many, quick=Quick.NO_FAULT)
    yield scene("committer, freezer in pages", c, f, before=past, staged=many)
    side = [create_branch("b0"), write("t1", "y", "1", branch="side"), write("t2", "z", "2", branch="side")]
    x = client("x", delete_branch("x1"), in_pages(clean("k1")), create_branch("x2"))
    made = client("g", merge("g1", "side"))
    on_side = client("c", commit("c1", branch="side"))
    # Its walk takes 14 CPU seconds without a fault. The one beside a merger takes half a second.
    yield scene("deleter that cleans in pages, committer", x, on_side, before=side, quick=Quick.NEVER)
    yield scene("deleter that cleans in pages, merger", x, made, before=[*side, commit("p9", branch="side")])
