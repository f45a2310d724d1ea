"""The collection of a deleted repository beside those who bring it back, name its objects, or use its namespace again.
And what deletes in a repository in use, which is deleted meanwhile: a lifecycle run, an erasure, the queue of hard
delete.

Each actor is a process with a catalog of its own. The collector runs the shipped flow over the deleted repository. What
it has in its run's folder no other actor looks at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from lakebed.base import Conflict, Denied, Entry, Invalid, NotFound, from_row, parse_address
from lakebed.catalog import Catalog, Repository
from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds.deleted.plan import Deleted
from lakebed.gc.kinds.erasure.plan import Erasure
from lakebed.gc.kinds.lifecycle.plan import Lifecycle
from lakebed.gc.live import CollectionService, PolicyBook, QueueWorker, ServiceOptions, open_deleted
from lakebed.gc.machine import flow
from lakebed.gc.messages import ErasureOrder, Mode, Requests, Service
from lakebed.gc.rules import Selection
from lakebed.gc.runs.context import RunContext, list_plans
from lakebed.objectstore import DeleteFailure
from lakebed.versions import Note, Versions, keys
from sim.checkers.deleted import (
    ONE,
    OTHER,
    a_namespace_has_one,
    no_record_is_left,
    nothing_is_left,
    nothing_named_is_deleted,
    one_of_both,
)
from sim.ports.actors import Actor, Program, Quick, Scene
from sim.ports.operations import Operation
from sim.ports.ports import SimDeleter, SimPorts
from sim.scenes.collecting import OPTIONS
from sim.scenes.repositories import NAME, OLD_MS, Namespace, catalog_of

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


async def upload_to(handle: Repository, path: str, data: bytes) -> str:
    async def store_body(address: str) -> Entry:
        await handle.versions.objectstore.put(address, data)
        return Entry(address=address, size_bytes=len(data), checksum=path, modified_ms=0)

    return (await handle.versions.staging.upload("main", path.encode(), store_body)).address


async def _prepare(ports: SimPorts) -> None:
    """Delete a repository with a commit and something staged."""
    catalog = catalog_of(ports)
    made = await catalog.create(NAME, storage_namespace=ONE)
    await upload_to(made, "a", b"1")
    await made.versions.commits.commit("main", Note(message="m", committer="sim"))
    await upload_to(made, "b", b"2")
    await catalog.delete(NAME)


async def _prepare_named(ports: SimPorts) -> None:
    """Let another repository stage an object of the deleted one, by a name that it must have had before."""
    await _prepare(ports)
    catalog = catalog_of(ports)
    other = await catalog.create(OTHER, storage_namespace="sim://two")
    assert ports.disk is not None
    for key in sorted(ports.disk.objectstore):
        if parse_address(key.removeprefix(f"{ONE}/")) is not None:
            named = Entry(address=key, size_bytes=1, checksum=key, modified_ms=0)
            await other.versions.staging.put("main", b"old", named)
            return


async def prepare_due(ports: SimPorts) -> None:
    """Make a repository whose policy lets `a` go, and nothing else. It has a commit and something staged."""
    made = await catalog_of(ports).create(NAME, storage_namespace=ONE)
    await upload_to(made, "a", b"1")
    await upload_to(made, "c", b"3")
    await made.versions.commits.commit("main", Note(message="m", committer="sim"))
    await upload_to(made, "b", b"2")
    await PolicyBook(made.versions).write(b'{"due": {"prefix": "a", "days": 1}}')
    await made.versions.slices.end()


async def _prepare_erased(ports: SimPorts) -> None:
    """Make a repository that has `a` in a commit and another version of it staged, and something else of both."""
    made = await catalog_of(ports).create(NAME, storage_namespace=ONE)
    await upload_to(made, "a", b"1")
    await upload_to(made, "c", b"3")
    await made.versions.commits.commit("main", Note(message="m", committer="sim"))
    await upload_to(made, "a", b"2")
    await made.versions.slices.end()


async def _prepare_ordered(ports: SimPorts) -> None:
    """Make the same, and plan its erasure."""
    await _prepare_erased(ports)
    await _plan_erasure(_over(ports, CollectionService((await catalog_of(ports).get(NAME)).versions, OPTIONS)))


async def _prepare_planned(ports: SimPorts) -> None:
    """Make the same, plan its erasure, and delete it."""
    await _prepare_ordered(ports)
    await catalog_of(ports).delete(NAME)


async def _prepare_sweeping(ports: SimPorts) -> None:
    """Make the same, begin to apply an erasure of it whose deletes all fail, and delete the repository."""
    await _prepare_erased(ports)
    catalog = catalog_of(ports)
    context = _over(ports, CollectionService((await catalog.get(NAME)).versions, OPTIONS), fails=True)
    report = await flow.apply(context, await _plan_erasure(context), grace_s=0)
    assert report.objects_failed, "the run sweeps still"
    await catalog.delete(NAME)


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
    return RunContext(
        repository=NAME,
        service=Service(service),
        engine=LocalEngine(store, ports.ports, open_deleter=lambda: kind(own)),
        store=store,
        ports=ports.ports,
        progress=lambda _: None,
    )


async def _collect(ports: SimPorts, *, after_ms: int = 8 * DAY_MS) -> None:
    ports.clock.ms += after_ms
    catalog = catalog_of(ports)
    with suppress(NotFound, Conflict, Denied):
        plan = await flow.plan(await _context(ports, catalog), Deleted())
        await flow.apply(await _context(ports, catalog), plan.run_id)


async def _collector(ports: SimPorts) -> None:
    await ports.operations.run(Operation(ports.actor, "collect"), _collect(ports))


async def _take_due(ports: SimPorts) -> None:
    handle = await catalog_of(ports).get(NAME)
    context = _over(ports, CollectionService(handle.versions, OPTIONS))
    plan = await flow.plan(context, Lifecycle(Mode.CLEAN))
    await flow.apply(context, plan.run_id, grace_s=0)


async def _lifecycle(ports: SimPorts) -> None:
    await ports.operations.run(Operation(f"{ports.actor}{ports.life}", "run"), _take_due(ports))


async def _plan_erasure(context: RunContext) -> str:
    order = ErasureOrder(selection=Selection(paths=("a",)), why="simulated")
    return (await flow.plan(context, Erasure(order))).run_id


async def _take_selected(ports: SimPorts) -> None:
    handle = await catalog_of(ports).get(NAME)
    context = _over(ports, CollectionService(handle.versions, OPTIONS))
    await flow.apply(context, await _plan_erasure(context), grace_s=0)


async def _apply_ordered(ports: SimPorts) -> None:
    await _apply_all(ports, (await catalog_of(ports).get(NAME)).versions)


async def _apply_late(ports: SimPorts) -> None:
    """Be a process that had its handle before the repository was deleted, and applies the erasure now."""
    await _apply_all(ports, (await catalog_of(ports).open_deleted(NAME, ""))[1])


async def _apply_all(ports: SimPorts, versions: Versions) -> None:
    context = _over(ports, CollectionService(versions, OPTIONS))
    for run_id in await list_plans(context.store):
        with suppress(NotFound, Conflict, Denied):
            await flow.apply(context, run_id, grace_s=0)


async def _late_eraser(ports: SimPorts) -> None:
    await ports.operations.run(Operation(f"{ports.actor}{ports.life}", "run"), _apply_late(ports))


async def _applier(ports: SimPorts) -> None:
    await ports.operations.run(Operation(f"{ports.actor}{ports.life}", "run"), _apply_ordered(ports))


async def _eraser(ports: SimPorts) -> None:
    await ports.operations.run(Operation(f"{ports.actor}{ports.life}", "run"), _take_selected(ports))


async def _work(ports: SimPorts, *, overwrites: bool) -> None:
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
        await handle.versions.copies.copy("main~0", b"a", "main", b"x", shallow=True)


async def _copier(ports: SimPorts) -> None:
    await ports.operations.run(Operation(f"{ports.actor}{ports.life}c", "write", what="copy"), _copy_again(ports))


async def _worker(ports: SimPorts, *, overwrites: bool = False) -> None:
    doing = _work(ports, overwrites=overwrites)
    await ports.operations.run(Operation(f"{ports.actor}{ports.life}", "clean"), doing)


async def _delete(ports: SimPorts) -> None:
    await ports.operations.run(Operation(f"{ports.actor}{ports.life}d", "delete"), catalog_of(ports).delete(NAME))


async def _deleter_back(ports: SimPorts) -> None:
    """Delete the repository, and bring it back."""
    await _delete(ports)
    await _undeleter(ports)


async def delete_and_collect(ports: SimPorts) -> None:
    """Delete the repository, and collect it when its window is over."""
    await _delete(ports)
    await _collector(ports)


async def _deleter_reusing(ports: SimPorts) -> None:
    """Delete the repository, collect it, and use its namespace again."""
    await delete_and_collect(ports)
    await _reuser(ports)


async def _copier_back(ports: SimPorts) -> None:
    """Copy, then delete the repository and bring it back."""
    await _copier(ports)
    await _deleter_back(ports)


async def _undeleter(ports: SimPorts) -> None:
    catalog = catalog_of(ports)
    name = f"{ports.actor}{ports.life}"

    async def act() -> None:
        await catalog.undelete(NAME)

    await ports.operations.run(Operation(name, "undelete"), act())


async def _mover(ports: SimPorts) -> None:
    """Commit the name of another's object, and take it from staging so."""
    handle = await catalog_of(ports).get(OTHER)
    name = f"{ports.actor}{ports.life}"

    async def act() -> None:
        await handle.versions.commits.commit("main", Note(message=name, committer="sim"))

    await ports.operations.run(Operation(name, "commit"), act())


