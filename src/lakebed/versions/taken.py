"""Objects that lifecycle runs took although commits name them: readers look here, and copies are refused here.

A run writes down all that it takes before its readers' grace begins, for ever. So a path resolves and can be read for
the whole grace, or the read says which run and rule took the object (docs/design/protocols.md, "A lifecycle run").

The partition `<uid>/taken` holds, for 2^18 numbers of a slice, a list of (run, rule, bitmap); an object in no slice has
a record of its own. The names of a run's rules are in the record `run-<id>`, written first.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from lakebed.base import (
    FOREIGN_SLICE,
    Conflict,
    Entry,
    MetarangeId,
    OutcomeUnknown,
    Row,
    RunState,
    count_of,
    in_waves,
    key_inside,
    parse_address,
    slice_name,
)
from lakebed.kv import SCAN_PAGE, PredicateFailed, scan_pages

from . import keys
from .context import Context, Retry
from .errors import PathExpired
from .records import Record, RunRecord, decode_record, encode_record

ERASED: Final = "erasure"
"""Stands for the rule of an object that was erased on request."""
PRUNED: Final = "pruning"
"""Stands for the rule of a file of a table that nothing else named."""
CHUNK: Final = 1 << 18
VALUE_BYTES_MAX: Final = 200_000
"""Above this the oldest bitmaps become one, of no run: stores have limits, and the ledger knows the run."""

Numbers: TypeAlias = npt.NDArray[np.int64]
_Flags: TypeAlias = npt.NDArray[np.bool_]
Place: TypeAlias = tuple[int, int] | str
"""A slice and a number in it, or the key of an object that is in no slice."""


class Bits(msgspec.Struct, frozen=True, array_like=True):
    """The numbers within a chunk that a run took by a rule; its place in the run's list. No run: those of several."""

    run: str
    rule: int
    bits: bytes


class TakenRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    taken: tuple[Bits, ...]


class TakingRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`rules` are those of the policy, in one line each, in the policy's order."""

    policy_version: int
    taken_ms: int
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBy:
    """Say which run took an object, when, and by which rule of which policy. Of old ones only the object is known."""

    run: str = ""
    rule: str = ""
    policy_version: int = 0
    taken_ms: int = 0

    def text(self) -> str:
        if not self.run:
            return "expired by a lifecycle policy; the ledger names the run"
        date = datetime.fromtimestamp(self.taken_ms / 1000, UTC).date().isoformat()
        if self.rule == ERASED:
            return f"erased by run {self.run}, {date}"
        if self.rule == PRUNED:
            return f"no table named it, pruned by run {self.run}, {date}"
        return f"expired by policy version {self.policy_version}, {self.rule}, run {self.run}, {date}"

    def error(self) -> PathExpired:
        return PathExpired(self.text(), by=self)


@dataclass(frozen=True, slots=True)
class _Looked:
    """Keep the unpacked records of one look, for all of its objects."""

    unpacked: dict[bytes, _Flags] = field(default_factory=dict)
    undone: dict[str, bool] = field(default_factory=dict)


