"""Sweep: carry out a plan. The only file of the collectors that opens a Deleter; it decides nothing.

The plan's parts are dealt out to tasks. A task reads a part, checks it against the plan's manifest, deletes its objects
in batches of 1,000, 16 at a time, and then writes one ledger file for the part (recording.py): a row for every deletion
tried, and how it went. A sweep that is started again leaves done parts alone, except for the keys that failed, which it
tries once more; a part without ledger file is done again from its start, for deleting twice is deleting once.

With a quarantine an object is copied aside first and deleted then, so a crash leaves it in at least one of the two
places. Whoever goes on finds it gone from the first and lying in the second: that is what a moved object looks like.
`purge_part` later deletes what lies aside, in the same way.

A key that could not be deleted is counted as failed, whatever the reason; nothing is deleted that the part does not
hold, and never a key outside `data/` or the run's quarantine; of a plan of metadata, never one that is not the file of
a range, a metarange or a run; of one of an old layout, never one in a slice, below `_lakefs/` or in a namespace inside.

Keys that are no address of a slice are not ours, and whoever wrote one may have written it again since the plan, or
since it was committed. So each is looked at first, a request a key, and what is not the plan's is kept: not failed, for
it is no garbage now. Of an old layout that is one of another size or date than was listed; of a plan of committed data,
one of another size than the entry says, or younger. Between that look and the delete lies the time that a batch takes;
who writes there just then loses what he wrote, so nobody should (docs/guide/retention.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from lakebed.base import FOREIGN_SLICE, LakebedError
from lakebed.gc import protocol
from lakebed.gc.protocol import GC_PREFIX, LedgerState, Manifest, Part, Quarantine, RunKind
from lakebed.objectstore import Deleter, ObjectMissing, ObjectStore, is_object_key, open_deleter

from .clocks import wall_clock_ms
from .fencing import Fence
from .files import PARALLEL, Lake, in_tasks, whole
from .here import run_here
from .parts import parts_of, read_part, rows_of_parts, spread
from .places import DOOMED_ELSEWHERE, is_elsewhere, may_be_deleted
from .recording import Ledger, Outcomes, Swept, count, failed, ledger_rows, only, recorded, settled
from .strays import run_file, tree_file
from .tables import PARTS
from .unrecorded import moved_unrecorded, rows_before

BATCH_KEYS: Final = 1000
"""How many keys one call deletes: what S3 takes at once."""

OBJECTS_HERE: Final = 10_000
"""So many are not worth a job: ten bulk deletes, all at once."""

COPIES_AT_ONCE: Final = 64
"""A copy, or a look, is one small request for one object; a task has so many under way."""

_OURS: Final = "^data/[0-9a-z]+/[0-9]{8}$"
"""What nearly all addresses look like, found good without a look at each."""

_METADATA_PLANS: Final = f"{GC_PREFIX}{RunKind.METADATA.value}/"
_UNCOMMITTED_PLANS: Final = f"{GC_PREFIX}{RunKind.UNCOMMITTED.value}/"
_REFUSED: Final = "not an object that may be deleted"

Act = Callable[[list[str]], Awaitable[Outcomes]]


def sweep(
    spark: SparkSession,
    lake: Lake,
    plan: Manifest,
    ledger: Ledger,
    *,
    tasks: int,
    fence: Fence,
    quarantine: Quarantine | None,
) -> Swept:
    """Delete what `plan` (table DOOMED) holds, or move it aside, as far as it is not done; and say how all of it went.

    Raises:
        BadInput: a part is missing or is not what the manifest says; parts before it may be done.
        TaskStopped, Overtaken: another apply has begun.
    """
    protocol.check_manifest(plan, name=plan.folder)

    async def one(store: ObjectStore, deleter: Deleter, part: Part) -> Swept:
        await fence.check(store)
        return await sweep_part(store, deleter, plan, part, ledger, quarantine)

    swept = _in_parts(spark, lake, plan.parts, one, tasks=tasks, is_small=plan.rows <= OBJECTS_HERE)
    protocol.check_rows(plan, swept.all.objects)
    return swept


def purge(
    spark: SparkSession, lake: Lake, quarantine: Quarantine, parts: Sequence[str], *, tasks: int, now_ms: int
) -> Swept:
    """Delete for good what the ledger says lies in quarantine. `parts` are the names of the run's ledger parts.

    Raises:
        BadInput: a part, or the quarantine's record, is unreadable; parts before it may be done.
    """

    async def one(store: ObjectStore, deleter: Deleter, part: Part) -> Swept:
        return await purge_part(store, deleter, quarantine, part.name, now_ms=now_ms)

    named = [Part(name=name, rows=0, size_bytes=0, sha256="") for name in parts]
    return _in_parts(spark, lake, named, one, tasks=tasks, is_small=False)


def _in_parts(
    spark: SparkSession,
    lake: Lake,
    parts: Sequence[Part],
    one: Callable[[ObjectStore, Deleter, Part], Awaitable[Swept]],
    *,
    tasks: int,
    is_small: bool,
) -> Swept:
    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        deleter = open_deleter(lake.uri, lake.options)
        try:
            for part in parts_of(whole(share)):
                yield rows_of_parts([part], notes=[msgspec.json.encode(await one(store, deleter, part))])
        finally:
            await deleter.close()

    if is_small:
        rows = run_here(lake, work, rows_of_parts(parts), PARTS)
    else:
        named = spread(spark, PARTS, rows_of_parts(parts), tasks=tasks)
        rows = named.mapInArrow(in_tasks(lake, work, PARTS), PARTS.spark).toArrow()
    swept = Swept()
    for note in rows["note"].to_pylist():
        swept = swept.plus(msgspec.json.decode(note, type=Swept))
    return swept


async def sweep_part(
    store: ObjectStore,
    deleter: Deleter,
    plan: Manifest,
    part: Part,
    ledger: Ledger,
    quarantine: Quarantine | None = None,
) -> Swept:
    """One part, from reading it to recording it. A plain coroutine: tests run it without Spark."""
    data = await read_part(store, plan.folder, part)
    # Parquet is read and written beside the loop, on which deletes of other parts wait for their answers.
    doomed = await asyncio.to_thread(protocol.read_part, plan, protocol.DOOMED, part, data)

    async def take(objects: pa.Table) -> pa.Table:
        act = _deleting(deleter) if quarantine is None else _moving(store, deleter, quarantine)
        may_go = _rule_of(plan.folder)
        foreign = objects.filter(pc.equal(objects["slice"], FOREIGN_SLICE))
        if foreign.num_rows and may_go is not _is_metadata:
            act = _if_unchanged(store, quarantine, foreign, act, or_older=may_go is not is_elsewhere)
        outcomes = await _each(objects, act, may_go=may_go)
        until_ms = None if quarantine is None else quarantine.until_ms
        return ledger_rows(
            objects,
            outcomes,
            run_id=ledger.run_id,
            now_ms=wall_clock_ms(),
            done=LedgerState.DELETED,
            until_ms=until_ms,
        )

    return await _carry_out(store, ledger.key(part.name), doomed, take)


async def purge_part(store: ObjectStore, deleter: Deleter, quarantine: Quarantine, part: str, *, now_ms: int) -> Swept:
    """What the ledger's part says lies in this quarantine, deleted for good, and recorded in a file beside it.

    Of a part whose window is not over at `now_ms` nothing is deleted, and all counts as quarantined. An apply writes
    the record, moves objects, and writes their rows then; so the record, read after the rows, says at least their
    window, however old the `quarantine` is that this purge began with.
    """
    ledger = Ledger(run_id=quarantine.run_id, date=quarantine.ledger_date)
    try:
        data = await store.get(ledger.key(part))
    except ObjectMissing:
        return await _purge_unrecorded(store, deleter, quarantine, part, now_ms=now_ms)
    rows = protocol.decode_ledger(data, name=ledger.key(part))
    aside = rows.filter(pc.equal(rows["state"], LedgerState.QUARANTINED.value))
    if not aside.num_rows:
        return Swept()
    over = pc.all(pc.less_equal(aside["kept_until"].cast(pa.int64()), now_ms), skip_nulls=False).as_py()
    if over is not True or not await _is_over(store, quarantine.run_id, now_ms):
        return count(aside)
    return await _carry_out(store, ledger.purge_key(part), aside, lambda objects: _purged(deleter, quarantine, objects))


async def _purge_unrecorded(
    store: ObjectStore, deleter: Deleter, quarantine: Quarantine, part: str, *, now_ms: int
) -> Swept:
    """The same of what an apply moved of this part and died before its rows were written.

    Looked for before the record is read, and only what is gone from its address is taken: an apply that goes on writes
    the record first and cannot move such an object again, so it never deletes one whose copy is gone.
    """
    moved = await moved_unrecorded(store, quarantine, part)
    if not moved.num_rows:
        return Swept()
    nothing = Outcomes(errors={}, states={})
    if not await _is_over(store, quarantine.run_id, now_ms):
        run_id, done = quarantine.run_id, LedgerState.QUARANTINED
        return count(ledger_rows(moved, nothing, run_id=run_id, now_ms=now_ms, done=done))
    rows = await _purged(deleter, quarantine, moved)
    key = Ledger(run_id=quarantine.run_id, date=quarantine.ledger_date).unrecorded_key(part)
    before = await rows_before(store, key, rows)
    await store.put(key, protocol.encode_ledger(pa.concat_tables([before, rows])))
    return count(rows)


async def _purged(deleter: Deleter, quarantine: Quarantine, objects: pa.Table) -> pa.Table:
    # Whatever lies in quarantine was let go there by the rule of its plan.
    outcomes = await _each(objects, _deleting(deleter, place=quarantine.key), may_go=is_object_key)
    when_ms = wall_clock_ms()
    return ledger_rows(objects, outcomes, run_id=quarantine.run_id, now_ms=when_ms, done=LedgerState.PURGED)


async def _is_over(store: ObjectStore, run_id: str, now_ms: int) -> bool:
    """Whether the run's window is, as its record says now."""
    try:
        data = await store.get(protocol.quarantine_path(run_id))
    except ObjectMissing:
        return False  # Another purge saw the end of all of it.
    return protocol.decode_quarantine(data, run_id).until_ms <= now_ms


