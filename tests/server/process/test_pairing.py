"""A data folder and its metadata belong together: every wrong pair is refused, and no right one."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from lakebed.base import Invalid
from lakebed.kv import TargetTaken, copy_store, open_store, sqlite_uri, store_partitions
from lakebed.objectstore import ObjectStoreOptions
from lakebed.server import (
    ServerOptions,
    WrongMetadata,
    check_metadata,
    create_backup,
    opened,
    prepare_folder,
    restore_backup,
)


async def start(folder: Path, kv: str | None = None, *, blockstore: str = "local", root: Path | None = None) -> None:
    prepare_folder(folder)
    objectstore = ObjectStoreOptions(local_root=root)
    async with opened(ServerOptions(data_dir=folder, store_uri=kv, blockstore=blockstore, objectstore=objectstore)):
        pass


@pytest.fixture
def other(tmp_path: Path) -> str:
    return sqlite_uri(tmp_path / "other.db")


async def test_the_same_folder_with_the_same_store_starts_again(tmp_path: Path, other: str) -> None:
    for kv in (None, other):
        folder = tmp_path / ("on a database" if kv else "alone")
        await start(folder, kv)
        await asyncio.gather(*(start(folder, kv) for _ in range(3)))


async def test_a_start_that_forgets_the_database_is_refused(tmp_path: Path, other: str) -> None:
    """It would make an empty installation over the objects of the other one."""
    await start(tmp_path / "data", other)

    with pytest.raises(WrongMetadata, match=r"another database, and this one is new.*--kv.*kv copy"):
        await start(tmp_path / "data")

    assert not (tmp_path / "data" / "metadata.db").exists(), "the next command would take it for the metadata"
    await start(tmp_path / "data", other)


async def test_a_check_that_forgets_the_database_names_what_is_wrong(tmp_path: Path, other: str) -> None:
    await start(tmp_path / "data", other)

    (found,) = [each async for each in check_metadata(ServerOptions(data_dir=tmp_path / "data"), objects=False)]

    assert not found.passed
    assert "name the other by --kv" in found.found
    assert found.advice == "name the right pair of --data and --kv"


async def test_a_folder_of_another_installation_is_refused(tmp_path: Path, other: str) -> None:
    await start(tmp_path / "one")
    await start(tmp_path / "two", other)

    with pytest.raises(WrongMetadata):
        await start(tmp_path / "one", other)


async def test_a_second_folder_is_refused_where_objects_lie_in_the_first(tmp_path: Path, other: str) -> None:
    await start(tmp_path / "one", other)

    with pytest.raises(Invalid, match="LAKEBED_BLOCKSTORE"):
        await start(tmp_path / "two", other)


async def test_a_second_folder_is_welcome_where_objects_lie_elsewhere(tmp_path: Path, other: str) -> None:
    for name in ("one", "two"):
        await start(tmp_path / name, other, blockstore="mem")
    shared = sqlite_uri(tmp_path / "shared.db")
    for name in ("three", "four"):
        await start(tmp_path / name, shared, root=tmp_path / "mounted")


async def copy(before: str, after: str) -> None:
    source, target = open_store(before), open_store(after)
    try:
        await copy_store(source, target, lambda: (store_partitions(before), store_partitions(after)))
    finally:
        await source.close()
        await target.close()


async def test_a_copy_of_the_metadata_takes_its_place(tmp_path: Path, other: str) -> None:
    await start(tmp_path / "data")
    await copy(sqlite_uri(tmp_path / "data" / "metadata.db"), other)

    await start(tmp_path / "data", other)


async def test_a_copy_over_a_store_that_was_served_once_is_refused_and_it_starts_again(tmp_path: Path) -> None:
    one, two = (sqlite_uri(tmp_path / name / "metadata.db") for name in ("one", "two"))
    for name in ("one", "two"):
        await start(tmp_path / name)

    with pytest.raises(TargetTaken):
        await copy(one, two)

    await start(tmp_path / "two")


def test_a_restored_folder_starts_beside_the_one_that_was_backed_up(tmp_path: Path) -> None:
    data, restored = tmp_path / "data", tmp_path / "restored"
    asyncio.run(start(data))
    create_backup(ServerOptions(data_dir=data), tmp_path / "backup")
    restore_backup(ServerOptions(data_dir=restored), tmp_path / "backup")

    asyncio.run(start(restored))
    shutil.rmtree(data)
    asyncio.run(start(restored))


async def test_a_database_that_is_gone_is_given_up_by_removing_one_file(tmp_path: Path, other: str) -> None:
    await start(tmp_path / "data", other)
    (tmp_path / "data" / "metadata").unlink()

    await start(tmp_path / "data")
