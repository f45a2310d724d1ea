"""Storage namespaces: open them, check whether one is in use, and find bytes outside them.

Two namespaces may not overlap: the collector of the outer one would list the objects of the inner one. A marker object
makes a namespace permanently used, with everything inside. Records show the repositories of this installation. Markers
also show deleted repositories and other installations. Markers around a namespace have known names. Markers inside it
are searched level by level, with LOOKS_MAX requests. That search misses deeper ones, and those made at the same
moment. Plans of old layouts check every key for them (gc/kinds/uncommitted/old_layout.py). No repository may stage an
address in a namespace: its collector would delete objects that the other repository names, and readers of the other
repository would read objects of this one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from typing import Final

from lakebed.base import Denied, Invalid, Ports, RepositoryUid, Unavailable, in_waves, inner_namespace, parse_slice_name
from lakebed.kv import SCAN_PAGE, Store, scan_pages
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

from .errors import AddressInNamespace, NamespaceInUse, NamespaceNested
from .records import MARKER_KEY

OpenNamespace = Callable[[str], ObjectStore]
"""Open the store of a namespace URI, or raise InvalidNamespace."""

LOOKS_MAX: Final = 100
"""The most requests to search for namespaces inside a new one. An empty one takes one request."""

OPENED_MAX: Final = 500
"""Stores that are kept open: one of a bucket that no other names takes 100 KiB, and callers may name any."""
CLEAR_MAX: Final = 100_000

OLD_MARKER: Final = b"this is dummy data - created by lakeFS to check accessibility"
"""The old server's marker, at the key of ours. In its namespaces Lakebed writes and collects nothing."""

_BEHIND: Final = "\U0010ffff"
"""Sorts after every character of a key."""


async def _none_known() -> Sequence[str]:
    return ()


