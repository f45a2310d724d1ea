"""Branches, tags, commits, merges and differences from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from lakebed.cli.nouns.refs import branches_text
from lakebed.wire import Ref
from tests.cli.conftest import Shell

Put = Callable[[str, str], None]


@pytest.fixture
def branched(shell: Shell, lake: str, put: Put) -> str:
    """`main` with a commit of `a`; `dev` with one more, of `b`."""
    put(f"{lake}/main/a", "1")
    shell.ok("commit", f"{lake}/main", "-m", "first", "--meta", "k=v=w", "--date", "2026-01-01")
    shell.ok("branch", "create", f"{lake}/dev", "--source", "main")
    put(f"{lake}/dev/b", "2")
    shell.ok("commit", f"{lake}/dev", "-m", "second")
    return lake


def messages(shell: Shell, ref: str, *options: str) -> list[str]:
    return [commit["message"] for commit in shell.ok("log", ref, "-o", "json", *options).json]


def content(shell: Shell, uri: str) -> str:
    return shell.ok("object", "cat", uri).out


def test_a_commit_carries_its_message_date_and_metadata(shell: Shell, branched: str) -> None:
    commit = shell.ok("log", f"{branched}/main", "-n", "1", "-o", "json").json[0]

    assert (commit["message"], commit["metadata"], commit["committer"]) == ("first", {"k": "v=w"}, "ann")
    assert commit["creation_date"] == 1_767_225_600


def test_a_log_is_newest_first_and_can_be_cut(shell: Shell, branched: str) -> None:
    assert messages(shell, f"{branched}/dev") == ["second", "first", "Repository created"]
    assert messages(shell, f"{branched}/dev", "-n", "2") == ["second", "first"]
    assert messages(shell, f"{branched}/dev~1") == ["first", "Repository created"]


def test_a_log_can_follow_one_path(shell: Shell, branched: str) -> None:
    assert messages(shell, f"{branched}/dev", "--object", "a") == ["first"]


def test_a_log_as_text_has_a_paragraph_for_each_commit(shell: Shell, branched: str) -> None:
    lines = shell.ok("log", f"{branched}/dev").out.splitlines()

    assert sum(line.startswith("commit ") for line in lines) == 3
    assert "    second" in lines


def test_a_merge_is_drawn(shell: Shell, branched: str, put: Put) -> None:
    put(f"{branched}/main/c", "3")
    shell.ok("commit", f"{branched}/main", "-m", "third")
    shell.ok("merge", f"{branched}/dev", f"{branched}/main", "-m", "together")

    lines = shell.ok("log", f"{branched}/main", "--graph").out.splitlines()

    assert [line.partition("  ")[0] for line in lines] == ["*", "|\\", "* |", "| *", "|/", "*", "*"]
    assert lines[0].endswith("together  (main)")


def test_a_merge_brings_what_the_source_changed(shell: Shell, branched: str) -> None:
    merged = shell.ok("merge", f"{branched}/dev", f"{branched}/main", "-o", "json").json

    assert merged["reference"] == shell.ok("branch", "show", f"{branched}/main").out.strip()
    assert content(shell, f"{branched}/main/b") == "2"


def test_merging_nothing_fails(shell: Shell, branched: str) -> None:
    outcome = shell("merge", f"{branched}/main", f"{branched}/dev")

    assert (outcome.code, "nothing to merge. --allow-empty" in outcome.err) == (4, True)


def test_a_merge_with_conflicts_changes_nothing_unless_a_strategy_decides(
    shell: Shell, branched: str, put: Put
) -> None:
    for branch in ("main", "dev"):
        put(f"{branched}/{branch}/a", branch)
        shell.ok("commit", f"{branched}/{branch}", "-m", "mine")

    refused = shell("merge", f"{branched}/dev", f"{branched}/main")

    assert refused.code == 4
    assert refused.err.startswith("error: both sides changed a: nothing was merged")
    assert content(shell, f"{branched}/main/a") == "main"
    both = ("--take-source", "a", "--take-dest", "a")
    assert shell("merge", f"{branched}/dev", f"{branched}/main", *both).code == 2
    shell.ok("merge", f"{branched}/dev", f"{branched}/main", "--take-source", "a")
    assert content(shell, f"{branched}/main/a") == "dev"


def test_a_cherry_pick_and_a_revert_that_conflict_name_the_paths(shell: Shell, branched: str, put: Put) -> None:
    put(f"{branched}/dev/a", "dev")
    put(f"{branched}/dev/c", "dev")
    put(f"{branched}/main/a", "main")
    for branch in ("main", "dev"):
        shell.ok("commit", f"{branched}/{branch}", "-m", "mine")
    put(f"{branched}/dev/a", "later")
    shell.ok("commit", f"{branched}/dev", "-m", "later")

    picked = shell("branch", "cherry-pick", f"{branched}/main", "dev~1")
    reverted = shell("branch", "revert", f"{branched}/dev", "dev~1", "--yes", "-o", "json")

    assert picked.code == reverted.code == 4
    assert picked.err.startswith("error: both sides changed a: nothing was committed")
    assert f"`lakebed diff --two-dot {branched}/main {branched}/dev~1`" in picked.err
    assert json.loads(reverted.err)["error"]["paths"] == ["a"]


def test_a_conflict_stays_one_for_a_user_who_may_not_list_its_paths(shell: Shell, branched: str, put: Put) -> None:
    for branch in ("main", "dev"):
        put(f"{branched}/{branch}/a", branch)
        shell.ok("commit", f"{branched}/{branch}", "-m", "mine")
    statements = [
        {"action": [action], "effect": effect, "resource": "*"}
        for action, effect in (("fs:*", "allow"), ("fs:ListObjects", "deny"))
    ]
    shell.ok("auth", "policies", "create", "picks", "-", stdin=json.dumps(statements))
    made = shell.ok("auth", "users", "create", "picker", "-o", "json").json
    shell.ok("auth", "users", "attach", "picker", "picks")
    keys = {f"LAKEBED_{name.upper()}": made[name] for name in ("access_key_id", "secret_access_key")}

    picked = shell("branch", "cherry-pick", f"{branched}/main", "dev", **keys)
    merged = shell("merge", f"{branched}/dev", f"{branched}/main", **keys)

    assert (picked.code, merged.code) == (4, 4)
    assert "conflict found" in picked.err
    assert "conflict found" in merged.err


def test_a_graph_is_drawn_for_people_only(shell: Shell, branched: str) -> None:
    refused = shell("log", f"{branched}/main", "--graph", "-o", "json")

    assert refused.code == 2
    assert "--graph draws for people" in refused.err


def test_a_name_that_no_branch_or_tag_can_have_is_misuse(shell: Shell, branched: str) -> None:
    commands = [
        ("branch", "create", f"{branched}/-a b"),
        ("tag", "create", f"{branched}/a..b", "main"),
        ("repo", "create", "lakefs://other", "local://other", "-d", "a/b"),
    ]

    outcomes = [shell(*command) for command in commands]

    assert [outcome.code for outcome in outcomes] == [2, 2, 2]
    assert "letters, digits, underscores and dashes" in outcomes[0].err
    assert "not a valid ref name" in outcomes[1].err


def test_one_ref_shows_what_is_uncommitted(shell: Shell, branched: str, put: Put) -> None:
    put(f"{branched}/dev/a", "changed")
    put(f"{branched}/dev/c", "new")
    shell.ok("object", "rm", f"{branched}/dev/b", "--yes")

    assert shell.ok("diff", f"{branched}/dev").out.splitlines() == ["~ a  (7 B)", "- b", "+ c  (3 B)"]


def test_two_refs_show_what_the_second_changed(shell: Shell, branched: str, put: Put) -> None:
    put(f"{branched}/main/c", "3")
    shell.ok("commit", f"{branched}/main", "-m", "third")

    def paths(*options: str) -> dict[str, str]:
        found = shell.ok("diff", f"{branched}/main", f"{branched}/dev", "-o", "json", *options).json
        return {one["path"]: one["type"] for one in found}

    assert paths() == {"b": "added"}
    assert paths("--two-dot") == {"b": "added", "c": "removed"}


def test_refs_of_two_repositories_are_not_compared(shell: Shell, lake: str) -> None:
    outcome = shell("diff", f"{lake}/main", "lakefs://another/main")

    assert outcome.code == 2
    assert "not in one repository" in outcome.err


def test_committing_nothing_fails_unless_allowed(shell: Shell, branched: str) -> None:
    outcome = shell("commit", f"{branched}/main", "-m", "nothing")

    assert (outcome.code, "has no uncommitted changes. --allow-empty" in outcome.err) == (4, True)
    shell.ok("commit", f"{branched}/main", "-m", "nothing", "--allow-empty")


@pytest.mark.parametrize(
    "options", [["--meta", "k"], ["--meta", "=v"], ["--meta", "k=1", "--meta", "k=2"], ["--date", "x"]]
)
def test_a_commit_with_bad_options_is_not_sent(shell: Shell, lake: str, options: list[str]) -> None:
    assert shell("commit", f"{lake}/main", "-m", "m", "--allow-empty", *options).code == 2
    assert messages(shell, f"{lake}/main") == ["Repository created"]


def test_a_state_that_cannot_be_read_is_shown_as_unknown() -> None:
    """The server leaves it out where files of the branch's tree are lost; without details it leaves all of them out."""
    lost = Ref(id="lost", commit_id="c" * 64, commit_date=1, commit_message="m")
    bare = Ref(id="bare", commit_id="c" * 64)

    _, first, second = branches_text([lost, bare], default="lost")

    assert first.split()[2:4] == ["default,", "unknown"]
    assert "unknown" not in second


