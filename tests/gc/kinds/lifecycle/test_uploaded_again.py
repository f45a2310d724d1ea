"""What is uploaded again at a path whose object a run takes: equal content is no change, and is not lost for that."""

from __future__ import annotations

import pytest

from lakebed.gc.live import PolicyBook
from lakebed.gc.messages import RunKind, RunState
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.versions import NoChanges, PathExpired, RunRecord, encode_record, keys
from tests.gc.live.defer.test_undoing import POLICY, Story


@pytest.fixture
async def lake() -> Story:
    lake = await Story.opened(MemoryStore())
    await PolicyBook(lake.versions).write(POLICY)
    await lake.put("main", "a", "same")
    await lake.put("main", "b", "other")
    await lake.commit("main")
    lake.days(4)
    return lake


@pytest.mark.parametrize("window", [None, "7d"])
async def test_an_upload_of_what_a_run_took_is_committed_and_outlives_the_run(lake: Story, window: str | None) -> None:
    run_id = await lake.run(RunKind.LIFECYCLE, window)
    with pytest.raises(PathExpired):
        await lake.read("main")
    again = await lake.put("main", "a", "same")

    await lake.commit("main")

    assert (await lake.versions.staging.get("main", b"a")).address == again
    lake.days(8)
    await lake.apply(run_id)
    assert await lake.read("main") == "same"


async def test_so_is_one_that_is_committed_while_a_run_may_come_to_take_the_object(lake: Story) -> None:
    record = RunRecord(kind=RunKind.LIFECYCLE, state=RunState.EXPIRING, started_ms=lake.clock.ms)
    await lake.store.set(lake.versions.partition, keys.RUN + b"r1", encode_record(record))
    again = await lake.put("main", "a", "same")

    await lake.commit("main")

    assert (await lake.versions.staging.get("main", b"a")).address == again


async def test_equal_content_stays_no_change_where_no_run_takes_the_object(lake: Story) -> None:
    await lake.run(RunKind.LIFECYCLE)
    await lake.put("main", "b", "other")

    with pytest.raises(NoChanges):
        await lake.commit("main")
