"""Identify the sender of a request: by Basic, Bearer, or the session cookie.

The authenticator caches a valid proof for CACHE_MS by its fingerprint, never in clear. The first request costs a
look-up of two keys and one decryption, the next ones microseconds. So credentials deleted through *another* process
remain valid for that long. Through this process they end at once (`forget_all`).

A login is a session: a record that a logout removes. It is valid only while its key pair exists, or its external
principal maps to its user. Secrets are compared in constant time. An answer never shows whether the key exists or
which part failed. Wrong secrets for one access key, known or not, get increasing delays (`Slowdown`). A right secret
has none.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from lakebed.base import Denied, Ports

from .accounts import Accounts, SessionNotFound
from .lent import LASTS_S, PREFIX, Lent, lent_pair, read_lent
from .permissions.statements import Delegation
from .principals import PrincipalNotFound, Principals
from .records import CredentialsRecord, ServerKeys, UserRecord

if TYPE_CHECKING:
    from jwt.types import Options

__all__ = [
    "SESSION_COOKIE",
    "TOKEN_LIFETIME_S",
    "Authenticator",
    "Identity",
    "NotAuthenticated",
    "UnknownAccessKey",
    "decode_basic",
]

K = TypeVar("K")

SESSION_COOKIE: Final = "internal_auth_session"
TOKEN_LIFETIME_S: Final = 7 * 24 * 3600
CACHE_MS: Final = 5_000
CACHE_ENTRIES_MAX: Final = 10_000
SCOPES_MAX: Final = 8
"""A client signs for one region, and at midnight for two days."""
FREE_FAILURES: Final = 5
"""Answer this many consecutive wrong secrets without delay, for mistyped ones."""
DELAY_S: Final = 0.1
DELAY_S_MAX: Final = 5.0
_ALGORITHM: Final = "HS256"
_LOGIN: Final = "login"
_JOB: Final = "job"
"""Job tokens have their own audience, so that a server without delegations does not accept them as logins."""


class NotAuthenticated(Denied):
    """The request has no valid proof of identity."""


class UnknownAccessKey(NotAuthenticated):
    """No user has this access key. Only doors whose protocol requires it show this; REST does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The caller. `user_id` becomes the committer of commits.

    With a `delegation` the caller is a process that does one job for that user. `lent` are the rights of a lent key
    pair: the user's own do not count then. `session` is the id of the login. It
    is empty for a key pair, which has an `access_key_id` instead.
    """

    user_id: str
    delegation: Delegation | None = None
    lent: Lent | None = None
    session: str = ""
    access_key_id: str = ""


@dataclass(frozen=True, slots=True)
class _Owner:
    """The secret of an access key, and its user, or None if the user was deleted. `signing`: keys by scope."""

    secret: Callable[[], str]
    identity: Identity | None
    until_ms: int
    signing: dict[str, Any] = field(default_factory=dict)


class Authenticator:
    def __init__(self, accounts: Accounts, keys: ServerKeys, ports: Ports, principals: Principals) -> None:
        self._accounts = accounts
        self._keys = keys
        self._ports = ports
        self._principals = principals
        self._slowdown = Slowdown(ports)
        # Count these separately: invented keys of a stranger must not evict the counts of real keys.
        self._slowdown_of_unknown = Slowdown(ports)
        self.lent_key: Final = keys.lent_key
        self._known: dict[bytes, tuple[Identity, int]] = {}
        self._owners: dict[str, _Owner] = {}
        self._forgotten = 0

    async def authenticate(self, authorization: bytes | None, session: bytes | None) -> Identity:
        """Return the sender of a request with this Authorization header and session cookie. The header takes
        precedence.

        Costs a hash and a look-up for a proof seen in the last 5 seconds.

        Raises:
            NotAuthenticated: neither is a valid proof.
        """
        proof = authorization if authorization is not None else session
        if proof is None:
            raise NotAuthenticated("no credentials")
        shown = proof if authorization is not None else b"cookie " + proof
        fingerprint = hashlib.blake2b(shown, digest_size=16, key=self._keys.fingerprint_key).digest()
        known = self._known.get(fingerprint)
        now_ms = self._ports.clock.now_ms()
        if known is not None and is_fresh(known[1], now_ms):
            return known[0]
        # Do not cache the result of a look-up during which a key pair was deleted.
        forgotten = self._forgotten
        if authorization is None:
            identity = await self._from_token(proof)
        else:
            identity = await self._from_header(proof)
        if self._forgotten == forgotten:
            if len(self._known) >= CACHE_ENTRIES_MAX:
                self._known.clear()
            self._known[fingerprint] = (identity, now_ms + CACHE_MS)
        return identity

    async def check_key_pair(self, access_key_id: str, secret_access_key: str) -> Identity:
        """Return the user of a key pair.

        Raises:
            NotAuthenticated: the pair does not exist, or its user was deleted.
        """
        given = secret_access_key.encode(errors="surrogatepass")
        identity, _ = await self.check_signature(
            access_key_id, lambda secret: hmac.compare_digest(secret, given), make_key=str.encode
        )
        if identity.lent is not None:
            # It signs requests for files. As a login it would open what its owner may do.
            raise NotAuthenticated("a lent key pair is no login")
        return identity

    async def check_signature(
        self,
        access_key_id: str,
        is_of: Callable[[K], bool],
        *,
        make_key: Callable[[str], K],
        scope: str = "",
    ) -> tuple[Identity, K]:
        """Return the user of an access key and the key that `make_key` derives from its secret, if `is_of` accepts the
        key for the caller's signature.

        `scope` names every input of `make_key` besides the secret. The key of a scope is cached like a proof, after it
        was proved right. The key of an empty scope is never cached, because it may be the secret itself.

        Raises:
            UnknownAccessKey: no user has this access key.
            NotAuthenticated: the signature was made with another secret, or the user was deleted.
        """
        try:
            owner = await self._owner_of(access_key_id)
        except UnknownAccessKey:
            # Delay as for a wrong secret: otherwise the answer time would show which keys exist.
            await self._slowdown_of_unknown.wait(access_key_id)
            raise
        known: K | None = owner.signing.get(scope)
        key = known if known is not None else make_key(owner.secret())
        if not is_of(key):
            failures = await self._slowdown.wait(access_key_id)
            raise NotAuthenticated("wrong secret", access_key_id=access_key_id, failures=failures)
        self._slowdown.forget(access_key_id)
        if owner.identity is None:
            raise NotAuthenticated("the user is gone")
        if scope and known is None:
            if len(owner.signing) >= SCOPES_MAX:
                owner.signing.clear()
            owner.signing[scope] = key
        return owner.identity, key

    async def _owner_of(self, access_key_id: str) -> _Owner:
        """Return the sealed credentials and their user, or raise UnknownAccessKey. Cached like a proof."""
        now_ms = self._ports.clock.now_ms()
        known = self._owners.get(access_key_id)
        if known is not None and is_fresh(known.until_ms, now_ms):
            return known
        forgotten = self._forgotten
        if access_key_id.startswith(PREFIX):
            owner = await self._borrower(access_key_id, now_ms)
        else:
            record, identity = await self._holder_of(access_key_id)
            secret = partial(self._keys.unseal, record.secret, access_key_id=access_key_id)
            owner = _Owner(secret, identity, now_ms + CACHE_MS)
        if self._forgotten == forgotten:
            if len(self._owners) >= CACHE_ENTRIES_MAX:
                self._owners.clear()
            self._owners[access_key_id] = owner
        return owner

    async def _holder_of(self, access_key_id: str) -> tuple[CredentialsRecord, Identity | None]:
        record = await self._accounts.find_credentials(access_key_id)
        if record is None:
            raise UnknownAccessKey("unknown access key")
        user = await self._accounts.find_user(record.user_id)
        is_there = user is not None and user.uid == record.user_uid
        return record, Identity(user_id=record.user_id, access_key_id=access_key_id) if is_there else None

    async def _borrower(self, access_key_id: str, now_ms: int) -> _Owner:
        """Return the owner of a lent pair, if its hour is not over, and the login that it was lent to still counts."""
        found = read_lent(access_key_id, self.lent_key)
        if found is None or now_ms >= found[0].expires_s * 1000:
            raise UnknownAccessKey("unknown access key")
        lent, secret = found
        identity: Identity | None
        if lent.access_key_id:
            _, identity = await self._holder_of(lent.access_key_id)
        else:
            user = await self._accounts.find_user(lent.user_id)
            identity = None if user is None else Identity(user_id=user.id, session=lent.session)
            if user is not None:
                await self._check_session(user, lent.session)
        until_ms = min(now_ms + CACHE_MS, lent.expires_s * 1000)
        return _Owner(lambda: secret, identity and replace(identity, lent=lent), until_ms)

    def lend(
        self,
        identity: Identity,
        *,
        repository: str,
        branch: str,
        folder: str,
        ref: str,
        namespace: str,
        table: str,
        may_write: bool,
    ) -> tuple[str, str, int] | None:
        """Return a key pair for the files below a folder of a branch, and when it ends (Unix seconds). They are those
        of a table of the ref.

        None: the caller has neither a key pair nor a login of their own, so nothing could end the pair early.
        """
        if identity.lent is not None or not (identity.access_key_id or identity.session):
            return None
        expires_s = self._ports.clock.now_ms() // 1000 + LASTS_S
        user_id = "" if identity.access_key_id else identity.user_id
        key, session = identity.access_key_id, identity.session
        lent = Lent(repository, branch, folder, ref, namespace, table, may_write, expires_s, key, user_id, session)
        return *lent_pair(lent, self.lent_key), expires_s

    async def log_in(self, access_key_id: str, secret_access_key: str) -> tuple[str, int]:
        """Return a token for the user of this key pair, and when it ends (Unix seconds).

        Raises:
            NotAuthenticated: the pair does not exist.
        """
        identity = await self.check_key_pair(access_key_id, secret_access_key)
        user = await self._accounts.get_user(identity.user_id)
        return await self.begin_login(user, access_key_id, lifetime_s=TOKEN_LIFETIME_S)

    async def log_in_as(self, principal: str, *, lifetime_s: int) -> tuple[str, int]:
        """Return a token for the user of a proven principal, and when it ends (Unix seconds).

        Raises:
            NotAuthenticated: the principal maps to no user.
        """
        try:
            user, attachment = await self._principals.user_of(principal)
        except PrincipalNotFound as error:
            raise NotAuthenticated(str(error), principal=principal) from error
        return await self.begin_login(user, "", principal=principal, attachment=attachment, lifetime_s=lifetime_s)

    async def begin_login(
        self, user: UserRecord, access_key_id: str, *, principal: str = "", attachment: str = "", lifetime_s: int
    ) -> tuple[str, int]:
        """Begin the session of a caller with a proven key pair or principal. Return its token and end."""
        now_ms = self._ports.clock.now_ms()
        session = await self._accounts.begin_session(
            user, access_key_id, principal=principal, attachment=attachment, expires_ms=now_ms + 1000 * lifetime_s
        )
        return self._sign(user, now_ms // 1000, lifetime_s, aud=_LOGIN, jti=session.id)

    async def log_out(self, identity: Identity) -> None:
        """End the session of this login. Does nothing for a caller with a key pair."""
        if identity.session:
            with suppress(SessionNotFound):
                await self._accounts.end_session(identity.user_id, identity.session)
            self.forget_all()

    async def issue_job_token(self, identity: Identity, delegation: Delegation, *, lifetime_s: int) -> str:
        """Return a token with the permissions that a user delegates.

        Raises:
            UserNotFound: the user was deleted meanwhile.
        """
        assert identity.delegation is None, "what was delegated is not passed on"
        user = await self._accounts.get_user(identity.user_id)
        now_s = self._ports.clock.now_ms() // 1000
        return self._sign(user, now_s, lifetime_s, aud=_JOB, delegation=msgspec.to_builtins(delegation))[0]

    def _sign(self, user: UserRecord, now_s: int, lifetime_s: int, **claims: object) -> tuple[str, int]:
        """Return a signed token, and when it ends (Unix seconds)."""
        import jwt  # The import is slow, and a server needs it only from the first login on.

        expires_s = now_s + lifetime_s
        claims |= {"sub": user.id, "uid": user.uid, "iat": now_s, "exp": expires_s}
        return jwt.encode(claims, self._keys.token_key, algorithm=_ALGORITHM), expires_s

    def forget_all(self) -> None:
        """Clear all cached proofs, because credentials or a user were deleted."""
        self._forgotten += 1
        self._known.clear()
        self._owners.clear()

    async def _from_header(self, header: bytes) -> Identity:
        scheme, _, rest = header.partition(b" ")
        match scheme.lower():
            case b"basic":
                access_key_id, secret_access_key = decode_basic(rest)
                return await self.check_key_pair(access_key_id, secret_access_key)
            case b"bearer":
                return await self._from_token(rest.strip())
        raise NotAuthenticated("unknown scheme")

    async def _from_token(self, token: bytes) -> Identity:
        import jwt  # as above

        # The time comes from the port. PyJWT reads the machine's clock, so it must not check the time.
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
        if delegation is not None:
            return Identity(user_id=user.id, delegation=delegation)
        session_id = str(claims.get("jti", ""))
        await self._check_session(user, session_id)
        return Identity(user_id=user.id, session=session_id)

    async def _check_session(self, user: UserRecord, session_id: str) -> None:
        """Refuse a session that has ended."""
        session = await self._accounts.find_session(user.id, session_id) if session_id else None
        if session is None or session.user_uid != user.uid:
            raise NotAuthenticated("the session is over")
        if session.principal:
            try:
                owner, attachment = await self._principals.user_of(session.principal)
            except PrincipalNotFound as error:
                raise NotAuthenticated("the principal of this login is gone") from error
            if owner.uid != user.uid or attachment != session.attachment:
                raise NotAuthenticated("the principal of this login was attached anew")
            return
        pair = await self._accounts.find_credentials(session.access_key_id)
        if pair is None or pair.user_uid != user.uid:
            raise NotAuthenticated("the key pair of this login is gone")


def is_fresh(until_ms: int, now_ms: int) -> bool:
    """Return whether what is cached until then counts: not where the clock was set back since."""
    return now_ms < until_ms <= now_ms + CACHE_MS


class Slowdown:
    """Delay the answers to wrong secrets. Each process counts in its own memory.

    Do not count in the database: a stranger could cause a write by each guess. A delay does not limit guesses on many
    parallel connections, because a right secret never waits. The length of secrets limits them.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._failures: dict[str, int] = {}

    async def wait(self, access_key_id: str) -> int:
        """Count a failure, wait for its delay, and return the number of consecutive failures."""
        count = self._failures.get(access_key_id, 0) + 1
        if len(self._failures) >= CACHE_ENTRIES_MAX:
            self._failures.clear()
        self._failures[access_key_id] = count
        if count > FREE_FAILURES:
            await self._ports.clock.sleep(min(DELAY_S_MAX, DELAY_S * 2.0 ** min(count - FREE_FAILURES - 1, 16)))
        return count

    def forget(self, access_key_id: str) -> None:
        """Reset the count of failures, because a right secret arrived."""
        self._failures.pop(access_key_id, None)


def decode_basic(encoded: bytes) -> tuple[str, str]:
    """Return the key pair of a Basic header, from what follows its scheme, or raise NotAuthenticated."""
    try:
        access_key_id, colon, secret = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise NotAuthenticated("malformed Basic header") from error
    if not colon:
        raise NotAuthenticated("malformed Basic header")
    return access_key_id, secret
