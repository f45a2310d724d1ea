"""Verdicts written down: the garbage as Parquet parts of the run, and its totals on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, slice_name
from lakebed.gc import protocol
from lakebed.gc.protocol import Total, Totals
from lakebed.gc.rules import DAY_MS

from .bucketed import HELD_MAX, Bucketed, Dealer, files_of
from .engines import Effort, Engine, Task, Work
from .packing import Cause, pack_foreign, pack_numbered
from .ranges import in_closed_slices
from .tables import CANDIDATES, PARTS, parts_of, read_part, rows_of_parts, write_part

TOTALS_MAX: Final = 1000
"""How many branches, prefixes and slices a plan tells apart; the smallest beyond that are summed under `…`."""

WAYS: Final = ("reason", "rule", "branch", "prefix", "slice", "age")

ROWS_PER_PART: Final = 100_000
"""How much of a plan is done or not done: a sweep that is resumed begins with the first part that is not recorded."""


def sum_parts(written: pa.Table, folder: str) -> tuple[protocol.Manifest, Totals]:
    """Add up the PARTS that `write_portions` wrote into `folder` in all tasks."""
    parts = written.sort_by("name")
    totals = sum_totals(msgspec.json.decode(note, type=Totals) for note in parts["note"].to_pylist())
    return protocol.manifest_of(protocol.GARBAGE, folder, parts_of(parts)), totals


async def deal_again(engine: Engine, manifest: protocol.Manifest, *, folder: str, closed: Collection[int]) -> Bucketed:
    """Write CANDIDATES into `folder`: the objects of a plan (table GARBAGE), to be marked once more.

    Of a slice that is not closed now nothing may go.
    """
    slices = pa.array(sorted(closed), pa.int64())

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        dealer = Dealer(CANDIDATES)
        async for rows in read_rows(manifest)(task, share):
            for packed in _pack(rows):
                dealer.add(in_closed_slices(packed, slices))
            if dealer.held >= HELD_MAX:
                yield await dealer.write(task.store, folder)
        if dealer.has_rows:
            yield await dealer.write(task.store, folder)

    effort = Effort(size_bytes=manifest.size_bytes)
    return files_of(folder, await engine.run(work, rows_of_parts(manifest.parts), PARTS, effort=effort))


def read_rows(manifest: protocol.Manifest) -> Work:
    """The work from PARTS of a plan to its rows. A part that differs from the manifest stops it, named."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        for part in parts_of(share):
            data = await read_part(task.store, manifest.folder, part)
            yield protocol.read_part(manifest, protocol.GARBAGE, part, data)

    return work


async def write_portions(
    task: Task, folder: str, verdicts: AsyncIterator[pa.Table], *, now_ms: int
) -> AsyncIterator[pa.Table]:
    """In a task: VERDICTS become parts in `folder`; yields a row of PARTS for each, with its `Totals` as the note."""
    number = 0
    async for rows in _portions(verdicts):
        yield await _write_part(task, folder, number, _ordered(rows), now_ms=now_ms)
        number += 1


async def write_ordered(
    task: Task, folder: str, verdicts: AsyncIterator[pa.Table], *, now_ms: int
) -> AsyncIterator[pa.Table]:
    """Do what `write_portions` does, of tables that are each in the order of a part, and are not joined."""
    number = 0
    async for rows in verdicts:
        for start in range(0, rows.num_rows, ROWS_PER_PART):
            yield await _write_part(task, folder, number, rows.slice(start, ROWS_PER_PART), now_ms=now_ms)
            number += 1


async def _write_part(task: Task, folder: str, number: int, rows: pa.Table, *, now_ms: int) -> pa.Table:
    name = f"part-{task.number:05d}-{number:05d}.parquet"
    data = protocol.encode_part(protocol.GARBAGE, rows.select(list(protocol.GARBAGE.names())))
    return await write_part(task.store, folder, name, data, rows=rows.num_rows, note=totals_of(rows, now_ms=now_ms))


def _ordered(rows: pa.Table) -> pa.Table:
    """By slice, sequence and address: as what was listed comes anyhow."""
    slices, sequences = rows["slice"].to_numpy(), rows["sequence"].to_numpy()
    same = slices[1:] == slices[:-1]
    if bool(((slices[1:] > slices[:-1]) | same & (sequences[1:] > sequences[:-1])).all()):
        return rows
    return rows.sort_by([("slice", "ascending"), ("sequence", "ascending"), ("address", "ascending")])


