"""Runs whose deletes wait for the end of a window, as a restore and `gc why` find them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from lakebed.base import RunId
from lakebed.gc.messages import (
    GARBAGE,
    LEDGER,
    Deferred,
    Manifest,
    RunKind,
    RunState,
    arrow_schema,
    deferred_path,
    encode_deferred,
    encode_ledger,
    ledger_folder,
    ledger_name,
    manifest_of,
    read_part,
    run_folder,
)
from lakebed.gc.rules import DAY_MS
from lakebed.objectstore import Deleter
from lakebed.versions import RunRecord, Versions, encode_record, keys
from tests.gc.garbage import plan_of


def folder_of(run: str) -> str:
    return f"{run_folder(RunKind.COMMITTED, RunId(run))}garbage/"


async def defer(
    versions: Versions,
    objects: Sequence[str],
    *,
    run: str = "r1",
    paths: bool = True,
    at: Sequence[str] = (),
    parts: int = 1,
    seen: Sequence[datetime | None] = (None,),
    others: Sequence[str] | None = None,
) -> Manifest:
    """Let a run hold these objects, each of 4 bytes, `at` these paths, or at `events/<place in its part>`. Each had the
    `others`, too."""
    found = []
    for number in range(parts):
        share = objects[number::parts]
        for key in share:
            await versions.objectstore.put(key, key[-4:].encode())
        found.append(
            await plan_of(
                versions.objectstore,
                share,
                part=f"part-{number:05d}.parquet",
                folder=folder_of(run),
                with_paths=paths,
                paths=at,
                seen=seen[number % len(seen)],
                others=others,
            )
        )
    garbage = manifest_of(GARBAGE, folder_of(run), [plan.parts[0] for plan in found])
    await hold(versions, garbage, run=run)
    return garbage


async def hold(versions: Versions, garbage: Manifest, *, run: str = "r1") -> None:
    """Write down that the run holds what this table names."""
    waiting = encode_deferred(Deferred(run_id=run, kind=RunKind.COMMITTED, garbage=garbage))
    await versions.objectstore.put(deferred_path(RunKind.COMMITTED, run), waiting)
    record = RunRecord(
        kind=RunKind.COMMITTED,
        state=RunState.SWEEPING,
        started_ms=versions.ports.clock.now_ms(),
        plan=garbage.digest(),
        swept=True,
        until_ms=versions.ports.clock.now_ms() + DAY_MS,
        window="1d",
    )
    await _write(versions, run, record)


async def purge(versions: Versions, deleter: Deleter, garbage: Manifest, *, run: str = "r1") -> None:
    """Delete what the run held, record it, and end the run."""
    for part in garbage.parts:
        data = await versions.objectstore.get(garbage.folder + part.name)
        rows = read_part(garbage, GARBAGE, part, data).to_pylist()
        await deleter.delete([row["address"] for row in rows])
        facts = {"run_id": run, "state": "deleted", "deleted_at": versions.ports.clock.now_ms(), "error": ""}
        table = pa.Table.from_pylist([{**row, **facts} for row in rows], schema=arrow_schema(LEDGER))
        await versions.objectstore.put(
            f"{ledger_folder(versions.ports.clock.now_ms())}{run}-{ledger_name(part.name, 0)}", encode_ledger(table)
        )
    record = RunRecord(kind=RunKind.COMMITTED, state=RunState.ENDED, started_ms=versions.ports.clock.now_ms())
    await _write(versions, run, record)


async def _write(versions: Versions, run: str, record: RunRecord) -> None:
    await versions.store.set(versions.partition, keys.RUN + run.encode(), encode_record(record))
