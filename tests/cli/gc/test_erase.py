"""`lakebed erase` and `lakebed hold` against a real server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import lakebed
from lakebed.gc.messages import decode_certificate
from lakebed.lake.filesystem import LakebedFileSystem
from tests.cli.conftest import Shell

Put = Callable[[str, str], None]


def erase(shell: Shell, lake: str, data: Path, path: str) -> str:
    """Returns the run's id."""
    here = ("--engine", "local", "--data", str(data))
    [plan] = shell.ok("erase", "plan", lake, path, "--why", "request 12", *here, "-o", "json").json
    shell.ok("erase", "apply", lake, plan["run_id"], *here, "--everywhere", "--yes", "--readers-grace", "0")
    run_id: str = plan["run_id"]
    return run_id


def test_an_erasure_is_planned_applied_certified_and_verified(
    shell: Shell, lake: str, data: Path, tmp_path: Path
) -> None:
    here = ("--engine", "local", "--data", str(data))
    for name, content in (("users/ann", "secret"), ("users/bob", "other")):
        shell.ok("object", "upload", "-", f"{lake}/main/{name}", stdin=content)
    shell.ok("commit", f"{lake}/main", "-m", "users")

    planned = shell.ok("erase", "plan", lake, "users/ann", "users/nan", "--why", "request 12", *here).out
    assert "not found: users/nan" in planned
    assert "nothing that is selected would stand" in planned
    assert re.search(f"to carry it out: lakebed erase apply {lake} [0-9a-z]+ --data {data} --everywhere\n", planned)
    (plan,) = shell.ok("erase", "plan", lake, "users/ann", "--why", "request 12", *here, "-o", "json").json
    assert plan["totals"]["all"]["objects"] == 1
    assert shell("erase", "apply", lake, plan["run_id"], *here).code == 2
    for other in ("gc", "lifecycle"):
        refused = shell(other, "apply", lake, plan["run_id"], *here, "--yes")
        assert (refused.code, "lakebed erase apply carries it out" in refused.err) == (2, True)
    cert, page = tmp_path / "cert.json", tmp_path / "cert.html"
    applied = shell.ok(
        *("erase", "apply", lake, plan["run_id"], *here, "--yes", "--readers-grace", "0", "--everywhere"),
        *("--out", str(cert), "--html", str(page)),
    )

    assert "1 of 1 object absent" in applied.out
    assert "deleted objects that no entry named: 0 objects" in applied.out
    assert "Nothing stands" in page.read_text()
    fetched = tmp_path / "fetched.json"
    assert "1 of 1 object absent" in shell.ok("erase", "certificate", lake, plan["run_id"], "--out", str(fetched)).out
    assert fetched.read_bytes() == cert.read_bytes()
    assert shell("erase", "certificate", lake, "r1").code == 3
    gone = shell("object", "cat", f"{lake}/main/users/ann")
    assert gone.code == 3
    assert f"erased by run {plan['run_id']}" in gone.err
    assert f" by run {plan['run_id']}" in shell.ok("object", "stat", f"{lake}/main/users/ann").out
    assert "Erased" in shell.ok("object", "stat", f"{lake}/main/users/ann").out
    assert "(erased)" in shell.ok("object", "ls", f"{lake}/main/users/").out
    assert shell.ok("object", "cat", f"{lake}/main/users/bob").out == "other"
    why = shell.ok("gc", "why", f"{lake}/main/users/ann").out
    assert f"an erasure took it, run {plan['run_id']}" in why
    assert "lifecycle" not in why
    assert "named by:" in why
    assert "kept by:" not in why
    replanned = shell.ok("erase", "plan", lake, "users/ann", "--why", "request 12", *here[:4])
    assert "everything is gone already; to certify that: lakebed erase apply" in replanned.out
    shell.ok("erase", "verify", lake, str(cert), *here)
    shell.ok("object", "upload", "-", f"{lake}/main/copy", stdin="secret")
    shell.ok("commit", f"{lake}/main", "-m", "back")
    again = shell("erase", "verify", lake, plan["run_id"], *here)
    assert again.code == 1
    assert "stands copy " in again.out


