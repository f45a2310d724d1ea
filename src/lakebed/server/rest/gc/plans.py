"""Plans in the namespace: list them, read one, and compare two. They do not need Spark.

A collector writes the plans. The server checks every file against its manifest, as a collector does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from typing import Final

import pyarrow as pa
from starlette.responses import Response

from lakebed.base import NotFound, RunId, RunKind
from lakebed.gc import messages
from lakebed.objectstore import ObjectMissing, ObjectStore
from lakebed.operations.gc import collectors
from lakebed.server.http.errors import Answer, InvalidParameter
from lakebed.server.http.requests import RestRequest, StreamedResponse, raw_headers
from lakebed.server.http.routing import Resource, serves

from .runs import collected_versions

ROWS_MAX: Final = 2_000_000
"""The limit of both plans' objects in a comparison. More would use the memory of other requests."""
CERTIFICATE_BYTES_MAX: Final = 2 << 20
"""The limit of a certificate that is read whole: some 10,000 objects."""
_TOKEN: Final = re.compile(r"[0-9]{1,9}:[0-9]{1,9}")

PARTS_MAX: Final = 10
"""The most parts that a page reads. It then has a token, even with fewer objects than requested."""


class Plans(Resource):
    async def _objectstore(self, request: RestRequest) -> ObjectStore:
        return (await collected_versions(self._catalog, request)).objectstore

    @serves(collectors.LIST_GC_PLANS)
    async def list(self, request: RestRequest) -> messages.PlanList:
        """List plans, newest first. Costs the names of the run folders, and one small read for each plan shown."""
        versions = await collected_versions(self._catalog, request)
        objectstore = versions.objectstore
        after, limit, kind = request.query("after"), request.amount(), request.choice("kind", ("", *RunKind))
        kinds = (RunKind(kind),) if kind else RunKind
        newest = [run for run in await run_names(objectstore, kinds) if not after or run[0] < after]
        plans: list[messages.Plan] = []
        async for plan in plans_of(objectstore, newest):
            plans.append(plan)
            if len(plans) > limit:
                break
        makers = {run_id: record.by for run_id, record in (await versions.retired.planned()).items()}
        summaries = [_summary(plan, planned_by=makers.get(RunId(plan.run_id), "")) for plan in plans[:limit]]
        return messages.PlanList(plans=tuple(summaries), has_more=len(plans) > limit)

    @serves(collectors.GET_GC_PLAN)
    async def get(self, request: RestRequest) -> messages.Plan:
        return await self._read(await self._objectstore(request), request.args[1])

    @serves(collectors.LIST_GC_PLAN_OBJECTS)
    async def objects(self, request: RestRequest) -> messages.GarbagePage:
        """List the objects that a plan deletes. The token is the next part, and the number of its matching rows that
        were shown. Costs a read of each part in the page.
        """
        objectstore = await self._objectstore(request)
        manifest = (await self._read(objectstore, request.args[1])).garbage
        prefix, limit = request.query("prefix"), request.amount()
        first, shown = _position(request.query("after"), len(manifest.parts))
        found: list[messages.GarbageObject] = []
        for number in range(first, len(manifest.parts)):
            if number == first + PARTS_MAX or len(found) == limit:
                return messages.GarbagePage(objects=tuple(found), continuation_token=f"{number}:0")
            rows = messages.below(await _part(objectstore, manifest, messages.GARBAGE, manifest.parts[number]), prefix)
            skipped = shown if number == first else 0
            more = messages.garbage_rows(rows.slice(skipped, limit - len(found)))
            found += more
            if skipped + len(more) < rows.num_rows:
                token = f"{number}:{skipped + len(more)}"
                return messages.GarbagePage(objects=tuple(found), continuation_token=token)
        return messages.GarbagePage(objects=tuple(found))

    @serves(collectors.GET_GC_CERTIFICATE)
    async def certificate(self, request: RestRequest) -> Response:
        """Send the file of a certificate. It may have up to 64 MiB, so stream a large one."""
        objectstore = await self._objectstore(request)
        run_id = messages.check_run_id(request.args[1])
        try:
            size = (await objectstore.stat(messages.certificate_path(run_id))).size_bytes
            if size <= CERTIFICATE_BYTES_MAX:
                return Response(await objectstore.get(messages.certificate_path(run_id)), media_type="application/json")
            stream = objectstore.stream(messages.certificate_path(run_id))
            first = await anext(stream, b"")
        except ObjectMissing as error:
            raise NotFound(f"run {run_id} has no certificate", run_id=run_id) from error
        headers = {"content-type": "application/json", "content-length": str(size)}
        return StreamedResponse(first, stream, status=200, headers=raw_headers(headers))

    @serves(collectors.DIFF_GC_PLANS)
    async def diff(self, request: RestRequest) -> messages.PlanDiff:
        objectstore = await self._objectstore(request)
        a, b = [await self._read(objectstore, run_id) for run_id in request.args[1:3]]
        if a.garbage.rows + b.garbage.rows > ROWS_MAX:
            raise Answer(400, f"plans of more than {ROWS_MAX:,} objects are not compared here: use `lakebed gc diff`")
        objects = (
            await _table(objectstore, a.garbage, messages.GARBAGE),
            await _table(objectstore, b.garbage, messages.GARBAGE),
        )
        commits = (
            await _table(objectstore, a.expired, messages.EXPIRED),
            await _table(objectstore, b.expired, messages.EXPIRED),
        )
        # Use a thread: millions of rows take seconds, mostly without the interpreter lock, so other requests continue.
        return await asyncio.to_thread(messages.diff_plans, a, b, objects, commits, limit=request.amount())

    async def _read(self, objectstore: ObjectStore, run_id: str) -> messages.Plan:
        messages.check_run_id(run_id)
        for kind in RunKind:
            try:
                return await read_plan(objectstore, kind, run_id)
            except messages.PlanMissing:
                continue
        raise messages.PlanMissing(f"run {run_id} has no finished plan", run_id=run_id)


