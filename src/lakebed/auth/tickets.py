"""Links that log a browser in once, within a minute, on the machine that requested them.

A ticket is 256 random bits. Its record has only a digest, and the login that it continues: the session of a ticket
ends with the key pair or principal of its maker. Each user has one record, so a new link replaces the previous one,
and unused links need no cleaning.

1. Issue: write the record.
2. Redeem: compare digest, time and sender. Then `set_if` marks the record as used, so only one of two browsers
   succeeds.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from lakebed.base import Invalid, Ports
from lakebed.kv import PredicateFailed, Store

from .accounts import ID, Accounts, ticket_key
from .authenticator import Authenticator, Identity, NotAuthenticated
from .records import PARTITION, TicketRecord, UserRecord, decode, encode

__all__ = ["Ticket", "TicketRefused", "Tickets"]

TICKET_S: Final = 60
TICKET_SESSION_S: Final = 12 * 3600


class TicketRefused(NotAuthenticated):
    """The link does not log in. The message is for the person who opened it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The secret of a link. The server never returns it again."""

    user_id: str
    secret: str
    expires_ms: int


class Tickets:
    def __init__(self, store: Store, ports: Ports, accounts: Accounts) -> None:
        self._store = store
        self._ports = ports
        self._accounts = accounts

    async def issue_for(self, identity: Identity, *, sender: str) -> Ticket:
        """Make a ticket that continues the caller's key pair or login. It ends no later than that login.

        Raises:
            Invalid: the caller has neither.
        """
        user = await self._accounts.get_user(identity.user_id)
        if identity.access_key_id:
            return await self.issue(user, identity.access_key_id, sender=sender)
        session = await self._accounts.find_session(user.id, identity.session) if identity.session else None
        if session is None or session.user_uid != user.uid:
            raise Invalid("a link that logs in needs a key pair or a login to continue")
        return await self.issue(
            user,
            session.access_key_id,
            sender=sender,
            principal=session.principal,
            attachment=session.attachment,
            session_ends_ms=session.expires_ms,
        )

    async def issue(
        self,
        user: UserRecord,
        access_key_id: str,
        *,
        sender: str,
        principal: str = "",
        attachment: str = "",
        session_ends_ms: int = 0,
    ) -> Ticket:
        """Make a ticket for a browser at `sender`. A `session_ends_ms` of 0: the session lasts TICKET_SESSION_S."""
        now_ms = self._ports.clock.now_ms()
        secret = base64.urlsafe_b64encode(self._ports.ids.bits(256).to_bytes(32, "big")).rstrip(b"=").decode()
        record = TicketRecord(
            user_id=user.id,
            user_uid=user.uid,
            digest=_digest(secret),
            sender=sender,
            access_key_id=access_key_id,
            principal=principal,
            attachment=attachment,
            expires_ms=now_ms + 1000 * TICKET_S,
            session_ends_ms=session_ends_ms,
        )
        await self._store.set(PARTITION, ticket_key(user.id), encode(record))
        return Ticket(user_id=user.id, secret=secret, expires_ms=record.expires_ms)

    async def redeem(
        self, authenticator: Authenticator, user_id: str, secret: str, *, sender: str
    ) -> tuple[str, int, int]:
        """Use a ticket up, and return the token of its session, when that ends (Unix seconds), and how long it lasts.

        Raises:
            TicketRefused: there is no such ticket, it was used, it is too old, or it belongs to another machine.
        """
        held = await self._store.get(PARTITION, ticket_key(user_id)) if ID.fullmatch(user_id) else None
        record = decode(TicketRecord, held.value) if held is not None else None
        if held is None or record is None or not hmac.compare_digest(record.digest, _digest(secret)):
            # Do not reveal whether the user exists: this call needs no login.
            raise TicketRefused("this server has no such link, or a newer link replaced it")
        if record.is_used:
            raise TicketRefused("this link was used before, and works once")
        now_ms = self._ports.clock.now_ms()
        if now_ms >= record.expires_ms:
            raise TicketRefused(f"this link is older than {TICKET_S} seconds")
        if sender != record.sender:
            raise TicketRefused("this link works only on the machine that asked for it")
        user = await self._accounts.find_user(user_id)
        if user is None or user.uid != record.user_uid:
            raise TicketRefused("the user of this link was deleted")
        used = TicketRecord(
            user_id=user.id, user_uid=user.uid, digest=record.digest, sender="", expires_ms=0, is_used=True
        )
        try:
            await self._store.set_if(PARTITION, ticket_key(user_id), encode(used), held.predicate)
        except PredicateFailed as error:
            raise TicketRefused("this link was used before, and works once") from error
        lifetime_s = TICKET_SESSION_S
        if record.session_ends_ms:
            lifetime_s = min(lifetime_s, (record.session_ends_ms - now_ms) // 1000)
        token, expires_s = await authenticator.begin_login(
            user,
            record.access_key_id,
            principal=record.principal,
            attachment=record.attachment,
            lifetime_s=lifetime_s,
        )
        return token, expires_s, lifetime_s


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()
