"""The bytes of objects: upload and download. Both keep at most a few chunks of a large object in memory.

A body that declares a small size is read whole, which saves the store a temporary file. A body that ends before its
declared length raises an error, so nothing is stored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Final

from starlette.responses import RedirectResponse, Response

from lakebed import wire
from lakebed.base import CONTENT_TYPE_DEFAULT, Entry, LakebedError
from lakebed.catalog import Repository, check_user_metadata
from lakebed.objectstore import Body, ObjectMissing
from lakebed.operations import objects
from lakebed.server.http.errors import Answer, InvalidParameter, message_response
from lakebed.server.http.fields import CONDITIONS, Conditions, asked_span, read_digest, write_condition
from lakebed.server.http.forms import open_form
from lakebed.server.http.requests import RawResponse, RestRequest, StreamedResponse, raw_headers
from lakebed.server.http.routing import Resource, in_repository, serves
from lakebed.server.rest.stats import stats_of_entry
from lakebed.versions import CommitExpired

SMALL_BYTES_MAX: Final = 1 << 20
_METADATA_PREFIXES: Final = {b"x-lakefs-meta-": "", b"x-lakefs-internal-": "::lakefs::"}
"""Headers that become user metadata, with the prefix of their names there. The second header is for the contract's
clients, which send the times and permissions of files.
"""
_INLINE: Final = re.compile(r"(text/plain|application/(json|pdf)|image/(gif|jpeg|png|webp))(;.*)?", re.IGNORECASE)
"""Types that a browser may show. HTML and SVG could run scripts on the server's own origin."""
_NEVER: Final = "Thu, 01 Jan 1970 00:00:00 GMT"


class Content(Resource):
    # Upload

    @serves(objects.UPLOAD_OBJECT)
    async def upload(self, request: RestRequest) -> wire.ObjectStats:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        condition = write_condition(request.header)
        metadata = _user_metadata(request)
        check_user_metadata(metadata)
        content_type, body, size_bytes = await _open_body(request)
        entry = await repository.objects.upload(
            request.args[1],
            path,
            body,
            size_bytes=size_bytes,
            content_type=content_type,
            metadata=metadata,
            condition=condition,
            force=request.flag("force"),
            by=request.identity.user_id,
        )
        return stats_of_entry(repository, path, entry)

    # Download

    @in_repository(objects.GET_OBJECT)
    async def get(self, request: RestRequest, repository: Repository) -> Response:
        path = request.required("path")
        entry = await repository.objects.open(request.args[1], path)
        headers = _headers(entry)
        # Before the redirect, too: a store may have another ETag for the bytes.
        if _is_unchanged(request, entry):
            return _bare(304, headers)
        if request.flag("presign") and self._state.presign_s is not None:
            url = await repository.objects.presign_get(path, entry, expires_s=self._state.presign_s)
            if url is not None:
                return RedirectResponse(url, 302)
        headers["content-disposition"] = "inline" if _INLINE.fullmatch(entry.content_type) else "attachment"
        headers["content-security-policy"] = "default-src 'none'"
        headers["x-content-type-options"] = "nosniff"
        headers["x-frame-options"] = "SAMEORIGIN"
        span = asked_span(request.header, entry)
        start, end = span or (0, entry.size_bytes)
        if span is not None:
            if start >= end:
                return _unsatisfiable(entry)
            headers["content-range"] = f"bytes {start}-{end - 1}/{entry.size_bytes}"
        try:
            return await _serve(repository, entry, start, end, 200 if span is None else 206, headers)
        except ObjectMissing as error:
            raise await _gone(repository, request.args[1], error) from error

    @in_repository(objects.HEAD_OBJECT)
    async def head(self, request: RestRequest, repository: Repository) -> Response:
        entry = await repository.objects.open(request.args[1], request.required("path"))
        headers = _headers(entry)
        if _is_unchanged(request, entry):
            return _bare(304, headers)
        span = asked_span(request.header, entry)
        start, end = span or (0, entry.size_bytes)
        status = 200
        if span is not None:
            if start >= end:
                return _unsatisfiable(entry)
            status = 206
            headers["content-range"] = f"bytes {start}-{end - 1}/{entry.size_bytes}"
        headers["content-length"] = str(end - start)
        return _bare(status, headers)


# Upload


