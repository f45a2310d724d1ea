"""Key pairs that are lent for the files of one table. Nothing is stored: the key id holds all that is needed.

The id has what the pair may do, its end and its owner's login, with a MAC. The secret is another MAC of the same. So a
pair costs no write and needs no cleaning. It ends with its hour, or with the key pair or login that it was lent to. The
doors compare it with its owner's rights at the table, as they are now (`lakebed.server.http.circumstances`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from functools import lru_cache
from typing import Final

import msgspec

from .permissions.conditions import Condition
from .permissions.statements import Permissions, Statement

__all__ = ["permissions_of_lent"]

PREFIX: Final = "LENT"
LASTS_S: Final = 3600
_MAC_BYTES: Final = 16


class Lent(msgspec.Struct, frozen=True, array_like=True):
    """Let the holder read, and perhaps write, the files below a folder of a repository's branch.

    It was lent for a table: `namespace` and `table` of the ref. `access_key_id` is the owner's key; `user_id` and
    `session` are the owner's login, where there is no key.
    """

    repository: str
    branch: str
    folder: str
    ref: str
    namespace: str
    table: str
    may_write: bool
    expires_s: int
    access_key_id: str = ""
    user_id: str = ""
    session: str = ""


def lent_pair(lent: Lent, key: bytes) -> tuple[str, str]:
    """Return the id and the secret of the pair."""
    claims = msgspec.msgpack.encode(lent)
    return PREFIX + _text(claims + _mac(key, b"id", claims)), _secret(claims, key)


def read_lent(access_key_id: str, key: bytes) -> tuple[Lent, str] | None:
    """Return what a pair may do, and its secret. None: this server did not lend it. It may have ended."""
    text = access_key_id.removeprefix(PREFIX)
    try:
        sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    claims, mac = sealed[:-_MAC_BYTES], sealed[-_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, b"id", claims)):
        return None
    try:
        return msgspec.msgpack.decode(claims, type=Lent), _secret(claims, key)
    except msgspec.ValidationError:
        return None  # Another release lent it.


@lru_cache(maxsize=1_000)
def permissions_of_lent(user_id: str, lent: Lent, *, may_read: bool) -> Permissions:
    """Return what a pair may do, if its owner may read the table."""
    if not may_read:
        return Permissions(user_id, ())
    resource = f"arn:lakefs:fs:::repository/{lent.repository}/object/{lent.folder}/*"
    at = (Condition(operator="StringEquals", key="branch", values=(lent.branch,)),)
    statements = [Statement(effect="allow", actions=("fs:ReadObject",), resource=resource, conditions=at)]
    if lent.may_write:
        statements.append(Statement(effect="allow", actions=("fs:WriteObject",), resource=resource, conditions=at))
    return Permissions(user_id, statements)


def _secret(claims: bytes, key: bytes) -> str:
    return _text(_mac(key, b"secret", claims) + _mac(key, b"secret too", claims))


def _mac(key: bytes, use: bytes, claims: bytes) -> bytes:
    return hashlib.blake2b(claims, digest_size=_MAC_BYTES, key=key, person=use).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
