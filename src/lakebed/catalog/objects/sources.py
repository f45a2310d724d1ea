"""The changes of an import: the objects of a location, and entries of an earlier import whose objects were deleted.

A source is a prefix of addresses, as on the contract's server. Paths begin after its last slash: with the source
`s3://b/in/part-`, the object `s3://b/in/part-1` gets the path `part-1` below the destination.

Other programs may write objects under names that our stores cannot read: `a//b`, `a/../b`, `a/` with bytes, a name
with a line break. These are skipped and reported. An empty object whose name ends with a slash only marks a folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from lakebed.base import CommitId, Entry, InvalidName, Row, key_to_path, path_to_key, to_row
from lakebed.catalog.errors import InvalidImport
from lakebed.catalog.namespaces import Namespaces
from lakebed.objectstore import ListsAll, ObjectMissing, ObjectStat, ObjectStore, is_object_key
from lakebed.versions import Versions

EARLIER_PAGE: Final = 5_000

Refuse: TypeAlias = "Callable[[Location, str, str], None]"
"""Called with the location, the path and the full URI of each object. An empty path: the object is skipped. An empty
URI: its entry is removed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A prefix of addresses, or one object; and its folder or path on the branch."""

    source: str
    destination: str
    is_folder: bool

    @property
    def folder(self) -> str:
        """The prefix of paths: empty, or a folder with its slash."""
        return self.destination.rstrip("/") + "/" if self.destination.strip("/") else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """A page in key order. A row of None removes the entry. `left_out` are full URIs."""

    keys: list[bytes]
    rows: list[Row | None]
    objects: int = 0
    left_out: Sequence[str] = ()


class Sources:
    def __init__(self, versions: Versions, namespaces: Namespaces) -> None:
        self._versions = versions
        self._namespaces = namespaces

    async def changes(self, location: Location, onto: CommitId, refuse: Refuse) -> AsyncIterator[Changes]:
        """Yield the changes that make `onto` match the location. An entry that exists already is counted, but not
        yielded.

        Raises:
            InvalidImport: the location has no object that can be imported.
            AddressInNamespace: the location contains a namespace.
        """
        if not location.is_folder:
            yield await self._one(location, refuse)
            return
        objects, is_missing_any = 0, False
        earlier = self._earlier(location, onto)
        before = await anext(earlier, None)
        async for listed in self._listed(location, refuse):
            keys: list[bytes] = []
            rows: list[Row | None] = []
            for key, row in zip(listed.keys, listed.rows, strict=True):
                while before is not None and before[0] < key:
                    refuse(location, key_to_path(before[0]), "")
                    keys.append(before[0])
                    rows.append(None)
                    before = await anext(earlier, None)
                is_there = False
                if before is not None and before[0] == key:
                    is_there = before[1] == row
                    before = await anext(earlier, None)
                if not is_there:
                    keys.append(key)
                    rows.append(row)
            objects += len(listed.keys)
            is_missing_any = is_missing_any or bool(listed.left_out)
            yield Changes(keys=keys, rows=rows, objects=len(listed.keys), left_out=listed.left_out)
        if not objects:
            # An empty source is usually a mistake. Keep the entries of earlier imports.
            words = "no object below it can be imported" if is_missing_any else "no object lies below it"
            raise InvalidImport(f"{location.source}: {words}", path=location.source)
        while before is not None:
            refuse(location, key_to_path(before[0]), "")
            yield Changes(keys=[before[0]], rows=[None])
            before = await anext(earlier, None)

    async def _one(self, location: Location, refuse: Refuse) -> Changes:
        objectstore, key = self._namespaces.locate(location.source)
        try:
            stat = await objectstore.stat(key)
        except ObjectMissing as error:
            raise InvalidImport(f"{location.source}: there is no such object", path=location.source) from error
        refuse(location, location.destination, location.source)
        path = path_to_key(location.destination)
        return Changes(keys=[path], rows=[to_row(path, _entry(location.source, stat))], objects=1)

    async def _listed(self, location: Location, refuse: Refuse) -> AsyncIterator[Changes]:
        objectstore, prefix = self._namespaces.locate(location.source)
        begin, folder = prefix.rfind("/") + 1, location.folder
        async for page in _every(objectstore, prefix):
            self._namespaces.check_listed(objectstore, page)
            keys: list[bytes] = []
            rows: list[Row | None] = []
            left_out: list[str] = []
            for stat in page:
                if not stat.size_bytes and stat.key.endswith("/"):
                    continue
                address, path = f"{objectstore.uri}/{stat.key}", folder + stat.key[begin:]
                key = _key(path) if is_object_key(stat.key) else None
                refuse(location, path if key is not None else "", address)
                if key is None:
                    # Escape a name that is not Unicode: no record could store it.
                    left_out.append(address.encode(errors="backslashreplace").decode())
                else:
                    keys.append(key)
                    rows.append(to_row(key, _entry(address, stat)))
            yield Changes(keys=keys, rows=rows, objects=len(keys), left_out=left_out)

    async def _earlier(self, location: Location, onto: CommitId) -> AsyncIterator[tuple[bytes, Row]]:
        """Yield the entries on `onto` that an import of this location made, in order, and no others.

        Other entries of the branch have another address than this location gives to their path.
        """
        objectstore, prefix = self._namespaces.locate(location.source)
        above, folder, after = prefix[: prefix.rfind("/") + 1], location.folder, b""
        has_more = True
        while has_more:
            page = await self._versions.staging.list_commit(
                onto, prefix=folder.encode(), after=after, limit=EARLIER_PAGE
            )
            for key, row in page.items:
                after = key
                name = above + key_to_path(key)[len(folder) :]
                # Compare the row's full URI: an import names objects outside the namespace by it.
                if row is not None and name.startswith(prefix) and row[3] == f"{objectstore.uri}/{name}":
                    yield key, row
            has_more = page.has_more


def _every(objectstore: ObjectStore, prefix: str) -> AsyncIterator[Sequence[ObjectStat]]:
    return objectstore.list_all(prefix) if isinstance(objectstore, ListsAll) else objectstore.list(prefix)


def _key(path: str) -> bytes | None:
    try:
        return path_to_key(path)
    except InvalidName:
        return None


def _entry(address: str, stat: ObjectStat) -> Entry:
    # Without an ETag from the store, use date and size. Avoid 32 hexadecimal digits, which clients would take for an
    # MD5 of the bytes, and `-N` at the end, which S3 clients read as the number of parts.
    checksum = stat.checksum or f"{stat.modified_ms:x}.{stat.size_bytes:x}"
    return Entry(address=address, size_bytes=stat.size_bytes, checksum=checksum, modified_ms=stat.modified_ms)
