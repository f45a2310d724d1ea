"""Storage namespaces: opening them, telling whether one is in use, and finding bytes that lie outside them.

Two namespaces may not overlap: a collector of the outer one would list what belongs to the inner one. A namespace is in
use from its marker object on, for ever, and so is everything inside it.

The records tell of the repositories that there are here; markers also of deleted ones and of other installations. Those
around a namespace lie under a few names that are known. For those inside it one has to look around, and that has an
end: level by level, LOOKS_MAX requests. Not seen is what lies behind so many, or is made inside at the same moment; a
collector that could take anything of it looks for itself, at every key (gc/kinds/old_layout.py).

For the same reason nobody stages an address that lies in a namespace: its collector would take what another repository
names, and whoever may read that repository would read this one.

A marker is absent when the store says so. Whatever else it says is an error; a refusal is one too, unless whoever runs
the server chose that what it may not see is not there (`trust_denials`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from lakebed.base import inner_namespace, is_inside, parse_slice_name
from lakebed.objectstore import (
    InvalidNamespace,
    InvalidObjectKey,
    ObjectExists,
    ObjectMissing,
    ObjectStat,
    ObjectStore,
    ObjectStoreDenied,
)

from .errors import AddressInNamespace, ForeignAddress, NamespaceInUse, NamespaceUnclear
from .records import MARKER_KEY

OpenNamespace = Callable[[str], ObjectStore]
"""From a namespace URI to its store. Raises InvalidNamespace."""

LOOKS_MAX: Final = 100
"""How many requests are spent on looking for namespaces inside a new one. One that is empty takes one."""

_BEHIND: Final = "\U0010ffff"
"""Sorts behind every character that a key has."""


async def _none_known() -> Sequence[str]:
    return ()


class Namespaces:
    """Opens each namespace once.

    `known` are the namespaces that records tell of; `trust_denials`: where we may not look, there is no marker.
    """

    def __init__(
        self,
        open_namespace: OpenNamespace,
        *,
        known: Callable[[], Awaitable[Sequence[str]]] = _none_known,
        trust_denials: bool = False,
    ) -> None:
        self._open_namespace = open_namespace
        self._known = known
        self._trust_denials = trust_denials
        self._opened: dict[str, ObjectStore] = {}

    def open(self, uri: str) -> ObjectStore:
        """
        Raises:
            InvalidNamespace: malformed, or of a store that this server does not use.
        """
        objectstore = self._opened.get(uri)
        if objectstore is None:
            objectstore = self._opened[uri] = self._open_namespace(uri)
        return objectstore

    def locate(self, address: str) -> tuple[ObjectStore, str]:
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

    async def mark(self, objectstore: ObjectStore, marker: str) -> None:
        """Put the marker, once and for all; finding our own marker there is as good.

        Raises:
            NamespaceInUse: another marker is there, or in a namespace around this one, or was found in one inside it.
            NamespaceUnclear: we may not look.
        """
        for around in _around(objectstore.uri):
            try:
                outer = self.open(around)
            except InvalidNamespace:
                continue
            if await self._is_marked(outer):
                raise NamespaceInUse(f"namespace {objectstore.uri} lies inside {around}", namespace=around)
        # Looked at before and after: a store that reads past the condition would take the put, whoever was there.
        if not await self._is_marked(objectstore):
            inner = await self._find_inside(objectstore)
            if inner is not None:
                inner = f"{objectstore.uri}/{inner}"
                raise NamespaceInUse(f"namespace {objectstore.uri} lies around {inner}", namespace=inner)
            with suppress(ObjectExists):
                await objectstore.put(MARKER_KEY, marker.encode(), if_absent=True)
        if await objectstore.get(MARKER_KEY) != marker.encode():
            raise NamespaceInUse(f"namespace {objectstore.uri} is in use", namespace=objectstore.uri)

    async def check_outside(self, address: str) -> None:
        """One look for each folder around the address, at once.

        Raises:
            AddressInNamespace: it lies in a namespace that is or was in use, here or by another installation.
            ForeignAddress: this server does not open such stores.
            NamespaceUnclear: we may not look.
        """
        objectstore, key = self.locate(address)
        inside = [uri for uri in await self._known() if is_inside(f"{objectstore.uri}/{key}", uri)]
        # Read through the store of the whole bucket, as the object will be: nothing is opened for each folder.
        folders = ["", *(key[: at + 1] for at, letter in enumerate(key) if letter == "/")]
        for folder in folders:
            if not inside and await self._is_marked(objectstore, folder):
                inside.append(f"{objectstore.uri}/{folder}".rstrip("/"))
        if inside:
            raise AddressInNamespace(
                f"physical address lies inside the storage namespace {inside[0]}", address=address, namespace=inside[0]
            )

    async def _is_marked(self, objectstore: ObjectStore, folder: str = "") -> bool:
        try:
            await objectstore.stat(folder + MARKER_KEY)
        except (ObjectMissing, InvalidObjectKey):
            return False
        except ObjectStoreDenied as error:
            self._check_trusted(f"{objectstore.uri}/{folder}{MARKER_KEY}", "read", error)
            return False
        return True

    async def _find_inside(self, objectstore: ObjectStore) -> str | None:
        """The folder of a namespace inside this one, if LOOKS_MAX requests find one; outer folders are looked at
        first."""
        left, folders = LOOKS_MAX, [""]
        for folder in folders:  # It grows meanwhile.
            start_after = ""
            while left > 0 and (page := await self._page(objectstore, folder, start_after)):
                left -= 1
                for stat in page:
                    if (inner := inner_namespace(stat.key)) is not None:
                        return inner
                for child in _folders_of(page, folder)[:left]:
                    left -= 1
                    if await self._is_marked(objectstore, child):
                        return child[:-1]
                    folders.append(child)
                start_after = _behind(page[-1].key, folder)
        return None

    async def _page(self, objectstore: ObjectStore, folder: str, start_after: str) -> Sequence[ObjectStat]:
        try:
            async for page in objectstore.list(folder, start_after=start_after):
                return page
        except ObjectStoreDenied as error:
            self._check_trusted(f"{objectstore.uri}/{folder}", "list", error)
        return ()

    def _check_trusted(self, place: str, verb: str, error: ObjectStoreDenied) -> None:
        if not self._trust_denials:
            raise NamespaceUnclear(
                f"whether a repository lies there cannot be told, for the object store does not let the server {verb}"
                f" {place}: allow it, and listing the bucket, without which S3 refuses what is missing; or, if no other"
                " installation uses this place, set LAKEBED_TRUST_DENIALS=1",
                namespace=place,
            ) from error

    async def close(self) -> None:
        for objectstore in self._opened.values():
            await objectstore.close()


def overlap(left: str, right: str) -> bool:
    """Whether two namespace URIs are one, or one lies inside the other."""
    return left == right or left.startswith(right + "/") or right.startswith(left + "/")


def _around(uri: str) -> list[str]:
    """Every namespace URI around this one, innermost first: of `s3://b/x/y` these are `s3://b/x` and `s3://b`."""
    scheme, _, rest = uri.partition("://")
    segments = rest.split("/")
    return [f"{scheme}://{'/'.join(segments[:count])}" for count in range(len(segments) - 1, 0, -1)]


def _folders_of(page: Sequence[ObjectStat], folder: str) -> list[str]:
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
