"""Both engines agree with the specification of lifecycle policies (`lakebed.gc.rules.lifecycle`).

Histories, policies, dates and addresses are drawn at random. Each is written with the real codecs and read by the real
readers.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.base import SEQUENCE_MAX, CommitId, MetarangeId, format_address, slice_name, to_row
from lakebed.base import Entry as BaseEntry
from lakebed.gc import messages
from lakebed.gc.engines import Engine
from lakebed.gc.engines.engine import LIVE
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.kinds.lifecycle import hours, learning, sorting
from lakebed.gc.kinds.lifecycle import plan as planning
from lakebed.gc.kinds.lifecycle.hours import NEVER, SEQUENCES_MAX, TAKEN, UNKNOWN, Dues, Runs, read_hours, write_hours
from lakebed.gc.kinds.lifecycle.learning import Learned, learn, read_known
from lakebed.gc.kinds.lifecycle.plan import mark_going, mark_known
from lakebed.gc.kinds.lifecycle.reaching import Ranges, Reached, keeps_versions, pinned_commits, reach_metaranges
from lakebed.gc.kinds.lifecycle.rows import MIXED, Judging, deal_due, rule_of_span
from lakebed.gc.kinds.lifecycle.sorting import sort_ranges
from lakebed.gc.kinds.lifecycle.trees import TreeParts
from lakebed.gc.mark.inputs.named import LiveSet, deal_live, from_tables
from lakebed.gc.mark.inputs.named import only_active as only_active_rows
from lakebed.gc.mark.inputs.ranges import IN_ROWS_MAX, ListedRanges, from_ranges
from lakebed.gc.mark.mark import mark_expired
from lakebed.gc.mark.sets import places
from lakebed.gc.mark.sets.bucketed import HELD_IN_JOIN, Dealer, files_of
from lakebed.gc.rules import DAY_MS, BranchRule, CommitFacts, History, KeepLast, Namespace, Rules
from lakebed.gc.rules.lifecycle import Entry, Policy, check_policy, judge_objects, only_active
from lakebed.gc.runs.context import RunContext
from lakebed.objectstore import ObjectStore, ObjectStoreOptions
from lakebed.ranges import (
    codec,
    encode_metarange,
    encode_range,
    encode_sublist,
    metarange_key,
    range_key,
    sublist_key,
    table_from_rows,
)
from lakebed.runtime import live_ports
from tests.objectstore.writer import memory_bytes_max
from tests.spark.test_marks import ADDRESSES, NOW_MS, SLICES, URI, Engines, addresses_of, examples, outcome
from tests.spark.test_marks import engines as engines_

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
    wide: frozenset[int] = frozenset()
    """Commits whose trees list sublists."""
    in_files: bool = False
    """Whether tasks write files of ranges, as of many."""


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
        wide=draw(st.frozensets(commit)),
        in_files=draw(st.booleans()),
    )


class Built:
    """A history written down twice: as files in a namespace, and as the values that the specification takes."""

    def __init__(self, drawn: Drawn, folder: Path) -> None:
        self.policy = policy_of(drawn.policy)
        self.closed = sorted(drawn.closed)
        self.in_rows_max = 0 if drawn.in_files else IN_ROWS_MAX
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
            # TreeParts share sublists, and a sublist shares ranges with narrow trees.
            halves = [encode_sublist(some) for some in (named[:1], named[1:]) if some and number in drawn.wide]
            for info, sublist in halves:
                files.write(sublist_key(info.id), sublist)
            id_, data = encode_metarange([info for info, _ in halves] or named)
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
            pa.Table.from_pylist(rows, messages.arrow_schema(messages.COMMITS)),
            pa.Table.from_pylist(refs, messages.arrow_schema(messages.REFS)),
        )

    def date(self, created_ms: list[int]) -> None:
        """Let the commits have been made at these instants."""
        made = dict(zip(self.history.commits, created_ms, strict=True))
        commits = {id_: replace(commit, created_ms=made[id_]) for id_, commit in self.history.commits.items()}
        self.history = replace(self.history, commits=commits)
        field = self.commits.schema.field("creation_date")
        dates = pa.array(created_ms, pa.int64()).cast(field.type)
        self.commits = self.commits.set_column(self.commits.schema.get_field_index(field.name), field, dates)

    def specified(self, now_ms: int, *, taken: frozenset[str] = frozenset()) -> set[str]:
        namespace = Namespace(uri=URI, closed=frozenset(slice_name(number) for number in self.closed))
        verdict = judge_objects(
            self.history, self.contents, self.policy, now_ms=now_ms, uncommitted=(), namespace=namespace, taken=taken
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


async def ranges_of(engine: Engine, store: ObjectStore, reached: Reached, built: Built) -> Ranges:
    folder, policy = "_lakefs/trees/", built.policy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "IN_ROWS_MAX", built.in_rows_max)
        _, found = await sort_ranges(engine, store, reached, policy, TreeParts(), folder=folder, tell=lambda _: None)
    # Whole ranges alone are files, too.
    assert (
        ListedRanges(found.due).in_files
        is ListedRanges(found.whole).in_files
        is (built.in_rows_max == 0 and found_any(found))
    )
    return found


def found_any(ranges: Ranges) -> bool:
    return ListedRanges(ranges.due).count + ListedRanges(ranges.whole).count > 0


def planned(
    engines: Engines, built: Built, *, now_ms: int, until_ms: int | None = None, rules: Rules | None = None
) -> messages.Manifest:
    """With `rules` only active commits count."""

    async def mark(engine: Engine, store: ObjectStore) -> messages.Manifest:
        counted = built.commits
        if rules is not None:
            pinned = pinned_commits(built.refs, built.policy)
            counted = only_active_rows(built.commits, built.refs, rules, pinned=pinned, now_ms=now_ms)
        reached = reach_metaranges(counted, built.refs, built.policy)
        ranges = await ranges_of(engine, store, reached, built)
        judging = Judging(
            policy=built.policy,
            terms=ranges.terms,
            namespace=places.Namespace(URI),
            closed=pa.array(built.closed, pa.int64()),
            now_ms=now_ms,
            until_ms=until_ms,
        )
        due, stays = await deal_due(engine, ranges.due, judging, folder="_lakefs/due/")
        effort = ListedRanges(ranges.whole).effort_of_ends
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


@st.composite
def aged(draw: st.DrawFn) -> tuple[Drawn, list[int], Rules]:
    """A history, how many days ago each of its commits was made, and rules of retention."""
    history = draw(drawn())
    if draw(st.booleans()):
        # Here an object is due at some paths, and never at others: these commits alone keep it.
        covered = {"low": {"prefix": "p0/", "period": "1d"}, "middle": {"prefix": "p1/", "period": "1d"}}
        swept = [(chosen, parents, False) for chosen, parents, _ in history.commits]
        history = replace(history, policy={"rules": covered}, closed=frozenset(SLICES), commits=swept)
    days = draw(st.lists(st.integers(-1, 12), min_size=len(history.commits), max_size=len(history.commits)))
    periods = st.sampled_from(["1h", "2d", "5d", "10d", "forever"])
    by_branch = draw(st.dictionaries(st.sampled_from(["main", "dev", "d*"]), periods, max_size=2))
    rules = Rules(
        default=draw(periods),
        branches=tuple(BranchRule(pattern=pattern, period=period) for pattern, period in by_branch.items()),
        keep_last=(KeepLast(pattern="*", commits=draw(st.integers(1, 3))),) if draw(st.booleans()) else (),
        tags_pin=draw(st.booleans()),
    )
    return history, days, rules


def test_a_plan_over_active_commits_takes_what_the_specification_lets_go(
    engines: Engines, build: Callable[[Drawn], Built]
) -> None:
    """Commits that retention lets go are as if they had been swept."""

    def check(case: tuple[Drawn, list[int], Rules]) -> None:
        history, days, rules = case
        built = build(history)
        built.date([NOW_MS - each * DAY_MS for each in days])

        found = outcome(lambda: addresses_of(built.lake, planned(engines, built, now_ms=NOW_MS, rules=rules)))

        built.history = only_active(built.history, built.policy, rules, now_ms=NOW_MS)
        assert found == outcome(lambda: built.specified(NOW_MS))

    examples(engines, aged(), check)


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
                messages.read_part(garbage, messages.GARBAGE, part, files.read(garbage.folder + part.name))
                for part in garbage.parts
            ]
        rows = [row for table in tables for row in table.to_pylist()]

        for day in range(10):
            now_ms = NOW_MS + day * DAY_MS
            gone = {row["address"] for row in rows if row["last_seen_at"].timestamp() * 1000 <= now_ms}
            assert gone == built.specified(now_ms)

    examples(engines, drawn(), check)


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A history as of a run: how many of the commits there are, which of the swept ones were, and its own refs."""

    commits: int
    is_swept: bool
    refs: list[tuple[str, str, int, bool]]
    hours_later: int
    applied: bool


