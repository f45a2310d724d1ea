"""Staged entries that an erasure selects: found page by page, and deleted from their branches. Likewise uploads in
parts that were begun, which are given up; and what waits to be deleted at once.

A delete here is a user's delete: it stages a tombstone, and a commit carries it on. It goes ahead only where the
entry still names the object that was planned, so what was written to the path since stays, be it the same bytes.
"""

from __future__ import annotations

from lakebed.base import NotFound, from_row, in_waves, key_to_path, path_to_key
from lakebed.gc.protocol import FindStaged, StagedEntry, StagedPage, Unstage, Unstaged, restored_from
from lakebed.gc.rules import Selection, check_selection
from lakebed.ranges import TOMBSTONE_ROW
from lakebed.versions import (
    TOMBSTONE,
    BranchRecord,
    Condition,
    PreconditionFailed,
    Versions,
    decode_cells,
    is_gone,
)

from .errors import BadContinuation
from .options import ServiceOptions


class Erasing:
    def __init__(self, versions: Versions, options: ServiceOptions) -> None:
        self._versions = versions
        self._options = options

    async def find(self, body: FindStaged) -> StagedPage:
        """Return the selected entries of one branch, and the token of the next. After the last come uploads in parts.

        Raises:
            InvalidSelection: it selects nothing.
        """
        selection = check_selection(body.selection)
        after = body.continuation_token or ""
        if body.in_queue:
            return await self._queued(selection, after)
        if after and not after.startswith("after:"):
            raise BadContinuation("not a continuation token")
        found = await self._versions.inventory.next_branch(after.removeprefix("after:"))
        if found is None:
            return StagedPage(entries=tuple(await self._in_parts(selection)))
        name, record = found
        return StagedPage(
            entries=tuple(await self._staged(name, record, selection, or_restored=body.or_restored)),
            continuation_token=f"after:{name}",
        )

    async def _queued(self, selection: Selection, start: str) -> StagedPage:
        """Return the records of a page of hard delete's queue whose path is selected: they know nothing else."""
        if not start:
            await self._versions.hard_delete.flush()  # What this process let go waits in its memory for a moment.
        page = await self._versions.hard_delete.page(start.encode())
        entries = []
        for _, record in page.items:
            path = record.path.decode(errors="replace")
            if selection.selects_path(path):
                one = StagedEntry(
                    branch="",
                    path=path,
                    address=record.address,
                    size_bytes=record.size_bytes,
                    checksum="",
                    modified_ms=record.since_ms,
                )
                entries.append(one)
        token = None if page.next_start is None else page.next_start.decode()
        return StagedPage(entries=tuple(entries), continuation_token=token)

    async def _in_parts(self, selection: Selection) -> list[StagedEntry]:
        """Return the parts that came of uploads to selected paths. Their checksums are not those of an entry."""
        parts = self._versions.parts
        return [
            StagedEntry(
                branch=record.branch,
                path=key_to_path(record.path),
                address=part.address,
                size_bytes=part.size_bytes,
                checksum="",
                modified_ms=record.created_ms,
                multipart_id=multipart_id,
            )
            for multipart_id, record in await parts.begun_on("")
            if selection.matches(key_to_path(record.path), metadata=record.metadata)
            for _, part in await parts.every(multipart_id)
        ]

    async def _staged(
        self, branch: str, record: BranchRecord, selection: Selection, *, or_restored: bool
    ) -> list[StagedEntry]:
        found: list[StagedEntry] = []
        for token in record.tokens():
            start: bytes | None = b""
            while start is not None:
                page = await self._versions.inventory.cells(token, start, self._options.scan_page)
                for key, (flags, row) in zip(page.keys, decode_cells(page.values), strict=True):
                    entry = None if is_gone(flags) else from_row(row)
                    path = key_to_path(key)
                    source = None if entry is None else restored_from(entry.metadata)
                    if entry is not None and (
                        (or_restored and source) or selection.matches(path, entry.checksum, entry.metadata)
                    ):
                        one = StagedEntry(
                            branch=branch,
                            path=path,
                            address=entry.address,
                            size_bytes=entry.size_bytes,
                            checksum=entry.checksum,
                            modified_ms=entry.modified_ms,
                            is_sealed=token != record.staging_token,
                            source=source.address if source else "",
                        )
                        found.append(one)
                start = page.next_start
        return found

    async def unstage(self, body: Unstage) -> Unstaged:
        """Stage a tombstone in place of each entry that still names its object, and give up uploads in parts."""
        uploads = sorted({entry.multipart_id for entry in body.entries} - {""})
        for multipart_id in uploads:
            await self._versions.parts.end(multipart_id)

        async def hide(entry: StagedEntry) -> bool:
            try:
                await self._versions.staging.write(
                    entry.branch,
                    path_to_key(entry.path),
                    TOMBSTONE,
                    TOMBSTONE_ROW,
                    condition=Condition(if_address=entry.address),
                )
            except (NotFound, PreconditionFailed):
                return False
            return True

        staged = [entry for entry in body.entries if not entry.multipart_id]
        hidden = await in_waves(self._versions.ports.tasks, staged, hide)
        return Unstaged(count=len(uploads) + sum(hidden))
