"""Do the work of `lifecycle` in another process: `python -m bench.collecting.lifecycle_run WHAT
FOLDER …`.

    make RANGES COMMITS BRANCHES [DAYS]   a lake, its commits and refs of today and of the next day
    ours                                  a first run, and the next day's, each up to its plan; prints what each took
    floor                                 DuckDB over the same files, twice

A tree has about a quarter of all ranges; each commit replaces one of them by another version, of which a fifth of the
rows are new. Paths below twenty prefixes have rules, with periods of their own on four groups of branches; a sixth of
the paths has none. The next day has one in a hundred commits more, each with a range that is new.

A lake that gains one commit in a hundred a day is a hundred days old (DAYS). The dates of its objects are spread evenly
over these days, and what the next day brings is of that day. Periods are shares of DAYS, so the first run takes the
same part of any lake.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.embedded.lake import in_hex
from bench.harness import own_peak_mib
from lakebed.base import slice_number
from lakebed.gc import messages
from lakebed.gc.engines import LocalEngine
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.kinds.lifecycle.learning import learn, read_known
from lakebed.gc.kinds.lifecycle.plan import mark_known
from lakebed.gc.kinds.lifecycle.reaching import Reached, reach_metaranges
from lakebed.gc.rules import DAY_MS
from lakebed.gc.rules.lifecycle import Policy, check_policy, parse_period
from lakebed.gc.runs.context import RunContext
from lakebed.objectstore import ObjectStore, ObjectStoreOptions
from lakebed.ranges import ENTRIES_SCHEMA, RangeInfo, encode_metarange, encode_range, metarange_key, range_key
from lakebed.runtime import live_ports

HOUR_MS = 3_600_000
NOW_MS = 1_790_000_000_000
URI = "local://bench/lifecycle"
ROWS = 10_000
NEW_ROWS = 2_000
PREFIXES = 24
RULES = 20
FIRST_SLICE = slice_number(opened_at_ms=NOW_MS, random_bits=0)
DAYS = 100
"""One commit in a hundred a day."""
SHARES = 45
"""Periods, and what lies between two versions of a range, are shares of the age of the lake."""
STEP = 10_007
"""A prime: commits that step this far from place to place come to all, so every range is in some tree."""
SPREAD = 0.6180339887498949
"""Multiples of it, without their whole parts, are spread evenly however many there are."""

Numbers = npt.NDArray[np.int64]


class Day(msgspec.Struct, kw_only=True):
    cpu_s: float
    wall_s: float
    objects: int
    peak_mib: float


def lake_in(folder: Path) -> Lake:
    return Lake(uri=URI, options=ObjectStoreOptions(local_root=folder / "lake", local_durable=False))


def policy_of(folder: Path) -> Policy:
    return check_policy((folder / "policy.json").read_bytes())


def policy_for(days: int) -> dict[str, Any]:
    def period(shares: int) -> str:
        return f"{round(shares * days / SHARES)}d"

    return {
        "rules": {
            f"rule{number}": {
                "prefix": f"p{number:02}/",
                "period": period(20 + number),
                "branches": {"team-1-*": period(15), "team-2-*": period(30 + number), "team-3-*": period(10)},
            }
            for number in range(RULES)
        }
    }


# Making


def make(folder: Path, ranges: int, commits: int, branches: int, days: int = DAYS) -> None:
    (folder / "policy.json").write_bytes(msgspec.json.encode(policy_for(days)))
    with Files(lake_in(folder)) as files:
        files.act(lambda store: _make(folder, store, ranges, commits, branches, days))


async def _make(folder: Path, store: ObjectStore, ranges: int, count: int, branches: int, days: int) -> None:
    places = max(PREFIXES, ranges * 28 // 100)
    versions: list[list[RangeInfo]] = [[] for _ in range(places)]
    for number in range(ranges):
        await _add_version(store, versions, number % places, days)
    commits, refs = history(count, branches)
    refs = refs.set_column(1, "name", pc.replace_substring(refs["name"], "/", "-"))
    random = np.random.default_rng(3)
    tree, metaranges = [of_place[0] for of_place in versions], []
    for number in range(count):
        place = number * STEP % places
        others = [info for info in versions[place] if info != tree[place]]
        tree[place] = others[int(random.integers(len(others)))]
        metaranges.append(await _put_tree(store, tree))
    commits = commits.set_column(3, "metarange_id", pa.array(metaranges, pa.string()))
    pq.write_table(commits, folder / "commits-0.parquet")
    pq.write_table(refs, folder / "refs-0.parquet")
    # The next day, all on the main branch.
    head = refs["commit_id"][0].as_py()
    generation = commits["generation"].to_numpy()[commits["id"].to_pylist().index(head)]
    rows = []
    for number in range(max(1, count // 100)):
        place = number * STEP % places
        await _add_version(store, versions, place, days, is_new=True)
        tree[place] = versions[place][-1]
        id_, metarange = f"{number:064x}", await _put_tree(store, tree)
        commit = {"id": id_, "generation": generation + 1 + number, "metarange_id": metarange, "parents": [head]}
        rows.append(commit | {"creation_date": NOW_MS, "swept": False, "expiring": False})
        head = id_
    new = pa.Table.from_pylist(rows, messages.arrow_schema(messages.COMMITS))
    pq.write_table(pa.concat_tables([commits, new.cast(commits.schema)]), folder / "commits-1.parquet")
    heads = [head, *refs["commit_id"].to_pylist()[1:]]
    pq.write_table(refs.set_column(2, "commit_id", pa.array(heads, pa.string())), folder / "refs-1.parquet")


async def _add_version(
    store: ObjectStore, versions: list[list[RangeInfo]], place: int, days: int, *, is_new: bool = False
) -> None:
    """A version of a place keeps the rows of the one before, but for some that have new objects."""
    version = len(versions[place])
    age_ms = int(place * SPREAD % 1 * days * DAY_MS)
    slices = np.full(ROWS, FIRST_SLICE + place, np.int64)
    sequences, ages_ms = np.arange(ROWS), np.full(ROWS, age_ms, np.int64)
    for later in range(1, version + 1):
        start = later * NEW_ROWS % ROWS
        part = slice(start, start + NEW_ROWS)
        slices[part] = FIRST_SLICE + place + later * 100_000
        sequences[part] = np.arange(NEW_ROWS)
        of_next_day = is_new and later == version
        ages_ms[part] = -DAY_MS if of_next_day else max(0, age_ms - later * days * DAY_MS // SHARES)
    prefix = place % PREFIXES
    keys = [f"p{prefix:02}/{place:06}/part-{row:06}.parquet".encode() for row in range(ROWS)]
    columns: dict[str, object] = {
        "key": keys,
        "slice": slices,
        "sequence": sequences,
        "size_bytes": 1_000_000 + sequences,
        "modified_ms": NOW_MS - ages_ms - sequences,
    }
    for field in ENTRIES_SCHEMA:
        if field.name not in columns:
            empty: Any = b"" if pa.types.is_binary(field.type) else "" if pa.types.is_string(field.type) else 0
            columns[field.name] = [empty] * ROWS
    rows = pa.table({name: columns[name] for name in ENTRIES_SCHEMA.names}, schema=ENTRIES_SCHEMA)
    info, data = encode_range(rows)
    await store.put(range_key(info.id), data)
    versions[place].append(info)


async def _put_tree(store: ObjectStore, tree: list[RangeInfo]) -> str:
    id_, data = encode_metarange(sorted(tree, key=lambda info: info.min_key))
    await store.put(metarange_key(id_), data)
    return str(id_)


# Ours


def ours(folder: Path) -> list[Day]:
    saved, found = None, []
    for day in range(2):
        commits, refs = (pq.read_table(folder / f"{name}-{day}.parquet") for name in ("commits", "refs"))
        cpu, wall = time.process_time(), time.perf_counter()
        with Files(lake_in(folder)) as files:
            objects, saved = files.act(lambda store: _plan(folder, store, commits, refs, day, saved))  # noqa: B023 - run at once
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        found.append(Day(cpu_s=cpu, wall_s=wall, objects=objects, peak_mib=own_peak_mib()))
    return found


async def _plan(
    folder: Path, store: ObjectStore, commits: pa.Table, refs: pa.Table, day: int, saved: messages.KnownDues | None
) -> tuple[int, messages.KnownDues]:
    """All that a planner does but for what it asks the server."""
    policy = policy_of(folder)
    run = messages.StartedRun(
        run_id=f"run{day}",
        kind=messages.RunKind.LIFECYCLE,
        state=messages.RunState.PLANNING,
        namespace=URI,
        folder=f"_lakefs/retention/gc/lifecycle/run{day}/",
        now_ms=NOW_MS + day * DAY_MS,
        closed_slices=(),
    )
    ports = live_ports()
    context = RunContext(
        repository="bench",
        service=None,  # type: ignore[arg-type]  # it is asked nothing
        engine=LocalEngine(store, ports, open_deleter=_no_deleter),
        store=store,
        ports=ports,
        progress=lambda _: None,
    )
    reached = reach_metaranges(commits, refs, policy)
    base = None if saved is None else await read_known(store, "run0", saved)
    learned = await learn(context, run, policy, reached, base)
    assert learned.known is not None
    assert learned.base is base, learned.note
    closed = learned.known.dues.slices()
    garbage, totals = await mark_known(context, run, policy, learned, [], closed=closed, into=f"{run.folder}garbage/")
    # As if it were applied.
    await learned.known.take(context, {run.run_id: garbage})
    return totals.all.objects, await learned.known.keep(context, run, learned.base)


def _no_deleter() -> Any:
    raise AssertionError("a plan deletes nothing")


# Floor


def floor(folder: Path) -> list[Day]:
    """The same objects, by SQL over the range and metarange files. Branches are walked by our own code, not timed."""
    found = []
    commits, refs = (pq.read_table(folder / f"{name}-0.parquet") for name in ("commits", "refs"))
    policy = policy_of(folder)
    reached = reach_metaranges(commits, refs, policy)
    masks = reached.masks()
    terms = pa.Table.from_pylist(_terms(reached, policy))
    trees = pa.table({"tree": [*masks], "mask": pa.array([*masks.values()], pa.int64())})
    lake = folder / "lake" / "bench" / "lifecycle" / "_lakefs"
    for _ in range(2):
        with duckdb.connect() as connection:
            connection.execute("SET threads = 2")
            connection.register("trees", trees)
            connection.register("terms", terms)
            cpu, wall = time.process_time(), time.perf_counter()
            [(objects,)] = connection.execute(_SQL.format(lake=lake, now=NOW_MS)).fetchall()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        found.append(Day(cpu_s=cpu, wall_s=wall, objects=objects, peak_mib=own_peak_mib()))
    return found


def _terms(reached: Reached, policy: Policy) -> list[dict[str, Any]]:
    """By any union of sets of classes and prefix, how long objects stay."""
    classes, rules = reached.classes.periods, policy.rules
    rows: list[dict[str, Any]] = []
    for mask in range(1, 1 << len(classes)):
        for number, rule in enumerate(rules):
            periods = {one for bit, of in enumerate(classes) if mask >> bit & 1 for one in of[number]}
            days = (
                None if None in periods else max(NOW_MS - parse_period(str(one)).cutoff_ms(NOW_MS) for one in periods)
            )
            rows.append({"mask": mask, "prefix": rule.pattern.text, "stays_ms": days})
    return rows


_SQL = """
WITH members AS (
    SELECT DISTINCT id, mask FROM read_parquet('{lake}/metaranges/*.parquet', filename = 'file') AS m
    JOIN trees ON trees.tree = regexp_extract(file, '([0-9a-f]+)[.]parquet$', 1)
), ranges AS (
    SELECT lower(hex(id)) AS range, bit_or(mask) AS mask FROM members GROUP BY id
), rows AS (
    SELECT slice, sequence, modified_ms, decode(key)[1:4] AS prefix,
        regexp_extract(file, '([0-9a-f]+)[.]parquet$', 1) AS range
    FROM read_parquet('{lake}/ranges/*.parquet', filename = 'file')
), judged AS (
    SELECT slice, sequence,
        max(CASE WHEN stays_ms IS NULL OR modified_ms >= {now} - stays_ms THEN 1 ELSE 0 END) AS stays
    FROM rows JOIN ranges USING (range) LEFT JOIN terms ON terms.mask = ranges.mask AND terms.prefix = rows.prefix
    GROUP BY slice, sequence
)
SELECT count(*) FROM judged WHERE stays = 0
"""


def history(commits: int, branches: int) -> tuple[pa.Table, pa.Table]:
    """Make up COMMITS and REFS: main, branches that begin in it, and commits that none has."""
    main, dangling = commits * 2 // 5, commits // 20
    each = (commits - main - dangling) // (branches - 1)
    random = np.random.default_rng(1)
    parent, generation, heads = np.arange(-1, main - 1), np.arange(1, main + 1), [main - 1]
    for start in random.integers(main // 2, main, branches - 1).tolist():
        first = len(parent)
        parent = np.append(parent, [start, *range(first, first + each - 1)])
        generation = np.append(generation, np.arange(each) + generation[start] + 1)
        heads.append(len(parent) - 1)
    rest = commits - len(parent)
    loose = random.integers(0, len(parent), rest)
    parent, generation = np.append(parent, loose), np.append(generation, generation[loose] + 1)
    merged = np.where(random.integers(0, 10, commits) == 0, random.integers(0, main, commits), -1)
    order = np.argsort(generation, kind="stable")
    return _commits(parent, generation, merged, order), _refs(heads)


def _commits(parent: Numbers, generation: Numbers, merged: Numbers, order: Numbers) -> pa.Table:
    ids = _ids(np.arange(len(parent)))
    firsts, seconds = parent[order], merged[order]
    both = np.stack((firsts, seconds), axis=1).ravel()
    counts = np.cumsum((firsts >= 0).astype(np.int32) + (seconds >= 0))
    named = ids.take(pa.array(both[both >= 0]))
    columns = {
        "id": ids.take(pa.array(order)),
        "generation": generation[order],
        "creation_date": NOW_MS - (generation.max() - generation[order]) * HOUR_MS // 10,
        "metarange_id": _ids(order + 10**9),
        "parents": pa.ListArray.from_arrays(np.append(0, counts).astype(np.int32), named),
        "swept": np.zeros(len(order), np.bool_),
        "expiring": np.zeros(len(order), np.bool_),
    }
    return pa.table(columns).cast(messages.arrow_schema(messages.COMMITS))


def _refs(heads: list[int]) -> pa.Table:
    names = ["main", *(f"team-{number % 20}/branch-{number}" for number in range(1, len(heads)))]
    ids = _ids(np.array(heads)).to_pylist()
    columns = {"kind": ["branch"] * len(heads), "name": names, "commit_id": ids, "state": ["active"] * len(heads)}
    return pa.table(columns).cast(messages.arrow_schema(messages.REFS))


def _ids(numbers: Numbers) -> pa.Array:
    """64 hex digits each."""
    words = numbers.astype(np.uint64)[:, None] * np.array([[3, 5, 7, 11]], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return in_hex(words.view(np.uint8).reshape(len(numbers), 32))


def main(what: str, folder: Path, numbers: list[int]) -> None:
    match what:
        case "make":
            make(folder, *numbers)
        case "ours":
            print(msgspec.json.encode(ours(folder)).decode())
        case _:
            print(msgspec.json.encode(floor(folder)).decode())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(text) for text in sys.argv[3:]])
