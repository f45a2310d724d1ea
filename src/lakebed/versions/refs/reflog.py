"""Find where a branch or tag was before: the log of its moves, and expressions such as `main@{yesterday}`.

The record of a ref holds its last move (`BranchRecord.moved`), written by the very `set_if` that moved it. The next
process to move the ref first writes that move into the log. So the two hold every move, whichever process dies where,
and no move that did not take place. Only a deletion is written after it took place, and may be missing.


    reflog/<branch>/<999999999999999 - at_ms>           MoveRecord: the newest first
    reflog/<branch>/<999999999999999 - at_ms>-deleted   the deletion
    reflog-tag/<tag>/…                                  the same of a tag

A deletion has a key of its own kind: its note may come late, and must not replace a move of the next ref of the name.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from msgspec.structs import replace

from lakebed.base import CommitId
from lakebed.kv import scan_prefix
from lakebed.versions import keys
from lakebed.versions.context import Context
from lakebed.versions.errors import BadRef, RefNotFound
from lakebed.versions.records import BranchRecord, Moved, MoveRecord, RefKind, TagRecord, decode_record, encode_record

R = TypeVar("R", BranchRecord, TagRecord)

_PREFIXES: Final = {RefKind.BRANCH: keys.REFLOG, RefKind.TAG: keys.TAG_REFLOG}
_DELETED: Final = b"-deleted"
_PAGE: Final = 1_000
_LATEST_MS: Final = 10**15 - 1
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_AGO: Final = re.compile(r"(\d{1,9})\s*(s|m|h|d|w|(?:second|minute|hour|day|week)s?)(?:\s+ago)?")
_NUMBER: Final = re.compile(r"\d{1,9}")


@dataclass(frozen=True, slots=True)
class When:
    """Hold the part in braces: a number of moves, or an instant."""

    moves: int | None = None
    at_ms: int = 0


class Reflog:
    def __init__(self, context: Context) -> None:
        self._context = context

    def move(self, before: R, after: R, *, operation: str, by: str) -> R:
        """Return `after` with the move that led there."""
        last_ms = None if before.moved is None else before.moved.at_ms
        return self._moved(after, last_ms, operation=operation, by=by, left=before.commit_id)

    async def first_move(self, name: str, made: R, *, operation: str, by: str) -> R:
        """Return the new ref with the move that makes it, later than all that is logged of an earlier ref of its name.

        Costs one scan of one key.
        """
        logged, _ = await self.list(_kind_of(made), name, None, limit=1)
        last_ms = logged[0].at_ms if logged else None
        return self._moved(made, last_ms, operation=operation, by=by, left=CommitId(""))

    def very_first_move(self, made: R, *, operation: str, by: str) -> R:
        """Return the new ref with the move that makes it, where no earlier ref of its name can be in the log."""
        return self._moved(made, None, operation=operation, by=by, left=CommitId(""))

    def _moved(self, after: R, last_ms: int | None, *, operation: str, by: str, left: CommitId) -> R:
        at_ms = self._context.ports.clock.now_ms()
        if last_ms is not None:
            # Two moves may fall into one millisecond, and clocks of servers differ: the log of a name never goes back,
            # and no move takes the key of another.
            at_ms = max(at_ms, last_ms + 1)
        return replace(after, moved=Moved(at_ms=at_ms, operation=operation, by=by, before=left))

    def to_log(self, name: str, record: BranchRecord | TagRecord) -> list[tuple[bytes, bytes]]:
        """Return the entries that must be in the log before the ref moves on from this record."""
        move = last_move(record)
        return [] if move is None else [(_key(_kind_of(record), name, move.at_ms), encode_record(move))]

    async def note_deleted(self, name: str, record: R, *, by: str) -> None:
        moved = self.move(record, record, operation="delete", by=by).moved
        assert moved is not None
        move = MoveRecord(before=record.commit_id, after=CommitId(""), at_ms=moved.at_ms, operation="delete", by=by)
        await self._context.set(_key(_kind_of(record), name, move.at_ms) + _DELETED, move)

    async def list(
        self,
        kind: RefKind,
        name: str,
        record: BranchRecord | TagRecord | None,
        *,
        before_ms: int | None = None,
        limit: int = 100,
    ) -> tuple[Sequence[MoveRecord], bool]:
        """Return moves of a ref, the newest first, and whether there are more. `record`: of a ref that is there."""
        found: list[MoveRecord] = []
        last = None if record is None else last_move(record)
        if last is not None and (before_ms is None or last.at_ms < before_ms):
            found.append(last)
        prefix = _prefix(kind, name)
        start = b"" if before_ms is None else _key(kind, name, before_ms - 1)
        async for _, value in scan_prefix(
            self._context.store, self._context.partition, prefix, start=start, page_size=min(limit + 1, _PAGE)
        ):
            if len(found) > limit:
                break
            move = decode_record(MoveRecord, value)
            # A writer that lost its race may have logged the move that is still the last one.
            if last is None or move.at_ms != last.at_ms:
                found.append(move)
        return found[:limit], len(found) > limit

    async def find(
        self, kind: RefKind, name: str, record: BranchRecord | TagRecord | None, when: When, *, expression: str
    ) -> CommitId:
        """Return the commit that the ref named then.

        Raises:
            RefNotFound: the ref did not exist then, or the log does not go back so far.
        """
        if when.moves is not None:
            if when.moves == 0 and record is not None:
                return record.commit_id
            moves, _ = await self.list(kind, name, record, limit=max(when.moves, 1))
            commit = moves[when.moves - 1].before if 0 < when.moves <= len(moves) else ""
            if 0 < when.moves <= len(moves) and not commit:
                # The move made the ref: for the first time, or again after it was deleted.
                raise RefNotFound(f"{expression}: {name} was not there before that move", ref=expression)
            if not commit:
                raise RefNotFound(f"{expression}: the log of {name} has {len(moves)} moves", ref=expression)
            return CommitId(commit)
        moves, _ = await self.list(kind, name, record, before_ms=when.at_ms + 1, limit=1)
        if not moves:
            raise RefNotFound(f"{expression}: the log of {name} does not go back so far", ref=expression)
        if not moves[0].after:
            raise RefNotFound(f"{expression}: {name} was deleted then", ref=expression)
        return moves[0].after

    def parse(self, text: str, *, expression: str) -> When:
        """Read `2` (moves ago), `yesterday`, `3 days ago`, `12h`, or an ISO date with or without a time (UTC).

        Raises:
            BadRef: it is none of these.
        """
        now_ms = self._context.ports.clock.now_ms()
        words = " ".join(text.lower().split())
        if _NUMBER.fullmatch(words):
            return When(moves=int(words))
        if words == "yesterday":
            return When(at_ms=now_ms - _UNITS_MS["d"])
        if ago := _AGO.fullmatch(words):
            return When(at_ms=max(now_ms - int(ago[1]) * _UNITS_MS[ago[2][0]], 0))
        try:
            at = datetime.fromisoformat(text.strip())
            at_ms = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError) as error:
            message = f"{expression!r}: {text!r} is neither a number of moves, nor `3 days ago`, nor a date"
            raise BadRef(message, ref=expression) from error
        return When(at_ms=min(max(at_ms, 0), _LATEST_MS - 1))

    async def clean(self) -> int:
        """Remove moves that are too old. Costs two scans for each ref that has a log."""
        return sum([await self._clean(kind) for kind in _PREFIXES])

    async def _clean(self, kind: RefKind) -> int:
        oldest_ms = self._context.ports.clock.now_ms() - self._context.options.reflog_age_ms_max
        store, partition = self._context.store, self._context.partition
        removed = 0
        async for name, _ in self.names(kind):
            prefix = _prefix(kind, name)
            old = [key async for key, _ in scan_prefix(store, partition, prefix, start=_key(kind, name, oldest_ms))]
            for at in range(0, len(old), _PAGE):
                await store.delete_many(partition, old[at : at + _PAGE])
            removed += len(old)
        return removed

    async def names(self, kind: RefKind) -> AsyncIterator[tuple[str, MoveRecord]]:
        """Yield each ref that has a log, in order, and the newest record of its log. Costs a scan of one key each."""
        store, partition, all_logs = self._context.store, self._context.partition, _PREFIXES[kind]
        start = all_logs
        while (page := await store.scan(partition, start, 1)).keys and page.keys[0].startswith(all_logs):
            name = page.keys[0][len(all_logs) :].rpartition(b"/")[0].decode()
            yield name, decode_record(MoveRecord, page.values[0])
            start = _prefix(kind, name)[:-1] + b"0"  # The byte that follows the slash.

    async def since(self, kind: RefKind, name: str, after_ms: int) -> Sequence[MoveRecord]:
        """Return the moves of the log after this moment, the oldest first, notes of deletions too."""
        store, partition = self._context.store, self._context.partition
        moves: list[MoveRecord] = []
        async for _, value in scan_prefix(store, partition, _prefix(kind, name), page_size=_PAGE):
            move = decode_record(MoveRecord, value)
            if move.at_ms <= after_ms:
                break
            moves.append(move)
        return moves[::-1]


def _kind_of(record: BranchRecord | TagRecord) -> RefKind:
    return RefKind.BRANCH if isinstance(record, BranchRecord) else RefKind.TAG


def _prefix(kind: RefKind, name: str) -> bytes:
    return _PREFIXES[kind] + name.encode() + b"/"


def _key(kind: RefKind, name: str, at_ms: int) -> bytes:
    return _prefix(kind, name) + f"{_LATEST_MS - max(at_ms, 0):015d}".encode()


def last_move(record: BranchRecord | TagRecord) -> MoveRecord | None:
    """Return the move that led to this record. None: it has none, for the ref is being made."""
    moved = record.moved
    if moved is None:
        return None
    return MoveRecord(
        before=moved.before, after=record.commit_id, at_ms=moved.at_ms, operation=moved.operation, by=moved.by
    )
