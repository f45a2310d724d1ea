"""Conditions of reads, copies and writes: If-Match and its like, by the ETag of an entry or the date of its object."""

from __future__ import annotations

from lakebed.base import Entry
from lakebed.server.http.fields import Conditions, condition_of
from lakebed.server.s3.errors import NotImplementedByName, S3Error
from lakebed.versions import Condition

from .requests import S3Request


def check_conditions(request: S3Request, entry: Entry) -> bool:
    """Check the conditions of a read. Return whether the client needs the object (else 304).

    Raises:
        S3Error: a condition does not hold.
    """
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
