"""Plans as they lie in the namespace: which there are, what one says, and what differs between two. None needs Spark.

A collector writes them there. The server checks every file against its manifest, as a collector does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from typing import Final

import pyarrow as pa
from starlette.responses import Response

from lakebed.base import NotFound, RunId
from lakebed.gc.messages import (
    EXPIRED,
    GARBAGE,
    BadInput,
    GarbageObject,
    GarbagePage,
    InvalidRunId,
    Manifest,
    Part,
    Plan,
    PlanDiff,
    PlanList,
    PlanMissing,
    PlanSummary,
    RunKind,
    Table,
    arrow_schema,
    below,
    certificate_path,
    check_manifest,
    check_run_id,
    decode_plan,
    diff_plans,
    garbage_rows,
    join_parts,
    plan_path,
    read_part,
    run_folder,
)
from lakebed.objectstore import ObjectMissing, ObjectStore
from lakebed.operations import collectors
from lakebed.server.http.errors import Answer, InvalidParameter
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.responses import StreamedResponse, raw_headers
from lakebed.server.http.routing import Route
from lakebed.server.state import AppState

from .runs import collected_versions

ROWS_MAX: Final = 2_000_000
"""Compare plans of at most this many objects together. More would take the memory that requests need."""
CERTIFICATE_BYTES_MAX: Final = 2 << 20
"""Read a certificate of at most this many bytes at once: some 10,000 objects."""
_TOKEN: Final = re.compile(r"[0-9]{1,9}:[0-9]{1,9}")

PARTS_MAX: Final = 10
"""A page looks into at most this many parts. It has a token then, even with fewer objects than were asked for."""


class CertificateMissing(NotFound):
    """The run is no erasure, or it was not certified."""


class Plans:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog

    async def _objectstore(self, request: RestRequest) -> ObjectStore:
        return (await collected_versions(self._catalog, request)).objectstore

    async def list(self, request: RestRequest) -> PlanList:
        """Newest first. Costs the names of the run folders, and one small read for each plan shown."""
        versions = await collected_versions(self._catalog, request)
        objectstore = versions.objectstore
        after, limit, kind = request.query("after"), request.amount(), request.query("kind")
        kinds = (RunKind(kind),) if kind else RunKind
        newest = [run for run in await run_names(objectstore, kinds) if not after or run[0] < after]
        plans: list[Plan] = []
        async for plan in plans_of(objectstore, newest):
            plans.append(plan)
            if len(plans) > limit:
                break
        makers = {run_id: record.by for run_id, record in (await versions.retired.planned()).items()}
        summaries = [_summary(plan, planned_by=makers.get(RunId(plan.run_id), "")) for plan in plans[:limit]]
        return PlanList(plans=tuple(summaries), has_more=len(plans) > limit)

    async def get(self, request: RestRequest) -> Plan:
        return await self._read(await self._objectstore(request), request.args[1])

    async def objects(self, request: RestRequest) -> GarbagePage:
        """List the objects that a plan deletes. The token is the part to go on with, and how many of its matching rows
        were shown. Costs a read of each part looked into."""
        objectstore = await self._objectstore(request)
        manifest = (await self._read(objectstore, request.args[1])).garbage
        prefix, limit = request.query("prefix"), request.amount()
        first, shown = _position(request.query("after"), len(manifest.parts))
        found: list[GarbageObject] = []
        for number in range(first, len(manifest.parts)):
            if number == first + PARTS_MAX or len(found) == limit:
                return GarbagePage(objects=tuple(found), continuation_token=f"{number}:0")
            rows = below(await _part(objectstore, manifest, GARBAGE, manifest.parts[number]), prefix)
            skipped = shown if number == first else 0
            more = garbage_rows(rows.slice(skipped, limit - len(found)))
            found += more
            if skipped + len(more) < rows.num_rows:
                token = f"{number}:{skipped + len(more)}"
                return GarbagePage(objects=tuple(found), continuation_token=token)
        return GarbagePage(objects=tuple(found))

    async def certificate(self, request: RestRequest) -> Response:
        """Send the file of a certificate. It may have 64 MiB: then it streams."""
        objectstore = await self._objectstore(request)
        run_id = check_run_id(request.args[1])
        try:
            size = (await objectstore.stat(certificate_path(run_id))).size_bytes
            if size <= CERTIFICATE_BYTES_MAX:
                return Response(await objectstore.get(certificate_path(run_id)), media_type="application/json")
            stream = objectstore.stream(certificate_path(run_id))
            first = await anext(stream, b"")
        except ObjectMissing as error:
            raise CertificateMissing(f"run {run_id} has no certificate", run_id=run_id) from error
        headers = {"content-type": "application/json", "content-length": str(size)}
        return StreamedResponse(first, stream, status=200, headers=raw_headers(headers))

    async def diff(self, request: RestRequest) -> PlanDiff:
        objectstore = await self._objectstore(request)
        a, b = [await self._read(objectstore, run_id) for run_id in request.args[1:3]]
        if a.garbage.rows + b.garbage.rows > ROWS_MAX:
            raise Answer(400, f"plans of more than {ROWS_MAX:,} objects are not compared here: use `lakebed gc diff`")
        objects = await _table(objectstore, a.garbage, GARBAGE), await _table(objectstore, b.garbage, GARBAGE)
        commits = await _table(objectstore, a.expired, EXPIRED), await _table(objectstore, b.expired, EXPIRED)
        # Seconds of work for millions of rows, most of it outside the interpreter: other requests go on meanwhile.
        return await asyncio.to_thread(diff_plans, a, b, objects, commits, limit=request.amount())

    async def _read(self, objectstore: ObjectStore, run_id: str) -> Plan:
        check_run_id(run_id)
        for kind in RunKind:
            try:
                return await read_plan(objectstore, kind, run_id)
            except PlanMissing:
                continue
        raise PlanMissing(f"run {run_id} has no finished plan", run_id=run_id)


async def run_names(objectstore: ObjectStore, kinds: Iterable[RunKind] = RunKind) -> list[tuple[str, RunKind]]:
    """Return the runs that have a folder, newest first, each with its kind. Costs a level of each kind's folder."""
    names: list[tuple[str, RunKind]] = []
    for kind in kinds:
        root = run_folder(kind, RunId("x")).removesuffix("x/")
        names += [(folder[len(root) : -1], kind) for folder in (await objectstore.level(root)).folders]
    return sorted(names, reverse=True)


