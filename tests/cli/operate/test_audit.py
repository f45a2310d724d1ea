"""`lakebed audit`: what was done to a repository, as people and as programs read it."""

from __future__ import annotations

from tests.cli.conftest import Shell


def test_the_audit_log_shows_changes_newest_first(shell: Shell, lake: str) -> None:
    name = lake.removeprefix("lakefs://")
    shell.ok("branch", "create", f"{lake}/try", "--source", "main")
    shell("branch", "create", f"{lake}/try", "--source", "main")

    records = shell.ok("audit", "--repository", name, "-o", "json").json
    text = shell.ok("audit", "--repository", name, "--operation", "createBranch", "-n", "1").out.splitlines()

    shown = [(record["user"], record["operation"], record["status"], record["allowed"]) for record in records]
    assert shown == [("ann", "createBranch", 409, True), ("ann", "createBranch", 201, True)]
    assert text[0].split() == ["TIME", "USER", "FROM", "OPERATION", "WHAT", "RESULT"]
    assert len(text) == 2
    assert f"repository={name}" in text[1]


def test_a_date_that_is_none_is_one_line(shell: Shell) -> None:
    outcome = shell("audit", "--since", "yesterday")

    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert "yesterday" in outcome.err
