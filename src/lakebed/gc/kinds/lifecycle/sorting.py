"""Separate the ranges of a history that may have due rows, in this process, or in tasks if ranges are many.

1. A task reads some parts of trees, unites the masks of each range, and writes ranges with masks into buckets.
2. A task of a second map unites the masks of a bucket, separates the ranges, and writes files of them.
3. This process then has only the names of files, and the terms of each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from lakebed.gc.engines import Effort, Engine, Task
from lakebed.gc.engines.engine import PARTS, RANGES, Table, decode, parts_of, read_part, required
from lakebed.gc.mark.inputs.ranges import IN_ROWS_MAX, FileNote, ListedRanges, cut_for_files, note_of, write_file
from lakebed.gc.mark.sets.bucketed import HELD_MAX, Dealer, effort_of, files_of, in_shares, rows_of_shares
from lakebed.gc.messages import Part, Pieces, TreePart
from lakebed.gc.rules.lifecycle import Policy
from lakebed.gc.runs.context import RunContext, write_piece
from lakebed.objectstore import ObjectStore

from .reaching import DUE_RANGES, SPANS, Ranges, Reached, Terms, check_found, sort_out
from .trees import DEALT_RANGES, RangeMasks, TreeParts, read_new

MASKS: Final = Table(
    "a metarange or a sublist, and the number of its mask", required(("tree_id", pa.string()), ("number", pa.int64()))
)
MASK_BITS_MAX: Final = 1024
"""With longer masks, sort in this process: a range has the number of its mask here, and in files the mask itself.

