"""Repositories from the command line."""

from __future__ import annotations

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
    assert outcome.err == f"error: {lake} exists already\n"


def test_a_namespace_in_use_is_refused(shell: Shell, lake: str) -> None:
    outcome = shell("repo", "create", "lakefs://another", f"local://{lake.removeprefix('lakefs://')}")

    assert outcome.code == 1
    assert "storage namespace already in use" in outcome.err


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

    assert (outcome.code, "is no storage namespace" in outcome.err) == (2, True)


def test_a_path_is_no_namespace_and_it_is_said_what_one_looks_like_here(shell: Shell) -> None:
    refused = shell("repo", "create", "lakefs://nowhere", "/tmp/abc")

    assert (refused.code, refused.err) == (
        2,
        "error: '/tmp/abc' is no storage namespace: those of this server look like local://example-bucket/\n",
    )
