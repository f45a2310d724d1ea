"""The files of trees in one storage namespace: read through the cache or past it, and written.

Whatever is wrong with a file surfaces as a Corrupt error that names the range (or metarange) and the namespace, and
nothing of it is kept. Point reads and listings go through the cache, and check the content digest when they load.
Bulk work (rewriting, diffs, merges) uses entries of the cache and else reads past it, resting on the seal: it sees
each file once, and must not evict the entries of others. A listing that seeks past a folder rests on it too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Final, Generic, TypeAlias, TypeVar

import pyarrow as pa

from lakebed.base import EMPTY_METARANGE, MetarangeId, Ports, RangeId
from lakebed.objectstore import ObjectCorrupt, ObjectMissing, ObjectStore
from lakebed.ranges import (
    FileCorrupt,
    InfoList,
    MetarangeCorrupt,
    RangeCorrupt,
    RangeFile,
    RangeInfo,
    RangeList,
    RangeView,
    SublistCorrupt,
    SublistInfo,
    SublistList,
    decode_metarange,
    decode_range,
    decode_sublist,
    metarange_key,
    range_key,
    sublist_key,
)

from .cache import TreeCache

TOGETHER: Final = 8
"""The number of files that are read or written at once: bulk work holds about twice as many in memory, at 0.3 MB
each, or about 1.5 MB where they are decoded."""

ROWS_APART: Final = 4096
"""Decode, change or encode a range apart from the event loop from this number of rows on. Each takes some ms."""

ROWS_TO_GIVE_WAY: Final = 256
"""Let other tasks have a turn after work on this many rows. With a cold processor cache it takes a millisecond."""

MISSING: Final = "the file is missing"
"""The reason that a FileCorrupt gives then."""

Listed = TypeVar("Listed", bound=RangeInfo | SublistInfo)
T = TypeVar("T")


Tree: TypeAlias = RangeList | SublistList
"""A decoded metarange: its list."""

Item: TypeAlias = RangeInfo | SublistInfo

_GAPS_BYTES: Final = 400
"""The bytes that the cache counts for gaps: their name, the entry of a dictionary, and the objects around them."""
_GAP_BYTES: Final = 140


SHORT_FOLDER: Final = 8
"""Reading this many rows of a cached range costs as much as seeking past a folder twice."""

PARTS_MAX: Final = 4
"""Read a range in part at most this number of times, then whole. A part costs a fifth of the whole range."""


class Gaps:
    """Stretches of a range that hold no key: each from a start up to the first key behind it."""

    __slots__ = ("found", "nbytes")

    def __init__(self, found: tuple[tuple[bytes, bytes], ...]) -> None:
        self.found = found
        self.nbytes = _GAPS_BYTES + sum([_GAP_BYTES + len(start) + len(key) for start, key in found])

    def first_key(self, start: bytes) -> bytes | None:
        """Return the range's first key at or after `start`, where that is known."""
        return next((key for first, key in self.found if first <= start <= key), None)


