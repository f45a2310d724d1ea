"""The ObjectStore port: immutable bytes by key, inside one storage namespace.

An instance is rooted at a namespace (`local://bucket/path`, `mem://name`, `s3://bucket/prefix`): its keys are relative
to it and cannot name anything outside. No object is overwritten in place: a put of an existing key replaces the whole
object or, with `if_absent`, fails. A put that returned is durable; a put that failed left nothing under the key. Bodies
stream both ways, so no object has to fit into memory.

A store cannot delete. The right to delete is a port of its own, `Deleter`: a composition root opens it and passes it to
the sweep. The type checker refuses a deletion everywhere else, and a tidy test lists the users of a `Deleter`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, overload, runtime_checkable

import msgspec

from lakebed.base import AlreadyExists, Corrupt, Invalid, NotFound, OutcomeUnknown, Unavailable

__all__ = [
    "CHUNK_BYTES",
    "Body",
    "BucketMissing",
    "CopiesRanges",
    "DeleteFailure",
    "Deleter",
    "InvalidNamespace",
    "InvalidObjectKey",
    "Level",
    "ListsAll",
    "ObjectCorrupt",
    "ObjectExists",
    "ObjectMissing",
    "ObjectOutcomeUnknown",
    "ObjectStat",
    "ObjectStore",
    "ObjectStoreDenied",
    "ObjectStoreUnavailable",
    "Page",
    "ShortBody",
    "Stored",
    "UnlistableKey",
    "store_clock_ms",
]


Body: TypeAlias = bytes | AsyncIterable[bytes]

CHUNK_BYTES: int = 1 << 20
"""About this much of a body is in memory at once."""


class ObjectMissing(NotFound):
    """The key has no object."""


class ObjectExists(AlreadyExists):
    """`if_absent`, and the key has an object."""


class InvalidObjectKey(Invalid):
    """The key leaves the namespace: empty, absolute, `.` or `..` segments, empty segments, NUL, or too long."""


class InvalidNamespace(Invalid):
    """A storage namespace of an unknown scheme, or malformed."""


class ShortBody(Invalid):
    """The body ended before its declared size, or was longer. Nothing was stored."""


class ObjectStoreUnavailable(Unavailable):
    """The object store cannot be reached, refused us, or is full. Nothing happened."""


class ObjectStoreDenied(ObjectStoreUnavailable):
    """The object store refused us: our credentials lack the right. The object may exist or not."""


class BucketMissing(ObjectStoreUnavailable):
    """The bucket does not exist. It may still be made, so this shows nothing about any object."""


class UnlistableKey(ObjectStoreUnavailable):
    """Another program's object has a key that the driver's client refuses, so the client lists no object beside it."""


class ObjectOutcomeUnknown(OutcomeUnknown):
    """The answer to a put was lost, or the disk failed after the object became visible. The object may exist or not."""


class ObjectCorrupt(Corrupt):
    """An object is shorter than its listing says, or contradicts the digest that names it."""


class ObjectStat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One object of a listing. A msgspec struct, built in a fifth of a dataclass's time: a listing has millions."""

    key: str
    size_bytes: int
    modified_ms: int
    checksum: str = ""
    """The ETag, if the store returns one; only of `stat` and `list_all`."""


