"""An index of namespaces by place, to compare a new one only with those around and inside it.

    namespaces / <place>/ NUL <uid>    empty: the repository of this uid has, or had, its namespace at this place

A maker writes its note after its record and before its check, so of two made at once at least one sees the other. If
notes are found, the records decide. So an extra note costs a check, and a missing one would let two namespaces
overlap. A note is missing only if a server of an earlier release made the repository, or the store was restored from a
backup without notes. So a process compares the index with all records at its first creation, and again after
`CHECKED_MS`. A missing note is noticed after that time at most.
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
"""A longer place is cut, and may match additional notes. With a uid added, a key has at most 1,024 bytes."""


class Places:
    """`checked_ms`: when this process last began to compare the notes with all records, or None if never."""

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
