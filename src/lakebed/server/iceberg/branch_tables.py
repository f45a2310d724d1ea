"""Iceberg tables for people: what a ref has, how a table came to be, how two refs differ, and a way back."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from lakebed import iceberg, wire
from lakebed.base import NotFound
from lakebed.catalog import Repository
from lakebed.catalog.tables import RECORD, MissingFile, NoSuchTable, Table, TableName
from lakebed.iceberg import Shown
from lakebed.operations import tables as operations
from lakebed.server.http.errors import InvalidBody, InvalidParameter
from lakebed.server.http.gate import ask, check_source
from lakebed.server.http.requests import RestRequest, page_of
from lakebed.server.http.routing import Resource, in_repository, serves
from lakebed.versions import Commit, CommitNotFound, ContentsGone, Note

from .changing import Changing, in_thread, load_library

FILES_MAX: Final = 200_000
"""More files that only one side has are not counted: a second of work."""
VERSIONS_MAX: Final = 100
"""Versions of a page: each reads two metadata files."""
READS_AT_ONCE: Final = 4
"""Metadata files that are read together: each may have 10 MiB."""


class NoSuchSnapshot(NotFound):
    """The table has no such snapshot. Facts: `table`, `snapshot`."""


class BranchTables(Resource):
    @in_repository(operations.LIST_ALL_TABLES)
    async def list(self, request: RestRequest, repository: Repository) -> wire.TableEntryList:
        after = request.query("after")
        namespace = tuple(request.query("namespace").split("/")) if request.query("namespace") else ()
        behind = _name(after) if after else None
        if behind is not None and behind.namespace[: len(namespace)] != namespace:
            raise InvalidParameter(f'parameter "after" in query is {after!a}: no table of this namespace')
        found, has_more = await repository.tables.below(
            request.args[1], namespace, after=behind, limit=request.amount()
        )
        results = [
            wire.TableEntry(
                table=_path(one.name),
                uuid=one.uuid,
                metadata_location=repository.tables.uri_of(one.metadata),
                modified=one.entry.modified_ms // 1000,
            )
            for one in found
        ]
        return wire.TableEntryList(
            pagination=page_of(results, has_more=has_more, last=results[-1].table if results else ""), results=results
        )

    @in_repository(operations.STAT_TABLE)
    async def stat(self, request: RestRequest, repository: Repository) -> wire.TableDetails:
        ref = request.args[1]
        table = await repository.tables.load(ref, _asked(request))
        shown = await self._shown(repository, table)
        key = table.name.folder + RECORD.encode()
        size = await repository.versions.staging.measure(table.commit_id, prefix=table.name.folder)
        last, _ = await repository.versions.history.last_commits(table.commit_id, objects=[key], prefixes=[])
        return wire.TableDetails(
            table=_path(table.name),
            uuid=table.uuid,
            location=shown.location,
            metadata_location=repository.tables.uri_of(table.metadata),
            format_version=shown.format_version,
            modified=table.entry.modified_ms // 1000,
            fields=shown.fields(),
            partitions=shown.partitions(),
            sort_order=shown.sort_order(),
            properties=shown.properties,
            snapshots=len(shown.snapshots),
            refs=shown.shown_refs(),
            # The record names the same object as the metadata file, which is an entry of its own.
            stored_files=size.objects - 1,
            stored_bytes=size.size_bytes - table.entry.size_bytes,
            snapshot=None if shown.current is None else shown.current.shown(),
            data=shown.data(),
            commit=None if key not in last else _committed(last[key]),
        )

    @in_repository(operations.LIST_TABLE_VERSIONS)
    async def versions(self, request: RestRequest, repository: Repository) -> wire.TableVersionList:
        """List commits of the first-parent history: a merge brings all snapshots of its source at once."""
        name = _asked(request)
        commits, position = await repository.versions.history.log(
            request.args[1],
            after=request.query("after"),
            limit=min(request.amount(), VERSIONS_MAX),
            first_parent=True,
            objects=[name.folder + RECORD.encode()],
        )
        results: list[wire.TableVersion] = []
        for start in range(0, len(commits), READS_AT_ONCE):
            some = commits[start : start + READS_AT_ONCE]
            results += await asyncio.gather(*(self._version(repository, name, one) for one in some))
        if not commits and not request.query("after"):
            await repository.tables.load(request.args[1], name)
        return wire.TableVersionList(
            pagination=page_of(results, has_more=bool(position), last=position), results=results
        )

    @in_repository(operations.DIFF_TABLE)
    async def diff(self, request: RestRequest, repository: Repository) -> wire.TableDifference:
        name = _asked(request)
        tables = [await repository.tables.find(ref, name) for ref in request.args[1:3]]
        if tables == [None, None]:
            raise NoSuchTable(f"there is no table {name} at either ref", table=str(name))
        left, right = [iceberg.NO_TABLE if one is None else await self._shown(repository, one) for one in tables]
        names = ["" if one is None else repository.tables.uri_of(one.metadata) for one in tables]
        counts = await self._counts(repository, left, right)
        return wire.TableDifference(
            table=_path(name),
            left_metadata=names[0],
            right_metadata=names[1],
            fields=iceberg.changed_fields(left.fields(), right.fields()),
            partitions_before=left.partitions(),
            partitions_after=right.partitions(),
            sort_order_before=left.sort_order(),
            sort_order_after=right.sort_order(),
            properties_set={key: text for key, text in right.properties.items() if left.properties.get(key) != text},
            properties_removed=sorted(left.properties.keys() - right.properties.keys()),
            snapshots_added=iceberg.snapshots_only_in(right, left),
            snapshots_removed=iceberg.snapshots_only_in(left, right),
            left_snapshot=left.current_id,
            right_snapshot=right.current_id,
            **counts,
        )

    @serves(operations.ROLL_BACK_TABLE)
    async def roll_back(self, request: RestRequest, body: wire.TableRollback) -> wire.TableRolledBack:
        if bool(body.snapshot_id) == bool(body.ref):
            raise InvalidBody("name one of snapshot_id and ref")
        repository, name = await self._catalog.get(request.args[0]), _asked(request)
        if body.ref:
            names = {"repository": repository.id, "ref": body.ref, "table": _path(name)}
            await ask((operations.AS_ENTRY,), request.permissions, names)
            await check_source(request.permissions, repository, body.ref)
        await load_library()
        changing = self._changing(repository)
        # An expression such as main~1 names another commit once the table is rolled back.
        ref, to = body.ref, body.ref or f"snapshot {body.snapshot_id}"
        if ref and await repository.versions.refs.kind_of(ref) is None:
            ref = await repository.versions.refs.resolve_commit(ref)
            to = ref[:12]
        note = Note(message=body.message or f"{name}: roll back to {to}", committer=request.identity.user_id)
        if body.ref:
            return await self._to_ref(repository, changing, request.args[1], name, ref, note)
        table = await repository.tables.load(request.args[1], name)
        shown = await self._shown(repository, table)
        if body.snapshot_id not in {str(one.snapshot_id) for one in shown.snapshots}:
            raise NoSuchSnapshot(
                f"table {name} has no snapshot {body.snapshot_id} here. A ref that has it brings it back",
                table=str(name),
                snapshot=body.snapshot_id,
            )
        current = None if shown.current is None else shown.current.snapshot_id
        asked = iceberg.snapshot_set(table.uuid, current, int(body.snapshot_id))
        [changed] = await changing.commit(request.args[1], {name: asked}, lambda _: note)
        if changed.commit is None:
            raise InvalidBody(f"table {name} is at snapshot {body.snapshot_id}")
        return _rolled_back(changed.commit, changed.metadata.uri, body.snapshot_id)

    async def _to_ref(
        self, repository: Repository, changing: Changing, branch: str, name: TableName, ref: str, note: Note
    ) -> wire.TableRolledBack:
        source = await repository.tables.load(ref, name)
        shown = await self._shown(repository, source)
        now = await repository.tables.find(branch, name)
        if now is not None and now.metadata == source.metadata:
            raise InvalidBody(f"table {name} is as it is at {ref}")
        uri, _, commit = await changing.register(branch, name, source.metadata, overwrite=True, note=note)
        return _rolled_back(commit, uri, shown.current_id)

    async def _version(self, repository: Repository, name: TableName, commit: Commit) -> wire.TableVersion:
        shown, table = await self._shown_at(repository, commit.id, name)
        version = wire.TableVersion(
            commit=_committed(commit),
            metadata_location="" if table is None else repository.tables.uri_of(table.metadata),
            is_dropped=table is None,
            is_gone=table is not None and shown is None,
        )
        if shown is None:
            return version
        before = None
        if commit.parents:
            before, older = await self._shown_at(repository, commit.parents[0], name)
            if before is None and older is not None:
                before = shown  # It cannot be read, so what this commit brought is not known.
        return replace(
            version,
            snapshot_id=shown.current_id,
            added=iceberg.snapshots_only_in(shown, before or iceberg.NO_TABLE),
            removed=[one.id for one in iceberg.snapshots_only_in(before or iceberg.NO_TABLE, shown)],
            fields_changed=before is not None and before.fields() != shown.fields(),
        )

    async def _shown_at(
        self, repository: Repository, commit: str, name: TableName
    ) -> tuple[Shown | None, Table | None]:
        """Return a table's metadata at a commit, None where a run deleted the file; and the table, None without one."""
        try:
            table = await repository.tables.find(commit, name)
        except (CommitNotFound, ContentsGone):
            return None, None
        try:
            return (None if table is None else await self._shown(repository, table)), table
        except (NotFound, MissingFile):  # Upkeep forgets a file that a run deleted.
            return None, table

    async def _shown(self, repository: Repository, table: Table) -> Shown:
        data = await self._changing(repository).metadata_file(table.metadata)
        uri = repository.tables.uri_of(table.metadata)
        return await in_thread(len(data) // 8, lambda: iceberg.shown(data, uri))

    def _changing(self, repository: Repository) -> Changing:
        return Changing(repository, self._state)

    async def _counts(self, repository: Repository, left: Shown, right: Shown) -> dict[str, wire.TableCount]:
        """Count the files, rows and bytes that only one of two snapshots has; nothing where they are too many."""
        await load_library()
        read = self._changing(repository).read
        one, other = [(side.manifest_list, side.location) for side in (left, right)]
        apart = await iceberg.files_apart(one, other, read, files_max=FILES_MAX)
        if apart is None:
            return {}
        removed, added = apart
        return {
            "added": _count(added, is_data=True),
            "removed": _count(removed, is_data=True),
            "deletes_added": _count(added, is_data=False),
            "deletes_removed": _count(removed, is_data=False),
        }


def _count(files: iceberg.Counted, *, is_data: bool) -> wire.TableCount:
    found = [(rows or 0, size or 0) for rows, size, content in files.values() if (not content) is is_data]
    return wire.TableCount(files=len(found), rows=sum(one[0] for one in found), size_bytes=sum(one[1] for one in found))


def _asked(request: RestRequest) -> TableName:
    return _name(request.required("table"))


def _name(path: str) -> TableName:
    *namespace, name = path.split("/")
    return TableName(tuple(namespace), name)


def _path(name: TableName) -> str:
    return "/".join((*name.namespace, name.name))


def _committed(commit: Commit) -> wire.TableCommitted:
    return wire.TableCommitted(
        id=commit.id, committer=commit.committer, creation_date=commit.created_ms // 1000, message=commit.message
    )


def _rolled_back(commit: Commit, uri: str, snapshot: str) -> wire.TableRolledBack:
    return wire.TableRolledBack(commit=_committed(commit), metadata_location=uri, snapshot_id=snapshot)
