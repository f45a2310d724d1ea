"""Write the tables of a lifecycle run into the namespace, for people and their own jobs. No run reads them.

    _lakefs/retention/lc/policy/<run>.parquet                 the policy as the run applied it
    _lakefs/retention/lc/addresses/date=<day>/<run>-<part>    deleted objects: run_id, address, paths, matched_rules
    _lakefs/retention/lc/stats/date=<day>/<run>.csv           a row about the run, below a header

The design document names them (docs/design/0003-lifecycle.md). The paths of an object are those of the plan.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakebed.gc import messages
from lakebed.gc.engines import Effort, Task
from lakebed.gc.engines.engine import OTHERS, Table, read_part, required
from lakebed.gc.messages import LC_PREFIX, LedgerState, Manifest, Plan, RunReport
from lakebed.gc.rules.lifecycle import PolicyRow, check_policy, policy_table
from lakebed.gc.runs.context import RunContext
from lakebed.gc.runs.recording import Ledger, read_recorded
from lakebed.objectstore import ObjectStore

_TEXTS: Final = pa.list_(pa.field("element", pa.string(), nullable=False))
ADDRESSES: Final = Table(
    "an object that a run deleted",
    required(("run_id", pa.string()), ("address", pa.string()), ("paths", _TEXTS), ("matched_rules", _TEXTS)),
)
POLICY: Final = Table(
    "a rule of a run's policy for a branch, empty for all others; what was written before the date goes",
    required(
        ("run_id", pa.string()),
        ("rule_id", pa.string()),
        ("prefix", pa.string()),
        ("branch", pa.string()),
        ("date_to_be_deleted", pa.timestamp("ms", tz="UTC")),
    ),
)
STATS: Final = ("run_id", "policy_version", "state", "objects", "bytes", "failed", "began", "ended")

_PARTS: Final = Table("a part of the garbage", required(("name", pa.string())))


async def write_tables(context: RunContext, plan: Plan, garbage: Manifest, ledger: Ledger, report: RunReport) -> None:
    """Write the tables of a run that deleted `garbage`. Only one apply works on a run, so a retry writes them again."""
    rows = policy_table(check_policy(plan.policy.encode()), run_id=plan.run_id, now_ms=plan.now_ms)
    columns = {name: [getattr(row, name) for row in rows] for name in PolicyRow.__struct_fields__}
    await context.store.put(f"{LC_PREFIX}policy/{plan.run_id}.parquet", _parquet(POLICY.rows({**columns})))
    names = pa.table({"name": [part.name for part in garbage.parts]}, schema=_PARTS.schema)
    folder = f"{LC_PREFIX}addresses/date={ledger.date}/{plan.run_id}-"
    parts = {part.name: part for part in garbage.parts}

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        for name in share["name"].to_pylist():
            data = await read_part(task.store, garbage.folder, parts[name])
            others = messages.read_part(garbage, messages.GARBAGE, parts[name], data, ["address", *OTHERS])
            rows = (await read_recorded(task.store, ledger, name, others)).rows
            went = rows.filter(pc.equal(rows["state"], LedgerState.DELETED.value))
            if went.num_rows:
                await task.store.put(folder + name, _parquet(_addresses(went, others)))
        yield _PARTS.schema.empty_table()

    effort = Effort(requests=3 * len(parts), size_bytes=2 * sum(part.size_bytes for part in garbage.parts))
    await context.engine.run(work, names, _PARTS, effort=effort)
    await _write_stats(context.store, plan, ledger.date, report)


def _addresses(went: pa.Table, others: pa.Table) -> pa.Table:
    """Return ADDRESSES of these LEDGER rows. `others` has the columns OTHERS for each address."""
    others = others.take(pc.index_in(went["address"], value_set=others["address"].combine_chunks()).combine_chunks())
    paths, rules = (
        _lists(went[own], others[name].combine_chunks()) for own, name in zip(("path", "rule"), OTHERS, strict=True)
    )
    return ADDRESSES.rows(
        {"run_id": went["run_id"], "address": went["address"], "paths": paths, "matched_rules": rules}
    )


def _lists(own: pa.ChunkedArray, others: pa.ListArray) -> pa.Array:
    """Return a sorted list of each text and its others."""
    # Often no object has a second path or rule. Then build the lists without Python objects.
    if others.null_count == len(others):
        return pa.ListArray.from_arrays(pa.array(range(len(own) + 1), pa.int32()), own.combine_chunks(), type=_TEXTS)
    rows = zip(own.to_pylist(), others.to_pylist(), strict=True)
    return pa.array([sorted({text, *(more or ())}) for text, more in rows], _TEXTS)


async def _write_stats(store: ObjectStore, plan: Plan, date: str, report: RunReport) -> None:
    # Write a file for each run: two runs that end together could lose a row of a shared file.
    state = "sweeping" if report.objects_failed else "ended"
    facts = [state, report.objects_deleted, report.bytes_deleted, report.objects_failed]
    own = [plan.run_id, plan.rules_version, *facts, report.run_start_time_ms, report.run_end_time_ms]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([STATS, own])
    await store.put(f"{LC_PREFIX}stats/date={date}/{plan.run_id}.csv", text.getvalue().encode())


def _parquet(rows: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()
