"""Write and read the ledger of a sweep: numbered files for each part of a plan, and the sums of their rows.

    date=<date>/<run>-part-….000000.parquet    the outcome of each object of the part: deleted, kept, gone or failed
    date=<date>/<run>-part-….000001.parquet    objects with a new outcome: an earlier attempt failed, or another record
                                               counts the deletion (`settle`)

`date` is the day of the run's first sweep, so that a later apply finds the files. Each file is written once, under the
first free number. An object whose row has no error is done; an apply tries all others. An object that the ledger does
not have counts as deleted by this run, also where a process died before its record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from lakebed.base import NotFound, RunId, parse_address
from lakebed.gc import messages
from lakebed.gc.engines.engine import Table, decode, read_part, required, without
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
    fold,
    give_way,
    giving_way,
    ledger_folder,
    ledger_name,
    ledger_records,
    plan_path,
    report_path,
    run_of_record,
)
from lakebed.gc.rules import DAY_MS
from lakebed.objectstore import ObjectExists, ObjectOutcomeUnknown, ObjectStore

from .context import Fence, RunContext, find, folder_in, read_all, write_piece

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
    """Count the outcomes of a sweep, or of a part. `errors`: at most `ERRORS_SHOWN` messages about failed keys."""

    objects_deleted: int = 0
    bytes_deleted: int = 0
    objects_kept: int = 0
    bytes_kept: int = 0
    objects_failed: int = 0
    bytes_failed: int = 0
    # Objects that something else deleted.
    objects_gone: int = 0
    bytes_gone: int = 0
    # Failed objects that legal holds keep.
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


# Find the objects of a plan that other runs or hard delete deleted, so that the ledger counts each deletion once. The
# sweep deletes such an object again, which is harmless, and records its row as `gone`:
#
# 1. before the sweep, read the ledger's records of runs that may hold the same objects (`Gone`)
# 2. after each part's deletes, read the pages that hard delete has recorded since
# 3. after the sweep, look for a second record of each deletion, and let one of the two give way (`settle`)
# 4. after the report, and after another run's record gave way, correct the totals of the report (`correct_report`)

SLACK_MS: Final = 600_000
"""Largest assumed difference between the clocks of servers and object store. Reading too old a file is harmless."""
RECORDS_AT_ONCE: Final = 64

Loser = tuple[Sequence[str], pa.Table]
"""The files of a record that must give way, and its new LEDGER rows."""

_GONE: Final = Table("an object that something else deleted", required(("address", pa.string())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Name the objects that other runs deleted. Travels to tasks."""

    rows: Pieces = field(default_factory=lambda: Pieces(folder=""))
    # The newest file of hard delete that was read; empty if the run deletes no users' objects.
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

    async def losers() -> list[Loser]:
        changed_ms = await _listed(context.store)
        others = [names for names in await _meeting(context, plan, changed_ms) if not seen.issuperset(names)]
        # Also runs whose record gave way earlier: an apply may have died before it corrected their reports.
        rewritten.update(await _rewritten_runs(context, others))
        own_records = ledger_records(name for name in changed_ms if name.startswith(own.prefix))
        giving = await _losers(context, plan, own_records, others)
        for names, rows in giving:
            if run_of_record(names) == plan.run_id:
                given_up.update(zip(rows["address"].to_pylist(), rows["size_bytes"].to_pylist(), strict=True))
        return giving

    await give_way(losers, partial(context.store.put, if_absent=True))
    for ledger, kind in rewritten.items():
        await correct_report(context, kind, ledger)
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


async def _rewritten_runs(context: RunContext, records: Sequence[tuple[str, ...]]) -> dict[Ledger, RunKind]:
    """Return the runs of the records that have several files, so that their reports may be wrong."""
    if not (rewritten := {ledger_of(names) for names in records if len(names) > 1}):
        return {}
    kinds = {view.run_id: view.kind for view in await context.service.runs()}
    return {ledger: kinds[ledger.run_id] for ledger in rewritten if ledger.run_id in kinds}


async def _losers(
    context: RunContext, plan: Plan, own_records: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]]
) -> list[Loser]:
    """Return each record that must give way to another, among our own and those of others."""
    deletions = [(names, rows) async for names, rows in _deleted(context, others) if rows.num_rows]
    if not deletions:
        return []
    by_others = pa.concat_tables([rows for _, rows in deletions])["address"].combine_chunks()
    counted_twice = {names: await _counted_twice(context, names, by_others) for names in own_records}
    contested = set[str]().union(*counted_twice.values())
    if not contested:
        return []
    giving: list[tuple[Sequence[str], set[str]]] = []
    lost = set[str]()
    for names, rows in deletions:
        shared = contested.intersection(rows["address"].to_pylist())
        # Hard delete's record gives way, or that of the older run.
        if DELETED_AT_ONCE in names[0] or run_of_record(names) < plan.run_id:
            giving.append((names, shared))
        else:
            lost |= shared
    giving += [(names, addresses & lost) for names, addresses in counted_twice.items()]
    return [
        (names, giving_way(await _read(context.store, names), addresses)) for names, addresses in giving if addresses
    ]


async def _counted_twice(context: RunContext, names: Sequence[str], by_others: pa.Array) -> set[str]:
    """Return the addresses that this record of ours has as deleted, and others have, too."""
    addresses: list[str] = []
    async for _, rows in _deleted(context, [names]):
        addresses += rows.filter(pc.is_in(rows["address"], value_set=by_others))["address"].to_pylist()
    # A key in no slice may have been written and deleted again, so both deletions count.
    return {address for address in addresses if parse_address(address) is not None}


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
    since_ms = min(plan.now_ms, await _listed_ms(context, plan))
    for view in views:
        if view.run_id == plan.run_id and view.unpublished_ms is not None:
            # What such a commit names may have been deleted while it was made, or later. A day is longer than a commit.
            since_ms = min(since_ms, view.unpublished_ms - DAY_MS)
    return [
        names
        for names in records
        if _may_meet(plan, kinds, names, is_new=max(changed_ms[name] for name in names) >= since_ms - SLACK_MS)
    ]


async def _listed_ms(context: RunContext, plan: Plan) -> int:
    """Return a time before which nothing deleted objects of the plan: not before one of its runs listed them.

    An optimised run does not list again what the run that it goes on from kept.
    """
    if not plan.based_on:
        return plan.now_ms
    try:
        base = await context.store.stat(plan_path(plan.kind, RunId(plan.based_on)))
    except NotFound:
        return 0
    # By the clock of the store, for that of a server may have been ahead. A day is longer than a plan takes.
    since_ms = base.modified_ms - DAY_MS
    # What was young was kept without a name, also where hard delete had deleted it.
    young_ms = None if plan.rules is None else plan.rules.uncommitted_since_ms(since_ms)
    return since_ms if young_ms is None else young_ms


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
