"""Addresses that are on their way into a cell: handed out to clients, or copied without copying bytes.

A collector finds an address in a cell, in a commit record or in a record of this file, and no flow lets one place go
before the next holds it (docs/design/protocols.md, "Addresses that are not yet in a cell"; document 001,
"[Get/Link]PhysicalAddress" and "Track copied objects"). A clock says when to try; a `set_if` says who won.

An `attempt` in the record tells its owner, when an answer was lost, whether it was he who moved it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from lakebed.base import Entry, OutcomeUnknown, Row, StagingToken, from_row, key_inside, to_row
from lakebed.kv import Held, PredicateFailed
from lakebed.objectstore import ObjectMissing

from . import keys
from .cells import EXCLUSIVE, decode_cell, encode_cell, is_gone
from .errors import AddressNotAllowed, PathNotFound, UploadRefused
from .listing import View
from .records import (
    BranchRecord,
    CopyRecord,
    CopyState,
    UploadRecord,
    UploadState,
    decode_record,
    encode_record,
)
from .runs import says_who_took
from .staging import ANY, Condition, Staging


@dataclass(frozen=True, slots=True)
class Source:
    """Where a read found an entry: in this cell of this token, or, without them, in the commit."""

    row: Row
    view: View
    token: StagingToken | None = None
    held: Held | None = None


class Tracking(Staging):
    # Handed out

    async def issue_upload(self, branch: str, *, multipart_id: str = "") -> str:
        """A fresh address for a client to put bytes at. Its record is there before the client can be.

        Raises:
            BranchNotFound: there is no such branch.
        """
        await self._fresh(branch)
        while True:
            place = await self._place()
            now = self.ports.clock.now_ms()
            record = UploadRecord(
                state=UploadState.ISSUED,
                branch=branch,
                issued_ms=now,
                expires_ms=now + self.options.upload_ttl_ms,
                multipart_id=multipart_id,
            )
            try:
                await self._set_record(_upload_key(place.address), record)
                if await self._is_open(place):
                    return place.address
            finally:
                await self._leave(place)

    async def upload_record(self, address: str) -> UploadRecord:
        """
        Raises:
            UploadRefused: this address was never handed out, or its record is cleaned away.
        """
        return (await self._upload(address))[0]

    async def link_upload(
        self, branch: str, key: bytes, entry: Entry, *, if_none_match: bool = False, if_match: str | None = None
    ) -> Entry:
        """Stage the address of an upload handed out for this branch. Works once for an address.

        Raises:
            UploadRefused: not issued for this branch, expired, or used before.
            ObjectMissing: the client never put anything there.
        """
        record, held = await self._upload(entry.address)
        await self.objectstore.stat(entry.address)
        if record.state is not UploadState.ISSUED or record.branch != branch:
            raise UploadRefused("this address is not open for linking to this branch", address=entry.address)
        if record.expires_ms <= self.ports.clock.now_ms():
            raise UploadRefused("the address has expired", address=entry.address)
        row = to_row(key, entry)
        await self._cached(branch)
        linking = replace(record, state=UploadState.LINKING, attempt=self.ports.ids.fresh())
        held = await self._move_upload(entry.address, linking, held)
        condition = Condition(if_none_match, if_match)

        async def still_linking(_: BranchRecord) -> None:
            now = await self._read(UploadRecord, _upload_key(entry.address))
            if now is None or now[0] != linking:
                raise UploadRefused("the link was given up; upload again", address=entry.address)

        await self._write(branch, key, EXCLUSIVE, row, before=still_linking, condition=condition)
        await self._move_upload(entry.address, replace(linking, state=UploadState.LINKED), held)
        return entry

    async def expire_upload(self, address: str) -> bool:
        """issued → expired: nothing can be linked there any more. False where it is being linked, or was."""
        try:
            record, held = await self._upload(address)
            if record.state is not UploadState.ISSUED:
                return False
            await self._move_upload(address, replace(record, state=UploadState.EXPIRED), held)
        except UploadRefused:
            return False
        return True

    async def _upload(self, address: str) -> tuple[UploadRecord, Held]:
        held = await self.store.get(self.partition, _upload_key(address))
        if held is None:
            raise UploadRefused("this address was not handed out", address=address)
        return decode_record(UploadRecord, held.value), held

    async def _move_upload(self, address: str, record: UploadRecord, held: Held) -> Held:
        """One step of the record's life, exactly once.

        Raises:
            UploadRefused: somebody else moved it first.
        """
        value = encode_record(record)
        try:
            return Held(value, await self.store.set_if(self.partition, _upload_key(address), value, held.predicate))
        except PredicateFailed:
            raise UploadRefused("somebody else used or gave up this address", address=address) from None
        except OutcomeUnknown:
            now = await self._after_lost(self.store.get(self.partition, _upload_key(address)))
            if now is None or now.value != value:
                raise
            return now

    # Copies

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
        if_none_match: bool = False,
    ) -> Entry:
        """Make the entry of `key` equal to that of the source, through `alter` if given.

        Shallow (no bytes move) where the source is staged on the same branch or lies outside the namespace, or when
        `shallow` insists; else the bytes are copied to a fresh address (document 001, "S3 Gateway CopyObject").

        Raises:
            PathNotFound: there is no such source.
        """
        condition = Condition(if_none_match, None)
        source = await self._find_source(source_ref, source_key)
        entry = from_row(source.row)
        if key_inside(entry.address, self.objectstore.uri) is None:
            target = alter(entry) if alter else entry
            await self._write(branch, key, 0, to_row(key, target), condition=condition)
            return target
        resolved = await self.resolve(source_ref)
        if shallow or (source.token is not None and resolved.branch == branch):
            return await self._copy_shallow(source_ref, source_key, branch, key, alter, condition)
        return await self._copy_bytes(entry, branch, key, alter, condition)

    async def _copy_bytes(
        self, entry: Entry, branch: str, key: bytes, alter: Callable[[Entry], Entry] | None, condition: Condition
    ) -> Entry:
        async def store_body(address: str) -> Entry:
            try:
                await self.objectstore.copy(key_inside(entry.address, self.objectstore.uri) or entry.address, address)
            except ObjectMissing as error:
                raise PathNotFound("the source's data is gone", address=entry.address) from error
            return _copied(entry, alter, address, self.ports.clock.now_ms())

        return await self.upload(branch, key, store_body, if_none_match=condition.if_none_match)

    async def _copy_shallow(
        self,
        source_ref: str,
        source_key: bytes,
        branch: str,
        key: bytes,
        alter: Callable[[Entry], Entry] | None,
        condition: Condition = ANY,
    ) -> Entry:
        """The tracked copy. The record is written before the source is looked at again, so that a collection which
        misses the target's cell, because it was not there yet, finds the record; or else has finished its reading
        before the second look, which then sees whatever made the source garbage.
        """
        while True:
            source = await self._find_source(source_ref, source_key)
            entry = from_row(source.row)
            await self._fresh(branch)
            copy_key, pending, predicate = await self._begin_copy(entry.address, branch)
            if await self._hold_source(source_ref, source_key, source):
                break
            await self.store.delete_if(self.partition, copy_key, predicate.predicate)
        target = _copied(entry, alter, entry.address, entry.modified_ms)

        async def still_pending(_: BranchRecord) -> None:
            now = await self._read(CopyRecord, copy_key)
            if now is None or now[0] != pending:
                raise UploadRefused("the copy was given up; copy again", address=entry.address)

        await self._write(branch, key, 0, to_row(key, target), before=still_pending, condition=condition)
        await self._finish_copy(copy_key, replace(pending, state=CopyState.DONE), predicate)
        return target

    async def _find_source(self, ref: str, key: bytes) -> Source:
        resolved = await self.resolve(ref)
        if resolved.branch is None:
            source = await self._look_for_source(View((), resolved.commit_id), key)
            await self.check_contents([resolved.commit_id])
        else:
            source = await self._consistent(resolved.branch, lambda record: self._look_for_source(View.of(record), key))
        if source is None:
            raise PathNotFound("not found", key=key)
        return source

    async def _look_for_source(self, view: View, key: bytes) -> Source | None:
        for token in view.tokens:
            held = await self.store.get(self._token_partition(token), key)
            if held is not None:
                flags, row = decode_cell(held.value)
                return None if is_gone(flags) else Source(row, view, token, held)
        row_or_none = await self.trees.lookup(await self._metarange(view.commit_id), key)
        return None if row_or_none is None else Source(row_or_none, view)

    async def _hold_source(self, ref: str, key: bytes, source: Source) -> bool:
        """Look again, and mark a staged source shared; False: it is not the same any more.

        Raises:
            Condemned: the source's commit was given up.
        """
        if source.token is None:
            await self.check_not_condemned([source.view.commit_id])
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
                await self.store.set_if(
                    self._token_partition(again.token), key, encode_cell(flags & ~EXCLUSIVE, row), again.held.predicate
                )
            except (PredicateFailed, OutcomeUnknown):
                return False
        return True

    async def _begin_copy(self, address: str, branch: str) -> tuple[bytes, CopyRecord, Held]:
        """Say where collections look that this address is about to be named on this branch, which was read before."""
        copy_key = keys.COPY + self.ports.ids.fresh().encode()
        pending = CopyRecord(
            state=CopyState.PENDING,
            address=address,
            branch=branch,
            started_ms=self.ports.clock.now_ms(),
            attempt=self.ports.ids.fresh(),
        )
        return copy_key, pending, await self._new_record(copy_key, encode_record(pending))

    async def _new_record(self, key: bytes, value: bytes) -> Held:
        """Write under a fresh key; nobody else can have written there."""
        try:
            return Held(value, await self.store.set_if(self.partition, key, value, None))
        except OutcomeUnknown:
            held = await self._after_lost(self.store.get(self.partition, key))
            if held is None:
                raise
            return held

    async def _finish_copy(self, key: bytes, done: CopyRecord, held: Held) -> None:
        value = encode_record(done)
        try:
            await self.store.set_if(self.partition, key, value, held.predicate)
        except PredicateFailed:
            raise UploadRefused("the copy was given up; copy again", address=done.address) from None
        except OutcomeUnknown:
            now = await self._after_lost(self.store.get(self.partition, key))
            if now is None or now.value != value:
                raise


def _copied(entry: Entry, alter: Callable[[Entry], Entry] | None, address: str, modified_ms: int) -> Entry:
    """
    Raises:
        AddressNotAllowed: `alter` changed what is not its to change.
    """
    altered = alter(entry) if alter else entry
    if altered.address != entry.address:
        raise AddressNotAllowed("a copy may not change the address", address=altered.address)
    return replace(altered, address=address, modified_ms=modified_ms)


def _upload_key(address: str) -> bytes:
    return keys.UPLOAD + address.encode()
