"""Logins in a browser at a provider of OpenID Connect on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from lakebed.auth import NotAuthenticated
from lakebed.base import Ports
from lakebed.runtime import LiveIds, LiveTasks
from lakebed.server import AppState, ServerOptions, create_app, opened
from lakebed.server.identity.login_attempts import ATTEMPT_S, LoginAttempts, LoginRefused
from lakebed.server.identity.providers import (
    DISCOVERY_KEPT_MS,
    KEYS_ASKED_MS,
    InvalidProvider,
    ProviderOptions,
    Providers,
    provider_options,
)
from lakebed.server.operate.audit import AuditQuery
from lakebed.wire import AuditRecord
from tests.clocks import TurnableClock
from tests.identity_providers import Provider, serving

HOME = "http://127.0.0.1"
LOGIN, BACK = f"{HOME}/api/v1/oidc/login", f"{HOME}/api/v1/oidc/callback"
SESSION, ATTEMPT = "internal_auth_session", "lakebed_login"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving() as provider:
        yield provider


@asynccontextmanager
async def serving_logins(folder: Path, options: ProviderOptions) -> AsyncIterator[AppState]:
    """A server with a user `etl`, for whom the provider's `job` stands."""
    settings = ServerOptions(data_dir=folder, blockstore="mem", store_uri="mem://", providers=options)
    async with opened(settings) as state:
        await state.accounts.set_up("esti")
        await state.accounts.create_user("etl")
        if options.oidc_issuer:
            await state.principals.attach("etl", f"{options.oidc_issuer}#job")
        yield state


def browser_of(state: AppState) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=create_app(state), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=HOME)


@pytest.fixture
async def state(tmp_path: Path, provider: Provider) -> AsyncIterator[AppState]:
    options = ProviderOptions(oidc_issuer=provider.url, oidc_audience="lake", oidc_redirect_uri=BACK)
    async with serving_logins(tmp_path, options) as state:
        yield state


@pytest.fixture
async def browser(state: AppState) -> AsyncIterator[httpx.AsyncClient]:
    async with browser_of(state) as browser:
        yield browser


async def visit(browser: httpx.AsyncClient) -> str:
    """Begin a login, let the person log in at the provider, and return where the provider sends the browser."""
    begun = await browser.get(LOGIN)
    assert begun.status_code == 302, begun.text
    async with httpx.AsyncClient() as outside:
        return (await outside.get(begun.headers["location"])).headers["location"]


def noted(state: AppState) -> list[AuditRecord]:
    return state.audit.read(AuditQuery(operation="oauthCallback"))[0]


async def test_a_person_logs_in_at_the_provider_and_sees_as_whom(
    browser: httpx.AsyncClient, provider: Provider
) -> None:
    answer = await browser.get(await visit(browser))
    page = await browser.get(answer.headers["location"])
    user = (await browser.get("/api/v1/user")).json()

    assert (answer.status_code, answer.headers["location"]) == (302, f"{HOME}/login?fresh")
    assert "You are logged in as <strong>etl</strong>" in page.text
    assert user["user"]["id"] == "etl"
    assert provider.login["redirect_uri"] == BACK
    assert (provider.login["scope"], provider.login["tenant"]) == ("openid", "one")


async def test_both_cookies_are_for_this_server_and_no_script(browser: httpx.AsyncClient) -> None:
    begun = await browser.get(LOGIN)
    ended = await browser.get(await visit(browser))
    session, over = ended.headers.get_list("set-cookie")

    assert begun.headers["set-cookie"].startswith(f"{ATTEMPT}=")
    assert begun.headers["set-cookie"].endswith(f"; HttpOnly; Max-Age={ATTEMPT_S}; Path=/; SameSite=lax")
    assert session.startswith(f"{SESSION}=")
    assert session.endswith("; HttpOnly; Max-Age=43200; Path=/; SameSite=strict")
    assert over.startswith(f'{ATTEMPT}=""')
    assert all(answer.headers["cache-control"] == "no-store" for answer in (begun, ended))


