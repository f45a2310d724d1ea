"""`lakebed lifecycle` against a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Shell

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "lifecycle.md"
LOGS = {"logs": {"prefix": "logs/", "days": 10, "branch_days": {"main": 5}}}


def written(folder: Path, policy: object) -> str:
    file = folder / "policy.json"
    file.write_text(json.dumps(policy))
    return str(file)


def test_a_policy_is_set_shown_and_removed(shell: Shell, lake: str, tmp_path: Path) -> None:
    assert shell.ok("lifecycle", "policy", "get", lake).out == "no lifecycle policy is set\n"

    shell.ok("lifecycle", "policy", "set", lake, written(tmp_path, LOGS))

    assert json.loads(shell.ok("lifecycle", "policy", "get", lake).out) == LOGS
    assert shell.ok("lifecycle", "policy", "get", lake, "-o", "json").json["policy"] == LOGS
    assert shell("lifecycle", "policy", "unset", lake).code == 2
    shell.ok("lifecycle", "policy", "unset", lake, "--yes")
    history = shell.ok("lifecycle", "policy", "history", lake, "-o", "json").json
    assert [(one["version"], one["policy"]) for one in history] == [(2, None), (1, LOGS)]
    assert "removed" in shell.ok("lifecycle", "policy", "history", lake).out


def test_a_file_is_checked_with_rule_and_place_and_changes_nothing(shell: Shell, lake: str, tmp_path: Path) -> None:
    bad = {"wide": {"prefix": "a", "days": 1}, "narrow": {"prefix": "a/b", "days": 0, "branch_days": {"x": 1}}}

    checked = shell("lifecycle", "policy", "validate", lake, written(tmp_path, bad))
    refused = shell("lifecycle", "policy", "set", lake, written(tmp_path, bad))

    assert checked.code == 1
    assert "error: narrow.days: 0 is not a whole number of days" in checked.out
    assert "error: narrow.branch_days.x: there is no branch x" in checked.out
    assert "error: narrow.prefix: 'a/b' overlaps with 'a' (wide.prefix)" in checked.out
    assert checked.out.splitlines()[-1] == "3 errors"
    assert refused.code == 1
    assert "(and 2 more)" in refused.err
    assert shell.ok("lifecycle", "policy", "get", lake, "-o", "json").json["version"] == 0


def test_every_bad_policy_is_refused_in_words_and_changes_nothing(
    shell: Shell, lake: str, data: Path, tmp_path: Path
) -> None:
    here = ("--engine", "local", "--data", str(data))

    def rule(**fields: object) -> object:
        return {"r": {"prefix": "logs/", "days": 1, **fields}}

    bad = [
        ({"a": {"prefix": "x", "days": 1}, "b": {"prefix": "x/y", "days": 1}}, "b.prefix: 'x/y' overlaps with 'x'"),
        (rule(branch_days={"gone": 1}), "r.branch_days.gone: there is no branch gone"),
        (rule(days=-1), "r.days: -1 is not a whole number of days, 1 to 366,000"),
        (rule(day=1), "r.day: unknown field; did you mean days?"),
        (rule(prefix="logs/../a"), "r.prefix: paths have no .."),
        ({f"r{n}": {} for n in range(1_001)}, "1,001 rules, at most 1,000"),
        ({f"r{n}": {} for n in range(10_000)}, "the policy has 128,890 bytes, at most 100,000"),
        (rule(prefix="x" * 1_000_000), "the policy has 1,000,032 bytes, at most 100,000"),
        ({"rules": rule(when="metadata.a = 'b'")}, "rules.r.when: at character 12: expected == after the name"),
    ]
    for policy, words in bad:
        file = written(tmp_path, policy)
        refused = shell("lifecycle", "policy", "set", lake, file)
        checked = shell("lifecycle", "policy", "validate", lake, file)
        simulated = shell("lifecycle", "simulate", lake, *here, "--policy", file)
        assert (refused.code, words in refused.err) == (1, True), (words, refused)
        assert (checked.code, f"error: {words}" in " ".join(checked.out.split())) == (1, True), (words, checked)
        assert (simulated.code, words in simulated.err) == (2, True), (words, simulated)
    assert shell.ok("lifecycle", "policy", "get", lake, "-o", "json").json["version"] == 0


def test_warnings_are_shown_and_refuse_nothing(shell: Shell, lake: str, tmp_path: Path) -> None:
    policy = {"logs": {"prefix": "logs", "days": 10}}

    checked = shell.ok("lifecycle", "policy", "validate", lake, written(tmp_path, policy))
    outcome = shell.ok("lifecycle", "policy", "set", lake, written(tmp_path, policy))

    assert "warning: logs.prefix: 'logs' is a prefix of texts" in checked.out
    assert "the policy is valid" in checked.out
    assert "warning: logs.prefix" in outcome.err


def test_the_policies_of_the_guide_are_valid_in_a_new_repository(shell: Shell, lake: str, tmp_path: Path) -> None:
    policies = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)

    assert len(policies) == 3
    for policy in policies:
        assert (
            "the policy is valid"
            in shell.ok("lifecycle", "policy", "validate", lake, written(tmp_path, json.loads(policy))).out
        )


def test_the_status_has_the_policy_in_force_and_its_runs(shell: Shell, lake: str, data: Path, tmp_path: Path) -> None:
    assert "no lifecycle policy is set" in shell.ok("lifecycle", "status", lake).out
    shell.ok("lifecycle", "policy", "set", lake, written(tmp_path, LOGS))
    here = ("--engine", "local", "--data", str(data))
    [plan] = shell.ok("lifecycle", "plan", lake, *here, "--clean", "-o", "json").json
    assert plan["mode_note"] == "asked for"
    assert "no run was applied yet" in shell.ok("lifecycle", "status", lake).out

    shell.ok("lifecycle", "apply", lake, plan["run_id"], *here)

    found = shell.ok("lifecycle", "status", lake, "-o", "json").json
    assert [(one["run_id"], one["state"]) for one in found["runs"]] == [(plan["run_id"], "ended")]
    text = shell.ok("lifecycle", "status", lake).out
    assert "policy version 1, set" in text
    [row] = [line for line in text.splitlines() if plan["run_id"] in line]
    assert row.endswith("  applied")  # as `gc list` says


def test_a_file_that_is_no_json_is_misuse(shell: Shell, lake: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text("{")

    assert shell("lifecycle", "policy", "set", lake, str(file)).code == 2
    assert shell("lifecycle", "policy", "set", lake, str(tmp_path / "none.json")).code == 2


def test_a_plan_and_a_simulation_show_what_would_go(shell: Shell, lake: str, data: Path, tmp_path: Path) -> None:
    here = ("--engine", "local", "--data", str(data))
    shell.ok("object", "upload", "-", f"{lake}/main/logs/a", stdin="data")
    shell.ok("commit", f"{lake}/main", "-m", "logs")
    policy = written(tmp_path, {"logs": {"prefix": "logs/", "days": 10}})
    shell.ok("lifecycle", "policy", "set", lake, policy)

    plan = shell.ok("lifecycle", "plan", lake, *here, "-o", "json").json
    found = shell.ok("lifecycle", "simulate", lake, *here, "--days", "30", "-o", "json").json
    text = shell.ok("lifecycle", "simulate", lake, *here, "--days", "30", "--policy", policy).out

    assert [(one["kind"], one["totals"]["all"]["objects"]) for one in plan] == [("lifecycle", 0)]
    assert [(row["rule"], row["branch"], row["objects"]) for row in found["rows"]] == [("logs: logs/ 10d", "main", 1)]
    assert text.splitlines()[0].split() == ["DAY", "RULE", "LAST", "KEPT", "BY", "OBJECTS", "BYTES"]
    [row] = found["rows"]
    assert [line.split() for line in text.splitlines() if line.startswith(row["date"])][-1] == [
        row["date"],
        "█" * 40,
        "4",
        "B",
    ]
    assert "1 object, 4 B, within 30 days" in text


def test_plans_are_shown_and_compared_as_those_of_other_kinds(
    shell: Shell, lake: str, data: Path, put: Callable[[str, str], None], tmp_path: Path
) -> None:
    here = ("--engine", "local", "--data", str(data))
    put(f"{lake}/main/logs/a", "data")
    shell.ok("commit", f"{lake}/main", "-m", "logs")
    shell.ok("lifecycle", "policy", "set", lake, written(tmp_path, LOGS))
    first, second = (shell.ok("lifecycle", "plan", lake, *here, "-o", "json").json[0]["run_id"] for _ in range(2))

    shown = shell.ok("gc", "show", lake, "latest-lifecycle", *here[2:], "-o", "json").json
    compared = shell.ok("gc", "diff", lake, first, second, *here[2:], "-o", "json").json
    unruled = shell("lifecycle", "plan", lake, *here, "--active-only")

    assert (shown["run_id"], shown["kind"], shown["rules_version"]) == (second, "lifecycle", 1)
    assert compared["kind"] == "lifecycle"
    assert (unruled.code, "no retention rules are set" in unruled.err) == (2, True)
    shell.ok("gc", "rules", "set-default", lake, "30d")
    [active] = shell.ok("lifecycle", "plan", lake, *here, "--active-only", "-o", "json").json
    assert active["active_only"]


def test_a_simulation_shows_the_branches_that_sweeps_would_delete(
    shell: Shell, lake: str, data: Path, tmp_path: Path
) -> None:
    here = ("--engine", "local", "--data", str(data), "--days", "30")
    policy = {"rules": {"logs": {"prefix": "logs/", "period": "10d"}}, "branches": {"tmp-*": {"idle": "20d"}}}
    shell.ok("lifecycle", "policy", "set", lake, written(tmp_path, policy))
    shell.ok("branch", "create", f"{lake}/tmp-a")
    shell.ok("branch", "create", f"{lake}/tmp-b")
    shell.ok("branch", "create", f"{lake}/try", "--ttl", "7d")
    shell.ok("branch", "create", f"{lake}/late", "--ttl", "60d")

    found = shell.ok("lifecycle", "simulate", lake, *here, "-o", "json").json
    text = shell.ok("lifecycle", "simulate", lake, *here).out
    unsaved = shell.ok("lifecycle", "simulate", lake, *here, "--policy", written(tmp_path, policy))

    assert [(one["branch"], one["rule"]) for one in found["branches"]] == [
        ("try", ""),
        ("tmp-a", "tmp-*"),
        ("tmp-b", "tmp-*"),
    ]
    assert found["branches"][0]["date"] < found["branches"][1]["date"]
    day = found["branches"][0]["date"]
    assert f"{day}  try     made to last until then" in text
    assert [line for line in text.splitlines() if line.startswith(day) and line.endswith("1 branch")] != []
    assert "3 branches, where `lakebed lifecycle branches apply` runs each day" in text
    assert "branches are not simulated" in unsaved.out


def test_why_says_when_each_path_of_an_object_is_due_and_what_keeps_it(
    shell: Shell, lake: str, put: Callable[[str, str], None], tmp_path: Path
) -> None:
    put(f"{lake}/main/logs/a", "one")
    shell.ok("commit", f"{lake}/main", "-m", "logs")
    shell.ok("lifecycle", "policy", "set", lake, written(tmp_path, LOGS))

    text = shell.ok("lifecycle", "why", f"{lake}/main/logs/a").out
    [found] = shell.ok("lifecycle", "why", f"{lake}/main/logs/a", "-o", "json").json["objects"]
    by_address = shell.ok("lifecycle", "why", lake, found["address"], "-o", "json").json["objects"]

    assert "due from" in text
    assert "logs: logs/ 10d, main 5d" in text
    assert [(name["path"], name["branches"]) for name in found["due_names"]] == [("logs/a", ["main"])]
    assert by_address == [found]
    assert "`lakebed lifecycle why` has more" in shell.ok("gc", "why", f"{lake}/main/logs/a").out


def test_why_is_short_unless_all_is_asked_for(
    shell: Shell, lake: str, put: Callable[[str, str], None], tmp_path: Path
) -> None:
    put(f"{lake}/main/logs/0", "one")
    for copy in range(1, 6):
        shell.ok("object", "cp", f"{lake}/main/logs/0", f"{lake}/main/logs/{copy}")
    shell.ok("commit", f"{lake}/main", "-m", "logs")
    for branch in range(4):
        shell.ok("branch", "create", f"{lake}/b{branch}")
    shell.ok("lifecycle", "policy", "set", lake, written(tmp_path, LOGS))

    few = shell.ok("lifecycle", "why", f"{lake}/main/logs/0").out
    every = shell.ok("lifecycle", "why", f"{lake}/main/logs/0", "--all").out

    assert few.count("logs/") - few.count("logs: logs/") == 3
    assert "… and 3 more (--all)" in few
    assert "and 2 more" in few
    assert every.count("logs/") - every.count("logs: logs/") == 6
    assert "more" not in every


def test_why_without_a_policy_says_that_none_is_set_and_shows_the_commits(
    shell: Shell, lake: str, put: Callable[[str, str], None]
) -> None:
    put(f"{lake}/main/logs/a", "one")
    commit = shell.ok("commit", f"{lake}/main", "-m", "logs", "-o", "json").json["id"]

    text = shell.ok("lifecycle", "why", f"{lake}/main/logs/a").out

    assert "no lifecycle policy is set" in text
    assert "no commit names it" not in text
    assert commit[:16] in text


def test_a_misspelt_field_is_answered_with_the_one_that_is_meant(shell: Shell, lake: str, tmp_path: Path) -> None:
    file = written(tmp_path, {"rules": {}, "branchs": {}, "branches": {"a": {"idle": "30d", "intoo": ["main"]}}})

    refused = shell("lifecycle", "policy", "set", lake, file)
    checked = shell("lifecycle", "policy", "validate", lake, file).out

    assert refused.code == 1
    assert f"`lakebed lifecycle policy validate {lake} {file}` shows all errors" in refused.err
    assert "did you mean branches?" in checked
    assert "did you mean into?" in checked
