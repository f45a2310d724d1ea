"""An input that is not exactly what its manifest says is never read as if it were."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest

from lakebed.gc.messages import (
    COMMITS,
    EXPIRED,
    TABLES,
    UNCOMMITTED,
    BadInput,
    Manifest,
    Part,
    Table,
    arrow_schema,
    check_listing,
    check_manifest,
    check_part,
    check_rows,
    decode_manifest,
    decode_part,
    encode_manifest,
    encode_part,
    join_parts,
    manifest_of,
    part_of,
    read_part,
)

FOLDER = "_lakefs/retention/gc/committed/r1/expired/"


def expiring(*ids: str) -> bytes:
    return encode_part(EXPIRED, pa.table({"id": pa.array(ids, pa.string())}))


def one_part() -> tuple[Manifest, Part, bytes]:
    data = expiring("a", "b")
    part = part_of("part-00000.parquet", data, rows=2)
    return manifest_of(EXPIRED, FOLDER, [part]), part, data


def test_a_manifest_survives_its_own_encoding() -> None:
    manifest, _, _ = one_part()

    assert decode_manifest(encode_manifest(manifest), name="expired") == manifest


def test_an_input_without_parts_is_complete_and_has_no_rows() -> None:
    manifest = manifest_of(EXPIRED, FOLDER, [])

    assert check_manifest(manifest, name="expired") is EXPIRED
    assert join_parts(manifest, EXPIRED, []).num_rows == 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda m: msgspec.structs.replace(m, format=2), "unknown format 2"),
        (lambda m: msgspec.structs.replace(m, table="soup"), "unknown table soup"),
        (lambda m: msgspec.structs.replace(m, table_version=9), "version 9"),
        (lambda m: msgspec.structs.replace(m, rows=3), "says 3 rows"),
        (lambda m: msgspec.structs.replace(m, size_bytes=1), "says 1 bytes"),
        (lambda m: msgspec.structs.replace(m, parts=m.parts * 2), "names a part twice"),
        (
            lambda m: msgspec.structs.replace(m, parts=(msgspec.structs.replace(m.parts[0], name="../x"),)),
            "outside its folder",
        ),
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_refused_by_name(
    change: Callable[[Manifest], Manifest], complaint: str
) -> None:
    manifest, _, _ = one_part()

    with pytest.raises(BadInput, match=complaint):
        decode_manifest(encode_manifest(change(manifest)), name="expired")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"format": "one"}', b"\xff\xfe"])
def test_a_manifest_that_is_no_json_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput, match="manifest expired is unreadable"):
        decode_manifest(data, name="expired")


def test_a_part_is_read_back_as_it_was_written() -> None:
    manifest, part, data = one_part()

    rows = read_part(manifest, EXPIRED, part, data)

    assert join_parts(manifest, EXPIRED, [rows]).column("id").to_pylist() == ["a", "b"]


def test_a_missing_part_is_named() -> None:
    manifest, _, _ = one_part()

    with pytest.raises(BadInput, match=r"part-00000\.parquet is missing"):
        check_listing(manifest, {})


def test_a_part_of_another_size_is_named() -> None:
    manifest, part, _ = one_part()

    with pytest.raises(BadInput, match=r"part-00000\.parquet has 1 bytes"):
        check_listing(manifest, {part.name: 1})


def test_an_unknown_file_beside_the_parts_is_reported_and_not_fatal() -> None:
    manifest, part, _ = one_part()

    assert check_listing(manifest, {part.name: part.size_bytes, "README": 3}) == ["README"]


def test_a_part_cut_short_is_refused() -> None:
    manifest, part, data = one_part()

    with pytest.raises(BadInput, match="bytes instead of"):
        check_part(manifest, part, data[:-1])


def test_a_part_with_a_flipped_bit_is_refused() -> None:
    manifest, part, data = one_part()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1

    with pytest.raises(BadInput, match="contradicts its digest"):
        check_part(manifest, part, bytes(flipped))


def test_a_part_with_fewer_rows_than_its_manifest_says_is_refused() -> None:
    data = expiring("a")
    part = part_of("part-00000.parquet", data, rows=2)

    with pytest.raises(BadInput, match="has 1 rows instead of 2"):
        read_part(manifest_of(EXPIRED, FOLDER, [part]), EXPIRED, part, data)


def test_reading_fewer_parts_than_the_manifest_has_is_refused() -> None:
    manifest, _, _ = one_part()

    with pytest.raises(BadInput, match="gave 0 rows instead of 2"):
        join_parts(manifest, EXPIRED, [])
    with pytest.raises(BadInput, match="gave 3 rows"):
        check_rows(manifest, 3)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not parquet at all"])
def test_bytes_that_are_no_parquet_are_refused(data: bytes) -> None:
    with pytest.raises(BadInput, match="is no expired table"):
        decode_part(EXPIRED, data, name="p")


def test_a_part_without_a_declared_column_is_refused() -> None:
    with pytest.raises(BadInput, match="is no uncommitted table"):
        decode_part(UNCOMMITTED, expiring("a"), name="p")


def test_a_null_is_never_written() -> None:
    with pytest.raises(ValueError, match="null"):
        encode_part(EXPIRED, pa.table({"id": pa.array([None], pa.string())}))


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_every_declared_table_can_be_written_and_read_without_rows(table: Table) -> None:
    data = encode_part(table, arrow_schema(table).empty_table())

    assert decode_part(table, data, name="p").schema == arrow_schema(table)


def test_a_list_column_is_read_back_in_order() -> None:
    rows = pa.table(
        {
            "id": ["c"],
            "generation": [3],
            "creation_date": pa.array([5], pa.timestamp("ms", tz="UTC")),
            "metarange_id": [""],
            "parents": [["b", "a"]],
            "swept": [False],
            "expiring": [False],
        }
    )

    assert decode_part(COMMITS, encode_part(COMMITS, rows), name="p").column("parents").to_pylist() == [["b", "a"]]


def test_two_manifests_of_different_bytes_have_different_digests() -> None:
    first, _, _ = one_part()
    second = manifest_of(EXPIRED, FOLDER, [part_of("part-00000.parquet", expiring("a", "c"), rows=2)])

    assert first.digest() != second.digest()
