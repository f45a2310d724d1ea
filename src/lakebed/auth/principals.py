"""External principals: identities of other providers that map to users here.

A record is stored under the hash of the principal's id, which may be long. So one principal maps to one user, and
attaching it is one conditional write. A principal whose user was deleted has no effect, and may be attached again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from lakebed.base import AlreadyExists, Invalid, NotFound, Ports
from lakebed.kv import PredicateFailed, Store, scan_prefix

from .accounts import Accounts
from .records import PARTITION, PRINCIPALS, PrincipalRecord, UserRecord, decode, encode

__all__ = ["PrincipalNotFound", "Principals"]

_ID: Final = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")
_OPENID: Final = re.compile(r"https?://[^\s#/?]+[^\s#?]*#[^#]*\S")
_AWS: Final = re.compile(r"aws[a-z-]*:(sts|iam)::[0-9]{12}:\S.*")
_ROLE_IN_USE: Final = re.compile(r"(?:arn:)?(aws[a-z-]*:sts::[0-9]{12}:assumed-role/[^/]+)(?:/.*)?")
_FORMS: Final = "ISSUER#SUBJECT of OpenID Connect, or aws:sts::NUMBER:assumed-role/ROLE"


class PrincipalNotFound(NotFound):
    """The principal maps to no user, or not to this one."""


class Principals:
    """Manage external principals. Every read goes to the store."""

    def __init__(self, store: Store, ports: Ports, accounts: Accounts) -> None:
        self._store = store
        self._ports = ports
        self._accounts = accounts

    async def attach(self, user_id: str, principal: str, settings: Sequence[Mapping[str, str]] = ()) -> None:
        """Map a principal to a user.

        Raises:
            UserNotFound, Denied, Invalid: see those classes.
            AlreadyExists: it maps to a user already.
        """
        _check_form(principal)
        user, key = await self._accounts.get_changeable(user_id), _key(principal)
        held = await self._store.get(PARTITION, key)
        if held is not None and await self._owner(decode(PrincipalRecord, held.value)) is not None:
            raise AlreadyExists(f"{principal} stands for a user already", principal=principal)
        record = PrincipalRecord(
            id=principal,
            user_id=user.id,
            user_uid=user.uid,
            attachment=self._ports.ids.fresh(),
            created_ms=self._ports.clock.now_ms(),
            settings=tuple(dict(one) for one in settings),
        )
        try:
            await self._store.set_if(PARTITION, key, encode(record), held.predicate if held else None)
        except PredicateFailed as error:
            raise AlreadyExists(f"{principal} stands for a user already", principal=principal) from error

    async def detach(self, user_id: str, principal: str) -> None:
        """Remove a principal from its user, and end its logins.

        Raises:
            UserNotFound, Invalid: see those classes.
            PrincipalNotFound: it does not map to this user.
        """
        user, key = await self._accounts.get_user(user_id), _key(principal)
        held = await self._store.get(PARTITION, key)
        if held is None or decode(PrincipalRecord, held.value).user_uid != user.uid:
            raise PrincipalNotFound(f"{principal} does not stand for {user_id}", principal=principal, user=user_id)
        try:
            await self._store.delete_if(PARTITION, key, held.predicate)
        except PredicateFailed as error:
            raise PrincipalNotFound(f"{principal} was attached anew", principal=principal, user=user_id) from error
        await self._accounts.end_sessions_of(user, principal)

    async def get(self, principal: str) -> PrincipalRecord:
        """Return the record of a principal.

        Raises:
            Invalid: the id is malformed.
            PrincipalNotFound: it maps to no user.
        """
        return (await self._find(principal))[0]

    async def list(
        self, user_id: str, *, prefix: str = "", after: str = "", limit: int
    ) -> tuple[list[PrincipalRecord], bool]:
        """List a user's principals, ascending by id, and return whether more follow."""
        user = await self._accounts.get_user(user_id)
        records = [decode(PrincipalRecord, value) async for _, value in scan_prefix(self._store, PARTITION, PRINCIPALS)]
        found = sorted(
            (one for one in records if one.user_uid == user.uid and one.id.startswith(prefix) and one.id > after),
            key=lambda one: one.id,
        )
        return found[:limit], len(found) > limit

    async def user_of(self, principal: str) -> tuple[UserRecord, str]:
        """Return the user of a principal, and the id of its attachment, or raise PrincipalNotFound."""
        record, user = await self._find(principal)
        return user, record.attachment

    async def _find(self, principal: str) -> tuple[PrincipalRecord, UserRecord]:
        held = await self._store.get(PARTITION, _key(principal))
        record = decode(PrincipalRecord, held.value) if held is not None else None
        user = await self._owner(record) if record is not None else None
        if record is None or user is None:
            raise PrincipalNotFound(f"{principal} stands for no user", principal=principal)
        return record, user

    async def _owner(self, record: PrincipalRecord) -> UserRecord | None:
        user = await self._accounts.find_user(record.user_id)
        return user if user is not None and user.uid == record.user_uid else None


def _check_form(principal: str) -> None:
    """Refuse an id that no login can have (server/identity/providers.py makes the ids): it would only look allowed.

    Check only new principals. One that was attached before can be shown and detached.
    """
    role = _ROLE_IN_USE.fullmatch(principal)
    if role is not None and role[1] != principal:
        raise Invalid(f"{principal}: a role is named without arn: and without its session: {role[1]}")
    if not (_OPENID.fullmatch(principal) or _AWS.fullmatch(principal)):
        raise Invalid(f"{principal!r} is not an identity of a provider: {_FORMS}")


def _key(principal: str) -> bytes:
    if not _ID.fullmatch(principal):
        raise Invalid("a principal has 1 to 1,024 characters, and no control characters")
    return PRINCIPALS + hashlib.sha256(principal.encode(errors="surrogatepass")).hexdigest().encode()
