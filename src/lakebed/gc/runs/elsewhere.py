"""Find out what other runs, and hard delete, deleted of a plan's objects, so that the ledger counts each deletion once.

A plan may hold an object that something else deleted since, or that a lifecycle run or an erasure took while commits go
on naming it. The sweep deletes it all the same, for to delete twice is to delete once, and its row says `gone`:

1. before the sweep the ledger is read for what runs that may hold the same deleted (`Gone`)
2. once a batch was deleted, the pages that hard delete recorded meanwhile are read, too

What the ledger does not have counts as deleted by this run, also where a process died between a delete and its record.
Two that delete the same object in the same second may both count it; `gc ledger --verify` then says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.gc.engines.tables import Table, decode, read_part, required
from lakebed.gc.messages import (
    DELETED_AT_ONCE,
    LEDGER_PREFIX,
    LedgerState,
    Pieces,
    Plan,
    RunKind,
    decode_record,
    deleted_in,
    ledger_folder,
    ledger_records,
)
from lakebed.objectstore import ObjectStore

from .context import RunContext, folder_in, read_all, write_piece
from .fencing import Fence

SLACK_MS: Final = 600_000
"""How far the clocks of servers and the object store may be apart. A file that is too old is only read in vain."""
RECORDS_AT_ONCE: Final = 64

_GONE: Final = Table("an object that something else deleted", required(("address", pa.string())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Name what other runs deleted. Travels to tasks.

    `last_page` is the newest file of hard delete that was read, empty where the run's kind never meets it.
    """

    rows: Pieces = field(default_factory=lambda: Pieces(folder=""))
    last_page: str = ""

    async def among(self, store: ObjectStore, addresses: Sequence[str]) -> dict[str, LedgerState]:
        """Return those of these addresses that something else deleted. To be asked once they were deleted here."""
        asked, gone = set(addresses), set[str]()
        for part in self.rows.parts:
            rows = decode(_GONE, await read_part(store, self.rows.folder, part), part)
            gone |= asked.intersection(rows["address"].to_pylist())
        if self.last_page:
            async for page in store.list(LEDGER_PREFIX, start_after=self.last_page):
                for names in ledger_records(stat.key for stat in page if DELETED_AT_ONCE in stat.key):
                    gone |= asked & deleted_in(decode_record(names, [await store.get(name) for name in names]))
        return dict.fromkeys(gone, LedgerState.GONE)


async def find_gone(context: RunContext, plan: Plan, fence: Fence) -> Gone:
    """Return what others deleted that a plan may hold. Costs a listing of the ledger, and a read of what came since the
    plan; for committed data also of what lifecycle runs and erasures recorded ever.
    """
    changed_ms = {stat.key: stat.modified_ms async for page in context.store.list(LEDGER_PREFIX) for stat in page}
    records = [names for names in ledger_records(changed_ms) if _run_of(names) != plan.run_id]
    kinds = {view.run_id: view.kind for view in await context.service.runs()} if records else {}
    records = [
        names for names in records if _may_meet(plan, kinds, names, changed_ms=max(changed_ms[name] for name in names))
    ]
    tables = [rows async for rows in _deleted(context, records)]
    pages = [name for name in changed_ms if DELETED_AT_ONCE in name]
    first = f"{ledger_folder(context.ports.clock.now_ms())}{DELETED_AT_ONCE[1:]}"
    last_page = max([first, *pages]) if plan.kind.spec.meets_hard_delete else ""
    rows = pa.concat_tables(tables) if tables else _GONE.schema.empty_table()
    if not rows.num_rows:
        return Gone(last_page=last_page)
    # A name of its own for each apply, so that none spoils what another one reads.
    number = fence.key.rpartition("/")[2].partition(".")[0]
    piece = await write_piece(context.store, folder_in(plan, f"gone.{number}"), "part-00000.parquet", _GONE, rows)
    return Gone(rows=piece, last_page=last_page)


async def _deleted(context: RunContext, records: Sequence[Sequence[str]]) -> AsyncIterator[pa.Table]:
    for start in range(0, len(records), RECORDS_AT_ONCE):
        some = records[start : start + RECORDS_AT_ONCE]
        data = iter(await read_all(context.store, context.ports.tasks, [name for names in some for name in names]))
        for names in some:
            rows = decode_record(names, [next(data) for _ in names])
            yield rows.filter(pc.equal(rows["state"], LedgerState.DELETED.value)).select(["address"])


def _may_meet(plan: Plan, kinds: dict[str, RunKind], names: Sequence[str], *, changed_ms: int) -> bool:
    """Return whether a record of the ledger may be about objects of the plan, by its name and its last change."""
    is_new = changed_ms >= plan.now_ms - SLACK_MS
    if DELETED_AT_ONCE in names[0]:
        return is_new and plan.kind.spec.meets_hard_delete
    kind = kinds.get(_run_of(names))
    if kind is None:
        return is_new
    # Commits go on naming what these took. The plans of other kinds leave out what is gone.
    is_old = plan.kind.takes_committed and not plan.kind.takes_named and kind.takes_named
    return (is_new or is_old) and plan.kind.may_meet(kind)


def _run_of(names: Sequence[str]) -> str:
    return names[0].rpartition("/")[2].partition("-")[0]
