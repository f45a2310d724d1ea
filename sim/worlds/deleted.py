"""The collection of a deleted repository beside those who bring it back, name its objects, or use its namespace again.
And what deletes in a repository in use, which is deleted meanwhile: a lifecycle run, an erasure, the queue of hard
delete.

Each actor is a process with a catalog of its own. The collector runs the shipped flow over the deleted repository. What
it has in its run's folder no other actor looks at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from explorer.actors import Actor, Check
from lakebed.base import Conflict, Denied, Invalid, NotFound, from_row, parse_address
from lakebed.catalog import Catalog, Repository
from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds.deleted.plan import Deleted
from lakebed.gc.kinds.erasure.plan import Erasure
from lakebed.gc.kinds.lifecycle.plan import Lifecycle
from lakebed.gc.live import CollectionService, PolicyBook, QueueWorker, ServiceOptions, open_deleted
from lakebed.gc.machine import flow
from lakebed.gc.messages import ErasureOrder, Mode, Requests
from lakebed.gc.rules import Selection
from lakebed.gc.runs.context import RunContext, list_plans
from lakebed.objectstore import DeleteFailure
from lakebed.versions import keys
from sim.checkers.deleted import (
    ONE,
    OTHER,
    a_namespace_has_one,
    no_record_is_left,
    nothing_is_left,
    nothing_named_is_deleted,
    one_of_both,
)
from sim.ports.ports import SimDeleter, SimPorts
from sim.ports.scene import Program, Quick, Scene
from sim.scenes.collecting import OPTIONS, context_of
from sim.scenes.doing import MAIN, entry_of, note, put_bytes
from sim.scenes.repositories import NAME, OLD_MS, Namespace, acting, catalog_of

DAY_MS = 86_400_000
PRIVATE = (f"{ONE}/_lakefs/retention/", f"{ONE}/_lakefs/installation/", "setting/installation")


class NamespaceDeleter(SimDeleter):
    """Deletes below one namespace."""

    uri = ONE

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return await super().delete([f"{ONE}/{key}" for key in keys])


class _Refusing(NamespaceDeleter):
    """Deletes nothing."""

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return [DeleteFailure(key=key, reason="refused") for key in keys]


async def upload_to(handle: Repository, path: str, data: bytes) -> None:
    await put_bytes(handle.versions, MAIN, path.encode(), data, path)


async def make(
    ports: SimPorts, *, committed: Mapping[str, bytes], staged: Mapping[str, bytes] = MappingProxyType({})
) -> Repository:
    """Make a repository with one commit, and something staged."""
    made = await catalog_of(ports).create(NAME, storage_namespace=ONE)
    for path, data in committed.items():
        await upload_to(made, path, data)
    await made.versions.commits.commit(MAIN, note("m"))
    for path, data in staged.items():
        await upload_to(made, path, data)
    return made


async def _prepare(ports: SimPorts) -> None:
    """Delete a repository with a commit and something staged."""
    await make(ports, committed={"a": b"1"}, staged={"b": b"2"})
    await catalog_of(ports).delete(NAME)


async def _prepare_named(ports: SimPorts) -> None:
    """Let another repository stage an object of the deleted one, by a name that it must have had before."""
    await _prepare(ports)
    catalog = catalog_of(ports)
    other = await catalog.create(OTHER, storage_namespace="sim://two")
    assert ports.disk is not None
    for key in sorted(ports.disk.objectstore):
        if parse_address(key.removeprefix(f"{ONE}/")) is not None:
            await other.versions.staging.put(MAIN, b"old", entry_of(key, key))
            return


async def prepare_due(ports: SimPorts) -> None:
    """Make a repository whose policy lets `a` go, and nothing else. It has a commit and something staged."""
    made = await make(ports, committed={"a": b"1", "c": b"3"}, staged={"b": b"2"})
    await PolicyBook(made.versions).write(b'{"due": {"prefix": "a", "days": 1}}')
    await made.versions.slices.end()


async def _prepare_erased(ports: SimPorts) -> None:
    """Make a repository that has `a` in a commit and another version of it staged, and something else of both."""
    made = await make(ports, committed={"a": b"1", "c": b"3"}, staged={"a": b"2"})
    await made.versions.slices.end()


async def _prepare_ordered(ports: SimPorts) -> None:
    """Make the same, and plan its erasure."""
    await _prepare_erased(ports)
    await _plan_erasure(await _in_use(ports))


async def _prepare_planned(ports: SimPorts) -> None:
    """Make the same, plan its erasure, and delete it."""
    await _prepare_ordered(ports)
    await catalog_of(ports).delete(NAME)


async def _prepare_sweeping(ports: SimPorts) -> None:
    """Make the same, begin to apply an erasure of it whose deletes all fail, and delete the repository."""
    await _prepare_erased(ports)
    context = await _in_use(ports, fails=True)
    report = await flow.apply(context, await _plan_erasure(context), grace_s=0)
    assert report.objects_failed, "the run sweeps still"
    await catalog_of(ports).delete(NAME)


async def _prepare_queue(ports: SimPorts) -> None:
    """Make a repository with hard delete on, in which `a` is staged and an older version of `b` waits in the queue."""
    made = await catalog_of(ports).create(NAME, storage_namespace=ONE)
    hard_delete = made.versions.hard_delete
    await hard_delete.change(by="sim", is_on=True, grace_s=0)
    await upload_to(made, "a", b"1")
    await upload_to(made, "b", b"2")
    await upload_to(made, "b", b"3")
    assert await hard_delete.flush() == 1, "the version before waits in the queue"


async def _context(ports: SimPorts, catalog: Catalog) -> RunContext:
    return _over(ports, await open_deleted(catalog, NAME, "", options=ServiceOptions(scan_page=100)))


def _over(ports: SimPorts, service: Requests, *, fails: bool = False) -> RunContext:
    store = Namespace(ports, ONE)
    own = ports.objectstore.own
    kind = _Refusing if fails else NamespaceDeleter
    engine = LocalEngine(store, ports.ports, open_deleter=lambda: kind(own))
    return context_of(service, store, ports.ports, engine, repository=NAME)


async def _in_use(ports: SimPorts, **how: bool) -> RunContext:
    """Look at the repository of the name as a process that opens it now."""
    return _over(ports, CollectionService((await catalog_of(ports).get(NAME)).versions, OPTIONS), **how)


async def _collect(ports: SimPorts, *, after_ms: int = 8 * DAY_MS) -> None:
    ports.clock.ms += after_ms
    catalog = catalog_of(ports)
    with suppress(NotFound, Conflict, Denied):
        plan = await flow.plan(await _context(ports, catalog), Deleted())
        await flow.apply(await _context(ports, catalog), plan.run_id)


async def _take_due(ports: SimPorts) -> None:
    context = await _in_use(ports)
    plan = await flow.plan(context, Lifecycle(Mode.CLEAN))
    await flow.apply(context, plan.run_id, grace_s=0)


async def _plan_erasure(context: RunContext) -> str:
    order = ErasureOrder(selection=Selection(paths=("a",)), why="simulated")
    return (await flow.plan(context, Erasure(order))).run_id


async def _take_selected(ports: SimPorts) -> None:
    context = await _in_use(ports)
    await flow.apply(context, await _plan_erasure(context), grace_s=0)


async def _apply_ordered(ports: SimPorts) -> None:
    await _apply_all(await _in_use(ports))


async def _apply_late(ports: SimPorts) -> None:
    """Be a process that had its handle before the repository was deleted, and applies the erasure now."""
    versions = (await catalog_of(ports).open_deleted(NAME, ""))[1]
    await _apply_all(_over(ports, CollectionService(versions, OPTIONS)))


async def _apply_all(context: RunContext) -> None:
    for run_id in await list_plans(context.store):
        with suppress(NotFound, Conflict, Denied):
            await flow.apply(context, run_id, grace_s=0)


async def _work(ports: SimPorts, *, overwrites: bool = False) -> None:
    """Be a server's process: perhaps replace what is staged, then work on the queue, twice as it does again."""
    handle = await catalog_of(ports).get(NAME)
    await handle.versions.hard_delete.setting()
    if overwrites:
        with suppress(NotFound):
            await upload_to(handle, "a", b"new")
    for _ in range(2):
        await QueueWorker(handle.versions, NamespaceDeleter(ports.objectstore.own), linger_ms=0).work()


