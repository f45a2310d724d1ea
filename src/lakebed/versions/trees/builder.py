"""A new tree from what is kept of old ones and what is new, streamed in key order.

The tree that comes out depends on its entries alone. A kept range goes over as it is while the stream stands at a cut:
there, and only there, it would be cut again just so. Otherwise it is read, and its entries follow those before it
through the cutter, until the stream is at a cut again.

Content gives a file its id, but for one case: a collection gave that id up for ever (docs/design/protocols.md, "A
collection of metadata"). Then the file is salted until its id is not retired.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import MetarangeId
from lakebed.ranges import (
    CutRule,
    Cutter,
    RangeInfo,
    decode_range,
    encode_metarange,
    encode_range,
    metarange_key,
    range_key,
)

from .files import TOGETHER, Tree, TreeFiles

RetiredBy: TypeAlias = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
"""For each id of a file that is about to be written: nothing, or, where that id was retired, what to salt it with.
Asked after the branch was read that the tree is meant for."""


async def none_retired(ids: Sequence[str]) -> Sequence[str]:
    """For trees that no collection looks at."""
    return [""] * len(ids)


class TreeBuilder:
    """`replaced` is the tree that is being changed: what it names is safe from collectors for as long as the change is,
    and is not written again. Holds at most one range's rows and TOGETHER encoded files."""

    def __init__(self, files: TreeFiles, rule: CutRule, *, replaced: Tree, retired_by: RetiredBy) -> None:
        self._files = files
        self._rule = rule
        self._cutter = Cutter(rule)
        self._retired_by = retired_by
        self._safe = {info.id for info in replaced.ranges}
        self._ranges: list[RangeInfo] = []
        # Where it is among the ranges, and its file.
        self._unwritten: list[tuple[int, bytes]] = []
        # A range that ended with its old stream, not in a cut. Only if nothing follows does it go over as it is.
        self._open: RangeInfo | None = None

    async def keep(self, info: RangeInfo) -> None:
        """A range of an old tree, whole."""
        await self._continue_open()
        if not self._cutter.is_between:
            await self._feed(await self._files.entries(info), np.array([info.count - 1]))
        elif self._rule.is_complete(info.max_key, info.count):
            self._ranges.append(info)
        else:
            self._open = info

    async def put(self, entries: pa.Table, fresh: npt.NDArray[np.int64] | None = None) -> None:
        """Entries; `fresh` as of `Cutter.feed`."""
        if entries.num_rows:
            await self._continue_open()
            await self._feed(entries, fresh)

    async def finish(self, unchanged: MetarangeId) -> MetarangeId:
        """The tree's id. Everything it names is durable. Ranges are written before the metarange that names them;
        the metarange `unchanged` is there already."""
        rest = self._cutter.finish()
        if rest is not None:
            self._encode(rest)
        if self._open is not None:
            self._ranges.append(self._open)
        unwritten, self._unwritten = self._unwritten, []
        id_, data = encode_metarange(self._ranges)
        # One look for the last ranges and the metarange together: few trees have more to write.
        ids = [self._ranges[place].id for place, _ in unwritten] + ([id_] if data and id_ != unchanged else [])
        if ids and any(await self._retired_by(ids)):
            await self._write(unwritten)
            id_, data = await self._salted_metarange()
        else:
            await self._files.put([(range_key(self._ranges[place].id), file) for place, file in unwritten])
        if data and id_ != unchanged:
            await self._files.put([(metarange_key(id_), data)])
        return id_

    async def _salted_metarange(self) -> tuple[MetarangeId, bytes]:
        id_, data = encode_metarange(self._ranges)
        while salt := (await self._retired_by([id_]))[0]:
            id_, data = encode_metarange(self._ranges, salt=salt)
        return id_, data

    async def _continue_open(self) -> None:
        info, self._open = self._open, None
        if info is not None:
            await self._feed(await self._files.entries(info), np.empty(0, dtype=np.int64))

    async def _feed(self, entries: pa.Table, fresh: npt.NDArray[np.int64] | None) -> None:
        for piece in self._cutter.feed(entries, fresh):
            self._encode(piece)
            if len(self._unwritten) >= TOGETHER:
                unwritten, self._unwritten = self._unwritten, []
                await self._write(unwritten)

    def _encode(self, piece: pa.Table) -> None:
        info, data = encode_range(piece)
        self._ranges.append(info)
        if info.id not in self._safe:
            self._unwritten.append((len(self._ranges) - 1, data))

    async def _write(self, files: Sequence[tuple[int, bytes]]) -> None:
        """Write each under an id that is not retired."""
        while files:
            salts = await self._retired_by([self._ranges[place].id for place, _ in files])
            free = [file for file, salt in zip(files, salts, strict=True) if not salt]
            await self._files.put([(range_key(self._ranges[place].id), data) for place, data in free])
            files = [self._salted(*file, salt) for file, salt in zip(files, salts, strict=True) if salt]

    def _salted(self, place: int, data: bytes, salt: str) -> tuple[int, bytes]:
        entries = decode_range(self._ranges[place].id, data)
        self._ranges[place], data = encode_range(entries, salt=salt)
        return place, data
