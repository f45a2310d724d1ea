"""Sweep: carry out a plan. The only file whose steps get a Deleter; it decides nothing.

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

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, LakebedError
from lakebed.gc import protocol
from lakebed.gc.protocol import GC_PREFIX, LedgerState, Manifest, Part, Quarantine
from lakebed.objectstore import Deleter, ObjectMissing, ObjectStore, is_object_key

from .engines import Effort, Engine, Task
from .fencing import Fence
from .kinds import Look, SweepRule
from .parts import parts_of, read_part, rows_of_parts
from .places import may_be_swept
from .recording import Ledger, Outcomes, Swept, closed, count, failed, ledger_rows, only, recorded
from .tables import PARTS
from .unrecorded import moved_unrecorded, rows_before

BATCH_KEYS: Final = 1000
"""How many keys one call deletes: what S3 takes at once."""

BATCHES: Final = 16
"""How many batches a task has under way."""

BATCHES_BY_KEY: Final = 4
"""The same where keys are copied or looked at, each by a small request of its own."""

AT_ONCE: Final = 16
"""How many such requests each batch has under way."""

OBJECTS_UNKNOWN: Final = 100_000
"""What a part of an old quarantine may hold, of which no record says how much."""

_OURS: Final = "^data/[0-9a-z]+/[0-9]{8}$"
"""What nearly all addresses look like, found good without a look at each."""

_REFUSED: Final = "not an object that may be deleted"

Act = Callable[[list[str]], Awaitable[Outcomes]]


async def sweep(
    engine: Engine,
    plan: Manifest,
    ledger: Ledger,
    *,
    rule: SweepRule,
    fence: Fence,
    quarantine: Quarantine | None,
) -> Swept:
    """Delete what `plan` (table DOOMED) holds, or move it aside, as far as it is not done; and say how all of it went.

    Raises:
        BadInput: a part is missing or is not what the manifest says; parts before it may be done.
        TaskStopped, Overtaken: another apply has begun.
    """
    protocol.check_manifest(plan, name=plan.folder)

    async def one(task: Task, deleter: Deleter, part: Part) -> Swept:
        await fence.check(task.store)
        return await sweep_part(task, deleter, plan, part, ledger, rule=rule, quarantine=quarantine)

    swept = await _in_parts(engine, plan.parts, one, effort=_effort_of(plan.rows))
    protocol.check_rows(plan, swept.all.objects)
    return swept


async def purge(engine: Engine, quarantine: Quarantine, parts: Sequence[str], *, now_ms: int) -> Swept:
    """Delete for good what the ledger says lies in quarantine. `parts` are the names of the run's ledger parts.

    Raises:
        BadInput: a part, or the quarantine's record, is unreadable; parts before it may be done.
    """

    async def one(task: Task, deleter: Deleter, part: Part) -> Swept:
        return await purge_part(task, deleter, quarantine, part.name, now_ms=now_ms)

    named = [Part(name=name, rows=0, size_bytes=0, sha256="") for name in parts]
    rows = quarantine.doomed.rows if quarantine.doomed else len(parts) * OBJECTS_UNKNOWN
    return await _in_parts(engine, named, one, effort=_effort_of(rows))


def _effort_of(objects: int) -> Effort:
    """A bulk delete takes a thousand keys, and as long as a hundred small requests."""
    return Effort(requests=objects / 10)


async def _in_parts(
    engine: Engine, parts: Sequence[Part], one: Callable[[Task, Deleter, Part], Awaitable[Swept]], *, effort: Effort
) -> Swept:
    async def work(task: Task, deleter: Deleter, share: pa.Table) -> AsyncIterator[pa.Table]:
        for part in parts_of(share):
            yield rows_of_parts([part], notes=[msgspec.json.encode(await one(task, deleter, part))])

    rows = await engine.run_deleting(work, rows_of_parts(parts), PARTS, effort=effort)
    swept = Swept()
    for note in rows["note"].to_pylist():
        swept = swept.plus(msgspec.json.decode(note, type=Swept))
    return swept


async def sweep_part(
    task: Task,
    deleter: Deleter,
    plan: Manifest,
    part: Part,
    ledger: Ledger,
    *,
    rule: SweepRule,
    quarantine: Quarantine | None = None,
) -> Swept:
    """One part, from reading it to recording it."""
    doomed = protocol.read_part(plan, protocol.DOOMED, part, await read_part(task.store, plan.folder, part))

    async def take(objects: pa.Table) -> pa.Table:
        act = _deleting(deleter) if quarantine is None else _moving(task, deleter, quarantine)
        most = BATCHES if quarantine is None else BATCHES_BY_KEY
        foreign = objects.filter(pc.equal(objects["slice"], FOREIGN_SLICE))
        if foreign.num_rows and rule.look is not Look.NONE:
            act, most = _if_unchanged(task, quarantine, foreign, act, rule.look), BATCHES_BY_KEY
        outcomes = await _each(task, objects, act, may_go=rule.may_delete, most=most)
        until_ms = None if quarantine is None else quarantine.until_ms
        return ledger_rows(
            objects,
            outcomes,
            run_id=ledger.run_id,
            now_ms=task.ports.clock.now_ms(),
            done=LedgerState.DELETED,
            until_ms=until_ms,
        )

    return await _carry_out(task.store, ledger.key(part.name), doomed, take)


async def purge_part(task: Task, deleter: Deleter, quarantine: Quarantine, part: str, *, now_ms: int) -> Swept:
    """What the ledger's part says lies in this quarantine, deleted for good, and recorded in a file beside it.

    Of a part whose window is not over at `now_ms` nothing is deleted, and all counts as quarantined. An apply writes
    the record, moves objects, and writes their rows then; so the record, read after the rows, says at least their
    window, however old the `quarantine` is that this purge began with.
    """
    store = task.store
    ledger = Ledger(run_id=quarantine.run_id, date=quarantine.ledger_date)
    try:
        data = await store.get(ledger.key(part))
    except ObjectMissing:
        return await _purge_unrecorded(task, deleter, quarantine, part, now_ms=now_ms)
    rows = protocol.decode_ledger(data, name=ledger.key(part))
    aside = rows.filter(pc.equal(rows["state"], LedgerState.QUARANTINED.value))
    if not aside.num_rows:
        return Swept()
    over = pc.all(pc.less_equal(aside["kept_until"].cast(pa.int64()), now_ms), skip_nulls=False).as_py()
    if over is not True or not await _is_over(store, quarantine.run_id, now_ms):
        return count(aside)
    return await _carry_out(store, ledger.purge_key(part), aside, partial(_purged, task, deleter, quarantine))


async def _purge_unrecorded(task: Task, deleter: Deleter, quarantine: Quarantine, part: str, *, now_ms: int) -> Swept:
    """The same of what an apply moved of this part and died before its rows were written.

    Looked for before the record is read, and only what is gone from its address is taken: an apply that goes on writes
    the record first and cannot move such an object again, so it never deletes one whose copy is gone.
    """
    moved = await moved_unrecorded(task, quarantine, part)
    if not moved.num_rows:
        return Swept()
    nothing = Outcomes(errors={}, states={})
    if not await _is_over(task.store, quarantine.run_id, now_ms):
        run_id, done = quarantine.run_id, LedgerState.QUARANTINED
        return count(ledger_rows(moved, nothing, run_id=run_id, now_ms=now_ms, done=done))
    rows = await _purged(task, deleter, quarantine, moved)
    key = Ledger(run_id=quarantine.run_id, date=quarantine.ledger_date).unrecorded_key(part)
    before = await rows_before(task.store, key, rows)
    await task.store.put(key, protocol.encode_ledger(pa.concat_tables([before, rows])))
    return count(rows)


async def _purged(task: Task, deleter: Deleter, quarantine: Quarantine, objects: pa.Table) -> pa.Table:
    # Whatever lies in quarantine was let go there by the rule of its plan.
    outcomes = await _each(task, objects, _deleting(deleter, place=quarantine.key), may_go=is_object_key)
    when_ms = task.ports.clock.now_ms()
    return ledger_rows(objects, outcomes, run_id=quarantine.run_id, now_ms=when_ms, done=LedgerState.PURGED)


async def _is_over(store: ObjectStore, run_id: str, now_ms: int) -> bool:
    """Whether the run's window is, as its record says now."""
    try:
        data = await store.get(protocol.quarantine_path(run_id))
    except ObjectMissing:
        return False  # Another purge saw the end of all of it.
    return protocol.decode_quarantine(data, run_id).until_ms <= now_ms