async def _copy_again(ports: SimPorts) -> None:
    """Be a server's process with a handle of before the deletion, and copy what the path has in the commit."""
    handle = await catalog_of(ports).get(NAME)
    with suppress(NotFound):
        await handle.versions.copies.copy("main~0", b"a", MAIN, b"x", shallow=True)


async def _bring_back(ports: SimPorts) -> None:
    await catalog_of(ports).undelete(NAME)


_collector = acting("collect", _collect)
_copier = acting("write", _copy_again, end="c", what="copy")
_delete = acting("delete", lambda ports: catalog_of(ports).delete(NAME), end="d")
_undeleter = acting("undelete", _bring_back)


def _in_turn(*programs: Program) -> Program:
    async def program(ports: SimPorts) -> None:
        for one in programs:
            await one(ports)

    return program


async def _mover(ports: SimPorts) -> None:
    """Commit the name of another's object, and take it from staging so."""
    handle = await catalog_of(ports).get(OTHER)

    async def act(ports: SimPorts) -> None:
        await handle.versions.commits.commit(MAIN, note(f"{ports.actor}{ports.life}"))

    await acting("commit", act)(ports)


async def _renamer(ports: SimPorts) -> None:
    """Give another's object another path, and delete the old one."""
    handle = await catalog_of(ports).get(OTHER)
    staging = handle.versions.staging
    row = (await staging.list(MAIN)).items
    if row and row[0][1] is not None:
        await staging.put(MAIN, b"new", entry_of("new", from_row(row[0][1]).address))
        await staging.delete(MAIN, b"old")


