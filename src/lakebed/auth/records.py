"""Records of the partition `auth`, in one byte of format number, then msgpack. docs/formats/auth.md lists their keys.

A user, group or policy that is deleted and made again gets a new uid. So credentials and grants that a crash left
behind never come back to life.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lakebed.base import Corrupt, Ids, Invalid, name_in_words
from lakebed.kv import PredicateFailed, Store

from .permissions.built_in import UID
from .permissions.statements import Statement

__all__ = [
    "AGENTS",
    "PARTITION",
    "SANDBOXES",
    "AgentRecord",
    "AuthFormat",
    "GroupRecord",
    "PolicyRecord",
    "PrincipalRecord",
    "SandboxRecord",
    "SandboxState",
    "ServerKeys",
    "UserRecord",
    "agent_key",
    "decode",
    "encode",
    "load_server_keys",
]

PARTITION: Final = b"auth"
USERS: Final = b"users/"
CREDENTIALS: Final = b"credentials/"
GROUPS: Final = b"groups/"
POLICIES: Final = b"policies/"
USER_GROUPS: Final = b"user_groups/"
USER_POLICIES: Final = b"user_policies/"
GROUP_POLICIES: Final = b"group_policies/"
SESSIONS: Final = b"sessions/"
TICKETS: Final = b"tickets/"
PRINCIPALS: Final = b"principals/"
SANDBOXES: Final = b"sandboxes/"
AGENTS: Final = b"agents/"
ADMINS_LEAVING: Final = b"admins/leaving"
SERVER_SECRET: Final = b"server/secret"
INSTALLATION: Final = b"server/installation"

SECRET_BYTES_MIN: Final = 16
_NONCE_BYTES: Final = 12
_FORMAT: Final = b"\x01"
_WITH_CONDITIONS: Final = b"\x02"
"""The format of policies with conditions. Releases without conditions refuse it, so they do not allow too much."""


class AuthFormat(Corrupt):
    """The record has a format that this release does not know, or does not decode or decrypt."""


class UserRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    uid: str
    created_ms: int
    email: str = ""
    friendly_name: str = ""
    is_sandbox: bool = False
    """The user has only the rights of the sandbox of its id. Groups and policies give no others."""


class CredentialsRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Store a key pair. `secret` is `ServerKeys.seal` of the secret key, bound to the access key."""

    access_key_id: str
    user_id: str
    user_uid: str
    secret: bytes
    created_ms: int


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Store a group. `acl` is the contract's access level of the whole group, "" where none was set."""

    id: str
    uid: str
    created_ms: int
    description: str = ""
    acl: str = ""

    @property
    def is_built_in(self) -> bool:
        return self.uid == UID


class PolicyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    uid: str
    created_ms: int
    statements: tuple[Statement, ...]

    @property
    def is_built_in(self) -> bool:
        return self.uid == UID


class GrantRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Store a membership, or a policy of a user or group: the uids of both, in the order of the key.

    `nonce` tells two grants of the same pair apart.
    """

    holder_uid: str
    granted_uid: str
    nonce: str = ""


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A login. It ends with its key pair, or else its external principal."""

    id: str
    user_id: str
    user_uid: str
    access_key_id: str
    created_ms: int
    expires_ms: int
    principal: str = ""
    attachment: str = ""


class TicketRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A link that logs a browser at `sender` in once. `digest`: SHA-256 of its secret.

    A used link keeps only its digest, so that a second browser gets the reason of its refusal.
    """

    user_id: str
    user_uid: str
    digest: bytes
    sender: str
    expires_ms: int
    access_key_id: str = ""
    principal: str = ""
    attachment: str = ""
    session_ends_ms: int = 0
    is_used: bool = False


class PrincipalRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A mapping of an identity of another provider to a user. `settings` are stored for clients, and not read.

    `attachment` is new for each attachment, so logins of an earlier one remain invalid.
    """

    id: str
    user_id: str
    user_uid: str
    attachment: str
    created_ms: int
    settings: tuple[dict[str, str], ...] = ()


class SandboxState(StrEnum):
    CREATING = "creating"
    ACTIVE = "active"
    ENDING = "ending"


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sandbox: its branch and its user have its `id`. Only an active sandbox gives its user rights.

    `user_uid` and `access_key_id` are those of its user, or of the user being made.
    """

    id: str
    state: SandboxState
    repository: str
    repository_uid: str
    source: str
    commit_id: str
    user_uid: str
    access_key_id: str
    created_ms: int
    created_by: str
    expires_ms: int
    statements: tuple[Statement, ...]
    # When its end began.
    ending_ms: int = 0
    # It ends without having been active, and a stalled request may still be making it.
    was_half_made: bool = False
    keeps_branch: bool = False
    # Its branch has a quota, 0: none. The quota's own record counts.
    quota_bytes: int = 0

    def lasts_at(self, now_ms: int) -> bool:
        return self.state is SandboxState.ACTIVE and now_ms < self.expires_ms


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sandbox that a session of a user's agents writes to, and its end when it was made."""

    user_uid: str
    sandbox: str
    ends_ms: int


