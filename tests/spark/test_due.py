"""Both engines agree with the specification of lifecycle policies (`lakebed.gc.rules.lifecycle`).

Histories, policies, dates and addresses are drawn at random. Each is written with the real codecs and read by the real
readers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from lakebed.base import CommitId, MetarangeId, slice_name, to_row
from lakebed.base import Entry as BaseEntry
from lakebed.gc import places, protocol
from lakebed.gc.due import Judging, deal_due, reach_metaranges, read_spans, sort_out
from lakebed.gc.engines import Engine
from lakebed.gc.files import Files, Lake
from lakebed.gc.mark import mark_expired
from lakebed.gc.named import deal_live
from lakebed.gc.ranges import effort_of_ends, from_ranges
from lakebed.gc.rules import DAY_MS, CommitFacts, History, Namespace
from lakebed.gc.rules.lifecycle import Entry, Policy, check_policy, judge_objects
from lakebed.objectstore import ObjectStore, ObjectStoreOptions
from lakebed.ranges import encode_metarange, encode_range, metarange_key, range_key, table_from_rows
from tests.spark.test_marks import (
    ADDRESSES,
    NOW_MS,
    SLICES,
    URI,
    Engines,
    addresses_of,
    examples,
    outcome,
)
from tests.spark.test_marks import (
    engines as engines_,
)

engines = engines_
"""The fixture of the other marks."""

GROUPS = 3
NAMES = ["a", "b.tmp", "c/d.tmp", "e"]
RULES: list[dict[str, Any]] = [
    {"prefix": "p0/", "period": "3d"},
    {"prefix": "p", "period": "5d", "branches": {"main": "8d"}},
    {"path": "**/*.tmp", "period": "36h", "branches": {"d*": "2d"}},
    {"path": "p1/*.tmp", "branches": {"dev": "1d"}},
    {"prefix": "p2/", "period": "4d", "branches": {"main": "forever"}},
    {"path": "p*/*", "period": "1mo", "branches": {"dev": "2d"}},
    {"prefix": "p1/", "period": "2d", "min_size": 50},
    {"prefix": "p2/", "period": "1d", "metadata": {"class": "pii"}},
    {"prefix": "p0/", "period": "2d", "keep_versions": 1, "min_size": 1},
    {"path": "**", "period": "1d", "keep_versions": 2, "metadata": {"class": "pii"}},
]
PINS: list[dict[str, Any]] = [{}, {}, {"tags": ["v*"]}, {"prefixes": ["p1/b"]}]

Content = tuple[str, int, int, bool]
"""Address, age in hours, size, whether it is personal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """`ranges` has for each group of paths several contents, of which a commit names one or none (by number)."""

    ranges: list[list[dict[str, Content]]]
    commits: list[tuple[list[int], list[int], bool]]
    """(which content of each group, parents, swept)"""
    refs: list[tuple[str, str, int, bool]]
    """(kind, name, commit, being made)"""
    policy: dict[str, Any]
    closed: frozenset[int]


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    content = st.tuples(st.sampled_from(ADDRESSES), st.integers(0, 24 * 12), st.sampled_from([10, 90]), st.booleans())
    contents = st.dictionaries(st.sampled_from(NAMES), content, min_size=1, max_size=3)
    ranges = [draw(st.lists(contents, min_size=1, max_size=3)) for _ in range(GROUPS)]
    count = draw(st.integers(1, 5))
    commits = [
        (
            [draw(st.integers(-1, len(group) - 1)) for group in ranges],
            draw(st.lists(st.integers(0, place - 1), max_size=2, unique=True)) if place else [],
            draw(st.sampled_from([False, False, False, True])),
        )
        for place in range(count)
    ]
    commit = st.integers(0, count - 1)
    names = draw(st.sets(st.sampled_from(["main", "dev", "other"])))
    refs = [("branch", name, draw(commit), draw(st.booleans())) for name in sorted(names)]
    refs += [("tag", "v1", draw(commit), False)] if draw(st.booleans()) else []
    refs += [("intent", "i1", draw(commit), False)] if draw(st.booleans()) else []
    rules = draw(st.lists(st.sampled_from(RULES), min_size=1, max_size=4, unique_by=json.dumps))
    return Drawn(
        ranges=ranges,
        commits=commits,
        refs=refs,
        policy={"rules": {f"r{n}": rule for n, rule in enumerate(rules)}, "pins": draw(st.sampled_from(PINS))},
        closed=draw(st.frozensets(st.sampled_from(SLICES))),
    )


