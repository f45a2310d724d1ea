"""Imports: begin one, show its progress, stop it. The work continues in this process after the answer."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from lakebed import wire
from lakebed.auth import NotPermitted
from lakebed.base import CommitId
from lakebed.catalog import ImportRecord, ImportState, InvalidImport, Location, Repository
from lakebed.operations import objects
from lakebed.server.http.gate import refuse_denied, require
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, in_repository
from lakebed.server.rest.commits import commit_record
from lakebed.versions import Note

TYPES = {"common_prefix": True, "object": False}
LAST_IMPORT = ".lakefs.last.import.timestamp"
"""Metadata of a repository: Unix seconds of the commit of its last import, as the contract's server notes them."""


class Imports(Resource):
    @in_repository(objects.IMPORT_START)
    async def start(
        self, request: RestRequest, repository: Repository, body: wire.ImportCreation
    ) -> wire.ImportCreationResponse:
        sources = [path.path for path in body.paths]
        names = {"repository": request.args[0], "branch": request.args[1]}
        request.what = {**names, "sources": sources, "sources_count": str(len(sources))}
        locations = [_location(path) for path in body.paths]
        (read, write, remove), permissions = objects.IMPORT_START.asked_later, request.permissions
        for location in locations:
            require((read,), permissions, {**names, "source": location.source})
            if not location.is_folder or not permissions.allows_below(write.action, ""):
                require((write,), permissions, {**names, "destination": location.destination})

        def refuse(location: Location, path: str, address: str) -> None:
            destination = {**names, "destination": path}
            if not address:
                require((remove,), permissions, destination)
                return
            try:
                refuse_denied((read,), permissions, {**names, "source": address})
            except NotPermitted as error:
                # A caller who may not read there must not learn the names of its objects.
                raise NotPermitted(
                    f"insufficient permissions: a statement denies {permissions.user_id} {error.facts['action']} on an"
                    f" object of {location.source}",
                    user=permissions.user_id,
                    action=error.facts["action"],
                ) from None
            if path:
                require((write,), permissions, destination)

        if body.commit.date is not None:
            raise InvalidImport("the commit of an import takes no date: it is made when the import ends")
        note = Note(
            message=body.commit.message or "Import objects",
            committer=request.identity.user_id,
            metadata=body.commit.metadata or {},
        )

        async def merged(commit_id: CommitId) -> None:
            commit = await repository.versions.history.get_commit(commit_id)
            await self._catalog.set_metadata(repository.id, {LAST_IMPORT: str(commit.created_ms // 1000)})

        begun = await repository.imports.begin(request.args[1], locations, force=bool(body.force))
        imports = repository.imports
        self._state.background.start(
            imports,
            begun,
            lambda is_stopping: imports.run(
                begun, locations, note, is_stopping=is_stopping, refuse=refuse, force=bool(body.force), merged=merged
            ),
            f"import {begun.id}",
        )
        return wire.ImportCreationResponse(id=begun.id)

    @in_repository(objects.IMPORT_STATUS)
    async def status(self, request: RestRequest, repository: Repository) -> wire.ImportStatus:
        record = await repository.imports.get(request.args[1], request.required("id"))
        return await _status(repository, record)

    @in_repository(objects.IMPORT_CANCEL)
    async def cancel(self, request: RestRequest, repository: Repository) -> None:
        await repository.imports.cancel(request.args[1], request.required("id"))


def _location(path: wire.ImportLocation) -> Location:
    if path.type not in TYPES:
        raise InvalidImport(f"type {path.type!a}: known are common_prefix and object")
    return Location(source=path.path, destination=path.destination, is_folder=TYPES[path.type])


async def _status(repository: Repository, record: ImportRecord) -> wire.ImportStatus:
    status = wire.ImportStatus(
        completed=record.state is ImportState.COMPLETED,
        update_time=datetime.fromtimestamp(record.updated_ms / 1000, UTC).isoformat().replace("+00:00", "Z"),
        ingested_objects=record.objects,
        left_out_objects=record.left_out_objects,
        left_out=record.left_out,
        error=wire.Error(message=record.error) if record.error else None,
    )
    if record.commit_id is None:
        return status
    commit = commit_record(await repository.versions.history.get_commit(record.commit_id))
    return replace(status, metarange_id=commit.meta_range_id, commit=commit)
