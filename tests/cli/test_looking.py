"""Commands that look: who and where one is, what changed and when, how much lies where."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Shell

Put = Callable[[str, str], None]


def commit(shell: Shell, lake: str, message: str) -> str:
    made: str = shell.ok("commit", f"{lake}/main", "-m", message, "-o", "json").json["id"]
    return made


def test_whoami_names_the_user_and_the_server(shell: Shell) -> None:
    shown = shell.ok("whoami", "-o", "json").json

    assert shown["user"] == "ann"
    assert shown["endpoint"].startswith("http://127.0.0.1:")
    assert "User:           ann" in shell.ok("whoami").out


def test_doctor_passes_where_all_is_well_and_ends_at_the_first_failure(shell: Shell) -> None:
    well = shell.ok("doctor").out
    assert f"server lakebed {version('lakebed')}, API of lakeFS 1." in well
    assert [line.split()[:2] for line in well.splitlines()] == [
        ["ok", "server"],
        ["ok", "credentials"],
        ["ok", "readiness"],
        ["ok", "storage"],
    ]

    wrong = shell("doctor", LAKEBED_SECRET_ACCESS_KEY="wrong")
    assert wrong.code == 1
    assert wrong.out.splitlines()[-1].startswith("FAIL  credentials")
    assert "store a valid key pair" in wrong.err
    away = shell("doctor", "--endpoint", "http://127.0.0.1:1")
    assert [check["passed"] for check in shell("doctor", "--endpoint", "http://127.0.0.1:1", "-o", "json").json] == [
        False
    ]
    assert "start a server with `lakebed serve`" in away.err


def test_doctor_names_the_part_of_the_server_that_cannot_work(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    full = httpx.Response(503, json={"ready": False, "checks": {"kv": "ok", "disk": "full"}})
    monkeypatch.setattr(httpx, "get", lambda *_, **__: full)

    found = shell("doctor")

    assert found.code == 1
    assert found.out.splitlines()[-1].split() == ["FAIL", "readiness", "disk", "is", "full"]


def test_log_shows_branches_and_tags_beside_their_commits(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/a", "1")
    commit(shell, lake, "one")
    shell.ok("tag", "create", f"{lake}/v1", f"{lake}/main")
    put(f"{lake}/main/a", "2")
    commit(shell, lake, "two")

    graph = shell.ok("log", f"{lake}/main", "--graph").out.splitlines()
    assert [line.partition("Z  ")[2] for line in graph] == ["two  (main)", "one  (tag v1)", "Repository created"]
    assert "  (tag v1)\n" in shell.ok("log", f"{lake}/main").out


def test_show_says_what_a_commit_changed(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/a", "1")
    put(f"{lake}/main/b", "1")
    commit(shell, lake, "one")
    put(f"{lake}/main/a", "22")
    put(f"{lake}/main/c", "333")
    shell.ok("object", "rm", f"{lake}/main/b", "--yes")
    made = commit(shell, lake, "two")

    shown = shell.ok("show", f"{lake}/main").out
    assert f"commit {made}  (main)" in shown
    assert shown.splitlines()[-3:] == ["~ a  (2 B)", "- b", "+ c  (3 B)"]
    counted = shell.ok("show", f"{lake}/main", "--stat").out.splitlines()[-3:]
    assert counted == ["+ 1 path added  (5 B with those changed)", "- 1 path removed", "~ 1 path changed"]
    as_json = shell.ok("show", f"{lake}/main", "-o", "json").json
    assert (as_json["commit"]["id"], len(as_json["changes"])) == (made, 3)
    assert shell("show", f"{lake}/none").code == 3


def test_diff_counts_what_changed(shell: Shell, lake: str, put: Put) -> None:
    assert shell.ok("diff", f"{lake}/main", "--stat").out == "nothing changed\n"
    put(f"{lake}/main/a", "1")
    put(f"{lake}/main/b", "22")

    assert shell.ok("diff", f"{lake}/main", "--stat").out == "+ 2 paths added  (3 B with those changed)\n"
    assert shell.ok("diff", f"{lake}/main", "--stat", "-o", "json").json["added"] == 2


def test_blame_names_the_last_commit_of_each_path(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/a", "1")
    put(f"{lake}/main/b", "1")
    first = commit(shell, lake, "one")
    put(f"{lake}/main/b", "2")
    second = commit(shell, lake, "two")
    put(f"{lake}/main/c", "3")

    blamed = shell.ok("blame", f"{lake}/main", "-o", "json").json
    assert [(one["path"], (one["commit"] or {}).get("id")) for one in blamed] == [
        ("a", first),
        ("b", second),
        ("c", None),
    ]
    lines = shell.ok("blame", f"{lake}/main").out.splitlines()
    assert lines[0].endswith("a  ann: one")
    assert lines[2].startswith("(uncommitted)")


@pytest.mark.parametrize("strategy", ["source-wins", "dest-wins"])
def test_blame_names_the_commit_that_wrote_a_path_and_no_merge(
    shell: Shell, lake: str, put: Put, strategy: str
) -> None:
    put(f"{lake}/main/a", "1")
    commit(shell, lake, "one")
    shell.ok("branch", "create", f"{lake}/dev", "-s", "main")
    put(f"{lake}/main/a", "here")
    commit(shell, lake, "here")
    put(f"{lake}/dev/a", "there")
    put(f"{lake}/dev/b", "there")
    shell.ok("commit", f"{lake}/dev", "-m", "there")
    shell.ok("merge", f"{lake}/dev", f"{lake}/main", "--strategy", strategy)

    blamed = shell.ok("blame", f"{lake}/main", "-o", "json").json

    writer = "there" if strategy == "source-wins" else "here"
    assert [(one["path"], one["commit"]["message"]) for one in blamed] == [("a", writer), ("b", "there")]


def test_du_sums_folders_and_find_filters(shell: Shell, lake: str, put: Put) -> None:
    for path, content in (("x/1.csv", "1"), ("x/y/2.csv", "22"), ("z.txt", "333333")):
        put(f"{lake}/main/{path}", content)

    sizes = shell.ok("object", "du", f"{lake}/main", "-o", "json").json
    assert [(one["path"], one["objects"], one["size_bytes"]) for one in sizes] == [("", 3, 9), ("x/", 2, 3)]
    assert [one["path"] for one in shell.ok("object", "du", f"{lake}/main", "-d", "2", "-o", "json").json] == [
        "",
        "x/",
        "x/y/",
    ]
    [everything] = shell.ok("object", "du", f"{lake}/main", "-d", "0", "-o", "json").json
    assert everything == sizes[0]
    assert "(everything)" in shell.ok("object", "du", f"{lake}/main").out
    named = f"{lake}/main/none"
    for words in (("object", "du", named), ("object", "find", named), ("blame", named)):
        assert (shell(*words).code, f"nothing lies at {named}" in shell(*words).err) == (3, True)
    assert shell.ok("object", "find", f"{lake}/main/", "--name", "none").out == ""
    [object_itself] = shell.ok("object", "du", f"{lake}/main/z.txt", "-o", "json").json
    assert (object_itself["path"], object_itself["objects"], object_itself["size_bytes"]) == ("z.txt", 1, 6)
    found = shell.ok("object", "find", f"{lake}/main/", "--name", "*.csv", "--larger", "1", "-o", "json").json
    assert [one["path"] for one in found] == ["x/y/2.csv"]
    assert len(shell.ok("object", "find", f"{lake}/main").out.splitlines()) == 3


def test_presign_says_why_there_is_no_url(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/a", "1")

    refused = shell("object", "presign", f"{lake}/main/a")
    assert (refused.code, "signs no URLs" in refused.err) == (5, True)
    assert shell("object", "presign", f"{lake}/main/none").code == 3


def test_an_upload_guesses_the_content_type_from_the_name(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/t.parquet", "1")
    put(f"{lake}/main/t.json", "{}")
    put(f"{lake}/main/t", "?")
    shell.ok("object", "upload", "-", f"{lake}/main/own.json", "--content-type", "text/plain", stdin="{}")

    types = {one["path"]: one["content_type"] for one in shell.ok("object", "ls", f"{lake}/main/", "-o", "json").json}
    assert types == {
        "own.json": "text/plain",
        "t": "application/octet-stream",
        "t.json": "application/json",
        "t.parquet": "application/vnd.apache.parquet",
    }


def test_the_data_folder_of_the_settings_spares_the_option(shell: Shell, lake: str, data: Path) -> None:
    missing = shell("gc", "purge", lake, "--yes", LAKEBED_DATA="")
    named = shell("gc", "purge", lake, "--yes", "--engine", "local", LAKEBED_DATA=str(data))

    assert (missing.code, named.code) == (2, 0)


def test_a_profile_is_stored_shown_and_taken(shell: Shell, lake: str) -> None:
    """For a second server; here it is the first one under another name."""
    mine = shell.ok("config", "show", "-o", "json").json
    assert shell("whoami", "--profile", "other").code == 2
    shell.ok("config", "set", "--profile", "other", "--endpoint", mine["endpoint"], "--data", "/tmp/x")
    assert shell("config", "set", "--profile", "", "--endpoint", mine["endpoint"]).code == 2
    unknown = shell("whoami", "--profile", "other")
    assert (unknown.code, "no credentials" in unknown.err) == (1, True)

    shown = shell.ok("config", "show", "--profile", "other")
    assert "Profiles:           other" in shown.out
    assert "Data folder:        /tmp/x" in shown.out
    assert shell.ok("whoami", "-o", "json").json["user"] == "ann"
