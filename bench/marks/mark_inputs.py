"""The inputs of a mark, as files: `python -m bench.marks.mark_inputs FOLDER SLICES numbered|foreign` makes them all.

2,000 closed slices of 10,000 objects each lie in the namespace (20 M). Of every twenty objects nothing names one
(1 M in all), four by the uncommitted input alone (4 M), which also names 500 objects in each of as many newer slices
(1 M), and fifteen by commits: 5,000 ranges of 10,000 entries (50 M rows: each object is in three or four), each range
with objects of twenty slices. In half of the ranges they are neighbours in their slice, in the other half scattered
over it.

Range files are written by the project's own code; columns that no mark reads (checksum, metadata) are left empty. The
listing is written as a listing's tasks write it, without a namespace of 20 M files. The same rows, as text, are written
for the floor: one string column, in files of about a million rows.

*Foreign*: the same objects under addresses that are no slice and sequence (`data/import/<slice>/<digits>.parquet`), so
that each has to be compared as a string.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakebed.base import FOREIGN_SLICE, RunId, slice_name, slice_number
from lakebed.gc import messages
from lakebed.gc.engines.engine import CANDIDATES, encode
from lakebed.gc.engines.files import Lake
from lakebed.gc.kinds.uncommitted.old_layout import HELD_MAX
from lakebed.gc.mark.inputs.listing import UNREFERENCED
from lakebed.gc.mark.sets.bucketed import LISTED, Bucketed, BucketFile, by_bucket, write_bucketed
from lakebed.gc.mark.sets.packing import pack_numbered
from lakebed.objectstore import ObjectStoreOptions
from lakebed.ranges import ENTRIES_SCHEMA, RangeInfo, encode_metarange, encode_range, metarange_key, range_key

PER_SLICE = 10_000
PER_RANGE = 10_000
SLICES_OF_A_RANGE = 20
SLICES_TOGETHER = 100
RANGES_TOGETHER = 100
RANGES_OF_A_COMMIT = 20
NOW_MS = 1_790_000_000_000
WRITTEN_MS = 1_500_000_000_000
FIRST_SLICE = slice_number(opened_at_ms=NOW_MS, random_bits=0)
_NEWER = 1 << 40

_sequences = np.arange(PER_SLICE)
GARBAGE = _sequences[_sequences % 20 == 7]
STAGED = _sequences[_sequences % 5 == 1]
COMMITTED = np.setdiff1d(_sequences, np.concatenate((GARBAGE, STAGED)))

Integers = npt.NDArray[np.int64]


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What `mark_session` gets: all that a planner asks the server for, and what its listing finds: in slices, or
    outside of them."""

    listed: messages.Pieces
    elsewhere: Bucketed
    uncommitted: messages.Manifest
    commits: messages.Manifest
    garbage: int
    slices: int


@dataclass(frozen=True, slots=True)
class Made:
    """What one piece of work wrote."""

    parts: list[messages.Part]
    ranges: list[RangeInfo]
    keys: list[BucketFile]


def lake_in(folder: Path) -> Lake:
    return Lake(uri="local://bench/mark", options=ObjectStoreOptions(local_root=folder, local_durable=False))


