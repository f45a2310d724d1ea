"""Uploads in parts, as in S3: begin, parts, copies as parts, complete, abort, and two listings.

An upload belongs to the bucket and key of its start. An id gives no rights: with another key it is unknown.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lakebed.base import CONTENT_TYPE_DEFAULT, Entry, LakebedError, common_prefix, path_to_key
from lakebed.catalog import Repository, etag_of_parts
from lakebed.operations import objects
from lakebed.server.http.fields import read_digest, read_range
from lakebed.server.state import AppState
from lakebed.versions import PART_NUMBER_MAX, Condition, MultipartNotFound, MultipartRecord, PartRecord

from . import operations
from .buckets import iso, xml
from .documents import Element, MalformedXml, Node, document
from .errors import S3Error, as_s3
from .objects import Objects, acknowledged
from .operations import S3Operation
from .options import S3Options
from .requests import checksums
from .requests.bodies import SIZE_BYTES_MAX, Payload, declared_algorithm, sent_checksums
from .requests.checksums import ALGORITHMS, COMPOSITE, COMPOSITE_ALGORITHMS, FULL_OBJECT, FULL_OBJECT_ALGORITHMS, SIZES
from .requests.headers import check_source_conditions, check_upload_headers, refuse_customer_keys, write_condition
from .requests.requests import OWNER, Place, S3Request, admit, admit_list, may
from .stored import checksum_headers, checksum_type, keep_checksums, keep_parts, metadata_of, stored_checksums

logger = logging.getLogger(__name__)

PART_BYTES_MIN: Final = 5 << 20
"""The smallest size of every part but the last."""
OBJECT_BYTES_MAX: Final = 5 << 40
COMPLETION_BYTES_MAX: Final = 4 << 20
"""More than the 3 MB of 10,000 parts with the longest checksum, on a line for each tag."""
LISTED_MAX: Final = 1000
ANSWER_S: Final = 10.0
"""A completion that takes longer begins its answer, so that clients keep waiting."""
SPACE_S: Final = 5.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Begun:
    """The upload of a request: its repository, id and record."""

    repository: Repository
    id: str
    record: MultipartRecord


class MultipartUploads:
    def __init__(self, state: AppState, options: S3Options, sources: Objects) -> None:
        self._catalog = state.catalog
        self._options = options
        self._sources = sources
        self._drain = state.drain
        self.handlers: Mapping[S3Operation, Callable[[S3Request], Awaitable[Response]]] = {
            operations.CREATE_MULTIPART_UPLOAD: self.create,
            operations.UPLOAD_PART: self.upload_part,
            operations.UPLOAD_PART_COPY: self.copy_part,
            operations.COMPLETE_MULTIPART_UPLOAD: self.complete,
            operations.ABORT_MULTIPART_UPLOAD: self.abort,
            operations.LIST_PARTS: self.list_parts,
            operations.LIST_MULTIPART_UPLOADS: self.list_uploads,
        }

    async def create(self, request: S3Request) -> Response:
        place = request.place()
        await admit(request, objects.UPLOAD_OBJECT, place)
        check_upload_headers(request)
        algorithm = declared_algorithm(request, b"x-amz-checksum-algorithm") or ""
        kind = _declared_type(request, algorithm)
        if place.is_root:
            raise S3Error("InvalidArgument", f"the key names no path: {place.ref}/PATH would")
        repository = await self._catalog.get(place.repository)
        multipart_id = await repository.multipart.begin(
            place.ref,
            place.path,
            content_type=request.header(b"content-type") or CONTENT_TYPE_DEFAULT,
            metadata=metadata_of(request),
            algorithm=algorithm,
            checksum_type=kind,
            user=request.identity.user_id,
            quota_branch=request.quota_branch,
        )
        root = Element("InitiateMultipartUploadResult")
        response = xml(root.text("Bucket", request.bucket).text("Key", request.key_name).text("UploadId", multipart_id))
        if algorithm:
            response.headers["x-amz-checksum-algorithm"] = algorithm
            response.headers["x-amz-checksum-type"] = kind
        return response

    # Parts

    async def upload_part(self, request: S3Request) -> Response:
        number = _part_number(request)
        begun = await self._find(request)
        payload = Payload(request, also=begun.record.algorithm)
        if begun.record.algorithm and payload.algorithm not in (None, begun.record.algorithm):
            raise S3Error(
                "InvalidRequest",
                f"Checksum Type mismatch occurred, expected checksum Type: {begun.record.algorithm.lower()},"
                f" actual checksum Type: {str(payload.algorithm).lower()}",
            )
        part = await begun.repository.multipart.put_part(
            begun.id,
            number,
            await payload.body(),
            size_bytes=payload.size_bytes,
            checksums=payload.checksums,
            by=request.identity.user_id,
        )
        return acknowledged(part.md5, checksum_headers(payload.checksums))

    async def copy_part(self, request: S3Request) -> Response:
        source = self._sources.source_of(request)
        await admit(request, objects.GET_OBJECT, source)
        number = _part_number(request)
        begun = await self._find(request)
        request.what = {**(request.what or {}), "src": f"{source.bucket}/{source.key}"}
        request.refuse_headers([b"x-amz-copy-source-server-side-encryption"])
        repository, entry = await self._sources.find(source, is_read=True)
        check_source_conditions(request, entry)
        start, end = _copied_range(request, entry)
        if end - start > SIZE_BYTES_MAX:
            raise S3Error("InvalidRequest", "The specified copy source is larger than the maximum allowable size for a"
                          " copy source: 5368709120")  # fmt: skip
        part, by = None, request.identity.user_id
        if repository.versions.uid == begun.repository.versions.uid:
            known = {name: value for name, value in stored_checksums(entry).items() if "-" not in value}
            part = await begun.repository.multipart.copy_part(
                begun.id, number, entry, start=start, end=end, checksums=known, by=by
            )
        if part is None:
            found: dict[str, str] = {}
            body = _summed(repository.objects.stream(entry, start=start, end=end), begun.record.algorithm, found)
            part = await begun.repository.multipart.put_part(
                begun.id, number, body, size_bytes=end - start, checksums=found, by=by
            )
        root = Element("CopyPartResult").text("LastModified", iso(part.modified_ms)).text("ETag", f'"{part.md5}"')
        if part.checksum:
            root.text(f"Checksum{begun.record.algorithm}", part.checksum)
        return xml(root)

    async def list_parts(self, request: S3Request) -> Response:
        limit = request.number("max-parts", default=LISTED_MAX, most=LISTED_MAX)
        after = request.number("part-number-marker", default=0, most=2**31 - 1)
        begun = await self._find(request)
        every = [item for item in await begun.repository.versions.parts.every(begun.id) if item[0] > after]
        page = every[:limit]
        root = Element("ListPartsResult").text("Bucket", request.bucket).text("Key", request.key_name)
        root.text("UploadId", begun.id).add(_person("Initiator", begun.record.user)).add(_person("Owner", OWNER))
        root.text("StorageClass", "STANDARD").text("PartNumberMarker", after)
        if len(every) > limit and page:
            root.text("NextPartNumberMarker", page[-1][0])
        root.text("MaxParts", limit).flag("IsTruncated", value=len(every) > limit > 0)
        if begun.record.algorithm:
            root.text("ChecksumAlgorithm", begun.record.algorithm).text("ChecksumType", begun.record.checksum_type)
        for number, part in page:
            shown = Element("Part").text("PartNumber", number).text("LastModified", iso(part.modified_ms))
            shown.text("ETag", f'"{part.md5}"').text("Size", part.size_bytes)
            if part.checksum:
                shown.text(f"Checksum{begun.record.algorithm}", part.checksum)
            root.add(shown)
        return xml(root)

    # Ends

    async def complete(self, request: S3Request) -> Response:
        condition = write_condition(request)
        try:
            begun = await self._find(request)
        except MultipartNotFound:
            return await self._completed(request)
        kind = request.header(b"x-amz-checksum-type")
        if kind is not None and begun.record.checksum_type not in {"", kind.upper()}:
            raise S3Error("InvalidRequest", "The upload was created with another x-amz-checksum-type")
        stored = dict(await begun.repository.versions.parts.every(begun.id))
        parts = await _read_completion(request, lambda wanted: _chosen(wanted, stored, begun.record.algorithm))
        size_bytes = sum(part.size_bytes for part in parts)
        if size_bytes > OBJECT_BYTES_MAX:
            raise S3Error("EntityTooLarge")
        _check_object_size(request, size_bytes)
        if condition.if_match is not None:
            await self._sources.find(request.place())
        making = asyncio.ensure_future(self._make(request, begun, parts, size_bytes, condition))
        # The completion continues when the client disconnects.
        self._drain.keep(making)
        done, _ = await asyncio.wait([making], timeout=ANSWER_S)
        return making.result() if done else SlowAnswer(making)

    async def _completed(self, request: S3Request) -> Response:
        """Answer a repeated completion, whose first answer was lost, or raise MultipartNotFound."""
        place = request.place()
        repository = await self._catalog.get(place.repository)
        record = await repository.versions.parts.completed(request.parameter("uploadId"))
        wanted = await _read_completion(request, lambda parts: [node.value("ETag") or "" for node in parts])
        digests = [etag.strip().strip('"') for etag in wanted]
        is_same = (record.branch, record.path) == (place.ref, path_to_key(place.path))
        if not is_same or record.etag != etag_of_parts(digests):
            raise S3Error("NoSuchUpload")
        return xml(_result(request, record.etag))

    async def _make(
        self,
        request: S3Request,
        begun: Begun,
        parts: Sequence[PartRecord],
        size_bytes: int,
        condition: Condition,
    ) -> Response:
        record, multipart = begun.record, begun.repository.multipart
        checksum, metadata = etag_of_parts([part.md5 for part in parts]), dict(record.metadata)
        sizes, sums = [part.size_bytes for part in parts], [part.checksum for part in parts]
        keep_parts(metadata, sizes, record.algorithm, sums)
        declared = dict(sent_checksums(request))
        found: dict[str, str] = {}
        if record.algorithm and record.checksum_type == COMPOSITE:
            found[record.algorithm] = _composite(record.algorithm, parts)
            _hold(declared, found)
        if len(parts) == 1:
            if record.algorithm and record.checksum_type == FULL_OBJECT:
                found[record.algorithm] = parts[0].checksum
                _hold(declared, found)
            keep_checksums(metadata, found)
            entry = await multipart.link_only_part(
                begun.id,
                parts[0],
                md5=parts[0].md5,
                checksum=checksum,
                metadata=metadata,
                condition=condition,
            )
        else:
            algorithm = record.algorithm if record.checksum_type == FULL_OBJECT else ""

            async def body() -> AsyncIterator[bytes]:
                async for chunk in _summed(multipart.stream(parts), algorithm, found):
                    yield chunk
                _hold(declared, found)
                keep_checksums(metadata, found)

            entry = await multipart.complete(
                begun.id,
                body(),
                size_bytes=size_bytes,
                checksum=checksum,
                metadata=metadata,
                condition=condition,
            )
        root = _result(request, entry.checksum)
        for algorithm, value in found.items():
            root.text(f"Checksum{algorithm}", value)
        if found:
            root.text("ChecksumType", checksum_type(found))
        return xml(root)

    async def abort(self, request: S3Request) -> Response:
        request.refuse_headers([b"x-amz-if-match-initiated-time"])
        begun = await self._find(request)
        await begun.repository.multipart.abort(begun.id)
        return Response(status_code=204)

    # Listing

    async def list_uploads(self, request: S3Request) -> Response:
        place = request.place()
        await admit_list(request, place)
        prefix, delimiter = request.parameter("prefix"), request.parameter("delimiter")
        limit = request.number("max-uploads", default=LISTED_MAX, most=LISTED_MAX)
        encoding = request.parameter("encoding-type")
        if encoding not in {"", "url"}:
            raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request")
        key_marker, id_marker = request.parameter("key-marker"), request.parameter("upload-id-marker")
        repository = await self._catalog.get(place.repository)
        if place.has_ref:
            await repository.versions.refs.resolve(place.ref)
        page = await self._page(request, repository, place, prefix, delimiter, (key_marker, id_marker))

        def spelled(text: str) -> str:
            return quote(text, safe="/-_.~*") if encoding else text

        root = Element("ListMultipartUploadsResult").text("Bucket", request.bucket)
        root.text("KeyMarker", spelled(key_marker)).text("UploadIdMarker", id_marker)
        if len(page) > limit > 0:
            last = page[limit - 1]
            root.text("NextKeyMarker", spelled(last[0])).text("NextUploadIdMarker", last[1])
        root.text("Prefix", spelled(prefix))
        if delimiter:
            root.text("Delimiter", spelled(delimiter))
        if encoding:
            root.text("EncodingType", encoding)
        root.text("MaxUploads", limit).flag("IsTruncated", value=len(page) > limit > 0)
        for key, name, record in page[:limit]:
            if record is None:
                root.add(Element("CommonPrefixes").text("Prefix", spelled(key)))
                continue
            shown = Element("Upload").text("Key", spelled(key)).text("UploadId", name)
            shown.add(_person("Initiator", record.user)).add(_person("Owner", OWNER)).text("StorageClass", "STANDARD")
            shown.text("Initiated", iso(record.created_ms))
            if record.algorithm:
                shown.text("ChecksumAlgorithm", record.algorithm).text("ChecksumType", record.checksum_type)
            root.add(shown)
        return xml(root)

    async def _page(
        self,
        request: S3Request,
        repository: Repository,
        place: Place,
        prefix: str,
        delimiter: str,
        after: tuple[str, str],
    ) -> list[tuple[str, str, MultipartRecord | None]]:
        """Return uploads by key and id, and common prefixes without a record, after `after`."""
        found: dict[tuple[str, str], MultipartRecord | None] = {}
        listed: dict[str, bool] = {place.ref: place.has_ref}
        for name, record in await repository.versions.parts.begun_on(place.ref if place.has_ref else ""):
            path = record.path.decode()
            key = path if place.has_ref else f"{record.branch}/{path}"
            if not key.startswith(prefix):
                continue
            if record.branch not in listed:
                of_branch = Place(bucket="", repository=repository.id, ref=record.branch)
                listed[record.branch] = await may(request, objects.LIST_OBJECTS, of_branch)
            if not listed[record.branch]:
                continue
            if folder := common_prefix(key, prefix, delimiter):
                found[folder, ""] = None
            else:
                found[key, name] = record
        # With a key alone, the page begins after all uploads of this key.
        start = after if after[1] else (after[0], "\U0010ffff")
        return [(*item, found[item]) for item in sorted(found) if not after[0] or item > start]

    async def _find(self, request: S3Request) -> Begun:
        """Return the upload of the request's key."""
        place, multipart_id = request.place(), request.parameter("uploadId")
        await admit(request, objects.UPLOAD_OBJECT, place)
        refuse_customer_keys(request)
        repository = await self._catalog.get(place.repository)
        try:
            record = await repository.versions.parts.get(multipart_id)
        except MultipartNotFound:
            if place.has_ref:
                await repository.versions.refs.get_branch(place.ref)
            raise
        if place.is_root or (record.branch, record.path) != (place.ref, path_to_key(place.path)):
            raise S3Error("NoSuchUpload")
        return Begun(repository, multipart_id, record)


