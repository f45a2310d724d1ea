"""The audit log of a server."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.operations import operators
from lakebed.wire import AuditRecord

from .connection import Connection
from .paging import listing


class Audit:
    """Ask for records of the audit log. Made by `Client.audit`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self,
        *,
        since: str = "",
        until: str = "",
        user: str = "",
        operation: str = "",
        repository: str = "",
        is_denied: bool = False,
        limit: int | None = None,
    ) -> Iterator[AuditRecord]:
        """Newest first. `since` and `until` are dates or times of ISO 8601, UTC where no zone is given."""
        names = {"since": since, "until": until, "user": user, "operation": operation, "repository": repository}
        query = {name: value or None for name, value in names.items()}
        return listing(
            self._connection, operators.LIST_AUDIT_RECORDS, query={**query, "denied": is_denied or None}, limit=limit
        )
