"""The local folder keeps the contract, and what only a folder can be asked: links, leftovers, full disks, kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import random
import resource
import stat
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakebed.objectstore import (
    Deleter,
    InvalidObjectKey,
    ObjectExists,
    ObjectMissing,
    ObjectOutcomeUnknown,
    ObjectStore,
    ObjectStoreOptions,
    ObjectStoreUnavailable,
)
from lakebed.objectstore.drivers import local_files
from lakebed.objectstore.drivers.local import LocalDeleter, LocalObjectStore
from lakebed.objectstore.drivers.local_files import Folder
from lakebed.testing.contracts import ObjectStoreContract
from lakebed.testing.contracts.bodies import LARGE_BYTES, large_body, md5_of
from lakebed.testing.contracts.objectstore import keys_of, put_many
from tests.objectstore import writer


class TestLocalObjectStore(ObjectStoreContract):
    many = 1050

    @pytest.fixture
    def objectstore(self, tmp_path: Path) -> ObjectStore:
        return LocalObjectStore("local://bucket/ns", tmp_path, ("bucket", "ns"))

    @pytest.fixture
    def deleter(self, tmp_path: Path) -> Deleter:
        return LocalDeleter("local://bucket/ns", tmp_path, ("bucket", "ns"))


class TestLocalObjectStoreThatAreNotDurable(ObjectStoreContract):
    @pytest.fixture
    def objectstore(self, tmp_path: Path) -> ObjectStore:
        return LocalObjectStore("local://bucket", tmp_path / "made" / "by the first put", durable=False)

    @pytest.fixture
    def deleter(self, tmp_path: Path) -> Deleter:
        return LocalDeleter("local://bucket", tmp_path / "made" / "by the first put", durable=False)


@pytest.fixture
def objectstore(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore("local://bucket/ns", tmp_path, ("bucket", "ns"))


@pytest.fixture
def deleter(tmp_path: Path) -> LocalDeleter:
    return LocalDeleter("local://bucket/ns", tmp_path, ("bucket", "ns"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket" / "ns"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def temporaries(root: Path) -> list[str]:
    return names(root / ".lakebed-tmp")


def modes_in(folder: Path) -> set[tuple[bool, int]]:
    """Whether it is a folder, and its mode: of this folder and all below it."""
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [folder, *folder.rglob("*")]}


def open_in(folder: Path) -> int:
    """How many files and directories below it this process has open."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the directory we are just reading
            found += descriptor.readlink().is_relative_to(folder)
    return found


def remove_tree(folder: Path) -> None:
    subprocess.run(["rm", "-r", folder], check=True)


async def test_an_object_is_a_file_of_its_name(objectstore: LocalObjectStore, root: Path) -> None:
    await objectstore.put("data/é %2F/x", b"bytes")
    assert (root / "data" / "é %2F" / "x").read_bytes() == b"bytes"
    assert not temporaries(root)


async def test_what_a_store_makes_is_its_owners_alone(objectstore: LocalObjectStore, root: Path) -> None:
    before = os.umask(0)
    try:
        await objectstore.put("data/small", b"1")
        await objectstore.put("data/large", large_body())
        await objectstore.copy("data/small", "copied/small")
    finally:
        os.umask(before)

    assert modes_in(root.parent) == {(True, 0o700), (False, 0o600)}


async def test_reading_an_unknown_namespace_makes_nothing(
    objectstore: LocalObjectStore, deleter: LocalDeleter, tmp_path: Path
) -> None:
    assert await keys_of(objectstore, "data/") == []
    with pytest.raises(ObjectMissing):
        await objectstore.get("x")
    assert not await deleter.delete(["x"])
    assert await objectstore.remove_leftovers() == 0
    assert names(tmp_path) == []


