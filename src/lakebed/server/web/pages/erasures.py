"""Erasures: show the objects that a plan deletes and keeps, carry it out after confirmation, show its certificate."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed.base import Corrupt, NotFound, RunKind, RunState
from lakebed.gc import messages
from lakebed.gc.rules import Selection
from lakebed.operations import API_ROOT
from lakebed.operations.gc import collectors, holds
from lakebed.server.http.errors import Answer
from lakebed.server.http.requests import StreamedResponse
from lakebed.server.web.visit import Visit, page_at

from .collections import RUNS, ledger_of, may_apply, objects_of, state_of, ways_of

ROOT: Final = "/repositories/{repository}/erasures"
KIND: Final = next(kind for kind in RunKind if kind.spec.by_order)
ROWS: Final = 50
"""Show at most this many objects of a certificate at a time, and as many kept objects."""


@page_at(ROOT)
async def show_all(visit: Visit, name: str) -> Response:
    plans = await visit.call(collectors.LIST_GC_PLANS, name, kind=KIND.value, after=visit.query("after"), amount=RUNS)
    runs = await visit.call(collectors.LIST_GC_RUNS, name)
    jobs = _jobs((await visit.call(collectors.LIST_GC_JOBS, name)).jobs)
    return visit.render(
        "erasures",
        name=name,
        plans=plans,
        states={run.run_id: run for run in runs.runs},
        jobs=jobs,
        is_running=_is_running(jobs),
    )


@show_all.form()
async def plan(visit: Visit, name: str) -> Response:
    """Start a job that plans an erasure. It deletes nothing."""
    paths = _lines(visit.entry("paths"))
    pairs = [line.partition("=") for line in _lines(visit.entry("metadata"))]
    if wrong := next((key for key, sign, _ in pairs if not (key and sign)), None):
        raise Answer(400, f"{wrong!r} is not KEY=VALUE")
    request = messages.PlanErasureRequest(
        # Read patterns as the command does: a star makes a glob, a slash at the end a folder.
        selection=Selection(
            paths=tuple(path for path in paths if not _is_glob(path)),
            globs=tuple(path for path in paths if _is_glob(path)),
            digests=_lines(visit.entry("digests")),
            metadata={key: value for key, _, value in pairs},
        ),
        why=visit.entry("why").strip(),
        takes_shared=visit.entry("shared") == "1",
        finds_copies=visit.entry("copies") == "1",
    )
    job = await visit.call(collectors.START_GC_JOB, name, body=messages.StartJob(request=request))
    return visit.go("repositories", name, "erasures", notice=f"Job {job.id} plans the erasure. It deletes nothing.")


@page_at(ROOT + "/{run}")
async def show_one(visit: Visit, name: str, run_id: str) -> Response:
    plan = await visit.call(collectors.GET_GC_PLAN, name, run_id)
    if plan.erasure is None:
        raise Answer(404, f"Run {run_id} is not an erasure. It takes {plan.kind.data}.")
    state = await state_of(visit, name, run_id)
    jobs = _jobs((await visit.call(collectors.LIST_GC_JOBS, name)).jobs, run_id)
    in_force = await visit.look(holds.GET_LEGAL_HOLDS, name)
    objects = await objects_of(visit, name, run_id)
    return visit.render(
        "erasure",
        name=name,
        plan=plan,
        order=plan.erasure,
        outlook=plan.outlook,
        selected=_selected(plan.erasure.selection),
        state=state,
        jobs=jobs,
        is_running=_is_running(jobs),
        holds=() if in_force is None else in_force.holds,
        objects=objects,
        ledger=await ledger_of(visit, name, state),
        ways=ways_of(plan),
        may_apply=may_apply(state),
        is_applied=state is not None and state.state in {RunState.SWEEPING, RunState.ENDED},
        rows=ROWS,
    )


@show_one.form()
async def erase(visit: Visit, name: str, run_id: str) -> Response:
    """Start a job that carries an erasure out and certifies it, after the user typed the number of its objects."""
    plan = await visit.call(collectors.GET_GC_PLAN, name, run_id)
    visit.check_typed(str(plan.totals.all.objects))
    request = messages.EraseRequest(run_id=run_id, everywhere=visit.entry("everywhere") == "1")
    job = await visit.call(collectors.START_GC_JOB, name, body=messages.StartJob(request=request))
    notice = f"Job {job.id} erases, and then certifies."
    return visit.go("repositories", name, "erasures", run_id, notice=notice)


@page_at(ROOT + "/{run}/certificate")
async def show_certificate(visit: Visit, name: str, run_id: str) -> Response:
    file = await visit.respond(collectors.GET_GC_CERTIFICATE, name, run_id)
    download = visit.url(*API_ROOT[1:].split("/"), "repositories", name, "gc", "runs", run_id, "certificate")
    if isinstance(file, StreamedResponse):
        await file.close()
        return visit.render("certificate", name=name, run_id=run_id, certificate=None, download=download)
    certificate = messages.decode_certificate(bytes(file.body))
    start = int(after) if (after := visit.query("after")).isdecimal() and len(after) < 9 else 0
    key = await visit.look(collectors.GET_GC_CERTIFICATE_KEY, name)
    return visit.render(
        "certificate",
        name=name,
        run_id=run_id,
        certificate=certificate,
        download=download,
        doubt=await _doubt(visit, certificate) if key is not None else None,
        key=key,
        selected=_selected(certificate.selection),
        absent=sum(each.is_absent for each in certificate.objects),
        objects=certificate.objects[start : start + ROWS],
        next_start=start + ROWS if start + ROWS < len(certificate.objects) else None,
        rows=ROWS,
    )


async def _doubt(visit: Visit, certificate: messages.Certificate) -> str:
    """Return why the server does not confirm this certificate, or an empty text if it does."""
    head: messages.CertificateHead = messages.head_of(certificate)
    try:
        await visit.call(collectors.CHECK_GC_CERTIFICATE, *visit.args, body=head)
    except (Corrupt, NotFound) as error:
        return str(error)
    return ""


def _jobs(jobs: tuple[messages.JobView, ...], run_id: str = "") -> list[messages.JobView]:
    """Return the jobs of erasures, or those of this run."""
    kinds = (messages.EraseRequest,) if run_id else (messages.EraseRequest, messages.PlanErasureRequest)
    return [
        job
        for job in jobs
        if isinstance(job.request, kinds)
        and (not run_id or (isinstance(job.request, messages.EraseRequest) and job.request.run_id == run_id))
    ]


def _is_running(jobs: list[messages.JobView]) -> bool:
    return any(job.state is messages.JobState.RUNNING for job in jobs)


def _selected(selection: Selection) -> list[tuple[str, tuple[str, ...]]]:
    """Return each kind of selection with its values."""
    ways = (
        ("Paths", selection.paths),
        ("Globs and folders", selection.globs),
        ("Checksums", selection.digests),
        ("Metadata", tuple(f"{key}={value}" for key, value in selection.metadata.items())),
    )
    return [(title, values) for title, values in ways if values]


def _is_glob(path: str) -> bool:
    return "*" in path or path.endswith("/")


def _lines(text: str) -> tuple[str, ...]:
    # Do not strip lines: a path may begin or end with a space.
    return tuple(line for line in text.split("\n") if line.strip())
