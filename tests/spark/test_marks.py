"""The DataFrames agree with the plain functions of `lakebed.gc.rules`, which are the specification.

Worlds are small and drawn at random: a few commits over a few ranges, foreign and absolute addresses among them, some
slices settled and some not. Each ports is written with the real codecs and read by the real readers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakebed.base import (
    CommitId,
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
from lakebed.gc import protocol
from lakebed.gc.files import Files, Lake
from lakebed.gc.history import judge, metaranges_of_all
from lakebed.gc.mark import Live, Marked, Places, mark_expired, mark_foreign, mark_unreferenced
from lakebed.gc.packing import Cause, pack_foreign, pack_numbered
from lakebed.gc.parts import decode, encode, parts_of, rows_of_parts
from lakebed.gc.planning_old_layout import list_elsewhere
from lakebed.gc.protocol import Pieces
from lakebed.gc.read import (
    SIZE_UNKNOWN,
    UNREFERENCED,
    expired_objects,
    gather_live,
    list_slices,
    live_objects,
    named_keys,
    named_ranges,
    reading_live,
    reading_uncommitted,
    uncommitted_keys,
    uncommitted_objects,
    write_live,
)
from lakebed.gc.rules import (
    DAY_MS,
    CommitFacts,
    History,
    Namespace,
    Trees,
    clean_run,
    committed_addresses,
    days_rules,
    doomed_addresses,
    judge_commits,
)
from lakebed.gc.tables import CANDIDATES, LIVE, PARTS, RANGES, SETTLED, SchemaMismatch
from lakebed.gc.verdicts import doomed_objects
from lakebed.objectstore import ObjectStoreOptions
from lakebed.ranges import encode_metarange, encode_range, metarange_key, range_key, table_from_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
INTO = Places(doomed="_lakefs/doomed/", kept="_lakefs/kept/")
NOTHING = Pieces(folder="_lakefs/nothing/")

ranges_drawn = st.lists(st.lists(st.sampled_from(ADDRESSES), min_size=1, max_size=5), min_size=1, max_size=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Commits as lists of ranges (by number), ranges as lists of addresses, and what is staged."""

    ranges: list[list[str]]
    commits: list[tuple[frozenset[int], int, bool, bool]]
    """(ranges, age in days, whether the commit before is its parent, swept)"""
    head: int
    uncommitted: list[str]
    settled: frozenset[int]
    default_days: int


@st.composite
def worlds(draw: st.DrawFn) -> Ports:
    ranges = draw(ranges_drawn)
    numbers = st.frozensets(st.integers(0, len(ranges) - 1), max_size=len(ranges))
    commit = st.tuples(numbers, st.integers(0, 9), st.booleans(), st.sampled_from([False, False, False, True]))
    commits = draw(st.lists(commit, min_size=1, max_size=5))
    return Ports(
        ranges=ranges,
        commits=commits,
        head=draw(st.integers(0, len(commits) - 1)),
        uncommitted=draw(st.lists(st.sampled_from(ADDRESSES), max_size=3)),
        settled=draw(st.frozensets(st.sampled_from(SLICES))),
        default_days=draw(st.integers(1, 8)),
    )


class Built:
    """A ports written down twice: as files in a namespace, and as the values that the specification takes."""

    def __init__(self, ports: Ports, folder: Path) -> None:
        self.ports = ports
        self.lake = Lake(uri=URI, options=ObjectStoreOptions(local_root=folder, local_durable=False))
        self.namespace = Namespace(uri=URI, settled=frozenset(slice_name(number) for number in ports.settled))
        with Files(self.lake) as files:
            for address in NUMBERED:
                files.write(address, b"1234")
            self.commits, self.history, self.trees = self._write(files)
            self.uncommitted = self._write_uncommitted(files)

    def _write(self, files: Files) -> tuple[pa.Table, History, Trees]:
        infos = []
        for number, addresses in enumerate(self.ports.ranges):
            info, data = encode_range(table_of(number, addresses))
            files.write(range_key(info.id), data)
            infos.append(info)
        facts: dict[CommitId, CommitFacts] = {}
        ranges: dict[MetarangeId, list[RangeId]] = {}
        for number, (chosen, age_days, has_parent, swept) in enumerate(self.ports.commits):
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
        addresses_of = {info.id: drawn for info, drawn in zip(infos, self.ports.ranges, strict=True)}
        history = History(commits=facts, heads={"main": CommitId(f"c{self.ports.head}")})
        return commits_table(facts), history, Trees(ranges=ranges, addresses=addresses_of)

    def _write_uncommitted(self, files: Files) -> protocol.Manifest:
        places = [parse_address(address) or (-1, 0) for address in self.ports.uncommitted]
        count = len(places)
        rows = pa.table(
            {
                "address": pa.array(self.ports.uncommitted, pa.string()),
                "slice": pa.array([place[0] for place in places], pa.int64()),
                "sequence": pa.array([place[1] for place in places], pa.int32()),
                "creation_date": pa.array([NOW_MS] * count, pa.timestamp("ms", tz="UTC")),
                "source": pa.array(["staging"] * count, pa.string()),
                "branch": pa.array(["main"] * count, pa.string()),
            }
        )
        data = protocol.encode_part(protocol.UNCOMMITTED, rows)
        files.write("_lakefs/x/part-00000.parquet", data)
        part = protocol.part_of("part-00000.parquet", data, rows=count)
        return protocol.manifest_of(protocol.UNCOMMITTED, "_lakefs/x/", [part])


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
            "condemned": False,
        }
        for commit in facts.values()
    ]
    return pa.Table.from_pylist(rows, protocol.arrow_schema(protocol.COMMITS))


