"""Slices: where this server instance puts the bytes of uploads (docs/design/protocols.md, "Slices").

A slice has one owner, and its record is `open` before its first object. Addresses in it are a dense count that lives in
memory only: an instance that starts again takes a new slice, so no number is ever handed out twice. A slice ends after
an hour or at its size limit; its record becomes `closed` when every upload in it has ended, well or badly, and only
closed slices are listed by collectors. A slice whose uploads all failed, and that holds no object, has its record
removed instead: each run would list it for ever. An owner that died leaves its slices open until a collector gives it
up, which fences the slice first: an upload that finds its slice fenced starts again at a fresh address.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from lakebed.base import Event, OutcomeUnknown, Unavailable, format_address, slice_name, slice_number
from lakebed.kv import PredicateFailed
from lakebed.versions import keys
from lakebed.versions.context import Context
from lakebed.versions.records import SliceRecord, SliceState, decode_record, encode_record


@dataclass(slots=True)
class OpenSlice:
    """A slice of this instance. `uploads` counts those under way in it.

    `record` is the record in the store under `key` while the slice is open.

    """

    number: int
    opened_ms: int
    key: bytes
    record: bytes
    next_sequence: int = 0
    uploads: int = 0
    ended: bool = False
    # The cell of one of them may still be set. Such a slice is never closed by its owner, but by a collector that gives
    # it up, which makes sure that the cell does not count.
    in_doubt: bool = False
    # Each upload failed before its address was named, and none can bring bytes any more.
    is_unused: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """An address that was never handed out before, and its slice."""

    address: str
    slice_: OpenSlice


class Slices:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._open_slice: OpenSlice | None = None
        self._opening: Event | None = None
        # Ended, and with uploads under way; or the store could not be reached when the last of them ended.
        self._unclosed: tuple[OpenSlice, ...] = ()

    async def place(self) -> Place:
        """Return a fresh address. The caller must `leave` it, whatever happens. Costs one `set_if` a slice."""
        # `_replace` awaits. Another upload may fill the new slice meanwhile, so look again.
        while (current := self._open_slice) is None or self._is_full(current):
            await self._replace(current)
        sequence = current.next_sequence
        current.next_sequence += 1
        current.uploads += 1
        return Place(format_address(current.number, sequence), current)

    async def leave(self, place: Place, *, in_doubt: bool = False, is_unused: bool = False) -> None:
        """Note that this upload ended: its cell is set, or never will be, unless `in_doubt`. Never fails for the store.

        `is_unused`: it failed, named its address nowhere, and no bytes can come there after this.
        """
        place.slice_.uploads -= 1
        place.slice_.in_doubt |= in_doubt
        place.slice_.is_unused &= is_unused
        if place.slice_.ended:
            await self._close_ended()

    async def is_open(self, place: Place) -> bool:
        """Read the slice's record, after this call began."""
        # Only its owner writes an open record, and once: any other bytes are those of a slice that is not open.
        held = await self._context.get_shared(place.slice_.key)
        is_open = held is not None and held.value == place.slice_.record
        if not is_open and self._open_slice is place.slice_:
            self._open_slice = None
        return is_open

    async def end(self, *, opened_until_ms: int | None = None) -> None:
        """End the current slice, or only if it was opened by then; it closes when its last upload does."""
        current = self._open_slice
        if current is not None and (opened_until_ms is None or current.opened_ms <= opened_until_ms):
            await self._end(current)
        await self._close_ended()

    async def adopt(self, name: str) -> bool:
        """Make a record for a slice that has none. False: it has one. May be repeated after a lost answer."""
        # Open, not closed: a late writer may have read a record of its own, and set its cell. A collector that gives
        # the owner up fences it first.
        now_ms = self._context.ports.clock.now_ms()
        record = SliceRecord(state=SliceState.OPEN, owner="", opened_ms=now_ms)
        with suppress(PredicateFailed):
            await self._context.set_if(keys.SLICE + name.encode(), encode_record(record), None)
            return True
        return False

    async def end_old(self) -> None:
        """End the current slice if it is over its age or size."""
        # No upload of an idle instance would notice the age, and runs list only closed slices.
        if self._open_slice is not None and self._is_full(self._open_slice):
            await self._end(self._open_slice)
        await self._close_ended()

    def _is_full(self, slice_: OpenSlice) -> bool:
        age_ms = self._context.ports.clock.now_ms() - slice_.opened_ms
        return (
            slice_.ended
            or slice_.next_sequence >= self._context.options.slice_size_max
            or not 0 <= age_ms < self._context.options.slice_age_ms_max
        )

    async def _replace(self, full: OpenSlice | None) -> None:
        """Open the next slice, or wait for the task that is opening it."""
        # Without the wait each upload of a burst would open a slice of its own.
        if self._opening is not None:
            await self._opening.wait()
            return
        self._opening = opening = self._context.ports.tasks.event()
        try:
            if full is not None:
                await self._end(full)
            self._open_slice = await self._open()
        finally:
            self._opening = None
            opening.set()

    async def _open(self) -> OpenSlice:
        while True:
            now = self._context.ports.clock.now_ms()
            number = slice_number(opened_at_ms=now, random_bits=self._context.ports.ids.bits(22))
            key = keys.SLICE + slice_name(number).encode()
            record = encode_record(SliceRecord(state=SliceState.OPEN, owner=self._context.options.owner, opened_ms=now))
            try:
                await self._context.set_if(key, record, None)
            except PredicateFailed:
                continue  # The random bits met another slice of this millisecond.
            return OpenSlice(number, now, key, record)

    async def _end(self, slice_: OpenSlice) -> None:
        if self._open_slice is slice_:
            self._open_slice = None
        slice_.ended = True
        self._unclosed = (*self._unclosed, slice_)
        await self._close_ended()

    async def _close_ended(self) -> None:
        """Close ended slices. A failed close is tried again with the next slice."""
        for slice_ in self._unclosed:
            if not slice_.uploads:
                with suppress(Unavailable, OutcomeUnknown):
                    await self._close(slice_)
                    self._unclosed = tuple([other for other in self._unclosed if other is not slice_])

    async def _close(self, slice_: OpenSlice) -> None:
        """Close the slice's record, or remove it where the slice is empty."""
        # A fenced slice is its fencer's to close. One in doubt is a collector's, which makes sure that no late cell
        # counts.
        held = await self._context.get(slice_.key)
        if held is None or slice_.in_doubt:
            return
        record = decode_record(SliceRecord, held.value)
        if record.state is SliceState.OPEN:
            closed = SliceRecord(state=SliceState.CLOSED, owner=record.owner, opened_ms=record.opened_ms)
            with suppress(PredicateFailed):
                if slice_.is_unused and await self._is_empty(slice_):
                    await self._context.delete_if(slice_.key, held.predicate)
                    return
                await self._context.set_if(slice_.key, encode_record(closed), held.predicate)

    async def _is_empty(self, slice_: OpenSlice) -> bool:
        """Return whether the slice has no object. In doubt it has."""
        # A failed upload may have put its bytes: without a record of the slice they would stay for ever.
        try:
            async for _ in self._context.objectstore.list(f"data/{slice_name(slice_.number)}/"):
                return False
        except Unavailable:
            return False
        return True
