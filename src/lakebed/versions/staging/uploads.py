"""Addresses that are on their way into a cell: handed out to clients, or copied without copying bytes.

A collector finds an address in a cell, in a commit record or in a record of this file. No flow lets one place go
before the next holds it (docs/design/protocols.md, "Addresses that are not yet in a cell"; document 001,
"[Get/Link]PhysicalAddress" and "Track copied objects"). A clock says when to try; a `set_if` says who won.

An `attempt` in the record tells its owner, when an answer was lost, whether it was he who moved it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec.structs import replace

from lakebed.base import Entry, LakebedError, OutcomeUnknown, Unavailable, to_row
from lakebed.kv import Held, PredicateFailed
from lakebed.objectstore import ObjectMissing
from lakebed.versions import keys
from lakebed.versions.cells import EXCLUSIVE
from lakebed.versions.context import Context
from lakebed.versions.errors import UploadMissing, UploadRefused
from lakebed.versions.records import BranchRecord, UploadRecord, UploadState, decode_record, encode_record

from .conditions import ANY, Condition
from .copies import Admit
from .entries import AddressSpent, Staging
from .slices import Slices


class Uploads:
    """Addresses handed out to clients, and their records."""

    def __init__(self, context: Context, slices: Slices, staging: Staging) -> None:
        self._context = context
        self._slices = slices
        self._staging = staging

    async def issue(self, branch: str, key: bytes = b"", *, multipart_id: str = "", is_signed: bool = False) -> str:
        """A fresh address for a client to put bytes at. Its record is there before the client can be.

        It can be linked at `key` alone; an empty one allows every path of the branch. `is_signed`: a URL will be
        signed that can write there.

        Raises:
            BranchNotFound: there is no such branch.
        """
        await self._context.branches.fresh(branch)
        while True:
            place = await self._slices.place()
            now = self._context.ports.clock.now_ms()
            record = UploadRecord(
                state=UploadState.ISSUED,
                branch=branch,
                issued_ms=now,
                expires_ms=now + self._context.options.upload_ttl_ms,
                path=key,
                multipart_id=multipart_id,
                is_signed=is_signed,
            )
            try:
                await self._context.set(_upload_key(place.address), record)
                if await self._slices.is_open(place):
                    return place.address
            finally:
                await self._slices.leave(place)

    async def record(self, address: str) -> UploadRecord:
        """
        Raises:
            UploadRefused: this address was never handed out, or its record is cleaned away.
        """
        return (await self._find(address))[0]

    async def link(
        self,
        branch: str,
        key: bytes,
        entry: Entry,
        *,
        condition: Condition = ANY,
        admit: Admit | None = None,
    ) -> Entry:
        """Stage the address of an upload handed out for this branch. Works once for an address.

        A link that its condition refuses leaves the address open, unless a cell may have named it. If a URL was
        signed for the address, the link copies the bytes to an address of our own and stages that one: committed
        bytes never change. The expiry of the URL does not matter. The store checks it when a put begins, and a slow
        put ends much later.

        Raises:
            UploadRefused: not issued for this branch and path, expired, or used before.
            UploadMissing: the client put nothing there, or another number of bytes.
        """
        linked_at = entry.address
        # First the record: else an answer would tell the size of an object that the caller may not read.
        record, held = await self._find(linked_at)
        if record.state is not UploadState.ISSUED or record.branch != branch:
            raise UploadRefused("this address is not open for linking to this branch", address=entry.address)
        if record.path not in {b"", key}:
            raise UploadRefused("this address was handed out for another path", address=entry.address)
        if record.expires_ms <= self._context.ports.clock.now_ms():
            raise UploadRefused("the address has expired", address=entry.address)
        await self._check_stored(entry)
        row = to_row(key, entry)
        await self._context.branches.cached(branch)
        linking = replace(record, state=UploadState.LINKING, attempt=self._context.ports.ids.fresh())
        held = await self._move(entry.address, linking, held)

        async def still_linking(_: BranchRecord) -> None:
            now = await self._context.read(UploadRecord, _upload_key(entry.address))
            if now is None or now[0] != linking:
                raise UploadRefused("the link was given up; upload again", address=entry.address)

        async def reopen() -> None:
            # No cell ever named the address. A cleaner that took us for dead was faster: then it stays revoked.
            with suppress(UploadRefused):
                await self._move(entry.address, replace(linking, state=UploadState.ISSUED), held)

        if record.is_signed:
            entry = await self._stage_copy(branch, key, entry, condition, reopen, admit)
            await self._end(linking, held, linked_at)
            return entry
        try:
            await self._staging.write(
                branch, key, EXCLUSIVE, row, before=still_linking, unused=reopen, condition=condition
            )
        except AddressSpent as spent:
            # A commit may have read the cell before another writer took it away.
            raise OutcomeUnknown("another write took its place, or a commit came first", address=linked_at) from spent
        await self._end(linking, held, linked_at)
        return entry

    async def _end(self, linking: UploadRecord, held: Held, address: str) -> None:
        # The entry is staged, even if a collector took us for dead: its freeze copied the cell.
        with suppress(UploadRefused):
            await self._move(address, replace(linking, state=UploadState.LINKED), held)

    async def _check_stored(self, entry: Entry) -> None:
        try:
            size_bytes = (await self._context.objectstore.stat(entry.address)).size_bytes
        except ObjectMissing as error:
            raise UploadMissing("nothing was stored at the address", address=entry.address) from error
        if size_bytes != entry.size_bytes:
            raise UploadMissing(
                f"the object stored has {size_bytes} bytes, {entry.size_bytes} were declared", address=entry.address
            )

    async def _stage_copy(
        self,
        branch: str,
        key: bytes,
        entry: Entry,
        condition: Condition,
        reopen: Callable[[], Awaitable[None]],
        admit: Admit | None,
    ) -> Entry:
        """Stage a copy of the bytes, whose address no client ever had. The handed-out one becomes garbage.

        Raises:
            UploadRefused: the bytes have another size by now.
        """

        async def store_body(address: str) -> Entry:
            copied = await admit(entry.size_bytes) if admit is not None else None
            await self._context.objectstore.copy(entry.address, address)
            if copied is not None:
                copied()
            size_bytes = (await self._context.objectstore.stat(address)).size_bytes
            if size_bytes != entry.size_bytes:
                raise UploadRefused(f"the object has {size_bytes} bytes by now; upload it again", address=entry.address)
            return replace(entry, address=address)

        try:
            return await self._staging.upload(branch, key, store_body, condition=condition)
        except LakebedError as error:
            if not isinstance(error, OutcomeUnknown | Unavailable):
                await reopen()
            raise

    async def expire(self, address: str) -> bool:
        """issued → expired: nothing can be linked there any more. False where it is being linked, or was."""
        try:
            record, held = await self._find(address)
            if record.state is not UploadState.ISSUED:
                return False
            await self._move(address, replace(record, state=UploadState.EXPIRED), held)
        except UploadRefused:
            return False
        return True

    async def _find(self, address: str) -> tuple[UploadRecord, Held]:
        held = await self._context.get(_upload_key(address))
        if held is None:
            raise UploadRefused("this address was not handed out", address=address)
        return decode_record(UploadRecord, held.value), held

    async def _move(self, address: str, record: UploadRecord, held: Held) -> Held:
        """One step of the record's life, exactly once.

        Raises:
            UploadRefused: another caller moved it first.
        """
        value = encode_record(record)
        try:
            return await self._context.set_if(_upload_key(address), value, held.predicate)
        except PredicateFailed:
            raise UploadRefused("another request used this address, or a cleaner revoked it", address=address) from None
        except OutcomeUnknown:
            now = await self._context.after_lost(self._context.get(_upload_key(address)))
            if now is None or now.value != value:
                raise
            return now


def _upload_key(address: str) -> bytes:
    return keys.UPLOAD + address.encode()
