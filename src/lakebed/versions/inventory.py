"""Records and cells in bulk, as collectors read them: always from the store, never from a cache.

A name is the rest of a record's key after the prefix: a branch's or tag's name, an address, a commit's or run's id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from lakebed.base import CommitId, StagingToken
from lakebed.kv import SCAN_PAGE, Page

from . import keys
from .context import Context
from .records import (
    BranchRecord,
    Commit,
    CopyRecord,
    DeletedRefRecord,
    IntentRecord,
    Record,
    SliceRecord,
    SweptRecord,
    TagRecord,
    UploadRecord,
    decode_record,
    decode_records,
)

R = TypeVar("R", bound=Record)

_PREFIXES: Final[dict[type[Record], bytes]] = {
    BranchRecord: keys.BRANCH,
    TagRecord: keys.TAG,
    IntentRecord: keys.INTENT,
    Commit: keys.COMMIT,
    SliceRecord: keys.SLICE,
    UploadRecord: keys.UPLOAD,
    CopyRecord: keys.COPY,
    SweptRecord: keys.SWEPT,
    DeletedRefRecord: keys.DELETED,
}


@dataclass(frozen=True, slots=True)
class RecordPage(Generic[R]):
    """Consecutive records of one kind. `next_start` begins the next page; None after the last."""

    names: list[str]
    records: list[R]
    next_start: bytes | None


class Inventory:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def page(
        self, kind: type[R], start: bytes = b"", limit: int = SCAN_PAGE, *, of: type[Record] | None = None
    ) -> RecordPage[R]:
        """Return records from `start` on, a `next_start` of the page before. `of`: decode those of another kind."""
        prefix = _PREFIXES[of or kind]
        found = await self._context.store.scan(self._context.partition, start or prefix, limit)
        mine = sum([key.startswith(prefix) for key in found.keys])
        names = [key[len(prefix) :].decode() for key in found.keys[:mine]]
        is_last = mine < len(found.keys) or found.next_start is None
        return RecordPage(names, decode_records(kind, found.values[:mine]), None if is_last else found.next_start)

    async def pages(self, kind: type[R], *, of: type[Record] | None = None) -> AsyncIterator[RecordPage[R]]:
        """Yield every record of this kind by the page. 3 µs for a commit."""
        start: bytes | None = b""
        while start is not None:
            page = await self.page(kind, start, of=of)
            yield page
            start = page.next_start
            if start is not None:
                await self._context.ports.clock.sleep(0)  # An embedded store reads without ever waiting.

    async def every(self, kind: type[R]) -> AsyncIterator[tuple[str, R]]:
        """Yield the name and record of everything of this kind, in order of name."""
        async for page in self.pages(kind):
            for named in zip(page.names, page.records, strict=True):
                yield named

    async def find(self, kind: type[R], name: str) -> R | None:
        held = await self._context.get(_PREFIXES[kind] + name.encode())
        return None if held is None else decode_record(kind, held.value)

    async def next_branches(self, after: str, limit: int) -> list[tuple[str, BranchRecord]]:
        """Return up to `limit` branches behind this name, ascending, with their records. None: there is none."""
        # The least name behind `after` is `after` and a zero byte: `a-b` follows `a`, and sorts before `a/`.
        start = keys.BRANCH + after.encode() + (b"\0" if after else b"")
        page = await self.page(BranchRecord, start, limit)
        return list(zip(page.names, page.records, strict=True))

    async def cells(self, token: StagingToken, start: bytes, limit: int) -> Page:
        return await self._context.store.scan(self._context.token_partition(token), start, limit)

    async def commits(self, ids: Sequence[CommitId]) -> list[Commit | None]:
        """Return the records of these commits, in their order; None where there is none."""
        found = await self._context.get_many([keys.COMMIT + id_.encode() for id_ in ids])
        return [None if held is None else decode_record(Commit, held.value) for held in found]
