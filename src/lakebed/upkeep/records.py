"""Reading the live side's records in bulk. Always from the store: a collector never looks into a cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from lakebed.kv import scan_prefix
from lakebed.versions import Record, Versions, decode_record

R = TypeVar("R", bound=Record)


async def records(versions: Versions, kind: type[R], prefix: bytes) -> AsyncIterator[tuple[str, R]]:
    """Every record under this prefix, in order of name: what follows the prefix in its key."""
    async for key, value in scan_prefix(versions.store, versions.partition, prefix):
        yield key[len(prefix) :].decode(), decode_record(kind, value)
