"""The steps of an apply, each as a deed of its own: a scene can begin amid an apply, and few steps are left to order.

The live side and the kinds are the shipped ones. Left out are the flow's own files, turns and fences among them: what
the live side promises holds without them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lakebed.gc.kinds import kind_of_plan
from lakebed.gc.messages import GARBAGE, Cleared, Expire, Plan, RecheckInputs, RunKind
from lakebed.gc.runs.context import read_plan
from lakebed.gc.runs.resume import write_recheck
from lakebed.versions import Versions
from sim.ports.ports import SimDeleter, SimObjectStore

from .collecting import PAGED, Collecting
from .deeds import later, run_later
from .doing import Do

AMID: Final = b"(amid an apply)"
"""A partition of the simulation's own: what an apply holds in memory between two of its steps, by run."""


def plan(name: str, *, days: int = 10) -> Do:
    """Plan a run of committed data. The other deeds find it by this name."""

    async def act(repo: Versions) -> None:
        made = await Collecting(repo).plan(RunKind.COMMITTED)
        await repo.store.set(AMID, b"plan/" + name.encode(), made.run_id.encode())

    return run_later(name, act, days=days)


@later(10)
async def publish(repo: Versions, planned: str) -> None:
    """Do the first page of publishing a planned run: its commits expire, and what was swept by now is written down."""
    collecting = Collecting(repo, PAGED)
    found = await _plan(repo, planned)
    answer = await collecting.service.expire(found.run_id, _request(found))
    assert answer.continuation_token is not None, "there are more pages to read"
    await repo.store.set(AMID, b"token/" + found.run_id.encode(), answer.continuation_token.encode())


@later(10)
async def clear(repo: Versions, planned: str) -> None:
    """Publish a planned run, or go on with it, and look again: what may be deleted is kept for its `sweep`."""
    collecting = Collecting(repo)
    found = await _plan(repo, planned)
    token = await repo.store.get(AMID, b"token/" + found.run_id.encode())
    expire = collecting.service.expire

    async def gone_on(run_id: str, body: Expire) -> RecheckInputs:
        if token is not None and body.continuation_token is None:
            body = msgspec.structs.replace(body, continuation_token=token.value.decode())
        return await expire(run_id, body)

    collecting.service.expire = gone_on
    cleared = await kind_of_plan(found).clear(collecting.context, found, found.rules_version)
    await write_recheck(collecting.context.store, found, cleared)
    await repo.store.set(AMID, found.run_id.encode(), msgspec.json.encode(cleared))


@later(10)
async def sweep(repo: Versions, planned: str, *, window: str | None = None) -> None:
    """Let the run delete what its `clear` left: at once, or after a window."""
    collecting = Collecting(repo)
    found = await _plan(repo, planned)
    held = await repo.store.get(AMID, found.run_id.encode())
    if held is None:
        return
    cleared, service = msgspec.json.decode(held.value, type=Cleared), collecting.context.service
    await service.sweeping(found.run_id, cleared.garbage, cleared.commits, uid=found.uid)
    if window is not None:
        await service.deferred(found.run_id, cleared.garbage, window)
        return
    store: object = repo.objectstore
    assert isinstance(store, SimObjectStore)
    rows = await collecting.context.read(cleared.garbage, GARBAGE)
    await SimDeleter(store.own).delete(rows["address"].to_pylist())
    await service.ended(found.run_id, cleared.garbage)


def _request(plan: Plan) -> Expire:
    assert plan.expired is not None, "a run of committed data"
    return Expire(
        commits=plan.expired, rules_version=plan.rules_version, holds_version=plan.holds_version, uid=plan.uid
    )


async def _plan(repo: Versions, planned: str) -> Plan:
    held = await repo.store.get(AMID, b"plan/" + planned.encode())
    assert held is not None, "it was planned"
    return await read_plan(repo.objectstore, held.value.decode())
