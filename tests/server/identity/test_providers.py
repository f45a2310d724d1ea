"""Logins with identities of other providers, against a provider of OpenID Connect and an STS on this machine."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from lakebed.server import ServerOptions, create_app, opened
from lakebed.server.identity.providers import InvalidProvider, ProviderOptions, principal_of_arn, provider_options
from tests.identity_providers import ROLE, Provider, serving

LOGIN = "/auth/external/principal/login"
NOBODY = httpx.Auth()


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving() as provider:
        yield provider


@asynccontextmanager
async def admin_of(folder: Path, options: ProviderOptions) -> AsyncIterator[httpx.AsyncClient]:
    settings = ServerOptions(data_dir=folder, blockstore="mem", store_uri="mem://", providers=options)
    async with opened(settings) as state:
        transport = httpx.ASGITransport(app=create_app(state), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as client:
            pair = (await client.post("/setup_lakefs", json={"username": "esti"})).json()
            client.auth = httpx.BasicAuth(pair["access_key_id"], pair["secret_access_key"])
            await client.post("/auth/users", json={"id": "etl"})
            yield client


@pytest.fixture
async def client(tmp_path: Path, provider: Provider) -> AsyncIterator[httpx.AsyncClient]:
    """An administrator of a server that trusts the provider, with a user `etl`."""
    options = ProviderOptions(
        oidc_issuer=provider.url, oidc_audience="lake", aws_server_id="lake.example", aws_sts_endpoint=provider.url
    )
    async with admin_of(tmp_path, options) as client:
        yield client


async def attach(client: httpx.AsyncClient, principal: str, user: str = "etl") -> httpx.Response:
    return await client.post(f"/auth/users/{user}/external/principals", params={"principalId": principal}, json={})


async def log_in(client: httpx.AsyncClient, token: str, **more: object) -> httpx.Response:
    return await client.post(LOGIN, json={"identityRequest": {"id_token": token}, **more}, auth=NOBODY)


async def whose(client: httpx.AsyncClient, token: str) -> tuple[int, str]:
    answer = await client.get("/user", headers={"authorization": f"Bearer {token}"}, auth=NOBODY)
    return answer.status_code, answer.json().get("user", {}).get("id", "")


def aws_token(**changes: object) -> str:
    parts = {
        "method": "POST",
        "host": "sts.eu-west-1.amazonaws.com",
        "region": "eu-west-1",
        "action": "GetCallerIdentity",
        "date": "20261122T220000Z",
        "expiration_duration": "60",
        "access_key_id": "ASIAEXAMPLE",
        "signature": "ab" * 32,
        "signed_headers": ["host", "x-lakefs-server-id"],
        "version": "2011-06-15",
        "algorithm": "AWS4-HMAC-SHA256",
        "security_token": "to/ken+=",
    }
    return base64.b64encode(json.dumps({**parts, **changes}).encode()).decode()


async def test_a_token_of_the_provider_logs_in_as_the_user_it_stands_for(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    assert (await log_in(client, provider.token())).status_code == 401
    assert (await attach(client, f"{provider.url}#job")).status_code == 201

    answer = await log_in(client, provider.token(), token_expiration_duration=60)
    token = answer.json()["token"]

    assert answer.json()["token_expiration"] <= time.time() + 61
    assert await whose(client, token) == (200, "etl")
    await client.delete("/auth/users/etl/external/principals", params={"principalId": f"{provider.url}#job"})
    assert (await whose(client, token))[0] == 401


async def test_the_audit_log_names_the_principal_of_a_login_and_its_user(
    client: httpx.AsyncClient, provider: Provider, tmp_path: Path
) -> None:
    principal = f"{provider.url}#job"
    await log_in(client, provider.token())
    await attach(client, principal)
    await log_in(client, provider.token())

    text = "".join(file.read_text() for file in (tmp_path / "audit").iterdir())
    lines = [line for line in map(json.loads, text.splitlines()) if line["operation"] == "externalPrincipalLogin"]

    assert [(line["user"], line["what"], line["allowed"]) for line in lines] == [
        ("", {"principal": principal}, False),
        ("etl", {"principal": principal}, True),
    ]
    assert lines[1]["through"].startswith("login ")


async def test_a_login_ends_with_its_user(client: httpx.AsyncClient, provider: Provider) -> None:
    principal = f"{provider.url}#job"
    await attach(client, principal)
    token = (await log_in(client, provider.token())).json()["token"]

    await client.delete("/auth/users/etl")
    await client.post("/auth/users", json={"id": "etl"})

    assert (await whose(client, token))[0] == 401
    assert (await log_in(client, provider.token())).status_code == 401
    assert (await client.get("/auth/external/principals", params={"principalId": principal})).status_code == 404
    assert (await attach(client, principal)).status_code == 201


async def test_a_login_that_ended_does_not_come_back_with_its_principal(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    principal = f"{provider.url}#job"
    await attach(client, principal)
    token = (await log_in(client, provider.token())).json()["token"]

    await client.delete("/auth/users/etl/external/principals", params={"principalId": principal})
    await attach(client, principal)

    assert (await whose(client, token))[0] == 401
    assert (await log_in(client, provider.token())).status_code == 200


async def test_a_nested_token_is_refused(client: httpx.AsyncClient) -> None:
    deep = base64.b64encode(b"[" * 40_000).decode()

    answer = await client.post(LOGIN, json={"identityRequest": {"identity_token": deep}}, auth=NOBODY)

    assert answer.status_code == 401


async def test_a_provider_that_refuses_this_server_is_unavailable(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    provider.refusal = {"error": "invalid_client"}
    body = {"code": "right", "state": "s", "redirect_uri": "https://app.example/back"}

    assert (await client.post("/sts/login", json=body, auth=NOBODY)).status_code == 503


async def test_logins_that_wait_too_long_are_refused_and_delay_no_others(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    await attach(client, f"{provider.url}#job")
    provider.sts_answers.clear()
    flood = [
        asyncio.create_task(client.post(LOGIN, json={"identityRequest": {"identity_token": aws_token()}}, auth=NOBODY))
        for _ in range(100)
    ]
    while not any(each.done() for each in flood):  # noqa: ASYNC110 - the first that is refused
        await asyncio.sleep(0.01)

    good = await log_in(client, provider.token())
    waiting = sum(not each.done() for each in flood)
    provider.sts_answers.set()
    statuses = {answer.status_code for answer in await asyncio.gather(*flood)}

    assert good.status_code == 200
    assert waiting
    assert statuses == {401, 503}


BAD_TOKENS: dict[str, Callable[[Provider], str]] = {
    "another key": lambda one: one.token(rsa.generate_private_key(public_exponent=65537, key_size=2048)),
    "a shared secret": lambda one: one.token("x" * 64, "HS256"),
    "no signature": lambda one: one.token("", "none"),
    "another audience": lambda one: one.token(aud="other"),
    "another issuer": lambda one: one.token(iss="https://elsewhere.example"),
    "over": lambda one: one.token(exp=int(time.time()) - 120),
    "not yet": lambda one: one.token(nbf=int(time.time()) + 3600),
    "made later": lambda one: one.token(iat=int(time.time()) + 3600),
    "without an end": lambda one: one.token(exp=None),
    "an end that is no number": lambda one: one.token(exp=1e300),
    "without a subject": lambda one: one.token(sub=None),
    "no token": lambda _: "nonsense",
    "empty": lambda _: "",
}


@pytest.mark.parametrize("name", BAD_TOKENS)
async def test_a_token_that_proves_nothing_is_refused(name: str, client: httpx.AsyncClient, provider: Provider) -> None:
    await attach(client, f"{provider.url}#job")

    answer = await log_in(client, BAD_TOKENS[name](provider))

    assert (answer.status_code, answer.json()) == (401, {"message": "error authenticating request"})


async def test_unknown_keys_do_not_make_the_server_ask_again_and_again(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    await attach(client, f"{provider.url}#job")
    assert (await log_in(client, provider.token())).status_code == 200
    provider.key_id = "another"

    for _ in range(5):
        assert (await log_in(client, provider.token())).status_code == 401

    assert provider.asked.count("/keys") == 1


async def test_a_code_is_exchanged_at_the_provider(client: httpx.AsyncClient, provider: Provider) -> None:
    await attach(client, f"{provider.url}#job")
    provider.id_token = provider.token()
    body = {"code": "right", "state": "s", "redirect_uri": "https://app.example/back"}

    right = await client.post("/sts/login", json=body, auth=NOBODY)
    wrong = await client.post("/sts/login", json={**body, "code": "wrong"}, auth=NOBODY)
    long = await client.post("/sts/login", json={**body, "ttl_seconds": 12 * 3600 + 1}, auth=NOBODY)

    assert await whose(client, right.json()["token"]) == (200, "etl")
    assert (wrong.status_code, long.status_code) == (401, 400)


async def test_a_role_of_aws_logs_in_by_a_request_that_names_this_server(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    await attach(client, "aws:sts::123456789012:assumed-role/etl")

    answer = await client.post(LOGIN, json={"identityRequest": {"identity_token": aws_token()}}, auth=NOBODY)

    assert await whose(client, answer.json()["token"]) == (200, "etl")
    assert provider.server_ids == ["lake.example"]
    sent = parse_qs(urlsplit(provider.asked[-1]).query)
    assert sent["X-Amz-Security-Token"] == ["to/ken+="]
    assert sent["X-Amz-Credential"] == ["ASIAEXAMPLE/20261122/eu-west-1/sts/aws4_request"]


@pytest.mark.parametrize(
    "changes",
    [
        {"signed_headers": ["host"]},
        {"action": "AssumeRole"},
        {"method": "GET"},
        {"region": "eu west&Action=AssumeRole"},
        {"security_token": "a\r\nb"},
        {"date": 7},
    ],
)
async def test_other_requests_to_aws_are_never_sent(
    changes: dict[str, object], client: httpx.AsyncClient, provider: Provider
) -> None:
    identity = {"identity_token": aws_token(**changes)}

    answer = await client.post(LOGIN, json={"identityRequest": identity}, auth=NOBODY)

    assert (answer.status_code, provider.asked) == (401, [])


async def test_only_hosts_of_aws_are_asked(tmp_path: Path) -> None:
    async with admin_of(tmp_path, ProviderOptions(aws_server_id="lake.example")) as client:
        for host in (
            "127.0.0.1",
            "sts.amazonaws.com.evil.example",
            "evil.example/sts.amazonaws.com",
            "sts..amazonaws.com",
            "sts.s3.amazonaws.com",
        ):
            identity = {"identity_token": aws_token(host=host)}
            answer = await client.post(LOGIN, json={"identityRequest": identity}, auth=NOBODY)
            assert answer.status_code == 401, host


async def test_a_server_without_providers_says_so(tmp_path: Path) -> None:
    async with admin_of(tmp_path, ProviderOptions()) as client:
        by_token = await log_in(client, "x")
        by_role = await client.post(LOGIN, json={"identityRequest": {"identity_token": aws_token()}}, auth=NOBODY)
        by_nothing = await client.post(LOGIN, json={"identityRequest": {}}, auth=NOBODY)

    assert [one.status_code for one in (by_token, by_role, by_nothing)] == [400, 400, 400]
    assert "LAKEBED_OIDC_ISSUER" in by_token.json()["message"]


async def test_a_provider_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    options = ProviderOptions(oidc_issuer="http://127.0.0.1:9", oidc_audience="lake")
    async with admin_of(tmp_path, options) as client:
        assert (await log_in(client, "x")).status_code == 503


async def test_a_principal_stands_for_one_user_and_is_listed(client: httpx.AsyncClient) -> None:
    a, b, c = (f"https://p.example#{name}" for name in "abc")
    for principal in (b, a, c):
        assert (await attach(client, principal)).status_code == 201

    taken = await attach(client, a, user="esti")
    page = (await client.get("/auth/users/etl/external/principals/ls", params={"amount": 2})).json()
    rest = (await client.get("/auth/users/etl/external/principals/ls", params={"after": b})).json()
    one = (await client.get("/auth/external/principals", params={"principalId": a})).json()
    others = await client.delete("/auth/users/esti/external/principals", params={"principalId": a})

    assert taken.status_code == 409
    assert ([one["id"] for one in page["results"]], page["pagination"]["has_more"]) == ([a, b], True)
    assert [one["id"] for one in rest["results"]] == [c]
    assert (one["id"], one["user_id"]) == (a, "etl")
    assert others.status_code == 404
    assert (await attach(client, f"{a}\nb")).status_code == 400
    assert (await attach(client, f"{a}x", user="nobody")).status_code == 404


@pytest.mark.parametrize(
    ("principal", "hint"),
    [
        ("ann", "ISSUER#SUBJECT"),
        ("https://p.example", "ISSUER#SUBJECT"),
        ("https://p.example#", "ISSUER#SUBJECT"),
        ("p.example#job", "ISSUER#SUBJECT"),
        ("aws:sts::12:assumed-role/etl", "aws:sts::NUMBER:assumed-role/ROLE"),
        (ROLE, "aws:sts::123456789012:assumed-role/etl"),
        ("aws:sts::123456789012:assumed-role/etl/job-1", "aws:sts::123456789012:assumed-role/etl"),
    ],
)
async def test_a_principal_that_no_login_brings_is_refused(
    client: httpx.AsyncClient, principal: str, hint: str
) -> None:
    answer = await attach(client, principal)

    assert (answer.status_code, hint in answer.json()["message"]) == (400, True)


@pytest.mark.parametrize(
    ("arn", "principal"),
    [
        (ROLE, "aws:sts::123456789012:assumed-role/etl"),
        ("arn:aws:iam::123456789012:user/ann", "aws:iam::123456789012:user/ann"),
        ("arn:aws-cn:sts::123456789012:assumed-role/etl/x", "aws-cn:sts::123456789012:assumed-role/etl"),
    ],
)
def test_the_session_of_a_role_does_not_count(arn: str, principal: str) -> None:
    assert principal_of_arn(arn) == principal


@pytest.mark.parametrize(
    "environment",
    [
        {"LAKEBED_OIDC_ISSUER": "https://a.example"},
        {"LAKEBED_OIDC_ISSUER": "http://a.example", "LAKEBED_OIDC_AUDIENCE": "x"},
        {"LAKEBED_OIDC_ISSUER": "nonsense", "LAKEBED_OIDC_AUDIENCE": "x"},
        {"LAKEBED_AWS_STS_ENDPOINT": "http://a.example"},
    ],
)
def test_settings_that_make_no_sense_stop_the_start(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidProvider, match="LAKEBED_"):
        provider_options(environment)
