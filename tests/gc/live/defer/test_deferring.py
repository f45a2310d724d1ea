"""Deletes that wait for the end of a window: when they may begin, and what ends the wait."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakebed.base import RunId
from lakebed.gc.live import BadContinuation, RunMoved, ServiceOptions, StalePlan, WindowOpen, WrongKind
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.live.reading.reading import Cursor, Reading, ReadPage
from lakebed.gc.messages import (
    COMMITS,
    EXPIRED,
    GARBAGE,
    LEFTOVERS,
    UNCOMMITTED,
    Apply,
    BadInput,
    BadWindow,
    Defer,
    End,
    Expire,
    Manifest,
    Mark,
    Purge,
    ReadUncommitted,
    RetireLeftovers,
    RunKind,
    RunState,
    Service,
    StartRun,
    Sweep,
    arrow_schema,
    decode_deferred,
    deferred_path,
)
from lakebed.gc.rules import DAY_MS, days_rules
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore.drivers.memory import MemoryObjectStore
from lakebed.versions import Commit
from tests.clocks import TurnableClock
from tests.gc.conftest import Lake
from tests.gc.specified import plan_of

WEEK_MS = 7 * DAY_MS


class Clocked(Lake):
    """A repository whose object store has a clock of its own, which the test turns too."""

    def __init__(self, options: ServiceOptions | None = None) -> None:
        self.store_clock = TurnableClock()
        objects = MemoryObjectStore("mem://tests", now_ms=self.store_clock.now_ms)
        super().__init__(MemoryStore(), objects, options)

    def days(self, count: float) -> None:
        super().days(count)
        self.store_clock.ms += int(count * DAY_MS)

    async def marked(self, *garbage: str) -> tuple[str, Manifest]:
        """A run of uncommitted data that an apply began, and its plan."""
        started = await self.service.start(StartRun(kind=RunKind.UNCOMMITTED))
        await Service(self.service).uncommitted(started.run_id)
        await self.service.prepare_commits(started.run_id)
        inputs = Inputs(self.objectstore, RunKind.UNCOMMITTED, RunId(started.run_id))
        plan = await inputs.write_table(GARBAGE, GARBAGE.name, plan_of(frozenset(garbage), reason="unreferenced"))
        await self.service.mark(started.run_id, Mark(plan=plan))
        request = Apply(kind=RunKind.UNCOMMITTED, plan=plan.digest(), rules_version=0, begins=True)
        await self.service.apply(started.run_id, request)
        return started.run_id, plan

    async def deferred(self, window: str = "7d") -> tuple[str, Manifest]:
        run_id, plan = await self.marked(await self.put("main", "gone"))
        await self.service.defer(run_id, Defer(plan=plan, window=window))
        return run_id, plan

    async def expiring(self) -> tuple[RunId, Manifest, Manifest]:
        """A run of committed data with one commit that expires, its plan, and the commits it was made from."""
        await self.service.rules.write(days_rules(1, {}))
        await self.put("main", "a")
        old = await self.commit("main")
        await self.put("main", "a", "newer")
        await self.commit("main")
        self.days(2)
        await self.put("main", "b")
        await self.commit("main")
        run_id = RunId((await self.service.start(StartRun(kind=RunKind.COMMITTED))).run_id)
        inputs = Inputs(self.objectstore, RunKind.COMMITTED, run_id)
        expired = await inputs.write_table(EXPIRED, EXPIRED.name, pa.table({"id": pa.array([old.id], pa.string())}))
        answer = await self.service.expire(run_id, Expire(commits=expired, rules_version=1))
        plan = await inputs.write_table(GARBAGE, GARBAGE.name, plan_of(frozenset(), reason="expired"))
        assert answer.commits is not None
        return run_id, plan, answer.commits


@pytest.fixture
async def lake() -> Clocked:
    lake = Clocked()
    await lake.versions.commits.initialise("main")
    return lake


async def test_a_deferred_run_says_until_when_and_which_objects_wait(lake: Clocked) -> None:
    run_id, plan = await lake.deferred()

    view = await lake.service.run(run_id)

    assert view.state is RunState.MARKED
    assert (view.window, view.until_ms, view.is_purging) == ("7d", lake.clock.ms + WEEK_MS + 1, False)
    data = await lake.objectstore.get(deferred_path(RunKind.UNCOMMITTED, run_id))
    assert decode_deferred(data, run_id).garbage == plan


async def test_nothing_ends_or_deletes_before_the_window_is_over(lake: Clocked) -> None:
    run_id, plan = await lake.deferred()
    lake.days(7)

    with pytest.raises(WindowOpen):
        await lake.service.purge(run_id, Purge())
    with pytest.raises(RunMoved):
        await lake.service.end(run_id, End(plan=plan.digest()))
    assert not (await lake.service.run(run_id)).is_purging


async def test_after_its_window_a_run_deletes_and_ends(lake: Clocked) -> None:
    run_id, plan = await lake.deferred()
    lake.days(7.01)

    answer = await lake.service.purge(run_id, Purge())
    purging = await lake.service.run(run_id)
    ended = await lake.service.end(run_id, End(plan=plan.digest()))

    assert answer.continuation_token is None
    assert (purging.state, purging.is_purging) == (RunState.MARKED, True)
    assert ended.state is RunState.ENDED


async def test_a_clock_that_is_ahead_ends_no_window(lake: Clocked) -> None:
    run_id, _ = await lake.deferred()

    lake.clock.ms += 30 * DAY_MS
    with pytest.raises(WindowOpen):
        await lake.service.purge(run_id, Purge())
    lake.clock.ms -= 30 * DAY_MS
    lake.store_clock.ms += 30 * DAY_MS
    with pytest.raises(WindowOpen):
        await lake.service.purge(run_id, Purge())


async def test_a_window_begins_at_the_later_of_two_clocks(lake: Clocked) -> None:
    lake.store_clock.ms += DAY_MS

    run_id, _ = await lake.deferred()

    assert (await lake.service.run(run_id)).until_ms == lake.store_clock.ms + WEEK_MS + 1


async def test_another_window_counts_from_now_and_only_ever_ends_later(lake: Clocked) -> None:
    run_id, plan = await lake.deferred()
    first = await lake.service.run(run_id)
    lake.days(1)

    shorter = await lake.service.defer(run_id, Defer(plan=plan, window="1d"))
    longer = await lake.service.defer(run_id, Defer(plan=plan, window="8d"))

    assert shorter == first
    assert (longer.window, longer.until_ms) == ("8d", lake.clock.ms + 8 * DAY_MS + 1)


async def test_no_window_is_made_longer_once_the_run_deletes(lake: Clocked) -> None:
    run_id, plan = await lake.deferred()
    lake.days(8)
    await lake.service.purge(run_id, Purge())

    with pytest.raises(RunMoved):
        await lake.service.defer(run_id, Defer(plan=plan, window="30d"))


async def test_a_purge_that_died_begins_again_even_if_a_clock_is_set_back(lake: Clocked) -> None:
    run_id, plan = await lake.deferred()
    lake.days(8)
    first = await lake.service.purge(run_id, Purge())
    lake.days(-7)

    second = await lake.service.purge(run_id, Purge())

    assert first.commits != second.commits
    assert (await lake.service.end(run_id, End(plan=plan.digest()))).state is RunState.ENDED


async def test_a_run_without_a_window_is_not_purged(lake: Clocked) -> None:
    run_id, _ = await lake.marked()

    with pytest.raises(RunMoved):
        await lake.service.purge(run_id, Purge())


async def test_only_a_run_that_may_delete_is_deferred(lake: Clocked) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))
    inputs = Inputs(lake.objectstore, RunKind.UNCOMMITTED, RunId(started.run_id))
    plan = await inputs.write_table(GARBAGE, GARBAGE.name, plan_of(frozenset(), reason="unreferenced"))

    with pytest.raises(RunMoved):
        await lake.service.defer(started.run_id, Defer(plan=plan, window="7d"))
    await lake.service.read_uncommitted(started.run_id, ReadUncommitted())
    await lake.service.prepare_commits(started.run_id)
    await lake.service.mark(started.run_id, Mark(plan=plan))
    # Marked, and no apply began: a collection of metadata could still end it.
    with pytest.raises(RunMoved):
        await lake.service.defer(started.run_id, Defer(plan=plan, window="7d"))


async def test_a_run_defers_just_the_table_that_it_may_delete(lake: Clocked) -> None:
    run_id, plan = await lake.marked(await lake.put("main", "a"))
    inputs = Inputs(lake.objectstore, RunKind.UNCOMMITTED, RunId(run_id))
    other = await inputs.write_table(GARBAGE, "garbage.other", plan_of(frozenset(), reason="unreferenced"))

    with pytest.raises(StalePlan):
        await lake.service.defer(run_id, Defer(plan=other, window="7d"))
    assert (await lake.service.run(run_id)).until_ms is None
    await lake.service.defer(run_id, Defer(plan=plan, window="7d"))


async def test_a_window_without_an_end_is_refused(lake: Clocked) -> None:
    run_id, plan = await lake.marked()

    with pytest.raises(BadWindow):
        await lake.service.defer(run_id, Defer(plan=plan, window="forever"))


async def test_what_is_staged_and_committed_now_is_read_before_the_run_deletes(lake: Clocked) -> None:
    run_id, _ = await lake.deferred()
    lake.days(8)
    committed = await lake.put("main", "committed")
    made = await lake.commit("main")
    staged = await lake.put("main", "staged")

    answer = await lake.service.purge(run_id, Purge())

    inputs = Inputs(lake.objectstore, RunKind.UNCOMMITTED, RunId(run_id))
    assert answer.uncommitted is not None
    assert answer.commits is not None
    named = (await inputs.read_table(UNCOMMITTED, answer.uncommitted))["address"].to_pylist()
    assert staged in named
    assert committed not in named
    assert made.id in (await inputs.read_table(COMMITS, answer.commits))["id"].to_pylist()


async def test_what_is_committed_while_a_purge_looks_at_what_is_staged_is_named(
    lake: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where commits were read first, neither look would have its entry."""
    run_id, _ = await lake.deferred()
    lake.days(8)
    await lake.put("main", "a")
    made = list[Commit]()
    read_page = Reading.read_page

    async def committed(self: Reading, inputs: Inputs, cursor: Cursor) -> ReadPage:
        made.append(await lake.commit("main"))
        return await read_page(self, inputs, cursor)

    monkeypatch.setattr(Reading, "read_page", committed)

    answer = await lake.service.purge(run_id, Purge())

    assert answer.commits is not None
    inputs = Inputs(lake.objectstore, RunKind.UNCOMMITTED, RunId(run_id))
    assert made[0].id in (await inputs.read_table(COMMITS, answer.commits))["id"].to_pylist()