async def test_behind_tls_cookies_are_secure_whatever_the_proxy_sends(tmp_path: Path, provider: Provider) -> None:
    back = "https://lake.example/below/api/v1/oidc/callback"
    options = ProviderOptions(oidc_issuer=provider.url, oidc_audience="lake", oidc_redirect_uri=back)
    async with serving_logins(tmp_path, options) as state, browser_of(state) as browser:
        attempt = (await browser.get(LOGIN)).headers["set-cookie"]
        browser.cookies.clear()
        there = await visit(browser)
        browser.cookies.clear()
        login = LoginAttempts(state.login_key, state.ports).begin()
        provider.id_token = provider.token(nonce=login.nonce)
        provider.login["code_challenge"] = login.challenge
        query = {"state": login.state, "code": "right"}
        ended = await browser.get(BACK, params=query, headers={"cookie": f"__Host-{ATTEMPT}={login.cookie}"})
        bare = await browser.get(BACK, params=query, headers={"cookie": f"{ATTEMPT}={login.cookie}"})

    assert attempt.startswith(f"__Host-{ATTEMPT}=")
    assert attempt.endswith("; Secure")
    assert there.startswith(back)
    assert ended.headers["location"] == "https://lake.example/below/login?fresh"
    assert all(cookie.endswith("; Secure") for cookie in ended.headers.get_list("set-cookie"))
    assert bare.status_code == 401


async def test_a_login_is_a_line_of_the_audit_log_and_holds_no_code(
    browser: httpx.AsyncClient, state: AppState, provider: Provider
) -> None:
    await browser.get(await visit(browser))

    [line] = noted(state)
    assert (line.user, line.status, line.allowed) == ("etl", 302, True)
    assert line.what == {"principal": f"{provider.url}#job"}
    assert line.through.startswith("login ")


async def test_a_logout_ends_it(browser: httpx.AsyncClient) -> None:
    await browser.get(await visit(browser))
    session = browser.cookies[SESSION]

    await browser.post("/api/v1/auth/logout", headers={"origin": HOME})
    page = await browser.get("/login", headers={"cookie": f"{SESSION}={session}"})

    assert "You are not logged in" in page.text


async def test_another_browser_cannot_finish_a_login(browser: httpx.AsyncClient, state: AppState) -> None:
    """So no page makes a person work in the account of the one who made the page."""
    there = await visit(browser)

    async with browser_of(state) as victim:
        without = await victim.get(there)
        await victim.get(LOGIN)
        with_its_own = await victim.get(there)

    for answer in (without, with_its_own):
        assert answer.status_code == 401
        assert "this browser did not begin this login" in answer.json()["message"]
        assert f"begin at {LOGIN}" in answer.json()["message"]
        assert SESSION not in answer.cookies
    assert [line.allowed for line in noted(state)] == [False, False]


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"nonce": "of another login"}, "made for another login"),
        ({"nonce": None}, "made for another login"),
        ({"azp": "another program"}, "made for another login"),
        ({"aud": "another program"}, "bad id token"),
        ({"sub": "stranger"}, "#stranger stands for no user here"),
    ],
)
async def test_a_token_for_another_login_or_of_a_stranger_is_refused(
    browser: httpx.AsyncClient, state: AppState, provider: Provider, claims: dict[str, object], words: str
) -> None:
    provider.claims = claims

    answer = await browser.get(await visit(browser))

    assert (answer.status_code, words in answer.json()["message"]) == (401, True)
    assert SESSION not in answer.cookies
    assert [(line.user, line.allowed, words in line.reason) for line in noted(state)] == [("", False, True)]


async def test_a_stolen_code_is_worth_nothing_without_its_verifier(
    browser: httpx.AsyncClient, provider: Provider
) -> None:
    there = await visit(browser)
    provider.login["code_challenge"] = "of another login"

    answer = await browser.get(there)

    assert (answer.status_code, "failed to exchange the code" in answer.json()["message"]) == (401, True)


