"""Worlds of erasures: the shipped plan and apply, beside everyone who can come to name an object that they take.

The order selects the path `a`. A cell that names the object, or a commit that has it at another path, keeps it. When
all is quiet, one more erasure takes what the first had to leave.

Some erasers then collect what no entry names, and certify. Where a certificate says that nothing stands, no object may
be left that an acknowledged write had put at the path before that erasure began.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from explorer.actors import Actor, Check, Ending, Violation
from explorer.operations import Operation
from lakebed.base import RunId, RunKind
from lakebed.gc.kinds.erasure.certificate.certifying import certify
from lakebed.gc.kinds.erasure.certificate.foreseeing import NothingSelected
from lakebed.gc.kinds.erasure.plan import Erasure
from lakebed.gc.live import ServiceOptions
from lakebed.gc.live.publish.metadata import MetadataRuns
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.machine import flow
from lakebed.gc.messages import GARBAGE, ErasureOrder, Plan, Unstage, Unstaged, certificate_path
from lakebed.gc.rules import Selection
from lakebed.gc.runs.context import list_plans
from lakebed.versions import PathNotFound, Versions
from sim.checkers.reachable import reachable
from sim.ports.ports import SimPorts
from sim.ports.scene import Scene
from sim.scenes import deeds as do
from sim.scenes.collecting import FENCING, Collecting
from sim.scenes.doing import FAR_FUTURE_MS, MAIN, SIDE, Do, doing, put_bytes, versions
from sim.scenes.flows import DEFERRED, RULED, deferring
from sim.scenes.scenes import client, scene

from .hard_delete import hard, turn_on
from .holds import add_hold, holding
from .lifecycle import set_policy
from .moves import move

PATH: Final = b"a"
HAD: Final = b"(had the path)"
"""A partition of the simulation's own: addresses that acknowledged writes put at the path."""
CERTIFIED: Final = b"(certified)"
"""Likewise: those that had it before an erasure of which the certificate says that nothing stands."""
_TOOK: Final = "took:"
_PAST: Final = [do.upload("w1", "a", "1"), do.commit("p1")]
_OLD: Final = [*_PAST, do.upload("w2", "a", "2"), do.commit("p2"), RULED, set_policy("q2")]


@doing("run")
async def erase(repo: Versions, *, shared: bool = False, has_grace: bool = False, plans_only: bool = False) -> None:
    await _erase(Collecting(repo, has_grace=has_grace), shared=shared, plans_only=plans_only)


@doing("run")
async def erase_alone(repo: Versions) -> str:
    """Erase, and return the objects that the plan takes. It is for an actor who is alone."""
    collecting = Collecting(repo)
    plan = await _planned(collecting)
    await collecting.apply(plan.run_id)
    taken = (await collecting.context.read(plan.garbage, GARBAGE))["address"].to_pylist()
    return f"{_TOOK} {' '.join(taken)}"


def erase_staged(name: str, *, has_grace: bool = False, everywhere: bool = False) -> Do:
    """Erase a staged path. To the checkers it is a delete, which fails where another write was faster.

    `everywhere`: then collect what no entry names, and certify.
    """

    async def act(repo: Versions) -> None:
        collecting = Collecting(repo, has_grace=has_grace)
        with _unstaging(collecting):
            if everywhere:
                await _erase_everywhere(repo, collecting)
            else:
                await _erase(collecting)

    return Do(Operation(name, "delete", MAIN, PATH), act)


@contextmanager
def _unstaging(collecting: Collecting) -> Iterator[None]:
    """
    Raises:
        PathNotFound: at the end, where nothing was taken from the branch.
    """
    unstage = collecting.service.unstage
    counts: list[int] = []

    async def counted(run_id: str, body: Unstage) -> Unstaged:
        done = await unstage(run_id, body)
        counts.append(done.count)
        return done

    collecting.service.unstage = counted
    yield
    if not sum(counts):
        raise PathNotFound("nothing was taken from the branch", key=PATH)


def apply_staged(name: str) -> Do:
    """Apply the erasure that was planned. Where it takes nothing for good, the path has to stay."""

    async def act(repo: Versions) -> None:
        collecting = Collecting(repo)
        with _unstaging(collecting):
            await collecting.apply_one(0, window=None)

    return Do(Operation(name, "delete", MAIN, PATH), act)