class Taken:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._partition = keys.taken_partition(context.uid)
        self._runs: dict[str, TakingRecord] = {}
        self._settled: set[str] = set()
        self._is_used = False
        self._looked_at_ms = 0

    # For readers

    async def check(self, entry: Entry) -> None:
        """To be asked after the path was resolved. Costs one `get`.

        Raises:
            PathExpired: a lifecycle run took the object.
        """
        place = self._place(entry.address)
        held = None if place is None else await self._context.store.get(self._partition, _key(place))
        if place is not None and held is not None:
            by = await self._by(place, decode_record(TakenRecord, held.value).taken, _Looked())
            if by is not None:
                raise by.error()

    async def find(self, addresses: Sequence[str]) -> list[TakenBy | None]:
        """Return for each address the run that took it. Costs one `get_many`, and of each run's record one `get`."""
        return await self._find([self._place(address) for address in addresses])

    async def find_rows(self, rows: Sequence[Row]) -> list[TakenBy | None]:
        """The same for rows of trees."""
        return await self._find([(row[1], row[2]) if row[1] != FOREIGN_SLICE else self._place(row[3]) for row in rows])

    async def shown(self, rows: Sequence[Row]) -> list[TakenBy | None]:
        """Return the rows of `find_rows`, for answers that only show them. No decision rests on them.

        Where no policy was ever set and nothing erased, this costs nothing but a `get` of two records each
        `branch_cache_ms`. Changes of another process are seen that much later.
        """
        return await self.find_rows(rows) if await self._may_be_used() else [None] * len(rows)

    async def shown_at(self, address: str) -> TakenBy | None:
        """The same for one address."""
        return (await self.find([address]))[0] if await self._may_be_used() else None

    async def _may_be_used(self) -> bool:
        """Return False where no run took anything until a moment ago. A policy that is removed leaves its record."""
        now_ms = self._context.ports.clock.now_ms()
        looked = self._looked_at_ms
        if not self._is_used and not (looked and 0 <= now_ms - looked < self._context.options.branch_cache_ms):
            if await self.is_ever_used():
                self._is_used = True
            self._looked_at_ms = now_ms
        return self._is_used

    async def is_ever_used(self) -> bool:
        """Return False where no run ever took anything. Costs one `get_many`."""
        # A policy that is removed leaves its record, and so does an erasure.
        return any(await self._context.get_many([keys.LIFECYCLE, keys.ERASED]))

    def _place(self, address: str) -> Place | None:
        key = key_inside(address, self._context.objectstore.uri)
        return None if key is None else parse_address(key) or key

    async def _find(self, places: Sequence[Place | None]) -> list[TakenBy | None]:
        wanted = sorted({_key(place) for place in places if place is not None})
        found = await self._context.store.get_many(self._partition, wanted) if wanted else []
        records = {
            key: decode_record(TakenRecord, held.value).taken
            for key, held in zip(wanted, found, strict=True)
            if held is not None
        }
        if not records:
            return [None] * len(places)
        looked = _Looked()
        return [
            None if place is None else await self._by(place, records.get(_key(place), ()), looked) for place in places
        ]

    async def _by(self, place: Place, taken: Sequence[Bits], looked: _Looked) -> TakenBy | None:
        number = 0 if isinstance(place, str) else place[1] % CHUNK
        for one in taken:
            flags = looked.unpacked.get(one.bits)
            if flags is None:
                flags = looked.unpacked[one.bits] = _unpack(one.bits)
            if number < len(flags) and flags[number] and not await self._is_undone(one.run, looked):
                return await self._by_run(one)
        return None

    async def _is_undone(self, run: str, looked: _Looked) -> bool:
        """Costs a `get` for each run that has not ended yet, in each look."""
        if not run or run in self._settled:
            return False
        if run not in looked.undone:
            record = await self._context.read(RunRecord, keys.RUN + run.encode())
            if record is None or record[0].purging or record[0].state is RunState.ENDED:
                self._settled.add(run)
            looked.undone[run] = record is not None and record[0].state is RunState.UNDONE
        return looked.undone[run]

    async def _by_run(self, one: Bits) -> TakenBy:
        if not one.run:
            return TakenBy()
        record = self._runs.get(one.run) or await self.find_run(one.run)
        if record is None:
            return TakenBy(run=one.run)
        self._runs[one.run] = record
        rule = record.rules[one.rule] if one.rule < len(record.rules) else ""
        return TakenBy(run=one.run, rule=rule, policy_version=record.policy_version, taken_ms=record.taken_ms)

    async def count_brought(self, left: MetarangeId, right: MetarangeId) -> int:
        """Count the entries of a tree, unlike those of another, whose objects were taken. Costs as much as a diff."""
        if not await self.is_ever_used():
            return 0
        found = 0
        async for batch in self._context.trees.diff(left, right, start=b"", prefix=b""):
            rows = [one.right for one in batch if one.right is not None]
            found += sum(by is not None for by in await self.find_rows(rows))
        return found

    async def check_brought(self, left: MetarangeId, right: MetarangeId) -> None:
        """
        Raises:
            Conflict: the tree has such entries.
        """
        if found := await self.count_brought(left, right):
            objects = count_of(found, "object")
            raise Conflict(f"this would bring {objects} that lifecycle runs took: nothing changed", objects=found)

    # For collectors

    async def find_run(self, run: str) -> TakingRecord | None:
        held = await self._context.store.get(self._partition, keys.taking_run(run))
        return None if held is None else decode_record(TakingRecord, held.value)

    async def runs(self) -> AsyncIterator[tuple[str, TakingRecord]]:
        """Yield every run that took objects, oldest first, also when its record is gone. An undone run's stays."""
        prefix = keys.taking_run("")
        async for names, values in scan_pages(self._context.store, self._partition, prefix, first=SCAN_PAGE):
            for key, value in zip(names, values, strict=True):
                if not key.startswith(prefix):
                    return
                yield key[len(prefix) :].decode(), decode_record(TakingRecord, value)

    async def begin(self, run: str, record: TakingRecord) -> TakingRecord:
        """Write the names of a run's rules, or return those written before."""
        self._is_used = True
        present = await self.find_run(run)
        # Never replace them: rows that are written refer to them by number.
        if present is None:
            await self._context.store.set(self._partition, keys.taking_run(run), encode_record(record))
        return present or record

    async def add(self, run: str, taken: Iterable[tuple[int, Numbers, Numbers, Iterable[str]]]) -> None:
        """Note for ever the objects that the run takes by a rule: slices with a number each, and keys in no slice.

        Done twice it is the same. Costs a read and a conditional write of each chunk of 2^18 numbers.
        """
        chunks: dict[bytes, dict[int, list[Numbers]]] = {}
        for rule, slices, numbers, others in taken:
            order = np.lexsort((numbers, slices))
            slices, numbers = slices[order], numbers[order]  # noqa: PLW2901  # the same rows, in order
            ends = np.flatnonzero((np.diff(slices) != 0) | (np.diff(numbers // CHUNK) != 0)) + 1
            for rows in np.split(np.arange(len(slices)), ends) if len(slices) else []:
                place = int(slices[rows[0]]), int(numbers[rows[0]])
                chunks.setdefault(_key(place), {}).setdefault(rule, []).append(numbers[rows] % CHUNK)
            for key in others:
                chunks.setdefault(_key(key), {}).setdefault(rule, []).append(np.zeros(1, np.int64))
        tasks = self._context.ports.tasks
        await in_waves(tasks, sorted(chunks), lambda key: self._add_chunk(run, key, chunks[key]), most=_AT_ONCE)

    async def count(self, run: str) -> dict[int, int]:
        """Count by rule the objects that the run took, where the records are its own. Costs a scan of all records."""
        found: dict[int, int] = {}
        async for _, taken in self._chunks(run):
            for one in taken:
                if one.run == run:
                    found[one.rule] = found.get(one.rule, 0) + int(_unpack(one.bits).sum())
        return found

    async def withdraw(self, run: str) -> None:
        """Remove the notes of an undone run. Costs a scan of all records, and two operations for each chunk."""
        chunks = [key async for key, _ in self._chunks(run)]
        await in_waves(self._context.ports.tasks, chunks, lambda key: self._withdraw(run, key), most=_AT_ONCE)

    async def _withdraw(self, run: str, key: bytes) -> None:
        retry = Retry()
        while True:
            held = await self._context.store.get(self._partition, key)
            before = () if held is None else decode_record(TakenRecord, held.value).taken
            after = tuple(one for one in before if one.run != run)
            if held is None or after == before:
                return
            value = encode_record(TakenRecord(taken=after))
            try:
                await self._context.store.set_if(self._partition, key, value, held.predicate)
            except PredicateFailed:
                continue  # Another run takes other objects of this slice.
            except OutcomeUnknown as error:
                retry.lost(error)

    async def _chunks(self, run: str) -> AsyncIterator[tuple[bytes, tuple[Bits, ...]]]:
        """Yield the chunks that have objects of the run."""
        async for names, values in scan_pages(self._context.store, self._partition, b"", first=SCAN_PAGE):
            for key, value in zip(names, values, strict=True):
                if not key.startswith(keys.taking_run("")):
                    taken = decode_record(TakenRecord, value).taken
                    if any(one.run == run for one in taken):
                        yield key, taken

    async def _add_chunk(self, run: str, key: bytes, by_rule: Mapping[int, list[Numbers]]) -> None:
        retry = Retry()
        while True:
            held = await self._context.store.get(self._partition, key)
            before = () if held is None else decode_record(TakenRecord, held.value).taken
            after = _merged(before, run, by_rule)
            if after == before:
                return
            value = encode_record(TakenRecord(taken=after))
            if len(value) > VALUE_BYTES_MAX:
                value = encode_record(TakenRecord(taken=_as_one(after)))
            try:
                await self._context.store.set_if(self._partition, key, value, None if held is None else held.predicate)
            except PredicateFailed:
                continue  # Another run takes other objects of this slice, or another call for this run.
            except OutcomeUnknown as error:
                retry.lost(error)
                continue
            return


_AT_ONCE: Final = 100


def _key(place: Place) -> bytes:
    if isinstance(place, str):
        return b"key/" + place.encode()
    return f"{slice_name(place[0])}/{place[1] // CHUNK:04d}".encode()


def _merged(before: Sequence[Bits], run: str, by_rule: Mapping[int, list[Numbers]]) -> tuple[Bits, ...]:
    """Add the numbers to those that the run has by this rule."""
    rest = {(one.run, one.rule): one for one in before}
    # New ones go to the end of the list: the oldest come first.
    for rule, numbers in sorted(by_rule.items()):
        place = (run, rule)
        present = _unpack(rest[place].bits) if place in rest else np.zeros(0, np.bool_)
        rest[place] = Bits(run, rule, _pack(_union(present, np.concatenate(numbers))))
    return tuple(rest.values())


def _as_one(taken: Sequence[Bits]) -> tuple[Bits, ...]:
    """Make one of the older half, of no run."""
    half = (len(taken) + 1) // 2
    older = np.zeros(0, np.bool_)
    for one in taken[:half]:
        older = _union(older, np.flatnonzero(_unpack(one.bits)))
    return (Bits("", 0, _pack(older)), *taken[half:])


def _union(flags: _Flags, numbers: Numbers) -> _Flags:
    found = np.zeros(max(len(flags), int(numbers.max()) + 1 if len(numbers) else 0), np.bool_)
    found[: len(flags)] = flags
    found[numbers] = True
    return found


def _pack(flags: _Flags) -> bytes:
    return zlib.compress(np.packbits(flags, bitorder="little").tobytes(), 6)


def _unpack(bits: bytes) -> _Flags:
    return np.unpackbits(np.frombuffer(zlib.decompress(bits), np.uint8), bitorder="little").astype(np.bool_)
