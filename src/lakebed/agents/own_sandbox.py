"""A sandbox of the agent's own: made at its first write to a repository, written as the sandbox's own user.

Its user may write nothing else, whatever its maker may do (docs/guide/sandboxes.md). Once the sandbox has ended, one
call fails and says so: what was written is gone, and the agent must know before it writes to another one.

`Kept` remembers the sandbox: a command in its own memory, with the key pair, and a server for all its processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

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

    def __init__(self, sandbox: str) -> None:
        super().__init__(
            f"the sandbox {sandbox} has ended, and takes no more writes. What was written there is lost unless it was "
            "merged; a person can bring its commits back. The next write makes another sandbox, without your changes",
            sandbox=sandbox,
        )


class OwnSandbox:
    """Make a sandbox for each repository that the agent writes to. It lasts for `ttl`, whatever becomes of the agent.

    `source`: the ref that it begins at; empty, the default branch.
    """

    is_read_only: Final = False

    def __init__(self, operations: Operations, kept: Kept, *, source: str = "", ttl: str = "") -> None:
        self._operations = operations
        self._kept = kept
        self._source = source
        self._ttl = ttl or TTL_DEFAULT
        self._making = asyncio.Lock()

    async def writer(self, repository: str) -> Writer:
        """
        Raises:
            SandboxEnded: it has ended. The next call makes another one.
            LakebedError: that of the making. The user may not, or has not the rights that it would lend.
        """
        async with self._making:
            box = await self._kept.find(repository) or await self._make(repository)
        return Writer(repository=repository, branch=box.id, operations=box.operations, note=box.note)

    async def _make(self, repository: str) -> Box:
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
        return await self._kept.keep(repository, made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The sandbox that takes writes, and the operations of its user. `note` tells the agent."""

    id: str
    operations: Operations
    note: str


class Kept(Protocol):
    """Remember which sandbox takes the writes to a repository."""

    async def find(self, repository: str) -> Box | None:
        """Return the sandbox, or None where the write has to make one.

        Raises:
            SandboxEnded: it has ended, and is forgotten by that.
            LakebedError: no more sandboxes may be made.
        """
        ...

    async def keep(self, repository: str, made: SandboxWithSecret) -> Box:
        """Remember a sandbox that was just made, and return it, or the one that another request made meanwhile."""
        ...


def note_of(sandbox: str, source: str, ends_s: int) -> str:
    ends = datetime.fromtimestamp(ends_s, UTC)
    return f"{sandbox} is a sandbox at {source}, which ends at {ends:%Y-%m-%d %H:%M} UTC"


class InMemory:
    """Remember for one process, and write with the key pair. `connect` returns operations for one."""

    def __init__(self, operations: Operations, connect: Callable[[str, str], Operations]) -> None:
        self._operations = operations
        self._connect = connect
        self._boxes: dict[str, Box] = {}

    async def find(self, repository: str) -> Box | None:
        return self._boxes.get(repository)

    async def keep(self, repository: str, made: SandboxWithSecret) -> Box:
        lent = _Lent(self, repository, made.id, self._connect(made.access_key_id, made.secret_access_key))
        self._boxes[repository] = box = Box(
            id=made.id, operations=lent, note=note_of(made.id, made.source, made.expiration_date)
        )
        return box

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
        if repository in self._boxes and self._boxes[repository].id == sandbox:
            del self._boxes[repository]
        raise SandboxEnded(sandbox)


class _Lent:
    """Operations with the key of a sandbox. After a refusal it looks whether the sandbox is still there."""

    def __init__(self, kept: InMemory, repository: str, sandbox: str, operations: Operations) -> None:
        self._kept = kept
        self._repository = repository
        self._sandbox = sandbox
        self._operations = operations

    async def call(self, operation: Operation[B, A], *args: Any, **sent: Any) -> A:
        try:
            return await self._operations.call(operation, *args, **sent)
        except (Denied, NotFound) as error:
            try:
                await self._kept.check(self._repository, self._sandbox)
            except Denied:  # the agent's user may not look
                # Loaded late: the server has this module, and needs no client.
                from lakebed.client import NotLoggedIn

                if isinstance(error, NotLoggedIn):
                    self._kept.leave(self._repository, self._sandbox)
            raise
