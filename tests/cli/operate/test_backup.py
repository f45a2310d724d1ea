"""Commands at the data folder of a running server, as the guide has them: `lakebed backup` and `lakebed kv`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import lakebed
from lakebed.examples.quickstart import LocalServer
from lakebed.kv import sqlite_uri
from tests.cli.conftest import Shell


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The data folder of a running server, with one object."""
    server = LocalServer(data=tmp_path / "data", log=tmp_path / "log", port=0)
    server.start()
    shell = Shell(environment={"LAKEBED_CONFIG": str(tmp_path / "config.toml")})
    made = shell.ok("setup", "--user", "ann", "--endpoint", server.endpoint)
    assert made.out.startswith(f"Endpoint:           {server.endpoint}\n")
    shell.ok("repo", "create", "lakefs://lake", "local://lake")
    shell.ok("object", "upload", "-", "lakefs://lake/main/a", stdin="1")
    yield tmp_path / "data"
    server.stop()


def test_a_backup_is_made_checked_and_restored(folder: Path, tmp_path: Path) -> None:
    shell = Shell(environment={})
    backup, restored = str(tmp_path / "backup"), tmp_path / "restored"

    made = shell.ok("backup", "create", "--data", str(folder), "--to", backup, "-o", "json").json
    again = shell.ok("backup", "create", "--data", str(folder), "--to", str(tmp_path / "next"), "--like", backup)
    verified = shell.ok("backup", "verify", backup)
    shell.ok("backup", "restore", backup, "--data", str(restored))

    assert (made["files"] > 0, made["checked"]["entries"], made["checked"]["missing_count"]) == (True, 1, 0)
    assert f"Shared:   {made['files']} file" in again.out
    assert "Repositories" in verified.out
    assert {file.name for file in restored.iterdir()} == {"audit", "lakebed.json", "metadata.db", "objects"}


def test_what_is_no_backup_is_not_found_and_what_exists_is_not_written_over(folder: Path, tmp_path: Path) -> None:
    shell = Shell(environment={})

    missing = shell("backup", "verify", str(tmp_path))
    taken = shell("backup", "create", "--data", str(folder), "--to", str(folder))

    assert (missing.code, "is not a finished backup" in missing.err) == (3, True)
    assert (taken.code, "is not empty" in taken.err) == (4, True)


def test_a_backup_whose_database_is_elsewhere_makes_no_folder_for_the_corrected_command(
    shell: Shell, tmp_path: Path
) -> None:
    folder, backup = tmp_path / "own", tmp_path / "backup"
    with lakebed.open_local(folder, environment={}):
        pass
    (folder / "metadata.db").rename(tmp_path / "moved.db")
    create = ("backup", "create", "--data", str(folder), "--to", str(backup))

    failed = shell(*create, "--kv", sqlite_uri(tmp_path / "typo.db"))
    unserved = shell(*create, "--kv", "mem://")

    assert (failed.code, "typo.db: there is no such file" in failed.err) == (3, True)
    assert (unserved.code, "makes no snapshots" in unserved.err) == (2, True)
    assert not backup.exists()
    shell.ok(*create, "--kv", sqlite_uri(tmp_path / "moved.db"))


def test_the_size_of_the_metadata_is_shown_and_its_free_space_given_back(folder: Path) -> None:
    shell = Shell(environment={})

    shown = shell.ok("kv", "stats", "--data", str(folder), "-o", "json").json
    compacted = shell.ok("kv", "compact", "--data", str(folder))

    assert shown["size_bytes"] > shown["free_bytes"] >= 0
    assert compacted.out.startswith("compacted: ")


def test_a_database_that_is_not_compacted_from_here_says_what_does_it(tmp_path: Path) -> None:
    refused = Shell(environment={})("kv", "compact", "--data", str(tmp_path), "--kv", "mem://")

    assert refused.code != 0
    assert refused.err == "error: mem: there is nothing to compact from here: nothing of it lies on a disk\n"


