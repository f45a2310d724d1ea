"""Set-up, logins and cookies: who may do what with them, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from lakebed.server import ServerOptions, create_app, opened

JSON = {"content-type": "application/json"}
BODY = b'{"username": "esti"}'


@asynccontextmanager
async def fresh(folder: Path, **options: str) -> AsyncIterator[httpx.AsyncClient]:
    """A caller of a server that is not set up."""
    async with opened(ServerOptions(data_dir=folder, blockstore="mem", store_uri="mem://", **options)) as state:  # type: ignore[arg-type]  # each is a text
        transport = httpx.ASGITransport(app=create_app(state), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as client:
            yield client


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 400),
        ({}, 400),
        ({**JSON, "origin": "https://evil.example"}, 401),
        ({**JSON, "host": "rebind.evil.example"}, 401),
        ({**JSON, "origin": "http://rebind.evil.example", "host": "rebind.evil.example"}, 401),
        ({**JSON, "x-forwarded-for": "10.0.0.7"}, 401),
        ({**JSON, "forwarded": "for=10.0.0.7"}, 401),
        ({**JSON, "via": "1.1 proxy"}, 401),
        ({**JSON, "origin": "http://localhost"}, 200),
        ({"content-type": "application/json; charset=utf-8", "host": "127.0.0.1:8000"}, 200),
        ({**JSON, "host": "[::1]:8000"}, 200),
    ],
)
async def test_set_up_is_for_this_machine(tmp_path: Path, headers: Mapping[str, str], status: int) -> None:
    async with fresh(tmp_path) as client:
        answer = await client.post("/setup_lakefs", content=BODY, headers=headers)

        # The contract's server answers 401 where a permission is missing.
        assert answer.status_code in ({401, 403} if status == 401 else {status}), answer.text
        state = (await client.get("/setup_lakefs")).json()["state"]
        assert state == ("initialized" if status == 200 else "not_initialized")


async def test_a_server_beyond_this_machine_asks_for_the_secret_it_printed(tmp_path: Path) -> None:
    async with fresh(tmp_path, setup_secret="open sesame") as client:
        for headers in ({}, {"x-lakebed-setup-secret": "open"}):
            refused = await client.post("/setup_lakefs", content=BODY, headers={**JSON, **headers})
            assert refused.status_code in {401, 403}
            assert "lakebed setup --secret" in refused.json()["message"]

        headers = {**JSON, "x-lakebed-setup-secret": "open sesame", "host": "lake.example"}
        assert (await client.post("/setup_lakefs", content=BODY, headers=headers)).status_code == 200


@pytest.fixture
async def key_pair(client: httpx.AsyncClient) -> dict[str, str]:
    pair = (await client.post("/auth/users/esti/credentials")).json()
    return {"access_key_id": pair["access_key_id"], "secret_access_key": pair["secret_access_key"]}


async def test_a_logout_ends_the_session_and_the_cookie(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, key_pair: dict[str, str]
) -> None:
    token = (await stranger.post("/auth/login", json=key_pair)).json()["token"]
    stranger.cookies.clear()
    bearer = {"authorization": f"Bearer {token}"}
    sessions = (await client.get("/auth/users/esti/sessions")).json()["results"]

    ended = await stranger.post("/auth/logout", headers=bearer)

    assert [session["access_key_id"] for session in sessions] == [key_pair["access_key_id"]]
    assert ended.status_code == 204
    assert "Max-Age=0" in ended.headers["set-cookie"]
    assert (await stranger.get("/user", headers=bearer)).status_code == 401
    assert (await client.get("/auth/users/esti/sessions")).json()["results"] == []


async def test_a_user_ends_a_session_of_their_own_from_elsewhere(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, key_pair: dict[str, str]
) -> None:
    token = (await stranger.post("/auth/login", json=key_pair)).json()["token"]
    session = (await client.get("/auth/users/esti/sessions")).json()["results"][0]["id"]

    assert (await client.delete(f"/auth/users/esti/sessions/{session}")).status_code == 204

    stranger.cookies.clear()
    assert (await stranger.get("/user", headers={"authorization": f"Bearer {token}"})).status_code == 401
    assert (await client.delete(f"/auth/users/esti/sessions/{session}")).status_code == 404


async def test_a_page_of_another_origin_changes_nothing_with_the_cookie(
    stranger: httpx.AsyncClient, key_pair: dict[str, str]
) -> None:
    await stranger.post("/auth/login", json=key_pair)
    evil = {"origin": "http://localhost:9999"}

    assert (await stranger.post("/auth/users", json={"id": "mallory"}, headers=evil)).status_code in {401, 403}
    assert (await stranger.get("/auth/users/mallory")).status_code == 404
    assert (await stranger.post("/auth/users", json={"id": "own"})).status_code == 201


@pytest.mark.parametrize("origin", ["http://[", "null", "", "http://localhost:80:80"])
async def test_an_origin_that_is_none_is_another_one(stranger: httpx.AsyncClient, origin: str) -> None:
    answer = await stranger.post("/auth/users", json={"id": "mallory"}, headers={"origin": origin})

    assert answer.status_code in {401, 403}


async def test_the_cookie_is_secure_behind_tls_only(stranger: httpx.AsyncClient, key_pair: dict[str, str]) -> None:
    plain = await stranger.post("/auth/login", json=key_pair)
    behind_tls = await stranger.post("https://localhost/api/v1/auth/login", json=key_pair)

    assert "Secure" not in plain.headers["set-cookie"]
    assert "Secure" in behind_tls.headers["set-cookie"]


async def test_a_login_takes_no_large_body_and_nothing_nested_deeply(stranger: httpx.AsyncClient) -> None:
    large = await stranger.post("/auth/login", content=b'{"access_key_id": "' + b"x" * 70_000, headers=JSON)
    deep = await stranger.post("/auth/login", content=b'{"x": ' + b"[" * 20_000, headers=JSON)

    assert (large.status_code, deep.status_code) == (400, 400)
    assert "larger than 65536 bytes" in large.json()["message"]


@pytest.mark.parametrize(
    "statement",
    [
        {"Condition": {"IpAddress": {"aws:SourceIp": ["10.0.0.0/8"]}}},
        {"conditions": {}},
        {"NotResource": "*"},
        {"sid": "x"},
    ],
)
async def test_a_policy_with_a_field_that_we_do_not_know_is_refused(
    client: httpx.AsyncClient, statement: dict[str, object]
) -> None:
    allow = {"effect": "allow", "action": ["fs:*"], "resource": "*", **statement}

    answer = await client.post("/auth/policies", json={"id": "p", "statement": [allow]})

    assert answer.status_code == 400, answer.text


async def test_a_deny_holds_for_every_spelling_of_what_it_names(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, repo: str
) -> None:
    await client.post("/auth/users", json={"id": "ann"})
    pair = (await client.post("/auth/users/ann/credentials")).json()
    statements = [
        {"effect": "allow", "action": ["fs:*"], "resource": "*"},
        {
            "effect": "deny",
            "action": ["fs:AttachStorageNamespace"],
            "resource": "arn:lakefs:fs:::namespace/mem://secret",
        },
        {
            "effect": "deny",
            "action": ["fs:ReadBranch"],
            "resource": "arn:lakefs:fs:::repository/lake/branch/secret",
        },
    ]
    await client.post("/auth/policies", json={"id": "most", "statement": statements})
    await client.put("/auth/users/ann/policies/most")
    await client.post(f"{repo}/branches", json={"name": "secret", "source": "main"})
    auth = (pair["access_key_id"], pair["secret_access_key"])

    for namespace in ("mem://secret", "mem://secret/", "mem://secret//"):
        body = {"name": "other", "storage_namespace": namespace}
        answer = await stranger.post("/repositories", json=body, auth=auth)
        assert answer.status_code in {401, 403}, (namespace, answer.text)
    for ref in ("secret", "secret~0", "secret@", "secret$", "secret^0"):
        answer = await stranger.get(f"{repo}/refs/{ref}/commits", auth=auth)
        assert answer.status_code in {401, 403}, (ref, answer.text)
    assert (await stranger.get(f"{repo}/refs/main~0/commits", auth=auth)).status_code == 200


async def test_a_page_of_another_origin_cannot_log_its_visitor_in(client: httpx.AsyncClient) -> None:
    pair = (await client.post("/auth/users/esti/credentials")).json()
    body = {"access_key_id": pair["access_key_id"], "secret_access_key": pair["secret_access_key"]}

    foreign = await client.post(
        "/auth/login", json=body, headers={"origin": "http://elsewhere.example", "content-type": "text/plain"}
    )
    own = await client.post("/auth/login", json=body, headers={"origin": "http://localhost"})

    assert (foreign.status_code, "set-cookie" in foreign.headers) == (401, False)
    assert (own.status_code, "set-cookie" in own.headers) == (200, True)
