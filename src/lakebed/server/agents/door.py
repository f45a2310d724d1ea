"""Answer one POST of an agent: check the caller, then its permissions, and read the body last.

Logins are those of the API, by header. The endpoint ignores cookies and refuses pages of a browser (DNS rebinding).
The query names the branch to write to, `?branch=REPOSITORY/BRANCH`, or `?read_only=1`. Else the first write makes a
sandbox for the login and its session. Requests stand alone: any process answers the next one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec
from starlette.responses import Response

from lakebed import agents
from lakebed.auth import Identity, NotPermitted, Permissions, UserRecord
from lakebed.base import NotFound
from lakebed.operations import Operation
from lakebed.sandboxes import Agents
from lakebed.server.collectors import check_runs
from lakebed.server.http.errors import Answer, InvalidParameter, MethodNotAllowed
from lakebed.server.http.gate import permissions_of
from lakebed.server.http.requests import RawResponse, RestRequest, parse_query
from lakebed.server.http.routing import Route
from lakebed.server.state import AppState
from lakebed.server.web.asking import Asking, body_of, texts_of
from lakebed.wire import TOOL_HEADER, SandboxWithSecret

A = TypeVar("A")
B = TypeVar("B")

PATH: Final = b"/mcp"
BODY_BYTES_MAX: Final = 512 << 10
"""The size limit of one message. The package decodes 20 MiB a second and blocks the event loop meanwhile."""
SESSION: Final = b"mcp-session-id"
"""A client of an early version of the protocol sends what it got at the beginning. Others have no session."""
BEGIN: Final = "initialize"
"""The first message in early versions of the protocol. Others have none."""
_OF_SANDBOX: Final = frozenset({"from", "session", "ttl"})
_QUERY: Final = _OF_SANDBOX | {"branch", "repository", "read_only"}
_NAME: Final = re.compile(r"[!-~]{0,128}")


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
            NotFound: the query names a repository or branch that does not exist.
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
        method = _method_of(body)
        if method == BEGIN:
            # Not later: a client with a session takes 404 for its end, and a branch may go after its merge.
            await scope.check_names()
        status, headers, content = await agents.answer_over_http(scope, request.scope, body)
        if not scope.writers.is_read_only and request.raw_header(SESSION) is None and method == BEGIN:
            headers.append((SESSION, self._state.ports.ids.fresh().encode()))
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
        operations = OwnOperations(self._state, self._asking, request)
        repository, _, branch = (query.get("branch") or [""])[-1].removeprefix("lakefs://").partition("/")
        is_read_only = (query.get("read_only") or ["0"])[-1] not in {"0", "false"}
        if repository and not branch:
            raise InvalidParameter("branch names a repository and a branch: ?branch=lake/agent")
        if bool(branch) + is_read_only + bool(_OF_SANDBOX & query.keys()) > 1:
            raise InvalidParameter("choose one: branch, read_only, or a sandbox (from, session, ttl)")
        writers: agents.Writers
        if is_read_only or request.identity.delegation is not None:  # the token of a job lends no right to write
            writers = agents.NoWrites()
        elif branch:
            writers = agents.FixedBranch(repository, branch, operations)
        else:
            source, ttl, session = ((query.get(name) or [""])[-1] for name in ("from", "ttl", "session"))
            session = session or (request.raw_header(SESSION) or b"").decode("latin-1")
            if not _NAME.fullmatch(session):
                raise InvalidParameter("a session has up to 128 letters, digits and signs, and no spaces")
            writers = agents.OwnSandbox(
                operations, KeptForAll(self._state, request, operations, session), source=source, ttl=ttl
            )
        return agents.Scope(
            operations=operations,
            writers=writers,
            repositories=tuple(query.get("repository", ())),
            parsers=self._parsers,
        )


class _Message(msgspec.Struct):
    method: str = ""


def _method_of(body: bytes) -> str:
    """Return the method that a message calls; empty where it is none."""
    try:
        return msgspec.json.decode(body, type=_Message).method
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


class KeptForAll:
    """Remember the sandbox of a session in the store, and write as its user.

    No key is needed: the server knows from its own record that the sandbox was made for the login of this request.
    """

    def __init__(self, state: AppState, request: RestRequest, operations: OwnOperations, session: str) -> None:
        self._state = state
        self._request = request
        self._operations = operations
        self._session = session
        self._agents = Agents(state.store, state.ports, state.sandboxes)

    async def find(self, repository: str) -> agents.Box | None:
        """
        Raises:
            SandboxEnded: it has ended, and is forgotten by that.
            TooManySandboxes: see there.
        """
        user = await self._user()
        if user.is_sandbox:
            return agents.Box(id=user.id, operations=self._operations, note="")
        sandbox = await self._agents.find(user, self._session, repository)
        if not sandbox:
            return None
        try:
            record = await self._state.sandboxes.get(await self._state.catalog.get(repository), sandbox)
        except NotFound:
            record = None
        if record is None or not record.lasts_at(self._state.ports.clock.now_ms()):
            await self._agents.forget(user, self._session, repository, sandbox)
            raise agents.SandboxEnded(sandbox)
        return self._box(sandbox, record.source, record.expires_ms // 1000)

    async def keep(self, repository: str, made: SandboxWithSecret) -> agents.Box:
        user = await self._user()
        sandbox = await self._agents.keep(
            user, self._session, repository, sandbox=made.id, ends_ms=made.expiration_date * 1000
        )
        if sandbox != made.id:
            await self._state.sandboxes.end(await self._state.catalog.get(repository), made.id, by=user.id)
        return self._box(sandbox, made.source, made.expiration_date)

    async def _user(self) -> UserRecord:
        return await self._state.accounts.get_user(self._request.identity.user_id)

    def _box(self, sandbox: str, source: str, ends_s: int) -> agents.Box:
        operations = self._operations.of_sandbox(sandbox)
        return agents.Box(id=sandbox, operations=operations, note=agents.note_of(sandbox, source, ends_s))


class OwnOperations:
    """Call this server's own operations, as the user of a request, or as the user of its sandbox."""

    def __init__(self, state: AppState, asking: Asking, request: RestRequest, sandbox: Identity | None = None) -> None:
        self._state = state
        self._asking = asking
        self._request = request
        self._sandbox = sandbox

    def of_sandbox(self, id_: str) -> OwnOperations:
        return OwnOperations(self._state, self._asking, self._request, Identity(user_id=id_))

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
        if self._sandbox is None:
            asked.identity, asked.permissions = self._request.identity, self._request.permissions
        else:
            asked.identity = self._sandbox
            asked.permissions = await permissions_of(self._state, asked)
        result = await self._asking.answer(asked, is_refusal_noted=bool(tool))
        if not isinstance(result, Response):
            return result  # type: ignore[return-value]  # the table's promise
        data = await body_of(result, asked)
        if operation.answer is bytes:
            return data  # type: ignore[return-value]  # the operation answers with bytes
        return msgspec.json.decode(data, type=operation.answer) if data else None  # type: ignore[return-value]  # as above
