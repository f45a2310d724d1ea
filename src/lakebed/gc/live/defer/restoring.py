"""Restore objects of a deferred run: stage each again under a fresh address, and prove that it is there.

A swept commit stays swept and an address that was taken is never named again: both are what makes a sweep safe. So a
restore is an upload whose body is copied inside the object store (docs/design/protocols.md, "Upload by the server"),
and every promise about uploads holds for it, whatever runs at the same time. Before the entry is staged the copy is
read back: its size and checksum are those of the object, and the size is the one in the run's table.

A page restores some objects of one part of the run's table (restorable.py), perhaps none. Repeated, or after a crash,
it finds what is staged already and leaves it alone. A purge that is faster makes an object's restore fail, and nothing
else.

Of several versions of a path the one seen last is there in the end, whichever page finds it: what is staged says which
version it is (`RestoredFrom`). Only what this very restore staged is replaced unasked; and an address that is asked for
by itself returns, whatever else is there to be had. A look at the path and the write that follows are bound by the
checksum that was seen, so of two calls at once none undoes the other's.

Who may restore is asked of each object, by its paths: a restore writes, and under another path it copies. A token says
where this very restore goes on: it is sealed, so that no client makes up what was looked at (reading.py).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import msgspec
import pyarrow as pa

from lakebed.base import Corrupt, Entry, LakebedError, in_waves, parse_address, path_to_key
from lakebed.gc.live.errors import BadContinuation
from lakebed.gc.live.reading.reading import Seal
from lakebed.gc.messages import (
    FAILURES_SHOWN,
    LEDGER,
    RESTORED_FROM,
    LedgerState,
    Restore,
    RestoredFrom,
    RestoreFailure,
    RestorePage,
    arrow_schema,
    encode_ledger,
    ledger_folder,
    restored_from,
)
from lakebed.objectstore import ObjectMissing
from lakebed.versions import PathExists, PathNotFound, PreconditionFailed, Versions

from .restorable import NOT_LAST, Place, Restorable

AT_ONCE: Final = 16
LOOKS: Final = 3
"""Look at a path at most this often while others write to it."""

_OLDEST_SLICE: Final = 1 << 63
"""Slices are numbered backwards (lakebed.base.addresses); a foreign address tells no date."""

_OCCUPIED: Final = "another object is there"


class RestoreDiffers(Corrupt):
    """The bytes that were read back are not the object, or that is not what the run's table says.
    Nothing was staged.
    """


Refusal = Callable[[str, str], str]
"""Why an object that had the first path (empty: none is known) may not be staged at the second; empty: it may."""


def refuse_nothing(_path: str, _target: str) -> str:
    return ""


class RestoreOutcome(Enum):
    """`REPLACED`: staged, in the place of an older version that the same restore had staged."""

    RESTORED = "restored"
    REPLACED = "replaced"
    PRESENT = "present"
    OLDER = "older"


Row = dict[str, Any]
"""A row of GARBAGE, with the run's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Say what came of a row: an outcome, or what is wrong. `bytes` more are restored than before."""

    row: Row
    target: str
    outcome: RestoreOutcome | str
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    size_bytes: int
    md5: str