async def _renamer(ports: SimPorts) -> None:
    """Give another's object another path, and delete the old one."""
    handle = await catalog_of(ports).get(OTHER)
    staging = handle.versions.staging
    row = (await staging.list("main")).items
    if row and row[0][1] is not None:
        named = Entry(address=from_row(row[0][1]).address, size_bytes=1, checksum="new", modified_ms=0)
        await staging.put("main", b"new", named)
        await staging.delete("main", b"old")


async def _reuser(ports: SimPorts) -> None:
    """Use the namespace again as soon as it is free, with the same contents."""
    catalog = catalog_of(ports)
    ports.clock.ms += 9 * DAY_MS
    for _ in range(3):
        ports.clock.ms += OLD_MS
        await catalog.clean()
    with suppress(Invalid, Conflict):
        made = await catalog.create("new", storage_namespace=ONE, reuse=True)
        named = Entry(address="s3://elsewhere/a", size_bytes=1, checksum="a", modified_ms=0)
        await made.versions.staging.put("main", b"a", named)
        await made.versions.commits.commit("main", Note(message="m", committer="sim"))


async def _prepare_foreign(ports: SimPorts) -> None:
    """Make a deleted repository whose only tree names what lies elsewhere. Its successor writes the very same."""
    catalog = catalog_of(ports)
    made = await catalog.create(NAME, storage_namespace=ONE)
    named = Entry(address="s3://elsewhere/a", size_bytes=1, checksum="a", modified_ms=0)
    await made.versions.staging.put("main", b"a", named)
    await made.versions.commits.commit("main", Note(message="m", committer="sim"))
    await catalog.delete(NAME)


