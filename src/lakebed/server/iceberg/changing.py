"""From a client's commit, or a merge that appends, to a change of the branch: the library, the files, the metadata.

The order is that of the core's promise (docs/design/0016-tables.md): files lie in the branch `tables` before the branch
names them. A metadata file whose commit fails is named by nothing, and goes by pruning.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from lakebed import iceberg
from lakebed.base import again, each_item
from lakebed.catalog import Repository
from lakebed.catalog.tables import (
    TABLES,
    MissingFile,
    NoSuchTable,
    OutsideTables,
    Table,
    TableChange,
    TableConflict,
    TableExists,
    TableName,
    Tables,
)
from lakebed.gc.live import Reach
from lakebed.iceberg import Metadata, RequirementFailed
from lakebed.server.http.errors import Answer
from lakebed.server.state import AppState
from lakebed.versions import Commit, Note, PathExpired, Settle, Sides
from lakebed.wire import TableCommit, TableCreation

T = TypeVar("T")
MakeNote: TypeAlias = Callable[[str], Note]

_RANDOM_BITS: Final = 60
ATTEMPTS_MAX: Final = 4
"""Attempts at a commit whose table another one changed meanwhile, while its requirements hold."""
READS_AT_ONCE: Final = 16
READ_BYTES_MAX: Final = iceberg.MANIFEST_BYTES_MAX
"""The size of the files that one request has in memory at a time."""
SMALL_BYTES: Final = 64 << 10
"""Metadata of this size are parsed in some 5 ms: a thread would cost the loop more in switches."""
_METADATA: Final = re.compile(rb"/metadata/\d{5,9}-[^/]*\.metadata\.json$")
_ID: Final = re.compile(rf"\.{TABLES}/([0-9a-f-]{{36}})/")
_NUMBER: Final = re.compile(r"/metadata/(\d{1,9})-")


class Changed(NamedTuple):
    """The result of a commit for one table. `change` and `commit` are None where nothing changes. `did`: its words."""

    name: TableName
    metadata: Metadata
    data: bytes
    change: TableChange | None
    commit: Commit | None = None
    did: str = ""


class Changing:
    """Work on the tables of one repository."""

    def __init__(self, repository: Repository, state: AppState) -> None:
        self._repository = repository.id
        # It proves that an id of a table was given out here.
        self._key = state.authenticator.lent_key
        self._tables: Final[Tables] = repository.tables
        self._versions = repository.versions
        self._ports = state.ports
        self._place = self._tables.uri_of("")

    def fresh_location(self, branch: str, name: TableName) -> str:
        """Return a location with a fresh id, which no other table than this one of the branch can have."""
        return self._tables.uri_of(str(self._id_of(branch, name, self._ports.ids.bits(_RANDOM_BITS))))

    def _id_of(self, branch: str, name: TableName, random: int) -> UUID:
        """Return an id of version 4: its first bits are random, and its last a MAC of them and of the table's name."""
        claims = msgspec.msgpack.encode((self._repository, branch, name.namespace, name.name, random))
        mac = hashlib.blake2b(claims, digest_size=8, key=self._key, person=b"table id").digest()
        # The library sets the bits of version and variant, between and after the first 48 and the next 12.
        return UUID(int=random >> 12 << 80 | (random & 0xFFF) << 64 | int.from_bytes(mac), version=4)

    def _check_id(self, branch: str, name: TableName, uuid: str) -> None:
        """Refuse an id that was given out for another table, or made up."""
        number = UUID(uuid).int
        if UUID(uuid) != self._id_of(branch, name, number >> 80 << 12 | number >> 64 & 0xFFF):
            raise iceberg.InvalidTable(
                f"the catalog gave no table {name} of {branch} the id {uuid}: ask for one with stage-create", uuid=uuid
            )

    def staged_id(self, branch: str, name: TableName, url: str) -> str:
        """Return the id of a table that is staged, of the URL of one of its files at the gateway."""
        match = _ID.search(url)
        id_ = match[1] if match else ""
        try:
            self._check_id(branch, name, id_)
        except (ValueError, iceberg.InvalidTable) as error:
            raise NoSuchTable(f"there is no table {name}", table=str(name)) from error
        return id_

    # Reading

    async def metadata_of(self, table: Table) -> tuple[Metadata, bytes]:
        """Return the current metadata of a table, and its bytes.

        Raises:
            InvalidTable, MissingFile, PathExpired: it cannot be read.
        """
        return await self.parsed(table.metadata, table.uuid)

    async def parsed(self, file: str, uuid: str) -> tuple[Metadata, bytes]:
        """Return what `metadata_of` returns, of a file that has metadata of the table with this id."""
        data, uri, location = await self.metadata_file(file), self._tables.uri_of(file), self._tables.uri_of(uuid)
        return await in_thread(len(data), lambda: iceberg.parsed(data, uri, location=location)), data

    async def metadata_file(self, file: str) -> bytes:
        """Return the bytes of a file that should have metadata. A writer of the table may have put another there.

        Raises:
            InvalidTable: it is too large.
            MissingFile, PathExpired: it cannot be read.
        """
        data = await self._tables.read(file, end=iceberg.METADATA_BYTES_MAX + 1)
        iceberg.check_size(len(data))
        return data

    async def read(self, uris: Sequence[str]) -> Mapping[str, bytes]:
        """Return the bytes of the first of these files of tables: see `iceberg.Read`.

        Raises:
            InvalidTable: one is larger than a manifest can be.
            MissingFile, OutsideTables: one is no file of this repository's tables.
        """
        files = [self._tables.file_of(uri) for uri in uris]
        first: dict[str, str] = {}
        total = 0
        for uri, file, size in zip(uris, files, await self._tables.sizes(files), strict=True):
            _check_manifest(uri, size or 0)
            total += size or 0
            if first and total > READ_BYTES_MAX:
                break
            first[uri] = file
        gate = asyncio.Semaphore(READS_AT_ONCE)

        async def read_one(uri: str) -> bytes:
            async with gate:
                # Another file may have its name by now.
                data = await self._tables.read(first[uri], end=iceberg.MANIFEST_BYTES_MAX + 1)
                _check_manifest(uri, len(data))
                return data

        return dict(zip(first, await asyncio.gather(*map(read_one, first)), strict=True))

    # Changing

    async def commit(self, branch: str, commits: Mapping[TableName, TableCommit], note: MakeNote) -> list[Changed]:
        """Change tables in one commit of the branch, or none of them.

        Makes it again where another commit changed a table meanwhile, until a requirement fails. Changes nothing where
        the commit was made already: its client lost the answer, and asks again.

        Raises:
            RequirementFailed, InvalidTable: see `iceberg.committed`.
            NoSuchTable, TableExists, MissingFile, NoSuchNamespace, Denied: see `Tables.commit`.
            TableConflict: the tables are changed by others all the time.
        """
        await self._tables.start()
        by = note("").committer
        attempts = count()

        async def attempt() -> list[Changed]:
            is_again = next(attempts) > 0
            try:
                changed = [
                    await self._changed(branch, name, commit, by=by, is_again=is_again)
                    for name, commit in commits.items()
                ]
            except (RequirementFailed, iceberg.InvalidTable):
                if made := await self._made_before(branch, commits):
                    return made
                raise
            changes = [each.change for each in changed if each.change is not None]
            if not changes:
                return changed
            commit = await self._tables.commit(branch, changes, note(_message(changed)))
            return [each._replace(commit=commit) for each in changed]

        # A creation that finds a table fails at its own requirement, in the next attempt.
        return await again(attempt, TableConflict, TableExists, most=ATTEMPTS_MAX)

    async def _made_before(self, branch: str, commits: Mapping[TableName, TableCommit]) -> list[Changed]:
        """Return the tables as they are, if each is the result of its commit over the metadata before; or nothing."""
        made = []
        for name, commit in commits.items():
            try:
                current, data = await self.metadata_of(await self._tables.load(branch, name))
                log = [self._tables.file_of(one.metadata_file) for one in current.value.metadata_log]
                base = (await self.parsed(log[-1], current.uuid))[0] if log else None
            except (NoSuchTable, MissingFile, PathExpired, OutsideTables, iceberg.InvalidTable):
                return []
            asked = partial(iceberg.is_result, current, base, commit, place=self._place)
            if not await in_thread(2 * len(data), asked):
                return []
            made.append(Changed(name, current, data, None))
        return made

    async def _changed(
        self, branch: str, name: TableName, commit: TableCommit, *, by: str, is_again: bool, at: str = ""
    ) -> Changed:
        """Write the metadata that a commit makes of a table of the branch, or of its commit `at`."""
        base, data = None, b""
        creates = any(b'"assert-create"' in bytes(each) for each in commit.requirements)
        table = await (self._tables.find if creates else self._tables.load)(at or branch, name)
        if table is not None:
            if creates:
                raise RequirementFailed(f"Requirement failed: table already exists: {name}", table=str(name))
            base, data = await self.metadata_of(table)
        size = len(data) + sum(len(bytes(each)) for each in (*commit.requirements, *commit.updates))
        new = await in_thread(size, lambda: iceberg.committed(base, commit, place=self._place))
        if new is base:
            return Changed(name, new, data, None)
        if table is None and not is_again:
            self._check_id(branch, name, new.uuid)
            await self._check_fresh(new)
        change = await iceberg.change_of(base, new, self.read)
        encoded = await in_thread(size, new.encoded)
        file = await self._put(new, encoded, table, branch=branch, by=by)
        metadata = Metadata(new.value, self._tables.uri_of(file))
        return Changed(name, metadata, encoded, self._change(name, table, file, new, change), did=_did(base, new))

    def _change(
        self, name: TableName, table: Table | None, file: str, new: Metadata, found: iceberg.Change
    ) -> TableChange:
        """Return the change that makes a file the metadata of a table, which is `table` until then."""
        return TableChange(
            name=name,
            expected=None if table is None else table.metadata,
            metadata=file,
            uuid=new.uuid,
            added=sorted({file, *map(self._tables.file_of, found.added)}),
            removed=sorted(map(self._tables.file_of, found.removed)),
        )

    async def change_at(self, commit: str, name: TableName, asked: TableCommit, *, branch: str, by: str) -> TableChange:
        """Return the change that this commit is for the table as it is at a commit of the branch.

        Raises:
            RequirementFailed, InvalidTable, NoSuchTable: see `commit`.
        """
        changed = await self._changed(branch, name, asked, by=by, is_again=True, at=commit)
        assert changed.change is not None, "the caller adds a snapshot"
        return changed.change

    async def made(self, location: str, asked: TableCreation) -> tuple[Metadata, bytes]:
        """Return the first metadata of a table, and their bytes.

        Raises:
            InvalidTable: see `iceberg.created`.
        """

        def make() -> tuple[Metadata, bytes]:
            new = iceberg.created(asked, location=location)
            return new, new.encoded()

        return await asyncio.to_thread(make)

    async def create(self, branch: str, name: TableName, new: Metadata, data: bytes, note: MakeNote) -> str:
        """Commit a table that a request made whole, and return where its metadata lie.

        Raises:
            TableExists, NoSuchNamespace, Denied: see `Tables.commit`.
        """
        await self._tables.start()
        file = await self._put(new, data, None, branch=branch, by=note("").committer)
        change = TableChange(name=name, expected=None, metadata=file, uuid=new.uuid, added=[file])
        await self._tables.commit(branch, [change], note(f"{name}: create"))
        return self._tables.uri_of(file)

    async def register(
        self, branch: str, name: TableName, file: str, *, overwrite: bool, note: Note
    ) -> tuple[str, bytes, Commit]:
        """Commit a table whose metadata and files lie in `tables` already.

        Raises:
            InvalidTable, MissingFile: the metadata are none, or a file is missing.
            TableExists: there is one, and `overwrite` is not set.
        """
        uuid = file.partition("/")[0]
        new, data = await self.parsed(file, uuid)
        # Without `overwrite` there must be none: the commit looks.
        table = await self._tables.find(branch, name) if overwrite else None
        same = table is not None and table.uuid == uuid
        base = (await self.metadata_of(table))[0] if table is not None and same else None
        change = self._change(name, table, file, new, await iceberg.change_of(base, new, self.read))
        if table is not None and not same:
            # Another table was here: its entries have other names, unless the new one's files happen to have them.
            others = {file async for file in self._renamed(branch, table, uuid)}
            change = replace(change, removed=sorted({*change.removed, *others}))
        return new.uri, data, await self._tables.commit(branch, [change], note)

    async def _renamed(self, branch: str, table: Table, uuid: str) -> AsyncIterator[str]:
        """Yield the files that a table reaches, as if they were files of another."""
        files = each_item(lambda after: self._tables.files(branch, table.name, after=after), itemgetter(0), "")
        async for file, _ in files:
            yield uuid + file.removeprefix(table.uuid)

    async def _put(self, new: Metadata, data: bytes, table: Table | None, *, branch: str, by: str) -> str:
        """Write a metadata file, under the next number, which counts for the branch and the user."""
        number = 0
        if table is not None and (match := _NUMBER.search("/" + table.metadata)):
            number = int(match[1]) + 1
        fresh = str(UUID(int=self._ports.ids.bits(128), version=4))
        file = self._tables.file_of(f"{new.location}/{iceberg.metadata_name(number, fresh)}")
        await self._tables.put(file, data, branch=branch, by=by)
        return file

    async def _check_fresh(self, new: Metadata) -> None:
        """Refuse to make a table with the id of another: readers of one would read the files of both."""
        # No engine names files so: the catalog alone writes metadata, and a table always has its current one.
        prefix, after, has_more = f"{new.uuid}/metadata/".encode(), b"", True
        while has_more:
            page = await self._versions.staging.list(TABLES, prefix=prefix, after=after, limit=1_000)
            if any(_METADATA.search(key) for key, _ in page.items):
                raise RequirementFailed(
                    f"there is or was a table with the id {new.uuid}: create it again", uuid=new.uuid
                )
            has_more, after = page.has_more, page.items[-1][0] if page.items else after


