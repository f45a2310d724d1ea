"""Runs of hooks."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.operations import repositories
from lakebed.wire import ActionRun, HookRun

from .connection import Connection
from .paging import listing


class Actions:
    """List runs of hooks, and read their output. Got from `Client.actions`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self, repository: str, *, branch: str = "", commit: str = "", limit: int | None = None
    ) -> Iterator[ActionRun]:
        """List runs, the newest first."""
        query = {"branch": branch or None, "commit": commit or None}
        return listing(self._connection, repositories.LIST_REPOSITORY_RUNS, repository, query=query, limit=limit)

    def get(self, repository: str, run: str) -> ActionRun:
        return self._connection.do(repositories.GET_RUN, repository, run)

    def hooks(self, repository: str, run: str) -> Iterator[HookRun]:
        return listing(self._connection, repositories.LIST_RUN_HOOKS, repository, run)

    def output(self, repository: str, run: str, hook_run: str) -> str:
        """Return the output of a hook."""
        return self._connection.do(repositories.GET_RUN_HOOK_OUTPUT, repository, run, hook_run)
