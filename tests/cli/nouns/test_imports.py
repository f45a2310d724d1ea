"""`lakebed import`, on folders beside the repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Shell


@pytest.fixture
def raw(data: Path, tmp_path: Path) -> str:
    """A folder of the object store that no repository has."""
    folder = data / "objects" / tmp_path.name
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "a.csv").write_text("1,2")
    (folder / "logs" / "b.csv").write_text("3,4")
    return f"local://{tmp_path.name}"


def test_a_folder_is_imported_as_one_commit(shell: Shell, lake: str, raw: str) -> None:
    done = shell.ok("import", f"{raw}/logs", f"{lake}/main/raw", "-m", "raw logs", "--meta", "job=7")

    assert done.out.startswith(f"imported 2 objects into {lake}/main/raw: commit ")
    assert shell.ok("object", "cat", f"{lake}/main/raw/b.csv").out == "3,4"
    [newest] = shell.ok("log", f"{lake}/main", "-n", "1", "-o", "json").json
    assert (newest["message"], newest["metadata"]["job"]) == ("raw logs", "7")


def test_an_import_of_what_is_there_says_so(shell: Shell, lake: str, raw: str) -> None:
    first = shell.ok("import", f"{raw}/logs", f"{lake}/main/raw")

    again = shell.ok("import", f"{raw}/logs", f"{lake}/main/raw")

    assert again.out == f"nothing to import: {lake}/main/raw has all of 2 objects in commit {first.out.split()[-1]}\n"


def test_files_whose_names_are_no_keys_are_named_and_end_with_code_1(
    shell: Shell, lake: str, raw: str, data: Path, tmp_path: Path
) -> None:
    (data / "objects" / tmp_path.name / "logs" / "odd\nname").write_text("x")

    done = shell("import", f"{raw}/logs", f"{lake}/main/raw")

    assert done.code == 1
    assert done.out.startswith("imported 2 objects")
    assert f"left out: {raw}/logs/odd\\nname" in done.err
    assert "1 object of " in done.err


def test_a_prefix_is_imported_with_what_comes_behind_its_last_slash(shell: Shell, lake: str, raw: str) -> None:
    shell.ok("import", f"{raw}/lo", f"{lake}/main/raw", "--prefix")

    assert shell.ok("object", "cat", f"{lake}/main/raw/logs/b.csv").out == "3,4"


def test_an_import_that_is_stopped_says_in_one_line_what_became_of_it(
    shell: Shell, lake: str, raw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lakebed.cli.nouns.imports._wait", stop)

    done = shell("import", f"{raw}/logs", f"{lake}/main/raw")

    assert (done.code, done.out) == (130, "")
    assert done.err in {
        "stopped: the import was cancelled, and the branch is as it was\n",
        "stopped: the import had ended before it could be cancelled\n",
    }


def test_one_object_is_imported_to_a_path(shell: Shell, lake: str, raw: str) -> None:
    done = shell.ok("import", f"{raw}/logs/a.csv", f"{lake}/main/one.csv", "--object", "-o", "json").json

    assert (done["completed"], done["ingested_objects"]) == (True, 1)
    assert shell.ok("object", "cat", f"{lake}/main/one.csv").out == "1,2"
    assert shell("import", f"{raw}/logs/a.csv", f"{lake}/main", "--object").code == 2


def test_an_import_that_fails_says_why_and_that_nothing_changed(shell: Shell, lake: str, raw: str) -> None:
    failed = shell("import", f"{raw}/none", f"{lake}/main/none")

    assert failed.code == 1
    assert "no object lies below it. The branch is as it was" in failed.err
    assert shell("import", f"local://{lake.removeprefix('lakefs://')}/x", f"{lake}/main/x").code == 1


def test_an_import_from_elsewhere_on_the_servers_machine_says_which_folders_can_be(
    shell: Shell, lake: str, tmp_path: Path
) -> None:
    refused = shell("import", f"local://{tmp_path}", f"{lake}/main/in")

    assert refused.code == 1
    assert "below the server's folder of objects (DATA/objects, or LAKEBED_BLOCKS_LOCAL_ROOT)" in refused.err
