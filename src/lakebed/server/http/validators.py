"""ETags and dates of requests, as RFC 9110 compares them with an object's. Both doors that serve objects ask here."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from lakebed.base import Entry


def names_etag(tags: str, checksum: str) -> bool:
    """Return whether a list of ETags names an object, by the weak comparison. `*` names every object."""
    names = [tag.strip().removeprefix("W/").strip('"') for tag in tags.split(",")]
    return "*" in names or (checksum != "" and checksum in names)


def read_date(text: str | None) -> int | None:
    """Return a date of HTTP in seconds; None where there is none, or a malformed one."""
    if text is None:
        return None
    try:
        return int(parsedate_to_datetime(text).timestamp())
    except (ValueError, OverflowError):
        return None


def has_same_bytes(if_range: str | None, entry: Entry) -> bool:
    """Return whether a Range header counts: the object is still the one of If-Range, or the request has none.

    A client goes on with a download this way. Where the validator is another one, it gets the whole object
    (RFC 9110, 13.1.5). An ETag must be equal and strong, a date equal to the second.
    """
    if if_range is None:
        return True
    tag = if_range.strip()
    if tag.startswith("W/") or not entry.checksum:
        return False
    if tag.strip('"') == entry.checksum:
        return True
    return not tag.startswith('"') and read_date(tag) == entry.modified_ms // 1000
