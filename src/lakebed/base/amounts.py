"""Write amounts for people, in the output of commands and collectors, and read the sizes that they write. Output
for programs has plain numbers.
"""

from __future__ import annotations

import re
from typing import Final

from .errors import Invalid

__all__ = ["SIZE_UNITS", "count_of", "human_size", "parse_size"]

_BASES: Final = (("i", 1024), ("", 1000))
SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_UNIT_BYTES: Final[dict[str, int]] = {"": 1} | {
    unit.lower().replace("i", i): base**power for power, unit in enumerate(SIZE_UNITS) for i, base in _BASES
}
_SIZE: Final = re.compile(r"([0-9]{1,18}) ?([A-Za-z]*)")


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Write a number with its noun: `1 object`, `2,500 objects`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def human_size(size_bytes: int) -> str:
    """Write a size as `0 B`, `999 B`, `1.5 KiB` or `12 MiB`: two significant digits below 10 of a unit above bytes."""
    amount, unit = float(size_bytes), 0
    while amount >= 1023.5 and unit < len(SIZE_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    digits = 1 if unit and amount < 9.95 else 0
    return f"{amount:.{digits}f} {SIZE_UNITS[unit]}"


def parse_size(text: str) -> int:
    """Return the bytes of `500MiB`, `10 GB` or `4096`. The units of i are of 1024, the others of 1000; case is free.

    Raises:
        Invalid: another form, or another unit.
    """
    match = _SIZE.fullmatch(text.strip())
    unit_bytes = _UNIT_BYTES.get(match[2].lower()) if match else None
    if match is None or unit_bytes is None:
        raise Invalid(f"{text!r} is no size: say 500MiB, 10GB, or a number of bytes", text=text)
    return int(match[1]) * unit_bytes
