"""Fields of requests that the doors share, as RFC 9110 defines them: conditions, dates, ranges, digests and queries."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import unquote_to_bytes

from lakebed.base import Entry, Etags
from lakebed.versions import ANY, Condition

from .errors import Answer, InvalidParameter

CONDITIONS: Final = frozenset({b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since"})
_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII | re.IGNORECASE)


# Conditions


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a read, or of the source of a copy. An ETag takes precedence over a date (13.2.2)."""

    if_match: str | None
    if_none_match: str | None
    modified_since_s: int | None
    unmodified_since_s: int | None

    @classmethod
    def read(cls, header: Callable[[bytes], str | None], prefix: bytes = b"") -> Conditions:
        return cls(
            header(prefix + b"if-match"),
            header(prefix + b"if-none-match"),
            read_date(header(prefix + b"if-modified-since")),
            read_date(header(prefix + b"if-unmodified-since")),
        )

    def failed(self, entry: Entry) -> str:
        """Return the header that forbids the operation on this object, or nothing."""
        if self.if_match is not None:
            return "" if Etags.read(self.if_match).match(entry.checksum) else "If-Match"
        since_s = self.unmodified_since_s
        return "If-Unmodified-Since" if since_s is not None and entry.modified_ms // 1000 > since_s else ""

    def is_unchanged(self, entry: Entry) -> bool:
        """Return whether the client has the object already."""
        if self.if_none_match is not None:
            return Etags.read(self.if_none_match).match_weakly(entry.checksum)
        return self.modified_since_s is not None and entry.modified_ms // 1000 <= self.modified_since_s


def write_condition(header: Callable[[bytes], str | None]) -> Condition:
    """Return the condition of a write by the API."""
    if_none_match, if_match = header(b"if-none-match"), header(b"if-match")
    if if_none_match is not None and if_none_match.strip() != "*":
        raise InvalidParameter('Unsupported value for If-None-Match - Only "*" is supported')
    return condition_of(if_none_match, if_match)


def condition_of(if_none_match: str | None, if_match: str | None) -> Condition:
    """Return the condition of a write with these headers. Each door refuses other values than `*` for If-None-Match."""
    if if_none_match is None and if_match is None:
        return ANY
    return Condition(if_none_match is not None, None if if_match is None else Etags.read(if_match))


def refuse_conditions(header: Callable[[bytes], str | None], refused: Iterable[bytes], operation: str) -> None:
    """Refuse conditions that a write does not heed. Without them it could replace what its client wants to keep."""
    for name in sorted(refused):
        if header(name):
            raise Answer(501, f"the header {name.decode().title()} of {operation} is not supported")


def read_date(text: str | None) -> int | None:
    """Return an HTTP date in seconds, or None if it is missing, malformed, or before or after all years in UTC."""
    if text is None:
        return None
    try:
        date = parsedate_to_datetime(text)
        seconds = int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp())
        datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError):
        return None
    return seconds


def has_same_bytes(if_range: str | None, entry: Entry) -> bool:
    """Return whether a Range header applies: the object still matches If-Range, or the request has no If-Range.

    A client resumes a download this way. With another validator it gets the whole object (13.1.5). An ETag must be
    equal and strong, a date equal to the second.
    """
    if if_range is None:
        return True
    validator = if_range.strip()
    if not entry.checksum:
        return False
    if '"' in validator:
        return validator == f'"{entry.checksum}"'
    # The contract's clients send ETags without quotes, too.
    return validator == entry.checksum or read_date(validator) == entry.modified_ms // 1000


# Ranges


def read_range(text: str) -> tuple[int | None, int | None] | None:
    """Return the first and last byte of one range, where it has them. None: it is no range of bytes, or several."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return None
    first, last = (int(number) if number else None for number in match.groups())
    if first is None:
        return None if last is None else (None, last)
    return None if last is not None and last < first else (first, last)


def asked_span(header: Callable[[bytes], str | None], entry: Entry) -> tuple[int, int] | None:
    """Return the bytes that Range selects while If-Range holds, from start to before end, cut to the object's size.

    None selects the whole object; start ≥ end selects no bytes. A malformed range or another unit is ignored, and so
    are several ranges at once (14.2).
    """
    text = header(b"range")
    bounds = None if text is None else read_range(text)
    if bounds is None or not has_same_bytes(header(b"if-range"), entry):
        return None
    (first, last), size = bounds, entry.size_bytes
    if first is None:
        assert last is not None, "a range has a bound"
        return max(size - last, 0), size
    return first, size if last is None else min(last + 1, size)


# Digests and queries


def read_digest(text: str, size_bytes: int) -> bytes | None:
    """Return the digest that a header has in base64, or None if it is no digest of this size."""
    try:
        digest = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return digest if len(digest) == size_bytes else None


def query_pairs(raw: bytes, *, most: int) -> list[tuple[str, str]]:
    """Decode the pairs of a query, or of a URL-encoded form, or raise InvalidParameter. A `+` is a space."""
    if raw.count(b"&") >= most:
        # Decoding takes 1 µs a pair and blocks the event loop.
        raise InvalidParameter(f"at most {most:,} parameters are allowed")
    pairs: list[tuple[str, str]] = []
    try:
        for pair in raw.replace(b"+", b" ").split(b"&"):
            if pair:
                name, _, value = pair.partition(b"=")
                if b"%" in pair:
                    name, value = unquote_to_bytes(name), unquote_to_bytes(value)
                pairs.append((name.decode(), value.decode()))
    except UnicodeDecodeError as error:
        raise InvalidParameter("the query is not valid UTF-8") from error
    return pairs
