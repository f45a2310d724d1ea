"""Sweep: carry out a plan. The only file whose steps get a Deleter; it decides nothing.

The plan's parts are dealt out to tasks. A task reads a part, checks it against the plan's manifest, deletes its objects
in batches of 1,000, 16 at a time, and then puts one file into the ledger (runs/recording.py): a row for every
deletion tried, and how it went. A sweep that is started again leaves what is done alone, and tries only the keys that
failed. A part without ledger file is done again from its start: to delete twice is to delete once.

What a legal hold keeps is left with an error. Before each batch the sweep looks whether the holds changed (holding.py),
another apply began, or a repository was made again here (runs/fencing.py). If so, it stops: deletes that are under way
then, up to 16 of a task, go to their end, and what became of the part is recorded first.

A key that could not be deleted is counted as failed, whatever the reason. Nothing is deleted that the part does not
hold. Most plans delete no key outside `data/`. Three kinds do: one of metadata deletes files of ranges, metaranges and
runs, and nothing else; one of a deleted repository those, and addresses of slices; one of an old layout any key that
lies in no slice, not below `_lakefs/` and in no namespace inside.

Keys that are no address of a slice are not ours, and their writer may have written one again since the plan, or
since it was committed. So each is looked at first, a request a key, and what is not the plan's is kept: not failed, for
it is no garbage now. Of an old layout that is one of another size or date than was listed; of a plan of committed data,
one of another size than the entry says, or younger. Between that look and the delete lies the time that a batch takes;
a tool that writes there just then loses what it wrote, so none should (docs/guide/retention.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, LakebedError
from lakebed.gc import messages
from lakebed.gc.engines import Effort, Engine, Task
from lakebed.gc.engines.tables import PARTS, parts_of, read_part, rows_of_parts
from lakebed.gc.kinds import Look, SweepRule
from lakebed.gc.mark.holding import Held
from lakebed.gc.mark.sets.places import is_elsewhere, may_be_swept
from lakebed.gc.messages import GC_PREFIX, LedgerState, Manifest, Part
from lakebed.gc.runs.elsewhere import Gone
from lakebed.gc.runs.fencing import Fence, Overtaken
from lakebed.gc.runs.recording import (
    Ledger,
    Outcomes,
    Swept,
    count,
    ledger_rows,
    read_recorded,
    record,
    without,
)
from lakebed.objectstore import Deleter, ObjectMissing, ObjectStore, read_adoption

BATCH_KEYS: Final = 1000
"""How many keys one call deletes: the limit of S3."""

BATCHES: Final = 16
"""How many batches a task has under way."""

BATCHES_BY_KEY: Final = 4
"""The same where keys are looked at, each by a small request of its own."""

AT_ONCE: Final = 16
"""How many such requests each batch has under way."""

_OURS: Final = "^data/[0-9a-z]+/[0-9]{8}$"
"""The form of nearly all addresses. They are checked all at once."""

NOT_FINAL: Final = "the old server wrote it, and its adoption is not final (lakebed migrate --adopt --final)"

_REFUSED: Final = "not an object that may be deleted"

Act = Callable[[list[str]], Awaitable[Outcomes]]


async def sweep(
    engine: Engine,
    plan: Manifest,
    ledger: Ledger,
    *,
    rule: SweepRule,
    fence: Fence,
    held: Held,
    gone: Gone,
) -> Swept:
    """Delete the objects of `plan` (table GARBAGE) that are not done yet, and return the outcome of all.

    Raises:
        BadInput: a part is missing or contradicts the manifest; parts before it may be done.
        TaskStopped, Overtaken: another apply has begun.
    """
    messages.check_manifest(plan, name=plan.folder)

    async def one(task: Task, deleter: Deleter, part: Part) -> Swept:
        swept = await sweep_part(task, deleter, plan, part, ledger, rule=rule, fence=fence, held=held, gone=gone)
        # Here, and not only before each batch: a later reader of the ledger finds the objects that this part lost.
        await fence.check(task.store)
        return swept

    swept = await _in_parts(engine, plan.parts, one, effort=_effort_of(plan.rows))
    messages.check_rows(plan, swept.all.objects)
    return swept


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
    fence: Fence,
    held: Held,
    gone: Gone,
) -> Swept:
    """Read, delete and record one part. Once another apply has begun, the rest of the part counts as failed."""
    garbage = messages.read_part(plan, messages.GARBAGE, part, await read_part(task.store, plan.folder, part))

    async def take(objects: pa.Table) -> pa.Table:
        act, most = _deleting(task, deleter, fence, held), BATCHES
        kept = await held.among(task.store, objects)
        free = without(objects, kept)
        foreign = free.filter(pc.equal(free["slice"], FOREIGN_SLICE))
        old, settled_ms = await _of_old_server(task.store, foreign)
        if old:
            kept, free, foreign = {**kept, **old}, without(free, old), without(foreign, old)
        if foreign.num_rows and rule.look is not Look.NONE:
            act, most = _if_unchanged(task, foreign, act, rule.look, settled_ms=settled_ms), BATCHES_BY_KEY
        outcomes = await _each(task, free, act, may_go=rule.may_delete, most=most)
        errors = {**outcomes.errors, **kept}
        tried = [address for address in objects["address"].to_pylist() if address not in errors]
        states = {**await gone.among(task.store, tried), **_kept_of(outcomes.states)}
        outcomes = Outcomes(errors=errors, states=states)
        return ledger_rows(objects, outcomes, run_id=ledger.run_id, now_ms=task.ports.clock.now_ms())

    before = await read_recorded(task.store, ledger, part.name, garbage)
    rest = without(garbage, before.done["address"].to_pylist())
    if not rest.num_rows:
        return count(before.rows, skipped=1)
    return count(await record(task.store, ledger, part.name, garbage, await take(rest), before))


def _kept_of(states: Mapping[str, LedgerState]) -> dict[str, LedgerState]:
    return {key: state for key, state in states.items() if state is LedgerState.KEPT}


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


async def _each(
    task: Task, objects: pa.Table, act: Act, *, may_go: Callable[[str], bool], most: int = BATCHES
) -> Outcomes:
    """Yield the outcome of each object, batch by batch, several batches at a time."""
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


async def _of_old_server(store: ObjectStore, foreign: pa.Table) -> tuple[dict[str, str], int]:
    """Return those that another server wrote here, each with a reason, unless a person made their adoption final; and
    since when that server wrote nothing, by the store's clock.

    Final is for ever, so one look a part is enough.
    """
    keys = [key for key in foreign["address"].to_pylist() if is_elsewhere(key)]
    if not keys or (adoption := await read_adoption(store)) is None:
        return {}, 0
    return ({}, adoption.compared_ms) if adoption.may_delete else (dict.fromkeys(keys, NOT_FINAL), 0)


def _deleting(task: Task, deleter: Deleter, fence: Fence, held: Held) -> Act:
    async def act(batch: list[str]) -> Outcomes:
        # A part is long, and the repository that was made again meanwhile may name all that is left of it.
        try:
            await fence.check(task.store)
        except Overtaken as error:
            return Outcomes(errors=dict.fromkeys(batch, str(error)), states={})
        # Last of all: a hold whose maker has its answer stops every delete that begins from now on.
        if refused := await held.refuses(task.store):
            return Outcomes(errors=dict.fromkeys(batch, refused), states={})
        try:
            failures = await deleter.delete(batch)
        except LakebedError as error:
            # Whether some of them went is not known, and it need not be: failed keys are tried again.
            return Outcomes(errors=dict.fromkeys(batch, str(error) or type(error).__name__), states={})
        errors = {failure.key: failure.reason or "no reason given" for failure in failures}
        return Outcomes(errors=errors, states={})

    return act


def _if_unchanged(task: Task, objects: pa.Table, act: Act, rule: Look, *, settled_ms: int = 0) -> Act:
    """`act`, but on those of a batch that are among these rows (GARBAGE) only if they still are what the rows say.

    An adoption compared the objects that existed at `settled_ms`: a copy may be younger than its entry.
    """
    seen_ms = objects["last_seen_at"].cast(pa.int64()).to_pylist()
    facts = zip(objects["size_bytes"].to_pylist(), seen_ms, strict=True)
    planned: dict[str, tuple[int, int]] = dict(zip(objects["address"].to_pylist(), facts, strict=True))

    async def look(key: str) -> LedgerState | str | None:
        try:
            size_bytes, seen_ms = planned[key]
            is_older = rule is Look.NOT_YOUNGER
            seen_ms = max(seen_ms, settled_ms) if is_older else seen_ms
            return await _changed(task.store, key, size_bytes, seen_ms, or_older=is_older)
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
    store: ObjectStore, key: str, size_bytes: int, seen_ms: int, *, or_older: bool
) -> LedgerState | None:
    """None: what lies there is what was planned for. Else what became of that; the key is left alone, also where there
    is nothing, for what is written under it from now on is new. `or_older`: what was seen is dated by who named it, and
    so not before it was written.
    """
    try:
        stat = await store.stat(key)
    except ObjectMissing:
        return LedgerState.DELETED
    # In seconds: stores tell the same date more exactly in a listing than in an answer about one object.
    found_s, seen_s = stat.modified_ms // 1000, seen_ms // 1000
    if stat.size_bytes == size_bytes and (found_s == seen_s or (or_older and found_s < seen_s)):
        return None
    return LedgerState.KEPT