class TreeFiles:
    def __init__(self, objectstore: ObjectStore, cache: TreeCache, ports: Ports, *, salt: str = "") -> None:
        self.salt = salt
        self._objectstore = objectstore
        self._cache = cache
        self._tasks = ports.tasks
        self._clock = ports.clock
        self._uri = objectstore.uri

    async def tree(self, id_: MetarangeId) -> Tree:
        """
        Raises:
            MetarangeCorrupt: the file is missing, short or altered.
        """
        if id_ == EMPTY_METARANGE:
            return _no_ranges()
        name = (self._uri, id_)
        found = self._cache.find(name, InfoList)
        if found is None:

            async def load() -> Tree:
                with self.naming():
                    return decode_metarange(id_, await self._get(metarange_key(id_), MetarangeCorrupt, id_))

            found = await self._cache.load(name, InfoList, load, self._tasks)
        assert isinstance(found, RangeList | SublistList)
        return found

    async def sublist(self, info: SublistInfo) -> RangeList:
        """The ranges of a sublist, kept in the cache.

        Raises:
            SublistCorrupt: the file is missing, short or altered.
        """
        name = (self._uri, info.id)
        found = self._cache.find(name, RangeList)
        if found is not None:
            return found

        async def load() -> RangeList:
            with self.naming():
                return decode_sublist(info.id, await self._get(sublist_key(info.id), SublistCorrupt, info.id))

        return await self._cache.load(name, RangeList, load, self._tasks)

    async def range_at(self, tree: Tree, key: bytes) -> RangeInfo | None:
        """The first range that does not end before the key."""
        at = tree.position(key)
        if at == len(tree):
            return None
        item = tree[at]
        if isinstance(item, RangeInfo):
            return item
        ranges = await self.sublist(item)
        return ranges[ranges.position(key)]

    async def ranges_from(self, tree: Tree, key: bytes) -> AsyncIterator[RangeInfo]:
        """Yield the ranges that do not end before the key, ascending. Reads sublists as the caller goes on."""
        for row in range(tree.position(key), len(tree)):
            item = tree[row]
            if isinstance(item, RangeInfo):
                yield item
                continue
            ranges = await self.sublist(item)
            for place in range(ranges.position(key), len(ranges)):
                yield ranges[place]

    async def opened(self, tree: Tree, is_wanted: Callable[[SublistInfo], bool]) -> Sequence[Item]:
        """Return the list of the tree, ascending, with the ranges of each wanted sublist in its place."""
        if isinstance(tree, RangeList):
            return tree
        wanted = [is_wanted(info) for info in tree]
        lists = Ahead(self, [info for info, is_open in zip(tree, wanted, strict=True) if is_open], self.sublist)
        items: list[Item] = []
        for info, is_open in zip(tree, wanted, strict=True):
            items += await lists.next() if is_open else [info]
        return items

    async def view(self, info: RangeInfo) -> RangeView:
        """A range to look things up in, kept in the cache.

        Raises:
            RangeCorrupt: the file is missing, short or altered.
        """
        return await self.view_of(info.id, info.count)

    async def view_of(self, id_: RangeId, count: int = ROWS_APART) -> RangeView:
        """As `view`, of a range with about this number of entries."""
        name = (self._uri, id_)
        found = self._cache.find(name, RangeView)
        if found is not None:
            return found

        async def load() -> RangeView:
            with self.naming():
                data = await self._get(range_key(id_), RangeCorrupt, id_)
                return RangeView(await self.work(count, partial(decode_range, id_, data)))

        return await self._cache.load(name, RangeView, load, self._tasks)

    async def first_key(self, info: RangeInfo, start: bytes, folder_of: Callable[[bytes], bytes]) -> bytes | None:
        """Return the range's first key at or after `start`; None where rows of its view should be read.

        A part is the keys of one row group. Errors as `view`.
        """
        if start <= info.min_key:
            return info.min_key
        # With the view in the cache and a short folder, rows cost no more.
        view = self._cache.find((self._uri, info.id), RangeView)
        if view is not None:
            at = view.position(start)
            first, last = view.keys[at], view.keys[min(at + SHORT_FOLDER, len(view)) - 1]
            return first if last.startswith(folder_of(first)) else None
        name = (self._uri, f"gaps {info.id}")
        gaps = self._cache.find(name, Gaps) or Gaps(())
        key = gaps.first_key(start)
        # After PARTS_MAX reads of a part the whole range is cheaper.
        if key is not None or len(gaps.found) >= PARTS_MAX:
            return key
        file = await self.file(info)
        if isinstance(file, RangeView):
            return None
        with self.naming():
            key = file.find(start)[1]
            if key is None:
                raise RangeCorrupt(info.id, "it ends before the last key that its list names")
        # Keep the answer: a repeated listing reads nothing.
        self._cache.keep(name, Gaps((*gaps.found, (start, key))))
        return key

    async def entries(self, info: RangeInfo) -> pa.Table:
        """All entries of a range, past the cache. Errors as `view`."""
        found = await self.file(info)
        if isinstance(found, RangeView):
            return found.entries
        with self.naming():
            return await self.work(info.count, found.table)

    async def file(self, info: RangeInfo) -> RangeView | RangeFile:
        """A range to read parts of, past the cache. Reading parts may raise RangeCorrupt without the namespace: do it
        inside `naming`. Errors as `view`."""
        found = self._cache.find((self._uri, info.id), RangeView)
        if found is not None:
            return found
        with self.naming():
            return RangeFile(info.id, await self._get(range_key(info.id), RangeCorrupt, info.id))

    async def give_way(self) -> None:
        """Let other tasks have a turn."""
        await self._clock.sleep(0)

    async def work(self, rows: int, work: Callable[[], T]) -> T:
        """Do work on this many rows: 0.7 ms for a thousand. Many are done apart from the event loop.

        After fewer, other tasks have a turn. So a small request waits for one piece of a commit, not for all of them.
        """
        if rows >= ROWS_APART:
            return await self._tasks.apart(work, is_short=True)
        done = work()
        if rows >= ROWS_TO_GIVE_WAY:
            await self.give_way()
        return done

    async def together(self, awaitables: Sequence[Awaitable[T]]) -> list[T]:
        return await self._tasks.gather(awaitables)

    async def put(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write files under their keys; all are durable afterwards. Content decides the key, so an existing file
        is the same. It is written again, for a collector may be about to remove it."""
        await self._tasks.gather([self._objectstore.put(key, data, size_bytes=len(data)) for key, data in files])

    async def _get(self, key: str, error: type[FileCorrupt], id_: str) -> bytes:
        try:
            return await self._objectstore.get(key)
        except ObjectMissing as missing:
            raise error(id_, MISSING) from missing
        except ObjectCorrupt as corrupt:
            raise error(id_, str(corrupt)) from corrupt

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors about a file that leave this block name the namespace too."""
        try:
            yield
        except FileCorrupt as error:
            if "namespace" in error.facts:
                raise
            raise error.in_namespace(self._uri) from error


@cache
def _no_ranges() -> RangeList:
    # Made when it is first asked for, as in diff.py.
    return RangeList()


def ids_of(items: Sequence[RangeInfo] | Sequence[Item]) -> Sequence[str]:
    """Return their ids, in order."""
    return items.ids if isinstance(items, InfoList) else [item.id for item in items]


def without_shared(left: Sequence[RangeInfo], right: Sequence[RangeInfo]) -> list[RangeInfo]:
    """Return the ranges of `left` that `right` does not have."""
    shared = {*ids_of(right)}
    return [left[row] for row, id_ in enumerate(ids_of(left)) if id_ not in shared]


class Ahead(Generic[Listed, T]):
    """Files read in order, some at a time, each as `read` gives it."""

    def __init__(self, files: TreeFiles, infos: Sequence[Listed], read: Callable[[Listed], Awaitable[T]]) -> None:
        self._files = files
        self._unread = list(reversed(infos))
        self._read = read
        self._ready: list[T] = []

    async def next(self) -> T:
        """The next; there must be one."""
        if not self._ready:
            infos = [self._unread.pop() for _ in range(min(TOGETHER, len(self._unread)))]
            self._ready = (await self._files.together([self._read(info) for info in infos]))[::-1]
        return self._ready.pop()