async def _reuser(ports: SimPorts) -> None:
    """Use the namespace again as soon as it is free, with the same contents."""
    catalog = catalog_of(ports)
    ports.clock.ms += 9 * DAY_MS
    for _ in range(3):
        ports.clock.ms += OLD_MS
        await catalog.clean()
    with suppress(Invalid, Conflict):
        await _fill(await catalog.create("new", storage_namespace=ONE, reuse=True))


async def _fill(made: Repository) -> None:
    """Commit a tree that names what lies elsewhere."""
    await made.versions.staging.put(MAIN, b"a", entry_of("a"))
    await made.versions.commits.commit(MAIN, note("m"))


delete_and_collect: Final = _in_turn(_delete, _collector)


async def _prepare_foreign(ports: SimPorts) -> None:
    """Make a deleted repository whose only tree names what lies elsewhere. Its successor writes the very same."""
    catalog = catalog_of(ports)
    await _fill(await catalog.create(NAME, storage_namespace=ONE))
    await catalog.delete(NAME)


async def _prepare_free(ports: SimPorts) -> None:
    """Make a namespace free: all of its repository was collected."""
    await _prepare_foreign(ports)
    await _collect(ports)
    await _finish(ports, times=3)


async def _use_free(ports: SimPorts, *, deletes: bool = False) -> None:
    """Use the free namespace, under a name of one's own."""
    catalog = catalog_of(ports)
    ports.clock.ms += 20 * DAY_MS
    with suppress(Invalid, Conflict, NotFound):
        await catalog.create(f"of-{ports.actor}", storage_namespace=ONE, reuse=True)
        if deletes:
            await catalog.delete(f"of-{ports.actor}")


async def _prepare_issued(ports: SimPorts) -> None:
    """Delete a repository that is kept for no time, and whose client has an address to put bytes at."""
    catalog = catalog_of(ports, deleted_days=0)
    made = await catalog.create(NAME, storage_namespace=ONE)
    await made.versions.uploads.issue(MAIN)
    await catalog.delete(NAME)


async def _put_late(ports: SimPorts) -> None:
    """Be the client: put the bytes, within the day for which its address is good."""
    uid, versions = await catalog_of(ports).open_deleted(NAME)
    page = await ports.store.scan(keys.repository_partition(uid), keys.UPLOAD, 1)
    await versions.objectstore.put(page.keys[0][len(keys.UPLOAD) :].decode(), b"late")


async def _collect_later(ports: SimPorts) -> None:
    await _collect(ports)
    await _finish(ports)


async def _finish(ports: SimPorts, *, times: int = 2) -> None:
    for _ in range(times):
        ports.clock.ms += OLD_MS
        await catalog_of(ports).clean()


async def _finish_all(ports: SimPorts) -> None:
    """Finish by a clock that is past every window, until what was collected is gone."""
    ports.clock.ms += 10 * DAY_MS
    await _finish(ports, times=3)


def _scene(
    name: str, prepare: Program, *actors: Actor, due: bytes = b"", left: Sequence[Check] = (), **how: Any
) -> Scene:
    """`due`: a path at which commits may lose what they have. `left`: what is checked once all is tidied, too."""
    named = partial(nothing_named_is_deleted, due=due) if due else nothing_named_is_deleted
    checks: tuple[Check, ...] = (named, one_of_both)
    fields = {"tidy": _finish_all, "checks": checks, "tidy_checks": (*checks, *left), "is_lock_free": False, **how}
    return Scene(name=name, prepare=prepare, actors=actors, **fields)


