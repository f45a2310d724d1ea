"""Collect every named address: of ranges of commits, of records outside of commits, and of unfinished runs.

Each of the three is a `Source`: in a task it reads the addresses that its rows name, and yields them in pieces. Two
sinks write any source into the run's folder in buckets (gc/mark/sets/bucketed.py):

    deal_live   LIVE: a bitmap for each slice, and foreign keys if they are wanted
    deal_keys   NAMED: foreign keys alone
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE
from lakebed.gc import messages
from lakebed.gc.engines import Effort, Engine, Task
from lakebed.gc.engines.tables import (
    CANDIDATES,
    LIVE,
    PARTS,
    Table,
    check_table,
    check_whole,
    decode,
    encode,
    parts_of,
    read_part,
    rows_by_key,
    write_part,
)
from lakebed.gc.mark.sets.bucketed import (
    HELD_MAX,
    NAMED,
    Bucketed,
    Dealer,
    buckets_of,
    effort_of,
    files_of,
    in_shares,
    in_side,
    rows_of_shares,
)
from lakebed.gc.mark.sets.packing import Integers, bitmap_of, lists_of, starts_of
from lakebed.gc.mark.sets.places import Namespace
from lakebed.gc.messages import Manifest, Pieces, Plan, StartedRun
from lakebed.gc.runs.context import RunContext, folder_in
from lakebed.objectstore import ObjectStore

DUE: Final = "due/"
STAYS: Final = "stays/"
"""The folders of a task's sides: candidates, and objects that stay."""