def make(folder: Path, slices: int, *, foreign: bool) -> None:
    run = RunId("bench")
    listed_in = messages.input_folder(messages.RunKind.UNCOMMITTED, run, "listed")
    uncommitted_in = messages.input_folder(messages.RunKind.UNCOMMITTED, run, messages.UNCOMMITTED.name)
    (folder / "floor").mkdir()
    ranges = slices * 5 // 2
    stretches = [(start, min(start + SLICES_TOGETHER, slices)) for start in range(0, slices, SLICES_TOGETHER)]
    batches = [(start, min(start + RANGES_TOGETHER, ranges)) for start in range(0, ranges, RANGES_TOGETHER)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        listed = [pool.submit(make_listed, folder, foreign, listed_in, *stretch) for stretch in stretches]
        named = [pool.submit(make_uncommitted, folder, foreign, uncommitted_in, *stretch) for stretch in stretches]
        made = [pool.submit(make_ranges, folder, foreign, slices, *batch) for batch in batches]
        listed_parts = tuple(part for future in listed for part in future.result().parts)
        listed_keys = tuple(file for future in listed for file in future.result().keys)
        named_parts = [part for future in named for part in future.result().parts]
        ranges_made = [info for future in made for info in future.result().ranges]
    inputs = Inputs(
        listed=messages.Pieces(folder=listed_in, parts=listed_parts),
        elsewhere=Bucketed(folder=listed_in, files=listed_keys),
        uncommitted=messages.manifest_of(messages.UNCOMMITTED, uncommitted_in, named_parts),
        commits=asyncio.run(_make_commits(folder, run, ranges_made)),
        garbage=slices * len(GARBAGE),
        slices=slices,
    )
    (folder / "inputs.json").write_bytes(msgspec.json.encode(inputs))


def make_listed(folder: Path, foreign: bool, into: str, first: int, behind: int) -> Made:
    """One part of the listing (or files of keys, as many in one as a listing holds), and its rows for the floor."""
    places = _places(range(first, behind), _sequences)
    noise = np.random.default_rng(first)
    sizes = noise.integers(1_000_000, 2_000_000, len(places[0]))
    seen_ms = WRITTEN_MS - noise.integers(0, 86_400_000, len(places[0]))
    addresses = _addresses(*places, foreign=foreign)
    _write_floor(folder, f"stored-{first:06d}", addresses)
    if foreign:
        files = []
        for start in range(0, len(addresses), HELD_MAX):
            part = slice(start, start + HELD_MAX)
            columns = {"key": addresses[part], "size_bytes": sizes[part], "seen_ms": seen_ms[part]}
            files.append(asyncio.run(_write_keys(folder, into, by_bucket(columns, LISTED))))
        return Made([], [], files)
    packed = pack_numbered(*places, sizes, seen_ms, UNREFERENCED)
    name = f"slices-{first:06d}.parquet"
    return Made([_write_part(folder, into, name, encode(CANDIDATES, packed), packed.num_rows)], [], [])


def make_uncommitted(folder: Path, foreign: bool, into: str, first: int, behind: int) -> Made:
    """One part of the uncommitted input, and its rows for the floor."""
    newer = _places(range(first + _NEWER, behind + _NEWER), np.arange(500))
    slices, sequences = (
        np.concatenate(both) for both in zip(_places(range(first, behind), STAGED), newer, strict=True)
    )
    addresses = _addresses(slices, sequences, foreign=foreign)
    same = {"creation_date": NOW_MS, "source": "staging", "branch": "main"}
    schema = messages.arrow_schema(messages.UNCOMMITTED)
    columns = {"address": addresses} | _numbers(slices, sequences, foreign=foreign)
    columns |= {name: pa.repeat(pa.scalar(value, schema.field(name).type), len(slices)) for name, value in same.items()}
    rows = pa.table([columns[name] for name in schema.names], schema=schema)
    data = messages.encode_part(messages.UNCOMMITTED, rows)
    part = _write_part(folder, into, f"part-{first:05d}.parquet", data, rows.num_rows)
    _write_floor(folder, f"uncommitted-{first:06d}", addresses)
    return Made([part], [], [])


def make_ranges(folder: Path, foreign: bool, slices: int, first: int, behind: int) -> Made:
    """So many ranges, and their rows for the floor."""
    return asyncio.run(_make_ranges(folder, foreign, slices, first, behind))


async def _make_ranges(folder: Path, foreign: bool, slices: int, first: int, behind: int) -> Made:
    store = lake_in(folder).open()
    made: list[RangeInfo] = []
    texts = []
    for number in range(first, behind):
        places = _of_range(number, slices)
        addresses = _addresses(*places, foreign=foreign)
        info, data = encode_range(entries_of(number, *places, addresses if foreign else None))
        await store.put(range_key(info.id), data)
        made.append(info)
        texts.append(addresses)
    await store.close()
    _write_floor(folder, f"committed-{first:06d}", pa.chunked_array(texts))
    return Made([], made, [])


async def _make_commits(folder: Path, run: RunId, ranges: list[RangeInfo]) -> messages.Manifest:
    """A commit for so many ranges, each with two such stretches: every range is in two commits."""
    store, into = (
        lake_in(folder).open(),
        messages.input_folder(messages.RunKind.UNCOMMITTED, run, messages.COMMITS.name),
    )
    stretches = [ranges[start : start + RANGES_OF_A_COMMIT] for start in range(0, len(ranges), RANGES_OF_A_COMMIT)]
    metaranges = []
    for first, second in zip(stretches, stretches[1:] + stretches[:1], strict=True):
        id_, data = encode_metarange(sorted({*first, *second}, key=lambda info: info.min_key))
        await store.put(metarange_key(id_), data)
        metaranges.append(id_)
    same: dict[str, Any] = {"generation": 0, "creation_date": NOW_MS, "parents": [], "swept": False, "expiring": False}
    columns = {"id": [f"{number:064x}" for number in range(len(metaranges))], "metarange_id": metaranges}
    columns |= {name: [value] * len(metaranges) for name, value in same.items()}
    schema = messages.arrow_schema(messages.COMMITS)
    data = messages.encode_part(
        messages.COMMITS, pa.table({name: columns[name] for name in schema.names}, schema=schema)
    )
    part = messages.part_of(messages.part_name(0), data, rows=len(metaranges))
    await store.put(into + part.name, data)
    await store.close()
    return messages.manifest_of(messages.COMMITS, into, [part])


def _of_range(number: int, slices: int) -> tuple[Integers, Integers]:
    """Each turn over all committed objects is cut into ranges, with other slices side by side in every turn."""
    each = PER_RANGE // SLICES_OF_A_RANGE
    a_group = len(COMMITTED) // each
    turn, at = divmod(number, slices // SLICES_OF_A_RANGE * a_group)
    group, place = divmod(at, a_group)
    shuffled = np.random.default_rng(turn).permutation(slices)
    chosen = np.sort(shuffled[group * SLICES_OF_A_RANGE : (group + 1) * SLICES_OF_A_RANGE])
    of_each = COMMITTED[place::a_group] if turn % 2 else COMMITTED[place * each : (place + 1) * each]
    return _places(chosen.tolist(), of_each)


def _places(slices: Sequence[int] | range, sequences: Integers) -> tuple[Integers, Integers]:
    """Slice and sequence of every object: all of these sequences in each of these slices."""
    numbers = np.array(slices, np.int64) + FIRST_SLICE
    return np.repeat(numbers, len(sequences)), np.tile(sequences, len(numbers))


def entries_of(number: int, slices: Integers, sequences: Integers, addresses: pa.Array | None) -> pa.Table:
    """`addresses` where they are foreign."""
    rows = len(slices)
    digits = pc.utf8_lpad(pc.cast(pa.array(np.arange(rows)), pa.string()), 5, "0")
    keys = pc.binary_join_element_wise(f"lake/table-{number:04d}/part-", digits, ".parquet", "")
    same = {"checksum": "", "content_type": "application/octet-stream", "metadata": b""}
    columns = {
        "address": pa.repeat("", rows) if addresses is None else addresses,
        "key": keys.cast(pa.binary()),
        "digest": slices * 31 + sequences * 7919 + number,
        **_numbers(slices, sequences, foreign=addresses is not None),
        "size_bytes": 1_000_000 + sequences,
        "modified_ms": NOW_MS - sequences,
    }
    columns |= {n: pa.repeat(pa.scalar(value, ENTRIES_SCHEMA.field(n).type), rows) for n, value in same.items()}
    return pa.table([columns[name] for name in ENTRIES_SCHEMA.names], schema=ENTRIES_SCHEMA)


def _numbers(slices: Integers, sequences: Integers, *, foreign: bool) -> dict[str, Any]:
    if foreign:
        return {"slice": np.full(len(slices), FOREIGN_SLICE), "sequence": np.zeros(len(slices), np.int32)}
    return {"slice": slices, "sequence": sequences.astype(np.int32)}


def _addresses(slices: Integers, sequences: Integers, *, foreign: bool) -> pa.Array:
    encoded = pa.array(slices).dictionary_encode()
    above = "data/import" if foreign else "data"
    folders = pa.array([f"{above}/{slice_name(number)}/" for number in encoded.dictionary.to_pylist()])
    digits = pc.utf8_lpad(pc.cast(pa.array(sequences), pa.string()), 8, "0")
    return pc.binary_join_element_wise(folders.take(encoded.indices), digits, ".parquet" if foreign else "", "")


def _write_part(folder: Path, into: str, name: str, data: bytes, rows: int) -> messages.Part:
    async def put() -> None:
        store = lake_in(folder).open()
        await store.put(into + name, data)
        await store.close()

    asyncio.run(put())
    return messages.part_of(name, data, rows=rows)


async def _write_keys(folder: Path, into: str, rows: pa.Table) -> BucketFile:
    store = lake_in(folder).open()
    file = await write_bucketed(store, into, rows)
    await store.close()
    return file


def _write_floor(folder: Path, name: str, addresses: pa.Array | pa.ChunkedArray) -> None:
    pq.write_table(pa.table({"address": addresses}), folder / "floor" / f"{name}.parquet", use_dictionary=False)


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]), foreign=sys.argv[3] == "foreign")
