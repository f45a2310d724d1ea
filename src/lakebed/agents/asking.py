"""The port through which tools call operations. A server calls its own, and a command line those of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from lakebed.operations import Operation
from lakebed.wire import TOOL_HEADER

if TYPE_CHECKING:
    from lakebed.client import Client

A = TypeVar("A")
B = TypeVar("B")

Value: TypeAlias = "str | int | bool | list[str] | None"


class Operations(Protocol):
    """Call operations as one user."""

    async def call(
        self,
        operation: Operation[B, A],
        args: tuple[str, ...],
        query: Mapping[str, Value],
        *,
        tool: str,
        body: B | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> A:
        """Carry out an operation for a tool, and return its answer.

        `content` is the body of an operation that takes bytes, in place of a record.

        Raises:
            LakebedError: the operation's own error.
        """
        ...


class ClientOperations:
    """Call a server through a client, in threads."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(
        self,
        operation: Operation[B, A],
        args: tuple[str, ...],
        query: Mapping[str, Value],
        *,
        tool: str,
        body: B | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> A:
        return await asyncio.to_thread(
            partial(
                self._client.do,
                operation,
                *args,
                body=body,
                query=_stated(query),
                content=None if content is None else lambda: [content],
                headers={**(headers or {}), TOOL_HEADER: tool},
            )
        )


def _stated(query: Mapping[str, Value]) -> dict[str, Value]:
    """Return a query without parameters that have no value."""
    return {name: value for name, value in query.items() if value is not None and value != ""}
