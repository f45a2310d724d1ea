"""Sweep: carry out a plan. Only steps in this file get a Deleter; a sweep deletes only objects of the plan.

1. deal the plan's parts out to tasks, and check each part against the plan's manifest
2. skip the objects that the ledger has as done; an earlier sweep's failures are tried again (runs/recording.py)
3. leave objects of legal holds, and keys that changed since the plan
4. delete in batches of 1,000 keys, 16 batches at a time
5. record one row for each object: deleted, kept, gone or failed

Before each batch, check for a new hold (holding.py) and for a newer claim (runs/context.py). Either stops the sweep.
Batches under way still end (up to 16 of a task), and the ledger gets the outcome of the part.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, Clock, LakebedError, in_words
from lakebed.gc import messages
from lakebed.gc.engines import Effort, Engine, Task
from lakebed.gc.engines.engine import PARTS, parts_of, read_part, rows_of_parts, without
from lakebed.gc.kinds import Look, SweepRule
from lakebed.gc.mark.holding import Held
from lakebed.gc.mark.sets.places import is_elsewhere, may_be_swept
from lakebed.gc.messages import GC_PREFIX, LedgerState, Manifest, Part
from lakebed.gc.runs.context import Fence, Overtaken
from lakebed.gc.runs.recording import Gone, Ledger, Outcomes, Swept, count, ledger_rows, read_recorded, record
from lakebed.objectstore import Deleter, ObjectMissing, ObjectStore, read_adoption

BATCH_KEYS: Final = 1000
"""The number of keys that one call deletes: the limit of S3."""

BATCHES: Final = 16
"""The number of batches that a task has under way."""

BATCHES_BY_KEY: Final = 4
"""The number of batches that a task has under way where each key needs a small request first."""

AT_ONCE: Final = 16
"""The number of such requests that each batch has under way."""

_OURS: Final = "^data/[0-9a-z]+/[0-9]{8}$"
"""The form of nearly all addresses. One call checks a whole column."""

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
        # Check after each part, too: a later apply reads the ledger, and must find the objects that this part deleted.
        await fence.check(task.store)
        return swept

    swept = await _in_parts(engine, plan.parts, one, effort=_effort_of(plan.rows))
    messages.check_rows(plan, swept.all.objects)
    return swept


def _effort_of(objects: int) -> Effort:
    """Count a bulk delete of a thousand keys as a hundred small requests: it takes as long."""
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
    """Read, delete and record one part. Once another apply has begun, the rest of the part is recorded as failed."""
    garbage = messages.read_part(plan, messages.GARBAGE, part, await read_part(task.store, plan.folder, part))

    async def take(objects: pa.Table) -> pa.Table:
        act, most = _deleting(task, deleter, fence, held), BATCHES
        kept = await held.among(task.store, objects)
        free = without(objects, kept)
        foreign = free.filter(pc.equal(free["slice"], FOREIGN_SLICE))
        old, settled_ms = await _of_old_server(task.store, foreign)
        if old:
            kept, free, foreign = {**kept, **old}, without(free, old), without(foreign, old)
        # A key outside the slices may have been written again since the plan, so a request compares each key first.
        # A tool that writes between that request and the delete loses its bytes (docs/guide/retention.md).
        present: set[str] = set()
        if foreign.num_rows and rule.look is not Look.NONE:
            present.update(foreign["address"].to_pylist())
            act, most = _if_unchanged(task, foreign, act, rule.look, settled_ms=settled_ms), BATCHES_BY_KEY
        outcomes = await _each(task, free, act, may_go=rule.may_delete, most=most)
        # A held object is an error, so the run does not end, and an apply after the release deletes the object.
        errors = {**outcomes.errors, **kept}
        # A key that was there was written again, if something else deleted it before: this deletion counts, too.
        present.difference_update(outcomes.states)
        tried = [address for address in objects["address"].to_pylist() if address not in present | errors.keys()]
        states = {**await gone.among(task.store, tried), **_kept_of(outcomes.states)}
        outcomes = Outcomes(errors=errors, states=states)
        return ledger_rows(objects, outcomes, run_id=ledger.run_id, now_ms=task.ports.clock.now_ms())

    # A part without a ledger file starts over: deleting twice has the effect of deleting once.
    before = await read_recorded(task.store, ledger, part.name, garbage)
    rest = without(garbage, before.done["address"].to_pylist())
    if not rest.num_rows:
        return count(before.rows, skipped=1)
    return count(await record(task.store, ledger, part.name, garbage, await take(rest), before))


def _kept_of(states: Mapping[str, LedgerState]) -> dict[str, LedgerState]:
    return {key: state for key, state in states.items() if state is LedgerState.KEPT}


async def remove_files(engine: Engine, keys: Sequence[str]) -> None:
    """Remove small files of the collectors that no run reads again. Files that cannot be removed stay."""

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
    """Return the outcome of each object, from several batches at a time."""
    addresses: list[str] = objects["address"].to_pylist()
    plain = pc.match_substring_regex(objects["address"], _OURS)
    # Most kinds delete only below `data/`. Metadata runs delete files of ranges, metaranges and runs. Runs of a deleted
    # repository delete both. Runs of an old layout delete keys in no slice, outside `_lakefs/` and nested namespaces.
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
    """Return the objects that another server wrote here, each with a reason to keep it, until the adoption is final.

    Return also the time since which that server wrote nothing, by the store's clock. A final adoption cannot be
    revoked, so one read a part is enough.
    """
    keys = [key for key in foreign["address"].to_pylist() if is_elsewhere(key)]
    if not keys or (adoption := await read_adoption(store)) is None:
        return {}, 0
    return ({}, adoption.compared_ms) if adoption.may_delete else (dict.fromkeys(keys, NOT_FINAL), 0)


def _deleting(task: Task, deleter: Deleter, fence: Fence, held: Held) -> Act:
    async def act(batch: list[str]) -> Outcomes:
        # A part takes long. A repository may be made here again meanwhile, and name the rest of the part.
        try:
            await fence.check(task.store)
        except Overtaken as error:
            return Outcomes(errors=dict.fromkeys(batch, str(error)), states={})
        # Check holds last: once the hold's maker has the answer, no later delete begins.
        if refused := await held.refuses(task.store):
            return Outcomes(errors=dict.fromkeys(batch, refused), states={})
        try:
            failures = await deleter.delete(batch)
        except LakebedError as error:
            # Whether some of them went is not known, and it need not be: failed keys are tried again.
            return Outcomes(errors=dict.fromkeys(batch, in_words(error)), states={})
        errors = {failure.key: failure.reason or "no reason given" for failure in failures}
        return Outcomes(errors=errors, states={})

    return act


def _if_unchanged(task: Task, objects: pa.Table, act: Act, rule: Look, *, settled_ms: int = 0) -> Act:
    """Wrap `act`: of the keys in these rows (GARBAGE), pass on only those whose object still equals its row.

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
            return in_words(error)

    async def act_on_rest(batch: list[str]) -> Outcomes:
        asked = [key for key in batch if key in planned]
        states_now = {key: state async for key, state in task.ports.tasks.ahead(asked, look, most=AT_ONCE)}
        states = {key: state for key, state in states_now.items() if isinstance(state, LedgerState)}
        errors = {key: error for key, error in states_now.items() if error is not None and key not in states}
        done = await act([key for key in batch if states_now.get(key) is None])
        return Outcomes(errors=errors | dict(done.errors), states=states | dict(done.states))

    return act_on_rest


