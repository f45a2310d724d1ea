"""Find the objects of a plan that other runs or hard delete deleted, so that the ledger counts each deletion once.

The sweep deletes such an object again, which is harmless, and records its row as `gone`:

1. before the sweep, read the ledger's records of runs that may hold the same objects (`Gone`)
2. after each part's deletes, read the pages that hard delete has recorded since
3. after the sweep, look for a second record of each deletion, and let one of the two give way (`settle`)
4. after the report, and after another run's record gave way, correct the totals of the report (`correct_report`)

An object that the ledger does not have counts as deleted by this run, also where a process died before its record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from lakebed.base import RunId, parse_address
from lakebed.gc.engines.tables import Table, decode, read_part, required
from lakebed.gc.messages import (
    DELETED_AT_ONCE,
    LEDGER_PREFIX,
    LedgerState,
    Pieces,
    Plan,
    RunKind,
    RunReport,
    Total,
    decode_record,
    decode_report,
    deleted_in,
    encode_report,
    give_way,
    giving_way,
    ledger_folder,
    ledger_records,
    report_path,
    run_of_record,
)
from lakebed.gc.rules import DAY_MS
from lakebed.objectstore import ObjectStore

from .context import RunContext, find, folder_in, read_all, write_piece
from .fencing import Fence
from .recording import Ledger, ledger_of

SLACK_MS: Final = 600_000
"""Largest assumed difference between the clocks of servers and object store. Reading too old a file is harmless."""
RECORDS_AT_ONCE: Final = 64

_GONE: Final = Table("an object that something else deleted", required(("address", pa.string())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Name the objects that other runs deleted. Travels to tasks.

    `last_page`: the newest file of hard delete that was read; empty if the run deletes no users' objects.
    """

    rows: Pieces = field(default_factory=lambda: Pieces(folder=""))
    last_page: str = ""

    async def among(self, store: ObjectStore, addresses: Sequence[str]) -> dict[str, LedgerState]:
        """Return the addresses that something else deleted. Call this after deleting them here."""
        asked, gone = set(addresses), set[str]()
        wanted = pa.array(sorted(asked), pa.string())
        for part in self.rows.parts:
            rows = decode(_GONE, await read_part(store, self.rows.folder, part), part)
            gone.update(rows["address"].filter(pc.is_in(rows["address"], value_set=wanted)).to_pylist())
        if self.last_page:
            async for page in store.list(LEDGER_PREFIX, start_after=self.last_page):
                for names in ledger_records(stat.key for stat in page if DELETED_AT_ONCE in stat.key):
                    gone |= asked & deleted_in(decode_record(names, [await store.get(name) for name in names]))
        return dict.fromkeys(gone, LedgerState.GONE)


async def find_gone(context: RunContext, plan: Plan, fence: Fence, own: Ledger) -> tuple[Gone, frozenset[str]]:
    """Return the deleted objects that a plan may hold, and the ledger's files that `settle` need not read.

    Costs a listing of the ledger, and a read of each record since the plan. For committed data, also read every record
    of lifecycle runs and erasures, and if the run expires commits that no branch may have taken, each record since the
    oldest of these was written.
    """
    changed_ms = await _listed(context.store)
    tables = [rows async for _, rows in _deleted(context, await _meeting(context, plan, changed_ms))]
    # An earlier apply of the run recorded a part, and may have died before it settled. Then `settle` reads all files.
    is_first = not any(name.startswith(own.prefix) for name in changed_ms)
    seen = frozenset(changed_ms if is_first else ())
    pages = [name for name in changed_ms if DELETED_AT_ONCE in name]
    first = f"{ledger_folder(context.ports.clock.now_ms())}{DELETED_AT_ONCE[1:]}"
    last_page = max([first, *pages]) if plan.kind.takes_objects else ""
    rows = pa.concat_tables(tables) if tables else _GONE.schema.empty_table()
    if not rows.num_rows:
        return Gone(last_page=last_page), seen
    # Each apply writes its own file: no apply overwrites a file that another one reads.
    number = fence.key.rpartition("/")[2].partition(".")[0]
    piece = await write_piece(context.store, folder_in(plan, f"gone.{number}"), "part-00000.parquet", _GONE, rows)
    return Gone(rows=piece, last_page=last_page), seen


