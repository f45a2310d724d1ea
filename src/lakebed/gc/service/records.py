"""Reading the live side's records in bulk. Always from the store: a collector never looks into a cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from lakebed.kv import SCAN_PAGE
from lakebed.versions import Record, Versions, decode_records

R = TypeVar("R", bound=Record)


async def records(versions: Versions, kind: type[R], prefix: bytes) -> AsyncIterator[tuple[str, R]]:
    """Every record under this prefix, in order of name: what follows the prefix in its key."""
    async for names, found in record_pages(versions, kind, prefix):
        for named in zip(names, found, strict=True):
            yield named


async def record_pages(versions: Versions, kind: type[R], prefix: bytes) -> AsyncIterator[tuple[list[str], list[R]]]:
    """The same by the page: names, and their records. 3 µs for a commit."""
    start: bytes | None = prefix
    while start is not None:
        page = await versions.store.scan(versions.partition, start, SCAN_PAGE)
        mine = sum([key.startswith(prefix) for key in page.keys])
        names = [key[len(prefix) :].decode() for key in page.keys[:mine]]
        yield names, decode_records(kind, page.values[:mine])
        start = page.next_start if mine == len(page.keys) else None
