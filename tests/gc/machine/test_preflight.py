"""An apply whose process sees a copy of the server's object store, made after the plan, deletes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds import kind_to_plan
from lakebed.gc.kinds.erasure.plan import Erasure
from lakebed.gc.live import PolicyBook, ServiceOptions
from lakebed.gc.machine import flow
from lakebed.gc.machine.preflight import OtherStore
from lakebed.gc.messages import ErasureOrder, Mode, RunKind, RunState, UncommittedOptions
from lakebed.gc.rules import MetadataRule, Selection, days_rules
from lakebed.gc.runs.context import RunContext
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import DeleteFailure, MemoryDeleter, MemoryObjectStore
from tests.gc.conftest import Lake
from tests.gc.shipped import Deleting

EVERY_FILE = MetadataRule(file_age_ms_min=-1, runs_newest=0, run_age_ms_min=-1)
KINDS = [kind for kind in RunKind if kind not in {RunKind.DELETED, RunKind.PRUNING}]
"""Deleted repositories and tables have tests of their own."""


class Story(Lake):
    """A repository that has garbage of each kind."""

    def __init__(self) -> None:
        objects = MemoryObjectStore("mem://tests", now_ms=lambda: self.clock.ms)
        super().__init__(MemoryStore(), objects, ServiceOptions(readers_grace_ms=0))

    async def begin(self) -> None:
        await self.versions.commits.initialise("main")
        await self.service.rules.write(days_rules(1, {}))
        for content in ("old", "older", "new"):
            await self.put("main", "a", content)
            await self.commit("main")
        await self.put("main", "b", "overwritten")
        await self.put("main", "b", "staged")
        self.days(3)
        await self.put("main", "c")
        await self.commit("main")

    async def plan(self, kind: RunKind) -> str:
        if kind is RunKind.METADATA:
            # The trees of the commits that this run takes are left over.
            await self.collector().collect_committed()
        if kind is RunKind.LIFECYCLE:
            await PolicyBook(self.versions).write(b'{"due": {"prefix": "a", "days": 1}}')
        if kind is RunKind.ERASURE:
            order = ErasureOrder(selection=Selection(paths=("a",)), why="asked for")
            return (await flow.plan(self.collector().context, Erasure(order))).run_id
        chosen = kind_to_plan(kind, UncommittedOptions(mode=Mode.CLEAN), EVERY_FILE)
        return (await flow.plan(self.collector().context, chosen)).run_id

    def over_a_copy(self) -> RunContext:
        """Return the context of a process that sees a copy of the objects as they are now."""
        copy = MemoryObjectStore("mem://tests", now_ms=lambda: self.clock.ms)
        copy.objects = dict(self.objectstore.objects)
        context = self.collector().context
        deleter = Deleting(copy.uri, MemoryDeleter(copy).delete)
        return replace(context, store=copy, engine=LocalEngine(copy, context.ports, open_deleter=lambda: deleter))


@pytest.fixture
async def lake() -> Story:
    lake = Story()
    await lake.begin()
    return lake


def objects(context: RunContext) -> dict[str, tuple[bytes, int]]:
    assert isinstance(context.store, MemoryObjectStore)
    return dict(context.store.objects)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_apply_over_a_copy_that_was_made_after_the_plan_is_refused(lake: Story, kind: RunKind) -> None:
    run_id = await lake.plan(kind)
    copied = lake.over_a_copy()
    before = objects(copied)

    with pytest.raises(OtherStore, match="is a copy here, or another store"):
        await flow.apply(copied, run_id, grace_s=0)

    assert objects(copied) == before
    report = await flow.apply(lake.collector().context, run_id, grace_s=0)
    assert (report.state, report.objects_failed) == (RunState.ENDED, 0)
    assert report.objects_deleted > 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.can_wait])
async def test_a_purge_over_a_copy_that_was_made_within_the_window_is_refused(lake: Story, kind: RunKind) -> None:
    run_id = await lake.plan(kind)
    await flow.apply(lake.collector().context, run_id, window="7d", grace_s=0)
    copied = lake.over_a_copy()
    lake.days(8)
    before = objects(copied)

    for act in (flow.purge(copied), flow.apply(copied, run_id, grace_s=0)):
        with pytest.raises(OtherStore):
            await act

    assert objects(copied) == before
    assert (await flow.purge(lake.collector().context)).purged == (run_id,)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_apply_that_goes_on_with_its_deletes_over_a_copy_is_refused(lake: Story, kind: RunKind) -> None:
    run_id = await lake.plan(kind)
    context = lake.collector().context

    async def refuse(keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return [DeleteFailure(key=key, reason="not now") for key in keys]

    deleter = Deleting(context.store.uri, refuse)
    failing = replace(context, engine=LocalEngine(context.store, context.ports, open_deleter=lambda: deleter))
    assert (await flow.apply(failing, run_id, grace_s=0)).objects_failed > 0
    copied = lake.over_a_copy()

    with pytest.raises(OtherStore):
        await flow.apply(copied, run_id, grace_s=0)

    assert (await flow.apply(context, run_id, grace_s=0)).state is RunState.ENDED
