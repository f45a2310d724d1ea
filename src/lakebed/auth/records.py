"""What the partition `auth` holds (docs/formats/auth.md): one byte of format number, then msgpack.

    users/<id>                  UserRecord
    credentials/<access key>    CredentialsRecord: the secret is encrypted, the user named by id and uid
    server/secret               32 random bytes that every key of the server is derived from
    server/installation         InstallationRecord: written by set-up, and by it alone

A user who is deleted and made again gets a new uid, so credentials that a crash left behind never come back to life.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from lakebed.base import Corrupt

PARTITION: Final = b"auth"
USERS: Final = b"users/"
CREDENTIALS: Final = b"credentials/"
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


class InstallationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`first_user` is whom set-up makes; `attempt` keeps two set-ups under way apart."""

    id: str
    attempt: str
    first_user: str
    first_uid: str
    created_ms: int
    is_complete: bool = False


R = TypeVar("R", UserRecord, CredentialsRecord, InstallationRecord)

_encode = msgspec.msgpack.Encoder().encode


def encode(record: UserRecord | CredentialsRecord | InstallationRecord) -> bytes:
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
