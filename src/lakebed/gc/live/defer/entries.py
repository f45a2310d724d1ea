"""Find the entry that a commit had for an object of a deferred run: content type, metadata, checksum and date.

The table GARBAGE names the range that has the entry (`seen_in`), by the first 64 bits of its id. A collection of
metadata leaves the trees of a deferred run's commits alone (`read_snapshot_for_metadata`), and no committed run sweeps
commits beside a deferred run of the policy. The entry's address must be the object's: a wrong range gives nothing, and
never the facts of another object.
"""

from __future__ import annotations

from typing import Any, Final

from lakebed.base import TABLE_METADATA, TABLE_RECORD, Entry, RangeId, from_row, key_inside, path_to_key
from lakebed.gc.messages import RESTORED_FROM, RestoredFrom, encode_restored_from
from lakebed.ranges import FileCorrupt, range_beginning
from lakebed.versions import Versions

LAST_PATH: Final = "last_path"
"""Marks a row at another path of its object than the last known. Its value is that last path."""


class CommittedEntries:
    """Find entries for one page of a restore. Costs a listing and a read for each range."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._ranges: dict[int, list[RangeId]] = {}

    async def find(self, row: dict[str, Any], *, or_last: bool) -> Entry | None:
        """Return the entry of this row (GARBAGE) at its path, `or_last` at the path where its object was seen last.

        None if no commit had the object, an earlier release planned the run, or the range cannot be read.
        """
        if not row.get("seen_in") or not row["path"]:
            return None
        for path in (row["path"], row[LAST_PATH]) if or_last else (row["path"],):
            if entry := await self._at(row["seen_in"], path, row["address"]):
                return entry
        return None

    async def _at(self, seen_in: int, path: str, address: str) -> Entry | None:
        for range_id in await self._named(seen_in):
            try:
                found = await self._versions.trees.row_in(range_id, path_to_key(path))
            except FileCorrupt:
                continue
            entry = None if found is None else from_row(found)
            if entry is not None and key_inside(entry.address, self._versions.objectstore.uri) == address:
                return entry
        return None

    async def _named(self, seen_in: int) -> list[RangeId]:
        """Return the ids of the ranges with this number: one, in all likelihood."""
        if seen_in not in self._ranges:
            pages = self._versions.objectstore.list(range_beginning(seen_in))
            names = [stat.key.rpartition("/")[2] async for page in pages for stat in page]
            self._ranges[seen_in] = [RangeId(name.removesuffix(".parquet")) for name in names]
        return self._ranges[seen_in]


def entry_again(known: Entry | None, fresh: Entry, source: RestoredFrom) -> Entry:
    """Return the entry to stage for a copy: `fresh` has address, bytes and date, `known` all that the object had."""
    metadata = {} if known is None else dict(known.metadata)
    # A record alone would be a table whose files nothing keeps: the user registers the table again.
    if path_to_key(source.path).endswith(TABLE_RECORD):
        metadata.pop(TABLE_METADATA, None)
    metadata[RESTORED_FROM] = encode_restored_from(source)
    return Entry(
        address=fresh.address,
        size_bytes=fresh.size_bytes,
        checksum=fresh.checksum if known is None else known.checksum or fresh.checksum,
        modified_ms=fresh.modified_ms,
        content_type=fresh.content_type if known is None else known.content_type,
        metadata=metadata,
    )
