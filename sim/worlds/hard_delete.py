"""Worlds of deleting at once: who takes names away, beside everyone who can come to name the address, or to read it.

A step check holds for each state: no address that waits in the queue is named. So a worker may delete it at any
moment, and a world needs one only where an actor would notice that the bytes are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from explorer.actors import Actor, Ending, Violation
from lakebed.base import Conflict, OutcomeUnknown, Unavailable
from lakebed.gc.live import QueueWorker
from lakebed.gc.messages import Mode, RunKind
from lakebed.gc.rules import DAY_MS
from lakebed.versions import Condition, Versions
from sim.checkers.ledgers import (
    deletions_count_once,
    recorded,
    totals_are_those_of_the_ledger,
    unless_one_died,
    what_is_recorded_is_gone,
)
from sim.checkers.reachable import nothing_queued_is_named, queued
from sim.ports.ports import SimDeleter, SimObjectStore, SimPorts, set_ahead
from sim.ports.scene import Quick, Scene
from sim.scenes import deeds as do
from sim.scenes.collecting import STEPS
from sim.scenes.doing import FAR_FUTURE_MS, SIDE, Do, doing, versions
from sim.scenes.scenes import client, scene

turn_on = doing("clean")(lambda repo: repo.hard_delete.change(by="sim", is_on=True, grace_s=0))


def hard(deed: Do) -> Do:
    """Act as a process that knows the setting, and writes down what it let go as soon as it is through."""

    async def act(repo: Versions) -> object:
        repo.hard_delete.is_on = True
        try:
            return await deed.act(repo)
        finally:
            with suppress(Unavailable, OutcomeUnknown):
                await repo.hard_delete.flush()

    return Do(deed.operation, act)


@doing("clean")
async def clean_claims(repo: Versions, *, late_ms: int = 0) -> None:
    """Wipe retired tokens as a cleaner does, whose clock is `late_ms` ahead."""
    set_ahead(repo.ports, late_ms)
    await repo.cleanup._clean_claims()  # noqa: SLF001  # a part of it, for fewer states


@doing("clean")
async def work(repo: Versions) -> None:
    """Delete what is in the queue."""
    store: object = repo.objectstore
    assert isinstance(store, SimObjectStore)
    with suppress(Conflict):
        await QueueWorker(repo, SimDeleter(store.own), linger_ms=0).work()


def hard_delete_scenes() -> Iterator[Scene]:
    a1, a2 = do.upload("w1", "a", "1"), hard(do.upload("w2", "a", "2"))
    w, c, d = client("w", a2), client("c", do.commit("c1")), client("d", do.commit("d1"))
    s, k, x = client("s", do.reset("s1")), client("k", clean_claims("k1")), client("x", work("x1"))
    f, copier = client("f", do.freeze("f1")), client("h", do.copy("w3", "a", "b", "3"))
    gone = client("e", hard(do.delete("e1", "a")))
    yield _scene("overwriter, committer, queue", w, c, staged=[a1])
    yield _scene("deleter, committer, queue", gone, c, staged=[a1], quick=Quick.NO_LOSS)
    twice = client("w", hard(do.read("r0", "a")), a2)
    yield _scene("overwriter that has read, committer, queue", twice, c, staged=[a1], quick=Quick.NO_FAULT)
    yield _scene("overwriter, copier, queue", w, copier, staged=[a1], quick=Quick.NO_FAULT)
    yield _scene("deleter, copier, queue", gone, copier, staged=[a1])
    copies = client("h", do.copy("w3", "a", "b", "3"), do.commit("c1"))
    yield _scene("overwriter, copier that commits, queue", w, copies, staged=[a1], quick=Quick.NO_FAULT)
    other = client("v", hard(do.upload("v2", "a", "v2")))
    yield _scene("two overwriters, queue", w, other, staged=[a1], alike=[("w", "v")])
    how: dict[str, Any] = {"staged": [a1], "quick": Quick.NO_FAULT}
    yield _scene("two overwriters, committer, queue", w, other, c, alike=[("w", "v")], **how)
    # A creator is refused once a commit may have taken his first cell.
    creator = client("v", hard(do.upload("v2", "a", "v2", if_none_match=True)))
    yield _scene("creator, overwriter, committer, queue", creator, w, c, quick=Quick.NO_FAULT)
    refused = hard(do.link_issued("l1", "a", "l1", condition=Condition(if_none_match=True)))
    tries_twice = client("l", refused, do.link_issued("l2", "b", "l2"), hard(do.delete("l3", "b")))
    out, name = [do.issue("i0")], "linker who is refused, overwriter, committer, queue"
    yield _scene(name, tries_twice, w, c, before=out, quick=Quick.NEVER)
    yield _scene("overwriter, deleter, queue", w, gone, staged=[a1])
    back = client("o", hard(do.reset_object("o1", "a")))
    for who, actor in (("committer", c), ("overwriter", w), ("copier", copier)):
        yield _scene(f"resetter of an object, {who}, queue", back, actor, resets_objects=True, **how)
    # The cleaner finds in the claims which cells no commit took.
    yield _scene("resetter, committer, queueing cleaner", s, c, k, staged=[a1], quick=Quick.NO_FAULT)
    # As S3 clients rename: the delete owns nothing, for the copy took the mark off.
    renames = client("h", do.copy("w3", "a", "b", "3"), hard(do.delete("e1", "a")))
    yield _scene("copier that deletes the source, queue", renames, staged=[a1])
    yield _scene("copier that deletes the source, overwriter, queue", renames, w, staged=[a1])
    yield _scene("two committers, queueing cleaner", c, d, k, staged=[a1], alike=[("c", "d")], quick=Quick.NO_FAULT)
    over = client("c", do.commit("c1"), a2, do.commit("c2"))
    yield _scene("committer of two versions, committer, queueing cleaner", over, d, k, staged=[a1], quick=Quick.NEVER)
    yield _scene("uploader, resetter, queueing cleaner", client("w", hard(do.upload("w2", "b", "2"))), s, k)
    yield _scene("uploader, committer, queueing cleaner", client("w", hard(do.upload("w2", "b", "2"))), c, k, **how)
    yield _scene("copier, resetter, queueing cleaner", copier, s, k, staged=[a1], quick=Quick.NO_FAULT)
    yield _scene("freezer, committer, queueing cleaner", f, c, k, staged=[a1], quick=Quick.NO_FAULT)
    yield _scene("freezer, resetter, queueing cleaner", f, s, k, staged=[a1], quick=Quick.NO_FAULT)
    # Its first pass finds the tokens retired, its second drops the claims: each of the tokens was wiped by then.
    impatient = client("k", clean_claims("k1"), clean_claims("k2", late_ms=FAR_FUTURE_MS))
    yield _scene("committer, impatient queueing cleaner", c, impatient, staged=[a1], clocks_agree=False)
    late = client("w", hard(do.read("r0", "a")), hard(do.upload("w2", "a", "2")))
    name = "late uploader, committer, impatient queueing cleaner"
    yield _scene(name, late, c, impatient, clocks_agree=False, quick=Quick.NEVER)
    there = hard(do.upload("w2", "a", "2", branch=SIDE))
    made = [do.create_branch("b0"), do.upload("w1", "a", "1", branch=SIDE)]
    drops = client("y", do.delete_branch("y1"), do.create_branch("y2"), clean_claims("y3"))
    name = "uploader, deleter of the branch that cleans"
    yield _scene(name, client("w", there), drops, before=made, quick=Quick.NO_FAULT)
    moves = client("g", do.hard_reset("g1", "main~1"), clean_claims("g2"))
    yield _scene(
        "committer, hard resetter that cleans", c, moves, before=[do.write("p1", "z", "z"), do.commit("p2")], **how
    )
    # Bytes go while an actor is about to need them, or to list them.
    yield _scene("overwriter, uploader that repeats, committer, worker", w, other, c, x, staged=[a1], quick=Quick.NEVER)
    yield _scene("overwriter, copier, worker", w, copier, x, staged=[a1], quick=Quick.NO_FAULT)
    linker = client("l", hard(do.link_issued("w4", "a", "4")))
    yield _scene("linker, overwriter, worker", linker, w, x, before=out, quick=Quick.NO_FAULT)
    # Whose page is larger, for an object came to the queue, has the same number.
    y, waiting = client("y", hard(do.upload("w3", "b", "3")), work("y1")), [a1, a2, do.upload("w0", "b", "0")]
    how = {"staged": waiting, "private": STEPS, "quick": Quick.NO_FAULT}
    how |= {"checks": (what_is_recorded_is_gone, deletions_count_once, _what_went_is_recorded)}
    yield _scene("worker, overwriter that works", x, y, **how)
    # It turns the page that a slower worker is at.
    morning = client("y", do.days_later(work("y1"), days=1))
    yield _scene("worker, worker of the next day", x, morning, **how)
    r = client("r", do.uncommitted_run("r1"))
    yield _scene("overwriter, worker, run", client("w", a2, work("x1")), r, staged=[a1])
    r, planned = client("r", do.apply_planned("r1")), [a1, a2, do.plan_only("p1", RunKind.UNCOMMITTED)]
    yield _counting_once("worker, apply of a plan", x, r, staged=planned, quick=Quick.NO_FAULT)
    # The cleaner queues days later what a reset left, and a run has taken it, or is about to.
    later = client("k", clean_claims("k1", late_ms=3 * DAY_MS), work("x1"))
    before = [a1, do.reset("s0"), do.uncommitted_run("r0")]
    yield _counting_once("queueing cleaner that works days after a run", later, staged=before)
    # Its record says that the object had a name until after the run took it.
    ahead = [a1, do.days_later(hard(do.upload("w2", "a", "2")), days=1), do.uncommitted_run("r0")]
    worker = client("x", do.days_later(work("x1"), days=2))
    yield _counting_once("worker of what a clock that was ahead queued, after a run", worker, staged=ahead)
    # It lists nothing again of what the run before it listed, so it does not see that an object went since.
    next_run = client("r", do.uncommitted_run("r1", mode=Mode.AUTOMATIC, days=1))
    since = [a1, do.close("k0"), do.uncommitted_run("r0", mode=Mode.AUTOMATIC), a2, work("x0")]
    name = "run a day after a worker, which goes on from an earlier one"
    yield _counting_once(name, next_run, staged=since)
    before = [a1, do.reset("s0"), do.plan_only("p1", RunKind.UNCOMMITTED)]
    name = "queueing cleaner that works, apply of a plan that is days old"
    yield _counting_once(name, later, client("r", do.apply_planned("r1")), staged=before, quick=Quick.NO_FAULT)
    # The record of a commit that was never published names what the worker deletes, until it expires.
    vain = [a1, do.commit_in_vain("c0"), do.upload("w2", "a", "2"), do.commit("c1")]
    vain += [clean_claims("k0"), do.set_rules("q1", "1d")]
    r = client("r", do.committed_run("r1"))
    yield _counting_once("worker, committed run that expires a commit in vain", x, r, staged=vain, quick=Quick.NO_FAULT)
    yield _counting_once("committed run that expires a commit in vain, after a worker", r, staged=[*vain, work("x0")])
    five = (copier, f, s, client("k", clean_claims("k1"), do.clean_records("k2")), x)
    for name, actors in (
        ("copier, freezer, resetter, cleaner, worker", five),
        ("copier, overwriter, freezer, resetter, cleaner, worker", (*five, w)),
    ):
        # That each ends alone is for the smaller ones of the same actors.
        yield _scene(name, *actors, staged=[a1], quick=Quick.NEVER).also(foresees=True, is_lock_free=False)


def _counting_once(name: str, *actors: Actor, **how: Any) -> Scene:
    """A scene in which ledger and totals count each deletion once, at the latest when all is tidied up."""
    made = _scene(name, *actors, private=STEPS, **how).tidied_by(then=_work_at_last)
    return made.also(what_is_recorded_is_gone, *map(unless_one_died, _COUNTED), tidied=_COUNTED)


_COUNTED: Final = (deletions_count_once, totals_are_those_of_the_ledger)


async def _work_at_last(ports: SimPorts) -> None:
    await work("tidy").act(versions(ports))


def _what_went_is_recorded(ending: Ending) -> None:
    """Check that the ledger or the queue has each of the two replaced objects that is gone."""
    there = {content for content, _, _ in ending.disk.objectstore.values()}
    gone = {b"0", b"1"} - there
    on_record = {key for key, _ in recorded(ending.disk)} | queued(ending.disk)
    if len(on_record) < len(gone):
        raise Violation(f"these objects are gone, and on record are {sorted(on_record)}: {sorted(gone)}")


def _scene(name: str, *actors: Actor, before: Sequence[Do] = (), **how: Any) -> Scene:
    return scene(name, *actors, before=[turn_on("q0"), *before], **how).also(steps=[nothing_queued_is_named])
