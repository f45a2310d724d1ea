"""Columns and first rows of an object, read by a process of its own.

Anyone who may write an object chooses its bytes. A few of them can stand for gigabytes, or crash a parser. So the
parser runs alone, with limits of memory and time (`table_child.py`), and this process hands it the bytes that it asks
for, up to a limit. The parsers are those of pyarrow.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from lakebed.base import Invalid, Unavailable

TABLE_ROWS_MAX: Final = 50
FETCHED_BYTES_MAX: Final = 16 << 20
ONE_FETCH_BYTES_MAX: Final = 4 << 20
FETCHES_MAX: Final = 500
WALL_S: Final = 30.0
LINE_BYTES_MAX: Final = 1 << 20
_CHILD: Final = Path(__file__).with_name("table_child.py")
_KINDS: Final = {
    "parquet": "parquet",
    "csv": "csv",
    "tsv": "tsv",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "jsonl",
}

Fetch: TypeAlias = Callable[[int, int], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """An object as the parser sees it, and how many rows it shows."""

    kind: str
    size_bytes: int
    rows: int


def kind_of(path: str) -> str:
    """Return the format that the end of a path names.

    Raises:
        Invalid: it names none.
    """
    kind = _KINDS.get(path.rpartition(".")[2].lower())
    if kind is None:
        raise Invalid(f"only objects that end with .{', .'.join(_KINDS)} are tables: use the tool read for others")
    return kind


async def first_rows(ends: Ends, fetch: Fetch, parsers: asyncio.Semaphore) -> dict[str, object]:
    """Return columns and first rows. `fetch` returns the bytes from a start to before an end.

    `parsers` holds how many processes may parse at once.

    Raises:
        Invalid: the bytes are no table of this format, or need more memory or time than one gets.
        LakebedError: that of `fetch`.
    """
    if not ends.size_bytes:
        raise Invalid("the object is empty")
    async with parsers:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(_CHILD), stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.DEVNULL, env={},
            limit=LINE_BYTES_MAX,
        )  # fmt: skip
        try:
            return await asyncio.wait_for(_talk(process, ends, fetch), WALL_S)
        except TimeoutError:
            raise Invalid(f"the table cannot be read within {WALL_S:.0f} seconds: use the tool read") from None
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _talk(process: Process, ends: Ends, fetch: Fetch) -> dict[str, object]:
    assert process.stdin is not None
    assert process.stdout is not None
    question = {"kind": ends.kind, "size_bytes": ends.size_bytes, "rows": ends.rows}
    process.stdin.write(json.dumps(question).encode() + b"\n")
    fetched_bytes = 0
    for _ in range(FETCHES_MAX):
        try:
            line = await process.stdout.readline()
        except ValueError:
            raise Invalid("the columns or rows are too long to show: ask for fewer rows") from None
        if not line:
            raise Invalid("the table cannot be read: it is damaged, or needs too much memory or time")
        message = json.loads(line)
        if "answer" in message:
            answer: dict[str, object] = message["answer"]
            return answer
        if "error" in message:
            raise Invalid(f"the object is not a readable table of {ends.kind}: {message['error']}")
        start, end = message["read"]
        fetched_bytes += end - start
        if end - start > ONE_FETCH_BYTES_MAX or fetched_bytes > FETCHED_BYTES_MAX:
            process.stdin.write(b"no\n")
        else:
            process.stdin.write(b"ok\n" + await fetch(start, end))
        try:
            await process.stdin.drain()
        except ConnectionError as error:
            raise Unavailable("the process that reads tables ended: call the tool again") from error
    raise Invalid("the table needs too many reads: use the tool read")