def retire_plans(name: str) -> Do:
    """Take the folders of the plans there are, as a collection of metadata does that has read their records."""

    async def act(repo: Versions) -> None:
        options = ServiceOptions()
        runs = [RunId(run_id) for run_id in await list_plans(Collecting(repo).context.store)]
        await MetadataRuns(repo, RunBook(repo, options), options).publish(RunId(name), files=[], runs=runs)

    return Do(Operation(name, "run"), act)


async def _erase(collecting: Collecting, *, shared: bool = False, plans_only: bool = False) -> str:
    """Return the run's id."""
    plan = await _planned(collecting, shared=shared)
    if not plans_only:
        await collecting.apply(plan.run_id)
    return plan.run_id


async def _planned(collecting: Collecting, *, shared: bool = False) -> Plan:
    order = ErasureOrder(selection=Selection(paths=(PATH.decode(),)), why="simulated", takes_shared=shared)
    return await flow.plan(collecting.context, Erasure(order))


async def _erase_everywhere(repo: Versions, collecting: Collecting) -> None:
    had = (await repo.store.scan(HAD, b"", 100)).keys
    run_id = await _erase(collecting)
    await collecting.run(RunKind.UNCOMMITTED)
    made = await certify(collecting.context, run_id, by="sim")
    if not made.stands:
        await repo.store.set_many(CERTIFIED, [(key, run_id.encode()) for key in had])


def put(name: str, value: str) -> Do:
    """Upload to the path, and note the address once the write is acknowledged."""

    async def act(repo: Versions) -> None:
        entry = await put_bytes(repo, MAIN, PATH, value.encode(), value)
        await repo.store.set(HAD, entry.address.encode(), b"")

    return Do(Operation(name, "write", MAIN, PATH, value), act)


def erasure_scenes() -> Iterator[Scene]:
    r = client("r", erase("r1"))
    c = client("c", do.commit("c1"))
    copier = client("h", do.copy("w3", "a", "b", "3"))
    yield _scene("copier from a commit, erasure", copier, r)
    reader = client("b", do.read_bytes("b1", "a", ref=MAIN))
    yield _scene("reader of bytes, erasure with grace", reader, client("r", erase("r1", has_grace=True)))
    yield _scene("brancher, erasure", client("h", do.create_branch("h1", MAIN)), r)
    copied = [do.copy("w3", "a", "b", "3")]
    # A record of the copy would keep the object, too.
    cleaned = client("c", do.commit("c1"), do.clean_records("k1"))
    # After the plan, which leaves out what a staged entry of another name keeps.
    late = client("c", do.copy("w3", "a", "b", "3"), do.commit("c1"), do.clean_records("k1"))
    yield _scene("copier that commits, erasure", late, r)
    both = client("r", erase("r1", shared=True))
    yield _scene("committer of a copy, erasure of shared objects", cleaned, both, staged=copied, due=(PATH, b"b"))
    back = client("s", do.reset_object("s1", "a"))
    yield _scene("object resetter, erasure", back, r, staged=[do.delete("d1", "a")])
    gone = [*_PAST, do.delete("d1", "a"), do.commit("p2")]
    yield _scene("reverter, erasure", client("v", do.revert("v1", MAIN)), r, before=gone)
    yield _scene("hard resetter, erasure", client("v", do.hard_reset("v1", "main~1")), r, before=gone)
    beside = [do.copy("w3", "a", "b", "3", branch=SIDE)]
    yield _scene("merger of a copy, erasure", client("m", do.merge("m1", SIDE)), r, beside=beside)
    made = [*_PAST, do.create_branch("b0"), do.copy("w3", "a", "b", "3", branch=SIDE)]
    dropper = client("d", do.delete_branch("d1"))
    yield _scene("deleter of a branch with a copy, erasure", dropper, r, before=made)
    m = client("m", *move("m1", "a", "b"))
    yield _scene("mover, erasure", m, r, before=[turn_on("hd0"), *_PAST])
    # Of what is staged at the path.
    s = _collecting("r", erase_staged("r1"))
    one = [do.upload("w1", "a", "1")]
    yield _scene(
        "overwriter, erasure of what is staged", client("w", do.upload("w2", "a", "2")), s, before=(), staged=one
    )
    yield _scene("committer, erasure of what is staged", c, s, before=(), staged=one)
    w = client("w", do.upload("w2", "a", "2"))
    yield _scene("uploader, committer, erasure", w, c, s, before=(), staged=one)
    yield _scene("copier, erasure of what is staged", copier, s, before=(), staged=one)
    over = client("w", hard(do.upload("w2", "a", "2")))
    yield _scene("hard overwriter, erasure of what is staged", over, s, before=[turn_on("hd0")], staged=one)
    # Beside other runs, of the same objects.
    for kind in (RunKind.COMMITTED, RunKind.LIFECYCLE):
        other = client("q", do.collect("q9", kind))
        yield _scene(f"{kind} run, erasure", other, r, before=_OLD)
    yield _scene("uncommitted run, erasure", client("u", do.uncommitted_run("u1")), s, before=(), staged=one)
    deferrer = client("q", do.committed_run("q9", window="7d"))
    yield deferring(_scene("run that defers, erasure", deferrer, r, before=_OLD))
    yield _scene("purger, erasure", client("p", do.purge("p9")), r, before=DEFERRED)
    restorer = client("x", do.restore("x1", content=b"1"))
    yield _scene("restorer, erasure", restorer, s, before=DEFERRED)
    # A run that died is gone on with, by this process or another, and a plan is applied twice.
    again = client("r", erase("r1"), again=[do.resume("r2")])
    yield _scene("copier from a commit, erasure that comes back", copier, again)
    planned = [*_PAST, erase("q1", plans_only=True)]
    twice = client("q", do.apply_planned("q9")), client("r", do.apply_planned("r1"))
    yield _scene("two applies of an erasure", *twice, before=planned)
    yield _scene("copier from a commit, apply of an erasure", copier, twice[1], before=planned)
    staged, taker = [*one, erase("q1", plans_only=True)], client("m", retire_plans("m1"))
    applier, name = client("r", apply_staged("r1")), "apply of an erasure of what is staged, taker of its plan"
    yield _scene(name, applier, taker, before=(), staged=staged)
    yield from _certified_scenes()
    yield from _foreseen_scenes()
    yield _kept_scene()
    yield _let_off_scene()
    yield holding(scene("holder, erasure", client("h", add_hold("h1")), r, before=_PAST))
    tagged = [*_PAST, do.create_tag("t0", MAIN)]
    by_tag = client("h", add_hold("h1", tag="tag"))
    yield holding(scene("holder of a tag, erasure that comes back", by_tag, again, before=tagged))


