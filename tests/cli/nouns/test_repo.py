"""Repositories from the command line."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shell


def test_a_repository_is_created_shown_listed_and_deleted(shell: Shell) -> None:
    shell.ok("repo", "create", "lakefs://story", "local://story", "--default-branch", "trunk")

    shown = shell.ok("repo", "show", "lakefs://story", "-o", "json").json
    listed = shell.ok("repo", "list", "-o", "json").json
    deleted = shell.ok("repo", "delete", "lakefs://story", "--yes", "-o", "json").json

    assert (shown["id"], shown["default_branch"], shown["storage_namespace"]) == ("story", "trunk", "local://story")
    assert shown in listed
    assert deleted == {"deleted": "story"}
    assert shell("repo", "show", "lakefs://story").code == 3


def test_repositories_are_listed_as_a_table(shell: Shell, lake: str) -> None:
    lines = shell.ok("repo", "list").out.splitlines()

    assert lines[0].split() == ["REPOSITORY", "CREATED", "DEFAULT", "BRANCH", "STORAGE", "NAMESPACE"]
    assert any(line.startswith(lake.removeprefix("lakefs://") + " ") for line in lines)


def test_a_listing_can_be_narrowed(shell: Shell, lake: str) -> None:
    name = lake.removeprefix("lakefs://")

    assert [one["id"] for one in shell.ok("repo", "list", "--prefix", name, "-o", "json").json] == [name]
    assert shell.ok("repo", "list", "--prefix", "nobody", "-o", "json").json == []
    assert shell.ok("repo", "list", "--prefix", "nobody").out == ""


def test_a_taken_name_is_a_conflict(shell: Shell, lake: str) -> None:
    outcome = shell("repo", "create", lake, "local://elsewhere")

    assert outcome.code == 4
    assert outcome.err == f"error: {lake} exists already: choose another name\n"


def test_a_namespace_in_use_is_refused(shell: Shell, lake: str) -> None:
    outcome = shell("repo", "create", "lakefs://another", f"local://{lake.removeprefix('lakefs://')}")

    place = f"local://{lake.removeprefix('lakefs://')}"
    assert outcome.code == 4
    assert outcome.err == f"error: {place} is in use: {lake} is there. Name a folder of its own\n"


def test_a_namespace_inside_another_one_is_refused_and_the_other_one_named(shell: Shell, lake: str) -> None:
    name = lake.removeprefix("lakefs://")

    outcome = shell("repo", "create", "lakefs://nested", f"local://{name}/below")

    assert (outcome.code, f"namespace local://{name}/below lies inside local://{name}:" in outcome.err) == (1, True)


def test_nothing_is_deleted_without_yes_when_nobody_can_be_asked(shell: Shell, lake: str) -> None:
    outcome = shell("repo", "delete", lake)

    assert outcome.code == 2
    assert "--yes" in outcome.err
    shell.ok("repo", "show", lake)


def test_a_namespace_that_is_no_uri_is_misuse(shell: Shell) -> None:
    outcome = shell("repo", "create", "lakefs://nowhere", "nonsense")

    assert (outcome.code, "is not a storage namespace" in outcome.err) == (2, True)


@pytest.mark.parametrize("namespace", ["/tmp/abc", "foo://abc", "s3:/abc"])
def test_what_is_no_namespace_is_answered_with_what_one_looks_like_here(shell: Shell, namespace: str) -> None:
    refused = shell("repo", "create", "lakefs://nowhere", namespace)

    assert (refused.code, refused.err) == (
        2,
        f"error: {namespace!r} is not a storage namespace: those of this server look like local://example-bucket/\n",
    )


def test_a_deleted_repository_is_listed_and_brought_back(shell: Shell) -> None:
    shell.ok("repo", "create", "lakefs://regret", "local://regret")
    shell.ok("repo", "delete", "lakefs://regret", "--yes")

    [listed] = shell.ok("repo", "list", "--deleted", "--prefix", "regret", "-o", "json").json
    back = shell.ok("repo", "undelete", "lakefs://regret").out
    again = shell("repo", "undelete", "lakefs://regret")

    assert (listed["id"], listed["state"], listed["storage_namespace"]) == ("regret", "kept", "local://regret")
    assert listed["kept_until"] - listed["deletion_date"] == 7 * 86_400
    assert back == "lakefs://regret is back\n"
    assert shell.ok("repo", "list", "--deleted", "--prefix", "regret").out == ""
    assert (again.code, "no deleted repository regret" in again.err) == (3, True)


def test_a_repository_comes_back_under_another_name_or_not_at_all(shell: Shell) -> None:
    shell.ok("repo", "create", "lakefs://first-one", "local://first-one")
    shell.ok("repo", "delete", "lakefs://first-one", "--yes")
    shell.ok("repo", "create", "lakefs://first-one", "local://second-one")

    taken = shell("repo", "undelete", "lakefs://first-one")
    shell.ok("repo", "undelete", "lakefs://first-one", "--name", "first-again")
    shell.ok("repo", "delete", "lakefs://first-again", "--yes")
    shell.ok("repo", "forget", "lakefs://first-again", "--yes")
    forgotten = shell("repo", "undelete", "lakefs://first-again")

    assert (taken.code, forgotten.code) == (4, 3)
    assert taken.err == "error: lakefs://first-one exists already: --name gives this one another name\n"


def test_a_new_name_that_none_can_have_is_a_misuse(shell: Shell) -> None:
    refused = shell("repo", "undelete", "lakefs://first-one", "--name", "lakefs://first-again")

    assert (refused.code, "--name lakefs://first-again: " in refused.err) == (2, True)


def test_a_namespace_of_a_deleted_repository_is_refused_with_what_to_do(shell: Shell) -> None:
    shell.ok("repo", "create", "lakefs://once", "local://once")
    shell.ok("repo", "delete", "lakefs://once", "--yes")

    kept = shell("repo", "create", "lakefs://again", "local://once", "--reuse")
    shell.ok("repo", "forget", "lakefs://once", "--yes")
    forgotten = shell("repo", "create", "lakefs://again", "local://once", "--reuse")
    [line] = shell.ok("repo", "list", "--deleted", "--prefix", "once").out.splitlines()[1:]
    twice = shell("repo", "forget", "lakefs://once", "--yes")
    unasked = shell("repo", "forget", "lakefs://never")

    assert (kept.code, forgotten.code, twice.code, unasked.code) == (4, 4, 3, 3)
    assert "is that of the deleted repository once. `lakebed repo undelete lakefs://once --uid " in kept.err
    assert "its objects stay there for ever. Choose another namespace" in forgotten.err
    assert line.split()[2:4] == ["-", "forgotten"]
    assert "it is forgotten" in twice.err
    assert "Did you mean" not in twice.err


def test_what_is_protected_against_deletion_is_named_in_the_refusal(shell: Shell) -> None:
    shell.ok("repo", "create", "lakefs://kept", "local://kept")
    shell.ok("branch", "create", "lakefs://kept/release-1", "--source", "main")
    shell.ok("repo", "protect", "lakefs://kept")
    shell.ok("branch", "protect", "lakefs://kept", "release-*", "--deletion")

    repository = shell("repo", "delete", "lakefs://kept", "--yes")
    branch = shell("branch", "delete", "lakefs://kept/release-1", "--yes")
    shell.ok("branch", "protect", "lakefs://kept", "release-*", "--deletion", "--remove")
    shell.ok("repo", "protect", "lakefs://kept", "--remove")

    assert "repository kept is protected against deletion" in repository.err
    assert "branch release-1 is protected against deletion by release-*" in branch.err
    shell.ok("branch", "delete", "lakefs://kept/release-1", "--yes")
    shell.ok("repo", "delete", "lakefs://kept", "--yes")


def test_sample_data_is_committed(shell: Shell) -> None:
    shell.ok("repo", "create", "lakefs://sampled", "local://sampled", "--sample-data")

    paths = [one["path"] for one in shell.ok("object", "ls", "-r", "lakefs://sampled/main", "-o", "json").json]

    assert paths == [
        "sample/README.md",
        "sample/readings/2026-01.csv",
        "sample/readings/2026-02.csv",
        "sample/stations.csv",
    ]
    assert shell.ok("object", "cat", "lakefs://sampled/main/sample/readings/2026-02.csv").out.count("\n") == 85
    assert shell.ok("diff", "lakefs://sampled/main").out == ""


def test_the_objects_of_a_deleted_repository_are_planned_and_stay_within_the_window(shell: Shell, data: Path) -> None:
    here = ("--engine", "local", "--data", str(data))
    shell.ok("repo", "create", "lakefs://given-back", "local://given-back")
    shell.ok("object", "upload", "-", "lakefs://given-back/main/a", stdin="12345")
    address = shell.ok("object", "stat", "lakefs://given-back/main/a", "-o", "json").json["physical_address"]
    shell.ok("repo", "delete", "lakefs://given-back", "--yes")

    outcome = shell.ok("gc", "deleted", "plan", "lakefs://given-back", *here, "-o", "json")
    planned = outcome.json
    shown = shell.ok("gc", "deleted", "show", "lakefs://given-back", "latest", "--data", str(data))
    assert shell.ok("gc", "deleted", "show", "lakefs://given-back", "latest").out == shown.out
    refused = shell("gc", "deleted", "apply", "lakefs://given-back", planned["run_id"], *here, "--yes")

    shell.ok("gc", "deleted", "plan", "lakefs://given-back", *here)
    runs = [
        one["run_id"] for one in shell.ok("gc", "deleted", "list", "lakefs://given-back", *here[2:], "-o", "json").json
    ]
    differs = shell.ok("gc", "deleted", "diff", "lakefs://given-back", *runs, *here[2:])
    why = shell.ok("gc", "deleted", "why", "lakefs://given-back", address)
    job = shell.ok("gc", "job", "start", "lakefs://given-back", "plan", "--deleted", "--engine", "local", "-o", "json")
    jobs = shell.ok("gc", "job", "list", "lakefs://given-back", "--deleted", "-o", "json")

    assert "only" in differs.out
    assert "which can be brought back until" in why.out
    assert (job.json["state"], job.json["results"][0]["objects"]) == ("done", 1)
    assert [one["id"] for one in jobs.json] == [job.json["id"]]
    assert planned["totals"]["by_reason"] == {"deleted-repository": {"objects": 1, "size_bytes": 5}}
    assert "1 object, 5 B" in shown.out
    assert "it can be brought back until" in outcome.err
    assert "plan again then" in outcome.err
    assert "gc deleted apply" not in outcome.err
    assert refused.code == 4
    assert "can be brought back still" in refused.err
    assert re.search(r"before \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", refused.err)
    shell.ok("repo", "create", "lakefs://given-back", "local://given-back-2")
    again = shell.ok("gc", "deleted", "show", "lakefs://given-back", planned["run_id"], "--data", str(data))
    assert again.out == shown.out
    shell.ok("repo", "delete", "lakefs://given-back", "--yes")
    several = shell("gc", "deleted", "plan", "lakefs://given-back", *here)
    assert (several.code, "choose one of" in several.err) == (4, True)
    [uid] = [
        one["uid"]
        for one in shell.ok("repo", "list", "--deleted", "-o", "json").json
        if one["storage_namespace"] == "local://given-back"
    ]
    shell.ok("repo", "undelete", "lakefs://given-back", "--uid", uid)
    assert shell.ok("object", "cat", "lakefs://given-back/main/a").out == "12345"
    assert shell("gc", "deleted", "plan", "lakefs://given-back", "--uid", uid, *here).code == 3


def test_deleted_repositories_are_listed_by_prefix_and_number_within_80_columns(shell: Shell) -> None:
    for number in (1, 2, 2, 3):
        shell.ok("repo", "create", f"lakefs://narrow-{number}", f"local://narrow-{number}-{time.monotonic_ns()}")
        shell.ok("repo", "delete", f"lakefs://narrow-{number}", "--yes")

    some = shell.ok("repo", "list", "--deleted", "--prefix", "narrow-", "--limit", "2", "-o", "json").json
    table = shell.ok("repo", "list", "--deleted", "--prefix", "narrow-").out.splitlines()

    assert [one["id"] for one in some] == ["narrow-1", "narrow-2"]
    assert [line.split()[0] for line in table[1:]] == ["narrow-1", "narrow-2", "narrow-2", "narrow-3"]
    assert max(map(len, table)) <= 80


def test_refs_are_dumped_and_restored_over_a_copy_of_the_namespace(
    shell: Shell, lake: str, put: Callable[[str, str], None], data: Path
) -> None:
    put(f"{lake}/main/a", "one")
    shell.ok("commit", f"{lake}/main", "-m", "one")
    dumped = shell.ok("repo", "dump", lake).out
    name = lake.removeprefix("lakefs://")
    shutil.copytree(data / "objects" / name, data / "objects" / f"{name}-copy")

    created = shell.ok("repo", "create", "--bare", f"{lake}-copy", f"local://{name}-copy")
    bare = shell.ok("repo", "show", f"{lake}-copy")
    restored = shell.ok("repo", "restore", f"{lake}-copy", "-", stdin=dumped)

    assert "repo restore" in created.err
    assert "no branch until `repo restore`" in bare.out
    assert restored.out == f"restored {lake}-copy: 1 branch, 0 tags\n"
    assert f"lakebed gc adopt {lake}-copy" in restored.err
    assert "Bare" not in shell.ok("repo", "show", f"{lake}-copy").out
    assert shell.ok("object", "cat", f"{lake}-copy/main/a").out == "one"
    assert shell("repo", "restore", f"{lake}-copy", "-", stdin=dumped).code == 0  # its commits are those of the dump


def test_a_restore_onto_the_repository_itself_speaks_of_no_adoption(shell: Shell, lake: str) -> None:
    dumped = shell.ok("repo", "dump", lake).out

    restored = shell.ok("repo", "restore", lake, "-", stdin=dumped)

    assert restored.out == f"restored {lake}: 1 branch, 0 tags\n"
    assert "adopt" not in restored.err


def test_a_restore_can_look_for_the_objects_first(
    shell: Shell, lake: str, put: Callable[[str, str], None], data: Path
) -> None:
    put(f"{lake}/main/a", "one")
    shell.ok("commit", f"{lake}/main", "-m", "one")
    dumped = shell.ok("repo", "dump", lake).out
    name = lake.removeprefix("lakefs://")
    copy = data / "objects" / f"{name}-copy"
    shutil.copytree(data / "objects" / name, copy)
    shell.ok("repo", "create", "--bare", f"{lake}-copy", f"local://{name}-copy")
    [kept] = [file for file in (copy / "data").rglob("*") if file.is_file()]
    aside = kept.rename(copy / "aside")

    refused = shell("repo", "restore", f"{lake}-copy", "-", "--check-objects", stdin=dumped)
    aside.rename(kept)
    restored = shell.ok("repo", "restore", f"{lake}-copy", "-", "--check-objects", stdin=dumped)

    assert (refused.code, "1 object that commits of the dump name, not in this namespace: a (" in refused.err) == (
        1,
        True,
    )
    assert restored.out == f"restored {lake}-copy: 1 branch, 0 tags\n"


def test_a_restore_before_the_namespace_was_copied_says_so(shell: Shell, lake: str) -> None:
    dumped = shell.ok("repo", "dump", lake).out
    shell.ok("repo", "create", "--bare", f"{lake}-copy", f"{lake.replace('lakefs', 'local')}-copy")

    refused = shell("repo", "restore", f"{lake}-copy", "-", stdin=dumped)

    assert refused.code == 1
    assert "Copy the old namespace to this one first" in refused.err


def test_what_is_no_dump_is_refused(shell: Shell, lake: str) -> None:
    no_json = shell("repo", "restore", lake, "-", stdin="hello")
    missing = shell(
        "repo",
        "restore",
        lake,
        "-",
        stdin=json.dumps({f"{one}_meta_range_id": "x" for one in ("branches", "tags", "commits")}),
    )

    assert (no_json.code, "is not what `repo dump` prints" in no_json.err) == (2, True)
    assert (missing.code, "not a Lakebed dump" in missing.err) == (1, True)
