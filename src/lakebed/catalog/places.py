"""An index of namespaces by place, so that a new one is held against those around and inside it, not against all.

namespaces / <place>/ NUL <uid>    empty: the repository of this uid has, or had, its namespace at this place

A maker notes its place after its record and before it looks, so of two made at once at least one sees the other. Where
there is a note, the records are asked: they alone decide. So a note too many costs a look, and one too few would let
two namespaces overlap. A note lacks only where a server of an earlier release made the repository, or the store came
back from a backup that has no notes. So a process holds the index against all records at its first creation, and again
where it did not for `CHECKED_MS`. For that long at most what lacks stays unseen.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from lakebed.base import Ports, RepositoryUid, in_waves
from lakebed.kv import SCAN_PAGE, Store, scan_pages
from lakebed.objectstore import without_account

NAMESPACES: Final = b"namespaces"
CHECKED_MS: Final = 600_000
PLACE_BYTES_MAX: Final = 900
"""A longer place is cut: it meets more notes than it must. With a uid behind it, a key has at most 1,024 bytes."""


class Places:
    """`checked_ms`: when this process last began to hold the notes against all records; None: it never did."""

    def __init__(self, store: Store, ports: Ports) -> None:
        self._store = store
        self._clock = ports.clock
        self._tasks = ports.tasks
        self.checked_ms: int | None = None

    @property
    def has_every(self) -> bool:
        """Return whether each record had its note lately, as far as is known."""
        return self.checked_ms is not None and 0 <= self._clock.now_ms() - self.checked_ms < CHECKED_MS

    async def note(self, uri: str, uid: RepositoryUid) -> None:
        await self._store.set(NAMESPACES, _key(uri, uid), b"")

    async def forget(self, uri: str, uid: RepositoryUid) -> None:
        """Remove a note. Only where the repository, or the attempt to make it, is over."""
        await self._store.delete(NAMESPACES, _key(uri, uid))

    async def near(self, uri: str, uid: RepositoryUid) -> Set[bytes]:
        """Return some notes of other repositories at this place, inside or around it; none where there are none.

        Costs a scan of two keys, and one of one key for each folder around the place, all of them at once.
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
        """Remove those of these notes that no record stands for. With `checked_ms`, these are all notes that there were
        at that time: add what they lack.

        `known` has the namespace of every record, as far as it says. It was read after the notes, and a note is written
        after its record. So one without a record is of a repository that is over.
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
