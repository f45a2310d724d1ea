"""Compare ETags and dates of requests with an object's, as RFC 9110 defines. REST and S3 use these functions."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from lakebed.base import Entry


def names_etag(tags: str, checksum: str) -> bool:
    """Return whether a list of ETags names an object, by the weak comparison. `*` names every object."""
    names = [tag.strip().removeprefix("W/").strip('"') for tag in tags.split(",")]
    return "*" in names or (checksum != "" and checksum in names)


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

    A client resumes a download this way. With another validator it gets the whole object (RFC 9110, 13.1.5). An ETag
    must be equal and strong, a date equal to the second.
    """
    if if_range is None:
        return True
    tag = if_range.strip()
    if tag.startswith("W/") or not entry.checksum:
        return False
    if tag.strip('"') == entry.checksum:
        return True
    return not tag.startswith('"') and read_date(tag) == entry.modified_ms // 1000
