"""Namespaces, tables and files of one repository, for the doors.

A ref is read at its commit: what is staged on a branch is not seen. Namespaces are folders. One without tables has an
entry that names a small object of the hidden branch, as a table's entries do.
"""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import Final, cast

import msgspec

from lakebed.base import (
    EMPTY_METARANGE,
    TABLE_RECORD,
    TABLES,
    CommitId,
    Denied,
    Entry,
    Ports,
    Row,
    RunId,
    RunState,
    again,
    each_item,
    from_row,
    key_to_path,
    path_to_key,
    to_row,
)
from lakebed.catalog.objects.objects import Objects
from lakebed.catalog.refs.changes import Changes
from lakebed.catalog.settings import Settings
from lakebed.versions import (
    BranchExists,
    Commit,
    CommitOvertaken,
    MergeConflict,
    NameTaken,
    NoChanges,
    Note,
    PathNotFound,
    RefKind,
    Settle,
    Settlement,
    Sides,
    Versions,
    name_in,
)

from . import names
from .commits import PAGE, Compose, Paths, TableChange, TableCommits, folders

_SCHEMES: Final = ("s3", "s3a", "s3n")
_PROPERTIES: Final = "namespaces"
"""The folder of `tables` for the properties of namespaces. No table's uuid is equal to it."""
SETTLED: Final = Note(message="tables: files", committer="lakebed")
ATTEMPTS_MAX: Final = 4
"""Attempts at a change that others overtake."""
MERGED_MAX: Final = 100
"""A merge appends to at most this many tables: it writes two files for each before it commits."""
_ENDED: Final = "ended-runs"
"""Metadata of commits of the hidden branch: a digest of the runs whose objects it does not name any more."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a commit. `metadata` is the file of its current metadata, and `entry` names the same object."""

    name: names.TableName
    uuid: str
    metadata: str
    commit_id: CommitId
    entry: Entry


