"""The end of a file of ours: a Parquet footer that vouches for itself.

Its key-value metadata holds facts, each a name and a text. The last of them is the seal:

    lakebed.seal   SHA-256, in 64 hex digits, of the footer from its first byte to the end of the file, with these 64
                   digits taken as zeros

A file may say `lakebed.salt`, which is then part of its id (docs/formats/range.md, "Salt").

So the end of a file is enough to know its kind and id, and the digests of its other bytes (sealed.py).
A reader checks the seal first, and then finds facts by their bytes. A parser of Thrift is forty times as slow, and has
no defined behaviour on an altered footer.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import pyarrow as pa

from lakebed.base import Corrupt

MAGIC: Final = b"PAR1"
END_BYTES: Final = 8
"""The length of the footer, u32, and MAGIC."""
SALT: Final = "lakebed.salt"
SEAL: Final = "lakebed.seal"
_SEAL_DIGITS: Final = 64
NO_SEAL: Final = "0" * _SEAL_DIGITS


class Kind(NamedTuple):
    """Describe one of our two kinds of files.

    `sections` are the columns with which the sections of a row group begin (sealed.py). `raw` is a column whose values
    are the end of its section, as they lie in memory. `dictionaries` may hold few values, and `constants` may hold one.
    """

    name: str
    version: int
    schema: pa.Schema
    encodings: dict[str, str]
    dictionaries: tuple[str, ...]
    constants: tuple[str, ...]
    compressed: tuple[str, ...]
    sections: tuple[str, ...]
    raw: str | None
    sorted_by: str
    group_rows: int
    error: type[FileCorrupt]

    @property
    def format(self) -> str:
        return f"{self.name} {self.version}"


class FileCorrupt(Corrupt):
    """A file of a tree is missing, cut short, altered, of a later format, or has another id than its name says."""

    kind = "file"

    def __init__(self, id_: str, reason: str, /, **facts: object) -> None:
        super().__init__(f"{self.kind} {id_}: {reason}", **{**facts, f"{self.kind}_id": id_, "reason": reason})
        self.id = id_
        self.reason = reason

    def in_namespace(self, uri: str) -> FileCorrupt:
        """Return the same error with the storage namespace among its facts."""
        named = type(self)(self.id, self.reason, **{**self.facts, "namespace": uri})
        named.args = (f"{self.args[0]} (in {uri})",)
        return named


def footer_bytes(kind: Kind, id_: str, end: bytes) -> int:
    """Return the size of the footer at the end of the file, from the last 8 bytes or more.

    Raises:
        FileCorrupt: the bytes are not the end of a Parquet file.
    """
    if len(end) < END_BYTES or end[-4:] != MAGIC:
        raise kind.error(id_, f"cut short or not Parquet ({len(end)} bytes)")
    return int.from_bytes(end[-END_BYTES:-4], "little") + END_BYTES


def open_footer(kind: Kind, id_: str, end: bytes) -> bytes:
    """Return the footer, from the whole file or any end that holds the footer, after a check of seal, format and id.

    Raises:
        FileCorrupt: the file is cut short, altered, of another kind, of a later version, or has another id.
    """
    size = footer_bytes(kind, id_, end)
    if size > len(end):
        raise kind.error(id_, f"cut short: {len(end)} bytes of a footer of {size}")
    footer = end[-size:]
    at = footer.rfind(fact_mark(SEAL, _SEAL_DIGITS))
    if at < 0:
        raise kind.error(id_, "no seal")
    at += len(fact_mark(SEAL, _SEAL_DIGITS))
    if seal_of(footer, at) != footer[at : at + _SEAL_DIGITS]:
        raise kind.error(id_, "the bytes contradict the seal")
    _check_facts(kind, id_, footer)
    return footer


def salted(title: bytes, salt: str) -> bytes:
    """Return the title line of an id's canonical bytes. The same content with another salt has another id."""
    return title + f"salt {salt}\n".encode() if salt else title


def salt_facts(salt: str) -> dict[str, str]:
    """Return the facts that a footer holds of a salt."""
    return {SALT: salt} if salt else {}


def seal_of(footer: bytes | bytearray, at: int) -> bytes:
    """Return the seal that a footer must have, where the seal's digits begin at the byte `at`."""
    view = memoryview(footer)
    digest = hashlib.sha256(view[:at])
    digest.update(NO_SEAL.encode())
    digest.update(view[at + _SEAL_DIGITS :])
    return digest.hexdigest().encode()


def fact_of(footer: bytes, name: str) -> bytes:
    """Return the text of a fact; empty where the footer has none."""
    mark = name.encode() + b"\x18"
    # Take the last one: only statistics could hold such bytes too, and key-value metadata stands behind them.
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


def fact_mark(name: str, length: int) -> bytes:
    """Return the bytes before the text of a fact in Thrift's compact protocol: the name, then field 2 of type binary,
    and its length."""
    digits = []
    while length > 127:
        digits.append(length & 127 | 128)
        length >>= 7
    return name.encode() + b"\x18" + bytes([*digits, length])


def _check_facts(kind: Kind, id_: str, footer: bytes) -> None:
    name, _, version = fact_of(footer, "lakebed.format").decode(errors="replace").partition(" ")
    if name != kind.name or not version.isdigit():
        raise kind.error(id_, f"not a {kind.name} of Lakebed")
    if int(version) != kind.version:
        raise kind.error(id_, f"format {version}, and this release reads {kind.version}", format=int(version))
    found = fact_of(footer, "lakebed.id").decode(errors="replace")
    if found != id_:
        raise kind.error(id_, f"the file was written as {found}", found_id=found)