@pytest.fixture
def build(tmp_path: Path) -> Callable[[Ports], Built]:
    """Each ports in a folder of its own."""
    numbers = itertools.count()
    return lambda ports: Built(ports, tmp_path / str(next(numbers)))


def outcome(run: Callable[[], set[str]]) -> set[str] | str:
    """What a planner finds, or that it refuses."""
    try:
        return run()
    except LakebedError as error:
        return type(error).__name__


few = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@few
@given(ports=worlds())
def test_the_committed_mark_equals_its_specification(
    spark: SparkSession, build: Callable[[Ports], Built], ports: Ports
) -> None:
    built = build(ports)
    rules = days_rules(ports.default_days)

    def specified() -> set[str]:
        verdict = judge_commits(built.history, rules, now_ms=NOW_MS)
        return doomed_addresses(
            built.history, verdict, built.trees, uncommitted=ports.uncommitted, namespace=built.namespace
        )

    def marked() -> set[str]:
        refs = pa.Table.from_pylist(
            [{"kind": "branch", "name": "main", "commit_id": f"c{ports.head}", "state": "active"}],
            protocol.arrow_schema(protocol.REFS),
        )
        judged = judge(built.commits, refs, rules, now_ms=NOW_MS)
        ranges = named_ranges(spark, built.lake, judged.metaranges, tasks=2).toArrow()
        verdicts = mark_expired(
            expired_objects(spark, built.lake, ranges.filter(pc.invert(ranges["is_live"])), tasks=2),
            live_objects(spark, built.lake, ranges.filter(ranges["is_live"]), tasks=2, with_keys=True),
            uncommitted_objects(spark, built.lake, built.uncommitted, tasks=1, with_keys=True),
            spark.createDataFrame(SETTLED.rows({"bucket": sorted(ports.settled)}), SETTLED.spark),
        )
        return addresses_of(verdicts)

    assert outcome(marked) == outcome(specified)


@few
@given(ports=worlds())
def test_the_uncommitted_mark_equals_its_specification(
    spark: SparkSession, build: Callable[[Ports], Built], ports: Ports
) -> None:
    built = build(ports)

    committed = committed_addresses(built.history, built.trees)
    specified = clean_run(
        NUMBERED, committed=committed, uncommitted=ports.uncommitted, namespace=built.namespace
    ).doomed
    listing = list_slices(spark, built.lake, sorted(ports.settled), folder="_lakefs/listed/", tasks=2).toArrow()
    ranges = named_ranges(spark, built.lake, metaranges_of_all(built.commits), tasks=2).toArrow()
    # What the tasks found is put together once by a shuffle, once by the driver.
    uri = built.lake.uri
    works = [
        reading_live(uri, with_keys=False),
        reading_uncommitted(built.uncommitted, uri, with_keys=False),
    ]
    inputs = [(ranges, RANGES), (rows_of_parts(built.uncommitted.parts), PARTS)]
    committed_live, uncommitted_live = (
        gather_live(spark, built.lake, work, *rows, folder=f"_lakefs/live-{most}/", tasks=2, bytes_here=most)
        for work, rows, most in zip(works, inputs, (0, 1 << 20), strict=True)
    )
    marked = mark_unreferenced(
        spark,
        built.lake,
        candidates=[Pieces(folder="_lakefs/listed/", parts=tuple(parts_of(listing)))],
        live=Live(committed=committed_live, uncommitted=uncommitted_live),
        into=INTO,
        tasks=2,
        now_ms=0,
    )

    assert addresses_of(doomed_objects(spark, built.lake, marked.doomed, tasks=2)) == specified
    assert marked.totals.all.objects == marked.doomed.rows == len(specified)
    assert kept_in(built.lake, marked) == {
        key for key in NUMBERED if built.namespace.may_take(key)
    } - specified - built.namespace.keys_of(committed)


