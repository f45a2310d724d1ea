"""Uploads by clients themselves: get an address for the bytes, and then link it to a path."""

from __future__ import annotations

from lakebed import wire
from lakebed.base import CONTENT_TYPE_DEFAULT
from lakebed.catalog import check_user_metadata
from lakebed.operations import objects
from lakebed.server.http.errors import InvalidParameter
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Route
from lakebed.server.rest.stats import stats_of_entry
from lakebed.server.state import AppState


class Staging:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog
        self._clock = state.ports.clock
        self._presign_s = state.presign_s

    async def get_address(self, request: RestRequest) -> wire.StagingLocation:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        presign_s = self._presign_s if request.flag("presign") else None
        target = await repository.objects.issue_upload(
            request.args[1], path, presign_s=presign_s, by=request.identity.user_id
        )
        expires_s = None
        if target.presigned_url is not None and presign_s is not None:
            expires_s = self._clock.now_ms() // 1000 + presign_s
        return wire.StagingLocation(
            physical_address=target.full_address,
            presigned_url=target.presigned_url,
            presigned_url_expiry=expires_s,
        )

    async def link_address(self, request: RestRequest, body: wire.StagingMetadata) -> wire.ObjectStats:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        if not body.staging.physical_address:
            raise InvalidParameter("the staging location has no physical address")
        check_user_metadata(body.user_metadata or {})
        if_none_match = request.header(b"if-none-match")
        if_match = request.header(b"if-match")
        entry = await repository.objects.link_upload(
            request.args[1],
            path,
            body.staging.physical_address,
            size_bytes=body.size_bytes,
            checksum=body.checksum,
            content_type=body.content_type or CONTENT_TYPE_DEFAULT,
            metadata=body.user_metadata,
            if_none_match=if_none_match == "*",
            if_match=None if if_match is None else if_match.strip('"'),
            force=bool(body.force),
            by=request.identity.user_id,
        )
        return stats_of_entry(repository, path, entry)


def routes(state: AppState) -> list[Route]:
    here = Staging(state)
    return [
        Route(objects.GET_PHYSICAL_ADDRESS, here.get_address),
        Route(objects.LINK_PHYSICAL_ADDRESS, here.link_address),
    ]