def test_branches_are_created_listed_and_deleted(shell: Shell, branched: str) -> None:
    shell.ok("branch", "create", f"{branched}/extra", "-s", f"{branched}/dev~1")
    shell.ok("object", "upload", "-", f"{branched}/extra/new", stdin="new")

    listed = shell.ok("branch", "list", branched, "-o", "json").json
    text = shell.ok("branch", "list", branched).out.splitlines()
    shell.ok("branch", "delete", f"{branched}/extra", "--yes")

    assert [branch["id"] for branch in listed] == ["dev", "extra", "main"]
    assert listed[1]["commit_id"] == listed[2]["commit_id"]
    assert [branch["has_uncommitted"] for branch in listed] == [False, True, False]
    assert listed[0]["commit_date"] >= listed[2]["commit_date"]
    assert text[0].split() == ["NAME", "COMMIT", "STATE", "DATE", "BY", "MESSAGE"]
    assert text[2].split()[2] == "uncommitted"
    assert text[3].split()[2] == "default"
    assert text[3].endswith(listed[2]["commit_message"])
    assert shell("branch", "show", f"{branched}/extra").code == 3


def test_the_default_branch_cannot_be_deleted(shell: Shell, lake: str) -> None:
    outcome = shell("branch", "delete", f"{lake}/main", "--yes")

    assert outcome.code == 1
    assert outcome.err.startswith(f"error: {lake}/main is the default branch, which cannot be deleted. `lakebed repo")


