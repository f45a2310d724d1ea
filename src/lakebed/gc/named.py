"""Everything that is named, brought together: by ranges of commits, by whatever is in no commit, by unfinished runs.

Each of the three is a `Source`: in a task it reads what its rows name, and yields it piece by piece. Two sinks take any
source and write it into the run's folder in buckets (bucketed.py):

    deal_live   LIVE: a bitmap for each slice, and foreign keys if they are wanted
    deal_keys   NAMED: foreign keys alone

`merge_live` makes of the first one row a bucket. That is an eighth of a byte for each object there ever was: tasks that
go through a listing read all of it, and the listing itself, a hundred times as large, stays where it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE
from lakebed.gc import protocol
from lakebed.gc.protocol import Manifest, Pieces, Plan, StartedRun
from lakebed.objectstore import ObjectStore

from .bucketed import HELD_MAX, NAMED, Bucketed, Dealer, effort_of, files_of, in_shares, rows_of_shares
from .context import RunContext, folder_in
from .engines import Effort, Engine, Task
from .packing import Integers, LiveSet
from .places import Namespace
from .tables import LIVE, PARTS, check_table, check_whole, decode, encode, parts_of, read_part, rows_by_key, write_part


class Named(NamedTuple):
    """Some of what is named: `fill` adds the addresses of slices to a set; `foreign` are the others, as spelt."""

    fill: Callable[[LiveSet], None]
    foreign: pa.Array | None


Source: TypeAlias = Callable[[Task, pa.Table], AsyncIterator[Named]]


async def deal_live(
    engine: Engine, source: Source, rows: pa.Table, *, uri: str, folder: str, with_keys: bool, effort: Effort
) -> Bucketed:
    """Write LIVE of what `source` finds for `rows` into `folder`.

    An address of a slice in another spelling is found in either case. A task holds a bitmap for each slice, and up to
    HELD_MAX keys if they are wanted.
    """
    namespace = Namespace(uri)

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        live, dealer = LiveSet(), Dealer(LIVE)
        async for named in source(task, share):
            named.fill(live)
            if named.foreign is not None and with_keys:
                live.add_addresses(named.foreign, namespace)
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
    """Write NAMED of what `source` finds for `rows` into `folder`."""
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
            # The buckets are in this share only, so their numbers tell parts apart.
            name = f"bucket-{buckets.first:04d}.parquet"
            yield await write_part(task.store, folder, name, encode(LIVE, together), rows=together.num_rows, note=None)

    written = await engine.run(work, rows_of_shares(dealt), PARTS, effort=effort_of(dealt))
    return Pieces(folder=folder, parts=tuple(parts_of(written.sort_by("name"))))


async def read_live(store: ObjectStore, live: Pieces) -> pa.Table:
    """LIVE.

    Raises:
        BadInput: a part is missing or differs.
    """
    tables = [decode(LIVE, await read_part(store, live.folder, part), part) for part in live.parts]
    return pa.concat_tables([LIVE.schema.empty_table(), *tables]).combine_chunks()


def from_tables(tables: Sequence[Manifest], table: protocol.Table) -> tuple[Source, pa.Table, Effort]:
    """The source of all addresses in these tables (UNCOMMITTED or GARBAGE), the rows that it takes, and their effort.

    Every part is checked against its manifest: a part less would read as "no record names these objects".

    Raises:
        BadInput: a manifest is not one of this table, or of a version not known here.
    """
    for manifest in tables:
        check_table(manifest, table)
    of_key = {one.folder + part.name: (one, part) for one in tables for part in one.parts}

    async def source(task: Task, share: pa.Table) -> AsyncIterator[Named]:
        for named in parts_of(share):
            manifest, part = of_key[named.name]
            data = await read_part(task.store, "", named)
            rows = protocol.read_part(manifest, table, part, data, ["slice", "sequence"])
            is_foreign = pc.equal(rows["slice"], FOREIGN_SLICE)
            foreign = None
            if pc.any(is_foreign).as_py():
                # Texts are most of the bytes, and only foreign addresses need theirs.
                texts = protocol.read_part(manifest, table, part, data, ["address"])["address"]
                foreign = texts.filter(is_foreign).combine_chunks()
                rows = rows.filter(pc.invert(is_foreign))
            yield Named(_filler(rows["slice"].to_numpy(), rows["sequence"].to_numpy()), foreign)

    return source, rows_by_key(tables), Effort(size_bytes=sum(manifest.size_bytes for manifest in tables))


async def deal_tables(
    context: RunContext, run: StartedRun | Plan, tables: Sequence[Manifest], table: protocol.Table, name: str
) -> Bucketed:
    """Deal what these tables of one kind name. `name` tells the folder of tasks from those of other looks."""
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
