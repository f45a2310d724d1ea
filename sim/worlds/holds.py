"""Worlds of legal holds: a hold by path, commit, branch or tag that is added beside the shipped runs of every kind.

The answer names the runs that had begun to take data. If it names none, nothing that is held may go. A purge that
begins after the answer takes nothing that is held, whatever the answer named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from explorer.actors import Actor, Check, Ending, Violation
from lakebed.base import CommitId
from lakebed.gc.live import HoldBook, HoldsRecord
from lakebed.gc.messages import NewHold, RunKind
from lakebed.gc.rules import Holds
from lakebed.versions import Versions, decode_record, keys
from sim.checkers.deleted import ONE
from sim.checkers.views import PARTITION
from sim.ports.ports import SimPorts
from sim.ports.scene import Quick, Scene
from sim.scenes import deeds as do
from sim.scenes.doing import NARROW, Do, doing
from sim.scenes.flows import files_of_trees, metadata_scene
from sim.scenes.repositories import NAME, catalog_of
from sim.scenes.scenes import client, scene

from .deleted import PRIVATE, delete_and_collect, prepare_due
from .hard_delete import hard, turn_on, work
from .lifecycle import set_policy

_WRITTEN: Final = [do.upload("w1", "a", "1"), do.commit("p1"), do.upload("w2", "a", "2"), do.commit("p2")]
_RULED: Final = do.set_rules("q1", "1d")
_PAST: Final = [*_WRITTEN, set_policy("q0"), _RULED]
_DUE: Final = [do.upload("w1", "a", "1"), do.commit("p1"), do.create_tag("t0", "main"), set_policy("q0")]
"""The object of the only commit is due, and a tag names the commit."""
_GARBAGE: Final = [do.upload("w1", "a", "1"), do.delete("d1", "a")]
_LATE: Final = "late"


@doing("hold")
async def add_hold(repo: Versions, *, commit: str = "", tag: str = "") -> str:
    """Hold a commit or tag, or the path. The value is the objects that were there, behind `late` if runs were named."""
    named: dict[str, Any] = {"commits": (commit,)} if commit else {"tags": (tag,)} if tag else {"globs": ("a",)}
    told = (await HoldBook(repo).add(NewHold(name="case", why="simulated", **named)))[1]
    # A run that ended before may have taken the object: then there is nothing to hold.
    there = [stat.key async for page in repo.objectstore.list("data/") for stat in page]
    return " ".join([_LATE, *there] if told else there)


def what_is_held_stays(ending: Ending, *, root: str = "") -> None:
    """Check that no held object goes, unless the hold named a run for which it came too late, and not all who delete
    began after the answer.
    """
    for record in ending.acknowledged("hold"):
        words = record.answer.split()
        there = {f"{root}{word}" for word in words if word != _LATE}
        if not (gone := there - ending.disk.objectstore.keys()):
            continue
        if _LATE not in words:
            raise Violation(f"{record.operation.name} was acknowledged and named no run, and {sorted(gone)} went")
        purges = [one.before for one in ending.of("purge") if one.before is not None]
        if purges and all(record.operation.name in before for before in purges):
            raise Violation(
                f"{record.operation.name} was acknowledged before each purge began, and {sorted(gone)} went"
            )


def held_trees_stay(ending: Ending) -> None:
    """Check that no file of a held commit's tree goes, unless the hold named a run for which it came too late."""
    told = [record.answer for record in ending.acknowledged("hold")]
    held = ending.disk.value(PARTITION, keys.LEGAL_HOLDS)
    if held is not None and told and not any(_LATE in words.split() for words in told):
        holds = Holds(holds=decode_record(HoldsRecord, held).holds)
        files_of_trees(ending, [CommitId(id_) for id_ in sorted(holds.commit_ids())])


def hold_scenes() -> Iterator[Scene]:
    replaced = [turn_on("q0"), do.upload("w1", "a", "1"), hard(do.upload("w2", "a", "2"))]
    by_path, first, tagged = add_hold("h1"), add_hold("h1", commit="main~1"), add_hold("h1", tag="tag")
    yield _scene("holder, worker", by_path, client("x", work("x1")), before=replaced)
    for kind in (RunKind.COMMITTED, RunKind.LIFECYCLE):
        yield _scene(f"holder, {kind} run", by_path, client("r", do.collect("r1", kind)))
    # A branch stands for its head.
    run = client("r", do.collect("r1", RunKind.LIFECYCLE))
    yield _scene("holder of a branch, lifecycle run", add_hold("h1", commit="main"), run, before=_DUE)
    yield _scene("holder, uncommitted run", by_path, client("r", do.uncommitted_run("r1")), before=_GARBAGE)
    # Runs that wait for the end of a window: the purge reads what is held, and its table is from before the hold.
    old = [*_WRITTEN, _RULED]
    for who, hold, kind, before in (
        ("holder of a commit", first, RunKind.COMMITTED, old),
        ("holder of a tag", tagged, RunKind.LIFECYCLE, _DUE),
        ("holder", by_path, RunKind.UNCOMMITTED, _GARBAGE),
    ):
        waits = client("r", do.collect("r1", kind, window="7d"), ordered(do.purge("p1")))
        yield _scene(f"{who}, {kind} run that defers and purges", hold, waits, before=before)
    yield _metadata_scene(first)
    yield _deleted_scene()


def ordered(deed: Do) -> Do:
    """Let checks see what was acknowledged before this began, as they do of no run."""
    return Do(replace(deed.operation, kind="purge"), deed.act)


def _scene(name: str, hold: Do, *actors: Actor, before: Sequence[Do] = _PAST) -> Scene:
    return holding(scene(name, client("h", hold), *actors, before=before))


def holding(made: Scene, *checks: Check) -> Scene:
    """Check a scene with a holder, and nothing else of it: what is held is no leak, and no run may tidy up."""
    return replace(made, checks=(what_is_held_stays, *checks), tidy=_leave, tidy_checks=())


async def _leave(ports: SimPorts) -> None:
    await ports.pause()


def _metadata_scene(hold: Do) -> Scene:
    """Let a run take the trees of what another run takes. The holder and both know real trees."""
    both = client("t", do.committed_run("r1"), do.metadata_run("m1"), real_trees=NARROW)
    holder = client("h", hold, real_trees=NARROW)
    before = [*_WRITTEN, _RULED]
    made = metadata_scene("holder of a commit, both runs", holder, both, before=before, sweeps=True)
    return holding(made, held_trees_stay)


def _deleted_scene() -> Scene:
    """Hold as a server does that found the repository before it was deleted: without it there is no answer."""

    async def hold(ports: SimPorts) -> None:
        repository = await catalog_of(ports).get(NAME)
        deed = add_hold("h1")

        async def act() -> str | None:
            value = await deed.awaited(repository.versions)
            await repository.guards.confirm()
            return value

        await ports.act(deed.operation, act())

    return Scene(
        name="holder in a repository, deleter that collects",
        actors=(Actor("h", hold), Actor("d", delete_and_collect)),
        prepare=prepare_due,
        checks=(partial(what_is_held_stays, root=f"{ONE}/"),),
        private=PRIVATE,
        is_lock_free=False,
        quick=Quick.NEVER,
    )
