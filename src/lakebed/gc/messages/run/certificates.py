"""The certificate of an erasure: the erased objects with proof of their absence, and the content that remains.

    _lakefs/retention/erasures/<run>.json

The file is sealed with a digest, and signed by the server (gc/live/records/signing.py). `verify` repeats the search
later, by the selection in the certificate.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
from msgspec.structs import replace

from lakebed.gc.messages.erasures import Standing
from lakebed.gc.rules import Selection

from .plans import Total, seal, unseal
from .tables import BadInput

__all__ = [
    "CERTIFICATES_PREFIX",
    "CERTIFICATE_KEY",
    "PROOF",
    "Certificate",
    "CertificateHead",
    "CertificateKey",
    "Certified",
    "Collected",
    "ErasedObject",
    "certificate_path",
    "counted",
    "decode_certificate",
    "decode_head",
    "encode_certificate",
    "head_of",
    "is_signed",
    "signed_bytes",
]

CERTIFICATE_FORMAT: Final = 3
PROOF: Final = 2
"""The number of a proof's meaning. A proof with another number is repeated. Raise it when the search changes."""
CERTIFICATES_PREFIX: Final = "_lakefs/retention/erasures/"
CERTIFICATE_KEY: Final = rf"{CERTIFICATES_PREFIX}[0-9a-z][0-9a-z-]*\.json"


class ErasedObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An erased object. `paths`: the selected paths that named it. `is_part`: a part of an upload, without checksum."""

    address: str
    paths: tuple[str, ...]
    size_bytes: int
    checksum: str = ""
    is_part: bool = False
    # The store has no object at the address.
    is_absent: bool = False
    # After the plan, only a deferred run kept the object. The certificate lists it so that a later certificate looks
    # for restored copies.
    is_kept: bool = False


class Collected(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run of uncommitted data that proves that no garbage from before the erasure is left.

    It deleted `total`, by the plan of digest `plan`, and began at `began_ms`.
    """

    run_id: str
    began_ms: int
    plan: str
    total: Total
    # PROOF of the release that made the proof. 0: the run left out objects that may become garbage later, so the proof
    # is repeated each time.
    proof: int = 0


class CertificateHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part that the server compares with the records of the run, and signs."""

    repository: str
    namespace: str
    run_id: str
    selection: Selection
    why: str
    takes_shared: bool
    planned_ms: int
    made_ms: int = 0
    # The user who applied the plan or verified the certificate.
    made_by: str = ""
    plan: str
    # The server signs only the head, which has the digest of all other fields. So no server decodes the objects of a
    # certificate (up to 300,000), and a public key is enough to check one.
    # The SHA-256 of the other part, in hex.
    contents: str = ""
    # The server's signature of `signed_bytes`, in hex. The JSON leaves out defaults, so fields of later releases do not
    # break the signature.
    signature: str = ""


class Certificate(CertificateHead, frozen=True, kw_only=True, omit_defaults=True):
    """`ledger`: the digest of each file that records the deletes. `remains`: traces without content (names), and copies
    that only people can find. Without `collected`, garbage remains, which may be of the selected paths.
    """

    ledger: dict[str, str]
    commits_read: int = 0
    objects: tuple[ErasedObject, ...] = ()
    stands: tuple[Standing, ...] = ()
    remains: tuple[str, ...] = ()
    collected: Collected | None = None


class Certified(msgspec.Struct, frozen=True, kw_only=True):
    """Count the lines of a certificate. `stands`: the lines of content that can still be read."""

    run_id: str
    objects_certified: int
    objects_absent: int
    stands: int


class CertificateKey(msgspec.Struct, frozen=True, kw_only=True):
    """The public key, as PEM, that checks the server's certificates."""

    pem: str


def head_of(certificate: CertificateHead) -> CertificateHead:
    """Return the head of a certificate, with the digest of its contents. Return a head unchanged."""
    if not isinstance(certificate, Certificate):
        return certificate
    contents = {name: getattr(certificate, name) for name in _CONTENTS}
    digest = hashlib.sha256(msgspec.json.encode(contents)).hexdigest()
    head = {name: getattr(certificate, name) for name in CertificateHead.__struct_fields__}
    return CertificateHead(**{**head, "contents": digest})


def counted(certificate: Certificate) -> Certified:
    return Certified(
        run_id=certificate.run_id,
        objects_certified=len(certificate.objects),
        objects_absent=sum(one.is_absent for one in certificate.objects),
        stands=len(certificate.stands),
    )


_CONTENTS: Final = ("ledger", "commits_read", "objects", "stands", "remains", "collected")


def signed_bytes(certificate: CertificateHead) -> bytes:
    """Return the bytes that a server signs: the head in JSON, without the signature."""
    return msgspec.json.encode(replace(head_of(certificate), signature=""))


def is_signed(certificate: CertificateHead, pem: str) -> bool:
    """Return whether the owner of this public key, in PEM, signed this very certificate. Needs `cryptography`.

    Raises:
        BadInput: the key is not a public key of Ed25519.
    """
    # Import on use: collectors and commands import this module, and most check no signature.
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput("the key is not a public key in PEM", input="key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadInput("the key is no Ed25519 key: certificates are signed with one", input="key")
    try:
        key.verify(bytes.fromhex(certificate.signature), signed_bytes(certificate))
    except (InvalidSignature, ValueError):
        return False
    return True


def certificate_path(run_id: str) -> str:
    return f"{CERTIFICATES_PREFIX}{run_id}.json"


def encode_certificate(certificate: Certificate) -> bytes:
    return seal(certificate, name="certificate", format_number=CERTIFICATE_FORMAT)


def decode_certificate(data: bytes) -> Certificate:
    """Decode a certificate, or raise BadInput."""
    return unseal(data, Certificate, name="certificate", what="certificate", format_number=CERTIFICATE_FORMAT)


def decode_head(data: bytes) -> CertificateHead:
    """Return the head of a certificate, without decoding its objects, or raise BadInput."""
    return unseal(data, CertificateHead, name="certificate", what="certificate", format_number=CERTIFICATE_FORMAT)
