"""Build a tree from kept ranges of old trees and new entries, streamed in key order.

The tree that comes out depends on its entries alone. A kept range goes over as it is while the stream stands at a cut:
there, and only there, it would be cut again just so. Otherwise it is read, and its entries follow those before it
through the cutter, until the stream is at a cut again. The same holds of a kept sublist among the cuts of lists: where
the stream stands between two sublists it goes over unread.

Content gives a file its id, but for two cases. A collection gave that id up for ever (docs/design/protocols.md, "A
collection of metadata"): then the file is salted until its id is not retired. And in a namespace that an earlier
repository used, every file is salted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import MetarangeId, RangeId
from lakebed.ranges import (
    CutRule,
    Cutter,
    RangeInfo,
    SublistInfo,
    decode_range,
    encode_metarange,
    encode_range,
    encode_sublist,
    ends_sublist,
    metarange_key,
    range_key,
    sublist_key,
)

from .files import TOGETHER, Item, TreeFiles

Named = TypeVar("Named", MetarangeId, SublistInfo)

ROWS_HASHED: Final = 2048
"""Rows that are hashed for cuts before other tasks have a turn: 0.35 ms."""

RetiredBy: TypeAlias = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
"""For each id of a file to write: nothing, or the salt, where that id was retired.
Asked after the branch was read that the tree is meant for."""


async def none_retired(ids: Sequence[str]) -> Sequence[str]:
    """For trees that no collection looks at."""
    return [""] * len(ids)


class TreeBuilder:
    """Everything in `safe` is named by the tree that is being changed: it is safe from collectors for as long as the
    change is, and is not written again. Holds at most one range's rows and TOGETHER encoded files, and the lists."""

    def __init__(self, files: TreeFiles, rule: CutRule, *, safe: set[str], retired_by: RetiredBy) -> None:
        self._files = files
        self._rule = rule
        self._cutter = Cutter(rule)
        self._retired_by = retired_by
        self._safe = safe
        self._items: list[Item] = []
        # The place of a range among the items, and its file.
        self._unwritten: list[tuple[int, bytes]] = []
        # The last item of an old tree, if it does not end in a cut. Only if nothing follows does it go over as it is.
        self._open: Item | None = None

    async def keep(self, info: Item) -> None:
        """A range or a sublist of an old tree, whole."""
        await self._continue_open()
        if isinstance(info, SublistInfo):
            if not self._cutter.is_between or (self._items and not ends_sublist(self._items[-1], self._rule)):
                await self._keep_ranges(info)
            elif ends_sublist(info, self._rule):
                self._items.append(info)
            else:
                self._open = info
        elif not self._cutter.is_between:
            await self._feed(await self._files.entries(info), np.array([info.count - 1]))
        elif self._rule.is_complete(info.max_key, info.count):
            self._items.append(info)
        else:
            self._open = info

    async def _keep_ranges(self, info: SublistInfo) -> None:
        for range_ in await self._files.sublist(info):
            self._safe.add(range_.id)
            await self.keep(range_)

    async def put(self, entries: pa.Table, fresh: npt.NDArray[np.int64] | None = None) -> None:
        """Entries; `fresh` as of `Cutter.feed`."""
        if entries.num_rows:
            await self._continue_open()
            await self._feed(entries, fresh)

    async def finish(self, unchanged: MetarangeId) -> MetarangeId:
        """The tree's id. Everything it names is durable: ranges and sublists are written before the metarange.
        The metarange `unchanged` is there already."""
        rest = self._cutter.finish()
        if rest is not None:
            await self._encode(rest)
        if self._open is not None:
            self._items.append(self._open)
        unwritten, self._unwritten = self._unwritten, []
        lists = await self._lists()
        id_, data = encode_metarange(lists.items, salt=self._files.salt)
        # One look for the last ranges and all lists together: few trees have more to write.
        new = [self._items[place] for place, _ in unwritten] + [info for info, _ in lists.files]
        ids: list[str] = [info.id for info in new] + ([id_] if data and id_ != unchanged else [])
        if ids and any(await self._retired_by(ids)):
            await self._write(unwritten)
            lists = await self._lists(is_asked=True)
            id_, data = await self._not_retired(partial(encode_metarange, lists.items))
            unwritten = []
        files = [(range_key(RangeId(self._items[place].id)), file) for place, file in unwritten]
        await self._files.put(files + [(sublist_key(info.id), file) for info, file in lists.files])
        if data and id_ != unchanged:
            await self._files.put([(metarange_key(id_), data)])
        return id_

    async def _lists(self, *, is_asked: bool = False) -> _Lists:
        """Cut the items into sublists; with `is_asked`, under ids that are not retired."""
        groups: list[list[Item]] = [[]]
        for item in self._items:
            groups[-1].append(item)
            if ends_sublist(item, self._rule):
                groups.append([])
        groups = [group for group in groups if group]
        items: list[Item] = []
        files: list[tuple[SublistInfo, bytes]] = []
        if len(groups) < self._rule.sublists_min:
            for item in self._items:
                items += await self._files.sublist(item) if isinstance(item, SublistInfo) else [item]
            return _Lists(items, files)
        for group in groups:
            ranges = [item for item in group if isinstance(item, RangeInfo)]
            if not ranges:  # A kept sublist is a group of its own.
                items += group
                continue
            info, data = encode_sublist(ranges, salt=self._files.salt)
            if info.id not in self._safe:
                if is_asked:
                    info, data = await self._not_retired(partial(encode_sublist, ranges))
                files.append((info, data))
            items.append(info)
        return _Lists(items, files)

    async def _not_retired(self, encode: Callable[..., tuple[Named, bytes]]) -> tuple[Named, bytes]:
        named, data = encode(salt=self._files.salt)
        while salt := (await self._retired_by([named if isinstance(named, str) else named.id]))[0]:
            named, data = encode(salt=salt)
        return named, data

    async def _continue_open(self) -> None:
        info, self._open = self._open, None
        if isinstance(info, SublistInfo):
            await self._keep_ranges(info)
            info, self._open = self._open, None
        if info is not None:
            assert isinstance(info, RangeInfo), "of a sublist only its last range is open"
            await self._feed(await self._files.entries(info), np.empty(0, dtype=np.int64))

    async def _feed(self, entries: pa.Table, fresh: npt.NDArray[np.int64] | None) -> None:
        for some, fresh_there in _in_turns(entries, fresh):
            for piece in self._cutter.feed(some, fresh_there):
                await self._encode(piece)
                if len(self._unwritten) >= TOGETHER:
                    unwritten, self._unwritten = self._unwritten, []
                    await self._write(unwritten)
            await self._files.give_way()

    async def _encode(self, piece: pa.Table) -> None:
        info, data = await self._files.work(piece.num_rows, partial(encode_range, piece, salt=self._files.salt))
        self._items.append(info)
        if info.id not in self._safe:
            self._unwritten.append((len(self._items) - 1, data))

    async def _write(self, files: Sequence[tuple[int, bytes]]) -> None:
        """Write each under an id that is not retired."""
        while files:
            salts = await self._retired_by([self._items[place].id for place, _ in files])
            free = [file for file, salt in zip(files, salts, strict=True) if not salt]
            await self._files.put([(range_key(RangeId(self._items[place].id)), data) for place, data in free])
            files = [self._salted(*file, salt) for file, salt in zip(files, salts, strict=True) if salt]

    def _salted(self, place: int, data: bytes, salt: str) -> tuple[int, bytes]:
        entries = decode_range(RangeId(self._items[place].id), data)
        self._items[place], data = encode_range(entries, salt=salt)
        return place, data


def _in_turns(
    entries: pa.Table, fresh: npt.NDArray[np.int64] | None
) -> Iterator[tuple[pa.Table, npt.NDArray[np.int64] | None]]:
    """Yield the entries some at a time, each with those of `fresh` among them."""
    for start in range(0, entries.num_rows, ROWS_HASHED):
        end = start + ROWS_HASHED
        among = None if fresh is None else fresh[np.searchsorted(fresh, start) : np.searchsorted(fresh, end)] - start
        yield entries.slice(start, ROWS_HASHED), among


class _Lists(NamedTuple):
    """Hold the list of the metarange, and the files of new sublists."""

    items: list[Item]
    files: list[tuple[SublistInfo, bytes]]
