"""Call an operation for a page or a tool as the API calls it, with its gate, its audit line and its errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias
from urllib.parse import quote

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive

from lakebed.auth import NotPermitted
from lakebed.base import Denied, LakebedError
from lakebed.hooks import CALLER
from lakebed.operations import AnyOperation, table
from lakebed.server.http.errors import status_and_message, warn_of_wrong_secret
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Route
from lakebed.server.operate.logs import REQUEST_ID
from lakebed.server.state import AppState

logger = logging.getLogger(__name__)

Headers: TypeAlias = "Mapping[str, str]"
Value: TypeAlias = "str | int | bool | list[str] | None"

_KEPT: Final = frozenset(
    {b"host", b"origin", b"user-agent", b"forwarded", b"via", b"x-real-ip"}
    | {b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"}
)
"""Headers about the origin of a request. Operations and the audit log read them."""


class AskedRequest(RestRequest):
    """A request in the form of the API. `receive` returns its body."""

    def __init__(
        self,
        outer: RestRequest,
        route: Route,
        args: tuple[str, ...],
        *,
        query: Mapping[str, list[str]],
        headers: Headers,
        receive: Receive,
    ) -> None:
        operation = route.operation
        path = operation.root + operation.path_of(*(quote(each, safe="") for each in args))
        kept = [pair for pair in outer.scope["headers"] if pair[0] in _KEPT]
        given = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        scope = {
            **outer.scope,
            "method": operation.method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": kept + given,
        }
        super().__init__(scope, receive)
        self.operation = operation
        self.args = args
        self.parameters = route.parameters
        unknown = query.keys() - route.parameters
        assert not unknown, f"{operation.id} has no parameter {unknown}"
        self._query = dict(query)


class Asking:
    """Call operations by the routes of the API."""

    def __init__(self, state: AppState, routes: Iterable[Route]) -> None:
        self._state = state
        self._routes: Final = {route.operation: route for route in routes}

    def request(
        self,
        outer: RestRequest,
        operation: AnyOperation,
        args: tuple[str, ...],
        *,
        query: Mapping[str, list[str]],
        body: object = None,
        content: bytes | None = None,
        headers: Headers | None = None,
        receive: Receive | None = None,
    ) -> AskedRequest:
        """Build a request. A record is encoded as JSON, so the operation checks it like one from outside.

        `content` is a body of bytes, in place of a record.
        """
        given = dict(headers or {})
        if receive is None:
            data = content or b""
            if body is not None:
                data = msgspec.json.encode(body)
                given["content-type"] = "application/json"
            receive = _once(data)
        return AskedRequest(outer, self._routes[operation], args, query=query, headers=given, receive=receive)

    async def answer(self, request: AskedRequest, *, is_refusal_noted: bool = True) -> object:
        """Carry the operation out. `is_refusal_noted`: false where the user did not ask for it.

        Raises:
            LakebedError: an error of the gate or of the operation.
        """
        assert request.operation is not None
        route, began_s, status = self._routes[request.operation], time.perf_counter(), 500
        CALLER.set(request)
        try:
            result = await route.carry_out(request)
            status = result.status_code if isinstance(result, Response) else route.operation.status
        except LakebedError as error:
            request.refusal = str(error) if isinstance(error, Denied) else ""
            status = api_status(error, route.operation)
            warn_of_wrong_secret(logger, error, request.scope.get("client"), lambda: "a login on the page")
            raise
        finally:
            if is_refusal_noted or not request.refusal:
                self._state.audit.note(request, REQUEST_ID.get(), status)
            self._state.metrics.count_request(request.shown_operation, status, time.perf_counter() - began_s)
        return result


def api_status(error: LakebedError, operation: AnyOperation | None) -> int:
    """Return the status with which the API answers this error."""
    if isinstance(error, NotPermitted) and operation in table.CONTRACT:
        return 401  # The contract keeps 403 for protected branches.
    return status_and_message(error)[0]


async def body_of(response: Response, request: AskedRequest) -> bytes:
    """Return the whole body of an operation's answer. For large content, request a range."""
    chunks: list[bytes] = []

    async def collect(message: Message) -> None:
        if message["type"] == "http.response.body":
            chunks.append(message.get("body", b""))

    await response(request.scope, request.receive, collect)
    return b"".join(chunks)


def texts_of(query: Mapping[str, Value]) -> dict[str, list[str]]:
    """Return a query as texts, without parameters that have no value."""
    return {name: _texts(value) for name, value in query.items() if value is not None and value != ""}


def _texts(value: Value) -> list[str]:
    if isinstance(value, bool):
        return ["true" if value else "false"]
    return value if isinstance(value, list) else [str(value)]


def _once(data: bytes) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
