"""Moving aside instead of deleting: how long a run's objects stay, and when they may be purged.

The end of the window is written down before the first object moves, and a run that began to move objects aside goes on
so, whoever applies it. Clocks only ever delay: the window counts from the later of two, this machine's and the object
store's, and is over when both say so. So a clock that has jumped ahead purges nothing alone, and one that shows a time
before the move purges nothing at all.

A purge takes no fence: nightly ones would stop every apply that is under way. It is ordered with them by what they
write: the record first, then objects, then their rows in the ledger. It reads the other way round (`purge_part`), so an
apply that makes the window longer is seen wherever it has moved anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakebed.gc.protocol import (
    QUARANTINED_PREFIX,
    BadInput,
    Manifest,
    Quarantine,
    RunState,
    decode_quarantine,
    encode_quarantine,
    quarantine_path,
    quarantined_run,
    window_end_ms,
)

from .context import RunContext
from .files import find, read_all, sizes, store_clock_ms
from .recording import Swept
from .sweep import purge, remove_files


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a purge did. `purged` are the runs whose window is over, `waiting` those whose window is not."""

    purged: tuple[str, ...]
    waiting: tuple[str, ...]
    objects_purged: int
    bytes_purged: int
    objects_failed: int
    errors: tuple[str, ...] = ()


async def begin_quarantine(
    context: RunContext,
    run_id: str,
    *,
    ledger_date: str,
    window: str | None,
    is_asked: bool,
    doomed: Manifest,
) -> tuple[Quarantine, Quarantine] | None:
    """The run's quarantine as it is written down, and as it is for what moves from now on, its window counted from now;
    None where nobody asked for one, now or before. `doomed` is the table that is swept.

    They differ where nobody asks for a window now (`is_asked`) and every part was moved before, so that only what
    failed is tried again: that has rows with a window of its own, and what moved before keeps its own. Else an object
    that never goes would keep the others for ever, tried every night.

    Raises:
        BadInput: the record of an earlier apply is unreadable.
    """
    data = await find(context.store, quarantine_path(run_id))
    before = None if data is None else decode_quarantine(data, run_id)
    wanted = window or (before.window if before else None)
    if wanted is None:
        return None
    now_ms = max(context.ports.clock.now_ms(), await store_clock_ms(context.store))
    until_ms = window_end_ms(wanted, now_ms)
    moving = Quarantine(
        run_id=run_id,
        ledger_date=before.ledger_date if before else ledger_date,
        since_ms=before.since_ms if before else now_ms,
        until_ms=max(until_ms, before.until_ms) if before else until_ms,
        window=wanted,
        doomed=doomed,
    )
    written = moving
    if before is not None and not is_asked and await _is_all_recorded(context, before, doomed):
        written = msgspec.structs.replace(moving, until_ms=before.until_ms)
    await context.store.put(quarantine_path(run_id), encode_quarantine(written))
    return written, moving


async def _is_all_recorded(context: RunContext, before: Quarantine, doomed: Manifest) -> bool:
    """Whether every part of this table has its rows, from when this quarantine was written down."""
    recorded = {f"part-{name}" for name in await sizes(context.store, before.ledger_prefix)}
    return before.doomed == doomed and recorded.issuperset(part.name for part in doomed.parts)


async def purge_quarantines(context: RunContext) -> PurgeReport:
    """Delete for good what lies in quarantine past its window, with ledger rows of its own. May be started again after
    any crash; what could not be deleted is tried again by the next one.

    Raises:
        Denied: the caller may not purge. Nothing was written or deleted.
        BadInput: a record, or a run's ledger, is unreadable: nothing of that run was purged.
    """
    namespace = await context.service.purging()
    if namespace.rstrip("/") != context.store.uri.rstrip("/"):
        raise BadInput(f"the server says to purge in {namespace}, and this is {context.store.uri}", input="namespace")
    there = await list_quarantines(context)
    due, now_ms = await _due(context, there, context.ports.clock.now_ms())
    swept, waiting = Swept(), [quarantine.run_id for quarantine in there if quarantine not in due]
    for quarantine in due:
        context.progress(f"purging what run {quarantine.run_id} moved aside")
        of_run = await _purge_run(context, quarantine, now_ms)
        swept = swept.plus(of_run)
        if of_run.objects_quarantined:
            context.progress(
                f"the window of run {quarantine.run_id} was made longer: {of_run.objects_quarantined} stay"
            )
            waiting.append(quarantine.run_id)
    return PurgeReport(
        purged=tuple(quarantine.run_id for quarantine in due if quarantine.run_id not in waiting),
        waiting=tuple(sorted(waiting)),
        objects_purged=swept.objects_deleted,
        bytes_purged=swept.bytes_deleted,
        objects_failed=swept.objects_failed,
        errors=swept.errors,
    )


async def list_quarantines(context: RunContext) -> list[Quarantine]:
    """One for each run that has, or may have, objects in quarantine; by run."""
    runs = [
        run_id
        for name in await sizes(context.store, QUARANTINED_PREFIX)
        if (run_id := quarantined_run(name)) is not None
    ]
    data = await read_all(context.store, context.ports.tasks, [quarantine_path(run_id) for run_id in runs])
    return [decode_quarantine(record, run_id) for run_id, record in zip(runs, data, strict=True)]


async def _due(context: RunContext, there: Sequence[Quarantine], now_ms: int) -> tuple[list[Quarantine], int]:
    """Those whose window is over, and the instant that counts: by the clock that shows less."""
    for quarantine in there:
        if now_ms < quarantine.since_ms:
            context.progress(
                f"this clock shows a time before run {quarantine.run_id} moved anything aside: all of it stays"
            )
    due = [quarantine for quarantine in there if quarantine.until_ms <= now_ms]
    if not due:
        return [], now_ms
    store_ms = await store_clock_ms(context.store)
    for quarantine in due:
        if store_ms < quarantine.until_ms:
            context.progress(
                f"by the object store's clock the window of run {quarantine.run_id} is not over: all of it stays"
            )
    return [quarantine for quarantine in due if quarantine.until_ms <= store_ms], min(now_ms, store_ms)


async def _purge_run(context: RunContext, quarantine: Quarantine, now_ms: int) -> Swept:
    # Asked before the parts are listed: of a run that has ended then no part is missing.
    view = await context.service.run(quarantine.run_id)
    parts = [f"part-{name}" for name in await sizes(context.store, quarantine.ledger_prefix)]
    if quarantine.doomed is not None and (view is None or view.state is not RunState.ENDED):
        # What an apply that was killed moved of these has no rows yet.
        parts += sorted({part.name for part in quarantine.doomed.parts}.difference(parts))
    swept = await purge(context.engine, quarantine, parts, now_ms=now_ms)
    is_all = not swept.objects_failed and not swept.objects_quarantined
    # Until the run has ended somebody may go on with it, and must find that its objects are moved and not deleted.
    if is_all and view is not None and view.state is RunState.ENDED:
        await remove_files(context.engine, [quarantine_path(quarantine.run_id)])
    elif is_all and view is None:
        # A newer backup may know it again, and whoever then went on would delete where he was to move aside.
        context.progress(
            f"this server does not know run {quarantine.run_id} (a restored backup?): nothing of it is left in"
            f" quarantine, and its record stays ({quarantine_path(quarantine.run_id)})"
        )
    return swept
