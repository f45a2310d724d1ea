"""Find the staged entries that an erasure selects, page by page, and delete them from their branches.

Also find multipart uploads in progress, which are aborted, and queued hard deletes. A delete here is a user's delete:
it stages a tombstone, which a commit makes permanent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from lakebed.base import (
    Entry,
    NotFound,
    Row,
    RunKind,
    StagingToken,
    Tasks,
    from_row,
    in_waves,
    key_inside,
    key_to_path,
    path_to_key,
)
from lakebed.gc.live.errors import BadContinuation
from lakebed.gc.live.installation.installation import Installation
from lakebed.gc.live.options import ServiceOptions
from lakebed.gc.live.reading.inputs import Address, AddressRows, Inputs
from lakebed.gc.live.reading.reading import Cursor, Phase, Reading, Seal
from lakebed.gc.live.records.runs import RunBook, check_uid
from lakebed.gc.messages import (
    STANDING_MAX,
    UNCOMMITTED,
    FindStaged,
    Manifest,
    PartWriter,
    StagedEntry,
    StagedPage,
    Unstage,
    Unstaged,
    check_run_id,
    restored_from,
)
from lakebed.gc.rules import InvalidSelection, Matcher, Selection, check_selection
from lakebed.kv import Page
from lakebed.ranges import TOMBSTONE_ROW
from lakebed.versions import TOMBSTONE, BranchRecord, Condition, PreconditionFailed, Versions, decode_cells, is_gone

_KIND: Final = RunKind.ERASURE

CELLS_MAX: Final = 200_000
"""Read about this many cells in one request: 0.4 s of CPU."""
ENTRIES_MAX: Final = 5_000
"""Return about this many entries in one answer: 2 MB."""


CHECKED_AT_ONCE: Final = 10_000
"""Check up to this many names of a selection on the event loop: 5 ms of CPU."""


class Erasing:
    def __init__(self, versions: Versions, runs: RunBook, options: ServiceOptions, *, key: bytes) -> None:
        """Seal tokens with `key`, a secret that all processes of a server share."""
        self._versions = versions
        self._runs = runs
        self._options = options
        self._key = key
        self._reading = Reading(versions, options, only_cells=True)
        self._installation = Installation(versions)

    async def find(self, run_id: str, body: FindStaged) -> StagedPage:
        """Return the selected entries of a page of cells. The last page also has multipart uploads.

        Costs the same as a page of a reading (reading.py), for any number of branches.

        Raises:
            InvalidSelection: the selection is empty, or has too many addresses.
            BadContinuation: the token is not one of this search.
        """
        id_ = check_run_id(run_id)
        selection = await self._checked(body.selection)
        if len(body.addresses) > STANDING_MAX:
            raise InvalidSelection(f"at most {STANDING_MAX:,} addresses")
        if body.in_queue:
            return await self._queued(selection, body.continuation_token or "")
        # Bound to the request: a token must not continue the search of another selection.
        seal = Seal(self._key, id_, msgspec.json.encode(replace(body, continuation_token=None)).decode())
        cursor = Cursor(name=UNCOMMITTED.name)
        if body.continuation_token is not None:
            cursor = _cursor(seal.open(body.continuation_token))
        writer = PartWriter(UNCOMMITTED)
        others = AddressRows(writer, group_rows=self._options.group_rows) if body.with_others else None
        rows = _Selected(body, selection, others, namespace=self._versions.objectstore.uri)
        cursor = following = await self._reading.advance(cursor, rows, rows.is_full)
        whole: Manifest | None = None
        if others is not None:
            inputs = Inputs(self._versions.objectstore, _KIND, id_)
            page = await self._reading.end_page(inputs, cursor, others, writer)
            following, whole = page.cursor or cursor, page.whole
        entries = await self._entries(rows.found)
        if cursor.phase is not Phase.DONE:
            token = seal.seal(msgspec.msgpack.encode(following))
            return StagedPage(entries=tuple(entries), continuation_token=token)
        return StagedPage(entries=(*entries, *await self._in_parts(selection)), others=whole)

    async def _checked(self, selection: Selection) -> Selection:
        """Call `check_selection`, apart if the selection has many names: 100,000 would block the event loop."""
        if len(selection.paths) + len(selection.digests) + len(selection.globs) <= CHECKED_AT_ONCE:
            return check_selection(selection)
        return await self._versions.ports.tasks.apart(partial(check_selection, selection))

    async def _entries(self, found: Mapping[StagedEntry, StagingToken]) -> list[StagedEntry]:
        """Return these entries, with `is_sealed` set if the token is not the branch's current one."""
        branches = sorted({entry.branch for entry in found})

        async def current(branch: str) -> StagingToken | None:
            record = await self._versions.inventory.find(BranchRecord, branch)
            return None if record is None else record.staging_token

        tokens = dict(zip(branches, await in_waves(self._versions.ports.tasks, branches, current), strict=True))
        return [replace(entry, is_sealed=token != tokens[entry.branch]) for entry, token in found.items()]

    async def _queued(self, selection: Selection, start: str) -> StagedPage:
        """Return the queued hard deletes of a page whose path is selected. Their records have no digest or metadata."""
        if not start:
            await self._versions.hard_delete.flush()  # This process keeps released addresses in memory for a moment.
        page = await self._versions.hard_delete.page(start.encode())
        entries = []
        for _, record in page.items:
            path = record.path.decode(errors="replace")
            if selection.selects_path(path):
                entry = StagedEntry(
                    branch="",
                    path=path,
                    address=record.address,
                    size_bytes=record.size_bytes,
                    checksum="",
                    modified_ms=record.since_ms,
                )
                entries.append(entry)
        token = None if page.next_start is None else page.next_start.decode()
        return StagedPage(entries=tuple(entries), continuation_token=token)

    async def _in_parts(self, selection: Selection) -> list[StagedEntry]:
        """Return the received parts of multipart uploads to selected paths, without checksums: an entry's differs."""
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

    async def unstage(self, run_id: str, body: Unstage) -> Unstaged:
        """Stage a tombstone for each entry that still names its object, and abort multipart uploads.

        Raises:
            Conflict: the run belongs to another repository.
            OtherInstallation: this installation may not collect.
            RunMoved: the run is over, or a collection of metadata retired its plan.
        """
        check_uid(self._versions, body.uid)
        await self._installation.check()
        # Without its plan the run cannot end, and no later erasure finds an object whose entry is deleted here.
        await self._runs.read_published(check_run_id(run_id), _KIND)
        uploads = sorted({entry.multipart_id for entry in body.entries} - {""})
        for multipart_id in uploads:
            await self._versions.parts.end(multipart_id)

        async def hide(entry: StagedEntry) -> bool:
            # Only while the entry names the planned object: a later write to the path stays, even with equal bytes.
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