async def _changed(
    store: ObjectStore, key: str, size_bytes: int, seen_ms: int, *, or_older: bool
) -> LedgerState | None:
    """Compare a key's object with the planned size and time. Return None if the object is the planned one.

    With `or_older` the planned time is that of the entry, so the object may be older. Return DELETED for a missing
    object: a later write of the key makes a new object. Return KEPT for any other: it is not garbage now.
    """
    try:
        stat = await store.stat(key)
    except ObjectMissing:
        return LedgerState.DELETED
    # Compare seconds: listings give more precise times than requests for one object.
    found_s, seen_s = stat.modified_ms // 1000, seen_ms // 1000
    if stat.size_bytes == size_bytes and (found_s == seen_s or (or_older and found_s < seen_s)):
        return None
    return LedgerState.KEPT


_NAP_S: Final = 0.5


def remaining_ms(since_ms: int, now_ms: int, grace_s: int) -> int:
    """Return the rest of a grace that began at `since_ms`."""
    passed_ms = now_ms - since_ms
    return max(0, grace_s * 1000 - max(passed_ms, 0))


async def let_readers_finish(
    since_ms: int,
    grace_s: int,
    *,
    clock: Clock,
    check: Callable[[], Awaitable[None]],
    progress: Callable[[str], None],
) -> None:
    """Wait until the grace is over ("Readable", an invariant of docs/design/protocols.md).

    Call `check` before the wait and after each nap; an error from `check` ends the wait.
    """
    # The server resolves a path and opens its object in one request. A client with a signed URL may read until the URL
    # expires. So the grace lies between the time when the last read can resolve the objects and the first delete.
    # Files of metadata have a longer grace, which the server keeps. Safety does not depend on the clock: one that jumps
    # ahead shortens the grace, and harms no object that an entry names. One that was set back restarts the grace.
    await check()
    left_s = remaining_ms(since_ms, clock.now_ms(), grace_s) / 1000
    if left_s:
        progress(f"waiting {math.ceil(left_s)} s for readers of what goes")
    # Count naps, not clock time: setting the clock during the wait does not change its length.
    while left_s > 0:
        nap_s = min(_NAP_S, left_s)
        await clock.sleep(nap_s)
        left_s -= nap_s
        await check()
