"""A login at a provider of OpenID Connect in a real browser: Chromium, driven through WebDriver.

The provider is at 127.0.0.1 and the server at localhost: to a browser these are two sites, as they are in earnest, and
what it does with cookies between two sites is what no other test shows.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lakebed.server.web.visit import VISITOR_COOKIE
from tests.identity_providers import Provider, serving
from tests.server.web.chromium import WAIT_S, Chromium, driving, is_installed

pytestmark = pytest.mark.skipif(not is_installed(), reason="no Chromium with its driver is installed")

CALLBACK = "/api/v1/oidc/callback"
SESSION = "internal_auth_session"
_SERVE = """
import json, socket, sys
from pathlib import Path
from lakebed.server import options_of, serve
listener = socket.socket(fileno=int(sys.argv[1]))
options = options_of(Path(sys.argv[2]), json.loads(sys.argv[3]))
serve(options, sockets=[listener], on_ready=lambda url: print(url, flush=True))
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with serving() as provider:
        yield provider


@pytest.fixture(scope="module")
def home(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the browser finds the server, which knows the provider and the user `etl`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        home = f"http://localhost:{port}"
        settings = {
            "LAKEBED_OIDC_ISSUER": provider.url,
            "LAKEBED_OIDC_AUDIENCE": "lake",
            "LAKEBED_OIDC_REDIRECT_URI": home + CALLBACK,
        }
        folder = tmp_path_factory.mktemp("browser") / "lake"
        command = [sys.executable, "-c", _SERVE, str(listener.fileno()), str(folder), json.dumps(settings)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[listener.fileno()])
    assert process.stdout is not None
    try:
        api = process.stdout.readline().strip() + "/api/v1"
        pair = httpx.post(f"{api}/setup_lakefs", json={"username": "esti"}).json()
        with httpx.Client(base_url=api, auth=(pair["access_key_id"], pair["secret_access_key"])) as admin:
            admin.post("/auth/users", json={"id": "etl"}).raise_for_status()
            principal = {"principalId": f"{provider.url}#job"}
            admin.post("/auth/users/etl/external/principals", params=principal, json={}).raise_for_status()
        yield home
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(WAIT_S) == 0


@pytest.fixture(scope="module")
def driver() -> Iterator[str]:
    with driving() as address:
        yield address


@pytest.fixture
def browser(driver: str, tmp_path: Path) -> Iterator[Chromium]:
    browser = Chromium(driver, "", tmp_path)  # Each address is named whole, for there are two sites.
    try:
        yield browser
    finally:
        browser.close()


def log_in(browser: Chromium, home: str) -> None:
    browser.open(f"{home}/login")
    browser.follow("Log in with your organisation")
    browser.text_of("You are logged in as")


def test_a_person_clicks_to_log_in_and_comes_back_logged_in(browser: Chromium, home: str) -> None:
    browser.open(f"{home}/login")
    assert "You are not logged in" in browser.text_of("You are not logged in")
    assert SESSION not in browser.cookies()

    browser.follow("Log in with your organisation")

    assert browser.text_of("You are logged in as") == "You are logged in as etl."
    assert browser.path.startswith(f"{home}/login")
    cookies = browser.cookies()
    assert cookies.keys() - {VISITOR_COOKIE} == {SESSION}, "the cookie of the attempt is gone"
    assert (cookies[SESSION]["httpOnly"], cookies[SESSION]["sameSite"]) == (True, "Strict")
    browser.open(f"{home}/login")
    assert browser.text_of("You are logged in as") == "You are logged in as etl."


def test_a_login_that_begins_at_another_site_ends_logged_in(browser: Chromium, home: str, provider: Provider) -> None:
    """The browser keeps the new session back from a page that another site led to, until our own page is loaded."""
    browser.open(f"{provider.url}/another-site")

    browser.run(f"setTimeout(() => {{ location.href = '{home}/api/v1/oidc/login' }})")

    assert browser.text_of("You are logged in as") == "You are logged in as etl."
    assert browser.path == f"{home}/login"


def test_a_page_of_another_site_cannot_use_the_session(browser: Chromium, home: str, provider: Provider) -> None:
    log_in(browser, home)

    browser.open(f"{provider.url}/another-site")
    logout = f"{home}/api/v1/auth/logout"
    browser.run(f"return fetch({logout!r}, {{method: 'POST', mode: 'no-cors', credentials: 'include'}}).then(() => 0)")

    browser.open(f"{home}/login")
    assert browser.text_of("You are logged in as") == "You are logged in as etl."


def test_a_page_of_the_server_can_ask_with_the_session_and_not_read_it(browser: Chromium, home: str) -> None:
    log_in(browser, home)
    browser.open(f"{home}/")  # The page of a login allows no requests.

    user = browser.run("return fetch('/api/v1/user').then(answer => answer.json())")
    seen = browser.run("return document.cookie")
    browser.run("return fetch('/api/v1/auth/logout', {method: 'POST'}).then(() => 0)")

    assert user["user"]["id"] == "etl"
    assert seen == ""
    browser.open(f"{home}/login")
    assert "You are not logged in" in browser.text_of("You are not logged in")


def test_a_login_that_the_provider_refuses_begins_no_session(browser: Chromium, home: str, provider: Provider) -> None:
    provider.answers = {"error": "access_denied"}
    try:
        browser.open(f"{home}/login")
        browser.follow("Log in with your organisation")
        shown = browser.text_of("access_denied")
    finally:
        provider.answers = {}

    assert "begin again at" in shown
    assert SESSION not in browser.cookies()
