"""The sweep of idle branches beside those who use one just then: writers, committers, merges, moves, and another sweep.
Sandboxes, which are made, extended, promoted and ended beside one another and beside upkeep.
Resets that look at more than a page: a page shows one cell, so each look goes on from where another actor changed it.

Each actor is a process with a catalog of its own. The clocks of the sweeper and of upkeep are days ahead: to them every
branch is idle, every sandbox has expired, and its maker is dead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from explorer.actors import Actor, Ending, Violation
from explorer.disk import Disk
from explorer.operations import Operation
from lakebed.auth import PARTITION, SANDBOXES, Accounts, Ref, SandboxRecord, SandboxState, decode
from lakebed.base import RunKind
from lakebed.catalog import Repository
from lakebed.gc.live import BranchSweep, PolicyBook
from lakebed.gc.messages import BranchToGo
from lakebed.ranges import metarange_key
from lakebed.sandboxes import Sandboxes
from lakebed.versions import BranchRecord, Commit, DeletedRefRecord, RefKind, Versions, decode_record, keys
from sim.checkers.deleted import ONE
from sim.ports.ports import SimPorts
from sim.ports.scene import Quick, Scene
from sim.scenes import deeds as do
from sim.scenes.doing import MAIN, SIDE, entry_of, note
from sim.scenes.flows import RULED
from sim.scenes.repositories import NAME, acting, catalog_of, repositories
from sim.scenes.scenes import client, scene

from .deleted import DAY_MS
from .moves import move

POLICY = b'{"branches": {"side": {"idle": "1d"}}}'
Act = Callable[[Versions], Awaitable[object]]


async def _prepare(ports: SimPorts) -> None:
    """Make a branch beside the default one. Both have `m`, and the default branch one commit more."""
    made = await _make_repository(ports)
    await made.versions.refs.create_branch(SIDE, MAIN)
    await made.versions.staging.put(MAIN, b"n", entry_of("n"))
    await made.versions.commits.commit(MAIN, note("n"))
    await PolicyBook(made.versions).write(POLICY)


async def _make_repository(ports: SimPorts) -> Repository:
    made = await catalog_of(ports).create(NAME, storage_namespace=ONE)
    await made.versions.staging.put(MAIN, b"m", entry_of("m"))
    await made.versions.commits.commit(MAIN, note("m"))
    return made


def _actor(name: str, *deeds: tuple[str, bytes, Act]) -> Actor:
    """Make a process that does these on the branch, each named by its kind and the path that it is about."""

    async def program(ports: SimPorts) -> None:
        handle = await catalog_of(ports).get(NAME)
        for number, (kind, key, act) in enumerate(deeds):
            operation = Operation(f"{ports.actor}{ports.life}{number}", kind, SIDE, key)
            await ports.operations.run(operation, _nothing(act(handle.versions)))

    return Actor(name, program)


async def _nothing(doing: Awaitable[object]) -> None:
    await doing


async def _sweep(ports: SimPorts) -> None:
    ports.clock.ms += 3 * DAY_MS
    handle = await catalog_of(ports).get(NAME)
    sweep = BranchSweep(handle)
    plan = await sweep.plan(prefix=SIDE)
    wanted = [BranchToGo(branch=one.branch, state=one.state) for one in plan.branches if one.goes]
    await sweep.sweep(plan.policy_version, wanted)


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
    sweeper, other = (Actor(name, acting("sweep", _sweep)) for name in "st")
    writes = ("write", b"w", lambda repo: repo.staging.put(SIDE, b"w", entry_of("w")))
    writer = _actor("w", writes)
    committer = _actor("c", writes, ("commit", b"w", lambda repo: repo.commits.commit(SIDE, note("c"))))
    merger = _actor("g", ("merge", b"n", lambda repo: repo.merges.merge(MAIN, SIDE, note("g"))))
    mover = _actor("m", ("move", b"m", lambda repo: repo.moves.move(SIDE, b"m", MAIN, b"moved")))
    for name, *actors in (
        ("sweeper of branches, writer", sweeper, writer),
        ("sweeper of branches, committer", sweeper, committer),
        ("sweeper of branches, merger", sweeper, merger),
        ("sweeper of branches, mover", sweeper, mover),
        ("two sweepers of branches, writer", sweeper, other, writer),
    ):
        quick, checks = Quick.NO_FAULT if "two" in name else Quick.ALL, [what_was_done_stays]
        yield Scene(name=name, actors=actors, prepare=_prepare, checks=checks, clocks_agree=False, quick=quick)
    yield from sandbox_scenes()


# Sandboxes

BOX: Final = "sandbox-0000000000"
_KEY: Final = SANDBOXES + BOX.encode()
_BoxAct = Callable[[Sandboxes, Repository], Awaitable[object]]
_MOVES: Final = {
    (None, SandboxState.CREATING),
    (SandboxState.CREATING, SandboxState.ACTIVE),
    (SandboxState.CREATING, SandboxState.ENDING),
    (SandboxState.ACTIVE, SandboxState.ACTIVE),
    (SandboxState.ACTIVE, SandboxState.ENDING),
    (SandboxState.ENDING, None),
}


class _Keys:
    """Seal nothing: no one here opens a secret."""

    def seal(self, secret: str, *, access_key_id: str, nonce: bytes) -> bytes:
        return f"{access_key_id} {secret}".encode() + nonce


_keys: Final[Any] = _Keys()


def _box(name: str, act: _BoxAct, *, days: int = 0) -> Actor:
    """Make a process that does this to the sandbox, some days ahead of the others."""

    async def program(ports: SimPorts) -> None:
        ports.clock.ms += days * DAY_MS
        await acting(name, lambda ports: _acted(ports, act), branch=SIDE)(ports)

    return Actor(name[0], program)


async def _acted(ports: SimPorts, act: _BoxAct) -> None:
    catalog = catalog_of(ports)
    boxes = Sandboxes(ports.store, ports.ports, Accounts(ports.store, ports.ports, _keys), catalog)
    await act(boxes, await catalog.get(NAME))


async def _make(boxes: Sandboxes, handle: Repository) -> None:
    read = Ref.of_branch(MAIN)
    await boxes.create(handle, BOX, source=MAIN, read=read, lasts_ms=DAY_MS, by="sim")


def _extend(days: int) -> _BoxAct:
    """Upkeep's clock has not reached a time that is nine days ahead."""
    return lambda boxes, handle: boxes.extend(handle, BOX, lasts_ms=days * DAY_MS)


