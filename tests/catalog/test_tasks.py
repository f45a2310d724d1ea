"""Work that goes on after its request was answered is known by its record."""

from __future__ import annotations

import pytest

from lakebed.catalog import Repository
from lakebed.catalog.tasks import KEPT_MS, LOST_AFTER_MS, TaskKind, TaskNotFound, Tasks
from tests.clocks import TurnableClock


@pytest.fixture
def tasks(repository: Repository) -> Tasks:
    return repository.tasks


async def test_a_task_is_lost_once_its_process_was_silent_for_long(tasks: Tasks, clock: TurnableClock) -> None:
    begun = await tasks.begin(TaskKind.DUMP)
    clock.ms += LOST_AFTER_MS - 1
    at_work = await tasks.get(TaskKind.DUMP, begun.id)
    await tasks.beat(begun)
    clock.ms += LOST_AFTER_MS - 1
    beaten = await tasks.get(TaskKind.DUMP, begun.id)
    clock.ms += 1
    silent = await tasks.get(TaskKind.DUMP, begun.id)
    clock.ms -= 2 * LOST_AFTER_MS
    was_ahead = await tasks.get(TaskKind.DUMP, begun.id)

    assert [(task.is_done, task.error) for task in (at_work, beaten)] == [(False, "")] * 2
    assert silent.is_done
    assert was_ahead.is_done
    assert "begin again" in silent.error


async def test_a_task_that_ended_is_not_lost_and_is_forgotten_after_a_week(tasks: Tasks, clock: TurnableClock) -> None:
    begun = await tasks.begin(TaskKind.RESTORE)
    await tasks.end(begun, {"commits": "3"})
    clock.ms += KEPT_MS - 1
    await tasks.clean()
    ended = await tasks.get(TaskKind.RESTORE, begun.id)
    clock.ms += 1
    await tasks.clean()

    assert (ended.is_done, ended.error, ended.result) == (True, "", {"commits": "3"})
    with pytest.raises(TaskNotFound):
        await tasks.get(TaskKind.RESTORE, begun.id)
    with pytest.raises(TaskNotFound):
        await tasks.get(TaskKind.DUMP, begun.id)
