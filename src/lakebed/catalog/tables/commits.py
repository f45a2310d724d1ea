"""Commits of tables: one commit of a branch names files of the hidden branch.

    1   read the files' entries in `tables`, and the branch
    2   compare the tables on its head with those that the caller read; lay the changes over the head
    3   write the commit record: from now on each run that reads commit records finds the files named
    4   look again: a file is no other, and no run took it or may be about to
    5   make the commit the head (`set_if`); where that fails, from 1

A run that prunes or erases publishes first and reads commit records then. So it sees the record of step 3, or step 4
sees the run (docs/design/0016-tables.md). No cell and no copy record is written: a file that is named here is an entry
of `tables` until a run takes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa

from lakebed.base import (
    TABLES,
    CommitId,
    Conflict,
    Entry,
    Invalid,
    Row,
    each_item,
    from_row,
    key_to_path,
    path_to_key,
    to_row,
)
from lakebed.ranges import changes_from_rows
from lakebed.versions import Commit, Note, Settlement, Sides, Versions

from . import names

PAGE: Final = 1_000
Paths: TypeAlias = Mapping[bytes, Row | None]
"""Rows to set, and None for paths to remove."""
Compose: TypeAlias = Callable[[CommitId, Mapping[str, Row]], Awaitable[Paths]]


class TableChange(msgspec.Struct, frozen=True, kw_only=True):
    """One table of a commit. `expected`: the metadata file that the caller read; None: there must be no such table.

    `metadata` is the new metadata file; None: the table is dropped. `added` are the files that it reaches and the old
    one did not, `removed` those that only the old one did. Files of other tables than `uuid` are refused.
    """

    name: names.TableName
    expected: str | None
    metadata: str | None
    uuid: str = ""
    added: Sequence[str] = ()
    removed: Sequence[str] = ()

    @property
    def files(self) -> list[str]:
        """Return all files that the change names: a commit looks for each in `tables`."""
        return [] if self.metadata is None else [*dict.fromkeys((self.metadata, *self.added))]


class TableCommits:
    """Works on versions alone, so that the simulator runs it: guards and hooks are the callers'."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    async def commit(self, branch: str, changes: Sequence[TableChange], note: Note) -> Commit:
        """Commit the changes of several tables, all or none.

        The cost follows what was added and removed, not the size of a table; a drop reads the table's entries.

        Raises:
            TableConflict: another commit changed a table.
            TableExists, NoSuchTable, NoSuchNamespace: the branch has it, or does not.
            MissingFile: a file is not in `tables`, or was pruned, or is of another table.
            Conflict: a run that prunes or erases is deciding. Try again.
        """

        if len({change.name for change in changes}) < len(changes):
            raise Invalid("a commit names a table twice")

        compose = partial(self._changed, changes)
        return await self.name_files(branch, [file for one in changes for file in one.files], compose, note)

    async def settled(self, sides: Sides, changes: Sequence[TableChange]) -> Settlement:
        """Settle a merge that conflicts at tables: the source's changes of their folders do not count, these do.

        The metadata of each change must have what the source brought, and begin at that of the head.

        Raises:
            TableConflict, MissingFile, Conflict: see `commit`.
        """
        back: dict[bytes, Row | None] = {}
        for change in changes:
            back.update(await self._as_at(sides.base, sides.source, change.name.folder))
        rows = await self._rows([file for one in changes for file in one.files])
        over = await self._changed(changes, sides.head, rows)
        return Settlement(source=_sorted(back), merged=_sorted(over), check=partial(self._check, rows))

    async def _changed(self, changes: Sequence[TableChange], head: CommitId, rows: Mapping[str, Row]) -> Paths:
        """Return what the changes set and remove, over a head that has the tables which the caller read."""
        await self._compare(head, changes)
        paths: dict[bytes, Row | None] = {}
        for change in changes:
            paths.update(await self._paths(head, change, rows))
        return paths

    async def _as_at(self, base: CommitId, source: CommitId, folder: bytes) -> Paths:
        """Return the rows that make the folder of a table as it was at `base`."""
        context = self._versions.context
        trees = [await context.commits.metarange(one) for one in (source, base)]
        found: dict[bytes, Row | None] = {}
        async for batch in context.trees.diff(*trees, prefix=folder):
            found |= {one.key: one.right for one in batch}
        return found

    async def name_files(self, branch: str, files: Sequence[str], compose: Compose, note: Note) -> Commit:
        """Commit what `compose` makes of the head and of the rows of these files.

        Raises:
            MissingFile, Conflict: see `commit`.
            NoChanges: the branch has it all.
        """
        rows: dict[str, Row] = {}

        async def changes(head: CommitId) -> pa.Table:
            rows.update(await self._rows(files))
            return _sorted(await compose(head, rows))

        return await self._versions.merges.compose(branch, changes, note, check=partial(self._check, rows))

    async def _rows(self, files: Sequence[str]) -> dict[str, Row]:
        """
        Raises:
            MissingFile: a file is not in `tables`.
        """
        keys = [path_to_key(file) for file in files]
        found = await self._versions.staging.get_rows(TABLES, keys) if keys else []
        for file, row in zip(files, found, strict=True):
            if row is None:
                raise names.MissingFile(f"no file {file} was written", file=file)
        return {file: row for file, row in zip(files, found, strict=True) if row is not None}

    async def _check(self, rows: Mapping[str, Row]) -> None:
        """Look again at the files that the commit record names by now."""
        if not rows:
            return
        again = await self._rows([*rows])
        for file, row in rows.items():
            if again[file] != row:
                raise Conflict(f"file {file} was written anew: commit again", file=file)
        head = (await self._versions.refs.get_branch(TABLES)).commit_id
        committed = await self._versions.staging.rows_of_commit(head, [path_to_key(file) for file in rows])
        # A plan takes what a commit of `tables` has. Staged files are in none, and entries that left were taken.
        if any(row is not None for row in committed) and await self._versions.retired.is_lifecycle_expiring():
            raise Conflict("a run is about to delete files of tables: commit again")
        # After the runs, never before: a run records its objects before it counts as one that took them.
        taken = await self._versions.taken.find_rows([*rows.values()])
        for file, by in zip(rows, taken, strict=True):
            if by is not None:
                raise names.MissingFile(f"file {file} is gone: {by.text()}", file=file)

    async def _compare(self, head: CommitId, changes: Sequence[TableChange]) -> None:
        records = await self.records(head, [change.name for change in changes])
        for change, row in zip(changes, records, strict=True):
            found = None if row is None else names.file_in(from_row(row))
            if found == change.expected:
                if found is None:
                    await self.check_namespace(head, change.name.namespace)
                continue
            if found is None:
                raise names.NoSuchTable(f"there is no table {change.name}", table=str(change.name))
            if change.expected is None:
                raise names.TableExists(f"table {change.name} exists", table=str(change.name))
            raise names.TableConflict(
                f"table {change.name} was changed: it is at {found}, not at {change.expected}",
                table=str(change.name),
                expected=change.expected,
                found=found,
            )

    async def check_namespace(self, head: CommitId, namespace: names.Namespace) -> Row:
        """Return the row of a namespace's entry.

        Raises:
            NoSuchNamespace: the commit has none.
        """
        [row] = await self._versions.staging.rows_of_commit(head, [names.record_path(namespace)])
        if row is None:
            text = names.text_of(namespace)
            raise names.NoSuchNamespace(f"there is no namespace {text}", namespace=text)
        return row

    async def records(self, head: CommitId, tables: Sequence[names.TableName]) -> list[Row | None]:
        """Return the rows of RECORD of these tables; None where there is no table."""
        keys = [name.folder + names.RECORD.encode() for name in tables]
        return await self._versions.staging.rows_of_commit(head, keys)

    async def _paths(self, head: CommitId, change: TableChange, rows: Mapping[str, Row]) -> Paths:
        folder = change.name.folder
        if change.metadata is None:
            return {key: None async for key, _ in self.each(head, folder)}
        entry = names.record_of(from_row(rows[change.metadata]), change.metadata, change.uuid)
        # A rollback names older metadata: the table changed now.
        entry = msgspec.structs.replace(entry, modified_ms=self._versions.ports.clock.now_ms())
        record = folder + names.RECORD.encode()
        paths: dict[bytes, Row | None] = {place(folder, change, file): None for file in change.removed}
        for file in change.files:
            key = place(folder, change, file)
            paths[key] = to_row(key, from_row(rows[file]))
        return paths | {record: to_row(record, entry)}

    async def under(
        self, head: CommitId, prefix: bytes, *, limit: int, after: bytes = b""
    ) -> tuple[list[tuple[bytes, Row]], bool]:
        """Return at most `limit` entries of a commit below a prefix, and whether there are more."""
        page = await self._versions.staging.list_commit(head, prefix=prefix, after=after, limit=limit)
        return [(key, row) for key, row in page.items if row is not None], page.has_more

    def each(self, head: CommitId, prefix: bytes) -> AsyncIterator[tuple[bytes, Row]]:
        """Yield every entry of a commit below a prefix, in order."""
        return each_item(lambda after: self.under(head, prefix, after=after, limit=PAGE), itemgetter(0), b"")