async def _portions(tables: AsyncIterator[pa.Table]) -> AsyncIterator[pa.Table]:
    held: list[pa.Table] = []
    rows = 0
    async for table in tables:
        while rows + table.num_rows >= ROWS_PER_PART:
            cut = ROWS_PER_PART - rows
            yield pa.concat_tables([*held, table.slice(0, cut)])
            held, rows, table = [], 0, table.slice(cut)  # noqa: PLW2901 - what is left of it
        if table.num_rows:
            held.append(table)
            rows += table.num_rows
    if held:
        yield pa.concat_tables(held)


def totals_of(rows: pa.Table, *, now_ms: int) -> Totals:
    """VERDICTS counted in every way."""
    ways: dict[str, dict[str, Total]] = {}
    rows = rows.append_column("age", _ages(rows, now_ms))
    for way in WAYS:
        sums = (
            rows.select([way, "size_bytes"]).group_by(way).aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
        )
        columns = (sums[name].to_pylist() for name in (way, "size_bytes_count", "size_bytes_sum"))
        ways[f"by_{way}"] = {
            _label(name): Total(objects=count, size_bytes=size) for name, count, size in zip(*columns, strict=True)
        }
    size_bytes = pc.sum(rows["size_bytes"]).as_py() or 0
    return Totals(all=Total(objects=rows.num_rows, size_bytes=size_bytes), **ways)


def sum_totals(parts: Iterable[Totals]) -> Totals:
    """Add up many parts. A small total among very many is summed under `…`."""
    whole = Total()
    ways: dict[str, dict[str, Total]] = {way: {} for way in WAYS}
    for part in parts:
        whole = whole.plus(part.all)
        for way, sums in ways.items():
            for name, total in getattr(part, f"by_{way}").items():
                sums[name] = sums.get(name, Total()).plus(total)
    return Totals(all=whole, **{f"by_{way}": _largest(sums) for way, sums in ways.items()})


def _largest(sums: dict[str, Total]) -> dict[str, Total]:
    ordered = sorted(sums.items(), key=lambda item: (-item[1].size_bytes, -item[1].objects, item[0]))
    rest = Total()
    for _, total in ordered[TOTALS_MAX:]:
        rest = rest.plus(total)
    return dict(ordered[:TOTALS_MAX]) | ({"…": rest} if rest.objects else {})


def _ages(rows: pa.Table, now_ms: int) -> pa.Array:
    """For each row the name of its age (AGES). What is dated after now is young."""
    days = (now_ms - rows["last_seen_at"].cast(pa.int64()).to_numpy() // 1000) / DAY_MS
    bounds = [bound for _, bound in protocol.AGES if bound is not None]
    places = pa.array(np.searchsorted(bounds, days, side="right").astype(np.int32))
    return pa.array([name for name, _ in protocol.AGES]).take(places)


def _label(name: str | int) -> str:
    if isinstance(name, str):
        return name
    return "foreign" if name == FOREIGN_SLICE else slice_name(name)


def _pack(rows: pa.Table) -> Iterator[pa.Table]:
    """GARBAGE rows as CANDIDATES again. Branch and prefix are not in a plan's parts, and stay empty."""
    causes = rows.select(["reason", "rule"]).group_by(["reason", "rule"]).aggregate([]).to_pylist()
    for cause in sorted(causes, key=lambda row: (row["reason"], row["rule"])):
        same = pc.and_(pc.equal(rows["reason"], cause["reason"]), pc.equal(rows["rule"], cause["rule"]))
        yield from pack_garbage(rows.filter(same), Cause(**cause))


def pack_garbage(part: pa.Table, cause: Cause) -> Iterator[pa.Table]:
    """GARBAGE rows as CANDIDATES of this cause."""
    seen_ms = part["last_seen_at"].cast(pa.int64()).to_numpy()
    slices, sizes = part["slice"].to_numpy(), part["size_bytes"].to_numpy()
    own = slices != FOREIGN_SLICE
    sequences = part["sequence"].to_numpy().astype(np.int64)
    paths = part["path"].combine_chunks()
    named = paths.filter(pa.array(own))
    yield pack_numbered(slices[own], sequences[own], sizes[own], seen_ms[own], cause, paths=named)
    keys: Sequence[str] = part["address"].filter(pa.array(~own)).to_pylist()
    named = paths.filter(pa.array(~own))
    yield pack_foreign(keys, sizes[~own].tolist(), seen_ms[~own].tolist(), cause, paths=named)