async def test_no_key_leads_through_a_symbolic_link(
    objectstore: LocalObjectStore, deleter: LocalDeleter, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    await objectstore.put("mine", b"mine")
    (root / "out").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "dangling").symlink_to(outside / "absent")
    for key in ("out/secret", "file"):
        with pytest.raises(InvalidObjectKey, match="symbolic link"):
            await objectstore.get(key)
        with pytest.raises(InvalidObjectKey, match="symbolic link"):
            await objectstore.stat(key)
        with pytest.raises(InvalidObjectKey, match="symbolic link"):
            await objectstore.copy(key, "stolen")
    with pytest.raises(InvalidObjectKey, match="symbolic link"):
        await objectstore.put("out/new", b"")
    with pytest.raises(ObjectExists):
        await objectstore.put("dangling", b"", if_absent=True)
    await objectstore.put("dangling", b"replaces the link, not what it names")
    failures = await deleter.delete(["out/secret", "file", "mine"])
    assert [failure.key for failure in failures] == ["file", "out/secret"]
    assert await keys_of(objectstore) == ["dangling"]
    with pytest.raises(InvalidObjectKey, match="symbolic link"):
        await keys_of(objectstore, "out/")
    assert names(outside) == ["secret"]


async def test_a_link_in_place_of_the_bucket_is_refused(objectstore: LocalObjectStore, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "ns").mkdir(parents=True)
    (tmp_path / "bucket").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidObjectKey):
        await objectstore.put("x", b"")
    assert names(tmp_path / "elsewhere" / "ns") == []


async def test_a_root_that_is_a_link_is_the_operators_choice(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    await LocalObjectStore("local://b", tmp_path / "root", ("b",)).put("x", b"")
    assert (tmp_path / "disk" / "b" / "x").exists()


async def test_an_object_and_a_directory_cannot_share_a_name(objectstore: LocalObjectStore) -> None:
    await objectstore.put("a/b", b"object")
    for if_absent in (False, True):
        with pytest.raises(InvalidObjectKey):
            await objectstore.put("a", b"", if_absent=if_absent)
        with pytest.raises(InvalidObjectKey):
            await objectstore.put("a/b/c", b"", if_absent=if_absent)
    assert await keys_of(objectstore) == ["a/b"]
    assert await objectstore.get("a/b") == b"object"


async def test_what_others_left_in_the_folder_is_no_object(
    objectstore: LocalObjectStore, deleter: LocalDeleter, root: Path
) -> None:
    await objectstore.put("data/x", b"")
    os.mkfifo(root / "data" / "pipe")
    (root / "data" / "not utf-8 \udcff").touch()
    (root / "data" / "new\nline").touch()
    (root / "data" / "sub" / ".lakebed-tmp").mkdir(parents=True)
    (root / "data" / "sub" / ".lakebed-tmp" / "x").touch()
    assert await keys_of(objectstore) == ["data/x"]
    with pytest.raises(ObjectMissing):
        await objectstore.get("data/pipe")
    with pytest.raises(ObjectMissing):
        await objectstore.stat("data/pipe")
    [failure] = await deleter.delete(["data/pipe"])
    assert failure.key == "data/pipe"
    assert (root / "data" / "pipe").exists()


async def test_directories_left_empty_are_removed_up_to_the_namespace(
    objectstore: LocalObjectStore, deleter: LocalDeleter, root: Path
) -> None:
    await put_many(objectstore, ["a/b/c/d", "a/x"])
    await deleter.delete(["a/b/c/d"])
    assert names(root / "a") == ["x"]
    await deleter.delete(["a/x"])
    assert names(root) == [".lakebed-tmp"]


async def test_a_folder_removed_by_another_process_is_made_again(
    objectstore: LocalObjectStore, deleter: LocalDeleter, tmp_path: Path
) -> None:
    other = LocalObjectStore("local://bucket/ns", tmp_path, ("bucket", "ns"))
    for n in range(3):
        await objectstore.put(f"a/b/{n}", b"")
        assert await objectstore.get(f"a/b/{n}") == b""
        await deleter.delete([f"a/b/{n}"])
        with pytest.raises(ObjectMissing):
            await objectstore.get(f"a/b/{n}")
        await other.put(f"a/b/{n}", b"by the other")
        assert await objectstore.get(f"a/b/{n}") == b"by the other"
        assert not await deleter.delete([f"a/b/{n}"])
        assert await keys_of(other) == []


def open_descriptors() -> int:
    return len([*Path("/dev/fd").iterdir()])


async def test_many_stores_together_keep_few_directories_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "ALL_FOLDERS_MAX", 16)
    stores = [LocalObjectStore(f"local://{number}", tmp_path, (str(number),)) for number in range(20)]
    for store in stores:  # Those of other tests leave the count, too.
        await store.put("warm", b"x")
    before = open_descriptors()

    for store in stores:
        for folder in ("a", "b", "c"):
            await store.put(f"{folder}/key", b"x")

    assert open_descriptors() <= before + 16
    assert [await store.get("a/key") for store in stores] == [b"x"] * 20


