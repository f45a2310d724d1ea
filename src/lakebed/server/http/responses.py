"""Answers: JSON by msgspec, no body, text, and streamed bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lakebed.wire import Pagination

from .requests import PAGE_MAX

T = TypeVar("T")

_encode: Final = msgspec.json.Encoder().encode


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
