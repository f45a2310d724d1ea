"""Save the state of a run, for the next run to go on from (docs/formats/gc-saved.md).

A run writes it after the deletes, as one file that names all others with their digests. The next run checks that

- the server knows the run, and its record has the same plan and digest of the file
- the format is this one, and every part exists, byte for byte

Otherwise the next run is a clean one, and gives the reason. It never uses a part of a state: a missing part would read
as "no commit names this".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.gc import messages
from lakebed.gc.engines.engine import CANDIDATES, CLOSED, LIVE, RANGE_IDS, Table, check_numbered, decode, read_part
from lakebed.gc.mark.inputs.listing import UNREFERENCED
from lakebed.gc.mark.inputs.named import LiveSet, read_live
from lakebed.gc.mark.sets.packing import pack_numbered
from lakebed.gc.messages import (
    DELETES_ALLOWED,
    BadInput,
    Manifest,
    Pieces,
    Plan,
    RunKind,
    RunState,
    RunView,
    Saved,
    SavedDues,
    StartedRun,
    decode_saved,
    decode_saved_dues,
    encode_saved,
    saved_path,
)
from lakebed.gc.runs.context import RunContext, find, read_garbage, sha256_of, slice_numbers, write_piece
from lakebed.gc.runs.recording import Ledger, failed, only, read_recorded
from lakebed.objectstore import ObjectStore

RUNS_LOOKED_AT: Final = 32
"""Look for a saved state in at most this many of the latest runs."""

_NUMBERS: Final = ("slice", "sequence", "size_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Hold a saved state: the objects of its commits (LIVE), the ids of its commits and ranges, and its slices."""

    saved: Saved
    committed: pa.Table
    commits: pa.Array
    ranges: pa.Array
    slices: npt.NDArray[np.int64]

    async def joined_with(self, store: ObjectStore, new: Pieces, *, folder: str) -> Pieces:
        """Write LIVE of the objects of the saved commits and of new ones into `folder`."""
        live = LiveSet()
        live.add_rows(self.committed)
        live.add_rows(await read_live(store, new))
        return await write_piece(store, folder, "bucket-all.parquet", LIVE, live.rows())


async def read_base(context: RunContext, run: StartedRun) -> Base:
    """Return the saved state of the latest run that has one, or raise BadInput."""
    runs = await context.service.runs()
    views = [view for view in runs if view.run_id != run.run_id and _may_have_saved(view)]
    for view in views[:RUNS_LOOKED_AT]:
        data = await find(context.store, saved_path(view.run_id, view.kind))
        if data is not None:
            saved = decode_saved(data, view.run_id)
            _check_same(saved, data, view, run)
            return await _read(context, saved, run)
    raise BadInput("no run has saved its state yet", input="saved")


def _may_have_saved(view: RunView) -> bool:
    return view.kind is RunKind.UNCOMMITTED and view.state in DELETES_ALLOWED | {RunState.ENDED}


def _check_same(saved: Saved | SavedDues, data: bytes, view: RunView, run: StartedRun) -> None:
    if sha256_of(data) != view.saved:
        # A user who may write to the store could forge a state in which no commit names an object.
        raise BadInput(f"the saved state of run {saved.run_id} is not the one that its apply wrote", input="saved")
    if saved.plan != view.plan:
        raise BadInput(f"the saved state of run {saved.run_id} is of another plan than its record", input="saved")
    if saved.namespace != run.namespace:
        raise BadInput(f"the saved state of run {saved.run_id} is of {saved.namespace}", input="saved")


async def _read(context: RunContext, saved: Saved, run: StartedRun) -> Base:
    keeps = saved.keeps
    committed = await _numbered(context.store, keeps.committed, LIVE)
    commits = await context.read(keeps.commits, messages.COMMITS)
    slices = np.sort((await _rows(context.store, keeps.slices, CLOSED))["bucket"].to_numpy())
    # Read these parts now, although marking reads them again: a damaged one must lead to a clean run.
    for pieces in (keeps.kept, saved.failed):
        await _numbered(context.store, pieces, CANDIDATES)
    lost = set(slices.tolist()).difference(slice_numbers(run.closed_slices))
    if lost:
        raise BadInput(f"{len(lost)} slices of run {saved.run_id} are not closed any more", input="saved")
    return Base(
        saved=saved,
        committed=committed,
        # The run did not read swept commits, so a later run must read one that is not swept any more.
        commits=commits["id"].filter(pc.invert(commits["swept"])).combine_chunks(),
        ranges=(await _rows(context.store, keeps.ranges, RANGE_IDS))["range_id"].combine_chunks(),
        slices=slices,
    )


