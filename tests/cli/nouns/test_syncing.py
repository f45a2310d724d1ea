"""`lakebed sync` and `lakebed local`: a folder here and a folder of a branch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakebed.cli.nouns import checkouts
from lakebed.client.transfers import Files
from tests.cli.conftest import Shell

Put = Callable[[str, str], None]


def tree_of(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): file.read_text()
        for file in folder.rglob("*")
        if file.is_file() and file.name != ".lakebed-checkout"
    }


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def test_only_what_differs_goes_up(shell: Shell, lake: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "in", a="1", x__b="22", c="3")
    first = shell.ok("sync", str(folder), f"{lake}/main/data", "-o", "json").json
    write(folder, a="9", d="4")
    os.utime(folder / "c")  # another date, the same bytes

    second = shell.ok("sync", str(folder), f"{lake}/main/data", "-o", "json").json

    assert (first["moved"], first["unchanged"]) == (3, 0)
    assert (second["moved"], second["unchanged"], second["size_bytes"]) == (2, 2, 2)
    assert shell.ok("object", "cat", f"{lake}/main/data/a").out == "9"


def test_only_what_differs_comes_down_and_the_rest_goes_where_asked(
    shell: Shell, lake: str, put: Put, tmp_path: Path
) -> None:
    put(f"{lake}/main/data/a", "1")
    put(f"{lake}/main/data/x/b", "2")
    folder = write(tmp_path / "out", a="1", old__gone="3")

    kept = shell.ok("sync", f"{lake}/main/data", str(folder), "-o", "json").json
    assert (kept["moved"], kept["unchanged"], kept["deleted"]) == (1, 1, 0)
    assert tree_of(folder) == {"a": "1", "x/b": "2", "old/gone": "3"}

    assert shell("sync", f"{lake}/main/data", str(folder), "--delete").code == 2  # nobody to ask
    shell.ok("sync", f"{lake}/main/data", str(folder), "--delete", "--yes")
    assert tree_of(folder) == {"a": "1", "x/b": "2"}
    assert not (folder / "old").exists()


def test_a_dry_run_shows_each_step_and_does_none(shell: Shell, lake: str, put: Put, tmp_path: Path) -> None:
    put(f"{lake}/main/data/gone", "1")
    folder = write(tmp_path / "in", a="1", b__c="2")

    shown = shell.ok("sync", str(folder), f"{lake}/main/data", "--delete", "--dry-run").out

    assert shown.splitlines() == ["upload    a", "upload    b/c", "delete    gone"]
    assert shell.ok("object", "ls", "-r", f"{lake}/main/data/").out.split()[-1] == "data/gone"


def test_globs_select_on_both_sides(shell: Shell, lake: str, put: Put, tmp_path: Path) -> None:
    put(f"{lake}/main/data/keep.log", "1")
    put(f"{lake}/main/data/old.csv", "1")
    folder = write(tmp_path / "in", **{"a.csv": "1", "b.tmp": "2", "x__c.csv": "3"})

    done = shell.ok(
        *("sync", str(folder), f"{lake}/main/data", "--include", "*.csv", "--exclude", "x/*", "--delete", "--yes"),
        *("-o", "json"),
    ).json

    assert (done["moved"], done["deleted"]) == (1, 1)
    names = [one["path"] for one in shell.ok("object", "ls", "-r", f"{lake}/main/data/", "-o", "json").json]
    assert names == ["data/a.csv", "data/keep.log"]


def test_an_object_without_an_md5_is_compared_by_its_date(shell: Shell, lake: str, data: Path, tmp_path: Path) -> None:
    raw = write(data / "objects" / tmp_path.name, a="1")
    shell.ok("import", f"local://{tmp_path.name}", f"{lake}/main/data")
    folder = tmp_path / "out"

    assert shell.ok("sync", f"{lake}/main/data", str(folder), "-o", "json").json["moved"] == 1
    assert shell.ok("sync", f"{lake}/main/data", str(folder), "-o", "json").json["moved"] == 0
    os.utime(folder / "a", (1, 1))
    assert shell.ok("sync", f"{lake}/main/data", str(folder), "-o", "json").json["moved"] == 1
    assert raw.is_dir()


@pytest.mark.parametrize(
    "sides", [("a", "b"), ("lakefs://r/main/a", "lakefs://r/main/b"), ("none-such", "lakefs://r/main")]
)
def test_what_cannot_be_synced_is_refused(shell: Shell, sides: tuple[str, str]) -> None:
    assert shell("sync", *sides).code == 2


def test_a_sync_to_a_tag_says_so_once(shell: Shell, lake: str, tmp_path: Path) -> None:
    shell.ok("tag", "create", f"{lake}/v1", "main")
    refused = shell("sync", str(write(tmp_path / "mine", a="1", b="2")), f"{lake}/v1/data")

    assert (refused.code, refused.err.count("\n")) == (3, 1)
    assert "v1 is a tag: only branches can be written" in refused.err


@pytest.fixture
def work(shell: Shell, lake: str, put: Put, tmp_path: Path) -> Path:
    """A checkout of data/ with a and x/b, both committed."""
    put(f"{lake}/main/data/a", "1")
    put(f"{lake}/main/data/x/b", "2")
    put(f"{lake}/main/elsewhere", "0")
    shell.ok("commit", f"{lake}/main", "-m", "begin")
    shell.ok("local", "checkout", f"{lake}/main/data", str(tmp_path / "work"))
    return tmp_path / "work"


def commit_there(shell: Shell, lake: str, put: Put, **files: str) -> None:
    for name, text in files.items():
        put(f"{lake}/main/data/{name.replace('__', '/')}", text)
    shell.ok("commit", f"{lake}/main", "-m", "there")


def status(shell: Shell, work: Path) -> list[tuple[str, str, str]]:
    return [
        (one["where"], one["change"], one["path"]) for one in shell.ok("local", "status", str(work), "-o", "json").json
    ]


def test_a_checkout_shows_what_changed_on_either_side(shell: Shell, lake: str, put: Put, work: Path) -> None:
    assert tree_of(work) == {"a": "1", "x/b": "2"}
    assert shell.ok("local", "status", str(work)).out.endswith("nothing changed\n")

    write(work, a="changed", new__c="3")
    (work / "x" / "b").unlink()
    os.utime(work / "a")
    commit_there(shell, lake, put, d="4")

    assert status(shell, work) == [
        ("here", "changed", "a"),
        ("here", "added", "new/c"),
        ("here", "removed", "x/b"),
        ("branch", "added", "d"),
    ]
    assert "  M a\n  A new/c\n  D x/b\n" in shell.ok("local", "status", str(work)).out


def test_a_pull_brings_the_branchs_changes_and_keeps_mine(shell: Shell, lake: str, put: Put, work: Path) -> None:
    write(work, mine="5")
    commit_there(shell, lake, put, a="9", new__d="4")
    shell.ok("object", "rm", "--yes", f"{lake}/main/data/x/b")
    shell.ok("commit", f"{lake}/main", "-m", "removed")

    shell.ok("local", "pull", str(work))

    assert tree_of(work) == {"a": "9", "new/d": "4", "mine": "5"}
    assert status(shell, work) == [("here", "added", "mine")]


def test_a_commit_sends_everything_as_one_commit_and_leaves_the_rest(
    shell: Shell, lake: str, put: Put, work: Path
) -> None:
    commit_there(shell, lake, put, d="4")
    write(work, a="changed", new__c="3")
    (work / "x" / "b").unlink()

    done = shell.ok("local", "commit", str(work), "-m", "mine", "--meta", "by=hand", "-o", "json").json

    newest = shell.ok("log", f"{lake}/main", "-n", "1", "-o", "json").json[0]
    assert (newest["id"], newest["message"], newest["metadata"]["by"]) == (done["commit"], "mine", "hand")
    names = [one["path"] for one in shell.ok("object", "ls", "-r", f"{lake}/main/", "-o", "json").json]
    assert names == ["data/a", "data/d", "data/new/c", "elsewhere"]
    assert status(shell, work) == []
    assert tree_of(work) == {"a": "changed", "new/c": "3", "d": "4"}


def test_a_file_set_aside_keeps_as_much_of_a_long_name_as_fits(shell: Shell, lake: str, put: Put, work: Path) -> None:
    name = "漢" * 83 + "abcd"  # 253 bytes
    write(work, **{name: "mine"})
    commit_there(shell, lake, put, **{name: "theirs"})

    shell.ok("local", "pull", str(work), "--theirs")

    assert tree_of(work) == {"a": "1", "x/b": "2", name: "theirs", "漢" * 83 + "a.mine": "mine"}
    assert status(shell, work) == [("here", "set aside", "漢" * 83 + "a.mine")]


def test_a_path_that_changed_on_both_sides_stops_a_pull_and_a_commit(
    shell: Shell, lake: str, put: Put, work: Path
) -> None:
    write(work, a="mine")
    commit_there(shell, lake, put, a="theirs", d="4")

    for verb in (("pull",), ("commit", "-m", "x")):
        refused = shell("local", verb[0], str(work), *verb[1:])
        assert refused.code == 4
        assert "a: changed here and on the branch" in refused.err
    assert tree_of(work) == {"a": "mine", "x/b": "2"}
    assert shell.ok("object", "cat", f"{lake}/main/data/a").out == "theirs"

    shell.ok("local", "pull", str(work), "--theirs")
    assert tree_of(work) == {"a": "theirs", "a.mine": "mine", "d": "4", "x/b": "2"}
    assert status(shell, work) == [("here", "set aside", "a.mine")]
    assert "set aside by a pull" in shell.ok("local", "status", str(work)).out
    assert "nothing changed" in shell("local", "commit", str(work), "-m", "x").err

    write(work, z="1")
    shell.ok("local", "commit", str(work), "-m", "z")
    assert "a.mine" not in shell.ok("object", "ls", "-r", f"{lake}/main/data/").out
    assert status(shell, work) == [("here", "set aside", "a.mine")]
    (work / "a.mine").rename(work / "b.mine")
    assert status(shell, work) == [("here", "added", "b.mine")]
    (work / "b.mine").unlink()

    write(work, a="same")
    commit_there(shell, lake, put, a="same")  # both came to the same
    shell.ok("local", "pull", str(work))
    assert status(shell, work) == []


def test_what_is_no_checkout_and_what_is_none_yet(shell: Shell, lake: str, work: Path, tmp_path: Path) -> None:
    assert "is not a checkout" in shell("local", "status", str(tmp_path)).err
    assert "is not empty" in shell("local", "checkout", f"{lake}/main", str(work)).err
    unchanged = shell("local", "commit", str(work), "-m", "x")
    assert (unchanged.code, "nothing changed since commit" in unchanged.err) == (4, True)
    (work / ".lakebed-checkout").write_text("{")
    assert "is damaged" in shell("local", "status", str(work)).err


def test_an_object_without_an_md5_is_never_taken_for_my_change(
    shell: Shell, lake: str, data: Path, work: Path, tmp_path: Path
) -> None:
    write(work, a="33")
    write(data / "objects" / tmp_path.name, a="22")
    shell.ok("import", f"local://{tmp_path.name}/a", f"{lake}/main/data/a", "--object")

    for verb in (("pull",), ("commit", "-m", "x")):
        assert "a: changed here and on the branch" in shell("local", verb[0], str(work), *verb[1:]).err
    assert (work / "a").read_text() == "33"
    assert ("here", "changed", "a") in status(shell, work)

    write(work, a="1")  # as it was
    shell.ok("local", "pull", str(work))
    assert (work / "a").read_text() == "22"
    assert status(shell, work) == []


def test_paths_that_cannot_be_files_are_left_out(shell: Shell, lake: str, put: Put, work: Path) -> None:
    for path in ("marker/", "a//b", "../up", ".lakebed-checkout"):
        put(f"{lake}/main/data/{path}", "x")
    commit_there(shell, lake, put, d="4")

    shell.ok("local", "pull", str(work))
    assert tree_of(work) == {"a": "1", "x/b": "2", "d": "4"}
    write(work, a="mine")
    shell.ok("local", "commit", str(work), "-m", "mine")
    assert status(shell, work) == []
    assert shell.ok("object", "cat", f"{lake}/main/data/marker/").out == "x"


def test_what_no_folder_can_hold_is_skipped_by_every_download_and_deleted_by_no_sync(
    shell: Shell, lake: str, put: Put, tmp_path: Path
) -> None:
    long = "n" * 256
    for path in ("f", "f-1", "f/x", "f/x.txt", "d/", "d/deep/y", "a//b", long):
        put(f"{lake}/main/odd/{path}", path)
    fits = {name: name for name in ("f-1", "f/x", "f/x.txt", "d/deep/y")}
    folder = tmp_path / "out"

    for target, arguments in ((folder, ("sync",)), (tmp_path / "down", ("object", "download", "-r"))):
        done = shell.ok(*arguments, f"{lake}/main/odd", str(target))
        assert tree_of(target) == fits
        assert "skipped odd/f: objects lie below it" in done.err
        assert all(f"skipped odd/{name}: " in done.err for name in ("d/", "a//b", long))
        assert " ".join(done.out.split()).endswith("; left out: 4 objects named above")
    (folder / "f-1").unlink()
    up = shell.ok("sync", str(folder), f"{lake}/main/odd", "--delete", "--yes", "-o", "json").json

    assert (up["moved"], up["deleted"]) == (0, 1)
    for path in ("f", "f/x", "d/", "a//b", long):
        assert shell.ok("object", "cat", f"{lake}/main/odd/{path}").out == path
    assert shell("object", "cat", f"{lake}/main/odd/f-1").code == 3


def test_every_download_counts_what_it_leaves_out_and_names_no_folder_marker(
    shell: Shell, lake: str, put: Put, tmp_path: Path
) -> None:
    """A bucket may have a marker for each folder: a line for each would hide the others."""
    for path in ("", "d/", "d/e/"):
        put(f"{lake}/main/from/{path}", "")
    put(f"{lake}/main/from/d/x", "1")
    put(f"{lake}/main/from/a//b", "2")
    shell.ok("commit", f"{lake}/main", "-m", "of a bucket")
    left_out = "left out: 1 object named above and 3 folder markers (0 bytes, path ends in /)"

    for number, words in enumerate((("sync",), ("object", "download", "-r"), ("local", "checkout"))):
        target = tmp_path / str(number)
        done = shell.ok(*words, f"{lake}/main/from", str(target))
        assert tree_of(target)["d/x"] == "1"
        assert " ".join(done.out.split()).endswith(f"; {left_out}")
        assert [line.partition(":")[0] for line in done.err.splitlines()] == ["skipped from/a//b"]
        counted = shell.ok(*words, f"{lake}/main/from", f"{target}-json", "-o", "json").json
        assert (counted["left_out"], counted["folder_markers"]) == (1, 3)
    shown = shell.ok("sync", f"{lake}/main/from", str(tmp_path / "none"), "--dry-run").err
    assert shown.endswith(f"{left_out}\n")


def test_a_file_in_the_way_of_objects_does_not_have_them_deleted(
    shell: Shell, lake: str, put: Put, tmp_path: Path
) -> None:
    for path in ("f", "f/x", "g/x"):
        put(f"{lake}/main/odd/{path}", path)
    folder = write(tmp_path / "in", f="mine", g="mine")

    shell.ok("sync", str(folder), f"{lake}/main/odd", "--delete", "--yes")

    # A folder with the file f never had f/x. The object g/x could be there, and its user put a file in its place.
    assert shell.ok("object", "cat", f"{lake}/main/odd/f/x").out == "f/x"
    assert shell.ok("object", "cat", f"{lake}/main/odd/f").out == "mine"
    assert shell("object", "cat", f"{lake}/main/odd/g/x").code == 3


def test_what_cannot_be_read_does_not_count_as_deleted(shell: Shell, lake: str, work: Path, tmp_path: Path) -> None:
    (work / "x").rename(tmp_path / "elsewhere")
    (work / "x").symlink_to(tmp_path / "elsewhere")

    for words in (
        ("local", "status", str(work)),
        ("local", "commit", str(work), "-m", "x"),
        ("sync", str(work), f"{lake}/main/data", "--delete", "--yes"),
    ):
        refused = shell(*words)
        assert refused.code == 2
        assert "would count as deleted" in refused.err
    shell.ok("sync", str(work), f"{lake}/main/data")  # it deletes nothing
    assert shell.ok("object", "cat", f"{lake}/main/data/x/b").out == "2"


def test_no_download_writes_through_a_link_of_the_target(shell: Shell, lake: str, put: Put, tmp_path: Path) -> None:
    for path in ("a", "x/b", "x/y/c"):
        put(f"{lake}/main/data/{path}", path)
    elsewhere, target = tmp_path / "elsewhere", tmp_path / "target"
    (target / "z").mkdir(parents=True)
    elsewhere.mkdir()
    (target / "x").symlink_to(elsewhere)

    for words in (
        ("object", "download", "-r", f"{lake}/main/data", str(target)),
        ("sync", f"{lake}/main/data", str(target)),
    ):
        refused = shell(*words)
        assert refused.code == 1
        assert "is a link, and may lead out of" in refused.err

    assert list(elsewhere.iterdir()) == []
    assert (target / "a").read_text() == "a"


def test_a_file_that_changes_while_objects_come_stays(
    shell: Shell, lake: str, put: Put, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_there(shell, lake, put, a="theirs", d="4")
    download = Files.download

    def slow(self: Files, *arguments: Any, **options: Any) -> int:
        write(work, a="typed meanwhile")
        return download(self, *arguments, **options)

    monkeypatch.setattr(Files, "download", slow)

    refused = shell("local", "pull", str(work))

    assert refused.code == 4
    assert tree_of(work) == {"a": "typed meanwhile", "x/b": "2"}


def test_what_others_commit_right_after_mine_is_still_theirs(
    shell: Shell, lake: str, put: Put, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, a="mine")
    pull = checkouts._pull

    def late(*arguments: Any, **options: Any) -> int:
        monkeypatch.undo()
        commit_there(shell, lake, put, a="theirs")
        return pull(*arguments, **options)

    monkeypatch.setattr(checkouts, "_pull", late)
    shell.ok("local", "commit", str(work), "-m", "mine")

    assert status(shell, work) == [("branch", "changed", "a")]
    shell.ok("local", "pull", str(work))
    assert (work / "a").read_text() == "theirs"


def test_a_checkout_belongs_to_its_server_and_its_own_file_is_no_data(
    shell: Shell, lake: str, work: Path, tmp_path: Path
) -> None:
    shown = shell.ok("sync", str(work), f"{lake}/main/copy", "--dry-run").out
    assert shown.splitlines() == ["upload    a", "upload    x/b"]
    other = shell("local", "status", str(work), "--endpoint", "http://127.0.0.1:1")
    assert "follows" in other.err
    assert other.code == 2


def test_objects_whose_bytes_are_gone_are_named_and_left_out(
    shell: Shell, lake: str, data: Path, work: Path, tmp_path: Path
) -> None:
    place = ("--data", str(data), "--engine", "local")
    [plan] = shell.ok("erase", "plan", lake, "data/a", "--why", "asked", *place, "-o", "json").json
    shell.ok("erase", "apply", lake, plan["run_id"], "--everywhere", "--yes", "--readers-grace", "0", *place)
    name = "skipped data/a: a lifecycle run or an erasure took its bytes"

    fresh = shell.ok("local", "checkout", f"{lake}/main/data", str(tmp_path / "fresh"))
    assert name in fresh.err
    assert tree_of(tmp_path / "fresh") == {"x/b": "2"}
    assert status(shell, tmp_path / "fresh") == []
    assert name in shell.ok("object", "download", "-r", f"{lake}/main/data", str(tmp_path / "down")).err
    shell.ok("sync", str(write(tmp_path / "kept", x__b="2")), f"{lake}/main/data", "--delete", "--yes")
    assert "erased by run" in shell("object", "cat", f"{lake}/main/data/a").err  # No folder could have it: it stays.
    up = shell.ok("sync", str(write(tmp_path / "up", a="1")), f"{lake}/main/data", "-o", "json").json
    assert up["moved"] == 1  # the same bytes again: the branch has none
    assert shell.ok("object", "cat", f"{lake}/main/data/a").out == "1"


def test_a_mistyped_source_empties_nothing(shell: Shell, lake: str, work: Path, tmp_path: Path) -> None:
    refused = shell("sync", f"{lake}/main/typo", str(work), "--delete", "--yes")
    assert refused.code == 2
    assert "would empty" in refused.err
    assert "there is no object below" in shell("local", "checkout", f"{lake}/main/typo", str(tmp_path / "new")).err
    missing = shell("sync", f"{lake}/main/typo", str(work), "-o", "json")
    assert (missing.code, f"nothing lies below {lake}/main/typo/" in missing.err) == (3, True)
    (tmp_path / "empty").mkdir()
    assert shell("sync", str(tmp_path / "empty"), f"{lake}/main/data", "--delete", "--yes").code == 2
