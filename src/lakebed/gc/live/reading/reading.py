"""Read every uncommitted address of a repository: PrepareUncommittedForGC (docs/design/0001-uncommitted-gc.md).

The phases, in the order that the proof needs (docs/design/protocols.md, "A collection of uncommitted data", 5 to 7):

    cells    read each branch, and every cell of each of its tokens, even cells equal to the commit
    bump     read each branch again: first tokens that a freeze made meanwhile, then `epoch` + 1 if tokens are sealed
    uploads  read issued upload addresses in every state except expired
    copies   read tracked copies, AFTER the rest: an object renamed meanwhile is in its cell or in a copy record

A reading is cut into pages. A `Cursor` says where the next page begins, and travels in a sealed continuation token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from lakebed.base import AT_ONCE, ROWS_A_TURN, Ids, RunId, StagingToken, in_waves
from lakebed.gc.live.errors import BadContinuation
from lakebed.gc.live.options import ServiceOptions
from lakebed.gc.messages import UNCOMMITTED, Manifest, PartWriter
from lakebed.kv import Page
from lakebed.versions import BranchRecord, CopyRecord, RunRecord, UploadRecord, UploadState, Versions

from .inputs import Address, AddressRows, Inputs, Rows, address_of, digest_of_pages

__all__ = ["Reader"]

UPLOADS: Final = "uploads"

STEPS_MAX: Final = 256
"""Steps of one page. A step makes few network calls, so a page ends before its caller times out."""


class Phase(StrEnum):
    BUMP_FIRST = "bump_first"
    CELLS = "cells"
    BUMP = "bump"
    UPLOADS = "uploads"
    COPIES = "copies"
    DONE = "done"


class Cursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Mark where a reading continues.

    `branch` is being read (`inside`), or was the last branch read. `tokens` are its tokens still to be read, the first
    from `key` on. `read` are its frozen tokens already read. In the last two phases `key` is a record's key.
    `pages` is a digest over the manifests of the earlier pages. Only publishing runs use BUMP_FIRST (expiring.py).
    """

    # A repeated page overwrites the same file but may end at another key. `pages` detects this: a reading that
    # continued from the earlier end stops in `join_pages`.

    name: str
    page: int = 0
    pages: str = ""
    phase: Phase = Phase.CELLS
    branch: str = ""
    inside: bool = False
    tokens: tuple[StagingToken, ...] = ()
    read: tuple[StagingToken, ...] = ()
    key: bytes = b""


def _beginning(cursor: Cursor, phase: Phase) -> Cursor:
    return Cursor(name=cursor.name, page=cursor.page, pages=cursor.pages, phase=phase)


@dataclass(frozen=True, slots=True)
class ReadPage:
    """Hold the manifest of one page and the next cursor. At the end `cursor` is None and `whole` has all pages."""

    manifest: Manifest
    cursor: Cursor | None
    whole: Manifest | None


