"""Objects from the command line: one, many, and those that cannot be files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

Put = Callable[[str, str], None]


def tree_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "x" / "y").mkdir(parents=True)
    (folder / "a").write_bytes(b"a")
    (folder / "x" / "ä b+%").write_bytes(b"b" * 100_000)
    (folder / "x" / "y" / "empty").touch()
    return folder


def test_a_file_goes_up_and_comes_down(shell: Shell, lake: str, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "up").write_bytes(data)

    made = shell.ok("object", "upload", str(tmp_path / "up"), f"{lake}/main/x/big", "-o", "json").json
    shell.ok("object", "download", f"{lake}/main/x/big", str(tmp_path / "down"))

    assert (made["path"], made["size_bytes"]) == ("x/big", len(data))
    assert made["checksum"] == hashlib.md5(data).hexdigest()
    assert (tmp_path / "down").read_bytes() == data


@pytest.mark.parametrize(("target", "path"), [("", "file"), ("/", "file"), ("/x/", "x/file"), ("/x/y", "x/y")])
def test_a_path_that_ends_in_a_slash_gets_the_files_name(
    shell: Shell, lake: str, tmp_path: Path, target: str, path: str
) -> None:
    (tmp_path / "file").write_text("1")

    made = shell.ok("object", "upload", str(tmp_path / "file"), f"{lake}/main{target}", "-o", "json").json

    assert made["path"] == path


def test_an_object_comes_down_into_a_folder_under_its_name(shell: Shell, lake: str, put: Put, tmp_path: Path) -> None:
    put(f"{lake}/main/x/name", "1")

    shell.ok("object", "download", f"{lake}/main/x/name", str(tmp_path))

    assert tree_of(tmp_path) == {"name": b"1"}


def test_standard_streams_are_files_too(shell: Shell, lake: str) -> None:
    shell.ok("object", "upload", "-", f"{lake}/main/a", stdin=b"\x00\xff\n")

    assert shell.process("object", "cat", f"{lake}/main/a").communicate()[0] == b"\x00\xff\n"
    assert shell.process("object", "download", f"{lake}/main/a", "-").communicate()[0] == b"\x00\xff\n"


def test_a_folder_goes_up_and_comes_down(shell: Shell, lake: str, folder: Path, tmp_path: Path) -> None:
    up = shell.ok("object", "upload", "-r", str(folder), f"{lake}/main/data", "-o", "json").json
    down = shell.ok("object", "download", "-r", f"{lake}/main/data", str(tmp_path / "down"), "-j", "2", "-o", "json")

    assert up == down.json == {"files": 3, "size_bytes": 100_001, "left_out": 0, "folder_markers": 0}
    assert tree_of(tmp_path / "down") == tree_of(folder)


def test_a_folder_does_not_take_its_neighbour_along(shell: Shell, lake: str, put: Put, tmp_path: Path) -> None:
    put(f"{lake}/main/data/a", "1")
    put(f"{lake}/main/database", "2")

    shell.ok("object", "download", "-r", f"{lake}/main/data", str(tmp_path / "down"))
    shell.ok("object", "rm", "-r", f"{lake}/main/data", "--yes")

    assert tree_of(tmp_path / "down") == {"a": b"1"}
    assert shell.ok("object", "cat", f"{lake}/main/database").out == "2"


def test_a_folder_in_which_nothing_lies_is_mistyped_and_an_empty_ref_is_not(
    shell: Shell, lake: str, tmp_path: Path
) -> None:
    to = str(tmp_path / "down")

    for words in (("download", "-r", f"{lake}/main/typo", to), ("rm", "-r", f"{lake}/main/typo", "--yes")):
        refused = shell("object", *words)
        assert (refused.code, f"nothing lies below {lake}/main/typo/" in refused.err) == (3, True)
    assert not (tmp_path / "down").exists()

    shell.ok("object", "download", "-r", f"{lake}/main", to)
    shell.ok("object", "rm", "-r", f"{lake}/main", "--yes")
    shell.ok("sync", f"{lake}/main", to)


@pytest.mark.parametrize("path", ["../escaped", "x/../../escaped", "/escaped", "x//y", "x/", "./x"])
def test_a_path_that_is_no_file_is_left_out_and_named(
    shell: Shell, lake: str, put: Put, tmp_path: Path, path: str
) -> None:
    put(f"{lake}/main/{path}", "bad")
    put(f"{lake}/main/good", "good")

    outcome = shell.ok("object", "download", "-r", f"{lake}/main", str(tmp_path / "in" / "down"))

    assert f"skipped {path}: " in outcome.err
    assert ": 1 file, 4 B" in outcome.out
    assert tree_of(tmp_path) == {"in/down/good": b"good"}


def test_a_file_that_cannot_be_read_does_not_stop_the_others(shell: Shell, lake: str, folder: Path) -> None:
    (folder / os.fsdecode(b"\xff")).touch()

    outcome = shell("object", "upload", "-r", str(folder), f"{lake}/main")

    assert outcome.code == 1
    assert "not valid Unicode" in outcome.err
    assert len(shell.ok("object", "ls", "-r", f"{lake}/main", "-o", "json").json) == 3


def test_an_existing_path_can_be_protected(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/a", "old")

    outcome = shell("object", "upload", "-", f"{lake}/main/a", "--if-absent", stdin="new")

    assert outcome.code == 4
    assert shell.ok("object", "cat", f"{lake}/main/a").out == "old"


def test_a_listing_shows_folders_or_everything(shell: Shell, lake: str, put: Put) -> None:
    for path in ("a", "x/1", "x/y/2"):
        put(f"{lake}/main/{path}", path)

    def listed(*options: str) -> list[str]:
        return [one["path"] for one in shell.ok("object", "ls", *options, "-o", "json").json]

    assert listed(f"{lake}/main") == ["a", "x/"]
    assert listed(f"{lake}/main/x/") == ["x/1", "x/y/"]
    assert listed(f"{lake}/main", "-r") == ["a", "x/1", "x/y/2"]
    assert listed(f"{lake}/main", "-r", "-n", "2") == ["a", "x/1"]
    lines = shell.ok("object", "ls", f"{lake}/main").out.splitlines()
    assert lines[0].endswith("      1 B  a")
    assert lines[1].strip() == "x/"


def test_a_stat_shows_what_is_known(shell: Shell, lake: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("12345")
    options = ["--content-type", "text/csv", "--meta", "team=lake", "--meta", "owner=Zoë 李"]
    shell.ok("object", "upload", str(tmp_path / "f"), f"{lake}/main/f", *options)

    found = shell.ok("object", "stat", f"{lake}/main/f", "-o", "json").json

    assert (found["size_bytes"], found["content_type"]) == (5, "text/csv")
    assert found["metadata"] == {"team": "lake", "owner": "Zoë 李"}
    assert "Size:          5 bytes" in shell.ok("object", "stat", f"{lake}/main/f").out


def test_metadata_that_no_header_can_carry_is_misuse(shell: Shell, lake: str, tmp_path: Path) -> None:
    (tmp_path / "f").touch()

    refused = shell("object", "upload", str(tmp_path / "f"), f"{lake}/main/f", "--meta", "a=x\ny")

    assert (refused.code, "metadata a: " in refused.err) == (2, True)


def test_a_copy_has_the_same_content(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/a", "1")

    shell.ok("object", "cp", f"{lake}/main/a", f"{lake}/main/b")

    assert shell.ok("object", "cat", f"{lake}/main/b").out == "1"


def test_deleting_what_is_not_there_fails(shell: Shell, lake: str) -> None:
    outcome = shell("object", "rm", f"{lake}/main/none", "--yes")

    assert outcome.code == 3
    assert outcome.err.startswith(f"error: {lake}/main/none: not found. `lakebed object ls {lake}/main/`")


def test_no_folder_is_deleted_without_yes_when_nobody_can_be_asked(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/a", "1")

    assert shell("object", "rm", "-r", f"{lake}/main/").code == 2
    assert shell.ok("object", "cat", f"{lake}/main/a").out == "1"


@pytest.mark.parametrize("size", [1024, 1025])
def test_paths_may_be_1024_bytes_long(shell: Shell, lake: str, size: int) -> None:
    outcome = shell("object", "upload", "-", f"{lake}/main/{'p' * size}", stdin="1")

    assert outcome.code == (0 if size == 1024 else 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["upload", "-r", "-", "URI/x"],
        ["upload", "-", "URI"],
        ["upload", "-", "URI/"],
        ["upload", "/", "URI/x"],
        ["upload", "-r", "/none", "URI/x"],
        ["download", "-r", "URI", "-"],
        ["download", "URI/", "x"],
        ["download", "URI/a/.."],
        ["cat", "URI"],
        ["cat", "s3://bucket/key"],
        ["cp", "URI/a", "lakefs://another/main/a"],
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(shell: Shell, lake: str, arguments: list[str]) -> None:
    outcome = shell("object", *[argument.replace("URI", f"{lake}/main") for argument in arguments])

    assert outcome.code == 2
    assert outcome.err.startswith("error: ")


def test_a_local_file_that_is_missing_is_named(shell: Shell, lake: str) -> None:
    outcome = shell("object", "upload", "/none/here", f"{lake}/main/a")

    assert (outcome.code, outcome.err) == (2, "error: /none/here: No such file or directory: name one that exists\n")


def test_a_folder_that_is_not_there_is_not_downloaded_to(shell: Shell, lake: str, put: Put, tmp_path: Path) -> None:
    put(f"{lake}/main/a", "a")

    outcome = shell("object", "download", f"{lake}/main/a", f"{tmp_path}/none/")

    assert (outcome.code, outcome.err) == (2, f"error: {tmp_path}/none: no such folder to download to; make it first\n")


def test_a_failed_download_leaves_no_file(shell: Shell, lake: str, tmp_path: Path) -> None:
    assert shell("object", "download", f"{lake}/main/none", str(tmp_path / "f")).code == 3
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_named_when_a_folder_is_uploaded(shell: Shell, lake: str, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("1")
    (tmp_path / "broken").symlink_to("nowhere")

    outcome = shell.ok("object", "upload", "-r", str(tmp_path), f"{lake}/main/")

    assert outcome.err == f"skipped {tmp_path}/broken: not a regular file\n"
    assert ": 1 file, 1 B; left out: 1 file named above" in " ".join(outcome.out.split())


def test_a_folder_that_is_downloaded_as_an_object_is_named_as_one(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/data/a", "1")

    outcome = shell("object", "download", f"{lake}/main/data")

    assert (outcome.code, outcome.err) == (3, f"error: {lake}/main/data is a folder: add --recursive\n")


def test_the_target_of_a_copy_or_a_move_may_be_a_path_alone(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/a.txt", "1")
    put(f"{lake}/main/folder/b.txt", "2")
    shell.ok("object", "mv", f"{lake}/main/a.txt", "c.txt")
    shell.ok("object", "cp", f"{lake}/main/folder/b.txt", "folder/d.txt")

    paths = [one["path"] for one in shell.ok("object", "ls", "-r", f"{lake}/main/", "-o", "json").json]
    assert paths == ["c.txt", "folder/b.txt", "folder/d.txt"]
    refused = shell("object", "mv", f"{lake}/main/folder/b.txt", "e.txt")
    assert (refused.code, f"{lake}/main/e.txt or {lake}/main/folder/e.txt" in refused.err) == (2, True)


@pytest.mark.parametrize("verb", ["cp", "mv"])
def test_a_target_that_may_be_meant_as_a_uri_a_branch_or_a_file_is_refused(
    shell: Shell, lake: str, put: Put, verb: str
) -> None:
    name = lake.removeprefix("lakefs://")
    put(f"{lake}/main/a", "1")
    shell.ok("branch", "create", f"{lake}/dev")

    for target, meant in {
        f"lakefs:/{name}/dev/x": f"{lake}/dev/x",
        f"{name}/dev/x": f"{lake}/dev/x",
        "dev/x": f"{lake}/dev/x",
        "dev": f"{lake}/dev",
        "main/x": f"{lake}/main/x",
        "./y.txt": "a local file",
        "../y.txt": "a local file",
        "x//y": f"{lake}/main/x/y",
    }.items():
        refused = shell("object", verb, f"{lake}/main/a", target)
        assert (refused.code, f"{target} can mean {meant}" in refused.err) == (2, True)
        assert f" or {lake}/main/{target}: write the whole URI" in refused.err

    for branch in ("main", "dev"):
        left = shell.ok("object", "ls", "-r", f"{lake}/{branch}/", "-o", "json").json
        assert [one["path"] for one in left] == (["a"] if branch == "main" else [])


def test_a_size_is_in_units_of_1000_or_1024(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/a", "x" * 1010)

    for size, count in (("1KB", 1), ("1kib", 0), ("1009", 1), ("1MB", 0)):
        assert len(shell.ok("object", "find", f"{lake}/main/", "--larger", size, "-o", "json").json) == count
    assert shell("object", "find", f"{lake}/main/", "--larger", "1 furlong").code == 2