def remove_files(lake: Lake, keys: Sequence[str]) -> None:
    """Remove small files of the collectors that no run reads again. Blocks; a file that cannot be removed stays."""

    async def remove() -> None:
        deleter = open_deleter(lake.uri, lake.options)
        try:
            await remove_with(deleter, keys)
        finally:
            await deleter.close()

    if keys:
        asyncio.run(remove())


async def remove_with(deleter: Deleter, keys: Sequence[str]) -> None:
    """Remove files of the collectors' own folder, and refuse every other key."""
    if foreign := [key for key in keys if not key.startswith(GC_PREFIX)]:
        raise ValueError(f"only files below {GC_PREFIX} may be removed: {foreign[:3]}")
    await deleter.delete(keys)


async def _carry_out(
    store: ObjectStore, key: str, objects: pa.Table, take: Callable[[pa.Table], Awaitable[pa.Table]]
) -> Swept:
    before = await recorded(store, key, objects)
    if before is not None and not failed(before).num_rows:
        return count(before, skipped=1)
    tried = await take(objects if before is None else only(objects, failed(before)["address"]))
    rows = tried if before is None else pa.concat_tables([settled(before), tried])
    await store.put(key, await asyncio.to_thread(protocol.encode_ledger, rows))
    return count(rows)


def _rule_of(folder: str) -> Callable[[str], bool]:
    """Which keys a plan may take, by the folder that its table lies in."""
    if folder.startswith(_METADATA_PLANS):
        return _is_metadata
    if folder.startswith(_UNCOMMITTED_PLANS) and folder.endswith(f"/{DOOMED_ELSEWHERE}/"):
        return is_elsewhere
    return _may_go


