"""A sandbox of the agent's own: made at its first write to a repository, written with the sandbox's own key pair.

The key may write nothing else, whatever its maker may do (docs/guide/sandboxes.md). Once the sandbox has ended, one
call fails and says so: what was written is gone, and the agent must know before it writes to another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from lakebed.base import Conflict, Denied, NotFound
from lakebed.operations import AnyOperation, Operation, repositories, sandboxes
from lakebed.wire import SandboxCreation, SandboxWithSecret

from .asking import Operations
from .scope import Writer

A = TypeVar("A")
B = TypeVar("B")

TOOL: Final = "sandbox"
"""The name in the audit log of what is done before the first write."""
TTL_DEFAULT: Final = "24h"
OPERATIONS: Final[tuple[AnyOperation, ...]] = (
    repositories.GET_REPOSITORY,
    sandboxes.CREATE_SANDBOX,
    sandboxes.GET_SANDBOX,
)
"""Called beside those of the tools, as the agent's user."""


class SandboxEnded(Conflict):
    """The sandbox of the agent has ended. The next write makes another one."""


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
            operations=_Lent(self, repository, made.id, self._connect(made.access_key_id, made.secret_access_key)),
            note=f"{made.id} is a sandbox at {source}, which ends in {self._ttl}",
        )

    async def check(self, repository: str, sandbox: str) -> None:
        """Leave the sandbox if it has ended.

        Raises:
            SandboxEnded: it has.
        """
        try:
            found = await self._operations.call(sandboxes.GET_SANDBOX, (repository, sandbox), {}, tool=TOOL)
            has_ended = found.state != "active" or found.expiration_date <= time.time()
        except NotFound:
            has_ended = True
        if has_ended:
            self.leave(repository, sandbox)

    def leave(self, repository: str, sandbox: str) -> None:
        """Have the next write make another sandbox.

        Raises:
            SandboxEnded: always.
        """
        writer = self._writers.get(repository)
        if writer is not None and writer.branch == sandbox:
            del self._writers[repository]
        raise SandboxEnded(
            f"the sandbox {sandbox} has ended, and takes no more writes. What was written there is lost unless it was "
            "merged; a person can bring its commits back. The next write makes another sandbox, without your changes",
            sandbox=sandbox,
        )


class _Lent:
    """Operations with the key of a sandbox. After a refusal it looks whether the sandbox is still there."""

    def __init__(self, own: OwnSandbox, repository: str, sandbox: str, operations: Operations) -> None:
        self._own = own
        self._repository = repository
        self._sandbox = sandbox
        self._operations = operations

    async def call(self, operation: Operation[B, A], *args: Any, **sent: Any) -> A:
        try:
            return await self._operations.call(operation, *args, **sent)
        except (Denied, NotFound) as error:
            try:
                await self._own.check(self._repository, self._sandbox)
            except Denied:  # the agent's user may not look
                # Loaded late: the server has this module, and needs no client.
                from lakebed.client import NotLoggedIn

                if isinstance(error, NotLoggedIn):
                    self._own.leave(self._repository, self._sandbox)
            raise
