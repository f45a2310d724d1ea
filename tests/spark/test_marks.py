"""Both engines agree with the plain functions of `lakebed.gc.rules`, which are the specification.

Worlds are small and drawn at random: a few commits over a few ranges, foreign and absolute addresses among them, some
slices closed and some not. Each world is written with the real codecs and read by the real readers.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import (
    CommitId,
    Corrupt,
    Entry,
    LakebedError,
    MetarangeId,
    RangeId,
    format_address,
    parse_address,
    slice_name,
    slice_number,
    to_row,
)
from lakebed.gc import LocalSession, messages
from lakebed.gc.engines import Effort, Engine, LocalEngine, Task
from lakebed.gc.engines import spark as spark_engine
from lakebed.gc.engines.engine import CANDIDATES, LIVE, Table, decode, encode
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.engines.spark import SparkEngine
from lakebed.gc.kinds.uncommitted.old_layout import list_elsewhere
from lakebed.gc.mark.inputs import ranges as ranges_module
from lakebed.gc.mark.inputs.listing import SIZE_UNKNOWN, UNREFERENCED, list_slices
from lakebed.gc.mark.inputs.named import Source, deal_keys, deal_live, from_tables, judge, merge_live, metaranges_of_all
from lakebed.gc.mark.inputs.ranges import ListedRanges, deal_expired, from_ranges, read_ranges
from lakebed.gc.mark.inputs.selecting import paths_of
from lakebed.gc.mark.mark import Live, Marked, mark_expired, mark_keys, mark_listed
from lakebed.gc.mark.sets.bucketed import Dealer
from lakebed.gc.mark.sets.packing import Cause, pack_foreign, pack_numbered
from lakebed.gc.messages import BadInput, Pieces
from lakebed.gc.rules import (
    DAY_MS,
    CommitFacts,
    History,
    Namespace,
    Trees,
    clean_run,
    committed_addresses,
    days_rules,
    garbage_addresses,
    judge_commits,
)
from lakebed.objectstore import MemoryObjectStore, ObjectStore, ObjectStoreOptions
from lakebed.ranges import encode_metarange, encode_range, metarange_key, range_key, table_from_rows
from lakebed.runtime import live_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
URI = "local://lake/repo"
NOW_MS = 1_790_000_000_000
SLICES = [slice_number(opened_at_ms=NOW_MS, random_bits=bits) for bits in (1, 2, 3)]
NUMBERED = [format_address(slice_, sequence) for slice_ in SLICES for sequence in range(4)]
OTHERS = [
    "data/old/1",
    f"{URI}/data/old/1",
    "data/old/2",
    "old/1",
    f"LOCAL{URI[5:]}/old/1",
    f"{URI}/{NUMBERED[0]}",
    f"{URI}/{NUMBERED[5]}",
    f"s3://elsewhere/{NUMBERED[1]}",
    "_lakefs/dummy",
]
ADDRESSES = [*NUMBERED, *OTHERS]
ELSEWHERE = {"data/old/1", "data/old/2", "data/old/3", "old/1", "old/2"}
GARBAGE, KEPT = "_lakefs/garbage/", "_lakefs/kept/"
NOTHING = Pieces(folder="_lakefs/nothing/")

ranges_drawn = st.lists(st.lists(st.sampled_from(ADDRESSES), min_size=1, max_size=5), min_size=1, max_size=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Commits as lists of ranges (by number), ranges as lists of addresses, and what is staged."""

    ranges: list[list[str]]
    commits: list[tuple[frozenset[int], int, bool, bool]]
    """(ranges, age in days, whether the commit before is its parent, swept)"""
    head: int
    uncommitted: list[str]
    closed: frozenset[int]
    default_days: int
    in_files: bool
    """Whether tasks write down the ranges that commits have."""


@st.composite
def worlds(draw: st.DrawFn) -> World:
    ranges = draw(ranges_drawn)
    numbers = st.frozensets(st.integers(0, len(ranges) - 1), max_size=len(ranges))
    commit = st.tuples(numbers, st.integers(0, 9), st.booleans(), st.sampled_from([False, False, False, True]))
    commits = draw(st.lists(commit, min_size=1, max_size=5))
    return World(
        ranges=ranges,
        commits=commits,
        head=draw(st.integers(0, len(commits) - 1)),
        uncommitted=draw(st.lists(st.sampled_from(ADDRESSES), max_size=3)),
        closed=draw(st.frozensets(st.sampled_from(SLICES))),
        default_days=draw(st.integers(1, 8)),
        in_files=draw(st.booleans()),
    )