class SlowAnswer(Response):
    """The answer to a slow completion: 200 and spaces, then the result or the error.

    The client must read the outcome from the document, as S3 documents. A client that disconnects does not stop the
    completion.
    """

    def __init__(self, making: asyncio.Future[Response]) -> None:
        super().__init__(media_type="application/xml")
        del self.headers["content-length"]
        self._making = making

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        # Spaces are allowed only after the XML declaration.
        declaration = document(Element("x")).partition(b"\n")[0]
        await send({"type": "http.response.body", "body": declaration + b"\n", "more_body": True})
        while not (await asyncio.wait([self._making], timeout=SPACE_S))[0]:
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
        try:
            body = bytes((await self._making).body)
        except LakebedError as error:
            body = _error(as_s3(error))
        except Exception:  # the status is sent already: a bug of ours must not end the document halfway
            logger.exception("unexpected error in a completion that takes long")
            body = _error(S3Error("InternalError"))
        await send({"type": "http.response.body", "body": body.partition(b"\n")[2], "more_body": False})


def _error(why: S3Error) -> bytes:
    return document(Element("Error").text("Code", why.code).text("Message", str(why)))


def _result(request: S3Request, etag: str) -> Element:
    root = Element("CompleteMultipartUploadResult")
    root.text("Location", f"{request.base_url}{request.resource.removeprefix('/')}").text("Bucket", request.bucket)
    return root.text("Key", request.key_name).text("ETag", f'"{etag}"')


