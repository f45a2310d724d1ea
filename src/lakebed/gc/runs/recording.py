"""Write and read the ledger of a sweep: numbered files for each part of a plan, and the sums of their rows.

    date=<date>/<run>-part-….000000.parquet    the outcome of each object of the part: deleted, kept, gone or failed
    date=<date>/<run>-part-….000001.parquet    objects with a new outcome: an earlier attempt failed, or another record
                                               counts the deletion (elsewhere.py)

`date` is the day of the run's first sweep, so that a later apply finds the files. Each file is written once, under the
first free number. An object whose row has no error is done; an apply tries all others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import NotFound
from lakebed.gc import messages
from lakebed.gc.messages import LEDGER_PREFIX, LedgerState, Total, fold, ledger_name, run_of_record
from lakebed.objectstore import ObjectExists, ObjectOutcomeUnknown, ObjectStore

ATTEMPTS_MAX: Final = 8
"""Attempts to record a part. Each attempt but the last lost an answer, or lost to another apply."""

ERRORS_SHOWN: Final = 20
HELD: Final = "held by legal hold"
"""Prefix of the error of an object that a legal hold keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Locate the records of a run's deletions: `date` (YYYY-MM-DD) is the day on which its first sweep began."""

    run_id: str
    date: str

    @property
    def prefix(self) -> str:
        """The prefix of all files of the run's sweeps, and of restores on the same day."""
        return f"{LEDGER_PREFIX}date={self.date}/{self.run_id}-"

    def key(self, part: str, number: int = 0) -> str:
        return self.prefix + ledger_name(part, number)