@st.composite
def nights(draw: st.DrawFn) -> tuple[Drawn, list[Night]]:
    history = draw(drawn())
    found = []
    least = 1
    for _ in range(draw(st.integers(2, 3))):
        count = draw(st.integers(least, len(history.commits)))
        least = count
        refs = [(kind, name, min(commit, count - 1), is_new) for kind, name, commit, is_new in history.refs]
        change = draw(st.sampled_from(["moves", "goes", "stays"]))
        if change == "moves":
            moved = st.sampled_from(["main", "dev", "other"])
            refs += [("branch", draw(moved), draw(st.integers(0, count - 1)), False)]
            refs = [*{ref[:2]: ref for ref in refs}.values()]
        elif change == "goes" and refs:
            refs.pop()
        hours = draw(st.sampled_from([0, 1, 24, 60]))
        found.append(
            Night(
                commits=count, is_swept=draw(st.booleans()), refs=refs, hours_later=hours, applied=draw(st.booleans())
            )
        )
    return history, found


def as_of(history: Drawn, night: Night) -> Drawn:
    commits = [
        (chosen, parents, swept and night.is_swept) for chosen, parents, swept in history.commits[: night.commits]
    ]
    return replace(history, commits=commits, refs=night.refs)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry of a range is a row group, so that versions of a range share some; rules are found range by range."""
    monkeypatch.setattr(codec, "RANGE_KIND", codec.RANGE_KIND._replace(group_rows=1))
    monkeypatch.setattr(learning, "SPANS_HELD", 1)


@pytest.mark.usefixtures("small_groups")
def test_a_run_that_goes_on_from_the_one_before_takes_what_a_clean_one_takes(engines: Engines, tmp_path: Path) -> None:
    """Whatever became of commits, branches, tags and dates meanwhile, and whether the run before was applied or not."""
    numbers = itertools.count()

    def check(case: tuple[Drawn, list[Night]]) -> None:
        history, some = case
        folder = tmp_path / str(next(numbers))
        saved: messages.KnownDues | None = None
        gone: dict[str, messages.Manifest] = {}
        taken: frozenset[str] = frozenset()
        now_ms = NOW_MS
        for number, night in enumerate(some):
            built = Built(as_of(history, night), folder)
            now_ms += night.hours_later * 3_600_000
            expected = outcome(lambda: built.specified(now_ms, taken=taken))  # noqa: B023 - called at once
            if keeps_versions(built.policy) or isinstance(expected, str):
                return

            marked, saved = known_run(engines, built, f"run{number}", now_ms, saved, gone)

            found = addresses_of(built.lake, marked)
            assert found == expected
            if night.applied:
                gone, taken = {**gone, f"run{number}": marked}, taken | found

    examples(engines, nights(), check)


WAYS = (HELD_IN_JOIN, 0)
"""How many rows a plan holds together before it joins: with none it joins."""
X, Y, Z = ADDRESSES[0], ADDRESSES[1], ADDRESSES[2]
TWO_PERIODS = {"rules": {"r": {"path": "p*/a", "branches": {"dev*": "2d", "main": "8d"}}}}
MAIN, DEV, OTHER = ("branch", "main", 0, False), ("branch", "dev", 0, False), ("branch", "other", 1, False)


def young(**names: str) -> list[dict[str, Content]]:
    """One range: names with their objects, a day old."""
    return [{name: (address, 24, 10, False) for name, address in names.items()}]


DEV_1, DEV_2, MAIN_2 = ("branch", "dev", 1, False), ("branch", "dev2", 1, False), ("branch", "main", 1, False)
OLDER = [young(a=X), [{"a": (X, 48, 10, False)}]]
TWICE = [young(a=X), young(a=X)]
CROSSED = [young(a=X, e=Y), young(a=Y, e=X)]
APART = [young(a=X), young(e=X), young(a=Y), young(e=Y), young(a=Z), young(e=Z)]
TWO_PATHS = [[{"b.tmp": (X, 24, 10, False), "c/d.tmp": (X, 24, 10, False)}]]
BESIDE = [[young(a=X)[0] | {"c/d.tmp": (Z, 24, 10, False)}], young(e=X)]


@pytest.mark.parametrize(
    ("ranges", "commits", "before", "after", "goes"),
    [
        pytest.param([young(a=X)], [[0]], [DEV], [DEV, MAIN], set(), id="another branch has it too"),
        pytest.param([young(a=X)], [[0]], [DEV, MAIN], [DEV], {X}, id="a branch that kept it is gone"),
        pytest.param(
            OLDER, [[0, -1], [-1, 0]], [DEV, DEV_2], [DEV, DEV_2, MAIN_2], set(), id="a branch comes to another range"
        ),
        pytest.param(TWICE, [[0, -1], [-1, 0]], [DEV, MAIN, OTHER], [DEV, OTHER], set(), id="another range keeps it"),
        pytest.param(CROSSED, [[0, 0]], [DEV], [DEV], set(), id="another path of it is never due"),
        pytest.param(APART, [[0] * 6], [DEV], [DEV], set(), id="another range has it where it is never due"),
        pytest.param(BESIDE, [[0, 0]], [DEV], [DEV], {Z}, id="beside one that goes"),
        pytest.param(TWO_PATHS, [[0]], [DEV], [DEV], set(), id="two paths of a range name it"),
    ],
)
@pytest.mark.parametrize("engines", ["local"], indirect=True)
def test_the_next_run_sees_what_changed_since(
    engines: Engines,
    tmp_path: Path,
    ranges: list[list[dict[str, Content]]],
    commits: list[list[int]],
    before: list[tuple[str, str, int, bool]],
    after: list[tuple[str, str, int, bool]],
    goes: set[str],
) -> None:
    policy = {"rules": TWO_PERIODS["rules"] | {"s": {"path": "**/d.tmp", "period": "2d"}}}
    history = Drawn(
        ranges=ranges,
        commits=[(chosen, [], False) for chosen in commits],
        refs=before,
        policy=policy,
        closed=frozenset(SLICES),
    )
    built = Built(history, tmp_path)
    first, saved = known_run(engines, built, "first", NOW_MS, None, {})
    assert addresses_of(built.lake, first) == set()
    built = Built(replace(history, refs=after), tmp_path)

    second, _ = known_run(engines, built, "second", NOW_MS + 3 * DAY_MS, saved, {})

    assert addresses_of(built.lake, second) == goes == built.specified(NOW_MS + 3 * DAY_MS)


@pytest.mark.parametrize(
    ("before", "second", "after", "goes"),
    [
        pytest.param([DEV], ([1], [0], False), [DEV_1], {X}, id="the branch has both"),
        pytest.param([DEV], ([1], [], False), [DEV, MAIN_2], set(), id="a branch keeps the second"),
        pytest.param([MAIN], ([1], [], False), [MAIN, DEV_1], set(), id="a branch kept the first"),
        pytest.param([DEV], ([1], [], True), [DEV_1], {X}, id="the first is gone"),
    ],
)
@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("engines", ["local"], indirect=True)
def test_two_versions_of_a_range_share_a_row_group(
    engines: Engines,
    tmp_path: Path,
    before: list[tuple[str, str, int, bool]],
    second: tuple[list[int], list[int], bool],
    after: list[tuple[str, str, int, bool]],
    goes: set[str],
) -> None:
    """What the first version said of the row group counts as long as it is named, and by its own terms."""
    chosen, parents, is_first_swept = second
    history = Drawn(
        ranges=[[young(a=X)[0], young(a=X, e=Y)[0]]],
        commits=[([0], [], False)],
        refs=before,
        policy=TWO_PERIODS,
        closed=frozenset(SLICES),
    )
    _, saved = known_run(engines, Built(history, tmp_path), "first", NOW_MS, None, {})
    commits = [([0], list[int](), is_first_swept), (chosen, parents, False)]
    built = Built(replace(history, commits=commits, refs=after), tmp_path)

    marked, _ = known_run(engines, built, "second", NOW_MS + 3 * DAY_MS, saved, {})

    assert addresses_of(built.lake, marked) == goes == built.specified(NOW_MS + 3 * DAY_MS)


@pytest.mark.parametrize("engines", ["local"], indirect=True)
def test_hours_that_contradict_the_rows_stop_the_run(engines: Engines, tmp_path: Path) -> None:
    history = Drawn(
        ranges=[young(a=X, e=Y)],
        commits=[([0], [], False)],
        refs=[DEV],
        policy=TWO_PERIODS,
        closed=frozenset(SLICES),
    )
    built = Built(history, tmp_path)
    _, saved = known_run(engines, built, "first", NOW_MS, None, {})

    async def all_are_due(store: ObjectStore) -> messages.Pieces:
        dues = await read_hours(store, saved.hours)
        due = min(int(runs.hours[runs.hours > UNKNOWN].min()) for runs in dues.runs.values())
        wrong = {slice_: Runs(runs.ends, np.full(len(runs.hours), due, np.int32)) for slice_, runs in dues.runs.items()}
        return await write_hours(store, "_lakefs/wrong/", Dues(runs=wrong))

    with Files(built.lake) as files:
        wrong = msgspec.structs.replace(saved, hours=files.act(all_are_due))
    for rows_max in WAYS:
        with pytest.raises(messages.BadInput, match="hours say"):
            known_run(engines, built, "second", NOW_MS + 3 * DAY_MS, wrong, {}, ways=[rows_max])


@pytest.mark.parametrize("rows_max", [planning.HELD_MAX, 1])
@pytest.mark.parametrize("engines", ["local"], indirect=True)
def test_what_several_ranges_name_is_in_a_plan_once(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    """Whichever task reads them, and however many rows it holds at a time."""
    monkeypatch.setattr(planning, "HELD_MAX", rows_max)
    built = Built(chain(), tmp_path)

    marked, _ = known_run(engines, built, "first", NOW_MS + 3 * DAY_MS, None, {})

    assert addresses_of(built.lake, marked) == {IN_A, IN_B, IN_C} == built.specified(NOW_MS + 3 * DAY_MS)


@pytest.mark.parametrize(("held_max", "files"), [(None, 2), (1, 3)])
@pytest.mark.parametrize("engines", ["local"], indirect=True)
def test_a_task_writes_several_ranges_into_one_file_unless_they_are_large(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_max: int | None, files: int
) -> None:
    """Two tasks read three ranges: their hours, and then what goes."""
    for module in (hours, planning):
        monkeypatch.setattr(module, "HELD_MAX", held_max or module.HELD_MAX)
    history = replace(chain(), ranges=[young(a=address) for address in (IN_A, IN_B, IN_C)])
    built = Built(history, tmp_path)

    marked, _ = known_run(engines, built, "first", NOW_MS + 3 * DAY_MS, None, {})

    assert len([*tmp_path.rglob("dues-*.parquet")]) == files
    assert len(marked.parts) == files


@pytest.mark.parametrize("engines", ["local"], indirect=True)
def test_hours_are_saved_in_parts_of_a_bounded_size(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "PART_VALUES", 4)
    every = Dues(runs={slice_: Runs.of(np.array([7, 8], np.int32)) for slice_ in range(5)})

    async def saved(_: Engine, store: ObjectStore) -> tuple[list[int], list[list[int]]]:
        pieces = await write_hours(store, "_lakefs/hours/", every)
        found = await read_hours(store, pieces)
        return [part.rows for part in pieces.parts], [runs.each().tolist() for _, runs in found.rows()]

    assert engines.act(Built(chain(), tmp_path).lake, saved) == ([2, 2, 1], [[7, 8]] * 5)


@pytest.mark.parametrize("engines", ["local"], indirect=True)
def test_what_is_held_is_in_no_plan_for_all_that_hours_say(engines: Engines, tmp_path: Path) -> None:
    built = Built(chain(), tmp_path)
    held = LiveSet()
    held.add_numbers(np.array([sorted(SLICES)[1]]), np.array([1]))

    marked, _ = known_run(engines, built, "first", NOW_MS + 3 * DAY_MS, None, {}, held=held.rows())

    assert addresses_of(built.lake, marked) == {IN_A, IN_C}


@pytest.mark.parametrize("engines", ["local"], indirect=True)
def test_of_an_open_slice_nothing_goes_for_all_that_hours_say(engines: Engines, tmp_path: Path) -> None:
    built = Built(replace(chain(), closed=frozenset(SLICES) - {sorted(SLICES)[1]}), tmp_path)

    marked, _ = known_run(engines, built, "first", NOW_MS + 3 * DAY_MS, None, {})

    assert addresses_of(built.lake, marked) == {IN_A, IN_C} == built.specified(NOW_MS + 3 * DAY_MS)


@pytest.mark.parametrize("engines", ["local"], indirect=True)
def test_a_plan_without_a_join_refuses_hours_of_an_open_slice(engines: Engines, tmp_path: Path) -> None:
    built = Built(chain(), tmp_path)
    is_open = sorted(SLICES)[1]

    async def mark(engine: Engine, store: ObjectStore) -> None:
        run, context = run_and_context(built, engine, store, "first", NOW_MS + 3 * DAY_MS)
        reached = reach_metaranges(built.commits, built.refs, built.policy)
        learned = await learn(context, run, built.policy, reached, None)
        assert learned.known is not None
        ranges = learned.ranges
        await mark_going(
            engine,
            ranges.due,
            Judging(
                policy=built.policy,
                terms=ranges.terms,
                namespace=places.Namespace(URI),
                closed=pa.array(sorted({*SLICES} - {is_open}), pa.int64()),
                now_ms=run.now_ms,
            ),
            [ranges.due["range_id"].to_pylist()],
            groups={id_: [0] for id_ in ranges.due["range_id"].to_pylist()},
            going=await learned.known.write_going(context, run, SLICES, folder="_lakefs/hours/"),
            into="_lakefs/garbage/",
            now_ms=run.now_ms,
        )

    with pytest.raises(messages.BadInput, match=f"{slice_name(is_open)} is open"):
        engines.act(built.lake, mark)


IN_A, IN_B, IN_C = (format_address(slice_, 1) for slice_ in sorted(SLICES)[:3])


def chain() -> Drawn:
    """Three ranges, of which each shares a slice with the next, and no slice is in all."""
    return Drawn(
        ranges=[young(a=IN_A, e=IN_B), young(a=IN_B, e=IN_C), young(a=IN_C)],
        commits=[([0, 0, 0], [], False)],
        refs=[DEV],
        policy={"rules": {"r": {"path": "p*/*", "branches": {"dev*": "2d"}}}},
        closed=frozenset(SLICES),
    )


def test_a_run_over_a_slice_with_too_large_numbers_saves_no_hours(engines: Engines, tmp_path: Path) -> None:
    """An array up to the largest would be empty for the most part."""
    large = format_address(SLICES[0], SEQUENCES_MAX)
    history = Drawn(
        ranges=[young(a=X, e=large)],
        commits=[([0], [], False)],
        refs=[DEV],
        policy=TWO_PERIODS,
        closed=frozenset(SLICES),
    )
    built = Built(history, tmp_path)

    async def learnt(engine: Engine, store: ObjectStore) -> Learned:
        run, context = run_and_context(built, engine, store, "run", NOW_MS)
        reached = reach_metaranges(built.commits, built.refs, built.policy)
        return await learn(context, run, built.policy, reached, None)

    learned = engines.act(built.lake, learnt)

    assert learned.known is None
    assert learned.ranges.due.num_rows == 1


def grown_bytes(folder: Path) -> int:
    """By how much this process's memory grew at its peak, while it learned of a slice with too large numbers."""
    large = format_address(SLICES[0], SEQUENCE_MAX)
    history = Drawn(
        ranges=[young(a=large), *[young(a=X, e=Y)] * 5],
        commits=[([0] * 6, [], False)],
        refs=[DEV],
        policy=TWO_PERIODS,
        closed=frozenset(SLICES),
    )
    built = Built(history, folder)

    async def learnt(engine: Engine, store: ObjectStore) -> Learned:
        run, context = run_and_context(built, engine, store, "run", NOW_MS)
        reached = reach_metaranges(built.commits, built.refs, built.policy)
        return await learn(context, run, built.policy, reached, None)

    before = memory_bytes_max()
    assert Engines(None).act(built.lake, learnt).known is None
    return memory_bytes_max() - before


