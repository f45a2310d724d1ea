"""Path arguments, parameters and bodies of a request, checked, with the contract's words on error; and answers.

The query is parsed once, on first use. In a query `+` is a space and `%2B` a plus. In a path both are a plus. The
contract's clients encode that way.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence, Set
from typing import Final, TypedDict, TypeVar
from urllib.parse import urlsplit

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lakebed.auth import Identity, NotPermitted, Permissions
from lakebed.operations import AnyOperation, Operation
from lakebed.wire import Pagination

from .errors import InvalidBody, InvalidParameter
from .fields import query_pairs

B = TypeVar("B")
T = TypeVar("T")

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1000
PAIRS_MAX: Final = 10_000
"""The limit of pairs in a query or a form."""
_TRUTHS: Final = {
    **dict.fromkeys(("true", "True", "TRUE", "t", "T", "1"), True),
    **dict.fromkeys(("false", "False", "FALSE", "f", "F", "0"), False),
}
_INTEGER: Final = re.compile(r"-?\d{1,18}")
_MISSING: Final = re.compile(r"Object missing required field `(.+)`")
_AMOUNT_SCHEMA: Final = {"default": 100, "maximum": 1000, "minimum": -1, "type": "integer"}
_encode: Final = msgspec.json.Encoder().encode
_decoders: dict[object, msgspec.json.Decoder[object]] = {}


class Page(TypedDict):
    """The part of a listing that a request asks for: names with this prefix, after this one, and at most `limit`."""

    prefix: str
    after: str
    limit: int


class RestRequest(Request):
    """`args` are the decoded path arguments in order. All but public routes have `identity`, the caller, and
    `permissions`, those of the caller. `operation` is the called operation, or None if no operation has the path.
    `parameters` are the names that it declares. `refusal` is the reason of a refusal, and empty otherwise.

    A door other than REST sets the fields for metrics and the audit log itself: `operation_name`, the names in `what`,
    and `through`, the key of the caller.
    """

    args: Sequence[str] = ()
    identity: Identity
    permissions: Permissions
    operation: AnyOperation | None = None
    refusal: str = ""
    operation_name: str = ""
    what: Mapping[str, str | list[str]] | None = None
    through: str = ""
    parameters: Set[str]
    _is_body_asked = False
    _record: object = None
    _query: dict[str, list[str]] | None = None
    _header_values: dict[bytes, bytes] | None = None

    async def stream(self) -> AsyncGenerator[bytes, None]:
        self._is_body_asked = True
        async for chunk in super().stream():
            yield chunk

    def may_leave_its_body(self) -> bool:
        """Return True if the client waits for `100 Continue` and did not get it."""
        return not self._is_body_asked and (self.header(b"expect") or "").lower() == "100-continue"

    @property
    def shown_operation(self) -> str:
        """The operation's name in metrics and logs; empty for an unknown path."""
        return self.operation_name or ("" if self.operation is None else self.operation.id)

    @property
    def is_secure(self) -> bool:
        """Return True for TLS, which a proxy may end. Any caller can send that header: use it to be stricter only."""
        return "https" in {self.scope["scheme"], self.header(b"x-forwarded-proto")}

    # Headers: an upload looks up eight, so one dictionary is cheaper than scans of the raw list

    def header(self, name: bytes) -> str | None:
        """Return the first header of this lower-case name."""
        value = self.raw_header(name)
        return None if value is None else str(value, "latin-1")

    def raw_header(self, name: bytes) -> bytes | None:
        return self._by_name().get(name)

    def has_any_header(self, names: Set[bytes]) -> bool:
        """Return whether the request has a header with one of these lower-case names."""
        return not names.isdisjoint(self._by_name())

    def _by_name(self) -> Mapping[bytes, bytes]:
        if self._header_values is None:
            self._header_values = dict(reversed(self.scope["headers"]))
        return self._header_values

    def cookie(self, name: str) -> bytes | None:
        """Return the last cookie of this name."""
        found = None
        for header, value in self.scope["headers"]:
            if header == b"cookie":
                for cookie in value.split(b";"):
                    key, _, content = cookie.strip().partition(b"=")
                    if key == name.encode():
                        found = content
        return found

    # Query

    def query_list(self, name: str) -> list[str]:
        assert name in self.parameters, f"the operation declares no parameter {name}"
        if self._query is None:
            self._query = parse_query(self.scope["query_string"])
        return self._query.get(name, [])

    def query(self, name: str, default: str = "") -> str:
        values = self.query_list(name)
        return values[0] if values else default

    def required(self, name: str) -> str:
        """Return the value of a required query parameter."""
        value = self.query(name)
        if not value:
            raise InvalidParameter(f'parameter "{name}" in query has an error: value is required but missing')
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.query(name)
        if not value:
            return default
        if value not in _TRUTHS:
            raise InvalidParameter(f'parameter "{name}" in query has an error: value {value}: an invalid boolean')
        return _TRUTHS[value]

    def integer(self, name: str, default: int) -> int:
        value = self.query(name)
        if not value:
            return default
        if not _INTEGER.fullmatch(value):
            raise InvalidParameter(f'parameter "{name}" in query has an error: value {value}: an invalid integer')
        return int(value)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of `choices`. An absent parameter gives the first."""
        value = self.query(name) or choices[0]
        if value not in choices:
            allowed = json.dumps(choices, separators=(",", ":"))
            raise InvalidParameter(
                f'parameter "{name}" in query has an error: value is not one of the allowed values {allowed}'
            )
        return value

    def page(self) -> Page:
        return Page(prefix=self.query("prefix"), after=self.query("after"), limit=self.amount())

    def amount(self) -> int:
        """Return the size of a result page: 100 by default, the maximum for zero and -1."""
        amount = self.integer("amount", PAGE_DEFAULT)
        if amount > PAGE_MAX or amount < -1:
            words = f"number must be at most {PAGE_MAX}" if amount > PAGE_MAX else "number must be at least -1"
            schema = json.dumps(_AMOUNT_SCHEMA, indent=2).replace("\n", "\n  ")
            raise InvalidParameter(
                f'parameter "amount" in query has an error: {words}\nSchema:\n  {schema}\n\nValue:\n  {amount}\n'
            )
        return amount if amount > 0 else PAGE_MAX

    # Body

    @property
    def known_record(self) -> object:
        """The decoded body, or None if it was not read or is invalid."""
        return self._record

    async def record(self, operation: Operation[B, object]) -> B:
        """Decode the JSON body, once. An optional body that is empty or null gives the default record.

        Raises:
            InvalidBody: it is no JSON, does not match the schema, or is too large.
        """
        if self._record is None:
            body = await self.small_body(operation.body_bytes_max)
            is_absent = operation.is_body_optional and body.strip() in {b"", b"null"}
            self._record = operation.body() if is_absent else _decode_record(operation.body, body)
        return self._record  # type: ignore[return-value]  # a request has one operation, and that has one record

    async def small_body(self, size_bytes_max: int) -> bytes:
        """Return the whole body.

        Raises:
            InvalidBody: it is larger than `size_bytes_max`.
        """
        self._is_body_asked = True
        chunks: list[bytes] = []
        size_bytes = 0
        has_more = True
        while has_more:
            # Do not use `stream`: the event loop registers every asynchronous generator, which costs 4 µs a request.
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk = message.get("body", b"")
            size_bytes += len(chunk)
            if size_bytes > size_bytes_max:
                raise InvalidBody(f"request body is larger than {size_bytes_max} bytes")
            if chunk:
                chunks.append(chunk)
            has_more = message.get("more_body", False)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _decode_record(kind: type[B], body: bytes) -> B:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(body)  # type: ignore[return-value]  # the table's keys are the types of its decoders
    except msgspec.ValidationError as error:
        name = getattr(kind, "__name__", str(kind))
        raise InvalidBody(
            f"request body has an error: doesn't match schema #/components/schemas/{name}: {_schema_words(error)}"
        ) from error
    except RecursionError as error:
        raise InvalidBody("request body has an error: it is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody(f"request body has an error: failed to decode request body: {error}") from error


def has_s3_signature(scope: Scope) -> bool:
    """Return whether a request has a signature of S3, valid or not. Nearly all of its requests have one, no others."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            return bool(value.startswith((b"AWS4-", b"AWS ")))
    query: bytes = scope["query_string"]
    return (
        b"X-Amz-Signature=" in query
        or b"X-Amz-Algorithm=" in query
        or (b"AWSAccessKeyId=" in query and b"Signature=" in query)
    )


