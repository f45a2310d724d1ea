"""Who runs the one collection that the server was asked to run, and what becomes of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lakebed.base import NotFound
from lakebed.gc.live import JobBook, JobRunning
from lakebed.gc.live.records.jobs import KEPT_MAX, LOST_AFTER_MS
from lakebed.gc.messages import JobState, JobView, PlanRequest
from tests.gc.conftest import Lake

PLAN = PlanRequest()


@pytest.fixture
def book(lake: Lake) -> JobBook:
    return JobBook(lake.versions)


async def test_one_job_runs_in_a_repository_and_the_next_when_it_has_ended(book: JobBook) -> None:
    first = await book.begin(PLAN, by="ann")
    with pytest.raises(JobRunning) as caught:
        await book.begin(PLAN, by="bob")
    assert caught.value.facts["job"] == first.id

    await book.finish(replace(first, state=JobState.DONE))
    second = await book.begin(PLAN, by="bob")

    assert [(job.id, job.state) for job in await book.list()] == [
        (second.id, JobState.RUNNING),
        (first.id, JobState.DONE),
    ]
    assert (await book.get(first.id)).ended_ms is not None


async def test_a_job_begins_also_where_the_one_before_ends_in_the_same_moment(
    book: JobBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await book.begin(PLAN, by="ann")
    ended, write = replace(first, state=JobState.DONE), book._write
    await write(ended)

    async def meanwhile(job: JobView) -> None:
        monkeypatch.setattr(book, "_write", write)
        await write(job)
        await book.finish(ended)

    monkeypatch.setattr(book, "_write", meanwhile)

    second = await book.begin(PLAN, by="bob")

    assert [(job.id, job.state) for job in await book.list()] == [
        (second.id, JobState.RUNNING),
        (first.id, JobState.DONE),
    ]


async def test_a_beat_keeps_a_job_alive_and_tells_its_progress(book: JobBook, lake: Lake) -> None:
    job = await book.begin(PLAN, by="ann")
    lake.clock.ms += LOST_AFTER_MS - 1

    assert await book.beat(replace(job, lines=("listing",)))

    lake.clock.ms += LOST_AFTER_MS - 1
    assert (await book.get(job.id)).lines == ("listing",)
    with pytest.raises(JobRunning):
        await book.begin(PLAN, by="bob")


@pytest.mark.parametrize("later_ms", [LOST_AFTER_MS, -LOST_AFTER_MS], ids=["late", "its clock was ahead"])
async def test_a_job_whose_server_is_gone_is_lost_and_makes_room(book: JobBook, lake: Lake, later_ms: int) -> None:
    lost = await book.begin(PLAN, by="ann")
    lake.clock.ms += later_ms

    assert (await book.get(lost.id)).state is JobState.LOST
    taken_over = await book.begin(PLAN, by="bob")

    assert not await book.beat(lost), "should it be there after all, it is told to stop"
    await book.finish(replace(lost, state=JobState.FAILED))
    assert (await book.get(taken_over.id)).state is JobState.RUNNING
    with pytest.raises(JobRunning):
        await book.begin(PLAN, by="carol")


async def test_who_is_asked_to_stop_learns_it_from_any_server(book: JobBook, lake: Lake) -> None:
    job = await book.begin(PLAN, by="ann")
    elsewhere = JobBook(lake.server())

    assert (await elsewhere.ask_to_stop(job.id)).state is JobState.RUNNING

    assert not await book.beat(job)
    await book.finish(replace(job, state=JobState.STOPPED))
    assert (await elsewhere.ask_to_stop(job.id)).state is JobState.STOPPED


async def test_old_jobs_are_forgotten(book: JobBook) -> None:
    for _ in range(KEPT_MAX + 3):
        await book.finish(replace(await book.begin(PLAN, by="ann"), state=JobState.DONE))

    assert len(await book.list()) == KEPT_MAX


async def test_an_unknown_job_is_not_found(book: JobBook) -> None:
    with pytest.raises(NotFound, match="there is no job"):
        await book.get("x")
    with pytest.raises(NotFound, match="there is no job"):
        await book.ask_to_stop("x")