async def test_a_purge_counts_on_no_commit_that_an_undo_may_bring_back(lake: Clocked) -> None:
    run_id, _ = await lake.deferred()
    later_id, plan, commits = await lake.expiring()
    await lake.service.sweep(later_id, Sweep(plan=plan, commits=commits))
    await lake.service.defer(later_id, Defer(plan=plan, window="30d"))
    lake.days(8)

    answer = await lake.service.purge(run_id, Purge())

    assert answer.commits is not None
    found = await Inputs(lake.objectstore, RunKind.UNCOMMITTED, RunId(run_id)).read_table(COMMITS, answer.commits)
    assert found["swept"].to_pylist() == [False] * found.num_rows


async def test_a_page_of_one_look_does_not_go_on_in_another() -> None:
    lake = Clocked(ServiceOptions(scan_page=1, page_rows=1))
    await lake.versions.commits.initialise("main")
    run_id, _ = await lake.deferred()
    for name in "abc":
        await lake.put("main", name)
    lake.days(8)
    first = await lake.service.purge(run_id, Purge())
    await lake.service.purge(run_id, Purge())

    assert first.continuation_token is not None
    with pytest.raises(BadContinuation):
        await lake.service.purge(run_id, Purge(continuation_token=first.continuation_token))


async def test_a_run_of_committed_data_is_deferred_once_its_commits_are_swept(lake: Clocked) -> None:
    run_id, plan, commits = await lake.expiring()
    with pytest.raises(RunMoved):
        await lake.service.defer(run_id, Defer(plan=plan, window="7d"))
    await lake.service.sweep(run_id, Sweep(plan=plan, commits=commits))

    view = await lake.service.defer(run_id, Defer(plan=plan, window="7d"))

    assert (view.state, view.window) == (RunState.SWEEPING, "7d")
    written = await lake.service.rules.write(days_rules(2, {}))
    assert written.counts_after == ()