async def _open_body(request: RestRequest) -> tuple[str, Body, int | None]:
    """Return the content type, the bytes, and their number if it is known before reading."""
    md5 = _declared_md5(request)
    content_type = request.header(b"content-type") or CONTENT_TYPE_DEFAULT
    if content_type.lower().startswith("multipart/form-data"):
        if md5 is not None:
            raise InvalidParameter("Content-MD5 of a form is not supported: send the object as the body itself")
        form = await open_form(content_type, request.stream(), "content")
        return form.content_type or CONTENT_TYPE_DEFAULT, form.body(), None
    declared = request.header(b"content-length")
    size_bytes = int(declared) if declared is not None else None
    if size_bytes is not None and size_bytes <= SMALL_BYTES_MAX:
        body = await request.small_body(SMALL_BYTES_MAX)
        if md5 is not None:
            _check_md5(hashlib.md5(body, usedforsecurity=False).digest(), md5)
        return content_type, body, size_bytes
    return content_type, _chunks(request, md5), size_bytes


async def _chunks(request: RestRequest, md5: bytes | None) -> AsyncIterator[bytes]:
    """Yield the body without the empty chunk that ends it. One that is not that of Content-MD5 ends in an error."""
    digest = None if md5 is None else hashlib.md5(usedforsecurity=False)
    async for chunk in request.stream():
        if chunk:
            if digest is not None:
                digest.update(chunk)
            yield chunk
    if digest is not None and md5 is not None:
        _check_md5(digest.digest(), md5)


def _declared_md5(request: RestRequest) -> bytes | None:
    text = request.header(b"content-md5")
    if text is None:
        return None
    md5 = read_digest(text, 16)
    if md5 is None:
        raise InvalidParameter(f'parameter "Content-MD5" in header has an error: {text!a} is no MD5 in base64')
    return md5


def _check_md5(found: bytes, declared: bytes) -> None:
    if found != declared:
        raise InvalidParameter("the body is not that of Content-MD5: it changed on its way, and nothing was stored")


def _user_metadata(request: RestRequest) -> dict[str, str]:
    return {
        shown + key[len(prefix) :].decode("latin-1"): _header_text(value)
        for key, value in request.scope["headers"]
        if key.startswith(b"x-lakefs-")  # Skip the inner loop for most headers.
        for prefix, shown in _METADATA_PREFIXES.items()
        if key.startswith(prefix)
    }


def _header_text(value: bytes) -> str:
    """Decode a header as UTF-8 or, as in HTTP, Latin-1. Clients send both."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


# Download


async def _gone(repository: Repository, ref: str, error: ObjectMissing) -> LakebedError:
    """Return an error that names the run which expired the commit; otherwise return the store's error."""
    try:
        await repository.versions.retired.check_not_expiring([(await repository.versions.refs.resolve(ref)).commit_id])
    except CommitExpired as taken:
        return Answer(410, f"the object's data is gone: {taken}")
    return error


async def _serve(
    repository: Repository, entry: Entry, start: int, end: int, status: int, headers: dict[str, str]
) -> Response:
    size_bytes = end - start
    headers["content-length"] = str(size_bytes)
    if size_bytes <= SMALL_BYTES_MAX:
        data = await repository.objects.read(entry, start=start, end=end)
        if len(data) != size_bytes:
            raise Answer(410, f"the object's data has {len(data)} bytes where {size_bytes} were stored")
        return Response(data, status, headers=headers)
    stream = repository.objects.stream(entry, start=start, end=end)
    first = await anext(stream, b"")
    return StreamedResponse(first, stream, status=status, headers=raw_headers(headers))


def _is_unchanged(request: RestRequest, entry: Entry) -> bool:
    """Return whether the client has the object already, by its conditions."""
    if not request.has_any_header(CONDITIONS):
        return False
    conditions = Conditions.read(request.header)
    if failed := conditions.failed(entry):
        raise Answer(412, f"the object at this path is not the one named in {failed}")
    return conditions.is_unchanged(entry)


def _headers(entry: Entry) -> dict[str, str]:
    return {
        "accept-ranges": "bytes",
        "cache-control": "no-store, must-revalidate",
        "content-type": entry.content_type,
        "etag": f'"{entry.checksum}"',
        "expires": _NEVER,
        "last-modified": formatdate(entry.modified_ms / 1000, usegmt=True),
    }


def _unsatisfiable(entry: Entry) -> Response:
    response = message_response(416, "Requested Range Not Satisfiable")
    response.headers["content-range"] = f"bytes */{entry.size_bytes}"
    return response


def _bare(status: int, headers: dict[str, str]) -> Response:
    """Return headers alone. Their content-length is that of the body of a GET."""
    return RawResponse(status, raw_headers(headers))
