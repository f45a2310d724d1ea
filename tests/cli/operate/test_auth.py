"""Users, groups and policies from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from lakebed.cli.operate.auth import resource_of
from lakebed.operations.table import OPERATIONS
from tests.cli.conftest import Outcome, Shell

READ = [{"effect": "allow", "action": ["fs:List*", "fs:Read*"], "resource": "*"}]


def keys_of(made: Outcome) -> dict[str, str]:
    pair = made.json
    return {"LAKEBED_ACCESS_KEY_ID": pair["access_key_id"], "LAKEBED_SECRET_ACCESS_KEY": pair["secret_access_key"]}


def test_a_user_may_do_what_their_groups_may(shell: Shell, lake: str) -> None:
    keys = keys_of(shell.ok("auth", "users", "create", "vera", "--group", "Viewers", "-o", "json"))

    assert shell("branch", "list", lake, **keys).code == 0
    refused = shell("branch", "create", f"{lake}/x", "--source", "main", **keys)
    assert refused.code == 1
    assert refused.err.startswith("error: insufficient permissions: vera needs fs:CreateBranch on arn:lakefs:fs:::")

    shell.ok("auth", "groups", "add", "Developers", "vera")
    assert shell("branch", "create", f"{lake}/x", "--source", "main", **keys).code == 0
    shell.ok("auth", "groups", "remove", "Developers", "vera")
    assert shell("branch", "delete", f"{lake}/x", "--yes", **keys).code == 1

    shown = shell.ok("auth", "users", "show", "vera", "-o", "json").json
    assert (shown["groups"], shown["policies"]) == (["Viewers"], [])
    assert "FSReadAll" in shown["effective"]
    assert shell.ok("auth", "users", "delete", "vera", "--yes", "-o", "json").json == {"deleted": "vera"}
    assert shell("branch", "list", lake, **keys).code == 1


def test_a_policy_is_made_from_a_file_shown_changed_attached_and_deleted(shell: Shell, lake: str) -> None:
    keys = keys_of(shell.ok("auth", "users", "create", "paul", "-o", "json"))
    shell.ok("auth", "policies", "create", "readers", "-", stdin=json.dumps(READ))
    shell.ok("auth", "groups", "create", "analysts", "--description", "Who reads")
    shell.ok("auth", "groups", "attach", "analysts", "readers")
    shell.ok("auth", "groups", "add", "analysts", "paul")

    assert shell("branch", "list", lake, **keys).code == 0
    shown = shell.ok("auth", "policies", "show", "readers", "-o", "json")
    assert shown.json["statement"] == READ
    nothing = shown.out.replace("allow", "deny")
    shell.ok("auth", "policies", "update", "readers", "-", stdin=nothing)
    assert shell("branch", "list", lake, **keys).code == 1

    shell.ok("auth", "users", "attach", "paul", "FSReadAll")
    shell.ok("auth", "groups", "detach", "analysts", "readers")
    assert shell("branch", "list", lake, **keys).code == 0
    shell.ok("auth", "users", "detach", "paul", "FSReadAll")
    assert shell("branch", "list", lake, **keys).code == 1
    shell.ok("auth", "groups", "level", "analysts", "Read")
    assert shell("branch", "list", lake, **keys).code == 0

    shell.ok("auth", "groups", "delete", "analysts", "--yes")
    shell.ok("auth", "policies", "delete", "readers", "--yes")
    assert shell("auth", "policies", "show", "readers").code == 3
    assert shell("auth", "groups", "show", "analysts").code == 3


def test_keys_are_made_listed_and_deleted(shell: Shell) -> None:
    shell.ok("auth", "users", "create", "kim", "--no-key")
    made = shell.ok("auth", "users", "create-key", "kim", "-o", "json").json["access_key_id"]

    assert [one["access_key_id"] for one in shell.ok("auth", "users", "keys", "kim", "-o", "json").json] == [made]
    shell.ok("auth", "users", "delete-key", "kim", made, "--yes")
    assert shell.ok("auth", "users", "keys", "kim").out == ""


def test_what_comes_with_every_server_is_listed_as_tables(shell: Shell) -> None:
    groups = shell.ok("auth", "groups", "list").out.splitlines()
    policies = shell.ok("auth", "policies", "list", "--prefix", "GC").out.splitlines()

    assert groups[0].split() == ["GROUP", "DESCRIPTION"]
    assert any(line.startswith("GCPlanners ") for line in groups)
    assert [line.split()[0] for line in policies] == ["POLICY", "GCOperator", "GCPlanner", "GCViewer"]
    assert "Members:      ann" in shell.ok("auth", "groups", "show", "Admins").out
    assert "gc:Apply" in shell.ok("auth", "policies", "show", "GCOperator").out
    assert "ann" in shell.ok("auth", "users", "list").out


def test_mistakes_are_told_before_anything_is_made(shell: Shell) -> None:
    assert shell("auth", "users", "create", "mia", "--group", "Nobodys").code == 3
    assert shell("auth", "users", "show", "mia").code == 3
    assert shell("auth", "policies", "create", "bad", "-", stdin="{}").code == 2
    assert shell("auth", "policies", "create", "bad", "-", stdin="[1]").code == 2
    unknown = '[{"effect": "deny", "action": ["fs:Explode"], "resource": "*"}]'
    assert "no such action" in shell("auth", "policies", "create", "bad", "-", stdin=unknown).err
    assert shell("auth", "users", "delete", "ann").code == 2
    last = shell("auth", "users", "delete", "ann", "--yes")
    assert (last.code, "last one in Admins" in last.err) == (4, True)
    assert shell("auth", "groups", "delete", "Viewers", "--yes").code == 1


def test_what_exists_already_is_named(shell: Shell, tmp_path: Path) -> None:
    statements = tmp_path / "statements.json"
    statements.write_text('[{"effect": "allow", "action": ["fs:*"], "resource": "*"}]')

    def twice(*arguments: str) -> tuple[int, str]:
        shell(*arguments)
        outcome = shell(*arguments)
        return outcome.code, outcome.err

    taken = "error: {} exists already: choose another name\n"
    assert twice("auth", "users", "create", "ann") == (4, taken.format("user ann"))
    assert twice("auth", "groups", "create", "Viewers") == (
        4,
        "error: group Viewers exists already: choose another name\n",
    )
    assert twice("auth", "policies", "create", "p", str(statements)) == (
        4,
        "error: policy p exists already: choose another name\n",
    )


def test_recover_makes_an_administrator_at_the_data_folder(shell: Shell, lake: str, data: Path) -> None:
    keys = keys_of(shell.ok("auth", "recover", "--data", str(data), "--user", "rescue", "-o", "json"))

    assert shell("auth", "users", "list", **keys).code == 0
    assert shell("branch", "list", lake, **keys).code == 0


def test_recover_where_there_is_no_data_folder_makes_none(shell: Shell, tmp_path: Path) -> None:
    failed = shell("auth", "recover", "--data", str(tmp_path / "nothing"))

    assert (failed.code, "is not a data folder" in failed.err) == (3, True)
    assert not (tmp_path / "nothing").exists()


def test_a_principal_of_no_provider_is_refused_with_the_forms_there_are(shell: Shell) -> None:
    outcome = shell("auth", "principals", "attach", "admin", "ann")

    assert (outcome.code, "ISSUER#SUBJECT" in outcome.err) == (1, True)


def test_principals_are_attached_shown_and_detached(shell: Shell) -> None:
    shell.ok("auth", "users", "create", "job-user", "--no-key")
    shell.ok("auth", "principals", "attach", "job-user", "https://p.example#job")

    listed = shell.ok("auth", "principals", "list", "job-user", "-o", "json").json
    shown = shell.ok("auth", "principals", "show", "https://p.example#job").out
    taken = shell("auth", "principals", "attach", "job-user", "https://p.example#job")
    shell.ok("auth", "principals", "detach", "job-user", "https://p.example#job", "--yes")

    assert [one["id"] for one in listed] == ["https://p.example#job"]
    assert "job-user" in shown
    assert (taken.code, "stands for a user already" in taken.err) == (4, True)
    assert shell("auth", "principals", "show", "https://p.example#job").code == 3


def test_may_names_the_statement_that_decides(shell: Shell, lake: str) -> None:
    statements = [
        {"effect": "allow", "action": ["fs:*"], "resource": "*"},
        {"effect": "deny", "action": ["fs:DeleteObject"], "resource": "arn:lakefs:fs:::repository/*/object/private/*"},
    ]
    shell.ok("auth", "policies", "create", "most", "-", stdin=json.dumps(statements))
    shell.ok("auth", "users", "create", "vera", "--group", "Viewers")
    shell.ok("auth", "users", "attach", "vera", "most")

    yes = shell.ok("auth", "may", "vera", "fs:DeleteObject", f"{lake}/main/public/x", "-o", "json").json
    assert (yes["allowed"], yes["policy"], yes["number"], "group" in yes) == (True, "most", 1, False)
    no = shell.ok("auth", "may", "vera", "fs:DeleteObject", f"{lake}/main/private/x")
    assert "no" in no.out
    assert (
        "statement 2 of policy most denies fs:DeleteObject on arn:lakefs:fs:::repository/*/object/private/*" in no.out
    )
    group = shell.ok("auth", "may", "vera", "gc:ReadRuns", lake, "-o", "json").json
    assert (group["allowed"], group["policy"], group["group"]) == (True, "GCViewer", "Viewers")
    nothing = shell.ok("auth", "may", "vera", "auth:CreateUser")
    assert "no statement allows it to vera" in nothing.out

    assert "there is no such action" in shell("auth", "may", "vera", "fs:Delete").err
    assert "is not a resource" in shell("auth", "may", "vera", "fs:DeleteObject", "lake/main/x").err
    assert shell("auth", "may", "nemo", "fs:DeleteObject").code == 3
    assert "the path is missing" in shell("auth", "may", "vera", "fs:DeleteObject", f"{lake}/main").err


def test_may_asks_about_a_branch_an_address_and_a_time(shell: Shell, lake: str) -> None:
    statements = [
        {"effect": "allow", "action": ["fs:*"], "resource": "*", "condition": {"StringLike": {"branch": ["box-*"]}}},
        {"effect": "allow", "action": ["fs:Read*"], "resource": "*"},
        {
            "effect": "deny",
            "action": ["fs:*"],
            "resource": "*",
            "condition": {
                "NotIpAddress": {"SourceIp": ["10.0.0.0/8"]},
                "DateGreaterThan": {"CurrentTime": ["2030-01-01"]},
            },
        },
    ]
    shell.ok("auth", "policies", "create", "box", "-", stdin=json.dumps(statements))
    shell.ok("auth", "users", "create", "boxer")
    shell.ok("auth", "users", "attach", "boxer", "box")
    write, read = ("auth", "may", "boxer", "fs:WriteObject"), ("auth", "may", "boxer", "fs:ReadObject")

    of_uri = shell.ok(*write, f"{lake}/box-1/x", "--address", "10.1.1.1", "-o", "json").json
    of_main = shell.ok(*write, f"{lake}/main/x", "--address", "10.1.1.1")
    instead = shell.ok(*write, f"{lake}/main/x", "--branch", "box-2", "--address", "10.1.1.1", "-o", "json").json
    open_ = shell.ok(*write, "arn:lakefs:fs:::repository/x/object/y")
    later = shell.ok(*read, f"{lake}/main/x", "--address", "192.0.2.1", "--time", "2031-01-01T00:00:00Z")
    tag = shell.ok(*read, f"{lake}/main/x", "--tag", "v1", "--address", "192.0.2.1", "-o", "json").json

    assert (of_uri["allowed"], of_uri["number"], "unsaid" in of_uri) == (True, 1, False)
    assert "no statement allows it to boxer" in of_main.out
    assert (instead["allowed"], instead["number"]) == (True, 1)
    assert "SourceIp (--address), branch (--branch)" in open_.out
    assert 'statement 3 of policy box denies fs:* on *, if {"NotIpAddress":{"SourceIp":["10.0.0.0/8"]}' in later.out
    assert (tag["allowed"], tag["number"]) == (True, 2)
    assert "'soon' is not a time" in shell(*read, f"{lake}/main/x", "--time", "soon").err
    assert "about a branch, a tag or a ref" in shell(*read, f"{lake}/main/x", "--tag", "v1", "--ref", "f00d").err
    assert "'nope' is no address" in shell(*read, f"{lake}/main/x", "--address", "nope").err
    at_box = shell.ok(*write, f"{lake}/box-1~2/x", "--address", "10.1.1.1", "-o", "json").json
    at_commit = shell.ok(*write, f"{lake}/{'f00d' * 16}/x", "--address", "10.1.1.1", "-o", "json").json
    assert (at_box["allowed"], at_commit["allowed"]) == (True, False)
    assert "box-*" in shell.ok("auth", "policies", "show", "box").out


def test_a_uri_stands_for_a_resource_that_operations_ask_about() -> None:
    root = "arn:lakefs:fs:::repository/"
    asked: dict[str, set[str]] = {}
    for operation in OPERATIONS:
        for permission in operation.permissions or ():
            if permission.resource.startswith(root + "{repository}"):
                kind = permission.resource.removeprefix(root + "{repository}").split("/{")[0]
                asked.setdefault(permission.action, set()).add(kind)

    shown = {"": "lake", "/branch": "lake/branch/main", "/tag": "lake/tag/main/x", "/object": "lake/object/x"}
    for action, kinds in asked.items():
        assert resource_of(action, "lakefs://lake/main/x") in {root + shown[kind] for kind in kinds}, action
