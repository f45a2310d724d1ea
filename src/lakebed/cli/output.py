"""What a person reads and what a program reads. Pure: values in, text out.

Text is for people and may change. JSON is for programs and does not: records have the names and units of the HTTP
contract (sizes in bytes, dates in Unix seconds); one record is one indented object, a list is one array with a record
on each line, written as it arrives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from lakebed.base import SIZE_UNITS

_AMOUNT = re.compile(rf"[\d,.]+( ({'|'.join(SIZE_UNITS)}))?")


def human_time(unix_s: int) -> str:
    """`2026-11-21 13:05:09Z`: sortable, and the same wherever it is read."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{unix_s} s"


def human_duration(seconds: float) -> str:
    """`350 ms`, `4.2 s`, `2 min 5 s`, `3 h 20 min`, `12 d 4 h`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return _two(minutes, "min", left, "s")
    hours, left = divmod(minutes, 60)
    if hours < 24:
        return _two(hours, "h", left, "min")
    days, left = divmod(hours, 24)
    return _two(days, "d", left, "h")


def _two(amount: int, unit: str, rest: int, rest_unit: str) -> str:
    return f"{amount} {unit}" + (f" {rest} {rest_unit}" if rest else "")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines with aligned columns, two spaces apart, the header first: amounts to the right, but for the first column,
    which has names. No trailing spaces.
    """
    body = [list(row) for row in rows]
    lines = [[cell.upper() for cell in header], *body]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    aligned = [
        str.rjust if column and body and all(_AMOUNT.fullmatch(line[column]) for line in body) else str.ljust
        for column in range(len(header))
    ]
    for line in lines:
        cells = zip(line, widths, aligned, strict=True)
        yield "  ".join(align(cell, width) for cell, width, align in cells).rstrip()


def fields(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Lines `name:  value` with aligned values."""
    kept = list(pairs)
    width = max(len(name) for name, _ in kept) + 1
    for name, value in kept:
        yield f"{name + ':':<{width}}  {value}".rstrip()


def json_record(record: object) -> str:
    """One indented object."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


def json_array(records: Iterable[object]) -> Iterator[str]:
    """Lines of one array, a record on each; takes the next record only when its line is asked for."""
    waiting: str | None = None
    for record in records:
        yield "[" if waiting is None else waiting + ","
        waiting = msgspec.json.encode(record).decode()
    if waiting is None:
        yield "[]"
    else:
        yield waiting
        yield "]"


def printable(text: str) -> str:
    """Without characters that would command a terminal: paths and messages are other people's."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