@pytest.mark.parametrize(
    ("answers", "status", "words"),
    [
        ({"error": "access_denied"}, 401, "the provider answers with access_denied"),
        ({"error": "<b>call 555</b>"}, 401, "the provider answers with an error"),
        ({"code": "right", "iss": "https://elsewhere.example"}, 401, "another provider answers"),
        ({"code": "wrong"}, 401, "failed to exchange the code"),
        ({"other": "x"}, 400, 'parameter "code" in query has an error'),
    ],
)
async def test_what_the_provider_refuses_is_said(
    browser: httpx.AsyncClient, provider: Provider, answers: dict[str, str], status: int, words: str
) -> None:
    provider.answers = answers

    answer = await browser.get(await visit(browser))

    assert (answer.status_code, words in answer.json()["message"]) == (status, True)
    assert "555" not in answer.text


async def test_no_parameter_and_no_host_sends_a_browser_elsewhere(browser: httpx.AsyncClient) -> None:
    begun = await browser.get(LOGIN, params={"next": "https://evil.example"}, headers={"host": "evil.example"})
    back = await visit(browser)
    ended = await browser.get(f"{back}&next=https://evil.example", headers={"host": "evil.example"})

    sent = parse_qs(urlsplit(begun.headers["location"]).query)
    assert sent["redirect_uri"] == [BACK]
    assert ended.headers["location"] == f"{HOME}/login?fresh"


async def test_the_page_loads_itself_once_more_for_the_strict_cookie(browser: httpx.AsyncClient) -> None:
    fresh, page = await browser.get("/login?fresh"), await browser.get("/login")

    assert fresh.headers["refresh"] == "0; url=./login"
    assert "refresh" not in page.headers
    assert 'href="./api/v1/oidc/login">Log in with your organisation</a>' in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]


async def test_clients_learn_where_a_login_begins(browser: httpx.AsyncClient) -> None:
    login = (await browser.get("/api/v1/setup_lakefs")).json()["login_config"]

    assert (login["login_url"], login["login_url_method"]) == ("/api/v1/oidc/login", "select")


@pytest.mark.parametrize("has_provider", [False, True])
async def test_a_server_without_the_setting_says_so(tmp_path: Path, provider: Provider, has_provider: bool) -> None:
    options = ProviderOptions(oidc_issuer=provider.url, oidc_audience="lake") if has_provider else ProviderOptions()
    async with serving_logins(tmp_path, options) as state, browser_of(state) as browser:
        begun, ended, page = await browser.get(LOGIN), await browser.get(BACK), await browser.get("/login")
        login = (await browser.get("/api/v1/setup_lakefs")).json()["login_config"]

    assert (begun.status_code, ended.status_code) == (400, 400)
    assert "LAKEBED_OIDC_" in begun.json()["message"]
    assert "LAKEBED_OIDC_REDIRECT_URI is not set" in ended.json()["message"]
    assert "oidc" not in page.text
    assert "Access key id" in page.text
    assert (login["login_url"], login["login_url_method"]) == ("", "none")


def test_an_attempt_ends_and_a_changed_one_fits_no_state() -> None:
    clock = TurnableClock()
    ports = Ports(clock, LiveIds(), LiveTasks())
    attempts = LoginAttempts(b"k" * 32, ports)
    attempt = attempts.begin()
    longer = f"9{attempt.cookie}"

    assert attempts.resume(attempt.cookie, attempt.state) == attempt
    for cookie, state in ((longer, attempt.state), (attempt.cookie, attempt.nonce), ("", ""), ("x", "é")):
        with pytest.raises(LoginRefused, match="did not begin"):
            attempts.resume(cookie, state)
    with pytest.raises(LoginRefused, match="did not begin"):
        LoginAttempts(b"j" * 32, ports).resume(attempt.cookie, attempt.state)
    clock.ms += ATTEMPT_S * 1000
    with pytest.raises(LoginRefused, match="longer than 10 minutes"):
        attempts.resume(attempt.cookie, attempt.state)


