"""Check that the namespaces have everything that the metadata names: trees of commits, and objects of entries.

For each repository, check the commits that its branches and tags reach, and its staged entries. A commit whose data a
collection took or is taking names no object any more, unless an undo can bring it back. Its tree is kept while merges
compare with it, and is checked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from lakebed.base import (
    EMPTY_METARANGE,
    CommitId,
    LakebedError,
    MetarangeId,
    Ports,
    RangeId,
    RepositoryUid,
    Row,
    RunState,
    from_row,
    key_inside,
)
from lakebed.catalog import RepositoryRecord, RepositoryState
from lakebed.gc.live import Snapshot, read_snapshot
from lakebed.kv import Store, scan_prefix
from lakebed.objectstore import ObjectStore
from lakebed.ranges import decode_range, metarange_key, range_key, rows_from_table
from lakebed.versions import (
    BranchRecord,
    Commit,
    Options,
    TagRecord,
    TreeCache,
    Trees,
    Versions,
    decode_cells,
    decode_record,
    is_gone,
    keys,
)

LISTS_BYTES: Final = 64 << 20
"""The size of the cache of sublists. Commits of a wide tree share sublists, so each is read once."""
MISSING_SHOWN: Final = 1000
_TAKING: Final = frozenset({RunState.EXPIRING, RunState.SWEEPING})


class Checked(msgspec.Struct, kw_only=True):
    """Count the checked objects and files. `missing` has the first thousand of `missing_count`, each with its
    repository.

    `foreign` counts entries whose objects are outside their repository's namespace. They are not checked.
    """

    repositories: int = 0
    commits: int = 0
    ranges: int = 0
    entries: int = 0
    foreign: int = 0
    missing_count: int = 0
    missing: list[str] = []

    def miss(self, repository: str, what: str) -> None:
        self.missing_count += 1
        if len(self.missing) < MISSING_SHOWN:
            self.missing.append(f"{repository}: {what}")


async def check_named(store: Store, open_namespace: Callable[[str], ObjectStore], ports: Ports) -> Checked:
    """Check every object and tree file that the active repositories of this store name."""
    checked = Checked()
    async for key, value in scan_prefix(store, keys.REPOSITORIES, b""):
        record = decode_record(RepositoryRecord, value)
        if record.state is RepositoryState.ACTIVE:
            namespace = open_namespace(record.namespace_uri)
            try:
                await _Repository(key.decode(), record.uid, store, namespace, checked, ports).check()
            finally:
                await namespace.close()
            checked.repositories += 1
    return checked


class _Repository:
    def __init__(
        self,
        name: str,
        uid: RepositoryUid,
        store: Store,
        namespace: ObjectStore,
        checked: Checked,
        ports: Ports,
    ) -> None:
        self._name = name
        self._uid = uid
        self._store = store
        self._namespace = namespace
        self._checked = checked
        self._sizes: dict[str, int] = {}
        self._missed: set[str] = set()
        self._versions = Versions(
            uid=uid,
            store=store,
            objectstore=namespace,
            trees=Trees(namespace, TreeCache(LISTS_BYTES), ports),
            ports=ports,
            options=Options(),
        )

    async def check(self) -> None:
        self._sizes = {stat.key: stat.size_bytes async for page in self._namespace.list() for stat in page}
        snapshot = await read_snapshot(self._versions)
        metaranges = {commit.metarange_id for commit in await self._named_commits(await self._taken(snapshot))}
        ranges: set[RangeId] = set()
        for metarange in sorted(metaranges - {EMPTY_METARANGE}):
            ranges |= await self._ranges_of(metarange)
        for range_ in sorted(ranges):
            await self._look_for(await self._rows_of(range_))
            self._checked.ranges += 1
        async for rows in self._staged():
            await self._look_for(rows)
        await self._check_bases(snapshot, ranges)

    async def _check_bases(self, snapshot: Snapshot, seen: AbstractSet[RangeId]) -> None:
        """Check the trees of collected commits that merges compare with, but not their objects."""
        ranges: set[RangeId] = set()
        for _, metarange in snapshot.swept_bases():
            if not await self._went(metarange, metarange_key(metarange)):
                ranges |= await self._ranges_of(metarange)
        for range_ in sorted(ranges - seen):
            if not await self._went(range_, range_key(range_)):
                await self._rows_of(range_)
                self._checked.ranges += 1

    async def _went(self, id_: MetarangeId | RangeId, key: str) -> bool:
        """Return whether a collection deleted the file: the collection retires the id first."""
        return key not in self._sizes and bool((await self._versions.retired.retired_by([id_]))[0])

    async def _named_commits(self, taken: AbstractSet[CommitId]) -> list[Commit]:
        """Return the commits that a branch or a tag reaches, without those that are `taken`."""
        heads = [record.commit_id async for record in self._branches()]
        heads += [decode_record(TagRecord, value).commit_id async for _, value in self._scan(keys.TAG)]
        commits = {
            CommitId(key[len(keys.COMMIT) :].decode()): decode_record(Commit, value)
            async for key, value in self._scan(keys.COMMIT)
        }
        found: dict[CommitId, Commit] = {}
        waiting = [head for head in heads if head]
        while waiting:
            commit_id = waiting.pop()
            if commit_id in found or commit_id in taken:
                continue
            commit = commits.get(commit_id)
            if commit is None:
                self._checked.miss(self._name, f"the record of commit {commit_id}")
                continue
            found[commit_id] = commit
            waiting += commit.parents
        self._checked.commits += len(found)
        return list(found.values())

    async def _taken(self, snapshot: Snapshot) -> set[CommitId]:
        """Return the commits whose objects a collection took or takes. An undo may bring back those of a deferred run.

        Later runs may delete objects of a run that they count on, and it is never undone.
        """
        runs = dict(await self._versions.retired.runs())
        stay = {run for run, record in runs.items() if record.until_ms and not record.counted_by}
        taken = {commit for commit in snapshot.swept if snapshot.returnable.get(commit) not in stay}
        for run, record in runs.items():
            if record.state in _TAKING:
                taken.update(await self._versions.retired.expiring(run))
        return taken

    async def _ranges_of(self, metarange: MetarangeId) -> set[RangeId]:
        key = metarange_key(metarange)
        try:
            return {info.id for info in await self._versions.trees.ranges(metarange)}
        except LakebedError as error:
            self._checked.miss(self._name, f"{key}: {error}")
            return set()

    async def _rows_of(self, range_: RangeId) -> Iterable[Row]:
        key = range_key(range_)
        try:
            return [row for _, row in rows_from_table(decode_range(range_, await self._namespace.get(key)))]
        except LakebedError as error:
            self._checked.miss(self._name, f"{key}: {error}")
            return []

    async def _staged(self) -> AsyncIterator[list[Row]]:
        async for branch in self._branches():
            for token in branch.tokens():
                start: bytes | None = b""
                while start is not None:
                    page = await self._store.scan(keys.token_partition(self._uid, token), start, 1000)
                    yield [row for flags, row in decode_cells(page.values) if not is_gone(flags)]
                    start = page.next_start

    async def _branches(self) -> AsyncIterator[BranchRecord]:
        async for _, value in self._scan(keys.BRANCH):
            yield decode_record(BranchRecord, value)

    def _scan(self, prefix: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        return scan_prefix(self._store, keys.repository_partition(self._uid), prefix)

    async def _look_for(self, rows: Iterable[Row]) -> None:
        wrong: list[tuple[str, str]] = []
        for row in rows:
            entry = from_row(row)
            self._checked.entries += 1
            key = key_inside(entry.address, self._namespace.uri)
            if key is None:
                self._checked.foreign += 1
            elif (size_bytes := self._sizes.get(key)) != entry.size_bytes:
                found = "missing" if size_bytes is None else f"{size_bytes} of {entry.size_bytes} bytes"
                wrong.append((key, found))
        taken = await self._versions.taken.find([key for key, _ in wrong]) if wrong else []
        for (key, found), by in zip(wrong, taken, strict=True):
            # A lifecycle run deletes objects that commits still name. Count an object once: many ranges and paths may
            # name it.
            if by is None and key not in self._missed:
                self._missed.add(key)
                self._checked.miss(self._name, f"{key}: {found}")
