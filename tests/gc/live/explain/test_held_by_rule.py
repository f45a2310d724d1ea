"""What collectors keep for legal holds is what the rule in plain Python keeps (`lakebed.gc.rules`, holds.py)."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lakebed.base import FOREIGN_SLICE, Entry, MetarangeId, format_address
from lakebed.gc.engines import LocalEngine
from lakebed.gc.mark.holding import deal_held, keep_held
from lakebed.gc.mark.inputs import ranges
from lakebed.gc.mark.inputs.named import judge, merge_live, read_live
from lakebed.gc.messages import COMMITS, REFS, RunKind
from lakebed.gc.rules import Hold, Holds, Namespace, days_rules, held_commits, held_keys
from lakebed.gc.rules.lifecycle import Entry as Named
from lakebed.gc.runs.context import folder_in
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import MemoryObjectStore
from lakebed.ranges import CUT_RULE, CutRule, decode_range, range_key
from tests.gc.conftest import Lake
from tests.gc.mark.test_wide_trees import WIDE
from tests.gc.specified import history_of

PATHS = ("a", "ab", "legal/a", "legal/b", "logs/a", "logs/b/c")
GLOBS = ("legal/", "**/a", "logs/*", "a*", "none")


async def grown(lake: Lake, dice: random.Random) -> None:
    """Eight commits on two branches, one of them deleted at the end; each links an object elsewhere."""
    await lake.put("main", "first")
    await lake.commit("main")
    await lake.versions.refs.create_branch("side", "main")
    for number in range(8):
        branch = dice.choice(["main", "side"])
        for path in dice.sample(PATHS, dice.randint(1, 3)):
            await lake.put(branch, path, f"{number}")
        linked = Entry(address=f"mem://elsewhere/{number}", size_bytes=1, checksum="x", modified_ms=1)
        await lake.versions.staging.put(branch, dice.choice(PATHS).encode(), linked)
        await lake.commit(branch)
        lake.days(dice.choice([0, 4]))
    await lake.versions.refs.delete_branch("side")


async def entries_of(lake: Lake, metarange: MetarangeId) -> list[Named]:
    found = []
    for info in await lake.versions.trees.ranges(metarange):
        for row in decode_range(info.id, await lake.objectstore.get(range_key(info.id))).to_pylist():
            own = row["slice"] != FOREIGN_SLICE
            address = format_address(row["slice"], row["sequence"]) if own else row["address"]
            found.append(Named(path=row["key"].decode(), address=address, modified_ms=0))
    return found


def addresses_of(live: pa.Table) -> set[str]:
    """All that LIVE names."""
    found = {key for keys in live["addresses"].to_pylist() for key in keys}
    for bucket, bitmap in zip(live["bucket"].to_pylist(), live["bitmap"].to_pylist(), strict=True):
        bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
        found |= {format_address(bucket, sequence) for sequence in np.flatnonzero(bits).tolist()}
    return found


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("in_rows_max", [ranges.IN_ROWS_MAX, 0], ids=["in rows", "in files"])
@pytest.mark.parametrize("rule", [CUT_RULE, WIDE], ids=["narrow", "wide"])
async def test_commits_and_objects_are_held_as_the_rule_says(
    monkeypatch: pytest.MonkeyPatch, seed: int, in_rows_max: int, rule: CutRule
) -> None:
    monkeypatch.setattr(ranges, "IN_ROWS_MAX", in_rows_max)
    dice = random.Random(seed)
    lake = Lake(MemoryStore(), MemoryObjectStore("mem://tests"), rule=rule)
    await lake.versions.commits.initialise("main")
    await grown(lake, dice)
    context = lake.collector().context
    engine = LocalEngine(context.store, context.ports, open_deleter=lambda: lake.deleter, shares=3)
    context = replace(context, engine=engine)
    run = await context.service.start(RunKind.COMMITTED)
    prepared = await context.service.commits(run.run_id)
    commits, refs = await context.read(prepared.commits, COMMITS), await context.read(prepared.refs, REFS)
    swept = pa.array([dice.random() < 0.2 for _ in range(commits.num_rows)])
    commits = commits.set_column(commits.schema.get_field_index("swept"), commits.schema.field("swept"), swept)
    ids = commits["id"].to_pylist()
    by_path = Hold(name="paths", globs=tuple(dice.sample(GLOBS, dice.randint(1, 2))), why="w")
    by_commit = Hold(name="commits", commits=(dice.choice(ids),), tags={"t": dice.choice(ids)}, why="w")
    holds = Holds(holds=tuple(dice.sample([by_path, by_commit], dice.randint(1, 2))))
    history = history_of(commits, refs)
    contents = {
        id_: await entries_of(lake, id_) for id_ in {*map(MetarangeId, commits["metarange_id"].to_pylist())} if id_
    }
    judged = judge(commits, refs, days_rules(1), now_ms=run.now_ms)

    kept = await keep_held(context, run, judged, holds)
    dealt = await deal_held(context, run, commits, holds, name="held")
    live = await read_live(context.store, await merge_live(context.engine, dealt, folder=folder_in(run, "held")))

    expired = set(judged.expired_ids().to_pylist())
    assert expired - set(kept.expired_ids().to_pylist()) == expired & held_commits(history, contents, holds)
    namespace = Namespace(uri=run.namespace, closed=frozenset(run.closed_slices))
    assert addresses_of(live) == held_keys(history, contents, holds, namespace=namespace)
