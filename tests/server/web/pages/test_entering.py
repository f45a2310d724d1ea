"""Links that log a browser in: what the page does with good ones, and with those of others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from lakebed.auth import SESSION_COOKIE
from lakebed.server import App, AppState
from lakebed.server.operate.audit import AuditQuery
from tests.server.web.browsing import HOME, Browser

CROSS = {"sec-fetch-site": "cross-site"}


@pytest.fixture
async def browser(app: App) -> AsyncIterator[Browser]:
    browser = Browser(app)
    async with browser.http:
        yield browser


async def link_from(client: httpx.AsyncClient) -> dict[str, str]:
    made = await client.post("/auth/tickets")
    assert made.status_code == 201, made.text
    return {"user": made.json()["username"], "ticket": made.json()["ticket"]}


def at(app: App, address: str, **headers: str) -> httpx.AsyncClient:
    """A browser on another machine, or behind a proxy."""
    transport = httpx.ASGITransport(app=app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url=HOME, headers={"accept": "text/html", **headers})


async def test_a_link_logs_in_once_and_its_address_is_left_at_once(
    browser: Browser, client: httpx.AsyncClient, state: AppState
) -> None:
    link = await link_from(client)
    opened = await browser.get("/login", **link)
    home = await browser.follow(opened)
    browser.http.cookies.clear()
    again = await browser.get("/login", **link)

    assert (opened.status_code, opened.headers["location"]) == (303, "./")
    assert link["ticket"] not in opened.text + str(opened.headers) + home.text
    assert "httponly" in opened.headers["set-cookie"].lower()
    assert "Log out" in home.text
    assert (again.status_code, "This link was used before" in again.text) == (401, True)
    lines = state.audit.read(AuditQuery(operation="logInByTicket"))[0]
    assert [(line.user, line.what, line.status) for line in lines] == [
        ("", {"username": "esti"}, 401),
        ("esti", {"username": "esti"}, 200),
    ]
    assert [line.user for line in state.audit.read(AuditQuery(operation="createLoginTicket"))[0]] == ["esti"]


async def test_a_link_that_comes_from_another_page_logs_in_here_and_loads_one_page_more(
    app: App, client: httpx.AsyncClient
) -> None:
    browser = Browser(app)
    async with browser.http:
        browser.http.headers.update(CROSS)
        opened = await browser.get("/login", **await link_from(client))

    assert opened.headers["location"] == "./login?next=%2F&fresh=1"
    assert SESSION_COOKIE in opened.headers["set-cookie"]


async def test_a_link_is_worth_nothing_on_another_machine_or_through_a_proxy(
    app: App, client: httpx.AsyncClient
) -> None:
    link = await link_from(client)
    for address, headers in (("10.0.0.7", {}), ("127.0.0.1", {"x-forwarded-for": "10.0.0.7"})):
        async with at(app, address, **headers, **{"sec-fetch-site": "none"}) as http:
            answer = await http.get("/login", params=link)
        assert (answer.status_code, "only on the machine" in answer.text) == (401, True)
        assert SESSION_COOKIE not in str(answer.headers)
    async with at(app, "::1", **{"sec-fetch-site": "none"}) as http:
        assert (await http.get("/login", params=link)).status_code == 303


async def test_a_page_elsewhere_that_leads_to_a_link_makes_the_server_ask_first(
    app: App, client: httpx.AsyncClient
) -> None:
    async with at(app, "10.0.0.7") as api:
        pair = (await client.post("/auth/users/esti/credentials")).json()
        auth = (pair["access_key_id"], pair["secret_access_key"])
        made = (await api.post("/api/v1/auth/tickets", auth=auth)).json()
    link = {"user": made["username"], "ticket": made["ticket"]}
    browser = Browser(app)
    browser.http = at(app, "10.0.0.7", **CROSS)
    async with browser.http:
        asked = await browser.get("/login", **link)
        forged = await browser.post("/login", link)
        browser.http.headers["sec-fetch-site"] = "same-origin"
        done = await browser.fill(asked, "login")

    assert (asked.status_code, "Go on only if you asked for it" in asked.text) == (200, True)
    assert SESSION_COOKIE not in str(asked.headers)
    assert forged.status_code == 403
    assert (done.status_code, done.headers["location"]) == (303, "./")


async def test_a_program_that_only_looks_at_a_link_does_not_use_it_up(
    browser: Browser, client: httpx.AsyncClient
) -> None:
    link = await link_from(client)
    looked = await browser.http.head(browser.address("/login"), params=link)

    assert (looked.status_code, SESSION_COOKIE in str(looked.headers)) == (200, False)
    assert (await browser.get("/login", **link)).status_code == 303


async def test_wrong_links_say_why_and_tell_nothing_about_users(browser: Browser, client: httpx.AsyncClient) -> None:
    link = await link_from(client)
    texts = set()
    for user, ticket in (("esti", "x"), ("nobody-here", "x"), ("esti", ""), ("a/b\x00", "x"), ("", link["ticket"])):
        answer = await browser.get("/login", user=user, ticket=ticket)
        assert answer.status_code == 401, answer.text
        texts.add(answer.text.partition('role="alert">')[2].partition("<")[0])

    assert texts == {"This server has no such link, or a newer link replaced it."}


async def test_only_who_is_logged_in_makes_a_link(stranger: httpx.AsyncClient, client: httpx.AsyncClient) -> None:
    assert (await stranger.post("/auth/tickets")).status_code == 401
    bad = await stranger.post("/auth/login/ticket", json={"username": "esti", "ticket": "x"})
    evil = await stranger.post(
        "/auth/login/ticket", json={"username": "esti", "ticket": "x"}, headers={"origin": "https://evil.example"}
    )

    assert (bad.status_code, evil.status_code) == (401, 403)
