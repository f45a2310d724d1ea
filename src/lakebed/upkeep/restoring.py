"""Back out of quarantine: what a run moved aside is staged again, under a fresh address, and proven to be there.

A swept commit stays swept and an address that was taken is never named again: both are what makes a sweep safe. So a
restore is an upload whose body is copied inside the object store (docs/design/protocols.md, "Upload by the server"),
and every promise about uploads holds for it, whatever runs at the same time. Before the entry is staged the copy is
read back: its size and checksum are those of what lies in quarantine, and the size is the one in the ledger.

A page reads one part of the run's ledger and restores some of its objects. Repeated, or after a crash, it finds what is
staged already and leaves it alone. A purge that is faster makes an object's restore fail, and nothing else.

Who may restore is asked of each object, by its paths: a restore writes, and under another path it copies.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Corrupt, Entry, LakebedError, NotFound, path_to_key
from lakebed.blocks import BlockNotFound
from lakebed.handoff import (
    FAILURES_SHOWN,
    LEDGER,
    LEDGER_PREFIX,
    QUARANTINED_PREFIX,
    LedgerState,
    Quarantine,
    Restore,
    RestoreFailure,
    RestorePage,
    arrow_schema,
    check_run_id,
    decode_ledger,
    decode_quarantine,
    encode_part,
    quarantine_path,
    quarantined_run,
)
from lakebed.versions import PathExists, PathNotFound, Versions

from .errors import BadContinuation

PAGE_OBJECTS: Final = 500
PAGE_BYTES: Final = 256 << 20
"""A page ends with the object that makes it so large, so that its answer is not long in coming."""

AT_ONCE: Final = 16


class NotInQuarantine(NotFound):
    """Nothing of what was asked for lies in quarantine; the message says what became of it."""


class RestoreDiffers(Corrupt):
    """What was read back is not what lies in quarantine, or that is not what the ledger says. Nothing was staged."""


class _Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """The next row to look at: of this part of the run's ledger, this many of those that are asked for are done."""

    run_id: str
    part: str = ""
    row: int = 0


Refusal = Callable[[str, str], str]
"""Why an object that had the first path (empty: none is known) may not be staged at the second; empty: it may."""


def _refuse_nothing(_path: str, _target: str) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    size_bytes: int
    md5: str