class Reading:
    def __init__(self, versions: Versions, options: ServiceOptions, *, only_cells: bool = False) -> None:
        """With `only_cells`, end after the branches and bump none."""
        self._versions = versions
        self._options = options
        self._only_cells = only_cells
        self._namespace = versions.objectstore.uri

    async def read_page(self, inputs: Inputs, cursor: Cursor) -> ReadPage:
        """Read from the cursor on until a file is full or the reading ends, and write that file.

        Costs a scan for each `scan_page` cells, a read for each branch and phase, and memory for one file.
        """
        writer = PartWriter(UNCOMMITTED)
        rows = AddressRows(writer, group_rows=self._options.group_rows)
        cursor = await self.advance(cursor, rows, lambda: self._is_full(rows, writer))
        return await self.end_page(inputs, cursor, rows, writer)

    async def advance(self, cursor: Cursor, rows: Rows, is_full: Callable[[], bool]) -> Cursor:
        """Read from the cursor on until the reading ends, `is_full` returns true, or after STEPS_MAX steps."""
        steps = 0
        while cursor.phase is not Phase.DONE and steps < STEPS_MAX and not is_full():
            cursor, steps = await self.step(cursor, rows), steps + 1
            await rows.settle(self._versions.ports.tasks)
            # Let the server answer other requests between two scans: an embedded store never awaits.
            await self._versions.ports.clock.sleep(0)
        return cursor

    async def end_page(self, inputs: Inputs, cursor: Cursor, rows: AddressRows, writer: PartWriter) -> ReadPage:
        """Write the file of the page that ends at the cursor, and its manifest."""
        rows.flush()
        manifest = await inputs.write_page(UNCOMMITTED, cursor.name, cursor.page, writer)
        cursor = replace(cursor, page=cursor.page + 1, pages=digest_of_pages(cursor.pages, manifest))
        if cursor.phase is not Phase.DONE:
            return ReadPage(manifest, cursor, None)
        return ReadPage(manifest, None, await inputs.join_pages(UNCOMMITTED, cursor.name, cursor.page, cursor.pages))

    async def read_uploads(self, inputs: Inputs) -> Manifest:
        """Write the currently issued upload addresses as a separate input `uploads`, of the table UNCOMMITTED."""
        writer = PartWriter(UNCOMMITTED)
        rows = AddressRows(writer, group_rows=self._options.group_rows)
        cursor = Cursor(name=UPLOADS, phase=Phase.UPLOADS)
        while cursor.phase is Phase.UPLOADS:
            cursor = await self._step_uploads(cursor, rows)
            await rows.settle(self._versions.ports.tasks)
        rows.flush()
        page = await inputs.write_page(UNCOMMITTED, UPLOADS, 0, writer)
        return await inputs.join_pages(UNCOMMITTED, UPLOADS, 1, digest_of_pages("", page))

    def _is_full(self, rows: AddressRows, writer: PartWriter) -> bool:
        return rows.count >= self._options.page_rows or writer.size_bytes >= self._options.part_bytes

    async def step(self, cursor: Cursor, rows: Rows) -> Cursor:
        """Do one scan, or read up to AT_ONCE branches."""
        assert cursor.phase is not Phase.BUMP_FIRST, "no reading"
        match cursor.phase:
            case Phase.CELLS:
                return await self._step_cells(cursor, rows)
            case Phase.BUMP:
                return await self._step_bump(cursor, rows)
            case Phase.UPLOADS:
                return await self._step_uploads(cursor, rows)
            case Phase.COPIES:
                return await self._step_copies(cursor, rows)
            case Phase.DONE:
                return cursor
        assert_never(cursor.phase)

    async def _step_cells(self, cursor: Cursor, rows: Rows) -> Cursor:
        if cursor.tokens:
            return await self._scan_token(cursor, rows)
        # Pages of branches lose no address. A branch made behind the cursor begins with a token without cells. An
        # address staged there later is in a slice that was open when the run began, in a commit, or in a record.
        branches = await self._versions.inventory.next_branches(cursor.branch, AT_ONCE)
        if not branches:
            return _beginning(cursor, Phase.BUMP)
        # Most branches have few cells, so read a page of branches together. Read a branch with more cells alone.
        async for (name, record), pages in self._versions.ports.tasks.ahead(branches, self._first_cells, most=AT_ONCE):
            for position, (token, page) in enumerate(zip(record.tokens(), pages, strict=True)):
                rows.add_cells(page, branch=name, token=token, namespace=self._namespace)
                if page.next_start is not None:
                    return replace(cursor, branch=name, tokens=record.tokens()[position:], key=page.next_start)
        return replace(cursor, branch=branches[-1][0])

    async def _first_cells(self, branch: tuple[str, BranchRecord]) -> list[Page]:
        """Read the first cells of each token of this branch."""
        limit = max(self._options.scan_page // AT_ONCE, 1)
        return [await self._versions.inventory.cells(token, b"", limit) for token in branch[1].tokens()]

    async def _step_bump(self, cursor: Cursor, rows: Rows) -> Cursor:
        if cursor.tokens:
            token = cursor.tokens[0]
            after = await self._scan_token(cursor, rows)
            return after if after.tokens[:1] == (token,) else replace(after, read=(*cursor.read, token))
        if not cursor.inside:
            branches = await self._versions.inventory.next_branches(cursor.branch, AT_ONCE)
            if not branches:
                return _beginning(cursor, Phase.DONE if self._only_cells else Phase.UPLOADS)
            frozen_at = next((at for at, (_, record) in enumerate(branches) if _is_frozen(record)), len(branches))
            # A commit in flight may have read an address that a later overwrite removed from its cell. The bump makes
            # that commit read its cells again.
            with_sealed = [name for name, record in branches[:frozen_at] if record.sealed]
            await in_waves(self._versions.ports.tasks, with_sealed, self._bump)
            if frozen_at < len(branches):
                return replace(cursor, branch=branches[frozen_at][0], inside=True, read=())
            return replace(cursor, branch=branches[-1][0])
        record = await self._versions.inventory.find(BranchRecord, cursor.branch)
        sealed = () if record is None else record.sealed
        # An earlier phase may have read this token too: rows may repeat, and a cursor cannot hold every token.
        # Check again after each token: a frozen token may itself be frozen, and cleaned, during the scan.
        frozen = tuple(item.token for item in sealed if item.stands_for and item.token not in cursor.read)
        if frozen:
            return replace(cursor, tokens=frozen, key=b"")
        await self._bump(cursor.branch)
        return replace(cursor, inside=False, read=())

    async def _bump(self, branch: str) -> None:
        if not self._only_cells:
            await self._versions.fencing.bump(branch, only_sealed=True)

    async def _scan_token(self, cursor: Cursor, rows: Rows) -> Cursor:
        token = cursor.tokens[0]
        page = await self._versions.inventory.cells(token, cursor.key, self._options.scan_page)
        for first in range(0, len(page.keys), ROWS_A_TURN):
            here = slice(first, first + ROWS_A_TURN)
            some = Page(page.keys[here], page.values[here], None)
            rows.add_cells(some, branch=cursor.branch, token=token, namespace=self._namespace)
            await self._versions.ports.clock.sleep(0)
        if page.next_start is not None:
            return replace(cursor, key=page.next_start)
        return replace(cursor, tokens=cursor.tokens[1:], key=b"")

    async def _step_uploads(self, cursor: Cursor, rows: Rows) -> Cursor:
        page = await self._versions.inventory.page(UploadRecord, cursor.key, self._options.scan_page)
        for name, record in zip(page.names, page.records, strict=True):
            # An expired upload can no longer be linked, so its object is garbage.
            if record.state is not UploadState.EXPIRED:
                rows.add(self._address(name, created_ms=record.issued_ms), source="upload", branch=record.branch)
        return _following(cursor, page.next_start, Phase.COPIES)

    async def _step_copies(self, cursor: Cursor, rows: Rows) -> Cursor:
        page = await self._versions.inventory.page(CopyRecord, cursor.key, self._options.scan_page)
        for record in page.records:
            rows.add(self._address(record.address, created_ms=record.started_ms), source="copy", branch=record.branch)
        return _following(cursor, page.next_start, Phase.DONE)

    def _address(self, text: str, *, created_ms: int) -> Address:
        return address_of(text, namespace=self._namespace, created_ms=created_ms)


def _is_frozen(record: BranchRecord) -> bool:
    return any(item.stands_for for item in record.sealed)


def _following(cursor: Cursor, next_start: bytes | None, then: Phase) -> Cursor:
    return replace(cursor, phase=then, key=b"") if next_start is None else replace(cursor, key=next_start)


_DIGEST_BYTES: Final = 32
_SECRET_BITS: Final = 256


class Reader(StrEnum):
    COLLECTOR = "collector"
    CONTRACT = "contract"


def fresh_secret(ids: Ids) -> str:
    """Return a fresh secret for a run's record."""
    return f"{ids.bits(_SECRET_BITS):064x}"


class Seal:
    """Seal data with an HMAC-SHA-256: base64 of digest, then data. A token is valid only for the names in `bound`."""

    def __init__(self, key: bytes, *bound: str) -> None:
        self._key = key
        self._bound = bound

    def seal(self, data: bytes) -> str:
        return base64.urlsafe_b64encode(self._digest(data) + data).decode()

    def open(self, token: str) -> bytes | None:
        """Return the data, or None if the token was sealed with another key or other names."""
        try:
            sealed = base64.b64decode(token, altchars=b"-_", validate=True)
        except ValueError:
            return None
        data = sealed[_DIGEST_BYTES:]
        return data if hmac.compare_digest(sealed[:_DIGEST_BYTES], self._digest(data)) else None

    def _digest(self, data: bytes) -> bytes:
        return hmac.digest(self._key, msgspec.msgpack.encode((*self._bound, data)), hashlib.sha256)


class Continuations:
    """Make and check the tokens of one run and reader. Refuse tokens of runs without a secret, of earlier releases.

    The key is the secret in the run's record, new for each attempt. A restore has no run: a server key seals its tokens
    (restoring.py).
    """

    # Sealed, because a client could otherwise make a token near the end: the reading would skip rows and the sweep
    # delete staged data. Bound to the reader, so that a client of the contract cannot continue a collector's run.

    def __init__(self, run_id: RunId, record: RunRecord, reader: Reader) -> None:
        self._run_id = run_id
        self._has_secret = bool(record.secret)
        self._seal = Seal(record.secret.encode(), run_id, reader.value)

    def token(self, cursor: Cursor) -> str:
        return self._seal.seal(msgspec.msgpack.encode(cursor))

    def cursor(self, token: str) -> Cursor:
        """Return the cursor in a token.

        Raises:
            BadContinuation: not a token for this reader and run, or a token of an earlier attempt.
        """
        data = self._seal.open(token) if self._has_secret else None
        if data is None:
            raise BadContinuation(
                f"this is not a continuation token of run {self._run_id}, or one of an earlier attempt: begin again",
                run_id=self._run_id,
            )
        return msgspec.msgpack.decode(data, type=Cursor)
