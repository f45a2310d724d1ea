"""The metarange file: a list of ranges, named by what it lists."""

from __future__ import annotations

import hashlib
import struct

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import EMPTY_METARANGE, MetarangeId, RangeId
from lakebed.ranges import MetarangeCorrupt, RangeInfo, decode_metarange, encode_metarange
from lakebed.ranges.metarange import METARANGE_KIND
from lakebed.ranges.sealed import SealedFile, write_sealed

searched = settings(deadline=None, max_examples=50)


def ranges_of(count: int) -> list[RangeInfo]:
    return [
        RangeInfo(
            id=RangeId(hashlib.sha256(b"%d" % number).hexdigest()),
            min_key=b"k%06d" % (10 * number),
            max_key=b"k%06d" % (10 * number + 9),
            count=10,
            size_bytes=number * 1000,
            file_bytes=2000 + number,
        )
        for number in range(count)
    ]


@searched
@given(st.integers(1, 50))
def test_what_is_encoded_decodes_to_the_same_ranges(count: int) -> None:
    ranges = ranges_of(count)
    id_, data = encode_metarange(ranges)
    assert [*decode_metarange(id_, data)] == ranges


def test_the_id_is_the_digest_of_the_documented_bytes() -> None:
    ranges = ranges_of(3)
    keys = [[info.min_key for info in ranges], [info.max_key for info in ranges]]
    expected = b"lakebed metarange 1\n" + struct.pack("<Q", 3)
    for column in ([bytes.fromhex(info.id) for info in ranges], *keys):
        expected += b"".join(struct.pack("<I", len(value)) for value in column) + b"".join(column)
    expected += struct.pack("<3q", *(info.count for info in ranges))
    expected += struct.pack("<3q", *(info.size_bytes for info in ranges))

    assert encode_metarange(ranges)[0] == hashlib.sha256(expected).hexdigest()


def test_the_size_of_files_is_no_part_of_the_identity() -> None:
    """Another version of the compressor makes files of other sizes; the tree is the same."""
    ranges = ranges_of(3)
    others = [msgspec.structs.replace(info, file_bytes=1) for info in ranges]

    assert encode_metarange(others)[0] == encode_metarange(ranges)[0]


def test_no_ranges_are_the_empty_tree_and_no_file() -> None:
    assert encode_metarange([]) == (EMPTY_METARANGE, b"")


def test_a_hundred_thousand_ranges_fit() -> None:
    ranges = ranges_of(100_000)
    id_, data = encode_metarange(ranges)
    assert [*decode_metarange(id_, data)] == ranges


def test_a_flip_of_any_byte_and_a_cut_anywhere_are_noticed() -> None:
    id_, data = encode_metarange(ranges_of(3))

    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        for bad in (bytes(damaged), data[:position]):
            with pytest.raises(MetarangeCorrupt) as caught:
                decode_metarange(id_, bad)
            assert caught.value.facts["metarange_id"] == id_


def test_another_metarange_and_a_later_format_are_refused() -> None:
    id_, data = encode_metarange(ranges_of(3))
    other, _ = encode_metarange(ranges_of(4))

    with pytest.raises(MetarangeCorrupt):
        decode_metarange(other, data)
    table = SealedFile(METARANGE_KIND, id_, data).read().slice(1)
    later = write_sealed(METARANGE_KIND._replace(version=3), id_, table, {})
    with pytest.raises(MetarangeCorrupt, match="format 3"):
        decode_metarange(id_, later)
    forged = write_sealed(METARANGE_KIND, id_, table, {})
    with pytest.raises(MetarangeCorrupt, match="what it lists is metarange"):
        decode_metarange(MetarangeId(id_), forged)


def test_a_salted_metarange_is_another_one_with_the_same_ranges() -> None:
    ranges = ranges_of(3)
    plain, _ = encode_metarange(ranges)
    salted, data = encode_metarange(ranges, salt="run1")

    assert salted != plain
    assert [*decode_metarange(salted, data)] == ranges
    with pytest.raises(MetarangeCorrupt):
        decode_metarange(plain, data)


def test_a_metarange_that_claims_another_salt_is_corrupt() -> None:
    """The seal holds, the id does not."""
    ranges = ranges_of(3)
    id_, _ = encode_metarange(ranges)
    table = pa.Table.from_pylist(
        [{**msgspec.to_builtins(info, builtin_types=(bytes,)), "id": bytes.fromhex(info.id)} for info in ranges],
        METARANGE_KIND.schema,
    )

    with pytest.raises(MetarangeCorrupt, match="what it lists is metarange"):
        decode_metarange(id_, write_sealed(METARANGE_KIND, id_, table, {"lakebed.salt": "run1"}))