def _end(*, keeps_branch: bool = False) -> _BoxAct:
    return lambda boxes, handle: boxes.end(handle, BOX, by="sim", keeps_branch=keeps_branch)


async def _clean(boxes: Sandboxes, _: Repository) -> None:
    await boxes.clean()


async def _tidy(boxes: Sandboxes, handle: Repository) -> None:
    # As upkeep does: a branch that was left half made is no business of sandboxes.
    await handle.versions.cleanup.clean()
    await boxes.clean()


async def _prepare_box(ports: SimPorts) -> None:
    await _make_repository(ports)
    await _acted(ports, _make)


async def _tidy_boxes(ports: SimPorts) -> None:
    """Two passes of upkeep, when all that was begun is long over."""
    for _ in range(2):
        ports.clock.ms += 30 * DAY_MS
        await _acted(ports, _tidy)


def _branch(disk: Disk) -> BranchRecord | None:
    [repository] = repositories(disk).values()
    value = disk.value(repository.uid.encode(), keys.BRANCH + BOX.encode())
    return None if value is None else decode_record(BranchRecord, value)


def a_sandbox_has_one_life(disk: Disk, partition: bytes, key: bytes, old: bytes | None, new: bytes | None) -> None:
    """Check each change of the record: only an active one gives rights, and what has begun to end never is again."""
    if partition != PARTITION or key != _KEY:
        return
    states = [None if value is None else decode(SandboxRecord, value).state for value in (old, new)]
    if tuple(states) not in _MOVES:
        raise Violation(f"a sandbox went from {states[0]} to {states[1]}")
    if states == [SandboxState.CREATING, SandboxState.ACTIVE] and _branch(disk) is None:
        raise Violation("a sandbox became active without its branch")


