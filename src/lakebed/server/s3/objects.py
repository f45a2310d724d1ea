"""Objects: read, write, copy and delete them.

S3 keeps a few headers of an upload beside the user's metadata, and returns them. The gateway stores them in the
entry's metadata under SYSTEM, with the client's checksum. S3 clients do not see them as metadata.
"""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.utils import formatdate
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.responses import RedirectResponse, Response

from lakebed.base import CONTENT_TYPE_DEFAULT, LAKEBED_METADATA, S3_HEADERS, Entry, Etags, InvalidName, LakebedError
from lakebed.catalog import DELETE_MANY_MAX, Repository
from lakebed.operations import objects
from lakebed.server.http.fields import CONDITIONS, asked_span
from lakebed.server.http.requests import RawResponse, StreamedResponse
from lakebed.server.state import AppState
from lakebed.versions import PART_NUMBER_MAX, BranchNotFound, PathNotFound, RefNotFound

from . import operations
from .buckets import iso, xml
from .documents import Element, MalformedXml, Node
from .errors import NotImplementedByName, S3Error, as_s3
from .operations import S3Operation
from .options import S3Options
from .requests.bodies import SMALL_BYTES_MAX, Payload
from .requests.checksums import part_count
from .requests.headers import (
    check_conditions,
    check_source_conditions,
    check_upload_headers,
    refuse_customer_keys,
    write_condition,
)
from .requests.requests import Place, S3Request, admit, admit_below, encode_words, place_of
from .stored import (
    SYSTEM,
    VALUE,
    checksum_type,
    keep_checksums,
    metadata_of,
    part_sizes,
    shown_checksums,
    shown_parts,
    stored_checksums,
    typed_checksum_headers,
    user_metadata,
)

OVERRIDES: Final = (*S3_HEADERS, "content-type")
_OF_BYTES: Final = (LAKEBED_METADATA, SYSTEM + "parts")
"""Metadata of the bytes. Replacing the user's metadata keeps it."""
DELETE_BYTES_MAX: Final = 8 << 20
_ATTRIBUTES: Final = frozenset({"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"})
REDIRECTED: Final = "s3RedirectionSupport"
"""A client with this in its User-Agent follows a redirect to the store, as with the contract's server."""
_EMPTY_MD5: Final = "d41d8cd98f00b204e9800998ecf8427e"


