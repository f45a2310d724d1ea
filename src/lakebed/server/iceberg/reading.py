"""Find the snapshots of a table that reach some files, for collections: a `TableReader`."""

from __future__ import annotations

from collections.abc import Set

from lakebed import iceberg
from lakebed.catalog import Repository
from lakebed.gc.live import Reach
from lakebed.server.state import AppState

from .changing import Changing, in_thread, load_library


class Reading:
    """Read the tables of one repository."""

    def __init__(self, repository: Repository, state: AppState) -> None:
        self._tables = repository.tables
        self._changing = Changing(repository, state.ports, state.authenticator.lent_key)

    async def reach(self, metadata: str, files: Set[str]) -> Reach | None:
        """Return which of these files the metadata in a file of the branch `tables` reaches. None: it is not known.

        Reads every manifest of the table.

        Raises:
            InvalidTable, MissingFile, PathExpired: the metadata or a manifest cannot be read.
        """
        if not iceberg.is_installed():
            return None
        await load_library()
        data, uri = await self._changing.metadata_file(metadata), self._tables.uri_of(metadata)
        location = self._tables.location(metadata.partition("/")[0])
        table = await in_thread(len(data), lambda: iceberg.parsed(data, uri, location=location))
        found = await iceberg.reached_by(table, {self._tables.uri_of(file) for file in files}, self._changing.read)
        return Reach(files=len(found.files), snapshots=found.snapshots, is_current=found.is_current)