class Tables:
    def __init__(
        self,
        repository_id: str,
        versions: Versions,
        settings: Settings,
        objects: Objects,
        changes: Changes,
        ports: Ports,
    ) -> None:
        self._id = repository_id
        self._versions = versions
        self._settings = settings
        self._objects = objects
        self._changes = changes
        self._ports = ports
        self._commits = TableCommits(versions)
        self._is_started = False

    # The hidden branch

    async def start(self) -> None:
        """Make the hidden branch, at a commit without entries. Any number may do so at once.

        Raises:
            TablesNameTaken: a branch or tag of a user has its name.
            ReadOnly: the repository is read-only.
        """
        if self._is_started:
            return
        if not await self.is_started():
            now_ms = self._ports.clock.now_ms()
            empty = Commit(
                parents=(),
                metarange_id=EMPTY_METARANGE,
                generation=1,
                message=SETTLED.message,
                committer=SETTLED.committer,
                created_ms=now_ms,
                written_ms=now_ms,
                nonce=self._ports.ids.fresh(),
            )
            await self._changes.record_commit(empty.id, empty)
            if await self._versions.refs.kind_of(TABLES) is None:
                with suppress(BranchExists, NameTaken):
                    await self._versions.refs.create_branch(TABLES, empty.id, work_of=TABLES)
            if not await self.is_started():
                what = f"a branch or tag has the name {TABLES}, which tables need: rename it, then use the catalog"
                raise names.TablesNameTaken(what, branch=TABLES)
        if not await self._settings.is_hidden(TABLES):  # A crash may have come between.
            await self._settings.hide_branch(TABLES, work_of=TABLES)
        self._is_started = True

    async def is_started(self) -> bool:
        return await self._versions.refs.is_work_of(TABLES, TABLES)

    async def settle(self) -> int:
        """Commit what is staged in `tables`, and remove entries whose objects a run deleted. Return how many went.

        Such an entry only makes the branch larger. So this may stop anywhere. All entries are read once after runs
        ended: the head says which runs those were.
        """
        if not await self.is_started():
            return 0
        head = (await self._versions.refs.get_branch(TABLES)).commit_id
        known = (await self._versions.history.get_commit(head)).metadata.get(_ENDED, "")
        note = replace(SETTLED, metadata={_ENDED: known})
        with suppress(NoChanges):
            # Another settler may take some of what is staged: then only the rest is left.
            await again(lambda: self._versions.commits.commit(TABLES, note), CommitOvertaken, most=ATTEMPTS_MAX)
        ended = await self._ended()
        if ended == known:
            return 0
        gone = await self._gone()
        settled = replace(SETTLED, metadata={_ENDED: ended})

        async def without(head: CommitId, _: Mapping[str, Row]) -> Paths:
            # Another server may have removed it, and a client written it anew since: that is another row.
            rows = await self._versions.staging.rows_of_commit(head, [*gone])
            return {key: None for (key, taken), row in zip(gone.items(), rows, strict=True) if row == taken}

        if gone:
            with suppress(NoChanges):  # Another server removed them all.
                await self._commits.name_files(TABLES, (), without, settled)
        else:
            await self._versions.commits.commit(TABLES, settled, allow_empty=True)
        return len(gone)

    async def _ended(self) -> str:
        """Return a digest of the runs that ended and take named objects; "" without one."""
        runs = await self._versions.retired.runs()
        ended = sorted(run for run, one in runs if one.kind.takes_named and one.state is RunState.ENDED)
        return hashlib.sha256(" ".join(ended).encode()).hexdigest()[:16] if ended else ""

    async def _gone(self) -> dict[bytes, Row]:
        """Return the entries of the hidden branch whose objects runs deleted."""
        gone: dict[bytes, Row] = {}
        head = (await self._versions.refs.get_branch(TABLES)).commit_id
        after, has_more = b"", True
        while has_more:
            rows, has_more = await self._commits.under(head, b"", after=after, limit=PAGE)
            taken = await self._versions.taken.find_rows([row for _, row in rows])
            over = await self._over({by.run for by in taken if by is not None})
            gone.update(one for one, by in zip(rows, taken, strict=True) if by and by.run in over)
            after = rows[-1][0] if rows else after
        return gone

    async def _over(self, runs: Set[str]) -> set[str]:
        """Return which of these runs ended. One that waits for its window may be undone, and its files come back."""
        records = dict(await self._versions.retired.runs()) if runs else {}
        states = {run: records[RunId(run)].state for run in runs if run in records}
        return {run for run in runs - {""} if states.get(run, RunState.ENDED) is RunState.ENDED}

    # Files

    def uri_of(self, file: str) -> str:
        """Return the URI of a file, or, of an id, the location of its table."""
        return f"s3://{self._id}.{TABLES}/{file}"

    def file_of(self, uri: str) -> str:
        """Return the file that a URI names.

        Raises:
            OutsideTables: it is of another bucket, or of no file.
        """
        scheme, _, rest = uri.partition("://")
        bucket, _, file = rest.partition("/")
        if scheme not in _SCHEMES or bucket != f"{self._id}.{TABLES}" or not file:
            raise names.OutsideTables(
                f"{uri} is no file of a table of this repository: they lie in {self.uri_of('')}", uri=uri
            )
        return file

    async def put(
        self, file: str, body: bytes, *, content_type: str = "application/json", branch: str = "", by: str = ""
    ) -> Entry:
        """Write a file of a table. The same bytes may come twice.

        The quotas of the branch whose table it is, and of the user, are charged.

        Raises:
            PathExists: the file has other bytes.
            QuotaExceeded: nothing was written.
        """
        return await self._objects.upload(
            TABLES,
            file,
            body,
            size_bytes=len(body),
            content_type=content_type,
            force=True,
            by=by,
            # A caller may have written `main@`, which no commit takes, but the file is stored by then.
            quota_branch=name_in(branch),
        )

    async def read(self, file: str, *, start: int = 0, end: int | None = None) -> bytes:
        """
        Raises:
            MissingFile: there is no such file.
            PathExpired: a run took it.
        """
        try:
            entry = await self._objects.open(TABLES, file)
        except PathNotFound as error:
            raise names.MissingFile(f"there is no file {file}", file=file) from error
        return await self._objects.read(entry, start=start, end=end)

    async def sizes(self, files: Sequence[str]) -> list[int | None]:
        """Return the sizes of files; None where there is none."""
        found = await self._versions.staging.get_many(TABLES, [path_to_key(file) for file in files])
        return [None if entry is None else entry.size_bytes for entry in found]

    # Reading

    async def namespaces(
        self, ref: str, parent: names.Namespace = (), *, after: str = "", limit: int = 1000
    ) -> tuple[list[names.Namespace], bool]:
        """Return the namespaces directly in this one, in order, and whether there are more.

        Raises:
            NoSuchNamespace: the parent is not there.
        """
        found, has_more = await self._inside(ref, parent, after, limit, names.NAMESPACE)
        return [(*parent, name) for name in found], has_more

    async def namespace(self, ref: str, namespace: names.Namespace) -> Mapping[str, str]:
        """Return the properties of a namespace.

        Raises:
            NoSuchNamespace: the ref has none.
        """
        head = await self._versions.refs.resolve_commit(ref)
        return await self._properties(await self._commits.check_namespace(head, namespace))

    async def _properties(self, row: Row) -> Mapping[str, str]:
        return msgspec.json.decode(await self._objects.read(from_row(row)), type=dict[str, str])

    async def list(
        self, ref: str, namespace: names.Namespace, *, after: str = "", limit: int = 1000
    ) -> tuple[list[names.TableName], bool]:
        """Return the tables of a namespace, in order, and whether there are more.

        Raises:
            NoSuchNamespace: the ref has none.
        """
        found, has_more = await self._inside(ref, namespace, after and after + names.SUFFIX, limit, names.RECORD)
        return [names.TableName(namespace, name.removesuffix(names.SUFFIX)) for name in found], has_more

    async def _inside(
        self, ref: str, parent: names.Namespace, after: str, limit: int, record: str
    ) -> tuple[builtins.list[str], bool]:
        """Return the names of folders directly in a namespace: those with the record of a table, or of a namespace."""
        head = await self._versions.refs.resolve_commit(ref)
        if parent or record == names.RECORD:
            await self._commits.check_namespace(head, parent)
        prefix, found = names.folder_of(parent), builtins.list[str]()
        async for page in folders(self._versions, head, prefix, after=after and after + "/"):
            inside = [name for name in page if name.endswith(names.SUFFIX) is (record == names.RECORD)]
            keys = [prefix + f"{name}/{record}".encode() for name in inside]
            rows = await self._versions.staging.rows_of_commit(head, keys)
            found += [name for name, row in zip(inside, rows, strict=True) if row is not None]
            if len(found) > limit:
                break
        return found[:limit], len(found) > limit

    async def below(
        self, ref: str, namespace: names.Namespace = (), *, after: names.TableName | None = None, limit: int = 1000
    ) -> tuple[builtins.list[Table], bool]:
        """Return the tables of a namespace and of those in it, and whether there are more. Those of a namespace come
        before those of the namespaces in it.

        Raises:
            NoSuchNamespace: the ref has none.
        """
        head = await self._versions.refs.resolve_commit(ref)
        if namespace:
            await self._commits.check_namespace(head, namespace)
        behind = (*after.namespace, after.name)[len(namespace) :] if after is not None else ()
        first: builtins.list[names.TableName] = []
        async for name in self._below(head, namespace, behind):
            first.append(name)
            if len(first) > limit:
                break
        rows = await self._commits.records(head, first[:limit])
        found = zip(first, rows, strict=False)
        tables = [table for name, row in found if (table := _table(name, row, head)) is not None]
        return tables, len(first) > limit

    async def _below(
        self, head: CommitId, namespace: names.Namespace, behind: names.Namespace
    ) -> AsyncIterator[names.TableName]:
        """Yield the tables below a namespace, behind one that is named relative to it."""
        first, *inner = behind or ("",)
        if namespace and not inner:
            tables = each_item(lambda after: self.list(head, namespace, after=after), attrgetter("name"), first)
            async for name in tables:
                yield name
        if inner:
            async for name in self._below(head, (*namespace, first), tuple(inner)):
                yield name
        start = first if inner else ""
        inside = each_item(lambda after: self.namespaces(head, namespace, after=after), itemgetter(-1), start)
        async for below in inside:
            async for name in self._below(head, below, ()):
                yield name

    async def load(self, ref: str, name: names.TableName) -> Table:
        """
        Raises:
            NoSuchTable: the ref has none.
        """
        if (table := await self.find(ref, name)) is None:
            raise names.NoSuchTable(f"there is no table {name}", table=str(name))
        return table

    async def find(self, ref: str, name: names.TableName) -> Table | None:
        """Return a table; None where the ref has none."""
        head = await self._versions.refs.resolve_commit(ref)
        [row] = await self._commits.records(head, [name])
        return _table(name, row, head)

    async def files(
        self, ref: str, name: names.TableName, *, after: str = ""
    ) -> tuple[Sequence[tuple[str, Entry]], bool]:
        """Return the files that a table reaches, with their entries, in order, and whether there are more.

        Raises:
            NoSuchTable: the ref has none.
        """
        table = await self.load(ref, name)
        folder, own = name.folder, f"{table.uuid}/"
        start = folder + after.removeprefix(own).encode() if after else b""
        rows, has_more = await self._commits.under(table.commit_id, folder, after=start, limit=1000)
        inside = [(key_to_path(key[len(folder) :]), row) for key, row in rows]
        return [(own + path, from_row(row)) for path, row in inside if path != names.RECORD], has_more

    # Changes

    async def commit(self, branch: str, changes: Sequence[TableChange], note: Note) -> Commit:
        """Commit the changes of several tables, all or none. Hooks see one commit of the branch.

        Raises:
            TableConflict, TableExists, NoSuchTable, NoSuchNamespace, MissingFile, Conflict: see `TableCommits`.
            Denied: the ref is no branch.
            ReadOnly, ProtectedBranch, HookRefused: as for a commit.
        """
        return await self._on(branch, note, lambda: self._commits.commit(branch, changes, note))

    def settling(self, changed: Callable[[Sides, names.TableName], Awaitable[TableChange]]) -> Settle:
        """Return how a merge settles conflicts at tables, if nothing else conflicts.

        `changed` says what becomes of each table at the head.
        """

        async def settle(sides: Sides, conflict: MergeConflict) -> Settlement:
            keys = cast("Sequence[bytes]", conflict.facts["conflicts"])
            tables = [names.name_of_record(key) for key in keys if key.endswith(TABLE_RECORD)]
            if len(tables) < len(keys) or len(tables) > MERGED_MAX:
                raise conflict
            return await self._commits.settled(sides, [await changed(sides, table) for table in tables])

        return settle

    async def drop(self, branch: str, name: names.TableName, note: Note) -> Commit:
        """Drop a table as it is now. Its files stay until a run prunes them."""
        table = await self.load(branch, name)
        change = TableChange(name=name, expected=table.metadata, metadata=None)
        return await self.commit(branch, [change], note)

    async def rename(self, branch: str, source: names.TableName, target: names.TableName, note: Note) -> Commit:
        """
        Raises:
            NoSuchTable, TableExists, NoSuchNamespace: the branch has no source, has the target, or not its namespace.
        """

        async def compose(head: CommitId, _: Mapping[str, Row]) -> Paths:
            before, after = await self._commits.records(head, [source, target])
            if before is None:
                raise names.NoSuchTable(f"there is no table {source}", table=str(source))
            if after is not None:
                raise names.TableExists(f"table {target} exists", table=str(target))
            await self._commits.check_namespace(head, target.namespace)
            paths: dict[bytes, Row | None] = {}
            async for key, row in self._commits.each(head, source.folder):
                there = target.folder + key[len(source.folder) :]
                path_to_key(key_to_path(there))
                paths |= {key: None, there: to_row(there, from_row(row))}
            return paths

        return await self._composed(branch, (), compose, note)

    async def create_namespace(
        self, branch: str, namespace: names.Namespace, properties: Mapping[str, str], note: Note
    ) -> Commit:
        """
        Raises:
            NamespaceExists: the branch has it, or a table in it.
            NoSuchNamespace: its parent is not there.
        """

        async def check(head: CommitId) -> None:
            with suppress(names.NoSuchNamespace):
                await self._commits.check_namespace(head, namespace)
                raise names.NamespaceExists(
                    f"namespace {names.text_of(namespace)} exists", namespace=names.text_of(namespace)
                )
            if namespace[:-1]:
                await self._commits.check_namespace(head, namespace[:-1])

        return await self._set_properties(branch, namespace, properties, note, check)

    async def change_namespace(
        self,
        branch: str,
        namespace: names.Namespace,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        note: Note,
    ) -> Mapping[str, str]:
        """Change the properties of a namespace, and return those of before. `change` is called again where another
        commit changed them meanwhile.

        Raises:
            NoSuchNamespace: the branch has none.
            NamespaceConflict: others change it all the time.
        """

        async def attempt() -> Mapping[str, str]:
            head = await self._versions.refs.resolve_commit(branch)
            expected = await self._commits.check_namespace(head, namespace)
            before = await self._properties(expected)

            async def check(head: CommitId) -> None:
                if await self._commits.check_namespace(head, namespace) != expected:
                    raise names.NamespaceConflict(
                        f"namespace {names.text_of(namespace)} was changed meanwhile",
                        namespace=names.text_of(namespace),
                    )

            if (after := change(before)) != before:
                await self._set_properties(branch, namespace, after, note, check)
            return before

        return await again(attempt, names.NamespaceConflict, most=ATTEMPTS_MAX)

    async def drop_namespace(self, branch: str, namespace: names.Namespace, note: Note) -> Commit:
        """
        Raises:
            NamespaceNotEmpty: it has tables, namespaces, or other objects.
            NoSuchNamespace: the branch has none.
        """
        record = names.record_path(namespace)

        async def compose(head: CommitId, _: Mapping[str, Row]) -> Paths:
            await self._commits.check_namespace(head, namespace)
            inside = (await self._commits.under(head, names.folder_of(namespace), limit=2))[0]
            if [key for key, _ in inside] != [record]:
                raise names.NamespaceNotEmpty(
                    f"namespace {names.text_of(namespace)} is not empty", namespace=names.text_of(namespace)
                )
            return {record: None}

        return await self._composed(branch, (), compose, note)

    async def _set_properties(
        self,
        branch: str,
        namespace: names.Namespace,
        properties: Mapping[str, str],
        note: Note,
        check: Callable[[CommitId], Awaitable[None]],
    ) -> Commit:
        record = names.record_path(namespace)
        file = f"{_PROPERTIES}/{self._ports.ids.fresh()}.json"
        await self.start()
        await self.put(file, msgspec.json.encode(dict(properties), order="sorted"), branch=branch, by=note.committer)

        async def compose(head: CommitId, rows: Mapping[str, Row]) -> Paths:
            await check(head)
            return {record: to_row(record, from_row(rows[file]))}

        return await self._composed(branch, (file,), compose, note)

    async def _composed(self, branch: str, files: Sequence[str], compose: Compose, note: Note) -> Commit:
        return await self._on(branch, note, lambda: self._commits.name_files(branch, files, compose, note))

    async def _on(self, branch: str, note: Note, work: Callable[[], Awaitable[Commit]]) -> Commit:
        kind = await self._versions.refs.kind_of(branch)
        if kind is not RefKind.BRANCH:
            await self._versions.refs.resolve_commit(branch)
            raise Denied(f"{branch} is no branch: tables change on branches only", ref=branch)
        return await self._changes.commit_composed(branch, note, work)


def _table(name: names.TableName, row: Row | None, head: CommitId) -> Table | None:
    """Return the table of the row of its record; None where it is no record."""
    entry = None if row is None else from_row(row)
    if entry is None or names.FILE not in entry.metadata:
        return None
    file, uuid = entry.metadata[names.FILE], entry.metadata.get(names.UUID, "")
    return Table(name=name, uuid=uuid, metadata=file, commit_id=head, entry=entry)
