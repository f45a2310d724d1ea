"""Write answers for people and for programs: values in, text out.

Text is for people and may change. JSON is for programs and does not: records have the names and units of the HTTP
contract (sizes in bytes, dates in Unix seconds); one record is one indented object, a list is one array with a record
on each line, written as it arrives.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any, Final, TypeVar

import click
import msgspec

from lakebed.base import SIZE_UNITS
from lakebed.settings import LAKECTL_VARIABLES, VARIABLES

R = TypeVar("R")
SENTENCE_MIN: Final = 24
"""A sentence in fewer columns has a word or two a line."""
NARROWEST: Final = 20
"""Wrap no text to less than this."""
WIDTH: Final = 80
"""The columns of a terminal that does not say, and of text that goes to none."""
_UNITS: Final = "|".join(SIZE_UNITS)
_TOGETHER = re.compile(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d(?::\d\d)?Z|\S+ (?:==|>=) \S+|(?<!\S)[\d,.]+ (?:{_UNITS})(?!\w)")
"""A time, a condition of a policy, or a size: a line ends before or behind it."""
_GLUE: Final = "\u00a0"
"""Stands for the blanks in these while cells are wrapped."""
PROGRAM: Final = "lakebed"
_COMMAND: Final = re.compile(rf"(?<![\w./-]){PROGRAM} ([a-z-]+)")
_AMOUNT = re.compile(rf"(up to )?[\d,]+(\.\d+)?( ({_UNITS}))?")


def human_time(unix_s: int) -> str:
    """Return `2026-11-21 13:05:09Z`: sortable, and equal in all time zones."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{unix_s} s"


def human_minute(unix_s: int) -> str:
    """Return `2026-11-21 13:05Z`: for lists, where columns are scarce."""
    return human_time(unix_s // 60 * 60).replace(":00Z", "Z")


def human_date(text: str, shown: Callable[[int], str] = human_time) -> str:
    """Return a time of RFC 3339 as `shown` shows it; another text as it is."""
    try:
        return shown(int(datetime.fromisoformat(text).timestamp()))
    except ValueError:
        return text


def human_duration(seconds: float) -> str:
    """Return `350 ms`, `4.2 s`, `2 min 5 s`, `3 h 20 min`, `12 d 4 h`."""
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


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, spare: str = "") -> Iterator[str]:
    """Yield lines with aligned columns, two spaces apart, the header first; nothing where there are no rows.

    Amounts stand at the right, but for the first column, which has names. A row is one line. Where the terminal is
    narrower, the widest columns stand below their row, each on lines of its own; the first one names the row and stays.
    The column `spare` leaves before all others.
    If it has sentences, these are wrapped first. Of a column that has room for most of its cells, only the widest
    cells stand below. A word is never cut: ids and addresses are there to be copied.
    """
    body = [[printable(cell) for cell in row] for row in rows]
    if not body:
        return
    lines = [[cell.upper() for cell in header], *body]
    columns = range(len(header))
    widths = [max(len(line[column]) for line in lines) for column in columns]
    is_amount = [bool(column) and all(_AMOUNT.fullmatch(line[column]) for line in body) for column in columns]
    beside = [*columns]
    if sys.stdout.isatty():
        widths[0] = _first_width(lines, widths, terminal_width())
        beside = _beside(lines, widths, terminal_width(), spare.upper())
    for number, line in enumerate(lines):
        name, *more = _wrapped(line[0], widths[0]) or [""]
        below = [place for place in columns[1:] if place not in beside or len(line[place]) > widths[place]]
        shown = ["" if column in below else line[column] for column in columns]
        cells = [
            shown[column].rjust(widths[column]) if is_amount[column] else shown[column].ljust(widths[column])
            for column in beside[1:]
        ]
        yield "  ".join([name.ljust(widths[0]), *cells]).rstrip()
        yield from (f"  {line}" for line in more)
        for column in below:
            if number and line[column] not in {"", "-"}:
                label = f"    {header[column]}: "
                yield from hanging(label, line[column], indent=len(label))


def _first_width(lines: Sequence[Sequence[str]], widths: Sequence[int], room: int) -> int:
    """Return what the first column may take: the room that others leave, if its words fit and it is no sliver."""
    left = room - sum(width + 2 for width in widths[1:])
    longest = max(len(word) for line in lines for word in _glued(line[0]).split(" "))
    return min(widths[0], left) if left >= max(longest, SENTENCE_MIN) else widths[0]


def _beside(lines: Sequence[Sequence[str]], widths: list[int], room: int, spare: str) -> list[int]:
    """Return the columns that fit beside one another: all but the widest. One without a title cannot stand below.

    The widest that left goes back, narrower, if more than half of its cells have room.
    """
    header, *body = lines
    beside = [*range(len(header))]
    movable = sorted(
        (column for column in beside[1:] if header[column]),
        key=lambda column: (header[column] == spare, widths[column], column),
    )
    moved = -1
    while movable and sum(widths[column] + 2 for column in beside) - 2 > room:
        beside.remove(moved := movable.pop())
    left = room - sum(widths[column] + 2 for column in beside)
    fitting = [len(line[moved]) for line in body if len(line[moved]) <= left]
    if moved >= 0 and left >= len(header[moved]) and len(fitting) * 2 > len(body):
        widths[moved] = max(len(header[moved]), *fitting)
        beside = sorted([*beside, moved])
    return beside