class LiveSet:
    """Collect the named objects of one task: a bitmap a slice, and foreign keys, in any order.

    Marks that compare millions of keys write them to files instead (gc/mark/sets/bucketed.py)."""

    def __init__(self) -> None:
        self._words: dict[int, npt.NDArray[np.uint64]] = {}
        self._keys: list[pa.Array] = []

    def room(self, slice_: int, words: int) -> npt.NDArray[np.uint64]:
        """Return the slice's bitmap, with at least `words` 64-bit words, to set bits in. Valid until the next call."""
        have = self._words.get(slice_)
        if have is None or len(have) < words:
            # Grow by doubling: a slice may arrive in many pieces, each a little longer.
            grown = np.zeros(max(words, 2 * len(have) if have is not None else 0), np.uint64)
            if have is not None:
                grown[: len(have)] = have
            self._words[slice_] = have = grown
        return have

    def add_numbers(self, slices: Integers, sequences: Integers) -> None:
        """Add objects of slices, as two parallel arrays."""
        order = np.argsort(slices, kind="stable")
        slices, sequences = slices[order], sequences[order]
        starts = starts_of(slices)
        for slice_, part in zip(slices[starts].tolist(), np.split(sequences, starts[1:]), strict=False):
            self.add_bits(slice_, bitmap_of(part))

    def add_bits(self, slice_: int, bits: npt.NDArray[np.uint8]) -> None:
        self.room(slice_, (len(bits) + 7) // 8).view(np.uint8)[: len(bits)] |= bits

    def add_addresses(self, addresses: pa.Array, namespace: Namespace) -> None:
        """Add foreign addresses, spelled as in entries."""
        keys, numbers = namespace.places_of(addresses)
        self._keys.append(keys)
        self._add_places(numbers)

    def add_entries(self, rows: pa.Table, namespace: Namespace) -> None:
        """Add the objects of a range's rows, by their slice and sequence, or their address."""
        slices = rows["slice"].to_numpy()
        own = slices != FOREIGN_SLICE
        self.add_numbers(slices[own], rows["sequence"].to_numpy()[own].astype(np.int64))
        if not own.all():
            self.add_addresses(rows["address"].filter(pa.array(~own)).combine_chunks(), namespace)

    def add_numbers_among(self, addresses: pa.Array, namespace: Namespace) -> None:
        """Add the foreign addresses that are another spelling of a slice and a sequence, and leave out the keys."""
        self._add_places(namespace.numbers_of(addresses))

    def _add_places(self, places: Sequence[tuple[int, int]]) -> None:
        if places:
            slices, sequences = np.array(places, np.int64).T
            self.add_numbers(slices, sequences)

    def add_rows(self, live: pa.Table) -> None:
        """Add LIVE rows without nulls."""
        for bucket, bitmap in zip(live["bucket"].to_pylist(), live["bitmap"].to_pylist(), strict=True):
            if bucket >= 0:
                self.add_bits(bucket, np.frombuffer(bitmap, np.uint8))
        self._keys += pc.list_flatten(live["addresses"]).chunks

    @property
    def keys_held(self) -> int:
        return sum(map(len, self._keys))

    def take_keys(self) -> pa.Table:
        """Return LIVE of the keys, one row a bucket, and drop the keys."""
        keys = pc.unique(pa.concat_arrays([pa.array([], pa.string()), *self._keys]))
        self._keys = []
        buckets = -1 - buckets_of(keys).astype(np.int64)
        order = np.argsort(buckets, kind="stable")
        starts = starts_of(buckets[order])
        return _live(buckets[order][starts], addresses=lists_of(keys, order, starts))

    def rows(self) -> pa.Table:
        """Return LIVE, one row a bucket, and drop the keys."""
        slices = sorted(self._words)
        # `room` grows bitmaps in steps. LIVE has no zero bytes at the end.
        bitmaps = [self._words[slice_].tobytes().rstrip(b"\0") for slice_ in slices]
        return pa.concat_tables([self.take_keys(), _live(slices, bitmap=bitmaps)])


def _live(buckets: Any, **columns: Any) -> pa.Table:
    """Return LIVE rows with one of the columns filled."""
    nothing: dict[str, Any] = {"bitmap": b"", "addresses": []}
    empty = {name: [value] * len(buckets) for name, value in nothing.items()}
    return LIVE.rows({"bucket": buckets, **empty, **columns})


class Named(NamedTuple):
    """Hold some named objects: `fill` adds addresses of slices to a set; `foreign` has the others, as spelled."""

    fill: Callable[[LiveSet], None]
    foreign: pa.Array | None


Source: TypeAlias = Callable[[Task, pa.Table], AsyncIterator[Named]]


class Sides:
    """Hold the results of one task, each side in a folder of its own: candidates, objects that stay, and others."""

    def __init__(self, folder: str, namespace: Namespace, others: Mapping[str, Table] = MappingProxyType({})) -> None:
        self._folder = folder
        self._namespace = namespace
        self._live = LiveSet()
        self._dealers = {side: Dealer(table) for side, table in {DUE: CANDIDATES, STAYS: LIVE, **others}.items()}

    def add(self, side: str, rows: pa.Table) -> None:
        if rows.num_rows:
            self._dealers[side].add(rows)

    def add_staying(self, entries: pa.Table) -> None:
        self._live.add_entries(entries, self._namespace)

    async def write(self, task: Task, *, held_max: int = 0) -> AsyncIterator[pa.Table]:
        """Write each side with at least `held_max` rows, by default all. Yield rows of PARTS that name the side."""
        stays = self._dealers[STAYS]
        if not held_max:
            stays.add(self._live.rows())
        elif self._live.keys_held >= held_max:
            stays.add(self._live.take_keys())
        for side, dealer in self._dealers.items():
            if dealer.held >= held_max and dealer.has_rows:
                yield in_side(side, await dealer.write(task.store, self._folder + side))


async def deal_live(
    engine: Engine, source: Source, rows: pa.Table, *, uri: str, folder: str, with_keys: bool, effort: Effort
) -> Bucketed:
    """Write LIVE of the objects that `source` reads from `rows` into `folder`.

    Other spellings of a slice's address are recognised with or without keys. A task holds a bitmap for each slice, and
    up to HELD_MAX keys if they are wanted.
    """
    namespace = Namespace(uri)

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        live, dealer = LiveSet(), Dealer(LIVE)
        async for named in source(task, share):
            named.fill(live)
            if named.foreign is not None and with_keys:
                live.add_addresses(named.foreign, namespace)
                # Bitmaps are small and stay in memory. Keys may be millions, so write them early.
                if live.keys_held >= HELD_MAX:
                    dealer.add(live.take_keys())
                    yield await dealer.write(task.store, folder)
            elif named.foreign is not None:
                live.add_numbers_among(named.foreign, namespace)
        found = live.rows()
        if found.num_rows:
            dealer.add(found)
            yield await dealer.write(task.store, folder)

    return files_of(folder, await engine.run(work, rows, PARTS, effort=effort))


async def deal_keys(
    engine: Engine, source: Source, rows: pa.Table, *, uri: str, folder: str, effort: Effort
) -> Bucketed:
    """Write NAMED of the objects that `source` reads from `rows` into `folder`."""
    namespace = Namespace(uri)

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        keys = Dealer(NAMED)
        async for named in source(task, share):
            if named.foreign is not None:
                keys.add_keys(namespace.places_of(named.foreign)[0])
            if keys.held >= HELD_MAX:
                yield await keys.write(task.store, folder)
        if keys.has_rows:
            yield await keys.write(task.store, folder)

    return files_of(folder, await engine.run(work, rows, PARTS, effort=effort))


async def merge_live(engine: Engine, dealt: Bucketed, *, folder: str) -> Pieces:
    """Write the LIVE rows of `dealt` into `folder`, each bucket in one row of one part."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async for buckets, (tables,) in in_shares(task, share, ([dealt], LIVE)):
            live = LiveSet()
            for rows in tables:
                check_whole(rows, "live objects")
                live.add_rows(rows)
            together = live.rows()
            # The buckets are in this share only, so the first one makes the name unique.
            name = f"bucket-{buckets.first:04d}.parquet"
            yield await write_part(task.store, folder, name, encode(LIVE, together), rows=together.num_rows, note=None)

    # One row a bucket takes an eighth of a byte for each object ever written. Tasks read all of it beside their
    # listing, which is a hundred times as large and is not moved.
    written = await engine.run(work, rows_of_shares(dealt), PARTS, effort=effort_of(dealt))
    return Pieces(folder=folder, parts=tuple(parts_of(written.sort_by("name"))))


async def read_live(store: ObjectStore, live: Pieces) -> pa.Table:
    """Read LIVE.

    Raises:
        BadInput: a part is missing or differs.
    """
    tables = [decode(LIVE, await read_part(store, live.folder, part), part) for part in live.parts]
    return pa.concat_tables([LIVE.schema.empty_table(), *tables]).combine_chunks()


def from_tables(tables: Sequence[Manifest], table: messages.Table) -> tuple[Source, pa.Table, Effort]:
    """Return the source of all addresses in these tables (UNCOMMITTED or GARBAGE), its rows, and their effort.

    Raises:
        BadInput: a manifest is of another table, or of an unknown version.
    """
    for manifest in tables:
        check_table(manifest, table)
    of_key = {one.folder + part.name: (one, part) for one in tables for part in one.parts}

    async def source(task: Task, share: pa.Table) -> AsyncIterator[Named]:
        for named in parts_of(share):
            manifest, part = of_key[named.name]
            data = await read_part(task.store, "", named)
            # Check every part against its manifest: a missing one would mean "no record names these objects".
            rows = messages.read_part(manifest, table, part, data, ["slice", "sequence"])
            is_foreign = pc.equal(rows["slice"], FOREIGN_SLICE)
            foreign = None
            if pc.any(is_foreign).as_py():
                # Addresses are most of the bytes, and only foreign ones are needed.
                texts = messages.read_part(manifest, table, part, data, ["address"])["address"]
                foreign = texts.filter(is_foreign).combine_chunks()
                rows = rows.filter(pc.invert(is_foreign))
            yield Named(_filler(rows["slice"].to_numpy(), rows["sequence"].to_numpy()), foreign)

    return source, rows_by_key(tables), Effort(size_bytes=sum(manifest.size_bytes for manifest in tables))


async def deal_tables(
    context: RunContext, run: StartedRun | Plan, tables: Sequence[Manifest], table: messages.Table, name: str
) -> Bucketed:
    """Deal the objects that these tables of one kind name. `name` keeps the folders of several looks apart."""
    source, rows, effort = from_tables(tables, table)
    return await deal_live(
        context.engine,
        source,
        rows,
        uri=run.namespace,
        folder=folder_in(run, f"{name}.tasks"),
        with_keys=True,
        effort=effort,
    )


def _filler(slices: Integers, sequences: Integers) -> Callable[[LiveSet], None]:
    return lambda live: live.add_numbers(slices, sequences)