class Restoring:
    def __init__(self, versions: Versions, *, key: bytes, refusal: Refusal = refuse_nothing) -> None:
        """`key` seals tokens: the same in every process of a server, and secret."""
        self._versions = versions
        self._key = key
        self._refusal = refusal
        self._objectstore = versions.objectstore
        self._restorable = Restorable(versions)

    async def restore(self, body: Restore, *, branch: str) -> RestorePage:
        """One page, onto this branch.

        Raises:
            BranchNotFound: there is no such branch.
            NotRestorable: no deferred run holds the objects: they were deleted, or never taken.
            BadContinuation: not a token that this restore was given.
            BadInput: the table of a deferred run is unreadable.
        """
        await self._versions.refs.get_branch(branch)
        seal = self._seal(body, branch)
        if body.continuation_token is None:
            place = self._restorable.begin(body, self._versions.ports.ids.fresh())
        else:
            place = _place(seal.open(body.continuation_token))
        found = await self._restorable.find(body, place)
        token = None if found.following is None else seal.seal(msgspec.msgpack.encode(found.following))
        if not found.rows:
            return RestorePage(run_id=found.run_id, continuation_token=token)
        rows = [{**row, "run_id": found.run_id} for row in found.rows]
        return await self._restore_page(body, branch, rows, place.restore, token)

    def _seal(self, body: Restore, branch: str) -> Seal:
        asked = msgspec.json.encode(msgspec.structs.replace(body, continuation_token=None, branch=branch))
        return Seal(self._key, "restore", self._versions.uid, asked.decode())

    async def _restore_page(
        self, body: Restore, branch: str, page: list[Row], restore: str, token: str | None
    ) -> RestorePage:
        versions: dict[str, list[Row]] = {}
        for row in page:
            versions.setdefault(_target(body, row), []).append(row)

        async def put_back(target: str) -> list[Deed]:
            return await self._restore_versions(body, branch, versions[target], target, restore)

        found = await in_waves(self._versions.ports.tasks, [*versions], put_back, most=AT_ONCE)
        deeds = [deed for some in found for deed in some]
        done = [deed for deed in deeds if deed.outcome in (RestoreOutcome.RESTORED, RestoreOutcome.REPLACED)]
        if done:
            await self._record([{**deed.row, "path": deed.target} for deed in done])
        failures = [
            RestoreFailure(address=deed.row["address"], path=deed.target, error=deed.outcome)
            for deed in deeds
            if isinstance(deed.outcome, str)
        ]
        counts = Counter(deed.outcome for deed in deeds)
        return RestorePage(
            run_id=page[0]["run_id"],
            restored=counts[RestoreOutcome.RESTORED],
            bytes_restored=sum(deed.bytes for deed in deeds),
            present=counts[RestoreOutcome.PRESENT],
            older=counts[RestoreOutcome.OLDER] + counts[RestoreOutcome.REPLACED],
            failed=len(failures),
            failures=tuple(failures[:FAILURES_SHOWN]),
            continuation_token=token,
        )

    async def _restore_versions(
        self, body: Restore, branch: str, rows: Sequence[Row], target: str, restore: str
    ) -> list[Deed]:
        """Restore versions of one path: the older ones only where the newest could not be restored.

        What another object is in the way of is one path: a page tells of it once, however many versions it holds.
        """
        deeds: list[Deed] = []
        is_done = is_occupied = False
        for row in sorted(rows, key=_newness_of, reverse=True):
            if is_done:
                deeds.append(Deed(row=row, target=target, outcome=RestoreOutcome.OLDER))
                continue
            deed = await self.restore_one(body, branch, row, target, restore=restore)
            is_done = isinstance(deed.outcome, RestoreOutcome)
            if deed.outcome == _OCCUPIED:
                deed = replace(deed, outcome=RestoreOutcome.OLDER) if is_occupied else deed
                is_occupied = True
            deeds.append(deed)
        return deeds

    # One object

    async def restore_one(self, body: Restore, branch: str, row: Row, target: str, *, restore: str) -> Deed:
        outcome: RestoreOutcome | str = self._refusal(row["path"], target)
        more_bytes = 0
        if not outcome:
            try:
                outcome, more_bytes = await self._restore(body, branch, row, target, restore)
            except ObjectMissing:
                outcome = "it was deleted meanwhile"
            except LakebedError as error:
                outcome = str(error) or type(error).__name__
        return Deed(row=row, target=target, outcome=outcome, bytes=more_bytes)

    async def _restore(
        self, body: Restore, branch: str, row: Row, target: str, restore: str
    ) -> tuple[RestoreOutcome | str, int]:
        """And how many bytes more are restored now."""
        source, by_address = row["address"], row["address"] == body.path
        for _ in range(LOOKS):
            there = await self._entry_at(branch, target)
            # What a lifecycle run took is no obstacle: the entry says nothing but what was there.
            is_taken = there is not None and (await self._versions.taken.find([there.address]))[0] is not None
            is_same = there is not None and not is_taken and await self._is_same(there, source)
            rival = None if there is None or by_address else _restored_from(there, target)
            if rival is not None and body.run_id not in ("", rival.run):
                rival = None
            is_ours = rival is not None and rival.restore == restore
            if rival is not None and _newness(rival.seen_ms, rival.run, rival.address) >= _newness_of(row):
                return RestoreOutcome.PRESENT if is_same else RestoreOutcome.OLDER, 0
            if is_same and (by_address or not (body.overwrite or is_ours)):
                return RestoreOutcome.PRESENT, 0
            if there is not None and not (body.overwrite or is_ours or is_taken):
                return _OCCUPIED, 0
            try:
                entry = await self._upload(branch, row, source, target, restore, there)
            except (PathExists, PreconditionFailed):
                # Perhaps this very object: a call that seemed lost may still be at work.
                continue
            if is_same:  # Staged once more, to say that it is this version: else an older one would replace it.
                return RestoreOutcome.PRESENT, 0
            if there is None or not is_ours:
                return RestoreOutcome.RESTORED, entry.size_bytes
            return RestoreOutcome.REPLACED, entry.size_bytes - there.size_bytes
        return _OCCUPIED, 0

    async def _entry_at(self, branch: str, target: str) -> Entry | None:
        try:
            return await self._versions.staging.get(branch, path_to_key(target))
        except PathNotFound:
            return None

    async def _is_same(self, entry: Entry, source: str) -> bool:
        """Return whether these are just those bytes: an earlier restore put them there, or they never were replaced."""
        if (await self._objectstore.stat(source)).size_bytes != entry.size_bytes:
            return False
        return (await self._read(source)).md5 == entry.checksum

    async def _upload(
        self, branch: str, row: Row, source: str, target: str, restore: str, there: Entry | None
    ) -> Entry:
        """Replace the entry that is there, and no other."""
        version = RestoredFrom(
            path=target, run=row["run_id"], address=row["address"], seen_ms=_seen_ms(row), restore=restore
        )

        async def store_body(address: str) -> Entry:
            wanted = await self._read(source)
            if row["size_bytes"] not in (wanted.size_bytes, -1):
                raise RestoreDiffers(f"it has {wanted.size_bytes} bytes, and the plan says {row['size_bytes']}")
            await self._objectstore.copy(source, address)
            if await self._read(address) != wanted:
                raise RestoreDiffers("what was read back is not what was copied")
            return Entry(
                address=address,
                size_bytes=wanted.size_bytes,
                checksum=wanted.md5,
                modified_ms=self._versions.ports.clock.now_ms(),
                metadata={RESTORED_FROM: msgspec.json.encode(version).decode()},
            )

        checksum = None if there is None else there.checksum
        return await self._versions.staging.upload(
            branch, path_to_key(target), store_body, if_none_match=there is None, if_match=checksum
        )

    async def _read(self, key: str) -> _Bytes:
        md5, size_bytes = hashlib.md5(usedforsecurity=False), 0
        async for chunk in self._objectstore.stream(key):
            md5.update(chunk)
            size_bytes += len(chunk)
        return _Bytes(size_bytes=size_bytes, md5=md5.hexdigest())

    async def _record(self, done: list[Row]) -> None:
        """Rows of their own in the ledger, with the path that the object has now."""
        now_ms = self._versions.ports.clock.now_ms()
        facts = {"state": LedgerState.RESTORED.value, "deleted_at": now_ms, "error": ""}
        rows = pa.Table.from_pylist([{**row, **facts} for row in done], schema=arrow_schema(LEDGER))
        name = f"{done[0]['run_id']}-restore-{self._versions.ports.ids.fresh()}.parquet"
        await self._objectstore.put(f"{ledger_folder(now_ms)}{name}", encode_ledger(rows))