def check_origin(request: RestRequest) -> None:
    """Refuse requests that a browser sent from a foreign page."""
    origin = request.header(b"origin")
    if origin is None:
        return
    try:
        sender = urlsplit(origin).netloc.lower()
    except ValueError:
        sender = ""
    if sender != (request.header(b"host") or "").lower():
        raise NotPermitted("a page of another origin sent this request", origin=origin)


def parse_query(raw: bytes) -> dict[str, list[str]]:
    """Decode the pairs of a query, or of a URL-encoded form, or raise InvalidParameter."""
    query: dict[str, list[str]] = {}
    for name, value in query_pairs(raw, most=PAIRS_MAX) if raw else ():
        query.setdefault(name, []).append(value)
    return query


def _schema_words(error: msgspec.ValidationError) -> str:
    text = str(error)
    missing = _MISSING.match(text)
    if missing:
        return f'Error at "/{missing[1]}": property "{missing[1]}" is missing'
    words, _, place = text.partition(" - at `$")
    return f'Error at "{place.rstrip("`").replace(".", "/")}": {words}'


# Answers


def answer(record: object, status: int = 200) -> Response:
    """Encode a record as JSON, a string as text, and None as no body."""
    if record is None:
        return nothing(status)
    if isinstance(record, str):
        return text(record, status)
    return JsonResponse(_encode(record), status)


class JsonResponse(Response):
    """A body of JSON with its two headers, at a third of the cost of Starlette's own constructor."""

    def __init__(self, body: bytes, status: int) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]


class RawResponse(Response):
    """An answer with raw headers and a body."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = headers


def nothing(status: int = 204) -> Response:
    return Response(status_code=status)


def text(words: str, status: int = 200) -> Response:
    return Response(words, status, media_type="text/plain")


def raw_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Encode headers in Latin-1, as REST sends them."""
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


def page_of(results: Sequence[T], *, has_more: bool, last: str) -> Pagination:
    """Describe a page. `last` is the name of the last result, after which the next page starts."""
    return Pagination(
        has_more=has_more, next_offset=last if has_more else "", results=len(results), max_per_page=PAGE_MAX
    )


class StreamedResponse(RawResponse):
    """Send a body of known size in chunks. Read the first chunk before sending anything, so that a missing object
    gives an error answer, not a broken connection. A client that disconnects ends the stream.
    """

    def __init__(
        self, first: bytes, rest: AsyncIterator[bytes], *, status: int, headers: list[tuple[bytes, bytes]]
    ) -> None:
        super().__init__(status, headers)
        self._first = first
        self._rest = rest

    async def close(self) -> None:
        """End the stream without sending it."""
        if isinstance(self._rest, AsyncGenerator):
            await self._rest.aclose()

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        gone = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            async for chunk in self._rest:
                if gone.done():
                    return
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            await self.close()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
