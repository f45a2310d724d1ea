"""Give up an owner that died, and make sure that its writes in flight can no longer land.

    1  set_if its slice open → fenced, its records linking or pending → revoked
    2  freeze the record's branch; for a slice every branch
    3  set_if fenced → closed, revoked → linked or done

*Freeze*: a late writer must hit a token that no flow reads. So the current token is sealed, and the overlay of all
sealed tokens is copied into a fresh token that no writer has known. That frozen token takes their place, marked with
those it stands for. A fence checked only at the end of a write is not enough: the cell may be committed first.

*Touch*: change a branch's record and nothing else, so that a flow that acts on an older reading of it fails and looks
again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from lakebed.base import OutcomeUnknown, StagingToken, in_waves
from lakebed.kv import PredicateFailed

from . import keys
from .cells import EXCLUSIVE, encode_cell, hides_one
from .context import Context, Retry, Seen
from .errors import BranchNotFound
from .records import (
    ClaimReason,
    CopyRecord,
    CopyState,
    IntentRecord,
    Record,
    Sealed,
    SliceRecord,
    SliceState,
    UploadRecord,
    UploadState,
    decode_record,
    encode_record,
)
from .staging.layers import Layers

T = TypeVar("T")
Owned: TypeAlias = SliceRecord | UploadRecord | CopyRecord

_MARK: dict[type[Record], dict[object, object]] = {
    SliceRecord: {SliceState.OPEN: SliceState.FENCED},
    UploadRecord: {UploadState.LINKING: UploadState.REVOKED},
    CopyRecord: {CopyState.PENDING: CopyState.REVOKED},
}
_FINISH: dict[type[Record], dict[object, object]] = {
    SliceRecord: {SliceState.FENCED: SliceState.CLOSED},
    UploadRecord: {UploadState.REVOKED: UploadState.LINKED},
    CopyRecord: {CopyState.REVOKED: CopyState.DONE},
}


FROZEN_AT_ONCE: Final = 16
"""Each freeze holds a page of cells."""

STANDS_FOR_MAX: Final = 256
"""A branch without commits is frozen again and again, and its record must stay small. A committer whose token is
left out, the oldest first, finds itself overtaken; nothing that it sealed is lost."""


class Fencing:
    def __init__(self, context: Context, layers: Layers) -> None:
        self._context = context
        self._layers = layers

    async def fence(self, kind: type[UploadRecord] | type[CopyRecord], name: str) -> bool:
        """Fence the owner of this record, and end the record. False: it was not in a state for that."""
        # Safe at any time: an owner that is alive after all finds itself fenced, and starts again.
        return bool(await self.fence_records(kind, [name]))

    async def fence_records(self, kind: type[UploadRecord] | type[CopyRecord], names: Sequence[str]) -> list[str]:
        """Fence the owners of these records, and end the records; return the names of those. A branch that several of
        them are for is frozen once for all.
        """
        prefix = keys.UPLOAD if kind is UploadRecord else keys.COPY
        found = await self._each(names, lambda name: self._mark_fenced(kind, prefix + name.encode()))
        fenced = {name: record for name, record in zip(names, found, strict=True) if record is not None}
        # Between the two moves: the record ends only when a late cell of its owner can no longer count.
        await self.freeze_all(sorted({_branch_of(record) for record in fenced.values()}))
        await self._each([*fenced], lambda name: self._move(kind, prefix + name.encode(), _FINISH[kind]))
        return [*fenced]

    async def fence_slices(self, names: Sequence[str]) -> list[str]:
        """Fence the owners of slices, and close them; return the names of those. Each branch is frozen once for all."""
        slice_keys = {name: keys.SLICE + name.encode() for name in names}
        found = await self._each(names, lambda name: self._mark_fenced(SliceRecord, slice_keys[name]))
        fenced = [name for name, record in zip(names, found, strict=True) if record is not None]
        # An upload into the slice may be for any branch, and only its owner's memory knows which.
        if fenced:
            await self.freeze_all([branch for branch, _ in await self._context.branches.every()])
        await self._each(fenced, lambda name: self._move(SliceRecord, slice_keys[name], _FINISH[SliceRecord]))
        return fenced

    async def _each(self, names: Sequence[str], act: Callable[[str], Awaitable[T]]) -> list[T]:
        return await in_waves(self._context.ports.tasks, names, act)

    async def freeze_all(self, branches: Sequence[str]) -> None:
        """Freeze each of these branches."""
        await in_waves(self._context.ports.tasks, branches, self.freeze, most=FROZEN_AT_ONCE)

    async def _mark_fenced(
        self, kind: type[SliceRecord] | type[UploadRecord] | type[CopyRecord], key: bytes
    ) -> Owned | None:
        """Do step 1. Where another collector fenced it and died, go on from there. None: nothing to fence."""
        fenced = await self._move(kind, key, _MARK[kind])
        if fenced is not None:
            return fenced
        held = await self._context.get(key)
        if held is None:
            return None
        # A collector that died in step 2 left the mark: the freeze is repeated, for it may not have taken place.
        record: Owned = decode_record(kind, held.value)
        return record if record.state in _FINISH[kind] else None

    async def _move(
        self, kind: type[SliceRecord] | type[UploadRecord] | type[CopyRecord], key: bytes, moves: dict[object, object]
    ) -> Owned | None:
        """Take one step along `moves`; None where the record is in another state."""
        retry = Retry()
        while True:
            held = await self._context.get(key)
            if held is None:
                return None
            record: Owned = decode_record(kind, held.value)
            target = moves.get(record.state)
            if target is None:
                return None
            moved: Owned = replace(record, state=target)
            try:
                await self._context.set_if(key, encode_record(moved), held.predicate)
            except PredicateFailed:
                continue
            except OutcomeUnknown as error:
                # Another collector may have written the same state. That is as good: the steps are the same.
                now = await self._context.get(key)
                if now is None or decode_record(kind, now.value) != moved:
                    retry.lost(error)
                    continue
            return moved

    async def freeze(self, branch: str) -> None:
        """Return when no token of the start is left on the branch. A branch that is gone has none."""
        try:
            start = set((await self._context.branches.fresh(branch)).record.tokens())
            retry = Retry()
            while True:
                seen = await self._context.branches.fresh(branch)
                if start.isdisjoint(seen.record.tokens()):
                    return
                try:
                    await self._freeze_once(branch, seen, start)
                except PredicateFailed:
                    continue
                except OutcomeUnknown as error:
                    retry.lost(error)
        except BranchNotFound:
            return

    async def _freeze_once(self, branch: str, seen: Seen, start: set[StagingToken]) -> None:
        record = seen.record
        # First seal the current token: a late writer may know it. Its cells then go into the overlay.
        if record.staging_token in start:
            sealed = replace(
                record, staging_token=self._context.fresh_token(), sealed=(Sealed(record.staging_token), *record.sealed)
            )
            await self._context.branches.set(branch, sealed, seen)
            return
        frozen = self._context.fresh_token()
        operation = self._context.ports.ids.fresh()
        retired = [item.token for item in record.sealed]
        # Claimed before it is filled: a crash leaves cells in a token that no branch has, and the cleaner finds them.
        await self._context.claim(operation, 1, branch, [frozen], why=ClaimReason.FREEZE, building=True)
        await self._copy_overlay(retired, frozen)
        await self._context.claim(operation, 2, branch, retired, why=ClaimReason.FREEZE)
        stands_for = tuple(token for item in record.sealed for token in (item.token, *item.stands_for))[:STANDS_FOR_MAX]
        await self._context.branches.set(branch, replace(record, sealed=(Sealed(frozen, stands_for),)), seen)

    async def _copy_overlay(self, tokens: list[StagingToken], target: StagingToken) -> None:
        """Copy the cells of the overlay into a fresh token, none of them exclusive."""
        # The retired cells still name the same addresses, so no cell is the only one.
        partition = self._context.token_partition(target)
        start: bytes | None = b""
        while start is not None:
            span = await self._layers.staged_span(tokens, start, self._context.options.scan_page)
            cells = dict(zip(span.keys, span.cells, strict=True))
            for key in [key for key, cell in cells.items() if hides_one(cell)]:
                # The hidden cell may be in a token that the frozen one stands for, too. A commit will not see that.
                cells[key] = await self._layers.look_up_all_staged(tokens, key) or cells[key]
            items = [(key, encode_cell(flags & ~EXCLUSIVE, row)) for key, (flags, row) in cells.items()]
            if items:
                await self._context.store.set_many(partition, items)
            start = span.next_start

    async def bump(self, branch: str, *, only_sealed: bool = False) -> None:
        """Add one to the branch's `epoch`. With `only_sealed` a branch without sealed tokens is left alone.

        Returns when the counter is certainly higher than when the call began, or the branch is gone.
        """
        before: int | None = None
        retry = Retry()
        while True:
            try:
                seen = await self._context.branches.fresh(branch)
            except BranchNotFound:
                return
            # A higher epoch than at the start is another caller's bump, which serves this call as well.
            before = seen.record.epoch if before is None else before
            if (only_sealed and not seen.record.sealed) or seen.record.epoch > before:
                return
            try:
                await self._context.branches.set(branch, replace(seen.record, epoch=seen.record.epoch + 1), seen)
            except PredicateFailed:
                continue
            except OutcomeUnknown as error:
                retry.lost(error)
                continue
            return

    async def revoke_intent(self, key: bytes) -> None:
        """Give up a dead hard reset: bump its branch, then remove the intent."""
        held = await self._context.get(key)
        if held is None:
            return
        # In this order: if the reset only sleeps, its `set_if` must fail before collections stop counting its commit.
        await self.bump(decode_record(IntentRecord, held.value).branch)
        await self._context.delete(key)


def _branch_of(record: Owned) -> str:
    assert not isinstance(record, SliceRecord), record
    return record.branch
