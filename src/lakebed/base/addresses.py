"""Physical addresses inside a storage namespace: `data/<slice>/<sequence>` (docs/formats/addresses.md).

A slice is an integer that fits into 63 bits: 41 bits of reversed milliseconds, so that newer slices sort first, then 22
random bits. Its name is 13 digits of base32hex. That alphabet is in byte order, so names sort as the numbers do.
The sequence is a dense counter in its slice, 8 decimal digits, so it too sorts as a number. One server instance owns
a slice, and never hands out a number twice. Numbers make the collectors' joins cheap and exact: the mark keeps one
bitmap for each slice.

Any other address is *foreign*: a full URI outside the namespace, or an old layout inside it. Lakebed keeps it as text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = [
    "DIGITS",
    "FOREIGN_SLICE",
    "SEQUENCE_MAX",
    "format_address",
    "in_digits",
    "inner_namespace",
    "is_absolute",
    "is_inside",
    "key_inside",
    "newest_first",
    "parse_address",
    "parse_slice_name",
    "slice_name",
    "slice_number",
    "slice_opened_at_ms",
]

DIGITS: Final = "0123456789abcdefghijklmnopqrstuv"
"""base32hex, whose digits are in byte order: names of equal length sort as their numbers do."""
_REVERSED: Final = str.maketrans(DIGITS, DIGITS[::-1])

SEQUENCE_MAX: Final = 99_999_999
FOREIGN_SLICE: Final = -1
"""The value of the slice column for a foreign address; the address column then has the text."""

_VALUES: Final = {digit: value for value, digit in enumerate(DIGITS)}
_NAME_LENGTH: Final = 13
_TIME_BITS: Final = 41
_RANDOM_BITS: Final = 22

_INNER: Final = re.compile(r"(.+?)/(?:_lakefs(?:/|\Z)|data/[0-7][0-9a-v]{12}/[0-9]{8}\Z)", re.ASCII | re.DOTALL)


def in_digits(number: int, length: int) -> str:
    """Write the low `5 * length` bits of a number in `DIGITS`."""
    return "".join([DIGITS[number >> shift & 31] for shift in range(5 * (length - 1), -1, -5)])


def newest_first(fresh: str) -> str:
    """Turn round a fresh id, which sorts by its time: the latest sorts first."""
    return fresh.translate(_REVERSED)


def slice_number(*, opened_at_ms: int, random_bits: int) -> int:
    """Return the slice opened at this Unix time in milliseconds. Uses only the low 22 bits of `random_bits`."""
    reversed_ms = (1 << _TIME_BITS) - 1 - (opened_at_ms & ((1 << _TIME_BITS) - 1))
    return reversed_ms << _RANDOM_BITS | random_bits & ((1 << _RANDOM_BITS) - 1)


def slice_opened_at_ms(slice_: int) -> int:
    """Return when the slice was opened, by its owner's clock. Use it for reports and rotation, never for safety."""
    return (1 << _TIME_BITS) - 1 - (slice_ >> _RANDOM_BITS)


@lru_cache(maxsize=4096)  # a process writes millions of addresses in few slices
def slice_name(slice_: int) -> str:
    assert 0 <= slice_ < 1 << (_TIME_BITS + _RANDOM_BITS), slice_
    return in_digits(slice_, _NAME_LENGTH)


@lru_cache(maxsize=4096)
def parse_slice_name(name: str) -> int | None:
    """Return the slice with this name, or None if it is no name of a slice."""
    if len(name) != _NAME_LENGTH:
        return None
    number = 0
    for digit in name:
        value = _VALUES.get(digit)
        if value is None:
            return None
        number = number << 5 | value
    return number if number < 1 << (_TIME_BITS + _RANDOM_BITS) else None


def format_address(slice_: int, sequence: int) -> str:
    assert 0 <= sequence <= SEQUENCE_MAX, sequence
    return f"data/{slice_name(slice_)}/{sequence:08d}"


def parse_address(address: str) -> tuple[int, int] | None:
    """Return slice and sequence of an address that `format_address` wrote, or None for a foreign address.

    An address that `format_address` would not write back byte for byte is foreign.
    """
    if len(address) != 27 or not address.startswith("data/") or address[18] != "/":
        return None
    slice_ = parse_slice_name(address[5:18])
    digits = address[19:]
    if slice_ is None or not (digits.isascii() and digits.isdigit()):
        return None
    return slice_, int(digits)


def is_absolute(address: str) -> bool:
    """Return whether an address is a full URI, not a key inside the repository's storage namespace."""
    return "://" in address


def is_inside(address: str, namespace: str) -> bool:
    """Return whether a full URI is inside a namespace, which is spelled as by its store, without a slash at its end.

    The comparison ignores the case of the scheme, as stores do when they open it. The rest is compared exactly.
    """
    scheme, separator, rest = address.partition("://")
    same = scheme.lower() + separator + rest
    return same == namespace or same.startswith(namespace + "/")


def key_inside(address: str, namespace: str) -> str | None:
    """Return the key of an address inside a namespace (no slash at its end), or None if the address is outside.

    Absolute and relative spellings of one object return the same key. A collector that compared them as text would
    delete an object that an entry names by its URI.
    """
    if not is_absolute(address):
        return address
    return address[len(namespace) + 1 :] if is_inside(address, namespace) else None


def inner_namespace(key: str) -> str | None:
    """Return the outermost folder around this key that may be another storage namespace, or None.

    Such a key has a segment `_lakefs` below its first one, or it ends as an address does.
    """
    if key.startswith("_lakefs/") or not ("/_lakefs" in key or "/data/" in key):
        return None
    found = _INNER.match(key)
    return None if found is None else found[1]