def test_a_source_in_another_repository_is_refused(shell: Shell, lake: str) -> None:
    assert shell("branch", "create", f"{lake}/dev", "-s", "lakefs://another/main").code == 2


def test_a_reset_forgets_a_path_a_prefix_or_everything(shell: Shell, branched: str, put: Put) -> None:
    def uncommitted() -> list[str]:
        return [one["path"] for one in shell.ok("diff", f"{branched}/dev", "-o", "json").json]

    for path in ("x/1", "x/2", "y/1", "y/2"):
        put(f"{branched}/dev/{path}", "new")

    shell.ok("branch", "reset", f"{branched}/dev", "--object", "x/1", "--yes")
    assert uncommitted() == ["x/2", "y/1", "y/2"]
    shell.ok("branch", "reset", f"{branched}/dev", "--prefix", "y/", "--yes")
    assert uncommitted() == ["x/2"]
    shell.ok("branch", "reset", f"{branched}/dev", "--yes")
    assert uncommitted() == []


def test_a_reset_takes_one_of_its_options(shell: Shell, lake: str) -> None:
    assert shell("branch", "reset", f"{lake}/main", "--object", "a", "--prefix", "b", "--yes").code == 2


def test_a_branch_can_be_moved(shell: Shell, branched: str) -> None:
    shell.ok("branch", "reset", f"{branched}/dev", "--to", "main", "--yes")

    assert messages(shell, f"{branched}/dev") == ["first", "Repository created"]


def test_a_revert_undoes_a_commit(shell: Shell, branched: str) -> None:
    shell.ok("branch", "revert", f"{branched}/dev", "dev", "--parent", "1", "--yes")

    assert shell("object", "cat", f"{branched}/dev/b").code == 3
    assert content(shell, f"{branched}/dev/a") == "1"


