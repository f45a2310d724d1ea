"""`prefix_end` and `scan_prefix`: everything under a prefix, by pages, and nothing else."""

from __future__ import annotations

import pytest

from lakebed.kv import Store, open_store, prefix_end, scan_prefix

P = b"partition"
KEYS = [b"a", b"a/", b"a/1", b"a/2", b"a/\xff", b"a/\xff\xff", b"a0", b"\xff", b"\xff\x01", b"\xff\xff"]


@pytest.fixture
async def store() -> Store:
    store = open_store("mem://")
    await store.set_many(P, [(key, b"value of " + key) for key in KEYS])
    return store


@pytest.mark.parametrize("page_size", [1, 2, 1000])
@pytest.mark.parametrize("prefix", [b"", b"a", b"a/", b"a/\xff", b"\xff", b"\xff\xff", b"b", b"a/1"])
async def test_all_of_a_prefix_is_found_in_order(store: Store, prefix: bytes, page_size: int) -> None:
    found = [pair async for pair in scan_prefix(store, P, prefix, page_size=page_size)]

    assert found == [(key, b"value of " + key) for key in sorted(KEYS) if key.startswith(prefix)]


@pytest.mark.parametrize("start", [b"", b"a", b"a/1", b"a/1\x00", b"a/\xff", b"b"])
async def test_it_begins_at_the_start_within_the_prefix(store: Store, start: bytes) -> None:
    found = [key async for key, _ in scan_prefix(store, P, b"a/", start=start, page_size=2)]

    assert found == [key for key in sorted(KEYS) if key.startswith(b"a/") and key >= start]


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        (b"a", b"b"),
        (b"a/", b"a0"),
        (b"a\xff", b"b"),
        (b"a\xff\xff", b"b"),
        (b"\x00", b"\x01"),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_the_end_of_a_prefix_is_the_first_key_after_all_of_it(prefix: bytes, end: bytes | None) -> None:
    assert prefix_end(prefix) == end
    if end is not None:
        assert prefix + b"\xff" * 20 < end
        assert not end.startswith(prefix)
