"""`lakectl`, the contract's command line, unchanged, as its users type it.

LAKEBED_TEST_LAKECTL names the program. Version 1.84 is the last that is open source: `contract_suite.py` builds it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .serving import Server

PROGRAM = os.environ.get("LAKEBED_TEST_LAKECTL", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="LAKEBED_TEST_LAKECTL names no lakectl")
_names = itertools.count()

Lakectl = Callable[..., str]


@pytest.fixture
def lakectl(server: Server, tmp_path: Path) -> Lakectl:
    """Types a command; returns what it printed. It must succeed, unless `fails`."""
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "LAKECTL_SERVER_ENDPOINT_URL": server.url,
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": server.access_key_id,
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": server.secret_access_key,
    }

    def run(*arguments: str, fails: bool = False) -> str:
        done = subprocess.run(
            [PROGRAM, *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert (done.returncode != 0) == fails, (arguments, done.stdout, done.stderr)
        return done.stdout + done.stderr

    return run


@pytest.fixture
def lake(lakectl: Lakectl) -> str:
    name = f"lakectl-{next(_names)}"
    lakectl("repo", "create", f"lakefs://{name}", f"local://lakectl/{name}")
    return f"lakefs://{name}"


def test_a_change_goes_from_a_branch_to_main(lakectl: Lakectl, lake: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one")
    lakectl("branch", "create", f"{lake}/work", "--source", f"{lake}/main")
    lakectl("fs", "upload", f"{lake}/work/a/one", "--source", str(tmp_path / "one"))
    lakectl("commit", f"{lake}/work", "-m", "adds one", "--meta", "k=v")

    assert "a/one" in lakectl("diff", f"{lake}/main", f"{lake}/work")
    lakectl("merge", f"{lake}/work", f"{lake}/main")
    lakectl("tag", "create", f"{lake}/v1", f"{lake}/main")

    assert lakectl("fs", "cat", f"{lake}/v1/a/one") == "one"
    assert "a/one" in lakectl("fs", "ls", f"{lake}/main/", "--recursive")
    assert "adds one" in lakectl("log", f"{lake}/main")
    assert "v1" in lakectl("tag", "list", lake)


def test_a_local_folder_is_clean_after_its_own_commit(lakectl: Lakectl, lake: str, tmp_path: Path) -> None:
    """It compares times that it sent as metadata."""
    folder = tmp_path / "clone"
    lakectl("local", "clone", f"{lake}/main/data/", str(folder))
    (folder / "one.txt").write_text("one")

    lakectl("local", "commit", str(folder), "-m", "from here")

    assert "one.txt" not in lakectl("local", "status", str(folder))
    assert lakectl("fs", "cat", f"{lake}/main/data/one.txt") == "one"


def test_metadata_of_an_object_is_changed(lakectl: Lakectl, lake: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one")
    lakectl("fs", "upload", f"{lake}/main/one", "--source", str(tmp_path / "one"))

    lakectl("fs", "update-metadata", f"{lake}/main/one", "--metadata", "k=v")

    assert "k" in lakectl("fs", "stat", f"{lake}/main/one")


def test_a_protected_branch_refuses_an_upload_in_words(lakectl: Lakectl, lake: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one")
    lakectl("branch-protect", "add", lake, "main")

    refused = lakectl("fs", "upload", f"{lake}/main/one", "--source", str(tmp_path / "one"), fails=True)

    assert "cannot write to protected branch" in refused


def test_the_doctor_finds_nothing_wrong(lakectl: Lakectl) -> None:
    assert lakectl("doctor") == "Valid configuration\n"