class Objects:
    def __init__(self, state: AppState, options: S3Options) -> None:
        self._catalog = state.catalog
        self._options = options
        self._presign_s = state.presign_s
        self.handlers: Mapping[S3Operation, Callable[[S3Request], Awaitable[Response]]] = {
            operations.GET_OBJECT: self.get,
            operations.HEAD_OBJECT: self.head,
            operations.PUT_OBJECT: self.put,
            operations.COPY_OBJECT: self.copy,
            operations.DELETE_OBJECT: self.delete,
            operations.DELETE_OBJECTS: self.delete_many,
            operations.GET_OBJECT_ATTRIBUTES: self.attributes,
        }

    # Reading

    async def get(self, request: S3Request) -> Response:
        if self._presign_s is not None and REDIRECTED in (request.header(b"user-agent") or ""):
            repository, entry = await self.find_asked(request)
            url = await self._elsewhere(request, repository, entry, self._presign_s)
            if url is not None:
                return RedirectResponse(url, 307)
        return await self._answer(request, is_with_body=True)

    async def _elsewhere(self, request: S3Request, repository: Repository, entry: Entry, presign_s: int) -> str | None:
        """Return a signed URL of the object's bytes at the store. None: the request asks for what the store lacks."""
        if entry is ROOT or request.asked_for or request.has_any_header(CONDITIONS):
            return None
        return await repository.objects.presign_get(request.place().path, entry, expires_s=presign_s)

    async def head(self, request: S3Request) -> Response:
        return await self._answer(request, is_with_body=False)

    async def attributes(self, request: S3Request) -> Response:
        wanted = [name.strip() for name in request.all_of_header(b"x-amz-object-attributes").split(",")]
        if not set(wanted) <= _ATTRIBUTES:
            raise S3Error("InvalidArgument", "Invalid attribute name specified.")
        _, entry = await self.find_asked(request)
        root = Element("GetObjectAttributesResponse")
        if "ETag" in wanted:
            root.text("ETag", entry.checksum)
        stored = stored_checksums(entry)
        if "Checksum" in wanted and stored:
            shown = Element("Checksum")
            for algorithm, value in stored.items():
                shown.text(f"Checksum{algorithm}", value)
            root.add(shown.text("ChecksumType", checksum_type(stored)))
        if "ObjectParts" in wanted and part_count(entry.checksum) is not None:
            root.add(shown_parts(request, entry))
        if "StorageClass" in wanted:
            root.text("StorageClass", "STANDARD")
        if "ObjectSize" in wanted:
            root.text("ObjectSize", entry.size_bytes)
        response = xml(root)
        response.headers["last-modified"] = _http_date(entry.modified_ms)
        return response

    async def _answer(self, request: S3Request, *, is_with_body: bool) -> Response:
        _check_part_number(request)
        repository, entry = await self.find_asked(request)
        headers = self._headers(request, entry)
        if request.has_any_header(CONDITIONS) and not check_conditions(request, entry):
            kept = (b"etag", b"last-modified", b"cache-control")
            return RawResponse(304, [(name, headers[name]) for name in kept if name in headers])
        span = self._span(request, entry)
        start, end = span or (0, entry.size_bytes)
        if span is not None:
            headers[b"content-range"] = b"bytes %d-%d/%d" % (start, end - 1, entry.size_bytes)
            count = part_count(entry.checksum)
            if request.has("partNumber") and count is not None:
                headers[b"x-amz-mp-parts-count"] = b"%d" % count
        if (request.header(b"x-amz-checksum-mode") or "").upper() == "ENABLED":
            headers |= shown_checksums(request, entry, is_whole=span is None)
        headers[b"content-length"] = b"%d" % (end - start)
        status, raw = 200 if span is None else 206, list(headers.items())
        if not is_with_body:
            return RawResponse(status, raw)
        if end - start <= SMALL_BYTES_MAX:
            data = b"" if entry is ROOT else await repository.objects.read(entry, start=start, end=end)
            if len(data) != end - start:
                raise S3Error("InternalError", "the object's data is shorter than its size")
            return RawResponse(status, raw, data)
        stream = repository.objects.stream(entry, start=start, end=end)
        return StreamedResponse(await anext(stream, b""), stream, status=status, headers=raw)

    async def find_asked(self, request: S3Request) -> tuple[Repository, Entry]:
        """Return the repository and the entry of a read.

        Raises:
            LakebedError: the key does not exist, or the caller may not read it.
        """
        place = request.place()
        await admit(request, objects.GET_OBJECT, place)
        refuse_customer_keys(request)
        check_version(request.parameter("versionId"))
        return await self.find(place, is_read=True)

    async def find(self, place: Place, *, is_read: bool = False) -> tuple[Repository, Entry]:
        """Return the repository and the entry of a place, without checking permissions.

        `is_read`: the caller will read its bytes.

        Raises:
            S3Error: the key does not exist.
        """
        repository = await self._catalog.get(place.repository)
        try:
            if place.is_root:
                # `main/` is the folder of a branch. Clients that list folders expect it to exist.
                await repository.versions.refs.resolve(place.ref)
                if place.is_folder:
                    return repository, ROOT
                raise S3Error("NoSuchKey", Key=place.ref)
            find = repository.objects.open if is_read else repository.objects.get
            return repository, await find(place.ref, place.path)
        except PathNotFound as error:
            raise S3Error("NoSuchKey", Key=place.key) from error
        except (BranchNotFound, RefNotFound) as error:
            if place.has_ref:
                raise
            raise S3Error("NoSuchKey") from error
        except InvalidName as error:
            raise S3Error("KeyTooLongError") from error

    def _headers(self, request: S3Request, entry: Entry) -> dict[bytes, bytes]:
        """Return the object's headers. Headers that S3 returns unchanged are sent in UTF-8."""
        headers = {
            **_FIXED_HEADERS,
            b"content-type": entry.content_type.encode(),
            b"etag": b'"%s"' % entry.checksum.encode(),
            b"last-modified": _http_date(entry.modified_ms).encode(),
        }
        for header in S3_HEADERS if entry.metadata else ():
            value = entry.metadata.get(SYSTEM + header)
            if value is not None and VALUE.fullmatch(value):
                headers[header.encode()] = value.encode()
        shown, missing = user_metadata(entry.metadata)
        headers |= {f"x-amz-meta-{name}".encode(): encode_words(value).encode() for name, value in shown.items()}
        if missing:
            headers[b"x-amz-missing-meta"] = b"%d" % missing
        for name in OVERRIDES if request.asked_for else ():
            value = request.parameter(f"response-{name}")
            if value:
                if not VALUE.fullmatch(value):
                    raise S3Error("InvalidArgument", f"response-{name} has characters that no header can have")
                headers[name.encode()] = value.encode()
        return headers

    def _span(self, request: S3Request, entry: Entry) -> tuple[int, int] | None:
        """Return the requested bytes, from start to before end, or None for the whole object."""
        if request.has("partNumber"):
            part = request.parameter("partNumber")
            sizes = part_sizes(entry)
            if sizes is None:
                raise NotImplementedByName("partNumber of an object with this many parts")
            if int(part) > len(sizes):
                raise S3Error("InvalidPartNumber")
            start = sum(sizes[: int(part) - 1])
            return (start, start + sizes[int(part) - 1]) if entry.size_bytes else None
        span = asked_span(request.header, entry)
        if span is not None and span[0] >= span[1]:
            raise S3Error("InvalidRange", RangeRequested=request.header(b"range"), ActualObjectSize=entry.size_bytes)
        return span

    # Writing

    async def put(self, request: S3Request) -> Response:
        place = request.place()
        await admit(request, objects.UPLOAD_OBJECT, place)
        check_upload_headers(request)
        condition = write_condition(request)
        payload = Payload(request)
        metadata = metadata_of(request)
        repository = await self._catalog.get(place.repository)
        if place.is_root:
            return await self._put_root(repository, place, payload)
        if condition.if_match is not None:
            # S3 answers 404 if the object is missing. The write below checks again.
            await self.find(place)

        async def checked() -> bytes:
            body = b"".join([chunk async for chunk in payload.chunks()])
            keep_checksums(metadata, payload.checksums)
            return body

        async def streamed() -> AsyncIterator[bytes]:
            async for chunk in payload.chunks():
                yield chunk
            keep_checksums(metadata, payload.checksums)

        entry = await repository.objects.upload(
            place.ref,
            place.path,
            await checked() if payload.size_bytes <= SMALL_BYTES_MAX else streamed(),
            size_bytes=payload.size_bytes,
            content_type=request.header(b"content-type") or CONTENT_TYPE_DEFAULT,
            metadata=metadata,
            condition=condition,
            by=request.identity.user_id,
            quota_branch=request.quota_branch,
        )
        return acknowledged(entry.checksum, typed_checksum_headers(payload.checksums))

    async def _put_root(self, repository: Repository, place: Place, payload: Payload) -> Response:
        """Accept a request to make the folder of a branch, which exists already. Some programs make folders before
        writing.
        """
        if not place.is_folder or payload.size_bytes:
            raise S3Error("InvalidArgument", f"the key names no path: {place.ref}/PATH would")
        await repository.versions.refs.get_branch(place.ref)
        async for _ in payload.chunks():
            pass
        return acknowledged(_EMPTY_MD5, {})

    async def copy(self, request: S3Request) -> Response:
        place, source = request.place(), self.source_of(request)
        await admit(request, objects.GET_OBJECT, source)
        await admit(request, objects.UPLOAD_OBJECT, place)
        request.what = {**(request.what or {}), "src": f"{source.bucket}/{source.key}"}
        check_upload_headers(request)
        if request.header(b"x-amz-checksum-algorithm") is not None:
            raise NotImplementedByName("the header x-amz-checksum-algorithm of CopyObject")
        condition = write_condition(request)
        directive = request.header(b"x-amz-metadata-directive") or "COPY"
        if directive not in {"COPY", "REPLACE"}:
            raise S3Error("InvalidArgument", "Unknown metadata directive.")
        if place.is_root:
            raise S3Error("InvalidArgument", f"the key names no path: {place.ref}/PATH would")
        is_same = (place.repository, place.ref, place.path) == (source.repository, source.ref, source.path)
        request.user_metadata()  # Refuse too much of it, even if the source's metadata is used.
        if is_same and directive == "COPY":
            raise S3Error(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself without changing the"
                " object's metadata, storage class, website redirect location or encryption attributes.",
            )
        repository, found = await self.find(source, is_read=True)

        def altered(entry: Entry) -> Entry:
            check_source_conditions(request, entry)
            if directive == "COPY":
                return entry
            content_type = request.header(b"content-type") or CONTENT_TYPE_DEFAULT
            own = {name: value for name, value in entry.metadata.items() if name.startswith(_OF_BYTES)}
            metadata = {**metadata_of(request), **own}
            keep_checksums(metadata, stored_checksums(entry))
            return msgspec.structs.replace(entry, content_type=content_type, metadata=metadata)

        check_source_conditions(request, found)
        if found is ROOT:
            raise S3Error("NoSuchKey")
        if source.repository == place.repository:
            # Copy shallowly: many clients move an object by a copy and a delete, and its bytes can stay. Its date is
            # new, as in
            # S3: policies compute the age of a copy from it.
            now_ms = repository.versions.ports.clock.now_ms()
            entry = await repository.objects.copy(
                source.ref,
                source.path,
                place.ref,
                place.path,
                shallow=True,
                alter=lambda entry: msgspec.structs.replace(altered(entry), modified_ms=now_ms),
                condition=condition,
                by=request.identity.user_id,
            )
        else:
            target, wanted = await self._catalog.get(place.repository), altered(found)
            entry = await target.objects.upload(
                place.ref,
                place.path,
                repository.objects.stream(found),
                size_bytes=found.size_bytes,
                content_type=wanted.content_type,
                metadata=wanted.metadata,
                condition=condition,
                by=request.identity.user_id,
            )
        root = Element("CopyObjectResult").text("LastModified", iso(entry.modified_ms))
        root.text("ETag", f'"{entry.checksum}"')
        for algorithm, value in stored_checksums(entry).items():
            root.text(f"Checksum{algorithm}", value)
        return xml(root)

    def source_of(self, request: S3Request) -> Place:
        """Read `x-amz-copy-source`: a bucket and a key, encoded.

        Raises:
            S3Error: it names no key.
        """
        text = request.header(b"x-amz-copy-source") or ""
        path, mark, query = text.partition("?")
        try:
            # A plus is a space, as in S3: some clients encode keys as queries.
            name = unquote_to_bytes(path.replace("+", " ").encode("latin-1")).decode()
        except UnicodeDecodeError as error:
            raise S3Error("InvalidURI") from error
        bucket, _, key = name.removeprefix("/").partition("/")
        if not bucket or not key:
            raise S3Error(
                "InvalidArgument",
                "Copy Source must mention the source bucket and key: sourcebucket/sourcekey",
                ArgumentName="x-amz-copy-source",
                ArgumentValue=text,
            )
        if mark:
            name, _, version = query.partition("=")
            if name != "versionId":
                raise S3Error("InvalidArgument", f"the copy source has an unknown parameter {name}")
            check_version(version)
        return place_of(bucket, key, self._options)

    # Deleting

    async def delete(self, request: S3Request) -> Response:
        place = request.place()
        if request.identity.lent is not None:
            await _admit_engine(request, place)
            return Response(status_code=204)
        await admit(request, objects.DELETE_OBJECT, place)
        check_version(request.parameter("versionId"))
        request.refuse_headers([b"x-amz-if-match-", b"x-amz-mfa"])
        if_match = request.header(b"if-match")
        repository = await self._catalog.get(place.repository)
        if not place.is_root:
            tags = None if if_match is None else Etags.read(if_match)
            await repository.objects.delete(place.ref, place.path, if_match=tags)
        return Response(status_code=204)

    async def delete_many(self, request: S3Request) -> Response:
        request.refuse_headers([b"x-amz-mfa"])
        # Each key is checked below. If the caller may delete no key at all, the body is not read.
        asked = objects.DELETE_OBJECT if request.identity.lent is None else objects.UPLOAD_OBJECT
        admit_below(request, asked, request.place().repository)
        wanted, is_quiet = await Payload(request).document("Delete", DELETE_BYTES_MAX, _keys_to_delete)
        keys = [key for key, refusal in wanted if refusal is None]
        request.what = {**(request.what or {}), "paths": keys, "paths_count": str(len(keys))}
        failed = await self._delete_keys(request, keys)
        root = Element("DeleteResult")
        for key, refusal in wanted:
            why = refusal or failed.get(key)
            if why is not None:
                root.add(Element("Error").text("Key", key).text("Code", why.code).text("Message", str(why)))
            elif not is_quiet:
                root.add(Element("Deleted").text("Key", key))
        return xml(root)

    async def _delete_keys(self, request: S3Request, keys: list[str]) -> dict[str, S3Error]:
        """Delete each key that the caller may delete. Return the keys that failed, with the reason."""
        failed: dict[str, S3Error] = {}
        by_ref: dict[tuple[str, str], dict[str, str]] = {}
        for key in dict.fromkeys(keys):
            place = place_of(request.bucket, key, self._options)
            try:
                if request.identity.lent is not None:
                    await _admit_engine(request, place)
                    continue
                await admit(request, objects.DELETE_OBJECT, place)
            except LakebedError as error:
                failed[key] = as_s3(error)
                continue
            if not place.is_root:
                by_ref.setdefault((place.repository, place.ref), {})[place.path] = key
        if len(failed) == len(dict.fromkeys(keys)) and failed:
            request.refusal = "no key of the batch may be deleted"
        for (repository_id, ref), paths in by_ref.items():
            repository = await self._catalog.get(repository_id)
            try:
                errors = await repository.objects.delete_many(ref, [*paths])
            except LakebedError as error:
                errors = [(path, error) for path in paths]
                if request.place().has_ref and isinstance(error, BranchNotFound):
                    raise
            failed |= {paths[path]: as_s3(error) for path, error in errors}
        return failed


