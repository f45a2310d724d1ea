"""Merges that append: a table to which both sides only appended gets the rows of the source at the destination."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from msgspec import Raw

from lakebed import iceberg
from lakebed.catalog import Repository
from lakebed.catalog.tables import NoSuchTable, TableChange, TableName
from lakebed.iceberg import Metadata
from lakebed.server.state import AppState
from lakebed.versions import Settle, Sides
from lakebed.wire import TableCommit

from .changing import Changing, load_library

_SNAPSHOT_BITS: Final = 62


async def appending(repository: Repository, state: AppState, *, branch: str, by: str) -> Settle:
    """Return how a merge into a branch settles conflicts at tables by appending.

    It writes their new metadata before it commits; these count for the quotas of the branch and of the user.

    Raises:
        Answer: the server has no library for tables.
    """
    await load_library()
    changing = Changing(repository, state.ports, state.authenticator.lent_key)

    async def metadata_at(commit: str, name: TableName) -> Metadata:
        return (await changing.metadata_of(await repository.tables.load(commit, name)))[0]

    async def changed(sides: Sides, name: TableName) -> TableChange:
        base, source, head = [await metadata_at(one, name) for one in (sides.base, sides.source, sides.head)]
        fresh = UUID(int=state.ports.ids.bits(128), version=4)
        number, now_ms = state.ports.ids.bits(_SNAPSHOT_BITS), state.ports.clock.now_ms()
        uri = f"{head.location}/metadata/snap-{number}-0-{fresh}.avro"
        made = await iceberg.appended(base, source, head, changing.read, uri=uri, snapshot_id=number, now_ms=now_ms)
        file = repository.tables.file_of(uri)
        await repository.tables.put(
            file, made.manifest_list, content_type="application/octet-stream", branch=branch, by=by
        )
        return await changing.change_at(
            sides.head,
            name,
            TableCommit(
                requirements=[Raw(each) for each in made.requirements], updates=[Raw(each) for each in made.updates]
            ),
            branch=branch,
            by=by,
        )

    async def explained(sides: Sides, name: TableName) -> TableChange:
        try:
            return await changed(sides, name)
        except iceberg.NotAppended as error:
            raise iceberg.NotAppended(f"table {name} was not appended to: {error}", table=str(name)) from error
        except NoSuchTable as error:
            raise iceberg.NotAppended(f"table {name} was not appended to: a side made or dropped it") from error

    return repository.tables.settling(explained)