def nothing_is_left_of_a_sandbox(ending: Ending) -> None:
    """Check that no record, user or key is left; and no branch, but one that was promoted or brought back."""
    left = [key for key in ending.disk.cells.get(PARTITION, {}) if not key.startswith(b"server/")]
    if left:
        raise Violation(f"of an ended sandbox there is left: {left}")
    branch = _branch(ending.disk)
    if branch is not None and branch.sandbox and not ending.of("promote"):
        raise Violation("a sandbox ended, and its branch is there")


def what_was_kept_stays(ending: Ending) -> None:
    """Check that a branch is there that was acknowledged as promoted, or as brought back."""
    for kind in ("promote", "undelete"):
        if ending.acknowledged(kind) and _branch(ending.disk) is None:
            raise Violation(f"the branch went after {kind} was acknowledged")


def what_was_extended_stays(ending: Ending) -> None:
    """Check that a sandbox is active and has its branch, if it was extended beyond every clock and no user ended it."""
    if not ending.acknowledged("xtend beyond"):
        return
    value = ending.disk.value(PARTITION, _KEY)
    state = None if value is None else decode(SandboxRecord, value).state
    if state is not SandboxState.ACTIVE or _branch(ending.disk) is None:
        raise Violation(f"a sandbox was extended, and its record is {state}")


def sandbox_scenes() -> Iterator[Scene]:
    make, extend, end = _box("make", _make), _box("xtend", _extend(2)), _box("end", _end())
    promote = _box("promote", _end(keeps_branch=True))
    undelete = _box("undelete", lambda _, handle: handle.changes.undelete_branch(BOX))
    beyond = _box("xtend beyond", _extend(9))
    upkeep, other = _box("clean", _clean, days=3), _box("late upkeep", _clean, days=3)
    for name, *actors in (
        ("maker of a sandbox, upkeep", make, upkeep),
        ("ender of a sandbox, undeleter", end, undelete),
        ("upkeep of a sandbox, other upkeep, undeleter", upkeep, other, undelete),
        ("upkeep of a sandbox, extender", upkeep, beyond),
        ("ender of a sandbox, extender", end, extend),
        ("ender of a sandbox, promoter", end, promote),
    ):
        lasts = beyond in actors  # Tidying lets months pass, and then upkeep rightly ends what was extended.
        yield Scene(
            name=name,
            actors=actors,
            prepare=_make_repository if make in actors else _prepare_box,
            tidy=None if lasts else _tidy_boxes,
            checks=(what_was_extended_stays,) if lasts else (what_was_kept_stays,),
            tidy_checks=() if lasts else (nothing_is_left_of_a_sandbox,),
            step_checks=(a_sandbox_has_one_life,),
            clocks_agree=False,
            quick=Quick.NO_FAULT if "other" in name else Quick.ALL,
        )


def reset_scenes() -> Iterator[Scene]:
    yield from _of_a_prefix()
    yield from _of_a_branch()