async def _admit_engine(request: S3Request, place: Place) -> None:
    """Let an engine with lent keys tidy up: it may write the table's files. Nothing is deleted.

    After a commit that failed, or an expiry of snapshots, engines delete what their table does not need. Another branch
    may. Where they were refused, they would report that in place of the reason why the commit failed. Pruning takes the
    files that nothing names.

    Raises:
        NotPermitted: the keys are of another table, or only read.
    """
    await admit(request, objects.UPLOAD_OBJECT, place)


_FIXED_HEADERS: Final = {
    b"accept-ranges": b"bytes",
    # An HTML object must not run as a page of this server, whose cookie the browser may have.
    b"content-security-policy": b"sandbox; default-src 'none'",
    b"x-content-type-options": b"nosniff",
}

ROOT: Final = Entry(
    address="", size_bytes=0, checksum=_EMPTY_MD5, modified_ms=0, content_type="application/x-directory"
)
"""The entry of the folder of a branch, which has no stored entry."""


def _check_part_number(request: S3Request) -> None:
    if not request.has("partNumber"):
        return
    if request.header(b"range") is not None:
        raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
    part = request.parameter("partNumber")
    if not re.fullmatch(r"\d{1,9}", part, re.ASCII) or not 1 <= int(part) <= PART_NUMBER_MAX:
        raise S3Error("InvalidArgument", f"Part number must be an integer between 1 and {PART_NUMBER_MAX}, inclusive")