async def settle(context: RunContext, plan: Plan, own: Ledger, seen: frozenset[str]) -> Total:
    """Let one of two records give way where both count a deletion. Return the deletions that our record gave up.

    Costs a listing of the ledger, and a read of the files that are not in `seen`. Where those have deletions, also a
    read of our own record.

    Raises:
        OutcomeUnknown: the last attempt to give way failed (`give_way`).
    """
    # Two runs that delete one object at the same time both record it. Each looks after its own record is written, so
    # the later one sees both records, and both runs choose the same loser. A `gone` row is never changed.
    given_up: dict[str, int] = {}
    rewritten: dict[Ledger, RunKind] = {}

    async def losers() -> list[tuple[Sequence[str], pa.Table]]:
        giving = [loser async for loser in _losers(context, plan, own, seen, rewritten)]
        for names, rows in giving:
            if run_of_record(names) == plan.run_id:
                given_up.update(zip(rows["address"].to_pylist(), rows["size_bytes"].to_pylist(), strict=True))
        return giving

    await give_way(losers, partial(context.store.put, if_absent=True))
    # Also those of runs whose record gave way earlier: an apply may have died before it corrected their reports.
    for theirs, kind in rewritten.items():
        await correct_report(context, kind, theirs)
    return Total(objects=len(given_up), size_bytes=sum(given_up.values()))


async def correct_report(context: RunContext, kind: RunKind, ledger: Ledger) -> RunReport | None:
    """Let a run's report, if it is there, count as many deletions as the run's records do. Return it if it changed.

    Costs a listing of the run's files; if a record has several, also a read of all.
    """
    # Another run lets our record give way, then reads our report; we write the report, then read our record. So one of
    # the two sees the other, and both count the same.
    name, before = report_path(kind, RunId(ledger.run_id)), None
    changed: RunReport | None = None
    while True:
        names = [stat.key async for page in context.store.list(ledger.prefix) for stat in page]
        has_changed = any(len(files) > 1 for files in ledger_records(names))
        if names == before or not has_changed or (data := await find(context.store, name)) is None:
            return changed
        before, report = names, decode_report(data, name=name)
        objects, size_bytes = 0, 0
        for files in ledger_records(names):
            rows = await _read(context.store, files)
            gone = rows.filter(pc.equal(rows["state"], LedgerState.GONE.value))
            objects, size_bytes = objects + gone.num_rows, size_bytes + (pc.sum(gone["size_bytes"]).as_py() or 0)
        if objects != report.objects_gone:
            changed = replace(
                report,
                objects_deleted=report.objects_deleted + report.objects_gone - objects,
                bytes_deleted=report.bytes_deleted + report.bytes_gone - size_bytes,
                objects_gone=objects,
                bytes_gone=size_bytes,
            )
            await context.store.put(name, encode_report(changed))


