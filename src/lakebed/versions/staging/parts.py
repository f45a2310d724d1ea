"""Uploads in parts: their records and parts, until the object is made or given up.

The bytes of a part lie at an address of `Uploads.issue`, so collections count them as named until that record expires.
Nothing here names an address in a cell: a completion links an object made of the parts, or the only part. So a part is
never more than an upload that its client did not link.

The upload's record goes first, its parts after it. A part whose upload is gone belongs to no object: `clean` takes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from msgspec.structs import replace

from lakebed.base import OutcomeUnknown, in_waves
from lakebed.kv import Held, PredicateFailed
from lakebed.versions import keys
from lakebed.versions.context import Context, Retry
from lakebed.versions.errors import BranchNotFound, CompletionUnderWay, MultipartNotFound
from lakebed.versions.records import MultipartRecord, PartRecord, encode_record

from .uploads import Uploads

PART_NUMBER_MAX: Final = 10_000
AGE_MS_MAX: Final = 7 * 24 * 3_600_000
"""An upload that was begun this long ago is forgotten. Each of its parts expires by itself, and sooner."""


class Parts:
    def __init__(self, context: Context, uploads: Uploads) -> None:
        self._context = context
        self._uploads = uploads

    async def begin(self, record: MultipartRecord) -> str:
        """Record an upload, and return its id.

        Raises:
            BranchNotFound: there is no such branch.
        """
        seen = await self._context.branches.fresh(record.branch)
        multipart_id = self._context.ports.ids.fresh()
        begun = replace(record, branch_created_ms=seen.record.created_ms)
        await self._context.set(_upload_key(multipart_id), begun)
        return multipart_id

    async def get(self, multipart_id: str) -> MultipartRecord:
        """
        Raises:
            MultipartNotFound: there is none of this id, it was completed, or its branch is gone.
        """
        record = await self._find(multipart_id)
        if record is None or record.etag:
            raise MultipartNotFound("the upload is unknown, or it was completed or aborted", id=multipart_id)
        return record

    async def completed(self, multipart_id: str) -> MultipartRecord:
        """Return the record of an upload that was completed.

        Raises:
            MultipartNotFound: none of this id was, or it is longer ago than AGE_MS_MAX.
        """
        record = await self._find(multipart_id)
        if record is None or not record.etag:
            raise MultipartNotFound("the upload is unknown, or it was aborted", id=multipart_id)
        return record

    async def begun_or_completed(self, multipart_id: str) -> MultipartRecord:
        """Return the record of an upload in one look; its `etag` says whether it was completed.

        Raises:
            MultipartNotFound: there is none of this id, or it was aborted.
        """
        record = await self._find(multipart_id)
        if record is None:
            raise MultipartNotFound("the upload is unknown, or it was aborted", id=multipart_id)
        return record

    async def _find(self, multipart_id: str) -> MultipartRecord | None:
        # The id is a part of keys, so one with a slash must not lead to another kind of record.
        found = None
        if multipart_id.isalnum():
            found = await self._context.read(MultipartRecord, _upload_key(multipart_id))
        return found[0] if found is not None and await self._is_of_its_branch(found[0]) else None

    async def _is_of_its_branch(self, record: MultipartRecord) -> bool:
        try:
            seen = await self._context.branches.fresh(record.branch)
        except BranchNotFound:
            return False
        return seen.record.created_ms == record.branch_created_ms

    async def issue(self, multipart_id: str, *, is_signed: bool = False) -> str:
        """Return a fresh address for the bytes of a part. `is_signed`: as for `Uploads.issue`.

        Raises:
            MultipartNotFound, BranchNotFound.
        """
        record = await self.get(multipart_id)
        return await self._uploads.issue(record.branch, record.path, multipart_id=multipart_id, is_signed=is_signed)

    async def put(self, multipart_id: str, number: int, part: PartRecord) -> None:
        """Record a part whose bytes are stored, in place of the one that had its number.

        Raises:
            MultipartNotFound: the upload was completed or aborted meanwhile. The part is given up.
        """
        assert 1 <= number <= PART_NUMBER_MAX, number
        key = _part_key(multipart_id, number)
        old = await self._context.read(PartRecord, key)
        await self._context.set(key, part)
        try:
            await self.get(multipart_id)
        except MultipartNotFound:
            await self.drop(part.address)
            # Who ended the upload may have listed its parts when this record had taken the place of the old one.
            await self._drop_replaced(old, part)
            await self._context.delete(key)
            raise
        await self._drop_replaced(old, part)

    async def _drop_replaced(self, old: tuple[PartRecord, Held] | None, part: PartRecord) -> None:
        if old is not None and old[0].address != part.address:
            await self.drop(old[0].address)

    async def drop(self, address: str) -> None:
        """Let a collection have the bytes of a part. One that was linked stays."""
        await self._uploads.expire(address)

    async def every(self, multipart_id: str) -> list[tuple[int, PartRecord]]:
        """Return the parts of an upload by number."""
        prefix = _part_key(multipart_id)
        return [(int(key[len(prefix) :]), part) async for key, part in self._context.records(PartRecord, prefix)]

    async def begun(self) -> AsyncIterator[tuple[str, MultipartRecord]]:
        """Yield every upload that has a record: those that were completed, and of branches that are gone, too."""
        async for key, record in self._context.records(MultipartRecord, keys.MULTIPART):
            yield key[len(keys.MULTIPART) :].decode(), record

    async def begun_on(self, branch: str) -> list[tuple[str, MultipartRecord]]:
        """Return the uploads of a branch that were begun and have not ended. Empty for all: those of every branch."""
        found = [item async for item in self.begun() if branch in {"", item[1].branch} and not item[1].etag]
        return [(name, record) for name, record in found if await self._is_of_its_branch(record)]

    async def aim(self, multipart_id: str, address: str, *, instead_of: str) -> None:
        """Note the address that a completion is about to link. Empty: none any more.

        Raises:
            MultipartNotFound: the upload ended meanwhile.
            CompletionUnderWay: another completion noted an address in place of `instead_of`.
        """
        key = _upload_key(multipart_id)
        retry = Retry()
        while True:
            found = await self._context.read(MultipartRecord, key)
            if found is None or found[0].etag:
                raise MultipartNotFound("the upload was completed or aborted meanwhile", id=multipart_id)
            record, held = found
            # An address is linked once. So a completion that is sent again finds the outcome of the first, and never
            # sets the path a second time, over the later write of another writer.
            if record.target == address:
                return
            if record.target != instead_of:
                raise CompletionUnderWay("another request is completing this upload", id=multipart_id)
            aimed = replace(record, target=address, target_ms=self._context.ports.clock.now_ms())
            try:
                await self._context.set_if(key, encode_record(aimed), held.predicate)
            except PredicateFailed:
                continue
            except OutcomeUnknown as error:
                retry.lost(error)

    async def complete(self, multipart_id: str, etag: str) -> None:
        """Note that an upload was completed, and give up its parts.

        Raises:
            MultipartNotFound: it ended meanwhile.
        """
        record = await self.get(multipart_id)
        # The record stays with its etag, so that the same request may be sent again.
        await self._context.set(_upload_key(multipart_id), replace(record, etag=etag))
        await self._give_up_parts(multipart_id)

    async def end_as_read(self, multipart_id: str, record: MultipartRecord) -> bool:
        """End an upload only if its record is still this one: no completion has noted an address since."""
        key = _upload_key(multipart_id)
        found = await self._context.read(MultipartRecord, key)
        if found is None or found[0] != record:
            return False
        try:
            await self._context.delete_if(key, found[1].predicate)
        except PredicateFailed:
            return False
        await self._give_up_parts(multipart_id)
        return True

    async def end(self, multipart_id: str) -> None:
        """Forget an upload and give up its parts. Does nothing where it has ended before."""
        await self._context.delete(_upload_key(multipart_id))
        await self._give_up_parts(multipart_id)

    async def _give_up_parts(self, multipart_id: str) -> None:
        async def give_up(one: tuple[int, PartRecord]) -> None:
            number, part = one
            await self.drop(part.address)
            await self._context.delete(_part_key(multipart_id, number))

        # An upload has up to 10,000 parts, and each takes writes one after the other.
        await in_waves(self._context.ports.tasks, await self.every(multipart_id), give_up)

    async def clean(self) -> int:
        """Forget uploads that are too old, and parts that a crash left without theirs. Returns how many uploads."""
        now_ms = self._context.ports.clock.now_ms()
        old = [name async for name, record in self.begun() if now_ms - record.created_ms >= AGE_MS_MAX]
        # A part is written after its upload: one whose upload is not there when we look has none any more.
        with_parts = {
            key[len(keys.PART) :].decode().partition("/")[0] async for key, _ in self._context.scan(keys.PART)
        }
        lost = [name for name in sorted(with_parts) if await self._context.get(_upload_key(name)) is None]
        for multipart_id in [*old, *lost]:
            await self.end(multipart_id)
        return len(old) + len(lost)


def _upload_key(multipart_id: str) -> bytes:
    return keys.MULTIPART + multipart_id.encode()


def _part_key(multipart_id: str, number: int | None = None) -> bytes:
    return keys.PART + f"{multipart_id}/{'' if number is None else f'{number:05}'}".encode()
