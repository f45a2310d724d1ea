"""Iceberg tables on branches. A table is named by its path, `sales/orders`: namespaces and name, with slashes."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.operations import tables
from lakebed.wire import (
    TableDetails,
    TableDifference,
    TableEntry,
    TableRegistration,
    TableRollback,
    TableRolledBack,
    TableVersion,
)

from .connection import Noun
from .paging import listing


class Tables(Noun):
    """List and look at tables, and set them back. Got from `Client.tables`. Rows are read and written by engines."""

    def list(self, repository: str, ref: str, *, namespace: str = "", limit: int | None = None) -> Iterator[TableEntry]:
        """List the tables of a ref, or of a namespace and those in it."""
        query = {"namespace": namespace or None}
        return listing(self._connection, tables.LIST_ALL_TABLES, repository, ref, query=query, limit=limit)

    def stat(self, repository: str, ref: str, table: str) -> TableDetails:
        return self._connection.do(tables.STAT_TABLE, repository, ref, query={"table": table})

    def versions(self, repository: str, ref: str, table: str, *, limit: int | None = None) -> Iterator[TableVersion]:
        """List the commits of a ref's own history that changed a table, newest first, with their snapshots."""
        query = {"table": table}
        return listing(self._connection, tables.LIST_TABLE_VERSIONS, repository, ref, query=query, limit=limit)

    def diff(self, repository: str, left: str, right: str, table: str) -> TableDifference:
        """Say how a table at `right` differs from that at `left`."""
        return self._connection.do(tables.DIFF_TABLE, repository, left, right, query={"table": table})

    def roll_back(
        self, repository: str, branch: str, table: str, *, snapshot_id: str = "", ref: str = "", message: str = ""
    ) -> TableRolledBack:
        """Set a table back to a snapshot that it has, or to what it is at a ref, by a commit of the branch.

        Raises:
            Clash: another writer changed the table meanwhile.
            BadRequest: the table has no such snapshot, or is there already.
        """
        body = TableRollback(snapshot_id=snapshot_id, ref=ref, message=message)
        return self._connection.do(tables.ROLL_BACK_TABLE, repository, branch, query={"table": table}, body=body)

    def register(
        self, repository: str, branch: str, table: str, metadata_location: str, *, overwrite: bool = False
    ) -> str:
        """Make a table of metadata that lie in the branch `tables`, and return where they lie.

        Raises:
            Taken: the branch has such a table, and `overwrite` is not set.
        """
        *namespace, name = table.split("/")
        body = TableRegistration(name=name, metadata_location=metadata_location, overwrite=overwrite)
        made = self._connection.do(tables.REGISTER_TABLE, repository, branch, "\x1f".join(namespace), body=body)
        return made.metadata_location or metadata_location
