"""Bytes of records and cells: round trips, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lakebed.base import CommitId, Entry, MetarangeId, StagingToken, from_row, to_row
from lakebed.versions import (
    EXCLUSIVE,
    BranchRecord,
    Commit,
    RecordFormat,
    RefState,
    Sealed,
    TagRecord,
    decode_cell,
    decode_cells,
    decode_record,
    decode_records,
    encode_cell,
    encode_record,
)
from lakebed.versions.cells import TOMBSTONE, TOMBSTONE_ROW, changes_table

BRANCH = BranchRecord(
    state=RefState.ACTIVE,
    commit_id=CommitId("c" * 64),
    staging_token=StagingToken("t3"),
    sealed=(Sealed(StagingToken("t2"), (StagingToken("t1"), StagingToken("t0"))), Sealed(StagingToken("t"))),
    epoch=7,
)


def test_a_record_is_a_format_byte_and_msgpack() -> None:
    data = encode_record(BRANCH)

    assert data[:1] == b"\x01"
    assert decode_record(BranchRecord, data) == BRANCH


@pytest.mark.parametrize("data", [b"", b"\x02\x80", b"\x01", b"\x01\xc1", b"\x01\x80", encode_record(BRANCH)[:-1]])
def test_bytes_that_are_no_record_of_ours_are_corrupt(data: bytes) -> None:
    with pytest.raises(RecordFormat):
        decode_record(BranchRecord, data)


@pytest.mark.parametrize(
    "value", [b"", b"\x93\x01\x00\x00", encode_cell(0, TOMBSTONE_ROW)[:-1], b"\x9b\x02" + b"\0" * 10]
)
def test_bytes_that_are_no_cell_are_corrupt(value: bytes) -> None:
    with pytest.raises(RecordFormat):
        decode_cell(value)
    with pytest.raises(RecordFormat):
        decode_cells([encode_cell(0, TOMBSTONE_ROW), value])


def test_a_commit_id_covers_everything_but_the_note_that_it_was_published() -> None:
    commit = Commit(
        generation=2,
        message="m",
        committer="c",
        created_ms=1,
        metarange_id=MetarangeId("m" * 64),
        parents=(CommitId("p" * 64),),
        metadata={"b": "1", "a": "2"},
        made_for="main",
        nonce="n",
    )
    others = [
        replace(commit, **{field: value})
        for field, value in {
            "generation": 3,
            "message": "x",
            "committer": "x",
            "created_ms": 2,
            "metarange_id": "",
            "parents": (),
            "metadata": {},
            "made_for": "x",
            "nonce": "x",
        }.items()
    ]

    assert len({commit.id, *(other.id for other in others)}) == 10
    assert replace(commit, published=True).id == commit.id
    assert replace(commit, metadata={"a": "2", "b": "1"}).id == commit.id


@given(
    st.builds(
        Entry,
        address=st.one_of(st.just("data/1q306knvs002d/00000042"), st.text(min_size=1)),
        size_bytes=st.integers(0, 2**50),
        checksum=st.text(max_size=40),
        modified_ms=st.integers(0, 2**45),
        content_type=st.text(max_size=20),
        metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    ),
    st.binary(min_size=1, max_size=40),
)
def test_an_entry_survives_the_cell(entry: Entry, key: bytes) -> None:
    flags, row = decode_cell(encode_cell(EXCLUSIVE, to_row(key, entry)))

    assert flags == EXCLUSIVE
    assert from_row(row) == entry


def test_cells_become_columns_in_the_order_given() -> None:
    entry = Entry(address="s3://elsewhere/x", size_bytes=5, checksum="c", modified_ms=9, metadata={"k": "v"})
    row = to_row(b"a", entry)

    table = changes_table([b"a", b"b"], [encode_cell(EXCLUSIVE, row), encode_cell(TOMBSTONE, TOMBSTONE_ROW)])

    assert table.column("key").to_pylist() == [b"a", b"b"]
    assert table.column("tombstone").to_pylist() == [False, True]
    assert table.column("address").to_pylist() == ["s3://elsewhere/x", ""]
    assert table.column("digest").to_pylist() == [row[0], 0]
    assert changes_table([], []).num_rows == 0


def test_records_of_a_page_decode_as_they_do_one_by_one() -> None:
    tags = [TagRecord(state=RefState.ACTIVE, commit_id=CommitId("c" * number)) for number in range(5)]
    values = [encode_record(tag) for tag in tags]

    assert decode_records(TagRecord, values) == tags
    assert decode_records(TagRecord, []) == []


@pytest.mark.parametrize("bad", [b"", b"\x02", b"\x01", b"\x01\xc0", b"\x01\x80"])
def test_one_bad_record_spoils_its_page(bad: bytes) -> None:
    good = encode_record(TagRecord(state=RefState.ACTIVE, commit_id=CommitId("c")))

    for values in ([bad], [good, bad, good], [bad, good]):
        with pytest.raises(RecordFormat):
            decode_records(TagRecord, values)
