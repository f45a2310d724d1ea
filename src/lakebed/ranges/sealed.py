"""Parquet files that say what they are and notice every flipped bit.

Both files of a tree are Parquet (any tool reads them), and carry in the footer's key-value metadata:

    lakebed.format   "range 1", "metarange 1": kind and version
    lakebed.id       the id the file was encoded for
    lakebed.salt     part of the id, if it is there (docs/formats/range.md, "Salt")
    lakebed.seal     SHA-256, in 64 hex digits, of the whole file with these 64 digits taken as zeros

Parquet's own page checksums are written too, for other readers, but they leave out page headers and the footer (where
a flipped bit may turn one value into another without a word), so we rest on the seal. It is checked whenever a file
is opened, costs 0.6 ms a MiB of file (a fifth of what hashing the decoded columns takes), and holds for all that is
read from the file afterwards. That the columns really are those of the id is the content digest's affair.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakebed.base import Corrupt

from .schema import chunk

IDENTITY_FACTS: Final = ("lakebed.format", "lakebed.id")
SALT: Final = "lakebed.salt"
MAGIC: Final = b"PAR1"
_SEAL_DIGITS: Final = 64
_NO_SEAL: Final = b"0" * _SEAL_DIGITS
# How Thrift's compact protocol writes the entry: the key, then field 2 of type binary, its length, its bytes.
_SEAL_MARK: Final = b"lakebed.seal\x18" + bytes([_SEAL_DIGITS])


class Kind(NamedTuple):
    """What tells the two files apart."""

    name: str
    version: int
    schema: pa.Schema
    encodings: Mapping[str, str]
    dictionaries: Sequence[str]
    compressed: Sequence[str]
    sorted_by: str
    group_rows: int
    error: type[FileCorrupt]

    @property
    def format(self) -> str:
        return f"{self.name} {self.version}"


class FileCorrupt(Corrupt):
    """A file of a tree is missing, cut short, altered, of a later format, or not the one it is named as."""

    kind = "file"

    def __init__(self, id_: str, reason: str, /, **facts: object) -> None:
        super().__init__(f"{self.kind} {id_}: {reason}", **{**facts, f"{self.kind}_id": id_, "reason": reason})
        self.id = id_
        self.reason = reason

    def in_namespace(self, uri: str) -> FileCorrupt:
        """The same error, which names the storage namespace too."""
        named = type(self)(self.id, self.reason, **{**self.facts, "namespace": uri})
        named.args = (f"{self.args[0]} (in {uri})",)
        return named


def write_sealed(kind: Kind, id_: str, table: pa.Table, facts: Mapping[str, str]) -> bytes:
    """The file. Its bytes depend on the version of pyarrow; its id does not."""
    # Columns of empty values alone (addresses where none is foreign, metadata where there is none) are common, and
    # compressing or delta-encoding nothing would take a sixth of the time.
    hollow = {name for name in kind.compressed if not pc.sum(pc.binary_length(chunk(table, name))).as_py()}
    compressed = {*kind.compressed} - hollow
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        kind.schema,
        version="2.6",
        compression={name: "zstd" if name in compressed else "none" for name in kind.schema.names},
        use_dictionary=[name for name in kind.schema.names if name in kind.dictionaries or name in hollow],
        column_encoding={name: encoding for name, encoding in kind.encodings.items() if name not in hollow},
        write_statistics=[kind.sorted_by],
        sorting_columns=[pq.SortingColumn(kind.schema.get_field_index(kind.sorted_by))],
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=kind.group_rows)
        seal = {"lakebed.seal": _NO_SEAL.decode()}
        writer.add_key_value_metadata({"lakebed.format": kind.format, "lakebed.id": id_, **facts, **seal})
    data = bytearray(memoryview(sink.getvalue()))
    # The last one: key-value metadata stands behind the statistics, the only other place that could hold such bytes.
    at = data.rindex(_SEAL_MARK) + len(_SEAL_MARK)
    data[at : at + _SEAL_DIGITS] = hashlib.sha256(data).hexdigest().encode()
    return bytes(data)


def open_sealed(kind: Kind, id_: str, data: bytes) -> pq.ParquetFile:
    """The file, opened; its seal, format, id and schema hold.

    Raises:
        FileCorrupt: the kind's own; they do not.
    """
    reason = _broken_seal(data)
    if reason:
        raise kind.error(id_, reason)
    try:
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise kind.error(id_, f"not a Parquet file: {error}") from error
    check_facts(kind, id_, file.metadata.metadata or {})
    if not file.schema_arrow.equals(kind.schema):
        raise kind.error(id_, "its columns are not those of the format")
    return file


def check_facts(kind: Kind, id_: str, facts: Mapping[bytes, bytes]) -> None:
    """
    Raises:
        FileCorrupt: another kind, a later version, or another file's id.
    """
    name, _, version = facts.get(b"lakebed.format", b"").decode(errors="replace").partition(" ")
    if name != kind.name or not version.isdigit():
        raise kind.error(id_, f"not a {kind.name} of Lakebed")
    if int(version) != kind.version:
        raise kind.error(id_, f"format {version}, and this release reads {kind.version}", format=int(version))
    found = facts.get(b"lakebed.id", b"").decode(errors="replace")
    if found != id_:
        raise kind.error(id_, f"the file was written as {found}", found_id=found)


def salted(title: bytes, salt: str) -> bytes:
    """What an id's canonical bytes begin with. The same content under another salt is another file, with another id."""
    return title + f"salt {salt}\n".encode() if salt else title


def salt_facts(salt: str) -> dict[str, str]:
    """What the footer says of it."""
    return {SALT: salt} if salt else {}


def salt_of(file: pq.ParquetFile) -> str:
    """Of a file whose seal holds."""
    found: bytes = (file.metadata.metadata or {}).get(SALT.encode(), b"")
    return found.decode(errors="replace")


def fact_of_footer(footer: bytes, name: str) -> bytes:
    """One fact from a footer that nothing vouches for: found by its bytes, since a parser of Thrift may do anything
    with a footer that was altered. Empty where there is none."""
    mark = name.encode() + b"\x18"
    at = footer.rfind(mark) + len(mark)
    if at < len(mark):
        return b""
    length = shift = 0
    for byte in footer[at : at + 5]:
        at += 1
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return footer[at : at + length]


def _broken_seal(data: bytes) -> str | None:
    if len(data) < 12 or data[-4:] != MAGIC or data[:4] != MAGIC:
        return f"cut short or not Parquet ({len(data)} bytes)"
    at = data.rfind(_SEAL_MARK)
    if at < 0:
        return "no seal"
    at += len(_SEAL_MARK)
    view = memoryview(data)
    digest = hashlib.sha256(view[:at])
    digest.update(_NO_SEAL)
    digest.update(view[at + _SEAL_DIGITS :])
    return None if digest.hexdigest().encode() == view[at : at + _SEAL_DIGITS] else "the bytes contradict the seal"