async def _each(objects: pa.Table, act: Act, *, may_go: Callable[[str], bool]) -> Outcomes:
    """What came of each object, batch by batch, several at a time."""
    addresses: list[str] = objects["address"].to_pylist()
    plain = pc.match_substring_regex(objects["address"], _OURS)
    good = addresses
    if may_go is not _may_go:
        good = [key for key in addresses if may_go(key)]
    elif not pc.all(plain, min_count=0).as_py():
        good = [key for key, is_ours in zip(addresses, plain.to_pylist(), strict=True) if is_ours or may_go(key)]
    errors: dict[str, str] = {}
    if len(good) < len(addresses):
        errors = dict.fromkeys(set(addresses).difference(good), _REFUSED)
    states: dict[str, LedgerState] = {}
    slots = asyncio.Semaphore(PARALLEL)

    async def one(batch: list[str]) -> None:
        async with slots:
            outcomes = await act(batch)
        errors.update(outcomes.errors)
        states.update(outcomes.states)

    await asyncio.gather(*(one(good[start : start + BATCH_KEYS]) for start in range(0, len(good), BATCH_KEYS)))
    return Outcomes(errors=errors, states=states)


def _may_go(key: str) -> bool:
    return may_be_deleted(key) and is_object_key(key)


def _is_metadata(key: str) -> bool:
    return bool(tree_file(key) or run_file(key))


