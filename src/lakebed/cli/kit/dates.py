"""Read the dates and the spans of time that users write."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

from .failures import Misuse

_SPAN: Final = re.compile(r"[0-9]+[a-z]+")


def parse_date(text: str) -> int:
    """Return Unix seconds of `1767225600`, `2026-01-01` or `2026-01-01T12:00:00+02:00`; UTC where no offset is given.

    Raises:
        Misuse: it is none of these.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise Misuse(f"{text!r} is neither Unix seconds nor an ISO 8601 date, such as 2026-11-21") from error
    return int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp())


def parse_since(text: str) -> int:
    """Return Unix seconds of a date, or of a span before now: `2d` means two days ago.

    Raises:
        Misuse: it is neither.
    """
    if _SPAN.fullmatch(text):
        from lakebed.gc.rules import parse_lifetime  # here, since loading it takes time that most commands save

        return parse_lifetime(text).before_ms(int(time.time() * 1000)) // 1000
    try:
        return parse_date(text)
    except Misuse as error:
        raise Misuse(f"{error}, nor a span before now, such as 2d") from error


def iso_since(text: str) -> str:
    """Return the date of `parse_since` in ISO 8601; of an empty text, an empty one."""
    return datetime.fromtimestamp(parse_since(text), UTC).isoformat() if text else ""