async def plans_of(objectstore: ObjectStore, runs: Iterable[tuple[str, RunKind]]) -> AsyncIterator[Plan]:
    """Read the plans of these runs in turn. A run without one, such as a run that was stopped, costs a read, too."""
    for run_id, kind in runs:
        try:
            plan = await read_plan(objectstore, kind, check_run_id(run_id))
        except (PlanMissing, InvalidRunId):  # The folder may be another program's.
            continue
        yield plan


def routes(state: AppState) -> list[Route]:
    here = Plans(state)
    return [
        Route(collectors.LIST_GC_PLANS, here.list),
        Route(collectors.GET_GC_PLAN, here.get),
        Route(collectors.LIST_GC_PLAN_OBJECTS, here.objects),
        Route(collectors.DIFF_GC_PLANS, here.diff),
        Route(collectors.GET_GC_CERTIFICATE, here.certificate),
    ]


def _summary(plan: Plan, *, planned_by: str) -> PlanSummary:
    return PlanSummary(
        run_id=plan.run_id,
        kind=plan.kind,
        now_ms=plan.now_ms,
        rules_version=plan.rules_version,
        what_if=plan.what_if,
        total=plan.totals.all,
        planned_by=planned_by,
        why="" if plan.erasure is None else plan.erasure.why,
    )


async def read_plan(objectstore: ObjectStore, kind: RunKind, run_id: str) -> Plan:
    try:
        return decode_plan(await objectstore.get(plan_path(kind, run_id)), run_id)
    except ObjectMissing as error:
        raise PlanMissing(f"run {run_id} has no finished plan", run_id=run_id) from error


async def _table(objectstore: ObjectStore, manifest: Manifest | None, table: Table) -> pa.Table:
    """
    Raises:
        BadInput: something of it is missing, short or changed.
    """
    if manifest is None:
        return arrow_schema(table).empty_table()
    if check_manifest(manifest, name=table.name) is not table:
        raise BadInput(f"{manifest.folder} is no {table.name}", input=table.name)
    return join_parts(manifest, table, [await _part(objectstore, manifest, table, part) for part in manifest.parts])


async def _part(objectstore: ObjectStore, manifest: Manifest, table: Table, part: Part) -> pa.Table:
    """
    Raises:
        BadInput: it is missing, short or changed.
    """
    try:
        data = await objectstore.get(manifest.folder + part.name)
    except ObjectMissing as error:
        raise BadInput(f"{manifest.folder}{part.name} is missing", part=part.name) from error
    return await asyncio.to_thread(read_part, manifest, table, part, data)


def _position(token: str, parts: int) -> tuple[int, int]:
    part, _, shown = token.partition(":")
    if not token:
        return 0, 0
    if not _TOKEN.fullmatch(token) or int(part) >= parts:
        raise InvalidParameter('parameter "after" in query has an error: not a continuation token')
    return int(part), int(shown)