async def test_a_deferred_run_lists_no_commits_as_expiring_any_more(lake: Clocked) -> None:
    run_id, plan, commits = await lake.expiring()
    await lake.service.sweep(run_id, Sweep(plan=plan, commits=commits))
    listed = await lake.versions.retired.expiring(run_id)

    await lake.service.defer(run_id, Defer(plan=plan, window="7d"))

    assert len(listed) == 1
    assert await lake.versions.retired.expiring(run_id) == []


async def test_a_list_of_what_waits_that_was_changed_is_not_believed(lake: Clocked) -> None:
    run_id, _ = await lake.deferred()
    data = await lake.objectstore.get(deferred_path(RunKind.UNCOMMITTED, run_id))

    with pytest.raises(BadInput):
        decode_deferred(data.replace(b'"rows":1', b'"rows":0'), run_id)
    with pytest.raises(BadInput):
        decode_deferred(data, "another-run")


async def test_metadata_is_never_deferred(lake: Clocked) -> None:
    service = Service(lake.service)
    started = await service.start(RunKind.METADATA)
    inputs = Inputs(lake.objectstore, RunKind.METADATA, RunId(started.run_id))
    leftovers = await inputs.write_table(LEFTOVERS, LEFTOVERS.name, arrow_schema(LEFTOVERS).empty_table())
    given = await service.retire(started.run_id, RetireLeftovers(leftovers=leftovers))
    plan = await inputs.write_table(GARBAGE, GARBAGE.name, plan_of(frozenset(), reason="unnamed"))
    await service.sweeping(started.run_id, plan, given.commits)

    with pytest.raises(WrongKind):
        await lake.service.defer(started.run_id, Defer(plan=plan, window="7d"))
