"""`lakebed gc why` against a real server: by path, by address, and what it refuses. No Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lakebed.cli.gc.why import progress_text
from lakebed.client import Client, Credentials
from lakebed.gc import Collector, UnknownAnswer
from lakebed.gc.messages import WhyProgress
from lakebed.settings import read_settings
from tests.cli.conftest import Shell


def test_a_path_and_both_spellings_of_its_address_have_one_answer(
    shell: Shell, lake: str, put: Callable[[str, str], None]
) -> None:
    put(f"{lake}/main/a b/ü#?.txt", "hello")
    shell.ok("commit", f"{lake}/main", "-m", "first")
    shell.ok("gc", "rules", "set-default", lake, "7d")

    by_path = shell.ok("gc", "why", f"{lake}/main/a b/ü#?.txt", "-o", "json").json
    (found,) = by_path["objects"]
    by_key = shell.ok("gc", "why", lake, found["address"], "-o", "json").json
    by_uri = shell.ok("gc", "why", lake, f"{by_path['repository_uri']}/{found['address']}", "-o", "json").json
    text = shell.ok("gc", "why", f"{lake}/main/a b/ü#?.txt").out

    assert by_path["at_ref"]
    assert (found["fate"], found["goes_ms"], [stay["kind"] for stay in found["stays"]]) == ("kept", None, ["head"])
    assert by_key["objects"] == by_uri["objects"] == [found]
    assert "the head of branch main, while it is there" in text
    assert "a b/ü#?.txt" in text


def test_what_was_deleted_before_a_commit_goes_with_the_next_run(
    shell: Shell, lake: str, put: Callable[[str, str], None]
) -> None:
    put(f"{lake}/main/a", "one")
    address = shell.ok("gc", "why", f"{lake}/main/a", "-o", "json").json["objects"][0]["address"]
    shell.ok("object", "rm", f"{lake}/main/a", "--yes")

    assert "stays for as long as it is staged" not in shell.ok("gc", "why", lake, address).out
    assert "goes with the next run of uncommitted data" in shell.ok("gc", "why", lake, address).out


def test_a_deleted_branch_that_keeps_an_object_is_named_with_its_dates(
    shell: Shell, lake: str, put: Callable[[str, str], None]
) -> None:
    shell.ok("branch", "create", f"{lake}/work")
    put(f"{lake}/work/a", "one")
    shell.ok("commit", f"{lake}/work", "-m", "a")
    address = shell.ok("gc", "why", f"{lake}/work/a", "-o", "json").json["objects"][0]["address"]
    shell.ok("branch", "delete", f"{lake}/work", "--yes")

    text = shell.ok("gc", "why", lake, address).out
    (stay,) = shell.ok("gc", "why", lake, address, "-o", "json").json["objects"][0]["stays"]
    (deleted,) = shell.ok("branch", "list", lake, "--deleted", "-o", "json").json

    assert (stay["kind"], stay["until_ms"] // 1000) == ("head", deleted["kept_until"])
    assert "branch work (deleted 20" in text
    assert "can come back until 20" in text
    assert "@{deleted" not in text


def test_the_hidden_branch_of_a_transaction_is_worded_as_one_that_ended(
    shell: Shell, lake: str, put: Callable[[str, str], None]
) -> None:
    settings = read_settings(Path(shell.environment["LAKEBED_CONFIG"]))
    credentials = Credentials(access_key_id=settings.access_key_id, secret_access_key=settings.secret_access_key)
    with closing(Client(settings.endpoint, credentials)) as client:
        client.branches.create(lake.removeprefix("lakefs://"), "tx-1", source="main", hidden=True)
    put(f"{lake}/tx-1/a", "one")
    shell.ok("commit", f"{lake}/tx-1", "-m", "a")
    address = shell.ok("gc", "why", f"{lake}/tx-1/a", "-o", "json").json["objects"][0]["address"]
    with closing(Client(settings.endpoint, credentials)) as client:
        client.branches.create(lake.removeprefix("lakefs://"), "tx-2", source="tx-1", hidden=True)
    for name in ("tx-1", "tx-2"):
        shell.ok("branch", "delete", f"{lake}/{name}", "--yes")

    text = shell.ok("gc", "why", lake, address).out

    assert "(a transaction that ended 20" in text
    assert (text.count("a transaction that ended"), text.count("and 1 other like it")) == (1, 1)
    assert "tx-1" not in shell.ok("branch", "list", lake, "--deleted").out


def test_a_tag_that_came_back_is_named_once_and_one_made_anew_beside_the_deleted(
    shell: Shell, lake: str, put: Callable[[str, str], None]
) -> None:
    put(f"{lake}/main/a", "one")
    shell.ok("commit", f"{lake}/main", "-m", "a")
    shell.ok("tag", "create", f"{lake}/v1", "main")
    shell.ok("tag", "delete", f"{lake}/v1", "--yes")
    deleted = shell.ok("gc", "why", f"{lake}/main/a").out
    shell.ok("tag", "undelete", f"{lake}/v1")
    back = shell.ok("gc", "why", f"{lake}/main/a").out
    shell.ok("tag", "delete", f"{lake}/v1", "--yes")
    put(f"{lake}/main/b", "two")
    shell.ok("commit", f"{lake}/main", "-m", "b")
    shell.ok("tag", "create", f"{lake}/v1", "main")
    anew = shell.ok("gc", "why", f"{lake}/main/a").out

    (line,) = [line for line in deleted.splitlines() if "tag v1" in line]
    assert "while it is there" not in line
    assert "tag v1 (deleted" not in back
    assert "tag v1, while it is there" in back
    assert "tag v1 (deleted, and kept for some days)" in anew


def test_what_nobody_knows_is_not_found(shell: Shell, lake: str) -> None:
    told = shell("gc", "why", f"{lake}/main/nosuch")
    asked = shell("gc", "why", f"{lake}/main/nosuch", "-o", "json")

    assert (told.code, told.out) == (3, "")
    assert told.err.startswith(
        f"error: {lake}/main/nosuch: no commit and no ledger names it. `lakebed object ls {lake}/"
    )
    assert (asked.code, asked.json["objects"]) == (3, [])


def test_a_question_without_a_path_or_address_is_refused(shell: Shell, lake: str) -> None:
    assert shell("gc", "why", lake).code == 2
    assert shell("gc", "why", f"{lake}/main", "data/x").code == 2
    assert shell("gc", "why", "lakefs://no-such-lake", "data/x").code == 3


def test_a_search_of_several_pages_is_followed_to_its_answer_and_told() -> None:
    asked: list[str] = []

    class Server:
        def call(self, method: str, path: str, *, json: object = None) -> object:
            assert (method, json) == ("GET", None)
            asked.append(path)
            if len(asked) < 3:
                progress = {"stage": "commits", "done": len(asked), "of": 2}
                return {"progress": progress, "continuation_token": f"t{len(asked)}"}
            facts = {"repository_uri": "local://lake", "now_ms": 1, "rules_version": 0, "has_rules": False}
            return {"answer": {**facts, "objects": [], "objects_count": 0}}

    told: list[str] = []
    found = Collector(client=Server(), repository="lake").why(
        address="data/x", progress=lambda one: told.append(progress_text(one))
    )

    assert found.objects_count == 0
    assert [path.partition("?")[2] for path in asked] == [
        "address=data%2Fx",
        "address=data%2Fx&continuation_token=t1",
        "address=data%2Fx&continuation_token=t2",
    ]
    assert told == ["looking through commits: 1 of 2 trees", "looking through commits: 2 of 2 trees"]


def test_a_server_that_neither_answers_nor_goes_on_is_not_asked_for_ever() -> None:
    class Server:
        def call(self, method: str, path: str, *, json: object = None) -> object:
            return {}

    with pytest.raises(UnknownAnswer):
        Collector(client=Server(), repository="lake").why(address="data/x")


def test_what_is_not_counted_beforehand_is_told_as_it_comes() -> None:
    assert progress_text(WhyProgress(stage="staging", done=1)) == "looking through staged changes: 1 branch"
    assert progress_text(WhyProgress(stage="ledger", done=1200)) == "looking through the ledger: 1,200 files"
