"""Bad input at the door, and what every answer carries."""

from __future__ import annotations

import httpx
import pytest

from lakebed.base import Unavailable
from lakebed.kv import StoreUnavailable
from lakebed.server import App
from lakebed.server.collectors import NoSpark
from lakebed.server.http import errors
from lakebed.server.http.errors import TABLE, InvalidParameter, status_and_message
from lakebed.server.http.requests import parse_query
from lakebed.versions.refs.refs import Refs


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"message": 5}', b"[" * 100_000])
async def test_a_body_that_is_no_record_is_refused(client: httpx.AsyncClient, repo: str, body: bytes) -> None:
    answer = await client.post(repo + "/branches/main/commits", content=body)

    assert answer.status_code == 400
    assert answer.json()["message"].startswith("request body has an error: ")


def test_a_query_of_too_many_parameters_is_refused_before_it_is_decoded() -> None:
    assert len(parse_query(b"a=b&" * 9_999 + b"c=%zz")) == 2
    with pytest.raises(InvalidParameter, match="at most 10,000 parameters"):
        parse_query(b"&" * 10_000 + b"a=%ff")


async def test_fields_that_nobody_knows_are_ignored(client: httpx.AsyncClient, repo: str) -> None:
    answer = await client.post(repo + "/branches", json={"name": "dev", "source": "main", "colour": "blue"})

    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/branches/nope"),
        ("GET", "/branches/a%2Fb"),
        ("GET", "/branches/" + "x" * 2000),
        ("DELETE", "/branches/nope"),
        ("GET", "/branches/nope/diff"),
        ("GET", "/tags/nope"),
        ("GET", "/tags/" + "x" * 2000),
        ("DELETE", "/tags/nope"),
        ("GET", "/refs/nope/commits"),
        ("GET", "/refs/nope/diff/main"),
        ("GET", "/refs/main/diff/nope"),
        ("GET", "/refs/main/objects?path=nope"),
        ("HEAD", "/refs/main/objects?path=nope"),
        ("GET", "/refs/nope/objects?path=x"),
        ("GET", "/refs/" + "x" * 2000 + "/objects?path=x"),
        ("GET", "/refs/main/objects/underlyingProperties?path=nope"),
        ("POST", "/branches/nope/objects?path=x"),
        ("DELETE", "/branches/nope/objects?path=x"),
        ("GET", "/branches/nope/staging/backing?path=x"),
        ("POST", "/refs/nope/merge/main"),
        ("POST", "/refs/main/merge/nope"),
        ("GET", "/refs/main/merge/nope"),
        ("PUT", "/branches/main/hard_reset?ref=nope"),
    ],
)
async def test_what_does_not_exist_is_not_found(client: httpx.AsyncClient, repo: str, method: str, path: str) -> None:
    answer = await client.request(method, repo + path)

    assert answer.status_code == 404, answer.text


@pytest.mark.parametrize("name", ["nope", "UPPER", "x" * 2000, "%2e%2e", "a%00b", "%F0%9F%90%9F"])
async def test_a_repository_that_cannot_be_is_not_found(client: httpx.AsyncClient, name: str) -> None:
    for path in ("", "/branches", "/refs/main/objects/ls"):
        answer = await client.get(f"/repositories/{name}{path}")
        assert (answer.status_code, answer.json()) == (404, {"message": "repository not found"})


async def test_every_answer_has_an_id_the_callers_own_where_it_is_harmless(client: httpx.AsyncClient) -> None:
    own = await client.get("/config", headers={"x-request-id": "trace-1"})
    strange = await client.get("/config", headers={"x-request-id": "x" * 200})
    error = await client.get("/nope")

    assert own.headers["x-request-id"] == "trace-1"
    assert len(strange.headers["x-request-id"]) == 32
    assert len(error.headers["x-request-id"]) == 32


