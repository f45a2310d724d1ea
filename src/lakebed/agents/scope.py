"""Limit where an agent may read and write. The permissions of its user hold besides."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final, Protocol

from lakebed.base import Denied, NotFound, check_branch, check_repository
from lakebed.operations import AnyOperation, history, repositories

from .asking import Operations

READ_ONLY: Final = (
    "this connection is read-only: ask the person who set it up to leave out --read-only, or read_only in the URL"
)


PARSERS_MAX: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The branch that takes writes, and the login that may write there."""

    repository: str
    branch: str
    operations: Operations
    note: str = ""


class Writers(Protocol):
    """Decide where the writes of an agent go."""

    @property
    def is_read_only(self) -> bool: ...

    async def writer(self, repository: str) -> Writer:
        """
        Raises:
            Denied: no branch of this repository takes writes.
        """
        ...


class NoWrites:
    is_read_only: Final = True

    async def writer(self, repository: str) -> Writer:
        raise Denied(READ_ONLY, repository=repository)


class FixedBranch:
    """Let writes go to one branch."""

    is_read_only: Final = False

    def __init__(self, repository: str, branch: str, operations: Operations) -> None:
        self._writer = Writer(
            repository=check_repository(repository), branch=check_branch(branch), operations=operations
        )

    @property
    def args(self) -> tuple[str, str]:
        return self._writer.repository, self._writer.branch

    async def writer(self, repository: str) -> Writer:
        if repository != self._writer.repository:
            raise Denied(
                f"writes go to the branch {self._writer.branch} of {self._writer.repository} only: "
                f"call the tool with that repository, or read {repository}",
                repository=repository,
            )
        return self._writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """`repositories`: those that an agent may name; empty, all that its login may read. `writers`: see there.

    `parsers` holds how many processes may parse tables at once. Others wait.
    """

    operations: Operations
    writers: Writers
    repositories: tuple[str, ...] = ()
    parsers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PARSERS_MAX))

    async def check_names(self) -> None:
        """Check that what the connection names exists. Its tools would find that out one by one, and late.

        No tool is named: the endpoint of a server then notes no refusal in the audit log.

        Raises:
            NotFound: a repository, or the branch that takes writes, does not exist.
        """
        named: list[tuple[AnyOperation, tuple[str, ...], str]] = [
            (repositories.GET_REPOSITORY, (repository,), "repository") for repository in self.repositories
        ]
        if isinstance(self.writers, FixedBranch):
            named.append((history.GET_BRANCH, self.writers.args, "branch"))
        for operation, args, noun in named:
            try:
                await self.operations.call(operation, args, {}, tool="")
            except Denied:
                pass  # its tools say so
            except NotFound as error:
                raise NotFound(f"lakefs://{'/'.join(args)}: {noun} not found") from error

    def check(self, repository: str) -> str:
        """
        Raises:
            InvalidName: no repository can have this name.
            Denied: this connection leaves it out.
        """
        check_repository(repository)
        if self.repositories and repository not in self.repositories:
            raise Denied(
                f"this connection leaves {repository} out: choose one of {', '.join(self.repositories)}",
                repository=repository,
            )
        return repository