def test_an_erasure_fails_until_bytes_without_an_entry_are_collected_and_says_how(
    shell: Shell, lake: str, data: Path
) -> None:
    here = ("--engine", "local", "--data", str(data), "--readers-grace", "0", "--yes")
    for content in ("first", "second"):
        shell.ok("object", "upload", "-", f"{lake}/main/users/ann", stdin=content)
    shell.ok("object", "upload", "-", f"{lake}/main/users/bob", stdin="bob")
    shell.ok("commit", f"{lake}/main", "-m", "users")

    erased = shell("erase", lake, "users/ann", "--why", "request 12", *here)

    assert erased.code == 1
    assert erased.err.endswith("error: not all is gone: bytes that no entry names may be left\n")
    assert "stands garbage " in erased.out
    advice = re.search(f"certify again: lakebed (erase apply {lake} [0-9a-z]+ .*--everywhere)", erased.err)
    assert advice is not None
    objects = [one for one in data.rglob("*") if one.is_file() and one.read_bytes() in {b"first", b"second"}]
    assert [one.read_bytes() for one in objects] == [b"first"]
    applied = shell.ok(*advice[1].split(), "--engine", "local", "--readers-grace", "0", "--yes")
    assert "deleted objects that no entry named: 1 object" in applied.out
    assert not objects[0].exists()
    assert shell.ok("object", "cat", f"{lake}/main/users/bob").out == "bob"
    again = shell.ok(*advice[1].split(), "--engine", "local")  # nothing is left to ask about
    assert "deleted objects that no entry named: 1 object" in again.out


def test_erasing_in_one_go_asks_before_it_plans(shell: Shell, lake: str, data: Path) -> None:
    refused = shell("erase", lake, "users/ann", "--why", "request 12", "--engine", "local", "--data", str(data))

    assert (refused.code, "without --yes" in refused.err) == (2, True)


def test_an_erasure_that_could_not_end_as_asked_is_refused_before_it_plans(
    shell: Shell, lake: str, data: Path, tmp_path: Path, put: Put
) -> None:
    put(f"{lake}/main/users/ann", "secret")
    shell.ok("commit", f"{lake}/main", "-m", "users")
    new = tmp_path / "new"
    given = ("--engine", "local", "--data", str(data), "--yes", "--html", str(new))

    refusals = [
        shell("erase", lake, "users/ann", *given, "--why", why, "--out", str(out), "--readers-grace", grace)
        for why, out, grace in (
            ("request 12", tmp_path / "absent" / "cert.json", "0"),
            ("request 12", tmp_path, "0"),
            ("request 12", tmp_path / "other", "banana"),
            (" ", tmp_path / "other", "0"),
            ("request 12", tmp_path / "absent" / ".." / "new", "0"),
        )
    ]

    assert [each.code for each in refusals] == [2, 2, 2, 2, 2]
    words = ("No such file", "Is a directory", "not a time that readers can be given", "--why is empty", "are one file")
    assert [word for word, each in zip(words, refusals, strict=True) if word not in each.err] == []
    assert shell.ok("gc", "list", lake, "--data", str(data), "-o", "json").json == []
    assert not new.exists()
    assert shell.ok("object", "cat", f"{lake}/main/users/ann").out == "secret"


def test_an_erasure_whose_collection_is_held_back_is_certified_and_says_how_to_go_on(
    shell: Shell, lake: str, data: Path, put: Put
) -> None:
    here = ("--engine", "local", "--data", str(data), "--readers-grace", "0", "--yes", "--everywhere")
    for content in ("first", "second"):
        put(f"{lake}/main/users/ann", content)
    shell.ok("commit", f"{lake}/main", "-m", "users")
    shell.ok("hold", "add", lake, "case-8", "--path", "others/", "--why", "a lawsuit")

    erased = shell("erase", lake, "users/ann", "--why", "request 12", *here)

    assert erased.code == 1
    assert "1 of 1 object absent" in erased.out
    assert "stands garbage " in erased.out
    assert "apply with --everywhere" not in erased.err
    assert re.search(
        f"is not collected: legal hold case-8 .* released `lakebed erase apply {lake} .*--everywhere` goes on",
        erased.err,
    )
    assert erased.err.count("goes on") == 1
    assert "Once it is released, to delete what no entry names, and certify again: lakebed erase apply" in erased.err
    assert "remains: " in erased.out
    assert "remains: " not in erased.err, "the certificate says it"
    planned = shell.ok("erase", "plan", lake, "users/ann", "--why", "request 12", *here[:4])
    assert "takes nothing while legal hold case-8 is in force" in planned.out
    collecting = shell.ok("gc", "plan", lake, "--uncommitted", *here[:4])
    assert re.search(r"legal hold case-8 .* cannot be applied before the hold is released", collecting.err)


def test_a_plan_that_is_older_than_a_hold_asks_for_another_plan_and_promises_nothing(
    shell: Shell, lake: str, data: Path, put: Put
) -> None:
    here = ("--engine", "local", "--data", str(data))
    put(f"{lake}/main/users/ann", "secret")
    shell.ok("commit", f"{lake}/main", "-m", "users")
    shell.ok("erase", "plan", lake, "users/ann", "--why", "request 12", *here)
    shell.ok("hold", "add", lake, "case-8", "--path", "others/", "--why", "a lawsuit")

    refused = shell("erase", "apply", lake, "latest", "--everywhere", "--readers-grace", "0", "--yes", *here)

    assert refused.code == 4
    assert "the legal holds changed since" in refused.err
    assert "another plan by `lakebed erase plan`" in refused.err
    assert "goes on" not in refused.err


