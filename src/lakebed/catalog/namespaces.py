"""Storage namespaces: open them, find out whether one is in use, and find bytes that lie outside them.

Two namespaces may not overlap: the collector of the outer one would list the objects of the inner one. A namespace is
in use for ever from its marker object on, and so is everything inside it. Records know the repositories of this
installation; markers also show deleted repositories and other installations.
Markers around a namespace have known names. Markers inside it are searched level by level, with LOOKS_MAX requests.
That search misses deeper ones, and those made at the same moment. Plans of old layouts check every key for them
(gc/kinds/uncommitted/old_layout.py).
No repository may stage an address in a namespace: its collector would delete what the other repository names, and
readers of the other repository would read this one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from lakebed.base import inner_namespace, is_inside, parse_slice_name
from lakebed.objectstore import (
    Adoption,
    AdoptionMoved,
    AdoptionState,
    InvalidNamespace,
    InvalidObjectKey,
    ObjectExists,
    ObjectMissing,
    ObjectStat,
    ObjectStore,
    ObjectStoreDenied,
    read_adoption,
    split_address,
    without_account,
    write_adoption,
)

from .errors import (
    AddressInNamespace,
    BytesInNamespace,
    ForeignAddress,
    NamespaceInUse,
    NamespaceNested,
    NamespaceUnclear,
)
from .places import around_namespace
from .records import MARKER_KEY

OpenNamespace = Callable[[str], ObjectStore]
"""Open the store of a namespace URI, or raise InvalidNamespace."""

LOOKS_MAX: Final = 100
"""Spend at most this many requests on the search for namespaces inside a new one. An empty one takes one request."""

OLD_MARKER: Final = b"this is dummy data - created by lakeFS to check accessibility"
"""The server that users come from puts this where our marker lies. There nothing of ours writes or collects."""

_BEHIND: Final = "\U0010ffff"
"""Sort behind every character that a key has."""


async def _none_known() -> Sequence[str]:
    return []


class Namespaces:
    """Open each namespace once.

    `known` returns the namespaces of all records; `known_lately` may be a moment behind, and costs less. A marker is
    absent only where the store answers that it is. With `trust_denials` a refusal counts as absent too; the operator
    chooses that.
    """

    def __init__(
        self,
        open_namespace: OpenNamespace,
        *,
        known: Callable[[], Awaitable[Sequence[str]]] = _none_known,
        known_lately: Callable[[], Awaitable[Sequence[str]]] = _none_known,
        trust_denials: bool = False,
    ) -> None:
        self._open_namespace = open_namespace
        self._known = known
        self._known_lately = known_lately
        self._trust_denials = trust_denials
        self._opened: dict[str, ObjectStore] = {}
        self._lately: Sequence[str] = ()
        self._clear: set[str] = set()
        # Folders that no marker was in, found while `known_lately` returned this very list.

    def open(self, uri: str) -> ObjectStore:
        """Return the store of a namespace.

        Raises:
            InvalidNamespace: malformed, or of a store that this server does not use.
        """
        objectstore = self._opened.get(uri)
        if objectstore is None:
            objectstore = self._opened[uri] = self._open_namespace(uri)
        return objectstore

    def locate(self, address: str) -> tuple[ObjectStore, str]:
        """Return store and key of any full URI. The store's URI has one spelling, so compare that, not the address.

        Raises:
            ForeignAddress: this server does not open such stores.
        """
        try:
            bucket, key = split_address(address)
            return self.open(bucket), key
        except InvalidNamespace as error:
            raise ForeignAddress(f"cannot open what this address names: {error}", address=address) from error

    async def locate_outside(self, address: str, *, own: str) -> tuple[ObjectStore, str]:
        """Return store and key of a full URI that the repository of the namespace `own` may read.

        `check_outside` let it be staged, perhaps long ago. A namespace that was made around it since, in another
        process, counts within `record_cache_ms`.

        Raises:
            BytesInNamespace: a repository's namespace was made around it since.
            ForeignAddress: this server does not open such stores.
        """
        objectstore, key = self.locate(address)
        place = f"{objectstore.uri}/{key}"
        if any(uri != own and is_inside(place, uri) for uri in await self._known_lately()):
            raise BytesInNamespace("the object lies in the storage namespace of another repository", address=address)
        return objectstore, key

    async def mark(self, objectstore: ObjectStore, marker: str) -> None:
        """Put the marker, which stays for ever. A marker of our own that is there already is kept.

        Raises:
            NamespaceInUse: another marker is there.
            NamespaceNested: one is in a namespace around this one, or was found in one inside it.
            NamespaceUnclear: the store refuses to show whether one is there.
        """
        # Look before and after: a store that ignores the condition would let our put replace another marker.
        if not await self._is_taken(objectstore):
            with suppress(ObjectExists):
                await objectstore.put(MARKER_KEY, marker.encode(), if_absent=True)
        if await objectstore.get(MARKER_KEY) != marker.encode():
            raise _in_use(objectstore.uri)

    async def check_free(self, uri: str) -> None:
        """Refuse a namespace that `mark` would refuse, and write nothing.

        Raises:
            InvalidNamespace, NamespaceInUse, NamespaceNested, NamespaceUnclear.
        """
        objectstore = self.open(uri)
        other = first_overlap(objectstore.uri, await self._known())
        if other is not None:
            raise NamespaceInUse(f"namespace {objectstore.uri} meets {other}, which is in use", namespace=other)
        if await self._is_taken(objectstore):
            raise _in_use(objectstore.uri)

    async def check_old(self, uri: str) -> None:
        """Refuse a namespace that is not the old server's alone: `take_over` would. Writes nothing.

        Raises:
            InvalidNamespace, NamespaceInUse, NamespaceNested, NamespaceUnclear.
        """
        objectstore = self.open(uri)
        other = first_overlap(objectstore.uri, await self._known())
        if other is not None:
            raise NamespaceInUse(f"namespace {objectstore.uri} meets {other}, which is in use", namespace=other)
        await self._check_old(objectstore)
        if await read_adoption(objectstore) is not None:
            raise _in_use(objectstore.uri)

    async def _check_old(self, objectstore: ObjectStore) -> None:
        if await self._is_taken(objectstore):
            if await objectstore.get(MARKER_KEY) != OLD_MARKER:
                raise _in_use(objectstore.uri)
            inner = await self._find_inside(objectstore)
            if inner is not None:
                inner = f"{objectstore.uri}/{inner}"
                raise NamespaceNested(f"namespace {objectstore.uri} lies around {inner}", namespace=inner)

    async def take_over(self, objectstore: ObjectStore, marker: str, server: str) -> None:
        """Claim a namespace of the old server at `server`, and put our marker in the place of that server's.

        Two installations may try at once: a marker that is there cannot be replaced on a condition, so the first line
        of the adoption's log decides, and only who wrote it replaces the marker.

        Raises:
            NamespaceInUse: another repository or installation has it.
            NamespaceNested, NamespaceUnclear: see `mark`.
        """
        claim = await read_adoption(objectstore)
        if claim is None:
            await self._check_old(objectstore)
            line = Adoption(marker=marker, state=AdoptionState.KEPT, server=server)
            with suppress(AdoptionMoved):
                await write_adoption(objectstore, line, after=None)
            claim = await read_adoption(objectstore)
        if claim is None or claim.marker != marker:
            raise _in_use(objectstore.uri)
        if await self._is_marked(objectstore) and await objectstore.get(MARKER_KEY) == OLD_MARKER:
            await objectstore.put(MARKER_KEY, marker.encode())

    async def _is_taken(self, objectstore: ObjectStore) -> bool:
        """Return whether a marker is there, of whatever server.

        Raises:
            NamespaceNested: one is in a namespace around this one, or was found in one inside it.
        """
        for around in around_namespace(objectstore.uri):
            try:
                outer = self.open(around)
            except InvalidNamespace:
                continue
            if await self._is_marked(outer):
                raise NamespaceNested(f"namespace {objectstore.uri} lies inside {around}", namespace=around)
        if await self._is_marked(objectstore):
            return True
        inner = await self._find_inside(objectstore)
        if inner is not None:
            inner = f"{objectstore.uri}/{inner}"
            raise NamespaceNested(f"namespace {objectstore.uri} lies around {inner}", namespace=inner)
        return False

    async def read_marker(self, objectstore: ObjectStore) -> str | None:
        """Return the content of the namespace's marker; None where none is there.

        Raises:
            NamespaceUnclear: the store refuses to show whether one is there.
        """
        return (await objectstore.get(MARKER_KEY)).decode() if await self._is_marked(objectstore) else None

    async def check_outside(self, address: str, *, is_folder: bool = False) -> None:
        """Refuse an address that lies in a namespace, or a folder that lies around one of this installation.

        A folder is a text: all addresses that begin with it are meant.

        Looks at every folder around the address. `check_listed` finds what lies inside a folder. A single address is
        held against what was known a moment ago: a namespace made since is as one made after this call, and reads
        are refused then (`locate_outside`).

        Raises:
            AddressInNamespace: it lies in a namespace that is or was in use, here or by another installation.
            ForeignAddress: this server does not open such stores.
            NamespaceUnclear: the store refuses to show whether a marker is there.
        """
        objectstore, key = self.locate(address)
        place = f"{objectstore.uri}/{key}"
        known = await (self._known() if is_folder else self._known_lately())
        if known is not self._lately:
            self._lately, self._clear = known, set()
        begin = without_account(place)
        inside = [
            uri
            for uri in known
            if is_inside(place, uri)
            or (is_folder and (overlap(place.rstrip("/"), uri) or f"{without_account(uri)}/".startswith(begin)))
        ]
        # Read through the store of the whole bucket, as reads of the object will: no store is opened for each folder.
        folders = ["", *(key[: at + 1] for at, letter in enumerate(key) if letter == "/")]
        for folder in folders:
            uri = f"{objectstore.uri}/{folder}"
            if inside or uri in self._clear:
                continue
            if await self._is_marked(objectstore, folder, is_ours=True):
                inside.append(uri.rstrip("/"))
            elif known is self._lately:
                self._clear.add(uri)
        if inside:
            how = "the folder meets" if is_folder else "physical address lies inside"
            raise AddressInNamespace(f"{how} the storage namespace {inside[0]}", address=address, namespace=inside[0])

    def check_listed(self, objectstore: ObjectStore, page: Sequence[ObjectStat]) -> None:
        """Refuse keys of a listing that lie in a storage namespace of any installation.

        Raises:
            AddressInNamespace: one does.
        """
        for stat in page:
            inner = "" if stat.key == MARKER_KEY else inner_namespace(stat.key)
            if inner is not None:
                namespace = f"{objectstore.uri}/{inner}".rstrip("/")
                raise AddressInNamespace(
                    f"{objectstore.uri}/{stat.key} lies inside the storage namespace {namespace}",
                    address=f"{objectstore.uri}/{stat.key}",
                    namespace=namespace,
                )

    async def _is_marked(self, objectstore: ObjectStore, folder: str = "", *, is_ours: bool = False) -> bool:
        """Return whether a marker is there. `is_ours`: pass over the old server's, and over no other content."""
        try:
            stat = await objectstore.stat(folder + MARKER_KEY)
            if is_ours and stat.size_bytes == len(OLD_MARKER):
                return await objectstore.get(folder + MARKER_KEY) != OLD_MARKER
        except (ObjectMissing, InvalidObjectKey):
            return False
        except ObjectStoreDenied as error:
            self._check_trusted(f"{objectstore.uri}/{folder}{MARKER_KEY}", "read", error)
            return False
        return True

    async def _find_inside(self, objectstore: ObjectStore) -> str | None:
        """Return the folder of a namespace inside this one, or None. Spends LOOKS_MAX requests, outer folders first."""
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
                f"cannot find out whether a repository lies there: the object store does not let the server {verb}"
                f" {place}. Allow it, and listing the bucket too, because S3 otherwise refuses what is missing. Or set"
                " LAKEBED_TRUST_DENIALS=1, if no other installation uses this place",
                namespace=place,
            ) from error

    async def close(self) -> None:
        for objectstore in self._opened.values():
            await objectstore.close()


