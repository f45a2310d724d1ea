"""Backups of a data folder: made under writes and beside collections, checked, and brought back elsewhere.

A collection that runs meanwhile is played: a file goes whose object nothing names any more.
"""

from __future__ import annotations

import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from lakebed.base import Conflict, LakebedError
from lakebed.client import Client, Credentials
from lakebed.gc import Collector, EngineName
from lakebed.gc.messages import RunKind, RunReport, RunRequest
from lakebed.objectstore import ObjectStoreOptions
from lakebed.server import (
    BackupDamaged,
    FolderTaken,
    NoDataFolder,
    NotABackup,
    NotADataFolder,
    create_backup,
    options_of,
    prepare_folder,
    restore_backup,
    verify_backup,
)
from tests.server.process.test_serving import serving, set_up

LAKE = "/repositories/lake"


@dataclass(frozen=True, slots=True)
class Lake:
    """A data folder and a client of the server that runs on it."""

    folder: Path
    client: httpx.Client

    def upload(self, path: str, data: str) -> Path:
        """Upload an object, and return its file."""
        answer = self.client.post(f"{LAKE}/branches/main/objects", params={"path": path}, content=data.encode())
        assert answer.status_code == 201, answer.text
        address: str = answer.json()["physical_address"]
        return self.folder / "objects" / address.removeprefix("local://")

    def commit(self, message: str) -> None:
        answer = self.client.post(f"{LAKE}/branches/main/commits", json={"message": message})
        assert answer.status_code == 201, answer.text

    def back_up(self, target: Path, *, like: Path | None = None, then: Callable[[str], object] | None = None) -> None:
        create_backup(options_of(self.folder, {}), target, like=like, say=then)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("backups") / "data"
    with serving(folder) as (_, url), set_up(url) as client:
        body = {"name": "lake", "storage_namespace": "local://deep/lake"}
        assert client.post("/repositories", json=body).status_code == 201
        yield Lake(folder, client)


@pytest.fixture
def lake(served: Lake) -> Lake:
    """Committed and staged entries, and a tag."""
    for number in range(5):
        served.upload(f"committed/{number}", f"committed {number}")
    served.client.post(f"{LAKE}/branches/main/commits", json={"message": "m", "metadata": {}})
    served.client.post(f"{LAKE}/tags", json={"id": "v1", "ref": "main"})
    served.upload("staged", "staged")
    return served


@pytest.fixture
def backup(lake: Lake, tmp_path: Path) -> Path:
    lake.back_up(tmp_path / "backup")
    return tmp_path / "backup"


def read_back(folder: Path, auth: httpx.Auth | None) -> dict[str, str]:
    """What a server on this folder has in branch main."""
    with serving(folder) as (_, url), httpx.Client(base_url=url + "/api/v1", auth=auth) as client:
        listed = client.get(f"{LAKE}/refs/main/objects/ls", params={"amount": 1000}).json()["results"]
        paths = [entry["path"] for entry in listed]
        return {path: client.get(f"{LAKE}/refs/main/objects", params={"path": path}).text for path in paths}