class Restoring:
    def __init__(self, versions: Versions, *, refusal: Refusal = _refuse_nothing) -> None:
        self._versions = versions
        self._refusal = refusal
        self._blocks = versions.blocks

    async def restore(self, body: Restore, *, branch: str) -> RestorePage:
        """One page, onto this branch.

        Raises:
            BranchNotFound: there is no such branch.
            NotInQuarantine: nothing that was asked for lies there: it was deleted for good, purged, or never taken.
            BadContinuation: not a token of ours.
            BadInput: the quarantine's record or the run's ledger is unreadable.
        """
        await self._versions.get_branch(branch)
        cursor = _Cursor(run_id=body.run_id) if body.continuation_token is None else _decode(body.continuation_token)
        if body.continuation_token is None:
            quarantine = await self._find(body)
        else:
            quarantine = await self._quarantine(cursor.run_id) or await self._nothing(body)
        parts = [stat.key async for page in self._blocks.list(quarantine.ledger_prefix) for stat in page]
        parts = [part for part in parts if part >= cursor.part]
        if not parts:
            return RestorePage(run_id=quarantine.run_id)
        rows = _asked_for(await self._rows(parts[0]), body.path)
        start = cursor.row if parts[0] == cursor.part else 0
        page = _first_of(rows.slice(start, PAGE_OBJECTS).to_pylist())
        following: _Cursor | None = _Cursor(run_id=quarantine.run_id, part=parts[0], row=start + len(page))
        if start + len(page) >= rows.num_rows:
            following = _Cursor(run_id=quarantine.run_id, part=parts[1]) if len(parts) > 1 else None
        return await self._restore_page(
            body, branch, quarantine, page, None if following is None else _encode(following)
        )

    async def _restore_page(
        self, body: Restore, branch: str, quarantine: Quarantine, page: list[dict[str, Any]], token: str | None
    ) -> RestorePage:
        outcomes: list[bool | str] = []
        targets = [_target(body, row) for row in page]
        for start in range(0, len(page), AT_ONCE):
            wave = zip(page[start : start + AT_ONCE], targets[start : start + AT_ONCE], strict=True)
            tasks = [self.restore_one(body, branch, quarantine, row, target) for row, target in wave]
            outcomes += await self._versions.world.tasks.gather(tasks)
        done = [
            {**row, "path": target}
            for row, target, outcome in zip(page, targets, outcomes, strict=True)
            if outcome is True
        ]
        if done:
            await self._record(quarantine, done)
        failures = [
            RestoreFailure(address=row["address"], path=target, error=outcome)
            for row, target, outcome in zip(page, targets, outcomes, strict=True)
            if isinstance(outcome, str)
        ]
        return RestorePage(
            run_id=quarantine.run_id,
            restored=len(done),
            bytes_restored=sum(row["size_bytes"] for row in done),
            present=outcomes.count(False),
            failed=len(failures),
            failures=tuple(failures[:FAILURES_SHOWN]),
            continuation_token=token,
        )

    # One object

    async def restore_one(
        self, body: Restore, branch: str, quarantine: Quarantine, row: dict[str, Any], target: str
    ) -> bool | str:
        """True: staged; False: it was there; else what is wrong."""
        if refused := self._refusal(row["path"], target):
            return refused
        source = quarantine.key(row["address"])
        try:
            if await self._is_present(branch, target, source):
                return False
            try:
                await self._upload(body, branch, row, source, target)
            except PathExists:
                # Perhaps this very object: a call that seemed lost may still be at work.
                return "another object is there" if not await self._is_present(branch, target, source) else False
        except BlockNotFound:
            return "it does not lie in quarantine any more"
        except LakebedError as error:
            return str(error) or type(error).__name__
        return True

    async def _is_present(self, branch: str, target: str, source: str) -> bool:
        """Whether the path has just these bytes: an earlier restore put them there, or they never were replaced."""
        try:
            entry = await self._versions.get(branch, path_to_key(target))
        except PathNotFound:
            return False
        if (await self._blocks.stat(source)).size_bytes != entry.size_bytes:
            return False
        return (await self._read(source)).md5 == entry.checksum

    async def _upload(self, body: Restore, branch: str, row: dict[str, Any], source: str, target: str) -> None:
        async def store_body(address: str) -> Entry:
            wanted = await self._read(source)
            if row["size_bytes"] not in (wanted.size_bytes, -1):
                raise RestoreDiffers(f"it has {wanted.size_bytes} bytes, and the ledger says {row['size_bytes']}")
            await self._blocks.copy(source, address)
            if await self._read(address) != wanted:
                raise RestoreDiffers("what was read back is not what lies in quarantine")
            now_ms = self._versions.world.clock.now_ms()
            return Entry(address=address, size_bytes=wanted.size_bytes, checksum=wanted.md5, modified_ms=now_ms)

        await self._versions.upload(branch, path_to_key(target), store_body, if_none_match=not body.overwrite)

    async def _read(self, key: str) -> _Bytes:
        md5, size_bytes = hashlib.md5(usedforsecurity=False), 0
        async for chunk in self._blocks.stream(key):
            md5.update(chunk)
            size_bytes += len(chunk)
        return _Bytes(size_bytes=size_bytes, md5=md5.hexdigest())

    # Records and ledger

    async def _find(self, body: Restore) -> Quarantine:
        """The run that was asked for, or the latest one that holds what was asked for."""
        if body.run_id:
            found = await self._quarantine(check_run_id(body.run_id))
            if found is not None and await self._holds(found, body.path):
                return found
        elif body.path:
            names = [stat.key async for page in self._blocks.list(QUARANTINED_PREFIX) for stat in page]
            for name in reversed(names):
                run_id = quarantined_run(name.removeprefix(QUARANTINED_PREFIX))
                found = None if run_id is None else await self._quarantine(run_id)
                if found is not None and await self._holds(found, body.path):
                    return found
        return await self._nothing(body)

    async def _quarantine(self, run_id: str) -> Quarantine | None:
        try:
            return decode_quarantine(await self._blocks.get(quarantine_path(run_id)), run_id)
        except BlockNotFound:
            return None

    async def _holds(self, quarantine: Quarantine, path: str) -> bool:
        async for page in self._blocks.list(quarantine.ledger_prefix):
            for stat in page:
                if _asked_for(await self._rows(stat.key), path).num_rows:
                    return True
        return False

    async def _rows(self, key: str) -> pa.Table:
        return decode_ledger(await self._blocks.get(key), name=key)

    async def _record(self, quarantine: Quarantine, done: list[dict[str, Any]]) -> None:
        """Rows of their own in the ledger, with the path that the object has now."""
        now_ms = self._versions.world.clock.now_ms()
        facts = {"state": LedgerState.RESTORED.value, "deleted_at": now_ms, "kept_until": None, "error": ""}
        rows = pa.Table.from_pylist([{**row, **facts} for row in done], schema=arrow_schema(LEDGER))
        name = f"{quarantine.run_id}-restore-{self._versions.world.ids.fresh()}.parquet"
        await self._blocks.put(f"{LEDGER_PREFIX}date={quarantine.ledger_date}/{name}", encode_part(LEDGER, rows))

    async def _nothing(self, body: Restore) -> Quarantine:
        """
        Raises:
            NotInQuarantine: always, saying what the ledger knows.
        """
        what = body.path or f"run {body.run_id}"
        async for row in self._ledger(body):
            run, when = row["run_id"], f"{row['deleted_at']:%Y-%m-%d %H:%M:%SZ}"
            rule = f" by the rule {row['rule']}" if row["rule"] else f" ({row['reason']})"
            if row["state"] == LedgerState.DELETED:
                said = f"run {run} deleted it for good at {when}{rule}"
            elif row["state"] == LedgerState.PURGED:
                said = f"run {run} moved it aside{rule}, and it was purged at {when}"
            else:
                continue
            raise NotInQuarantine(f"{what} cannot be restored: {said}", run_id=run)
        raise NotInQuarantine(f"{what} does not lie in quarantine, and no ledger says that it was deleted", what=what)

    async def _ledger(self, body: Restore) -> AsyncIterator[dict[str, Any]]:
        """What the ledger has of it, the latest files first."""
        names = [stat.key async for page in self._blocks.list(LEDGER_PREFIX) for stat in page]
        for name in sorted(names, reverse=True):
            if body.run_id and not name.rpartition("/")[2].startswith(f"{body.run_id}-"):
                continue
            rows = await self._rows(name)
            for row in rows.filter(_named(rows, body.path)).slice(0, 1).to_pylist():
                yield row


