"""Keep who made each plan, so that no plan makes another user delete more than is garbage now.

Plans lie in the object store, where planners may write. The record of a plan names its maker and the SHA-256 of
`plan.json`, which names all other files with their digests. An apply by another user looks again (`looking.py` of the
collectors). The maker may apply it as it is, and so may any user whom a job of the server planned for: no process but
the server's wrote that plan.

Where calls have no user, as in one process without a server, there is one person, and nothing is written or asked here.
"""

from __future__ import annotations

from lakebed.base import RunId
from lakebed.gc.live.errors import StalePlan
from lakebed.gc.messages import Apply, NotePlanned, PlannedBy, check_run_id
from lakebed.versions import PlannedRecord, Versions


class Planners:
    def __init__(self, versions: Versions, *, user_id: str, is_job: bool) -> None:
        self._versions = versions
        self._user_id = user_id
        self._is_job = is_job

    async def note(self, run_id: str, body: NotePlanned) -> PlannedBy:
        """Write down that the caller made this plan. Sent again, it changes nothing.

        Raises:
            StalePlan: another plan of the run is on record, or this one by another user.
        """
        id_ = check_run_id(run_id)
        ports = self._versions.ports
        record = PlannedRecord(
            kind=body.kind, by=self._user_id, plan=body.plan, made_ms=ports.clock.now_ms(), by_job=self._is_job
        )
        if self._user_id:
            found = await self._versions.retired.note_planned(id_, record)
            if (found.kind, found.by, found.plan) != (record.kind, record.by, record.plan):
                raise StalePlan(f"another plan of run {run_id} is on record", run_id=run_id)
        return self._planned_by(id_, record)

    async def judge(self, run_id: RunId, body: Apply) -> tuple[str, bool]:
        """Return who made this plan, and whether an apply of it by the caller looks again.

        Raises:
            StalePlan: it is an erasure, and the plan on record is not this one. No user who may erase asked for it.
        """
        if not self._user_id:
            return "", False
        record = await self._versions.retired.find_planned(run_id)
        is_known = record is not None and (record.kind, record.plan) == (body.kind, body.plan_file)
        if record is None or not is_known:
            if body.kind.spec.by_order:
                raise StalePlan(f"run {run_id} has no such plan on record: plan the erasure again", run_id=run_id)
            return "", True
        return record.by, not self._is_own(record)

    async def of(self, run_id: RunId) -> str:
        """Return who made the plan of a run, empty where that is unknown."""
        record = await self._versions.retired.find_planned(run_id) if self._user_id else None
        return "" if record is None else record.by

    async def every(self) -> list[PlannedBy]:
        """Return who made each plan, the oldest first."""
        if not self._user_id:
            return []
        return [self._planned_by(run, record) for run, record in (await self._versions.retired.planned()).items()]

    async def forget_retired(self) -> None:
        """Remove the records of plans whose folders a collection of metadata took."""
        if not self._user_id:
            return
        runs = [*await self._versions.retired.planned()]
        retired = await self._versions.retired.are_retired(runs)
        await self._versions.retired.forget_planned([run for run, gone in zip(runs, retired, strict=True) if gone])

    def _planned_by(self, run_id: RunId, record: PlannedRecord) -> PlannedBy:
        return PlannedBy(run_id=run_id, by=record.by, is_own=self._is_own(record))

    def _is_own(self, record: PlannedRecord) -> bool:
        return record.by_job or record.by == self._user_id
