"""`lakebed migrate` from what a real server of the contract answered and stored (recorded/README.md)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

import pytest

from lakebed.client import Client
from lakebed.wire import Statement

from .conftest import Move

ADMIN = [{"effect": "allow", "action": ["fs:*"], "resource": "*"}]


def test_repositories_of_a_real_server_come_over(move: Move) -> None:
    found = {one["repository"]: one for one in move.ok()}

    assert {name: one["commits"] for name, one in found.items()} == {"empty": 1, "frozen": 1, "old": 6}
    assert (found["old"]["branches"], found["old"]["tags"], found["old"]["entries"]) == (2, 1, 55)
    with move.opened() as lake:
        old = lake.repository("old")
        log = [*old.branch("main").log()]
        messages = [commit.message for commit in log if "lakebed.migrated-from" in commit.metadata]
        assert messages[:2] == ["add action", "merge dev"]
        assert sorted(messages[2:4]) == ["delete f1", "on dev"]
        assert messages[4:] == ["first", "Repository created"]
        assert len(log[1].parents) == 2
        assert {commit.creation_date for commit in log[:5]} == {move.old.rows[COMMIT]["body"]["creation_date"]}
        assert old.branch("main").read("raw/d=0/f0.txt") == b"changed\n"
        assert old.branch("main").read("odd/a b+c%25/ü.txt")
        assert old.branch("main").read("empty.txt") == b""
        assert not old.branch("main").exists("raw/d=1/f1.txt")
        assert old.ref("v1").exists("by-s3.txt")
        assert old.branch("main").stat("by-s3.txt").physical_address.startswith(f"{move.scheme}old/data/")
        assert lake.client.repositories.protected_branches("old")[0] == ["main"]
        assert [one.id for one in lake.client.repositories.list() if one.read_only] == ["frozen"]


COMMIT = (
    "/api/v1/repositories/old/commits/main",
    frozenset[tuple[str, str]](),
)


def test_metadata_has_the_names_that_clients_of_s3_expect(move: Move) -> None:
    move.ok("old")

    with move.opened() as lake:
        main = lake.repository("old").branch("main")
        assert main.stat("by-s3.txt").metadata == {"foo": "Bar"}
        assert main.stat("meta.bin").metadata == {"owner": "team"}


def test_a_dry_run_names_what_stays_and_writes_no_repository(move: Move) -> None:
    bad = b"name: x\non: {pre-commit: {branches: [main]}}\nhooks: 7\n"
    for ref in ("main", "dev"):
        move.old.replace(
            f"/repositories/old/refs/{ref}/objects/ls",
            {
                "pagination": {"has_more": False, "max_per_page": 1000, "next_offset": "", "results": 1},
                "results": [
                    {
                        "path": "_lakefs_actions/bad.yaml",
                        "path_type": "object",
                        "physical_address": "s3://any/bad",
                        "checksum": "00",
                        "mtime": 1,
                        "size_bytes": len(bad),
                    }
                ],
            },
            prefix="_lakefs_actions/",
        )
        move.old.rows[
            f"/api/v1/repositories/old/refs/{ref}/objects", frozenset({("path", "_lakefs_actions/bad.yaml")})
        ] = {
            "status": 200,
            "headers": {},
            "body": base64.b64encode(bad).decode(),
        }

    found = {one["repository"]: one for one in move.ok("--dry-run")}

    assert (found["old"]["commits"], found["old"]["changes"], found["frozen"]["read_only"]) == (6, 24, True)
    stays = found["old"]["stays"]
    assert "uncommitted changes on main stay there: commit or reset them" in stays
    assert any("retention rules stay there (default 21 days, main 28 days)" in line for line in stays)
    assert any("changes of main will be refused here: action file _lakefs_actions/bad.yaml" in line for line in stays)
    with move.opened() as lake:
        assert [*lake.repositories()] == []


def test_what_would_stop_the_run_stops_the_dry_run(move: Move) -> None:
    store_is_local = move.scheme == "local://"
    namespace = "local://old/{repository}" if store_is_local else "s3://oldb/old/{repository}"
    move.options[move.options.index("--namespaces") + 1] = namespace

    dry, run = move("old", "--dry-run"), move("old")

    assert dry.code == run.code == 2
    assert dry.err == run.err
    assert "meets" in dry.err


def test_a_repository_that_cannot_come_over_keeps_no_other_from_it_and_is_named(move: Move) -> None:
    for (path, _), row in move.old.rows.items():
        if "/repositories/old/refs/" in path and isinstance(row["body"], dict):
            row["body"] = json.loads(json.dumps(row["body"]).replace("/old/data/", "/absent/data/"))

    dry, run = move("--dry-run"), move()

    assert (dry.code, run.code) == (1, 1)
    for outcome, verb in ((dry, "would"), (run, "did")):
        assert "old: " in outcome.err.splitlines()[0]
        assert "finds nothing there" in outcome.err
        assert f"error: 1 of 3 repositories {verb} not come over: old." in outcome.err
    with move.opened() as lake:
        assert [one.id for one in lake.client.repositories.list()] == ["empty", "frozen"]


def test_the_root_of_a_local_store_is_asked_for(move: Move) -> None:
    if move.scheme != "local://":
        pytest.skip("only a local store names folders of its machine")
    move.options = move.options[:2]

    failed = move("old", "--dry-run")

    assert failed.code == 2
    assert "--objects names the root of its local store" in failed.err
    assert "--objects srv is not absolute" in move("old", "--objects", "srv", "--dry-run").err


def test_a_second_run_has_nothing_to_do(move: Move) -> None:
    move.ok()

    assert {(one["commits"], one["entries"]) for one in move.ok()} == {(0, 0), (0, 55)}


def test_accounts_come_over_as_far_as_they_are_shown(move: Move) -> None:
    [_, accounts] = move.ok("empty", "--accounts")
    assert (accounts["users"], accounts["groups"], accounts["policies"]) == (1, 0, 0)
    assert any("groups are not shown by the old server" in line for line in accounts["stays"])


def test_groups_and_policies_come_over_and_no_holder_gets_a_part_of_its_policies(move: Move) -> None:
    odd = [{"effect": "deny", "action": ["fs:*"], "resource": "*", "condition": {"x": {"y": ["z"]}}}]
    good = {"id": "reads", "creation_date": 1, "statement": ADMIN}
    bad = {"id": "never", "creation_date": 1, "statement": odd}
    move.old.replace("/auth/users", page({"id": "ann", "creation_date": 1}, {"id": "bob", "creation_date": 1}))
    move.old.replace("/auth/groups", page({"id": "team", "creation_date": 1}))
    move.old.replace("/auth/policies", page(good, bad))
    move.old.replace("/auth/users/ann/groups", page({"id": "team", "creation_date": 1}))
    move.old.replace("/auth/users/bob/groups", page())
    move.old.replace("/auth/users/ann/policies", page())
    move.old.replace("/auth/users/bob/policies", page(good, bad))
    move.old.replace("/auth/groups/team/policies", page(good))

    [_, accounts] = move.ok("empty", "--accounts")

    assert (accounts["users"], accounts["groups"], accounts["policies"]) == (2, 1, 1)
    assert "user bob gets nothing here: one of its policies denies, and did not come over" in accounts["stays"]
    with move.opened() as lake:
        client = lake.client
        assert [one.id for one in client.users.groups("ann")] == ["team"]
        assert [one.id for one in client.groups.policies("team")] == ["reads"]
        assert [*client.users.policies("bob")] == []


def page(*rows: Any) -> dict[str, Any]:
    return {
        "pagination": {"has_more": False, "max_per_page": 1000, "next_offset": "", "results": len(rows)},
        "results": [*rows],
    }


def rights_of(client: Client, users: Iterable[str]) -> dict[str, list[str]]:
    """Return the groups and the policies of each user."""
    rights = {user: [group.id for group in client.users.groups(user)] for user in users}
    for user, names in rights.items():
        names += [policy.id for policy in client.users.policies(user)]
    return rights


def test_who_is_here_already_gets_no_right_and_a_name_that_is_taken_gives_none(move: Move) -> None:
    """The same name may be another person, and who lost a right here must not get it back by a second run."""
    if move.scheme != "local://":
        pytest.skip("this does not depend on the store: once is enough")
    ids = ("ann", "bob")
    old, taken = ({"id": one, "creation_date": 1, "statement": ADMIN} for one in ("reads", "taken"))
    move.old.replace("/auth/users", page(*({"id": one, "creation_date": 1} for one in ids)))
    move.old.replace("/auth/groups", page(*({"id": one, "creation_date": 1} for one in ("Admins", "team"))))
    move.old.replace("/auth/policies", page(old, taken))
    for one in ids:
        groups = page(*({"id": group, "creation_date": 1} for group in ("Admins", "team")))
        move.old.replace(f"/auth/users/{one}/groups", groups)
        move.old.replace(f"/auth/users/{one}/policies", page(old))
    move.old.replace("/auth/groups/Admins/policies", page())
    move.old.replace("/auth/groups/team/policies", page(taken))
    with move.opened() as lake:
        for one in ("ann", "boss"):
            lake.client.users.create(one)
        lake.client.groups.add("Admins", "boss")
        lake.client.groups.create("team")
        lake.client.policies.create("taken", [Statement(effect="allow", action=["auth:*"], resource="*")])

    [_, first] = move.ok("empty", "--accounts")
    with move.opened() as lake:
        lake.client.groups.remove("Admins", "bob")
    [_, again] = move.ok("empty", "--accounts")

    with move.opened() as lake:
        rights = rights_of(lake.client, ids)
    assert rights == {"ann": [], "bob": ["reads"]}
    assert "policy taken is another one here, and stays as it is" in first["stays"]
    assert "group team is another one here: it stays as it is, and nobody joins it" in first["stays"]
    assert "user ann is here already, and gets nothing: there it has Admins, team, reads" in first["stays"]
    assert "user bob is here already, and gets nothing: there it has Admins, team" in again["stays"]


def test_who_is_denied_something_there_gets_nothing_where_the_denial_does_not_come_over(move: Move) -> None:
    """Else the rest of the user's rights would be more than the user ever had."""
    if move.scheme != "local://":
        pytest.skip("this does not depend on the store: once is enough")
    odd = [{"effect": "deny", "action": ["fs:*"], "resource": "*", "condition": {"x": {"y": ["z"]}}}]
    deny = [{"effect": "deny", "action": ["fs:*"], "resource": "*"}]
    policies = {"reads": ADMIN, "never": odd, "FSReadAll": deny, "denies": deny}
    shown = {name: {"id": name, "creation_date": 1, "statement": rules} for name, rules in policies.items()}
    # What a group has there: a policy that is not valid here; a denial that the group of this name here does not have;
    # a denial below a built-in name, or for a built-in group.
    groups = {"odd": ["never"], "other": ["denies"], "named": ["FSReadAll"], "Viewers": ["denies"], "whole": ["denies"]}
    move.old.replace("/auth/groups", page(*({"id": one, "creation_date": 1} for one in groups)))
    for one, attached in groups.items():
        move.old.replace(f"/auth/groups/{one}/policies", page(*(shown[name] for name in attached)))
    move.old.replace("/auth/policies", page(*shown.values()))
    users = {f"in-{one}": ([one, "whole"], ["reads"]) for one in groups} | {"alone": (["whole"], ["reads", "never"])}
    move.old.replace("/auth/users", page(*({"id": one, "creation_date": 1} for one in users)))
    for one, (joined, attached) in users.items():
        move.old.replace(f"/auth/users/{one}/groups", page(*({"id": each, "creation_date": 1} for each in joined)))
        move.old.replace(f"/auth/users/{one}/policies", page(*(shown[name] for name in attached)))
    with move.opened() as lake:
        lake.client.groups.create("other")

    [_, accounts] = move.ok("empty", "--accounts")

    with move.opened() as lake:
        rights = rights_of(lake.client, users)
    nothing: dict[str, list[str]] = {one: [] for one in users if one != "in-whole"}
    assert rights == {**nothing, "in-whole": ["whole", "reads"]}
    assert "user in-odd gets nothing here: group odd denies something there, and not here" in accounts["stays"]


def test_a_marker_of_another_installation_is_no_old_servers(move: Move) -> None:
    """Doubt means keep: only the very text of the old server is passed over."""
    if move.scheme != "local://":
        pytest.skip("this does not depend on the store: once is enough")
    (move.new / "objects" / "old" / "_lakefs" / "dummy").write_text("this is dummy data - of another server")

    failed = move("old", "--dry-run")

    assert failed.code == 2
    assert "lies inside the storage namespace" in failed.err