async def _prepare_free(ports: SimPorts) -> None:
    """Make a namespace free: all of its repository was collected."""
    await _prepare_foreign(ports)
    await _collect(ports)
    for _ in range(3):
        ports.clock.ms += OLD_MS
        await catalog_of(ports).clean()


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
    await made.versions.uploads.issue("main")
    await catalog.delete(NAME)


async def _put_late(ports: SimPorts) -> None:
    """Be the client: put the bytes, within the day for which its address is good."""
    uid, versions = await catalog_of(ports).open_deleted(NAME)
    page = await ports.store.scan(keys.repository_partition(uid), keys.UPLOAD, 1)
    await versions.objectstore.put(page.keys[0][len(keys.UPLOAD) :].decode(), b"late")


async def _collect_later(ports: SimPorts) -> None:
    await _collect(ports)
    await _finish(ports)


async def _finish(ports: SimPorts) -> None:
    for _ in range(2):
        ports.clock.ms += OLD_MS
        await catalog_of(ports).clean()


async def _finish_all(ports: SimPorts) -> None:
    """Finish by a clock that is past every window, until what was collected is gone."""
    ports.clock.ms += 10 * DAY_MS
    for _ in range(3):
        ports.clock.ms += OLD_MS
        await catalog_of(ports).clean()


# Checks


