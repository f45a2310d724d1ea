"""Record which collections the server was asked to run: a record each, and one that says which is running.

At most one runs in a repository: `running_job` is taken with `set_if`. The server that runs the job writes it again
every few seconds, and so learns that it should stop. One that was not written for LOST_AFTER_MS belongs to a server
that is gone, and may be taken over. No safety rests on this clock: should two jobs run after all, the states of their
runs keep them apart, as they keep apart two that people start by hand. Records: docs/formats/gc-jobs.md.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from lakebed.base import Conflict, NotFound
from lakebed.gc.messages import JobState, JobView, Request
from lakebed.kv import PredicateFailed
from lakebed.versions import Record, Versions, decode_record, encode_record

JOB: Final = b"job/"
RUNNING: Final = b"running_job"
LOST_AFTER_MS: Final = 30_000
KEPT_MAX: Final = 50
"""How many jobs of a repository are remembered."""


class JobNotFound(NotFound):
    """There is no job of this id, or it was so long ago that it was forgotten."""


class JobRunning(Conflict):
    """Another one is running in this repository. Facts: `job`."""


class JobRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    job: JobView


class RunningRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`is_stopping`: a user asked for it."""

    job_id: str
    beat_ms: int
    is_stopping: bool = False


class JobBook:
    def __init__(self, versions: Versions) -> None:
        self._records = versions.context
        self._ports = versions.ports

    # For the worker of a job

    async def begin(self, request: Request, *, by: str) -> JobView:
        """
        Raises:
            JobRunning: a job is running or starting.
        """
        now_ms = self._ports.clock.now_ms()
        held = await self._records.get(RUNNING)
        if held is not None:
            running = decode_record(RunningRecord, held.value)
            # A job that ended is shown as ended before it makes room.
            if now_ms - running.beat_ms < LOST_AFTER_MS and not await self._has_ended(running.job_id):
                raise JobRunning(f"job {running.job_id} is running in this repository", job=running.job_id)
        job = JobView(
            id=self._ports.ids.fresh(),
            request=request,
            state=JobState.RUNNING,
            started_by=by,
            started_ms=now_ms,
        )
        await self._write(job)
        value = encode_record(RunningRecord(job_id=job.id, beat_ms=now_ms))
        try:
            await self._records.set_if(RUNNING, value, held.predicate if held else None)
        except PredicateFailed as error:
            await self._records.delete(JOB + job.id.encode())
            raise JobRunning("another job begins in this repository") from error
        await self._forget_old()
        return job

    async def beat(self, job: JobView) -> bool:
        """Record how far it has come. False: it is to stop, for a user asked for it or another job took its place."""
        await self._write(job)
        held = await self._records.get(RUNNING)
        running = None if held is None else decode_record(RunningRecord, held.value)
        if held is None or running is None or running.job_id != job.id or running.is_stopping:
            return False
        now = encode_record(replace(running, beat_ms=self._ports.clock.now_ms()))
        try:
            await self._records.set_if(RUNNING, now, held.predicate)
        except PredicateFailed:
            return await self.beat(job)
        return True

    async def finish(self, job: JobView) -> None:
        """The job as it ended, now, and room for the next one."""
        assert job.state is not JobState.RUNNING, job
        await self._write(replace(job, ended_ms=self._ports.clock.now_ms()))
        held = await self._records.get(RUNNING)
        if held is None or decode_record(RunningRecord, held.value).job_id != job.id:
            return
        try:
            await self._records.delete_if(RUNNING, held.predicate)
        except PredicateFailed:
            await self.finish(job)

    # For readers

    async def get(self, job_id: str) -> JobView:
        """
        Raises:
            JobNotFound: there is none.
        """
        held = await self._records.get(JOB + job_id.encode())
        if held is None:
            raise JobNotFound(f"there is no job {job_id}", job=job_id)
        return await self._shown(decode_record(JobRecord, held.value).job)

    async def list(self) -> list[JobView]:
        """Newest first."""
        pairs = self._records.scan(JOB)
        found = [decode_record(JobRecord, value).job async for _, value in pairs]
        return [await self._shown(job) for job in reversed(found)]

    async def ask_to_stop(self, job_id: str) -> JobView:
        """Ask the process that runs the job to stop it at its next beat. Nothing happens to one that has ended.

        Raises:
            JobNotFound: there is none.
        """
        job = await self.get(job_id)
        held = await self._records.get(RUNNING)
        if job.state is not JobState.RUNNING or held is None:
            return job
        running = decode_record(RunningRecord, held.value)
        if running.job_id != job_id:
            return job
        try:
            stopping = encode_record(replace(running, is_stopping=True))
            await self._records.set_if(RUNNING, stopping, held.predicate)
        except PredicateFailed:
            return await self.ask_to_stop(job_id)
        return job

    async def is_running(self, job_id: str) -> bool:
        """Return whether it is the running one, with a beat in the last LOST_AFTER_MS. Costs one read."""
        held = await self._records.get(RUNNING)
        if held is None:
            return False
        running = decode_record(RunningRecord, held.value)
        return running.job_id == job_id and self._ports.clock.now_ms() - running.beat_ms < LOST_AFTER_MS

    async def _shown(self, job: JobView) -> JobView:
        """A job that says it runs, and is not the running one or has been silent for too long, is lost."""
        if job.state is not JobState.RUNNING:
            return job
        if await self.is_running(job.id):
            return job
        return replace(job, state=JobState.LOST, error="the server that ran it is gone: begin it again")

    async def _has_ended(self, job_id: str) -> bool:
        held = await self._records.get(JOB + job_id.encode())
        return held is not None and decode_record(JobRecord, held.value).job.state is not JobState.RUNNING

    async def _write(self, job: JobView) -> None:
        await self._records.set(JOB + job.id.encode(), JobRecord(job=job))

    async def _forget_old(self) -> None:
        found = [key async for key, _ in self._records.scan(JOB)]
        for key in found[:-KEPT_MAX]:
            await self._records.delete(key)
