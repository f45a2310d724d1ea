"""Keep the marks of an outbox few: forget those of refs and runs that are long gone (docs/design/0015-events.md).

A mark says up to which move a ref has its events. Only marks of one *generation* count, and the feed names it. Marks
are dropped by writing the others again, so that a gatherer that slept can bring none of them back:

    1  announce a fresh generation in the feed
    2  read the marks that count; then which refs have a log, and which records of runs and pull requests there are
    3  write the marks of these into the fresh generation
    4  `set_if` over the feed of step 1: the fresh generation counts. If the tail moved meanwhile, give up

A generation that is neither counted nor announced is dead for ever, and its marks are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from lakebed.base import OutcomeUnknown
from lakebed.kv import Held, PredicateFailed, scan_prefix
from lakebed.versions import keys
from lakebed.versions.context import Context
from lakebed.versions.records import Record, RefKind, decode_record, encode_record
from lakebed.versions.refs.reflog import Reflog

MARK: Final = b"mark/"
FEED: Final = b"feed"
DROPPED_MIN: Final = 1_000
"""Fewer marks are not worth writing the others again."""
SOURCES: Final = {"pull": keys.PULL, "planned": keys.PLANNED, "run": keys.RUN}
"""The keys of records that hold changes, by the kind of their marks."""
_PAGE: Final = 1_000


class FeedRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The marks of the events up to `tail` are written. Events before `oldest` were removed."""

    generation: str
    tail: int = 0
    oldest: int = 1
    # A generation that may come to count.
    announced: str = ""
    # Pull requests and runs of before have marks.
    has_changes: bool = False


class MarkRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Moves of the ref up to `log_ms` have their events. `is_gone`: so has the deletion after them."""

    log_ms: int = 0
    is_gone: bool = True
    head: str = ""

    def is_before(self, other: MarkRecord) -> bool:
        return (self.log_ms, self.is_gone) < (other.log_ms, other.is_gone)


def mark_key(generation: str, kind: str, name: str) -> bytes:
    return MARK + f"{generation}/{kind}/{name}".encode()


class Marks:
    def __init__(self, context: Context, reflog: Reflog, partition: bytes) -> None:
        self._context = context
        self._store = context.store
        self._reflog = reflog
        self._partition = partition

    async def read_feed(self) -> tuple[FeedRecord, Held] | None:
        held = await self._store.get(self._partition, FEED)
        return None if held is None else (decode_record(FeedRecord, held.value), held)

    async def drop(self, *, least: int = DROPPED_MIN) -> int:
        """Drop marks that no event will need, if there are at least so many. Return how many.

        Costs a scan of the marks, and one of a key for each ref that has a log; to drop some, that twice and the rest
        of the marks written again.
        """
        seen = [item async for item in scan_prefix(self._store, self._partition, MARK)]
        # After the scan: a generation that is announced later has no mark among these.
        found = await self.read_feed()
        if found is None:
            return 0
        feed, held = found
        dead = [key for key, _ in seen if _generation(key) not in {feed.generation, feed.announced}]
        await self._remove(dead)
        counted = _prefix(feed.generation)
        marks = {key: value for key, value in seen if key.startswith(counted)}
        if len(marks) < least or len(marks) - len(await self._kept(marks, feed.generation)) < least:
            return 0
        try:
            return await self.switch(feed, held)
        except (PredicateFailed, OutcomeUnknown):
            return 0  # The next call drops them, and removes what this one wrote.

    async def switch(self, feed: FeedRecord, held: Held, *, more: Mapping[bytes, bytes] | None = None) -> int:
        """Have a fresh generation count, without the marks that no event will need. Return how many these are.

        `more`: marks of all changes of pull requests and runs, where the outbox began before these had events.

        Raises:
            PredicateFailed: a gatherer or cleaner changed the feed meanwhile.
        """
        fresh = self._context.ports.ids.fresh()
        feed = replace(feed, announced=fresh)
        predicate = await self._store.set_if(self._partition, FEED, encode_record(feed), held.predicate)
        counted = _prefix(feed.generation)
        marks = {
            **(more or {}),
            **{key: value async for key, value in scan_prefix(self._store, self._partition, counted)},
        }
        kept = await self._kept(marks, feed.generation)
        items = [(_prefix(fresh) + key[len(counted) :], value) for key, value in kept.items()]
        for at in range(0, len(items), _PAGE):
            await self._store.set_many(self._partition, items[at : at + _PAGE])
        # A gatherer that moved marks on has moved the tail, or its events are behind the tail and are read again.
        switched = replace(feed, generation=fresh, announced="", has_changes=feed.has_changes or more is not None)
        await self._store.set_if(self._partition, FEED, encode_record(switched), predicate)
        return len(marks) - len(kept)

    async def _kept(self, marks: dict[bytes, bytes], generation: str) -> dict[bytes, bytes]:
        """Return the marks that events may need. Read after the marks: what is gone by now does not come back."""
        needed: set[bytes] = set()
        for ref_kind in RefKind:
            # A ref that has no log moved long ago. If it is made again, its first move is behind any mark.
            needed |= {mark_key(generation, ref_kind, name) async for name, _ in self._reflog.names(ref_kind)}
        for source, prefix in SOURCES.items():
            async for key, _ in scan_prefix(self._store, self._context.partition, prefix):
                needed.add(mark_key(generation, source, key[len(prefix) :].decode()))
        refs = tuple(_prefix(generation) + f"{ref_kind}/".encode() for ref_kind in RefKind)
        return {
            key: value
            for key, value in marks.items()
            if key in needed or (key.startswith(refs) and not decode_record(MarkRecord, value).is_gone)
        }

    async def _remove(self, dead: list[bytes]) -> None:
        for at in range(0, len(dead), _PAGE):
            await self._store.delete_many(self._partition, dead[at : at + _PAGE])


def _prefix(generation: str) -> bytes:
    return MARK + generation.encode() + b"/"


def _generation(key: bytes) -> str:
    return key[len(MARK) :].partition(b"/")[0].decode()
