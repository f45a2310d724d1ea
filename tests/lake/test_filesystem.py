"""`lakebed://` by fsspec's own tests, and through the programs that open files by it."""

from __future__ import annotations

import asyncio
import io
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.dataframe as dd
import duckdb
import fsspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from fsspec.tests.abstract import AbstractFixtures
from fsspec.tests.abstract.copy import AbstractCopyTests
from fsspec.tests.abstract.get import AbstractGetTests
from fsspec.tests.abstract.open import AbstractOpenTests
from fsspec.tests.abstract.pipe import AbstractPipeTests
from fsspec.tests.abstract.put import AbstractPutTests

import lakebed
from lakebed.lake.asynchronous_files import AsyncFile, AsyncLakebedFileSystem
from lakebed.lake.filesystem import LakebedFileSystem

names = itertools.count()
TABLE = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})


@pytest.fixture
def fs(lake: lakebed.Lake) -> LakebedFileSystem:
    return LakebedFileSystem(lake=lake, skip_instance_cache=True)


@pytest.fixture
def root(repository: lakebed.Repository) -> str:
    return f"{repository.name}/main"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lakebed.Lake]:
    with lakebed.open_local(tmp_path_factory.mktemp("lake"), environment={}) as opened:
        yield opened


class Fixtures(AbstractFixtures):  # type: ignore[misc]  # fsspec has no types
    @pytest.fixture
    def fs(self, opened: lakebed.Lake) -> LakebedFileSystem:
        return LakebedFileSystem(lake=opened, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, opened: lakebed.Lake) -> str:
        return f"{opened.create_repository(f'abstract-{next(names)}').name}/main/tests"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(AbstractCopyTests, Fixtures):  # type: ignore[misc]  # fsspec has no types
    pass


class TestGet(AbstractGetTests, Fixtures):  # type: ignore[misc]  # fsspec has no types
    pass


class TestPut(AbstractPutTests, Fixtures):  # type: ignore[misc]  # fsspec has no types
    pass


class TestPipe(AbstractPipeTests, Fixtures):  # type: ignore[misc]  # fsspec has no types
    pass


class TestOpen(AbstractOpenTests, Fixtures):  # type: ignore[misc]  # fsspec has no types
    pass


def test_the_protocol_is_known_to_fsspec_by_its_name() -> None:
    assert fsspec.get_filesystem_class("lakebed") is LakebedFileSystem


