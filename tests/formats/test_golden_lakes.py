"""A data folder of each released version opens, reads as it was written, and takes new commits."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lakebed

LAKES = sorted(Path(__file__).parent.glob("lake-*.zip"))


@pytest.fixture(params=LAKES, ids=lambda file: file.stem)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with zipfile.ZipFile(request.param) as kept:
        kept.extractall(tmp_path / "lake")
    return tmp_path / "lake"


def test_there_is_a_folder_of_the_first_version() -> None:
    assert "lake-0.1" in {file.stem for file in LAKES}


def test_a_lake_of_an_earlier_version_reads_as_it_was_written(folder: Path) -> None:
    with lakebed.open_local(folder, environment={}) as lake:
        repository = lake.repository("flights")
        main = repository.branch("main")

        assert [commit.message for commit in main.log()][:2] == ["no more UA", "merge dev"]
        assert {commit.message for commit in main.log()} >= {"two files", "another file", "correct AA"}
        assert [entry.path for entry in main.list()] == ["2024/a.csv", "2024/c.csv", "staged.csv"]
        assert main.read("2024/a.csv") == b"AA,4\n"
        assert main.read("2024/c.csv") == b"DL,3\n"
        assert main.read("staged.csv") == b"not committed\n"
        assert [change.path for change in main.uncommitted()] == ["staged.csv"]
        assert repository.ref("v1").read("2024/a.csv") == b"AA,1\n"
        assert repository.ref("v1").read("2024/b.csv") == b"UA,2\n"
        assert {branch.name for branch in repository.branches()} == {"main", "dev"}


def test_a_lake_of_an_earlier_version_takes_new_commits(folder: Path) -> None:
    with lakebed.open_local(folder, environment={}) as lake:
        main = lake.repository("flights").branch("main")
        main.commit("what was staged")
        with main.transaction("by this version") as changes:
            changes.write("2025/a.csv", b"AA,5\n")
    with lakebed.open_local(folder, environment={}) as lake:
        main = lake.repository("flights").branch("main")

        assert main.read("2025/a.csv") == b"AA,5\n"
        assert main.read("staged.csv") == b"not committed\n"
        assert [commit.message for commit in main.log()][:2] == ["by this version", "what was staged"]


def test_nothing_is_broken_in_the_metadata_of_an_earlier_version(folder: Path) -> None:
    command = [sys.executable, "-m", "lakebed", "kv", "check", "--data", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
