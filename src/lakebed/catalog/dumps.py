"""Dump a repository's refs to its namespace, and restore them into a bare repository.

A dump has the branches (without those of running flows), the tags, and every commit that they reach. The hidden branch
of tables is read last, and settled before: so it has each file that a table of the dump reaches. A dump also has the
swept commits and the slices, but no staged entries and no settings. Objects and trees are not copied: restore a dump
in a namespace that has them. A restore checks everything before it writes:
1 read the three files, and check every commit against its id, its parents and its generation
2 check every file of every tree, and with `check_objects` every object
3 write missing slices, missing commits as not published yet, and swept records; retention counts from now
4 check that no collection of metadata retired one of these files meanwhile
5 mark the commits as published; make tags, then branches with the default branch last
If a restore died, begin it again with the same dump: it continues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from msgspec.structs import replace

from lakebed.base import (
    EMPTY_METARANGE,
    TABLES,
    CommitId,
    Conflict,
    Corrupt,
    MetarangeId,
    NotFound,
    Ports,
    RepositoryId,
    RunId,
    check_branch,
    check_tag,
    count_of,
    in_waves,
    parse_slice_name,
)
from lakebed.objectstore import ObjectMissing, ObjectStore
from lakebed.versions import (
    Commit,
    CommitNotFound,
    LackingFiles,
    LackingObjects,
    SliceRecord,
    SliceState,
    SweptRecord,
    Versions,
    decode_record,
    encode_record,
    keys,
    place_all,
)

from .dump_files import DumpedRef, DumpKind, DumpWriter, FileId, InvalidDump, parse_file_id, read_dump
from .guards import Guards
from .settings import Settings

T = TypeVar("T")

_BATCH: Final = 1_000
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpIds:
    branches: str
    tags: str
    commits: str


@dataclass(slots=True)
class _Dump:
    branches: dict[str, DumpedRef]
    tags: dict[str, DumpedRef]
    commits: dict[CommitId, Commit] = field(default_factory=dict)
    swept: dict[CommitId, bytes] = field(default_factory=dict)
    slices: dict[str, bytes] = field(default_factory=dict)


class Dumps:
    def __init__(
        self,
        versions: Versions,
        objectstore: ObjectStore,
        settings: Settings,
        guards: Guards,
        ports: Ports,
        *,
        repository_id: RepositoryId,
        default_branch: str,
        settle: Callable[[], Awaitable[object]],
    ) -> None:
        """`settle` commits what is staged in the branch of tables, where there is one."""
        self._id = repository_id
        self._settle = settle
        self._versions = versions
        self._objectstore = objectstore
        self._settings = settings
        self._guards = guards
        self._ports = ports
        self._default_branch = default_branch

    # Dumping

    async def dump(self) -> DumpIds:
        """Write the current refs to the namespace, and return the ids of the files.

        Reads refs before commits, so every named commit is included. Keeps the ids of all commits in memory.
        """
        dump = self._ports.ids.fresh()
        branches, tags = await self._branches(), await self._tags()
        # A flow marks its branch before creating it, so each listed branch of a flow is known here.
        for name in await self._settings.work_branches() - {TABLES}:
            branches.pop(name, None)
        if await self._versions.refs.is_work_of(TABLES, TABLES):
            branches[TABLES] = await self._files_of_tables()
        heads = [ref.commit_id for ref in (*branches.values(), *tags.values())]
        commits = await self._put(await self._commits(DumpWriter(dump, DumpKind.COMMITS), heads))
        # Write the file of branches last: a dump is complete with three files.
        return DumpIds(
            commits=commits,
            tags=await self._put(_refs_file(dump, DumpKind.TAGS, tags)),
            branches=await self._put(_refs_file(dump, DumpKind.BRANCHES, branches)),
        )

    async def _files_of_tables(self) -> DumpedRef:
        # After the other refs, never before: a table of theirs reaches files that were in `tables` before its commit.
        await self._settle()
        head = (await self._versions.refs.get_branch(TABLES)).commit_id
        return DumpedRef(commit_id=head, is_hidden=True, work_of=TABLES, repository=self._id)

    async def _branches(self) -> dict[str, DumpedRef]:
        hidden = await self._settings.hidden_branches()
        return {
            branch.name: DumpedRef(commit_id=branch.commit_id, is_hidden=branch.name in hidden)
            async for branch in self._versions.refs.every_branch()
        }

    async def _tags(self) -> dict[str, DumpedRef]:
        return {tag.name: DumpedRef(commit_id=tag.commit_id) async for tag in self._versions.refs.every_tag()}

    async def _commits(self, writer: DumpWriter, heads: Sequence[CommitId]) -> DumpWriter:
        inventory = self._versions.inventory
        parents = {CommitId(id_): commit.parents async for id_, commit in inventory.every(Commit)}
        needed = await self._ports.tasks.apart(partial(_reachable, parents, heads))
        async for name, commit in inventory.every(Commit):
            if name in needed:
                # Every commit that a ref reaches was published, even if its record does not show it.
                writer.add(keys.COMMIT + name.encode(), encode_record(replace(commit, published=True, tried=False)))
        async for name, slice_ in inventory.every(SliceRecord):
            writer.add(keys.SLICE + name.encode(), encode_record(replace(slice_, state=SliceState.CLOSED)))
        # The record of a run shows that it was undone, and is not dumped. So do not dump the swept records of such a
        # run.
        found = {name: record async for name, record in inventory.every(SweptRecord) if name in needed}
        undone = await self._versions.retired.undone(RunId(record.run) for record in found.values())
        for name, swept in found.items():
            if swept.run not in undone:
                writer.add(keys.SWEPT + name.encode(), encode_record(swept))
        return writer

    async def _put(self, writer: DumpWriter) -> str:
        text, file_id, data = writer.finish()
        await self._objectstore.put(file_id.key, data, size_bytes=len(data))
        return text

    # Restoring

    async def restore(self, ids: DumpIds, *, force: bool = False, check_objects: bool = False, by: str = "") -> None:
        """Make the dump's commits, tags and branches in this repository, which has no other refs.

        Repeating it gives the same result. Costs a listing of the trees' files, a read of every tree, and some writes
        for each commit and ref. `check_objects` also costs a read of every range and a listing of every slice.

        Raises:
            NotFound: a file of the dump is missing.
            InvalidDump: the dump contradicts itself or the namespace. Nothing was written.
            Conflict: the repository has other branches or tags, the dump has tables of a repository of another id, or a
                collection ran meanwhile.
            ReadOnly: the repository is read-only, and `force` is not set.
        """
        self._guards.check_writable(force=force)
        dump = await self._read(ids)
        if self._default_branch not in dump.branches:
            raise InvalidDump(
                f"the dump has no branch {self._default_branch}, which is this repository's default branch: create the"
                " repository with one of the dump's"
            )
        self._check_tables(dump)
        await self._check_bare(dump)
        await self._ports.tasks.apart(partial(_check, dump))
        files = await self._check_trees(dump)
        if check_objects:
            await self._check_objects(dump)
        await self._guards.confirm()
        await self._write(dump, files)
        await self._make(dump.tags, await self._tags(), partial(self._versions.refs.create_tag, by=by))
        # Make the default branch last. A repository that has it is restored: until then no collection of it begins
        # (gc/live/installation/installation.py).
        branches = sorted(dump.branches.items(), key=lambda item: (item[0] == self._default_branch, item))

        async def make(name: str, commit_id: str) -> CommitId:
            ref = dump.branches[name]
            if ref.is_hidden:
                # Hide it first: a repeated restore skips an existing branch.
                await self._settings.hide_branch(name, work_of=ref.work_of)
            return await self._versions.refs.create_branch(name, commit_id, by=by, work_of=ref.work_of)

        await self._make(dict(branches), await self._branches(), make)

    async def _read(self, ids: DumpIds) -> _Dump:
        file_ids = {
            kind: parse_file_id(text)
            for kind, text in (
                (DumpKind.BRANCHES, ids.branches),
                (DumpKind.TAGS, ids.tags),
                (DumpKind.COMMITS, ids.commits),
            )
        }
        for kind, file_id in file_ids.items():
            if file_id is None:
                raise NotFound(f"not a Lakebed dump: invalid {kind} id")
        if len({file_id.dump for file_id in file_ids.values() if file_id}) > 1:
            raise InvalidDump("the ids are of different dumps")
        branches = await self._refs(file_ids[DumpKind.BRANCHES], DumpKind.BRANCHES, keys.BRANCH)
        tags = await self._refs(file_ids[DumpKind.TAGS], DumpKind.TAGS, keys.TAG)
        dump = _Dump(branches, tags)
        for count, (key, value) in enumerate(await self._rows(file_ids[DumpKind.COMMITS], DumpKind.COMMITS)):
            if count % _BATCH == 0:
                await self._ports.clock.sleep(0)
            prefix, _, name = key.partition(b"/")
            if prefix + b"/" == keys.COMMIT:
                dump.commits[CommitId(name.decode())] = decode_record(Commit, value)
            elif prefix + b"/" == keys.SWEPT:
                decode_record(SweptRecord, value)
                dump.swept[CommitId(name.decode())] = value
            elif prefix + b"/" == keys.SLICE and parse_slice_name(name.decode()) is not None:
                record = decode_record(SliceRecord, value)
                # Close it: the process that had it open does not belong to this repository.
                dump.slices[name.decode()] = encode_record(replace(record, state=SliceState.CLOSED))
            else:
                raise Corrupt(f"the dump has a row {key!r}, which none has", key=key)
        return dump

    async def _refs(self, file_id: FileId | None, kind: DumpKind, prefix: bytes) -> dict[str, DumpedRef]:
        rows = await self._rows(file_id, kind)
        return {key[len(prefix) :].decode(): decode_record(DumpedRef, value) for key, value in rows}

    async def _rows(self, file_id: FileId | None, kind: DumpKind) -> list[tuple[bytes, bytes]]:
        assert file_id is not None
        try:
            data = await self._objectstore.get(file_id.key)
        except ObjectMissing as error:
            message = f"this namespace has no {kind} of the dump {file_id.dump}"
            raise NotFound(message, key=file_id.key) from error
        return await self._ports.tasks.apart(lambda: list(read_dump(file_id, kind, data)))

    def _check_tables(self, dump: _Dump) -> None:
        """Check that the files of tables have the same URIs here.

        Raises:
            Conflict: they have not.
        """
        for name, ref in dump.branches.items():
            if ref.work_of and (name, ref.work_of) != (TABLES, TABLES):
                raise InvalidDump(f"the dump has a branch {name} of {ref.work_of}")
            if ref.repository not in {"", self._id}:
                raise Conflict(
                    f"the dump has tables, whose metadata names their files in s3://{ref.repository}.{TABLES}: restore"
                    f" it in a repository {ref.repository}, and not in {self._id}",
                    repository=ref.repository,
                )

    async def _check_bare(self, dump: _Dump) -> None:
        """Check that the repository has only refs of the dump, which an interrupted restore may have made."""
        there = {**await self._branches(), **await self._tags()}
        wanted = {**dump.branches, **dump.tags}
        for name, ref in there.items():
            if name not in wanted or not await self._is_restored(name, ref.commit_id, wanted[name]):
                raise Conflict(f"the repository is not bare: it has {name} at commit {ref.commit_id[:12]}", ref=name)

    async def _is_restored(self, name: str, head: CommitId, ref: DumpedRef) -> bool:
        if not ref.work_of or head == ref.commit_id:
            return head == ref.commit_id
        # Upkeep may have settled the branch of tables since the restore that broke off.
        with suppress(NotFound):
            base = await self._versions.history.common_ancestor(head, ref.commit_id)
            return base.id == ref.commit_id and await self._versions.refs.is_work_of(name, ref.work_of)
        return False

    async def _check_trees(self, dump: _Dump) -> set[str]:
        """Return the ids of all tree files that unswept commits name.

        Raises:
            InvalidDump: a file is missing.
        """
        live = _live(dump)
        look = LackingFiles(self._objectstore, self._versions.trees, self._ports)
        async for _ in look.look(_trees_of(live)):
            pass
        lacking = [id_ for id_, commit in live.items() if commit.metarange_id in look.lost]
        if lacking:
            raise InvalidDump(
                f"{count_of(len(lacking), 'commit')} of the dump lack files of their trees in this namespace, such as"
                f" {_some(lacking)}: copy all of the namespace, or make another dump"
            )
        return look.files

    async def _check_objects(self, dump: _Dump) -> None:
        """Check the objects that unswept commits name.

        Raises:
            InvalidDump: an object is missing.
        """
        look = LackingObjects(self._objectstore, self._versions.trees, self._ports)
        await look.look(_trees_of(_live(dump)))
        if look.count:
            shown = ", ".join(f"{path} ({key})" for path, key in look.some)
            raise InvalidDump(
                f"{count_of(look.count, 'object')} that commits of the dump name, not in this namespace: {shown}"
                f"{' and others' if look.count > len(look.some) else ''}. Copy all of the namespace, or restore without"
                " this check: then reads of these objects fail"
            )

    async def _write(self, dump: _Dump, files: Iterable[str]) -> None:
        commits = await self._unpublished(dump)
        await self._set_all(
            (keys.COMMIT + id_.encode(), encode_record(replace(commit, published=False, tried=False)))
            for id_, commit in commits.items()
        )
        await self._set_absent((keys.SLICE + name.encode(), value) for name, value in dump.slices.items())
        await self._set_absent((keys.SWEPT + id_.encode(), value) for id_, value in dump.swept.items())
        # Check after writing the commits: a collection that retires a file from now on reads these commits. If files
        # are retired, the commits left here are treated as orphaned.
        wanted = sorted(files)
        for batch in _batches(wanted):
            if any(await self._versions.retired.retired_by(batch)):
                raise Conflict("a collection of metadata takes files of the dump's trees: no ref was made")
        await self._set_all((keys.COMMIT + id_.encode(), encode_record(one)) for id_, one in commits.items())

    async def _unpublished(self, dump: _Dump) -> dict[CommitId, Commit]:
        """Return the commits to write: all except those that the repository has as published, which are not changed.

        Retention counts from now on, because no ref keeps the commits until the restore ends.
        """
        now_ms = self._ports.clock.now_ms()
        unpublished: dict[CommitId, Commit] = {}
        # Compute the links to far ancestors again: the id does not cover them.
        commits = await self._ports.tasks.apart(partial(place_all, dump.commits))
        for ids in _batches(commits):
            for id_, there in zip(ids, await self._versions.inventory.commits(ids), strict=True):
                if there is None or not there.published:
                    commit = commits[id_]
                    written_ms, counted_ms = max(now_ms, commit.written_ms), max(now_ms, commit.counted_ms)
                    dated = replace(commit, written_ms=written_ms, counted_ms=counted_ms)
                    unpublished[id_] = replace(dated, published=True, tried=False)
        return unpublished

    async def _set_all(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        for batch in _batches(items):
            await self._versions.context.set_all(batch)

    async def _set_absent(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Write only missing records, so that an open slice remains open."""
        for batch in _batches(items):
            there = await self._versions.context.get_many([key for key, _ in batch])
            absent = [item for item, held in zip(batch, there, strict=True) if held is None]
            if absent:
                await self._versions.context.set_all(absent)

    async def _make(
        self,
        wanted: Mapping[str, DumpedRef],
        there: Mapping[str, DumpedRef],
        make: Callable[[str, str], Awaitable[CommitId]],
    ) -> None:
        missing = [(name, ref.commit_id) for name, ref in wanted.items() if name not in there]
        # Make the last one after all others.
        await in_waves(self._ports.tasks, missing[:-1], lambda one: make(*one))
        for one in missing[-1:]:
            await make(*one)