def deleted_scenes() -> Iterator[Scene]:
    collector = Actor("r", _collector)
    for who, prepare, other in (
        ("undeleter", _prepare, Actor("u", _undeleter)),
        ("committer of its names", _prepare_named, Actor("c", _mover)),
        ("renamer of its names", _prepare_named, Actor("w", _renamer)),
        ("reuser of its namespace", _prepare_foreign, Actor("n", _reuser)),
    ):
        # A commit takes many steps: with faults its world has up to 146,000 states.
        quick = Quick.NO_FAULT if other.name == "c" else Quick.ALL
        how: dict[str, Any] = {"tidy": _finish, "left": [nothing_is_left], "private": PRIVATE, "quick": quick}
        yield _scene(f"collector of a deleted repository, {who}", prepare, collector, other, **how)
    yield from _used_again_scenes()
    # Two whole flows, whose files the other one lists: too many states to walk, so tests draw seeds. They have faults.
    flows: dict[str, Any] = {"due": b"a", "keeps_order": False, "foresees": True}
    late, left = Actor("e", acting("run", _apply_late)), [nothing_is_left, no_record_is_left]
    for did, prepare in (("slept", _prepare_planned), ("sweeps still", _prepare_sweeping)):
        name = f"apply of an erasure that {did}, collector of its deleted repository"
        yield _scene(name, prepare, late, collector, left=left, **flows)
    applier, back = Actor("r", acting("run", _apply_ordered)), _in_turn(_delete, _undeleter)
    # Walked whole by the command, in 9 s and more: the tests draw seeds.
    for who, others in (
        ("copier that deletes its repository and undeletes", [Actor("d", _in_turn(_copier, back))]),
        ("copier of a repository, deleter that undeletes", [Actor("w", _copier), Actor("d", back)]),
    ):
        yield _scene(f"apply of an erasure, {who}", _prepare_ordered, applier, *others, private=PRIVATE, **flows)
    for who, deletes in (
        ("deleter that undeletes", back),
        ("deleter that collects", delete_and_collect),
        ("deleter that uses its namespace again", _in_turn(delete_and_collect, _reuser)),
    ):
        deleter, comes_back = Actor("d", deletes), deletes is back
        # Of what was collected nothing is left, unless an upload took longer than the window, or a process of before
        # slept until the namespace was in use again: in these worlds clocks of others do not move.
        whole = () if "again" in who else (no_record_is_left,)
        for what, prepare, run in (
            ("lifecycle run", prepare_due, _take_due),
            ("erasure", _prepare_erased, _take_selected),
        ):
            how = {"left": (nothing_is_left, *whole), "quick": Quick.NO_LOSS if comes_back else Quick.NEVER}
            # A deleted repository's collection lists and deletes the run's files.
            how |= {"private": PRIVATE if comes_back else (), **flows}
            yield _scene(f"{what} of a repository, {who}", prepare, Actor("r", acting("run", run)), deleter, **how)
        for what, overwrites in (("queue worker", False), ("overwriter with a queue worker", True)):
            worker = Actor("x", acting("clean", partial(_work, overwrites=overwrites)))
            how = {"left": () if overwrites else (nothing_is_left, *whole)}
            how |= {"quick": Quick.ALL if comes_back else Quick.NEVER}
            yield _scene(f"{what} of a repository, {who}", _prepare_queue, worker, deleter, **how)


def _used_again_scenes() -> Iterator[Scene]:
    """Let several want what is free, or let bytes come when a repository is deleted."""
    a, b, c = Actor("a", partial(_use_free, deletes=True)), Actor("b", _use_free), Actor("c", _use_free)
    how: dict[str, Any] = {"keeps_order": False, "quick": Quick.NO_FAULT}
    free = how | {"tidy": None, "checks": (a_namespace_has_one, nothing_named_is_deleted), "tidy_checks": ()}
    yield _scene("two reusers of a free namespace", _prepare_free, b, c, **free)
    yield _scene("reuser of a free namespace that deletes, reuser", _prepare_free, a, b, **free)
    soon, late = Actor("r", partial(_collect, after_ms=DAY_MS // 2)), Actor("u", _put_late)
    name = "late client of a deleted repository, collector that does not wait"
    how |= {"tidy": _collect_later, "checks": (one_of_both,), "tidy_checks": (one_of_both, nothing_is_left)}
    yield _scene(name, _prepare_issued, late, soon, private=PRIVATE, **how)