A bit is a class of branches. A policy that keeps versions of many branches has many classes."""
TREE_PARTS: Final = Table("a part of trees, as JSON", required(("part", pa.binary())))
DUE_FILE: Final = Table(
    "a range to read, the number of its cut-offs in its file, its first and its last key",
    pa.schema([*DUE_RANGES.schema, *SPANS.schema]),
)


class _DueNote(FileNote, frozen=True):
    """Hold the `terms` of a file by number, or the `numbers` of these among all terms."""

    terms: tuple[Terms, ...] = ()
    numbers: tuple[int, ...] = ()


async def sort_ranges(
    engine: Engine,
    store: ObjectStore,
    reached: Reached,
    policy: Policy,
    known: TreeParts,
    *,
    folder: str,
    tell: Callable[[str], None],
) -> tuple[TreeParts, Ranges]:
    """Return all parts of trees, known ones and new ones in `folder`, and the ranges of the reached trees.

    More than IN_ROWS_MAX ranges stay in files, unless `known` has parts or a mask has more than MASK_BITS_MAX.

    Raises:
        BadInput: a part is missing or altered.
        EmptyLiveSet: commits have entries, but no range was read.
    """
    of_metaranges = reached.masks()
    new, found = await read_new(engine, store, of_metaranges, known, folder=folder, tell=tell)
    masks, parts = of_metaranges | found.sublists, [*new.narrow, *new.sublists]
    every = known.plus(new)
    is_narrow = max(map(int.bit_length, masks.values()), default=0) <= MASK_BITS_MAX
    # The ranges of an earlier run are in this process anyway, so tasks save no memory then.
    if is_narrow and known == TreeParts() and sum(part.ranges.rows for part in parts) > IN_ROWS_MAX:
        return every, await _sort_in_tasks(engine, store, parts, masks, reached, policy, folder=folder)
    await found.add(store, parts, masks)
    return every, sort_out(found.ranges(), found.masks, reached, policy)


async def _sort_in_tasks(
    engine: Engine,
    store: ObjectStore,
    parts: Sequence[TreePart],
    masks: Mapping[str, int],
    reached: Reached,
    policy: Policy,
    *,
    folder: str,
) -> Ranges:
    distinct = sorted({*masks.values()})
    places = {mask: place for place, mask in enumerate(distinct)}
    numbers = MASKS.rows({"tree_id": [*masks], "number": [places[mask] for mask in masks.values()]})
    written = await write_piece(store, folder, "masks-all.parquet", MASKS, numbers)
    # Tasks need only the classes. Do not send them the long list of metaranges.
    by_classes = replace(reached, metaranges=reached.metaranges.slice(0, 0), sets=[])

    async def deal(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        of_trees = await _read_masks(task.store, written, distinct)
        found = RangeMasks()
        for part in share["part"].to_pylist():
            await found.add(task.store, [msgspec.json.decode(part, type=TreePart)], of_trees)
            if found.count >= HELD_MAX:
                yield await _deal(task, found, folder)
                found = RangeMasks()
        if found.count:
            yield await _deal(task, found, folder)

    async def sort(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async for _, (tables,) in in_shares(task, share, ([dealt], DEALT_RANGES)):
            # A bucket has all masks of its ranges, so their union is complete.
            found = RangeMasks()
            found.add_dealt(tables)
            ranges = sort_out(found.ranges(), found.masks, by_classes, policy)
            due = pa.table([*ranges.due.columns, *ranges.spans.columns], schema=DUE_FILE.schema)
            for some in cut_for_files(due):
                yield await _write_due(task, folder, some, ranges.terms)
            for some in cut_for_files(_rows_of_whole(ranges.whole)):
                yield await write_file(task, folder, RANGES, some, note_of(some, live=True))

    rows = TREE_PARTS.rows({"part": [msgspec.json.encode(part) for part in parts]})
    size_bytes = sum(part.ranges.size_bytes + part.trees.size_bytes for part in parts)
    found = await engine.run(deal, rows, PARTS, effort=Effort(requests=2 * len(parts), size_bytes=size_bytes))
    dealt = files_of(folder, found)
    files = ListedRanges(await engine.run(sort, rows_of_shares(dealt), PARTS, effort=effort_of(dealt)))
    check_found(reached, files.count)
    due, terms = _numbered(files.of(live=False).rows)
    return Ranges(due=due, terms=terms, whole=files.of(live=True).rows)


async def _read_masks(store: ObjectStore, written: Pieces, distinct: Sequence[int]) -> dict[str, int]:
    [part] = written.parts
    rows = decode(MASKS, await read_part(store, written.folder, part), part)
    ids, numbers = (rows[name].to_pylist() for name in MASKS.schema.names)
    return {id_: distinct[number] for id_, number in zip(ids, numbers, strict=True)}


async def _deal(task: Task, found: RangeMasks, folder: str) -> pa.Table:
    dealer = Dealer(DEALT_RANGES)
    dealer.add(found.dealt())
    return await dealer.write(task.store, folder)


def _rows_of_whole(whole: pa.Table) -> pa.Table:
    """Return whole ranges as RANGES."""
    count = whole.num_rows
    nothing = {"seen_ms": [0] * count, "reason": [""] * count, "rule": [""] * count, "branch": [""] * count}
    facts = {name: whole[name] for name in ("range_id", "count", "file_bytes")}
    return RANGES.rows({**facts, "is_live": [True] * count, **nothing})


async def _write_due(task: Task, folder: str, rows: pa.Table, terms: Sequence[Terms]) -> pa.Table:
    """Write a DUE_FILE, with numbers of terms that apply to this file only."""
    of_task, numbers = np.unique(rows["terms"].to_numpy(), return_inverse=True)
    at = rows.schema.get_field_index("terms")
    own = rows.set_column(at, rows.schema.field(at), pa.array(numbers, pa.int32()))
    note = _DueNote(
        **msgspec.structs.asdict(note_of(rows, live=False)), terms=tuple(terms[number] for number in of_task.tolist())
    )
    return await write_file(task, folder, DUE_FILE, own, note)


def _numbered(files: pa.Table) -> tuple[pa.Table, list[Terms]]:
    """Number the terms of all files. Return these PARTS with the numbers in their notes, and the terms."""
    # Tasks do not know each other's terms, so each file numbers its own. Here all files get common numbers.
    numbers: dict[Terms, int] = {}
    notes = []
    for note in files["note"].to_pylist():
        found = msgspec.json.decode(note, type=_DueNote)
        of_file = tuple(numbers.setdefault(one, len(numbers)) for one in found.terms)
        notes.append(msgspec.json.encode(msgspec.structs.replace(found, terms=(), numbers=of_file)))
    at = PARTS.schema.get_field_index("note")
    return files.set_column(at, PARTS.schema.field(at), pa.array(notes, pa.binary())), list(numbers)


async def due_in(task: Task, share: pa.Table) -> pa.Table:
    """Return the DUE_RANGES in a share of `Ranges.due`, or raise BadInput."""
    if not ListedRanges(share).in_files:
        return share
    found = [rows async for _, rows in task.ahead(_due_files(share), lambda one: _read_due(task.store, *one))]
    return pa.concat_tables([DUE_FILE.schema.empty_table(), *found]).select(DUE_RANGES.schema.names)


def _due_files(files: pa.Table) -> list[tuple[Part, tuple[int, ...]]]:
    notes = [msgspec.json.decode(note, type=_DueNote).numbers for note in files["note"].to_pylist()]
    return list(zip(parts_of(files), notes, strict=True))


async def _read_due(store: ObjectStore, part: Part, numbers: Sequence[int]) -> pa.Table:
    rows = decode(DUE_FILE, await read_part(store, "", part), part)
    at = rows.schema.get_field_index("terms")
    return rows.set_column(at, rows.schema.field(at), pa.array(np.array(numbers, np.int32)[rows["terms"].to_numpy()]))


async def in_rows(context: RunContext, ranges: Ranges) -> Ranges:
    """Return the same ranges as rows, not in files, or raise BadInput."""
    if not ListedRanges(ranges.due).in_files:
        return ranges
    files, read = _due_files(ranges.due), lambda one: _read_due(context.store, *one)
    due = pa.concat_tables(
        [DUE_FILE.schema.empty_table(), *[rows async for _, rows in context.ports.tasks.ahead(files, read)]]
    )
    facts = [name for name in DUE_RANGES.schema.names if name != "terms"]
    whole = pa.concat_tables(
        [RANGES.schema.empty_table(), *[rows async for rows in ListedRanges(ranges.whole).each(context)]]
    ).select(facts)
    return Ranges(
        due=due.select(DUE_RANGES.schema.names),
        terms=ranges.terms,
        whole=whole.append_column(DUE_RANGES.schema.field("terms"), pa.array(np.zeros(whole.num_rows, np.int32))),
        spans=due.select(SPANS.schema.names),
    )
