"""Bytes of addresses, cells, commits and records as docs/formats has them. A value here is never changed: what an
earlier release wrote must mean the same for ever. A new format gets a number, and values, of its own.
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec.structs import replace

from lakebed.base import (
    CommitId,
    Entry,
    MetarangeId,
    StagingToken,
    format_address,
    parse_address,
    parse_slice_name,
    slice_name,
    slice_number,
    to_row,
)
from lakebed.versions import (
    EXCLUSIVE,
    TOMBSTONE,
    BranchRecord,
    Commit,
    RefState,
    Sealed,
    decode_cell,
    decode_record,
    encode_cell,
    encode_record,
)
from lakebed.versions.cells import TOMBSTONE_ROW

SLICE = 1841396996853377706
OPENED_MS = 1_760_000_000_000
ENTRY = Entry(
    address=format_address(SLICE, 42),
    size_bytes=5,
    checksum="5d41402abc4b2a76b9719d911017c592",
    modified_ms=OPENED_MS,
    content_type="text/plain",
    metadata={"b": "2", "a": "1"},
)
CELL = bytes.fromhex(
    "9b0202cf0e914c6a779ed30fcf198df4cfffeaaaaa2aa005d92035643431343032616263346232613736623937313964393131303137633539"
    "32cf00000199c82cc000aa746578742f706c61696ec40982a161a131a162a132"
)
COMMIT = Commit(
    generation=2,
    message="m",
    committer="c",
    created_ms=OPENED_MS,
    metarange_id=MetarangeId(""),
    parents=(CommitId("a" * 64),),
    metadata={"k": "v"},
    made_for="main",
    nonce="0123",
)


def test_a_slice_is_reversed_milliseconds_and_22_random_bits() -> None:
    assert slice_number(opened_at_ms=OPENED_MS, random_bits=0x2AAAAA) == SLICE
    assert (2**41 - 1 - OPENED_MS) << 22 | 0x2AAAAA == SLICE


def test_an_address_is_slice_and_sequence_in_fixed_width() -> None:
    assert slice_name(SLICE) == "1j3fkpvvulala"
    assert parse_slice_name("1j3fkpvvulala") == SLICE
    assert ENTRY.address == "data/1j3fkpvvulala/00000042"
    assert parse_address("data/1j3fkpvvulala/00000042") == (SLICE, 42)


def test_a_cell_is_an_array_of_eleven() -> None:
    row = to_row(b"a/b.txt", ENTRY)

    exclusive_in_an_older_release = 2

    assert decode_cell(CELL) == (exclusive_in_an_older_release, row)
    assert encode_cell(EXCLUSIVE, row) == CELL[:2] + b"\x0a" + CELL[3:]
    assert encode_cell(TOMBSTONE, TOMBSTONE_ROW) == bytes.fromhex("9b0201000000a000a000a0c400")


def test_a_row_is_digested_with_its_path() -> None:
    digest, *rest = to_row(b"a/b.txt", ENTRY)

    _, _, _, size_bytes, checksum, _, content_type, metadata = rest
    canonical = msgspec.msgpack.encode([b"a/b.txt", size_bytes, checksum, content_type, metadata])

    assert rest[-1] == msgspec.msgpack.encode({"a": "1", "b": "2"})
    assert digest == int.from_bytes(hashlib.blake2b(canonical, digest_size=8).digest(), "little", signed=True)
    assert digest == 1049704208311177999


def test_a_commit_id_is_the_digest_of_ten_fields() -> None:
    fields = [1, 2, "m", "c", OPENED_MS, "", ["a" * 64], {"k": "v"}, "main", "0123"]

    assert COMMIT.id == hashlib.sha256(msgspec.msgpack.encode(fields)).hexdigest()
    assert COMMIT.id == "b7b0d7bb6e131d44455bfb91132a1026cad15560ae331adfd1542800021375f8"


def test_the_ways_to_far_ancestors_are_behind_the_fields_of_the_id() -> None:
    placed = replace(COMMIT, depth=3, jump="b" * 64, merges=1)
    jump = bytes.fromhex("a5646570746803a46a756d70d940") + b"b" * 64 + bytes.fromhex("a66d657267657301")

    assert placed.id == COMMIT.id
    assert encode_record(COMMIT)[:4] == b"\x01\xde\0\x09"
    assert encode_record(placed) == b"\x01\xde\0\x0c" + encode_record(COMMIT)[4:] + jump
    assert decode_record(Commit, encode_record(placed)) == placed


def test_a_record_is_a_format_byte_and_a_map_without_defaults() -> None:
    branch = BranchRecord(
        state=RefState.ACTIVE,
        commit_id=CommitId("a" * 64),
        staging_token=StagingToken("t2"),
        sealed=(Sealed(StagingToken("t1")), Sealed(StagingToken("f"), (StagingToken("x"),))),
    )
    fields = {
        "state": "active",
        "commit_id": "a" * 64,
        "staging_token": "t2",
        "sealed": [["t1", []], ["f", ["x"]]],
    }

    assert encode_record(branch) == b"\x01" + msgspec.msgpack.encode(fields)
    assert decode_record(BranchRecord, b"\x01" + msgspec.msgpack.encode(fields)) == branch


def digest_of(metadata: dict[str, str], content_type: str = "application/octet-stream", checksum: str = "c") -> int:
    entry = Entry(
        address=ENTRY.address,
        size_bytes=5,
        checksum=checksum,
        modified_ms=OPENED_MS,
        content_type=content_type,
        metadata=metadata,
    )
    return to_row(b"a/b.txt", entry)[0]


def test_what_programs_and_doors_add_is_out_of_the_digest() -> None:
    user = {"team": "red", "::s3::cache-control": "no-store"}
    added = {
        "::s3::checksum-crc32": "qlBD0g==",
        "::s3::parts": "5",
        "::lakefs::client-mtime": "1760000000",
        "mtime": "1760000000.5",
        "md5chksum": "XUFAKrxLKna5cZ2REBfFkg==",
        "s3cmd-attrs": "uid:0",
    }

    assert digest_of({**user, **added}) == digest_of(user) == 2141697043498864563
    assert len({digest_of({}), *(digest_of({name: value}) for name, value in user.items())}) == 3
    assert digest_of(added) == digest_of({})
    assert digest_of({"::lakefs::posix-permissions": '{"Mode":33261}'}) != digest_of({})


def test_types_that_say_unknown_are_one_in_the_digest() -> None:
    assert digest_of({}, "binary/octet-stream") == digest_of({}, "") == digest_of({})
    assert digest_of({}, "text/plain") != digest_of({})


def test_the_md5_of_the_bytes_is_in_the_digest_in_place_of_the_checksum_of_parts() -> None:
    assert digest_of({"::lakebed::md5": "m"}, checksum="etag-2") == digest_of({}, checksum="m")
