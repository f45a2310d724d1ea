"""Sixty days under changing policies: each night a run takes what the specification lets go, and nothing else."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from lakebed.base import CommitId, Conflict, Invalid, MetarangeId, from_row
from lakebed.gc import EngineName
from lakebed.gc.live import PolicyBook
from lakebed.gc.messages import RunKind, RunMode
from lakebed.gc.rules import DAY_MS, CommitFacts, History, Namespace
from lakebed.gc.rules.lifecycle import Entry, InvalidPolicy, check_policy, judge_objects
from lakebed.versions import BranchRecord, Commit, CopyRecord, Note, SliceRecord, decode_cells, is_gone
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = 60
BRANCHES = ("main", "dev", "audit")
PATHS = ("logs/a", "logs/b", "tmp/a", "data/a")
POLICIES: tuple[dict[str, Any], ...] = (
    {"logs": {"prefix": "logs/", "days": 4}, "tmp": {"prefix": "tmp/", "days": 1}},
    {"logs": {"prefix": "logs/", "days": 9, "branch_days": {"dev": 2}}},
    {"rules": {"all": {"path": "**", "period": "5d", "branches": {"audit": "forever"}}}},
    {"rules": {"all": {"path": "**/a", "period": "3d", "keep_versions": 2}}, "pins": {"prefixes": ["tmp/"]}},
    {"rules": {"logs": {"prefix": "logs/", "period": "36h", "when": "size >= 4"}}},
)


@pytest.mark.parametrize("engine", [EngineName.LOCAL], indirect=True)
def test_each_night_takes_what_the_specification_lets_go(spark: SparkSession | None, lakeside: Lakeside) -> None:
    days = random.Random(7)  # a seed for a test
    for branch in BRANCHES[1:]:
        lakeside.branch(branch)
    taken: set[str] = set()
    nights = optimised = shared = 0
    for day in range(DAYS):
        work(lakeside, days)
        if day % 7 == 0:
            # Records of finished copies go, so what was copied may go too.
            lakeside.wait(lakeside.versions.cleanup.clean())
            with suppress(InvalidPolicy):
                lakeside.wait(PolicyBook(lakeside.versions).write(json.dumps(days.choice(POLICIES)).encode()))
        plan = lakeside.collector.plan(spark, RunKind.LIFECYCLE)
        expected = specified(lakeside, taken, now_ms=plan.now_ms)
        before = lakeside.addresses()

        lakeside.collector.apply(spark, plan.run_id)

        assert before - lakeside.addresses() == expected.keys(), f"day {day}"
        assert written(lakeside, plan.run_id) == expected, f"day {day}"
        taken |= expected.keys()
        nights += bool(expected)
        shared += any(len(paths) > 1 for paths, _ in expected.values())
        optimised += plan.mode is RunMode.OPTIMISED
        lakeside.clock.ms += DAY_MS
    assert nights > DAYS // 12
    assert optimised > DAYS // 10, "runs that go on from the one before"
    assert shared, "objects that go with several paths"
    assert lakeside.addresses() - taken


def work(lake: Lakeside, days: random.Random) -> None:
    """A day of uploads, copies, deletes, commits and merges. What is copied last may stay staged."""
    for _ in range(days.randrange(3)):
        lake.upload(days.choice(PATHS), branch=days.choice(BRANCHES), modified_ms=lake.clock.ms)
    branch, other = days.sample(BRANCHES, 2)
    if days.random() < 0.3:
        lake.delete(days.choice(PATHS), branch=branch)
    for one in BRANCHES:
        with suppress(Invalid):
            lake.commit(branch=one)
    if days.random() < 0.3:
        with suppress(Invalid, Conflict):
            lake.wait(lake.versions.merges.merge(other, branch, Note(committer="ann"), strategy="source-wins"))
    if days.random() < 0.3:
        # What went is refused, and so is what is not there.
        with suppress(Exception):
            lake.copy(other, days.choice(PATHS), days.choice(("data/copy", "logs/copy")), branch=branch)


Names = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""The paths and the ids of the rules of each object that goes, by address."""


def written(lake: Lakeside, run_id: str) -> Names:
    """Read the table for people."""
    found: Names = {}
    for file in lake.files(f"_lakefs/retention/lc/addresses/date=*/{run_id}-*.parquet"):
        for row in pq.ParquetFile(file).read().to_pylist():
            rules = (text.partition(":")[0] for text in row["matched_rules"])
            found[row["address"]] = (tuple(row["paths"]), tuple(sorted(rules)))
    return found


def specified(lake: Lakeside, taken: set[str], *, now_ms: int) -> Names:
    """What goes now by the pure specification, from records and trees alone."""
    facts, contents, heads, named, closed = lake.wait(_read(lake))
    record = lake.wait(PolicyBook(lake.versions).read())
    verdict = judge_objects(
        History(commits=facts, heads=heads),
        contents,
        check_policy(record.policy or b""),
        now_ms=now_ms,
        uncommitted=named,
        namespace=Namespace(uri=lake.objectstore.uri, closed=closed),
        taken=taken,
    )
    return {address: (one.paths, one.rules) for address, one in verdict.goes.items()}


async def _read(
    lake: Lakeside,
) -> tuple[dict[CommitId, CommitFacts], dict[MetarangeId, list[Entry]], dict[str, CommitId], list[str], frozenset[str]]:
    versions = lake.versions
    facts: dict[CommitId, CommitFacts] = {}
    contents: dict[MetarangeId, list[Entry]] = {}
    async for name, commit in versions.inventory.every(Commit):
        tree = commit.metarange_id
        id_ = CommitId(name)
        facts[id_] = CommitFacts(id=id_, parents=commit.parents, created_ms=commit.created_ms, metarange_id=tree)
        if tree and tree not in contents:
            rows = await versions.trees.scan(tree, b"", 1000)
            entries = [(key, from_row(row)) for key, row in rows]
            contents[tree] = [
                Entry(path=key.decode(), address=one.address, modified_ms=one.modified_ms, size_bytes=one.size_bytes)
                for key, one in entries
            ]
    heads: dict[str, CommitId] = {}
    # A finished copy counts until its record is cleaned away.
    named = [copy.address async for _, copy in versions.inventory.every(CopyRecord)]
    async for name, branch in versions.inventory.every(BranchRecord):
        heads[name] = branch.commit_id
        for token in branch.tokens():
            cells = decode_cells((await versions.inventory.cells(token, b"", 1000)).values)
            named += [from_row(row).address for flags, row in cells if not is_gone(flags)]
    closed = frozenset([name async for name, _ in versions.inventory.every(SliceRecord)])
    return facts, contents, heads, named, closed