class _Selected:
    """Collect the selected entries among a reading's cells, each with its token. Pass other cells to `others`."""

    def __init__(self, body: FindStaged, selection: Selection, others: AddressRows | None, *, namespace: str) -> None:
        self.found: dict[StagedEntry, StagingToken] = {}
        self._cells = 0
        self._others = others
        self._or_restored = body.or_restored
        self._by_path = selection.is_by_path and not selection.metadata
        self._matcher = Matcher(selection)
        self._places = frozenset(_place(text, namespace) for text in body.addresses)
        self._namespace = namespace

    def is_full(self) -> bool:
        return self._cells >= CELLS_MAX or len(self.found) >= ENTRIES_MAX

    def add(self, address: Address, *, source: str, branch: str) -> None:
        del address, source, branch
        raise AssertionError("a reading of cells alone finds no records")

    def add_cells(self, page: Page, *, branch: str, token: StagingToken, namespace: str) -> None:
        self._cells += len(page.keys)
        others: list[bytes] = []
        for key, value, (flags, row) in zip(page.keys, page.values, decode_cells(page.values), strict=True):
            if is_gone(flags):
                # A delete in progress still names the object, and an erasure cannot remove it from the branch.
                others.append(value)
                continue
            path = key_to_path(key)
            is_selected = self._selects(path, row)
            if not is_selected:
                others.append(value)
            if is_selected or self._is_wanted(row):
                self.found[_entry_of(branch, path, from_row(row))] = token
        if self._others is not None:
            self._others.add_values(others, branch=branch, namespace=namespace)

    async def settle(self, tasks: Tasks) -> None:
        if self._others is not None:
            await self._others.settle(tasks)

    def _selects(self, path: str, row: Row) -> bool:
        # Decoding each entry is slow, and a selection by path does not need it.
        if self._by_path:
            return self._matcher.selects_path(path)
        entry = from_row(row)
        return self._matcher.matches(path, entry.checksum, entry.metadata)

    def _is_wanted(self, row: Row) -> bool:
        """Return whether the request wants this entry although it is not selected: restored, or at a given address."""
        if not (self._or_restored or self._places):
            return False
        entry = from_row(row)
        if self._or_restored and restored_from(entry.metadata):
            return True
        return bool(self._places) and _place(entry.address, self._namespace) in self._places


def _place(text: str, namespace: str) -> str:
    """Return the spelling of an address in tables."""
    return key_inside(text, namespace) or text


def _entry_of(branch: str, path: str, entry: Entry) -> StagedEntry:
    source = restored_from(entry.metadata)
    return StagedEntry(
        branch=branch,
        path=path,
        address=entry.address,
        size_bytes=entry.size_bytes,
        checksum=entry.checksum,
        modified_ms=entry.modified_ms,
        source=source.address if source else "",
    )


def _cursor(data: bytes | None) -> Cursor:
    if data is None:
        raise BadContinuation("this is not a continuation token of this search: begin again")
    return msgspec.msgpack.decode(data, type=Cursor)
