"""Scenes over `lakebed.versions.Versions`: who does what to one small repository.

A client is one actor: a process with its own `Versions`, so with its own caches. What it does is a list of `Do`s, one
after the other. Values are unique in a scene, so that every byte found later can be traced to who wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer.actors import Actor, Check
from lakebed.ranges import CutRule
from sim.checkers.endings import ALWAYS, no_leak, runs_end
from sim.checkers.moves import branch_moves_are_legal, branch_moves_are_legal_beside_removals, tokens_leave_with_a_claim
from sim.checkers.reachable import (
    addresses_are_fresh,
    committed_bytes_stay,
    deletes_spare_open_uploads,
    garbage,
    garbage_goes,
    marks_are_true,
    names_are_unique,
    nothing_reachable_is_deleted,
    nothing_undue_is_deleted,
    sweeps_keep_promises,
)
from sim.checkers.views import PARTITION
from sim.ports.ports import SimPorts
from sim.ports.scene import Program, Quick, Scene

from .collecting import FENCING, PRIVATE, Collecting
from .deeds import commit
from .doing import FAR_FUTURE_MS, MAIN, SIDE, Do, versions


def client(name: str, *deeds: Do, again: Sequence[Do] = (), real_trees: CutRule | None = None) -> Actor:
    """Make a process that does these one after the other; after a crash it comes back to do `again`."""
    collecting = sum(any(do.operation.kind == "run" for do in life) for life in (deeds, again))
    return Actor(name, _doing(deeds, real_trees), _doing(again, real_trees) if again else None, collecting)


def server(name: str, *clients: Sequence[Do], answers_late: bool = False) -> Actor:
    """Make one process that serves several clients at once: they share its caches and its amortised reads."""

    async def program(ports: SimPorts) -> None:
        ports.store.answers_late = answers_late
        repo = versions(ports)

        async def serve(deeds: Sequence[Do]) -> None:
            await ports.pause()
            for do in deeds:
                await ports.act(do.operation, do.awaited(repo))

        await ports.tasks.gather([serve(deeds) for deeds in clients])

    return Actor(name, program)


def scene(
    name: str,
    *actors: Actor,
    before: Sequence[Do] = (),
    staged: Sequence[Do] = (),
    committed: Sequence[Do] = (),
    beside: Sequence[Do] = (),
    clocks_agree: bool = True,
    resets_objects: bool = False,
    alike: Sequence[tuple[str, ...]] = (),
    private: tuple[str, ...] = PRIVATE,
    others_look: bool = False,
    quick: Quick | None = None,
    due: Sequence[bytes] = (),
    checks: Sequence[Check] = (),
) -> Scene:
    """A repository with one branch; before the actors come, `committed` is done and committed, then `staged`.

    `before` comes first of all and may commit what it likes. Slices that were used to prepare are closed.
    With `beside` there is a second branch, `side`, made from the first and one commit ahead by these operations.

    Where clocks do not agree, a cleaner may take a claim for old that was written just now: then cells may leak, as
    protocols.md says, and nothing else.

    `quick`: by default all budgets, or none where an actor collects. `due`: paths at which commits may lose what they
    have. `checks`: what is checked beside all that every scene keeps.
    """

    async def prepare(ports: SimPorts) -> None:
        repo = versions(ports)
        await repo.commits.initialise(MAIN)
        for do in (*before, *committed, *([commit("prepared")] if committed else [])):
            await ports.act(do.operation, do.awaited(repo))
        if beside:
            await repo.refs.create_branch(SIDE, MAIN)
        for do in (*beside, *([commit("prepared beside", branch=SIDE)] if beside else []), *staged):
            await ports.act(do.operation, do.awaited(repo))
        await repo.slices.end()

    legal = branch_moves_are_legal_beside_removals if resets_objects else branch_moves_are_legal
    kept = nothing_undue_is_deleted(*due) if due else nothing_reachable_is_deleted
    collecting = sum(actor.collecting for actor in actors)
    moves = (
        legal,
        deletes_spare_open_uploads,
        addresses_are_fresh,
        sweeps_keep_promises,
        marks_are_true,
        names_are_unique,
    )
    return Scene(
        name=name,
        actors=actors,
        prepare=prepare,
        tidy=tidy,
        checks=(*ALWAYS, kept, committed_bytes_stay, *checks),
        tidy_checks=(no_leak, runs_end, garbage_goes) if clocks_agree else (garbage_goes,),
        step_checks=(*moves, tokens_leave_with_a_claim) if clocks_agree else moves,
        clocks_agree=clocks_agree,
        alike=alike,
        private=private,
        others_look=others_look or collecting > 1,
        shortens=True,
        runs_in=PARTITION,
        quick=quick if quick is not None else Quick.NEVER if collecting else Quick.ALL,
    )


async def tidy(ports: SimPorts) -> None:
    """Everything is old by now: owners and runs that did not end are dead, a cleaner leaves nothing without an owner,
    and a run of each kind takes every object that nothing names."""
    ports.clock.ms += 3 * FAR_FUTURE_MS
    repo = versions(ports)
    collecting = Collecting(repo, FENCING)
    await collecting.service.abandon_dead_runs()
    await collecting.finish()
    if [stat async for page in repo.objectstore.list("data/") for stat in page]:
        await collecting.runs.closed_slices()
        ports.clock.ms += FAR_FUTURE_MS
        await repo.cleanup.clean()
        disk = ports.disk
        assert disk is not None, "a scene is tidied alone"
        await collecting.collect_all(lambda: bool(garbage(disk)))
    await repo.cleanup.clean()
    # The cleaner fences copies and links that are stuck, which makes claims. The next pass sees their tokens retired,
    # and the one after it drops them.
    for _ in range(2):
        ports.clock.ms += FAR_FUTURE_MS
        await repo.cleanup.clean()


def _doing(deeds: Sequence[Do], real_trees: CutRule | None) -> Program:
    async def program(ports: SimPorts) -> None:
        repo = versions(ports, real_trees=real_trees)
        for do in deeds:
            await ports.act(do.operation, do.awaited(repo))

    return program
