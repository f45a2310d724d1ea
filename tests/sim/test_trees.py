"""Simulated trees agree with the real ones."""

from __future__ import annotations

import asyncio
import random

from lakebed.base import EMPTY_METARANGE, Entry, MetarangeId, Row, to_row
from lakebed.objectstore.drivers.memory import MemoryObjectStore
from lakebed.ranges import CutRule, changes_from_rows
from lakebed.runtime import live_ports
from lakebed.versions import TreeCache, Trees
from sim import Disk, SimPorts, run_alone
from sim.ports.trees import SimTrees

Changes = list[tuple[bytes, Row | None]]
History = list[tuple[int, Changes]]
Observed = list[object]

RULE = CutRule(strong=4, weak=2, weak_from=4, rows_max=8)
"""Trees of a few entries have several ranges."""


def random_history(rng: random.Random) -> History:
    """Each item makes a tree from an earlier one (0 is the empty one) by changes."""
    history: History = []
    for number in range(1, 12):
        chosen = sorted(rng.sample(range(30), rng.randint(0, 12)))
        history.append((rng.randrange(number), [(b"k%02d" % key, random_row(rng, b"k%02d" % key)) for key in chosen]))
    return history


def random_row(rng: random.Random, key: bytes) -> Row | None:
    value = rng.choice("aab-")
    entry = Entry(address=f"s3://elsewhere/{value}", size_bytes=1, checksum=value, modified_ms=0)
    return None if value == "-" else to_row(key, entry)


async def observe(trees: Trees, history: History, rng: random.Random) -> Observed:
    """Everything a caller can see of trees, but for their ids, of which only equality counts."""
    ids: list[MetarangeId] = [EMPTY_METARANGE]
    seen: Observed = []
    for number, changes in history:
        applied = await trees.apply(
            ids[number], changes_from_rows([key for key, _ in changes], [row for _, row in changes])
        )
        ids.append(applied.metarange_id)
        seen.append((applied.added, applied.changed, applied.removed))
    seen.append([[one == other for other in ids] for one in ids])
    for id_ in ids:
        seen.append(await trees.scan(id_, b"", 100))
        seen.append(await trees.scan(id_, b"k1", 3))
        seen.append(await trees.lookup(id_, b"k07"))
        seen.append(await trees.lookup_many(id_, [b"k20", b"k03", b"nothing"]))
    for _ in range(6):
        left, right, base = [rng.choice(ids) for _ in range(3)]
        seen.append([row async for batch in trees.diff(left, right) for row in batch])
        seen.append([row async for batch in trees.diff(left, right, start=b"k05", prefix=b"k1") for row in batch])
        for strategy in ("none", "source-wins", "dest-wins"):
            merged = await trees.merge(base=base, source=left, destination=right, strategy=strategy)
            seen.append((merged.conflicts, merged.conflict_count, await trees.scan(merged.metarange_id, b"", 100)))
            seen.append(merged.metarange_id == right)
    return seen


def test_simulated_trees_answer_as_the_real_ones_do() -> None:
    for seed in range(6):
        history = random_history(random.Random(seed))
        assert observe_simulated(history, seed) == observe_real(history, seed), seed


def observe_simulated(history: History, seed: int) -> Observed:
    observed: Observed = []

    async def program(ports: SimPorts) -> None:
        observed.extend(await observe(SimTrees(ports.objectstore), history, random.Random(seed)))

    run_alone(program, Disk())
    return observed


def observe_real(history: History, seed: int) -> Observed:
    trees = Trees(MemoryObjectStore("mem://trees"), TreeCache(1 << 20), live_ports(), rule=RULE)
    return asyncio.run(observe(trees, history, random.Random(seed)))


def test_a_tree_that_is_not_remembered_is_read_again() -> None:
    async def program(ports: SimPorts) -> None:
        row = to_row(b"k", Entry(address="s3://x/y", size_bytes=1, checksum="c", modified_ms=0))
        trees = SimTrees(ports.objectstore, remembers=False)
        made = await trees.apply(EMPTY_METARANGE, changes_from_rows([b"k"], [row]))
        assert await trees.lookup(made.metarange_id, b"k") == row

    run_alone(program, Disk())
