"""A store is copied into another one, and the copy is compared. compat/test_databases.py does so with each database."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from lakebed.kv import (
    CopyDiffers,
    InvalidStoreUri,
    Store,
    TargetTaken,
    copy_store,
    open_store,
    sqlite_uri,
    store_partitions,
)
from lakebed.kv.remote.store import run_apart
from lakebed.kv.store import SCAN_PAGE
from tests.cli.conftest import Shell

PARTITIONS = [b"a", b"a/b", b"*?[x]", b"\x00\xff", b"z" * 1024]
LARGE = PARTITIONS[1]
"""More keys than a page of a scan has. The others have few: their names are the difficulty."""


@pytest.fixture
def source(tmp_path: Path) -> str:
    return sqlite_uri(tmp_path / "source.db")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(environment={"LAKEBED_CONFIG": str(tmp_path / "config.toml")})


async def fill(uri: str) -> None:
    rng, store = random.Random(1), open_store(uri)
    for partition in PARTITIONS:
        count = SCAN_PAGE + 500 if partition == LARGE else 50
        items = [(b"%d" % rng.randrange(10**6), rng.randbytes(rng.randrange(50))) for _ in range(count)]
        await store.set_many(partition, items)
    await store.close()


def test_a_target_that_holds_something_else_is_refused(source: str, tmp_path: Path) -> None:
    asyncio.run(fill(source))
    target = sqlite_uri(tmp_path / "target.db")
    shell = Shell(environment={"LAKEBED_CONFIG": str(tmp_path / "config.toml")})

    async def set_one(partition: bytes) -> None:
        store = open_store(target)
        await store.set(partition, b"theirs", b"")
        await store.close()

    asyncio.run(set_one(b"another partition"))
    refused = shell("kv", "copy", source, target)
    assert refused.code != 0
    assert "1 partitions that the source lacks" in refused.err


@pytest.mark.parametrize("key", [b"0", b"theirs"])
async def test_a_target_that_holds_one_other_record_stays_as_it_is(key: bytes) -> None:
    """It may be the last partition that tells that the target is another installation."""
    source, target = open_store("mem://"), open_store("mem://")
    for partition in (b"a", b"z"):
        await source.set_many(partition, [(b"%d" % number, b"ours") for number in range(2)])
    await target.set(b"z", key, b"theirs")

    with pytest.raises(TargetTaken, match="Nothing was copied"):
        await copy_store(source, target, lambda: ([b"a", b"z"], [b"z"]))

    assert (await target.scan(b"a", b"", 10)).keys == []
    page = await target.scan(b"z", b"", 10)
    assert list(zip(page.keys, page.values, strict=True)) == [(key, b"theirs")]


class Busy:
    """A source that a server writes to after the first page."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.close = store.close

    async def scan(self, *args: object) -> object:
        page = await self._store.scan(*args)  # type: ignore[arg-type]  # as they came
        await self._store.set(b"p", b"new", str(random.random()).encode())
        return page


async def test_a_source_that_is_written_meanwhile_is_noticed() -> None:
    source, target = open_store("mem://"), open_store("mem://")
    await source.set_many(b"p", [(b"%d" % number, b"") for number in range(10)])

    with pytest.raises(CopyDiffers, match="stop every server"):
        await copy_store(Busy(source), target, lambda: ([b"p"], [b"p"]))  # type: ignore[arg-type]  # what of it is used


class BusyElsewhere:
    """A source that a server writes to, in the first partition, once the second was scanned so many times."""

    def __init__(self, store: Store, scans: int) -> None:
        self._store = store
        self._scans = scans

    async def scan(self, partition: bytes, start: bytes, limit: int) -> object:
        page = await self._store.scan(partition, start, limit)
        if partition == b"second":
            self._scans -= 1
            if not self._scans:
                await self._store.set(b"first", b"0", b"later")
        return page