def test_a_slice_with_too_large_numbers_in_several_ranges_takes_no_array(tmp_path: Path) -> None:
    # In a process of its own: the peak of this one may lie higher already, and tracemalloc can crash a process with
    # native threads.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        grown = alone.submit(grown_bytes, tmp_path).result()

    # Hours up to the largest sequence take 400 MB.
    assert grown < 200_000_000


@given(st.lists(st.sampled_from([UNKNOWN, 7, 8, NEVER, TAKEN]), min_size=1))
def test_the_hours_of_a_slice_come_back_from_their_runs(hours: list[int]) -> None:
    assert Runs.of(np.array(hours, np.int32)).each().tolist() == hours


@given(
    st.lists(st.sampled_from(RULES[:8]), min_size=1, max_size=4, unique_by=json.dumps),
    st.sampled_from(PINS),
    st.sets(st.tuples(st.sampled_from(["p0/", "p1/", "p2/", "q"]), st.sampled_from(NAMES)), min_size=1),
    st.sampled_from([10, 90]),
)
def test_the_rule_of_a_span_is_that_of_each_of_its_keys(
    rules: list[dict[str, Any]], pins: dict[str, Any], names: set[tuple[str, str]], size_bytes: int
) -> None:
    policy = policy_of({"rules": {f"r{n}": rule for n, rule in enumerate(rules)}, "pins": pins})
    paths = sorted(group + name for group, name in names)

    found = rule_of_span(policy, paths[0].encode(), paths[-1].encode())

    each = {policy.rule_of(path, size_bytes, metadata) for path in paths for metadata in ({}, {"class": "pii"})}
    assert found == MIXED or each == {None if found < 0 else found}


