"""A repository is made again in its namespace under a collection of the one before: its server was lost, say, and the
refs of a dump were restored. A collector asks by name, so it would take the one for the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from lakebed.base import Clock, Conflict, Ports
from lakebed.catalog import DumpIds, Repository
from lakebed.gc.kinds import kind_to_plan
from lakebed.gc.kinds.erasure.plan import Erasure
from lakebed.gc.live import PolicyBook
from lakebed.gc.machine import flow
from lakebed.gc.messages import (
    Apply,
    ErasureOrder,
    Expire,
    Plan,
    RetireLeftovers,
    RunKind,
    Sweep,
    UncommittedOptions,
    Unstage,
)
from lakebed.gc.rules import MetadataRule, Selection, days_rules
from lakebed.gc.runs.context import Overtaken, RunContext
from lakebed.versions import Note
from tests.gc.live.test_deleted import Installation
from tests.gc.live.test_dumps import closed, distrust, service_of


class Waiting:
    """A clock that turns without waiting, and lets something happen in the first nap."""

    def __init__(self, clock: Clock, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._clock = clock
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def sleep(self, seconds: float) -> None:
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
        await self._clock.sleep(seconds)


@pytest.fixture
def here() -> Installation:
    return Installation()


async def dumped(here: Installation) -> tuple[Repository, DumpIds]:
    """A repository with an object at `a` that was replaced since, and a dump of before that."""
    made = await here.repository()
    ids = await made.dumps.dump()
    await made.objects.upload("main", "a", b"3")
    await made.changes.commit("main", Note(message="replaced", committer="ann"))
    await closed(made)
    service = service_of(made)
    await service.rules.write(days_rules(default_days=1, branch_days={}))
    await PolicyBook(made.versions).write(b'{"due": {"prefix": "a", "days": 1}}')
    here.days(30)
    return made, ids


async def made_again(here: Installation, ids: DumpIds, *, adopts: bool) -> Repository:
    """The key-value store is lost: another server, an empty one, the same namespace, and the dump's refs."""
    stores = here.stores
    there = Installation()
    there.stores, there.clock.ms = stores, here.clock.ms
    made = await there.catalog.create("lake", storage_namespace="mem://lake", bare=distrust)
    await made.dumps.restore(ids)
    service = service_of(made)
    await service.rules.write(days_rules(default_days=1, branch_days={}))
    await PolicyBook(made.versions).write(b'{"due": {"prefix": "a", "days": 1}}')
    if adopts:
        await service.adopting()
    return made


async def context_of(here: Installation, made: Repository) -> RunContext:
    return await here.context_of(service_of(made))


async def planned(context: RunContext, kind: RunKind) -> Plan:
    if kind is RunKind.ERASURE:
        order = ErasureOrder(selection=Selection(paths=("a",)), why="asked for")
        return await flow.plan(context, Erasure(order))
    return await flow.plan(context, kind_to_plan(kind, UncommittedOptions(), MetadataRule()))


@pytest.mark.parametrize("adopts", [False, True])
async def test_an_apply_that_waits_for_readers_deletes_nothing_of_a_repository_made_again_meanwhile(
    here: Installation, *, adopts: bool
) -> None:
    """The commit of the dump had expired in the old repository. In the new one it is the head."""
    made, ids = await dumped(here)
    context = await context_of(here, made)
    plan = await planned(context, RunKind.COMMITTED)
    again: list[Repository] = []

    async def restore() -> None:
        again.append(await made_again(here, ids, adopts=adopts))

    ports = Ports(Waiting(here.ports.clock, restore), here.ports.ids, here.ports.tasks)
    with pytest.raises(Overtaken, match="another repository or installation has this namespace"):
        await flow.apply(replace(context, ports=ports), plan.run_id, grace_s=900)

    [new] = again
    assert plan.totals.all.objects == 1
    assert await new.objects.read(await new.objects.open("main", "a")) == b"1"


@pytest.mark.parametrize("kind", [RunKind.COMMITTED, RunKind.LIFECYCLE, RunKind.ERASURE, RunKind.METADATA])
async def test_a_plan_of_the_repository_before_is_not_carried_out_in_the_one_made_again(
    here: Installation, kind: RunKind
) -> None:
    made, ids = await dumped(here)
    plan = await planned(await context_of(here, made), kind)
    new = await made_again(here, ids, adopts=True)
    keys = await here.keys()

    with pytest.raises(Conflict, match="the run is of a repository that had this name before: plan"):
        await flow.apply(await context_of(here, new), plan.run_id, grace_s=0)

    assert plan.uid == made.versions.uid != new.versions.uid
    assert await here.keys() == keys


async def test_each_step_of_an_apply_is_refused_in_the_repository_made_again(here: Installation) -> None:
    """It may be made again between any two steps of an apply."""
    made, ids = await dumped(here)
    context = await context_of(here, made)
    plan = await planned(context, RunKind.COMMITTED)
    leftovers = (await planned(context, RunKind.METADATA)).leftovers
    service = service_of(await made_again(here, ids, adopts=True))
    assert plan.expired is not None
    assert leftovers is not None
    uid = made.versions.uid

    with pytest.raises(Conflict, match="the run is of a repository that had this name before: plan"):
        await service.apply(plan.run_id, Apply(kind=plan.kind, plan="", rules_version=1, uid=uid))
    with pytest.raises(Conflict, match="the run is of a repository that had this name before: plan"):
        await service.expire(plan.run_id, Expire(commits=plan.expired, rules_version=1, uid=uid))
    with pytest.raises(Conflict, match="the run is of a repository that had this name before: plan"):
        await service.sweep(plan.run_id, Sweep(plan=plan.garbage, commits=plan.commits, uid=uid))
    with pytest.raises(Conflict, match="the run is of a repository that had this name before: plan"):
        await service.retire(plan.run_id, RetireLeftovers(leftovers=leftovers, uid=uid))
    with pytest.raises(Conflict, match="the run is of a repository that had this name before: plan"):
        await service.unstage(plan.run_id, Unstage(entries=(), uid=uid))
