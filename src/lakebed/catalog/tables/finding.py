"""Find the folders and the tables of a commit. A walk over the tables costs a page of each namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from lakebed.base import CommitId, Entry, from_row, key_to_path
from lakebed.versions import Versions

from .names import FILE, NAMESPACE, RECORD, SUFFIX, UUID

PAGE: Final = 1_000


async def folders(versions: Versions, head: CommitId, prefix: bytes, *, after: str = "") -> AsyncIterator[str]:
    """Yield the names of the folders directly below a prefix, in order."""
    start, has_more = prefix + after.encode() if after else b"", True
    while has_more:
        page = await versions.staging.list_commit(head, prefix=prefix, after=start, delimiter=b"/", limit=PAGE)
        for key, row in page.items:
            if row is None:
                yield key_to_path(key[len(prefix) : -1])
        has_more, start = page.has_more, page.items[-1][0] if page.items else start


async def tables_of(versions: Versions, head: CommitId) -> AsyncIterator[tuple[bytes, str, str]]:
    """Yield the folder, the uuid and the metadata file of each table of a commit. Namespaces have a record."""
    waiting = [b""]
    while waiting:
        prefix = waiting.pop()
        inside = [prefix + f"{name}/".encode() async for name in folders(versions, head, prefix)]
        tables = [folder for folder in inside if folder.endswith(f"{SUFFIX}/".encode())]
        namespaces = [folder for folder in inside if not folder.endswith(f"{SUFFIX}/".encode())]
        for folder, entry in await _entries(versions, head, tables, RECORD):
            if FILE in entry.metadata:
                yield folder, entry.metadata.get(UUID, ""), entry.metadata[FILE]
        waiting += [folder for folder, _ in await _entries(versions, head, namespaces, NAMESPACE)]


async def _entries(versions: Versions, head: CommitId, inside: list[bytes], record: str) -> list[tuple[bytes, Entry]]:
    rows = await versions.staging.rows_of_commit(head, [folder + record.encode() for folder in inside])
    return [(folder, from_row(row)) for folder, row in zip(inside, rows, strict=True) if row is not None]
