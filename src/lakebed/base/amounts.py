"""Write amounts for people, in the output of commands and collectors. Output for programs has plain numbers."""

from __future__ import annotations

from typing import Final

SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


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