def test_a_plan_that_takes_nothing_of_what_stands_does_not_say_that_all_is_gone(
    shell: Shell, lake: str, data: Path
) -> None:
    shell.ok("object", "upload", "-", f"{lake}/main/users/ann", stdin="secret")
    shell.ok("commit", f"{lake}/main", "-m", "users")
    shell.ok("hold", "add", lake, "case-9", "--path", "users/", "--why", "a lawsuit")

    planned = shell.ok(
        "erase", "plan", lake, "users/ann", "--why", "request 12", "--engine", "local", "--data", str(data)
    ).out

    assert "legal hold case-9 keeps it" in planned
    assert "everything is gone already" not in planned
    assert "none of the standing objects would be deleted; to certify that: lakebed erase apply" in planned


def test_a_hold_of_nothing_is_refused_before_it_is_sent(shell: Shell, lake: str) -> None:
    refused = shell("hold", "add", lake, "case-7", "--why", "audit")

    assert (refused.code, refused.err) == (2, "error: nothing to hold: add --path, --commit or --tag\n")


def test_a_hold_is_added_listed_and_released(shell: Shell, lake: str) -> None:
    shell.ok("hold", "add", lake, "case-7", "--path", "users/", "--why", "a lawsuit")

    (held,) = shell.ok("hold", "list", lake, "-o", "json").json
    assert (held["name"], held["globs"], held["why"]) == ("case-7", ["users/"], "a lawsuit")
    assert "users/" in shell.ok("hold", "list", lake).out
    shell.ok("hold", "release", lake, "case-7", "--why", "settled", "--yes")
    assert shell.ok("hold", "list", lake, "-o", "json").json == []
    history = shell.ok("hold", "history", lake).out
    assert "released case-7: settled" in history
    assert "added case-7: a lawsuit" in history


def test_an_erasure_of_nothing_is_refused(shell: Shell, lake: str, data: Path) -> None:
    outcome = shell("erase", "plan", lake, "--why", "none", "--engine", "local", "--data", str(data))

    assert outcome.code != 0
    assert "nothing is selected" in outcome.err
    here = ("--engine", "local", "--data", str(data))
    outcome = shell("erase", "plan", lake, "users/nan", "--why", "none", *here)
    assert (outcome.code, outcome.out) == (3, "")
    assert (
        f"nothing was planned. Bytes that no entry names have no path on record: `lakebed gc run {lake} " in outcome.err
    )


def test_who_brings_an_erased_object_to_a_branch_is_told_or_refused(
    shell: Shell, lake: str, data: Path, put: Put
) -> None:
    branches = {name: f"{lake}/{name}" for name in ("merged", "picked", "moved")}
    for branch in branches.values():
        shell.ok("branch", "create", branch)
    put(f"{lake}/main/users/ann", "secret")
    put(f"{lake}/main/users/bob", "other")
    shell.ok("commit", f"{lake}/main", "-m", "users")
    branches["reverted"] = f"{lake}/reverted"
    shell.ok("branch", "create", branches["reverted"])
    shell.ok("object", "rm", f"{lake}/reverted/users/ann", "--yes")
    shell.ok("commit", f"{lake}/reverted", "-m", "without")
    erase(shell, lake, data, "users/ann")
    commands = {
        "merged": ("merge", f"{lake}/main", f"{lake}/merged"),
        "picked": ("branch", "cherry-pick", f"{lake}/picked", "main"),
        "moved": ("branch", "reset", f"{lake}/moved", "--to", "main", "--yes"),
        "reverted": ("branch", "revert", f"{lake}/reverted", "reverted", "--yes"),
    }
    before = {name: shell.ok("branch", "show", branch).out for name, branch in branches.items()}
    difference = shell.ok("diff", f"{lake}/merged", f"{lake}/main").out

    refused = {name: shell(*command, "--refuse-expired") for name, command in commands.items()}
    stayed = {name: shell.ok("branch", "show", branch).out for name, branch in branches.items()}
    told = {name: shell.ok(*command).err for name, command in commands.items()}

    assert [line.endswith("(erased)") for line in difference.splitlines()] == [True, False]
    assert {outcome.code for outcome in refused.values()} == {4}
    assert all("1 object that lifecycle runs took: nothing changed" in outcome.err for outcome in refused.values())
    assert stayed == before
    assert {name for name, err in told.items() if "it brought 1 object that a lifecycle policy deleted" in err} == {
        *told
    }


