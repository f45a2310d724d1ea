"""Tables of the catalog: list, load, make, change, rename, drop."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from lakebed import iceberg, wire
from lakebed.catalog import Repository
from lakebed.catalog.tables import TableExists, TableName
from lakebed.operations import tables as operations
from lakebed.server.http.errors import InvalidBody
from lakebed.server.http.gate import ask
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, in_repository, serves

from .changing import Changing
from .credentials import files_settings, lent_settings, signed, signer_settings, wants_keys, wants_signatures
from .namespaces import limit_of
from .places import inner, names_in, namespace_of, note_of, shown_name, table_of

REPORT_BYTES_MAX: Final = 256 << 10


class TableRoutes(Resource):
    # Reading

    @in_repository(operations.LIST_TABLES)
    async def list(self, request: RestRequest, repository: Repository) -> wire.TableList:
        found, has_more = await repository.tables.list(
            request.args[1], namespace_of(request), after=request.query("pageToken"), limit=limit_of(request)
        )
        return wire.TableList(
            identifiers=[shown_name(request, each) for each in found],
            next_page_token=found[-1].name if has_more else None,
        )

    @in_repository(operations.LOAD_TABLE)
    async def load(self, request: RestRequest, repository: Repository) -> wire.LoadedTable:
        """Answer with the metadata file as it lies there: the library is not asked."""
        table = await repository.tables.load(request.args[1], table_of(request))
        data = await self._changing(repository).metadata_file(table.metadata)
        return await self._loaded(
            request, repository, table.name, table.uuid, repository.tables.uri_of(table.metadata), data
        )

    @in_repository(operations.TABLE_EXISTS)
    async def exists(self, request: RestRequest, repository: Repository) -> None:
        await repository.tables.load(request.args[1], table_of(request))

    @in_repository(operations.LOAD_TABLE_CREDENTIALS)
    async def credentials(self, request: RestRequest, repository: Repository) -> wire.TableCredentials:
        table = await repository.tables.load(request.args[1], table_of(request))
        lent = await lent_settings(self._state.authenticator, request, table.name, table.uuid, repository.tables)
        return wire.TableCredentials(storage_credentials=lent)

    @in_repository(operations.SIGN_FILE_REQUEST)
    async def sign(
        self, request: RestRequest, repository: Repository, body: wire.FileRequest
    ) -> wire.SignedFileRequest:
        """Sign for a table of the ref, or for one that is staged: then the file's URI has the id that it was given."""
        name = table_of(request)
        table = await repository.tables.find(request.args[1], name)
        uuid = table.uuid if table else self._changing(repository).staged_id(request.args[1], name, body.uri)
        now_ms = self._state.ports.clock.now_ms()
        return await signed(self._state.authenticator, request, name, uuid, body, now_ms)

    async def _loaded(
        self, request: RestRequest, repository: Repository, name: TableName, uuid: str, uri: str | None, data: bytes
    ) -> wire.LoadedTable:
        lent = []
        if wants_keys(request):
            lent = await lent_settings(self._state.authenticator, request, name, uuid, repository.tables)
        config = {**files_settings(request), **(lent[0].config if lent else {})}
        if wants_signatures(request):
            config |= signer_settings(request, name)
        return wire.LoadedTable(
            metadata_location=uri, metadata=msgspec.Raw(data), config=config, storage_credentials=lent
        )

    @serves(operations.REPORT_TABLE_METRICS)
    async def report(self, request: RestRequest) -> None:
        await request.small_body(REPORT_BYTES_MAX)

    # Changing

    @in_repository(operations.CREATE_TABLE)
    async def create(self, request: RestRequest, repository: Repository, body: wire.TableCreation) -> wire.LoadedTable:
        branch = request.args[1]
        name = TableName(namespace_of(request), body.name)
        changing = self._changing(repository)
        location = changing.fresh_location(branch, name)
        if body.location and body.location.rstrip("/") != location:
            raise iceberg.InvalidTable(
                f"the catalog says where tables lie, below {repository.tables.uri_of('')}: leave the location out",
                location=body.location,
            )
        await repository.tables.namespace(branch, name.namespace)
        if await repository.tables.find(branch, name):
            raise TableExists(f"there is a table {name}", table=str(name))
        new, data = await changing.made(location, body)
        if body.stage_create:
            return await self._loaded(request, repository, name, new.uuid, None, data)
        uri = await changing.create(branch, name, new, data, partial(note_of, request))
        return await self._loaded(request, repository, name, new.uuid, uri, data)

    @in_repository(operations.REGISTER_TABLE)
    async def register(
        self, request: RestRequest, repository: Repository, body: wire.TableRegistration
    ) -> wire.LoadedTable:
        branch = request.args[1]
        name = TableName(namespace_of(request), body.name)
        file = repository.tables.file_of(body.metadata_location)
        await ask(
            (operations.FILES,), request.permissions, {"repository": repository.id, "tables": "tables", "file": file}
        )
        changing = self._changing(repository)
        note = note_of(request, f"{name}: register {file}")
        uri, data, _ = await changing.register(branch, name, file, overwrite=body.overwrite, note=note)
        return await self._loaded(request, repository, name, file.partition("/")[0], uri, data)

    @serves(operations.COMMIT_TABLE)
    async def commit(self, request: RestRequest, body: wire.TableCommit) -> wire.CommittedTable:
        name = table_of(request)
        if body.identifier is not None and _name_of(request, body.identifier) != name:
            raise InvalidBody(f"the body is about another table than the path, {name}")
        changing = self._changing(await self._repository(request))
        [changed] = await changing.commit(request.args[1], {name: body}, partial(note_of, request))
        return wire.CommittedTable(metadata_location=changed.metadata.uri, metadata=msgspec.Raw(changed.data))

    @serves(operations.COMMIT_TABLES)
    async def commit_many(self, request: RestRequest, body: wire.TablesCommit) -> None:
        commits: dict[TableName, wire.TableCommit] = {}
        for each in body.table_changes:
            if each.identifier is None:
                raise InvalidBody("each change of a transaction names its table")
            name = _name_of(request, each.identifier)
            if name in commits:
                raise InvalidBody(f"a transaction changes a table once, and {name} is named twice")
            asked = (operations.READS, operations.WRITES)
            await ask(asked, request.permissions, names_in(request, name.namespace, name.name))
            commits[name] = each
        changing = self._changing(await self._repository(request))
        await changing.commit(request.args[1], commits, partial(note_of, request))

    @in_repository(operations.DROP_TABLE)
    async def drop(self, request: RestRequest, repository: Repository) -> None:
        name = table_of(request)
        # To purge is no more: other branches and older commits may name the same files, and retention knows.
        await repository.tables.drop(request.args[1], name, note_of(request, f"{name}: drop"))

    @serves(operations.RENAME_TABLE)
    async def rename(self, request: RestRequest, body: wire.TableRename) -> None:
        source, target = _name_of(request, body.source), _name_of(request, body.destination)
        for permission, name in ((operations.REMOVES, source), (operations.READS, source), (operations.WRITES, target)):
            await ask((permission,), request.permissions, names_in(request, name.namespace, name.name))
        repository = await self._repository(request)
        note = note_of(request, f"{source}: rename to {target}")
        await repository.tables.rename(request.args[1], source, target, note)

    async def _repository(self, request: RestRequest) -> Repository:
        return await self._catalog.get(request.args[0])

    def _changing(self, repository: Repository) -> Changing:
        return Changing(repository, self._state)


def _name_of(request: RestRequest, identifier: wire.TableIdentifier) -> TableName:
    return TableName(inner(request, identifier.namespace), identifier.name)
