"""Objects without their bytes: stat, list, delete, copy, stage, user metadata. The bytes are in content.py."""

from __future__ import annotations

from msgspec.structs import replace
from starlette.responses import Response

from lakebed import wire
from lakebed.base import Entry, from_row
from lakebed.catalog import DEFAULT_CONTENT_TYPE, Repository
from lakebed.server.errors import status_and_message
from lakebed.server.requests import RestRequest
from lakebed.server.responses import answer, nothing, page_of
from lakebed.server.routing import Route
from lakebed.server.state import AppState

from .stats import stats_of_entry, stats_of_page


class Objects:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog
        self._clock = state.ports.clock
        self._presign_s = state.presign_s

    # Reading

    async def stat(self, request: RestRequest) -> Response:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        entry = await repository.objects.get(request.args[1], path)
        stats = stats_of_entry(repository, path, entry, is_with_metadata=request.flag("user_metadata", default=True))
        if request.flag("presign"):
            stats = await self._presigned(repository, stats, entry)
        return answer(stats)

    async def list(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        listing = await repository.versions.list(
            request.args[1],
            prefix=request.query("prefix").encode(),
            after=request.query("after").encode(),
            delimiter=request.query("delimiter").encode(),
            limit=request.amount(),
        )
        results = stats_of_page(
            repository,
            listing.items,
            now_s=self._clock.now_ms() // 1000,
            is_with_metadata=request.flag("user_metadata", default=True),
        )
        if request.flag("presign") and self._presign_s is not None:
            for index, (_, row) in enumerate(listing.items):
                if row is not None:
                    results[index] = await self._presigned(repository, results[index], from_row(row))
        pagination = page_of(results, has_more=listing.has_more, last=results[-1].path if results else "")
        return answer(wire.ObjectStatsList(pagination=pagination, results=results))

    async def underlying_properties(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        await repository.objects.get(request.args[1], request.required("path"))
        return answer(wire.UnderlyingObjectProperties())

    async def may_upload(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        request.required("path")
        await repository.check_branch_writable(request.args[1])
        await repository.versions.get_branch(request.args[1])
        return nothing()

    # Changing

    async def delete(self, request: RestRequest) -> Response:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        await repository.objects.delete(request.args[1], path, force=request.flag("force"))
        return nothing()

    async def delete_many(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(wire.PathList)
        failed = await repository.objects.delete_many(request.args[1], body.paths, force=request.flag("force"))
        errors = []
        for path, error in failed:
            status, message = status_and_message(error)
            errors.append(wire.ObjectError(path=path, status_code=status, message=message))
        return answer(wire.ObjectErrorList(errors=errors))

    async def copy(self, request: RestRequest) -> Response:
        path = request.required("dest_path")
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(wire.ObjectCopyCreation)
        branch = request.args[1]
        entry = await repository.objects.copy(
            body.src_ref or branch,
            body.src_path,
            branch,
            path,
            shallow=bool(body.shallow),
            force=bool(body.force),
        )
        return answer(stats_of_entry(repository, path, entry), 201)

    async def stage(self, request: RestRequest) -> Response:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(wire.ObjectStageCreation)
        entry = Entry(
            address=body.physical_address,
            size_bytes=body.size_bytes,
            checksum=body.checksum.strip('"'),
            modified_ms=self._clock.now_ms() if body.mtime is None else body.mtime * 1000,
            content_type=body.content_type or DEFAULT_CONTENT_TYPE,
            metadata=body.metadata or {},
        )
        staged = await repository.objects.stage(request.args[1], path, entry, force=bool(body.force))
        return answer(stats_of_entry(repository, path, staged), 201)

    async def set_metadata(self, request: RestRequest) -> Response:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(wire.UpdateObjectUserMetadata)
        await repository.objects.set_metadata(request.args[1], path, body.set)
        return nothing(201)

    async def _presigned(self, repository: Repository, stats: wire.ObjectStats, entry: Entry) -> wire.ObjectStats:
        """With a signed URL in place of the address, where the store signs any."""
        if self._presign_s is None:
            return stats
        url = await repository.objects.presign_get(entry, expires_s=self._presign_s)
        if url is None:
            return stats
        expires_s = self._clock.now_ms() // 1000 + self._presign_s
        return replace(stats, physical_address=url, physical_address_expiry=expires_s)


def routes(state: AppState) -> list[Route]:
    here = Objects(state)
    ref, branch = "/repositories/{repository}/refs/{ref}", "/repositories/{repository}/branches/{branch}"
    return [
        Route("GET", ref + "/objects/stat", here.stat),
        Route("GET", ref + "/objects/ls", here.list),
        Route("GET", ref + "/objects/underlyingProperties", here.underlying_properties),
        Route("GET", branch + "/objects/stage_allowed", here.may_upload),
        Route("DELETE", branch + "/objects", here.delete),
        Route("POST", branch + "/objects/delete", here.delete_many),
        Route("POST", branch + "/objects/copy", here.copy),
        Route("PUT", branch + "/objects", here.stage),
        Route("PUT", branch + "/objects/stat/user_metadata", here.set_metadata),
    ]
