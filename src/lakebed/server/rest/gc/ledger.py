"""The ledger, page by page: which run deleted which object; and restores of objects. Neither needs Spark."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from starlette.responses import Response

from lakebed.auth import NotPermitted, Permissions
from lakebed.catalog import Repository
from lakebed.gc.live import CollectionService, Refusal
from lakebed.gc.messages import (
    LEDGER_PREFIX,
    LedgerPage,
    LedgerQuery,
    LedgerRow,
    LedgerState,
    Restore,
    RestorePage,
    decode_record,
    ledger_records,
    plain_rows,
)
from lakebed.operations.gc import collectors
from lakebed.server.http.errors import InvalidParameter
from lakebed.server.http.gate import require
from lakebed.server.http.requests import RestRequest, answer
from lakebed.server.http.routing import Resource, in_repository

RECORDS_MAX: Final = 100
"""The most records that a page reads. It then has a token, even with fewer rows than requested."""
_SHOWN: Final = re.compile(r"[0-9]{1,9}")


class Ledger(Resource):
    @in_repository(collectors.LIST_GC_LEDGER)
    async def rows(self, request: RestRequest, repository: Repository) -> Response:
        """Answer one page. Costs a listing of the ledger, and a read of each file of a record in the page.

        The token is the next record, by its first file, and the number of its rows that were shown.
        """
        objectstore = repository.objectstore
        query, limit = _query(request), request.amount()
        name, shown = _position(request.query("after"))
        start_after = LEDGER_PREFIX + name if name else ""
        listed = [
            stat.key async for page in objectstore.list(LEDGER_PREFIX) for stat in page if query.matches(stat.key)
        ]
        found: list[LedgerRow] = []
        records, newest_first = await asyncio.to_thread(ledger_records, listed), request.flag("newest_first")
        if newest_first:
            records = [each for each in reversed(records) if not name or each[0] <= start_after]
        else:
            records = [each for each in records if each[0] >= start_after]
        for looked, names in enumerate(records):
            here = names[0].removeprefix(LEDGER_PREFIX)
            if looked == RECORDS_MAX or len(found) == limit:
                return answer(LedgerPage(rows=tuple(found), continuation_token=f"{here}:0"))
            data = [await objectstore.get(name) for name in names]
            rows = await asyncio.to_thread(_select, query, names, data)
            rows = rows[::-1] if newest_first else rows
            skipped = shown if names[0] == start_after else 0
            more = rows[skipped : skipped + limit - len(found)]
            found += more
            if skipped + len(more) < len(rows):
                token = f"{here}:{skipped + len(more)}"
                return answer(LedgerPage(rows=tuple(found), continuation_token=token))
        return answer(LedgerPage(rows=tuple(found)))


def _query(request: RestRequest) -> LedgerQuery:
    state = request.choice("state", ("", *LedgerState))
    since_ms = request.integer("since_ms", 0)
    return LedgerQuery(
        run_id=request.query("run_id"),
        path=request.query("path"),
        address=request.query("address"),
        state=LedgerState(state) if state else None,
        since_ms=since_ms or None,
    )


def _position(token: str) -> tuple[str, int]:
    name, _, shown = token.rpartition(":")
    if token and not (name and _SHOWN.fullmatch(shown)):
        raise InvalidParameter('parameter "after" in query has an error: not a continuation token')
    return name, int(shown or 0)


def _select(query: LedgerQuery, names: Sequence[str], data: Sequence[bytes]) -> list[LedgerRow]:
    return plain_rows(query.select(decode_record(names, data)))


class Restores(Resource):
    """Restore page by page: one record in, one out (`lakebed.gc.messages`, restoring).

    Besides `gc:Restore` on the repository, each object needs the permissions of an upload or a copy: to write its path,
    and to read its former path if that differs. Refused objects are counted as failed, and so are those for which a
    quota has no room.
    """

    @in_repository(collectors.RESTORE_GC_OBJECTS)
    async def restore(self, request: RestRequest, repository: Repository, body: Restore) -> RestorePage:
        """Restore a page. Restored objects are staged, so the branch must be writable. Without a branch name, use the
        repository's default branch.
        """
        branch = body.branch or repository.record.default_branch
        await repository.guards.check_branch_writable(branch)
        refusal = _refusal(request.permissions, {"repository": request.args[0], "branch": branch})
        service = CollectionService(
            repository.versions,
            default_branch=branch,
            refusal=refusal,
            charge=partial(repository.charges.reserve, by=request.identity.user_id, size_bytes=0),
            continuation_key=self._state.continuation_key,
        )
        return await service.restore(body)


def _refusal(permissions: Permissions, names: Mapping[str, str]) -> Refusal:
    write, read = collectors.RESTORE_GC_OBJECTS.asked_later

    def refusal(path: str, target: str) -> str:
        try:
            require([write], permissions, {**names, "path": target})
            # An object of another branch may be restored to this one, and no record names its former branch.
            if path and (path != target or permissions.heeds_refs(read.action)):
                require([read], permissions, {**names, "path": path})
        except NotPermitted as error:
            return str(error)
        return ""

    return refusal