async def test_a_namespace_removed_whole_is_made_again(objectstore: LocalObjectStore, root: Path) -> None:
    await objectstore.put("a/x", b"")
    remove_tree(root.parent)
    await objectstore.put("a/x", b"again")
    assert await keys_of(objectstore) == ["a/x"]


async def test_puts_race_with_the_tidying_of_another_store(objectstore: LocalObjectStore, tmp_path: Path) -> None:
    other = LocalDeleter("local://bucket/ns", tmp_path, ("bucket", "ns"), durable=False)

    async def delete() -> None:
        for _ in range(300):
            assert not await other.delete(["a/b/gone"])

    async def put(name: str) -> None:
        for n in range(100):
            await objectstore.put("a/b/gone", b"")
            await objectstore.put(f"a/b/{name}{n}", b"")
            if n % 3:
                assert not await other.delete([f"a/b/{name}{n}"])

    await asyncio.gather(delete(), put("p"), put("q"))
    await other.delete(["a/b/gone"])
    assert await keys_of(objectstore) == sorted(f"a/b/{name}{n}" for name in "pq" for n in range(0, 100, 3))


async def test_few_directories_stay_open_and_none_after_close(objectstore: LocalObjectStore, tmp_path: Path) -> None:
    await put_many(objectstore, [f"{n}/{n}/x" for n in range(100)])
    for n in range(100):
        await objectstore.get(f"{n}/{n}/x")
    assert 0 < open_in(tmp_path) <= 8
    await objectstore.close()
    assert open_in(tmp_path) == 0


# --- leftovers


async def test_leftovers_of_the_dead_are_removed_and_drafts_of_the_living_are_not(
    objectstore: LocalObjectStore, root: Path
) -> None:
    await objectstore.put("x", b"")
    leftover = root / ".lakebed-tmp" / "leftover"
    leftover.write_bytes(b"of a process that was killed")
    living = root / ".lakebed-tmp" / "living"
    with living.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert await objectstore.remove_leftovers() == 1
        assert temporaries(root) == ["living"]
    assert await keys_of(objectstore) == ["x"]


async def test_the_first_put_of_a_store_removes_leftovers(
    objectstore: LocalObjectStore, tmp_path: Path, root: Path
) -> None:
    await objectstore.put("x", b"")
    (root / ".lakebed-tmp" / "leftover").write_bytes(b"of a process that was killed")
    await LocalObjectStore("local://bucket/ns", tmp_path, ("bucket", "ns")).put("y", b"")
    assert temporaries(root) == []


async def test_a_put_goes_on_while_leftovers_are_removed(objectstore: LocalObjectStore, root: Path) -> None:
    async def body() -> AsyncIterator[bytes]:
        async for piece in large_body():
            yield piece
            await other.remove_leftovers()  # may take a draft before its lock: then the put makes another

    other = LocalObjectStore("local://bucket/ns", root)
    await objectstore.put("x", body(), size_bytes=LARGE_BYTES)
    assert await md5_of(objectstore.stream("x")) == await md5_of(large_body())


async def test_small_puts_race_with_the_removal_of_leftovers(objectstore: LocalObjectStore, root: Path) -> None:
    other = LocalObjectStore("local://bucket/ns", root)

    async def clean() -> None:
        for _ in range(200):
            await other.remove_leftovers()

    await asyncio.gather(clean(), *(put_many(objectstore, [f"{n}/{m}" for m in range(50)]) for n in range(4)))
    assert len(await keys_of(objectstore)) == 200
    assert not temporaries(root)


