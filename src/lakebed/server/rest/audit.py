"""Reading the audit log."""

from __future__ import annotations

import asyncio

from lakebed.operations import operators
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.responses import page_of
from lakebed.server.http.routing import Route
from lakebed.server.operate.audit import AuditLog, AuditQuery, query_time
from lakebed.server.state import AppState
from lakebed.wire import AuditRecordList


class Audit:
    def __init__(self, log: AuditLog) -> None:
        self._log = log

    async def list(self, request: RestRequest) -> AuditRecordList:
        query = AuditQuery(
            since=query_time(request.query("since")),
            until=query_time(request.query("until")),
            user=request.query("user"),
            operation=request.query("operation"),
            repository=request.query("repository"),
            is_denied=request.flag("denied"),
        )
        found, following = await asyncio.to_thread(
            self._log.read, query, after=request.query("after"), limit=request.amount()
        )
        return AuditRecordList(pagination=page_of(found, has_more=bool(following), last=following), results=found)


def routes(state: AppState) -> list[Route]:
    return [Route(operators.LIST_AUDIT_RECORDS, Audit(state.audit).list)]
