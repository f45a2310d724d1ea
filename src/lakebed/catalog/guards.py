"""Checks of a repository before a change, and after a change of settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lakebed.base import TABLE_FILE, TABLE_METADATA, TABLE_RECORD, TABLE_SUFFIX, TABLES, Denied, RepositoryId
from lakebed.kv import Store
from lakebed.versions import Versions, decode_record, keys

from .errors import FileOfTable, ProtectedBranch, ReadOnly, RepositoryNotFound
from .records import RepositoryRecord, RepositoryState
from .settings import Settings

_FOLDER: Final = f"{TABLE_SUFFIX}/".encode()
_RECORD: Final = TABLE_FILE.encode()


class Guards:
    def __init__(
        self,
        repository_id: RepositoryId,
        record: RepositoryRecord,
        settings: Settings,
        store: Store,
        versions: Versions,
    ) -> None:
        self._id = repository_id
        self._record = record
        self._settings = settings
        self._store = store
        self._refs = versions.refs
        self._staging = versions.staging

    def check_writable(self, *, force: bool = False) -> None:
        """Refuse changes of a read-only repository.

        Raises:
            ReadOnly: the repository is read-only, and `force` is not set.
        """
        if self._record.read_only and not force:
            raise ReadOnly("read-only repository", repository=self._id)

    async def check_no_tables(self, branch: str) -> None:
        """Refuse to change the hidden branch of table files. It accepts new files, and nothing else.

        Raises:
            Denied: it is that branch.
        """
        if await self.has_table_files(branch):
            raise Denied(f"branch {branch} holds the files of tables: it accepts new files only", branch=branch)

    async def has_table_files(self, branch: str) -> bool:
        """Return whether this is the hidden branch, and no branch of a user with its name."""
        return branch == TABLES and await self._refs.is_work_of(branch, TABLES)

    async def check_branch_writable(self, branch: str, *, force: bool = False, verb: str = "write") -> None:
        """Refuse a change that protection forbids. Merges, imports, reverts, cherry-picks and deletions call only
        `check_writable`.

        Raises:
            ReadOnly: as for `check_writable`.
            ProtectedBranch: a rule protects the branch. `force` does not override it.
            Denied: see `check_no_tables`. Uploads of new files ask `check_upload`.
        """
        await self.check_no_tables(branch)
        await self.check_upload(branch, force=force, verb=verb)

    async def check_upload(self, branch: str, *, force: bool = False, verb: str = "write") -> None:
        """Refuse an upload, as `check_branch_writable` does, but allow the hidden branch of table files."""
        self.check_writable(force=force)
        if await self._settings.is_protected(branch):
            raise ProtectedBranch(f"cannot {verb} to protected branch", branch=branch)

    async def check_tables(self, branch: str, keys: Iterable[bytes], *, force: bool = False) -> None:
        """Refuse to write or delete a file that a table of the branch needs, but through the catalog.

        The catalog commits tables at once, so this looks before the write, and not beside it. Costs a read where a path
        has a folder `*.iceberg/`.

        Raises:
            FileOfTable: one of the paths is in the folder of a table, and `force` is not set.
        """
        for error in () if force else (await self.files_of_tables(branch, keys)).values():
            raise error

    async def files_of_tables(self, branch: str, keys: Iterable[bytes]) -> dict[bytes, FileOfTable]:
        """Return which of these paths are in the folder of a table of the branch, each with its refusal."""
        folders = {key: _folders(key) for key in keys if _FOLDER in key}
        if not folders:
            return {}
        records = sorted({folder + _RECORD for some in folders.values() for folder in some})
        entries = await self._staging.get_many(branch, records)
        tables = {
            record.removesuffix(_RECORD)
            for record, entry in zip(records, entries, strict=True)
            if entry is not None and TABLE_METADATA in entry.metadata
        }
        return {key: _refused(key, folder) for key, some in folders.items() for folder in some if folder in tables}

    async def check_copy(self, ref: str, source: bytes, target: bytes, *, force: bool = False) -> None:
        """Refuse to make a table by a copy of its record alone: nothing would keep its files.

        Raises:
            FileOfTable: it would be such a copy, and `force` is not set.
        """
        if force or not target.endswith(TABLE_RECORD):
            return
        [entry] = await self._staging.get_many(ref, [source])
        if entry is not None and TABLE_METADATA in entry.metadata:
            raise _refused(target, target.removesuffix(_RECORD), "would be a table without its files: register it with")

    async def confirm(self) -> None:
        """Check that the repository still exists, after a setting was written and before the server acknowledges it.

        A handle may outlive its repository for a second. A write to a branch fails when it checks the branch again. A
        setting has no such check, and would be acknowledged in a deleted repository.

        Raises:
            RepositoryNotFound: the repository was deleted meanwhile, or the name belongs to another one.
        """
        held = await self._store.get(keys.REPOSITORIES, self._id.encode())
        now = None if held is None else decode_record(RepositoryRecord, held.value)
        if now is None or now.state is not RepositoryState.ACTIVE or now.uid != self._record.uid:
            raise RepositoryNotFound("repository not found", repository=self._id)


def _folders(key: bytes) -> Sequence[bytes]:
    """Return the folders around a path that a table may have."""
    parts = key.split(_FOLDER)
    return [_FOLDER.join(parts[:count]) + _FOLDER for count in range(1, len(parts))]


def _refused(key: bytes, folder: bytes, what: str = "") -> FileOfTable:
    table, path = folder.removesuffix(_FOLDER).decode().replace("/", "."), key.decode()
    what = what or f"is a file of table {table}: change or drop the table with"
    return FileOfTable(
        f"{path} {what} the catalog of tables. A request with `force` does it here", table=table, path=path
    )