def known_run(
    engines: Engines,
    built: Built,
    name: str,
    now_ms: int,
    saved: messages.KnownDues | None,
    gone: dict[str, messages.Manifest],
    *,
    held: pa.Table | None = None,
    ways: Sequence[int] = WAYS,
) -> tuple[messages.Manifest, messages.KnownDues]:
    """`held` is LIVE. Plans in every one of the `ways`, which must find the same."""

    async def mark(engine: Engine, store: ObjectStore) -> tuple[messages.Manifest, messages.KnownDues]:
        run, context = run_and_context(built, engine, store, name, now_ms)
        reached = reach_metaranges(built.commits, built.refs, built.policy)
        base = None if saved is None else await read_known(store, "before", saved)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sorting, "IN_ROWS_MAX", built.in_rows_max)
            learned = await learn(context, run, built.policy, reached, base, changed_max=1.0)
        assert learned.known is not None
        assert learned.base is base
        await learned.known.take(context, gone)
        keeps = []
        if learned.known.has_foreign and gone:
            source, rows, effort = from_tables([*gone.values()], messages.GARBAGE)
            folder = f"_lakefs/gone-{name}/"
            keeps.append(await deal_live(engine, source, rows, uri=URI, folder=folder, with_keys=True, effort=effort))
        if held is not None:
            dealer, folder = Dealer(LIVE), f"_lakefs/held-{name}/"
            dealer.add(held)
            keeps.append(files_of(folder, await dealer.write(store, folder)))
        marked = [
            await mark_known(
                context,
                run,
                built.policy,
                learned,
                keeps,
                closed=built.closed,
                into=f"_lakefs/garbage-{name}-{rows_max}/",
                held_max=rows_max,
            )
            for rows_max in ways
        ]
        for garbage, totals in marked[1:]:
            assert totals == marked[0][1]
            assert await rows_of(store, garbage) == await rows_of(store, marked[0][0])
        return marked[0][0], await learned.known.keep(context, run, learned.base)

    return engines.act(built.lake, mark)


async def rows_of(store: ObjectStore, garbage: messages.Manifest) -> list[dict[str, Any]]:
    """Of each object the row."""
    parts = [
        messages.read_part(garbage, messages.GARBAGE, part, await store.get(garbage.folder + part.name))
        for part in garbage.parts
    ]
    return sorted([row for part in parts for row in part.to_pylist()], key=lambda row: str(row["address"]))


def run_and_context(
    built: Built, engine: Engine, store: ObjectStore, name: str, now_ms: int
) -> tuple[messages.StartedRun, RunContext]:
    run = messages.StartedRun(
        run_id=name,
        kind=messages.RunKind.LIFECYCLE,
        state=messages.RunState.PLANNING,
        folder=f"_lakefs/{name}/",
        namespace=URI,
        now_ms=now_ms,
        closed_slices=tuple(slice_name(number) for number in built.closed),
    )
    context = RunContext(
        repository="r",
        service=None,  # type: ignore[arg-type]  # what is tested asks none
        engine=engine,
        store=store,
        ports=live_ports(),
        progress=lambda _: None,
    )
    return run, context
