"""Worlds of an undo: the shipped undo of a deferred run, beside every run that could let go what comes back.

What a run took is reachable again once its record says `undone`: then all that its commits name must be there, at
whatever moment another run looked. Who undoes twice goes on where the first one died.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import structs

from explorer.actors import Actor, Ending, Violation
from explorer.effects import Effect
from explorer.operations import Operation
from lakebed.gc.live import CollectionService, JobBook
from lakebed.gc.live.records.jobs import LOST_AFTER_MS
from lakebed.gc.messages import JobState, PurgeRequest, RunKind, RunState, Undo
from lakebed.versions import CommitExpired, PathExpired, Versions, keys
from sim.checkers.reachable import reachable, what_was_undone_stays
from sim.ports.ports import set_ahead
from sim.ports.scene import Quick, Scene
from sim.scenes import deeds as do
from sim.scenes.applies import clear, plan, publish, sweep
from sim.scenes.collecting import OPTIONS
from sim.scenes.doing import MAIN, Do, doing
from sim.scenes.flows import DEFERRED, PAST, RULED, deferring, metadata_scene, real
from sim.scenes.scenes import client, scene

from .erasure import erase
from .holds import add_hold, what_is_held_stays
from .lifecycle import DUE, set_policy

_SHARED: Final = (
    do.upload("v1", "a", "1"),
    do.upload("v2", "c", "2"),
    do.commit("p1"),
    do.delete("v3", "c"),
    do.commit("p2"),
    RULED,
    do.committed_run("q1", window="7d"),
    do.delete("v4", "a"),
    do.commit("p3"),
)
"""A run took the first commit, and keeps what was at `c`. A later run takes the next commit, and the object at `a`."""
_LET_OFF: Final = (
    do.upload("v1", "a", "1"),
    do.commit("p1"),
    do.delete("v2", "a"),
    do.commit("p2"),
    do.copy("v3", "a", "b", "3", ref="main~1"),
    RULED,
    do.committed_run("q1", window="7d"),
    do.clean_records("k1"),
)
"""A run took the first commit, and let its object off, for a cell named it."""
_TWO_SWEPT: Final = (
    do.upload("v1", "a", "1"),
    do.commit("p1"),
    do.upload("v2", "c", "2"),
    do.commit("p2"),
    do.delete("v3", "a"),
    do.commit("p3"),
    RULED,
    do.committed_run("q1", window="7d"),
)
"""A run took two commits. Only the tree of the later one is compared with its child, and so kept in any case."""
_DUE: Final = (
    do.upload("w1", "a", "1"),
    do.commit("p1"),
    set_policy("q0"),
    do.collect("q1", RunKind.LIFECYCLE, window="7d"),
)


@doing("undo")
async def undo(repo: Versions, *, again: bool = True, newest: bool = False) -> None:
    """Undo the oldest run that is deferred or, to do it `again`, was undone already. Or the newest one."""
    service = CollectionService(repo, OPTIONS)
    for run_id, record in (await repo.retired.runs())[:: -1 if newest else 1]:
        if record.until_ms or (again and record.state is RunState.UNDONE):
            await service.undo(run_id, Undo())
            return


def undoing_scenes() -> Iterator[Scene]:
    undoer = client("x", undo("x1"), again=[undo("x2")])
    uncommitted = client("u", do.uncommitted_run("u1"))
    yield _scene("undoer, purger", undoer, client("p", do.purge("p9")), quick=Quick.ALL)
    yield _scene("two undoers", undoer, client("y", undo("y1")), quick=Quick.ALL)
    yield _scene("undoer, committed run", undoer, client("r", do.committed_run("r1")), before=_SHARED)
    deferrer = client("r", do.committed_run("r1", window="7d"))
    yield _scene("undoer, run that defers", undoer, deferrer, before=_SHARED, quick=Quick.NEVER)
    dropper = client("d", do.delete("d1", "b"), do.uncommitted_run("u1"))
    yield _scene("undoer, deleter that collects", undoer, dropper, before=_LET_OFF)
    yield _scene("undoer, uncommitted run", undoer, uncommitted)
    brancher = client("b", do.create_branch("b1", "main~1"))
    yield _scene("undoer, brancher from an old commit", undoer, brancher)
    branches = client("x", undo("x1"), do.create_branch("b1", "main~1"))
    yield _scene("undoer that branches, uncommitted run", branches, uncommitted, quick=Quick.NEVER)
    eraser = client("e", erase("e1"))
    yield _scene("undoer, eraser", undoer, eraser, due=[DUE], quick=Quick.NEVER)
    first, second = client("r", do.apply_planned("r1", window="7d")), client("z", do.resume("z1"))
    made = [*PAST, do.plan_only("q1", RunKind.COMMITTED)]
    twice = client("x", undo("x1"), undo("x2"))
    yield _scene("undoer, two applies of a run", twice, first, second, before=made, quick=Quick.NEVER)
    yield from _beside_several(undoer)
    yield from _beside_upkeep()
    yield from _beside_jobs(undoer)
    yield from _amid_applies()
    yield from _beside_erasures()
    yield from _beside_readers()
    # A hold of a commit that the run took, while the run is undone.
    purger, holder = client("p", do.purge("p9")), client("h", add_hold("h1", commit="main~1"))
    yield _scene("undoer, holder of a commit", undoer, holder).also(what_is_held_stays)
    yield _scene("undoer, holder of a commit, purger", undoer, holder, purger).also(what_is_held_stays)
    for name, actor in (
        ("purger", purger),
        ("uncommitted run", uncommitted),
        ("copier", client("h", do.copy("h1", "a", "b", "3"))),
        ("other lifecycle run", client("r", do.collect("r1", RunKind.LIFECYCLE))),
    ):
        how: dict[str, Any] = {"before": _DUE, "due": [DUE], "quick": Quick.NEVER}
        yield _scene(f"undoer of a lifecycle run, {name}", undoer, actor, **how).also(what_was_undone_stays)


def _beside_several(undoer: Actor) -> Iterator[Scene]:
    """Several runs of several kinds at once, some with a window, and their purges, while one run is undone."""
    purger, uncommitted = client("p", do.purge("p9")), client("u", do.uncommitted_run("u1"))
    run = client("r", do.committed_run("r1", window="7d"), do.purge("r2"))
    names = client("h", do.create_branch("h1", "main~1"), do.delete_branch("h2"), do.undelete_branch("h3"))
    yield _scene("undoer, purger, two runs, brancher", undoer, purger, run, uncommitted, names, quick=Quick.NEVER)
    name = "undoer, run that defers and purges, uncommitted run"
    yield _scene(name, undoer, run, uncommitted, before=_SHARED, quick=Quick.NEVER)
    lifecycle = client("l", do.collect("l1", RunKind.LIFECYCLE, window="7d"), do.purge("l2"))
    before = (*_DUE, do.upload("w4", "b", "4"), do.commit("p4"), do.set_rules("q2", "1d"))
    name, actors = "undoer of a lifecycle run, purger, three runs", (undoer, purger, lifecycle, run, uncommitted)
    yield _scene(name, *actors, before=before, due=[DUE], quick=Quick.NEVER).also(what_was_undone_stays)


def _scene(
    name: str,
    *actors: Actor,
    before: Sequence[Do] = DEFERRED,
    due: Sequence[bytes] = (),
    quick: Quick | None = Quick.NO_FAULT,
) -> Scene:
    made = scene(name, *actors, before=before, due=due, others_look=True, quick=quick)
    return deferring(made, due=due, erased=DUE if due else b"")


@doing("undo")
async def undo_halfway(repo: Versions) -> None:
    """Undo the oldest run that is deferred, and die once its record says so: all that it had noted is still there."""
    for run_id, record in await repo.retired.runs():
        if record.until_ms:
            await _up_to_its_record(CollectionService(repo, OPTIONS).undo(run_id, Undo()))
            return


@types.coroutine
def _up_to_its_record(undoing: Coroutine[Any, Any, Any]) -> Generator[Effect, Any, None]:
    outcome = None
    while True:
        what = undoing.send(outcome)
        outcome = yield what
        if what[0] == "set_if" and what[2].startswith(keys.RUN):
            undoing.close()
            return


def job(name: str, deed: Do, *, after_ms: int = 0) -> Do:
    """Do it as a job of a server, unless another one is running. `after_ms`: by a clock that is so much ahead."""

    async def act(repo: Versions) -> None:
        set_ahead(repo.ports, after_ms)
        book = JobBook(repo)
        begun = await book.begin(PurgeRequest(), by=name)
        await deed.act(repo)
        await book.finish(structs.replace(begun, state=JobState.DONE))

    return Do(Operation(name, "run"), act)


def _beside_jobs(undoer: Actor) -> Iterator[Scene]:
    """A job of a server that seems to be gone, and one that takes its place: both may be at work."""
    first = client("p", job("p1", do.purge("p1")))
    second = client("q", job("q1", do.purge("q1"), after_ms=LOST_AFTER_MS))
    yield _scene("undoer, job that purges, job in its place", undoer, first, second, quick=Quick.NEVER)
    deferrer = client("r", job("r1", do.committed_run("r1", window="7d")))
    resumer = client("z", job("z1", do.resume("z1"), after_ms=LOST_AFTER_MS))
    name = "undoer, job that defers, job in its place"
    yield _scene(name, undoer, deferrer, resumer, before=_SHARED, quick=Quick.NEVER)


def _beside_upkeep() -> Iterator[Scene]:
    """Collections of metadata, which take trees, and folders and records of runs. Trees are the real ones."""
    # Days after the run began: till then the trees of its commits stay for its readers.
    first, second = (do.collect(name, RunKind.METADATA, days=30) for name in ("m1", "m2"))
    undoer, upkeep = real("x", undo("x1"), again=[undo("x2")]), real("m", first, second)
    yield metadata_scene("undoer, metadata run", undoer, real("m", first), before=_TWO_SWEPT, sweeps=True)
    # Its record says that it is undone, and all that it noted is there: readers and runs have only the record to go by.
    halfway = [*_TWO_SWEPT, undo_halfway("q2")]
    brancher = real("b", do.create_branch("b1", "main~2"))
    name = "undoer that goes on, brancher, upkeep"
    made = metadata_scene(name, undoer, brancher, upkeep, before=halfway, sweeps=True)
    yield made.also(what_was_undone_can_be_named)
    # A run that counts on what another one took has ended. Its folder is empty, and its record goes.
    counted = [*_SHARED, do.committed_run("r1"), do.collect("m0", RunKind.METADATA, days=30)]
    name = "undoer, upkeep that forgets who counted"
    yield metadata_scene(name, real("x", undo("x1")), real("m", second), before=counted, sweeps=True)


_PLANNED: Final = (*PAST, plan("q1"), plan("q2"))
"""Two plans of committed data, which take the same commit."""


def _amid_applies() -> Iterator[Scene]:
    """Runs that were published before another one swept which then is undone. Few steps are left of each."""
    both = [*_PLANNED, clear("q3", "q1"), clear("q4", "q2")]
    # Both take the first commit, and one deletes at once.
    undone = client("x", sweep("x1", "q1", window="7d"), undo("x2"))
    sweeper = client("r", sweep("r1", "q2"))
    yield _amid("sweeper that undoes, sweeper of the same commit", undone, sweeper, before=both)
    # Another apply of the run that is undone sleeps, and a later run deletes.
    over = client("x", sweep("x1", "q1", window="7d"), undo("x2"), sweep("x3", "q2"))
    slow = client("s", sweep("s1", "q1", window="7d"))
    yield _amid("sweeper that undoes and sweeps by another run, slow sweeper", over, slow, before=both)
    # The first commit is taken by one run, which is undone, and by another one, which is undone, too. The rules keep
    # the second commit then. A third run is ten days later, takes that, and began to look while the first had swept.
    days = 15
    twice = [
        do.upload("v1", "a", "1"),
        do.commit("p1"),
        do.upload("v2", "c", "2"),
        do.commit("p2"),
        do.days_later(do.delete("v3", "a"), days),
        do.days_later(do.commit("p3"), days),
        # Two pages of what is staged, so that a look can stop between them.
        do.write("w4", "y", "4"),
        do.write("w5", "z", "5"),
        RULED,
        plan("q1"),
        do.committed_run("q2", window="7d"),
        plan("q3", days=20),
        publish("q4", "q3", days=20),
        undo("q5"),
        clear("q6", "q1"),
    ]
    # Each of two commits is taken by a run of its own. A third run was published before, and takes both.
    each = [
        do.upload("v1", "a", "1"),
        do.commit("p1"),
        do.upload("v2", "c", "2"),
        do.commit("p2"),
        do.days_later(do.delete("v3", "a"), days),
        do.days_later(do.delete("v4", "c"), days),
        do.days_later(do.commit("p3"), days),
        RULED,
        plan("q1"),
        plan("q2", days=20),
        clear("q3", "q2", days=20),
        clear("q4", "q1"),
        sweep("q5", "q1", window="7d"),
        plan("q6", days=20),
        clear("q7", "q6", days=20),
        sweep("q8", "q6", window="7d", days=20),
    ]
    taker = client("r", sweep("r1", "q2", days=20))
    name = "undoer of the later of two runs, sweeper of what both took"
    yield _amid(name, client("x", undo("x1", newest=True)), taker, before=each)
    undone = client("x", sweep("x1", "q1", window="7d"), undo("x2", again=False))
    third = client("r", clear("r1", "q3", days=20), sweep("r2", "q3", days=20))
    yield _amid("sweeper that undoes, run that looks again", undone, third, before=twice)
    # A file of a tree that the plan took was named by a commit since, and a run took that.
    planned = [do.write("v1", "a", "1"), do.strand("s1"), do.plan_only("q2", RunKind.METADATA)]
    stranded = [*planned, do.commit("p1"), *_TWO_SWEPT[2:]]
    undoer, upkeep = real("x", undo("x1")), real("m", do.apply_one("m1", 0, days=30))
    yield metadata_scene("undoer, apply of an older metadata plan", undoer, upkeep, before=stranded, sweeps=True)


def _beside_readers() -> Iterator[Scene]:
    """Its record says that a lifecycle run is undone, and all that it noted is there: so a late note stays, too."""
    reader = client("b", do.read_bytes("b1", "a", ref=MAIN), do.copy("b2", "a", "b", "3"))
    name, before = "undoer of a lifecycle run that goes on, reader that copies", (*_DUE, undo_halfway("q2"))
    made = _scene(name, client("x", undo("x1")), reader, before=before, due=[DUE])
    yield made.also(what_was_undone_can_be_read)


def what_was_undone_can_be_read(ending: Ending) -> None:
    """Check that no object counts as taken by a run that was undone before all actors came. No other run takes it."""
    for record in (*ending.of("peek"), *ending.of("write")):
        if record.error is PathExpired:
            raise Violation(f"{record.operation.name} was refused: what was undone counts as taken")


def _amid(name: str, *actors: Actor, before: Sequence[Do]) -> Scene:
    """Windows are not looked at: turns, which are the flow's, keep another run from deleting what one holds."""
    return scene(name, *actors, before=before, others_look=True, quick=Quick.NEVER)