def agent_key(user_id: str, session: str = "") -> bytes:
    """Return the key of a session's record, or what the keys of all of the user's begin with."""
    return AGENTS + f"{user_id}/{session}".encode()


class LeavingRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Store the `memberships` of Admins (user id, nonce of the grant) to delete before another user may leave."""

    memberships: tuple[tuple[str, str], ...] = ()
    attempt: str = ""


class InstallationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Store the state of set-up. `first_user` is the user that it makes; `attempt` keeps two set-ups apart."""

    id: str
    attempt: str
    first_user: str
    first_uid: str
    created_ms: int
    is_complete: bool = False


Record: TypeAlias = (
    UserRecord
    | CredentialsRecord
    | GroupRecord
    | PolicyRecord
    | GrantRecord
    | SessionRecord
    | TicketRecord
    | PrincipalRecord
    | SandboxRecord
    | AgentRecord
    | LeavingRecord
    | InstallationRecord
)
R = TypeVar("R", bound=Record)

_encode = msgspec.msgpack.Encoder().encode


def encode(record: Record) -> bytes:
    has_conditions = isinstance(record, PolicyRecord) and any(one.conditions for one in record.statements)
    return (_WITH_CONDITIONS if has_conditions else _FORMAT) + _encode(record)


def decode(kind: type[R], data: bytes) -> R:
    """Decode a record, or raise AuthFormat."""
    if data[:1] != _FORMAT and not (data[:1] == _WITH_CONDITIONS and issubclass(kind, PolicyRecord)):
        raise AuthFormat(f"{name_in_words(kind)} of an unknown format {data[:1].hex()}", kind=kind.__name__)
    try:
        return msgspec.msgpack.decode(data[1:], type=kind)
    except msgspec.MsgspecError as error:
        raise AuthFormat(f"{name_in_words(kind)} does not decode: {error}", kind=kind.__name__) from error


# Keys of the server


class ServerKeys:
    """Derive and use the server's keys: one secret, from which all others are derived (HKDF-SHA-256, a label for each).

    `token_key` signs JWTs, `continuation_key` seals continuation tokens, `login_key` ties logins to their browsers,
    `certificate_key` signs certificates of erasures, and `lent_key` makes key pairs that are lent for an hour.
    """

    def __init__(self, secret: bytes) -> None:
        """Derive all keys from a secret.

        Raises:
            Invalid: the secret has less than 16 bytes.
        """
        if len(secret) < SECRET_BYTES_MIN:
            raise Invalid(f"the server secret needs at least {SECRET_BYTES_MIN} bytes, got {len(secret)}")
        self.token_key = _derive(secret, b"lakebed jwt")
        self.continuation_key = _derive(secret, b"lakebed continuation")
        self.login_key = _derive(secret, b"lakebed login")
        self.certificate_key = _derive(secret, b"lakebed certificate")
        self.lent_key = _derive(secret, b"lakebed lent")
        self._cipher = AESGCM(_derive(secret, b"lakebed credentials"))
        self.fingerprint_key = _derive(secret, b"lakebed fingerprint")

    def seal(self, secret_key: str, *, access_key_id: str, nonce: bytes) -> bytes:
        """Encrypt a secret key by AES-256-GCM: return the nonce, then ciphertext and tag.

        It is bound to its access key, so that two records cannot be swapped.
        """
        assert len(nonce) == _NONCE_BYTES, len(nonce)
        return nonce + self._cipher.encrypt(nonce, secret_key.encode(), access_key_id.encode())

    def unseal(self, sealed: bytes, *, access_key_id: str) -> str:
        """Decrypt a sealed secret key.

        Raises:
            AuthFormat: it was sealed by another server secret or for another access key, or it is damaged.
        """
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], access_key_id.encode()).decode()
        except (InvalidTag, ValueError) as error:
            raise AuthFormat(
                f"the secret of {access_key_id} does not decrypt: another server secret, or a damaged record",
                access_key_id=access_key_id,
            ) from error


async def load_server_keys(store: Store, ids: Ids, given: bytes | None = None) -> ServerKeys:
    """Derive keys from the given secret, else from the stored one. Stores a fresh secret if there is none.

    An operator who passes a secret keeps it out of the database, so that its dumps reveal no secret keys.
    If several processes start at once, one of them stores its secret, and the others use it.
    """
    if given is not None:
        return ServerKeys(given)
    held = await store.get(PARTITION, SERVER_SECRET)
    if held is None:
        secret = ids.bits(256).to_bytes(32, "big")
        try:
            await store.set_if(PARTITION, SERVER_SECRET, secret, None)
        except PredicateFailed:
            held = await store.get(PARTITION, SERVER_SECRET)
            assert held is not None, "a server secret is never deleted"
            secret = held.value
    else:
        secret = held.value
    return ServerKeys(secret)


def _derive(secret: bytes, label: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=label).derive(secret)
