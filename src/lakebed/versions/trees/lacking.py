"""Find the files of trees that are not there: one listing of all files, and a read of every tree, by the step."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Final

from lakebed.base import MetarangeId, Ports
from lakebed.objectstore import ObjectStore
from lakebed.ranges import metarange_key, range_key, sublist_key

from . import Trees

TOGETHER: Final = 16
_KEYS_A_FILE: Final = 100  # Listing these costs about as much as reading a file.
_FOLDERS: Final = ("_lakefs/metaranges/", "_lakefs/sublists/", "_lakefs/ranges/")


class LackingFiles:
    """`lost` has for each tree that lacks files their keys and ids; `files`, the ids of all files of whole trees."""

    def __init__(self, objectstore: ObjectStore, trees: Trees, ports: Ports) -> None:
        self._objectstore = objectstore
        self._trees = trees
        self._ports = ports
        self.lost: dict[MetarangeId, Mapping[str, str]] = {}
        self.files: set[str] = set()

    async def look(self, wanted: Iterable[MetarangeId]) -> AsyncGenerator[int, None]:
        """Look at these trees. Yield how many files were read since the last step; a listing counts by its keys.

        Raises:
            MetarangeCorrupt, SublistCorrupt: a file is there, and short or altered.
        """
        there: set[str] = set()
        for prefix in _FOLDERS:
            async for page in self._objectstore.list(prefix):
                there.update(stat.key for stat in page)
                yield max(1, len(page) // _KEYS_A_FILE)
        whole = []
        for tree in wanted:
            if (key := metarange_key(tree)) in there:
                whole.append(tree)
            else:
                self.lost[tree] = {key: tree}

        async def read(tree: MetarangeId) -> dict[str, str]:
            lists = {sublist_key(info.id): str(info.id) for info in await self._trees.sublists(tree)}
            if lost := {key: id_ for key, id_ in lists.items() if key not in there}:
                return lost  # Without them the ranges cannot be read.
            ranges = {range_key(info.id): str(info.id) for info in await self._trees.ranges(tree)}
            if lost := {key: id_ for key, id_ in ranges.items() if key not in there}:
                return lost
            self.files.update((tree, *lists.values(), *ranges.values()))
            return {}

        async for tree, lost in self._ports.tasks.ahead(whole, read, most=TOGETHER):
            if lost:
                self.lost[tree] = lost
            yield 1