@settings(few, max_examples=4)
@given(ports=worlds())
def test_the_mark_of_an_old_layout_equals_its_specification(
    spark: SparkSession, build: Callable[[Ports], Built], ports: Ports
) -> None:
    built, folder = build(ports), "_lakefs/keys/"
    with Files(built.lake) as files:
        for key in ELSEWHERE:
            files.write(key, b"1234")
        listed, _ = files.act(lambda store: list_elsewhere(store, folder))
    ranges = named_ranges(spark, built.lake, metaranges_of_all(built.commits), tasks=2).toArrow()

    doomed, _ = mark_foreign(
        spark,
        built.lake,
        listed=listed,
        named=[
            named_keys(spark, built.lake, ranges, tasks=2, folder=folder),
            uncommitted_keys(spark, built.lake, built.uncommitted, tasks=1, folder=folder),
        ],
        into="_lakefs/doomed.elsewhere/",
        cause=Cause(reason="x"),
        tasks=2,
        now_ms=0,
    )

    named = [*committed_addresses(built.history, built.trees), *ports.uncommitted]
    assert addresses_of(doomed_objects(spark, built.lake, doomed, tasks=2)) == ELSEWHERE - built.namespace.keys_of(
        named
    )


def kept_in(lake: Lake, marked: Marked) -> set[str]:
    with Files(lake) as files:
        parts = [decode(CANDIDATES, files.read(marked.kept.folder + part.name), part) for part in marked.kept.parts]
    return {
        format_address(row["bucket"], sequence)
        for part in parts
        for row in part.to_pylist()
        for sequence in np.frombuffer(row["sequences"], "<u4").tolist()
    }


def addresses_of(verdicts: DataFrame) -> set[str]:
    found = verdicts.select("address").toArrow()["address"].to_pylist()
    assert len(found) == len(set(found)), "each object once"
    return set(found)


def test_a_table_without_the_declared_columns_is_refused_before_a_row_is_read(spark: SparkSession) -> None:
    live = spark.createDataFrame(LIVE.schema.empty_table(), LIVE.spark)

    with pytest.raises(SchemaMismatch, match="sequences"):
        mark_expired(live, live, live, spark.createDataFrame(SETTLED.schema.empty_table(), SETTLED.spark))


def some_candidates() -> pa.Table:
    slices, sequences, sizes, seen_ms = (np.array([number]) for number in (SLICES[0], 1, 4, 0))
    return pack_numbered(slices, sequences, sizes, seen_ms, Cause(reason="x"))


def test_a_null_bucket_among_the_live_stops_the_job_instead_of_dooming_what_it_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    candidates = spark.createDataFrame(some_candidates(), CANDIDATES.spark)
    settled = spark.createDataFrame(SETTLED.rows({"bucket": SLICES}), SETTLED.spark)
    broken = spark.createDataFrame([(None, b"\x02", [])], "bucket long, bitmap binary, addresses array<string>")
    lake = Lake(uri=URI, options=ObjectStoreOptions(local_root=tmp_path, local_durable=False))

    with pytest.raises(Exception, match="null in column bucket"):
        mark_expired(candidates, broken, broken, settled).toArrow()
    with pytest.raises(Exception, match="null in column bucket"):
        write_live(broken, lake, folder="_lakefs/live/")


