"""One server as seen from here: requests out, answers or errors in, and the only place that retries.

The table of operations names the repeatable ones: doing them twice ends like doing them once. Such a call is sent
again after 429, 503 and broken connections, at most `Retries.attempts` times, waiting longer each time and never less
than the server's Retry-After. Any other is sent once: a commit whose answer was lost is reported as `AnswerLost`.

A DELETE that is repeated after its answer was lost meets its own success as 404. We report that error: to hide it
would also hide that another writer deleted the thing.

Arguments of a path are percent-encoded here, each as one segment. A forked process makes connections of its own.
"""

from __future__ import annotations

import os
import random
import ssl
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, urlencode

import msgspec

from lakebed.base import Invalid, Unavailable, in_words
from lakebed.operations import API_ROOT, NOTHING, AnyOperation, Operation

from .errors import AnswerLost, BadAnswer, Unreachable, error_of
from .http import httpx

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

_STATUS_TO_RETRY: Final = frozenset({429, 503})
# Shorter than the five seconds after which uvicorn closes an idle connection: a request that meets a closing
# connection is lost, and one that may not be repeated is then an error for the user.
_KEEPALIVE_S: Final = 4.0
_CONNECTIONS_MAX: Final = 32
HOOKS_S: Final = 600.0
"""As long as one hook may take."""
_RETRY_AFTER_MAX_S: Final = 60.0

Query = Mapping[str, str | int | bool | list[str] | None]


@cache
def _certificates(*_: str | None) -> ssl.SSLContext:
    """Read the authorities that these variables name, once: it costs far more than the rest of a client."""
    return httpx.create_ssl_context()


class BadEndpoint(Invalid):
    """The endpoint is not an http or https URL."""


class BadSegment(Invalid):
    """A name that cannot be a part of a URL's path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    access_key_id: str
    secret_access_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The token of a login, in place of a key pair."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Set how often to send a repeatable call, and how long to wait before the second and later times."""

    attempts: int = 5
    first_wait_s: float = 0.2
    wait_max_s: float = 5.0

    def wait_s(self, failures: int, *, at_least_s: float = 0.0) -> float:
        """Return a wait that doubles with each failure, with jitter so that many clients do not come back together."""
        longest = min(self.wait_max_s, self.first_wait_s * 2.0 ** (failures - 1))
        jittered = longest * random.uniform(0.5, 1.0)  # noqa: S311  # it spreads load, it hides nothing
        return max(at_least_s, jittered)


def segment(name: str) -> str:
    """Return a name as one segment of a path, encoded, slashes inside it too, or raise BadSegment."""
    if name in {"", ".", ".."}:
        raise BadSegment(f"{name!r} cannot be a name", name=name)
    return quote(name, safe="~^@$")


def path_to(operation: AnyOperation, *arguments: str) -> str:
    """Return the whole path of an operation's route, each argument encoded as one segment."""
    return operation.root + operation.path_of(*map(segment, arguments))


_REFS: Final = ("branch", "tag", "commitId", "ref", "leftRef", "rightRef", "sourceRef", "destinationBranch")
"""Arguments of operations that are refs."""


def about_of(operation: AnyOperation, arguments: Sequence[str], query: Query, body: object) -> list[str]:
    """Name the things of an operation, for errors that do not: URIs of refs and paths, or the first name of its path.

    A ref that the operation changes is the last.
    """
    names = dict(zip(operation.arguments, arguments, strict=True))
    repository = names.get("repository")
    if repository is None:
        return [*arguments[:1]]
    refs = [names[name] for name in _REFS if name in names]
    path = str(query.get("path") or "")
    if source := getattr(body, "src_path", ""):
        return [_uri(repository, getattr(body, "src_ref", "") or refs[0], source), _uri(repository, refs[0], path)]
    if isinstance(ref := getattr(body, "ref", None), str):
        refs.insert(0, ref)
    return [_uri(repository, ref, path) for ref in refs] or [_uri(repository)]


def _uri(*names: str) -> str:
    return "lakefs://" + "/".join(filter(None, names))


