"""A store over any remote database agrees with a plain dictionary: pages, and batches that fail in part."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.base import OutcomeUnknown
from lakebed.kv import Held, StoreUnavailable
from lakebed.kv.remote import store as remote
from lakebed.kv.remote.store import RemoteStore

P = b"partition"


class Fate(Enum):
    DONE = auto()
    REFUSED = auto()
    LOST_REQUEST = auto()
    LOST_ANSWER = auto()


class Cells:
    """A database that is a dictionary. Each of its writes meets the next fate; when there are no more, it is done."""

    batch_keys_max = 2
    batch_bytes_max = 1000
    batches_at_once = 2
    reads_together = False

    def __init__(self, cells: dict[bytes, bytes], fates: Iterator[Fate] = iter(())) -> None:
        self.cells = cells
        self._fates = fates

    async def scan(self, _: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return sorted(item for item in self.cells.items() if item[0] >= start)[:limit]

    async def read(self, _: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        return {key: Held(self.cells[key], 1) for key in keys if key in self.cells}

    async def write(self, _: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        await asyncio.sleep(0)  # as many as may be are under way at once
        self._meet(dict(items))

    async def remove(self, _: bytes, keys: Sequence[bytes]) -> None:
        self._meet(dict.fromkeys(keys))

    def _meet(self, changes: dict[bytes, bytes] | dict[bytes, None]) -> None:
        fate = next(self._fates, Fate.DONE)
        if fate is Fate.REFUSED:
            raise StoreUnavailable("refused")
        if fate is not Fate.LOST_REQUEST:
            self.cells |= changes  # type: ignore[arg-type]  # None is taken out at once
            for key in [key for key, value in self.cells.items() if value is None]:
                del self.cells[key]
        if fate is not Fate.DONE:
            raise OutcomeUnknown("lost")


def store_over(cells: Cells) -> RemoteStore:
    database: Any = cells
    return RemoteStore(database, name="cells", wait_s=60)


KEYS = st.text("a\0b\xff", min_size=1, max_size=4).map(lambda text: text.encode("latin-1"))
CELLS = st.dictionaries(KEYS, st.binary(max_size=2), max_size=12)


@given(cells=CELLS, start=st.just(b"") | KEYS, limit=st.integers(1, 5), rows_max=st.integers(1, 4))
async def test_pages_hold_every_key_also_those_that_differ_by_a_trailing_nul(
    cells: dict[bytes, bytes], start: bytes, limit: int, rows_max: int
) -> None:
    """An edge lies between pages, and within a page between two requests of at most `rows_max` rows."""
    store, found = store_over(Cells(dict(cells))), list[tuple[bytes, bytes]]()
    begin: bytes | None = start
    with patch.object(remote, "SCAN_ROWS_MAX", rows_max):
        while begin is not None:
            page = await store.scan(P, begin, limit)
            assert len(page.keys) == limit or page.next_start is None
            found += zip(page.keys, page.values, strict=True)
            begin = page.next_start

    assert found == sorted(item for item in cells.items() if item[0] >= start)


@given(
    before=CELLS,
    changes=st.dictionaries(KEYS, st.binary(max_size=2), min_size=1, max_size=12),
    fates=st.lists(st.sampled_from(Fate), max_size=6),
    deletes=st.booleans(),
)
async def test_a_batch_says_that_nothing_happened_only_where_nothing_did(
    before: dict[bytes, bytes], changes: dict[bytes, bytes], fates: list[Fate], deletes: bool
) -> None:
    after = {key: None if deletes else value for key, value in changes.items()}
    database = Cells(dict(before), iter(fates))
    store = store_over(database)
    attempt = store.delete_many(P, [*changes]) if deletes else store.set_many(P, [*changes.items()])
    error: Exception | None = None
    try:
        await attempt
    except (StoreUnavailable, OutcomeUnknown) as raised:
        error = raised

    now = {key: database.cells.get(key) for key in changes}
    if error is None:
        assert now == after
    elif isinstance(error, StoreUnavailable):
        assert database.cells == before
    else:
        assert all(value in (before.get(key), after[key]) for key, value in now.items())
    assert {key: value for key, value in database.cells.items() if key not in changes} == {
        key: value for key, value in before.items() if key not in changes
    }


async def test_a_batch_of_which_a_part_is_done_and_the_rest_refused_has_an_unknown_outcome() -> None:
    store = store_over(Cells({}, iter([Fate.DONE, Fate.REFUSED])))
    with pytest.raises(OutcomeUnknown, match="only 1 of 2 batches"):
        await store.set_many(P, [(b"%d" % number, b"") for number in range(4)])


async def test_a_batch_that_was_refused_beside_one_whose_answer_was_lost_has_an_unknown_outcome() -> None:
    store = store_over(Cells({}, iter([Fate.REFUSED, Fate.LOST_ANSWER])))
    with pytest.raises(OutcomeUnknown, match="only 0 of 2 batches"):
        await store.set_many(P, [(b"%d" % number, b"") for number in range(4)])


@pytest.mark.parametrize("number", [1, 2, 3, 5])
async def test_reads_of_many_keys_leave_out_no_last_batch(number: int) -> None:
    cells = {b"%d" % key: b"value %d" % key for key in range(number)}

    found = await store_over(Cells(cells)).get_many(P, [*cells])

    assert [held and held.value for held in found] == [*cells.values()]
