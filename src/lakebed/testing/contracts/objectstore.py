"""Checks for an ObjectStore and its Deleter. The author of a driver inherits the class and opens an empty store:

    class TestMyObjectStore(ObjectStoreContract):
        @pytest.fixture
        def objectstore(self) -> ObjectStore:
            return MyObjectStore("my://fresh-and-empty")

        @pytest.fixture
        def deleter(self, objectstore: ObjectStore) -> Deleter:
            return MyDeleter(objectstore.uri)

Only the tests of a store itself can check a failing delete, a full disk, or death during a put.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

import pytest

from lakebed.objectstore import (
    CopiesRanges,
    Deleter,
    InvalidObjectKey,
    Level,
    ObjectCorrupt,
    ObjectExists,
    ObjectMissing,
    ObjectStat,
    ObjectStore,
    ObjectStoreUnavailable,
    ShortBody,
    Stored,
)

from .bodies import LARGE_BYTES, MIB, BodyFailed, failing_body, large_body, md5_of, pieces, put_all_of, read_stream

DATA = b"0123456789"

RANGES: list[tuple[int, int | None]] = [
    (0, None),
    (0, 0),
    (0, 1),
    (2, 5),
    (5, 2),
    (9, 10),
    (9, None),
    (3, 1000),
    (10, None),
    (10, 11),
    (11, 20),
]

AWKWARD_KEYS = [
    "a b",
    " a",
    "a%2Bb",
    "a+b",
    "100%",
    "%",
    "a=b&c;d,e@f:g!h$i'(j)",
    "x?y#z",
    '*^`<>|"~{}[]',
    "back\\slash",
    "dots..",
    "...",
    ".hidden",
    "..a/b..",
    "-rf",
    "ünï/cödé",
    "e\u0301",
    "日本語",
    "😀/🎉",
    "nbsp\u00a0",
    "line\u2028separator",
    "CON/nul.txt",
    "a" * 255,
    "/".join(["long" * 25] * 8),
]

BAD_KEYS = [
    "",
    "/",
    "/etc/passwd",
    "//a",
    "a//b",
    "a/",
    ".",
    "..",
    "../a",
    "a/..",
    "a/../b",
    "a/../../b",
    "./a",
    "a/./b",
    "a\0b",
    "\0",
    "a\nb",
    "a\x7fb",
    "a" * 256,
    "é" * 128,
    "/".join(["a" * 200] * 6),
    "\ud800",
    ".lakebed-tmp/a",
    "a/.lakebed-tmp",
]

UNSORTED_KEYS = ["b", "a/b", "a-b", "a0", "a/b-c", "a/b.c/d", "a.b", "a/c/d", "a/c-d", "A", "_", "é", "\uffee", "😀"]
"""In byte order of full keys `a-b` and `a.b` come before the keys in `a`, and U+FFEE before U+1F600."""

IMPOSSIBLE_PREFIXES = ["/", "../", "a/../", "a//", "./", "\0", "a\n", "\ud800", "a/\ud800"]


async def list_all(objectstore: ObjectStore, prefix: str = "", *, start_after: str = "") -> list[ObjectStat]:
    return [stat async for page in objectstore.list(prefix, start_after=start_after) for stat in page]


async def keys_of(objectstore: ObjectStore, prefix: str = "", *, start_after: str = "") -> list[str]:
    return [stat.key for stat in await list_all(objectstore, prefix, start_after=start_after)]


async def put_many(objectstore: ObjectStore, keys: Sequence[str], *, at_once: int = 32) -> None:
    for first in range(0, len(keys), at_once):
        await asyncio.gather(*(objectstore.put(key, key.encode()) for key in keys[first : first + at_once]))


class ObjectStoreContract:
    """Override the fixtures `objectstore` and `deleter`.

    The tests of paging and bulk deletion put `many` objects: more than one page of the store's own.
    """

    many = 2500

    unsorted_keys: ClassVar[Sequence[str]] = UNSORTED_KEYS
    """A service with another order omits the keys that it sorts differently. Its driver must refuse such listings."""

    unkeepable: ClassVar[frozenset[str]] = frozenset()
    """Keys of AWKWARD_KEYS that this service treats as other keys. Its driver must refuse them."""

    @pytest.fixture
    def objectstore(self) -> ObjectStore:
        raise NotImplementedError("a contract's test class overrides the fixture `objectstore`")

    @pytest.fixture
    def deleter(self, objectstore: ObjectStore) -> Deleter:
        raise NotImplementedError("a contract's test class overrides the fixture `deleter`")

    # --- the right to delete

    def test_a_store_cannot_delete(self, objectstore: ObjectStore) -> None:
        assert not hasattr(objectstore, "delete")

    def test_a_deleter_names_the_namespace_of_its_store(self, objectstore: ObjectStore, deleter: Deleter) -> None:
        assert deleter.uri == objectstore.uri

    # --- put and get

    async def test_get_returns_what_was_put(self, objectstore: ObjectStore) -> None:
        await objectstore.put("data/x", DATA)
        assert await objectstore.get("data/x") == DATA

    async def test_put_reports_the_size_and_the_md5_of_its_bytes(self, objectstore: ObjectStore) -> None:
        for stored in (await objectstore.put("whole", DATA), await objectstore.put("streamed", pieces(DATA))):
            assert stored.size_bytes == len(DATA)
            assert stored.md5 == hashlib.md5(DATA, usedforsecurity=False).hexdigest()

    async def test_a_streamed_body_is_put_together_in_order(self, objectstore: ObjectStore) -> None:
        data = bytes(range(256)) * 40
        await objectstore.put("x", pieces(data, 999), size_bytes=len(data))
        assert await objectstore.get("x") == data

    async def test_empty_pieces_of_a_body_do_no_harm(self, objectstore: ObjectStore) -> None:
        async def body() -> AsyncIterator[bytes]:
            for piece in (b"", b"a", b"", b"", b"b", b""):
                yield piece

        stored = await objectstore.put("x", body(), size_bytes=2)
        assert stored.size_bytes == 2
        assert await objectstore.get("x") == b"ab"

    async def test_an_empty_object_is_an_object(self, objectstore: ObjectStore) -> None:
        await objectstore.put("whole", b"", size_bytes=0)
        await objectstore.put("streamed", pieces(b""))
        for key in ("whole", "streamed"):
            assert await objectstore.get(key) == b""
            assert await objectstore.get(key, start=0, end=5) == b""
            assert await read_stream(objectstore, key) == b""
            assert (await objectstore.stat(key)).size_bytes == 0
        assert await keys_of(objectstore) == ["streamed", "whole"]

    async def test_a_second_put_replaces_the_object_whole(self, objectstore: ObjectStore) -> None:
        await objectstore.put("x", b"long and old")
        await objectstore.put("x", b"new")
        assert await objectstore.get("x") == b"new"
        assert [stat.size_bytes for stat in await list_all(objectstore)] == [3]

    async def test_a_large_body_streams_in_and_out(self, objectstore: ObjectStore) -> None:
        stored = await objectstore.put("large", large_body(), size_bytes=LARGE_BYTES)
        assert stored.size_bytes == LARGE_BYTES
        assert stored.md5 == await md5_of(large_body()) == await md5_of(objectstore.stream("large"))
        assert (await objectstore.stat("large")).size_bytes == LARGE_BYTES

    async def test_a_large_body_given_as_bytes_is_stored_too(self, objectstore: ObjectStore) -> None:
        data = b"".join([piece async for piece in large_body()])
        stored = await objectstore.put("large", data)
        assert stored.md5 == await md5_of(large_body())
        assert await objectstore.get("large", start=9 * MIB, end=9 * MIB + 9) == data[9 * MIB : 9 * MIB + 9]

    # --- ranges, stat, absence

    @pytest.mark.parametrize(("start", "end"), RANGES)
    async def test_ranges_are_cut_to_the_size(self, objectstore: ObjectStore, start: int, end: int | None) -> None:
        await objectstore.put("x", DATA)
        assert await objectstore.get("x", start=start, end=end) == DATA[start:end]
        assert await read_stream(objectstore, "x", start=start, end=end) == DATA[start:end]

    @pytest.mark.parametrize("later_bytes", [4 * MIB, MIB, 0])
    async def test_an_object_replaced_while_it_streams_is_whole_or_an_error(
        self, objectstore: ObjectStore, later_bytes: int
    ) -> None:
        body = b"a" * (4 * MIB)
        await objectstore.put("x", body)
        chunks = objectstore.stream("x")
        read = [await anext(chunks)]
        await objectstore.put("x", b"b" * later_bytes)

        with contextlib.suppress(ObjectStoreUnavailable):
            read += [chunk async for chunk in chunks]
            assert b"".join(read) == body

    async def test_a_range_of_a_large_object_streams_in_chunks(self, objectstore: ObjectStore) -> None:
        data = b"".join([piece async for piece in large_body(5 * MIB)])
        await objectstore.put("x", data)
        chunks = [chunk async for chunk in objectstore.stream("x", start=MIB - 3, end=4 * MIB + 3)]
        assert b"".join(chunks) == data[MIB - 3 : 4 * MIB + 3]
        assert max(map(len, chunks)) <= 2 * MIB

    async def test_stat_tells_size_and_time(self, objectstore: ObjectStore) -> None:
        await objectstore.put("a/x", DATA)
        stat = await objectstore.stat("a/x")
        assert (stat.key, stat.size_bytes) == ("a/x", len(DATA))
        assert abs(stat.modified_ms - time.time() * 1000) < 60_000
        [listed] = await list_all(objectstore)
        assert (listed.key, listed.size_bytes) == (stat.key, stat.size_bytes)
        assert listed.modified_ms // 1000 == stat.modified_ms // 1000  # for one object S3 returns whole seconds

    @pytest.mark.parametrize("key", ["absent", "here/absent", "here/x/absent", "here", "nowhere/absent"])
    async def test_what_is_absent_is_not_found(self, objectstore: ObjectStore, key: str) -> None:
        await objectstore.put("here/x", DATA)
        with pytest.raises(ObjectMissing):
            await objectstore.get(key)
        with pytest.raises(ObjectMissing):
            await objectstore.get(key, start=3, end=3)
        with pytest.raises(ObjectMissing):
            await objectstore.stat(key)
        with pytest.raises(ObjectMissing):
            await objectstore.copy(key, "target")
        assert await keys_of(objectstore) == ["here/x"]

    @pytest.mark.parametrize("end", [None, 0, 5])
    async def test_an_absent_object_is_not_found_with_the_first_chunk(
        self, objectstore: ObjectStore, end: int | None
    ) -> None:
        chunks = objectstore.stream("absent", end=end)
        with pytest.raises(ObjectMissing):
            await anext(chunks)

    # --- bodies of a wrong length, or that fail

    @pytest.mark.parametrize("found", [0, 9, 11, LARGE_BYTES])
    @pytest.mark.parametrize("declared", [10, LARGE_BYTES + 1])
    async def test_a_body_not_as_long_as_declared_leaves_nothing(
        self, objectstore: ObjectStore, found: int, declared: int
    ) -> None:
        with pytest.raises(ShortBody):
            await objectstore.put("a/x", large_body(found), size_bytes=declared)
        with pytest.raises(ShortBody):
            await objectstore.put("a/x", large_body(found), size_bytes=declared, if_absent=True)
        assert await keys_of(objectstore) == []

    async def test_bytes_not_as_long_as_declared_leave_nothing(self, objectstore: ObjectStore) -> None:
        for declared in (0, len(DATA) - 1, len(DATA) + 1):
            with pytest.raises(ShortBody):
                await objectstore.put("x", DATA, size_bytes=declared)
        assert await keys_of(objectstore) == []

    @pytest.mark.parametrize("size_bytes", [0, 10, LARGE_BYTES])
    @pytest.mark.parametrize("if_absent", [False, True])
    async def test_a_body_that_raises_leaves_nothing(
        self, objectstore: ObjectStore, size_bytes: int, if_absent: bool
    ) -> None:
        with pytest.raises(BodyFailed):
            await objectstore.put("a/x", failing_body(size_bytes), if_absent=if_absent)
        assert await keys_of(objectstore) == []

    async def test_a_failed_put_leaves_the_object_it_would_have_replaced(self, objectstore: ObjectStore) -> None:
        await objectstore.put("x", DATA)
        for size_bytes in (10, LARGE_BYTES):
            with pytest.raises(BodyFailed):
                await objectstore.put("x", failing_body(size_bytes))
            with pytest.raises(ShortBody):
                await objectstore.put("x", large_body(size_bytes), size_bytes=size_bytes - 1)
        assert await objectstore.get("x") == DATA

    @pytest.mark.parametrize("size_bytes", [10, LARGE_BYTES])
    async def test_a_cancelled_put_leaves_nothing(self, objectstore: ObjectStore, size_bytes: int) -> None:
        waiting = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            async for piece in large_body(size_bytes):
                yield piece
            waiting.set()
            await asyncio.Event().wait()

        put = asyncio.create_task(put_all_of(objectstore, "a/x", body()))
        await waiting.wait()
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        assert await keys_of(objectstore) == []
        await objectstore.put("a/x", DATA)
        assert await objectstore.get("a/x") == DATA

    # --- if_absent

    @pytest.mark.parametrize("size_bytes", [10, LARGE_BYTES])
    async def test_if_absent_puts_what_is_absent_and_keeps_what_is_there(
        self, objectstore: ObjectStore, size_bytes: int
    ) -> None:
        stored = await objectstore.put("a/x", large_body(size_bytes), if_absent=True)
        assert stored.md5 == await md5_of(large_body(size_bytes)) == await md5_of(objectstore.stream("a/x"))
        with pytest.raises(ObjectExists):
            await objectstore.put("a/x", b"other", if_absent=True)
        with pytest.raises(ObjectExists):
            await objectstore.put("a/x", large_body(size_bytes + 1), if_absent=True)
        assert (await objectstore.stat("a/x")).size_bytes == size_bytes
        assert await keys_of(objectstore) == ["a/x"]

    async def test_a_deleted_key_is_absent_again(self, objectstore: ObjectStore, deleter: Deleter) -> None:
        await objectstore.put("a/x", b"old", if_absent=True)
        assert not await deleter.delete(["a/x"])
        await objectstore.put("a/x", b"new", if_absent=True)
        assert await objectstore.get("a/x") == b"new"

    @pytest.mark.parametrize(("size_bytes", "racers"), [(100, 16), (LARGE_BYTES // 2, 4)])
    async def test_exactly_one_of_many_conditional_puts_wins(
        self, objectstore: ObjectStore, size_bytes: int, racers: int
    ) -> None:
        outcomes = await asyncio.gather(
            *(objectstore.put("a/b/x", large_body(size_bytes + n), if_absent=True) for n in range(racers)),
            return_exceptions=True,
        )
        winners = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
        losses = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(isinstance(loss, ObjectExists) for loss in losses), losses
        assert len(winners) == 1
        assert await md5_of(objectstore.stream("a/b/x")) == await md5_of(large_body(size_bytes + winners[0]))
        assert await keys_of(objectstore) == ["a/b/x"]

    # --- listing

    async def test_a_listing_is_in_byte_order_of_full_keys(self, objectstore: ObjectStore) -> None:
        await put_many(objectstore, self.unsorted_keys)
        assert await keys_of(objectstore) == sorted(self.unsorted_keys, key=str.encode)

    async def test_a_listing_starts_right_after_any_string(self, objectstore: ObjectStore) -> None:
        keys = sorted(self.unsorted_keys)
        await put_many(objectstore, keys)
        for start_after in [*keys, "a", "a/", "a/b.", "a/b/", "a0/", "a1", "😁", "a//", "a/../x"]:
            expected = [key for key in keys if key > start_after]
            assert await keys_of(objectstore, start_after=start_after) == expected, start_after

    async def test_a_prefix_need_not_be_a_whole_segment(self, objectstore: ObjectStore) -> None:
        keys = sorted(self.unsorted_keys)
        await put_many(objectstore, keys)
        for prefix in [
            "a",
            "a/",
            "a/b",
            "a/b.",
            "a/b.c/",
            "a-",
            "a/b-c",
            "a/c",
            "b",
            "c",
            "é",
            "\ufffe",
            "😀",
            "a/b/c",
        ]:
            assert await keys_of(objectstore, prefix) == [key for key in keys if key.startswith(prefix)], prefix
            for start_after in ("a/b", "a/b-c", "a/b/c", "A", "zz"):
                expected = [key for key in keys if key.startswith(prefix) and key > start_after]
                assert await keys_of(objectstore, prefix, start_after=start_after) == expected, (prefix, start_after)

    @pytest.mark.parametrize("prefix", IMPOSSIBLE_PREFIXES)
    async def test_nothing_is_listed_under_what_no_key_begins_with(self, objectstore: ObjectStore, prefix: str) -> None:
        await put_many(objectstore, ["a/b", "b"])
        assert await keys_of(objectstore, prefix) == []

    async def test_a_level_shows_what_lies_directly_in_a_folder(self, objectstore: ObjectStore) -> None:
        await put_many(objectstore, ["a", "b/c", "b/c.d", "b/d/e", "b/d/f/g", "b-c/x", "é/x"])

        assert await objectstore.level() == Level(keys=["a"], folders=["b-c/", "b/", "é/"])
        assert await objectstore.level("b/") == Level(keys=["b/c", "b/c.d"], folders=["b/d/"])
        assert await objectstore.level("b/d/f/") == Level(keys=["b/d/f/g"], folders=[])
        for nowhere in ("a/", "c/", "b/c.d/", *(prefix for prefix in IMPOSSIBLE_PREFIXES if prefix.endswith("/"))):
            assert await objectstore.level(nowhere) == Level(keys=[], folders=[]), nowhere

    async def test_nothing_is_listed_in_an_empty_namespace(self, objectstore: ObjectStore) -> None:
        assert await keys_of(objectstore) == []
        assert await keys_of(objectstore, "data/") == []

    async def test_long_listings_come_in_pages_none_of_them_empty(self, objectstore: ObjectStore) -> None:
        keys = [f"data/{n % 7}/{n:08d}" for n in range(self.many)]
        await put_many(objectstore, keys)
        pages = [[stat.key for stat in page] async for page in objectstore.list("data/")]
        assert [key for page in pages for key in page] == sorted(keys)
        assert len(pages) > 1
        assert all(pages)
        middle = sorted(keys)[self.many // 2]
        assert await keys_of(objectstore, "data/", start_after=middle) == sorted(keys)[self.many // 2 + 1 :]

    async def test_listings_at_the_same_time_each_show_all(self, objectstore: ObjectStore) -> None:
        keys = [f"data/{folder}/{n}" for folder in "abcd" for n in range(8)]
        await put_many(objectstore, keys)
        for _ in range(4):
            listed = await asyncio.gather(*(keys_of(objectstore, "data/") for _ in range(16)))
            levels = await asyncio.gather(*(objectstore.level("data/a/") for _ in range(16)))
            assert listed == [keys] * 16
            assert [level.keys for level in levels] == [keys[:8]] * 16

    async def test_a_listing_shows_all_that_stays_while_other_keys_come_and_go(
        self, objectstore: ObjectStore, deleter: Deleter
    ) -> None:
        stays = [f"data/{n:08d}/stays" for n in range(self.many // 2)]
        goes = [f"data/{n:08d}/goes" for n in range(0, self.many // 2, 3)]
        await put_many(objectstore, stays + goes)
        seen: list[str] = []
        async for page in objectstore.list():
            seen += [stat.key for stat in page]
            assert not await deleter.delete(goes)
            await objectstore.put("data/99999999/comes", b"")
        assert [key for key in seen if key.endswith("stays")] == stays
        assert seen == sorted(set(seen))

    # --- keys

    @pytest.mark.parametrize("key", AWKWARD_KEYS)
    async def test_every_key_is_kept_as_it_is(self, objectstore: ObjectStore, deleter: Deleter, key: str) -> None:
        if key in self.unkeepable:
            with pytest.raises(InvalidObjectKey):
                await objectstore.put(key, DATA)
            return
        await objectstore.put(key, DATA)
        assert await objectstore.get(key) == DATA
        assert (await objectstore.stat(key)).key == key
        await objectstore.copy(key, "copied/" + key)
        assert await keys_of(objectstore) == sorted([key, "copied/" + key])
        assert await keys_of(objectstore, key) == [key]
        assert await keys_of(objectstore, "copied/", start_after="copied/" + key) == []
        assert not await deleter.delete([key])
        assert await keys_of(objectstore) == ["copied/" + key]

    @pytest.mark.parametrize("key", BAD_KEYS)
    async def test_what_is_no_key_is_refused_by_every_method(
        self, objectstore: ObjectStore, deleter: Deleter, key: str
    ) -> None:
        await objectstore.put("good", DATA)
        with pytest.raises(InvalidObjectKey):
            await objectstore.put(key, DATA)
        with pytest.raises(InvalidObjectKey):
            await objectstore.put(key, pieces(DATA), if_absent=True)
        with pytest.raises(InvalidObjectKey):
            await objectstore.get(key)
        with pytest.raises(InvalidObjectKey):
            await anext(objectstore.stream(key))
        with pytest.raises(InvalidObjectKey):
            await objectstore.stat(key)
        with pytest.raises(InvalidObjectKey):
            await objectstore.copy("good", key)
        with pytest.raises(InvalidObjectKey):
            await objectstore.copy(key, "other")
        with pytest.raises(InvalidObjectKey):
            await objectstore.presign_get(key, expires_s=60)
        with pytest.raises(InvalidObjectKey):
            await objectstore.presign_put(key, expires_s=60)
        with pytest.raises(InvalidObjectKey):
            await deleter.delete(["good", key])
        assert await keys_of(objectstore) == ["good"]

    # --- copy and delete

    @pytest.mark.parametrize("size_bytes", [0, 10, LARGE_BYTES])
    async def test_a_copy_has_the_bytes_and_leaves_its_source(self, objectstore: ObjectStore, size_bytes: int) -> None:
        await objectstore.put("a/x", large_body(size_bytes))
        await objectstore.put("b/y", b"is replaced")
        await objectstore.copy("a/x", "b/y")
        for key in ("a/x", "b/y"):
            assert await md5_of(objectstore.stream(key)) == await md5_of(large_body(size_bytes))
        assert await keys_of(objectstore) == ["a/x", "b/y"]

    @pytest.mark.parametrize("span", [(0, 0), (0, 10), (3, MIB + 5), (LARGE_BYTES - 7, LARGE_BYTES)])
    async def test_a_copy_of_a_range_has_its_bytes_where_the_store_makes_such(
        self, objectstore: ObjectStore, span: tuple[int, int]
    ) -> None:
        start, end = span
        await objectstore.put("a/x", large_body(LARGE_BYTES))
        if not isinstance(objectstore, CopiesRanges):
            pytest.skip("this store copies whole objects only")

        made = await objectstore.copy_range("a/x", "b/y", start=start, end=end)

        wanted = await objectstore.get("a/x", start=start, end=end)
        assert await objectstore.get("b/y") == wanted
        assert made == Stored(size_bytes=end - start, md5=hashlib.md5(wanted, usedforsecurity=False).hexdigest())
        with pytest.raises(ObjectCorrupt):
            await objectstore.copy_range("a/x", "b/z", start=0, end=LARGE_BYTES + 1)
        with pytest.raises(ObjectMissing):
            await objectstore.copy_range("a/gone", "b/z", start=0, end=1)
        assert await keys_of(objectstore) == ["a/x", "b/y"]

    async def test_a_copy_outlives_its_source(self, objectstore: ObjectStore, deleter: Deleter) -> None:
        await objectstore.put("a/x", DATA)
        await objectstore.copy("a/x", "y")
        await objectstore.put("a/x", b"changed")
        assert not await deleter.delete(["a/x"])
        assert await objectstore.get("y") == DATA

    async def test_what_is_deleted_is_gone_and_the_rest_stays(self, objectstore: ObjectStore, deleter: Deleter) -> None:
        await put_many(objectstore, ["a/x", "a/y", "a/z/deep/er", "ab", "b"])
        assert not await deleter.delete(["a/x", "a/z/deep/er", "b"])
        assert await keys_of(objectstore) == ["a/y", "ab"]
        with pytest.raises(ObjectMissing):
            await objectstore.get("b")

    async def test_deleting_what_is_absent_is_no_failure(self, objectstore: ObjectStore, deleter: Deleter) -> None:
        await put_many(objectstore, ["a/x"])
        assert not await deleter.delete([])
        assert not await deleter.delete(["absent", "a", "a/absent", "a/x/absent", "b/c/d"])
        assert not await deleter.delete(["a/x", "a/x"])
        assert not await deleter.delete(["a/x"])
        assert await keys_of(objectstore) == []

    async def test_any_number_of_keys_is_deleted(self, objectstore: ObjectStore, deleter: Deleter) -> None:
        keys = [f"data/{n % 7}/{n:08d}" for n in range(self.many)]
        await put_many(objectstore, keys)
        assert not await deleter.delete(keys[1:])
        assert await keys_of(objectstore) == keys[:1]

    async def test_puts_and_deletes_in_one_folder_do_not_disturb_each_other(
        self, objectstore: ObjectStore, deleter: Deleter
    ) -> None:
        async def work(name: str) -> None:
            for n in range(20):
                key = f"a/b/{name}-{n}"
                await objectstore.put(key, DATA, if_absent=n % 2 == 0)
                assert await objectstore.get(key) == DATA
                assert not await deleter.delete([key])

        await asyncio.gather(*(work(name) for name in "pqrstuvw"))
        assert await keys_of(objectstore) == []