def _of_a_prefix() -> Iterator[Scene]:
    staged = [do.upload("w1", "aa", "1"), do.upload("w2", "ab", "2"), do.upload("w3", "b", "3")]
    past = [do.write("w0", "aa", "0")]
    s = client("s", do.in_pages(do.reset_prefix("s1", "a")))
    c, f, k = client("c", do.commit("c1")), client("f", do.freeze("f1")), client("k", do.clean("k1"))
    how: dict[str, Any] = {"staged": staged, "committed": past, "resets_objects": True}
    yield scene("prefix resetter, freezer", s, f, **how)
    yield scene("prefix resetter, committer", s, c, **how, quick=Quick.NO_FAULT)
    w = client("w", do.write("w4", "ab", "4"))
    yield scene("prefix resetter, writer, committer", s, w, c, **how, quick=Quick.NEVER)
    gone = client("w", do.delete("w4", "ab"))
    yield scene("prefix resetter, deleter, freezer", s, gone, f, **how, quick=Quick.NEVER)
    yield scene("prefix resetter, committer, cleaner", s, c, k, **how, quick=Quick.NEVER)
    m = client("m", *move("m1", "aa", "b"))
    yield scene("prefix resetter, mover", s, m, **how, quick=Quick.NO_FAULT)
    yield scene("prefix resetter, mover, freezer", s, m, f, **how, quick=Quick.NEVER)
    copier = client("h", do.copy("w5", "aa", "ab", "5"))
    r = client("r", do.uncommitted_run("r1"))
    yield scene("prefix resetter, copier, run", s, copier, r, **how)
    resets = client("s", do.in_pages(do.reset_prefix("s1", "a")), do.commit("c9"))
    old = [do.upload("w0", "aa", "0"), do.commit("p0"), RULED]
    goes, name = (
        client("r", do.commit("c1"), do.collect("r1", RunKind.COMMITTED), do.commit("c2")),
        "prefix resetter that commits",
    )
    yield scene(f"{name}, committer that runs", resets, goes, before=old, staged=staged, resets_objects=True)


def _of_a_branch() -> Iterator[Scene]:
    # The first cells say what the head has. Only a later page has a change.
    past = [do.write("p1", "a", "1"), do.commit("p2")]
    past += [do.write("p3", "a", "2"), do.write("p4", "b", "3"), do.commit("p5")]
    same, change = [do.write("w1", "a", "2"), do.write("w2", "b", "3")], do.write("w3", "c", "4")
    gentle = client("h", do.in_pages(do.hard_reset("h1", "main~1", force=False)))
    c, f, w = client("c", do.commit("c1")), client("f", do.in_pages(do.freeze("f1"))), client("w", change)
    yield scene("gentle hard resetter in pages, freezer", gentle, f, before=past, staged=[*same, change])
    yield scene("gentle hard resetter in pages, committer", gentle, c, before=past, staged=[*same, change])
    yield scene("gentle hard resetter in pages, writer", gentle, w, before=past, staged=same)
    name = "gentle hard resetter in pages, writer, freezer"
    yield scene(name, gentle, w, f, before=past, staged=same, quick=Quick.NEVER)
    forced = client("h", do.in_pages(do.hard_reset("h1", "main~1")), do.in_pages(do.clean("k1")))
    # Of more states than a walk ends with.
    many_states: dict[str, Any] = {"before": past, "staged": [*same, change], "quick": Quick.NEVER}
    yield scene("hard resetter that cleans in pages, committer", forced, c, **many_states)
    s = client("s", do.in_pages(do.reset("s1")), do.in_pages(do.clean("k1")))
    many = [*same, change, do.upload("w4", "d", "5")]
    yield scene("resetter that cleans in pages, freezer in pages", s, f, before=past, staged=many, quick=Quick.NO_FAULT)
    yield scene("committer, freezer in pages", c, f, before=past, staged=many)
    side = [do.create_branch("b0"), do.write("t1", "y", "1", branch="side"), do.write("t2", "z", "2", branch="side")]
    x = client("x", do.delete_branch("x1"), do.in_pages(do.clean("k1")), do.create_branch("x2"))
    made = client("g", do.merge("g1", "side"))
    on_side = client("c", do.commit("c1", branch="side"))
    # Its walk takes 14 CPU seconds without a fault. The one beside a merger takes half a second.
    yield scene("deleter that cleans in pages, committer", x, on_side, before=side, quick=Quick.NEVER)
    yield scene("deleter that cleans in pages, merger", x, made, before=[*side, do.commit("p9", branch="side")])