async def remove_files(engine: Engine, keys: Sequence[str]) -> None:
    """Remove small files of the collectors that no run reads again. A file that cannot be removed stays."""

    async def work(task: Task, deleter: Deleter, share: pa.Table) -> AsyncIterator[pa.Table]:  # noqa: ARG001 - the port's
        await remove_with(deleter, share["name"].to_pylist())
        yield PARTS.schema.empty_table()

    rows = rows_of_parts([Part(name=key, rows=0, size_bytes=0, sha256="") for key in keys])
    await engine.run_deleting(work, rows, PARTS, effort=Effort(requests=1))


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
    rows = tried if before is None else pa.concat_tables([closed(before), tried])
    await store.put(key, protocol.encode_ledger(rows))
    return count(rows)


async def _each(
    task: Task, objects: pa.Table, act: Act, *, may_go: Callable[[str], bool], most: int = BATCHES
) -> Outcomes:
    """What came of each object, batch by batch, several at a time."""
    addresses: list[str] = objects["address"].to_pylist()
    plain = pc.match_substring_regex(objects["address"], _OURS)
    good = addresses
    if may_go is not may_be_swept:
        good = [key for key in addresses if may_go(key)]
    elif not pc.all(plain, min_count=0).as_py():
        good = [key for key, is_ours in zip(addresses, plain.to_pylist(), strict=True) if is_ours or may_go(key)]
    errors: dict[str, str] = {}
    if len(good) < len(addresses):
        errors = dict.fromkeys(set(addresses).difference(good), _REFUSED)
    states: dict[str, LedgerState] = {}
    batches = [good[start : start + BATCH_KEYS] for start in range(0, len(good), BATCH_KEYS)]
    async for _, outcomes in task.ports.tasks.ahead(batches, act, most=most):
        errors.update(outcomes.errors)
        states.update(outcomes.states)
    return Outcomes(errors=errors, states=states)


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