def deleted_scenes() -> Iterator[Scene]:
    collector = Actor("r", _collector)
    worlds: dict[str, tuple[Program, tuple[Actor, ...]]] = {
        "collector of a deleted repository, undeleter": (_prepare, (collector, Actor("u", _undeleter))),
        "collector of a deleted repository, committer of its names": (
            _prepare_named,
            (collector, Actor("c", _mover)),
        ),
        "collector of a deleted repository, renamer of its names": (
            _prepare_named,
            (collector, Actor("w", _renamer)),
        ),
        "collector of a deleted repository, reuser of its namespace": (
            _prepare_foreign,
            (collector, Actor("n", _reuser)),
        ),
    }
    for name, (prepare, actors) in worlds.items():
        yield Scene(
            name=name,
            actors=actors,
            prepare=prepare,
            tidy=_finish,
            checks=(nothing_named_is_deleted, one_of_both),
            tidy_checks=(nothing_named_is_deleted, one_of_both, nothing_is_left),
            private=PRIVATE,
            is_lock_free=False,
            # A commit takes many steps: with faults its world has up to 146,000 states.
            quick=Quick.NO_FAULT if "committer" in name else Quick.ALL,
        )
    yield from _used_again_scenes()
    undue = partial(nothing_named_is_deleted, due=b"a")
    for name, prepare in (("slept", _prepare_planned), ("sweeps still", _prepare_sweeping)):
        yield Scene(
            name=f"apply of an erasure that {name}, collector of its deleted repository",
            actors=(Actor("e", _late_eraser), collector),
            prepare=prepare,
            tidy=_finish_all,
            checks=(undue, one_of_both),
            tidy_checks=(undue, one_of_both, nothing_is_left, no_record_is_left),
            is_lock_free=False,
            keeps_order=False,
            foresees=True,
            # Two whole flows, whose files the other one lists: too many states to walk. Seeds have faults.
            quick=Quick.NEVER,
        )
    applier = Actor("r", _applier)
    with_copies = {
        "copier that deletes its repository and undeletes": {"d": _copier_back},
        "copier of a repository, deleter that undeletes": {"w": _copier, "d": _deleter_back},
    }
    for name, others in with_copies.items():
        yield Scene(
            name=f"apply of an erasure, {name}",
            actors=(applier, *(Actor(letter, program) for letter, program in others.items())),
            prepare=_prepare_ordered,
            tidy=_finish_all,
            checks=(undue, one_of_both),
            tidy_checks=(undue, one_of_both),
            private=PRIVATE,
            is_lock_free=False,
            keeps_order=False,
            foresees=True,
            # Walked whole by the command, in 9 s and more: the tests draw seeds.
            quick=Quick.NEVER,
        )
    deleters = {
        "deleter that undeletes": _deleter_back,
        "deleter that collects": delete_and_collect,
        "deleter that uses its namespace again": _deleter_reusing,
    }
    for name, other in deleters.items():
        # Of what was collected nothing is left, unless an upload took longer than the window, or a process of before
        # slept until the namespace was in use again: in these worlds clocks of others do not move.
        whole = () if other is _deleter_reusing else (no_record_is_left,)
        for what, prepare, run in (
            ("lifecycle run", prepare_due, _lifecycle),
            ("erasure", _prepare_erased, _eraser),
        ):
            yield Scene(
                name=f"{what} of a repository, {name}",
                actors=(Actor("r", run), Actor("d", other)),
                prepare=prepare,
                tidy=_finish_all,
                checks=(undue, one_of_both),
                tidy_checks=(undue, one_of_both, nothing_is_left, *whole),
                # A deleted repository's collection lists and deletes the run's files.
                private=PRIVATE if other is _deleter_back else (),
                is_lock_free=False,
                keeps_order=False,
                foresees=True,
                quick=Quick.NO_LOSS if other is _deleter_back else Quick.NEVER,
            )
        for what, program in (
            ("queue worker", _worker),
            ("overwriter with a queue worker", partial(_worker, overwrites=True)),
        ):
            overwrites = what != "queue worker"
            yield Scene(
                name=f"{what} of a repository, {name}",
                actors=(Actor("x", program), Actor("d", other)),
                prepare=_prepare_queue,
                tidy=_finish_all,
                checks=(nothing_named_is_deleted, one_of_both),
                tidy_checks=(
                    nothing_named_is_deleted,
                    one_of_both,
                    *(() if overwrites else (nothing_is_left, *whole)),
                ),
                is_lock_free=False,
                quick=Quick.ALL if other is _deleter_back else Quick.NEVER,
            )


def _used_again_scenes() -> Iterator[Scene]:
    """Let several want what is free, or let bytes come when a repository is deleted."""
    a, b = Actor("a", partial(_use_free, deletes=True)), Actor("b", _use_free)
    c = Actor("c", _use_free)
    worlds = {
        "two reusers of a free namespace": (b, c),
        "reuser of a free namespace that deletes, reuser": (a, b),
    }
    for name, actors in worlds.items():
        yield Scene(
            name=name,
            actors=actors,
            prepare=_prepare_free,
            checks=(a_namespace_has_one, nothing_named_is_deleted),
            is_lock_free=False,
            keeps_order=False,
            quick=Quick.NO_FAULT,
        )
    soon = Actor("r", partial(_collect, after_ms=DAY_MS // 2))
    yield Scene(
        name="late client of a deleted repository, collector that does not wait",
        actors=(Actor("u", _put_late), soon),
        prepare=_prepare_issued,
        tidy=_collect_later,
        checks=(one_of_both,),
        tidy_checks=(one_of_both, nothing_is_left),
        private=PRIVATE,
        is_lock_free=False,
        keeps_order=False,
        quick=Quick.NO_FAULT,
    )