async def run_names(objectstore: ObjectStore, kinds: Iterable[RunKind] = RunKind) -> list[tuple[str, RunKind]]:
    """Return the runs that have a folder, newest first, each with its kind. Costs a listing of each kind's folder."""
    names: list[tuple[str, RunKind]] = []
    for kind in kinds:
        root = messages.run_folder(kind, RunId("x")).removesuffix("x/")
        names += [(folder[len(root) : -1], kind) for folder in (await objectstore.level(root)).folders]
    return sorted(names, reverse=True)


async def plans_of(objectstore: ObjectStore, runs: Iterable[tuple[str, RunKind]]) -> AsyncIterator[messages.Plan]:
    """Yield the plans of these runs in turn. A run without a plan, such as a stopped run, also costs a read."""
    for run_id, kind in runs:
        try:
            plan = await read_plan(objectstore, kind, messages.check_run_id(run_id))
        except (messages.PlanMissing, messages.InvalidRunId):  # Another program may have made the folder.
            continue
        yield plan


def _summary(plan: messages.Plan, *, planned_by: str) -> messages.PlanSummary:
    return messages.PlanSummary(
        run_id=plan.run_id,
        kind=plan.kind,
        now_ms=plan.now_ms,
        rules_version=plan.rules_version,
        what_if=plan.what_if,
        total=plan.totals.all,
        planned_by=planned_by,
        why="" if plan.erasure is None else plan.erasure.why,
    )


async def read_plan(objectstore: ObjectStore, kind: RunKind, run_id: str) -> messages.Plan:
    try:
        return messages.decode_plan(await objectstore.get(messages.plan_path(kind, run_id)), run_id)
    except ObjectMissing as error:
        raise messages.PlanMissing(f"run {run_id} has no finished plan", run_id=run_id) from error


async def _table(objectstore: ObjectStore, manifest: messages.Manifest | None, table: messages.Table) -> pa.Table:
    """Read all parts of a manifest as one table."""
    if manifest is None:
        return messages.arrow_schema(table).empty_table()
    if messages.check_manifest(manifest, name=table.name) is not table:
        raise messages.BadInput(f"{manifest.folder} is no {table.name}", input=table.name)
    return messages.join_parts(
        manifest, table, [await _part(objectstore, manifest, table, part) for part in manifest.parts]
    )


async def _part(
    objectstore: ObjectStore, manifest: messages.Manifest, table: messages.Table, part: messages.Part
) -> pa.Table:
    """Read and check one part of a manifest."""
    try:
        data = await objectstore.get(manifest.folder + part.name)
    except ObjectMissing as error:
        raise messages.BadInput(f"{manifest.folder}{part.name} is missing", part=part.name) from error
    return await asyncio.to_thread(messages.read_part, manifest, table, part, data)


def _position(token: str, parts: int) -> tuple[int, int]:
    part, _, shown = token.partition(":")
    if not token:
        return 0, 0
    if not _TOKEN.fullmatch(token) or int(part) >= parts:
        raise InvalidParameter('parameter "after" in query has an error: not a continuation token')
    return int(part), int(shown)