def test_what_a_path_is(fs: LakebedFileSystem, root: str, repository: lakebed.Repository) -> None:
    fs.pipe_file(f"lakebed://{root}/a/b.txt", b"hello", content_type="text/plain", metadata={"k": "v"})

    found = fs.info(f"{root}/a/b.txt")
    assert (found["name"], found["size"], found["type"]) == (f"{root}/a/b.txt", 5, "file")
    assert (found["content_type"], found["metadata"]) == ("text/plain", {"k": "v"})
    assert fs.ukey(f"{root}/a/b.txt") == found["checksum"] == repository.branch().stat("a/b.txt").checksum
    assert fs.modified(f"{root}/a/b.txt").timestamp() == found["mtime"]
    assert [fs.isdir(path) for path in ("", repository.name, root, f"{root}/a", f"{root}/b")] == [True] * 4 + [False]
    assert fs.ls(root, detail=False) == [f"{root}/a"]
    assert root in fs.ls(repository.name, detail=False)
    assert repository.name in fs.ls("lakebed://", detail=False)
    with pytest.raises(FileNotFoundError):
        fs.info(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        fs.ls(f"{repository.name}/nobranch")
    with pytest.raises(FileNotFoundError):
        fs.open(f"{root}/none")


def test_finding_and_globbing(fs: LakebedFileSystem, root: str) -> None:
    for path in ("x/1.csv", "x/2.csv", "x/y/3.csv", "xy/4.csv", "5.txt"):
        fs.pipe_file(f"{root}/{path}", b"1")

    assert fs.find(f"{root}/x") == [f"{root}/{each}" for each in ("x/1.csv", "x/2.csv", "x/y/3.csv")]
    assert fs.find(f"{root}/5.txt") == [f"{root}/5.txt"]
    assert fs.glob(f"{root}/x/*.csv") == [f"{root}/x/1.csv", f"{root}/x/2.csv"]
    assert len(fs.glob(f"{root}/**/*.csv")) == 4
    assert fs.du(root) == 5
    found = fs.find(root, maxdepth=1, withdirs=True)
    assert found == [root, *(f"{root}/{each}" for each in ("5.txt", "x", "xy"))]


def test_parts_of_a_file(fs: LakebedFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"0123456789")

    assert fs.cat_file(f"{root}/a", 2, 5) == b"234"
    assert fs.cat_file(f"{root}/a", -3) == b"789"
    assert fs.cat_file(f"{root}/a", 1, -1) == b"12345678"
    assert fs.cat_file(f"{root}/a", 5, 2) == b""
    for cache in ("readahead", "blockcache", "bytes", "none"):
        with fs.open(f"{root}/a", cache_type=cache, block_size=3) as file:
            file.seek(4)
            assert file.read(4) == b"4567"


def test_ranges_of_many_files_come_in_the_order_asked_for(fs: LakebedFileSystem, root: str) -> None:
    whole = bytes(range(256)) * 1024
    for name in ("a", "b"):
        fs.pipe_file(f"{root}/{name}", whole)
    a, b = f"{root}/a", f"lakebed://{root}/b"

    found = fs.cat_ranges([b, a, a, a, b], [10, 200_000, 0, -3, 5], [20, 200_010, 4, None, 5])

    assert found == [whole[10:20], whole[200_000:200_010], whole[:4], whole[-3:], b""]
    assert fs.cat_ranges([a, b], 1, 3) == [whole[1:3]] * 2
    for gap in (0, 1 << 20):
        assert fs.cat_ranges([a, a], [0, 9], [5, 12], max_gap=gap) == [whole[:5], whole[9:12]]


def test_a_file_that_is_not_there_spoils_only_its_own_ranges(fs: LakebedFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"0123")

    missing, there = fs.cat_ranges([f"{root}/none", f"{root}/a"], [0, 0], [1, 2])

    assert (type(missing), there) == (FileNotFoundError, b"01")
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([f"{root}/none"], 0, 1, on_error="raise")
    with pytest.raises(ValueError, match="as many starts"):
        fs.cat_ranges([f"{root}/a"], [0, 1], [1, 2])


@pytest.mark.parametrize("cache", ["blockcache", "readahead", "bytes", "none"])
async def test_a_file_opened_for_await_keeps_blocks_as_the_caller_says(
    fs: LakebedFileSystem, root: str, cache: str
) -> None:
    fs.pipe_file(f"{root}/a", b"0123456789" * 10)
    files = AsyncLakebedFileSystem(fs)

    async with await files.open_async(f"{root}/a", cache_type=cache, block_size=20) as file:
        kept = file.sync.cache  # type: ignore[attr-defined]  # of fsspec's files
        first = await file.read(5)
        fetched = kept.total_requested_bytes
        file.seek(0)
        again = await file.read(5)
        fetched_again = kept.total_requested_bytes
        file.seek(-2, 2)
        rest = await file.read()

    assert (first, again, rest) == (b"01234", b"01234", b"89")
    assert kept.name == cache
    # The cache called "none" counts nothing.
    assert (fetched == 0, fetched_again) == (cache == "none", fetched)


async def test_a_read_that_is_cancelled_leaves_the_file_as_it_was() -> None:
    class Slow(io.BytesIO):
        """Says when a thread begins to read, and goes on when it may."""

        began, may_go_on = threading.Event(), threading.Event()
        at_once = most = 0

        def read(self, length: int | None = -1) -> bytes:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            self.began.set()
            self.may_go_on.wait()
            data = super().read(length)
            self.at_once -= 1
            return data

    slow = Slow(b"0123456789")
    file = AsyncFile(slow)
    cancelled = asyncio.create_task(file.read(4))
    await asyncio.to_thread(slow.began.wait)

    cancelled.cancel()
    following = asyncio.create_task(file.read(4))
    await asyncio.sleep(0)
    cancelled.cancel()  # One who waits for it loses patience again.
    await asyncio.sleep(0)
    slow.may_go_on.set()

    assert (await following, file.tell(), slow.most) == (b"0123", 4, 1)
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await file.close()


async def test_the_file_system_is_awaited_and_writes_whole_files(fs: LakebedFileSystem, root: str) -> None:
    files = AsyncLakebedFileSystem(fs)

    async with await files.open_async(f"{root}/x/a", "wb") as file:
        await file.write(b"01")
        await file.write(b"23")
    await asyncio.gather(*(files._pipe_file(f"{root}/x/{number}", b"1") for number in range(5)))

    assert await files._cat_file(f"{root}/x/a", start=1) == b"123"
    assert len(await files._find(f"{root}/x")) == 6
    assert await files._cat_ranges([f"{root}/x/a"] * 2, [0, 2], [1, 4]) == [b"0", b"23"]
    with pytest.raises(FileNotFoundError):
        await files.open_async(f"{root}/none")
    with pytest.raises(ValueError, match="takes bytes"):
        await files.open_async(f"{root}/x/a", "r")

    async def fail() -> None:
        async with await files.open_async(f"{root}/half", "wb") as file:
            await file.write(b"0")
            raise RuntimeError("the job failed")

    with pytest.raises(RuntimeError):
        await fail()
    assert not await files._exists(f"{root}/half")


def test_moving_and_deleting(fs: LakebedFileSystem, root: str, repository: lakebed.Repository) -> None:
    for path in ("d/1", "d/2", "keep"):
        fs.pipe_file(f"{root}/{path}", path.encode())
    fs.mv(f"{root}/d", f"{root}/e", recursive=True)

    assert fs.find(root) == [f"{root}/e/1", f"{root}/e/2", f"{root}/keep"]
    fs.rm(f"{root}/e", recursive=True)
    assert fs.find(root) == [f"{root}/keep"]
    with pytest.raises(FileNotFoundError):
        fs.rm_file(f"{root}/e/1")
    for whole in (repository.name, "lakebed://"):
        with pytest.raises(PermissionError):
            fs.rm(whole, recursive=True)
    assert fs.exists(f"{root}/keep")


def test_a_folder_or_a_missing_path_is_not_deleted_or_moved_in_silence(fs: LakebedFileSystem, root: str) -> None:
    for path in ("d/1", "keep"):
        fs.pipe_file(f"{root}/{path}", b"1")

    for folder in (f"{root}/d", root, f"{root}/*", [f"{root}/keep", f"{root}/d"]):
        with pytest.raises(IsADirectoryError, match="recursive=True"):
            fs.rm(folder)
    with pytest.raises(IsADirectoryError):
        fs.mv(f"{root}/d", f"{root}/e")
    for missing in (f"{root}/none", [f"{root}/keep", f"{root}/none"]):
        for recursive in (False, True):
            with pytest.raises(FileNotFoundError):
                fs.rm(missing, recursive=recursive)
    assert fs.find(root) == [f"{root}/d/1", f"{root}/keep"]


def test_folders_are_made_and_ended_by_their_files_alone(fs: LakebedFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/d/1", b"1")
    fs.mkdir(f"{root}/new")
    fs.makedirs(f"{root}/d", exist_ok=True)
    fs.rmdir(f"{root}/new")

    with pytest.raises(FileExistsError):
        fs.makedirs(f"{root}/d")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(f"{root}/d")
    with pytest.raises(NotADirectoryError):
        fs.rmdir(f"{root}/d/1")
    with pytest.raises(FileNotFoundError):
        fs.mkdir("no-such-repository")


def test_a_copy_into_another_repository_carries_the_bytes(
    fs: LakebedFileSystem, root: str, lake: lakebed.Lake, repository: lakebed.Repository
) -> None:
    other = lake.create_repository(f"{repository.name}-other")
    fs.pipe_file(f"{root}/a", b"bytes")
    fs.cp_file(f"{root}/a", f"{other.name}/main/b")

    assert other.branch().read("b") == b"bytes"


def test_a_transaction_of_files_is_one_commit_or_nothing(
    fs: LakebedFileSystem, root: str, repository: lakebed.Repository
) -> None:
    main = repository.branch()
    with fs.transaction:
        with fs.open(f"{root}/a", "wb") as file:
            file.write(b"1")
        fs.pipe_file(f"{root}/b", b"2")
        assert fs.cat_file(f"{root}/a") == b"1"
        assert not main.exists("a")
    assert main.read("a") + main.read("b") == b"12"
    assert [commit.message for commit in main.log(limit=1)] == ["written through fsspec"]

    def fail() -> None:
        with fs.transaction:
            fs.pipe_file(f"{root}/a", b"changed")
            fs.rm_file(f"{root}/b")
            raise RuntimeError("the job failed")

    with pytest.raises(RuntimeError):
        fail()
    assert main.read("a") + main.read("b") == b"12"
    assert [branch.name for branch in repository.branches()] == ["main"]
    fs.pipe_file(f"{root}/c", b"outside")
    assert main.read("c") == b"outside"


def test_threads_that_write_in_one_transaction_make_one_commit(
    fs: LakebedFileSystem, root: str, repository: lakebed.Repository
) -> None:
    names = [f"{root}/{number}" for number in range(8)]
    begin = threading.Barrier(len(names), timeout=60)

    def write(name: str) -> None:
        begin.wait()
        fs.pipe_file(name, name.encode())

    before = sum(1 for _ in repository.branch().log())
    with fs.transaction, ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(write, names))

    assert fs.cat(names) == {name: name.encode() for name in names}
    assert sum(1 for _ in repository.branch().log()) == before + 1


def test_a_file_is_read_and_written_whole(fs: LakebedFileSystem, root: str) -> None:
    with pytest.raises(NotImplementedError, match="written whole"):
        fs.open(f"{root}/a", "ab")
    with pytest.raises(IsADirectoryError):
        fs.open(root, "rb")
    with pytest.raises(FileNotFoundError), fs.open(f"{root.split('/', maxsplit=1)[0]}/main~0/a", "wb") as file:
        file.write(b"a commit cannot be written")


def test_misspelt_options_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no option foldr; it has endpoint"):
        fsspec.filesystem("lakebed", foldr="./lake")
    with pytest.raises(lakebed.NotFound, match="there is no lake"):
        fsspec.filesystem("lakebed", folder=str(tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()


def test_where_the_second_of_two_branches_conflicts_the_first_is_done_and_none_is_left(
    fs: LakebedFileSystem, repository: lakebed.Repository
) -> None:
    branches = [repository.create_branch(name) for name in ("one", "two")]

    def write() -> None:
        with fs.transaction:
            for branch in branches:
                fs.pipe_file(f"{repository.name}/{branch.name}/a", b"mine")
            branches[1].write("a", b"other")
            branches[1].commit("meanwhile")

    with pytest.raises(lakebed.Conflict):
        write()
    assert (branches[0].read("a"), branches[1].read("a")) == (b"mine", b"other")
    assert {branch.name for branch in repository.branches()} == {"main", "one", "two"}


class Folder:
    """A lake in a folder, as the storage options that programs take."""

    def __init__(self, path: Path) -> None:
        self.options = {"folder": str(path)}
        with lakebed.open_local(path, environment={}) as lake:
            lake.create_repository("data")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "lake")
    yield made
    fsspec.filesystem("lakebed", **made.options).lake.close()
    LakebedFileSystem.clear_instance_cache()


def test_pandas_reads_and_writes(folder: Folder) -> None:
    frame = TABLE.to_pandas()
    frame.to_parquet("lakebed://data/main/t.parquet", storage_options=folder.options)
    frame.to_csv("lakebed://data/main/t.csv", index=False, storage_options=folder.options)

    assert pd.read_parquet("lakebed://data/main/t.parquet", storage_options=folder.options).equals(frame)
    assert pd.read_csv("lakebed://data/main/t.csv", storage_options=folder.options).equals(frame)


def test_pyarrow_polars_and_duckdb_read_what_pyarrow_writes(folder: Folder) -> None:
    fs = fsspec.filesystem("lakebed", **folder.options)
    for month in ("01", "02"):
        pa.dataset.write_dataset(TABLE, f"data/main/t/month={month}", filesystem=fs, format="parquet")

    rows = pa.dataset.dataset("data/main/t", filesystem=fs, format="parquet", partitioning="hive").to_table()
    assert rows.num_rows == 6
    with fs.open(fs.find("data/main/t")[0]) as file:
        assert pl.read_parquet(io.BytesIO(file.read())).height == 3
    paths = [f"lakebed://{path}" for path in fs.find("data/main/t")]
    assert pl.read_parquet(paths[0], storage_options=folder.options, use_pyarrow=True).height == 3
    connection = duckdb.connect()
    connection.register_filesystem(fs)
    assert connection.sql("select sum(id) from read_parquet('lakebed://data/main/t/*/*.parquet')").fetchall() == [(12,)]
    connection.close()


def test_dask_reads_and_writes_frames_in_parts(folder: Folder) -> None:
    where = {"storage_options": folder.options}
    frame = dd.from_pandas(TABLE.to_pandas(), npartitions=2)

    with dask.config.set(scheduler="threads", num_workers=2):
        frame.to_parquet("lakebed://data/main/dask", **where)
        frame.to_csv("lakebed://data/main/csv/*.csv", index=False, **where)
        from_parquet = dd.read_parquet("lakebed://data/main/dask", **where).compute()
        from_csv = dd.read_csv("lakebed://data/main/csv/*.csv", **where).compute()

    assert sorted(from_parquet.id) == sorted(from_csv.id) == [1, 2, 3]
    files = fsspec.filesystem("lakebed", **folder.options)
    assert len(files.glob("data/main/dask/*.parquet")) == len(files.glob("data/main/csv/*.csv")) == 2


def test_a_moved_file_keeps_its_object(fs: LakebedFileSystem, root: str, repository: lakebed.Repository) -> None:
    fs.pipe_file(f"{root}/a", b"1")
    before = repository.branch("main").stat("a").physical_address

    fs.mv(f"{root}/a", f"{root}/b")

    assert repository.branch("main").stat("b").physical_address == before
    assert not fs.exists(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{root}/a", f"{root}/c")


def test_caching_that_makes_no_sense_is_refused(fs: LakebedFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"1")

    for options, what in (
        ({"block_size": "1MB"}, "block_size is '1MB'"),
        ({"block_size": 0}, "block_size is 0"),
        ({"cache_type": "frotz"}, "cache_type is 'frotz'.*readahead"),
    ):
        with pytest.raises(ValueError, match=what):
            fs.open(f"{root}/a", "rb", **options)