def test_a_candidate_that_is_in_no_slice_stops_the_mark(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(uri=URI, options=ObjectStoreOptions(local_root=tmp_path, local_durable=False))
    data = encode(CANDIDATES, pack_foreign(["old/1"], [1], [0], Cause(reason="x")))
    part = protocol.part_of("some.parquet", data, rows=1)
    with Files(lake) as files:
        files.write("_lakefs/listed/some.parquet", data)
    nothing = Pieces(folder="_lakefs/live/")

    with pytest.raises(Exception, match=r"some\.parquet holds objects that are in no slice"):
        mark_unreferenced(
            spark,
            lake,
            candidates=[Pieces(folder="_lakefs/listed/", parts=(part,))],
            live=Live(committed=nothing, uncommitted=nothing),
            into=INTO,
            tasks=1,
            now_ms=0,
        )


@pytest.mark.parametrize("doomed", [{NUMBERED[0]}, set()])
def test_what_came_after_its_slice_was_listed_is_as_old_as_its_bytes_and_not_as_its_address(
    spark: SparkSession, tmp_path: Path, doomed: set[str]
) -> None:
    lake = Lake(uri=URI, options=ObjectStoreOptions(local_root=tmp_path, local_durable=False))
    slices, sequences, unknown, long_ago = (
        np.array(column, np.int64) for column in ([SLICES[0]] * 2, [0, 1], [SIZE_UNKNOWN] * 2, [0, 0])
    )
    data = encode(CANDIDATES, pack_numbered(slices, sequences, unknown, long_ago, UNREFERENCED))
    with Files(lake) as files:
        files.write("_lakefs/listed/some.parquet", data)
        files.write(NUMBERED[0], b"bytes")
        written_ms = files.act(lambda store: store.stat(NUMBERED[0])).modified_ms
    listed = Pieces(folder="_lakefs/listed/", parts=(protocol.part_of("some.parquet", data, rows=1),))
    nothing = Pieces(folder="_lakefs/live/")

    marked = mark_unreferenced(
        spark,
        lake,
        candidates=[listed],
        live=Live(committed=nothing, uncommitted=nothing),
        into=Places(doomed="_lakefs/doomed/", kept="_lakefs/kept/", bytes_here=1 << 20),
        tasks=1,
        now_ms=NOW_MS,
        young_since_ms=written_ms + 1 if doomed else written_ms,
    )

    assert addresses_of(doomed_objects(spark, lake, marked.doomed, tasks=1)) == doomed
    assert marked.totals.all.size_bytes == 5 * len(doomed)
    assert kept_in(lake, marked) == {NUMBERED[0]} - doomed, "a later run looks again at what is young"


@pytest.mark.parametrize("broken", ["listed", "live"])
def test_a_part_that_is_missing_stops_the_mark_and_is_named(spark: SparkSession, tmp_path: Path, broken: str) -> None:
    lake = Lake(uri=URI, options=ObjectStoreOptions(local_root=tmp_path, local_durable=False))
    data = {"listed": encode(CANDIDATES, some_candidates()), "live": encode(LIVE, LIVE.schema.empty_table())}
    written = {}
    with Files(lake) as files:
        for name, bytes_ in data.items():
            if name != broken:
                files.write(f"_lakefs/{name}/some.parquet", bytes_)
            part = protocol.part_of("some.parquet", bytes_, rows=int(name == "listed"))
            written[name] = Pieces(folder=f"_lakefs/{name}/", parts=(part,))

    with pytest.raises(Exception, match=f"_lakefs/{broken}/some.parquet is missing"):
        mark_unreferenced(
            spark,
            lake,
            candidates=[written["listed"]],
            live=Live(committed=written["live"], uncommitted=NOTHING),
            into=INTO,
            tasks=1,
            now_ms=0,
        )


def test_what_is_too_young_stays(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(uri=URI, options=ObjectStoreOptions(local_root=tmp_path, local_durable=False))
    slices, sequences, sizes = np.full(3, SLICES[0]), np.arange(3), np.full(3, 4)
    data = encode(CANDIDATES, pack_numbered(slices, sequences, sizes, np.array([9, 10, 11]), Cause(reason="x")))
    with Files(lake) as files:
        files.write("_lakefs/listed/some.parquet", data)
    listed = Pieces(folder="_lakefs/listed/", parts=(protocol.part_of("some.parquet", data, rows=1),))

    marked = mark_unreferenced(
        spark,
        lake,
        candidates=[listed],
        live=Live(committed=NOTHING, uncommitted=NOTHING),
        into=INTO,
        tasks=1,
        now_ms=0,
        young_since_ms=10,
    )

    assert addresses_of(doomed_objects(spark, lake, marked.doomed, tasks=1)) == {format_address(SLICES[0], 0)}
    assert kept_in(lake, marked) == {format_address(SLICES[0], 1), format_address(SLICES[0], 2)}
