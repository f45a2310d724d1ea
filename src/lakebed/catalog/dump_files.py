"""The files of a dump of refs (docs/formats/dump.md): bytes in, records out. Pure.

A dump has three files: its branches, its tags, its commits. A file's name has the dump's id and the digest of its
bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.base import CommitId, Corrupt, Invalid
from lakebed.versions import Record

DUMPS: Final = "_lakefs/refs/"
_FORMAT: Final = b"refs 1"
_WITH_TABLES: Final = b"refs 2"
"""The format of a file of branches that has the one of tables: a server that knows only `refs 1` refuses it."""
_ID: Final = re.compile(r"([0-9a-v]{20})-([0-9a-f]{64})", re.ASCII)
_SCHEMA: Final = pa.schema(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
_BATCH: Final = 5_000


class InvalidDump(Invalid):
    """The dump cannot be restored here. The message gives the reason. Nothing was written."""


class DumpKind(StrEnum):
    BRANCHES = "branches"
    TAGS = "tags"
    COMMITS = "commits"


class DumpedRef(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`work_of`: the flow that made the branch for its own work. `repository`: whose tables have their files there."""

    commit_id: CommitId
    is_hidden: bool = False
    work_of: str = ""
    repository: str = ""


class FileId(NamedTuple):
    dump: str
    digest: str

    @property
    def key(self) -> str:
        return f"{DUMPS}{self.dump}/{self.digest}.parquet"


def parse_file_id(text: str) -> FileId | None:
    """Parse an id that `DumpWriter.finish` returned. Return None for any other text."""
    match = _ID.fullmatch(text)
    return None if match is None else FileId(match[1], match[2])


class DumpWriter:
    """Write rows one by one, in ascending order of key."""

    def __init__(self, dump: str, kind: DumpKind, *, has_tables: bool = False) -> None:
        self._dump = dump
        self._sink = pa.BufferOutputStream()
        number = _WITH_TABLES if has_tables else _FORMAT
        facts = {b"lakebed.format": number, b"lakebed.kind": kind.encode(), b"lakebed.dump": dump.encode()}
        self._schema = _SCHEMA.with_metadata(facts)
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd", use_dictionary=False)
        self._keys: list[bytes] = []
        self._values: list[bytes] = []

    def add(self, key: bytes, value: bytes) -> None:
        self._keys.append(key)
        self._values.append(value)
        if len(self._keys) == _BATCH:
            self._write()

    def _write(self) -> None:
        self._writer.write_table(pa.table([self._keys, self._values], schema=self._schema))
        self._keys, self._values = [], []

    def finish(self) -> tuple[str, FileId, bytes]:
        """Return the id as text and in its parts, and the bytes."""
        self._write()
        self._writer.close()
        data = self._sink.getvalue().to_pybytes()
        file_id = FileId(self._dump, hashlib.sha256(data).hexdigest())
        return f"{file_id.dump}-{file_id.digest}", file_id, data


def read_dump(file_id: FileId, kind: DumpKind, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values, in order.

    Raises:
        Corrupt: the bytes do not match the digest.
        InvalidDump: the file is of another kind, for example because two ids are swapped.
    """
    if hashlib.sha256(data).hexdigest() != file_id.digest:
        raise Corrupt(f"{file_id.key}: its bytes contradict its name", key=file_id.key)
    file = pq.ParquetFile(pa.BufferReader(data))
    facts = file.schema_arrow.metadata or {}
    if facts.get(b"lakebed.format") not in {_FORMAT, _WITH_TABLES} or facts.get(b"lakebed.kind") != kind.encode():
        raise InvalidDump(f"{file_id.key} is not a file of {kind} of a dump", key=file_id.key)
    for batch in file.iter_batches(_BATCH):
        yield from zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
