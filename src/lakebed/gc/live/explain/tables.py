"""Name the tables of branches and tags that a plan would break, and their snapshots.

A plan says which files of tables it takes. A table is broken if its current metadata reaches one of them: the catalog's
library reads that (`TableReader`). Each table is read once, on however many branches it lies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from lakebed.base import TABLES, CommitId, LakebedError
from lakebed.catalog.tables import RECORD, SUFFIX, tables_of
from lakebed.gc import messages
from lakebed.versions import CommitExpired, Versions

__all__ = ["Reach", "TableReader"]

PAGE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Count those of some files that a table's metadata reaches. `is_current`: the table of now needs one of them."""

    files: int
    snapshots: tuple[int, ...] = ()
    is_current: bool = False


class TableReader(Protocol):
    async def reach(self, metadata: str, files: Set[str]) -> Reach | None:
        """Return which of these files the metadata in a file of the branch `tables` reaches. None: it is not known."""
        ...


@dataclass(slots=True)
class _Table:
    folder: str
    uuid: str
    metadata: str
    heads: dict[str, CommitId] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.removesuffix(f"{SUFFIX}/").replace("/", ".")


class TableLosses:
    def __init__(self, versions: Versions, reader: TableReader | None) -> None:
        self._versions = versions
        self._reader = reader

    async def find(self, run_id: str, body: messages.FindTables) -> messages.BrokenTables:
        """Return the tables that reach one of the plan's files, or raise BadInput."""
        if not body.files.folder.startswith(messages.run_folder(body.kind, messages.check_run_id(run_id))):
            raise messages.BadInput(f"{body.files.folder} is not of run {run_id}", input=messages.TABLE_FILES.name)
        files = await self._read(body.files)
        broken_tables = []
        for table in await self._tables():
            wanted = {f"{table.uuid}/{file}" for file in files.get(table.folder, ())}
            wanted |= {file for file in files.get("", ()) if file.startswith(f"{table.uuid}/")}
            if RECORD in files.get(table.folder, ()):
                wanted.add(table.metadata)
            if wanted and (broken := await self._broken(table, wanted)) is not None:
                broken_tables.append(broken)
        return messages.BrokenTables(tables=tuple(sorted(broken_tables, key=lambda one: (one.table, one.refs))))

    async def _read(self, manifest: messages.Manifest) -> Mapping[str, Set[str]]:
        """Return the plan's files by the folder of their table."""
        if messages.check_manifest(manifest, name="table_files") is not messages.TABLE_FILES:
            raise messages.BadInput(f"{manifest.folder} is a table of {manifest.table}", input=manifest.table)
        files: dict[str, set[str]] = defaultdict(set)
        for part in manifest.parts:
            data = await self._versions.objectstore.get(manifest.folder + part.name)
            for folder, file in await self._versions.ports.tasks.apart(partial(_rows, manifest, part, data)):
                files[folder].add(file)
        return files

    async def _tables(self) -> list[_Table]:
        """Return the tables of all branches and tags, each version of a table once."""
        tables: dict[tuple[str, str, str], _Table] = {}
        by_tree: dict[str, list[tuple[str, str, str]]] = {}
        async for ref, head in self._heads():
            tree = (await self._versions.history.get_commit(head)).metarange_id
            if tree not in by_tree:
                keys = by_tree[tree] = []
                with suppress(CommitExpired):  # A tag may name such a commit: its tables are gone.
                    async for folder, uuid, metadata in tables_of(self._versions, head):
                        key = (folder.decode(), uuid, metadata)
                        tables.setdefault(key, _Table(*key))
                        keys.append(key)
            for key in by_tree[tree]:
                tables[key].heads[ref] = head
        return list(tables.values())

    async def _heads(self) -> AsyncIterator[tuple[str, CommitId]]:
        async for branch in self._versions.refs.every_branch():
            if branch.name != TABLES:
                yield branch.name, branch.commit_id
        async for tag in self._versions.refs.every_tag():
            yield tag.name, tag.commit_id

    async def _broken(self, table: _Table, files: Set[str]) -> messages.BrokenTable | None:
        reach = None
        if self._reader is not None:
            with suppress(LakebedError):  # An earlier run took its metadata, or a manifest.
                reach = await self._reader.reach(table.metadata, files)
        is_known = reach is not None
        if reach is None:
            reach = Reach(files=await self._entries(table, files))
        if not reach.files:
            return None
        return messages.BrokenTable(
            table=table.name,
            uuid=table.uuid,
            refs=tuple(sorted(table.heads)[: messages.NAMED_MAX]),
            refs_count=len(table.heads),
            files=reach.files,
            snapshots=reach.snapshots[: messages.NAMED_MAX],
            snapshots_count=len(reach.snapshots),
            is_current=reach.is_current,
            is_known=is_known,
        )

    async def _entries(self, table: _Table, files: Set[str]) -> int:
        """Count the files that have an entry in the table's folder: its metadata reached them when it was committed."""
        head, own = next(iter(table.heads.values())), f"{table.uuid}/"
        paths = [(table.folder + file.removeprefix(own)).encode() for file in sorted(files)]
        count = 0
        for start in range(0, len(paths), PAGE):
            rows = await self._versions.staging.rows_of_commit(head, paths[start : start + PAGE])
            count += sum(row is not None for row in rows)
        return count


def _rows(manifest: messages.Manifest, part: messages.Part, data: bytes) -> list[tuple[str, str]]:
    rows = messages.read_part(manifest, messages.TABLE_FILES, part, data)
    return list(zip(rows["folder"].to_pylist(), rows["file"].to_pylist(), strict=True))
