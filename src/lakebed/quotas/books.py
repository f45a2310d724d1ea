"""Set, show, remove and count quotas.

A count replaces the used bytes of a repository's quota by the bytes in its store. Writers go on meanwhile:

    1 `set_if`: the count begins, and bytes settled from now on are noted apart
    2 list the store: all that was settled before is there. Each minute `set_if`: the count goes on
    3 `set_if`, only while it is still this count: used are the listed bytes, and those settled meanwhile
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import Conflict, Invalid, NotFound, OutcomeUnknown, RepositoryUid, Unavailable
from lakebed.kv import Held, PredicateFailed, Store, scan_prefix
from lakebed.objectstore import ObjectStore
from lakebed.versions import decode_record

from .meter import QUOTA, Meter, QuotaRecord, Scope, of_branch, of_repository, read, replace_record

DATA: Final = "data/"
"""The folder of a repository's objects. Trees and runs beside it do not count."""
COUNT_AGAIN_MS: Final = 24 * 3_600_000
"""Objects that were deleted without a run, such as by hard delete, are noticed after this."""
COUNT_BEAT_MS: Final = 60_000
"""A count reports at this interval that it goes on."""
COUNT_MS_MAX: Final = 15 * COUNT_BEAT_MS
"""A count whose record was not renewed for this long is over: its process died."""

GoOn: TypeAlias = Callable[[], Awaitable[None]]
Measure: TypeAlias = Callable[[GoOn], Awaitable[int]]
_Change: TypeAlias = Callable[[QuotaRecord], QuotaRecord]


class NoQuota(NotFound):
    """No quota is set."""


class CountOvertaken(Conflict):
    """Another count of this quota began."""


class Books:
    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._store = meter.store
        self._ports = meter.ports

    async def get(self, scope: Scope) -> QuotaRecord:
        """
        Raises:
            NoQuota.
        """
        return (await self._find(scope))[0]

    async def set(self, scope: Scope, *, limit_bytes: int, by: str, restart: bool = False) -> QuotaRecord:
        """Set the limit. A quota that was there keeps its count, unless `restart`.

        Raises:
            Invalid: the limit is below one byte, or over what a record can have.
        """
        if not 0 < limit_bytes < 1 << 62:
            raise Invalid("a quota has at least one byte: say how many, as 500MiB or 10GiB", limit=limit_bytes)
        while True:
            found = await read(self._store, scope)
            old = QuotaRecord(limit_bytes=limit_bytes) if found is None else found[0]
            record = replace(old, limit_bytes=limit_bytes, set_ms=self._ports.clock.now_ms(), set_by=by)
            if restart:
                # Grants stay: what they admit is written from now on.
                record = replace(record, used_bytes=0, counting="", since_bytes=0)
            try:
                await replace_record(self._store, scope, record, None if found is None else found[1])
            except PredicateFailed:
                continue
            self._meter.forget(scope)
            return record

    async def remove(self, scope: Scope) -> bool:
        """Return whether there was one."""
        while True:
            found = await read(self._store, scope)
            if found is None:
                return False
            try:
                await self._store.delete_if(scope.partition, scope.key, found[1].predicate)
            except PredicateFailed:
                continue
            self._meter.forget(scope)
            return True

    async def count(self, scope: Scope, measure: Measure) -> QuotaRecord:
        """Replace the used bytes by the result of `measure`. It calls its argument often, to say that it goes on.

        Never too low. Too high by the bytes in flight or granted when it began, and of writes that ended meanwhile.

        Raises:
            NoQuota: there is none, or it was removed meanwhile.
            CountOvertaken.
        """
        count, now_ms = self._ports.ids.fresh(), self._ports.clock.now_ms()

        def begun(old: QuotaRecord) -> QuotaRecord:
            # The bytes that a dead process stored are listed, and others of its will never come.
            grants = old.alive(now_ms)
            return replace(old, grants=grants, counting=count, counting_ms=now_ms, since_bytes=0, is_stale=False)

        def still_ours(old: QuotaRecord) -> QuotaRecord:
            if old.counting != count:
                raise CountOvertaken("another count of this quota began: look again later")
            return old

        await self._change(scope, begun)
        said_ms = now_ms

        def going_on(old: QuotaRecord) -> QuotaRecord:
            return replace(still_ours(old), counting_ms=said_ms)

        async def go_on() -> None:
            nonlocal said_ms
            if 0 <= (now_ms := self._ports.clock.now_ms()) - said_ms < COUNT_BEAT_MS:
                return
            said_ms = now_ms
            with suppress(Unavailable, OutcomeUnknown):  # It says so again later.
                await self._change(scope, going_on)

        measured = await measure(go_on)

        def counted(old: QuotaRecord) -> QuotaRecord:
            old = still_ours(old)
            ended_ms = self._ports.clock.now_ms()
            used = measured + old.since_bytes
            return replace(old, used_bytes=used, counting="", counting_ms=0, since_bytes=0, counted_ms=ended_ms)

        return await self._change(scope, counted)

    async def count_stored(self, uid: RepositoryUid, objectstore: ObjectStore) -> QuotaRecord:
        """Count a repository's objects: a request to the store for each thousand.

        Raises:
            NoQuota, CountOvertaken: see `count`.
        """

        async def measure(go_on: GoOn) -> int:
            total = 0
            async for page in objectstore.list(DATA):
                total += sum(stat.size_bytes for stat in page)
                await go_on()
            return total

        return await self.count(of_repository(uid), measure)

    async def of_repository(self, uid: RepositoryUid) -> Sequence[tuple[str, QuotaRecord]]:
        """Return the quotas of a repository by branch; its own has none."""
        partition, branches = of_repository(uid).partition, of_branch(uid, "").key
        found = scan_prefix(self._store, partition, QUOTA)
        return [
            (
                key.decode().removeprefix(branches.decode()) if key.startswith(branches) else "",
                decode_record(QuotaRecord, value),
            )
            async for key, value in found
        ]

    async def is_due(self, scope: Scope) -> bool:
        """Return whether it should be counted again: deletions came, the last one is old, or one died."""
        found = await read(self._store, scope)
        if found is None:
            return False
        record, now_ms = found[0], self._ports.clock.now_ms()
        if record.counting and 0 <= now_ms - record.counting_ms < COUNT_MS_MAX:
            return False
        return record.is_stale or bool(record.counting) or now_ms - record.counted_ms >= COUNT_AGAIN_MS

    async def _find(self, scope: Scope) -> tuple[QuotaRecord, Held]:
        found = await read(self._store, scope)
        if found is None:
            raise NoQuota(f"{scope.title} has no quota")
        return found

    async def _change(self, scope: Scope, change: _Change) -> QuotaRecord:
        while True:
            record, held = await self._find(scope)
            changed = change(record)
            try:
                await replace_record(self._store, scope, changed, held)
            except PredicateFailed:
                continue
            self._meter.forget(scope)
            return changed


async def mark_stale(store: Store, scope: Scope) -> None:
    """Note that objects were deleted, so that upkeep counts again. Costs a read where there is no quota."""
    while True:
        found = await read(store, scope)
        if found is None or found[0].is_stale:
            return
        try:
            await replace_record(store, scope, replace(found[0], is_stale=True), found[1])
        except PredicateFailed:
            continue
        return
