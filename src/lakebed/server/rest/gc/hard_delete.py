"""Hard delete of replaced objects: its setting, its queue, and its deleted objects."""

from __future__ import annotations

from typing import Final

from lakebed.base import grace_s_of
from lakebed.catalog import Repository
from lakebed.gc.live import REASONS, count_queue, find_deleted, find_queued
from lakebed.operations.gc import hard_delete
from lakebed.server.http.errors import InvalidParameter
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, in_repository
from lakebed.versions import Versions
from lakebed.wire import HardDeleted, HardDeletedList, HardDeleteStatus, SetHardDelete

SHOWN_MAX: Final = 100


class HardDelete(Resource):
    @in_repository(hard_delete.GET_HARD_DELETE)
    async def get(self, _: RestRequest, repository: Repository) -> HardDeleteStatus:
        return await _status(repository.versions)

    @in_repository(hard_delete.SET_HARD_DELETE)
    async def set(self, request: RestRequest, repository: Repository, body: SetHardDelete) -> HardDeleteStatus:
        repository.guards.check_writable()
        await repository.versions.hard_delete.change(
            by=request.identity.user_id, is_on=body.is_on, is_paused=body.is_paused, grace_s=body.grace_s
        )
        await repository.guards.confirm()
        return await _status(repository.versions)

    @in_repository(hard_delete.WHY_HARD_DELETED)
    async def why(self, request: RestRequest, repository: Repository) -> HardDeletedList:
        versions = repository.versions
        address, path = request.query("address"), request.query("path")
        if bool(address) == bool(path):
            raise InvalidParameter('either "address" or "path" must be given')
        setting = await versions.hard_delete.setting()
        grace_ms = 1000 * grace_s_of(versions.objectstore.uri, setting.grace_s)
        waiting = [
            HardDeleted(
                address=record.address,
                path=record.path.decode(errors="replace"),
                reason=REASONS[record.by],
                size_bytes=record.size_bytes,
                since_ms=record.since_ms,
                due_ms=record.since_ms + grace_ms,
                error=record.error,
            )
            for record in await find_queued(versions, address=address, path=path, limit=SHOWN_MAX)
        ]
        gone = [
            HardDeleted(
                address=row.address,
                path=row.path,
                reason=row.reason,
                size_bytes=row.size_bytes,
                since_ms=row.deleted_ms,
                deleted_ms=row.deleted_ms,
            )
            for row in await find_deleted(versions, address=address, path=path, limit=SHOWN_MAX)
        ]
        return HardDeletedList(results=[*waiting, *gone], is_paused=setting.is_paused)


async def _status(versions: Versions) -> HardDeleteStatus:
    setting = await versions.hard_delete.setting()
    queued = await count_queue(versions)
    return HardDeleteStatus(
        is_on=setting.is_on,
        is_paused=setting.is_paused,
        grace_s=grace_s_of(versions.objectstore.uri, setting.grace_s),
        changed_ms=setting.changed_ms,
        changed_by=setting.changed_by,
        queued=queued.objects,
        queued_bytes=queued.size_bytes,
        oldest_ms=queued.oldest_ms,
        by={by.value: count for by, count in queued.by.items()},
        failed=queued.failed,
        is_complete=queued.is_complete,
    )
