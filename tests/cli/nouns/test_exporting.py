"""`lakebed export`: every commit of a branch as plain files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebed.client.transfers import Files
from tests.cli.conftest import Shell

Put = Callable[[str, str], None]


@pytest.fixture
def history(shell: Shell, lake: str, put: Put) -> str:
    """A branch of two commits: the second changes one of two files."""
    for commit, contents in enumerate([{"a.csv": "1", "folder/b.csv": "2"}, {"a.csv": "3"}]):
        for path, content in contents.items():
            put(f"{lake}/main/{path}", content)
        shell.ok("commit", f"{lake}/main", "-m", f"commit {commit}", "--meta", f"run={commit}")
    shell.ok("tag", "create", f"{lake}/v1", "main~1")
    return f"{lake}/main"


def files_in(folder: Path) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_each_commit_is_a_folder_of_its_files(shell: Shell, history: str, tmp_path: Path) -> None:
    target = tmp_path / "export"

    done = shell.ok("export", history, str(target))

    log = [json.loads(line) for line in (target / "log.jsonl").read_text().splitlines()]
    assert [(one["message"], one["metadata"].get("run")) for one in log[:2]] == [("commit 1", "1"), ("commit 0", "0")]
    assert files_in(target / log[0]["folder"]) == {"a.csv": "3", "folder/b.csv": "2"}
    assert files_in(target / log[1]["folder"]) == {"a.csv": "1", "folder/b.csv": "2"}
    refs = json.loads((target / "refs.json").read_text())
    assert (refs["head"], refs["branches"], refs["tags"]) == (
        log[0]["id"],
        {"main": log[0]["id"]},
        {"v1": log[1]["id"]},
    )
    assert done.out.startswith(f"exported {history} to {target}: 3 commits; 3 objects, 3 B downloaded")


def test_an_object_of_two_commits_is_there_once(shell: Shell, history: str, tmp_path: Path) -> None:
    shell.ok("export", history, str(tmp_path / "export"))

    one, other = sorted((tmp_path / "export" / "commits").glob("*/folder/b.csv"))
    assert one.samefile(other)
    rows = [
        json.loads(line)
        for file in (tmp_path / "export" / "commits").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert {row["path"] for row in rows} == {"a.csv", "folder/b.csv"}
    assert all((tmp_path / "export" / row["file"]).stat().st_size == row["size_bytes"] for row in rows)


def test_an_export_that_was_stopped_goes_on(
    shell: Shell, history: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download, left = Files.download, iter([True, True, False])

    def stopping(self: Files, *arguments: object, **more: object) -> int:
        if not next(left):
            raise KeyboardInterrupt
        return download(self, *arguments, **more)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(Files, "download", stopping)
    stopped = shell("export", history, str(tmp_path / "export"))
    monkeypatch.undo()
    done = shell.ok("export", history, str(tmp_path / "export"))

    assert stopped.code == 130
    assert stopped.err.startswith(f"stopped: 2 of 3 commits are in {tmp_path}/export; run the same command again")
    assert "1 commit, 2 were there before; 1 object, 1 B downloaded" in done.out
    assert not list((tmp_path / "export" / "commits").glob(".*"))


def test_a_folder_with_other_files_is_refused(shell: Shell, history: str, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()

    refused = shell("export", history, str(tmp_path))

    assert refused.code == 2
    assert "name a new folder" in refused.err


def test_a_path_that_is_a_file_and_a_folder_keeps_its_bytes(shell: Shell, lake: str, put: Put, tmp_path: Path) -> None:
    put(f"{lake}/main/a", "1")
    put(f"{lake}/main/a/b", "2")
    shell.ok("commit", f"{lake}/main", "-m", "both")

    done = shell.ok("export", f"{lake}/main", str(tmp_path / "export"))

    assert "is in objects alone: a file and a folder have one name" in done.err
    assert "in objects alone: 1 entry whose path can be no file" in " ".join(done.out.split())
    assert sorted(files_in(tmp_path / "export" / "objects").values()) == ["1", "2"]


def test_folder_markers_are_counted_and_not_named(shell: Shell, lake: str, put: Put, tmp_path: Path) -> None:
    for path in ("d/", "d/e/"):
        put(f"{lake}/main/{path}", "")
    put(f"{lake}/main/d/x", "1")
    shell.ok("commit", f"{lake}/main", "-m", "of a bucket")

    done = shell.ok("export", f"{lake}/main", str(tmp_path / "export"))

    assert done.err == ""
    assert "in objects alone: 2 entries" in " ".join(done.out.split())


def test_an_imported_object_that_its_source_overwrote_is_left_out_alone(
    shell: Shell, lake: str, put: Put, data: Path, tmp_path: Path
) -> None:
    source = data / "objects" / "elsewhere-of-export"
    source.mkdir()
    (source / "a").write_text("first")
    (source / "b").write_text("same")
    put(f"{lake}/main/own", "own")
    shell.ok("commit", f"{lake}/main", "-m", "own")
    shell.ok("import", f"local://{source.name}/", f"{lake}/main/in/")
    shell.ok("export", f"{lake}/main", str(tmp_path / "early"))
    (source / "a").write_text("another one")
    shell.ok("import", f"local://{source.name}/", f"{lake}/main/in/")
    shell.ok("export", f"{lake}/main", str(tmp_path / "early"))

    early = sorted((tmp_path / "early" / "commits").glob("*/"))
    assert [files_in(folder)["in/a"] for folder in early[-2:]] == ["first", "another one"]
    runs = [shell("export", f"{lake}/main", str(tmp_path / "export")) for _ in range(2)]

    folders = sorted((tmp_path / "export" / "commits").glob("*/"))
    assert files_in(folders[-1]) == {"in/a": "another one", "in/b": "same", "own": "own"}
    assert files_in(folders[-2]) == {"in/b": "same", "own": "own"}
    assert "skipped in/a of commit" in runs[0].err
    assert [run.code for run in runs] == [1, 1]
    assert "1 entry has no file" in runs[1].err
