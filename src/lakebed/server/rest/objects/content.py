"""The bytes of objects: upload and download. Both keep at most a few chunks of a large object in memory.

A body that declares a small size is read whole, which saves the store a temporary file. A body that ends before its
declared length raises an error, so nothing is stored.
"""

from __future__ import annotations

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
from lakebed.server.http.forms import open_form
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.responses import RawResponse, StreamedResponse, raw_headers
from lakebed.server.http.routing import Route
from lakebed.server.http.validators import has_same_bytes, names_etag
from lakebed.server.rest.stats import stats_of_entry
from lakebed.server.state import AppState
from lakebed.versions import CommitExpired

SMALL_BYTES_MAX: Final = 1 << 20
_METADATA_PREFIXES: Final = {b"x-lakefs-meta-": "", b"x-lakefs-internal-": "::lakefs::"}
"""Headers that become user metadata, with the prefix of their names there. The second header is for the contract's
clients, which send the times and permissions of files.
"""
_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
# One class and one quantifier, so that no header can cause backtracking.
_RANGES: Final = re.compile(r"bytes=[\d, \t-]*")
_INLINE: Final = re.compile(r"(text/plain|application/(json|pdf)|image/(gif|jpeg|png|webp))(;.*)?", re.IGNORECASE)
"""Types that a browser may show. HTML and SVG could run scripts on the server's own origin."""
_NEVER: Final = "Thu, 01 Jan 1970 00:00:00 GMT"


class Content:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog
        self._presign_s = state.presign_s

    # Upload

    async def upload(self, request: RestRequest) -> wire.ObjectStats:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        if_none_match = _if_none_match(request.header(b"if-none-match"))
        if_match = request.header(b"if-match")
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
            if_none_match=if_none_match,
            if_match=None if if_match is None else if_match.strip('"'),
            force=request.flag("force"),
            by=request.identity.user_id,
        )
        return stats_of_entry(repository, path, entry)

    # Download

    async def get(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        path = request.required("path")
        entry = await repository.objects.open(request.args[1], path)
        if request.flag("presign") and self._presign_s is not None:
            url = await repository.objects.presign_get(path, entry, expires_s=self._presign_s)
            if url is not None:
                return RedirectResponse(url, 302)
        headers = _headers(entry)
        headers["content-disposition"] = "inline" if _INLINE.fullmatch(entry.content_type) else "attachment"
        headers["content-security-policy"] = "default-src 'none'"
        headers["x-content-type-options"] = "nosniff"
        headers["x-frame-options"] = "SAMEORIGIN"
        if names_etag(request.header(b"if-none-match") or "", entry.checksum):
            return _bare(304, headers)
        span = _asked_span(request, entry)
        start, end = span or (0, entry.size_bytes)
        if span is not None:
            if start >= end:
                return _unsatisfiable(entry)
            headers["content-range"] = f"bytes {start}-{end - 1}/{entry.size_bytes}"
        try:
            return await _serve(repository, entry, start, end, 200 if span is None else 206, headers)
        except ObjectMissing as error:
            raise await _gone(repository, request.args[1], error) from error

    async def head(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        entry = await repository.objects.open(request.args[1], request.required("path"))
        headers = _headers(entry)
        span = _asked_span(request, entry)
        start, end = span or (0, entry.size_bytes)
        status = 200
        if span is not None:
            if start >= end:
                return _unsatisfiable(entry)
            status = 206
            headers["content-range"] = f"bytes {start}-{end - 1}/{entry.size_bytes}"
        headers["content-length"] = str(end - start)
        return _bare(status, headers)


def routes(state: AppState) -> list[Route]:
    here = Content(state)
    return [
        Route(objects.UPLOAD_OBJECT, here.upload),
        Route(objects.GET_OBJECT, here.get),
        Route(objects.HEAD_OBJECT, here.head),
    ]


# Upload


async def _open_body(request: RestRequest) -> tuple[str, Body, int | None]:
    """Return the content type, the bytes, and their number if it is known before reading."""
    content_type = request.header(b"content-type") or CONTENT_TYPE_DEFAULT
    if content_type.lower().startswith("multipart/form-data"):
        form = await open_form(content_type, request.stream(), "content")
        return form.content_type or CONTENT_TYPE_DEFAULT, form.body(), None
    declared = request.header(b"content-length")
    size_bytes = int(declared) if declared is not None else None
    if size_bytes is not None and size_bytes <= SMALL_BYTES_MAX:
        return content_type, await request.small_body(SMALL_BYTES_MAX), size_bytes
    return content_type, _chunks(request), size_bytes


async def _chunks(request: RestRequest) -> AsyncIterator[bytes]:
    """Yield the body without the empty chunk that ends it."""
    async for chunk in request.stream():
        if chunk:
            yield chunk


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


def _if_none_match(header: str | None) -> bool:
    if header is None:
        return False
    if header.strip() != "*":
        raise InvalidParameter('Unsupported value for If-None-Match - Only "*" is supported')
    return True


# Download


async def _gone(repository: Repository, ref: str, error: ObjectMissing) -> LakebedError:
    """Return an error that names the run which expired the commit; otherwise return the store's error."""
    try:
        await repository.versions.retired.check_not_expiring([await repository.versions.refs.resolve_commit(ref)])
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


def _headers(entry: Entry) -> dict[str, str]:
    return {
        "accept-ranges": "bytes",
        "cache-control": "no-store, must-revalidate",
        "content-type": entry.content_type,
        "etag": f'"{entry.checksum}"',
        "expires": _NEVER,
        "last-modified": formatdate(entry.modified_ms / 1000, usegmt=True),
    }


def _asked_span(request: RestRequest, entry: Entry) -> tuple[int, int] | None:
    header = request.header(b"range")
    if header is not None and not has_same_bytes(request.header(b"if-range"), entry):
        return None
    return _span(header, entry.size_bytes)


def _span(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Return the bytes that a Range header selects, from start to before end, cut to the size.

    None selects the whole object. start ≥ end selects no bytes. Several ranges at once are refused as unsatisfiable.
    """
    if header is None:
        return None
    match = _RANGE.fullmatch(header.strip())
    if match is None:
        if "," in header and _RANGES.fullmatch(header.strip()):
            return size_bytes, size_bytes
        raise InvalidParameter('parameter "Range" in header has an error: not a byte range')
    first, last = match[1], match[2]
    if first:
        return int(first), min(int(last) + 1, size_bytes) if last else size_bytes
    if not last:
        raise InvalidParameter('parameter "Range" in header has an error: not a byte range')
    return max(size_bytes - int(last), 0), size_bytes


def _unsatisfiable(entry: Entry) -> Response:
    response = message_response(416, "Requested Range Not Satisfiable")
    response.headers["content-range"] = f"bytes */{entry.size_bytes}"
    return response


def _bare(status: int, headers: dict[str, str]) -> Response:
    """Return headers alone. Their content-length is that of the body of a GET."""
    return RawResponse(status, raw_headers(headers))
