"""Storage namespaces: opening them, telling whether one is in use, and finding bytes that lie outside them.

Two namespaces may not overlap: a collector of the outer one would list what belongs to the inner one. A namespace is in
use from its marker object on, for ever, and so is everything inside it.

The records tell of the repositories that there are here; markers also of deleted ones and of other installations. Those
around a namespace lie under a few names that are known. For those inside it one has to look around, and that has an
end: level by level, LOOKS_MAX requests. Not seen is what lies behind so many, or is made inside at the same moment; a
collector that could take anything of it looks for itself, at every key (gc/planning_old_layout.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lakebed.base import inner_namespace, parse_slice_name
from lakebed.blocks import (
    BlockExists,
    BlockNotFound,
    BlockStat,
    BlockStore,
    BlocksUnavailable,
    InvalidBlockKey,
    InvalidNamespace,
)

from .errors import ForeignAddress, NamespaceInUse
from .records import MARKER_KEY

OpenNamespace = Callable[[str], BlockStore]
"""From a namespace URI to its store. Raises InvalidNamespace."""

LOOKS_MAX: Final = 100
"""How many requests are spent on looking for namespaces inside a new one. One that is empty takes one."""

_BEHIND: Final = "\U0010ffff"
"""Sorts behind every character that a key has."""


class Namespaces:
    """Opens each namespace once."""

    def __init__(self, open_namespace: OpenNamespace) -> None:
        self._open_namespace = open_namespace
        self._opened: dict[str, BlockStore] = {}

    def open(self, uri: str) -> BlockStore:
        """
        Raises:
            InvalidNamespace: malformed, or of a store that this server does not use.
        """
        blocks = self._opened.get(uri)
        if blocks is None:
            blocks = self._opened[uri] = self._open_namespace(uri)
        return blocks

    def locate(self, address: str) -> tuple[BlockStore, str]:
        """Store and key of a full URI, wherever it points.

        Raises:
            ForeignAddress: this server does not open such stores.
        """
        scheme, _, rest = address.partition("://")
        bucket, _, key = rest.partition("/")
        try:
            return self.open(f"{scheme}://{bucket}"), key
        except InvalidNamespace as error:
            raise ForeignAddress(f"cannot open {scheme}://{bucket} here", address=address) from error

    async def mark(self, blocks: BlockStore, marker: str) -> None:
        """Put the marker, once and for all; finding our own marker there is as good.

        Raises:
            NamespaceInUse: another marker is there, or in a namespace around this one, or was found in one inside it.
        """
        for around in _around(blocks.uri):
            try:
                is_marked = await _is_marked(self.open(around))
            except InvalidNamespace:
                continue
            if is_marked:
                raise NamespaceInUse(f"namespace {blocks.uri} lies inside {around}", namespace=around)
        inner = None if await _is_marked(blocks) else await _find_inside(blocks)
        if inner is not None:
            inner = f"{blocks.uri}/{inner}"
            raise NamespaceInUse(f"namespace {blocks.uri} lies around {inner}", namespace=inner)
        try:
            await blocks.put(MARKER_KEY, marker.encode(), if_absent=True)
        except BlockExists as error:
            if await blocks.get(MARKER_KEY) != marker.encode():
                raise NamespaceInUse(f"namespace {blocks.uri} is in use", namespace=blocks.uri) from error

    async def close(self) -> None:
        for blocks in self._opened.values():
            await blocks.close()


def overlap(left: str, right: str) -> bool:
    """Whether two namespace URIs are one, or one lies inside the other."""
    return left == right or left.startswith(right + "/") or right.startswith(left + "/")


def _around(uri: str) -> list[str]:
    """Every namespace URI around this one, innermost first: of `s3://b/x/y` these are `s3://b/x` and `s3://b`."""
    scheme, _, rest = uri.partition("://")
    segments = rest.split("/")
    return [f"{scheme}://{'/'.join(segments[:count])}" for count in range(len(segments) - 1, 0, -1)]


async def _is_marked(blocks: BlockStore, folder: str = "") -> bool:
    """False also where we may not look."""
    try:
        await blocks.stat(folder + MARKER_KEY)
    except (BlockNotFound, BlocksUnavailable, InvalidBlockKey):
        return False
    return True


async def _find_inside(blocks: BlockStore) -> str | None:
    """The folder of a namespace inside this one, if LOOKS_MAX requests find one; outer folders are looked at first."""
    left, folders = LOOKS_MAX, [""]
    for folder in folders:  # It grows meanwhile.
        start_after = ""
        while left > 0 and (page := await _page(blocks, folder, start_after)):
            left -= 1
            for stat in page:
                if (inner := inner_namespace(stat.key)) is not None:
                    return inner
            for child in _folders_of(page, folder)[:left]:
                left -= 1
                if await _is_marked(blocks, child):
                    return child[:-1]
                folders.append(child)
            start_after = _behind(page[-1].key, folder)
    return None


async def _page(blocks: BlockStore, folder: str, start_after: str) -> Sequence[BlockStat]:
    try:
        async for page in blocks.list(folder, start_after=start_after):
            return page
    except BlocksUnavailable:
        pass  # It may be that we may not list; putting the marker tells whether the store is there.
    return ()


def _folders_of(page: Sequence[BlockStat], folder: str) -> list[str]:
    """The folders directly in this one that the page shows, but for `_lakefs/` and slices of the namespace itself."""
    cuts = (stat.key[len(folder) :].partition("/") for stat in page)
    found = dict.fromkeys(name for name, slash, _ in cuts if slash)
    if not folder:
        found.pop("_lakefs", None)
    return [f"{folder}{name}/" for name in found if folder != "data/" or parse_slice_name(name) is None]


def _behind(key: str, folder: str) -> str:
    """Where to go on listing a folder after this key, without what else lies in the folder that it lies in."""
    name, slash, _ = key[len(folder) :].partition("/")
    return f"{folder}{name}/{_BEHIND}" if slash else key
