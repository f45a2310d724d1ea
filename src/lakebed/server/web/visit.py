"""One request of a browser for a page: its user, the operations that it calls, and the answer."""

from __future__ import annotations

import base64
import hmac
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlencode

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive

from lakebed.auth import SESSION_COOKIE, NotPermitted
from lakebed.base import LakebedError
from lakebed.operations import AnyOperation, Operation
from lakebed.server.http.errors import Answer
from lakebed.server.http.requests import RestRequest, check_origin
from lakebed.server.process.folder import OBJECTS_FOLDER
from lakebed.server.state import AppState

from .asking import AskedRequest, Asking, Headers, Value, texts_of
from .render import render

VISITOR_COOKIE: Final = "lakebed_visitor"
FIELD: Final = "token"
B = TypeVar("B")
A = TypeVar("A")
NOTICE_COOKIE: Final = "lakebed_notice"
NOTICE_S: Final = 20
SEARCHED_FILES: Final = 70
"""Search in this many files, or what takes as long, for one page: some 15 ms."""
COLOURS_COOKIE: Final = "lakebed_colours"
COLOURS: Final = ("dark", "light")
_NAME: Final = re.compile(r"\{(\w+)\}")
MALFORMED: Final = (msgspec.DecodeError, UnicodeEncodeError, RecursionError)
"""Errors of a text that was entered as JSON."""