def _in_use(uri: str) -> NamespaceInUse:
    return NamespaceInUse(f"namespace {uri} is in use", namespace=uri)


def overlap(left: str, right: str) -> bool:
    """Return True where two namespace URIs are equal, or one lies inside the other. Accounts of Azure count as one."""
    return first_overlap(left, [right]) is not None


def first_overlap(uri: str, others: Sequence[str]) -> str | None:
    """Return the first of the others that overlaps with this one, or None."""
    uri = without_account(uri)
    scheme, around, inside = uri[: uri.find("://") + 3], {uri, *around_namespace(uri)}, uri + "/"
    # Nearly always none does. One text is searched in a fortieth of the time that a look at each takes.
    text = "\n".join(("", *others, ""))
    is_plain = "\n" not in uri and text.count("\n") - 1 == len(others) == text.count(f"\n{scheme}")
    if is_plain and f"\n{inside}" not in text and not any(f"\n{one}\n" in text for one in around):
        return None
    for other in others:
        plain = other if other.startswith(scheme) else without_account(other)
        if plain in around or plain.startswith(inside):
            return other
    return None


def _folders_of(page: Sequence[ObjectStat], folder: str) -> list[str]:
    """List the folders directly in this one that the page shows, except `_lakefs/` and the namespace's own slices."""
    cuts = (stat.key[len(folder) :].partition("/") for stat in page)
    found = dict.fromkeys(name for name, slash, _ in cuts if slash)
    if not folder:
        found.pop("_lakefs", None)
    return [f"{folder}{name}/" for name in found if folder != "data/" or parse_slice_name(name) is None]


def _behind(key: str, folder: str) -> str:
    """Return the place to continue a listing of `folder` from, past the whole subfolder that this key lies in."""
    name, slash, _ = key[len(folder) :].partition("/")
    return f"{folder}{name}/{_BEHIND}" if slash else key