class Namespaces:
    """Open each namespace once, while no more than OPENED_MAX are in use.

    `known` returns the namespaces of all records. `known_lately` may be a moment old, and costs less. A marker is
    treated as absent only if the store answers so. With `trust_denials`, the operator's choice, a denial is treated so
    too.
    """

    def __init__(
        self,
        open_namespace: OpenNamespace,
        *,
        known: Callable[[], Awaitable[Sequence[str]]] = _none_known,
        known_lately: Callable[[], Awaitable[Collection[str]]] = _none_known,
        trust_denials: bool = False,
    ) -> None:
        self._open_namespace = open_namespace
        self._known = known
        self._known_lately = known_lately
        self._trust_denials = trust_denials
        self._opened: dict[str, ObjectStore] = {}
        self._lately: Collection[str] = ()
        self._clear: set[str] = set()
        # Folders without a marker, checked while `known_lately` returned this very object.

    def open(self, uri: str) -> ObjectStore:
        """Return the store of a namespace.

        Raises:
            InvalidNamespace: the URI is malformed, or of a store that this server does not use.
        """
        objectstore = self._opened.pop(uri, None) or self._open_namespace(uri)
        if len(self._opened) >= OPENED_MAX:
            del self._opened[next(iter(self._opened))]  # The one that was asked for longest ago.
        self._opened[uri] = objectstore
        return objectstore

    def locate(self, address: str) -> tuple[ObjectStore, str]:
        """Return store and key of any full URI. The store's URI has one spelling, so compare that, not the address.

        Raises:
            Invalid: this server does not open such stores.
        """
        try:
            bucket, key = split_address(address)
            return self.open(bucket), key
        except InvalidNamespace as error:
            raise Invalid(f"cannot open what this address names: {error}", address=address) from error

    async def locate_outside(self, address: str, *, own: str) -> tuple[ObjectStore, str]:
        """Return store and key of a full URI that the repository of the namespace `own` may read.

        `check_outside` checked the address when it was staged, perhaps long ago. A namespace that another process made
        around it since is noticed within `record_cache_ms`.

        Raises:
            Denied: a repository's namespace was made around it since.
            Invalid: this server does not open such stores.
        """
        objectstore, key = self.locate(address)
        place = f"{objectstore.uri}/{key}"
        known = await self._known_lately()
        if any(uri in known and uri != own for uri in (place, *around_namespace(place))):
            raise Denied("the object lies in the storage namespace of another repository", address=address)
        return objectstore, key

    async def mark(self, objectstore: ObjectStore, marker: str) -> None:
        """Put the marker, which is permanent. If our own marker exists already, keep it.

        Raises:
            NamespaceInUse: another marker exists.
            NamespaceNested: a namespace around this one has a marker, or one was found inside it.
            Unavailable: the store denies the check for a marker.
        """
        # Check before and after: a store that ignores the condition would let our put replace another marker.
        if not await self._is_taken(objectstore):
            with suppress(ObjectExists):
                await objectstore.put(MARKER_KEY, marker.encode(), if_absent=True)
        if await objectstore.get(MARKER_KEY) != marker.encode():
            raise _in_use(objectstore.uri)

    async def check_free(self, uri: str) -> None:
        """Refuse a namespace that `mark` would refuse, and write nothing.

        Raises:
            InvalidNamespace, NamespaceInUse, NamespaceNested, Unavailable: see `open` and `mark`.
        """
        if await self._is_taken(objectstore := await self._alone(uri)):
            raise _in_use(objectstore.uri)

    async def check_old(self, uri: str) -> None:
        """Refuse a namespace that `take_over` would refuse, because others than the old server use it. Write nothing.

        Raises:
            InvalidNamespace, NamespaceInUse, NamespaceNested, Unavailable: see `open` and `mark`.
        """
        objectstore = await self._alone(uri)
        await self._check_old(objectstore)
        if await read_adoption(objectstore) is not None:
            raise _in_use(objectstore.uri)

    async def _alone(self, uri: str) -> ObjectStore:
        """Open a namespace that meets none of this installation."""
        objectstore = self.open(uri)
        other = first_overlap(objectstore.uri, await self._known())
        if other is not None:
            raise NamespaceInUse(f"namespace {objectstore.uri} meets {other}, which is in use", namespace=other)
        return objectstore

    async def _check_old(self, objectstore: ObjectStore) -> None:
        if await self._is_taken(objectstore):
            if await objectstore.get(MARKER_KEY) != OLD_MARKER:
                raise _in_use(objectstore.uri)
            inner = await self._find_inside(objectstore)
            if inner is not None:
                inner = f"{objectstore.uri}/{inner}"
                raise NamespaceNested(f"namespace {objectstore.uri} lies around {inner}", namespace=inner)

    async def take_over(self, objectstore: ObjectStore, marker: str, server: str) -> None:
        """Claim a namespace of the old server at `server`, and replace that server's marker by ours.

        Two installations may try at once. An existing marker cannot be replaced conditionally, so the first line of
        the adoption's log decides, and only its writer replaces the marker.

        Raises:
            NamespaceInUse: another repository or installation uses it.
            NamespaceNested, Unavailable: see `mark`.
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
        """Return whether the namespace has a marker of any server.

        Raises:
            NamespaceNested: a namespace around this one has a marker, or one was found inside it.
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
        """Return the content of the namespace's marker, or None if it has none.

        Raises:
            Unavailable: the store denies the check for a marker.
        """
        return (await objectstore.get(MARKER_KEY)).decode() if await self._is_marked(objectstore) else None

    async def check_outside(self, address: str, *, is_folder: bool = False) -> None:
        """Refuse an address inside a namespace, and a folder that contains a namespace of this installation.

        A folder is a text, and means all addresses that begin with it.

        Checks every folder around the address. `check_listed` checks the content of a folder. A single address is
        compared with namespaces known a moment ago. For a namespace made since, as for one made after this call, reads
        are refused (`locate_outside`).

        Raises:
            AddressInNamespace: a namespace around it is or was in use, here or by another installation.
            Invalid: this server does not open such stores.
            Unavailable: the store denies the check for a marker.
        """
        objectstore, key = self.locate(address)
        place = f"{objectstore.uri}/{key}"
        known = await (self._known() if is_folder else self._known_lately())
        if known is not self._lately or len(self._clear) > CLEAR_MAX:
            self._lately, self._clear = known, set()
        inside = [uri for uri in (place, *around_namespace(place)) if uri in known]
        if is_folder:
            begin = without_account(place)
            inside += [
                uri for uri in known if overlap(place.rstrip("/"), uri) or f"{without_account(uri)}/".startswith(begin)
            ]
        # Read through the store of the whole bucket, as reads of the object do, instead of opening a store for each
        # folder.
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
            how = "invalid import source: the folder meets" if is_folder else "physical address lies inside"
            raise AddressInNamespace(f"{how} the storage namespace {inside[0]}", address=address, namespace=inside[0])

    def check_listed(self, objectstore: ObjectStore, page: Sequence[ObjectStat]) -> None:
        """Refuse keys of a listing that are inside a storage namespace of any installation.

        Raises:
            AddressInNamespace: a key is inside one.
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
        """Return whether a marker exists. `is_ours`: ignore the old server's marker, but no other content."""
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
        """Return the folder of a namespace inside this one, or None. Spends LOOKS_MAX requests, outer folders
        first.
        """
        left, folders = LOOKS_MAX, [""]
        for folder in folders:  # The loop appends to it.
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
            raise Unavailable(
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
    """Return True if two namespace URIs are equal, or one is inside the other. Ignores Azure accounts."""
    return first_overlap(left, [right]) is not None


def first_overlap(uri: str, others: Sequence[str]) -> str | None:
    """Return the first of the others that overlaps with this one, or None."""
    uri = without_account(uri)
    scheme, around, inside = uri[: uri.find("://") + 3], {uri, *around_namespace(uri)}, uri + "/"
    # Usually there is none. Searching one text takes a fortieth of the time of a check of each.
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
    """Return the direct subfolders in the page, except `_lakefs/` and the namespace's own slices."""
    cuts = (stat.key[len(folder) :].partition("/") for stat in page)
    found = dict.fromkeys(name for name, slash, _ in cuts if slash)
    if not folder:
        found.pop("_lakefs", None)
    return [f"{folder}{name}/" for name in found if folder != "data/" or parse_slice_name(name) is None]


def _behind(key: str, folder: str) -> str:
    """Return the key after which to continue a listing of `folder`, past the whole subfolder of this key."""
    name, slash, _ = key[len(folder) :].partition("/")
    return f"{folder}{name}/{_BEHIND}" if slash else key


NAMESPACES: Final = b"namespaces"
CHECKED_MS: Final = 600_000
PLACE_BYTES_MAX: Final = 900
"""A longer place is cut, and may match additional notes. With a uid added, a key has at most 1,024 bytes."""


class Places:
    """An index of namespaces by place, to compare a new one only with those around and inside it.

        namespaces / <place>/ NUL <uid>    empty: the repository of this uid has, or had, its namespace at this place

    A maker writes its note after its record and before its check, so of two made at once at least one sees the other.
    If there are notes, the records decide. So an extra note costs a check, and a missing one would let two namespaces
    overlap. A note is missing only if a server of an earlier release made the repository, or the store was restored
    from a backup without notes. So a process compares the index with all records at its first creation, and again after
    `CHECKED_MS`. A missing note is noticed after that time at most.

    `checked_ms`: when this process last began to compare the notes with all records, or None if never.
    """

    def __init__(self, store: Store, ports: Ports) -> None:
        self._store = store
        self._clock = ports.clock
        self._tasks = ports.tasks
        self.checked_ms: int | None = None

    @property
    def has_every(self) -> bool:
        """Return whether the notes were recently compared with all records."""
        return self.checked_ms is not None and 0 <= self._clock.now_ms() - self.checked_ms < CHECKED_MS

    async def note(self, uri: str, uid: RepositoryUid) -> None:
        await self._store.set(NAMESPACES, _key(uri, uid), b"")

    async def forget(self, uri: str, uid: RepositoryUid) -> None:
        """Remove a note. Call it only after the end of the repository, or of the attempt to make it."""
        await self._store.delete(NAMESPACES, _key(uri, uid))

    async def near(self, uri: str, uid: RepositoryUid) -> Set[bytes]:
        """Return some notes of other repositories at this place, inside or around it.

        Costs a scan of two keys, and one of one key for each folder around the place, all at once.
        """
        around = [_place(folder) + b"\0" for folder in around_namespace(without_account(uri))]
        looks = [(_place(uri), 2), *((prefix, 1) for prefix in around)]
        found = await in_waves(self._tasks, looks, lambda look: self._begin_with(*look))
        return set().union(*found) - {_key(uri, uid)}

    async def every(self) -> Set[bytes]:
        found: set[bytes] = set()
        async for notes, _ in scan_pages(self._store, NAMESPACES, b"", first=SCAN_PAGE):
            found.update(notes)
        return found

    async def mend(
        self, notes: Set[bytes], known: Mapping[RepositoryUid, str | None], *, checked_ms: int | None
    ) -> None:
        """Remove the notes that have no record. With `checked_ms`, `notes` are all notes at that time: add missing
        ones.

        `known` has the namespace of every record, if the record states it. It was read after the notes, and a note is
        written after its record. So a note without a record belongs to a repository that ended.
        """
        over = [note for note in notes if RepositoryUid(note.rpartition(b"\0")[2].decode()) not in known]
        await self._store.delete_many(NAMESPACES, over)
        if checked_ms is not None:
            wanted = {_key(uri, uid) for uid, uri in known.items() if uri is not None}
            await self._store.set_many(NAMESPACES, [(note, b"") for note in sorted(wanted - notes)])
            self.checked_ms = checked_ms

    async def _begin_with(self, prefix: bytes, limit: int) -> set[bytes]:
        page = await self._store.scan(NAMESPACES, prefix, limit)
        return {note for note in page.keys if note.startswith(prefix)}


def around_namespace(uri: str) -> list[str]:
    """List every namespace URI around this one, innermost first: `s3://b/x`, then `s3://b` for `s3://b/x/y`."""
    scheme, _, rest = uri.partition("://")
    segments = rest.split("/")
    return [f"{scheme}://{'/'.join(segments[:count])}" for count in range(len(segments) - 1, 0, -1)]


def _key(uri: str, uid: RepositoryUid) -> bytes:
    return _place(uri) + b"\0" + uid.encode()


def _place(uri: str) -> bytes:
    return f"{without_account(uri)}/".encode()[:PLACE_BYTES_MAX]
