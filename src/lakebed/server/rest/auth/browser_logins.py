"""Logins in a browser at the provider of OpenID Connect: begin a login, and finish it.

1. Begin: send the browser to the provider, with a cookie that ties the attempt to this browser.
2. The provider identifies the person, and sends the browser back with a code and our state.
3. Finish: check the state against the cookie, exchange the code for an id token, check the nonce, and map the
   principal to a user. Then set the session cookie.

Every URL comes from the operator's setting or from the provider's description of itself. None comes from the
request's parameters or Host, so no link can redirect a browser elsewhere.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.responses import Response

from lakebed.auth import NotAuthenticated
from lakebed.base import Invalid
from lakebed.operations import API_ROOT, accounts, installation
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, serves
from lakebed.server.identity.login_attempts import (
    ATTEMPT_S,
    FRESH,
    LOGIN_PAGE,
    LoginAttempt,
    LoginAttempts,
    LoginRefused,
)
from lakebed.server.identity.providers import CALLBACK
from lakebed.server.state import AppState

from .users import PRINCIPAL_LIFETIME_MAX_S, keep_session

_COOKIE: Final = "lakebed_login"
_ERROR: Final = re.compile(r"[a-z_]{1,64}")


class BrowserLogins(Resource):
    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._authenticator = state.authenticator
        self._providers = state.providers
        self._attempts = LoginAttempts(state.login_key, state.ports)
        # Behind a proxy that ends TLS, only the setting shows whether browsers use https.
        self._secure = self._providers.redirect_uri.startswith("https:")
        # Browsers accept a cookie with this prefix from this host only, not from another host of its domain.
        self._cookie = f"__Host-{_COOKIE}" if self._secure else _COOKIE

    @serves(accounts.OIDC_LOGIN)
    async def begin(self, _: RestRequest) -> Response:
        attempt = self._attempts.begin()
        url = await self._providers.login_url(state=attempt.state, nonce=attempt.nonce, challenge=attempt.challenge)
        response = _redirect(url)
        # Lax: the provider redirects the browser back, and that request must send the cookie.
        response.set_cookie(
            self._cookie, attempt.cookie, max_age=ATTEMPT_S, httponly=True, samesite="lax", secure=self._secure
        )
        return response

    @serves(installation.OAUTH_CALLBACK)
    async def finish(self, request: RestRequest) -> Response:
        redirect_uri = self._providers.redirect_uri
        if not redirect_uri:
            raise Invalid("this server begins no logins in a browser: LAKEBED_OIDC_REDIRECT_URI is not set")
        token = await self._token_of(request, self._attempt_of(request))
        base = redirect_uri.removesuffix(CALLBACK)
        response = _redirect(f"{base}{LOGIN_PAGE.decode()}?{FRESH}")
        keep_session(response, token, PRINCIPAL_LIFETIME_MAX_S, secure=self._secure)
        response.delete_cookie(self._cookie, httponly=True, samesite="lax", secure=self._secure)
        return response

    def _attempt_of(self, request: RestRequest) -> LoginAttempt:
        """Return the attempt that this browser began, from its cookie and state."""
        begin = self._providers.redirect_uri.removesuffix(CALLBACK) + API_ROOT + accounts.OIDC_LOGIN.path
        cookie = (request.cookie(self._cookie) or b"").decode("latin-1")
        try:
            attempt = self._attempts.resume(cookie, request.query("state"))
        except LoginRefused as error:
            raise LoginRefused(f"{error}: begin at {begin}") from error
        if refusal := request.query("error"):
            # Show only an error code of the standard: anyone can write this text into a link.
            shown = refusal if _ERROR.fullmatch(refusal) else "an error"
            raise LoginRefused(f"the provider answers with {shown}: begin again at {begin}")
        if not self._providers.is_issuer(request.query("iss")):
            raise LoginRefused(f"another provider answers: begin again at {begin}")
        return attempt

    async def _token_of(self, request: RestRequest, attempt: LoginAttempt) -> str:
        """Log in as the user of the provider's code, and record the login for the audit log."""
        code, redirect_uri = request.required("code"), self._providers.redirect_uri
        try:
            principal = await self._providers.exchange(
                code, redirect_uri, verifier=attempt.verifier, nonce=attempt.nonce
            )
        except NotAuthenticated as error:
            raise LoginRefused(f"failed to exchange the code: {error}") from error
        request.what = {"principal": principal}
        try:
            token, _ = await self._authenticator.log_in_as(principal, lifetime_s=PRINCIPAL_LIFETIME_MAX_S)
            request.identity = await self._authenticator.authenticate(None, token.encode())
        except NotAuthenticated as error:
            raise LoginRefused(
                f"{principal} stands for no user here: an administrator attaches it by `lakebed auth principals attach`"
            ) from error
        return token


def _redirect(url: str) -> Response:
    headers = {"location": url, "cache-control": "no-store", "referrer-policy": "no-referrer"}
    return Response(status_code=302, headers=headers)