def _deleting(deleter: Deleter, *, place: Callable[[str], str] | None = None) -> Act:
    """Delete a batch; `place` says where an address lies, if not at itself."""

    async def act(batch: list[str]) -> Outcomes:
        keys = [place(key) for key in batch] if place else batch
        try:
            failures = await deleter.delete(keys)
        except LakebedError as error:
            # Whether some of them went is not known, and it need not be: failed keys are tried again.
            return Outcomes(errors=dict.fromkeys(batch, str(error) or type(error).__name__), states={})
        if not failures:
            return Outcomes(errors={}, states={})
        addresses = dict(zip(keys, batch, strict=True))
        errors = {addresses[failure.key]: failure.reason or "no reason given" for failure in failures}
        return Outcomes(errors=errors, states={})

    return act


def _moving(store: ObjectStore, deleter: Deleter, quarantine: Quarantine) -> Act:
    """Copy a batch aside, then delete what is copied."""
    slots = asyncio.Semaphore(COPIES_AT_ONCE)
    delete = _deleting(deleter)

    async def copy(key: str) -> LedgerState | str:
        async with slots:
            try:
                return await _copy_aside(store, quarantine, key)
            except LakebedError as error:
                return str(error) or type(error).__name__

    async def act(batch: list[str]) -> Outcomes:
        copied = dict(zip(batch, await asyncio.gather(*(copy(key) for key in batch)), strict=True))
        states = {key: state for key, state in copied.items() if isinstance(state, LedgerState)}
        errors = {key: error for key, error in copied.items() if not isinstance(error, LedgerState)}
        deleted = await delete([*states])
        return Outcomes(errors=errors | dict(deleted.errors), states=states)

    return act


async def _copy_aside(store: ObjectStore, quarantine: Quarantine, key: str) -> LedgerState:
    """What becomes of the object when it is deleted now. Copied twice is copied once."""
    try:
        await store.copy(key, quarantine.key(key))
    except ObjectMissing:
        if not await _lies_aside(store, quarantine, key):
            return LedgerState.DELETED  # Somebody took it before us: nothing of it lies anywhere.
    return LedgerState.QUARANTINED


async def _lies_aside(store: ObjectStore, quarantine: Quarantine, key: str) -> bool:
    try:
        await store.stat(quarantine.key(key))
    except ObjectMissing:
        return False
    return True


def _if_unchanged(
    store: ObjectStore, quarantine: Quarantine | None, objects: pa.Table, act: Act, *, or_older: bool
) -> Act:
    """`act`, but on those of a batch that are among these rows (DOOMED) only if they still are what the rows say."""
    slots = asyncio.Semaphore(COPIES_AT_ONCE)
    seen_ms = objects["last_seen_at"].cast(pa.int64()).to_pylist()
    facts = zip(objects["size_bytes"].to_pylist(), seen_ms, strict=True)
    planned: dict[str, tuple[int, int]] = dict(zip(objects["address"].to_pylist(), facts, strict=True))

    async def look(key: str) -> LedgerState | str | None:
        async with slots:
            try:
                return await _changed(store, quarantine, key, *planned[key], or_older=or_older)
            except LakebedError as error:
                return str(error) or type(error).__name__

    async def act_on_rest(batch: list[str]) -> Outcomes:
        asked = [key for key in batch if key in planned]
        found = dict(zip(asked, await asyncio.gather(*(look(key) for key in asked)), strict=True))
        states = {key: state for key, state in found.items() if isinstance(state, LedgerState)}
        errors = {key: error for key, error in found.items() if error is not None and key not in states}
        done = await act([key for key in batch if found.get(key) is None])
        return Outcomes(errors=errors | dict(done.errors), states=states | dict(done.states))

    return act_on_rest


async def _changed(
    store: ObjectStore, quarantine: Quarantine | None, key: str, size_bytes: int, seen_ms: int, *, or_older: bool
) -> LedgerState | None:
    """None: what lies there is what was planned for. Else what became of that; the key is left alone, also where there
    is nothing, for what is written under it from now on is new. `or_older`: what was seen is dated by who named it, and
    so not before it was written.
    """
    try:
        stat = await store.stat(key)
    except ObjectMissing:
        otherwise = LedgerState.DELETED
    else:
        # In seconds: stores tell the same date more exactly in a listing than in an answer about one object.
        found_s, seen_s = stat.modified_ms // 1000, seen_ms // 1000
        if stat.size_bytes == size_bytes and (found_s == seen_s or (or_older and found_s < seen_s)):
            return None
        otherwise = LedgerState.KEPT
    is_aside = quarantine is not None and await _lies_aside(store, quarantine, key)
    return LedgerState.QUARANTINED if is_aside else otherwise
