"""Runs of hooks, and their output."""

from __future__ import annotations

from datetime import UTC, datetime

from lakebed import wire
from lakebed.hooks import ActionRunRecord, HookRunRecord, Runs
from lakebed.operations import repositories
from lakebed.server.http.requests import RestRequest, page_of
from lakebed.server.http.routing import Resource, serves


class Actions(Resource):
    @serves(repositories.LIST_REPOSITORY_RUNS)
    async def list(self, request: RestRequest) -> wire.ActionRunList:
        found, has_more = await (await self._runs(request)).list(
            after=request.query("after"),
            limit=request.amount(),
            branch=request.query("branch"),
            commit_id=request.query("commit"),
        )
        results = [_run(run_id, record) for run_id, record in found]
        pagination = page_of(results, has_more=has_more, last=results[-1].run_id if results else "")
        return wire.ActionRunList(pagination=pagination, results=results)

    @serves(repositories.GET_RUN)
    async def get(self, request: RestRequest) -> wire.ActionRun:
        return _run(request.args[1], await (await self._runs(request)).get(request.args[1]))

    @serves(repositories.LIST_RUN_HOOKS)
    async def hooks(self, request: RestRequest) -> wire.HookRunList:
        record = await (await self._runs(request)).get(request.args[1])
        limit, after = request.amount(), request.query("after")
        found = [hook for hook in record.hooks if hook.id > after]
        results = [_hook(hook) for hook in found[:limit]]
        pagination = page_of(results, has_more=len(found) > limit, last=results[-1].hook_run_id if results else "")
        return wire.HookRunList(pagination=pagination, results=results)

    @serves(repositories.GET_RUN_HOOK_OUTPUT)
    async def output(self, request: RestRequest) -> str:
        return await (await self._runs(request)).output(request.args[1], request.args[2])

    async def _runs(self, request: RestRequest) -> Runs:
        return Runs((await self._catalog.get(request.args[0])).versions)


def _run(run_id: str, record: ActionRunRecord) -> wire.ActionRun:
    return wire.ActionRun(
        run_id=run_id,
        branch=record.branch,
        start_time=_time(record.started_ms),
        end_time=_time(record.ended_ms),
        event_type=record.event_type,
        status=_status(record.failed),
        commit_id=record.commit_id,
    )


def _hook(hook: HookRunRecord) -> wire.HookRun:
    return wire.HookRun(
        hook_run_id=hook.id,
        action=hook.action,
        hook_id=hook.hook_id,
        start_time=_time(hook.started_ms),
        end_time=_time(hook.ended_ms),
        status=_status(hook.failed),
    )


def _status(is_failed: bool) -> str:
    return "failed" if is_failed else "completed"


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