def _refs_file(dump: str, kind: DumpKind, refs: Mapping[str, DumpedRef]) -> DumpWriter:
    writer = DumpWriter(dump, kind, has_tables=any(ref.work_of for ref in refs.values()))
    prefix = keys.BRANCH if kind is DumpKind.BRANCHES else keys.TAG
    for name, ref in sorted(refs.items()):
        writer.add(prefix + name.encode(), encode_record(ref))
    return writer


def _reachable(parents: Mapping[CommitId, Sequence[CommitId]], heads: Sequence[CommitId]) -> set[CommitId]:
    """Return the commits that the heads reach.

    Raises:
        CommitNotFound: a commit is not in `parents`.
    """
    reachable: set[CommitId] = set()
    waiting = [*heads]
    while waiting:
        if (id_ := waiting.pop()) not in reachable:
            if id_ not in parents:
                raise CommitNotFound("commit not found", commit=id_)
            reachable.add(id_)
            waiting += parents[id_]
    return reachable


def _check(dump: _Dump) -> None:
    """Check every commit against its id and its parents, and every ref against its name and its commit.

    Raises:
        InvalidDump: a commit or ref contradicts itself.
        InvalidName: a ref has an invalid name.
    """
    for id_, commit in dump.commits.items():
        if commit.id != id_:
            raise InvalidDump(f"commit {id_[:12]} of the dump contradicts its id")
        if lost := [parent for parent in commit.parents if parent not in dump.commits]:
            raise InvalidDump(f"the dump lacks the commit {lost[0][:12]}, a parent of {id_[:12]}")
        above = max([dump.commits[parent].generation for parent in commit.parents], default=0)
        if commit.generation != above + 1:
            raise InvalidDump(f"commit {id_[:12]} of the dump has the generation {commit.generation}, not {above + 1}")
    for name in dump.branches:
        check_branch(name)
    for name in dump.tags:
        check_tag(name)
    if both := sorted(dump.branches.keys() & dump.tags.keys()):
        raise InvalidDump(f"the dump has a branch and a tag of the name {both[0]}")
    for name, ref in (*dump.branches.items(), *dump.tags.items()):
        if ref.commit_id not in dump.commits or ref.commit_id in dump.swept:
            raise InvalidDump(f"the dump lacks the commit {ref.commit_id[:12]} of {name}, or its contents are gone")


def _live(dump: _Dump) -> dict[CommitId, Commit]:
    """Return the commits whose contents no collection took."""
    return {id_: commit for id_, commit in dump.commits.items() if id_ not in dump.swept}


def _trees_of(commits: Mapping[CommitId, Commit]) -> list[MetarangeId]:
    return sorted({commit.metarange_id for commit in commits.values()} - {EMPTY_METARANGE})


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    each = iter(items)
    while batch := list(islice(each, _BATCH)):
        yield batch


def _some(ids: Sequence[CommitId]) -> str:
    return ", ".join(id_[:12] for id_ in sorted(ids)[:_SHOWN])
