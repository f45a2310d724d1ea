"""The server's keys: one secret, from which all others are derived (HKDF-SHA-256, one label for each use).

The server makes the secret on its first start and stores it in the key-value store for all of its processes. An
operator can pass a secret instead, which the server does not store, so that database dumps reveal no secret keys.
Secret keys are sealed with AES-256-GCM under a fresh 96-bit nonce. Each is bound to its access key, so that two
records cannot be swapped.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lakebed.base import Ids, Invalid
from lakebed.kv import PredicateFailed, Store

from .records import PARTITION, SERVER_SECRET, AuthFormat

__all__ = ["ServerKeys", "load_server_keys"]

SECRET_BYTES_MIN: Final = 16
_NONCE_BYTES: Final = 12


class ServerKeys:
    """Derive and use the server's keys.

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
        """Encrypt a secret key: return the nonce, then ciphertext and tag."""
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