async def test_a_new_key_of_the_provider_counts_and_an_old_one_ends(provider: Provider) -> None:
    clock = TurnableClock(1_000 * provider.made_s)
    providers = Providers(ProviderOptions(oidc_issuer=provider.url, oidc_audience="lake"), clock)
    old = provider.token(exp=provider.made_s + 86_400)
    try:
        assert await providers.identify({"id_token": old}) == f"{provider.url}#job"
        provider.renew_key("two")
        clock.ms += KEYS_ASKED_MS
        new = provider.token(exp=provider.made_s + 86_400)

        assert await providers.identify({"id_token": new}) == f"{provider.url}#job"
        with pytest.raises(NotAuthenticated, match="no key 'one'"):
            await providers.identify({"id_token": old})
    finally:
        await providers.close()


@pytest.mark.parametrize(
    ("methods", "proof"),
    [
        (["client_secret_basic"], ("Basic bGFrZTpzJTNBJTJGKw==", None, None)),
        (["client_secret_basic", "client_secret_post"], (None, "lake", "s:/ ")),
        (None, (None, "lake", "s:/ ")),
    ],
)
async def test_the_server_proves_itself_in_a_way_that_the_provider_takes(
    provider: Provider, methods: list[str] | None, proof: tuple[str | None, ...]
) -> None:
    provider.more = {} if methods is None else {"token_endpoint_auth_methods_supported": methods}
    provider.id_token = provider.token()
    options = ProviderOptions(oidc_issuer=provider.url, oidc_audience="lake", oidc_client_secret="s:/ ")
    providers = Providers(options, TurnableClock(1_000 * provider.made_s))
    try:
        assert await providers.exchange("right", BACK) == f"{provider.url}#job"
    finally:
        await providers.close()

    assert provider.clients == [proof]


async def test_what_a_provider_says_of_itself_is_read_again(provider: Provider) -> None:
    clock = TurnableClock(1_000 * provider.made_s)
    options = ProviderOptions(oidc_issuer=provider.url, oidc_audience="lake", oidc_redirect_uri=BACK)
    providers, words = Providers(options, clock), {"state": "s", "nonce": "n", "challenge": "c"}
    try:
        before = await providers.login_url(**words)
        provider.page = "moved"
        kept = await providers.login_url(**words)
        clock.ms += DISCOVERY_KEPT_MS
        after = await providers.login_url(**words)
    finally:
        await providers.close()

    assert [urlsplit(url).path for url in (before, kept, after)] == ["/page", "/page", "/moved"]


@pytest.mark.parametrize(
    "redirect",
    [
        "http://lake.example/api/v1/oidc/callback",
        "https://lake.example/",
        "https://lake.example/x?y=/api/v1/oidc/callback",
        "https://ann@lake.example/api/v1/oidc/callback",
        "https://lake.example/#/api/v1/oidc/callback",
        "/api/v1/oidc/callback",
    ],
)
def test_only_the_address_of_the_callback_may_be_the_setting(redirect: str) -> None:
    provider = {"LAKEBED_OIDC_ISSUER": "https://a.example", "LAKEBED_OIDC_AUDIENCE": "x"}
    with pytest.raises(InvalidProvider, match="LAKEBED_OIDC_REDIRECT_URI"):
        provider_options({**provider, "LAKEBED_OIDC_REDIRECT_URI": redirect})
    with pytest.raises(InvalidProvider, match="LAKEBED_OIDC_ISSUER"):
        provider_options({"LAKEBED_OIDC_REDIRECT_URI": BACK})

    assert provider_options({**provider, "LAKEBED_OIDC_REDIRECT_URI": BACK}).oidc_redirect_uri == BACK
