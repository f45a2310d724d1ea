"""Users and their credentials over the key-value store, and the set-up that makes the first of both.

IAM is small: look-ups by anything but the key scan all records (docs/design/0002-metadata-on-kv.md, "IAM").
Dependent records are removed before their owner. So a crash leaves an owner with fewer of them, never a credential
without an owner.

Access keys have the form that clients check: `AKIAJ`, 14 of A–Z0–9, `Q`. A secret key is 40 characters of the base64
alphabet, 240 random bits. The server shows it once, when it makes it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from lakebed.base import AlreadyExists, Denied, Invalid, NotFound, Ports
from lakebed.kv import Predicate, PredicateFailed, Store, scan_prefix

from .permissions.built_in import ADMINS, UID
from .permissions.grants import grant, revoke_all_of_user
from .records import (
    CREDENTIALS,
    INSTALLATION,
    PARTITION,
    PRINCIPALS,
    SESSIONS,
    TICKETS,
    USER_GROUPS,
    USERS,
    CredentialsRecord,
    InstallationRecord,
    PrincipalRecord,
    SandboxRecord,
    ServerKeys,
    SessionRecord,
    UserRecord,
    agent_key,
    decode,
    encode,
)

__all__ = [
    "Accounts",
    "AlreadyInitialised",
    "CredentialsNotFound",
    "InvalidUser",
    "IssuedCredentials",
    "SessionNotFound",
    "UserExists",
    "UserNotFound",
]

_KEY_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_BASE64: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_ACCESS_KEY: Final = re.compile(r"AKIA[IJ][A-Z0-9]{14}Q")
ID: Final = re.compile(r"[^\x00-\x1f\x7f/]{1,128}")
"""Match the id of a user, a group or a policy. It is a part of keys, between slashes."""
SESSIONS_MAX: Final = 1_000
"""The limit of one user. A caller with read permissions can log in repeatedly."""
SECRET_CHARACTERS_MIN: Final = 16
"""The minimum for a secret that an operator chooses. Callers can guess as fast as a server answers (`Slowdown`)."""


class AlreadyInitialised(AlreadyExists):
    """The set-up is already complete."""


class UserExists(AlreadyExists):
    """A user of this id exists."""


class UserNotFound(NotFound):
    """No user has this id."""


class CredentialsNotFound(NotFound):
    """This user has no such access key."""


class SessionNotFound(NotFound):
    """This user has no such session, or it has ended."""


class InvalidUser(Invalid):
    """The user id or key breaks a rule that the message states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCredentials:
    """A new key pair. The server never returns the secret key again."""

    access_key_id: str
    secret_access_key: str
    created_ms: int