def _check_manifest(uri: str, size_bytes: int) -> None:
    if size_bytes > iceberg.MANIFEST_BYTES_MAX:
        limit = f"and a manifest may have {iceberg.MANIFEST_BYTES_MAX:,}"
        raise iceberg.InvalidTable(f"{uri} has {size_bytes:,} bytes, {limit}", uri=uri)


async def load_library() -> None:
    """Import the package in a thread, the first time. Only requests that need it wait."""
    if not iceberg.is_loaded():
        if not iceberg.is_installed():
            raise Answer(501, "this server has no catalog of tables: install lakebed[iceberg] there")
        await asyncio.to_thread(iceberg.load)


async def in_thread(size_bytes: int, work: Callable[[], T]) -> T:
    """Do the library's work in a thread, if it is long enough to be noticed by others."""
    return work() if size_bytes <= SMALL_BYTES else await asyncio.to_thread(work)


def _message(changed: Sequence[Changed]) -> str:
    """Return the message of the commit: what was done to each table."""
    return ", ".join([f"{each.name}: {each.did}" for each in changed if each.change is not None])[:500]


def _did(base: Metadata | None, new: Metadata) -> str:
    """Return the operations of the snapshots that a commit adds, or else what it changes."""
    before, after = None if base is None else base.value, new.value
    known = set() if before is None else {snapshot.snapshot_id for snapshot in before.snapshots}
    added = [each for each in after.snapshots if each.snapshot_id not in known]
    if operations := [each.summary.operation.value for each in added if each.summary is not None]:
        return " and ".join(operations)
    if before is None:
        return "create"
    if before.current_snapshot_id != after.current_snapshot_id:
        return "roll back"
    if before.current_schema_id != after.current_schema_id:
        return "schema"
    return "expire" if known - {each.snapshot_id for each in after.snapshots} else "settings"


