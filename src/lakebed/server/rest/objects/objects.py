"""Objects without their bytes: stat, list, delete, copy, stage, user metadata. The bytes are in content.py."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from lakebed import wire
from lakebed.base import CONTENT_TYPE_DEFAULT, Entry, from_row
from lakebed.catalog import ProtectedBranch, ReadOnly, Repository
from lakebed.operations import objects
from lakebed.server.http.errors import status_and_message
from lakebed.server.http.fields import write_condition
from lakebed.server.http.gate import readable, refuse_denied, unreadable
from lakebed.server.http.requests import RestRequest, page_of
from lakebed.server.http.routing import Resource, in_repository, serves
from lakebed.server.rest.commits import commit_record
from lakebed.server.rest.stats import stats_of_entry, stats_of_page
from lakebed.versions import SOUGHT_IN_MAX

LAST_COMMITS_MAX: Final = 100


class Objects(Resource):
    @in_repository(objects.CREATE_SYMLINK_FILE)
    async def symlinks(self, request: RestRequest, repository: Repository) -> wire.StorageUri:
        names = {"repository": request.args[0], "branch": request.args[1]}

        def check(path: str) -> None:
            refuse_denied(objects.CREATE_SYMLINK_FILE.asked_later, request.permissions, {**names, "path": path})

        folder = await repository.symlinks.create(request.args[1], request.query("location"), check=check)
        return wire.StorageUri(location=repository.full_address(folder))

    # Reading

    @serves(objects.STAT_OBJECT)
    async def stat(self, request: RestRequest) -> wire.ObjectStats:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        entry = await repository.objects.get(request.args[1], path)
        taken = await repository.versions.taken.shown_at(entry.address)
        stats = stats_of_entry(
            repository, path, entry, is_with_metadata=request.flag("user_metadata", default=True), taken=taken
        )
        if request.flag("presign") and taken is None:
            stats = await self._presigned(repository, stats, entry)
        return stats

    @in_repository(objects.LIST_OBJECTS)
    async def list(self, request: RestRequest, repository: Repository) -> wire.ObjectStatsList:
        listing = await repository.versions.staging.list(
            request.args[1],
            prefix=request.query("prefix").encode(),
            after=request.query("after").encode(),
            delimiter=request.query("delimiter").encode(),
            limit=request.amount(),
        )
        taken = await repository.versions.taken.shown([row for _, row in listing.items if row is not None])
        results = stats_of_page(
            repository,
            listing.items,
            taken=taken,
            now_s=self._state.ports.clock.now_ms() // 1000,
            is_with_metadata=request.flag("user_metadata", default=True),
        )
        objects_of_page = (key for key, row in listing.items if row is not None)
        hidden = await unreadable(request.permissions, request.args[0], request.args[1], objects_of_page)
        if hidden:
            for index, (key, _) in enumerate(listing.items):
                if key in hidden:
                    results[index] = replace(results[index], checksum="", physical_address="", metadata={})
        if request.flag("presign") and self._state.presign_s is not None:
            # A signed URL allows reading the object, which the permission to list does not include.
            may_read = await readable(request.permissions, request.args[0], request.args[1])
            for index, (key, row) in enumerate(listing.items):
                if row is not None and results[index].expired is None and may_read(key.decode()):
                    results[index] = await self._presigned(repository, results[index], from_row(row))
        pagination = page_of(results, has_more=listing.has_more, last=results[-1].path if results else "")
        return wire.ObjectStatsList(pagination=pagination, results=results)

    @in_repository(objects.LAST_COMMITS)
    async def last_commits(self, request: RestRequest, repository: Repository) -> wire.PathCommitList:
        versions = repository.versions
        listing = await versions.staging.list(
            request.args[1],
            prefix=request.query("prefix").encode(),
            after=request.query("after").encode(),
            delimiter=request.query("delimiter").encode(),
            limit=min(request.amount(), LAST_COMMITS_MAX),
        )
        paths = [key for key, row in listing.items if row is not None]
        head = (await versions.refs.resolve(request.args[1])).commit_id
        commits, is_complete = await versions.history.last_commits(
            head,
            objects=paths,
            prefixes=[key for key, row in listing.items if row is None],
            looked_at_max=request.integer("commits", SOUGHT_IN_MAX),
        )
        committed = dict(zip(paths, await versions.staging.rows_of_commit(head, paths), strict=True))
        results = [
            wire.PathCommit(
                path=key.decode(),
                path_type="common_prefix" if row is None else "object",
                commit=commit_record(commits[key]) if key in commits else None,
                uncommitted=row is not None and row != committed[key],
            )
            for key, row in listing.items
        ]
        pagination = page_of(results, has_more=listing.has_more, last=results[-1].path if results else "")
        return wire.PathCommitList(pagination=pagination, results=results, is_complete=is_complete)

    @in_repository(objects.MEASURE_OBJECTS)
    async def measure(self, request: RestRequest, repository: Repository) -> wire.SizeBelow:
        size = await repository.versions.staging.measure(
            request.args[1], prefix=request.query("prefix").encode(), after=request.query("after").encode()
        )
        return wire.SizeBelow(
            objects=size.objects,
            size_bytes=size.size_bytes,
            has_more=size.after is not None,
            next_offset=(size.after or b"").decode(),
        )

    @in_repository(objects.GET_UNDERLYING_PROPERTIES)
    async def underlying_properties(
        self, request: RestRequest, repository: Repository
    ) -> wire.UnderlyingObjectProperties:
        await repository.objects.get(request.args[1], request.required("path"))
        return wire.UnderlyingObjectProperties()

    @in_repository(objects.UPLOAD_OBJECT_PREFLIGHT)
    async def may_upload(self, request: RestRequest, repository: Repository) -> None:
        request.required("path")
        await repository.guards.check_branch_writable(request.args[1])
        await repository.versions.refs.get_branch(request.args[1])

    # Changing

    @serves(objects.DELETE_OBJECT)
    async def delete(self, request: RestRequest) -> None:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        if_match = write_condition(request.header).if_match
        await repository.objects.delete(request.args[1], path, if_match=if_match, force=request.flag("force"))

    @in_repository(objects.DELETE_OBJECTS)
    async def delete_many(
        self, request: RestRequest, repository: Repository, body: wire.PathList
    ) -> wire.ObjectErrorList:
        try:
            failed = await repository.objects.delete_many(request.args[1], body.paths, force=request.flag("force"))
        except (ProtectedBranch, ReadOnly) as refused:
            request.refusal = str(refused)  # The answer is 200: only the audit log shows the refusal.
            failed = [(path, refused) for path in body.paths]
        errors = []
        for path, error in failed:
            status, message = status_and_message(error)
            errors.append(wire.ObjectError(path=path, status_code=status, message=message))
        return wire.ObjectErrorList(errors=errors)

    @serves(objects.COPY_OBJECT)
    async def copy(self, request: RestRequest, body: wire.ObjectCopyCreation) -> wire.ObjectStats:
        path = request.required("dest_path")
        repository = await self._catalog.get(request.args[0])
        branch = request.args[1]
        entry = await repository.objects.copy(
            body.src_ref or branch,
            body.src_path,
            branch,
            path,
            shallow=bool(body.shallow),
            force=bool(body.force),
            condition=write_condition(request.header),
            by=request.identity.user_id,
        )
        return stats_of_entry(repository, path, entry)

    @serves(objects.MOVE_OBJECT)
    async def move(self, request: RestRequest, body: wire.ObjectMove) -> wire.ObjectStats:
        path = request.required("dest_path")
        repository = await self._catalog.get(request.args[0])
        branch = request.args[1]
        entry = await repository.objects.move(
            body.src_branch or branch,
            body.src_path,
            branch,
            path,
            force=body.force,
            if_none_match=body.if_absent or write_condition(request.header).if_none_match,
        )
        return stats_of_entry(repository, path, entry)

    @serves(objects.STAGE_OBJECT)
    async def stage(self, request: RestRequest, body: wire.ObjectStageCreation) -> wire.ObjectStats:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        entry = Entry(
            address=body.physical_address,
            size_bytes=body.size_bytes,
            checksum=body.checksum.strip('"'),
            modified_ms=self._state.ports.clock.now_ms() if body.mtime is None else body.mtime * 1000,
            content_type=body.content_type or CONTENT_TYPE_DEFAULT,
            metadata=body.metadata or {},
        )
        staged = await repository.objects.stage(
            request.args[1], path, entry, force=bool(body.force), by=request.identity.user_id
        )
        return stats_of_entry(repository, path, staged)

    @serves(objects.UPDATE_OBJECT_USER_METADATA)
    async def set_metadata(self, request: RestRequest, body: wire.UpdateObjectUserMetadata) -> None:
        path = request.required("path")
        repository = await self._catalog.get(request.args[0])
        if_match = write_condition(request.header).if_match
        by = request.identity.user_id
        await repository.objects.set_metadata(request.args[1], path, body.set, if_match=if_match, by=by)

    async def _presigned(self, repository: Repository, stats: wire.ObjectStats, entry: Entry) -> wire.ObjectStats:
        """Replace the address by a signed URL, if the store signs URLs."""
        if self._state.presign_s is None:
            return stats
        url = await repository.objects.presign_get(stats.path, entry, expires_s=self._state.presign_s)
        if url is None:
            return stats
        expires_s = self._state.ports.clock.now_ms() // 1000 + self._state.presign_s
        return replace(stats, physical_address=url, physical_address_expiry=expires_s)