def _sorted(paths: Paths) -> pa.Table:
    rows = sorted(paths.items())
    return changes_from_rows([key for key, _ in rows], [row for _, row in rows])


def place(folder: bytes, change: TableChange, file: str) -> bytes:
    """Return the path of a file's entry in the folder of its table.

    Raises:
        MissingFile: the file is of another table, or would hide the table's record.
    """
    own = f"{change.uuid}/"
    if not change.uuid or not file.startswith(own) or file[len(own) :] in {"", names.RECORD, names.NAMESPACE}:
        raise names.MissingFile(f"file {file} is not of table {change.name}", file=file)
    return path_to_key(folder.decode() + file[len(own) :])


# The folders and the tables of a commit


async def folders(versions: Versions, head: CommitId, prefix: bytes, *, after: str = "") -> AsyncIterator[list[str]]:
    """Yield the names of the folders directly below a prefix, in order, some at a time."""
    start, has_more = prefix + after.encode() if after else b"", True
    while has_more:
        page = await versions.staging.list_commit(head, prefix=prefix, after=start, delimiter=b"/", limit=PAGE)
        yield [key_to_path(key[len(prefix) : -1]) for key, row in page.items if row is None]
        has_more, start = page.has_more, page.items[-1][0] if page.items else start


async def tables_of(versions: Versions, head: CommitId) -> AsyncIterator[tuple[bytes, str, str]]:
    """Yield the folder, the uuid and the metadata file of each table of a commit. Namespaces have a record."""
    waiting = [b""]
    while waiting:
        prefix = waiting.pop()
        inside = [prefix + f"{name}/".encode() async for page in folders(versions, head, prefix) for name in page]
        tables = [folder for folder in inside if folder.endswith(f"{names.SUFFIX}/".encode())]
        namespaces = [folder for folder in inside if not folder.endswith(f"{names.SUFFIX}/".encode())]
        for folder, entry in await _entries(versions, head, tables, names.RECORD):
            if names.FILE in entry.metadata:
                yield folder, entry.metadata.get(names.UUID, ""), entry.metadata[names.FILE]
        waiting += [folder for folder, _ in await _entries(versions, head, namespaces, names.NAMESPACE)]


async def _entries(versions: Versions, head: CommitId, inside: list[bytes], record: str) -> list[tuple[bytes, Entry]]:
    rows = await versions.staging.rows_of_commit(head, [folder + record.encode() for folder in inside])
    return [(folder, from_row(row)) for folder, row in zip(inside, rows, strict=True) if row is not None]
