"""Convert rows and entries to the contract's object records. A listing converts a thousand of them, so it converts
rows directly, and builds the name of each slice once.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakebed.base import FOREIGN_SLICE, Entry, Row, decode_metadata, slice_name
from lakebed.catalog import Repository
from lakebed.server.http.errors import expired_by
from lakebed.versions import TakenBy
from lakebed.wire import ObjectStats


def stats_of_entry(
    repository: Repository, path: str, entry: Entry, *, is_with_metadata: bool = True, taken: TakenBy | None = None
) -> ObjectStats:
    return ObjectStats(
        checksum=entry.checksum,
        content_type=entry.content_type,
        metadata=entry.metadata if is_with_metadata else {},
        mtime=entry.modified_ms // 1000,
        path=path,
        path_type="object",
        physical_address=repository.full_address(entry.address),
        size_bytes=entry.size_bytes,
        expired=None if taken is None else expired_by(taken),
    )


def stats_of_page(
    repository: Repository,
    items: Sequence[tuple[bytes, Row | None]],
    *,
    now_s: int,
    is_with_metadata: bool,
    taken: Sequence[TakenBy | None],
) -> list[ObjectStats]:
    """Return the records of a page. A common prefix (no row) has the time `now_s`: the contract requires one.

    `taken` has for each row the lifecycle run that took its object.
    """
    by_row = (None if by is None else expired_by(by) for by in taken) if any(taken) else None
    prefixes: dict[int, str] = {}
    no_metadata: dict[str, str] = {}
    data = repository.address_prefix + "data/"
    page: list[ObjectStats] = []
    for key, row in items:
        if row is None:
            page.append(
                ObjectStats(checksum="", mtime=now_s, path=key.decode(), path_type="common_prefix", physical_address="")
            )
            continue
        _, slice_, sequence, address, size_bytes, checksum, modified_ms, content_type, metadata = row
        if slice_ == FOREIGN_SLICE:
            address = repository.full_address(address)
        else:
            prefix = prefixes.get(slice_)
            if prefix is None:
                prefix = prefixes[slice_] = f"{data}{slice_name(slice_)}/"
            address = f"{prefix}{sequence:08d}"
        page.append(
            ObjectStats(
                checksum=checksum,
                content_type=content_type,
                metadata=decode_metadata(metadata) if metadata and is_with_metadata else no_metadata,
                mtime=modified_ms // 1000,
                path=key.decode(),
                path_type="object",
                physical_address=address,
                size_bytes=size_bytes,
                expired=None if by_row is None else next(by_row),
            )
        )
    return page
