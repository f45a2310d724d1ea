"""The sweep of idle branches beside those who use one just then: writers, committers, merges, moves, and another sweep.

Each actor is a process with a catalog of its own. The sweeper's clock is days ahead: to it every branch is idle.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from lakebed.base import Entry
from lakebed.catalog import Repository
from lakebed.gc.live import BranchSweep, PolicyBook
from lakebed.gc.messages import BranchToGo
from lakebed.ranges import metarange_key
from lakebed.versions import Commit, DeletedRefRecord, Note, RefKind, decode_record, keys
from sim.ports.actors import Actor, Ending, Program, Quick, Scene, Violation
from sim.ports.operations import Operation
from sim.ports.ports import SimPorts
from sim.scenes.repositories import NAME, catalog_of, repositories
from sim.scenes.scenes import MAIN, SIDE

from .deleted import DAY_MS, ONE

POLICY = b'{"branches": {"side": {"idle": "1d"}}}'
Act = Callable[[Repository], Awaitable[object]]


def _entry(value: str) -> Entry:
    return Entry(address=f"s3://elsewhere/{value}", size_bytes=1, checksum=value, modified_ms=0)


async def _prepare(ports: SimPorts) -> None:
    """Make a branch beside the default one. Both have `m`, and the default branch one commit more."""
    made = await catalog_of(ports).create(NAME, storage_namespace=ONE)
    await made.versions.staging.put(MAIN, b"m", _entry("m"))
    await made.versions.commits.commit(MAIN, Note(message="m", committer="sim"))
    await made.versions.refs.create_branch(SIDE, MAIN)
    await made.versions.staging.put(MAIN, b"n", _entry("n"))
    await made.versions.commits.commit(MAIN, Note(message="n", committer="sim"))
    await PolicyBook(made.versions).write(POLICY)


def _doing(*deeds: tuple[str, bytes, Act]) -> Program:
    """Do these on the branch, each named by its kind and the path that it is about."""

    async def program(ports: SimPorts) -> None:
        handle = await catalog_of(ports).get(NAME)
        for number, (kind, key, act) in enumerate(deeds):
            name = f"{ports.actor}{ports.life}{number}"

            async def acted(act: Act = act) -> None:
                await act(handle)

            await ports.operations.run(Operation(name, kind, SIDE, key), acted())

    return program


async def _sweep(ports: SimPorts) -> None:
    ports.clock.ms += 3 * DAY_MS
    handle = await catalog_of(ports).get(NAME)
    sweep = BranchSweep(handle)
    plan = await sweep.plan(prefix=SIDE)
    wanted = [BranchToGo(branch=one.branch, state=one.state) for one in plan.branches if one.goes]
    await sweep.sweep(plan.policy_version, wanted)


async def _sweeper(ports: SimPorts) -> None:
    await ports.operations.run(Operation(f"{ports.actor}{ports.life}", "sweep"), _sweep(ports))


async def _write(handle: Repository) -> None:
    await handle.versions.staging.put(SIDE, b"w", _entry("w"))


async def _commit(handle: Repository) -> None:
    await handle.versions.commits.commit(SIDE, Note(message="c", committer="sim"))


async def _merge(handle: Repository) -> None:
    await handle.versions.merges.merge(MAIN, SIDE, Note(message="g", committer="sim"))


async def _move(handle: Repository) -> None:
    await handle.versions.moves.move(SIDE, b"m", MAIN, b"moved")


# Checks


def what_was_done_stays(ending: Ending) -> None:
    """Check that a branch that went comes back at a commit with all that was acknowledged on it."""
    [repository] = repositories(ending.disk).values()
    partition = repository.uid.encode()
    records = ending.disk.cells[partition]
    if keys.BRANCH + SIDE.encode() in records:
        return
    prefix = keys.deleted_refs(RefKind.BRANCH, SIDE)
    notes = [decode_record(DeletedRefRecord, value) for key, value in records.items() if key.startswith(prefix)]
    if not notes:
        raise Violation("the branch went, and cannot come back")
    newest = max(notes, key=lambda note: note.deleted_ms)
    commit = decode_record(Commit, records[keys.COMMIT + newest.commit_id.encode()])
    pairs = ending.disk.objectstore[f"{ONE}/{metarange_key(commit.metarange_id)}"][0].pairs
    paths = {path for path, _ in pairs}
    for record in (*ending.acknowledged("write"), *ending.acknowledged("merge")):
        if record.operation.key not in paths:
            raise Violation(f"{record.operation.name} was acknowledged, and the branch went without it")
    for record in ending.acknowledged("move"):
        if record.operation.key in paths:
            raise Violation(f"{record.operation.name} was acknowledged, and what it took away comes back")


def branch_scenes() -> Iterator[Scene]:
    sweeper, other = Actor("s", _sweeper), Actor("t", _sweeper)
    writes = ("write", b"w", _write)
    writer = Actor("w", _doing(writes))
    committer = Actor("c", _doing(writes, ("commit", b"w", _commit)))
    merger = Actor("g", _doing(("merge", b"n", _merge)))
    mover = Actor("m", _doing(("move", b"m", _move)))
    worlds = {
        "sweeper of branches, writer": (sweeper, writer),
        "sweeper of branches, committer": (sweeper, committer),
        "sweeper of branches, merger": (sweeper, merger),
        "sweeper of branches, mover": (sweeper, mover),
        "two sweepers of branches, writer": (sweeper, other, writer),
    }
    for name, actors in worlds.items():
        yield Scene(
            name=name,
            actors=actors,
            prepare=_prepare,
            checks=(what_was_done_stays,),
            private=(),
            clocks_agree=False,
            quick=Quick.NO_FAULT if "two" in name else Quick.ALL,
        )
