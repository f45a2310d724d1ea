"""What a run lists of a slice, and the addresses that were handed out in it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.base import format_address, slice_number
from lakebed.gc.engines import LocalEngine
from lakebed.gc.engines.engine import CANDIDATES, decode, read_part
from lakebed.gc.mark.inputs.listing import SIZE_UNKNOWN, list_slices
from lakebed.gc.mark.sets.packing import unpack
from lakebed.objectstore import MemoryObjectStore
from lakebed.runtime import live_ports

SLICE = slice_number(opened_at_ms=1_790_000_000_000, random_bits=7)
SEQUENCES = st.integers(0, 30)


@given(listed=st.sets(SEQUENCES), issued=st.dictionaries(SEQUENCES, st.integers(1, 9)))
async def test_an_address_that_was_handed_out_is_listed_also_behind_the_last_object(
    listed: set[int], issued: dict[int, int]
) -> None:
    """Its bytes may come after the slice was listed. Where they lie already, they are listed once, with their size."""
    store = MemoryObjectStore()
    for sequence in listed:
        await store.put(format_address(SLICE, sequence), b"12")
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: pytest.fail("nothing is deleted here"))
    handed_out = np.array([*issued], np.int64), np.array([*issued.values()], np.int64)

    pieces, found = await list_slices(engine, [SLICE], folder="_lakefs/listed/", issued={SLICE: handed_out})

    sizes: dict[int, int] = {}
    dates: dict[int, int] = {}
    for part in pieces.parts:
        rows = unpack(decode(CANDIDATES, await read_part(store, pieces.folder, part), part))
        assert not sizes.keys() & set(rows.sequences.tolist())
        sizes |= zip(rows.sequences.tolist(), rows.sizes.tolist(), strict=True)
        dates |= zip(rows.sequences.tolist(), rows.seen_ms.tolist(), strict=True)
    late = issued.keys() - listed
    assert sizes == dict.fromkeys(listed, 2) | dict.fromkeys(late, SIZE_UNKNOWN)
    assert {sequence: dates[sequence] for sequence in late} == {sequence: issued[sequence] for sequence in late}
    assert found.objects == len(listed)
