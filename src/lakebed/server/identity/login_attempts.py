"""Unfinished browser logins at the provider of OpenID Connect.

The server keeps no record of an attempt. The browser keeps a cookie with the end of the attempt and a random number.
State, nonce and PKCE verifier are MACs of that cookie under a key of the server, each with its own label. So any
process of the server can continue, a changed cookie matches no state, and a foreign page cannot finish its login here.

A replay has no effect: the provider accepts a code once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from lakebed.auth import NotAuthenticated
from lakebed.base import Ports

ATTEMPT_S: Final = 600
LOGIN_PAGE: Final = b"/login"
"""The page where a login begins and ends (`server/web`)."""
FRESH: Final = "fresh"
"""The session cookie is `SameSite=Strict`: a browser that comes from the provider does not send it, even after
redirects. So the callback redirects to `/login?fresh`, which loads `/login` once more from our own page.
"""


class LoginRefused(NotAuthenticated):
    """A browser login failed. The message is for the person at the browser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginAttempt:
    """`cookie` is sent to the browser; `state`, `nonce` and `challenge` to the provider; `verifier` with the code."""

    cookie: str
    state: str
    nonce: str
    verifier: str

    @property
    def challenge(self) -> str:
        return _text(hashlib.sha256(self.verifier.encode()).digest())


class LoginAttempts:
    def __init__(self, key: bytes, ports: Ports) -> None:
        self._key = key
        self._ports = ports

    def begin(self) -> LoginAttempt:
        ends_s = self._ports.clock.now_ms() // 1000 + ATTEMPT_S
        return self._attempt(f"{ends_s}.{_text(self._ports.ids.bits(256).to_bytes(32, 'big'))}")

    def resume(self, cookie: str, state: str) -> LoginAttempt:
        """Return the attempt that has this cookie and state, or raise LoginRefused."""
        attempt = self._attempt(cookie)
        if not cookie or not hmac.compare_digest(attempt.state.encode(), state.encode(errors="surrogatepass")):
            raise LoginRefused("this browser did not begin this login, or began another one since")
        # The state covers the cookie, so its first part is the number that this server wrote.
        if self._ports.clock.now_ms() >= 1000 * int(cookie.partition(".")[0]):
            raise LoginRefused(f"this login took longer than {ATTEMPT_S // 60} minutes")
        return attempt

    def _attempt(self, cookie: str) -> LoginAttempt:
        state, nonce, verifier = (self._mac(label, cookie) for label in (b"state", b"nonce", b"verifier"))
        return LoginAttempt(cookie=cookie, state=state, nonce=nonce, verifier=verifier)

    def _mac(self, label: bytes, cookie: str) -> str:
        return _text(hmac.digest(self._key, label + b" " + cookie.encode(errors="surrogatepass"), "sha256"))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
