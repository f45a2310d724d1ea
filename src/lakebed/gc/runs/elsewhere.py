"""Find the objects of a plan that other runs or hard delete deleted, so that the ledger counts each deletion once.

The sweep deletes such an object again, which is harmless, and records its row as `gone`:

1. before the sweep, read the ledger's records of runs that may hold the same objects (`Gone`)
2. after each part's deletes, read the pages that hard delete has recorded since
3. after the sweep, look for a second record of each deletion, and let one of the two give way (`settle`)

An object that the ledger does not have counts as deleted by this run, also where a process died before its record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import parse_address
from lakebed.gc.engines.tables import Table, decode, read_part, required
from lakebed.gc.messages import (
    DELETED_AT_ONCE,
    LEDGER_PREFIX,
    LedgerState,
    Pieces,
    Plan,
    RunKind,
    Total,
    decode_record,
    deleted_in,
    give_way,
    giving_way,
    ledger_folder,
    ledger_records,
    run_of_record,
)
from lakebed.objectstore import ObjectStore

from .context import RunContext, folder_in, read_all, write_piece
from .fencing import Fence
from .recording import Ledger

SLACK_MS: Final = 600_000
"""Largest assumed difference between the clocks of servers and object store. Reading too old a file is harmless."""
RECORDS_AT_ONCE: Final = 64

_GONE: Final = Table("an object that something else deleted", required(("address", pa.string())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Name the objects that other runs deleted. Travels to tasks.

    `last_page`: the newest file of hard delete that was read; empty if the run's kind never shares objects with it.
    """

    rows: Pieces = field(default_factory=lambda: Pieces(folder=""))
    last_page: str = ""

    async def among(self, store: ObjectStore, addresses: Sequence[str]) -> dict[str, LedgerState]:
        """Return the addresses that something else deleted. Call this after deleting them here."""
        asked, gone = set(addresses), set[str]()
        for part in self.rows.parts:
            rows = decode(_GONE, await read_part(store, self.rows.folder, part), part)
            gone |= asked.intersection(rows["address"].to_pylist())
        if self.last_page:
            async for page in store.list(LEDGER_PREFIX, start_after=self.last_page):
                for names in ledger_records(stat.key for stat in page if DELETED_AT_ONCE in stat.key):
                    gone |= asked & deleted_in(decode_record(names, [await store.get(name) for name in names]))
        return dict.fromkeys(gone, LedgerState.GONE)


async def find_gone(context: RunContext, plan: Plan, fence: Fence, own: Ledger) -> tuple[Gone, frozenset[str]]:
    """Return the deleted objects that a plan may hold, and the ledger's files that `settle` need not read.

    Costs a listing of the ledger, and a read of each record since the plan. For committed data, also read every record
    of lifecycle runs and erasures.
    """
    changed_ms = await _listed(context.store)
    tables = [rows async for _, rows in _deleted(context, await _meeting(context, plan, changed_ms))]
    # An earlier apply of the run recorded a part, and may have died before it settled. Then `settle` reads all files.
    is_first = not any(name.startswith(own.prefix) for name in changed_ms)
    seen = frozenset(changed_ms if is_first else ())
    pages = [name for name in changed_ms if DELETED_AT_ONCE in name]
    first = f"{ledger_folder(context.ports.clock.now_ms())}{DELETED_AT_ONCE[1:]}"
    last_page = max([first, *pages]) if plan.kind.spec.meets_hard_delete else ""
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

    async def losers() -> list[tuple[Sequence[str], pa.Table]]:
        giving = [loser async for loser in _losers(context, plan, own, seen)]
        for names, rows in giving:
            if run_of_record(names) == plan.run_id:
                given_up.update(zip(rows["address"].to_pylist(), rows["size_bytes"].to_pylist(), strict=True))
        return giving

    await give_way(losers, partial(context.store.put, if_absent=True))
    return Total(objects=len(given_up), size_bytes=sum(given_up.values()))


async def _losers(
    context: RunContext, plan: Plan, own: Ledger, seen: frozenset[str]
) -> AsyncIterator[tuple[Sequence[str], pa.Table]]:
    """Yield each record that must give way, and its new LEDGER rows."""
    changed_ms = await _listed(context.store)
    records = [names for names in await _meeting(context, plan, changed_ms) if not seen.issuperset(names)]
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
    kinds = {view.run_id: view.kind for view in await context.service.runs()} if records else {}
    return [
        names for names in records if _may_meet(plan, kinds, names, changed_ms=max(changed_ms[name] for name in names))
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


def _may_meet(plan: Plan, kinds: dict[str, RunKind], names: Sequence[str], *, changed_ms: int) -> bool:
    """Return whether a record of the ledger may be about objects of the plan, by its name and last change."""
    is_new = changed_ms >= plan.now_ms - SLACK_MS
    if DELETED_AT_ONCE in names[0]:
        return is_new and plan.kind.spec.meets_hard_delete
    kind = kinds.get(run_of_record(names))
    if kind is None:
        return is_new
    # Commits still name the objects that these runs deleted. Plans of other kinds leave out missing objects.
    is_old = plan.kind.takes_committed and not plan.kind.takes_named and kind.takes_named
    return (is_new or is_old) and plan.kind.may_meet(kind)
