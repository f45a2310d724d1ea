"""Uploads in parts. The parts are objects of their own until the last request makes one object of them.

The object is written anew from its parts, in one stream, except where there is only one: that is linked as it lies.
Either way the cell is set by the flows that every upload takes. Parts are given up after it, never before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from lakebed.base import Entry, Invalid, Ports, key_to_path, path_to_key, to_row
from lakebed.objectstore import Body, ObjectMissing, ObjectStore
from lakebed.versions import MultipartNotFound, MultipartRecord, PartRecord, Versions

from .guards import Guards
from .objects import Objects, check_header_text


class PartMissing(Invalid):
    """The bytes of a part are gone: it was replaced, or it is older than an address handed out may be."""


class Multipart:
    def __init__(
        self, versions: Versions, objectstore: ObjectStore, guards: Guards, objects: Objects, ports: Ports
    ) -> None:
        self._versions = versions
        self._objectstore = objectstore
        self._guards = guards
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
    ) -> str:
        """Begin an upload, and return its id.

        Raises:
            BranchNotFound, ReadOnly, ProtectedBranch, NotHeaderText, InvalidName.
        """
        await self._guards.check_branch_writable(branch)
        record = MultipartRecord(
            branch=branch,
            path=path_to_key(path),
            created_ms=self._ports.clock.now_ms(),
            content_type=content_type,
            metadata=dict(metadata),
            algorithm=algorithm,
            checksum_type=checksum_type,
            user=user,
        )
        check_header_text(content_type=content_type)
        # Refuse now what no cell could hold, before the client sends its parts.
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
        self, multipart_id: str, number: int, body: Body, *, size_bytes: int | None, checksums: Mapping[str, str]
    ) -> PartRecord:
        """Store the bytes of a part. `checksums` is read after the body, by the upload's algorithm.

        Raises:
            MultipartNotFound: there is no such upload, or it ended meanwhile.
            ShortBody: the body is not `size_bytes` long.
        """
        record = await self._versions.parts.get(multipart_id)
        address = await self._versions.parts.issue(multipart_id)
        try:
            stored = await self._objectstore.put(address, body, size_bytes=size_bytes)
        except BaseException as error:
            if isinstance(error, Exception):
                await self._versions.parts.drop(address)
            raise
        part = PartRecord(
            address=address,
            size_bytes=stored.size_bytes,
            md5=stored.md5,
            modified_ms=self._ports.clock.now_ms(),
            checksum=checksums.get(record.algorithm, ""),
        )
        await self._versions.parts.put(multipart_id, number, part)
        return part

    async def complete(
        self,
        multipart_id: str,
        body: AsyncIterator[bytes],
        *,
        size_bytes: int,
        checksum: str,
        metadata: Mapping[str, str],
        if_none_match: bool = False,
        if_match: str | None = None,
    ) -> Entry:
        """Make an object of the bytes of its parts (`stream`), and note that the upload is completed.

        `metadata` is read after the last byte.

        Raises:
            MultipartNotFound: there is no such upload.
            PathExists, PreconditionFailed: the condition does not hold.
        """
        record = await self._versions.parts.get(multipart_id)
        entry = await self._objects.upload(
            record.branch,
            key_to_path(record.path),
            body,
            size_bytes=size_bytes,
            content_type=record.content_type,
            metadata=metadata,
            checksum=checksum,
            if_none_match=if_none_match,
            if_match=if_match,
        )
        await self._note_completed(multipart_id, checksum)
        return entry

    async def link_only_part(
        self,
        multipart_id: str,
        part: PartRecord,
        *,
        checksum: str,
        metadata: Mapping[str, str],
        if_none_match: bool = False,
        if_match: str | None = None,
    ) -> Entry:
        """Make the only part the object, without moving its bytes, and note that the upload is completed.

        Raises:
            MultipartNotFound, UploadRefused, UploadMissing, PathExists, PreconditionFailed.
        """
        record = await self._versions.parts.get(multipart_id)
        entry = await self._objects.link_upload(
            record.branch,
            key_to_path(record.path),
            part.address,
            size_bytes=part.size_bytes,
            checksum=checksum,
            content_type=record.content_type,
            metadata=metadata,
            if_none_match=if_none_match,
            if_match=if_match,
        )
        await self._note_completed(multipart_id, checksum)
        return entry

    async def _note_completed(self, multipart_id: str, checksum: str) -> None:
        # Where two requests completed it at once, the object is there, whichever of them was noted.
        with suppress(MultipartNotFound):
            await self._versions.parts.complete(multipart_id, checksum)

    async def abort(self, multipart_id: str) -> None:
        """Forget an upload and give up its parts.

        Raises:
            MultipartNotFound: there is no such upload.
        """
        await self._versions.parts.get(multipart_id)
        await self._versions.parts.end(multipart_id)

    async def stream(self, parts: Sequence[PartRecord]) -> AsyncIterator[bytes]:
        """Yield the bytes of the parts, one part after another.

        Raises:
            PartMissing: one of them is gone.
        """
        for part in parts:
            try:
                async for chunk in self._objectstore.stream(part.address, end=part.size_bytes):
                    yield chunk
            except ObjectMissing as error:
                raise PartMissing("the bytes of a part are gone; upload it again", address=part.address) from error