def _moving(task: Task, deleter: Deleter, quarantine: Quarantine) -> Act:
    """Copy a batch aside, then delete what is copied."""
    delete = _deleting(deleter)

    async def copy(key: str) -> LedgerState | str:
        try:
            return await _copy_aside(task.store, quarantine, key)
        except LakebedError as error:
            return str(error) or type(error).__name__

    async def act(batch: list[str]) -> Outcomes:
        copied = {key: state async for key, state in task.ports.tasks.ahead(batch, copy, most=AT_ONCE)}
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


def _if_unchanged(task: Task, quarantine: Quarantine | None, objects: pa.Table, act: Act, rule: Look) -> Act:
    """`act`, but on those of a batch that are among these rows (DOOMED) only if they still are what the rows say."""
    seen_ms = objects["last_seen_at"].cast(pa.int64()).to_pylist()
    facts = zip(objects["size_bytes"].to_pylist(), seen_ms, strict=True)
    planned: dict[str, tuple[int, int]] = dict(zip(objects["address"].to_pylist(), facts, strict=True))

    async def look(key: str) -> LedgerState | str | None:
        try:
            return await _changed(task.store, quarantine, key, *planned[key], or_older=rule is Look.NOT_YOUNGER)
        except LakebedError as error:
            return str(error) or type(error).__name__

    async def act_on_rest(batch: list[str]) -> Outcomes:
        asked = [key for key in batch if key in planned]
        found = {key: state async for key, state in task.ports.tasks.ahead(asked, look, most=AT_ONCE)}
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
