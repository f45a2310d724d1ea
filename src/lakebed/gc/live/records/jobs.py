"""Keep a record for each collection job of the server, and one record of the running job.

At most one job runs in a repository: it claims `running_job` with `set_if`. The job's server writes this record every
few seconds, and so learns of a request to stop. After LOST_AFTER_MS without a write the server is presumed dead, and
another job may take over. Records: docs/formats/gc-jobs.md.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from lakebed.base import Conflict, NotFound
from lakebed.gc.messages import JobState, JobView, Request
from lakebed.kv import PredicateFailed
from lakebed.versions import Record, Versions, decode_record, encode_record

__all__ = ["JobBook", "JobRunning"]

JOB: Final = b"job/"
RUNNING: Final = b"running_job"
LOST_AFTER_MS: Final = 30_000
KEPT_MAX: Final = 50
"""The number of jobs that a repository keeps."""


class JobRunning(Conflict):
    """Another job is running in this repository. Facts: `job`."""


class JobRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    job: JobView


class RunningRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Name the running job. `is_stopping`: a user asked it to stop."""

    job_id: str
    beat_ms: int
    is_stopping: bool = False


def _is_alive(running: RunningRecord, now_ms: int) -> bool:
    # The clock of a dead server may have been ahead.
    return abs(now_ms - running.beat_ms) < LOST_AFTER_MS


class JobBook:
    def __init__(self, versions: Versions) -> None:
        self._records = versions.context
        self._ports = versions.ports

    # For the worker of a job

    async def begin(self, request: Request, *, by: str) -> JobView:
        """Record a new job as the running one, or raise JobRunning."""
        now_ms = self._ports.clock.now_ms()
        held = await self._records.get(RUNNING)
        if held is not None:
            running = decode_record(RunningRecord, held.value)
            # Safety does not depend on this clock: if two jobs run, the states of their runs separate them.
            # `finish` records the end of a job before it deletes `running_job`.
            if _is_alive(running, now_ms) and not await self._has_ended(running.job_id):
                raise JobRunning(f"job {running.job_id} is running in this repository", job=running.job_id)
        job = JobView(
            id=self._ports.ids.fresh(),
            request=request,
            state=JobState.RUNNING,
            started_by=by,
            started_ms=now_ms,
        )
        # Before the claim: `running_job` never names a job without a record.
        await self._write(job)
        value = encode_record(RunningRecord(job_id=job.id, beat_ms=now_ms))
        try:
            await self._records.set_if(RUNNING, value, held.predicate if held else None)
        except PredicateFailed:
            # The job before has just ended, or another one began: look again.
            await self._records.delete(JOB + job.id.encode())
            return await self.begin(request, by=by)
        await self._forget_old()
        return job

    async def beat(self, job: JobView) -> bool:
        """Record the progress of a job. Return False if it must stop: on request, or because another job took over."""
        await self._write(job)
        held = await self._records.get(RUNNING)
        running = None if held is None else decode_record(RunningRecord, held.value)
        if held is None or running is None or running.job_id != job.id or running.is_stopping:
            return False
        now = encode_record(replace(running, beat_ms=self._ports.clock.now_ms()))
        try:
            await self._records.set_if(RUNNING, now, held.predicate)
        except PredicateFailed:
            # Another process asked to stop, or took over: read again.
            return await self.beat(job)
        return True

    async def finish(self, job: JobView) -> None:
        """Record the end of a job, and let the next one begin."""
        assert job.state is not JobState.RUNNING, job
        await self._write(replace(job, ended_ms=self._ports.clock.now_ms()))
        held = await self._records.get(RUNNING)
        # Another job may have taken over: leave its record.
        if held is None or decode_record(RunningRecord, held.value).job_id != job.id:
            return
        try:
            await self._records.delete_if(RUNNING, held.predicate)
        except PredicateFailed:
            await self.finish(job)

    # For readers

    async def get(self, job_id: str) -> JobView:
        """Return a job, or raise NotFound."""
        held = await self._records.get(JOB + job_id.encode())
        if held is None:
            raise NotFound(f"there is no job {job_id}", job=job_id)
        return await self._shown(decode_record(JobRecord, held.value).job)

    async def list(self) -> list[JobView]:
        """Return all jobs, newest first."""
        pairs = self._records.scan(JOB)
        jobs = [decode_record(JobRecord, value).job async for _, value in pairs]
        return [await self._shown(job) for job in reversed(jobs)]

    async def ask_to_stop(self, job_id: str) -> JobView:
        """Ask the job's process to stop it at its next beat. Do nothing if the job has ended.

        Raises:
            NotFound: no job has this id.
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
        """Return whether this job is the running one, with a beat in the last LOST_AFTER_MS. Costs one read."""
        held = await self._records.get(RUNNING)
        if held is None:
            return False
        running = decode_record(RunningRecord, held.value)
        return running.job_id == job_id and _is_alive(running, self._ports.clock.now_ms())

    async def _shown(self, job: JobView) -> JobView:
        """Return the job, as LOST if its record says RUNNING but `is_running` is false."""
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
        keys = [key async for key, _ in self._records.scan(JOB)]
        for key in keys[:-KEPT_MAX]:
            await self._records.delete(key)
