"""Carry out an erasure up to its certificate: first find the remaining steps, then do them.

The command asks a person in between. A job does not: its request was confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lakebed.base import LakebedError, RunKind
from lakebed.gc import messages
from lakebed.gc.mark.holding import HeldBack

from .collector import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureLeft:
    """List the remaining steps of an erasure. The certificate is always written.

    `applying` is None once the plan was applied. `collecting` is None if no collection is wanted, needed or possible.
    `again` is the command that continues after a stop.
    """

    request: messages.EraseRequest
    plan: messages.Plan
    applying: messages.ApplyRequest | None
    collecting: messages.PlanRequest | None
    again: str


def left_of_erasure(
    collector: Collector,
    request: messages.EraseRequest,
    *,
    check: Callable[[messages.Request], None],
    note: Callable[[str], None],
) -> ErasureLeft:
    """Find the remaining steps, and run every check that can refuse one before any object is deleted.

    Raises:
        InvalidRequest: the run is not an erasure.
        PlanMissing, RunNotReady, Denied: see `Collector.check`.
    """
    plan = collector.show(request.run_id)
    if plan.erasure is None:
        raise messages.InvalidRequest(
            f"run {request.run_id} is of kind {plan.kind.value}, and no erasure", run_id=request.run_id
        )
    again = collector.command(request.run_id, plan.kind, everywhere=request.everywhere)
    applying, collecting = None, None
    if collector.finished(request.run_id) is None:
        applying = messages.ApplyRequest(
            run_id=request.run_id, readers_grace=request.readers_grace, engine=request.engine, tasks=request.tasks
        )
        check(applying)
    known = collector.certificate(request.run_id)
    if request.everywhere and (known is None or known.collected is None):
        collecting = messages.PlanRequest(
            kinds=(RunKind.UNCOMMITTED,), mode=messages.Mode.CLEAN, engine=request.engine, tasks=request.tasks
        )
        check(collecting)
        try:
            collector.check_held(collecting.kinds[0])
        except HeldBack as error:
            note(f"what no entry names is not collected: {error}. Once it is released `{again}` goes on")
            collecting = None
    return ErasureLeft(request=request, plan=plan, applying=applying, collecting=collecting, again=again)


def erase(
    collector: Collector, left: ErasureLeft, *, by: str, note: Callable[[str], None]
) -> Iterator[messages.RunReport | messages.Plan | messages.Certificate]:
    """Do the remaining steps. Yield the erasure's report, the collection's plan and report, and last the certificate.

    Report a failed collection through `note`; the certificate lists the objects that remain.

    Raises:
        LakebedError: see `Collector.apply` and `certify`.
    """
    if left.applying is not None:
        yield collector.apply(left.applying)
    if left.collecting is not None:
        yield from _collected(collector, left.collecting, left, note)
    request = left.request
    yield collector.certify(request.run_id, by=by, engine=request.engine, tasks=request.tasks)


def _collected(
    collector: Collector, request: messages.PlanRequest, left: ErasureLeft, note: Callable[[str], None]
) -> Iterator[messages.RunReport | messages.Plan]:
    plans: list[messages.Plan] = []
    try:
        plans += collector.plan(request)
    except LakebedError as error:
        note(f"nothing was collected: {error.first_line}; `{left.again}` goes on")
    try:
        for plan in plans:
            yield plan
            apply = messages.ApplyRequest(
                run_id=plan.run_id,
                readers_grace=left.request.readers_grace,
                engine=request.engine,
                tasks=request.tasks,
            )
            yield collector.apply(apply)
    except LakebedError as error:  # Some objects may be deleted.
        note(f"the collection did not end: {error.first_line}; `{left.again}` goes on")
