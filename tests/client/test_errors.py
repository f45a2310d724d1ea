"""What the client raises for what the server answers."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import msgspec
import pytest

from lakebed.base import (
    AlreadyExists,
    Conflict,
    Corrupt,
    Denied,
    Invalid,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from lakebed.client import BadAnswer, Client, ErrorAnswer, NotLoggedIn, ObjectExpired, Refused
from lakebed.operations.gc.collectors import EXPLAIN_GC_RULES
from lakebed.wire import Expired
from tests.client.support import Script, client_of, failed


def test_an_unknown_login_is_told_from_a_missing_permission() -> None:
    def refused(message: str) -> type[Exception]:
        with pytest.raises(Refused) as caught:
            client_of(Script(failed(401, message))).branches.get("lake", "main")
        return caught.type

    assert refused("error authenticating request") is NotLoggedIn
    assert refused("insufficient permissions: ann needs fs:ReadBranch on x") is Refused


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        ("cannot write to protected branch", "write to another branch, and merge that"),
        ("cannot commit to protected branch", "commit to another branch, and merge that"),
        ("read-only repository", "only calls of the API with force=true change it"),
        ("uncommitted changes (dirty branch)", "commit or reset them first"),
        ("uncommitted changes (dirty branch) on a protected branch", "to another branch, then reset this one"),
    ],
)
def test_a_refusal_by_the_contracts_words_names_what_it_is_about_and_a_way_out(words: str, way_out: str) -> None:
    with pytest.raises(ErrorAnswer) as caught:
        client_of(Script(failed(403, words))).history.commit("lake", "main", "message")

    named = "lakefs://lake" if words == "read-only repository" else "lakefs://lake/main"
    assert str(caught.value).startswith(f"{named}: {words}: ")
    assert str(caught.value).endswith(way_out)


def test_what_a_lifecycle_policy_let_go_says_by_which_rule() -> None:
    expired = Expired(policy_version=3, rule="logs: logs/ 10d", run="r1", date=86_400)
    body = {"message": "expired by policy version 3", "expired": msgspec.to_builtins(expired)}
    answer = httpx.Response(410, json=body)

    with pytest.raises(ObjectExpired, match="expired by policy version 3") as caught:
        client_of(Script(answer)).objects.read("lake", "main", "logs/a")

    assert caught.value.facts["expired"] == expired
    assert isinstance(caught.value, NotFound)


@pytest.mark.parametrize(
    ("status", "family"),
    [
        (400, Invalid),
        (401, Denied),
        (403, Denied),
        (404, NotFound),
        (409, Conflict),
        (410, NotFound),
        (412, Conflict),
        (416, Invalid),
        (429, Unavailable),
        (500, OutcomeUnknown),
        (501, OutcomeUnknown),
        (503, Unavailable),
    ],
)
def test_each_status_has_its_family(status: int, family: type[LakebedError]) -> None:
    client = client_of(Script(failed(status, "no")), attempts=1)

    with pytest.raises(family) as caught:
        client.branches.get("lake", "main")

    assert isinstance(caught.value, ErrorAnswer)
    assert caught.value.status == status
    assert caught.value.facts["status"] == status


def test_the_message_is_the_servers_own() -> None:
    client = client_of(Script(failed(404, "no such thing, says the server")))

    with pytest.raises(NotFound, match=r"^no such thing, says the server$"):
        client.repositories.get("lake")


@pytest.mark.parametrize(
    ("call", "words", "shown"),
    [
        (lambda c: c.repositories.get("lake"), "repository not found", "lakefs://lake: repository not found"),
        (lambda c: c.objects.stat("lake", "main", "a/b"), "not found", "lakefs://lake/main/a/b: not found"),
        (lambda c: c.branches.get("lake", "dev"), "branch not found", "lakefs://lake/dev: branch not found"),
        (
            lambda c: c.quotas.set("lake", "dev", limit_bytes=1),
            "branch not found",
            "lakefs://lake/dev: branch not found",
        ),
        (lambda c: c.history.merge("lake", "dev", "x"), "branch not found", "lakefs://lake/x: branch not found"),
        (lambda c: list(c.history.log("lake", "dev")), "ref: not found", "lakefs://lake/dev: not found"),
        (lambda c: list(c.history.log("lake", "a", stop_at="b")), "ref: not found", "lakefs://lake/a: not found"),
        (lambda c: list(c.history.log("lake", "a", stop_at="b")), "stop_at: not found", "lakefs://lake/b: not found"),
        (
            lambda c: c.quotas.set("lake", "dev", limit_bytes=1),
            "repository not found",
            "lakefs://lake: repository not found",
        ),
        (
            lambda c: list(c.history.log("lake", "a", stop_at="b")),
            "repository not found",
            "lakefs://lake: repository not found",
        ),
        (lambda c: c.history.merge("lake", "a", "b"), "repository not found", "lakefs://lake: repository not found"),
        (
            lambda c: c.do(EXPLAIN_GC_RULES, "lake", query={"branch": "b"}),
            "not found",
            "lakefs://lake: not found",
        ),
        (lambda c: c.users.get("bob"), "user not found", "bob: user not found"),
        (
            lambda c: c.branches.cherry_pick("lake", "main", ref="dev", parent_number=1),
            "not found",
            "lakefs://lake/dev or lakefs://lake/main: not found",
        ),
    ],
)
def test_words_that_name_nothing_get_the_name(call: Callable[[Client], object], words: str, shown: str) -> None:
    with pytest.raises(NotFound, match=f"^{re.escape(shown)}$"):
        call(client_of(Script(failed(404, words))))


def test_a_dirty_branch_is_named_with_what_to_do() -> None:
    client = client_of(Script(failed(400, "uncommitted changes (dirty branch): main")))

    with pytest.raises(
        Invalid, match=r"^lakefs://lake/main: uncommitted changes \(dirty branch\): commit or reset them first$"
    ):
        client.history.merge("lake", "dev", "main")


def test_an_error_without_a_message_names_its_status() -> None:
    client = client_of(Script(httpx.Response(502, text="<html>oops</html>")))

    with pytest.raises(ErrorAnswer, match="the server answered 502 Bad Gateway"):
        client.repositories.get("lake")


def test_a_conflict_while_creating_means_the_name_is_taken() -> None:
    client = client_of(Script(failed(409, "branch already exists: not unique")))

    with pytest.raises(AlreadyExists):
        client.branches.create("lake", "dev", source="main")


def test_a_failed_precondition_of_an_upload_means_the_path_is_taken() -> None:
    client = client_of(Script(failed(412, "path already exists")))

    with pytest.raises(AlreadyExists):
        client.objects.write("lake", "main", "a", b"x", if_absent=True)


def test_a_conflict_while_merging_is_a_conflict() -> None:
    client = client_of(Script(failed(409, "update branch: conflict found")))

    with pytest.raises(Conflict):
        client.history.merge("lake", "dev", "main")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"id": 1}'])
def test_an_answer_that_is_no_record_is_a_bad_answer(body: bytes) -> None:
    client = client_of(Script(httpx.Response(200, content=body)))

    with pytest.raises(BadAnswer) as caught:
        client.repositories.get("lake")

    assert isinstance(caught.value, Corrupt)


@pytest.mark.parametrize(
    "endpoint", ["", "localhost:8000", "ftp://host", "http://", "http://[x]", "file:///etc", "http://h?a=b"]
)
def test_an_endpoint_that_is_no_http_url_is_refused(endpoint: str) -> None:
    with pytest.raises(Invalid):
        Client(endpoint)


@pytest.mark.parametrize("endpoint", ["http://lake.test/", "http://lake.test/api/v1", "http://lake.test/api/v1/"])
def test_an_endpoint_may_be_written_as_other_clients_have_it(endpoint: str) -> None:
    assert Client(endpoint).endpoint == "http://lake.test"