class Reading:
    """Read the tables of one repository."""

    def __init__(self, repository: Repository, state: AppState) -> None:
        self._tables = repository.tables
        self._changing = Changing(repository, state)

    async def reach(self, metadata: str, files: Set[str]) -> Reach | None:
        """Return which of these files the metadata in a file of the branch `tables` reaches. None: it is not known.

        Reads every manifest of the table.

        Raises:
            InvalidTable, MissingFile, PathExpired: the metadata or a manifest cannot be read.
        """
        if not iceberg.is_installed():
            return None
        await load_library()
        table, _ = await self._changing.parsed(metadata, metadata.partition("/")[0])
        found = await iceberg.reached_by(table, {self._tables.uri_of(file) for file in files}, self._changing.read)
        return Reach(files=len(found.files), snapshots=found.snapshots, is_current=found.is_current)


_SNAPSHOT_BITS: Final = 62


async def appending(repository: Repository, state: AppState, *, branch: str, by: str) -> Settle:
    """Return how a merge into a branch settles conflicts at tables by appending.

    It writes their new metadata before it commits; these count for the quotas of the branch and of the user.

    Raises:
        Answer: the server has no library for tables.
    """
    await load_library()
    changing = Changing(repository, state)

    async def metadata_at(commit: str, name: TableName) -> Metadata:
        return (await changing.metadata_of(await repository.tables.load(commit, name)))[0]

    async def changed(sides: Sides, name: TableName) -> TableChange:
        base, source, head = [await metadata_at(one, name) for one in (sides.base, sides.source, sides.head)]
        fresh = UUID(int=state.ports.ids.bits(128), version=4)
        number, now_ms = state.ports.ids.bits(_SNAPSHOT_BITS), state.ports.clock.now_ms()
        uri = f"{head.location}/metadata/snap-{number}-0-{fresh}.avro"
        made = await iceberg.appended(base, source, head, changing.read, uri=uri, snapshot_id=number, now_ms=now_ms)
        file = repository.tables.file_of(uri)
        await repository.tables.put(
            file, made.manifest_list, content_type="application/octet-stream", branch=branch, by=by
        )
        return await changing.change_at(sides.head, name, made.commit, branch=branch, by=by)

    async def settled(sides: Sides, name: TableName) -> TableChange:
        try:
            return await changed(sides, name)
        except iceberg.NotAppended as error:
            raise iceberg.NotAppended(f"table {name} was not appended to: {error}", table=str(name)) from error
        except NoSuchTable as error:
            raise iceberg.NotAppended(f"table {name} was not appended to: a side made or dropped it") from error

    return repository.tables.settling(settled)
