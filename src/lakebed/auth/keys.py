"""The server's keys: one secret, from which everything else is derived (HKDF-SHA-256, one label for each use).

The secret is made on the first start and lies in the key-value store, where every process of the server finds it; an
operator who wants database dumps to be worthless hands one in instead, and then it is stored nowhere. Secret keys are
sealed with AES-256-GCM under a fresh 96-bit nonce, bound to the access key they belong to, so that two records cannot
be swapped.
"""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lakebed.base import Ids, Invalid
from lakebed.kv import PredicateFailed, Store

from .records import PARTITION, SERVER_SECRET, AuthFormat

SECRET_BYTES_MIN: Final = 16
_NONCE_BYTES: Final = 12


class WeakServerSecret(Invalid):
    """The secret handed in is too short to derive keys from."""


class ServerKeys:
    """`token_key` signs JWTs, `continuation_key` seals where readings go on that have no secret of their own;
    `fingerprint` names what a request carried without keeping it."""

    def __init__(self, secret: bytes) -> None:
        """
        Raises:
            WeakServerSecret: under 16 bytes.
        """
        if len(secret) < SECRET_BYTES_MIN:
            raise WeakServerSecret(f"the server secret needs at least {SECRET_BYTES_MIN} bytes, got {len(secret)}")
        self.token_key = _derive(secret, b"lakebed jwt")
        self.continuation_key = _derive(secret, b"lakebed continuation")
        self._cipher = AESGCM(_derive(secret, b"lakebed credentials"))
        self._fingerprint_key = _derive(secret, b"lakebed fingerprint")

    def seal(self, secret_key: str, *, access_key_id: str, nonce: bytes) -> bytes:
        """Nonce, then ciphertext and tag."""
        assert len(nonce) == _NONCE_BYTES, len(nonce)
        return nonce + self._cipher.encrypt(nonce, secret_key.encode(), access_key_id.encode())

    def unseal(self, sealed: bytes, *, access_key_id: str) -> str:
        """
        Raises:
            AuthFormat: sealed by another server secret, for another access key, or damaged.
        """
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], access_key_id.encode()).decode()
        except (InvalidTag, ValueError) as error:
            raise AuthFormat(
                f"the secret of {access_key_id} does not decrypt: another server secret, or a damaged record",
                access_key_id=access_key_id,
            ) from error

    def fingerprint(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=16, key=self._fingerprint_key).digest()


async def load_server_keys(store: Store, ids: Ids, given: bytes | None = None) -> ServerKeys:
    """Keys from the secret handed in, else from the stored one, which is made if there is none yet.

    Of several processes that start at once, one wins; the others use what it stored.
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
