"""Headers that ask S3 to store an object in a certain way: accept some, and refuse the others by name.

A value that states S3's default, or a property that always holds here, is accepted. Other values are refused: a client
that asks for a lock, a tag or its own key must not believe that the object has it.
"""

from __future__ import annotations

from typing import Final

from lakebed.base import Entry
from lakebed.server.http.fields import Conditions, condition_of
from lakebed.server.s3.errors import NotImplementedByName, S3Error
from lakebed.versions import Condition

from .requests import S3Request

_REFUSED: Final = (
    b"x-amz-grant-",
    b"x-amz-object-lock-",
    b"x-amz-server-side-encryption-aws-kms-key-id",
    b"x-amz-server-side-encryption-context",
    b"x-amz-server-side-encryption-customer-",
    b"x-amz-website-redirect-location",
    b"x-amz-write-offset-bytes",
    b"x-amz-copy-source-server-side-encryption",
)
_TAKEN: Final[dict[bytes, frozenset[str]]] = {
    # The object store may encrypt the bytes this way, and S3 does it for every object.
    b"x-amz-server-side-encryption": frozenset({"AES256"}),
    # Bucket keys save calls of KMS, and KMS encrypts no object here.
    b"x-amz-server-side-encryption-bucket-key-enabled": frozenset({"true", "false"}),
    b"x-amz-tagging": frozenset({""}),
}
"""The accepted values by header. They change nothing."""
_ACLS: Final = frozenset({"private", "bucket-owner-read", "bucket-owner-full-control"})
"""ACLs that grant access only to the bucket's owner, who owns every object."""
_STORAGE_CLASSES: Final = frozenset(
    {
        "DEEP_ARCHIVE",
        "EXPRESS_ONEZONE",
        "FSX_OPENZFS",
        "GLACIER",
        "GLACIER_IR",
        "INTELLIGENT_TIERING",
        "ONEZONE_IA",
        "OUTPOSTS",
        "REDUCED_REDUNDANCY",
        "SNOW",
        "STANDARD_IA",
    }
)
_CUSTOMER_KEYS: Final = frozenset(
    {
        b"x-amz-server-side-encryption-customer-algorithm",
        b"x-amz-server-side-encryption-customer-key",
        b"x-amz-server-side-encryption-customer-key-md5",
    }
)


def check_upload_headers(request: S3Request) -> None:
    """Check the headers of an upload.

    Raises:
        S3Error: a header asks for a property that this gateway does not support.
    """
    request.refuse_headers(_REFUSED)
    for header, values in _TAKEN.items():
        if request.header(header) not in {None, *values}:
            shown = f" with another value than {', '.join(sorted(values))}" if values != {""} else ""
            raise NotImplementedByName(f"the header {header.decode()}{shown}")
    check_acl(request)
    directive = request.header(b"x-amz-tagging-directive")
    if directive not in {None, "COPY", "REPLACE"}:
        raise S3Error("InvalidArgument", "Unknown tagging directive.")
    storage_class = request.header(b"x-amz-storage-class")
    if storage_class in _STORAGE_CLASSES:
        raise NotImplementedByName("the header x-amz-storage-class with another value than STANDARD")
    if storage_class not in {None, "STANDARD"}:
        raise S3Error("InvalidStorageClass")


def check_acl(request: S3Request) -> None:
    """Check that the headers grant no access.

    Raises:
        S3Error: a header grants access. Only policies can do that.
    """
    request.refuse_headers([b"x-amz-grant-"])
    acl = request.header(b"x-amz-acl")
    if acl is not None and acl not in _ACLS:
        raise S3Error(
            "AccessControlListNotSupported",
            "The bucket does not allow ACLs: the header x-amz-acl is not implemented with another value than"
            f" {', '.join(sorted(_ACLS))}",
        )


def refuse_customer_keys(request: S3Request) -> None:
    """Refuse encryption keys of the client.

    Raises:
        NotImplementedByName: the client sends its own key. The gateway encrypts no object with it.
    """
    if request.has_any_header(_CUSTOMER_KEYS):
        request.refuse_headers([*_CUSTOMER_KEYS])


# Conditions, by the ETag of an entry or the date of its object


def check_conditions(request: S3Request, entry: Entry) -> bool:
    """Check the conditions of a read. Return whether the client needs the object (else 304)."""
    conditions = Conditions.read(request.header)
    if failed := conditions.failed(entry):
        raise S3Error("PreconditionFailed", Condition=failed)
    return not conditions.is_unchanged(entry)


def check_source_conditions(request: S3Request, entry: Entry) -> None:
    conditions = Conditions.read(request.header, b"x-amz-copy-source-")
    if conditions.failed(entry) or conditions.is_unchanged(entry):
        raise S3Error("PreconditionFailed")


def write_condition(request: S3Request) -> Condition:
    """Return the condition of If-None-Match or If-Match.

    Raises:
        S3Error: S3 does not support the value for writes.
    """
    # An empty If-None-Match matches no object, so the condition holds. Some tools send it by their settings.
    if_none_match, if_match = request.header(b"if-none-match") or None, request.header(b"if-match")
    if if_none_match is not None and if_none_match.strip() != "*":
        raise NotImplementedByName("the header If-None-Match of a write with another value than *")
    if if_match is not None and (if_none_match is not None or if_match.strip() == "*"):
        raise NotImplementedByName("the header If-Match of a write with *, or beside If-None-Match")
    return condition_of(if_none_match, if_match)
