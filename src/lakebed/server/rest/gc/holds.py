"""Legal holds: add, list and release them."""

from __future__ import annotations

from lakebed.catalog import Repository
from lakebed.gc.live import HoldBook
from lakebed.gc.messages import HoldsHistory, HoldsVersion, HoldsWritten, NewHold
from lakebed.gc.rules import Holds
from lakebed.operations.gc import holds
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, serves

from .runs import ONLY


class LegalHolds(Resource):
    @serves(holds.GET_LEGAL_HOLDS)
    async def get(self, request: RestRequest) -> Holds:
        if deleted := request.query("deleted"):
            _, versions = await self._catalog.open_deleted(request.args[0], "" if deleted == ONLY else deleted)
            return await HoldBook(versions).in_force()
        return await HoldBook((await self._repository(request)).versions).in_force()

    @serves(holds.ADD_LEGAL_HOLD)
    async def add(self, request: RestRequest, body: NewHold) -> HoldsWritten:
        repository = await self._repository(request)
        written, too_late = await HoldBook(repository.versions).add(body, by=request.identity.user_id)
        await repository.guards.confirm()
        return HoldsWritten(version=written.version, counts_after=too_late)

    @serves(holds.RELEASE_LEGAL_HOLD)
    async def release(self, request: RestRequest) -> HoldsWritten:
        repository = await self._repository(request)
        book = HoldBook(repository.versions)
        written = await book.release(request.args[1], why=request.query("why"), by=request.identity.user_id)
        await repository.guards.confirm()
        return HoldsWritten(version=written.version)

    @serves(holds.LIST_LEGAL_HOLD_HISTORY)
    async def history(self, request: RestRequest) -> HoldsHistory:
        book = HoldBook((await self._repository(request)).versions)
        before = request.integer("before", 0)
        records, has_more = await book.history(before=before if before > 0 else None, limit=request.amount())
        versions = tuple(
            HoldsVersion(
                version=record.version,
                holds=record.holds,
                changed_ms=record.changed_ms,
                changed_by=record.changed_by,
                what=record.what,
            )
            for record in records
        )
        return HoldsHistory(versions=versions, has_more=has_more)

    async def _repository(self, request: RestRequest) -> Repository:
        return await self._catalog.get(request.args[0])
