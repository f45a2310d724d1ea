"""Storage namespaces: opening them, telling whether one is in use, and finding bytes that lie outside them.

Two namespaces may not overlap: a collector of the outer one would list what belongs to the inner one. A namespace is in
use from its marker object on, for ever, and so is everything inside it.
"""

from __future__ import annotations

from collections.abc import Callable

from lakebed.blocks import BlockExists, BlockNotFound, BlockStore, BlocksUnavailable, InvalidNamespace

from .errors import ForeignAddress, NamespaceInUse
from .records import MARKER_KEY

OpenNamespace = Callable[[str], BlockStore]
"""From a namespace URI to its store. Raises InvalidNamespace."""


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
            NamespaceInUse: another marker is there, or in a namespace around this one.
        """
        for around in _around(blocks.uri):
            try:
                await self.open(around).stat(MARKER_KEY)
            except (BlockNotFound, BlocksUnavailable, InvalidNamespace):
                continue  # Nothing there, or nothing that we may look at; the records were checked before.
            raise NamespaceInUse(f"namespace {blocks.uri} lies inside {around}", namespace=around)
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
