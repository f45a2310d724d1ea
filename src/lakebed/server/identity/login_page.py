"""The page `/login`: who is logged in with this browser, and where a login begins.

The session cookie is `SameSite=Strict`. A browser that comes from the provider does not send it, however it was
redirected. So the callback sends it to `/login?fresh`, which loads `/login` once more, from our own page.
Links are relative: a proxy may serve this server below a path.
"""

from __future__ import annotations

from html import escape
from typing import Final

from starlette.responses import Response

from lakebed.auth import SESSION_COOKIE, NotAuthenticated
from lakebed.operations import API_ROOT, sessions
from lakebed.server.http.requests import RestRequest
from lakebed.server.state import AppState

LOGIN_PAGE: Final = b"/login"
FRESH: Final = b"fresh"
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Lakebed</title></head>
<body><h1>Lakebed</h1>
<p>{words}</p>
</body></html>
"""
_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


async def login_page(request: RestRequest, state: AppState) -> Response:
    """Answer with the page. Only the session cookie counts: a header is of no browser."""
    user = await _user_of(request, state)
    headers = dict(_HEADERS)
    if user is not None:
        words = f"You are logged in as <strong>{escape(user)}</strong>."
    elif request.scope["query_string"] == FRESH:
        headers["refresh"] = "0; url=login"
        words = '<a href="login">Go on</a>'
    elif state.providers.redirect_uri:
        words = f'You are not logged in. <a href="{(API_ROOT + sessions.OIDC_LOGIN.path)[1:]}">Log in</a>'
    else:
        words = "You are not logged in, and this server begins no logins in a browser."
    return Response(_PAGE.format(words=words), headers=headers, media_type="text/html")


async def _user_of(request: RestRequest, state: AppState) -> str | None:
    session = request.cookie(SESSION_COOKIE)
    try:
        return None if session is None else (await state.authenticator.authenticate(None, session)).user_id
    except NotAuthenticated:
        return None
