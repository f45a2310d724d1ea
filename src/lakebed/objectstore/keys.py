"""Define valid keys: one rule for all drivers, so that a key good in one store is good in every other.

A key is a relative path: segments joined by single slashes. What a folder cannot hold as it stands (`..`, an empty
segment, a segment over 255 bytes) and what S3 or its XML cannot (over 1,024 bytes, control characters) is refused
everywhere. Nothing is ever encoded or normalised: a key is stored under exactly its own bytes of UTF-8, so any other
tool that reads the namespace sees the same name.

One thing this rule cannot see: in a folder an object cannot have the name of a directory, so a store on a local folder
also refuses `a/b` while there is an object `a`, and the other way round. No layout of ours does that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from .store import InvalidObjectKey

BLOCK_KEY_BYTES_MAX: Final = 1024
SEGMENT_BYTES_MAX: Final = 255

RESERVED_SEGMENT: Final = ".lakebed-tmp"
"""Unfinished objects of stores on a local folder lie in a directory of this name, at the root of the namespace."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,127}(?:/[A-Za-z0-9_][A-Za-z0-9_.=-]{0,127}){0,6}")
"""Most keys there are, found good at the price of one match. Anything else is looked at with care."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def check_object_key(key: str) -> str:
    """The key itself.

    Raises:
        InvalidObjectKey: it is none, and the message says why.
    """
    if not is_object_key(key):
        raise InvalidObjectKey(f"{key[:100]!a} is no key: {_why_not(key)}", key=key)
    return key


def is_object_key(key: str) -> bool:
    return _PLAIN.fullmatch(key) is not None or _why_not(key) is None


def are_plain_object_keys(keys: Sequence[str]) -> bool:
    """Return True where one match shows that all are keys; False shows nothing. A quarter of a microsecond each."""
    return all(map(_PLAIN.fullmatch, keys))


def can_begin_object_key(prefix: str) -> bool:
    """Return whether any key can begin with this. Where none can, a listing is empty without asking the store."""
    folder, slash, name = prefix.rpartition("/")
    if slash and not is_object_key(folder):
        return False
    return not _CONTROL.search(name) and name.encode(errors="replace").decode() == name


def _why_not(key: str) -> str | None:
    if not key:
        return "it is empty"
    try:
        data = key.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(data) > BLOCK_KEY_BYTES_MAX:
        return f"it is {len(data)} bytes long, at most {BLOCK_KEY_BYTES_MAX} are allowed"
    if _CONTROL.search(key):
        return "it has a control character in it"
    if key.startswith("/"):
        return "it is absolute"
    for segment in key.split("/"):
        if segment in {"", ".", "..", RESERVED_SEGMENT}:
            return f"{segment!r} is no segment of a key" if segment else "it has an empty segment"
        if len(segment.encode()) > SEGMENT_BYTES_MAX:
            return f"a segment is over {SEGMENT_BYTES_MAX} bytes long"
    return None
