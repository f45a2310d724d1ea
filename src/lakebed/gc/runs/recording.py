"""The ledger as a sweep writes it: a file for each part of a plan, a row for each object, and what rows add up to.

All files of a run lie under the date on which its first sweep began, so that an apply that goes on finds what is done:

    date=<date>/<run>-part-…            what became of the part's objects: deleted, kept, failed

The file is what makes a part done; of a done part only the rows with an error are tried again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import NotFound
from lakebed.gc import protocol
from lakebed.gc.protocol import LEDGER_PREFIX, LedgerState, Total
from lakebed.objectstore import ObjectStore

ERRORS_SHOWN: Final = 20
HELD: Final = "held by legal hold"
"""What the ledger says of an object that a legal hold keeps begins with this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Say where a run's deletions are recorded: `date` (YYYY-MM-DD) is the day on which its first sweep began."""

    run_id: str
    date: str

    def key(self, part: str) -> str:
        return f"{LEDGER_PREFIX}date={self.date}/{self.run_id}-{part}"


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """Count what a sweep, or a part of it, did. `errors` are some of the messages about keys that failed. Of these,
    legal holds keep `objects_held`.
    """

    objects_deleted: int = 0
    bytes_deleted: int = 0
    objects_kept: int = 0
    bytes_kept: int = 0
    objects_failed: int = 0
    bytes_failed: int = 0
    objects_held: int = 0
    parts_skipped: int = 0
    errors: tuple[str, ...] = ()

    @property
    def all(self) -> Total:
        """Count what was tried, now or earlier."""
        return Total(
            objects=self.objects_deleted + self.objects_kept + self.objects_failed,
            size_bytes=self.bytes_deleted + self.bytes_kept + self.bytes_failed,
        )

    def plus(self, more: Swept) -> Swept:
        return Swept(
            objects_deleted=self.objects_deleted + more.objects_deleted,
            bytes_deleted=self.bytes_deleted + more.bytes_deleted,
            objects_kept=self.objects_kept + more.objects_kept,
            bytes_kept=self.bytes_kept + more.bytes_kept,
            objects_failed=self.objects_failed + more.objects_failed,
            bytes_failed=self.bytes_failed + more.bytes_failed,
            objects_held=self.objects_held + more.objects_held,
            parts_skipped=self.parts_skipped + more.parts_skipped,
            errors=(self.errors + more.errors)[:ERRORS_SHOWN],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Hold what came of some keys: `errors` of those that failed, `states` of those that are not simply deleted."""

    errors: Mapping[str, str]
    states: Mapping[str, LedgerState]


def ledger_rows(objects: pa.Table, outcomes: Outcomes, *, run_id: str, now_ms: int) -> pa.Table:
    """LEDGER: a row for each object (columns of GARBAGE), which is deleted where `outcomes` say nothing else."""
    count, moment = objects.num_rows, pa.timestamp("ms", tz="UTC")
    errors, states = pa.repeat("", count), pa.repeat(LedgerState.DELETED.value, count)
    if outcomes.errors or outcomes.states:
        addresses: Sequence[str] = objects["address"].to_pylist()
        messages = [outcomes.errors.get(key, "") for key in addresses]
        what = [
            LedgerState.FAILED.value if error else outcomes.states.get(key, LedgerState.DELETED).value
            for key, error in zip(addresses, messages, strict=True)
        ]
        errors, states = pa.array(messages, pa.string()), pa.array(what, pa.string())
    columns = {
        "run_id": pa.repeat(pa.scalar(run_id), count),
        "address": objects["address"],
        "size_bytes": objects["size_bytes"],
        "reason": objects["reason"],
        "deleted_at": pa.repeat(pa.scalar(now_ms, moment), count),
        "error": errors,
        "path": objects["path"],
        "rule": objects["rule"],
        "state": states,
        "last_seen_at": objects["last_seen_at"],
    }
    return pa.table(columns).cast(protocol.arrow_schema(protocol.LEDGER))


async def recorded(store: ObjectStore, key: str, objects: pa.Table) -> pa.Table | None:
    """The file's rows, if there is a whole one of just these objects. Else the part counts as not done."""
    try:
        rows = protocol.decode_ledger(await store.get(key), name=key)
    except (NotFound, protocol.BadInput):
        return None
    same = pc.all(pc.is_in(rows["address"], value_set=objects["address"].combine_chunks())).as_py()
    return rows if rows.num_rows == objects.num_rows and same in (True, None) else None


def failed(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.not_equal(rows["error"], ""))


def closed(rows: pa.Table) -> pa.Table:
    """All that did not fail."""
    return rows.filter(pc.equal(rows["error"], ""))


def done_in_either(there: pa.Table, ours: pa.Table) -> pa.Table:
    """Return the rows that are there, but of what failed there and not here, our rows. Both are of the same objects."""
    newly_done = only(closed(ours), failed(there)["address"])
    return pa.concat_tables([without(there, newly_done["address"].to_pylist()), newly_done])


def only(objects: pa.Table, addresses: pa.ChunkedArray) -> pa.Table:
    return objects.filter(pc.is_in(objects["address"], value_set=addresses.combine_chunks()))


def without(objects: pa.Table, addresses: Collection[str]) -> pa.Table:
    if not addresses:
        return objects
    return objects.filter(pc.invert(pc.is_in(objects["address"], value_set=pa.array(sorted(addresses), pa.string()))))


def count(rows: pa.Table, *, skipped: int = 0) -> Swept:
    """Count a part's rows."""
    wrong, done = failed(rows), closed(rows)
    is_kept = pc.equal(done["state"], LedgerState.KEPT.value)
    kept, gone = done.filter(is_kept), done.filter(pc.invert(is_kept))
    pairs = zip(wrong["address"].slice(0, ERRORS_SHOWN).to_pylist(), wrong["error"].to_pylist(), strict=False)
    return Swept(
        objects_deleted=gone.num_rows,
        bytes_deleted=_bytes(gone),
        objects_kept=kept.num_rows,
        bytes_kept=_bytes(kept),
        objects_failed=wrong.num_rows,
        bytes_failed=_bytes(wrong),
        objects_held=pc.sum(pc.starts_with(wrong["error"], HELD)).as_py() or 0,
        parts_skipped=skipped,
        errors=tuple(f"{address}: {error}" for address, error in pairs),
    )


def _bytes(rows: pa.Table) -> int:
    return pc.sum(rows["size_bytes"]).as_py() or 0
