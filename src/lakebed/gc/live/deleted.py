"""The live side of a deleted repository's collection. No request finds the repository, so no writer races with it.

    plan      any time: list the objects of all slices with a record, and Lakebed's own files
    expire    after the window: `set_if` kept -> collecting, which is final; then read the names of its objects in
              other repositories. Named objects stay
    sweep     as other kinds
    end       if no object was named and all were deleted: `set_if` collecting -> collected; the upkeep then
              purges the records

Apart from names in other repositories, only legal holds keep objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

from msgspec.structs import replace

from lakebed.base import Conflict, RepositoryUid, RunId, RunKind, RunState
from lakebed.catalog import Catalog
from lakebed.gc import messages
from lakebed.objectstore import store_clock_ms
from lakebed.versions import RunRecord, SliceRecord, Versions

from .errors import RunNotFound, StalePlan, WrongKind
from .explain.searches import Searches
from .explain.why_deleted import DeletedWhy
from .installation.installation import Installation
from .options import ServiceOptions
from .reading.elsewhere import Elsewhere
from .reading.inputs import AddressRows, Inputs, address_of
from .reading.reading import Continuations, Cursor, Reader, fresh_secret
from .records.runs import RunBook, view
from .records.settings import HoldBook
from .service import CollectionService

__all__ = ["DeletedCollections", "open_deleted"]

_KIND: Final = RunKind.DELETED


async def _refused(*_: object, **__: object) -> NoReturn:
    raise Conflict("the repository is deleted: it can be brought back (repo undelete) or collected (gc deleted)")


class DeletedCollections:
    """Collect a deleted repository. Make it with `open_deleted`.

    Steps that do not depend on the deletion are those of `CollectionService`.
    """

    def __init__(
        self,
        catalog: Catalog,
        uid: RepositoryUid,
        versions: Versions,
        options: ServiceOptions | None = None,
        *,
        user_id: str = "",
        is_job: bool = False,
        searches: Searches | None = None,
    ) -> None:
        self._versions = versions
        self._options = options or ServiceOptions()
        self._uid = uid
        self._deleted = catalog.deleted
        self._searches = searches or Searches(versions.ports)
        self._runs = RunBook(versions, self._options)
        self._holds = HoldBook(versions)
        self._installation = Installation(versions)
        self._elsewhere = Elsewhere(versions.objectstore.uri, lambda: catalog.others(uid), self._options)
        self._in_use = in_use = CollectionService(
            versions, self._options, user_id=user_id, is_job=is_job, searches=self._searches
        )
        self._deleted_why = DeletedWhy(self._deleted, uid, versions, in_use.why, self._elsewhere)
        self.namespace, self.planning, self.purging = in_use.namespace, in_use.planning, in_use.purging
        self.note_planned, self.sweep, self.abandon = in_use.note_planned, in_use.sweep, in_use.abandon
        self.undo = in_use.undo
        self.run, self.runs = in_use.run, in_use.runs
        self.rules_in_force, self.holds_in_force = in_use.rules_in_force, in_use.holds_in_force
        self.find_slices, self.find_missing = in_use.find_slices, in_use.find_missing
        self.compare_ledger = in_use.compare_ledger

    async def start(self, body: messages.StartRun) -> messages.StartedRun:
        """Begin a run over every slice that has a record, open or not: no upload into them can be acknowledged now.

        Raises:
            WrongKind: the request is for another kind.
            DeletedNotFound: the repository was brought back, forgotten or collected.
            OtherInstallation: see `PlanSteps.start`.
        """
        if body.kind is not _KIND:
            raise WrongKind(f"a deleted repository has no collection of {body.kind.data}")
        delete_from_ms = await self._deleted.check_collectable(self._uid)
        await self._installation.step()
        slices = [name async for name, _ in self._versions.inventory.every(SliceRecord)]
        run_id = RunId(self._versions.ports.ids.fresh())
        return messages.StartedRun(
            run_id=run_id,
            kind=_KIND,
            state=RunState.PLANNING,
            namespace=self._versions.objectstore.uri,
            folder=messages.run_folder(_KIND, run_id),
            now_ms=self._versions.ports.clock.now_ms(),
            closed_slices=tuple(sorted(slices)),
            delete_from_ms=delete_from_ms,
            uid=self._versions.uid,
        )

    async def adopting(self) -> messages.Adopting:
        """Choose this installation, as after a restored backup, or raise DeletedNotFound.

        Needed here because no name leads to the repository's own route.
        """
        await self._deleted.check_collectable(self._uid)
        return await self._in_use.adopting()

    async def read_uncommitted(
        self,
        run_id: str,
        body: messages.ReadUncommitted,
        *,
        reader: Reader = Reader.COLLECTOR,  # noqa: ARG002 - only our own collectors come here
    ) -> messages.UncommittedPage:
        """Write the names of its objects in other repositories, for a plan. An apply reads them again."""
        id_ = messages.check_run_id(run_id)
        token, elsewhere = await self._searches.elsewhere(self._uid, id_, self._elsewhere, body.continuation_token)
        inputs = Inputs(self._versions.objectstore, _KIND, id_)
        location = inputs.folder(messages.UNCOMMITTED.name)
        if elsewhere is None:
            return messages.UncommittedPage(run_id=id_, location=location, parts=(), continuation_token=token)
        manifest = await self._write_names(inputs, messages.UNCOMMITTED.name, elsewhere.names)
        return messages.UncommittedPage(run_id=id_, location=location, parts=manifest.parts, manifest=manifest)

    async def prepare_commits(
        self,
        run_id: str,
        body: messages.PrepareCommits | None = None,  # noqa: ARG002 - none count
    ) -> messages.PreparedCommits:
        """Write empty tables of commits and refs: only legal holds keep objects of a deleted repository."""
        inputs = Inputs(self._versions.objectstore, _KIND, messages.check_run_id(run_id))
        return messages.PreparedCommits(
            run_id=inputs.run_id,
            commits=await _write_nothing(inputs, messages.COMMITS, messages.COMMITS.name),
            refs=await _write_nothing(inputs, messages.REFS, messages.REFS.name),
            rules=None,
            rules_version=0,
            holds=await self._holds.in_force(),
        )

    async def apply(self, run_id: str, body: messages.Apply) -> messages.RunView:
        """Begin the sweep of a run, as `CollectionService.apply`.

        Raises:
            DeletedNotFound: the repository was brought back, forgotten or collected.
        """
        await self._deleted.check_collectable(self._uid)
        return await self._in_use.apply(run_id, body)

    async def expire(self, run_id: str, body: messages.Expire) -> messages.RecheckInputs:
        """Read a page of the other repositories. The first page makes the repository `collecting`.

        Raises:
            DeletedNotFound: the repository was brought back, forgotten or collected.
            WindowNotOver: the repository can still be brought back, or could at the time of the plan.
            DeleteProtected: legal holds are in force.
            RunMoved: the run sweeps, ended or was abandoned.
            BadContinuation: the token is of another attempt or invalid.
        """
        id_ = messages.check_run_id(run_id)
        if body.kind is not _KIND:
            raise WrongKind(f"run {run_id} is one of a deleted repository", run_id=run_id)
        await self._installation.check()
        page = 0
        if body.continuation_token is None:
            # The window must be over by the server's clock and the store's: a wrong clock only delays deletes.
            store_ms = await store_clock_ms(self._versions.objectstore, messages.CLOCK_KEY)
            await self._deleted.begin_collecting(self._uid, planned_ms=body.planned_ms, store_ms=store_ms)
            record = await self._begin_attempt(id_, body)
        else:
            record, _ = await self._runs.read_as(id_, _KIND, RunState.EXPIRING)
            page = Continuations(id_, record, Reader.COLLECTOR).cursor(body.continuation_token).page
        # After the repository is `collecting`, and before each apply deletes.
        _, elsewhere = await self._searches.elsewhere(self._uid, id_, self._elsewhere, record.attempt)
        if elsewhere is None:
            cursor = Cursor(name=record.attempt, page=page + 1)
            token = Continuations(id_, record, Reader.COLLECTOR).token(cursor)
            return messages.RecheckInputs(run_id=id_, continuation_token=token)
        return await self._recheck(id_, record.attempt, elsewhere.names)

    async def _begin_attempt(self, run_id: RunId, body: messages.Expire) -> RunRecord:
        ports = self._versions.ports
        record = RunRecord(
            kind=_KIND,
            state=RunState.EXPIRING,
            started_ms=ports.clock.now_ms(),
            attempt=ports.ids.fresh(),
            listed=body.commits.digest(),
            planned_ms=body.planned_ms,
            secret=fresh_secret(ports.ids),
        )
        try:
            _, held = await self._runs.read_as(run_id, _KIND, RunState.EXPIRING)
        except RunNotFound:
            await self._runs.write(run_id, record, None)
        else:
            await self._runs.write(run_id, record, held)
        return record

    async def _recheck(self, run_id: RunId, attempt: str, found: Mapping[str, str]) -> messages.RecheckInputs:
        """Write the inputs of the recheck.

        Reads the run's record first and replaces it last, so another attempt in between fails the write.
        """
        record, held = await self._runs.read_as(run_id, _KIND, RunState.EXPIRING)
        if record.attempt != attempt:
            raise StalePlan(f"run {run_id} was published again", run_id=run_id)
        inputs = Inputs(self._versions.objectstore, _KIND, run_id)
        # If another collection searches later, its count replaces this one, and only that run ends the repository.
        await self._deleted.note_named(self._uid, run_id, len(found))
        commits = await _write_nothing(inputs, messages.COMMITS, f"{messages.COMMITS.name}.{attempt}")
        names = await self._write_names(inputs, f"{messages.UNCOMMITTED.name}.{attempt}", found)
        refs = await _write_nothing(inputs, messages.REFS, f"{messages.REFS.name}.{attempt}")
        slices = [name async for name, _ in self._versions.inventory.every(SliceRecord)]
        await self._runs.write(run_id, replace(record, recheck=commits.digest()), held)
        return messages.RecheckInputs(
            run_id=run_id, commits=commits, refs=refs, uncommitted=names, closed_slices=tuple(sorted(slices))
        )

    async def why_page(
        self, question: messages.Question, token: str | None = None, *, files: int = 0
    ) -> messages.WhyPage:
        """Search for about a second, then return the answer or a continuation token. See `DeletedWhy.steps`."""
        why = self._deleted_why
        return await self._searches.page_of_deleted(self._versions, question, token, why=why, files=files)

    async def end(self, run_id: str, body: messages.End) -> messages.RunView:
        """End the run, and mark the repository `collected` unless other repositories name its objects.

        Raises:
            StalePlan: the run sweeps by another plan.
        """
        id_ = messages.check_run_id(run_id)
        record, _ = await self._runs.read_as(id_, _KIND, RunState.SWEEPING, RunState.ENDED)
        if record.plan != body.plan:
            raise StalePlan(f"run {run_id} sweeps by another plan", run_id=run_id)
        # Before the run ends: the collector does not repeat `end` for a run that has ended.
        await self._deleted.end_collecting(self._uid, id_)
        return view(id_, await self._runs.move(id_, RunState.ENDED))

    async def _write_names(self, inputs: Inputs, name: str, names: Mapping[str, str]) -> messages.Manifest:
        writer = messages.PartWriter(messages.UNCOMMITTED)
        rows = AddressRows(writer, group_rows=self._options.group_rows)
        for text in sorted(names):
            address = address_of(text, namespace=self._versions.objectstore.uri, created_ms=0)
            rows.add(address, source="repository", branch=names[text])
            await rows.settle(self._versions.ports.tasks)
        rows.flush()
        count = writer.rows
        parts = [await inputs.write_part(name, 0, writer.close(), rows=count)] if count else []
        return await inputs.complete(messages.UNCOMMITTED, name, parts)

    # Collections of other kinds read and restore into branches, which are suspended here.
    mark = retire = defer = purge = find_tables = find_staged = unstage = restore = mark_missing = adopt_slices = (
        _refused
    )
    sign_certificate = check_certificate = certificate_key = _refused


async def open_deleted(
    catalog: Catalog,
    name: str,
    uid: str,
    options: ServiceOptions | None = None,
    *,
    user_id: str = "",
    is_job: bool = False,
    searches: Searches | None = None,
) -> DeletedCollections:
    """Open the collections of the deleted repository of this name and uid.

    Raises:
        DeletedNotFound, Conflict: see `DeletedRepositories.find`.
    """
    repository, versions = await catalog.open_deleted(name, uid)
    return DeletedCollections(catalog, repository, versions, options, user_id=user_id, is_job=is_job, searches=searches)


async def _write_nothing(inputs: Inputs, table: messages.Table, name: str) -> messages.Manifest:
    return await inputs.write_table(table, name, messages.arrow_schema(table).empty_table())