def _certified_scenes() -> Iterator[Scene]:
    """Yield scenes in which a path loses staged bytes: no erasure finds them, a collection takes them."""
    r = _collecting("r", erase_staged("r1", everywhere=True))
    past, staged = [put("w1", "1"), do.commit("p1")], [put("w2", "2")]
    kept = [*staged, put("w4", "4"), do.uncommitted_run("u1", window="7d")]
    for made in (
        _scene("overwriter, erasure everywhere", client("w", put("w3", "3")), r, before=past, staged=staged),
        _scene("deleter, erasure everywhere", client("d", do.delete("d1", "a")), r, before=past, staged=staged),
        _scene("resetter, erasure everywhere", client("s", do.reset("s1")), r, before=past, staged=staged),
        _scene("erasure everywhere, after a run that defers", r, before=past, staged=kept),
    ):
        yield _certified(made, what_is_certified_is_gone)


def _collecting(name: str, deed: Do) -> Actor:
    """A client whose deed is a collection, though to the checkers it is of another kind."""
    return dataclasses.replace(client(name, deed), collecting=1)


def _certified(made: Scene, check: Check) -> Scene:
    return made.also(check, private=(*made.private, certificate_path("").removesuffix(".json")))


def _let_off_scene() -> Scene:
    """A deferred run took a commit, and let its object off. An erasure of its path, and a certificate, come then."""
    r = _collecting("r", erase_staged("r1", everywhere=True))
    past = [put("w1", "1"), do.commit("p1"), do.delete("d1", "a"), do.commit("p2")]
    past.append(do.copy("w3", "a", "b", "3", ref="main~1"))
    before = [*past, RULED, do.committed_run("q1", window="7d"), do.clean_records("k1"), do.delete("d3", "b")]
    made = _scene("erasure everywhere, after a run that let off", r, before=before, staged=[put("w2", "2")])
    return _certified(made, what_is_certified_is_gone)