class Page(Sequence[ObjectStat]):
    """Objects of a listing, as columns. It makes an object of a row that is asked for, which costs as much as half of
    listing the row.
    """

    __slots__ = ("keys", "modified_ms", "sizes")

    def __init__(self, keys: Sequence[str], sizes: Sequence[int], modified_ms: Sequence[int]) -> None:
        self.keys, self.sizes, self.modified_ms = keys, sizes, modified_ms

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> ObjectStat: ...
    @overload
    def __getitem__(self, at: slice) -> Page: ...
    def __getitem__(self, at: int | slice) -> ObjectStat | Page:
        if isinstance(at, slice):
            return Page(self.keys[at], self.sizes[at], self.modified_ms[at])
        return ObjectStat(key=self.keys[at], size_bytes=self.sizes[at], modified_ms=self.modified_ms[at])

    def __iter__(self) -> Iterator[ObjectStat]:
        for key, size_bytes, modified_ms in zip(self.keys, self.sizes, self.modified_ms, strict=True):
            yield ObjectStat(key=key, size_bytes=size_bytes, modified_ms=modified_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The size and digest of a stored body. `md5` is hexadecimal, computed while the bytes passed."""

    size_bytes: int
    md5: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFailure:
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One folder's own content in byte order: keys of objects, and prefixes of folders, which end with a slash."""

    keys: Sequence[str]
    folders: Sequence[str]


class ObjectStore(Protocol):
    """Every method may raise ObjectStoreUnavailable and InvalidObjectKey."""

    @property
    def uri(self) -> str:
        """Return the namespace, without a slash at its end: `uri + "/" + key` is an absolute address."""
        ...

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        """Store a body. With `size_bytes` given, a body of another size raises ShortBody.

        Raises:
            ObjectExists: `if_absent`, and the key is taken.
            ShortBody: the body is not as long as declared.
        """
        ...

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes from `start` up to, not including, `end`, both cut to the size; None is the end.

        For small objects or ranges.

        Raises:
            ObjectMissing: the key has no object.
        """
        ...

    def stream(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield the same bytes in chunks of about CHUNK_BYTES. The first chunk may raise ObjectMissing."""
        ...

    async def stat(self, key: str) -> ObjectStat:
        """Return the size and date of an object.

        Raises:
            ObjectMissing: the key has no object.
        """
        ...

    def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        """Yield every object whose key starts with `prefix` (any string, not only whole segments), in byte order, in
        pages.

        May include some objects of other programs whose names are no keys (`is_object_key`): a caller can report them,
        and every other method refuses them. The same is true of `level`.
        """
        ...

    async def level(self, folder: str = "") -> Level:
        """Return one level of a listing. `folder` ends with a slash, or is empty for the root of the namespace.

        Costs as much as the level has entries, not its subfolders. Folders are those of keys; an empty folder may be
        included.
        """
        ...

    async def copy(self, source: str, target: str) -> None:
        """Copy inside the namespace, in the store itself if it can.

        Raises:
            ObjectMissing: the source does not exist.
        """
        ...

    async def presign_get(self, key: str, *, expires_s: int, file_name: str = "") -> str | None:
        """Return a URL that serves the object without credentials, or None if this store signs none.

        A browser saves the object as `file_name`, if the store supports it: a key is a number, and no useful name.
        """
        ...

    async def presign_put(self, key: str, *, expires_s: int) -> str | None: ...

    async def close(self) -> None: ...


@runtime_checkable
class CopiesRanges(Protocol):
    """A store that can copy a part of an object by itself."""

    async def copy_range(self, source: str, target: str, *, start: int, end: int) -> Stored:
        """Make an object of the bytes `start` up to, not including, `end` of another, and describe it.

        Raises:
            ObjectMissing: the source does not exist.
            ObjectCorrupt: the source ends before `end`.
        """
        ...


@runtime_checkable
class ListsAll(Protocol):
    """A store with objects of other programs, perhaps under names that are no keys here."""

    def list_all(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        """List as `list` does, including objects whose names are no keys. The caller can only report such a name.

        A name that ends with a slash is no key: tools use it to mark a folder.
        """
        ...


class Deleter(Protocol):
    """The right to delete objects of one namespace. May raise ObjectStoreUnavailable and InvalidObjectKey."""

    @property
    def uri(self) -> str:
        """Return the namespace, spelled as by its ObjectStore."""
        ...

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        """Delete every key, of any number, and return the failures. An absent key is no failure."""
        ...

    async def close(self) -> None: ...


async def store_clock_ms(store: ObjectStore, key: str) -> int:
    """Return the store's present time. Costs a put of a small object at `key`, and a stat of it."""
    await store.put(key, b"{}")
    return (await store.stat(key)).modified_ms
