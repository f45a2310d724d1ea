"""Select the requests for a page, authenticate them, and show errors as pages.

A browser sends `Accept: text/html`. A client of the API with a wrong address does not, and gets the API's answer.
Only the session cookie authenticates here, because browsers send no Authorization header.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from lakebed.auth import SESSION_COOKIE, Identity, NotAuthenticated, Permissions
from lakebed.base import LakebedError
from lakebed.operations import PUBLIC_BYTES_MAX
from lakebed.server.http.errors import InvalidBody, NoSuchEndpoint, log_failure, status_and_message
from lakebed.server.http.gate import permissions_of
from lakebed.server.http.requests import RestRequest, parse_query
from lakebed.server.http.routing import Route, Router
from lakebed.server.identity.login_attempts import LOGIN_PAGE
from lakebed.server.state import AppState

from .asking import Asking
from .pages import PAGES
from .render import FOLDER
from .visit import StrangeForm, Visit, check_sender, page_at, visitor_of

logger = logging.getLogger(__name__)

FORM_BYTES_MAX: Final = 384 << 10
"""Enough for a policy of 100,000 bytes, each sent as three. Decoding it takes 25 ms and blocks the event loop."""
_FORM: Final = "application/x-www-form-urlencoded"
_STATIC: Final = b"/static/"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; object-src 'none'; "
        "base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
    ),
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: with it browsers send `Origin: null` with each form, so we could not check the origin.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every answer of this door."""


class Door:
    def __init__(self, state: AppState, routes: Iterable[Route], trusted: Identity | None = None) -> None:
        self._state = state
        self._trusted = trusted
        self._asking = Asking(state, routes)
        self._router = Router(PAGES)
        self._files = {file.name: file.read_bytes() for file in sorted((FOLDER / "static").iterdir())}
        self._digest = hashlib.sha256(b"".join(self._files.values())).hexdigest()[:16]

    def is_asked(self, request: RestRequest) -> bool:
        """Return whether a browser requests a page or sends a form."""
        path: bytes = request.scope["raw_path"]
        if request.scope["method"] in {"GET", "HEAD"}:
            is_ours = path.startswith(_STATIC) or path == LOGIN_PAGE
            return is_ours or "text/html" in (request.header(b"accept") or "")
        try:
            self._router.find(request.scope["method"], path[1:])
        except LakebedError:
            return False
        return True

    async def answer(self, request: RestRequest) -> Response:
        """Answer with a page, even after an error."""
        request.operation_name = "page"
        if request.scope["raw_path"].startswith(_STATIC):
            return _with_headers(self._static(request.scope["raw_path"]), "")
        visit = self._visit(request)
        try:
            response = await self._page_or_error(visit)
        except ClientDisconnect:
            raise
        except Exception:  # the outermost handler: a bug of ours must not close the connection without an answer
            logger.exception("unexpected error in the page %s", visit.page.path)
            response = _problem(visit, 500, "The server made a mistake. Its log has more.")
        for cookie in visit.cookies:
            response.raw_headers.append((b"set-cookie", cookie.encode("latin-1")))
        return _with_headers(response, "no-store")

    def _visit(self, request: RestRequest) -> Visit:
        return Visit(
            page=_NO_PAGE,
            request=request,
            state=self._state,
            asking=self._asking,
            static=f"static/{self._digest}",
            args=[],
            visitor=visitor_of(request),
            address={},
        )

    async def _page_or_error(self, visit: Visit) -> Response:
        try:
            return await self._page(visit)
        except LakebedError as error:
            return await self._failed(visit, error)

    async def _page(self, visit: Visit) -> Response:
        request = visit.request
        method = request.scope["method"]
        path = request.scope["raw_path"][1:]
        # Log in first, so that an error page shows the frame of the logged-in user.
        refusal = await self._log_in(visit)
        page, visit.args = self._router.find("GET" if method == "HEAD" else method, path)
        visit.address = parse_query(request.scope["query_string"])
        if refusal is not None and not page.is_public:
            raise refusal
        visit.page = page
        if page.method == "POST":
            check_sender(request)
            if not page.is_upload:
                visit.entered = await _form_of(request, PUBLIC_BYTES_MAX if page.is_public else FORM_BYTES_MAX)
                visit.check_token()
        return await page.answer(visit)

    async def _log_in(self, visit: Visit) -> NotAuthenticated | None:
        """Identify the user, or return the reason of the failure."""
        request = visit.request
        if self._trusted is not None:
            request.identity, request.permissions = self._trusted, Permissions.everything(self._trusted.user_id)
        else:
            try:
                session = request.cookie(SESSION_COOKIE)
                request.identity = await self._state.authenticator.authenticate(None, session)
            except NotAuthenticated as refusal:
                return refusal
            request.permissions = await permissions_of(self._state, request)
        visit.user = request.identity.user_id
        return None

    async def _failed(self, visit: Visit, error: LakebedError) -> Response:
        request = visit.request
        if isinstance(error, NotAuthenticated) and visit.page is _NO_PAGE:
            return self._ask_to_log_in(visit)
        status, message = status_and_message(error)
        if isinstance(error, StrangeForm):
            request.refusal = str(error)  # Refusals of operations have an audit line already.
        if isinstance(error, NoSuchEndpoint):
            message = "There is no such page."
        log_failure(logger, status, lambda: f"the page {visit.page.path}", error)
        try:
            again = await visit.show_again(error, status, message)
        except LakebedError:
            again = None
        response = again or _problem(visit, status, message)
        if status == 503:
            response.headers["retry-after"] = "1"
        return response

    def _ask_to_log_in(self, visit: Visit) -> Response:
        request = visit.request
        if request.scope["method"] == "POST":
            return _problem(visit, 401, "You are not logged in any more, so this changed nothing.")
        here = "" if request.scope["raw_path"] == b"/" else visit.here
        # A browser that comes from another site sends no cookie with its first request, but with its next one.
        return visit.go("login", next=here, fresh=None if visit.is_near else 1)

    def _static(self, path: bytes) -> Response:
        digest, _, name = path.removeprefix(_STATIC).decode("latin-1").partition("/")
        data = self._files.get(name)
        if data is None:
            return Response("There is no such file.", 404, media_type="text/plain")
        lasting = "public, max-age=31536000, immutable" if digest == self._digest else "no-cache"
        media_type = _TYPES.get(Path(name).suffix, "application/octet-stream")
        return Response(data, headers={"cache-control": lasting}, media_type=media_type)


async def _no_handler(visit: Visit) -> Response:
    raise NoSuchEndpoint(f"no page has the path {visit.here}")


_NO_PAGE: Final = page_at("")(_no_handler)


async def _form_of(request: RestRequest, size_bytes_max: int) -> dict[str, list[str]]:
    """Read the fields of a form."""
    if (request.header(b"content-type") or "").partition(";")[0].strip().lower() != _FORM:
        raise InvalidBody(f"a form is sent as {_FORM}")
    return parse_query(await request.small_body(size_bytes_max))


def _problem(visit: Visit, status: int, message: str) -> Response:
    visit.status, visit.problem = status, message
    return visit.render("problem")


def _with_headers(response: Response, caching: str) -> Response:
    for name, value in HEADERS.items():
        response.headers[name] = value
    if caching:
        response.headers["cache-control"] = caching
    return response