class Built:
    """A world written down twice: as files in a namespace, and as the values that the specification takes."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.lake = Lake(uri=URI, options=ObjectStoreOptions(local_root=folder, local_durable=False))
        self.namespace = Namespace(uri=URI, closed=frozenset(slice_name(number) for number in world.closed))
        with Files(self.lake) as files:
            for address in NUMBERED:
                files.write(address, b"1234")
            self.commits, self.history, self.trees = self._write(files)
            self.uncommitted = self._write_uncommitted(files)

    def _write(self, files: Files) -> tuple[pa.Table, History, Trees]:
        infos = []
        for number, addresses in enumerate(self.world.ranges):
            info, data = encode_range(table_of(number, addresses))
            files.write(range_key(info.id), data)
            infos.append(info)
        facts: dict[CommitId, CommitFacts] = {}
        ranges: dict[MetarangeId, list[RangeId]] = {}
        for number, (chosen, age_days, has_parent, swept) in enumerate(self.world.commits):
            named = [infos[n] for n in sorted(chosen)]
            id_, data = encode_metarange(named)
            if id_:
                files.write(metarange_key(id_), data)
                ranges[id_] = [info.id for info in named]
            commit = CommitId(f"c{number}")
            facts[commit] = CommitFacts(
                id=commit,
                parents=(CommitId(f"c{number - 1}"),) if has_parent and number else (),
                created_ms=NOW_MS - age_days * DAY_MS,
                metarange_id=id_,
                swept=swept,
            )
        addresses_of = {info.id: drawn for info, drawn in zip(infos, self.world.ranges, strict=True)}
        history = History(commits=facts, heads={"main": CommitId(f"c{self.world.head}")})
        return commits_table(facts), history, Trees(ranges=ranges, addresses=addresses_of)

    def paths_of(self, address: str) -> set[str]:
        """The paths under which commits that were not swept have it."""
        chosen = {number for numbers, _, _, swept in self.world.commits if not swept for number in numbers}
        return {
            f"p{number}/{at}"
            for number in chosen
            for at, one in enumerate(self.world.ranges[number])
            if address in self.namespace.keys_of([one])
        }

    def _write_uncommitted(self, files: Files) -> messages.Manifest:
        places = [parse_address(address) or (-1, 0) for address in self.world.uncommitted]
        count = len(places)
        rows = pa.table(
            {
                "address": pa.array(self.world.uncommitted, pa.string()),
                "slice": pa.array([place[0] for place in places], pa.int64()),
                "sequence": pa.array([place[1] for place in places], pa.int32()),
                "creation_date": pa.array([NOW_MS] * count, pa.timestamp("ms", tz="UTC")),
                "source": pa.array(["staging"] * count, pa.string()),
                "branch": pa.array(["main"] * count, pa.string()),
            }
        )
        data = messages.encode_part(messages.UNCOMMITTED, rows)
        files.write("_lakefs/x/part-00000.parquet", data)
        part = messages.part_of("part-00000.parquet", data, rows=count)
        return messages.manifest_of(messages.UNCOMMITTED, "_lakefs/x/", [part])


def table_of(number: int, addresses: Sequence[str]) -> pa.Table:
    """Ranges of one metarange do not overlap: the number leads each key."""
    keys = [f"p{number}/{at}".encode() for at in range(len(addresses))]
    entries = [Entry(address=address, size_bytes=4, checksum="", modified_ms=0) for address in addresses]
    return table_from_rows(keys, [to_row(key, entry) for key, entry in zip(keys, entries, strict=True)])


def commits_table(facts: Mapping[CommitId, CommitFacts]) -> pa.Table:
    rows = [
        {
            "id": commit.id,
            "generation": 1,
            "creation_date": commit.created_ms,
            "metarange_id": commit.metarange_id,
            "parents": [*commit.parents],
            "swept": commit.swept,
            "expiring": False,
        }
        for commit in facts.values()
    ]
    return pa.Table.from_pylist(rows, messages.arrow_schema(messages.COMMITS))


@pytest.fixture
def build(tmp_path: Path) -> Callable[[World], Built]:
    """Each world in a folder of its own."""
    numbers = itertools.count()
    return lambda world: Built(world, tmp_path / str(next(numbers)))


def outcome(run: Callable[[], set[str]]) -> set[str] | str:
    """What a planner finds, or that it refuses."""
    try:
        return run()
    except LakebedError as error:
        return type(error).__name__


@dataclass(frozen=True, slots=True)
class Engines:
    """Runs what a test does on one engine. Spark gets a job for every step, however small."""

    session: Callable[[], SparkSession] | None

    def act(self, lake: Lake, work: Callable[[Engine, ObjectStore], Coroutine[Any, Any, T]]) -> T:
        with Files(lake) as files:
            return files.act(lambda store: work(self._engine(lake, store), store))

    def _engine(self, lake: Lake, store: ObjectStore) -> Engine:
        local = LocalEngine(store, live_ports(), open_deleter=lambda: pytest.fail("a mark deletes nothing"), shares=2)
        if self.session is None:
            return local
        return SparkEngine(self.session, lake, local, tasks=2, job_s=-1, start_s=-1)


@pytest.fixture(params=["local", "spark"])
def engines(request: pytest.FixtureRequest) -> Engines:
    return Engines(None if request.param == "local" else lambda: request.getfixturevalue("session").spark)


def examples(engines: Engines, drawn: st.SearchStrategy[T], check: Callable[[T], None]) -> None:
    """Check histories drawn at random: many on the local engine, few on Spark."""
    given(drawn)(settings(max_examples=40 if engines.session is None else 6, deadline=None)(check))()


def addresses_of(lake: Lake, garbage: messages.Manifest) -> set[str]:
    """Those of a plan's table, each of which must be there once."""
    return {*paths_of_each(lake, garbage)}


