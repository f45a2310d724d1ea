"""The lake of the document's performance section (docs/design/0001-uncommitted-gc.md), made in bulk: `python -m
bench.clusters.document_lake GIVEN`, GIVEN a `Given` as JSON. Objects are names alone (bench/s3.py), and nothing goes
over HTTP: `Trees.apply` makes the tree of each commit in the folder that the S3 server serves, and cells, commits,
branches and slices are records that go into the database as they are.

Of twenty objects of a slice one is garbage, five are staged, fourteen committed. `main` has the larger half of these,
as many in each of its commits. Every other branch begins at its head, and each of its commits adds some objects and
removes some that the commit before added. So only expired commits name the latter, once the branch's head alone stays.
A second repository has a hundredth of the objects, and is there to be deleted. `later` slices are empty at first.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.collecting.listing import s3_options
from bench.embedded.lake import changes_of, checksums, mix, open_trees
from bench.embedded.log import Line
from bench.s3 import BUCKET, FIRST_SLICE
from lakebed.base import CommitId, Entry, MetarangeId, StagingToken, slice_name, to_row
from lakebed.catalog.records import DELETED_REPOSITORIES, DeletedRecord
from lakebed.gc.live import CollectionService, PolicyBook
from lakebed.gc.rules import DAY_MS, days_rules
from lakebed.kv import Store, open_store
from lakebed.objectstore import ObjectStoreOptions, open_objectstore
from lakebed.ranges import CUT_RULE, cut, decode_metarange, encode_metarange, encode_range, metarange_key, range_key
from lakebed.server import ServerOptions, opened, prepare_folder
from lakebed.versions import (
    EXCLUSIVE,
    SliceRecord,
    SliceState,
    Versions,
    decode_record,
    encode_cell,
    encode_record,
    keys,
)

REPOSITORY: Final = "lake"
DELETED: Final = "old"
RULES: Final = days_rules(7)
POLICY: Final = {"old": {"prefix": "lake/base/0", "days": 30}}
WRITTEN_DAYS: Final = 100
DELETED_DAYS: Final = 10
TOGETHER: Final = 250_000
PROCESSES: Final = 2
A_FEW: Final = 10
_TWENTY: Final = np.arange(20)
GARBAGE: Final = _TWENTY[_TWENTY == 7]
STAGED: Final = _TWENTY[_TWENTY % 4 == 1]
COMMITTED: Final = np.setdiff1d(_TWENTY, np.concatenate((GARBAGE, STAGED)))

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """`commits` are those of each branch, which add and remove so many objects; `main` is one of the branches."""

    slices: int
    per_slice: int
    branches: int
    commits: int
    adds: int
    removes: int

    @property
    def objects(self) -> int:
        return self.slices * self.per_slice

    @property
    def staged(self) -> int:
        return self.objects * len(STAGED) // 20

    @property
    def daily(self) -> int:
        """Objects that branches other than `main` add."""
        return (self.branches - 1) * self.commits * self.adds

    @property
    def a_hundredth(self) -> tuple[int, int]:
        """Slices, and branches."""
        return max(1, self.slices // 100), max(1, self.branches // 100)


TWENTIETH: Final = Size(slices=2_000, per_slice=500, branches=200, commits=15, adds=200, removes=10)
SIZES: Final = {
    "small": Size(slices=10, per_slice=200, branches=4, commits=3, adds=20, removes=2),
    "twentieth": TWENTIETH,
    "twentieth-spark": TWENTIETH,
    "tenth": Size(slices=200, per_slice=10_000, branches=100, commits=30, adds=140, removes=10),
    "full": Size(slices=2_000, per_slice=10_000, branches=1_000, commits=30, adds=140, removes=10),
}


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """`pids` are those of the processes that are measured, by what they are. `settings` are those of Spark; with none
    the steps run in the driver. `package` is the zip for Spark's workers. To make the lake takes none of these."""

    folder: str
    size: Size
    s3_endpoint: str = ""
    phases: tuple[str, ...] = ()
    endpoint: str = ""
    key: tuple[str, str] = ("", "")
    pids: dict[str, list[int]] = {}
    settings: dict[str, str] = {}
    package: str = ""

    @property
    def objectstore(self) -> ObjectStoreOptions:
        return s3_options(self.s3_endpoint)

    @property
    def options(self) -> ServerOptions:
        data = Path(self.folder) / "data"
        return ServerOptions(data_dir=data, blockstore="s3", objectstore=self.objectstore)

    @property
    def partition(self) -> Path:
        """Which partition of the database is the lake's."""
        return Path(self.folder) / "partition"

    def names(self, repository: str) -> Path:
        return Path(self.folder) / "names" / f"{repository}.npy"