async def _losers(
    context: RunContext, plan: Plan, own: Ledger, seen: frozenset[str], rewritten: dict[Ledger, RunKind]
) -> AsyncIterator[tuple[Sequence[str], pa.Table]]:
    """Yield each record that must give way, and its new LEDGER rows. Add runs whose records have to `rewritten`."""
    changed_ms = await _listed(context.store)
    records = [names for names in await _meeting(context, plan, changed_ms) if not seen.issuperset(names)]
    if again := {ledger_of(names) for names in records if len(names) > 1}:
        kinds = {view.run_id: view.kind for view in await context.service.runs()}
        rewritten |= {ledger: kinds[ledger.run_id] for ledger in again if ledger.run_id in kinds}
    others = [(names, rows) async for names, rows in _deleted(context, records) if rows.num_rows]
    if not others:
        return
    theirs = pa.concat_tables([rows for _, rows in others])["address"].combine_chunks()
    both, mine = set[str](), list[tuple[tuple[str, ...], set[str]]]()
    for part in ledger_records(name for name in changed_ms if name.startswith(own.prefix)):
        async for _, rows in _deleted(context, [part]):
            # A key in no slice may have been written and deleted again, so both deletions count.
            shared = rows.filter(pc.is_in(rows["address"], value_set=theirs))["address"].to_pylist()
            mine.append((part, {address for address in shared if parse_address(address) is not None}))
            both |= mine[-1][1]
    losing = set[str]()
    for names, rows in others:
        shared = both.intersection(rows["address"].to_pylist()) if both else set()
        # Hard delete's record gives way, or that of the older run.
        if shared and (DELETED_AT_ONCE in names[0] or run_of_record(names) < plan.run_id):
            yield names, giving_way(await _read(context.store, names), shared)
        else:
            losing |= shared
    for part, addresses in mine:
        if addresses & losing:
            yield part, giving_way(await _read(context.store, part), addresses & losing)


async def _read(store: ObjectStore, names: Sequence[str]) -> pa.Table:
    return decode_record(names, [await store.get(name) for name in names])


async def _listed(store: ObjectStore) -> dict[str, int]:
    """Return the time at which each file of the ledger was written."""
    return {stat.key: stat.modified_ms async for page in store.list(LEDGER_PREFIX) for stat in page}


async def _meeting(context: RunContext, plan: Plan, changed_ms: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Return the records of others that may be about objects of the plan."""
    records = [names for names in ledger_records(changed_ms) if run_of_record(names) != plan.run_id]
    if not records:
        return []
    views = await context.service.runs()
    runs = {run_of_record(names) for names in records if DELETED_AT_ONCE not in names[0]}
    if _takes_expired(plan) and not runs <= {view.run_id for view in views}:
        # A collection of metadata removed the records of old runs.
        views = await context.service.forgotten_runs()
    kinds = {view.run_id: view.kind for view in views}
    since_ms = plan.now_ms
    for view in views:
        if view.run_id == plan.run_id and view.unpublished_ms is not None:
            # What such a commit names may have been deleted while it was made, or later. A day is longer than a commit.
            since_ms = min(since_ms, view.unpublished_ms - DAY_MS)
    return [
        names
        for names in records
        if _may_meet(plan, kinds, names, is_new=max(changed_ms[name] for name in names) >= since_ms - SLACK_MS)
    ]


async def _deleted(
    context: RunContext, records: Sequence[Sequence[str]]
) -> AsyncIterator[tuple[Sequence[str], pa.Table]]:
    """Yield each record and the addresses that it has as deleted."""
    for start in range(0, len(records), RECORDS_AT_ONCE):
        some = records[start : start + RECORDS_AT_ONCE]
        data = iter(await read_all(context.store, context.ports.tasks, [name for names in some for name in names]))
        for names in some:
            rows = decode_record(names, [next(data) for _ in names])
            yield names, rows.filter(pc.equal(rows["state"], LedgerState.DELETED.value)).select(["address"])


def _may_meet(plan: Plan, kinds: dict[str, RunKind], names: Sequence[str], *, is_new: bool) -> bool:
    """Return whether a record of the ledger may be about objects of the plan, by its name. `is_new`: by its time."""
    if DELETED_AT_ONCE in names[0]:
        return is_new and plan.kind.takes_objects
    kind = kinds.get(run_of_record(names))
    if kind is None:
        return is_new
    # Commits still name the objects that these runs deleted. Plans of other kinds leave out missing objects.
    is_old = _takes_expired(plan) and kind.takes_named
    return (is_new or is_old) and plan.kind.may_meet(kind)


def _takes_expired(plan: Plan) -> bool:
    """Return whether the plan has what expired commits name, whether it is there or not."""
    return plan.kind.takes_committed and not plan.kind.takes_named
