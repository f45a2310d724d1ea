"""Lists of ranges that earlier lists named: read by their ids, and no less checked."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.base import MetarangeId, RangeId
from lakebed.ranges import (
    KnownRanges,
    MetarangeCorrupt,
    RangeInfo,
    SublistCorrupt,
    SublistList,
    encode_metarange,
    encode_sublist,
)
from lakebed.ranges.metarange import METARANGE_KIND
from lakebed.ranges.sealed import SealedFile, write_sealed


def info(number: int, *, version: int = 0, size_bytes: int = 7) -> RangeInfo:
    return RangeInfo(
        id=RangeId(f"{number:032x}{version:032x}"),
        min_key=b"k" * (number % 5) + f"/{number:06}".encode(),
        max_key=b"k" * (number % 5) + f"/{number:06}/z".encode(),
        count=number + version + 1,
        size_bytes=size_bytes,
        file_bytes=1000 + number,
    )


def infos(*numbers: int, version: int = 0) -> list[RangeInfo]:
    return sorted((info(number, version=version) for number in numbers), key=lambda one: one.min_key)


def told(known: KnownRanges, places: object) -> list[RangeInfo]:
    """What is known at these places; the sizes of objects are not told."""
    assert isinstance(places, np.ndarray)
    counts, sizes = known.numbers()
    return [
        RangeInfo(
            id=known.id(place),
            min_key=known.span(place)[0],
            max_key=known.span(place)[1],
            count=counts[place],
            size_bytes=7,
            file_bytes=sizes[place],
        )
        for place in places.tolist()
    ]


@given(
    trees=st.lists(
        st.dictionaries(st.integers(0, 12), st.integers(0, 1), min_size=1),
        min_size=1,
        max_size=8,
    ),
    salt=st.sampled_from(["", "run1"]),
    as_sublists=st.booleans(),
)
def test_any_sequence_of_lists_reads_as_it_was_written(
    trees: list[dict[int, int]], salt: str, as_sublists: bool
) -> None:
    known = KnownRanges()
    for tree in trees:
        ranges = sorted((info(number, version=at) for number, at in tree.items()), key=lambda one: one.min_key)
        if as_sublists:
            listed, data = encode_sublist(ranges, salt=salt)
            places = known.read_sublist(listed.id, data)
        else:
            id_, data = encode_metarange(ranges, salt=salt)
            found = known.read_metarange(id_, data)
            assert not isinstance(found, SublistList)
            places = found
        assert told(known, places) == ranges
    ids = known.ids()
    assert len({*ids}) == len(ids) == len(known)


def test_of_a_list_of_known_ranges_only_the_ids_are_read() -> None:
    """What its file says besides is not decoded: its id proves that it is what is known."""
    known = KnownRanges()
    id_, data = encode_metarange(infos(0, 1, 2))
    known.read_metarange(*encode_metarange(infos(0, 1, 2, 3)))
    rows = SealedFile(METARANGE_KIND, id_, data).read()
    lying = rows.set_column(3, METARANGE_KIND.schema.field("count"), pa.array([9, 9, 9]))

    assert told(known, known.read_metarange(id_, write_sealed(METARANGE_KIND, id_, lying, {}))) == infos(0, 1, 2)


def test_many_ranges_and_their_neighbours_are_known() -> None:
    """More than the columns first have room for, and trees that differ in one range."""
    known, ranges = KnownRanges(), infos(*range(3000))
    later = [*ranges[:1234], msgspec.structs.replace(info(0), id=RangeId("ab" * 32)), *ranges[1235:]]
    later[1234] = msgspec.structs.replace(
        later[1234], min_key=ranges[1234].min_key, max_key=ranges[1234].max_key, count=5
    )
    assert all(left.max_key < right.min_key for left, right in pairwise(later))
    trees = [encode_metarange(ranges), encode_metarange(later)]
    for id_, data in trees:
        known.read_metarange(id_, data)

    for (id_, data), expected in zip([*trees, trees[0]], [ranges, later, ranges], strict=True):
        assert told(known, known.read_metarange(id_, data)) == expected
    assert len(known) == 3001


def test_a_flip_of_any_byte_of_a_known_list_is_noticed() -> None:
    id_, data = encode_metarange(infos(0, 1, 2))
    known = KnownRanges()
    known.read_metarange(id_, data)

    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        for bad in (bytes(damaged), data[:position]):
            with pytest.raises(MetarangeCorrupt) as caught:
                known.read_metarange(id_, bad)
            assert caught.value.facts["metarange_id"] == id_


def test_a_file_that_lists_other_known_ranges_than_its_id_says_is_refused() -> None:
    """Its seal holds."""
    known = KnownRanges()
    whole, data = encode_metarange(infos(0, 1, 2))
    fewer, _ = encode_metarange(infos(0, 2))
    known.read_metarange(whole, data)
    rows = SealedFile(METARANGE_KIND, whole, data).read()

    for table in (rows, rows.slice(1), rows.slice(0, 2)):
        with pytest.raises(MetarangeCorrupt, match="what it lists is metarange"):
            known.read_metarange(fewer, write_sealed(METARANGE_KIND, fewer, table, {}))
    with pytest.raises(MetarangeCorrupt, match="what it lists is metarange"):
        known.read_metarange(whole, write_sealed(METARANGE_KIND, whole, rows, {"lakebed.salt": "run1"}))


def test_a_list_that_says_something_else_of_a_known_range_is_read_as_well() -> None:
    """No writer of ours makes one: a range's id decides what is said of it."""
    known = KnownRanges()
    known.read_metarange(*encode_metarange([info(0), info(1)]))
    id_, data = encode_metarange([info(0), info(1, size_bytes=8)])

    places = known.read_metarange(id_, data)

    assert [known.id(place) for place in np.asarray(places).tolist()] == [info(0).id, info(1).id]
    assert len(known) == 2


def test_a_wide_tree_gives_its_sublists_and_a_sublist_is_told_from_a_metarange() -> None:
    known = KnownRanges()
    listed, data = encode_sublist(infos(0, 1))
    id_, wide = encode_metarange([listed])

    assert [*known.read_metarange(id_, wide)] == [listed]
    assert len(known) == 0
    with pytest.raises(MetarangeCorrupt):
        known.read_metarange(MetarangeId(listed.id), data)
    with pytest.raises(SublistCorrupt):
        known.read_sublist(listed.id, encode_metarange(infos(0, 1))[1])
