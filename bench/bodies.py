"""The largest bodies that a request may have, made of the cheapest values that cost most: CPU to decode each.

A record decodes on the event loop, and nothing else runs meanwhile: at most 50 ms. XML is read in a thread: at most
0.3 s for 8 MiB. The table of operations says which records there are and how large they may be, so a new operation is
measured too. Of a record's fields, the one that takes longest counts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import inspect

from lakebed.operations import NOTHING
from lakebed.operations.table import OPERATIONS
from lakebed.server.s3.documents import MalformedXml, parse

from .harness import Bench, Single, Work

LOOP_S: Final = 0.05
DOCUMENT_S: Final = 0.3
DOCUMENT_BYTES: Final = 8 << 20
SHARE: Final = {"small": 16, "full": 1}
UNITS: Final = {
    "text beside elements": b"aaa<b/>",
    "elements": b"<a/>",
    "white space": b"<b/>" + b"\r\n" * 100,
    "references": b"<b>" + b"&amp;" * 5_000 + b"</b>",
    "lines": b"<b>" + b"\r\n" * 15_000 + b"</b>",
    "comments": b"<!---->",
    "attributes": b"<a b=''/>",
    "long names": b"<" + b"a" * 30_000 + b"/>",
    "objects": b"<Object><Key>a</Key></Object>",
}


def parts(size: str) -> Iterator[Single]:
    for operation in OPERATIONS:
        if operation.body in (NOTHING, bytes):
            continue
        decoder = msgspec.json.Decoder(operation.body)
        bodies = [*worst(inspect.type_info(operation.body), operation.body_bytes_max // SHARE[size])]
        slowest = max((body.encode() for body in bodies), key=partial(_seconds, decoder))
        yield Single(what=f"bodies: {operation.id}", limit=LOOP_S, ours=partial(_working, decoder.decode, slowest))
    for name, unit in UNITS.items():
        body = b"<Delete>" + unit * (DOCUMENT_BYTES // SHARE[size] // len(unit)) + b"</Delete>"
        yield Single(what=f"bodies: XML, {name}", limit=DOCUMENT_S, ours=partial(_working, _parse, body))


@contextmanager
def _working(read: Any, body: bytes) -> Iterator[Work]:
    def run() -> None:
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            read(body)

    yield Work(run=run)


def _parse(body: bytes) -> None:
    with contextlib.suppress(MalformedXml):
        parse(body, "Delete")


def _seconds(decoder: msgspec.json.Decoder[Any], body: bytes) -> float:
    began_s = time.thread_time()
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        decoder.decode(body)
    return time.thread_time() - began_s


def worst(kind: inspect.Type, size_bytes: int) -> Iterator[str]:
    """Yield records of this type, each with one list or mapping that fills the size with its smallest items."""
    match kind:
        case inspect.Metadata():
            yield from worst(kind.type, size_bytes)
        case inspect.ListType() | inspect.VarTupleType():
            item = least(kind.item_type)
            yield _list([item] * (size_bytes // (len(item) + 1)))
            yield from (_list([inner]) for inner in worst(kind.item_type, size_bytes - 2))
        case inspect.DictType():
            value = least(kind.value_type)
            yield "{" + ",".join([f'"{n:x}":{value}' for n in range(size_bytes // (len(value) + 9))]) + "}"
        case inspect.StructType():
            yield _record(kind, "", _list(["{}"] * (size_bytes // 3)))
            for field in kind.fields:
                yield from (_record(kind, field.encode_name, each) for each in worst(field.type, size_bytes))
        case inspect.UnionType():
            for each in kind.types:
                yield from worst(each, size_bytes)


def _record(kind: inspect.StructType, name: str, value: str) -> str:
    """Return a record with this value in a field; without a name, in one that the record does not have."""
    needed = {field.encode_name: least(field.type) for field in kind.fields if field.required}
    tag = {} if kind.tag_field is None else {kind.tag_field: msgspec.json.encode(kind.tag).decode()}
    fields = {**tag, **needed, name or "unknown": value}
    return "{" + ",".join([f'"{each}":{text}' for each, text in fields.items()]) + "}"


def _list(items: list[str]) -> str:
    return "[" + ",".join(items) + "]"


def least(kind: inspect.Type) -> str:
    """Return the shortest JSON of a type."""
    match kind:
        case inspect.Metadata():
            return least(kind.type)
        case inspect.IntType() | inspect.FloatType():
            return "0"
        case inspect.BoolType():
            return "true"
        case inspect.ListType() | inspect.VarTupleType():
            return "[]"
        case inspect.TupleType():
            return _list([least(each) for each in kind.item_types])
        case inspect.DictType():
            return "{}"
        case inspect.StructType():
            return _record(kind, "unknown", "0")
        case inspect.UnionType():
            return least(kind.types[0])
        case inspect.LiteralType():
            return msgspec.json.encode(kind.values[0]).decode()
        case inspect.EnumType():
            return msgspec.json.encode(next(iter(kind.cls)).value).decode()
        case inspect.NoneType():
            return "null"
        case _:
            return '""'


BENCH = Bench(name="bodies", parts=parts)
