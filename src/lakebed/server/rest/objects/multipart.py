"""Uploads that clients send to the object store themselves, with signed URLs: whole, or in parts.

Each part is an object at its own address, so any store that signs URLs works. The completion reads the parts and
writes one object, as the S3 door's does. A single part is rewritten as well.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Sequence

from starlette.responses import Response

from lakebed import wire
from lakebed.base import CONTENT_TYPE_DEFAULT, Invalid, path_to_key
from lakebed.catalog import Multipart, Repository, check_user_metadata, etag_of_parts
from lakebed.operations import objects
from lakebed.server.http.errors import Answer, InvalidParameter
from lakebed.server.http.fields import read_range, write_condition
from lakebed.server.http.gate import ask
from lakebed.server.http.requests import RestRequest, nothing
from lakebed.server.http.routing import Resource, in_repository, serves
from lakebed.server.rest.stats import stats_of_entry
from lakebed.versions import PART_NUMBER_MAX, MultipartNotFound, PartRecord


class Uploads(Resource):
    @in_repository(objects.CREATE_PRESIGN_MULTIPART_UPLOAD)
    async def create(self, request: RestRequest, repository: Repository) -> wire.PresignMultipartUpload:
        count = request.integer("parts", 0)
        if not 0 <= count <= PART_NUMBER_MAX:
            raise InvalidParameter(f'parameter "parts" in query has an error: it is not 0 to {PART_NUMBER_MAX}')
        presign_s = self._presigning()
        upload_id = await repository.multipart.begin(
            request.args[1],
            request.required("path"),
            content_type=CONTENT_TYPE_DEFAULT,
            metadata={},
            user=request.identity.user_id,
        )
        by = request.identity.user_id
        urls = [
            await self._url(repository.multipart, upload_id, number, presign_s, by) for number in range(1, count + 1)
        ]
        address = _address_of(repository, upload_id)
        return wire.PresignMultipartUpload(upload_id=upload_id, physical_address=address, presigned_urls=urls)

    @serves(objects.UPLOAD_PART)
    async def sign(self, request: RestRequest, body: wire.UploadPartFrom) -> wire.UploadTo:
        repository, upload_id = await self._find(request, body.physical_address)
        by, presign_s = request.identity.user_id, self._presigning()
        url = await self._url(repository.multipart, upload_id, _number(request), presign_s, by)
        return wire.UploadTo(presigned_url=url)

    @serves(objects.UPLOAD_PART_COPY)
    async def copy(self, request: RestRequest, body: wire.UploadPartCopyFrom) -> Response:
        source = body.copy_source
        names = {"repository": source.repository, "ref": source.ref, "path": source.path}
        await ask(objects.UPLOAD_PART_COPY.asked_later, request.permissions, names)
        repository, upload_id = await self._find(request, body.physical_address)
        found = await self._catalog.get(source.repository)
        entry = await found.objects.open(source.ref, source.path)
        start, end = _span(source.range, entry.size_bytes)
        number, part, by = _number(request), None, request.identity.user_id
        if found.versions.uid == repository.versions.uid:
            part = await repository.multipart.copy_part(
                upload_id, number, entry, start=start, end=end, checksums={}, by=by
            )
        if part is None:
            body_of_part = found.objects.stream(entry, start=start, end=end)
            part = await repository.multipart.put_part(
                upload_id, number, body_of_part, size_bytes=end - start, checksums={}, by=by
            )
        response = nothing()
        response.headers["etag"] = f'"{part.md5}"'
        return response

    @serves(objects.COMPLETE_PRESIGN_MULTIPART_UPLOAD)
    async def complete(self, request: RestRequest, body: wire.CompletePresignMultipartUpload) -> wire.ObjectStats:
        check_user_metadata(body.user_metadata or {})
        try:
            repository, upload_id = await self._find(request, body.physical_address)
        except MultipartNotFound:
            return await self._completed(request)
        parts, uncounted_bytes = await _chosen(repository, upload_id, body.parts)
        checksum = (
            etag_of_parts([part.md5 for part in parts])
            or hashlib.sha256("".join([part.md5 for part in parts]).encode()).hexdigest()
        )
        content_type = body.content_type or CONTENT_TYPE_DEFAULT
        multipart, metadata = repository.multipart, body.user_metadata or {}
        # Rewrite a single part as well: its signed URL could replace the bytes after they are committed.
        entry = await multipart.complete(
            upload_id,
            _checked(multipart, parts),
            size_bytes=sum(part.size_bytes for part in parts),
            checksum=checksum,
            metadata=metadata,
            content_type=content_type,
            uncounted_bytes=uncounted_bytes,
            by=request.identity.user_id,
        )
        return stats_of_entry(repository, request.required("path"), entry)

    async def _completed(self, request: RestRequest) -> wire.ObjectStats:
        """Answer a repeated completion, whose first answer was lost."""
        repository, path = await self._catalog.get(request.args[0]), request.required("path")
        record = await repository.versions.parts.completed(request.args[2])
        if (record.branch, record.path) == (request.args[1], path_to_key(path)):
            entry = await repository.objects.get(record.branch, path)
            if entry.checksum == record.etag:
                return stats_of_entry(repository, path, entry)
        raise MultipartNotFound("the upload was completed, and the path has another object since", id=request.args[2])

    @serves(objects.ABORT_PRESIGN_MULTIPART_UPLOAD)
    async def abort(self, request: RestRequest, body: wire.AbortPresignMultipartUpload) -> None:
        repository, upload_id = await self._find(request, body.physical_address)
        await repository.multipart.abort(upload_id)

    async def _find(self, request: RestRequest, address: str) -> tuple[Repository, str]:
        """Return the repository and the id of the upload of this path.

        Raises:
            InvalidParameter: the address is another than the one that the upload began with.
            MultipartNotFound: the path has no such upload. An id gives no right to another path.
        """
        repository, upload_id = await self._catalog.get(request.args[0]), request.args[2]
        if address != _address_of(repository, upload_id):
            raise InvalidParameter("physical_address is not the one that this upload began with")
        record = await repository.versions.parts.get(upload_id)
        if (record.branch, record.path) != (request.args[1], path_to_key(request.required("path"))):
            raise MultipartNotFound("the path has no such upload", id=upload_id)
        return repository, upload_id

    def _presigning(self) -> int:
        if self._state.presign_s is None:
            raise Answer(501, "this server's object store signs no URLs: upload through the server")
        return self._state.presign_s

    async def _url(self, multipart: Multipart, upload_id: str, number: int, presign_s: int, by: str) -> str:
        url = await multipart.hand_out_part(upload_id, number, presign_s=presign_s, by=by)
        assert url is not None, "the server presigns, and its store does not"
        return url


def _address_of(repository: Repository, upload_id: str) -> str:
    return repository.full_address(f"data/uploads/{upload_id}")


async def _chosen(
    repository: Repository, upload_id: str, wanted: Sequence[wire.UploadPart]
) -> tuple[list[PartRecord], int]:
    """Return the parts that a completion names, with their sizes, and the ETags as their MD5s.

    Also return the bytes of those that clients put with signed URLs.

    Raises:
        Invalid: a part was never issued, or the parts are out of order.
        PartMissing: no object was stored for one of them.
    """
    numbers = [part.part_number for part in wanted]
    if not numbers or numbers != sorted(set(numbers)):
        raise Invalid("the parts are none, or out of order")
    known = dict(await repository.versions.parts.every(upload_id))
    if unknown := [number for number in numbers if number not in known]:
        raise Invalid(f"part {unknown[0]} was never begun")
    stored = await repository.multipart.find_stored([known[number] for number in numbers])
    found = []
    for part, named in zip(stored, wanted, strict=True):
        etag = named.etag.strip().strip('"')
        if part.md5 and part.md5 != etag:
            raise Invalid(f"part {named.part_number} has another ETag")
        found.append(PartRecord(address=part.address, size_bytes=part.size_bytes, md5=etag, modified_ms=0))
    # Only a part that the server put has an MD5 on record.
    return found, sum(part.size_bytes for part in stored if not part.md5)


async def _checked(multipart: Multipart, parts: Sequence[PartRecord]) -> AsyncIterator[bytes]:
    """Yield the bytes of the parts. Stop with an error at a part whose ETag is an MD5 that does not match its
    bytes.
    """
    for number, part in enumerate(parts, start=1):
        digest = hashlib.md5(usedforsecurity=False)
        async for chunk in multipart.stream([part]):
            digest.update(chunk)
            yield chunk
        if re.fullmatch(r"[0-9a-f]{32}", part.md5) and digest.hexdigest() != part.md5:
            raise Invalid(f"the bytes of part {number} are not those of its ETag")


def _number(request: RestRequest) -> int:
    text = request.args[3]
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or not 1 <= int(text) <= PART_NUMBER_MAX:
        raise InvalidParameter(f"the part number {text!r} is not 1 to {PART_NUMBER_MAX}")
    return int(text)


def _span(text: str | None, size_bytes: int) -> tuple[int, int]:
    if not text:
        return 0, size_bytes
    start, last = read_range(text) or (None, None)
    end = size_bytes if last is None else last + 1
    if start is None or not start < end <= size_bytes:
        raise Invalid(f"the range {text} is not one of the source's {size_bytes} bytes")
    return start, end


class Staging(Resource):
    @serves(objects.GET_PHYSICAL_ADDRESS)
    async def get_address(self, request: RestRequest) -> wire.StagingLocation:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        presign_s = self._state.presign_s if request.flag("presign") else None
        target = await repository.objects.issue_upload(
            request.args[1], path, presign_s=presign_s, by=request.identity.user_id
        )
        expires_s = None
        if target.presigned_url is not None and presign_s is not None:
            expires_s = self._state.ports.clock.now_ms() // 1000 + presign_s
        return wire.StagingLocation(
            physical_address=target.full_address,
            presigned_url=target.presigned_url,
            presigned_url_expiry=expires_s,
        )

    @serves(objects.LINK_PHYSICAL_ADDRESS)
    async def link_address(self, request: RestRequest, body: wire.StagingMetadata) -> wire.ObjectStats:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        if not body.staging.physical_address:
            raise InvalidParameter("the staging location has no physical address")
        check_user_metadata(body.user_metadata or {})
        entry = await repository.objects.link_upload(
            request.args[1],
            path,
            body.staging.physical_address,
            size_bytes=body.size_bytes,
            checksum=body.checksum,
            content_type=body.content_type or CONTENT_TYPE_DEFAULT,
            metadata=body.user_metadata,
            condition=write_condition(request.header),
            force=bool(body.force),
            by=request.identity.user_id,
        )
        return stats_of_entry(repository, path, entry)