def check_version(version: str) -> None:
    """Refuse versions other than `null`.

    Raises:
        S3Error: a version is requested. Commits keep versions here.
    """
    if version not in {"", "null"}:
        raise S3Error("InvalidArgument", "Invalid version id specified", ArgumentName="versionId")


def acknowledged(checksum: str, headers: Mapping[bytes, bytes]) -> Response:
    """Answer a write with its ETag and these headers."""
    return RawResponse(200, [(b"etag", b'"%s"' % checksum.encode()), (b"content-length", b"0"), *headers.items()])


def _keys_to_delete(body: Node) -> tuple[list[tuple[str, S3Error | None]], bool]:
    """Return the keys, each with the reason why it cannot be deleted, and whether the client asks for errors only."""
    nodes = [*body.all("Object")]
    if not 1 <= len(nodes) <= DELETE_MANY_MAX:
        raise MalformedXml("there is no object, or there are too many")
    return [_to_delete(node) for node in nodes], (body.value("Quiet") or "").strip() == "true"


def _to_delete(node: Node) -> tuple[str, S3Error | None]:
    key, version = node.value("Key"), node.value("VersionId")
    if key is None or not key:
        raise MalformedXml("an object without a key")
    for name in ("ETag", "LastModifiedTime", "Size"):
        if node.value(name) is not None:
            raise NotImplementedByName(f"{name} of DeleteObjects")
    if version not in {None, "", "null"}:
        return key, S3Error("InvalidArgument", "Invalid version id specified")
    return key, None


def _http_date(unix_ms: int) -> str:
    return _formatted(unix_ms // 1000)


_formatted: Final = functools.lru_cache(maxsize=1024)(functools.partial(formatdate, usegmt=True))
"""Cached: objects of one upload have few dates, and formatting one costs as much as a read of the store's cache."""