# What is where


def places(of_twenty: Integers, first: int, behind: int) -> tuple[Integers, Integers]:
    """Which slice, and which sequence in it, of the objects `first` to before `behind` of a kind, as slices follow."""
    twenties, at = np.divmod(np.arange(first, behind), len(of_twenty))
    return twenties, of_twenty[at]


def numbers_of(of_twenty: Integers, first: int, behind: int) -> Integers:
    """The number of these objects among all of the lake."""
    twenties, at = places(of_twenty, first, behind)
    return twenties * 20 + at


def daily(size: Size, branch: int, commit: int) -> tuple[int, int]:
    """Which committed objects this commit of this branch adds; `main` is branch 0, and has what is behind all others"""
    if branch:
        first = (commit * (size.branches - 1) + branch - 1) * size.adds
        return first, first + size.adds
    rest = size.objects * len(COMMITTED) // 20 - size.daily
    return size.daily + rest * commit // size.commits, size.daily + rest * (commit + 1) // size.commits


def staged(size: Size, branch: int) -> tuple[int, int]:
    return size.staged * branch // size.branches, size.staged * (branch + 1) // size.branches


def removed(size: Size) -> Iterator[tuple[int, int]]:
    """Committed objects that no head has."""
    for branch in range(1, size.branches):
        for commit in range(size.commits - 1):
            first, _ = daily(size, branch, commit)
            yield first, first + size.removes


def is_there(size: Size) -> Flags:
    """The names of the lake at first."""
    later, _ = size.a_hundredth
    flags = np.zeros((size.slices + later, size.per_slice), np.uint8)
    flags[: size.slices] = 1
    return flags


def make_names(given: Given) -> None:
    """The S3 server opens these files."""
    later, _ = given.size.a_hundredth
    given.names(REPOSITORY).parent.mkdir()
    np.save(given.names(REPOSITORY), is_there(given.size))
    np.save(given.names(DELETED), np.ones((later, given.size.per_slice), np.uint8))


# Trees and commits


def folder_of(branch: int, commit: int) -> str:
    return f"base/{commit:02d}/" if branch == 0 else f"daily/{branch:04d}/{commit:02d}/"


def added(size: Size, branch: int, commit: int, first: int, behind: int) -> pa.Table:
    """CHANGES: these of the objects that the commit adds, by their numbers in it."""
    start, _ = daily(size, branch, commit)
    numbers = numbers_of(COMMITTED, start + first, start + behind)
    table = entries_of(size, folder_of(branch, commit), np.arange(first, behind), numbers)
    if branch == 0 and start + behind == size.objects * len(COMMITTED) // 20:
        *others, last = table["key"].to_pylist()
        table = table.set_column(0, table.schema.field(0), pa.array([*others, cutting(last)], pa.binary()))
    return table


def cutting(key: bytes) -> bytes:
    """A key close behind, at which a tree is cut."""
    names = (key.replace(b".parquet", b"-%d.parquet" % number) for number in itertools.count())
    return next(name for name in names if CUT_RULE.is_complete(name, 1))