def lines_in(folder: Path) -> list[str]:
    return [line for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


def test_a_backup_under_writes_holds_what_was_acknowledged_and_comes_back_elsewhere(lake: Lake, tmp_path: Path) -> None:
    before = {f"before/{number}": str(number) for number in range(20)}
    for path, data in before.items():
        lake.upload(path, data)
    is_done = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not is_done.is_set():
            lake.upload(f"during/{len(written)}", "during")
            written.append("during")
            if len(written) % 10 == 0:
                lake.commit("during")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        lake.back_up(tmp_path / "backup")
    finally:
        is_done.set()
        writer.join()
    moved = shutil.move(tmp_path / "backup", tmp_path / "elsewhere")
    restored = tmp_path / "restored"

    restore_backup(options_of(restored, {}), Path(moved))

    assert lines_in(restored / "audit")[:3] == lines_in(lake.folder / "audit")[:3] != []
    found = read_back(restored, lake.client.auth)
    assert written
    assert {path: found.get(path) for path in before} == before
    assert found["staged"] == "staged"
    assert {data for path, data in found.items() if path.startswith("during/")} <= {"during"}


def test_a_restored_server_may_collect(lake: Lake, tmp_path: Path) -> None:
    """It knows all marks of its namespaces, so it takes itself for the only installation there."""
    lake.client.post(f"{LAKE}/gc/runs", json={"kind": "uncommitted"})
    lake.back_up(tmp_path / "marked")
    restore_backup(options_of(tmp_path / "restored", {}), tmp_path / "marked")

    with serving(tmp_path / "restored") as (_, url):
        answer = httpx.post(f"{url}/api/v1{LAKE}/gc/runs", json={"kind": "uncommitted"}, auth=lake.client.auth)

    assert answer.status_code == 201, answer.text


@pytest.fixture
def parted(served: Lake) -> str:
    """Two branches that parted before the retention period. The key of the tree that their merge compares with."""
    served.client.put(f"{LAKE}/gc/rules/full", params={"if_version": 0}, json={"default": "1d"}).raise_for_status()
    now_s = int(time.time())

    def change(branch: str, path: str, days: int) -> str:
        served.client.post(f"{LAKE}/branches/{branch}/objects", params={"path": path}, content=path.encode())
        made = served.client.post(
            f"{LAKE}/branches/{branch}/commits", json={"message": path, "date": now_s - days * 86_400}
        )
        tree: str = made.json()["meta_range_id"]
        return tree

    base = change("main", "base", 40)
    served.client.post(f"{LAKE}/branches", json={"name": "dev", "source": "main"})
    for branch in ("main", "dev"):
        change(branch, f"parted/{branch}", 30)
        change(branch, f"parted/{branch}/again", 29)
    pair = served.client.post("/auth/users/esti/credentials").json()
    credentials = Credentials(access_key_id=pair["access_key_id"], secret_access_key=pair["secret_access_key"])
    with Client(str(served.client.base_url), credentials) as asked:
        collector = Collector(
            client=asked,
            repository="lake",
            objectstore=ObjectStoreOptions(local_root=served.folder / "objects"),
            engine=EngineName.LOCAL,
        )
        done = [*collector.run(RunRequest(kinds=(RunKind.COMMITTED,), readers_grace="0"))]
    assert [one.commits_expired > 1 for one in done if isinstance(one, RunReport)] == [True]
    return f"deep/lake/_lakefs/metaranges/{base}.parquet"


def test_the_tree_that_a_merge_compares_with_is_looked_for_though_its_commit_expired(
    parted: str, served: Lake, tmp_path: Path
) -> None:
    served.back_up(tmp_path / "backup")
    (tmp_path / "backup" / "objects" / parted).unlink()

    with pytest.raises(BackupDamaged, match="metaranges"):
        verify_backup(options_of(tmp_path / "backup", {}), tmp_path / "backup")


def test_what_a_collection_takes_meanwhile_is_backed_up_as_it_is_afterwards(lake: Lake, tmp_path: Path) -> None:
    first = lake.upload("replaced", "first")
    heard: list[str] = []

    def replace(message: str) -> None:
        if not heard:
            lake.upload("replaced", "second")
            first.unlink()
        heard.append(message)

    lake.back_up(tmp_path / "backup", then=replace)

    assert [message for message in heard if "once more" in message]
    verify_backup(options_of(tmp_path / "backup", {}), tmp_path / "backup")
    restore_backup(options_of(tmp_path / "restored", {}), tmp_path / "backup")
    assert read_back(tmp_path / "restored", lake.client.auth)["replaced"] == "second"


def test_a_backup_that_collections_overtake_each_time_gives_up(lake: Lake, tmp_path: Path) -> None:
    named = lake.upload("replaced", "first")

    def replace(message: str) -> None:
        nonlocal named
        if "once more" in message:
            named = lake.upload("replaced", "named by the next snapshot")
        elif message.startswith("copied the metadata"):
            lake.upload("replaced", "after it")
            named.unlink()

    with pytest.raises(Conflict, match="collections deleted objects faster than they were copied:"):
        lake.back_up(tmp_path / "backup", then=replace)
    with pytest.raises(NotABackup):
        verify_backup(options_of(tmp_path / "backup", {}), tmp_path / "backup")


def test_an_object_that_the_living_server_lacks_is_told_and_no_backup_is_made(lake: Lake, tmp_path: Path) -> None:
    lost = lake.upload("lost", "lost")
    lost.unlink()

    with pytest.raises(BackupDamaged, match=lost.name):
        lake.back_up(tmp_path / "backup")

    lake.upload("lost", "again")
    lake.back_up(tmp_path / "another")


def every(backup: Path, pattern: str) -> list[Path]:
    """All of them: one alone may be of a commit that was overtaken, so that nothing names it."""
    found = sorted((backup / "objects" / "deep" / "lake").glob(pattern))
    assert found
    return found


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda backup: flip(backup / "metadata.db"), "metadata.db is not the file"),
        (lambda backup: [*map(Path.unlink, every(backup, "_lakefs/ranges/*"))], "missing"),
        (lambda backup: [*map(flip, every(backup, "_lakefs/ranges/*"))], "range"),
        (lambda backup: [*map(Path.unlink, every(backup, "_lakefs/metaranges/*"))], "missing"),
        (lambda backup: [file.write_bytes(b"") for file in backup.glob("objects/**/data/*/*")], "0 of"),
        (lambda backup: (backup / "backup.json").write_text("{"), "unreadable"),
        (lambda backup: (backup / "backup.json").write_text('{"format": 9}'), "unreadable|format"),
    ],
)
def test_a_damaged_backup_is_found_and_not_restored(
    backup: Path, tmp_path: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    damage(backup)

    with pytest.raises(BackupDamaged, match=complaint):
        verify_backup(options_of(backup, {}), backup)
    with pytest.raises(BackupDamaged, match=complaint):
        restore_backup(options_of(tmp_path / "restored", {}), backup)
    assert not (tmp_path / "restored").exists()


def test_equal_files_of_an_older_backup_are_shared(lake: Lake, backup: Path, tmp_path: Path) -> None:
    added = lake.upload("added", "added")

    lake.back_up(tmp_path / "next", like=backup)

    old = every(backup, "data/*/*")[0]
    assert (tmp_path / "next" / old.relative_to(backup)).samefile(old)
    new = tmp_path / "next" / added.relative_to(lake.folder)
    assert (new.stat().st_nlink, new.read_text()) == (1, "added")
    shutil.rmtree(backup)
    verify_backup(options_of(tmp_path / "next", {}), tmp_path / "next")


def test_a_backup_is_its_owners_alone_and_no_server_starts_on_it(backup: Path) -> None:
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [backup, *backup.rglob("*")]}
    assert modes == {(True, 0o700), (False, 0o600)}
    with pytest.raises(NotADataFolder, match="is a backup"):
        prepare_folder(backup)


