"""Answer one POST of an agent: check the caller, then its permissions, and read the body last.

Logins are those of the API, by header. The endpoint ignores cookies and refuses pages of a browser (DNS rebinding).
The query names the branch to write to: `?branch=REPOSITORY/BRANCH`. Without it the connection is read-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec
from starlette.responses import Response

from lakebed import agents
from lakebed.auth import Identity, NotPermitted, Permissions
from lakebed.operations import Operation
from lakebed.server.collectors import check_runs
from lakebed.server.http.errors import Answer, InvalidParameter, MethodNotAllowed
from lakebed.server.http.gate import permissions_of
from lakebed.server.http.requests import RawResponse, RestRequest, parse_query
from lakebed.server.http.routing import Route
from lakebed.server.state import AppState
from lakebed.server.web.asking import Asking, body_of, texts_of
from lakebed.wire import TOOL_HEADER

A = TypeVar("A")
B = TypeVar("B")

PATH: Final = b"/mcp"
BODY_BYTES_MAX: Final = 512 << 10
"""The size limit of one message. The package decodes 20 MiB a second and blocks the event loop meanwhile."""
_QUERY: Final = frozenset({"branch", "repository", "read_only"})


class AgentsDoor:
    def __init__(self, state: AppState, routes: Iterable[Route], trusted: Identity | None = None) -> None:
        self._state = state
        self._trusted = trusted
        self._asking = Asking(state, routes)
        self._parsers = asyncio.Semaphore(agents.PARSERS_MAX)
        self._loading: asyncio.Task[None] | None = None

    async def answer(self, request: RestRequest) -> Response:
        """Answer one message of an agent.

        Raises:
            MethodNotAllowed: the method is not POST. No stream is offered.
            NotPermitted: a page in a browser sent the request.
            NotAuthenticated: the login is missing or wrong.
            Answer: the package of agents is not installed on this server.
            InvalidBody, InvalidParameter: the body is too large, or the query is wrong.
        """
        request.operation_name = "mcp"
        if request.scope["method"] != "POST":
            raise MethodNotAllowed("agents send POST to /mcp", allowed="POST")
        if request.header(b"origin") is not None:
            # Agents send no Origin. A page could have given this machine a name of its own (DNS rebinding).
            raise NotPermitted("a page in a browser may not ask /mcp")
        await self._log_in(request)
        if not agents.is_installed():
            raise Answer(501, "this server has no tools for agents: install lakebed[mcp] there")
        await self._load()
        scope = self._scope(request)
        body = await request.small_body(BODY_BYTES_MAX)
        status, headers, content = await agents.answer_over_http(scope, request.scope, body)
        return RawResponse(status, headers, content)

    async def _log_in(self, request: RestRequest) -> None:
        if self._trusted is not None:
            request.identity, request.permissions = self._trusted, Permissions.everything(self._trusted.user_id)
            return
        request.identity = await self._state.authenticator.authenticate(request.raw_header(b"authorization"), None)
        if request.identity.delegation is not None:
            await check_runs(self._state.catalog, request.identity.delegation)
        request.permissions = await permissions_of(self._state, request)

    async def _load(self) -> None:
        """Import the package in a thread, once. Requests to this endpoint wait for the import; other requests do
        not.
        """
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(agents.load))
        await asyncio.shield(self._loading)

    def _scope(self, request: RestRequest) -> agents.Scope:
        query = parse_query(request.scope["query_string"])
        if unknown := query.keys() - _QUERY:
            known = ", ".join(sorted(_QUERY))
            raise InvalidParameter(f"/mcp has no parameter {min(unknown)[:100]!a}: there are {known}")
        operations = OwnOperations(self._asking, request)
        repository, _, branch = (query.get("branch") or [""])[-1].removeprefix("lakefs://").partition("/")
        is_read_only = (query.get("read_only") or ["0"])[-1] not in {"0", "false"}
        if branch and is_read_only:
            raise InvalidParameter("branch and read_only contradict each other")
        if repository and not branch:
            raise InvalidParameter("branch names a repository and a branch: ?branch=lake/agent")
        return agents.Scope(
            operations=operations,
            writers=agents.FixedBranch(repository, branch, operations) if branch else agents.NoWrites(),
            repositories=tuple(query.get("repository", ())),
            parsers=self._parsers,
        )


class OwnOperations:
    """Call this server's own operations, as the user of a request."""

    def __init__(self, asking: Asking, request: RestRequest) -> None:
        self._asking = asking
        self._request = request

    async def call(
        self,
        operation: Operation[B, A],
        args: tuple[str, ...],
        query: Mapping[str, agents.Value],
        *,
        tool: str,
        body: B | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> A:
        asked = self._asking.request(
            self._request,
            operation,
            args,
            query=texts_of(query),
            body=body,
            content=content,
            headers={**(headers or {}), TOOL_HEADER: tool},
        )
        asked.identity, asked.permissions = self._request.identity, self._request.permissions
        result = await self._asking.answer(asked)
        if not isinstance(result, Response):
            return result  # type: ignore[return-value]  # the table's promise
        data = await body_of(result, asked)
        if operation.answer is bytes:
            return data  # type: ignore[return-value]  # the operation answers with bytes
        return msgspec.json.decode(data, type=operation.answer) if data else None  # type: ignore[return-value]  # as above