async def _rows(store: ObjectStore, pieces: Pieces, table: Table) -> pa.Table:
    read = [decode(table, await read_part(store, pieces.folder, part), part) for part in pieces.parts]
    return pa.concat_tables([table.schema.empty_table(), *read])


async def _numbered(store: ObjectStore, pieces: Pieces, table: Table) -> pa.Table:
    """Return the rows, all of addresses in slices. A saved state lacks foreign keys, also those that commits name."""
    # So a foreign key among the candidates would look like garbage.
    rows = await _rows(store, pieces, table)
    check_numbered(rows, pieces.folder)
    return rows


async def read_saved_dues(context: RunContext, run: StartedRun, policy: str) -> SavedDues:
    """Return the saved state of the latest lifecycle run.

    Raises:
        BadInput: there is no saved state, it has another policy, or it is not valid.
    """
    for view in (await context.service.runs())[:RUNS_LOOKED_AT]:
        if view.kind is not RunKind.LIFECYCLE or view.state not in DELETES_ALLOWED | {RunState.ENDED}:
            continue
        data = await find(context.store, saved_path(view.run_id, view.kind))
        if data is not None:
            saved = decode_saved_dues(data, view.run_id)
            _check_same(saved, data, view, run)
            if saved.policy != policy:
                raise BadInput(f"the policy is not that of run {saved.run_id}", input="saved")
            return saved
    raise BadInput("no run has saved its state yet", input="saved")


async def save(store: ObjectStore, plan: Plan, bound: Manifest, ledger: Ledger | None, *, objects_failed: int) -> str:
    """Write the state for the next run after a sweep. A repeated apply writes it again.

    Return the digest of the file for the run's record. `bound` is the table that the
    run may delete. `ledger` records its sweep, and is None if the run did not sweep.
    """
    if plan.dues is not None:
        saved_dues = SavedDues(
            run_id=plan.run_id,
            repository=plan.repository,
            namespace=plan.namespace,
            # The record of a lifecycle run has the digest of the recheck's table.
            plan=bound.digest(),
            policy=plan.policy,
            dues=plan.dues,
        )
        return await _put(store, saved_path(plan.run_id, plan.kind), encode_saved(saved_dues))
    assert plan.keeps is not None
    folder = f"{plan.folder}failed/"
    still_there = Pieces(folder=folder)
    if objects_failed and ledger is not None:
        rows = await _failed(store, plan, ledger)
        still_there = await write_piece(store, folder, f"failed-{plan.run_id}.parquet", CANDIDATES, rows)
    saved = Saved(
        run_id=plan.run_id,
        repository=plan.repository,
        namespace=plan.namespace,
        plan=plan.garbage.digest(),
        run_start_time_ms=plan.now_ms,
        last_read_slice=plan.last_read_slice,
        keeps=plan.keeps,
        failed=still_there,
    )
    return await _put(store, saved_path(plan.run_id, plan.kind), encode_saved(saved))


async def _put(store: ObjectStore, name: str, data: bytes) -> str:
    await store.put(name, data)
    return sha256_of(data)


async def _failed(store: ObjectStore, plan: Plan, ledger: Ledger) -> pa.Table:
    """Return CANDIDATES: the garbage that the sweep failed to delete, by the ledger."""
    found = [CANDIDATES.schema.empty_table()]
    for part in plan.garbage.parts:
        garbage = await read_garbage(store, plan, part)
        recorded = await read_recorded(store, ledger, part.name, garbage)
        if recorded.rows.num_rows != garbage.num_rows:
            raise BadInput(f"the ledger lacks objects of {plan.garbage.folder}{part.name}", part=part.name)
        left = only(garbage, failed(recorded.rows)["address"])
        seen_ms = left["last_seen_at"].cast(pa.int64()).to_numpy()
        slices, sequences, sizes = (left[name].to_numpy().astype(np.int64) for name in _NUMBERS)
        found.append(pack_numbered(slices, sequences, sizes, seen_ms, UNREFERENCED))
    return pa.concat_tables(found)