Handler: TypeAlias = Callable[..., Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Page:
    """A page or a form: its path, and its handler, which gets the visit and the arguments of the path.

    `by`: the value of the query that says what the page shows.
    """

    method: str
    path: str
    handler: Handler
    by: str = ""
    # The page with the form. If a form fails, this page is shown again, with the error.
    shown_by: Page | None = None
    # No login is needed.
    is_public: bool = False
    # The handler reads the body.
    is_upload: bool = False

    async def answer(self, visit: Visit) -> Response:
        """Run the handler. The path of a form may have more arguments than that of its page."""
        return await self.handler(visit, *visit.args[: self.path.count("{")])

    def form(self, end: str = "", *, is_upload: bool = False) -> Callable[[Handler], Page]:
        """Make a form of its handler. This page has it, and its path is that of the page, and then `end`."""
        return form_at(self.path + end, shown_by=self, is_public=self.is_public, is_upload=is_upload)

    def carry_out(
        self, end: str, operation: AnyOperation, names: str, notice: str, *, typed: str = "", to: Page | None = None
    ) -> Page:
        """Make a form that calls one operation, and then shows this page, or `to`, with a notice.

        `names`: the arguments of the operation, from the path, the form or the query. `typed`: the value that the user
        types to confirm. `{name}` is a value.
        """
        shown = to or self

        async def act(visit: Visit, *_: str) -> Response:
            values = dict(zip(_NAME.findall(visit.page.path), visit.args, strict=True))
            for name in names.split():
                values.setdefault(name, visit.entry(name).strip() or visit.query(name))
            if typed:
                visit.check_typed(values[typed])
            await visit.call(operation, *(values[name] for name in names.split()))
            segments = (segment.format_map(values) for segment in shown.path[1:].split("/"))
            query = {shown.by: values[shown.by]} if shown.by else {}
            return visit.go(*segments, notice=notice.format_map(values), **query)

        return self.form(end)(act)


def page_at(path: str, *, by: str = "", is_public: bool = False) -> Callable[[Handler], Page]:
    """Make a page of its handler. It is asked for with GET."""
    return lambda handler: Page(method="GET", path=path, handler=handler, by=by, is_public=is_public)


def form_at(
    path: str, *, shown_by: Page | None = None, is_public: bool = False, is_upload: bool = False
) -> Callable[[Handler], Page]:
    """Make a form of its handler. A page posts it."""
    return lambda handler: Page(
        method="POST", path=path, handler=handler, shown_by=shown_by, is_public=is_public, is_upload=is_upload
    )


@dataclass(slots=True)
class Visit:
    """`address` is the query, `entered` the form; `problem` is the reason why the form failed."""

    page: Page
    request: RestRequest
    state: AppState
    asking: Asking
    static: str
    args: list[str]
    visitor: str
    address: Mapping[str, list[str]]
    user: str = ""
    entered: Mapping[str, list[str]] = field(default_factory=dict)
    problem: str = ""
    status: int = 200
    # Reasons why parts of the page are not shown.
    hidden: list[str] = field(default_factory=list)
    cookies: list[str] = field(default_factory=list)
    # The address that the browser is to open next, at once.
    following: str = ""

    # Reading the request

    def query(self, name: str, default: str = "") -> str:
        values = self.address.get(name)
        return values[0] if values else default

    def entry(self, name: str, default: str = "") -> str:
        """Return a field of the form, with Unix line ends."""
        values = self.entered.get(name)
        return values[0].replace("\r\n", "\n") if values else default

    def check_token(self) -> None:
        """Check the token of the form, or raise StrangeForm."""
        check_token(self.state.login_key, self.visitor, self.entry(FIELD))

    def check_typed(self, expected: str) -> None:
        """Check that the user typed the expected text to confirm a change."""
        if self.entry("typed").strip() != expected.strip():
            raise Answer(400, f"Nothing was changed: type {expected} to confirm.")

    # Operations

    async def call(
        self,
        operation: Operation[B, A],
        /,
        *args: str,
        body: B | None = None,
        headers: Headers | None = None,
        **query: Value,
    ) -> A:
        """Call an operation as this user, and return its answer.

        Raises:
            LakebedError: the operation's own error.
        """
        return await self._answer(operation, self._request(operation, args, query, body=body, headers=headers))

    async def _answer(self, operation: Operation[B, A], request: AskedRequest) -> A:
        result = await self.asking.answer(request)
        if isinstance(result, Response):
            # A handler returns a response to set a header beside the record.
            result = msgspec.json.decode(result.body, type=operation.answer) if result.body else None
        return result  # type: ignore[return-value]  # the table's promise

    async def look(self, operation: Operation[B, A], /, *args: str, **query: Value) -> A | None:
        """Call an operation for a part of a page. If the user may not call it, note that on the page and return
        None.
        """
        try:
            return await self._answer(operation, self._request(operation, args, query))
        except NotPermitted as refused:
            self.hidden.append(str(refused))
            return None

    async def respond(
        self,
        operation: Operation[B, A],
        /,
        *args: str,
        body: B | None = None,
        headers: Headers | None = None,
        **query: Value,
    ) -> Response:
        """Call an operation that answers with a response of its own."""
        result = await self.asking.answer(self._request(operation, args, query, body=body, headers=headers))
        assert isinstance(result, Response), operation.id
        return result

    async def send(
        self,
        operation: Operation[bytes, A],
        /,
        *args: str,
        chunks: AsyncIterator[bytes],
        headers: Headers,
        **query: Value,
    ) -> A:
        """Call an operation that takes bytes, and stream them to it."""
        request = self._request(operation, args, query, headers=headers, receive=_receive(chunks))
        return await self.asking.answer(request)  # type: ignore[return-value]  # the table's promise

    def _request(
        self,
        operation: AnyOperation,
        args: tuple[str, ...],
        query: Mapping[str, Value],
        *,
        body: object = None,
        headers: Headers | None = None,
        receive: Receive | None = None,
    ) -> AskedRequest:
        asked = self.asking.request(
            self.request, operation, args, query=texts_of(query), body=body, headers=headers, receive=receive
        )
        if self.user:
            asked.identity, asked.permissions = self.request.identity, self.request.permissions
        return asked

    # Answering

    def url(self, *segments: str, **query: Value) -> str:
        """Return a relative address of this server. It works below any path of a proxy."""
        texts = texts_of(query)
        names = [quote(segment, safe="") for segment in segments]
        here = self.request.scope["raw_path"].decode("latin-1").split("/")[1:-1]
        # A page has hundreds of links. Most link to the same folder.
        while here and len(names) > 1 and here[0] == names[0]:
            del here[0], names[0]
        path = ("../" * len(here) or "./") + "/".join(names)
        return f"{path}?{urlencode(texts, doseq=True)}" if texts else path

    def url_of_path(self, path: str) -> str:
        """Return the relative address of a path, which begins with a slash, with its query."""
        return self.url() + path.removeprefix("/")

    @property
    def here(self) -> str:
        """The path and query of this request, to return to it."""
        query = self.request.scope["query_string"].decode("latin-1")
        path: str = self.request.scope["raw_path"].decode("latin-1")
        return f"{path}?{query}" if query else path

    def now(self) -> int:
        """Return the Unix time in seconds, to compare with times of records."""
        return self.state.ports.clock.now_ms() // 1000

    @property
    def token(self) -> str:
        if not self.visitor:
            self.visitor = secrets.token_urlsafe(32)
            self.set_cookie(VISITOR_COOKIE, self.visitor)
        return token_of(self.state.login_key, self.visitor)

    @property
    def colours(self) -> str:
        chosen = (self.request.cookie(COLOURS_COOKIE) or b"").decode("latin-1")
        return chosen if chosen in COLOURS else ""

    @property
    def notice(self) -> str:
        return unquote((self.request.cookie(NOTICE_COOKIE) or b"").decode("latin-1"))

    def set_cookie(self, name: str, value: str, lasts_s: int | None = None) -> None:
        response = Response()
        response.set_cookie(
            name, value, max_age=lasts_s, httponly=True, samesite="strict", secure=self.request.is_secure
        )
        self.cookies.append(response.headers["set-cookie"])

    def render(self, template: str, /, **values: object) -> Response:
        """Fill a template. Every template gets the visit too."""
        notice = self.notice
        if notice:
            self.set_cookie(NOTICE_COOKIE, "", 0)
        text = render(template, visit=self, url=self.url, notice=notice, **values)
        return Response(text, self.status, media_type="text/html")

    def ask_again(self, *segments: str, **query: Value) -> None:
        """Make the browser open this address once the page is shown: a search goes on there."""
        self.following = self.url(*segments, **query)

    def go(self, *segments: str, notice: str = "", **query: Value) -> Response:
        """Redirect the browser to a page, which shows `notice` once."""
        return self.go_to(self.url(*segments, **query), notice)

    def go_to(self, url: str, notice: str = "") -> Response:
        if notice:
            # Use a cookie: a link on another site must not make our pages show a notice.
            self.set_cookie(NOTICE_COOKIE, quote(notice[:500], safe=""), NOTICE_S)
        return Response(status_code=303, headers={"location": url})

    @property
    def data_option(self) -> str:
        """The option by which a command finds the plans and objects of `local://` repositories. It has the server's
        folder only for users who may give themselves every right.
        """
        if self.state.storage.blockstore_type != "local":
            return ""
        folder = self.state.data_dir.absolute()
        # The objects may be elsewhere (LAKEBED_BLOCKS_LOCAL_ROOT).
        is_here, permissions = (folder / OBJECTS_FOLDER).is_dir(), self.request.permissions
        is_shown = is_here and permissions.allows_everywhere("auth:AttachPolicy")
        return f" --data {shlex.quote(str(folder)) if is_shown else 'DIR'}"

    @property
    def is_near(self) -> bool:
        """Return whether one of our pages or the address bar led here. The browser then sends its session."""
        return self.request.header(b"sec-fetch-site") in {"same-origin", "none"}

    def log_in(self, response: Response) -> None:
        """Pass the session of a login on to the browser, and bind the forms of this page to it."""
        for name, value in response.raw_headers:
            if name == b"set-cookie":
                cookie = value.decode("latin-1")
                self.cookies.append(cookie)
                key, _, rest = cookie.partition("=")
                if key == SESSION_COOKIE:
                    self.visitor = rest.partition(";")[0]

    async def show_again(self, error: LakebedError, status: int, message: str) -> Response | None:
        """Show the page of a failed form again, with the error. Return None if this user may not see the page."""
        if self.page.shown_by is None:
            return None
        self.problem, self.status, self.page = message, status, self.page.shown_by
        try:
            response = await self.page.answer(self)
        except LakebedError:
            if isinstance(error, NotPermitted):
                return None
            raise error from None
        return None if response.status_code == 303 else response


def _receive(chunks: AsyncIterator[bytes]) -> Receive:
    async def receive() -> Message:
        chunk = await anext(chunks, None)
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

    return receive


# The token in each form: a MAC of the browser's cookie, under a key of the server
#
# A page of another site can send a form to us. It can read neither our cookie nor our pages, so it has no token. Before
# a login the browser has no session, so it gets a separate cookie.


def visitor_of(request: RestRequest) -> str:
    """Return the session, or before a login the visitor's random name; empty on a first visit."""
    cookie = request.cookie(SESSION_COOKIE) or request.cookie(VISITOR_COOKIE) or b""
    return cookie.decode("latin-1")


def token_of(key: bytes, visitor: str) -> str:
    mac = hmac.digest(key, b"form " + visitor.encode(errors="surrogatepass"), "sha256")
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


class StrangeForm(NotPermitted):
    """The form does not come from one of our pages in this browser."""


def check_token(key: bytes, visitor: str, token: str) -> None:
    """Check the token of a form."""
    if not visitor or not hmac.compare_digest(token_of(key, visitor).encode(), token.encode(errors="surrogatepass")):
        raise StrangeForm("this form is of another login or another browser: load the page again")


def check_sender(request: RestRequest) -> None:
    """Check the origin of a form."""
    try:
        check_origin(request)
    except NotPermitted as error:
        raise StrangeForm(str(error)) from error