def _beside_erasures() -> Iterator[Scene]:
    """A run took a commit, and let off the object that it has at the path which an erasure selects."""
    before = [
        do.upload("v1", "a", "1"),
        do.commit("p1"),
        do.upload("v2", "a", "2"),
        do.copy("v3", "a", "b", "3"),
        do.commit("p2"),
        do.copy("v4", "a", "c", "4", ref="main~1"),
        RULED,
        do.committed_run("q1", window="7d"),
        do.clean_records("k1"),
        do.delete("v5", "c"),
    ]
    # Of its kind it is kept when it ended.
    eraser = replace(client("e", Do(Operation("e1", "erase"), erase("e1").act)), collecting=1)
    undoer = client("x", undo("x1"))
    made = _scene("undoer, eraser of what a run let off", undoer, eraser, before=before, due=[DUE], quick=Quick.NEVER)
    yield made.also(nothing_erased_comes_back)


def nothing_erased_comes_back(ending: Ending) -> None:
    """Check that an undo which began after an erasure had ended brings back nothing at its path."""
    if not any(record.is_acknowledged and "e1" in (record.before or ()) for record in ending.of("undo")):
        return
    named = reachable(ending.disk) - reachable(ending.disk, due=frozenset({DUE}))
    if back := named & ending.disk.objectstore.keys():
        raise Violation(f"the undo brought back what an erasure had not seen: {sorted(back)}")


def what_was_undone_can_be_named(ending: Ending) -> None:
    """Check that no commit counts as taken by a run that was undone before all actors came. No other run takes it."""
    for record in ending.of("create_branch"):
        if record.error is CommitExpired:
            raise Violation(f"{record.operation.name} was refused: what was undone counts as taken")
