"""One tool, and one call of it: the operations that it may call, and answers that have an end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec

from lakebed.operations import AnyOperation, Operation

from .asking import Operations, Value
from .scope import Scope, Writer

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T", bound=msgspec.Struct)

ROWS_BYTES_MAX: Final = 64 << 10
"""Rows of one answer. A page ends earlier where paths are long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[T]):
    """`operations` are all that the handler calls. `changes`: a read-only connection does not have it."""

    name: str
    title: str
    description: str
    arguments: type[T]
    operations: tuple[AnyOperation, ...]
    handler: Callable[[Call, T], Awaitable[dict[str, object]]]
    changes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a tool. `asked` gets the operations that it called, each of which has its line in the audit log."""

    scope: Scope
    tool: Tool[Any]
    asked: list[str]

    async def do(
        self,
        operation: Operation[B, A],
        /,
        *args: str,
        query: Mapping[str, Value] = MappingProxyType({}),
        through: Operations | None = None,
        body: B | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> A:
        """Call an operation, as the agent's user or `through` another login, and return its answer.

        Raises:
            LakebedError: the operation's own error.
        """
        assert operation in self.tool.operations, f"{self.tool.name} does not state {operation.id}"
        self.asked.append(operation.id)
        return await (through or self.scope.operations).call(
            operation, args, query, tool=self.tool.name, body=body, content=content, headers=headers
        )

    async def writer(self, repository: str) -> Writer:
        return await self.scope.writers.writer(self.scope.check(repository))


def page(rows: Sequence[dict[str, object]], *, key: str, after: str) -> dict[str, object]:
    """Return rows as one page of an answer. `key` of the last row leads to the next page; `after` does where all fit.

    `after` is empty where the server has no more.
    """
    shown: list[dict[str, object]] = []
    size_bytes = 0
    for row in rows:
        size_bytes += len(msgspec.json.encode(row))
        if shown and size_bytes > ROWS_BYTES_MAX:
            after = str(shown[-1][key])
            break
        shown.append(row)
    answer: dict[str, object] = {"results": shown}
    if after:
        answer |= {
            "next": after,
            "note": f"{len(shown)} rows are shown, and there are more: call again with after=next",
        }
    return answer