def _kept_scene() -> Scene:
    """Let a restore, and the end of the window of its run, fall between the questions of a certificate."""
    later = [do.upload("v2", "a", "2"), do.commit("p2"), do.delete("v3", "a"), do.commit("p3"), RULED]
    before = [*_PAST, erase("e0"), *later, do.committed_run("q1", window="7d")]
    asker = _collecting("c", certify_erasure("c1"))
    taker = client("x", do.restore("x1", content=b"2"), do.purge("p9"))
    made = _scene("restorer that purges, certifier of an erasure before", taker, asker, before=before)
    return _certified(made, what_is_kept_stands)


@doing("certify")
async def certify_erasure(repo: Versions) -> str:
    """Certify the erasure that there is, and return the kinds of all that stands beside what it deleted."""
    context = Collecting(repo).context
    erasures = [one.run_id for one in await context.service.runs() if one.kind is RunKind.ERASURE]
    made = await certify(context, erasures[0], by="sim")
    erased = {one.address for one in made.objects if not one.is_kept}
    return " ".join(sorted({one.what for one in made.stands if one.where not in erased}))


def what_is_kept_stands(ending: Ending) -> None:
    """Check that what a deferred run keeps of the path, or a restore brought back, stands in each certificate.

    At each moment one of both is there.
    """
    for record in ending.acknowledged("certify"):
        if not set(record.answer.split()) - {"garbage"}:
            raise Violation(f"{record.operation.name} names nothing that a run keeps or a restore brought back")


def _foreseen_scenes() -> Iterator[Scene]:
    """Yield scenes of an eraser alone: it deletes all that its plan names, and drops no other staged name."""
    staged = [do.copy("w3", "a", "b", "3")]
    alone, gone, one = client("r", erase_alone("r1")), do.clean_records("k1"), do.upload("w1", "a", "1")
    for made in (
        _scene("erasure of what a staged copy shares", alone, staged=[*staged, gone]),
        _scene("erasure of what is staged twice", alone, before=(), staged=[one, *staged, gone]),
    ):
        yield made.also(what_is_planned_is_gone)


def what_is_planned_is_gone(ending: Ending) -> None:
    """Check that an apply deleted all that its plan took."""
    for record in ending.acknowledged("run"):
        taken = set(record.answer.split()[1:]) if record.answer.startswith(_TOOK) else set()
        if left := taken & ending.disk.objectstore.keys():
            raise Violation(f"{record.operation.name} planned to take objects, and left {sorted(left)}")


def what_is_certified_is_gone(ending: Ending) -> None:
    """Check that of what a certificate speaks nothing is there but what a cell, or a commit at another path, names."""
    certified = {key.decode() for key in ending.disk.cells.get(CERTIFIED, {})}
    named = reachable(ending.disk, due=frozenset({PATH}))
    if left := (certified & ending.disk.objectstore.keys()) - named:
        raise Violation(f"certified as gone, and there: {sorted(left)}")


def _scene(
    name: str, *actors: Actor, before: Sequence[Do] = _PAST, due: Sequence[bytes] = (PATH,), **how: Any
) -> Scene:
    made = scene(name, *actors, before=before, due=due, others_look=True, **how)
    return made.tidied_by(then=_erase_what_is_left).also(tidied=[nothing_erased_stays])


async def _erase_what_is_left(ports: SimPorts) -> None:
    ports.clock.ms += FAR_FUTURE_MS
    repo = versions(ports)
    collecting = Collecting(repo, FENCING)
    # The checkers know no actor who would delete what is staged.
    collecting.service.unstage = _leave_staged
    with suppress(NothingSelected):
        await _erase(collecting)
    # It took owners for dead, which makes claims: the first pass finishes these, the others drop what they had.
    for _ in range(3):
        ports.clock.ms += FAR_FUTURE_MS
        await repo.cleanup.clean()


async def _leave_staged(run_id: str, body: Unstage) -> Unstaged:
    del run_id, body
    return Unstaged(count=0)


def nothing_erased_stays(ending: Ending) -> None:
    """Check that an erasure leaves, when all is quiet, only what a cell, or a commit at another path, names."""
    named = reachable(ending.disk) - reachable(ending.disk, due=frozenset({PATH}))
    if left := named & ending.disk.objectstore.keys():
        raise Violation(f"an erasure left {sorted(left)}")
