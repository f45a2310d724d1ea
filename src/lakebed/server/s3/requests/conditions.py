"""Conditions of reads, copies and writes: If-Match and its like, by the ETag of an entry or the date of its object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lakebed.base import Entry
from lakebed.server.http.validators import names_etag, read_date
from lakebed.server.s3.errors import NotImplementedByName, S3Error

from .requests import S3Request

CONDITIONS: Final = frozenset({b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since"})


@dataclass(frozen=True, slots=True)
class _Conditions:
    if_match: str | None
    if_none_match: str | None
    modified_since_s: int | None
    unmodified_since_s: int | None

    def fails(self, entry: Entry) -> bool:
        """Return whether the conditions fail. An ETag takes precedence over a date (RFC 9110)."""
        if self.if_match is not None:
            return not names_etag(self.if_match, entry.checksum)
        return self.unmodified_since_s is not None and entry.modified_ms // 1000 > self.unmodified_since_s

    def is_unchanged(self, entry: Entry) -> bool:
        if self.if_none_match is not None:
            return names_etag(self.if_none_match, entry.checksum)
        return self.modified_since_s is not None and entry.modified_ms // 1000 <= self.modified_since_s


def _conditions(request: S3Request, prefix: bytes = b"") -> _Conditions:
    return _Conditions(
        request.header(prefix + b"if-match"),
        request.header(prefix + b"if-none-match"),
        read_date(request.header(prefix + b"if-modified-since")),
        read_date(request.header(prefix + b"if-unmodified-since")),
    )


def check_conditions(request: S3Request, entry: Entry) -> bool:
    """Check the conditions of a read. Return whether the client needs the object (else 304).

    Raises:
        S3Error: a condition does not hold.
    """
    conditions = _conditions(request)
    if conditions.fails(entry):
        raise S3Error("PreconditionFailed", Condition="If-Match" if conditions.if_match else "If-Unmodified-Since")
    return not conditions.is_unchanged(entry)


def check_source_conditions(request: S3Request, entry: Entry) -> None:
    conditions = _conditions(request, b"x-amz-copy-source-")
    if conditions.fails(entry) or conditions.is_unchanged(entry):
        raise S3Error("PreconditionFailed")


def write_conditions(request: S3Request) -> tuple[bool, str | None]:
    """Return whether If-None-Match is `*`, and the ETag of If-Match.

    Raises:
        S3Error: S3 does not support the value for writes.
    """
    # An empty If-None-Match matches no object, so the condition holds. Some tools send it by their settings.
    if_none_match, if_match = request.header(b"if-none-match") or None, request.header(b"if-match")
    if if_none_match is not None and if_none_match.strip() != "*":
        raise NotImplementedByName("the header If-None-Match of a write with another value than *")
    if if_match is not None and (if_none_match is not None or if_match.strip() == "*"):
        raise NotImplementedByName("the header If-Match of a write with *, or beside If-None-Match")
    return if_none_match is not None, None if if_match is None else if_match.strip().strip('"')