def test_what_was_not_finished_is_neither_a_backup_nor_a_data_folder(lake: Lake, tmp_path: Path) -> None:
    def stop(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.back_up(tmp_path / "backup", then=stop)

    with pytest.raises(NotABackup):
        restore_backup(options_of(tmp_path / "restored", {}), tmp_path / "backup")
    (tmp_path / "backup" / "lakebed.json").write_text((lake.folder / "lakebed.json").read_text())
    with pytest.raises(NotADataFolder, match="unfinished"):
        prepare_folder(tmp_path / "backup")


def test_nothing_is_written_over(lake: Lake, backup: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").touch()

    refused: list[tuple[type[LakebedError], Callable[[], object]]] = [
        (FolderTaken, lambda: lake.back_up(tmp_path / "taken")),
        (FolderTaken, lambda: lake.back_up(backup)),
        (FolderTaken, lambda: restore_backup(options_of(tmp_path / "taken", {}), backup)),
        (FolderTaken, lambda: restore_backup(options_of(lake.folder, {}), backup)),
        (NotABackup, lambda: lake.back_up(tmp_path / "new", like=tmp_path / "taken")),
        (NoDataFolder, lambda: create_backup(options_of(tmp_path / "nothing", {}), tmp_path / "new")),
    ]
    for error, act in refused:
        with pytest.raises(error):
            act()

    assert not (tmp_path / "new").exists()
    assert [file.name for file in (tmp_path / "taken").iterdir()] == ["thesis.txt"]