def test_a_sound_installation_passes_every_check(folder: Path) -> None:
    shell = Shell(environment={})

    checks = shell.ok("kv", "check", "--data", str(folder), "-o", "json").json

    assert [check["name"] for check in checks] == [
        "database",
        "folder",
        "secret",
        "users",
        "repositories",
        "space",
    ]


def test_a_check_says_what_is_broken_and_which_command_mends_it(folder: Path, tmp_path: Path) -> None:
    [lost] = [file for file in (folder / "objects" / "lake" / "data").rglob("*") if file.is_file()]
    lost.unlink()
    shell = Shell(environment={})

    missing = shell("kv", "check", "--data", str(folder))
    quick = shell("kv", "check", "--data", str(folder), "--quick")
    sealed = Shell(environment={"LAKEBED_SERVER_SECRET": "not the one of this server"})(
        "kv", "check", "--data", str(folder), "--quick"
    )
    elsewhere = shell("kv", "check", "--data", str(folder), "--kv", f"sqlite://{tmp_path}/absent.db")
    nowhere = shell("kv", "check", "--data", str(tmp_path))

    assert (missing.code, "1 object missing: lake" in missing.out, "backup restore" in missing.err) == (1, True, True)
    assert quick.code == 0
    assert (sealed.code, "auth recover" in sealed.err) == (1, True)
    assert (elsewhere.code, "FAIL  database" in elsewhere.out) == (1, True)
    assert not (tmp_path / "absent.db").exists()
    assert (nowhere.code, "is not a data folder" in nowhere.out) == (1, True)


def test_a_check_finds_an_installation_that_has_no_administrator_left(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "metadata.db")) as database, database:
        database.execute("DELETE FROM kv WHERE instr(key, CAST('user_groups/' AS BLOB)) = 1")
    shell = Shell(environment={})

    broken = shell("kv", "check", "--data", str(folder), "--quick")
    shell.ok("auth", "recover", "--data", str(folder))

    assert (broken.code, "auth recover" in broken.err) == (1, True)
    assert shell("kv", "check", "--data", str(folder), "--quick").code == 0


def test_a_folder_without_metadata_has_no_size(tmp_path: Path) -> None:
    failed = Shell(environment={})("kv", "stats", "--data", str(tmp_path))

    assert (failed.code, "metadata.db: there is no such file" in failed.err) == (3, True)


def test_the_data_folder_may_come_from_the_settings(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    with lakebed.open_local(folder, environment={}):
        pass

    from_variable = shell("kv", "stats", "-o", "json", LAKEBED_DATA=str(folder))
    absent = shell("kv", "stats")
    elsewhere = shell("kv", "stats", LAKEBED_DATA=str(tmp_path / "nothing"))

    assert from_variable.json["size_bytes"] > 0
    assert (absent.code, "--data" in absent.err) == (2, True)
    assert (elsewhere.code, "is not a data folder" in elsewhere.err) == (3, True)


def test_metadata_is_migrated_and_that_of_a_later_release_is_refused(folder: Path) -> None:
    shell = Shell(environment={})

    migrated = shell.ok("kv", "migrate", "--data", str(folder))
    with closing(sqlite3.connect(folder / "metadata.db")) as database:
        database.execute("PRAGMA user_version=7")
    refused = shell("kv", "migrate", "--data", str(folder))

    assert migrated.out == "the metadata is in this release's format\n"
    assert refused.code != 0
    assert "written in format 7 by another release" in refused.err


def test_a_database_that_is_named_is_migrated_without_a_data_folder(shell: Shell, tmp_path: Path) -> None:
    uri = sqlite_uri(tmp_path / "kv.db")

    shell.ok("kv", "migrate", "--kv", uri)
    sized = shell("kv", "stats", "-o", "json", LAKEBED_STORE_URI=uri).json

    assert sized["size_bytes"] > 0