def paths_of_each(lake: Lake, garbage: messages.Manifest) -> dict[str, set[str]]:
    """All paths of each address of a plan's table, which must be there once."""
    with Files(lake) as files:
        tables = [
            messages.read_part(garbage, messages.GARBAGE, part, files.read(garbage.folder + part.name))
            for part in garbage.parts
        ]
    found = [pair for table in tables for pair in zip(table["address"].to_pylist(), paths_of(table), strict=True)]
    assert len(found) == len(dict(found)), "each object once"
    return {address: {*paths} for address, paths in found}


async def listed_ranges(engine: Engine, world: World, metaranges: pa.Table) -> ListedRanges:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "IN_ROWS_MAX", 0 if world.in_files else 100)
        patch.setattr(ranges_module, "FILE_RANGES", 2)
        found = await read_ranges(engine, metaranges, folder="_lakefs/ranges/")
    assert world.in_files or not found.in_files
    assert found.count == found.of(live=True).count + found.of(live=False).count
    return found


async def live_of(engine: Engine, source: Source, rows: pa.Table, name: str) -> Pieces:
    effort = Effort(requests=rows.num_rows)
    folder = f"_lakefs/{name}.tasks/"
    dealt = await deal_live(engine, source, rows, uri=URI, folder=folder, with_keys=False, effort=effort)
    return await merge_live(engine, dealt, folder=f"_lakefs/{name}/")


def test_the_committed_mark_equals_its_specification(engines: Engines, build: Callable[[World], Built]) -> None:
    def check(world: World) -> None:
        built = build(world)
        rules = days_rules(world.default_days)

        def specified() -> set[str]:
            verdict = judge_commits(built.history, rules, now_ms=NOW_MS)
            return garbage_addresses(
                built.history, verdict, built.trees, uncommitted=world.uncommitted, namespace=built.namespace
            )

        async def mark(engine: Engine, _: ObjectStore) -> messages.Manifest:
            refs = pa.Table.from_pylist(
                [{"kind": "branch", "name": "main", "commit_id": f"c{world.head}", "state": "active"}],
                messages.arrow_schema(messages.REFS),
            )
            judged = judge(built.commits, refs, rules, now_ms=NOW_MS)
            ranges = await listed_ranges(engine, world, judged.metaranges)
            live, expired = ranges.of(live=True), ranges.of(live=False)
            candidates = await deal_expired(
                engine, expired, uri=URI, folder="_lakefs/expired/", closed=sorted(world.closed)
            )
            staged, rows, effort = from_tables([built.uncommitted], messages.UNCOMMITTED)
            sides = [
                await deal_live(engine, source, named, uri=URI, folder="_lakefs/live/", with_keys=True, effort=effort)
                for source, named in ((from_ranges, live.rows), (staged, rows))
            ]
            return (await mark_expired(engine, candidates, sides, into=GARBAGE, now_ms=NOW_MS, all_names=True))[0]

        def marked() -> set[str]:
            found = paths_of_each(built.lake, engines.act(built.lake, mark))
            assert found == {address: built.paths_of(address) for address in found}
            return {*found}

        assert outcome(marked) == outcome(specified)

    examples(engines, worlds(), check)


