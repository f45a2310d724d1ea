"""List the small scenes that the explorer walks, and their faults.

A world's size is the product of what its actors do: so each has the smallest actors that can meet in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from explorer.actors import Actor, Ending, Violation
from explorer.exploring import NO_BUDGET, Budget
from lakebed.versions import Condition, Versions
from sim.checkers.views import View
from sim.ports.scene import Quick, Scene
from sim.scenes import deeds as do
from sim.scenes import events, flows, hazards, installations, quotas, repositories, table_runs, tables
from sim.scenes.collecting import FENCING, PAGED
from sim.scenes.doing import FAR_FUTURE_MS, MAIN, SIDE, Do, note
from sim.scenes.flows import PAST, RULED, both_come_back
from sim.scenes.scenes import client, scene, server

from . import (
    branches,
    deleted,
    erasure,
    hard_delete,
    holds,
    lifecycle,
    made_again,
    moves,
    parts,
    refs,
    undoing,
    unlisted,
)
from .multipart import SAME, begin, complete, create_same, multipart_scenes, with_parts

A_CRASH: Final = Budget(crashes=1)
A_LOSS: Final = Budget(losses=1)
LATE: Final = Budget(late=1)
SEEDS: Final = Budget(seeds=6)
"""Drawn of each scene with runs. Planted bugs are sought by seeds and walks of their own (hunting.py)."""
ALONE: Final = Budget(alone_max=400)
"""What a plan and an apply take alone, or two of each."""


def one_condition_holds(ending: Ending) -> None:
    """Check that of the conditional writers `v` and `w`, whose success takes the condition away, one wins at most."""
    # A client that comes back does so under its name and a number.
    if {"v", "w"} <= {record.operation.name.partition(" ")[0] for record in ending.acknowledged("write")}:
        raise Violation("two conditional writers were both acknowledged")


def newer_stays(ending: Ending) -> None:
    """Check that no conditional delete of `v` took what `w` wrote: the delete comes first, or it is refused."""
    view = View(ending.disk)
    branch, is_written = view.branch(MAIN), any(one.operation.name == "w2" for one in ending.acknowledged("write"))
    if is_written and branch is not None and view.visible(branch).get(b"a") != "2":
        raise Violation("a delete on a condition took a newer object")


def what_was_created_came_first(ending: Ending) -> None:
    """Check that the path ends with what `w` wrote, if `v` was told that nothing was there when it wrote."""
    if {record.operation.name for record in ending.acknowledged("write")} >= {"v", "w"}:
        view = View(ending.disk)
        main = view.branch(MAIN)
        assert main is not None, "no actor deletes it"
        if view.visible(main).get(b"a") != "3":
            raise Violation("what was created replaced what had been acknowledged")


DEAR: Final = Path(__file__).parent / "dear.txt"
"""CPU seconds of the quick worlds that took `DEAR_S` or more when `exhaustive --quick --costs` last walked them."""
DEAR_S: Final = 2
WHOLE_MAX_S: Final = 60
"""The tests never walk a dearer world whole."""


@dataclass(frozen=True, slots=True)
class World:
    """`is_quick`: the tests walk it; the rest is left to the command."""

    scene: Scene
    budget: Budget
    is_quick: bool

    @property
    def name(self) -> str:
        return f"{self.scene.name}; {self.budget.name}"

    @property
    def cost_s(self) -> int:
        """CPU seconds of the whole walk, or 0 where it is cheap."""
        return known_costs().get(self.name, 0)


@cache
def known_costs() -> Mapping[str, int]:
    """Return the CPU seconds of each dear world."""
    return {name: int(cost) for cost, name in (line.split(" ", 1) for line in DEAR.read_text().splitlines())}


def write_costs(costs: Mapping[str, float]) -> None:
    """Write down the dear ones among these worlds, dearest first. Keep those that were not measured and still exist."""
    names = {world.name for world in small_worlds() if world.is_quick and not world.budget.seeds}
    both = {name: round(cost) for name, cost in {**known_costs(), **costs}.items() if name in names and cost >= DEAR_S}
    DEAR.write_text(
        "".join(f"{cost} {name}\n" for name, cost in sorted(both.items(), key=lambda item: (-item[1], item[0])))
    )


def small_worlds() -> Iterator[World]:
    """Every small scene without faults, with a crash, with a lost answer or request, and with a write that comes late,
    each at any step. Without faults, every actor must also be able to end alone, from every state.

    Those of writers and committers come first, then those of collections, of data and of metadata, and of copies of
    a store. Of scenes that the tests do not walk whole they draw seeds.
    """
    for one in _scenes():
        for place, budget in enumerate((ALONE if one.is_lock_free else NO_BUDGET, A_CRASH, A_LOSS, LATE)):
            yield World(one, budget, is_quick=place < one.quick)
        if one.quick is Quick.NEVER or any(actor.collecting for actor in one.actors):
            yield World(one, SEEDS, is_quick=True)
    yield World(both_come_back(), Budget(crashes=2), is_quick=False)


def _scenes() -> Iterator[Scene]:
    yield from _small_scenes()
    yield from _collecting_scenes()
    for scenes in (
        flows.optimised_scenes,
        hazards.hazard_scenes,
        flows.restoring_scenes,
        lifecycle.lifecycle_scenes,
        holds.hold_scenes,
        undoing.undoing_scenes,
        hard_delete.hard_delete_scenes,
        moves.move_scenes,
        erasure.erasure_scenes,
        deleted.deleted_scenes,
        made_again.made_again_scenes,
        branches.branch_scenes,
        quotas.quota_scenes,
        flows.metadata_scenes,
        installations.installation_scenes,
        repositories.repository_scenes,
        hazards.process_scenes,
        parts.part_scenes,
        unlisted.unlisted_scenes,
        multipart_scenes,
        refs.ref_scenes,
        branches.reset_scenes,
        events.event_scenes,
        tables.table_scenes,
        table_runs.table_run_scenes,
    ):
        yield from scenes()


def _conditional_scenes(c: Actor) -> Iterator[Scene]:
    """Two uploads that cannot both find what they ask for, beside a committer. Equal bytes make equal entries."""
    a1 = do.write("w1", "a", "1")
    other = [do.write("w0", "b", "0")]

    def both(name: str, first: Actor, second: Actor, *actors: Actor, **how: Any) -> Scene:
        return scene(name, first, second, *actors, checks=[one_condition_holds], **{"quick": Quick.NO_FAULT, **how})

    v, same, w = (
        client(name, do.upload(name, "a", value, if_none_match=True))
        for name, value in (("v", "2"), ("w", "2"), ("w", "3"))
    )
    yield both("two creators of the same, committer", v, same, c, staged=other)
    yield both("two creators, committer", v, w, c, staged=other)
    twice = client("c", do.commit("c1"), do.commit("c2"))
    yield both("two creators of the same, committer of two commits", v, same, twice, quick=Quick.NEVER)
    for name, late_ms in (("cleans", 0), ("cleans twice", FAR_FUTURE_MS)):
        creates = _amid_commit(do.upload("w", "a", "2", if_none_match=True))
        amid = client("w", creates, do.commit("c2"), do.clean("k1"), *_cleans_late(late_ms))
        yield both(f"creator, creator of the same amid a commit who {name}", v, amid, clocks_agree=not late_ms)
    yield _resent_completion()
    over = client("w", _amid_commit(do.upload("w", "a", "3")), do.commit("c2"), do.clean("k1"))
    checks = [what_was_created_came_first]
    yield scene("creator, uploader amid a commit who cleans", v, over, checks=checks, quick=Quick.NO_FAULT)
    v, w = (client(name, do.upload(name, "a", "2", if_match="1")) for name in "vw")
    how: dict[str, Any] = {"committed": [a1], "staged": other}
    yield both("two replacers by the same, committer", v, w, c, **how)
    v, w = client("v", do.delete("d0", "a", if_match="1")), client("w", do.upload("w2", "a", "2"))
    how |= {"checks": [newer_stays], "quick": Quick.NO_FAULT}
    yield scene("deleter on a condition, writer, committer", v, w, c, **how)


def _resent_completion() -> Scene:
    """A completion on a condition dies, and is sent again. Meanwhile another client may create the same object."""
    first, again = (complete(name, "a", SAME, condition=Condition(if_none_match=True)) for name in ("v", "v again"))
    amid = client("w", _amid_commit(create_same("w", "a")), do.commit("c2"))
    name = "completion on a condition that comes back, creator of the same amid a commit"
    made = scene(name, client("v", first, again=[again]), amid, before=[begin("b0", "a")], quick=Quick.NEVER)
    return with_parts(made).also(one_condition_holds, is_lock_free=False)


def _cleans_late(late_ms: int) -> tuple[Do, ...]:
    """By the clock of this pass no write is under way any more."""
    return (do.clean("k2", late_ms=late_ms),) if late_ms else ()


def _amid_commit(deed: Do) -> Do:
    """Do it as a process that commits: it has sealed a token, and not read it yet."""

    async def act(repo: Versions) -> None:
        mine, seen = await repo.commits.seal(MAIN)
        await deed.act(repo)
        await repo.commits._publish_sealed(MAIN, mine, seen, note(deed.operation.name), allow_empty=False)  # noqa: SLF001  # its second half

    return replace(deed, act=act)


def _small_scenes() -> Iterator[Scene]:
    a1, a2 = do.write("w1", "a", "1"), do.write("w2", "a", "2")
    b0, beside = do.write("w0", "b", "0"), do.write("t0", "z", "t0", branch=SIDE)
    w, r = client("w", a2), client("r", do.read("r1", "a"))
    c, d = client("c", do.commit("c1")), client("d", do.commit("d1"))
    s, k, m = client("s", do.reset("s1")), client("k", do.clean("k1")), client("m", do.merge("m1", SIDE))
    # The cheapest first: a bug shows in the first scene that has it.
    yield scene("writer, committer", w, c, staged=[a1])
    yield scene("committer, resetter", c, s, staged=[a1])
    yield scene("committer, merger", c, m, beside=[beside], staged=[a1])
    gone = [do.write("w1", "a", "1"), do.commit("p1"), do.delete("d1", "a"), do.commit("p2")]
    picker = client("p", do.cherry_pick("h1", "main~1", branch=SIDE))
    yield scene("picker onto a source, merger", picker, m, before=gone, beside=[beside])
    after = client("r", do.read("r1", "z"), do.read("r2", "z"))
    yield scene("merger, reader that has read before", m, after, beside=[beside])
    yield scene("committer that cleans, reader", client("c", do.commit("c1"), do.clean("c2")), r, staged=[a1])
    yield scene("writer, committer that comes back", w, client("c", do.commit("c1"), again=[do.commit("c2")]))
    yield scene("writer, resetter that commits", w, client("s", do.reset("s1"), do.commit("c1")), staged=[a1])
    yield scene("writer, resetter, cleaner", w, s, k, staged=[a1])
    yield scene("uploader, committer", client("w", do.upload("w2", "a", "2")), c, staged=[a1])
    commits_twice = client("c", do.commit("c1"), do.write("w3", "a", "3"), do.commit("c2"))
    yield scene("committer of two commits, cleaner", commits_twice, k, staged=[a1])
    yield scene("writer, committer, reader", w, c, r)
    yield scene("writer, committer, cleaner", w, c, k, staged=[a1])
    yield scene("writer, committer, resetter", w, c, s, staged=[a1])
    yield scene("committer, reader, cleaner", c, r, k, staged=[a1])
    yield scene("deleter, committer, reader", client("w", do.delete("d0", "a")), c, r, committed=[a1])
    yield scene("two writers, committer", client("v", a1), w, c, alike=[("v", "w")])
    yield scene("writer, committer, merger", w, c, m, beside=[beside], staged=[a1], quick=Quick.NO_LOSS)
    yield scene("writer, two committers", w, c, d, staged=[b0], alike=[("c", "d")], quick=Quick.NO_LOSS)
    same = [do.write("w3", "a", "1")]
    yield scene("writer of the same, two committers", w, c, d, committed=[a1], staged=same, quick=Quick.NO_LOSS)
    yield from _conditional_scenes(c)
    yield scene("server of a writer and a reader", server("h", [a2], [do.read("r1", "a")]), staged=[a1])
    twice = client("r", do.read("r1", "a"), do.read("r2", "a"))
    yield scene("writer, committer, reader that has read before", w, c, twice, staged=[a1])
    writer_too = client("w", a1, do.write("w2", "a", "2"))
    yield scene("writer of two, committer, reader that has read before", writer_too, c, twice, quick=Quick.NEVER)
    v_commits = client("v", a1, do.commit("c1"))
    yield scene("two writers that commit", v_commits, client("w", a2, do.commit("d1")), quick=Quick.NO_LOSS)
    yield scene("writer that commits, writer, committer", v_commits, w, d, quick=Quick.NEVER)
    kinds = [("v", "w"), ("c", "d")]
    yield scene("two writers, two committers", client("v", a1), w, c, d, alike=kinds, quick=Quick.NEVER)
    # The branch `side` is deleted and made again; its paths are not those of `main`.
    there = do.write("w2", "a", "2", branch=SIDE)
    made = [do.create_branch("b0"), do.write("w1", "a", "1", branch=SIDE)]
    x, on_side = client("x", do.delete_branch("x1"), do.create_branch("x2")), client("w", there)
    yield scene("writer, deleter that creates again", on_side, x, before=made)
    c_side = client("c", do.commit("c1", branch=SIDE))
    yield scene("writer, committer, deleter that creates again", on_side, c_side, x, before=made, quick=Quick.NO_LOSS)
    # Its commit is found by its id, though no process noted that the branch took it.
    once = client("c", do.commit("c1", branch=SIDE), do.delete_branch("x1"))
    yield scene("committer that deletes its branch", once, before=made, quick=Quick.ALL)
    creator = client("y", do.create_branch("y1"))
    yield scene("writer, deleter, creator", on_side, client("x", do.delete_branch("x1")), creator, before=made)
    cleaning = client("x", do.delete_branch("x1"), do.create_branch("x2"), do.clean("x3"))
    yield scene("writer, deleter that creates again and cleans", on_side, cleaning, before=made)


def _collecting_scenes() -> Iterator[Scene]:
    a1 = do.upload("w1", "a", "1")
    w, c, r = client("w", do.write("w2", "a", "2")), client("c", do.commit("c1")), client("r", do.uncommitted_run("r1"))
    yield scene("committer, run", c, r, staged=[a1])
    back = client("r", do.uncommitted_run("r1"), again=[do.uncommitted_run("r2")])
    yield scene("committer, run that comes back", c, back, staged=[a1])
    # The commit has read the cell that the write replaces, and the run finds neither the cell nor the commit.
    w_runs = client("r", do.write("w2", "a", "2"), do.uncommitted_run("r1"))
    yield scene("committer, writer that runs", c, w_runs, staged=[a1])
    yield scene("writer, committer, run", w, c, r, staged=[a1])
    yield scene("resetter, committer, run", client("s", do.reset("s1")), c, r, staged=[a1])
    copies_it = client("v", do.copy("w3", "a", "b", "3"))
    own = client("u", do.upload("w2", "a", "2"))
    yield scene("uploader, copier of what it uploads", own, copies_it, staged=[do.write("w0", "c", "0")])
    late = client("r", do.uncommitted_run("r1", options=FENCING))
    u = client("u", do.upload("w2", "a", "2"))
    yield scene("uploader, run that fences", u, late, staged=[do.write("w1", "a", "1")])
    # A commit takes the token that the uploader knows, so his first cell is lost. The run fences his slice and reads.
    # His second cell is in a token that was not frozen, and is committed before he looks at his slice once more.
    commits = client("r", do.commit("c0"), do.uncommitted_run("r1", options=FENCING, between=do.commit("c9")))
    yield scene("uploader, run that fences and commits", u, commits, staged=[do.write("w1", "a", "1")])
    dies = client("r", do.uncommitted_run("r1", options=FENCING), again=[do.uncommitted_run("r2")])
    yield scene("uploader, run that fences and comes back", u, dies, staged=[do.write("w1", "a", "1")])
    yield scene("uploader, committer, freezer", u, c, client("r", do.fence("g1")), quick=Quick.NEVER)
    yield scene("writer, committer, freezer", w, c, client("r", do.freeze("f1")), staged=[a1], quick=Quick.NO_FAULT)
    closing = client("u", do.upload("w2", "a", "2"), do.close("x2"))
    yield scene("uploader that closes, run", closing, r, quick=Quick.NO_FAULT)
    for puts in (False, True):
        broken = client("u", do.fail_upload("u2", "a", puts=puts), do.close("x2"))
        name = "uploader who fails once the bytes are put, run" if puts else "uploader who fails, run that fences"
        yield scene(name, broken, r if puts else late, quick=Quick.NO_FAULT)
    yield scene("freezer that cleans, run", client("f", do.freeze("f1"), do.clean("k1")), r, staged=[a1])
    soon = client("k", do.clean("k1", late_ms=FAR_FUTURE_MS))
    f = client("f", do.freeze("f1"))
    yield scene("freezer, impatient cleaner", f, soon, staged=[do.write("w1", "a", "1")], clocks_agree=False)
    # Links: an address was handed out, and its slice has closed.
    issued = [do.issue("i0")]
    link = client("l", do.link_issued("w2", "a", "2"))
    expirer = client("r", do.expire("e1"), do.uncommitted_run("r1"))
    yield scene("linker, expirer that runs", link, expirer, before=issued, quick=Quick.NO_FAULT)
    freezing = client("r", do.fence("g1"), do.clean_records("k1"), do.uncommitted_run("r1"))
    yield scene("linker, run after fencing and cleaning", link, freezing, before=issued, quick=Quick.NO_FAULT)
    linking_again = client("l", do.link_issued("w2", "a", "2"), again=[do.link_issued("w3", "a", "3")])
    yield scene("two linkers, run", linking_again, client("m", do.link_issued("w4", "b", "4")), r, before=issued)
    k = client("k", do.clean_records("k1"))
    yield scene("linker, record cleaner, run", link, k, r, before=issued)
    k_abandons = client("k", do.abandon("x1"), do.clean_records("k1"))
    yield scene("linker, run, cleaner that abandons it", link, r, k_abandons, before=issued)
    yield scene("linker, committer, run", link, c, r, before=issued)
    # A URL was signed for the address, and its client puts bytes again after the commit, also when it has expired.
    signer = client("l", do.link_signed("w2", "a", "2"))
    yield scene("linker with a signed URL, committer", signer, c, quick=Quick.NO_LOSS)
    late_signer = client("l", do.link_signed("w2", "a", "2", late_ms=3_600_000))
    yield scene("late linker with a signed URL, committer", late_signer, c, clocks_agree=False, quick=Quick.NO_LOSS)
    yield scene("linker with a signed URL, run that fences", signer, late)
    # A process that starts anew knows nothing of what it had under way.
    late_u = client("u", do.upload("w2", "a", "2"), again=[do.close("x2"), do.upload("w3", "b", "3"), do.close("x3")])
    yield scene("uploader that comes back, run", late_u, r, staged=[do.write("w1", "b", "1")], quick=Quick.NO_FAULT)
    # Copies: from `side` to `main`, which a run reads first.
    source = [do.create_branch("b0"), do.upload("w1", "z", "1", branch=SIDE)]
    copier = do.copy("w2", "z", "a", "2", ref=SIDE)
    gone = do.delete("d2", "z", branch=SIDE)
    yield scene("copier that deletes, run", client("w", copier, gone), r, before=source, quick=Quick.NO_FAULT)
    yield scene("copier that deletes, cleaner, run", client("w", copier, gone), k, r, before=source)
    q, kk = client("q", do.uncommitted_run("r2")), client("k", do.clean_records("k1"), do.clean_records("k2"))
    yield scene("copier that deletes, cleaner, two runs", client("w", copier, gone), kk, r, q, before=source)
    yield scene("copier, deleter, run", client("w", copier), client("d", gone), r, before=source)
    # The same path is written again: the second look must see another row, not just that something is there.
    again = client("d", do.upload("w3", "z", "3", branch=SIDE))
    yield scene("copier, overwriter, run", client("w", copier), again, r, before=source)
    # Records of copies behind the first page, and a branch whose name is longer than another's by a minus.
    paged = client("r", do.uncommitted_run("r1", options=PAGED))
    others = [do.copy(f"v{n}", "y", f"c{n}", f"v{n}", ref=SIDE) for n in range(3)]
    copied = [*source, do.upload("v9", "y", "9", branch=SIDE), *others]
    both = client("w", copier, gone)
    yield scene("copier that deletes, run in pages", both, paged, before=copied, quick=Quick.NO_FAULT)
    longer = [do.create_branch("b0", branch="main-b"), do.upload("w0", "z", "0", branch="main-b")]
    yield scene("committer, run beside a longer name", c, r, before=longer, staged=[a1])
    yield scene(
        "copier, resetter, run", client("w", copier), client("s", do.reset("s1", branch=SIDE)), r, before=source
    )
    # Take an owner for dead, remove the record that was his, and collect: what he still does may not count.
    takes = client("r", gone, do.fence("g1"), do.clean_records("k1"), do.uncommitted_run("r1"))
    name = "copier, run after fencing and cleaning"
    yield scene(name, client("w", copier), takes, before=source, quick=Quick.NO_FAULT)
    # A reader reads bytes, and the run waits for those whom it saw reading when it had marked.
    b, graceful = client("b", do.read_bytes("b1", "a")), client("r", do.uncommitted_run("r1", has_grace=True))
    over = client("w", do.upload("w2", "a", "2"))
    yield scene("reader of bytes, uploader, run with grace", b, over, graceful, staged=[a1], quick=Quick.NO_FAULT)
    # A rename of the second path to the first while the cells are read one at a time.
    paged = client("r", do.uncommitted_run("r1", options=PAGED))
    renamer = client("w", do.copy("w2", "d", "a", "2"), do.delete("d2", "d"))
    yield scene("renamer, run in pages", renamer, paged, staged=[do.upload("w1", "b", "1"), do.upload("w0", "d", "0")])
    # Committed data: the first of two commits, or what only an old reading of `main` names, expires.
    t = client("r", do.committed_run("r1"))
    brancher = client("h", do.create_branch("h1", "main~1"))
    yield scene("brancher, committed run", brancher, t, before=PAST, quick=Quick.NO_FAULT)
    yield scene(
        "hard resetter of its branch, committed run", client("h", do.hard_reset("h1", "main~1")), t, before=PAST
    )
    # A reset of one object names what the branch's commit has there, and that commit goes.
    resetter, sealed = client("s", do.reset_object("s1", "a")), [do.upload("w2", "a", "2")]
    goes = client("r", do.commit("c1"), do.committed_run("r1"), do.commit("c2"))
    one = "resetter of an object, committer that runs"
    yield scene(one, resetter, goes, before=[a1, do.commit("p1"), RULED], staged=sealed, resets_objects=True)
    one = "resetter of an object, committer, committed run"
    yield scene(one, resetter, c, t, before=[a1, do.commit("p1"), RULED], staged=sealed, resets_objects=True)
    reader = client("b", do.read_bytes("b1", "a", ref="main~1"))
    waiting = client("r", do.committed_run("r1", has_grace=True))
    yield scene("reader of a commit, committed run with grace", reader, waiting, before=PAST, quick=Quick.NO_FAULT)
    # Without force: what is staged meanwhile is refused or kept.
    gentle = client("h", do.hard_reset("h1", "main~1", force=False))
    late_w = client("w", do.write("w3", "a", "3"))
    yield scene("writer, gentle hard resetter", late_w, gentle, before=PAST)
    w_commits = client("w", do.write("w3", "a", "3"), do.commit("c1"))
    yield scene("writer that commits, gentle hard resetter", w_commits, gentle, before=PAST)
    two = client("g", do.hard_reset("g1", "main~1", force=False))
    for name, actors in (
        ("writer, committer, gentle hard resetter", (c, gentle)),
        ("writer, freezer, gentle hard resetter", (client("f", do.freeze("f1")), gentle)),
        ("writer, two gentle hard resetters", (two, gentle)),
    ):
        yield scene(name, late_w, *actors, before=PAST, quick=Quick.NO_FAULT)
    yield scene("gentle hard resetter, committed run", gentle, t, before=PAST)
    # A run bumps the branch that its commits were made for; only the intent stands before another.
    elsewhere = client("h", do.hard_reset("h1", "main~1", branch=SIDE))
    beside = [*PAST, do.create_branch("b0")]
    yield scene("hard resetter, committed run", elsewhere, t, before=beside)
    yield scene("reverter, committed run", client("h", do.revert("h1", "main")), t, before=PAST)
    from_past = client("h", do.copy("w3", "a", "b", "3", ref="main~1"))
    yield scene("copier from a commit, committed run", from_past, t, before=PAST, quick=Quick.NO_FAULT)
    by_rules = client("r", do.committed_run("r1"))
    s = client("s", do.set_rules("q1", "20d"))
    yield scene("setter of rules, run by rules", s, by_rules, before=PAST)
    h = client("h", do.create_branch("h1", "main~1"))
    yield scene("setter of rules, brancher, run by rules", s, h, by_rules, before=PAST)
    # Several who name what is about to go, or work beside them.
    reverter = client("v", do.revert("v1", "main"))
    writer = client("w", do.upload("w3", "b", "3"), do.commit("c1"))
    yield scene("brancher, reverter, committed run", brancher, reverter, t, before=PAST)
    yield scene("writer that commits, brancher, committed run", writer, brancher, t, before=PAST)
    yield scene("reverter, setter of rules, run by rules", reverter, s, by_rules, before=PAST)
    # Both kinds at once, and an actor that needs what either wants.
    u = client("u", do.uncommitted_run("r2"))
    yield scene("uncommitted run, committed run", u, t, before=PAST, staged=[do.upload("w3", "b", "3")])
    dropper = client("d", do.delete("d3", "b"))
    yield scene("deleter, both runs", dropper, u, t, before=PAST, staged=[do.upload("w3", "b", "3")])
    yield scene("copier from a commit, both runs", from_past, u, t, before=PAST)
    # A run of uncommitted data that leaves out what was swept: only what was swept before it read staging.
    beside_swept = client("u", do.uncommitted_run("r2"))
    yield scene("copier from a commit, both runs as planned", from_past, beside_swept, t, before=PAST)
    yield scene("brancher, both runs", h, u, t, before=PAST)
    yield scene("committer, committed run", c, t, before=PAST, staged=[do.write("w3", "b", "3")])