async def test_cancelling_puts_at_any_moment_leaves_whole_objects_or_none(
    objectstore: LocalObjectStore, root: Path
) -> None:
    dice = random.Random(1)
    sizes = [100, 70_000, 3 << 20]

    async def put(n: int) -> None:
        await objectstore.put(f"a/{n:03d}", large_body(sizes[n % 3]), if_absent=n % 2 == 0)

    puts = [asyncio.create_task(put(n)) for n in range(90)]
    for task in puts:
        await asyncio.sleep(dice.random() / 200)
        task.cancel()
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert asyncio.CancelledError in {type(outcome) for outcome in outcomes}
    before = await keys_of(objectstore)
    done = {f"a/{n:03d}" for n, outcome in enumerate(outcomes) if outcome is None}
    assert done <= set(before)
    for key in before:
        assert (await objectstore.stat(key)).size_bytes == sizes[int(key[2:]) % 3]
    assert not temporaries(root)
    await asyncio.sleep(0.05)
    assert await keys_of(objectstore) == before


async def test_a_cancelled_delete_deletes_nothing_after_its_end(tmp_path: Path, deleter: LocalDeleter) -> None:
    objectstore = LocalObjectStore("local://bucket/ns", tmp_path, ("bucket", "ns"), durable=False)
    keys = [f"{folder:02d}/{name}" for folder in range(100) for name in "ab"]
    await put_many(objectstore, keys)

    deleting = asyncio.create_task(deleter.delete(keys))
    await asyncio.sleep(0)
    deleting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deleting
    left = set(await keys_of(objectstore))
    await put_many(objectstore, [key for key in keys if key not in left])

    assert await keys_of(objectstore) == keys
    assert await deleter.delete(keys) == []
    assert await keys_of(objectstore) == []


async def test_a_cancelled_delete_ends_after_the_key_that_is_under_way(
    tmp_path: Path, deleter: LocalDeleter, monkeypatch: pytest.MonkeyPatch
) -> None:
    objectstore = LocalObjectStore("local://bucket/ns", tmp_path, ("bucket", "ns"), durable=False)
    keys = ["a/0", "a/1", "a/2", "b/0"]
    await put_many(objectstore, keys)
    unlink, loop, goes_on = os.unlink, asyncio.get_running_loop(), threading.Event()

    async def cancel() -> None:
        deleting.cancel()
        for _ in range(10):  # What the cancellation does in the event loop comes first.
            await asyncio.sleep(0)
        goes_on.set()

    def held(name: bytes, *, dir_fd: int) -> None:
        if not goes_on.is_set():
            asyncio.run_coroutine_threadsafe(cancel(), loop)
        goes_on.wait()
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr("os.unlink", held)
    deleting = asyncio.create_task(deleter.delete(keys))
    with pytest.raises(asyncio.CancelledError):
        await deleting

    assert await keys_of(objectstore) == ["a/1", "a/2", "b/0"]


# --- disks that are full, refuse us, or lose power


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """No file of this process may grow over a mebibyte: the nearest to a full disk that every machine can show."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files_only")
async def test_a_full_disk_is_unavailable_and_leaves_nothing(objectstore: LocalObjectStore, root: Path) -> None:
    await objectstore.put("small", b"fits")
    for body in (b"x" * (2 << 20), large_body()):
        with pytest.raises(ObjectStoreUnavailable, match="disk is full") as error:
            await objectstore.put("a/large", body)
        assert error.value.facts["errno"] == errno.EFBIG
        assert not temporaries(root)
    assert await keys_of(objectstore) == ["small"]


async def test_a_disk_really_full_takes_objects_again_once_there_is_room(
    mount_disk: Callable[[str], Path],
) -> None:
    tiny_disk = mount_disk("4m")
    objectstore = LocalObjectStore("local://b", tiny_disk, ("b",))
    await objectstore.put("first", large_body(3 << 20))
    for body in (b"x" * (2 << 20), large_body()):
        with pytest.raises(ObjectStoreUnavailable, match="disk is full"):
            await objectstore.put("second", body)
    with pytest.raises(ObjectStoreUnavailable, match="disk is full"):
        await objectstore.copy("first", "second")
    assert await keys_of(objectstore) == ["first"]
    assert not await LocalDeleter("local://b", tiny_disk, ("b",)).delete(["first"])
    await objectstore.put("second", large_body(3 << 20))
    assert not temporaries(tiny_disk / "b")


async def test_a_root_that_is_a_file_is_unavailable_for_puts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    objectstore = LocalObjectStore("local://b", tmp_path / "file", ("b",))
    with pytest.raises(ObjectStoreUnavailable):
        await objectstore.put("x", b"")
    with pytest.raises(ObjectMissing):
        await objectstore.get("x")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else for whom a directory is unreadable")
def test_an_unreadable_directory_ends_a_listing_with_an_error() -> None:
    """A listing that left it out would look complete."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path in (root, root / "bucket", root / "bucket/ns", root / "bucket/ns/a", root / "bucket/ns/z"):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        (root / "bucket/ns/z").chmod(0o700)
        command = writer.command("list", "local://bucket/ns", ObjectStoreOptions(local_root=root))
        listing = subprocess.run(command, check=False, capture_output=True, text=True)
    assert listing.returncode == 1
    assert "ObjectStoreDenied" in listing.stderr