def _wrapped(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    lines = wrap(_glued(cell), width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_GLUE, " ") for line in lines]


def _glued(cell: str) -> str:
    return _TOGETHER.sub(lambda found: found[0].replace(" ", _GLUE), cell)


def columns_of(records: Iterable[R], columns: Mapping[str, Callable[[R], object]]) -> Iterator[str]:
    """Yield a table with a row for each record: the columns by their titles."""
    return table([*columns], [[str(cell(record)) for cell in columns.values()] for record in records])


def fields(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield lines `name:  value` with aligned values. A terminal wraps them as it does the cells of a table."""
    kept = list(pairs)
    width = max(len(name) for name, _ in kept) + 1
    for name, value in kept:
        yield from hanging(f"{printable(name) + ':':<{width}}  ", printable(value), indent=width + 2)


def called() -> str:
    """Return the words by which the user called this program, such as `.venv/bin/lakebed`."""
    context = click.get_current_context(silent=True)
    return (context.find_root().info_name if context else None) or PROGRAM


def as_called(text: str) -> str:
    """Return a message with each command in it as the user can type it."""
    context = click.get_current_context(silent=True)
    root = context.find_root() if context else None
    if root is None or root.info_name in {None, PROGRAM} or not isinstance(root.command, click.Group):
        return text
    known = root.command.list_commands(root)
    return _COMMAND.sub(lambda found: f"{root.info_name} {found[1]}" if found[1] in known else found[0], text)


def exports(endpoint: str, access_key_id: str, secret_access_key: str, **more: str) -> Iterator[str]:
    """Yield the lines that set a key pair in a shell: for `lakebed`, clients of lakeFS and of S3; then `more`."""
    own = {"endpoint": endpoint, "access_key_id": access_key_id, "secret_access_key": secret_access_key}
    variables = {names[name]: value for names in (VARIABLES, LAKECTL_VARIABLES) for name, value in own.items()}
    variables |= {"AWS_ENDPOINT_URL": endpoint.rstrip("/").removesuffix("/api/v1"), "AWS_REGION": "us-east-1"}
    variables |= {"AWS_ACCESS_KEY_ID": access_key_id, "AWS_SECRET_ACCESS_KEY": secret_access_key, **more}
    for name, value in variables.items():
        yield f"export {name}={shlex.quote(value)}"


def hanging(label: str, text: str, *, indent: int, in_pipes: bool = False) -> Iterator[str]:
    """Yield a label, as wide as `indent`, and a text. On a terminal the text goes on below its own beginning.

    Programs read whole lines, so a pipe gets them. `in_pipes`: it is prose, which no program reads.
    """
    text, is_wrapped = as_called(text), in_pipes or sys.stdout.isatty()
    lines = _wrapped_message(text, max(terminal_width() - indent, NARROWEST)) if is_wrapped else [text]
    for place, line in enumerate(lines):
        yield f"{label if not place else ' ' * indent}{line}".rstrip()


def prose(text: str) -> Iterator[str]:
    """Yield the lines of a sentence of an answer, as wide as the terminal is."""
    return hanging("", text, indent=0)


def _wrapped_message(text: str, width: int) -> list[str]:
    """Wrap a sentence. A command at its end goes whole on a line of its own, to be copied."""
    before, name, rest = text.rpartition(f": {called()} ")
    if len(text) > width and name and "`" not in rest:
        return [*_wrapped(f"{before}:", width), f"    {called()} {rest}"]
    return _wrapped(text, width)


def terminal_width() -> int:
    """Return the width of the terminal, WIDTH where standard output is none."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH


def for_stderr(message: str) -> str:
    """Return a message as standard error gets it: a terminal wraps it between words."""
    message = as_called(message)
    if not sys.stderr.isatty():
        return message
    # A terminal that does not know its size says 0.
    width = max(os.get_terminal_size(sys.stderr.fileno()).columns or WIDTH, NARROWEST)
    return "\n".join(line for part in message.split("\n") for line in _wrapped_message(part, width))


def json_record(record: object) -> str:
    """Return one indented object."""
    return msgspec.json.format(_encoded(record), indent=2).decode()


def json_array(records: Iterable[object]) -> Iterator[str]:
    """Yield lines of one array, a record on each; takes the next record only when its line is asked for."""
    waiting: str | None = None
    for record in records:
        yield "[" if waiting is None else waiting + ","
        waiting = _encoded(record).decode()
    if waiting is None:
        yield "[]"
    else:
        yield waiting
        yield "]"


def _encoded(record: object) -> bytes:
    try:
        return msgspec.json.encode(record, enc_hook=str)
    except UnicodeEncodeError:
        # Names of files and variables may hold bytes that are no Unicode, which JSON cannot hold.
        return msgspec.json.encode(_escaped(msgspec.to_builtins(record, enc_hook=str)))


def _escaped(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_escaped(name): _escaped(one) for name, one in value.items()}
        case list() | tuple():
            return [_escaped(one) for one in value]
    return value


def printable(text: str) -> str:
    """Escape the characters that would command a terminal: paths and messages come from other people."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
