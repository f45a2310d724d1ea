"""Copies that move no bytes: an entry is named a second time while a record tells collectors so.

The record is written before the source is looked at again, and finished after the cell is set
(docs/design/protocols.md, "Addresses that are not yet in a cell"; document 001, "Track copied objects").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from lakebed.base import Entry, OutcomeUnknown, Row, StagingToken, Unavailable, from_row, key_inside, to_row
from lakebed.kv import Held, PredicateFailed
from lakebed.objectstore import ObjectMissing
from lakebed.versions import keys
from lakebed.versions.cells import EXCLUSIVE, Cell, decode_cell, encode_cell, hides_one, is_gone, shown_over
from lakebed.versions.context import Context
from lakebed.versions.errors import AddressNotAllowed, CopyGivenUp, PathNotFound
from lakebed.versions.records import BranchRecord, CopyRecord, CopyState, encode_record
from lakebed.versions.refs.refs import Refs
from lakebed.versions.retired import Retired, says_who_took
from lakebed.versions.taken import Taken

from .conditions import ANY, Condition
from .entries import Staging
from .layers import View

Admit: TypeAlias = Callable[[int], Awaitable[Callable[[], None]]]
"""Asked before bytes are copied. Its errors end the copy. What it returns is called once they are."""


@dataclass(frozen=True, slots=True)
class Source:
    """Say where a read found an entry: in this cell of this token, or, without them, in the commit."""

    row: Row
    view: View
    token: StagingToken | None = None
    held: Held | None = None


class Copies:
    def __init__(self, context: Context, *, retired: Retired, taken: Taken, refs: Refs, staging: Staging) -> None:
        self._context = context
        self._retired = retired
        self._taken = taken
        self._refs = refs
        self._staging = staging

    @says_who_took
    async def copy(
        self,
        source_ref: str,
        source_key: bytes,
        branch: str,
        key: bytes,
        *,
        alter: Callable[[Entry], Entry] | None = None,
        shallow: bool = False,
        condition: Condition = ANY,
        admit: Admit | None = None,
    ) -> Entry:
        """Make the entry of `key` equal to that of the source, through `alter` if given.

        Shallow (no bytes move) where the source is staged on the same branch or lies outside the namespace, or when
        `shallow` insists; else the bytes are copied to a fresh address (document 001, "S3 Gateway CopyObject"), after
        `admit` of their number.

        Raises:
            PathNotFound: there is no such source.
            PathExpired: a lifecycle run took the source's object.
        """
        source = await self._find_source(source_ref, source_key)
        entry = from_row(source.row)
        if key_inside(entry.address, self._context.objectstore.uri) is None:
            target = alter(entry) if alter else entry
            await self._staging.write(branch, key, 0, to_row(key, target), condition=condition)
            return target
        if source.token is None:
            await self._taken.check(entry)
        resolved = await self._refs.resolve(source_ref)
        if shallow or (source.token is not None and resolved.branch == branch):
            return await self._copy_shallow(source_ref, source_key, branch, key, alter, condition, admit)
        return await self._copy_bytes(entry, branch, key, alter, condition, admit)

    async def _copy_bytes(
        self,
        entry: Entry,
        branch: str,
        key: bytes,
        alter: Callable[[Entry], Entry] | None,
        condition: Condition,
        admit: Admit | None,
    ) -> Entry:
        copied = await admit(entry.size_bytes) if admit is not None else None

        async def store_body(address: str) -> Entry:
            try:
                await self._context.objectstore.copy(
                    key_inside(entry.address, self._context.objectstore.uri) or entry.address, address
                )
            except ObjectMissing as error:
                await self._taken.check(entry)
                raise PathNotFound("the source's data is gone", address=entry.address) from error
            if copied is not None:
                copied()
            return _copied(entry, alter, address, self._context.ports.clock.now_ms())

        return await self._staging.upload(branch, key, store_body, condition=condition)

    async def _copy_shallow(
        self,
        source_ref: str,
        source_key: bytes,
        branch: str,
        key: bytes,
        alter: Callable[[Entry], Entry] | None,
        condition: Condition = ANY,
        admit: Admit | None = None,
    ) -> Entry:
        """Make the tracked copy. The record is written before the source is looked at again.

        So a collection which misses the target's cell, because it was not there yet, finds the record. Or else it had
        finished its reading before the second look, which then sees whatever made the source garbage.
        """
        while True:
            source = await self._find_source(source_ref, source_key)
            entry = from_row(source.row)
            await self._context.branches.fresh(branch)
            copy_key, pending, predicate = await self.begin(entry.address, branch)
            if await self._hold_source(source_ref, source_key, source):
                break
            await self._context.delete_if(copy_key, predicate.predicate)
        # Only a commit's entry may be due by a lifecycle policy: a cell keeps its object.
        if source.token is None and not await self.stays(entry, copy_key, predicate):
            return await self._copy_bytes(entry, branch, key, alter, condition, admit)
        target = _copied(entry, alter, entry.address)

        async def still_pending(_: BranchRecord) -> None:
            now = await self._context.read(CopyRecord, copy_key)
            if now is None or now[0] != pending:
                raise CopyGivenUp("the copy was given up; copy again", address=entry.address)

        await self._staging.write(branch, key, 0, to_row(key, target), before=still_pending, condition=condition)
        # The entry is staged, even if a collector took us for dead: its freeze copied the cell.
        with suppress(CopyGivenUp):
            await self.finish(copy_key, replace(pending, state=CopyState.DONE), predicate)
        return target

    async def stays(self, entry: Entry, copy_key: bytes, held: Held) -> bool:
        """Answer whether a copy that has its record may name the object of a commit's entry. Else the record goes.

        Raises:
            PathExpired: a lifecycle run took the object.
        """
        is_expiring = await self._retired.is_lifecycle_expiring()
        # After the runs, never before: a run records its objects before it counts as one that took them.
        [taken] = await self._taken.find([entry.address])
        if taken is None and not is_expiring:
            return True
        # Where that fails the cleaner does it.
        with suppress(PredicateFailed, Unavailable, OutcomeUnknown):
            await self._context.delete_if(copy_key, held.predicate)
        if taken is not None:
            raise taken.error()
        return False

    async def _find_source(self, ref: str, key: bytes) -> Source:
        resolved = await self._refs.resolve(ref)
        if resolved.branch is None:
            source = await self._look_for_source(View((), resolved.commit_id), key)
            await self._retired.check_contents([resolved.commit_id])
        else:
            source = await self._context.branches.consistent(
                resolved.branch, lambda record: self._look_for_source(View.of(record), key)
            )
        if source is None:
            raise PathNotFound("not found", key=key)
        return source

    async def _look_for_source(self, view: View, key: bytes) -> Source | None:
        for token in view.tokens:
            held = await self._context.store.get(self._context.token_partition(token), key)
            if held is not None:
                flags, row = cell = decode_cell(held.value)
                if hides_one(cell):
                    return await self._look_beneath(view, key)
                return None if is_gone(flags) else Source(row, view, token, held)
        return await self._committed(view, key)

    async def _committed(self, view: View, key: bytes) -> Source | None:
        row = await self._context.trees.lookup(await self._context.commits.metarange(view.commit_id), key)
        return None if row is None else Source(row, view)

    async def _look_beneath(self, view: View, key: bytes) -> Source | None:
        """Find the cell that a dead mover does not hide, as reads do (layers.py). Of a staged cell its token, too: the
        mark of that very cell comes off.
        """
        shown: Cell | None = None
        source: Source | None = None
        for token in reversed(view.tokens):
            held = await self._context.store.get(self._context.token_partition(token), key)
            if held is not None:
                cell = decode_cell(held.value)
                shown, beneath = shown_over(cell, shown), shown
                if shown is not beneath:
                    source = Source(cell[1], view, token, held)
        if (committed := await self._committed(view, key)) is not None:
            beneath = (0, committed.row)
            shown = beneath if shown is None else shown_over(shown, beneath)
            if shown is beneath:
                source = committed
        return None if shown is None or is_gone(shown[0]) else source

    async def _hold_source(self, ref: str, key: bytes, source: Source) -> bool:
        """Look again, and mark a staged source shared; False: it is not the same any more.

        Raises:
            CommitExpired: the source's commit was given up.
        """
        if source.token is None:
            await self._retired.check_not_expiring([source.view.commit_id])
            return True
        try:
            again = await self._find_source(ref, key)
        except PathNotFound:
            return False
        if again.row != source.row or again.token is None or again.held is None:
            return False
        flags, row = decode_cell(again.held.value)
        if flags & EXCLUSIVE:
            try:
                await self._context.store.set_if(
                    self._context.token_partition(again.token),
                    key,
                    encode_cell(flags & ~EXCLUSIVE, row),
                    again.held.predicate,
                )
            except (PredicateFailed, OutcomeUnknown):
                return False
        return True

    async def begin(self, address: str, branch: str) -> tuple[bytes, CopyRecord, Held]:
        """Say where collections look that this address is about to be named on this branch, which was read before."""
        copy_key = keys.COPY + self._context.ports.ids.fresh().encode()
        pending = CopyRecord(
            state=CopyState.PENDING,
            address=address,
            branch=branch,
            started_ms=self._context.ports.clock.now_ms(),
            attempt=self._context.ports.ids.fresh(),
        )
        return copy_key, pending, await self._new_record(copy_key, encode_record(pending))

    async def _new_record(self, key: bytes, value: bytes) -> Held:
        """Write under a fresh key; no other process can have written there."""
        try:
            return await self._context.set_if(key, value, None)
        except OutcomeUnknown:
            held = await self._context.after_lost(self._context.get(key))
            if held is None:
                raise
            return held

    async def finish(self, key: bytes, done: CopyRecord, held: Held) -> None:
        value = encode_record(done)
        try:
            await self._context.set_if(key, value, held.predicate)
        except PredicateFailed:
            raise CopyGivenUp("the copy was given up; copy again", address=done.address) from None
        except OutcomeUnknown:
            now = await self._context.after_lost(self._context.get(key))
            if now is None or now.value != value:
                raise


def _copied(
    entry: Entry, alter: Callable[[Entry], Entry] | None, address: str, modified_ms: int | None = None
) -> Entry:
    """`modified_ms` None: the date is the source's, or that of `alter`.

    Raises:
        AddressNotAllowed: `alter` changed a field that it must not change.
    """
    altered = alter(entry) if alter else entry
    if altered.address != entry.address:
        raise AddressNotAllowed("a copy may not change the address", address=altered.address)
    return replace(altered, address=address, modified_ms=altered.modified_ms if modified_ms is None else modified_ms)