def ledger_of(names: Sequence[str]) -> Ledger:
    """Return where the records of a run are, given the names of the files of one of them."""
    date, _, _ = names[0].removeprefix(f"{LEDGER_PREFIX}date=").partition("/")
    return Ledger(run_id=run_of_record(names), date=date)


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """Count the outcomes of a sweep, or of a part. `errors`: at most `ERRORS_SHOWN` messages about failed keys.

    `objects_held`: failed objects that legal holds keep. `objects_gone`: objects that something else deleted.
    """

    objects_deleted: int = 0
    bytes_deleted: int = 0
    objects_kept: int = 0
    bytes_kept: int = 0
    objects_failed: int = 0
    bytes_failed: int = 0
    objects_gone: int = 0
    bytes_gone: int = 0
    objects_held: int = 0
    parts_skipped: int = 0
    errors: tuple[str, ...] = ()

    @property
    def all(self) -> Total:
        """Count the objects that were tried, now or earlier."""
        return Total(
            objects=self.objects_deleted + self.objects_kept + self.objects_failed + self.objects_gone,
            size_bytes=self.bytes_deleted + self.bytes_kept + self.bytes_failed + self.bytes_gone,
        )

    def less(self, given_up: Total) -> Swept:
        """Return the counts without these deletions, which another record counts."""
        return msgspec.structs.replace(
            self,
            objects_deleted=self.objects_deleted - given_up.objects,
            bytes_deleted=self.bytes_deleted - given_up.size_bytes,
            objects_gone=self.objects_gone + given_up.objects,
            bytes_gone=self.bytes_gone + given_up.size_bytes,
        )

    def plus(self, more: Swept) -> Swept:
        return Swept(
            objects_deleted=self.objects_deleted + more.objects_deleted,
            bytes_deleted=self.bytes_deleted + more.bytes_deleted,
            objects_kept=self.objects_kept + more.objects_kept,
            bytes_kept=self.bytes_kept + more.bytes_kept,
            objects_failed=self.objects_failed + more.objects_failed,
            bytes_failed=self.bytes_failed + more.bytes_failed,
            objects_gone=self.objects_gone + more.objects_gone,
            bytes_gone=self.bytes_gone + more.bytes_gone,
            objects_held=self.objects_held + more.objects_held,
            parts_skipped=self.parts_skipped + more.parts_skipped,
            errors=(self.errors + more.errors)[:ERRORS_SHOWN],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Hold the outcome of some keys: `errors` of failed keys, `states` of keys whose state is not DELETED."""

    errors: Mapping[str, str]
    states: Mapping[str, LedgerState]


def ledger_rows(objects: pa.Table, outcomes: Outcomes, *, run_id: str, now_ms: int) -> pa.Table:
    """Return LEDGER rows, one for each object (columns of GARBAGE). Objects not in `outcomes` are deleted."""
    count, moment = objects.num_rows, pa.timestamp("ms", tz="UTC")
    errors, states = pa.repeat("", count), pa.repeat(LedgerState.DELETED.value, count)
    if outcomes.errors or outcomes.states:
        addresses: Sequence[str] = objects["address"].to_pylist()
        texts = [outcomes.errors.get(key, "") for key in addresses]
        what = [
            LedgerState.FAILED.value if error else outcomes.states.get(key, LedgerState.DELETED).value
            for key, error in zip(addresses, texts, strict=True)
        ]
        errors, states = pa.array(texts, pa.string()), pa.array(what, pa.string())
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
    return pa.table(columns).cast(messages.arrow_schema(messages.LEDGER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Hold the recorded rows of a part's objects, one for each object, and the number of the part's next file."""

    rows: pa.Table
    next_number: int

    @property
    def done(self) -> pa.Table:
        return closed(self.rows)

    def news(self, tried: pa.Table) -> pa.Table:
        """Return the rows that add an outcome: no second row for a finished object, and no repeated error."""
        # An object without an error is done: a row of another apply must not change its outcome.
        rest = without(tried, self.done["address"].to_pylist())
        if not self.rows.num_rows or not rest.num_rows:
            return rest
        errors = self.rows["error"].take(pc.index_in(rest["address"], value_set=self.rows["address"].combine_chunks()))
        return rest.filter(pc.fill_null(pc.not_equal(rest["error"], errors), True))


async def read_recorded(store: ObjectStore, ledger: Ledger, part: str, objects: pa.Table) -> Recorded:
    """Read the files of a part. Costs a read for each file, and one read that finds none.

    Raises:
        BadInput: a file is damaged. The sweep stops, as the file's outcomes are unknown.
    """
    files: list[pa.Table] = []
    while True:
        key = ledger.key(part, len(files))
        try:
            data = await store.get(key)
        except NotFound:
            # Numbers have no gaps, because each file takes the first free number.
            break
        files.append(messages.decode_ledger(data, name=key))
    rows = fold(files) if files else messages.arrow_schema(messages.LEDGER).empty_table()
    # Skip rows of other objects: an overtaken apply may have rechecked, and dealt the objects to other parts.
    return Recorded(rows=only(rows, objects["address"]), next_number=len(files))


async def record(
    store: ObjectStore, ledger: Ledger, part: str, objects: pa.Table, tried: pa.Table, before: Recorded
) -> pa.Table:
    """Record the new rows in `tried`. Return the rows of all objects of the part, one for each object.

    Raises:
        ObjectOutcomeUnknown: each of `ATTEMPTS_MAX` attempts lost its answer or lost to another apply.
    """
    for _ in range(ATTEMPTS_MAX):
        news = before.news(tried)
        if not news.num_rows:
            return before.rows
        key = ledger.key(part, before.next_number)
        try:
            await store.put(key, messages.encode_ledger(news), if_absent=True)
        except (ObjectExists, ObjectOutcomeUnknown):
            # Another apply wrote this number, or our answer was lost. Read again and add the missing rows, so that no
            # apply overwrites the rows of another, however late its request arrives.
            before = await read_recorded(store, ledger, part, objects)
        else:
            return fold([before.rows, news])
    raise ObjectOutcomeUnknown(f"whether {key} was written is not known", key=key)


def failed(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.not_equal(rows["error"], ""))


def closed(rows: pa.Table) -> pa.Table:
    """Return the rows of objects that did not fail."""
    return rows.filter(pc.equal(rows["error"], ""))


def only(objects: pa.Table, addresses: pa.ChunkedArray) -> pa.Table:
    return objects.filter(pc.is_in(objects["address"], value_set=addresses.combine_chunks()))


def without(objects: pa.Table, addresses: Collection[str]) -> pa.Table:
    if not addresses:
        return objects
    return objects.filter(pc.invert(pc.is_in(objects["address"], value_set=pa.array(sorted(addresses), pa.string()))))


def count(rows: pa.Table, *, skipped: int = 0) -> Swept:
    """Count a part's rows."""
    wrong, done = failed(rows), closed(rows)
    kept, gone = (done.filter(pc.equal(done["state"], state.value)) for state in (LedgerState.KEPT, LedgerState.GONE))
    deleted = done.filter(pc.equal(done["state"], LedgerState.DELETED.value))
    pairs = zip(wrong["address"].slice(0, ERRORS_SHOWN).to_pylist(), wrong["error"].to_pylist(), strict=False)
    return Swept(
        objects_deleted=deleted.num_rows,
        bytes_deleted=_bytes(deleted),
        objects_gone=gone.num_rows,
        bytes_gone=_bytes(gone),
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
