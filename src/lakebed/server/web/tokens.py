"""The token in each form: a MAC of the browser's cookie, under a key of the server.

A page of another site can send a form to us. It can read neither our cookie nor our pages, so it has no token. Before
a login the browser has no session, so it gets a separate cookie.
"""

from __future__ import annotations

import base64
import hmac
from typing import Final

from lakebed.auth import SESSION_COOKIE, NotPermitted
from lakebed.server.http.requests import RestRequest, check_origin

VISITOR_COOKIE: Final = "lakebed_visitor"
FIELD: Final = "token"


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
    """Check the token of a form.

    Raises:
        StrangeForm: this browser got no form with this token.
    """
    if not visitor or not hmac.compare_digest(token_of(key, visitor).encode(), token.encode(errors="surrogatepass")):
        raise StrangeForm("this form is of another login or another browser: load the page again")


def check_sender(request: RestRequest) -> None:
    """Check the origin of a form.

    Raises:
        StrangeForm: a page of another origin sent this form.
    """
    try:
        check_origin(request)
    except NotPermitted as error:
        raise StrangeForm(str(error)) from error
