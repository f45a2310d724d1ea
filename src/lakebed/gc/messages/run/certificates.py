"""The certificate of an erasure: what went, proven absent by a look at the store, and what still stands and why.

    _lakefs/retention/erasures/<run>.json

Sealed with a digest of itself, and signed by the server (gc/live/records/signing.py). `verify` asks the same again
later, by what the certificate says was selected.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from lakebed.gc.messages.erasures import Standing
from lakebed.gc.rules import Selection

from .plans import Total, seal, unseal

CERTIFICATE_FORMAT: Final = 2
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


class Certificate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`made_by` applied or verified. `ledger` has the digest of each file that records the deletes. `remains` are
    traces without content: names, and what only people can look for. Without `collected` garbage stands, which may be
    of the selected paths. `signature` is the server's, in hex, over `signed_bytes`. A default is left out of the JSON,
    so fields that later releases add do not break the signature.
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
    ledger: dict[str, str]
    commits_read: int = 0
    objects: tuple[ErasedObject, ...] = ()
    stands: tuple[Standing, ...] = ()
    remains: tuple[str, ...] = ()
    collected: Collected | None = None
    signature: str = ""


class CertificateKey(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the public key, as PEM, with which the server's certificates are checked."""

    pem: str


def signed_bytes(certificate: Certificate) -> bytes:
    """Return the bytes that a server signs: the certificate in JSON, without the signature."""
    return msgspec.json.encode(replace(certificate, signature=""))


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
