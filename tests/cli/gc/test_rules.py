"""`lakebed gc rules` against a real server: set, read, explain, compare, and put back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell


def test_rules_are_set_with_units_and_patterns_and_shown(shell: Shell, lake: str) -> None:
    shell.ok("gc", "rules", "set-default", lake, "4d")
    shell.ok("gc", "rules", "set", f"{lake}/main", "20d")
    shell.ok("gc", "rules", "set", f"{lake}/feature-*", "36h")
    shell.ok("gc", "rules", "set", f"{lake}/main", "6mo")
    shell.ok("gc", "rules", "keep-last", f"{lake}/main", "10")
    shell.ok("gc", "rules", "pin-tags", lake, "off")
    shell.ok("gc", "rules", "uncommitted", lake, "2d")

    text = shell.ok("gc", "rules", "show", lake).out
    shown = shell.ok("gc", "rules", "show", lake, "-o", "json").json

    assert shown["version"] == 7
    assert shown["rules"] == {
        "default": "4d",
        "branches": [{"pattern": "main", "period": "6mo"}, {"pattern": "feature-*", "period": "36h"}],
        "keep_last": [{"pattern": "main", "commits": 10}],
        "tags_pin": False,
        "uncommitted_min_age": "2d",
    }
    assert text.splitlines()[:4] == [
        "BRANCH     RETENTION",
        "main       6mo",
        "feature-*  36h",
        "(default)  4d",
    ]
    assert "the last 10 commits of main" in text
    assert "keep nothing" in text
    assert "stays for 2d after its upload" in text


def test_a_rule_without_a_default_lets_all_else_stay_for_ever(shell: Shell, lake: str) -> None:
    assert shell.ok("gc", "rules", "show", lake).out == "no rules are set: committed data stays for ever\n"

    outcome = shell.ok("gc", "rules", "set", f"{lake}/main", "20d")

    assert "what no rule matches stays for ever" in outcome.err
    assert shell.ok("gc", "rules", "show", lake, "-o", "json").json["rules"]["default"] == "forever"


def test_a_rule_can_be_taken_back(shell: Shell, lake: str) -> None:
    shell.ok("gc", "rules", "set-default", lake, "4d")
    shell.ok("gc", "rules", "set", f"{lake}/main", "20d")
    shell.ok("gc", "rules", "keep-last", f"{lake}/main", "3")
    shell.ok("gc", "rules", "uncommitted", lake, "1d")

    shell.ok("gc", "rules", "unset", f"{lake}/main")
    shell.ok("gc", "rules", "keep-last", f"{lake}/main", "off")
    shell.ok("gc", "rules", "uncommitted", lake, "off")

    rules = shell.ok("gc", "rules", "show", lake, "-o", "json").json["rules"]
    assert rules == {
        "default": "4d",
        "branches": [],
        "keep_last": [],
        "tags_pin": True,
        "uncommitted_min_age": None,
    }


def test_all_rules_are_removed_only_when_it_was_confirmed(shell: Shell, lake: str) -> None:
    shell.ok("gc", "rules", "set-default", lake, "4d")

    assert shell("gc", "rules", "unset", lake).code == 2
    shell.ok("gc", "rules", "unset", lake, "--yes")

    assert shell.ok("gc", "rules", "show", lake, "-o", "json").json["rules"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["set-default", "{lake}", "4"], "no unit"),
        (["set-default", "{lake}", "4m"], "minutes or months"),
        (["set-default", "{lake}", "0d"], "too short"),
        (["set", "{lake}/main", "9999999d"], "thousand years"),
        (["set", "{lake}/a.b", "4d"], "matches no branch"),
        (["set", "{lake}/a**", "4d"], "is spelled 'a*'"),
        (["set", "{lake}", "10d"], "which branch or pattern, as in"),
        (["keep-last", "{lake}/main", "0"], "must be 1 to"),
        (["keep-last", "{lake}/main", "many"], "neither a number"),
        (["keep-last", "{lake}/main", "off"], "has no keep-last"),
        (["pin-tags", "{lake}", "yes"], "neither on nor off"),
        (["uncommitted", "{lake}", "soon"], "not a duration"),
    ],
)
def test_what_nobody_can_have_meant_is_refused_before_it_is_sent(
    shell: Shell, lake: str, arguments: list[str], words: str
) -> None:
    outcome = shell("gc", "rules", *[argument.format(lake=lake) for argument in arguments])

    assert outcome.code == 2
    assert words in outcome.err
    assert shell.ok("gc", "rules", "show", lake, "-o", "json").json["version"] == 0


def test_explain_says_which_rule_wins_and_why(shell: Shell, lake: str) -> None:
    shell.ok("gc", "rules", "set-default", lake, "4d")
    shell.ok("gc", "rules", "set", f"{lake}/feature-*", "36h")
    shell.ok("gc", "rules", "set", f"{lake}/f*", "2w")
    shell.ok("gc", "rules", "keep-last", f"{lake}/*", "5")

    text = shell.ok("gc", "rules", "explain", f"{lake}/feature-x").out
    nothing = shell.ok("gc", "rules", "explain", lake).out
    answer = shell.ok("gc", "rules", "explain", f"{lake}/other", "-o", "json").json

    assert "36h, by feature-*" in text
    assert "its literal beginning has 8 characters, that of f* has 1" in text
    assert "the last 5 commits, by *" in text
    assert "commits on no branch follow the default" in nothing
    assert (answer["period"], answer["pattern"], answer["keep_last"]) == ("4d", None, 5)


def test_explain_without_rules_says_that_there_are_none(shell: Shell, lake: str) -> None:
    outcome = shell("gc", "rules", "explain", f"{lake}/main")

    assert outcome.code == 3
    assert "no retention rules" in outcome.err


def test_history_tells_who_changed_what(shell: Shell, lake: str) -> None:
    shell.ok("gc", "rules", "set-default", lake, "4d")
    shell.ok("gc", "rules", "set-default", lake, "6d")
    shell.ok("gc", "rules", "unset", lake, "--yes")

    text = shell.ok("gc", "rules", "history", lake).out
    records = shell.ok("gc", "rules", "history", lake, "-o", "json").json
    last = shell.ok("gc", "rules", "history", lake, "-n", "1", "-o", "json").json

    assert [record["version"] for record in records] == [3, 2, 1]
    assert {record["changed_by"] for record in records} == {"ann"}
    assert "default: 4d → 6d" in text
    assert last == records[:1]


def test_diff_and_apply_compare_versions_and_files(shell: Shell, lake: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    shell.ok("gc", "rules", "set-default", lake, "4d")
    file.write_text(shell.ok("gc", "rules", "show", lake, "-o", "json").out)
    shell.ok("gc", "rules", "set", f"{lake}/main", "20d")
    main = {"what": "period", "pattern": "main", "before": None, "after": "20d"}
    gone = {"what": "period", "pattern": "main", "before": "20d", "after": None}

    def diff(*names: str) -> object:
        return shell.ok("gc", "rules", "diff", lake, *names, "-o", "json").json

    assert diff() == diff("1") == diff(str(file), "2") == [main]
    assert diff(str(file)) == diff("2", "1") == [gone]
    assert shell.ok("gc", "rules", "diff", lake, "2").out == "no difference\n"

    shell.ok("gc", "rules", "apply", lake, str(file))

    assert diff("1") == []
    assert shell.ok("gc", "rules", "show", lake, "--version", "2", "-o", "json").json["rules"]["branches"]
    again = shell.ok("gc", "rules", "apply", lake, str(file), "-o", "json").json
    assert again["version"] == 3


def test_rules_of_a_file_are_tried_and_not_saved(shell: Shell, lake: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"default": "30d", "branches": [{"pattern": "main", "period": "1h"}]}')

    text = shell.ok("gc", "rules", "try", lake, str(file)).out
    record = shell.ok("gc", "rules", "try", lake, str(file), "-o", "json").json

    assert "0 commits of 1" in text
    assert "at most 0 objects" in text
    assert (record["kept"], record["expired"], record["branches"][0]["rule"]) == (1, 0, "main: 1h")
    assert shell.ok("gc", "rules", "show", lake, "-o", "json").json["version"] == 0


def test_an_engine_may_be_named_for_the_plans_that_rules_are_compared_by(
    shell: Shell, lake: str, data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"default": "4d"}))
    how = ("--plan", "--engine", "local", "--data", str(data))

    compared = shell.ok("gc", "rules", "diff", lake, str(file), *how)
    saved = shell.ok("gc", "rules", "apply", lake, str(file), "--yes", *how)
    wrong = shell("gc", "rules", "diff", lake, str(file), "--plan", "--engine", "turbo", "--data", str(data))

    assert "is by the rules before" in compared.out
    assert "starting Spark" not in compared.err + saved.err
    assert (wrong.code, "turbo" in wrong.err) == (2, True)


@pytest.mark.parametrize(
    ("how", "needs"),
    [
        (["--engine", "turbo"], "--engine needs --plan"),
        (["--engine", "local", "--tasks", "3"], "--engine and --tasks need --plan"),
    ],
)
def test_an_engine_without_a_plan_is_misuse_and_nothing_is_saved(
    shell: Shell, lake: str, tmp_path: Path, how: list[str], needs: str
) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"default": "4d"}))

    refused = [shell("gc", "rules", command, lake, str(file), *how) for command in ("diff", "apply")]

    assert [(outcome.code, needs in outcome.err) for outcome in refused] == [(2, True)] * 2
    assert shell.ok("gc", "rules", "show", lake, "-o", "json").json["version"] == 0


def test_a_file_with_a_field_that_nobody_knows_is_refused(shell: Shell, lake: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"default": "4d", "keep_lsat": []}))

    outcome = shell("gc", "rules", "apply", lake, str(file))

    assert outcome.code == 2
    assert "keep_lsat" in outcome.err


def test_a_duration_with_a_dash_is_told_to_be_none(shell: Shell, lake: str) -> None:
    refused = [
        shell("gc", "rules", "set-default", lake, "-1d"),
        shell("gc", "rules", "set", f"{lake}/main", "-1d"),
        shell("gc", "rules", "uncommitted", lake, "-1d"),
    ]

    assert {outcome.code for outcome in refused} == {2}
    assert all("'-1d' is too short" in outcome.err for outcome in refused)


def test_a_rules_file_that_is_not_there_or_has_a_bad_duration_is_misuse_that_names_it(
    shell: Shell, lake: str, tmp_path: Path
) -> None:
    missing, bad = str(tmp_path / "nosuch.json"), tmp_path / "bad.json"
    bad.write_text(json.dumps({"default": "4x"}))
    commands = (["gc", "plan", lake, "--rules"], ["gc", "rules", "apply", lake], ["gc", "rules", "diff", lake])

    for command in commands:
        absent, broken = shell(*command, missing), shell(*command, str(bad))
        assert (absent.code, broken.code) == (2, 2)
        shown = "`lakebed gc rules show -o json` shows the form"
        assert absent.err == f"error: {missing}: No such file or directory. {shown}\n"
        assert broken.err.startswith(f"error: {bad}: retention of the default: '4x' has the unknown unit")


def test_a_version_that_never_was_is_not_found(shell: Shell, lake: str) -> None:
    assert shell("gc", "rules", "show", lake, "--version", "9").code == 3


def test_a_pattern_without_a_rule_is_not_found(shell: Shell, lake: str) -> None:
    outcome = shell("gc", "rules", "unset", f"{lake}/main")

    assert (outcome.code, outcome.err) == (3, f"error: {lake}/main has no rule of its own\n")
