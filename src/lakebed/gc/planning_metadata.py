"""Plan a collection of metadata: range and metarange files that no commit names, and folders of old runs.

What lies under `_lakefs/` is listed first, and only then is read what may name it: every commit record, and the
metarange of each that was not swept. This publishes nothing and makes nobody wait, and much may be written meanwhile:
whether it still holds is asked when it is applied (applying_metadata.py). `lakebed.gc.rules` has the rule as a plain
function (metadata.py); the tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, RunId, count_of
from lakebed.gc import protocol
from lakebed.gc.protocol import (
    LEFTOVERS,
    QUARANTINE_PREFIX,
    QUARANTINED_PREFIX,
    PreparedCommits,
    RunView,
    StartedRun,
    input_folder,
)
from lakebed.gc.rules import RunFacts, old_runs, unnamed_files
from lakebed.objectstore import ObjectStat, ObjectStore

from .files import Files, listed
from .history import check_live, metaranges_of_all
from .read import named_ranges
from .rereading import reread
from .runs import CommitCounts, Plan, RangeCounts, plan_frame
from .strays import SPECIAL_PREFIX, Strays, find_strays_around, run_file, strays_among, tree_file
from .tables import PARTS, VERDICTS
from .verdicts import sum_parts, write_portions
from .workshop import Workshop, read_input, write_input

UNNAMED: Final = "unnamed"
OLD_RUN: Final = "old-run"


TREE_FILES: Final = pa.schema(
    [("id", pa.string()), ("key", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Special:
    """What lies under `_lakefs/`, but for the quarantine: files of trees (TREE_FILES), of which there may be millions;
    files of runs by the run's kind and id; the records of quarantines; and what nobody of ours made.
    """

    files: pa.Table
    runs: dict[tuple[str, str], list[ObjectStat]]
    quarantined: frozenset[str]
    strays: Strays


def plan_metadata(shop: Workshop, run: StartedRun, files: Files) -> Plan:
    """The plan, with the list of what it wants (table LEFTOVERS)."""
    shop.progress("listing ranges, metaranges and run folders")
    special = files.act(read_special)
    return reread(
        shop,
        files,
        lambda: shop.live_side.commits_for_metadata(run.run_id),
        lambda prepared: _plan(shop, run, files, special, prepared),
    )


def _plan(shop: Workshop, run: StartedRun, files: Files, special: Special, prepared: PreparedCommits) -> Plan:
    commits = read_input(files, prepared.commits, protocol.COMMITS)
    metaranges = metaranges_of_all(commits)
    shop.progress(f"reading {count_of(metaranges.num_rows, 'metarange')} of {count_of(commits.num_rows, 'commit')}")
    ranges = named_ranges(shop.spark, shop.lake, metaranges, tasks=shop.tasks).toArrow()
    check_live(metaranges, ranges.num_rows)
    nameless = without_ids(special.files, metaranges["metarange_id"], ranges["range_id"])
    written_ms = dict(zip(nameless["id"].to_pylist(), nameless["modified_ms"].to_pylist(), strict=True))
    ids = unnamed_files(written_ms, (), rule=shop.metadata, now_ms=run.now_ms)
    runs = old_runs(facts_of(special, shop.live_side.runs()), rule=shop.metadata, now_ms=run.now_ms)
    doomed = _doomed(nameless, special.runs, ids, runs - {run.run_id})
    parts = files.act(lambda store: _write(store, run, doomed))
    manifest, totals = sum_parts(parts, _folder(run))
    swept = int(commits["swept"].to_numpy().sum())
    return Plan(
        **plan_frame(run, prepared, shop.live_side.repository),
        leftovers=_write_leftovers(files, run, sorted(ids), sorted(runs - {run.run_id})),
        commit_counts=CommitCounts(all=commits.num_rows, kept=commits.num_rows - swept, expired=0, swept=swept),
        range_counts=RangeCounts(live=ranges.num_rows, expired=len(ids)),
        doomed=manifest,
        totals=totals,
        **find_strays_around(files).plus(special.strays).facts(),
    )


async def read_special(store: ObjectStore) -> Special:
    """One listing, of which stays what is ours to judge. The quarantine is as large as what was moved there, and is not
    listed; a file with a name that nobody of ours gives belongs to nothing, wherever it lies.
    """
    trees, quarantined, strays = [TREE_FILES.empty_table()], set[str](), Strays()
    runs: dict[tuple[str, str], list[ObjectStat]] = {}
    async for page in listed(store, SPECIAL_PREFIX, without=QUARANTINE_PREFIX):
        files = [(id_, stat) for stat in page if (id_ := tree_file(stat.key)) is not None]
        trees.append(_tree_files(files))
        for stat in page:
            if (run := run_file(stat.key)) is not None:
                runs.setdefault(run, []).append(stat)
        quarantined |= {stat.key for stat in page if stat.key.startswith(QUARANTINED_PREFIX)}
        strays = strays.plus(strays_among(stat.key for stat in page))
    return Special(files=pa.concat_tables(trees), runs=runs, quarantined=frozenset(quarantined), strays=strays)


def _tree_files(files: Sequence[tuple[str, ObjectStat]]) -> pa.Table:
    columns = {
        "id": [id_ for id_, _ in files],
        "key": [stat.key for _, stat in files],
        "size_bytes": [stat.size_bytes for _, stat in files],
        "modified_ms": [stat.modified_ms for _, stat in files],
    }
    return pa.table(columns, schema=TREE_FILES)


def without_ids(files: pa.Table, *named: pa.ChunkedArray) -> pa.Table:
    """Those of these TREE_FILES whose ids are in none of the columns."""
    for ids in named:
        value_set = ids.cast(pa.string()).combine_chunks()
        files = files.filter(pc.invert(pc.is_in(files["id"], value_set=value_set)))
    return files


def facts_of(special: Special, views: Sequence[RunView]) -> list[RunFacts]:
    """Every run that has a folder or a record."""
    known = {(view.kind.value, view.run_id): view for view in views}
    facts = []
    for kind, run_id in sorted({*known, *special.runs}):
        stats, view = special.runs.get((kind, run_id), []), known.get((kind, run_id))
        started_ms = [] if view is None else [view.started_ms]
        facts.append(
            RunFacts(
                id=run_id,
                kind=kind,
                state="" if view is None else view.state.value,
                touched_ms=max([*started_ms, *(stat.modified_ms for stat in stats)]),
                has_begun=any(stat.key.endswith((f"/{run_id}/apply.json", f"/{run_id}/sweep.json")) for stat in stats),
                has_saved=any(stat.key.endswith(f"/{run_id}/saved.json") for stat in stats),
                has_quarantine=protocol.quarantine_path(run_id) in special.quarantined,
            )
        )
    return facts


def _doomed(
    files: pa.Table, of_runs: dict[tuple[str, str], list[ObjectStat]], ids: Collection[str], runs: Collection[str]
) -> pa.Table:
    """VERDICTS: each file that goes, of these TREE_FILES and of these runs."""
    gone = (
        files.filter(pc.is_in(files["id"], value_set=pa.array(sorted(ids), pa.string()))).drop_columns("id").to_pylist()
    )
    folders = [stat for (_, run_id), stats in of_runs.items() if run_id in runs for stat in stats]
    stats = sorted([(ObjectStat(**row), UNNAMED) for row in gone] + [(stat, OLD_RUN) for stat in folders], key=_key)
    count = len(stats)
    columns: dict[str, Any] = {
        "address": [stat.key for stat, _ in stats],
        "slice": [FOREIGN_SLICE] * count,
        "sequence": [0] * count,
        "size_bytes": [stat.size_bytes for stat, _ in stats],
        "reason": [reason for _, reason in stats],
        "last_seen_at": pa.array([stat.modified_ms * 1000 for stat, _ in stats], pa.timestamp("us", tz="UTC")),
        "prefix": [stat.key[: stat.key.index("/", len(SPECIAL_PREFIX)) + 1] for stat, _ in stats],
    }
    nothing = {name: [""] * count for name in VERDICTS.schema.names if name not in columns}
    return VERDICTS.rows({**columns, **nothing})


def _key(item: tuple[ObjectStat, str]) -> str:
    return item[0].key


def _folder(run: StartedRun) -> str:
    return input_folder(run.kind, RunId(run.run_id), protocol.DOOMED.name)


async def _write(store: ObjectStore, run: StartedRun, doomed: pa.Table) -> pa.Table:
    """PARTS: the VERDICTS, written down."""

    async def tables() -> AsyncIterator[pa.Table]:
        yield doomed

    parts = [part async for part in write_portions(store, _folder(run), tables(), now_ms=run.now_ms)]
    return pa.concat_tables(parts) if parts else PARTS.schema.empty_table()


def _write_leftovers(files: Files, run: StartedRun, ids: Sequence[str], runs: Sequence[str]) -> protocol.Manifest:
    rows = pa.table({"kind": ["file"] * len(ids) + ["run"] * len(runs), "id": pa.array([*ids, *runs], pa.string())})
    folder = input_folder(run.kind, RunId(run.run_id), LEFTOVERS.name)
    return write_input(files, folder, LEFTOVERS, rows.cast(protocol.arrow_schema(LEFTOVERS)))
