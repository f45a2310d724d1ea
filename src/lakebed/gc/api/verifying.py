"""Compare the ledger with plans and with the store: `gc ledger --verify`. It reads only, and needs no Spark.

1. each row of a sweep is about an object of its run's plan
2. each object that an ended run was let to take has a row
3. an object that a row says to be deleted is not there, unless it was written after that
4. one row counts each deletion

A run whose plan is not there any more is not compared by 1 and 2. Costs a read of the whole ledger and a listing of
`data/`; memory for an address and a time for each object that was ever deleted.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from lakebed.base import Tasks
from lakebed.gc.messages import (
    DATA_PREFIX,
    DELETED_AT_ONCE,
    LEDGER_PREFIX,
    LedgerState,
    Manifest,
    Plan,
    PlanMissing,
    RunState,
    RunView,
    decode_deferred,
    decode_record,
    ledger_records,
    purge_path,
)
from lakebed.gc.runs.context import find, read_all, read_garbage, read_plan
from lakebed.gc.runs.resume import recheck_of
from lakebed.objectstore import ObjectMissing, ObjectStore

from .showing import RECORDS_AT_ONCE


class Disagrees(enum.StrEnum):
    UNPLANNED = "no plan has it"
    UNRECORDED = "planned, and no row of the ledger has it"
    THERE = "deleted by the ledger, and it is there"
    TWICE = "deleted by more than one row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    run_id: str
    address: str
    what: Disagrees


@dataclass(slots=True)
class _Ledger:
    """`of_run` has the addresses in rows of each run's sweeps. `deleted` by address: run and time of each deletion."""

    of_run: dict[str, set[str]] = field(default_factory=dict)
    deleted: dict[str, list[tuple[str, int]]] = field(default_factory=dict)


async def verify_ledger(
    store: ObjectStore, tasks: Tasks, views: Iterable[RunView], *, run_id: str = ""
) -> list[Disagreement]:
    """Return each disagreement, of this run or of all. `views` are to be read before: later runs are not compared.

    Raises:
        BadInput: a file of the ledger or a plan is damaged; the message names it.
    """
    ledger = await _read(store, tasks)
    known = {view.run_id: view for view in views}
    found: list[Disagreement] = []
    for run in sorted(known.keys() | ledger.of_run.keys()):
        if run_id in ("", run):
            found += await _compare_run(store, known.get(run), run, ledger.of_run.get(run, set()))
    mine = {
        address: rows for address, rows in ledger.deleted.items() if not run_id or any(run == run_id for run, _ in rows)
    }
    found += [
        Disagreement(run_id=run_id or rows[-1][0], address=address, what=Disagrees.TWICE)
        for address, rows in mine.items()
        if len(rows) > 1
    ]
    async for address, modified_ms in _there(store, mine):
        run, deleted_ms = max(mine[address], key=lambda row: row[1])
        # What was written later is new: a client may hold a signed URL, and keys in no slice are given again.
        if modified_ms <= deleted_ms:
            found.append(Disagreement(run_id=run, address=address, what=Disagrees.THERE))
    return sorted(found, key=lambda one: (one.run_id, one.what, one.address))


async def _read(store: ObjectStore, tasks: Tasks) -> _Ledger:
    found = _Ledger()
    records = ledger_records([stat.key async for page in store.list(LEDGER_PREFIX) for stat in page])
    for start in range(0, len(records), RECORDS_AT_ONCE):
        some = records[start : start + RECORDS_AT_ONCE]
        data = iter(await read_all(store, tasks, [name for names in some for name in names]))
        for names in some:
            rows = decode_record(names, [next(data) for _ in names]).select(
                ["run_id", "address", "state", "deleted_at"]
            )
            is_sweep = DELETED_AT_ONCE not in names[0]
            for row in rows.to_pylist():
                if is_sweep and row["state"] != LedgerState.RESTORED:
                    found.of_run.setdefault(row["run_id"], set()).add(row["address"])
                if row["state"] == LedgerState.DELETED:
                    deleted = (row["run_id"], int(row["deleted_at"].timestamp() * 1000))
                    found.deleted.setdefault(row["address"], []).append(deleted)
    return found


async def _compare_run(store: ObjectStore, view: RunView | None, run_id: str, rows: set[str]) -> Sequence[Disagreement]:
    try:
        plan = await read_plan(store, run_id)
    except PlanMissing:
        return ()
    unplanned = rows - await _addresses(store, plan, plan.garbage)
    unrecorded: set[str] = set()
    if view is not None and view.state is RunState.ENDED and view.plan:
        unrecorded = await _addresses(store, plan, await _taken(store, plan, view)) - rows
    return [
        *(Disagreement(run_id=run_id, address=address, what=Disagrees.UNPLANNED) for address in unplanned),
        *(Disagreement(run_id=run_id, address=address, what=Disagrees.UNRECORDED) for address in unrecorded),
    ]


async def _taken(store: ObjectStore, plan: Plan, view: RunView) -> Manifest:
    """Return the table that an ended run swept, by its record."""
    data = await find(store, purge_path(plan.kind, plan.run_id))
    if data is not None:
        listed = decode_deferred(data, plan.run_id)
        if listed.garbage.digest() == view.sweeps:
            return listed.garbage
    return (await recheck_of(store, plan, view)).garbage if view.sweeps or plan.kind.publishes else plan.garbage


async def _addresses(store: ObjectStore, plan: Plan, garbage: Manifest) -> set[str]:
    table = msgspec.structs.replace(plan, garbage=garbage)
    return {
        address for part in garbage.parts for address in (await read_garbage(store, table, part))["address"].to_pylist()
    }


async def _there(store: ObjectStore, deleted: Mapping[str, object]) -> AsyncIterator[tuple[str, int]]:
    """Yield those of these addresses at which there is an object, and when it was written."""
    async for page in store.list(DATA_PREFIX):
        for stat in page:
            if stat.key in deleted:
                yield stat.key, stat.modified_ms
    for address in deleted:
        if not address.startswith(DATA_PREFIX):
            try:
                yield address, (await store.stat(address)).modified_ms
            except ObjectMissing:
                continue