def test_a_cherry_pick_repeats_a_commit(shell: Shell, branched: str) -> None:
    picked = shell.ok("branch", "cherry-pick", f"{branched}/main", "dev", "-o", "json").json

    assert picked["message"] == "second"
    assert content(shell, f"{branched}/main/b") == "2"


def test_a_protected_branch_takes_merges_only(shell: Shell, branched: str, put: Put) -> None:
    assert shell.ok("branch", "protect", branched).out == ""

    assert shell.ok("branch", "protect", branched, "main", "release-*").out.splitlines() == ["main", "release-*"]
    refused = shell("object", "upload", "-", f"{branched}/main/x", stdin="1")
    shell.ok("merge", f"{branched}/dev", f"{branched}/main")

    assert shell("merge", f"{branched}/main", f"{branched}/main").err == (
        f"error: source and destination are the same: {branched}/main\n"
    )
    assert refused.code == 1
    assert refused.err == (
        f"error: {branched}/main/x: cannot write to protected branch: write to another branch, and merge that\n"
    )
    assert shell.ok("branch", "protect", branched, "--remove", "main", "-o", "json").json == ["release-*"]
    assert shell("branch", "protect", branched, "--remove", "main").code == 2
    put(f"{branched}/main/staged", "1")
    shell.ok("branch", "protect", branched, "main")
    assert "protected branch: it takes no commits, so copy" in shell("merge", f"{branched}/dev", f"{branched}/main").err


def test_a_tag_names_a_commit_for_ever(shell: Shell, branched: str) -> None:
    shell.ok("tag", "create", f"{branched}/v1", "main")

    assert [tag["id"] for tag in shell.ok("tag", "list", branched, "-o", "json").json] == ["v1"]
    assert shell.ok("tag", "show", f"{branched}/v1").out == shell.ok("branch", "show", f"{branched}/main").out
    assert shell("tag", "create", f"{branched}/v1", "dev").code == 4
    shell.ok("tag", "delete", f"{branched}/v1", "--yes")
    assert shell("tag", "show", f"{branched}/v1").code == 3


@pytest.mark.parametrize("command", [["log"], ["diff"], ["branch", "show"], ["tag", "show"], ["object", "ls"]])
def test_what_does_not_exist_is_named(shell: Shell, lake: str, command: list[str]) -> None:
    outcome = shell(*command, f"{lake}/nowhere")

    assert outcome.code == 3
    assert outcome.err.startswith("error: ")
    assert "not found" in outcome.err
    assert f"{lake}/nowhere" in outcome.err
    assert outcome.err.count("\n") == 1


def test_of_several_things_the_one_that_is_not_there_is_named(shell: Shell, lake: str) -> None:
    for command in (
        ("tag", "create", f"{lake}/t", "nope"),
        ("branch", "revert", f"{lake}/main", "nope", "--yes"),
        ("branch", "cherry-pick", f"{lake}/main", "nope"),
    ):
        outcome = shell(*command)
        assert outcome.code == 3
        assert outcome.err.startswith(f"error: {lake}/nope: not found. `lakebed branch list {lake}`"), command
    for pair in ((f"{lake}/main", f"{lake}/nope"), (f"{lake}/nope", f"{lake}/main")):
        compared = shell("diff", *pair)
        assert compared.code == 3
        assert compared.err.startswith(f"error: {lake}/nope: not found. `lakebed branch list {lake}`")
    copied = shell("object", "cp", f"{lake}/main/nope", f"{lake}/main/other")
    assert copied.code == 3
    assert copied.err.startswith(f"error: {lake}/main/nope: not found. `lakebed object ls {lake}/main/`")


def test_a_taken_tag_is_named(shell: Shell, lake: str) -> None:
    shell.ok("tag", "create", f"{lake}/v1", "main")

    outcome = shell("tag", "create", f"{lake}/v1", "main")

    assert (outcome.code, outcome.err) == (4, f"error: {lake}/v1 exists already: choose another name\n")


def test_a_merge_is_reverted_against_a_parent_that_is_named(shell: Shell, branched: str) -> None:
    shell.ok("merge", f"{branched}/dev", f"{branched}/main")

    refused = shell("branch", "revert", f"{branched}/main", "main", "--yes")

    assert refused.code == 2
    assert "main is a merge: add --parent 1" in refused.err