def entries_of(size: Size, folder: str, parts: Integers, numbers: Integers) -> pa.Table:
    mixed = mix(numbers, 0)
    digits = pc.utf8_lpad(pc.cast(pa.array(parts), pa.string()), 7, "0")
    named = pc.binary_join_element_wise(f"lake/{folder}part-", digits, ".parquet", "")
    return changes_of(
        key=named.cast(pa.binary()),
        digest=mixed.view(np.int64),
        slice=FIRST_SLICE + numbers // size.per_slice,
        sequence=(numbers % size.per_slice).astype(np.int32),
        size_bytes=np.ones(len(numbers), np.int64),
        checksum=checksums(mixed),
        modified_ms=np.full(len(numbers), time.time_ns() // 1_000_000 - WRITTEN_DAYS * DAY_MS),
    )


class Branch(Line):
    """A branch in the making: the commits up to its head, and its tree."""

    def __init__(self, ids: Sequence[CommitId], metarange: MetarangeId) -> None:
        super().__init__(ids)
        self.metarange = metarange

    def load(self, branch: str, *, age_days: int) -> None:
        self.commit(branch, self.metarange, time.time_ns() // 1_000_000 - age_days * DAY_MS)


def name_of(branch: int) -> str:
    return f"branch-{branch:04d}" if branch else "main"


async def grow_main(given: Given, first: CommitId, empty: MetarangeId) -> Branch:
    size, chain = given.size, Branch([first], empty)
    store = open_objectstore(f"local://{BUCKET}/{REPOSITORY}", local(given))
    trees = open_trees(store)
    for commit in range(size.commits):
        start, behind = daily(size, 0, commit)
        for at in range(0, behind - start, TOGETHER):
            table = added(size, 0, commit, at, min(at + TOGETHER, behind - start))
            chain.metarange = (await trees.apply(chain.metarange, table)).metarange_id
        chain.load("main", age_days=90 - commit)
    await store.close()
    return chain


async def grow(given: Given, root: Branch, branches: Sequence[int]) -> list[tuple[int, Branch]]:
    """Every commit of these branches, which begin at the head of `main`.

    Its last range ends in a cut, so no branch changes one of its ranges. What a branch adds is cut as `Trees.apply`
    cuts it, in a third of the time; of one branch the two are compared.
    """
    size, made = given.size, []
    store = open_objectstore(f"local://{BUCKET}/{REPOSITORY}", local(given))
    trees = open_trees(store)
    data = await store.get(metarange_key(root.metarange))
    of_main = [*decode_metarange(root.metarange, data)]
    for branch in branches:
        chain, tables = Branch(root.ids, root.metarange), list[pa.Table]()
        for commit in range(size.commits):
            if tables:
                tables[-1] = tables[-1].slice(size.removes)
            tables.append(added(size, branch, commit, 0, size.adds))
            ranges = [encode_range(rows) for rows in cut(pa.concat_tables(tables).combine_chunks())]
            for info, data in ranges:
                await store.put(range_key(info.id), data)
            id_, data = encode_metarange([*of_main, *(info for info, _ in ranges)])
            await store.put(metarange_key(id_), data)
            chain.metarange = id_
            chain.load(name_of(branch), age_days=60 - commit)
        made.append((branch, chain))
        if branch == branches[0]:
            same = await trees.apply(root.metarange, pa.concat_tables(tables))
            assert same.metarange_id == chain.metarange, (same.metarange_id, chain.metarange)
    await store.close()
    return made


def pool_of(size: Size) -> Executor:
    """Processes that load all of this anew take longer than a few branches do."""
    if size.branches <= A_FEW:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn"))


def local(given: Given) -> ObjectStoreOptions:
    return ObjectStoreOptions(local_root=Path(given.folder), local_durable=False)


def grow_some(given: Given, root: Branch, branches: Sequence[int]) -> list[tuple[int, Branch]]:
    return asyncio.run(grow(given, root, branches))


# The repositories


async def make(given: Given) -> None:
    size = given.size
    prepare_folder(given.options.data_dir)
    async with opened(given.options) as state:
        lake = await state.catalog.create(REPOSITORY, storage_namespace=f"s3://{BUCKET}/{REPOSITORY}")
        versions = lake.versions
        given.partition.write_bytes(versions.partition)
        [(_, main)] = await versions.context.branches.every()
        first = await versions.context.commits.read(main.commit_id)
        root = await grow_main(given, main.commit_id, first.metarange_id)
        stretches = [range(1, size.branches)[start::PROCESSES] for start in range(PROCESSES)]
        with pool_of(size) as pool:
            work = [pool.submit(grow_some, given, root, some) for some in stretches]
            for number in range(size.branches):
                await stage(given, versions, number, StagingToken(f"staged-{number:04d}"))
            chains = [(0, root), *(one for future in work for one in future.result())]
        for number, chain in chains:
            await versions.store.set_many(versions.partition, chain.items)
            token = StagingToken(f"staged-{number:04d}")
            record = msgspec.structs.replace(main, commit_id=chain.ids[-1], staging_token=token)
            await versions.store.set(versions.partition, keys.BRANCH + name_of(number).encode(), encode_record(record))
        await close_slices(versions.store, versions.partition, range(size.slices))
        await CollectionService(versions).rules.write(RULES)
        await PolicyBook(versions).write(msgspec.json.encode(POLICY))
        old = await state.catalog.create(DELETED, storage_namespace=f"s3://{BUCKET}/{DELETED}")
        await make_deleted(given, old.versions)
        await state.catalog.delete(DELETED)
        record_key = old.versions.uid.encode()
        held = await versions.store.get(DELETED_REPOSITORIES, record_key)
        assert held is not None
        deleted = decode_record(DeletedRecord, held.value)
        since_ms = deleted.deleted_ms - DELETED_DAYS * DAY_MS
        long_ago = msgspec.structs.replace(deleted, deleted_ms=since_ms, kept_until_ms=since_ms)
        await versions.store.set(DELETED_REPOSITORIES, record_key, encode_record(long_ago))


async def stage(given: Given, versions: Versions, branch: int, token: StagingToken) -> None:
    size, cells = given.size, []
    first, behind = staged(size, branch)
    now_ms = time.time_ns() // 1_000_000 - DAY_MS
    for part, number in enumerate(numbers_of(STAGED, first, behind).tolist()):
        key = f"lake/staged/{branch:04d}/part-{part:07d}.parquet".encode()
        address = f"data/{slice_name(FIRST_SLICE + number // size.per_slice)}/{number % size.per_slice:08d}"
        entry = Entry(address=address, size_bytes=1, checksum=f"{number:032x}", modified_ms=now_ms)
        cells.append((key, encode_cell(EXCLUSIVE, to_row(key, entry))))
    await versions.store.set_many(keys.token_partition(versions.uid, token), cells)


async def close_slices(store: Store, partition: bytes, numbers: range) -> None:
    opened_ms = time.time_ns() // 1_000_000 - DAY_MS
    record = encode_record(SliceRecord(state=SliceState.CLOSED, owner="bench", opened_ms=opened_ms))
    await store.set_many(partition, [(keys.SLICE + slice_name(FIRST_SLICE + n).encode(), record) for n in numbers])


async def fill_later(given: Given) -> None:
    """Let the later slices be there, as a server leaves them: full, and closed."""
    size, file = given.size, np.load(given.names(REPOSITORY), mmap_mode="r+")
    file[size.slices :] = 1
    store = open_store(given.options.metadata_uri)
    await close_slices(store, given.partition.read_bytes(), range(size.slices, len(file)))
    await store.close()


async def make_deleted(given: Given, versions: Versions) -> None:
    """A repository with one commit of all of its objects."""
    slices, _ = given.size.a_hundredth
    numbers = np.arange(slices * given.size.per_slice)
    [(_, main)] = await versions.context.branches.every()
    first = await versions.context.commits.read(main.commit_id)
    applied = await versions.trees.apply(first.metarange_id, entries_of(given.size, "", numbers, numbers))
    chain = Branch([main.commit_id], applied.metarange_id)
    chain.load("main", age_days=30)
    await versions.store.set_many(versions.partition, chain.items)
    record = msgspec.structs.replace(main, commit_id=chain.ids[-1])
    await versions.store.set(versions.partition, keys.BRANCH + b"main", encode_record(record))
    await close_slices(versions.store, versions.partition, range(slices))


if __name__ == "__main__":
    asyncio.run(make(msgspec.json.decode(sys.argv[1], type=Given)))
