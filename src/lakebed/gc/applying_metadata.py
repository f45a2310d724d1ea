"""The recheck of a collection of metadata: what its plan wants, less what has come to need it.

The server gives up every id of the list for ever, ends the plans in it that were never applied, touches every branch,
and only then reads every commit record again (docs/design/protocols.md, "A collection of metadata"). Commits that stay
now and did not when the plan was made are all that can name a file of the plan: their metaranges are read, and what
they name stays. So does the folder of a run that somebody works on.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import MetarangeId, RangeId, RunId, count_of
from lakebed.gc import protocol
from lakebed.gc.protocol import GC_PREFIX, GivenUp, GiveUp, Manifest, Part, RunKind, input_folder, run_folder
from lakebed.objectstore import ObjectStore
from lakebed.ranges import metarange_key, range_key

from .files import Files
from .history import newly_kept
from .parts import read_part
from .read import named_ranges
from .rereading import reread
from .runs import Plan
from .strays import run_file
from .workshop import Workshop, read_input


def recheck_metadata(shop: Workshop, files: Files, plan: Plan) -> tuple[Manifest, Manifest]:
    """What may be deleted (table DOOMED), written down under a name of this recheck, and the commits it was made with.

    Raises:
        RunAbandoned: the server refused the list.
    """
    assert plan.leftovers is not None, "plans of metadata have one"
    shop.progress(f"giving up {count_of(plan.leftovers.rows, 'file or run', 'files and runs')}")
    request = GiveUp(leftovers=plan.leftovers)
    answer, spared = reread(
        shop,
        files,
        lambda: shop.live_side.give_up(plan.run_id, request),
        lambda answer: (answer, _named_since(shop, files, plan, answer)),
    )
    folder = input_folder(plan.kind, RunId(plan.run_id), f"{protocol.DOOMED.name}.{answer.commits.digest()[:16]}")
    alive = [run_folder(kind, RunId(run_id)) for kind in RunKind for run_id in answer.runs_alive]
    alive += files.act(lambda store: _taken_up(store, plan))
    parts = files.act(lambda store: _filter(store, plan, folder, spared, alive))
    return protocol.manifest_of(protocol.DOOMED, folder, parts), answer.commits


def _named_since(shop: Workshop, files: Files, plan: Plan, answer: GivenUp) -> pa.Array:
    """Keys of the files that commits name which the plan did not know, or counted as swept."""
    before = read_input(files, plan.commits, protocol.COMMITS)
    now = read_input(files, answer.commits, protocol.COMMITS)
    new, _ = newly_kept(before.filter(pc.invert(before["swept"])), now)
    if not new.num_rows:
        return pa.array([], pa.string())
    shop.progress(f"rechecking against {count_of(new.num_rows, 'new metarange')}")
    ranges = named_ranges(shop.spark, shop.lake, new, tasks=shop.tasks).toArrow()
    keys = [metarange_key(MetarangeId(id_)) for id_ in new["metarange_id"].to_pylist()]
    return pa.array(keys + [range_key(RangeId(id_)) for id_ in ranges["range_id"].to_pylist()], pa.string())


async def _taken_up(store: ObjectStore, plan: Plan) -> list[str]:
    """Folders of runs that wrote something since the plan."""
    listed_ms: dict[str, int] = {}
    for part in plan.doomed.parts:
        rows = await _read_doomed(store, plan, part)
        folders = rows.filter(pc.starts_with(rows["address"], GC_PREFIX))
        dates = folders["last_seen_at"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
        listed_ms |= dict(zip(folders["address"].to_pylist(), dates.to_pylist(), strict=True))
    runs = sorted({run for run in map(run_file, listed_ms) if run is not None})
    found = []
    for folder in (run_folder(RunKind(kind), RunId(run_id)) for kind, run_id in runs):
        stats = [stat async for page in store.list(folder) for stat in page]
        if any(run_file(stat.key) and listed_ms.get(stat.key) != stat.modified_ms for stat in stats):
            found.append(folder)
    return found


async def _filter(store: ObjectStore, plan: Plan, folder: str, spared: pa.Array, alive: list[str]) -> list[Part]:
    """The plan's objects that nothing spares, part by part."""
    written: list[Part] = []
    for part in plan.doomed.parts:
        rows = await _read_doomed(store, plan, part)
        stays = pc.is_in(rows["address"], value_set=spared)
        for one in alive:
            stays = pc.or_(stays, pc.starts_with(rows["address"], one))
        left = rows.filter(pc.invert(stays))
        if left.num_rows:
            data = protocol.encode_part(protocol.DOOMED, left)
            await store.put(folder + part.name, data)
            written.append(protocol.part_of(part.name, data, rows=left.num_rows))
    return written


async def _read_doomed(store: ObjectStore, plan: Plan, part: Part) -> pa.Table:
    return protocol.read_part(plan.doomed, protocol.DOOMED, part, await read_part(store, plan.doomed.folder, part))
