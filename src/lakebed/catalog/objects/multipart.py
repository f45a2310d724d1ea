"""Uploads in parts. Each part is a separate object until the last request makes one object of them.

The completion writes the object from its parts in one stream. A single part is linked instead, without a copy. In both
cases the object has an issued address, which can be linked once, and the upload records it first. So a repeated
completion never sets the path a second time. Parts are released after it, never before.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from lakebed.base import BYTES_MD5, Entry, Invalid, Ports, from_row, key_inside, key_to_path, path_to_key, to_row
from lakebed.catalog.guards import Guards
from lakebed.objectstore import Body, CopiesRanges, ObjectMissing, ObjectStore, Stored
from lakebed.quotas import Charges
from lakebed.versions import (
    ANY,
    CompletionUnderWay,
    Condition,
    MultipartNotFound,
    MultipartRecord,
    PartRecord,
    PathExists,
    PreconditionFailed,
    UploadRecord,
    UploadRefused,
    UploadState,
    Versions,
)

from .objects import Objects, check_header_text

LINK_MS_MAX: Final = 60_000
"""No link takes longer. After that, a repeated completion fences the previous one. Before, it is refused and may
retry.
"""


WAIT_STEPS: Final = 50
WAIT_STEP_S: Final = 0.1
"""Seconds between checks while a completion waits for another one of the same upload."""


class CompletionLost(MultipartNotFound):
    """A completion was interrupted, and it is no longer known whether the path got its object."""


class PartMissing(Invalid):
    """The bytes of a part are gone: it was replaced, or its issued address expired."""


class Multipart:
    def __init__(
        self,
        versions: Versions,
        objectstore: ObjectStore,
        guards: Guards,
        charges: Charges,
        objects: Objects,
        ports: Ports,
    ) -> None:
        self._versions = versions
        self._objectstore = objectstore
        self._guards = guards
        self._charges = charges
        self._objects = objects
        self._ports = ports

    async def begin(
        self,
        branch: str,
        path: str,
        *,
        content_type: str,
        metadata: Mapping[str, str],
        algorithm: str = "",
        checksum_type: str = "",
        user: str = "",
        quota_branch: str = "",
    ) -> str:
        """Begin an upload for `user`, and return its id. `quota_branch`: as for `Objects.upload`.

        Raises:
            BranchNotFound, ReadOnly, ProtectedBranch, NotHeaderText, InvalidName: the object could not be staged.
        """
        await self._guards.check_upload(branch)
        await self._guards.check_tables(branch, [path_to_key(path)])
        record = MultipartRecord(
            branch=branch,
            path=path_to_key(path),
            created_ms=self._ports.clock.now_ms(),
            content_type=content_type,
            metadata=dict(metadata),
            algorithm=algorithm,
            checksum_type=checksum_type,
            user=user,
            quota_branch=quota_branch,
        )
        check_header_text(content_type=content_type)
        # Refuse a row that no cell could store, before the client sends its parts.
        to_row(
            record.path,
            Entry(
                address="",
                size_bytes=0,
                checksum="",
                modified_ms=0,
                content_type=content_type,
                metadata=record.metadata,
            ),
        )
        return await self._versions.parts.begin(record)

    async def put_part(
        self,
        multipart_id: str,
        number: int,
        body: Body,
        *,
        size_bytes: int | None,
        checksums: Mapping[str, str],
        by: str = "",
    ) -> PartRecord:
        """Store the bytes of a part, which count for `by`. `checksums` is read after the body, by the upload's
        algorithm.

        Raises:
            MultipartNotFound: the upload does not exist, or ended meanwhile.
            ShortBody: the body is not `size_bytes` long.
            QuotaExceeded.
        """
        record = await self._versions.parts.get(multipart_id)
        known_bytes = len(body) if isinstance(body, bytes) else size_bytes
        with await self._charges.reserve(record.charged, by, known_bytes or 0) as reservation:
            charged = body if isinstance(body, bytes) or known_bytes is not None else reservation.metered(body)
            address, stored = await self._put(multipart_id, charged, size_bytes)
        return await self._note_part(multipart_id, number, address, stored, checksums.get(record.algorithm, ""))

    async def copy_part(
        self,
        multipart_id: str,
        number: int,
        source: Entry,
        *,
        start: int,
        end: int,
        checksums: Mapping[str, str],
        by: str = "",
    ) -> PartRecord | None:
        """Make a part from bytes of an object of this repository, by a copy inside the store.

        The part has its own address, and its bytes count for `by`. `checksums` are the source's, by algorithm.
        Return None if the store copies no ranges, or if the part's checksum is unknown. Then put the bytes.

        Raises:
            MultipartNotFound: the upload does not exist, or ended meanwhile.
            ObjectMissing, ObjectCorrupt: the source's bytes are gone, or are fewer than its entry states.
            QuotaExceeded.
        """
        key, store = key_inside(source.address, self._objectstore.uri), self._objectstore
        record = await self._versions.parts.get(multipart_id)
        algorithm = record.algorithm
        is_whole = (start, end) == (0, source.size_bytes)
        if key is None or (algorithm and not (is_whole and algorithm in checksums)):
            return None
        # The entry's checksum does not describe the bytes, even if it looks like an MD5: a client that links an
        # address sets it, often to an ETag of its store, and one of SSE-KMS is 32 hex digits. So the copy computes it
        # again.
        if not isinstance(store, CopiesRanges):
            return None
        with await self._charges.reserve(record.charged, by, end - start):
            address, stored = await self._store(
                multipart_id, lambda address: store.copy_range(key, address, start=start, end=end)
            )
        return await self._note_part(multipart_id, number, address, stored, checksums.get(algorithm, ""))

    async def _note_part(
        self, multipart_id: str, number: int, address: str, stored: Stored, checksum: str
    ) -> PartRecord:
        part = PartRecord(
            address=address,
            size_bytes=stored.size_bytes,
            md5=stored.md5,
            modified_ms=self._ports.clock.now_ms(),
            checksum=checksum,
        )
        await self._versions.parts.put(multipart_id, number, part)
        return part

    async def _put(self, multipart_id: str, body: Body, size_bytes: int | None) -> tuple[str, Stored]:
        return await self._store(
            multipart_id, lambda address: self._objectstore.put(address, body, size_bytes=size_bytes)
        )

    async def _store(self, multipart_id: str, write: Callable[[str], Awaitable[Stored]]) -> tuple[str, Stored]:
        """Write bytes to a fresh address, and release the address after a failure."""
        address = await self._versions.parts.issue(multipart_id)
        try:
            return address, await write(address)
        except Exception:
            await self._versions.parts.drop(address)
            raise

    async def hand_out_part(self, multipart_id: str, number: int, *, presign_s: int, by: str = "") -> str | None:
        """Return a signed URL for a client to put a part itself, or None if this store signs no URLs.

        The bytes count at the completion, which reads their number.

        Raises:
            MultipartNotFound: the upload does not exist, or ended meanwhile.
            QuotaExceeded: nothing is left.
        """
        record = await self._versions.parts.get(multipart_id)
        await self._charges.check(record.charged, by)
        address = await self._versions.parts.issue(multipart_id, is_signed=True)
        url = await self._objectstore.presign_put(address, expires_s=presign_s)
        now_ms = self._ports.clock.now_ms()
        await self._versions.parts.put(
            multipart_id, number, PartRecord(address=address, size_bytes=0, md5="", modified_ms=now_ms)
        )
        return url

    async def find_stored(self, parts: Sequence[PartRecord]) -> list[PartRecord]:
        """Return parts with their sizes in the store.

        Raises:
            PartMissing: an address has no object.
        """
        return await self._ports.tasks.gather([self._find_stored(part) for part in parts])

    async def _find_stored(self, part: PartRecord) -> PartRecord:
        try:
            stat = await self._objectstore.stat(part.address)
        except ObjectMissing as error:
            raise PartMissing("a part was not uploaded, or it is gone", address=part.address) from error
        return replace(part, size_bytes=stat.size_bytes)

    async def complete(
        self,
        multipart_id: str,
        body: AsyncIterator[bytes],
        *,
        size_bytes: int,
        checksum: str,
        metadata: Mapping[str, str],
        content_type: str | None = None,
        condition: Condition = ANY,
        uncounted_bytes: int = 0,
        by: str = "",
    ) -> Entry:
        """Make an object from the bytes of its parts (`stream`), and record the completion.

        `metadata` is read after the last byte. Repeated completions set the path at most once. `uncounted_bytes` are
        those of parts that clients put with signed URLs. They count for `by`.

        Raises:
            MultipartNotFound: the upload does not exist, or the outcome of an interrupted completion is unknown.
            CompletionUnderWay: another request is completing the upload, and takes long.
            PathExists, PreconditionFailed: the condition does not hold.
            QuotaExceeded.
        """

        async def attempt() -> Entry:
            record = await self._versions.parts.get(multipart_id)
            linked = await self._interrupted(multipart_id, record, checksum, condition)
            if linked is not None:
                return linked
            await self._guards.check_tables(record.branch, [record.path])
            await self._versions.staging.check(record.branch, record.path, condition)
            with await self._charges.reserve(record.charged, by, uncounted_bytes):
                with await self._charges.reserve_stored(size_bytes):
                    address, stored = await self._put(multipart_id, body, size_bytes)
                known = {**metadata, BYTES_MD5: stored.md5}
                try:
                    return await self._link(
                        multipart_id, record, address, size_bytes, checksum, known, content_type, condition
                    )
                except (MultipartNotFound, CompletionUnderWay, UploadRefused, PathExists, PreconditionFailed):
                    await self._versions.parts.drop(address)
                    raise

        return await self._once(multipart_id, size_bytes, checksum, metadata, content_type, attempt)

    async def link_only_part(
        self,
        multipart_id: str,
        part: PartRecord,
        *,
        md5: str,
        checksum: str,
        metadata: Mapping[str, str],
        content_type: str | None = None,
        condition: Condition = ANY,
    ) -> Entry:
        """Make the only part the object, without moving its bytes, and record the completion.

        `md5` is that of the bytes.

        Raises:
            PartMissing: the part is too old to be linked.
            UploadMissing: the part's address has no bytes, or another number of bytes.
            MultipartNotFound, CompletionUnderWay, PathExists, PreconditionFailed: see `complete`.
        """
        metadata = {**metadata, BYTES_MD5: md5}

        async def attempt() -> Entry:
            record = await self._versions.parts.get(multipart_id)
            linked = await self._interrupted(multipart_id, record, checksum, condition, wanted=part.address)
            if linked is not None:
                return linked
            await self._check_open(multipart_id, part.address)
            await self._guards.check_tables(record.branch, [record.path])
            await self._versions.staging.check(record.branch, record.path, condition)
            return await self._link(
                multipart_id, record, part.address, part.size_bytes, checksum, metadata, content_type, condition
            )

        return await self._once(multipart_id, part.size_bytes, checksum, metadata, content_type, attempt)

    async def _check_open(self, multipart_id: str, address: str) -> None:
        """Refuse a part that can never be linked again. Allow a part that another completion uses.

        Raises:
            PartMissing: its address expired.
            MultipartNotFound: its address expired because the upload ended meanwhile.
        """
        with suppress(UploadRefused):
            record = await self._versions.uploads.record(address)
            is_expired = record.expires_ms <= self._ports.clock.now_ms()
            if record.state is not UploadState.EXPIRED and not (record.state is UploadState.ISSUED and is_expired):
                return
        await self._versions.parts.get(multipart_id)
        raise PartMissing("the part is too old to be completed; upload it again", address=address)

    async def _link(
        self,
        multipart_id: str,
        record: MultipartRecord,
        address: str,
        size_bytes: int,
        checksum: str,
        metadata: Mapping[str, str],
        content_type: str | None,
        condition: Condition,
    ) -> Entry:
        await self._versions.parts.aim(multipart_id, address, instead_of=record.target)
        try:
            entry = await self._objects.link_upload(
                record.branch,
                key_to_path(record.path),
                address,
                size_bytes=size_bytes,
                checksum=checksum,
                content_type=content_type or record.content_type,
                metadata=metadata,
                condition=condition,
                is_counted=True,
            )
        except (PathExists, PreconditionFailed):
            # The address is still unused, so no cell names it. Let the client complete the upload under another
            # condition.
            if await self._state(address) is UploadState.ISSUED:
                await self._versions.parts.aim(multipart_id, "", instead_of=address)
            raise
        await self._note_completed(multipart_id, checksum)
        return entry

    async def _once(
        self,
        multipart_id: str,
        size_bytes: int,
        checksum: str,
        metadata: Mapping[str, str],
        content_type: str | None,
        attempt: Callable[[], Awaitable[Entry]],
    ) -> Entry:
        """Complete an upload, or wait for the request that completes it and return its object.

        Raises:
            MultipartNotFound: the upload was aborted, or completed with other parts.
            CompletionUnderWay: the other request takes long.
        """
        try:
            return await attempt()
        except CompletionLost:
            raise
        except (MultipartNotFound, CompletionUnderWay, UploadRefused):
            for _ in range(WAIT_STEPS):
                done = await self._versions.parts.begun_or_completed(multipart_id)
                if not done.etag:
                    await self._ports.clock.sleep(WAIT_STEP_S)
                    continue
                if done.etag != checksum:
                    raise MultipartNotFound("the upload was completed with other parts", id=multipart_id) from None
                return Entry(
                    address=done.target,
                    size_bytes=size_bytes,
                    checksum=checksum,
                    modified_ms=done.target_ms,
                    content_type=content_type or done.content_type,
                    metadata=dict(metadata),
                )
            raise CompletionUnderWay("another request is completing this upload", id=multipart_id) from None

    async def _interrupted(
        self,
        multipart_id: str,
        record: MultipartRecord,
        checksum: str | None,
        condition: Condition,
        *,
        wanted: str = "",
    ) -> Entry | None:
        """Return the object of a completion whose process died before it recorded the object, or None if it linked
        nothing.

        `checksum`: that of the caller's parts, None if any will do. `wanted`: the address that may be linked now, if
        the earlier completion did not.

        Raises:
            CompletionUnderWay: it may still link its object.
            MultipartNotFound: it linked an object of other parts, or its outcome is unknown by now.
        """
        if not record.target:
            return None
        state = await self._state(record.target)
        if state is UploadState.ISSUED:
            if record.target != wanted and not await self._versions.uploads.expire(record.target):
                raise CompletionUnderWay("another request is completing this upload", id=multipart_id)
            return None
        if state is UploadState.EXPIRED:
            return None
        entry = await self._linked(record)
        if entry is None and state in (UploadState.LINKING, UploadState.REVOKED):
            if self._ports.clock.now_ms() - record.target_ms < LINK_MS_MAX:
                raise CompletionUnderWay("another request is completing this upload", id=multipart_id)
            # After the fence it cannot link any more: either the path has the object, or it was replaced or never set.
            await self._versions.fencing.fence(UploadRecord, record.target)
            entry = await self._linked(record)
        if entry is None:
            raise CompletionLost(
                "a completion of this upload was interrupted, and the path now holds something else: upload it again",
                id=multipart_id,
            )
        # A commit between keeps our object also where another writer of equal content was told that it came first.
        if condition != ANY and not await self._versions.staging.is_staged_now(record.branch, record.path, entry):
            raise CompletionLost(
                "a completion of this upload was interrupted, and it is not known whether its condition held",
                id=multipart_id,
            )
        await self._note_completed(multipart_id, entry.checksum)
        if checksum not in (None, entry.checksum):
            raise MultipartNotFound("the upload was completed with other parts", id=multipart_id)
        return entry

    async def _state(self, address: str) -> UploadState | None:
        try:
            return (await self._versions.uploads.record(address)).state
        except UploadRefused:
            return None  # The cleaner removed the record: it was linked or expired.

    async def _linked(self, record: MultipartRecord) -> Entry | None:
        row = await self._versions.staging.get_row(record.branch, record.path)
        entry = None if row is None else from_row(row)
        return entry if entry is not None and entry.address == record.target else None

    async def _note_completed(self, multipart_id: str, checksum: str) -> None:
        # If two requests completed it at once, the object exists, whichever completion was recorded.
        with suppress(MultipartNotFound):
            await self._versions.parts.complete(multipart_id, checksum)

    async def abort(self, multipart_id: str) -> None:
        """End an upload without an object, and release its parts. From then on no completion sets the path.

        Raises:
            MultipartNotFound: the upload does not exist, or a completion set its path, or may have set it.
            CompletionUnderWay: a completion is setting the path.
        """
        while True:
            record = await self._versions.parts.get(multipart_id)
            try:
                # If nothing was linked, this also expires the address that a completion is about to link.
                linked = await self._interrupted(multipart_id, record, None, ANY)
            except CompletionLost:
                await self._versions.parts.end(multipart_id)
                raise
            if linked is not None:
                raise MultipartNotFound("the upload was completed", id=multipart_id)
            if await self._versions.parts.end_as_read(multipart_id, record):
                return

    async def stream(self, parts: Sequence[PartRecord]) -> AsyncIterator[bytes]:
        """Yield the bytes of the parts, one part after another.

        Raises:
            PartMissing: a part is gone.
        """
        for part in parts:
            try:
                async for chunk in self._objectstore.stream(part.address, end=part.size_bytes):
                    yield chunk
            except ObjectMissing as error:
                raise PartMissing("the bytes of a part are gone; upload it again", address=part.address) from error


def etag_of_parts(digests: Sequence[str]) -> str:
    """Return the ETag of an object in parts: the MD5 of their MD5s, and their number. Empty if a digest is no MD5."""
    if not all(re.fullmatch(r"[0-9a-f]{32}", digest) for digest in digests):
        return ""
    whole = hashlib.md5(b"".join(map(bytes.fromhex, digests)), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(digests)}"