def test_a_branch_starts_at_the_default_branch(shell: Shell, lake: str) -> None:
    shell.ok("branch", "create", f"{lake}/dev")

    assert shell.ok("branch", "show", f"{lake}/dev").out == shell.ok("branch", "show", f"{lake}/main").out


def test_the_log_ends_where_asked_and_leaves_out_merges(shell: Shell, lake: str, put: Put) -> None:
    for branch, name in (("main", "one"), ("dev", "two"), ("main", "three")):
        if branch == "dev":
            shell.ok("branch", "create", f"{lake}/dev")
        put(f"{lake}/{branch}/{name}", name)
        shell.ok("commit", f"{lake}/{branch}", "-m", name, "--date", "2024-01-01" if name == "one" else "2025-01-01")
    shell.ok("merge", f"{lake}/dev", f"{lake}/main", "-m", "both")

    def messages(*options: str) -> set[str]:
        return {one["message"] for one in shell.ok("log", f"{lake}/main", "-o", "json", *options).json}

    assert messages("--no-merges") == {"three", "two", "one", "Repository created"}
    assert messages("--no-merges", "-n", "1") <= {"three", "two"}
    assert messages("--since", "2024-06-01") == {"both", "three", "two"}
    assert messages("--first-parent", "--stop-at", "main~1") == {"both", "three"}
    assert shell("log", f"{lake}/main", "--since", "soon").code == 2


def test_a_dry_merge_shows_what_would_come_and_fails_as_the_merge_would(shell: Shell, lake: str, put: Put) -> None:
    shell.ok("branch", "create", f"{lake}/dev")
    put(f"{lake}/dev/new", "1")
    shell.ok("commit", f"{lake}/dev", "-m", "new")

    before = shell.ok("branch", "show", f"{lake}/main").out
    assert shell.ok("merge", f"{lake}/dev", f"{lake}/main", "--dry-run").out == "+ new  (1 B)\n"
    assert shell.ok("branch", "show", f"{lake}/main").out == before

    put(f"{lake}/main/new", "2")
    shell.ok("commit", f"{lake}/main", "-m", "other")
    dry = shell("merge", f"{lake}/dev", f"{lake}/main", "--dry-run")
    assert (dry.code, dry.out) == (4, "! new\n")
    assert "both sides changed new" in dry.err
    assert shell("merge", f"{lake}/dev", f"{lake}/main", "--dry-run", "-s", "source-wins").code == 0


def test_programs_read_errors_as_records(shell: Shell, lake: str, put: Put) -> None:
    missing = shell("object", "cat", f"{lake}/main/none", "-o", "json")
    assert json.loads(missing.err)["error"]["kind"] == "not_found"

    shell.ok("branch", "create", f"{lake}/dev")
    for branch in ("main", "dev"):
        put(f"{lake}/{branch}/a", branch)
        shell.ok("commit", f"{lake}/{branch}", "-m", "a")
    conflict = shell("merge", f"{lake}/dev", f"{lake}/main", "-o", "json")
    error = json.loads(conflict.err)["error"]
    assert (conflict.code, error["kind"], error["paths"], error["status"]) == (4, "conflict", ["a"], 409)


def test_a_branch_shows_where_it_was_and_is_read_there(shell: Shell, lake: str) -> None:
    shell.ok("branch", "create", f"{lake}/moving", "--source", "main")
    before = shell.ok("branch", "show", f"{lake}/moving").out.strip()
    shell.ok("commit", f"{lake}/moving", "-m", "next", "--allow-empty")

    moves = shell.ok("branch", "reflog", f"{lake}/moving", "-o", "json").json
    lines = shell.ok("branch", "reflog", f"{lake}/moving").out.splitlines()
    log = shell.ok("log", f"{lake}/moving@{{1}}", "-o", "json").json

    assert [move["operation"] for move in moves] == ["commit", "create"]
    assert moves[0]["before"] == before == log[0]["id"]
    assert lines[0].split() == ["WHEN", "OPERATION", "BY", "FROM", "TO"]
    assert shell("log", f"{lake}/moving@{{900 days ago}}").code == 3


