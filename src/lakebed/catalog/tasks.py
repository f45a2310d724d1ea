"""Records of work that continues after its request was answered: begun, beating, ended (docs/formats/records.md).

A record that was not written for LOST_AFTER_MS belongs to a dead process, and is treated as failed. The work must be
safe to interrupt at any point.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from lakebed.base import LakebedError, NotFound, Ports
from lakebed.kv import PredicateFailed
from lakebed.versions import Record, Versions, decode_record, encode_record

TASK: Final = b"task/"
LOST_AFTER_MS: Final = 60_000
KEPT_MS: Final = 7 * 86_400_000


class TaskNotFound(NotFound):
    """No task has this id and kind, or its record was removed because of its age."""


class TaskKind(StrEnum):
    DUMP = "dump"
    RESTORE = "restore"
    PREPARE_COMMITS = "prepare-commits"


class TaskRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`result` has the work's results by name; `error` is the reason why it ended without them."""

    id: str
    kind: TaskKind
    started_ms: int
    updated_ms: int
    is_done: bool = False
    error: str = ""
    result: dict[str, str] = msgspec.field(default_factory=dict)


class Tasks:
    def __init__(self, versions: Versions, ports: Ports) -> None:
        self._records = versions.context
        self._ports = ports

    async def begin(self, kind: TaskKind) -> TaskRecord:
        now_ms = self._ports.clock.now_ms()
        record = TaskRecord(id=self._ports.ids.fresh(), kind=kind, started_ms=now_ms, updated_ms=now_ms)
        await self._records.set(_key(record.id), record)
        return record

    async def get(self, kind: TaskKind, task_id: str) -> TaskRecord:
        """Return the record of a task.

        Raises:
            TaskNotFound: no task has this id and kind.
        """
        found = await self._find(task_id)
        if found is None or found.kind is not kind:
            raise TaskNotFound(f"task {task_id} not found", id=task_id)
        silent_ms = abs(self._ports.clock.now_ms() - found.updated_ms)  # The clock may have been ahead.
        if found.is_done or silent_ms < LOST_AFTER_MS:
            return found
        return replace(found, is_done=True, error="the server that worked on it is gone: begin again")

    async def beat(self, begun: TaskRecord) -> None:
        """Record that the working process is alive."""
        await self._change(begun.id, lambda record: record)

    async def run(self, begun: TaskRecord, work: Awaitable[Mapping[str, str]]) -> None:
        """Run the work, and record its result. An error of ours is stored in the record, not raised."""
        try:
            result = await work
        except LakebedError as error:
            await self.stop(begun, str(error))
        else:
            await self.end(begun, result)

    async def end(self, begun: TaskRecord, result: Mapping[str, str]) -> None:
        await self._change(begun.id, lambda record: replace(record, is_done=True, result=dict(result)))

    async def stop(self, begun: TaskRecord, why: str) -> None:
        await self._change(begun.id, lambda record: replace(record, is_done=True, error=why))

    async def clean(self) -> None:
        """Remove records of tasks that ended or were lost long ago."""
        now_ms = self._ports.clock.now_ms()
        tasks = self._records.records(TaskRecord, TASK)
        old = [key async for key, record in tasks if abs(now_ms - record.updated_ms) >= KEPT_MS]
        if old:
            await self._records.store.delete_many(self._records.partition, old)

    async def _find(self, task_id: str) -> TaskRecord | None:
        held = await self._records.get(_key(task_id))
        return None if held is None else decode_record(TaskRecord, held.value)

    async def _change(self, task_id: str, change: Callable[[TaskRecord], TaskRecord]) -> None:
        """Change the record of a running task, and set its time."""
        while True:
            held = await self._records.get(_key(task_id))
            record = None if held is None else decode_record(TaskRecord, held.value)
            if held is None or record is None or record.is_done:
                return
            changed = replace(change(record), updated_ms=self._ports.clock.now_ms())
            try:
                await self._records.set_if(_key(task_id), encode_record(changed), held.predicate)
            except PredicateFailed:
                continue
            return


def _key(task_id: str) -> bytes:
    return TASK + task_id.encode()
