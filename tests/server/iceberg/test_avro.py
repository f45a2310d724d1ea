"""Files in Avro that a stranger wrote: each is read within its size, or refused."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pytest

from lakebed import iceberg
from lakebed.iceberg import avro, files
from lakebed.iceberg.exporting import Out, listed
from lakebed.iceberg.files import Bytes

from .test_door import avro_long, avro_map

TABLE = "s3://t/u"
NULL_RECORD = {"type": "record", "name": "nothing", "fields": [{"name": "n", "type": "null"}]}
WITHOUT_BYTES = [
    "null",
    {"type": "fixed", "name": "f", "size": 0},
    {"type": "record", "name": "e", "fields": []},
    NULL_RECORD,
    {"type": "record", "name": "o", "fields": [{"name": "r", "type": NULL_RECORD}]},
]


def file_of(fields: list[Any], *blocks: tuple[int, bytes]) -> bytes:
    schema = {"type": "record", "name": "list", "fields": fields}
    data = b"Obj\x01" + avro_map({"avro.schema": json.dumps(schema), "avro.codec": "null"}) + bytes(16)
    return data + b"".join(avro_long(count) + text(block) + bytes(16) for count, block in blocks)


def text(data: bytes) -> bytes:
    return avro_long(len(data)) + data


PATH = {"name": "manifest_path", "type": "string", "field-id": 500}


def refused(data: bytes) -> None:
    with pytest.raises(iceberg.InvalidTable, match="no manifest of Iceberg"):
        files._manifests_in(f"{TABLE}/list", data, TABLE)
    with pytest.raises(iceberg.InvalidTable, match="cannot be read"):
        listed(f"{TABLE}/list", data)


@pytest.mark.parametrize("items", WITHOUT_BYTES)
def test_items_without_bytes_are_not_counted(items: Any) -> None:
    endless = text(f"{TABLE}/m.avro".encode()) + avro_long(2**60) + b"\0"

    refused(file_of([PATH, {"name": "evil", "type": {"type": "array", "items": items}}], (1, endless)))
    refused(file_of([{"name": "evil", "type": items}], (2**60, b"")))


@pytest.mark.parametrize("kind", ["long", "string", {"type": "array", "items": "boolean"}, ["null", "int"]])
def test_more_items_than_bytes_are_refused_at_once(kind: Any) -> None:
    row = text(f"{TABLE}/m.avro".encode()) + avro_long(2**60) + b"\0"

    refused(file_of([PATH, {"name": "evil", "type": {"type": "array", "items": kind}}], (1, row)))
    refused(file_of([PATH], (2**60, text(f"{TABLE}/m.avro".encode()))))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", avro_long(100)),
        ("bytes", b"\x05"),
        ({"type": "fixed", "name": "f", "size": 100}, b""),
        ({"type": "array", "items": "int"}, b"\x01" + b"\x63\0"),
        ({"type": "array", "items": "int"}, b"\x03\x08\x02\x02\0"),
        ("long", b"\xff" * 9),
        (["null", "int"], b"\x04"),
        (["null", "int"], b"\x01"),
        ("double", b"1234"),
    ],
)
def test_no_value_leaves_its_file(kind: Any, value: bytes) -> None:
    """The library's decoder returns what lies in memory behind the file, or before it."""
    path = text(f"{TABLE}/m.avro".encode())

    refused(file_of([PATH, {"name": "evil", "type": kind}], (1, path + value)))
    refused(file_of([{"name": "evil", "type": kind}, PATH], (1, value + path)))


def test_a_path_that_is_longer_than_its_file_is_not_read() -> None:
    with pytest.raises(iceberg.InvalidTable, match="no manifest of Iceberg: a value does not end in the file"):
        files._manifests_in(f"{TABLE}/list", file_of([PATH], (1, avro_long(4_000) + b"s3://t/u/")), TABLE)


def test_a_schema_that_nests_deeply_or_uses_a_record_again_is_refused() -> None:
    deep: Any = "int"
    for _ in range(avro.DEPTH_MAX + 1):
        deep = {"type": "array", "items": deep}
    twice = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}

    refused(file_of([PATH, {"name": "deep", "type": deep}], (1, text(b"x") + b"\0")))
    refused(file_of([PATH, {"name": "a", "type": twice}, {"name": "b", "type": "r"}], (1, text(b"x") + b"\2\2")))


def test_what_the_library_writes_is_read_as_the_library_reads_it() -> None:
    body, manifest = manifest_of(range(20))

    counted = files._counted_in(manifest.manifest_path, body, TABLE)
    plain = avro.checked(manifest.manifest_path, body)

    entries = [entry.data_file for entry in manifest.fetch_manifest_entry(Files(plain))]
    assert counted == {one.file_path: (one.record_count, one.file_size_in_bytes, one.content.value) for one in entries}
    assert [one.lower_bounds for one in entries] == [{1: b"low", 2: bytes(200)}] * 20
    assert files._files_in("m", plain, TABLE) == set(counted)


def test_no_change_of_a_manifest_is_answered_by_a_bug() -> None:
    body, manifest = manifest_of(range(3))
    plain, made = avro.checked("m", body), random.Random(1)
    met = set()

    for _ in range(1_000):
        data = bytearray(plain)
        for _ in range(made.choice([1, 1, 2, 5])):
            data[made.randrange(len(data))] = made.choice([0, 1, 2, 127, 128, 255, made.randrange(256)])
        end = made.choice([len(data), made.randrange(len(data))])
        try:
            files._counted_in("m", bytes(data[:end]), TABLE)
            met.add("read")
        except iceberg.InvalidTable:
            met.add("refused")
        # The library raises errors of any kind for a file that has other fields.
        with suppress(Exception):
            manifest.fetch_manifest_entry(Files(avro.checked("m", bytes(data))))

    assert met == {"read", "refused"}


class Files:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def new_input(self, uri: str) -> Bytes:
        return Bytes(uri, self._data)


def manifest_of(numbers: range) -> tuple[bytes, Any]:
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestEntry,
        ManifestEntryStatus,
        write_manifest,
    )
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.typedef import Record
    from pyiceberg.types import DecimalType, NestedField

    schema = Schema(NestedField(1, "a", DecimalType(20, 2), required=False))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "a"))
    out: Any = Out(f"{TABLE}/m.avro")
    with write_manifest(
        format_version=2, spec=spec, schema=schema, output_file=out, snapshot_id=1, avro_compression="deflate"
    ) as writer:
        for number in numbers:
            columns = {1: number, 2: 10**12}
            file = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"{TABLE}/{number}.parquet",
                file_format=FileFormat.PARQUET,
                partition=Record(None),
                record_count=number,
                file_size_in_bytes=10**12,
                column_sizes=columns,
                value_counts=columns,
                null_value_counts={},
                nan_value_counts=None,
                lower_bounds={1: b"low", 2: bytes(200)},
                upper_bounds={1: b""},
                split_offsets=[4, 8],
                sort_order_id=0,
            )
            status = ManifestEntryStatus.ADDED
            writer.add_entry(ManifestEntry.from_args(status=status, snapshot_id=1, data_file=file))
    return out.body, writer.to_manifest_file()