def test_the_uncommitted_mark_equals_its_specification(engines: Engines, build: Callable[[World], Built]) -> None:
    def check(world: World) -> None:
        built = build(world)
        committed = committed_addresses(built.history, built.trees)
        specified = clean_run(
            NUMBERED, committed=committed, uncommitted=world.uncommitted, namespace=built.namespace
        ).garbage

        async def mark(engine: Engine, _: ObjectStore) -> Marked:
            listed, _found = await list_slices(engine, sorted(world.closed), folder="_lakefs/listed/")
            ranges = await listed_ranges(engine, world, metaranges_of_all(built.commits))
            staged, rows, _effort = from_tables([built.uncommitted], messages.UNCOMMITTED)
            live = Live(
                committed=await live_of(engine, from_ranges, ranges.rows, "committed"),
                uncommitted=await live_of(engine, staged, rows, "uncommitted"),
            )
            return await mark_listed(engine, [listed], live, into=GARBAGE, kept_into=KEPT, now_ms=0)

        marked = engines.act(built.lake, mark)

        assert addresses_of(built.lake, marked.garbage) == specified
        assert marked.totals.all.objects == marked.garbage.rows == len(specified)
        assert kept_in(built.lake, marked) == {
            key for key in NUMBERED if built.namespace.may_take(key)
        } - specified - built.namespace.keys_of(committed)

    examples(engines, worlds(), check)


def test_the_mark_of_an_old_layout_equals_its_specification(engines: Engines, build: Callable[[World], Built]) -> None:
    def check(world: World) -> None:
        built, folder = build(world), "_lakefs/keys/"
        with Files(built.lake) as files:
            for key in ELSEWHERE:
                files.write(key, b"1234")

        async def mark(engine: Engine, store: ObjectStore) -> messages.Manifest:
            listed, _ = await list_elsewhere(store, folder)
            ranges = await listed_ranges(engine, world, metaranges_of_all(built.commits))
            staged, rows, effort = from_tables([built.uncommitted], messages.UNCOMMITTED)
            named = [
                await deal_keys(engine, source, some, uri=URI, folder=folder, effort=effort)
                for source, some in ((from_ranges, ranges.rows), (staged, rows))
            ]
            cause = Cause(reason="x")
            return (await mark_keys(engine, listed, named, into=GARBAGE, cause=cause, now_ms=0))[0]

        named = [*committed_addresses(built.history, built.trees), *world.uncommitted]
        found = addresses_of(built.lake, engines.act(built.lake, mark))
        assert found == ELSEWHERE - built.namespace.keys_of(named)

    examples(engines, worlds(), check)


def kept_in(lake: Lake, marked: Marked) -> set[str]:
    with Files(lake) as files:
        parts = [decode(CANDIDATES, files.read(marked.kept.folder + part.name), part) for part in marked.kept.parts]
    return {
        format_address(row["bucket"], sequence)
        for part in parts
        for row in part.to_pylist()
        for sequence in np.frombuffer(row["sequences"], "<u4").tolist()
    }


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(uri=URI, options=ObjectStoreOptions(local_root=tmp_path, local_durable=False))


def some_candidates() -> pa.Table:
    slices, sequences, sizes, seen_ms = (np.array([number]) for number in (SLICES[0], 1, 4, 0))
    return pack_numbered(slices, sequences, sizes, seen_ms, Cause(reason="x"))


def written(lake: Lake, candidates: pa.Table) -> Pieces:
    """CANDIDATES as a listing writes them."""
    data = encode(CANDIDATES, candidates)
    with Files(lake) as files:
        files.write("_lakefs/listed/some.parquet", data)
    part = messages.part_of("some.parquet", data, rows=candidates.num_rows)
    return Pieces(folder="_lakefs/listed/", parts=(part,))


def marked_with(
    engines: Engines, lake: Lake, listed: Pieces, *, committed: Pieces = NOTHING, young_since_ms: int | None = None
) -> Marked:
    live = Live(committed=committed, uncommitted=NOTHING)

    async def mark(engine: Engine, _: ObjectStore) -> Marked:
        return await mark_listed(
            engine, [listed], live, into=GARBAGE, kept_into=KEPT, now_ms=NOW_MS, young_since_ms=young_since_ms
        )

    return engines.act(lake, mark)


async def test_a_null_bucket_among_the_live_stops_the_run_instead_of_taking_what_it_named() -> None:
    dealer = Dealer(LIVE)
    dealer.add(LIVE.rows({"bucket": [None], "bitmap": [b"\x02"], "addresses": [[]]}))

    with pytest.raises(BadInput, match="null in column bucket"):
        await dealer.write(MemoryObjectStore(), "_lakefs/live/")


