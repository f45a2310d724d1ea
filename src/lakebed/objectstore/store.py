"""The ObjectStore port: immutable bytes by key, inside one storage namespace.

An instance is rooted at a namespace (`local://bucket/path`, `mem://name`, `s3://bucket/prefix`): its keys are relative
to it and can name nothing outside. Nothing is ever overwritten in place: a put of a key that exists replaces it as a
whole or, with `if_absent`, fails. A put that returned is durable; one that failed has left nothing under the key.
Bodies stream both ways, so no object ever has to fit into memory.

A store cannot delete. The right to delete is a port of its own, `Deleter`: a composition root opens it and hands it to
the sweep. The type checker refuses a deletion everywhere else, and a tidy test keeps the list of who names a `Deleter`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from lakebed.base import AlreadyExists, Corrupt, Invalid, NotFound, OutcomeUnknown, Unavailable

Body: TypeAlias = bytes | AsyncIterable[bytes]

CHUNK_BYTES: int = 1 << 20
"""About this much of a body is in memory at once."""


class ObjectMissing(NotFound):
    """There is no object under this key."""


class ObjectExists(AlreadyExists):
    """`if_absent`, and there is an object under this key."""


class InvalidObjectKey(Invalid):
    """Not a key inside the namespace: empty, absolute, with `.` or `..` segments, empty segments, NUL, or too long."""


class InvalidNamespace(Invalid):
    """A storage namespace of an unknown scheme, or malformed."""


class ShortBody(Invalid):
    """The body ended before its declared size, or went on after it. Nothing was stored."""


class ObjectStoreUnavailable(Unavailable):
    """The object store cannot be reached, refused us, or is full. Nothing happened."""


class ObjectStoreDenied(ObjectStoreUnavailable):
    """The object store refused us: our credentials may not do this. The object may exist or not."""


class BucketMissing(ObjectStoreUnavailable):
    """The bucket does not exist. It may be made yet, so this is no word about any object."""


class UnlistableKey(ObjectStoreUnavailable):
    """Another program's object has a key that the client of the driver refuses, and it then lists nothing beside it."""


class ObjectOutcomeUnknown(OutcomeUnknown):
    """The answer to a put was lost, or the disk failed after the object became visible: it may be there or not."""


class ObjectCorrupt(Corrupt):
    """An object is shorter than its listing says, or contradicts the digest that names it."""


class ObjectStat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One object of a listing. It is built in a fifth of a dataclass's time, since a listing has millions."""

    key: str
    size_bytes: int
    modified_ms: int
    checksum: str = ""
    """The ETag, where the store shows one: `stat`, and `list_all`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Describe what a put stored. `md5` is the hex digest of the bytes, taken while they passed."""

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
        """The namespace, with no slash at its end: `uri + "/" + key` is an absolute address."""
        ...

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        """Store a body. With `size_bytes` given, a body of another size raises ShortBody.

        Raises:
            ObjectExists: `if_absent`, and the key is taken.
            ShortBody: the body is not as long as declared.
        """
        ...

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Bytes `start` to before `end` (both cut to the size; None is the end). For small objects and ranges of them.

        Raises:
            ObjectMissing: there is none.
        """
        ...

    def stream(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The same in chunks of about CHUNK_BYTES. ObjectMissing comes with the first chunk."""
        ...

    async def stat(self, key: str) -> ObjectStat:
        """
        Raises:
            ObjectMissing: there is none.
        """
        ...

    def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        """Everything whose key starts with `prefix` (any string, not only whole segments), in byte order, in pages.

        Of other programs' objects whose names are no keys (`is_object_key`) it may show some: a caller can report
        these, and every other method refuses them. The same holds for `level`.
        """
        ...

    async def level(self, folder: str = "") -> Level:
        """One level of what `list` shows: `folder` ends with a slash, or is empty for the root of the namespace.

        Costs what is in the level, however much lies below. Folders are those of keys; an empty one may be shown.
        """
        ...

    async def copy(self, source: str, target: str) -> None:
        """Copy inside the namespace, in the store itself where it can.

        Raises:
            ObjectMissing: there is no source.
        """
        ...

    async def presign_get(self, key: str, *, expires_s: int, file_name: str = "") -> str | None:
        """Return a URL that serves the object without credentials; None where this store has no such thing.

        A browser saves the object as `file_name`, where the store can say so: a key is a number, and no name.
        """
        ...

    async def presign_put(self, key: str, *, expires_s: int) -> str | None: ...

    async def close(self) -> None: ...


@runtime_checkable
class CopiesRanges(Protocol):
    """A store that also copies a part of an object by itself."""

    async def copy_range(self, source: str, target: str, *, start: int, end: int) -> Stored:
        """Make an object of the bytes `start` to before `end` of another one, and describe it.

        Raises:
            ObjectMissing: there is no source.
            ObjectCorrupt: the source ends before `end`.
        """
        ...


@runtime_checkable
class ListsAll(Protocol):
    """A store in which other programs may have put objects under names that are no keys here."""

    def list_all(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        """List as `list` does, and the objects whose names are no keys: a name is all that can be done with them.

        A name that ends with a slash is one of them: tools mark a folder by it.
        """
        ...


class Deleter(Protocol):
    """The right to delete objects of one namespace. May raise ObjectStoreUnavailable and InvalidObjectKey."""

    @property
    def uri(self) -> str:
        """The namespace, spelled as its ObjectStore spells it."""
        ...

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        """Delete every key, any number of them, and return the keys that stayed. An absent key counts as deleted."""
        ...

    async def close(self) -> None: ...