def test_deleted_branches_and_tags_are_listed_and_come_back(shell: Shell, lake: str) -> None:
    shell.ok("branch", "create", f"{lake}/regret", "--source", "main")
    shell.ok("tag", "create", f"{lake}/r-1", "main")
    shell.ok("branch", "delete", f"{lake}/regret", "--yes")
    shell.ok("tag", "delete", f"{lake}/r-1", "--yes")

    assert [one["id"] for one in shell.ok("branch", "list", lake, "--deleted", "-o", "json").json] == ["regret"]
    assert [one["id"] for one in shell.ok("tag", "list", lake, "--deleted", "-o", "json").json] == ["r-1"]
    shell.ok("branch", "undelete", f"{lake}/regret")
    shell.ok("tag", "undelete", f"{lake}/r-1")
    again = shell("branch", "undelete", f"{lake}/regret")

    assert again.code == 4
    assert shell.ok("branch", "list", lake, "--deleted").out == ""
    shell.ok("tag", "show", f"{lake}/r-1")
    moves = shell.ok("tag", "reflog", f"{lake}/r-1", "-o", "json").json
    assert [move["operation"] for move in moves] == ["undelete", "delete", "create"]
    assert {move["user"] for move in moves} == {moves[0]["user"]} != {""}
    assert shell("tag", "reflog", f"{lake}/r-2").code == 3


@pytest.mark.parametrize("noun", ["branch", "tag"])
def test_what_is_deleted_for_good_does_not_come_back(shell: Shell, lake: str, noun: str) -> None:
    for words in (["--for-good"], []):
        shell.ok(noun, "create", f"{lake}/regret", *(["--source"] if noun == "branch" else []), "main")
        shell.ok(noun, "delete", f"{lake}/regret", "--yes", *words)
    assert [one["id"] for one in shell.ok(noun, "list", lake, "--deleted", "-o", "json").json] == ["regret"]

    later = shell.ok(noun, "delete", f"{lake}/regret", "--yes", "--for-good")
    again = shell(noun, "delete", f"{lake}/regret", "--yes", "--for-good")

    assert later.out == f"deleted {lake}/regret for good\n"
    assert shell.ok(noun, "list", lake, "--deleted", "-o", "json").json == []
    assert shell(noun, "undelete", f"{lake}/regret").code == 3
    assert (again.code, f"no deleted {noun} regret is kept" in again.err) == (3, True), again


def test_a_reset_of_a_clean_branch_drops_nothing_and_says_so(shell: Shell, lake: str) -> None:
    assert shell.ok("branch", "reset", f"{lake}/main").out == f"nothing is uncommitted: {lake}/main\n"


def test_a_branch_is_ahead_of_the_default_branch_and_behind_it(shell: Shell, lake: str, put: Put) -> None:
    shell.ok("branch", "create", f"{lake}/dev")
    for branch, path in (("dev", "a"), ("dev", "b"), ("main", "c")):
        put(f"{lake}/{branch}/{path}", "x")
        shell.ok("commit", f"{lake}/{branch}", "-m", path)

    assert shell.ok("branch", "ahead", f"{lake}/dev").out == "2 ahead of main, 1 behind it\n"
    count = shell.ok("branch", "ahead", f"{lake}/main", "--of", "dev", "-o", "json").json
    assert count == {"ahead": 1, "behind": 2, "is_complete": True}
    assert shell("branch", "ahead", f"{lake}/nothing").code == 3


def test_a_log_has_one_line_a_commit_and_ends_days_ago(shell: Shell, branched: str) -> None:
    commits = shell.ok("log", branched + "/main", "-o", "json").json
    lines = shell.ok("log", branched + "/main", "--oneline").out.splitlines()

    assert [line.split()[0] for line in lines] == [one["id"][:12] for one in commits]
    assert commits[0]["message"] in lines[0]
    assert "main" in lines[0]
    assert messages(shell, branched + "/dev", "--since", "2d") == ["second"]
    assert shell("log", branched + "/main", "--since", "2x").code == 2


def test_the_second_ref_may_be_bare(shell: Shell, branched: str) -> None:
    whole = shell.ok("diff", f"{branched}/main~1", f"{branched}/main", "-o", "json").json

    assert whole
    assert shell.ok("diff", f"{branched}/main~1", "main", "-o", "json").json == whole
    assert shell.ok("merge", f"{branched}/main~1", "main", "--dry-run").out == ""
