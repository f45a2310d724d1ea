"""The process that parses one table. It is started by its path, alone, and imports nothing of this package.

It gets a question as a line of JSON, asks for ranges of the object, and writes one answer. Limits are set before it
sees a byte: CPU time, memory, few files, and none may be written.
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

MEMORY_BYTES = 512 << 20
CPU_S = 10
BEGINNING_BYTES = 256 << 10
BUFFER_BYTES = 64 << 10
COLUMNS_MAX = 200
COLUMNS_SHOWN = 50
TEXT_MAX = 200
ANSWER_BYTES_MAX = 128 << 10


class Refused(Exception):
    """The parent hands out no more bytes."""


def ask(start: int, end: int) -> bytes:
    """Return bytes of the object."""
    say({"read": [start, end]})
    if sys.stdin.buffer.readline() != b"ok\n":
        raise Refused("its first rows lie behind more bytes than are read for them")
    return sys.stdin.buffer.read(end - start)


def say(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


class Asked(io.RawIOBase):
    """The object as a file."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes, self._at = size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size_bytes if size < 0 else min(self._at + size, self._size_bytes)
        data = ask(self._at, end) if end > self._at else b""
        self._at += len(data)
        return data


def shown(value: Any) -> Any:
    """Return a value as JSON has it, cut where it is long."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else str(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"


def columns(schema: pa.Schema) -> dict[str, Any]:
    named = [{"name": shown(field.name), "type": shown(str(field.type))} for field in list(schema)[:COLUMNS_MAX]]
    return {"columns": named, "columns_count": len(schema)}


def rows_of(table: pa.Table | pa.RecordBatch, rows: int) -> list[list[Any]]:
    """Return rows, each as a list by column: names of columns may repeat."""
    some = table.slice(0, rows)
    values = [
        [shown(cell.as_py()) for cell in some.column(index)] for index in range(min(some.num_columns, COLUMNS_SHOWN))
    ]
    return [list(row) for row in zip(*values, strict=True)] if values else []


def parquet(size_bytes: int, rows: int) -> dict[str, Any]:
    source = pa.PythonFile(Asked(size_bytes), mode="r")
    file = pa.parquet.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False)
    answer = {**columns(file.schema_arrow), "rows_count": file.metadata.num_rows, "rows": []}
    if rows:
        try:
            # By position of top-level columns: names may repeat, and hold dots.
            wanted = None
            if len(file.schema_arrow) > COLUMNS_SHOWN:
                tops = {field.name for field in list(file.schema_arrow)[:COLUMNS_SHOWN]}
                wanted = sorted(tops)
            batch = next(file.iter_batches(batch_size=rows, columns=wanted, use_threads=False), None)
            answer["rows"] = [] if batch is None else rows_of(batch, rows)
        except (Refused, pa.ArrowException, OSError, MemoryError, ValueError) as error:
            answer["note"] = f"no rows are shown: {shown(str(error))}"
    return answer


def text(kind: str, size_bytes: int, rows: int) -> dict[str, Any]:
    data = ask(0, min(size_bytes, BEGINNING_BYTES))
    whole = len(data) == size_bytes
    if not whole:
        if b"\n" not in data:
            raise Refused("its first line is longer than is read")
        data = data[: data.rindex(b"\n") + 1]
    if kind == "jsonl":
        table = pa.json.read_json(
            pa.BufferReader(data), read_options=pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        )
    else:
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pa.csv.ParseOptions(delimiter="\t" if kind == "tsv" else ",", newlines_in_values=True),
        )
    answer = {**columns(table.schema), "rows": rows_of(table, rows)}
    if whole:
        answer["rows_count"] = table.num_rows
    else:
        answer["note"] = f"types are those of the first {len(data)} bytes: later rows may have others"
    return answer


def limit() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, 10)  # The server's requests go before.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    statm = Path("/proc/self/statm")
    if statm.exists():  # Elsewhere memory is not limited.
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))  # Names of time zones are looked up in files.


def main() -> None:
    limit()
    question = json.loads(sys.stdin.buffer.readline())
    kind, size_bytes, rows = question["kind"], int(question["size_bytes"]), int(question["rows"])
    try:
        answer = parquet(size_bytes, rows) if kind == "parquet" else text(kind, size_bytes, rows)
        while answer["rows"] and len(json.dumps(answer)) > ANSWER_BYTES_MAX:
            answer["rows"] = answer["rows"][: len(answer["rows"]) // 2]
            answer["note"] = "some rows are left out: they are too long"
        say({"answer": answer})
    except (Refused, pa.ArrowException, OSError, MemoryError, ValueError, KeyError) as error:
        say({"error": shown(str(error))})


if __name__ == "__main__":
    main()