def query_string(query: Query) -> str:
    """Percent-encoded, with %20 for a space; None is left out; booleans as JSON writes them; lists repeat the name."""
    pairs = [(name, item) for name, value in query.items() for item in (value if isinstance(value, list) else [value])]
    return urlencode([(name, _plain(value)) for name, value in pairs if value is not None], quote_via=quote, safe="")


def _plain(value: str | int | bool) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


_of_this_process: Final[weakref.WeakSet[Connection]] = weakref.WeakSet()
_of_parents: Final[list[tuple[httpx.Client, httpx.Client]]] = []
"""Never closed, and never let go: a thread of the parent may have held their locks when this process was forked."""


def _connect_anew() -> None:
    for connection in _of_this_process:
        connection.connect_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_connect_anew)


class Connection:
    """A pool of connections to one endpoint, with credentials. May be used by many threads, and by processes that are
    forked from this one; close it when done.

    `transport` and `sleep` are for tests. `timeout_s` is the longest silence of the server, not of a whole call. Where
    hooks may run, it is HOOKS_S longer.
    `changes_sent` counts requests other than reads, and `changes_answered` those of them with an answer.
    """

    def __init__(
        self,
        endpoint: str,
        credentials: Credentials | Token | None = None,
        *,
        retries: Retries = Retries(),
        timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._trace = trace
        self.changes_sent = self.changes_answered = 0
        self.endpoint = checked_endpoint(endpoint)
        self._retries = retries
        self._sleep = sleep
        timeout = httpx.Timeout(timeout_s, connect=10.0, pool=None)
        limits = httpx.Limits(max_connections=_CONNECTIONS_MAX, keepalive_expiry=_KEEPALIVE_S)
        certificates = _certificates(*(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")))

        def connect() -> tuple[httpx.Client, httpx.Client]:
            # Without credentials: a signed URL needs none, and its host may not see ours.
            signed = httpx.Client(timeout=timeout, limits=limits, transport=transport, verify=certificates)
            return signed, httpx.Client(
                auth=(credentials.access_key_id, credentials.secret_access_key)
                if isinstance(credentials, Credentials)
                else None,
                timeout=timeout,
                limits=limits,
                follow_redirects=True,
                transport=transport,
                verify=certificates,
                headers={
                    "User-Agent": "lakebed",
                    **({"Authorization": f"Bearer {credentials.token}"} if isinstance(credentials, Token) else {}),
                },
            )

        self._connect = connect
        self._signed, self._http = connect()
        _of_this_process.add(self)

    def connect_anew(self) -> None:
        """Leave the connections to the parent. Called once in a process that was forked, before anything else."""
        # On a shared connection each of the two processes would read answers to the other.
        _of_parents.append((self._signed, self._http))
        is_closed = self._http.is_closed
        self._signed, self._http = self._connect()
        if is_closed:
            self.close()

    def close(self) -> None:
        self._http.close()
        self._signed.close()

    def do(
        self,
        operation: Operation[B, A],
        *arguments: str,
        body: B | None = None,
        query: Query | None = None,
        content: Callable[[], Iterable[bytes]] | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
    ) -> A:
        """Carry out an operation, retry as the head of this file says, and return its answer.

        `arguments` fill in the path in order. `content`, a body in pieces, is called each time the request is sent.
        `once`: never send it again. Nor is a write with If-None-Match, and its conflict means that the name is taken.

        Raises:
            BadSegment: an argument cannot stand in a path.
            ErrorAnswer: the server refused or failed; see errors.py for the families.
            Unreachable, AnswerLost: no answer came.
            BadAnswer: the body is not the operation's record.
        """
        with self.open(
            operation,
            *arguments,
            body=body,
            query=query,
            content=content,
            headers=headers,
            once=once,
        ) as response:
            return self._answer(operation, response)

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        json: object = None,
        repeatable: bool | None = None,
    ) -> httpx.Response:
        """Send to any path, and return the whole answer. For routes that the table does not have."""
        again = method in {"GET", "HEAD", "PUT", "DELETE"} if repeatable is None else repeatable
        body = None if json is None else json_body(json)
        _, _, rest = path.partition("/repositories/")
        about = [_uri(unquote(rest.split("/")[0]))] if rest else []
        with self._stream(method, path, query, body, {}, again=again, creates=False, about=about) as response:
            self._read(response, changes=method not in {"GET", "HEAD"})
            return response

    @contextmanager
    def open(
        self,
        operation: AnyOperation,
        *arguments: str,
        body: object = None,
        query: Query | None = None,
        content: Callable[[], Iterable[bytes]] | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
    ) -> Iterator[httpx.Response]:
        """Carry out an operation as `do`, but read only status and headers. The caller iterates over the body."""
        path = path_to(operation, *arguments)
        own = headers or {}
        # Sent again, a write that demands an unused name could meet its own success, and report a conflict.
        is_conditional = "If-None-Match" in own and operation.method != "GET"
        again = operation.may_be_repeated and not once and not is_conditional
        creates = operation.creates or is_conditional
        data = content if body is None else json_body(body)
        about = about_of(operation, arguments, query or {}, body)
        with self._stream(
            operation.method,
            path,
            query,
            data,
            own,
            again=again,
            creates=creates,
            about=about,
            more_s=HOOKS_S if operation.runs_hooks else 0.0,
        ) as response:
            yield response

    @contextmanager
    def open_signed(
        self,
        method: str,
        url: str,
        *,
        about: str,
        content: Callable[[], Iterable[bytes]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[httpx.Response]:
        """Ask an object store by a signed URL, without our credentials, and repeat as `do` does.

        `about` names the object in errors: the URL itself is a secret.

        Raises:
            Unavailable: the store refused.
            Unreachable, AnswerLost: no answer came.
        """

        def send() -> httpx.Response:
            data = None if content is None else content()
            return self._signed.send(
                self._signed.build_request(method, url, content=data, headers=headers), stream=True
            )

        host = httpx.URL(url).netloc.decode()
        response = self._send(send, request=f"{method} {about}", again=True, changes=method != "GET", whom=host)
        try:
            if response.status_code >= 300:
                raise Unavailable(f"{about}: the object store answered {response.status_code} to a signed URL")
            yield response
        finally:
            response.close()

    @contextmanager
    def _stream(
        self,
        method: str,
        path: str,
        query: Query | None,
        content: Callable[[], Iterable[bytes]] | bytes | None,
        headers: Mapping[str, str],
        *,
        again: bool,
        creates: bool,
        about: Sequence[str] = (),
        more_s: float = 0.0,
    ) -> Iterator[httpx.Response]:
        if self._http.is_closed:
            raise _closed(f"{method} {path}")
        url = self.endpoint + path + (f"?{query_string(query)}" if query else "")
        own = httpx.Headers(headers, encoding="utf-8")  # as the contract's server reads metadata
        if isinstance(content, bytes):
            own["Content-Type"] = "application/json"

        def send() -> httpx.Response:
            data = content() if callable(content) else content
            request = self._http.build_request(method, url, content=data, headers=own)
            request.extensions["timeout"]["read"] += more_s
            return self._http.send(request, stream=True)

        response = self._send(send, request=f"{method} {path}", again=again, changes=method not in {"GET", "HEAD"})
        try:
            if response.status_code >= 300:
                self._read(response, changes=False)
                raise error_of(
                    response.status_code,
                    response.content,
                    request=f"{method} {path}",
                    about=about,
                    query=query or {},
                    creates=creates,
                )
            yield response
        finally:
            response.close()

    def _answer(self, operation: Operation[B, A], response: httpx.Response) -> A:
        self._read(response, changes=operation.method not in {"GET", "HEAD"})
        answer: Any
        if operation.answer is NOTHING:
            answer = None
        elif operation.answer is bytes:
            answer = response.content
        elif operation.answer is str:
            answer = response.text.strip()
        else:
            answer = decode(response, operation.answer)
        return answer  # type: ignore[no-any-return]  # the branches above are the kinds that A may be

    def _send(
        self, send: Callable[[], httpx.Response], *, request: str, again: bool, changes: bool, whom: str = ""
    ) -> httpx.Response:
        """`whom`: who is asked, where it is not the endpoint."""
        failures = 0
        self.changes_sent += changes
        while True:
            last = not again or failures + 1 >= self._retries.attempts
            wait_s, began_s = 0.0, time.monotonic()
            try:
                response = send()
                self._note(request, str(response.status_code), began_s)
            except httpx.TransportError as error:
                self._note(request, in_words(error), began_s)
                if last or isinstance(error, httpx.UnsupportedProtocol):
                    raise self._lost(error, request=request, changes=changes, whom=whom) from error
            except RuntimeError as error:
                if not self._http.is_closed:
                    raise
                raise _closed(request) from error
            else:
                if last or response.status_code not in _STATUS_TO_RETRY:
                    self.changes_answered += changes
                    return response
                wait_s = retry_after_s(response)
                response.close()
            failures += 1
            self._sleep(self._retries.wait_s(failures, at_least_s=wait_s))

    def _note(self, request: str, outcome: str, began_s: float) -> None:
        if self._trace is not None:
            self._trace(f"{request} {outcome} {(time.monotonic() - began_s) * 1000:.0f} ms")

    def _read(self, response: httpx.Response, *, changes: bool) -> None:
        try:
            response.read()
        except httpx.TransportError as error:
            raise self._lost(error, request=str(response.request.url.path), changes=changes) from error

    def _lost(
        self, error: httpx.TransportError, *, request: str, changes: bool, whom: str = ""
    ) -> Unreachable | AnswerLost:
        why, whom = in_words(error), whom or self.endpoint
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol):
            return Unreachable(f"cannot reach {whom}: {why}", request=request)
        if changes:
            return AnswerLost(
                f"the connection to {whom} broke before the answer came ({why}): "
                "find out whether it happened before you repeat it",
                request=request,
            )
        return Unreachable(f"the connection to {whom} broke: {why}", request=request)


class Noun:
    """The operations on one noun, over the connection of a client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection


def _closed(request: str) -> Invalid:
    return Invalid("the connection was closed", request=request)


def json_body(value: object) -> bytes:
    """Return JSON, without fields that are None: in the contract absent and null are not the same."""
    encoded = msgspec.json.encode(value)
    if isinstance(value, msgspec.Struct):
        fields = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
        encoded = msgspec.json.encode({name: field for name, field in fields.items() if bytes(field) != b"null"})
    return encoded


def decode(response: httpx.Response, type_: type[T]) -> T:
    """Return the JSON body as a record.

    Raises:
        BadAnswer: the body is no such record.
    """
    try:
        return msgspec.json.decode(response.content, type=type_)
    except msgspec.DecodeError as error:
        request = f"{response.request.method} {response.request.url.path}"
        words = f"unexpected answer to {request}: {error}. Is the endpoint the server's own address?"
        raise BadAnswer(words, request=request) from error


def retry_after_s(response: httpx.Response) -> float:
    """Return Retry-After in seconds, at most a minute; 0 where it is absent or a date (we wait our own time then)."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), _RETRY_AFTER_MAX_S) if text.isascii() and text.isdigit() else 0.0


def checked_endpoint(endpoint: str) -> str:
    """Without trailing slash, and without `/api/v1`, which people copy from other clients' settings."""
    trimmed = endpoint.rstrip("/").removesuffix(API_ROOT)
    try:
        url = httpx.URL(trimmed)
    except httpx.InvalidURL as error:
        raise BadEndpoint(f"endpoint {endpoint!r}: {error}", endpoint=endpoint) from error
    if url.scheme not in {"http", "https"} or not url.host or url.query or url.fragment:
        raise BadEndpoint(f"endpoint {endpoint!r} is not of the form http://host:port", endpoint=endpoint)
    return trimmed