def test_a_candidate_that_is_in_no_slice_stops_the_mark(engines: Engines, lake: Lake) -> None:
    listed = written(lake, pack_foreign(["old/1"], [1], [0], Cause(reason="x")))

    with pytest.raises(Corrupt, match=r"some\.parquet holds objects that are in no slice"):
        marked_with(engines, lake, listed)


@pytest.mark.parametrize("garbage", [{NUMBERED[0]}, set()])
def test_what_came_after_its_slice_was_listed_is_as_old_as_its_bytes_and_not_as_its_address(
    engines: Engines, lake: Lake, garbage: set[str]
) -> None:
    slices, sequences, unknown, long_ago = (
        np.array(column, np.int64) for column in ([SLICES[0]] * 2, [0, 1], [SIZE_UNKNOWN] * 2, [0, 0])
    )
    listed = written(lake, pack_numbered(slices, sequences, unknown, long_ago, UNREFERENCED))
    with Files(lake) as files:
        files.write(NUMBERED[0], b"bytes")
        written_ms = files.act(lambda store: store.stat(NUMBERED[0])).modified_ms

    marked = marked_with(engines, lake, listed, young_since_ms=written_ms + 1 if garbage else written_ms)

    assert addresses_of(lake, marked.garbage) == garbage
    assert marked.totals.all.size_bytes == 5 * len(garbage)
    assert kept_in(lake, marked) == {NUMBERED[0]} - garbage, "a later run looks again at what is young"


@pytest.mark.parametrize("broken", ["listed", "live"])
def test_a_part_that_is_missing_stops_the_mark_and_is_named(engines: Engines, lake: Lake, broken: str) -> None:
    data = {"listed": encode(CANDIDATES, some_candidates()), "live": encode(LIVE, LIVE.schema.empty_table())}
    pieces = {}
    with Files(lake) as files:
        for name, bytes_ in data.items():
            if name != broken:
                files.write(f"_lakefs/{name}/some.parquet", bytes_)
            part = messages.part_of("some.parquet", bytes_, rows=int(name == "listed"))
            pieces[name] = Pieces(folder=f"_lakefs/{name}/", parts=(part,))

    with pytest.raises(Corrupt, match=f"_lakefs/{broken}/some.parquet is missing"):
        marked_with(engines, lake, pieces["listed"], committed=pieces["live"])


def test_what_is_too_young_stays(engines: Engines, lake: Lake) -> None:
    slices, sequences, sizes = np.full(3, SLICES[0]), np.arange(3), np.full(3, 4)
    listed = written(lake, pack_numbered(slices, sequences, sizes, np.array([9, 10, 11]), Cause(reason="x")))

    marked = marked_with(engines, lake, listed, young_since_ms=10)

    assert addresses_of(lake, marked.garbage) == {format_address(SLICES[0], 0)}
    assert kept_in(lake, marked) == {format_address(SLICES[0], 1), format_address(SLICES[0], 2)}


NUMBERS = Table("a number", pa.schema([pa.field("number", pa.int64(), nullable=False)]))


async def echo(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
    yield share


def in_pieces(*counts: int) -> pa.Table:
    pieces = [NUMBERS.rows({"number": np.arange(count)}) for count in counts]
    return pa.concat_tables(pieces)


@pytest.mark.parametrize("counts", [(0, 0, 5, 3), (5, 0), (0,), (1, 1)])
def test_an_engine_deals_each_row_whatever_pieces_a_table_is_of(
    engines: Engines, lake: Lake, counts: tuple[int, ...]
) -> None:
    async def run(engine: Engine, _: ObjectStore) -> pa.Table:
        return await engine.run(echo, in_pieces(*counts), NUMBERS, effort=Effort())

    found = engines.act(lake, run)

    assert sorted(found["number"].to_pylist()) == sorted(number for count in counts for number in range(count))


@pytest.mark.spark
def test_a_row_that_spark_loses_on_its_way_stops_the_run(
    lake: Lake, session: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = spark_engine.spread

    def lose_a_row(spark: SparkSession, rows: pa.Table, *of: Any, **how: Any) -> Any:
        return real(spark, rows.slice(1), *of, **how)

    monkeypatch.setattr(spark_engine, "spread", lose_a_row)

    async def run(engine: Engine, _: ObjectStore) -> pa.Table:
        return await engine.run(echo, in_pieces(5), NUMBERS, effort=Effort())

    with pytest.raises(BadInput, match="were dealt 4 rows of 5"):
        Engines(lambda: session.spark).act(lake, run)
