"""Listings, however long, as iterators that fetch a page when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, TypeVar

from lakebed.operations import Operation
from lakebed.wire import Paged

from .connection import Connection, Query
from .errors import BadAnswer

T = TypeVar("T")

PAGE_MAX: Final = 1000
"""The longest page the contract allows."""


def listing(
    connection: Connection,
    operation: Operation[None, Paged[T]],
    *arguments: str,
    query: Query = MappingProxyType({}),
    limit: int | None = None,
) -> Iterator[T]:
    """Yield all results in the server's order, or the first `limit`.

    Costs one request for each thousand; reads no page ahead.

    Raises:
        BadAnswer: the server promises more but does not move on.
    """
    after = query.get("after") or ""
    left = limit
    while left is None or left > 0:
        amount = PAGE_MAX if left is None else min(left, PAGE_MAX)
        answer = connection.do(operation, *arguments, query={**query, "after": after or None, "amount": amount})
        yield from answer.results
        if not answer.pagination.has_more:
            return
        # A page may be empty and not the last one: that of a log ends early where its filter passes over too many.
        if answer.pagination.next_offset in ("", after):
            raise BadAnswer(f"{operation.id}: the server promises more results but its pages do not move on")
        after = answer.pagination.next_offset
        left = None if left is None else left - len(answer.results)
