"""Dump and restore a repository's refs: at once, or as tasks that continue after the answer."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from typing import Final

from lakebed import wire
from lakebed.catalog import DumpIds, Repository, TaskKind, TaskRecord
from lakebed.operations import repositories
from lakebed.server.http.errors import Answer
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, in_repository
from lakebed.server.state import AppState

_BRANCHES: Final = "branches"
_TAGS: Final = "tags"
_COMMITS: Final = "commits"
DUMPS_AT_ONCE: Final = 2
"""The limit of this process. A dump keeps the ids of all commits in memory."""
DUMPS_AN_HOUR: Final = 60
"""The limit of one user and repository in this process. A dump writes files, but needs only read permission."""
_HOUR_MS: Final = 3_600_000


class Dumps(Resource):
    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._background = state.background
        self._clock = state.ports.clock
        self._turns = asyncio.Semaphore(DUMPS_AT_ONCE)
        self._begun: dict[tuple[str, str], deque[int]] = {}

    @in_repository(repositories.DUMP_REFS)
    async def dump(self, request: RestRequest, repository: Repository) -> wire.RefsDump:
        self._count(request)
        return _files(await self._dump(repository))

    @in_repository(repositories.RESTORE_REFS)
    async def restore(self, request: RestRequest, repository: Repository, body: wire.RefsRestore) -> None:
        await _restore(repository, body, by=request.identity.user_id)

    @in_repository(repositories.DUMP_SUBMIT)
    async def submit_dump(self, request: RestRequest, repository: Repository) -> wire.TaskInfo:
        self._count(request)
        begun = await repository.tasks.begin(TaskKind.DUMP)
        self._background.start(
            repository.tasks, begun, lambda _: repository.tasks.run(begun, self._dump(repository)), f"dump {begun.id}"
        )
        return wire.TaskInfo(id=begun.id)

    @in_repository(repositories.RESTORE_SUBMIT)
    async def submit_restore(
        self, request: RestRequest, repository: Repository, body: wire.RefsRestore
    ) -> wire.TaskInfo:
        repository.guards.check_writable(force=bool(body.force))
        begun = await repository.tasks.begin(TaskKind.RESTORE)
        user = request.identity.user_id
        self._background.start(
            repository.tasks,
            begun,
            lambda _: repository.tasks.run(begun, _restore(repository, body, by=user)),
            f"restore {begun.id}",
        )
        return wire.TaskInfo(id=begun.id)

    @in_repository(repositories.DUMP_STATUS)
    async def dump_status(self, request: RestRequest, repository: Repository) -> wire.RepositoryDumpStatus:
        task = await repository.tasks.get(TaskKind.DUMP, request.required("task_id"))
        return wire.RepositoryDumpStatus(
            id=task.id,
            done=task.is_done,
            update_time=update_time(task),
            error=task.error,
            refs=_files(task.result) if task.result else None,
        )

    @in_repository(repositories.RESTORE_STATUS)
    async def restore_status(self, request: RestRequest, repository: Repository) -> wire.RepositoryRestoreStatus:
        task = await repository.tasks.get(TaskKind.RESTORE, request.required("task_id"))
        return wire.RepositoryRestoreStatus(
            id=task.id, done=task.is_done, update_time=update_time(task), error=task.error
        )

    async def _dump(self, repository: Repository) -> dict[str, str]:
        async with self._turns:
            ids = await repository.dumps.dump()
        return {_BRANCHES: ids.branches, _TAGS: ids.tags, _COMMITS: ids.commits}

    def _count(self, request: RestRequest) -> None:
        """Count a dump of this user and repository."""
        now_ms = self._clock.now_ms()
        for key, times in [*self._begun.items()]:
            while times and times[0] <= now_ms - _HOUR_MS:
                times.popleft()
            if not times:
                del self._begun[key]
        times = self._begun.setdefault((request.identity.user_id, request.args[0]), deque())
        if len(times) >= DUMPS_AN_HOUR:
            wait_s = (times[0] + _HOUR_MS - now_ms) // 1000 + 1
            raise Answer(
                429, f"at most {DUMPS_AN_HOUR} dumps an hour of one user: the next one may begin in {wait_s} s"
            )
        times.append(now_ms)


def update_time(task: TaskRecord) -> str:
    return datetime.fromtimestamp(task.updated_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


async def _restore(repository: Repository, body: wire.RefsRestore, *, by: str) -> dict[str, str]:
    ids = DumpIds(
        branches=body.branches_meta_range_id, tags=body.tags_meta_range_id, commits=body.commits_meta_range_id
    )
    await repository.dumps.restore(ids, force=bool(body.force), check_objects=body.check_objects, by=by)
    return {}


def _files(result: dict[str, str]) -> wire.RefsDump:
    return wire.RefsDump(
        branches_meta_range_id=result[_BRANCHES],
        tags_meta_range_id=result[_TAGS],
        commits_meta_range_id=result[_COMMITS],
    )
