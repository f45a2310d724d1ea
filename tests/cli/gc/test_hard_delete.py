"""`lakebed hard-delete` and `lakebed object mv`, typed at a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Shell


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_bytes(b"bytes")
    return found


def test_it_goes_on_and_off_and_says_what_waits(shell: Shell, lake: str) -> None:
    off = shell.ok("hard-delete", "status", lake).out
    on = shell.ok("hard-delete", "on", lake, "--grace", "1h").out
    paused = shell.ok("hard-delete", "pause", lake).out
    shell.ok("hard-delete", "resume", lake)
    shell.ok("hard-delete", "off", lake)

    assert off.startswith("hard delete is off")
    assert "hard delete is on; readers have 3600 s" in on
    assert "nothing waits" in on
    assert "paused" in paused
    assert "no record of hard delete names it" in shell.ok("hard-delete", "why", lake, "--path", "a").out
    assert shell("hard-delete", "why", lake).code == 2


def test_turned_on_again_with_another_grace_a_pause_stays(shell: Shell, lake: str) -> None:
    shell.ok("hard-delete", "pause", lake)

    on = shell.ok("hard-delete", "on", lake, "--grace", "30m").out

    assert on.startswith("hard delete is on, and paused; readers have 1800 s")


def test_each_reason_is_shown_within_80_columns(shell: Shell, lake: str) -> None:
    shell.ok("hard-delete", "on", lake, "--grace", "1h")
    for path in ("tables/a", "tables/b", "tables/c", "tables/d"):
        shell.ok("object", "upload", "-", f"{lake}/main/{path}", stdin="1")
    shell.ok("object", "upload", "-", f"{lake}/main/tables/a", stdin="2")
    shell.ok("object", "rm", f"{lake}/main/tables/b", "--yes")
    shell.ok("branch", "reset", f"{lake}/main", "--prefix", "tables/c", "--yes")
    reasons = {"tables/a": "overwritten", "tables/b": "deleted", "tables/c": "reset"}

    for path, reason in reasons.items():
        why = ""
        while "waits until" not in why:  # its process writes down what waits once a second
            why = shell.ok("hard-delete", "why", lake, "--path", path).out
        assert reason in why
        assert max(map(len, why.splitlines())) <= 80
    shell.ok("hard-delete", "pause", lake)
    assert "waits: hard delete is paused" in shell.ok("hard-delete", "why", lake, "--path", "tables/a").out
    shell.ok("hard-delete", "resume", lake)
    status = shell.ok("hard-delete", "status", lake).out
    assert "let go by delete: 1, overwrite: 1, reset: 1" in status
    assert max(map(len, status.splitlines())) <= 80


def test_an_object_and_a_folder_move(shell: Shell, lake: str, file: Path) -> None:
    for path in ("a", "d/x", "d/y/z"):
        shell.ok("object", "upload", str(file), f"{lake}/main/{path}")

    shell.ok("object", "mv", f"{lake}/main/a", f"{lake}/main/b")
    folder = shell.ok("object", "mv", "--recursive", f"{lake}/main/d/", f"{lake}/main/e/")

    assert "2 objects" in folder.out
    listed = shell.ok("object", "ls", "--recursive", f"{lake}/main/").out
    assert [name in listed.split() for name in ("b", "e/x", "e/y/z", "d/x", "a")] == [True, True, True, False, False]


def test_a_move_onto_something_is_refused_with_if_absent_and_nothing_changes(
    shell: Shell, lake: str, file: Path
) -> None:
    for path in ("a", "b", "d/x", "d/y", "e/x"):
        shell.ok("object", "upload", "-", f"{lake}/main/{path}", stdin=path)

    one = shell("object", "mv", "--if-absent", f"{lake}/main/a", f"{lake}/main/b")
    folder = shell("object", "mv", "--if-absent", "--recursive", f"{lake}/main/d/", f"{lake}/main/e/")

    assert (one.code, folder.code) == (4, 4)
    assert "b exists already: its source stays; 0 objects moved" in one.err
    assert "e/x exists already: its source stays; 1 object moved" in folder.err
    for path, text in {"a": "a", "b": "b", "d/x": "d/x", "e/x": "e/x", "e/y": "d/y"}.items():
        assert shell.ok("object", "cat", f"{lake}/main/{path}").out == text


def test_to_another_repository_it_is_a_copy_and_says_so(shell: Shell, lake: str, file: Path, tmp_path: Path) -> None:
    other = f"{lake}-other"
    shell.ok("repo", "create", other, f"local://tests/{tmp_path.name}-{lake.rpartition('/')[2]}")
    shell.ok("object", "upload", str(file), f"{lake}/main/a")

    done = shell.ok("object", "mv", f"{lake}/main/a", f"{other}/main/a").out

    assert "the source stays" in done
    assert shell.ok("object", "cat", f"{other}/main/a").out == "bytes"
    assert shell.ok("object", "cat", f"{lake}/main/a").out == "bytes"