class Built:
    """A history written down twice: as files in a namespace, and as the values that the specification takes."""

    def __init__(self, drawn: Drawn, folder: Path) -> None:
        self.policy = policy_of(drawn.policy)
        self.closed = sorted(drawn.closed)
        self.lake = Lake(uri=URI, options=ObjectStoreOptions(local_root=folder, local_durable=False))
        self.contents: dict[MetarangeId, list[Entry]] = {}
        with Files(self.lake) as files:
            self.history, self.commits, self.refs = self._write(drawn, files)

    def _write(self, drawn: Drawn, files: Files) -> tuple[History, pa.Table, pa.Table]:
        infos, entries = [], []
        for group, alternatives in enumerate(drawn.ranges):
            found = [entries_of(group, contents) for contents in alternatives]
            entries.append(found)
            infos.append([write_range(files, one) for one in found])
        facts: dict[CommitId, CommitFacts] = {}
        generations: list[int] = []
        for number, (chosen, parents, swept) in enumerate(drawn.commits):
            named = [infos[group][which] for group, which in enumerate(chosen) if which >= 0]
            id_, data = encode_metarange(named)
            if id_:
                files.write(metarange_key(id_), data)
                held = [entries[group][which] for group, which in enumerate(chosen) if which >= 0]
                self.contents[id_] = [entry for some in held for entry in some]
            generations.append(1 + max((generations[parent] for parent in parents), default=0))
            facts[CommitId(f"c{number}")] = CommitFacts(
                id=CommitId(f"c{number}"),
                parents=tuple(CommitId(f"c{parent}") for parent in parents),
                created_ms=NOW_MS,
                metarange_id=id_,
                swept=swept,
            )
        rows = [
            {
                "id": commit.id,
                "generation": generation,
                "creation_date": commit.created_ms,
                "metarange_id": commit.metarange_id,
                "parents": [*commit.parents],
                "swept": commit.swept,
                "expiring": False,
            }
            for commit, generation in zip(facts.values(), generations, strict=True)
        ]
        refs = [
            {"kind": kind, "name": name, "commit_id": f"c{commit}", "state": "creating" if is_new else "active"}
            for kind, name, commit, is_new in drawn.refs
        ]
        history = History(
            commits=facts,
            heads={name: CommitId(f"c{commit}") for kind, name, commit, _ in drawn.refs if kind == "branch"},
            tags={name: CommitId(f"c{commit}") for kind, name, commit, _ in drawn.refs if kind == "tag"},
            held=frozenset(CommitId(f"c{commit}") for kind, _, commit, new in drawn.refs if new or kind == "intent"),
        )
        return (
            history,
            pa.Table.from_pylist(rows, protocol.arrow_schema(protocol.COMMITS)),
            pa.Table.from_pylist(refs, protocol.arrow_schema(protocol.REFS)),
        )

    def specified(self, now_ms: int) -> set[str]:
        namespace = Namespace(uri=URI, closed=frozenset(slice_name(number) for number in self.closed))
        verdict = judge_objects(
            self.history, self.contents, self.policy, now_ms=now_ms, uncommitted=(), namespace=namespace
        )
        return set(verdict.goes)


def policy_of(policy: dict[str, Any]) -> Policy:
    return check_policy(json.dumps(policy).encode())


def entries_of(group: int, contents: dict[str, Content]) -> list[Entry]:
    return [
        Entry(
            path=f"p{group}/{name}",
            address=address,
            modified_ms=NOW_MS - hours * 3_600_000,
            size_bytes=size,
            metadata={"class": "pii"} if is_personal else {},
        )
        for name, (address, hours, size, is_personal) in sorted(contents.items())
    ]


def write_range(files: Files, entries: Sequence[Entry]) -> Any:
    rows = [
        to_row(
            entry.path.encode(),
            BaseEntry(
                address=entry.address,
                size_bytes=entry.size_bytes,
                checksum="",
                modified_ms=entry.modified_ms,
                metadata=entry.metadata,
            ),
        )
        for entry in entries
    ]
    info, data = encode_range(table_from_rows([entry.path.encode() for entry in entries], rows))
    files.write(range_key(info.id), data)
    return info


@pytest.fixture
def build(tmp_path: Path) -> Callable[[Drawn], Built]:
    """Each history in a folder of its own."""
    numbers = itertools.count()
    return lambda drawn: Built(drawn, tmp_path / str(next(numbers)))


def planned(engines: Engines, built: Built, *, now_ms: int, until_ms: int | None = None) -> protocol.Manifest:
    async def mark(engine: Engine, _: ObjectStore) -> protocol.Manifest:
        reached = reach_metaranges(built.commits, built.refs, built.policy)
        ranges = sort_out(await read_spans(engine, reached.metaranges), reached, built.policy)
        judging = Judging(
            policy=built.policy,
            terms=ranges.terms,
            namespace=places.Namespace(URI),
            closed=pa.array(built.closed, pa.int64()),
            now_ms=now_ms,
            until_ms=until_ms,
        )
        due, stays = await deal_due(engine, ranges.due, judging, folder="_lakefs/due/")
        effort = effort_of_ends(ranges.whole)
        whole = await deal_live(
            engine, from_ranges, ranges.whole, uri=URI, folder="_lakefs/live/", with_keys=True, effort=effort
        )
        return (await mark_expired(engine, due, [whole, stays], into="_lakefs/garbage/", now_ms=now_ms))[0]

    return engines.act(built.lake, mark)


def test_a_plan_takes_what_the_specification_lets_go(engines: Engines, build: Callable[[Drawn], Built]) -> None:
    def check(drawn: Drawn) -> None:
        built = build(drawn)

        found = outcome(lambda: addresses_of(built.lake, planned(engines, built, now_ms=NOW_MS)))

        assert found == outcome(lambda: built.specified(NOW_MS))

    examples(engines, drawn(), check)


def test_a_simulation_sees_each_object_on_the_day_on_which_a_plan_takes_it(
    engines: Engines,
    build: Callable[[Drawn], Built],
) -> None:
    def check(drawn: Drawn) -> None:
        built = build(drawn)
        if outcome(lambda: built.specified(NOW_MS)) == "EmptyLiveSet":
            return
        garbage = planned(engines, built, now_ms=NOW_MS, until_ms=NOW_MS + 9 * DAY_MS)
        with Files(built.lake) as files:
            tables = [
                protocol.read_part(garbage, protocol.GARBAGE, part, files.read(garbage.folder + part.name))
                for part in garbage.parts
            ]
        rows = [row for table in tables for row in table.to_pylist()]

        for day in range(10):
            now_ms = NOW_MS + day * DAY_MS
            gone = {row["address"] for row in rows if row["last_seen_at"].timestamp() * 1000 <= now_ms}
            assert gone == built.specified(now_ms)

    examples(engines, drawn(), check)