def _named(rows: pa.Table, path: str) -> pa.ChunkedArray:
    """Which rows are of this path, of a path below it if it ends with a slash, or of this address. None: all are."""
    if not path:
        return pc.is_valid(rows["address"])
    if path.endswith("/"):
        return pc.starts_with(rows["path"], path)
    return pc.or_(pc.equal(rows["path"], path), pc.equal(rows["address"], path))


def _asked_for(rows: pa.Table, path: str) -> pa.Table:
    """Of a part's rows those that lie in quarantine and are asked for."""
    aside = rows.filter(pc.equal(rows["state"], LedgerState.QUARANTINED.value))
    return aside.filter(_named(aside, path))


def _first_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many as a page may have bytes, at least one."""
    page: list[dict[str, Any]] = []
    size_bytes = 0
    for row in rows:
        page.append(row)
        size_bytes += row["size_bytes"]
        if size_bytes >= PAGE_BYTES:
            break
    return page


def _target(body: Restore, row: dict[str, Any]) -> str:
    if not body.prefix:
        return row["path"] or f"restored/{row['run_id']}/{row['address']}"
    slash = "" if body.prefix.endswith("/") else "/"
    return f"{body.prefix}{slash}{row['path'] or row['address']}"


def _encode(cursor: _Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(cursor)).decode()


def _decode(token: str) -> _Cursor:
    """
    Raises:
        BadContinuation: not a token of ours.
    """
    try:
        cursor = msgspec.msgpack.decode(base64.b64decode(token, altchars=b"-_", validate=True), type=_Cursor)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise BadContinuation("not a continuation token") from error
    check_run_id(cursor.run_id)
    return cursor
