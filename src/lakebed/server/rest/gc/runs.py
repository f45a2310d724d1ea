"""The live side of garbage collection.

Two sets of routes over `lakebed.gc.live`: the contract's ("prepare"), and our own for our collectors
(`lakebed.gc.messages.calls`), which also have manifests, states and expiring commits. Neither deletes objects here.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

from starlette.responses import Response

from lakebed import wire
from lakebed.base import RunId
from lakebed.catalog import Catalog, Repository, TaskKind
from lakebed.gc import messages
from lakebed.gc.live import BadContinuation, CollectionService, DeletedCollections, Reader, Searches, open_deleted
from lakebed.gc.messages import BadInput, Manifest, RunKind, check_manifest, input_folder
from lakebed.operations import Operation
from lakebed.operations.gc import collections, collectors
from lakebed.quotas import mark_stale, of_repository
from lakebed.server.http.errors import InvalidBody
from lakebed.server.http.gate import require
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, in_repository, serves
from lakebed.server.iceberg import Reading
from lakebed.server.rest.dumps import update_time
from lakebed.server.state import AppState
from lakebed.versions import Options, Versions

logger = logging.getLogger(__name__)

ONLY: Final = "only"
"""Replaces the uid of a deleted repository: selects it by name when the name is unique."""

A = TypeVar("A")
B = TypeVar("B")
Live: TypeAlias = CollectionService | DeletedCollections


def deleted_uid(request: RestRequest) -> str | None:
    """Return the uid of the requested deleted repository: empty for ONLY, None for a repository in use."""
    # Only operations for collections of a deleted repository have the parameter. The others need one in use.
    if "deleted" not in request.parameters or not (deleted := request.query("deleted")):
        return None
    return "" if deleted == ONLY else deleted


async def collected_versions(catalog: Catalog, request: RestRequest) -> Versions:
    """Return the versions of the requested repository, in use or deleted."""
    if (uid := deleted_uid(request)) is not None:
        return (await catalog.open_deleted(request.args[0], uid))[1]
    return (await catalog.get(request.args[0])).versions


class Contract(Resource):
    """The contract's own operations for collectors. The operations that it calls "prepare" only read data."""

    @serves(collections.GET_GARBAGE_COLLECTION_CONFIG)
    async def config(self, _: RestRequest) -> wire.GarbageCollectionConfig:
        """Return how long an address that was issued for an upload may be linked. No object is kept for its age
        here.
        """
        return wire.GarbageCollectionConfig(grace_period=Options().upload_ttl_ms // 1000)

    @in_repository(collections.PREPARE_GARBAGE_COLLECTION_COMMITS)
    async def prepare_commits(self, _: RestRequest, repository: Repository) -> wire.GarbageCollectionPrepareResponse:
        return wire.GarbageCollectionPrepareResponse(**await _prepare(repository))

    @in_repository(collections.PREPARE_GARBAGE_COLLECTION_COMMITS_ASYNC)
    async def submit_commits(self, _: RestRequest, repository: Repository) -> wire.TaskInfo:
        begun = await repository.tasks.begin(TaskKind.PREPARE_COMMITS)
        self._state.background.start(
            repository.tasks,
            begun,
            lambda _: repository.tasks.run(begun, _prepare(repository)),
            f"preparation {begun.id}",
        )
        return wire.TaskInfo(id=begun.id)

    @in_repository(collections.PREPARE_GARBAGE_COLLECTION_COMMITS_STATUS)
    async def commits_status(
        self, request: RestRequest, repository: Repository
    ) -> wire.PrepareGarbageCollectionCommitsStatus:
        task = await repository.tasks.get(TaskKind.PREPARE_COMMITS, request.required("id"))
        return wire.PrepareGarbageCollectionCommitsStatus(
            task_id=task.id,
            completed=task.is_done,
            update_time=update_time(task),
            result=wire.GarbageCollectionPrepareResponse(**task.result) if task.result else None,
            error=wire.Error(message=task.error) if task.error else None,
        )

    @in_repository(collections.PREPARE_GARBAGE_COLLECTION_UNCOMMITTED)
    async def prepare_uncommitted(
        self, _: RestRequest, repository: Repository, body: wire.PrepareGCUncommittedRequest
    ) -> wire.PrepareGCUncommittedResponse:
        service = CollectionService(repository.versions)
        if body.continuation_token:
            run_id, token = body.continuation_token.partition(":")[::2]
            if not token:
                raise BadContinuation("not a continuation token")
        else:
            run_id, token = (await service.start(messages.StartRun(kind=RunKind.UNCOMMITTED))).run_id, None
        following = messages.ReadUncommitted(continuation_token=token)
        # Accept only tokens of this route: this caller may not abandon a run that a collector began.
        page = await service.read_uncommitted(run_id, following, reader=Reader.CONTRACT)
        if page.continuation_token is None:
            # The contract has no later call, and while a run marks nothing is cleaned up. So end the run here. It has
            # read all records that the cleaner may remove: copies are read last.
            await service.abandon(page.run_id)
        return wire.PrepareGCUncommittedResponse(
            run_id=page.run_id,
            gc_uncommitted_location=repository.full_address(page.location),
            continuation_token=f"{page.run_id}:{page.continuation_token}" if page.continuation_token else "",
        )


def ask(
    operation: Operation[None, A], call: Callable[[Live], Callable[[], Awaitable[A]]]
) -> Callable[[Runs, RestRequest], Awaitable[A | Response]]:
    """Serve an operation by a question to the live side."""

    async def handle(runs: Runs, request: RestRequest) -> A:
        return await call(await runs.service(request))()

    return serves(operation)(handle)


def ask_of_run(
    operation: Operation[None, A], call: Callable[[Live], Callable[[str], Awaitable[A]]]
) -> Callable[[Runs, RestRequest], Awaitable[A | Response]]:
    async def handle(runs: Runs, request: RestRequest) -> A:
        return await call(await runs.service(request))(request.args[1])

    return serves(operation)(handle)


def step(
    operation: Operation[B, A], call: Callable[[Live], Callable[[str, B], Awaitable[A]]]
) -> Callable[[Runs, RestRequest, B], Awaitable[A | Response]]:
    async def handle(runs: Runs, request: RestRequest, body: B) -> A:
        _check_manifests(body)
        return await call(await runs.service(request))(request.args[1], body)

    return serves(operation)(handle)


class Runs(Resource):
    """Our own routes: each takes a record, calls the service once, and returns a record."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._searches = Searches(state.ports)
        self._key, self._certificate_key = state.continuation_key, state.certificate_key

    async def service(self, request: RestRequest) -> Live:
        user_id, is_job = request.identity.user_id, request.identity.delegation is not None
        if (uid := deleted_uid(request)) is not None:
            return await open_deleted(
                self._catalog, request.args[0], uid, user_id=user_id, is_job=is_job, searches=self._searches
            )
        repository = await self._catalog.get(request.args[0])
        return CollectionService(
            repository.versions,
            user_id=user_id,
            is_job=is_job,
            searches=self._searches,
            continuation_key=self._key,
            certificate_key=self._certificate_key,
            table_reader=Reading(repository, self._state),
        )

    run = ask_of_run(collectors.GET_GC_RUN, lambda live: live.run)
    read_uncommitted = step(collectors.READ_GC_UNCOMMITTED, lambda live: live.read_uncommitted)
    prepare_commits = step(collectors.READ_GC_COMMITS, lambda live: live.prepare_commits)
    mark = step(collectors.MARK_GC_RUN, lambda live: live.mark)
    find_tables = step(collectors.FIND_BROKEN_TABLES, lambda live: live.find_tables)
    planning = ask(collectors.CHECK_GC_PLANNING, lambda live: live.planning)
    purging = ask(collectors.CHECK_GC_PURGING, lambda live: live.purging)
    find_slices = ask(collectors.FIND_GC_SLICES, lambda live: live.find_slices)
    apply = step(collectors.APPLY_GC_RUN, lambda live: live.apply)
    find_staged = step(collectors.FIND_GC_STAGED, lambda live: live.find_staged)
    unstage = step(collectors.UNSTAGE_GC_ENTRIES, lambda live: live.unstage)
    sign_certificate = step(collectors.SIGN_GC_CERTIFICATE, lambda live: live.sign_certificate)
    check_certificate = step(collectors.CHECK_GC_CERTIFICATE, lambda live: live.check_certificate)
    certificate_key = ask(collectors.GET_GC_CERTIFICATE_KEY, lambda live: live.certificate_key)
    retire = step(collectors.RETIRE_GC_IDS, lambda live: live.retire)
    sweep = step(collectors.SWEEP_GC_RUN, lambda live: live.sweep)
    defer = step(collectors.DEFER_GC_RUN, lambda live: live.defer)
    purge = step(collectors.PURGE_GC_RUN, lambda live: live.purge)
    undo = step(collectors.UNDO_GC_RUN, lambda live: live.undo)
    abandon = ask_of_run(collectors.ABANDON_GC_RUN, lambda live: live.abandon)

    @serves(collectors.EXPIRE_GC_COMMITS)
    async def expire(self, request: RestRequest, body: messages.Expire) -> messages.RecheckInputs:
        """Check the permissions of erasures and deleted repositories here: this call publishes their expiry."""
        self._require_own(collectors.EXPIRE_GC_COMMITS, request, body.kind)
        _check_manifests(body)
        return await (await self.service(request)).expire(request.args[1], body)

    @serves(collectors.NOTE_GC_PLAN)
    async def note_planned(self, request: RestRequest, body: messages.NotePlanned) -> messages.PlannedBy:
        """Check the permission of the kind: an apply of an erasure trusts the recorded order of a plan."""
        self._require_own(collectors.NOTE_GC_PLAN, request, body.kind)
        return await (await self.service(request)).note_planned(request.args[1], body)

    @staticmethod
    def _require_own(operation: Operation[Any, Any], request: RestRequest, kind: RunKind) -> None:
        asked = [one for one in operation.asked_later if one.action == kind.spec.permission]
        require(asked, request.permissions, {"repository": request.args[0]})

    @serves(collectors.LIST_GC_RUNS)
    async def list(self, request: RestRequest) -> messages.RunList:
        return await (await self.service(request)).runs(forgotten=request.flag("forgotten"))

    @serves(collectors.START_GC_RUN)
    async def start(self, request: RestRequest, body: messages.StartRun) -> messages.StartedRun:
        if body.kind.takes_named and deleted_uid(request) is None:
            # Such runs keep what is staged, and files of tables stay staged until upkeep commits them.
            await (await self._catalog.get(request.args[0])).tables.settle()
        return await (await self.service(request)).start(body)

    @serves(collectors.END_GC_RUN)
    async def end(self, request: RestRequest, body: messages.End) -> messages.RunView:
        ended = await (await self.service(request)).end(request.args[1], body)
        if deleted_uid(request) is None:
            # Its objects are gone: upkeep counts again what the repository's quota has as used.
            uid = (await self._catalog.get(request.args[0])).versions.uid
            await mark_stale(self._catalog.store, of_repository(uid))
        return ended

    @serves(collectors.WHY_GC_OBJECT)
    async def why(self, request: RestRequest) -> messages.WhyPage:
        service = await self.service(request)
        question = messages.Question(**{name: request.query(name) for name in messages.Question._fields})
        files = request.integer("files", 0)
        return await service.why_page(question, request.query("continuation_token") or None, files=files)

    @serves(collectors.COMPARE_GC_LEDGER)
    async def compare_ledger(self, request: RestRequest) -> messages.DisagreementPage:
        service = await self.service(request)
        return await service.compare_ledger(request.query("run_id"), request.query("continuation_token") or None)

    @serves(collectors.CHOOSE_GC_INSTALLATION)
    async def adopting(self, request: RestRequest) -> messages.Adopting:
        adopted = await (await self.service(request)).adopting()
        logger.warning("gc: %s chose this installation for repository %s", adopted.adopted_by, request.args[0])
        return adopted

    @serves(collectors.ADOPT_GC_SLICES)
    async def adopt_slices(self, request: RestRequest) -> messages.AdoptedSlices:
        adopted = await (await self.service(request)).adopt_slices()
        if adopted.slices:
            logger.warning("gc: %d slices of %s are on record now", len(adopted.slices), request.args[0])
        return adopted

    @serves(collectors.MARK_GC_MISSING)
    async def mark_missing(self, request: RestRequest) -> messages.MissingCommits:
        token = request.query("continuation_token") or None
        page = await (await self.service(request)).mark_missing(token)
        if page.run_id and (token is None or "-" not in token):
            logger.warning("gc: run %s marked %d commits of %s as gone", page.run_id, page.marked, request.args[0])
        return page

    @serves(collectors.FIND_GC_MISSING)
    async def find_missing(self, request: RestRequest) -> messages.MissingCommits:
        return await (await self.service(request)).find_missing(request.query("continuation_token") or None)


async def _prepare(repository: Repository) -> dict[str, str]:
    """Return the fields of a GarbageCollectionPrepareResponse."""
    service = CollectionService(repository.versions)
    started = await service.start(messages.StartRun(kind=RunKind.COMMITTED))
    prepared = await service.prepare_commits(started.run_id)
    garbage = input_folder(started.kind, RunId(started.run_id), "garbage")
    return {
        "run_id": prepared.run_id,
        "gc_commits_location": repository.full_address(prepared.commits.folder),
        "gc_addresses_location": repository.full_address(garbage),
    }


def _check_manifests(body: object) -> None:
    """Check the caller's manifests for their form, so that errors in them are not reported as damaged files."""
    for name in getattr(body, "__struct_fields__", ()):
        manifest = getattr(body, name)
        if isinstance(manifest, Manifest):
            try:
                check_manifest(manifest, name=name)
            except BadInput as error:
                raise InvalidBody(str(error)) from error
