"""From what a request carries to who sends it: Basic, Bearer, or the session cookie.

A proof that was good is remembered for CACHE_MS by its fingerprint (never in clear), so that a client pays for one
look-up of two keys and one decryption and then microseconds a request. Its price: credentials deleted through *another*
process stay good for that long; through this one they end at once (`forget_all`).

Secrets are compared in constant time. What was wrong is never told: not whether the key exists, nor which part failed.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass
from typing import Final

import jwt
import msgspec
from jwt.types import Options

from lakebed.base import Denied, Ports

from .accounts import Accounts
from .delegation import Delegation
from .keys import ServerKeys

SESSION_COOKIE: Final = "internal_auth_session"
TOKEN_LIFETIME_S: Final = 7 * 24 * 3600
CACHE_MS: Final = 5_000
CACHE_ENTRIES_MAX: Final = 10_000
_ALGORITHM: Final = "HS256"
_LOGIN: Final = "login"
_JOB: Final = "job"
"""An audience of its own: a server that knows nothing of delegations takes no such token for a login."""


class NotAuthenticated(Denied):
    """No proof, or none that holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who is calling. `user_id` becomes the committer of commits. With a `delegation` it is not they themselves."""

    user_id: str
    delegation: Delegation | None = None


class Authenticator:
    def __init__(self, accounts: Accounts, keys: ServerKeys, ports: Ports) -> None:
        self._accounts = accounts
        self._keys = keys
        self._ports = ports
        self._known: dict[bytes, tuple[Identity, int]] = {}

    async def authenticate(self, authorization: bytes | None, session: bytes | None) -> Identity:
        """Who sent a request with this Authorization header and this session cookie. The header goes first.

        Costs a hash and a look-up for a proof seen in the last 5 seconds.

        Raises:
            NotAuthenticated: neither proves anything.
        """
        proof = authorization if authorization is not None else session
        if proof is None:
            raise NotAuthenticated("no credentials")
        fingerprint = self._keys.fingerprint(proof if authorization is not None else b"cookie " + proof)
        known = self._known.get(fingerprint)
        now_ms = self._ports.clock.now_ms()
        if known is not None and now_ms < known[1]:
            return known[0]
        if authorization is None:
            identity = await self._from_token(proof)
        else:
            identity = await self._from_header(proof)
        if len(self._known) >= CACHE_ENTRIES_MAX:
            self._known.clear()
        self._known[fingerprint] = (identity, now_ms + CACHE_MS)
        return identity

    async def check_key_pair(self, access_key_id: str, secret_access_key: str) -> Identity:
        """
        Raises:
            NotAuthenticated: no such pair, or its user is gone.
        """
        record = await self._accounts.find_credentials(access_key_id)
        if record is None:
            raise NotAuthenticated("unknown access key")
        expected = self._keys.unseal(record.secret, access_key_id=access_key_id)
        if not hmac.compare_digest(expected.encode(), secret_access_key.encode(errors="surrogatepass")):
            raise NotAuthenticated("wrong secret")
        user = await self._accounts.find_user(record.user_id)
        if user is None or user.uid != record.user_uid:
            raise NotAuthenticated("the user is gone")
        return Identity(user_id=user.id)

    async def log_in(self, access_key_id: str, secret_access_key: str) -> tuple[str, int]:
        """A token for the user of this key pair, and when it ends (Unix seconds).

        Raises:
            NotAuthenticated: no such pair.
        """
        identity = await self.check_key_pair(access_key_id, secret_access_key)
        return await self.issue_token(identity, lifetime_s=TOKEN_LIFETIME_S)

    async def issue_token(
        self, identity: Identity, *, lifetime_s: int, delegation: Delegation | None = None
    ) -> tuple[str, int]:
        """A token for somebody who is logged in, or for what they delegate; and when it ends (Unix seconds).

        Raises:
            UserNotFound: they were deleted meanwhile.
        """
        assert identity.delegation is None, "what was delegated is not passed on"
        user = await self._accounts.get_user(identity.user_id)
        now_s = self._ports.clock.now_ms() // 1000
        expires_s = now_s + lifetime_s
        claims: dict[str, object] = {"sub": user.id, "uid": user.uid, "iat": now_s, "exp": expires_s, "aud": _LOGIN}
        if delegation is not None:
            claims |= {"aud": _JOB, "delegation": msgspec.to_builtins(delegation)}
        return jwt.encode(claims, self._keys.token_key, algorithm=_ALGORITHM), expires_s

    def forget_all(self) -> None:
        """Forget every remembered proof: credentials or a user were deleted."""
        self._known.clear()

    async def _from_header(self, header: bytes) -> Identity:
        scheme, _, rest = header.partition(b" ")
        match scheme.lower():
            case b"basic":
                access_key_id, secret_access_key = _decode_basic(rest)
                return await self.check_key_pair(access_key_id, secret_access_key)
            case b"bearer":
                return await self._from_token(rest.strip())
        raise NotAuthenticated("unknown scheme")

    async def _from_token(self, token: bytes) -> Identity:
        # Time is the Ports's, so PyJWT, which reads the machine's clock, must not check it.
        options: Options = {"require": ["sub", "uid", "exp"], "verify_exp": False, "verify_iat": False}
        try:
            claims = jwt.decode(
                token, self._keys.token_key, algorithms=[_ALGORITHM], audience=(_LOGIN, _JOB), options=options
            )
            delegation = None if claims["aud"] == _LOGIN else msgspec.convert(claims.get("delegation"), Delegation)
        except (jwt.PyJWTError, msgspec.ValidationError) as error:
            raise NotAuthenticated("bad token") from error
        expires_s = claims["exp"]
        if not isinstance(expires_s, int) or self._ports.clock.now_ms() >= expires_s * 1000:
            raise NotAuthenticated("expired token")
        user = await self._accounts.find_user(str(claims["sub"]))
        if user is None or user.uid != claims["uid"]:
            raise NotAuthenticated("the user is gone")
        return Identity(user_id=user.id, delegation=delegation)


def _decode_basic(encoded: bytes) -> tuple[str, str]:
    try:
        access_key_id, colon, secret = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise NotAuthenticated("malformed Basic header") from error
    if not colon:
        raise NotAuthenticated("malformed Basic header")
    return access_key_id, secret
