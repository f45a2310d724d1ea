"""A sandbox of the agent's own: made at its first write to a repository, written with the sandbox's own key pair.

The key may write nothing else, whatever its maker may do (docs/guide/sandboxes.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from lakebed.operations import repositories, sandboxes
from lakebed.wire import SandboxCreation, SandboxWithSecret

from .asking import Operations
from .scope import Writer

TOOL: Final = "sandbox"
"""The name in the audit log of what is done before the first write."""
TTL_DEFAULT: Final = "24h"


class OwnSandbox:
    """Make a sandbox for each repository that the agent writes to. It lasts for `ttl`, also when this process ends.

    `connect` returns operations for a key pair. `source`: the ref that it begins at; empty, the default branch.
    """

    is_read_only: Final = False

    def __init__(
        self, operations: Operations, connect: Callable[[str, str], Operations], *, source: str = "", ttl: str = ""
    ) -> None:
        self._operations = operations
        self._connect = connect
        self._source = source
        self._ttl = ttl or TTL_DEFAULT
        self._writers: dict[str, Writer] = {}
        self._making = asyncio.Lock()

    async def writer(self, repository: str) -> Writer:
        """
        Raises:
            LakebedError: that of the making. The user may not, or has not the rights that it would lend.
        """
        async with self._making:
            if repository not in self._writers:
                self._writers[repository] = await self._make(repository)
        return self._writers[repository]

    async def _make(self, repository: str) -> Writer:
        source = self._source
        if not source:
            found = await self._operations.call(repositories.GET_REPOSITORY, (repository,), {}, tool=TOOL)
            source = found.default_branch
        made: SandboxWithSecret = await self._operations.call(
            sandboxes.CREATE_SANDBOX,
            (repository,),
            {},
            tool=TOOL,
            body=SandboxCreation(source=source, ttl=self._ttl, name="agent"),
        )
        return Writer(
            repository=repository,
            branch=made.id,
            operations=self._connect(made.access_key_id, made.secret_access_key),
            note=f"{made.id} is a sandbox at {source}, which ends in {self._ttl}",
        )