async def test_a_bug_of_ours_is_an_answer_without_its_details(
    client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(Refs, "get_branch", broken)

    answer = await client.get(repo + "/branches/main")

    assert (answer.status_code, answer.json()) == (500, {"message": "internal server error"})


async def test_what_is_unavailable_may_be_tried_again(
    client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: object, **__: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(Refs, "get_branch", down)

    answer = await client.get(repo + "/branches/main")

    assert (answer.status_code, answer.json()) == (503, {"message": "the disk is full"})
    assert answer.headers["retry-after"] == "1"


async def test_a_database_that_is_away_is_the_servers(
    client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: object, **__: object) -> None:
        raise StoreUnavailable("etcd: no connection")

    monkeypatch.setattr(Refs, "get_branch", down)

    answer = await client.get(repo + "/branches/main")

    message = "the server cannot use its database now: etcd: no connection"
    assert (answer.status_code, answer.json()) == (503, {"message": message})


async def test_what_a_server_is_not_equipped_for_is_one_line_of_the_log_with_who_asked(
    client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def without(*_: object, **__: object) -> None:
        raise NoSpark("this server has no Spark")

    monkeypatch.setattr(Refs, "get_branch", without)

    with caplog.at_level("INFO", logger="lakebed.server"):
        answer = await client.get(repo + "/branches/main", headers={"x-request-id": "mine"})

    [record] = [record for record in caplog.records if record.name.startswith("lakebed.server")]
    assert (answer.status_code, record.levelname, record.exc_info) == (501, "INFO", None)
    assert "/branches/main' of user 'esti', request mine" in record.getMessage()


async def test_an_outage_is_a_line_without_a_traceback_now_and_then(
    client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(Unavailable):
        pass

    async def down(*_: object, **__: object) -> None:
        raise Away("the database is away")

    monkeypatch.setattr(Refs, "get_branch", down)

    with caplog.at_level("INFO", logger="lakebed.server"):
        monkeypatch.setattr(errors, "QUIET_S", 1e9)
        for _ in range(3):
            assert (await client.get(repo + "/branches/main")).status_code == 503
        monkeypatch.setattr(errors, "QUIET_S", 0.0)
        await client.get(repo + "/branches/main")

    first, second = [record for record in caplog.records if record.name.startswith("lakebed.server")]
    assert (first.exc_info, second.exc_info) == (None, None)
    assert "/branches/main' of user 'esti'" in first.getMessage()
    assert first.getMessage().endswith(": the database is away {}")
    assert "the database is away {}, as 2 others in the last" in second.getMessage()


@pytest.mark.parametrize("kind", TABLE)
def test_every_row_of_the_error_table_is_an_error_status(kind: type[Exception]) -> None:
    status, _ = TABLE[kind]  # type: ignore[index]  # the keys are such types

    assert 400 <= status < 600


def test_an_error_without_a_row_is_answered_as_its_family() -> None:
    class Odd(Unavailable):
        pass

    assert status_and_message(Odd("odd")) == (503, "odd")


class TestIdentity:
    async def test_a_login_gives_a_token_and_a_cookie_that_both_work(
        self, app: App, client: httpx.AsyncClient, stranger: httpx.AsyncClient
    ) -> None:
        made = (await client.post("/auth/users/esti/credentials")).json()
        pair = {name: made[name] for name in ("access_key_id", "secret_access_key")}

        answer = await stranger.post("/auth/login", json=pair)

        token = answer.json()["token"]
        assert "httponly" in answer.headers["set-cookie"].lower()
        assert (await stranger.get("/user")).json()["user"]["id"] == "esti"
        stranger.cookies.clear()
        assert (await stranger.get("/user")).status_code == 401
        bearer = {"authorization": f"Bearer {token}"}
        assert (await stranger.get("/user", headers=bearer)).json()["user"]["id"] == "esti"

    async def test_users_and_credentials_come_and_go(
        self, client: httpx.AsyncClient, stranger: httpx.AsyncClient
    ) -> None:
        assert (await client.post("/auth/users", json={"id": "bob"})).status_code == 201
        pair = (await client.post("/auth/users/bob/credentials")).json()
        auth = (pair["access_key_id"], pair["secret_access_key"])
        assert (await stranger.get("/user", auth=auth)).json()["user"]["id"] == "bob"
        listed = (await client.get("/auth/users/bob/credentials")).json()["results"]
        assert [found["access_key_id"] for found in listed] == [auth[0]]
        assert "secret_access_key" not in listed[0]
        one = f"/auth/users/bob/credentials/{auth[0]}"
        assert (await client.get(one)).json()["access_key_id"] == auth[0]

        assert (await client.delete(one)).status_code == 204
        assert (await stranger.get("/user", auth=auth)).status_code == 401
        assert (await client.delete("/auth/users/bob")).status_code == 204
        assert (await client.get("/auth/users/bob")).status_code == 404

    async def test_before_set_up_nobody_is_let_in(self, stranger: httpx.AsyncClient) -> None:
        state = (await stranger.get("/setup_lakefs")).json()
        assert (state["state"], state["comm_prefs_missing"]) == ("not_initialized", True)
        assert (await stranger.get("/config")).status_code == 401
        assert (await stranger.get("/usage-report/summary")).status_code == 401
        assert (await stranger.get("/healthcheck")).status_code == 204