class Accounts:
    """Manage users, credentials and set-up. Every read goes to the store; only `Authenticator` caches."""

    def __init__(self, store: Store, ports: Ports, keys: ServerKeys) -> None:
        self._store = store
        self._ports = ports
        self._keys = keys

    # Set-up

    async def installation(self) -> InstallationRecord | None:
        """Return the record of a completed set-up, or None before that."""
        held = await self._store.get(PARTITION, INSTALLATION)
        record = decode(InstallationRecord, held.value) if held else None
        return record if record is not None and record.is_complete else None

    async def installed_ms(self) -> int:
        """Return when set-up was completed, or 0 before that."""
        installation = await self.installation()
        return installation.created_ms if installation else 0

    async def set_up(
        self, user_id: str, *, access_key_id: str | None = None, secret_access_key: str | None = None
    ) -> IssuedCredentials:
        """Make the first user, with all permissions, and with the given key pair or a fresh one.

        The installation record shows a completed set-up only after user and credentials are stored. After a crash in
        between, the operator repeats it.

        Raises:
            AlreadyInitialised: the set-up is already complete.
            InvalidUser: a name or key breaks a rule.
        """
        _check_user_id(user_id)
        if access_key_id is not None and not _ACCESS_KEY.fullmatch(access_key_id):
            raise InvalidUser("an access key id has the form AKIAJ, 14 of A-Z0-9, Q", access_key_id=access_key_id)
        if secret_access_key is not None and len(secret_access_key) < SECRET_CHARACTERS_MIN:
            raise InvalidUser(f"a secret access key has at least {SECRET_CHARACTERS_MIN} characters")
        installation, predicate = await self._begin_set_up(user_id)
        user = UserRecord(id=user_id, uid=installation.first_uid, created_ms=installation.created_ms)
        issued = await self._store_credentials(user, access_key_id, secret_access_key)
        await grant(self._store, USER_GROUPS, (user.id, user.uid), (ADMINS, UID), nonce=self._ports.ids.fresh())
        await self._store.set(PARTITION, USERS + user_id.encode(), encode(user))
        done = msgspec.structs.replace(installation, is_complete=True)
        try:
            await self._store.set_if(PARTITION, INSTALLATION, encode(done), predicate)
        except PredicateFailed as error:
            await self._store.delete(PARTITION, CREDENTIALS + issued.access_key_id.encode())
            raise AlreadyInitialised("already initialized") from error
        return issued

    async def recover(self, user_id: str) -> IssuedCredentials:
        """Make this user an administrator with a fresh key pair, and make the user if it does not exist.

        Only an operator at the data folder can call this, so it checks no permission. It completes the set-up.

        Raises:
            InvalidUser: the name breaks a rule.
        """
        if await self.installation() is None:
            return await self.set_up(user_id)
        user = await self.find_user(user_id) or await self.create_user(user_id)
        await grant(self._store, USER_GROUPS, (user.id, user.uid), (ADMINS, UID), nonce=self._ports.ids.fresh())
        return await self._store_credentials(user, None, None)

    async def _begin_set_up(self, user_id: str) -> tuple[InstallationRecord, Predicate]:
        """Record that set-up has begun. A set-up that a crash interrupted keeps its uid.

        So late writes of that attempt make the same user as this one.
        """
        held = await self._store.get(PARTITION, INSTALLATION)
        before = decode(InstallationRecord, held.value) if held else None
        if before is not None and before.is_complete:
            raise AlreadyInitialised("already initialized")
        record = InstallationRecord(
            id=before.id if before else self._ports.ids.fresh(),
            attempt=self._ports.ids.fresh(),
            first_user=user_id,
            first_uid=before.first_uid if before else self._ports.ids.fresh(),
            created_ms=self._ports.clock.now_ms(),
        )
        try:
            predicate = await self._store.set_if(
                PARTITION, INSTALLATION, encode(record), held.predicate if held else None
            )
        except PredicateFailed as error:
            raise AlreadyInitialised("already initialized") from error
        return record, predicate

    # Users

    async def create_user(self, user_id: str) -> UserRecord:
        """Create a user without credentials, or raise UserExists or InvalidUser."""
        _check_user_id(user_id)
        record = self._new_user(user_id)
        try:
            await self._store.set_if(PARTITION, USERS + user_id.encode(), encode(record), None)
        except PredicateFailed as error:
            raise UserExists(f"user {user_id!r} exists", user=user_id) from error
        return record

    async def get_user(self, user_id: str) -> UserRecord:
        held = await self._store.get(PARTITION, USERS + _check_user_id(user_id).encode())
        if held is None:
            raise UserNotFound(f"there is no user {user_id!r}", user=user_id)
        return decode(UserRecord, held.value)

    async def get_changeable(self, user_id: str) -> UserRecord:
        """Return a user that may get key pairs, groups and policies.

        Raises:
            UserNotFound: no user has this id.
            Denied: it belongs to a sandbox.
        """
        user = await self.get_user(user_id)
        if user.is_sandbox:
            raise Denied(f"{user_id} is the user of a sandbox: end or extend the sandbox instead", user=user_id)
        return user

    async def list_users(self, *, prefix: str, after: str, limit: int) -> tuple[list[UserRecord], bool]:
        """List users, ascending by id, and return whether more follow."""
        users: list[UserRecord] = []
        start = USERS + after.encode() + b"\x00" if after else b""
        async for _, value in scan_prefix(self._store, PARTITION, USERS + prefix.encode(), start=start):
            if len(users) == limit:
                return users, True
            users.append(decode(UserRecord, value))
        return users, False

    async def delete_user(self, user_id: str) -> None:
        """Remove sessions, credentials, principals, memberships and attached policies, then the user.

        Raises:
            UserNotFound: no user has this id.
            Denied: it belongs to a sandbox.
        """
        record = await self.get_changeable(user_id)
        stale = [key async for key, credentials in self._all_credentials() if credentials.user_id == record.id]
        for prefix in (session_key(user_id), agent_key(user_id)):
            stale += [key async for key, _ in scan_prefix(self._store, PARTITION, prefix)]
        stale.append(ticket_key(user_id))
        async for key, value in scan_prefix(self._store, PARTITION, PRINCIPALS):
            if decode(PrincipalRecord, value).user_uid == record.uid:
                stale.append(key)
        await self._store.delete_many(PARTITION, stale)
        await revoke_all_of_user(self._store, user_id)
        await self._store.delete(PARTITION, USERS + user_id.encode())

    async def create_sandbox_user(self, sandbox: SandboxRecord) -> IssuedCredentials:
        """Create the user of a sandbox with the uid and the access key of its record, or raise UserExists."""
        _check_user_id(sandbox.id)
        user = UserRecord(id=sandbox.id, uid=sandbox.user_uid, created_ms=self._ports.clock.now_ms(), is_sandbox=True)
        try:
            await self._store.set_if(PARTITION, USERS + user.id.encode(), encode(user), None)
        except PredicateFailed as error:
            raise UserExists(f"user {user.id!r} exists", user=user.id) from error
        return await self._store_credentials(user, sandbox.access_key_id, None)

    async def delete_sandbox_user(self, sandbox: SandboxRecord) -> None:
        """Remove the key pair of a sandbox, its logins and its user, if they exist and belong to the sandbox.

        Reads no record of another user.
        """
        key = CREDENTIALS + sandbox.access_key_id.encode()
        user, pair = await self._store.get_many(PARTITION, [USERS + sandbox.id.encode(), key])
        if pair is not None and decode(CredentialsRecord, pair.value).user_uid == sandbox.user_uid:
            await self._store.delete(PARTITION, key)
        if user is None or decode(UserRecord, user.value).uid != sandbox.user_uid:
            return
        stale = [key async for key, _ in scan_prefix(self._store, PARTITION, session_key(sandbox.id))]
        await self._store.delete_many(PARTITION, [*stale, ticket_key(sandbox.id)])
        await self._store.delete(PARTITION, USERS + sandbox.id.encode())

    # Credentials

    async def create_credentials(self, user_id: str) -> IssuedCredentials:
        user = await self.get_changeable(user_id)
        return await self._store_credentials(user, None, None)

    async def get_credentials(self, user_id: str, access_key_id: str) -> CredentialsRecord:
        user = await self.get_user(user_id)
        record = await self.find_credentials(access_key_id)
        if record is None or record.user_uid != user.uid:
            raise CredentialsNotFound("credentials not found", user=user_id, access_key_id=access_key_id)
        return record

    async def list_credentials(
        self, user_id: str, *, prefix: str, after: str, limit: int
    ) -> tuple[list[CredentialsRecord], bool]:
        """List a user's credentials, ascending by access key, and return whether more follow."""
        user = await self.get_user(user_id)
        found: list[CredentialsRecord] = []
        async for _, record in self._all_credentials():
            if record.user_uid != user.uid or record.access_key_id <= after:
                continue
            if not record.access_key_id.startswith(prefix):
                continue
            if len(found) == limit:
                return found, True
            found.append(record)
        return found, False

    def fresh_access_key_id(self) -> str:
        return f"AKIAJ{self._characters(_KEY_ALPHABET, 14)}Q"

    async def delete_credentials(self, user_id: str, access_key_id: str) -> None:
        """Remove a key pair, and then its sessions.

        A crash in between leaves unusable sessions, because `Authenticator` checks the key pair each time.
        """
        await self.get_credentials(user_id, access_key_id)
        await self._store.delete(PARTITION, CREDENTIALS + access_key_id.encode())
        await self._drop_sessions(user_id, lambda session: session.access_key_id == access_key_id)

    async def find_credentials(self, access_key_id: str) -> CredentialsRecord | None:
        """Find credentials of any user by access key. A key of another form is not looked up."""
        if not _ACCESS_KEY.fullmatch(access_key_id):
            return None
        held = await self._store.get(PARTITION, CREDENTIALS + access_key_id.encode())
        return decode(CredentialsRecord, held.value) if held else None

    async def find_user(self, user_id: str) -> UserRecord | None:
        try:
            return await self.get_user(user_id)
        except UserNotFound:
            return None

    # Sessions

    async def begin_session(
        self, user: UserRecord, access_key_id: str, *, principal: str = "", attachment: str = "", expires_ms: int
    ) -> SessionRecord:
        """Record a login by a key pair or a principal.

        Remove the user's expired sessions, and the oldest ones if there would be more than SESSIONS_MAX.
        """
        now_ms = self._ports.clock.now_ms()
        sessions = [(session.created_ms, key, session) async for key, session in self._sessions(user.id)]
        going_on = sorted((at_ms, key) for at_ms, key, session in sessions if session.expires_ms > now_ms)
        kept = {key for _, key in going_on[-(SESSIONS_MAX - 1) :]}
        if stale := [key for _, key, _ in sessions if key not in kept]:
            await self._store.delete_many(PARTITION, stale)
        session = SessionRecord(
            id=self._ports.ids.fresh(),
            user_id=user.id,
            user_uid=user.uid,
            access_key_id=access_key_id,
            principal=principal,
            attachment=attachment,
            created_ms=now_ms,
            expires_ms=expires_ms,
        )
        await self._store.set(PARTITION, session_key(user.id, session.id), encode(session))
        return session

    async def find_session(self, user_id: str, session_id: str) -> SessionRecord | None:
        held = await self._store.get(PARTITION, session_key(user_id, session_id))
        return decode(SessionRecord, held.value) if held else None

    async def list_sessions(self, user_id: str) -> list[SessionRecord]:
        """Return the sessions of this user that have not expired, the oldest first."""
        user, now_ms = await self.get_user(user_id), self._ports.clock.now_ms()
        found = [session async for _, session in self._sessions(user.id)]
        going_on = [session for session in found if session.user_uid == user.uid and session.expires_ms > now_ms]
        return sorted(going_on, key=lambda session: (session.created_ms, session.id))

    async def end_session(self, user_id: str, session_id: str) -> None:
        """Remove a session, or raise SessionNotFound."""
        if await self.find_session(user_id, session_id) is None:
            raise SessionNotFound("session not found", user=user_id, session=session_id)
        await self._store.delete(PARTITION, session_key(user_id, session_id))

    async def end_sessions_of(self, user: UserRecord, principal: str) -> None:
        """Remove the sessions of an external principal."""
        await self._drop_sessions(user.id, lambda session: session.principal == principal)

    async def _sessions(self, user_id: str) -> AsyncIterator[tuple[bytes, SessionRecord]]:
        async for key, value in scan_prefix(self._store, PARTITION, session_key(user_id)):
            yield key, decode(SessionRecord, value)

    async def _drop_sessions(self, user_id: str, is_stale: Callable[[SessionRecord], bool]) -> None:
        stale = [key async for key, session in self._sessions(user_id) if is_stale(session)]
        if stale:
            await self._store.delete_many(PARTITION, stale)

    async def _all_credentials(self) -> AsyncIterator[tuple[bytes, CredentialsRecord]]:
        async for key, value in scan_prefix(self._store, PARTITION, CREDENTIALS):
            yield key, decode(CredentialsRecord, value)

    def _new_user(self, user_id: str) -> UserRecord:
        return UserRecord(id=user_id, uid=self._ports.ids.fresh(), created_ms=self._ports.clock.now_ms())

    async def _store_credentials(
        self, user: UserRecord, access_key_id: str | None, secret_access_key: str | None
    ) -> IssuedCredentials:
        issued = IssuedCredentials(
            access_key_id=access_key_id or self.fresh_access_key_id(),
            secret_access_key=secret_access_key or self._characters(_BASE64, 40),
            created_ms=self._ports.clock.now_ms(),
        )
        nonce = self._ports.ids.bits(96).to_bytes(12, "big")
        record = CredentialsRecord(
            access_key_id=issued.access_key_id,
            user_id=user.id,
            user_uid=user.uid,
            secret=self._keys.seal(issued.secret_access_key, access_key_id=issued.access_key_id, nonce=nonce),
            created_ms=issued.created_ms,
        )
        await self._store.set(PARTITION, CREDENTIALS + issued.access_key_id.encode(), encode(record))
        return issued

    def _characters(self, alphabet: str, count: int) -> str:
        """Return `count` random characters. 64 spare bits make the remainder's bias too small to measure."""
        number = self._ports.ids.bits(count * 6 + 64)
        characters = []
        for _ in range(count):
            number, digit = divmod(number, len(alphabet))
            characters.append(alphabet[digit])
        return "".join(characters)


def session_key(user_id: str, session_id: str = "") -> bytes:
    return SESSIONS + f"{_check_user_id(user_id)}/{session_id}".encode()


def ticket_key(user_id: str) -> bytes:
    return TICKETS + _check_user_id(user_id).encode()


def _check_user_id(user_id: str) -> str:
    if not ID.fullmatch(user_id):
        raise InvalidUser("a user id has 1 to 128 characters, no control characters and no slash", user=user_id)
    return user_id