@pytest.mark.parametrize("scans", [1, 2, 3], ids=["at the first look", "while it copies", "when it has compared"])
async def test_a_write_to_a_partition_that_is_copied_already_is_noticed(scans: int) -> None:
    source, target = open_store("mem://"), open_store("mem://")
    partitions = [b"first", b"second"]
    for partition in partitions:
        await source.set_many(partition, [(b"%d" % number, b"") for number in range(10)])
    busy = BusyElsewhere(source, scans)

    with pytest.raises(CopyDiffers, match="stop every server"):
        await copy_store(busy, target, lambda: (partitions, partitions))  # type: ignore[arg-type]  # what of it is used


@pytest.mark.parametrize("name", ["source", "target"])
async def test_a_partition_that_is_made_meanwhile_is_noticed(tmp_path: Path, name: str) -> None:
    uris = {each: sqlite_uri(tmp_path / f"{each}.db") for each in ("source", "target")}
    stores = {each: open_store(uri) for each, uri in uris.items()}
    await stores["source"].set(b"p", b"key", b"value")

    async def write() -> None:
        store = open_store(uris[name])
        await store.set(b"new", b"key", b"value")
        await store.close()

    def list_both() -> tuple[list[bytes], list[bytes]]:
        source, target = map(store_partitions, uris.values())
        return source, target

    def say(_: str) -> None:
        run_apart(write)

    with pytest.raises(CopyDiffers, match="stop every server"):
        await copy_store(stores["source"], stores["target"], list_both, say)

    for store in stores.values():
        await store.close()


async def test_an_interrupted_copy_goes_on_where_it_was() -> None:
    source, target = open_store("mem://"), open_store("mem://")
    for partition in (b"a", b"b"):
        await source.set_many(partition, [(b"%d" % number, b"value") for number in range(10)])
    await copy_store(source, target, lambda: ([b"a"], [b"a"]))
    await target.set_many(b"b", [(b"0", b"value")])

    copied = await copy_store(source, target, lambda: ([b"a", b"b"], [b"a", b"b"]))

    assert (copied.keys, copied.keys_before) == (20, 10)


def test_a_store_of_this_process_lists_no_partitions() -> None:
    with pytest.raises(InvalidStoreUri, match="lists no partitions"):
        store_partitions("mem://")


def test_a_store_is_not_copied_onto_itself_however_it_is_spelt(shell: Shell, source: str, tmp_path: Path) -> None:
    asyncio.run(fill(source))
    (tmp_path / "link.db").symlink_to(tmp_path / "source.db")

    for other in (
        source,
        source.replace(":///", ":////"),
        source + "?synchronous=OFF",
        sqlite_uri(tmp_path / "link.db"),
    ):
        refused = shell("kv", "copy", source, other)
        assert (refused.code, "the same store" in refused.err) == (2, True)
    server = "postgres://user@127.0.0.1:1/lakebed"
    assert shell("kv", "copy", server, server.replace("postgres:", "postgresql:")).code == 2


def test_a_file_or_folder_that_is_absent_is_not_found(shell: Shell, source: str, tmp_path: Path) -> None:
    asyncio.run(fill(source))

    no_file = shell("kv", "copy", sqlite_uri(tmp_path / "absent.db"), sqlite_uri(tmp_path / "target.db"))
    no_folder = shell("kv", "copy", source, sqlite_uri(tmp_path / "absent" / "target.db"))

    assert (no_file.code, "absent.db: there is no such file" in no_file.err) == (3, True)
    assert (no_folder.code, "its folder does not exist" in no_folder.err) == (3, True)
    assert not (tmp_path / "absent.db").exists()


def test_an_absolute_path_may_come_after_four_slashes(shell: Shell, source: str, tmp_path: Path) -> None:
    asyncio.run(fill(source))
    target = sqlite_uri(tmp_path / "target.db")

    shell.ok("kv", "copy", source.replace(":///", ":////"), target.replace(":///", ":////"))

    assert store_partitions(target) == sorted(PARTITIONS)