def _place(opened: bytes | None) -> Place:
    if opened is None:
        raise BadContinuation("this is no continuation token of this restore: begin it again")
    return msgspec.msgpack.decode(opened, type=Place)


def _target(body: Restore, row: Row) -> str:
    version = f"@{row['run_id']}/{row['address']}" if body.all_versions and row["path"] else ""
    if not body.prefix:
        return f"{row['path']}{version}" if row["path"] else f"restored/{row['run_id']}/{row['address']}"
    slash = "" if body.prefix.endswith("/") else "/"
    return f"{body.prefix}{slash}{row['path'] or row['address']}{version}"


def _seen_ms(row: Row) -> int:
    """0 where an older program wrote the row, or the object was seen last at another path."""
    seen = None if NOT_LAST in row else row.get("last_seen_at")
    return 0 if seen is None else round(seen.timestamp() * 1000)


def _newness_of(row: Row) -> tuple[int, int, int, str, str]:
    return _newness(_seen_ms(row), row["run_id"], row["address"])


def _newness(seen_ms: int, run: str, address: str) -> tuple[int, int, int, str, str]:
    """Return a value that is greater for the version of a path that was seen later; seen at once, or at an unknown
    time, that was uploaded later.
    """
    slice_, sequence = parse_address(address) or (_OLDEST_SLICE, 0)
    return seen_ms, -slice_, sequence, run, address


def _restored_from(entry: Entry, path: str) -> RestoredFrom | None:
    """Return which version of the path it is, if a restore staged it there. A copy from another path is none of this
    one's.
    """
    version = restored_from(entry.metadata)
    return version if version is not None and version.path == path else None