def test_a_file_system_says_which_run_erased_a_file_and_lists_it(
    shell: Shell, lake: str, data: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ann", "bob"):
        put(f"{lake}/main/users/{name}", name)
    shell.ok("commit", f"{lake}/main", "-m", "users")
    run_id = erase(shell, lake, data, "users/ann")
    folder = f"{lake.removeprefix('lakefs://')}/main/users"

    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    with lakebed.connect() as opened:
        files = LakebedFileSystem(lake=opened, skip_instance_cache=True)
        listed = sorted(str(name).rpartition("/")[2] for name in files.ls(folder, detail=False))
        other = files.cat_file(f"{folder}/bob")
        with pytest.raises(FileNotFoundError, match=f"erased by run {run_id}"):
            files.cat_file(f"{folder}/ann")

    assert (listed, other) == (["ann", "bob"], b"bob")


def test_what_stands_after_an_erasure_is_named_and_makes_the_exit_code_1(
    shell: Shell, lake: str, data: Path, tmp_path: Path, put: Put
) -> None:
    here = ("--engine", "local", "--data", str(data))
    for name, content in (("users/ann", "secret"), ("users/bea", "own"), ("backup", "secret"), ("users/cid", "cid")):
        put(f"{lake}/main/{name}", content)
    shell.ok("commit", f"{lake}/main", "-m", "users")
    paths, cert, page = (tmp_path / name for name in ("paths", "cert.json", "cert.html"))
    paths.write_text("users/ann\nusers/bea\n")
    [plan] = shell.ok("erase", "plan", lake, "--from", str(paths), "--why", "query 3", *here, "-o", "json").json

    applied = shell(
        *("erase", "apply", lake, plan["run_id"], *here, "--everywhere", "--yes", "--readers-grace", "0"),
        *("--out", str(cert), "--html", str(page)),
    )

    assert applied.code == 1
    last = "error: not all is gone: 1 place has the same bytes, or may have them. Erase the paths of the copies, too"
    assert applied.err.splitlines()[-1] == last
    assert "2 of 2 objects absent" in applied.out
    assert "stands copy" in applied.out
    words = " ".join(applied.out.split())
    assert "remains: names of paths, backups, and other traces: 9 limits of every erasure." in words
    assert words.count("remains: ") <= 2, "what matters in this case does not drown"
    made = decode_certificate(cert.read_bytes())
    assert [(one.what, one.why) for one in made.stands] == [("copy", "has an erased checksum, at backup")]
    assert '<p class="stands">copy ' in page.read_text()
    assert ".stands { color: #c0392b; }" in page.read_text()
    assert shell.ok("object", "cat", f"{lake}/main/users/cid").out == "cid"


def test_an_erasure_is_by_digest_and_by_metadata(shell: Shell, lake: str, data: Path, put: Put) -> None:
    here = ("--why", "request 12", "--engine", "local", "--data", str(data), "-o", "json")
    for name in ("a", "b"):
        put(f"{lake}/main/{name}", "same")
    shell.ok("object", "upload", "-", f"{lake}/main/c", "--meta", "class=pii", stdin="other")
    shell.ok("commit", f"{lake}/main", "-m", "users")
    digest = shell.ok("object", "stat", f"{lake}/main/a", "-o", "json").json["checksum"]

    [same] = shell.ok("erase", "plan", lake, "--digest", digest, *here).json
    [personal] = shell.ok("erase", "plan", lake, "--metadata", "class=pii", *here).json

    assert [plan["totals"]["all"]["objects"] for plan in (same, personal)] == [2, 1]
    assert shell("erase", "plan", lake, "--metadata", "pii", *here).code == 2


def test_where_a_deferred_run_keeps_objects_an_erasure_says_to_verify_after_its_window(
    shell: Shell, lake: str, data: Path, put: Put
) -> None:
    here = ("--engine", "local", "--data", str(data), "--readers-grace", "0", "--yes")
    for content in ("first", "second"):
        put(f"{lake}/main/users/ann", content)
    put(f"{lake}/main/users/bob", "bob")
    shell.ok("commit", f"{lake}/main", "-m", "users")
    shell.ok("gc", "run", lake, "--uncommitted", "--clean", "--window", "7d", *here)

    erased = shell("erase", lake, "users/bob", "--why", "request 12", *here, "--everywhere")

    assert erased.code == 1
    said = re.search(
        r"run \w+ keeps objects until .*Z\. `lakebed gc purge` .* after it: lakebed (erase verify .*)", erased.err
    )
    assert said is not None
    assert shell(*said[1].split(), "--engine", "local").code == 1
