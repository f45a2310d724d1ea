"""Back out of quarantine: what a run moved aside is staged again, under a fresh address, and proven to be there.

A swept commit stays swept and an address that was taken is never named again: both are what makes a sweep safe. So a
restore is an upload whose body is copied inside the object store (docs/design/protocols.md, "Upload by the server"),
and every promise about uploads holds for it, whatever runs at the same time. Before the entry is staged the copy is
read back: its size and checksum are those of what lies in quarantine, and the size is the one in the ledger.

A page restores some objects of one part of the run's ledger (restorable.py), perhaps none. Repeated, or after a crash,
it finds what is staged already and leaves it alone. A purge that is faster makes an object's restore fail, and nothing
else.

Who may restore is asked of each object, by its paths: a restore writes, and under another path it copies. A token says
where this very restore goes on: it is sealed, so that nobody makes up what was looked at (continuing.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from lakebed.base import Corrupt, Entry, LakebedError, path_to_key
from lakebed.blocks import BlockNotFound
from lakebed.handoff import (
    FAILURES_SHOWN,
    LEDGER,
    LEDGER_PREFIX,
    LedgerState,
    Quarantine,
    Restore,
    RestoreFailure,
    RestorePage,
    arrow_schema,
    encode_ledger,
)
from lakebed.versions import PathExists, PathNotFound, Versions

from .continuing import Seal
from .errors import BadContinuation
from .restorable import Place, Restorable

AT_ONCE: Final = 16


class RestoreDiffers(Corrupt):
    """What was read back is not what lies in quarantine, or that is not what the ledger says. Nothing was staged."""


Refusal = Callable[[str, str], str]
"""Why an object that had the first path (empty: none is known) may not be staged at the second; empty: it may."""


def _refuse_nothing(_path: str, _target: str) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    size_bytes: int
    md5: str


class Restoring:
    def __init__(self, versions: Versions, *, key: bytes, refusal: Refusal = _refuse_nothing) -> None:
        """`key` seals tokens: the same in every process of a server, and told nobody."""
        self._versions = versions
        self._key = key
        self._refusal = refusal
        self._blocks = versions.blocks
        self._restorable = Restorable(versions.blocks)

    async def restore(self, body: Restore, *, branch: str) -> RestorePage:
        """One page, onto this branch.

        Raises:
            BranchNotFound: there is no such branch.
            NotInQuarantine: nothing that was asked for lies there: it was deleted for good, purged, or never taken.
            BadContinuation: not a token that this restore was given.
            BadInput: the quarantine's record or the run's ledger is unreadable.
        """
        await self._versions.get_branch(branch)
        seal = self._seal(body, branch)
        place = None if body.continuation_token is None else _place(seal.open(body.continuation_token))
        found = await self._restorable.find(body, place)
        token = None if found.following is None else seal.seal(msgspec.msgpack.encode(found.following))
        if found.quarantine is None or not found.rows:
            return RestorePage(run_id=found.run_id, continuation_token=token)
        return await self._restore_page(body, branch, found.quarantine, found.rows, token)

    def _seal(self, body: Restore, branch: str) -> Seal:
        asked = msgspec.json.encode(msgspec.structs.replace(body, continuation_token=None, branch=branch))
        return Seal(self._key, "restore", self._versions.uid, asked.decode())

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

    async def _record(self, quarantine: Quarantine, done: list[dict[str, Any]]) -> None:
        """Rows of their own in the ledger, with the path that the object has now."""
        now_ms = self._versions.world.clock.now_ms()
        facts = {"state": LedgerState.RESTORED.value, "deleted_at": now_ms, "kept_until": None, "error": ""}
        rows = pa.Table.from_pylist([{**row, **facts} for row in done], schema=arrow_schema(LEDGER))
        name = f"{quarantine.run_id}-restore-{self._versions.world.ids.fresh()}.parquet"
        await self._blocks.put(f"{LEDGER_PREFIX}date={quarantine.ledger_date}/{name}", encode_ledger(rows))


def _place(opened: bytes | None) -> Place:
    if opened is None:
        raise BadContinuation("this is no continuation token of this restore: begin it again")
    return msgspec.msgpack.decode(opened, type=Place)


def _target(body: Restore, row: dict[str, Any]) -> str:
    if not body.prefix:
        return row["path"] or f"restored/{row['run_id']}/{row['address']}"
    slash = "" if body.prefix.endswith("/") else "/"
    return f"{body.prefix}{slash}{row['path'] or row['address']}"
