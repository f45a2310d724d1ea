"""The certificate of an erasure: what went, proven absent by a look at the store, and what still stands and why.

    _lakefs/retention/erasures/<run>.json

Sealed with a digest of itself, and signed by the server (gc/live/records/signing.py). `verify` asks the same again
later, by what the certificate says was selected.

The server signs the head alone, which has the digest of all else. So no server decodes the objects of a certificate,
which may be 300,000, and a public key is enough to check one.
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

CERTIFICATE_FORMAT: Final = 3
PROOF: Final = 2
"""What a proof proves, as a number: one of another number is sought again. Raise it if the search for one changes."""
CERTIFICATES_PREFIX: Final = "_lakefs/retention/erasures/"
CERTIFICATE_KEY: Final = rf"{CERTIFICATES_PREFIX}[0-9a-z][0-9a-z-]*\.json"


class ErasedObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`paths` are selected ones that named it. `is_part`: it is a part of an upload, so it has no checksum.
    `is_absent`: the store has nothing at the address. `is_kept`: only a deferred run kept it, after the erasure was
    planned; it is listed so that a later certificate asks for restored copies.
    """

    address: str
    paths: tuple[str, ...]
    size_bytes: int
    checksum: str = ""
    is_part: bool = False
    is_absent: bool = False
    is_kept: bool = False


class Collected(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run of uncommitted data which proves that no garbage is left from before the erasure. It took `total`, by the
    plan of digest `plan`; `began_ms` is when it began. `proof` is PROOF of the release that found it, or 0 where it
    left out what may become garbage later: then it is sought again each time.
    """

    run_id: str
    began_ms: int
    plan: str
    total: Total
    proof: int = 0


class CertificateHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part that the server compares with the records of the run, and signs. `made_by` applied or verified.

    `contents` is the SHA-256 of the other part, in hex, and `signature` the server's, in hex, over `signed_bytes`. A
    default is left out of the JSON, so fields that later releases add do not break the signature.
    """

    repository: str
    namespace: str
    run_id: str
    selection: Selection
    why: str
    takes_shared: bool
    planned_ms: int
    made_ms: int = 0
    made_by: str = ""
    plan: str
    contents: str = ""
    signature: str = ""


class Certificate(CertificateHead, frozen=True, kw_only=True, omit_defaults=True):
    """`ledger` has the digest of each file that records the deletes. `remains` are traces without content: names, and
    copies that only people can look for. Without `collected` garbage stands, which may be of the selected paths.
    """

    ledger: dict[str, str]
    commits_read: int = 0
    objects: tuple[ErasedObject, ...] = ()
    stands: tuple[Standing, ...] = ()
    remains: tuple[str, ...] = ()
    collected: Collected | None = None


class Certified(msgspec.Struct, frozen=True, kw_only=True):
    """Count the lines of a certificate, for those who do not read all of it. `stands` counts what still stands."""

    run_id: str
    objects_certified: int
    objects_absent: int
    stands: int


class CertificateKey(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the public key, as PEM, with which the server's certificates are checked."""

    pem: str


def head_of(certificate: CertificateHead) -> CertificateHead:
    """Return the head of a certificate, with the digest of its contents as they are now. A head stays as it is."""
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
    """Return whether the owner of this public key, in PEM, signed the certificate as it is. Needs `cryptography`.

    Raises:
        BadInput: it is no public key of Ed25519.
    """
    # Collectors and commands import this module, and most of them check no signature.
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput("the key is no public key in PEM", input="key") from error
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
    """
    Raises:
        BadInput: unreadable, of an unknown format, or changed.
    """
    return unseal(data, Certificate, name="certificate", what="certificate", format_number=CERTIFICATE_FORMAT)


def decode_head(data: bytes) -> CertificateHead:
    """Return the head of a certificate, and pass over its objects.

    Raises:
        BadInput: see `decode_certificate`.
    """
    return unseal(data, CertificateHead, name="certificate", what="certificate", format_number=CERTIFICATE_FORMAT)
