"""What a command says next where the thing it names is missing, deleted, or of another kind."""

from __future__ import annotations

from tests.cli.conftest import Shell


def test_a_state_before_the_log_of_a_ref_is_answered_with_where_the_log_begins(shell: Shell, lake: str) -> None:
    shell.ok("tag", "create", f"{lake}/v1", "main")

    said = {
        "branch": [shell("log", f"{lake}/main@{{900 days ago}}"), shell("show", f"{lake}/main@{{99}}")],
        "tag": [shell("log", f"{lake}/v1@{{900 days ago}}")],
    }

    for noun, outcomes in said.items():
        for outcome in outcomes:
            assert outcome.code == 3
            assert "did not exist then by its log, which begins at 20" in outcome.err
            assert f"`lakebed {noun} reflog {lake}/" in outcome.err


def test_a_missing_path_of_a_former_state_is_not_blamed_on_the_log(shell: Shell, lake: str) -> None:
    shell.ok("commit", f"{lake}/main", "-m", "a", "--allow-empty")

    outcome = shell("object", "stat", f"{lake}/main@{{1}}/nope")

    assert outcome.code == 3
    assert "did not exist then" not in outcome.err


def test_tags_and_branches_are_not_mixed_up(shell: Shell, lake: str) -> None:
    shell.ok("tag", "create", f"{lake}/release-1", "main")

    assert f"Did you mean {lake}/release-1?" in shell("tag", "show", f"{lake}/release-2").err
    assert f"`lakebed tag list {lake}` shows what is there" in shell("tag", "show", f"{lake}/zzz").err
    assert "main is a branch: `lakebed branch show" in shell("tag", "show", f"{lake}/main").err
    for made in (
        shell("branch", "create", f"{lake}/release-1"),
        shell("tag", "create", f"{lake}/main", "release-1"),
    ):
        assert made.code == 4
        assert "a branch and a tag cannot share a name" in made.err


def test_a_deleted_repository_is_named_as_deleted(shell: Shell, lake: str) -> None:
    alive = shell("gc", "deleted", "why", f"{lake}/main/a").err
    shell.ok("repo", "delete", lake, "--yes")

    log = shell("log", f"{lake}/main")
    mistyped = shell("gc", "deleted", "why", f"{lake}x/main/a").err

    assert f"{lake} is not deleted" in alive
    assert log.code == 3
    assert "It was deleted at 20" in log.err
    assert f"`lakebed repo undelete {lake}` brings it back" in log.err
    assert "Did you mean lakefs://lake-" in mistyped


def test_a_merge_whose_source_was_deleted_names_it(shell: Shell, lake: str) -> None:
    shell.ok("branch", "create", f"{lake}/work")
    shell.ok("commit", f"{lake}/work", "-m", "a", "--allow-empty")
    pull = shell.ok("pulls", "create", f"{lake}/work", f"{lake}/main", "--title", "a", "-q").out.strip()
    shell.ok("branch", "delete", f"{lake}/work", "--yes")

    outcome = shell("pulls", "merge", lake, pull, "--yes")

    assert outcome.code == 3
    assert f"{lake}/work was deleted: `lakebed branch undelete {lake}/work` brings it back" in outcome.err
    assert f"lakebed pulls close {lake} {pull}" in outcome.err
