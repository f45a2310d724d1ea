"""The range file: what goes in comes out, and nothing else does."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from bisect import bisect_left

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import DATE_MS_MAX, DATE_MS_MIN, Corrupt, Entry, RangeId, Row, encode_metadata, to_row
from lakebed.ranges import (
    ENTRIES_SCHEMA,
    RangeCorrupt,
    RangeFile,
    RangeView,
    decode_metarange,
    decode_range,
    encode_metarange,
    encode_range,
    footer_size,
    read_end,
    rows_from_table,
    sealed,
    summary_of,
    table_from_rows,
)
from lakebed.ranges.codec import RANGE_KIND, TAIL_BYTES
from lakebed.ranges.metarange import MetarangeCorrupt

searched = settings(deadline=None, max_examples=50)

texts = st.text(max_size=8)
entries = st.builds(
    Entry,
    address=st.one_of(texts, st.integers(0, 99_999_999).map(lambda n: f"data/0123456789abc/{n:08d}")),
    size_bytes=st.integers(0, 2**63 - 1),
    checksum=texts,
    modified_ms=st.integers(DATE_MS_MIN, DATE_MS_MAX),
    content_type=texts,
    metadata=st.dictionaries(texts, texts, max_size=2),
)
contents = st.dictionaries(st.binary(max_size=12), entries, min_size=1, max_size=40)


def table_of(content: dict[bytes, Entry]) -> pa.Table:
    keys = sorted(content)
    return table_from_rows(keys, [to_row(key, content[key]) for key in keys])


def sample(count: int = 50, version: int = 0) -> pa.Table:
    return table_of(
        {
            b"part-%05d" % number: Entry(
                address=f"data/0123456789abc/{number + version:08d}",
                size_bytes=number,
                checksum=f"{number:032x}",
                modified_ms=1_790_000_000_000 + number,
            )
            for number in range(count)
        }
    )


def canonical_bytes(table: pa.Table) -> bytes:
    """docs/formats/range.md, word for word, in plain Python."""
    out = b"lakebed range 2\n" + struct.pack("<Q", table.num_rows)
    for field in table.schema:
        values = table.column(field.name).to_pylist()
        if pa.types.is_integer(field.type):
            out += b"".join(struct.pack("<i" if field.type == pa.int32() else "<q", value) for value in values)
        else:
            raw = [value.encode() if isinstance(value, str) else value for value in values]
            out += b"".join(struct.pack("<I", len(value)) for value in raw) + b"".join(raw)
    return out


@searched
@given(contents)
def test_what_is_encoded_decodes_to_the_same_rows(content: dict[bytes, Entry]) -> None:
    table = table_of(content)
    info, data = encode_range(table)
    assert decode_range(info.id, data).equals(table)
    assert decode_range(info.id, data, ["key", "digest"]).equals(table.select(["key", "digest"]))
    assert rows_from_table(decode_range(info.id, data)) == [(key, to_row(key, content[key])) for key in sorted(content)]
    assert (info.min_key, info.max_key, info.count) == (min(content), max(content), len(content))
    assert info.file_bytes == len(data)


@searched
@given(contents)
def test_the_id_is_the_digest_of_the_documented_bytes(content: dict[bytes, Entry]) -> None:
    table = table_of(content)
    assert encode_range(table)[0].id == hashlib.sha256(canonical_bytes(table)).hexdigest()


def test_the_id_does_not_depend_on_how_the_table_lies_in_memory() -> None:
    table = sample()
    pieces = pa.concat_tables([table.slice(0, 7), table.slice(7, 20), table.slice(27)])
    wider = pa.concat_tables([sample(5), table]).slice(5)

    assert encode_range(pieces)[0] == encode_range(table)[0]
    assert encode_range(wider)[0] == encode_range(table)[0]


def test_one_entry_more_or_another_value_makes_another_id() -> None:
    ids = {encode_range(table)[0].id for table in (sample(50), sample(51), sample(50, version=1))}

    assert len(ids) == 3


def test_the_file_is_plain_parquet_with_sorting_groups_and_page_checksums() -> None:
    info, data = encode_range(sample(5000))

    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)

    assert file.read().num_rows == 5000
    group = file.metadata.row_group(0)
    assert 2000 <= group.num_rows <= 8192
    assert group.sorting_columns == (pq.SortingColumn(0),)
    columns = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    assert columns["key"].compression == columns["checksum"].compression == "ZSTD"
    assert "DELTA_BINARY_PACKED" in columns["sequence"].encodings
    assert "RLE_DICTIONARY" in columns["content_type"].encodings
    assert columns["key"].statistics.min == b"part-00000"
    assert file.metadata.metadata[b"lakebed.format"] == b"range 2"
    assert file.metadata.metadata[b"lakebed.id"] == info.id.encode()


def test_a_flip_of_any_byte_is_noticed_and_the_range_is_named() -> None:
    info, data = encode_range(sample(20))

    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(RangeCorrupt) as caught:
            decode_range(info.id, bytes(damaged), ENTRIES_SCHEMA.names)
        assert caught.value.facts["range_id"] == info.id


@pytest.mark.parametrize("columns", [["digest"], ["key"], ["size_bytes", "address"]])
def test_a_flip_of_any_byte_that_is_read_is_noticed(columns: list[str]) -> None:
    table = sample(20)
    info, data = encode_range(table)
    unread = 0

    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with contextlib.suppress(RangeCorrupt):
            assert decode_range(info.id, bytes(damaged), columns).equals(table.select(columns))
            unread += 1
    assert 0 < unread < len(data) - footer_size(info.id, data)


def test_the_digests_are_read_without_the_rest_of_the_file() -> None:
    table = sample(5000)
    info, data = encode_range(table)
    file = RangeFile(info.id, data)
    # Nothing but digests and footer is left of it.
    emptied = bytearray(len(data) - footer_size(info.id, data)) + data[-footer_size(info.id, data) :]
    for group in range(3):
        column = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(group).column(1)
        start, end = column.data_page_offset, column.data_page_offset + column.total_compressed_size
        emptied[start:end] = data[start:end]

    assert file.digests.tolist() == table["digest"].to_pylist()
    assert RangeFile(info.id, bytes(emptied)).digests.tolist() == table["digest"].to_pylist()
    with pytest.raises(RangeCorrupt):
        RangeFile(info.id, bytes(emptied)).take(pa.array([0]).to_numpy())


def test_columns_of_one_value_come_back_as_they_were() -> None:
    same = {"address": "s3://elsewhere/é", "checksum": "é" * 128, "content_type": "", "size_bytes": 1, "modified_ms": 1}
    longer = {**same, "checksum": "x" * 257, "metadata": {"a": "b"}, "content_type": "text/csv"}
    for facts, constant in ((same, 4), (longer, 2)):
        entry = Entry(**facts)  # type: ignore[arg-type]  # a dict of values of several types
        table = table_of({b"k%d" % number: entry for number in range(3000)})
        info, data = encode_range(table)

        text = pq.ParquetFile(pa.BufferReader(data)).metadata.metadata[b"lakebed.constant"]
        assert len(msgspec.json.decode(text)) == constant
        assert decode_range(info.id, data).equals(table)
        assert decode_range(info.id, data, ["metadata", "address"]).equals(table.select(["metadata", "address"]))
        assert RangeFile(info.id, data).take(pa.array([2, 2999]).to_numpy()).equals(table.take([2, 2999]))
        assert pq.read_table(pa.BufferReader(data)).cast(ENTRIES_SCHEMA).equals(table)


def test_columns_that_only_look_like_one_value_are_not_taken_for_one() -> None:
    texts = ["ab", "cd", "ab"], ["ab", "abcd", ""], ["a", "bc", "def"]
    for checksums in texts:
        content = {
            b"k%d" % number: Entry(address="", size_bytes=0, checksum=checksum, modified_ms=0)
            for number, checksum in enumerate([*checksums, checksums[0]])
        }
        info, data = encode_range(table_of(content))
        assert decode_range(info.id, data)["checksum"].to_pylist() == [*checksums, checksums[0]]


def test_a_file_cut_short_anywhere_is_noticed() -> None:
    info, data = encode_range(sample(20))

    for length in range(len(data)):
        with pytest.raises(RangeCorrupt):
            decode_range(info.id, data[:length])
        with pytest.raises(RangeCorrupt):
            RangeFile(info.id, data[length + 1 :])
    with pytest.raises(RangeCorrupt):
        decode_range(info.id, data + b"PAR1")


def test_a_range_under_the_name_of_another_is_corrupt() -> None:
    info, _ = encode_range(sample(20))
    other, data = encode_range(sample(21))

    with pytest.raises(RangeCorrupt) as caught:
        decode_range(info.id, data)

    assert caught.value.facts == {"range_id": info.id, "reason": caught.value.reason, "found_id": other.id}
    assert isinstance(caught.value, Corrupt)


def test_a_later_format_is_refused() -> None:
    info, _ = encode_range(sample(20))
    later = sealed.write_sealed(RANGE_KIND._replace(version=3), info.id, sample(20), {})

    with pytest.raises(RangeCorrupt, match="format 3") as caught:
        decode_range(info.id, later)

    assert caught.value.facts["format"] == 3


def test_a_seal_that_holds_over_other_entries_does_not_pass_the_content_digest() -> None:
    info, _ = encode_range(sample(20))
    forged = sealed.write_sealed(RANGE_KIND, info.id, sample(21), {})

    with pytest.raises(RangeCorrupt, match="its entries are those of"):
        decode_range(info.id, forged)


def test_other_parquet_and_other_files_of_ours_are_refused() -> None:
    info, _ = encode_range(sample(20))
    sink = pa.BufferOutputStream()
    pq.write_table(sample(20), sink)
    id_, metarange = encode_metarange([info])

    for data in (
        sink.getvalue().to_pybytes(),
        metarange,
        b"",
        b"PAR1PAR1PAR1",
        b"PAR1" + b"lakebed.seal\x18@" + b"PAR1",
    ):
        with pytest.raises(RangeCorrupt):
            decode_range(info.id, data)
    with pytest.raises(MetarangeCorrupt):
        decode_metarange(id_, encode_range(sample(20))[1])


def test_a_range_with_foreign_columns_is_refused() -> None:
    info, _ = encode_range(sample(20))
    fewer = sample(20).drop_columns(["metadata"])
    kind = RANGE_KIND._replace(schema=fewer.schema, encodings={}, constants=(), compressed=())

    with pytest.raises(RangeCorrupt, match="columns"):
        decode_range(info.id, sealed.write_sealed(kind, info.id, fewer, {}))


def test_rows_are_taken_from_any_row_groups() -> None:
    table = sample(9000)
    info, data = encode_range(table)
    file = RangeFile(info.id, data)

    for rows in ([0], [8999], [2047, 2048], [10, 4100, 4101, 8500], list(range(9000))):
        assert file.take(pa.array(rows).to_numpy()).equals(table.take(rows))
    for start, stop in ((0, 1), (0, 2048), (2047, 2049), (2048, 9000), (8999, 9000)):
        assert file.between(start, stop).equals(table.slice(start, stop - start))


def test_the_first_key_behind_a_start_is_found_in_any_row_group() -> None:
    table = sample(5000)
    info, data = encode_range(table)
    keys = table["key"].to_pylist()
    starts = [b"", *(keys[at] + more for at in (0, 1, 2046, 2047, 2048, 4095, 4096, 4998) for more in (b"", b"\0"))]

    for start in starts:
        at = bisect_left(keys, start)
        assert RangeFile(info.id, data).find(start) == (at, keys[at])
    assert RangeFile(info.id, data).find(keys[-1] + b"\0") == (5000, None)


def test_the_first_key_behind_a_start_is_found_where_keys_are_too_long_for_the_footer() -> None:
    table = sample(3000)
    keys = [b"k" * 5000 + b"%04d" % number for number in range(3000)]
    info, data = encode_range(table.set_column(0, ENTRIES_SCHEMA.field("key"), pa.array(keys, pa.binary())))

    assert RangeFile(info.id, data).find(keys[2500][:-1]) == (2500, keys[2500])
    assert RangeFile(info.id, data).find(b"l") == (3000, None)


def test_a_flip_of_any_byte_is_noticed_or_changes_no_key_that_is_found() -> None:
    table = sample(20)
    info, data = encode_range(table)
    start = table["key"][10].as_py()
    unread = 0

    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with contextlib.suppress(RangeCorrupt):
            assert RangeFile(info.id, bytes(damaged)).find(start) == (10, start)
            unread += 1
    assert 0 < unread < len(data) - footer_size(info.id, data)


def test_the_summary_needs_only_the_end_of_the_file() -> None:
    info, data = encode_range(sample(3000))
    size = footer_size(info.id, data[-8:])

    assert size < 10_000 < len(data)
    assert summary_of(info.id, data[-size:]).bitmaps[0].sequences().tolist() == list(range(3000))
    for end in (data[-size + 1 :], data[-12:], b"", data[-size:-1]):
        with pytest.raises(RangeCorrupt):
            summary_of(info.id, end)
    with pytest.raises(RangeCorrupt):
        footer_size(info.id, data[-9:-1])
    with pytest.raises(RangeCorrupt):
        summary_of(RangeId("ab" * 32), data)


async def test_the_end_that_holds_the_footer_is_found_whatever_size_the_file_is_said_to_have() -> None:
    info, data = encode_range(sample(9000))
    starts: list[int] = []

    async def read(start: int) -> bytes:
        starts.append(start)
        return data[start:]

    ends = [await read_end(info.id, said, read) for said in (len(data), 10, len(data) + TAIL_BYTES - 20, 10**9)]

    assert ends == [data[-TAIL_BYTES:], data, data, data]
    assert starts == [len(data) - TAIL_BYTES, 0, len(data) - 20, 0, 10**9 - TAIL_BYTES, 0]


def test_a_flip_of_any_byte_of_the_footer_is_noticed_where_the_summary_is_read() -> None:
    info, data = encode_range(sample(20))
    size = footer_size(info.id, data[-8:])

    for position in range(size):
        footer = bytearray(data[-size:])
        footer[position] ^= 1 << position % 8
        with pytest.raises(RangeCorrupt):
            summary_of(info.id, bytes(footer))


def test_metadata_and_keys_of_any_bytes_survive() -> None:
    metadata = {"ключ": "\x00", "": "x" * 3000}
    row: Row = to_row(b"\xff\x00", Entry(address="", size_bytes=0, checksum="", modified_ms=0, metadata=metadata))
    info, data = encode_range(table_from_rows([b"", b"\xff\x00"], [row, row]))

    assert rows_from_table(decode_range(info.id, data)) == [(b"", row), (b"\xff\x00", row)]
    assert row[-1] == encode_metadata(metadata)
    assert ENTRIES_SCHEMA.equals(decode_range(info.id, data).schema)


def test_a_file_knows_without_reading_where_another_has_the_same_keys() -> None:
    """Of what was replaced in place all keys; before an added row those of whole row groups; behind it none."""
    old, new = sample(6000), sample(6000, version=1)
    more = pa.concat_tables([old.slice(0, 3000), table_of({b"part-02999+": ENTRY}), old.slice(3000)])
    files = {name: RangeFile(*_with_id(table)) for name, table in (("old", old), ("new", new), ("more", more))}
    rows = pa.array([0, 2047, 2048, 4000, 5999]).to_numpy()

    assert files["old"].has_keys_of(files["new"], rows).tolist() == [True] * 5
    assert files["old"].has_keys_of(files["more"], rows).tolist() == [True, True, False, False, False]
    assert files["old"].has_keys_of(RangeFile(*_with_id(old.slice(0, 2048))), rows).tolist() == [True] * 2 + [False] * 3


def test_row_groups_of_one_name_hold_the_same_entries() -> None:
    """Where one entry has another value, or the only value of a column is another, the name is another."""
    old = sample(6000)
    new = pa.concat_tables([old.slice(0, 3000), sample(6000, version=1).slice(3000)])
    place = old.schema.get_field_index("content_type")
    typed = old.set_column(place, old.schema.field(place), pa.array(["text/csv"] * 6000))
    old_names, new_names, typed_names = (RangeFile(*_with_id(table)).group_names() for table in (old, new, typed))

    assert [mine == theirs for mine, theirs in zip(old_names, new_names, strict=True)] == [True, False, False]
    assert not {*old_names} & {*typed_names}


ENTRY = Entry(address="", size_bytes=0, checksum="", modified_ms=0)


def _with_id(table: pa.Table) -> tuple[RangeId, bytes]:
    info, data = encode_range(table)
    return info.id, data


def test_a_few_rows_are_the_same_as_from_a_table() -> None:
    table = sample(5000)
    for file in (RangeFile(*_with_id(table)), RangeView(table)):
        for rows in ([], [0], [1, 2047, 2048, 4999], list(range(0, 5000, 100))):
            places = pa.array(rows, pa.int64())
            assert file.rows_at(places.to_numpy()) == rows_from_table(table.take(places))


def test_a_salted_range_is_another_one_with_the_same_entries() -> None:
    plain, _ = encode_range(sample())
    salted, data = encode_range(sample(), salt="run1")

    assert salted.id != plain.id
    assert encode_range(sample(), salt="run1")[0].id == salted.id
    assert decode_range(salted.id, data).equals(sample())
    assert summary_of(salted.id, data).foreign == summary_of(plain.id, encode_range(sample())[1]).foreign
    with pytest.raises(RangeCorrupt):
        decode_range(plain.id, data)