# --- kill -9


async def _killed_after(root: Path, what: str, lines: int) -> list[str]:
    """Start the writer program, read so many lines of its output, kill it, and return all it had said."""
    process = await asyncio.create_subprocess_exec(
        *writer.command(what, "local://bucket/ns", ObjectStoreOptions(local_root=root)), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    said = [(await process.stdout.readline()).decode().strip() for _ in range(lines)]
    process.kill()
    said += (await process.stdout.read()).decode().split("\n")[:-1]
    await process.wait()
    return said


async def test_after_a_kill_every_acknowledged_object_is_there_and_every_object_is_whole(
    objectstore: LocalObjectStore, tmp_path: Path, root: Path
) -> None:
    acknowledged = await _killed_after(tmp_path, "put", 100)
    assert len(acknowledged) >= 100
    keys = await keys_of(objectstore)
    assert set(acknowledged) <= set(keys)
    assert len(keys) <= len(acknowledged) + 2 * writer.WRITERS
    for key in keys:
        assert await objectstore.get(key) == writer.data_of(key)
    await objectstore.remove_leftovers()
    assert not temporaries(root)


async def test_a_put_killed_half_way_leaves_a_file_that_only_the_cleaning_sees(
    objectstore: LocalObjectStore, tmp_path: Path, root: Path
) -> None:
    assert await _killed_after(tmp_path, "half", 1) == ["half"]
    assert await keys_of(objectstore) == []
    assert len(temporaries(root)) == 1
    assert await objectstore.remove_leftovers() == 1
    assert not temporaries(root)


# --- memory


@pytest.mark.slow
def test_a_large_body_is_never_in_memory_whole(tmp_path: Path) -> None:
    assert writer.memory_growth("local://bucket/ns", ObjectStoreOptions(local_root=tmp_path)) < 24 << 20


@dataclass
class _Crowded:
    """A lock that another caller has had once more before the next one gets it."""

    other: Callable[[], None]
    is_met: bool = False

    def __enter__(self) -> None:
        if not self.is_met:
            self.is_met = True
            self.other()

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))


def test_a_directory_is_synchronised_once_for_all_who_wait_and_after_they_asked(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[int] = []
    monkeypatch.setattr("os.fsync", began.append)

    folder.sync()
    folder.sync()
    alone = len(began)
    monkeypatch.setattr(folder, "_turn", _Crowded(folder.sync))
    folder.sync()

    assert (alone, len(began)) == (2, 3)


def test_a_synchronisation_that_fails_fails_for_all_who_worked_in_the_directory(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_under_way, goes_on = threading.Event(), threading.Event()

    def failing(_: int) -> None:
        monkeypatch.setattr("os.fsync", lambda _: None)  # The kernel tells of a failure once.
        is_under_way.set()
        goes_on.wait()
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr("os.fsync", failing)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(folder.sync)
        is_under_way.wait()
        others = [threads.submit(folder.sync) for _ in range(2)]
        goes_on.set()
        failures = [one.exception() for one in (first, *others)]

    assert [str(one) for one in failures] == ["[Errno 5] the disk is broken"] * 3
    with pytest.raises(OSError, match="the disk is broken"):
        folder.sync()  # What its caller did was there for the fsync that failed.


async def test_puts_into_a_directory_go_on_once_a_synchronisation_failed(
    objectstore: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await objectstore.put("data/first", b"1")

    def failing(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            monkeypatch.undo()
            raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr("os.fsync", failing)
    with pytest.raises(ObjectOutcomeUnknown):
        await objectstore.put("data/second", b"2")
    await objectstore.put("data/third", b"3")

    assert await objectstore.get("data/third") == b"3"
