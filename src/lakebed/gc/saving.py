"""Saved information: what a run of uncommitted data leaves, and what the next makes of it (docs/formats/gc-saved.md).

Written after the deletes, as one file that names all others with their digests. Read with suspicion: it must be that of
a run which this repository's server knows, whose record bears the same plan; of this format; and every part must be
there, byte for byte. Else the next run is a clean one, and says why. There is nothing in between: a part of a saved
state would read as "no commit names this".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Conflict
from lakebed.gc import protocol
from lakebed.gc.protocol import (
    DELETES_ALLOWED,
    BadInput,
    Part,
    Pieces,
    Plan,
    RunKind,
    RunState,
    RunView,
    Saved,
    StartedRun,
    decode_saved,
    encode_saved,
    saved_path,
)

from .files import Files
from .packing import pack_numbered
from .parts import check_numbered, decode, encode
from .read import UNREFERENCED
from .recording import failed, only
from .tables import CANDIDATES, LIVE, RANGE_IDS, SETTLED, Table
from .workshop import Workshop, read_input, slice_numbers

RUNS_LOOKED_AT: Final = 32
"""The saved state is looked for in the latest so many runs."""

_NUMBERS: Final = ("slice", "sequence", "size_bytes")


class NoSavedState(Conflict):
    """An optimised run was asked for, and there is no saved state that it could go on from. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A saved state, read: LIVE of what its commits name, the ids of these and of their ranges, its slices."""

    saved: Saved
    committed: pa.Table
    commits: pa.Array
    ranges: pa.Array
    slices: npt.NDArray[np.int64]


def read_base(shop: Workshop, files: Files, run: StartedRun) -> Base:
    """The saved state of the latest run that has one.

    Raises:
        BadInput: there is none, or something about it is not as it must be.
    """
    views = [view for view in shop.live_side.runs() if view.run_id != run.run_id and _may_have_saved(view)]
    for view in views[:RUNS_LOOKED_AT]:
        data = files.find(saved_path(view.run_id))
        if data is not None:
            saved = decode_saved(data, view.run_id)
            _check_same(saved, view, run)
            return _read(files, saved, run)
    raise BadInput("no run has saved its state yet", input="saved")


def _may_have_saved(view: RunView) -> bool:
    return view.kind is RunKind.UNCOMMITTED and view.state in DELETES_ALLOWED | {RunState.ENDED}


def _check_same(saved: Saved, view: RunView, run: StartedRun) -> None:
    if saved.plan != view.plan:
        raise BadInput(f"the saved state of run {saved.run_id} is of another plan than its record", input="saved")
    if saved.namespace != run.namespace:
        raise BadInput(f"the saved state of run {saved.run_id} is of {saved.namespace}", input="saved")


def _read(files: Files, saved: Saved, run: StartedRun) -> Base:
    keeps = saved.keeps
    committed = _numbered(files, keeps.committed, LIVE)
    commits = read_input(files, keeps.commits, protocol.COMMITS)
    slices = np.sort(_rows(files, keeps.slices, SETTLED)["bucket"].to_numpy())
    for pieces in (keeps.kept, saved.failed):
        _numbered(files, pieces, CANDIDATES)
    lost = set(slices.tolist()).difference(slice_numbers(run.settled_slices))
    if lost:
        raise BadInput(f"{len(lost)} slices of run {saved.run_id} are not settled any more", input="saved")
    return Base(
        saved=saved,
        committed=committed,
        commits=commits["id"].filter(pc.invert(commits["swept"])).combine_chunks(),
        ranges=_rows(files, keeps.ranges, RANGE_IDS)["range_id"].combine_chunks(),
        slices=slices,
    )


def _rows(files: Files, pieces: Pieces, table: Table) -> pa.Table:
    read = [decode(table, _checked(files, pieces.folder, part), part) for part in pieces.parts]
    return pa.concat_tables([table.schema.empty_table(), *read])


def _numbered(files: Files, pieces: Pieces, table: Table) -> pa.Table:
    """Rows of slices alone, for of foreign keys nothing is saved: not of what commits name, and so none may go."""
    rows = _rows(files, pieces, table)
    check_numbered(rows, pieces.folder)
    return rows


def _checked(files: Files, folder: str, part: Part) -> bytes:
    data = files.find(folder + part.name)
    if data is None:
        raise BadInput(f"{folder}{part.name} is missing", part=part.name)
    if protocol.part_of(part.name, data, rows=part.rows) != part:
        raise BadInput(f"{folder}{part.name} contradicts its size or digest", part=part.name)
    return data


def write_piece(files: Files, folder: str, name: str, table: Table, rows: pa.Table) -> Pieces:
    """Rows of a collector's own table, as the one part of a folder."""
    data = encode(table, rows)
    files.write(folder + name, data)
    return Pieces(folder=folder, parts=(protocol.part_of(name, data, rows=rows.num_rows),))


def save(files: Files, plan: Plan, ledger_keys: Sequence[str], *, objects_failed: int) -> None:
    """After a sweep: what the next run may go on from. Written again when the plan is applied again. `ledger_keys`
    are those of the plan's parts.
    """
    if plan.keeps is None:
        return
    folder = f"{plan.folder}failed/"
    still_there = Pieces(folder=folder)
    if objects_failed:
        rows = _failed(files, plan, ledger_keys)
        still_there = write_piece(files, folder, f"failed-{plan.run_id}.parquet", CANDIDATES, rows)
    saved = Saved(
        run_id=plan.run_id,
        repository=plan.repository,
        namespace=plan.namespace,
        plan=plan.doomed.digest(),
        run_start_time_ms=plan.now_ms,
        last_read_slice=plan.last_read_slice,
        keeps=plan.keeps,
        failed=still_there,
    )
    files.write(saved_path(plan.run_id), encode_saved(saved))


def _failed(files: Files, plan: Plan, ledger_keys: Sequence[str]) -> pa.Table:
    """CANDIDATES: the doomed objects that are still there, for all that the ledger says."""
    found = [CANDIDATES.schema.empty_table()]
    for part, key in zip(plan.doomed.parts, ledger_keys, strict=True):
        doomed = protocol.read_part(plan.doomed, protocol.DOOMED, part, files.read(plan.doomed.folder + part.name))
        left = only(doomed, failed(protocol.decode_ledger(files.read(key), name=key))["address"])
        seen_ms = left["last_seen_at"].cast(pa.int64()).to_numpy()
        slices, sequences, sizes = (left[name].to_numpy().astype(np.int64) for name in _NUMBERS)
        found.append(pack_numbered(slices, sequences, sizes, seen_ms, UNREFERENCED))
    return pa.concat_tables(found)
