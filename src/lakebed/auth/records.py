"""What the partition `auth` holds (docs/formats/auth.md): one byte of format number, then msgpack.

    users/<id>                  UserRecord
    credentials/<access key>    CredentialsRecord: the secret is encrypted, the user named by id and uid
    groups/<id>                 GroupRecord; of groups that are not built in
    policies/<id>               PolicyRecord; of policies that are not built in
    user_groups/<user>/<group>, user_policies/<user>/<policy>, group_policies/<group>/<policy>
                                GrantRecord: both ends by uid
    sessions/<user>/<id>        SessionRecord: a login that was not ended
    admins/leaving              LeavingRecord: who is being taken out of Admins
    server/secret               32 random bytes that every key of the server is derived from
    server/installation         InstallationRecord: written by set-up, and by it alone

Whoever is deleted and made again gets a new uid, so credentials and grants that a crash left behind never come back to
life.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

import msgspec

from lakebed.base import Corrupt

from .statements import Statement

PARTITION: Final = b"auth"
USERS: Final = b"users/"
CREDENTIALS: Final = b"credentials/"
GROUPS: Final = b"groups/"
POLICIES: Final = b"policies/"
USER_GROUPS: Final = b"user_groups/"
USER_POLICIES: Final = b"user_policies/"
GROUP_POLICIES: Final = b"group_policies/"
SESSIONS: Final = b"sessions/"
ADMINS_LEAVING: Final = b"admins/leaving"
SERVER_SECRET: Final = b"server/secret"
INSTALLATION: Final = b"server/installation"

_FORMAT: Final = b"\x01"


class AuthFormat(Corrupt):
    """A record of a format that this release does not know, or one that does not decode or decrypt."""


class UserRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    uid: str
    created_ms: int
    email: str = ""
    friendly_name: str = ""


class CredentialsRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`secret` is `ServerKeys.seal` of the secret key, bound to the access key."""

    access_key_id: str
    user_id: str
    user_uid: str
    secret: bytes
    created_ms: int


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`acl` is the contract's access level of the whole group, "" where none was set."""

    id: str
    uid: str
    created_ms: int
    description: str = ""
    acl: str = ""


class PolicyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    uid: str
    created_ms: int
    statements: tuple[Statement, ...]


class GrantRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user is in a group, or a user or group has a policy: the two, in the order of the key. `nonce` tells two grants
    of the same pair apart."""

    holder_uid: str
    granted_uid: str
    nonce: str = ""


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A login. It ends with the key pair that it came from."""

    id: str
    user_id: str
    user_uid: str
    access_key_id: str
    created_ms: int
    expires_ms: int


class LeavingRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`memberships` of Admins (user id, nonce of the grant) are being deleted: finish that before another may go."""

    memberships: tuple[tuple[str, str], ...] = ()
    attempt: str = ""


class InstallationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`first_user` is the user that set-up makes; `attempt` keeps two set-ups under way apart."""

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
    | LeavingRecord
    | InstallationRecord
)
R = TypeVar("R", bound=Record)

_encode = msgspec.msgpack.Encoder().encode


def encode(record: Record) -> bytes:
    return _FORMAT + _encode(record)


def decode(kind: type[R], data: bytes) -> R:
    """
    Raises:
        AuthFormat: another format number, or bytes that are no such record.
    """
    if data[:1] != _FORMAT:
        raise AuthFormat(f"{kind.__name__} of an unknown format {data[:1].hex()}", kind=kind.__name__)
    try:
        return msgspec.msgpack.decode(data[1:], type=kind)
    except msgspec.MsgspecError as error:
        raise AuthFormat(f"{kind.__name__} does not decode: {error}", kind=kind.__name__) from error
