"""Files in Avro that a stranger wrote: each is read within its size, or refused."""

from __future__ import annotations

import json
import random
import zlib
from contextlib import suppress
from typing import Any

import pytest
import zstandard

from lakebed import iceberg
from lakebed.iceberg import avro, files
from lakebed.iceberg.exporting import MemoryFile, listed

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


def file_of(fields: list[Any], *blocks: tuple[int, bytes], codec: str = "null") -> bytes:
    schema = {"type": "record", "name": "list", "fields": fields}
    data = b"Obj\x01" + avro_map({"avro.schema": json.dumps(schema), "avro.codec": codec}) + bytes(16)
    return data + b"".join(avro_long(count) + text(block) + bytes(16) for count, block in blocks)


def packed(fields: list[Any], count: int, block: bytes) -> bytes:
    return file_of(fields, (count, zlib.compress(block)[2:-4]), codec="deflate")


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


def test_a_small_file_of_many_records_is_refused_alone_and_among_others() -> None:
    row = text(f"{TABLE}/m".encode())
    many = packed([PATH], 400_000, row * 400_000)
    free = avro.FREE_RECORDS - 1_000
    few, budget = packed([PATH], free, row * free), avro.Budget()

    for read in (lambda: files._manifests_in("m", many, TABLE), lambda: listed("m", many)):
        with pytest.raises(iceberg.InvalidTable, match="m decompresses to far more than its size"):
            read()
    assert len(many) < 25_000
    assert files._manifests_in("m", few, TABLE, budget).keys() == {f"{TABLE}/m"}
    with pytest.raises(iceberg.InvalidTable, match="m decompresses to far more than its size"):
        files._manifests_in("m", few, TABLE, budget)


def test_a_small_file_of_one_large_record_is_refused() -> None:
    large = text(f"{TABLE}/m".encode()) + text(bytes(4 << 20))

    with pytest.raises(iceberg.InvalidTable, match="m decompresses to far more than its size"):
        files._manifests_in("m", packed([PATH, {"name": "b", "type": "bytes"}], 1, large), TABLE)


def test_an_entry_without_a_path_is_refused() -> None:
    for fields, row in (
        ([PATH], b"\0"),
        ([{**PATH, "type": ["null", "string"]}], b"\0"),
        ([{**PATH, "type": "int"}], b"\2"),
    ):
        with pytest.raises(iceberg.InvalidTable, match="no manifest of Iceberg: an entry has no path"):
            files._manifests_in("m", file_of(fields, (1, row)), TABLE)


def test_a_number_has_at_most_64_bits() -> None:
    assert avro._read_long(b"\xff" * 9 + b"\x01", 0) == (-(2**63), 10)
    for last in (b"\x02", b"\x7f", b"\x81\0"):
        with pytest.raises(avro.Malformed, match="more than 64 bits"):
            avro._read_long(b"\xff" * 9 + last, 0)


def test_a_header_of_many_entries_is_refused_at_once() -> None:
    refused(b"Obj\x01" + avro_long(3_000_000) + bytes(6_000_000))


def test_frames_that_follow_each_other_in_a_block_are_read() -> None:
    row = text(f"{TABLE}/m".encode())
    frames = zstandard.compress(row[:5]) + zstandard.compress(row[5:])

    assert files._manifests_in("m", file_of([PATH], (1, frames), codec="zstandard"), TABLE).keys() == {f"{TABLE}/m"}


def test_bytes_behind_the_data_of_a_block_are_refused_but_for_its_checksum() -> None:
    record = text(f"{TABLE}/m.avro".encode())
    whole = zlib.compress(record)[2:]

    for block in (whole[:-4], whole[:-1], whole):
        assert [*avro.rows("f", file_of([PATH], (1, block), codec="deflate"), [500])] == [[f"{TABLE}/m.avro"]]
    for block in (whole[:-4] + b"x", whole[:-2], whole + b"x", whole[:-4] * 2, whole[:-6]):
        refused(file_of([PATH], (1, block), codec="deflate"))


def test_a_fixed_type_that_is_used_again_has_one_size() -> None:
    first = {"name": "a", "type": {"type": "fixed", "name": "f", "namespace": "x", "size": 4}}
    row = text(f"{TABLE}/m".encode()) + bytes(8)

    for name in ("f", "x.f"):
        assert files._manifests_in("m", file_of([PATH, first, {"name": "b", "type": name}], (1, row)), TABLE)
    refused(file_of([PATH, first, {"name": "b", "type": "y.f"}], (1, row)))
    refused(file_of([PATH, first, {"name": "b", "type": {"type": "fixed", "name": "f", "size": 8}}], (1, row)))


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
    assert files._files_in("m", plain, TABLE).keys() == counted.keys()


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

    def new_input(self, uri: str) -> MemoryFile:
        return MemoryFile(uri, self._data)


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
    out: Any = MemoryFile(f"{TABLE}/m.avro")
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
    return out.getvalue(), writer.to_manifest_file()
