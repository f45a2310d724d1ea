"""Sweep: carry out a plan. The only file of the collectors that deletes; it decides nothing.

The plan's parts are dealt out to tasks. A task reads a part, checks it against the plan's manifest, deletes its objects
in batches, and then writes one ledger file for the part: a row for every deletion tried, and how it went. The ledger
file is what makes a part *done*. A sweep that is started again leaves done parts alone, except for the keys that
failed, which it tries once more; a part without ledger file is done again from its start, for deleting twice is
deleting once.

A key that could not be deleted is counted as failed, whatever the reason; nothing is deleted that the part does not
hold, and never a key outside `data/`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from lakebed import handoff
from lakebed.base import LakebedError, NotFound
from lakebed.blocks import BlockStore, is_block_key
from lakebed.handoff import LEDGER_PREFIX, LedgerState, Manifest, Part

from .files import Lake, Work, in_tasks, whole
from .parts import parts_of, read_part, rows_of_parts, spread
from .places import may_be_deleted
from .runs import Total
from .tables import PARTS

BATCH_KEYS: Final = 1000
"""How many keys one call deletes: what S3 takes at once."""

ERRORS_SHOWN: Final = 20


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """How a sweep, or a part of it, went. `errors` are some of what was said about keys that failed."""

    objects_deleted: int = 0
    bytes_deleted: int = 0
    objects_failed: int = 0
    bytes_failed: int = 0
    parts_skipped: int = 0
    errors: tuple[str, ...] = ()

    @property
    def all(self) -> Total:
        """What was tried, in this sweep or an earlier one of the run."""
        return Total(
            objects=self.objects_deleted + self.objects_failed, size_bytes=self.bytes_deleted + self.bytes_failed
        )

    def plus(self, more: Swept) -> Swept:
        return Swept(
            objects_deleted=self.objects_deleted + more.objects_deleted,
            bytes_deleted=self.bytes_deleted + more.bytes_deleted,
            objects_failed=self.objects_failed + more.objects_failed,
            bytes_failed=self.bytes_failed + more.bytes_failed,
            parts_skipped=self.parts_skipped + more.parts_skipped,
            errors=(self.errors + more.errors)[:ERRORS_SHOWN],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where a run's deletions are recorded: `date` (YYYY-MM-DD) is that of the day its first sweep began."""

    run_id: str
    date: str

    def key(self, part: Part) -> str:
        return f"{LEDGER_PREFIX}date={self.date}/{self.run_id}-{part.name}"


def sweep(spark: SparkSession, lake: Lake, plan: Manifest, ledger: Ledger, *, tasks: int) -> Swept:
    """Delete what `plan` (table DOOMED) holds, as far as it is not done, and say how all of it went.

    Raises:
        BadInput: a part is missing or is not what the manifest says; parts before it may be done.
    """
    handoff.check_manifest(plan, name=plan.folder)
    named = spread(spark, PARTS, rows_of_parts(plan.parts), tasks=tasks)
    rows = named.mapInArrow(in_tasks(lake, _sweep_parts(plan, ledger), PARTS), PARTS.spark).toArrow()
    swept = Swept()
    for note in rows["note"].to_pylist():
        swept = swept.plus(msgspec.json.decode(note, type=Swept))
    handoff.check_rows(plan, swept.objects_deleted + swept.objects_failed)
    return swept


def _sweep_parts(plan: Manifest, ledger: Ledger) -> Work:
    async def work(store: BlockStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        for part in parts_of(whole(share)):
            swept = await sweep_part(store, plan, part, ledger)
            yield rows_of_parts([part], notes=[msgspec.json.encode(swept)])

    return work


async def sweep_part(store: BlockStore, plan: Manifest, part: Part, ledger: Ledger) -> Swept:
    """One part, from reading it to recording it. A plain coroutine: tests run it without Spark."""
    doomed = handoff.read_part(plan, handoff.DOOMED, part, await read_part(store, plan.folder, part))
    before = await _recorded(store, ledger.key(part), doomed)
    if before is not None and not _failed(before).num_rows:
        return _count(before, skipped=1)
    again = doomed if before is None else _only(doomed, _failed(before)["address"])
    tried = await _delete(store, again, ledger.run_id)
    rows = tried if before is None else pa.concat_tables([before.filter(pc.equal(before["error"], "")), tried])
    await store.put(ledger.key(part), handoff.encode_part(handoff.LEDGER, rows))
    return _count(rows)


async def _recorded(store: BlockStore, key: str, doomed: pa.Table) -> pa.Table | None:
    """The part's ledger, if there is a whole one of just these objects. Else the part counts as not done."""
    try:
        rows = handoff.decode_ledger(await store.get(key), name=key)
    except (NotFound, handoff.BadInput):
        return None
    same = pc.all(pc.is_in(rows["address"], value_set=doomed["address"].combine_chunks())).as_py()
    return rows if rows.num_rows == doomed.num_rows and same in (True, None) else None


async def _delete(store: BlockStore, doomed: pa.Table, run_id: str) -> pa.Table:
    """LEDGER: a row for each of the doomed."""
    addresses: list[str] = doomed["address"].to_pylist()
    errors: dict[str, str] = {key: "not an object that may be deleted" for key in addresses if not _may_go(key)}
    keys = [key for key in addresses if key not in errors]
    for start in range(0, len(keys), BATCH_KEYS):
        batch = keys[start : start + BATCH_KEYS]
        try:
            failures = await store.delete(batch)
        except LakebedError as error:
            # Whether some of them went is not known, and it need not be: failed keys are tried again.
            errors |= dict.fromkeys(batch, str(error) or type(error).__name__)
        else:
            errors |= {failure.key: failure.reason or "no reason given" for failure in failures}
    said = [errors.get(key, "") for key in addresses]
    now = pa.scalar(time.time_ns() // 1_000_000, pa.timestamp("ms", tz="UTC"))
    columns = {
        "run_id": pa.repeat(pa.scalar(run_id), len(addresses)),
        "address": doomed["address"],
        "size_bytes": doomed["size_bytes"],
        "reason": doomed["reason"],
        "deleted_at": pa.repeat(now, len(addresses)),
        "error": pa.array(said, pa.string()),
        "path": doomed["path"],
        "rule": doomed["rule"],
        "state": [LedgerState.FAILED.value if error else LedgerState.DELETED.value for error in said],
        "kept_until": pa.nulls(len(addresses)),
    }
    return pa.table(columns).cast(handoff.arrow_schema(handoff.LEDGER))


def _may_go(key: str) -> bool:
    return may_be_deleted(key) and is_block_key(key)


def _failed(ledger: pa.Table) -> pa.Table:
    return ledger.filter(pc.not_equal(ledger["error"], ""))


def _only(doomed: pa.Table, addresses: pa.ChunkedArray) -> pa.Table:
    return doomed.filter(pc.is_in(doomed["address"], value_set=addresses.combine_chunks()))


def _count(ledger: pa.Table, *, skipped: int = 0) -> Swept:
    failed = _failed(ledger)
    gone = ledger.filter(pc.equal(ledger["error"], ""))
    pairs = zip(failed["address"].slice(0, ERRORS_SHOWN).to_pylist(), failed["error"].to_pylist(), strict=False)
    return Swept(
        objects_deleted=gone.num_rows,
        bytes_deleted=pc.sum(gone["size_bytes"]).as_py() or 0,
        objects_failed=failed.num_rows,
        bytes_failed=pc.sum(failed["size_bytes"]).as_py() or 0,
        parts_skipped=skipped,
        errors=tuple(f"{address}: {error}" for address, error in pairs),
    )