async def _summed(body: AsyncIterator[bytes], algorithm: str, found: dict[str, str]) -> AsyncIterator[bytes]:
    """Yield the body, and store its checksum in `found` at the end. An empty algorithm computes no checksum."""
    checksum = checksums.new(algorithm) if algorithm else None
    async for chunk in body:
        if checksum is not None:
            checksum.update(chunk)
        yield chunk
    if checksum is not None:
        found[algorithm] = checksums.spell(checksum.digest())


def _composite(algorithm: str, parts: Sequence[PartRecord]) -> str:
    """Return the checksum of the parts' checksums, in the format of S3."""
    whole = checksums.new(algorithm)
    for part in parts:
        whole.update(read_digest(part.checksum, SIZES[algorithm]) or b"")
    return f"{checksums.spell(whole.digest())}-{len(parts)}"


def _hold(declared: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Compare the declared checksums of the whole object with the computed ones."""
    for algorithm, value in declared.items():
        if algorithm in found and found[algorithm].partition("-")[0] != value.partition("-")[0]:
            raise S3Error("BadDigest", f"The {algorithm} you specified did not match the calculated checksum.")


def _declared_type(request: S3Request, algorithm: str) -> str:
    kind = request.header(b"x-amz-checksum-type")
    if kind is None:
        return "" if not algorithm else FULL_OBJECT if algorithm == "CRC64NVME" else COMPOSITE
    if not algorithm:
        raise S3Error(
            "InvalidRequest",
            "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
        )
    if kind.upper() not in {FULL_OBJECT, COMPOSITE}:
        raise S3Error("InvalidRequest", "Value for x-amz-checksum-type header is invalid.")
    allowed = FULL_OBJECT_ALGORITHMS if kind.upper() == FULL_OBJECT else COMPOSITE_ALGORITHMS
    if algorithm not in allowed:
        raise S3Error(
            "InvalidRequest",
            f"The {kind.upper()} checksum type cannot be used with the {algorithm.lower()} checksum algorithm.",
        )
    return kind.upper()


def _part_number(request: S3Request) -> int:
    text = request.parameter("partNumber")
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not 1 <= int(text) <= PART_NUMBER_MAX:
        raise S3Error(
            "InvalidArgument",
            f"Part number must be an integer between 1 and {PART_NUMBER_MAX}, inclusive",
            ArgumentName="partNumber",
            ArgumentValue=text,
        )
    return int(text)


def _copied_range(request: S3Request, entry: Entry) -> tuple[int, int]:
    """Return the range of a copied part, or the whole object."""
    text = request.header(b"x-amz-copy-source-range")
    if text is None:
        return 0, entry.size_bytes
    first, last = read_range(text) or (None, None)
    if first is None or last is None:
        raise S3Error(
            "InvalidArgument",
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the"
            " zero-based offsets of the first and last bytes to copy",
            ArgumentName="x-amz-copy-source-range",
            ArgumentValue=text,
        )
    if last >= entry.size_bytes:
        raise S3Error("InvalidArgument", f"Range specified is not valid for source object of size: {entry.size_bytes}")
    return first, last + 1


async def _read_completion(request: S3Request, read: Callable[[Sequence[Node]], T]) -> T:
    """Read the body of a completion, and return the result of `read` for its parts."""

    def read_parts(body: Node) -> T:
        parts = [*body.all("Part")]
        if not 1 <= len(parts) <= PART_NUMBER_MAX:
            raise MalformedXml("there is no part, or there are too many")
        return read(parts)

    # Its checksum headers are of the object, not of this body.
    payload = Payload(request, has_checksum=False)
    return await payload.document("CompleteMultipartUpload", COMPLETION_BYTES_MAX, read_parts)


def _chosen(wanted: Sequence[Node], stored: Mapping[int, PartRecord], algorithm: str) -> list[PartRecord]:
    """Return the parts that a completion names, checked against the stored parts.

    Raises:
        S3Error: a part is unknown, changed, out of order, or too small.
        MalformedXml: a part has no number or no ETag, or has an element twice.
    """
    numbers = [_number_of(node) for node in wanted]
    # Check the order first: a list that names a part twice does not say which of its two uploads is meant.
    if any(later <= number for number, later in itertools.pairwise(numbers)):
        raise S3Error("InvalidPartOrder")
    chosen: list[PartRecord] = []
    for node, number in zip(wanted, numbers, strict=True):
        etag, part = _etag_of(node), stored.get(number)
        if part is None or part.md5 != etag:
            raise S3Error("InvalidPart", PartNumber=number, ETag=etag)
        named = {name: node.value(f"Checksum{name}") for name in ALGORITHMS}
        _check_given({name: value for name, value in named.items() if value is not None}, part, number, algorithm)
        chosen.append(part)
    for part in chosen[:-1]:
        if part.size_bytes < PART_BYTES_MIN:
            raise S3Error("EntityTooSmall", ProposedSize=part.size_bytes, MinSizeAllowed=PART_BYTES_MIN)
    return chosen


def _number_of(node: Node) -> int:
    """Return the number of a part that a completion names."""
    number = node.value("PartNumber") or ""
    if not re.fullmatch(r"-?\d{1,9}", number.strip()) or not _etag_of(node):
        raise S3Error("MalformedXML")
    if not 1 <= int(number) <= PART_NUMBER_MAX:
        raise S3Error("InvalidArgument", "PartNumber must be >= 1", ArgumentName="PartNumber", ArgumentValue=number)
    return int(number)


def _etag_of(node: Node) -> str:
    return (node.value("ETag") or "").strip().strip('"')


def _check_given(given: Mapping[str, str], part: PartRecord, number: int, algorithm: str) -> None:
    """Compare the checksums that a completion gives for a part with the stored checksum."""
    if len(given) > 1:
        raise S3Error("InvalidArgument", f"More than one checksum was given for part {number}")
    for name, value in given.items():
        if read_digest(value, SIZES[name]) is None:
            raise S3Error("InvalidArgument", f"The checksum of part {number} is malformed")
        if algorithm and name != algorithm:
            raise S3Error(
                "BadDigest", f"The {name.lower()} you specified for part {number} did not match what we received."
            )
        if algorithm and value != part.checksum:
            raise S3Error("InvalidPart", PartNumber=number, ETag=part.md5)


def _check_object_size(request: S3Request, size_bytes: int) -> None:
    text = request.header(b"x-amz-mp-object-size")
    if text is None:
        return
    if not re.fullmatch(r"\d{1,18}", text):
        raise S3Error("InvalidRequest", "Value for x-amz-mp-object-size header is invalid.")
    if int(text) != size_bytes:
        raise S3Error(
            "InvalidRequest",
            f"The provided 'x-amz-mp-object-size' header does not match what was computed: {size_bytes} bytes",
        )


def _person(element: str, name: str) -> Element:
    return Element(element).text("ID", name).text("DisplayName", name)
