"""Find the full URIs inside a deleted repository's namespace that other repositories of the installation name.

No address can be staged inside a namespace after its marker is written. So such names are older than the repository,
and not in its slices. Collections check all the same: an object that another repository names must stay.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lakebed.base import FOREIGN_SLICE, ROW_FIELDS, MetarangeId, RangeId, StagingToken, Tasks, is_absolute
from lakebed.gc.live.options import ServiceOptions
from lakebed.kv import Page
from lakebed.ranges import MetarangeCorrupt, RangeCorrupt
from lakebed.versions import TOMBSTONE, Commit, Versions, cell_columns

from .commits import read_snapshot
from .inputs import Address, texts
from .naming import Search, Work
from .reading import Cursor, Phase, Reading

__all__ = ["Elsewhere", "NamedElsewhere"]

Others: TypeAlias = Callable[[], Awaitable[Sequence[tuple[str, Versions]]]]
"""Return the other repositories by name."""

_SLICE, _ADDRESS = (1 + ROW_FIELDS.index(name) for name in ("slice", "address"))


@dataclass(frozen=True, slots=True)
class NamedElsewhere:
    """Hold the full URIs that may be in the namespace, each with a repository that names it."""

    names: Mapping[str, str]


class Elsewhere:
    """Search the other repositories. `uri` is the namespace of the deleted repository."""

    def __init__(self, uri: str, others: Others, options: ServiceOptions) -> None:
        self._uri = uri
        self._others = others
        self._options = options

    async def steps(self) -> AsyncGenerator[Work | NamedElsewhere, None]:
        """Yield the work of each step, then the names.

        Raises:
            Corrupt: a tree of another repository is missing or altered.
        """
        names: dict[str, str] = {}
        for name, versions in await self._others():
            mine = _Inside(self._uri)
            async for work in self._read(versions, mine):
                yield work
            names |= dict.fromkeys(mine.found, name)
        yield NamedElsewhere(names)

    async def _read(self, versions: Versions, mine: _Inside) -> AsyncIterator[Work]:
        # In the order of every collection (reading.py): staging, uploads and copies, then every commit, including swept
        # commits while their trees exist. So a name that moves meanwhile is seen before or after.
        reading, cursor = Reading(versions, self._options), Cursor(name="")
        while cursor.phase is not Phase.DONE:
            cursor = await reading.step(cursor, mine)
            yield Work(1, 0)
        snapshot = await read_snapshot(versions)
        there = texts(snapshot.commits.column("metarange_id").filter(snapshot.there())).to_pylist()
        search, addresses, looked = Search(versions), dict[str, None](), set[RangeId]()
        trees = [MetarangeId(id_) for id_ in sorted(set(there)) if id_]
        async for work in search.foreign(trees, addresses, looked):
            yield work
        async for id_ in self._swept(versions, frozenset(trees)):
            try:
                async for work in search.foreign([id_], addresses, looked):
                    yield work
            except (MetarangeCorrupt, RangeCorrupt):
                # A collection of metadata deleted this tree, so it names no object any more.
                continue
        mine.take(addresses)

    async def _swept(self, versions: Versions, there: frozenset[MetarangeId]) -> AsyncIterator[MetarangeId]:
        looked = set(there)
        async for page in versions.inventory.pages(Commit):
            for commit in page.records:
                if commit.metarange_id and commit.metarange_id not in looked:
                    looked.add(commit.metarange_id)
                    yield commit.metarange_id


class _Inside:
    """Collect those addresses of a reading that may be full URIs in the namespace."""

    def __init__(self, uri: str) -> None:
        # Every spelling of a URI, also by other tools, contains the bucket and the path. Doubt means keep.
        self._parts = [part for part in uri.partition("://")[2].partition("/")[::2] if part]
        self.found: dict[str, None] = {}

    def add(self, address: Address, *, source: str, branch: str) -> None:
        del source, branch
        if address.slice_ == FOREIGN_SLICE:
            self.take((address.foreign,))

    def add_cells(self, page: Page, *, branch: str, token: StagingToken, namespace: str) -> None:
        del branch, token, namespace
        if page.values:
            columns = cell_columns(page.values)
            rows = zip(columns[0], columns[_SLICE], columns[_ADDRESS], strict=True)
            self.take(text for flags, slice_, text in rows if slice_ == FOREIGN_SLICE and not flags & TOMBSTONE)

    async def settle(self, tasks: Tasks) -> None:
        """Do nothing: it writes nothing."""

    def take(self, addresses: Iterable[str]) -> None:
        for text in addresses:
            if is_absolute(text) and all(part in text for part in self._parts):
                self.found[text] = None
