"""A login at a provider of OpenID Connect in a real browser: Chromium, driven through WebDriver.

The provider is at 127.0.0.1 and the server at localhost: to a browser these are two sites, as they are in earnest, and
what it does with cookies between two sites is what no other test shows.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakebed.server.web.tokens import VISITOR_COOKIE
from tests.identity_providers import Provider, serving

pytestmark = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="no Chromium with its driver is installed"
)

WAIT_S = 120
"""As long as a loaded machine may need for a page; a page that is there ends it."""
CALLBACK = "/api/v1/oidc/callback"
SESSION = "internal_auth_session"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The name that WebDriver gives a reference to an element."""
_SERVE = """
import json, socket, sys
from pathlib import Path
from lakebed.server import options_of, serve
listener = socket.socket(fileno=int(sys.argv[1]))
options = options_of(Path(sys.argv[2]), json.loads(sys.argv[3]))
serve(options, sockets=[listener], on_ready=lambda url: print(url, flush=True))
"""


class Browser:
    """A session of WebDriver. An element or a page that is not there yet is waited for."""

    def __init__(self, driver: str, profile: Path) -> None:
        self._client = httpx.Client(base_url=driver, timeout=2 * WAIT_S, trust_env=False)
        # Nothing but this machine is asked, and no name is looked up anywhere.
        rules = "MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"
        arguments = [
            "--headless=new",
            "--no-sandbox",  # Tests in a container run as root.
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            f"--host-resolver-rules={rules}",
            f"--user-data-dir={profile}",
        ]
        wanted = {"goog:chromeOptions": {"args": arguments}, "timeouts": {"implicit": WAIT_S * 1000}}
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self._client.request(method, path, json=body)
        value = answer.json()["value"]
        assert answer.status_code == 200, value
        return value

    def close(self) -> None:
        self._ask("DELETE", self._session)
        self._client.close()

    def open(self, url: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": url})

    def _find(self, xpath: str) -> str:
        found = self._ask("POST", f"{self._session}/element", {"using": "xpath", "value": xpath})
        return str(found[_ELEMENT])

    def wait_for_text(self, words: str) -> str:
        """Return the text of the element whose text contains these words."""
        element = self._find(f"(//body//*[contains(normalize-space(.), '{words}')])[last()]")
        return str(self._ask("GET", f"{self._session}/element/{element}/text"))

    def click(self, link: str) -> None:
        self._ask("POST", f"{self._session}/element/{self._find(f'//a[text()={link!r}]')}/click", {})

    def url(self) -> str:
        return str(self._ask("GET", f"{self._session}/url"))

    def cookies(self) -> dict[str, dict[str, Any]]:
        """Those of the page that is open, as the browser keeps them."""
        return {one["name"]: one for one in self._ask("GET", f"{self._session}/cookie")}

    def run(self, script: str) -> Any:
        """Run a script in the page, and return what it hands to `done`."""
        body = {"script": f"const done = arguments[0]; {script}", "args": []}
        return self._ask("POST", f"{self._session}/execute/async", body)


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
    process = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "started successfully on port" in line:
                yield f"http://127.0.0.1:{line.rpartition(' ')[2].strip().rstrip('.')}"
                break
        else:
            pytest.fail("chromedriver ended")
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(WAIT_S)


@pytest.fixture
def browser(driver: str, tmp_path: Path) -> Iterator[Browser]:
    browser = Browser(driver, tmp_path / "profile")
    try:
        yield browser
    finally:
        browser.close()


def log_in(browser: Browser, home: str) -> None:
    browser.open(f"{home}/login")
    browser.click("Log in with your organisation")
    browser.wait_for_text("You are logged in as")


def test_a_person_clicks_to_log_in_and_comes_back_logged_in(browser: Browser, home: str) -> None:
    browser.open(f"{home}/login")
    assert "You are not logged in" in browser.wait_for_text("You are not logged in")
    assert SESSION not in browser.cookies()

    browser.click("Log in with your organisation")

    assert browser.wait_for_text("You are logged in as") == "You are logged in as etl."
    assert browser.url().startswith(f"{home}/login")
    cookies = browser.cookies()
    assert cookies.keys() - {VISITOR_COOKIE} == {SESSION}, "the cookie of the attempt is gone"
    assert (cookies[SESSION]["httpOnly"], cookies[SESSION]["sameSite"]) == (True, "Strict")
    browser.open(f"{home}/login")
    assert browser.wait_for_text("You are logged in as") == "You are logged in as etl."


def test_a_login_that_begins_at_another_site_ends_logged_in(browser: Browser, home: str, provider: Provider) -> None:
    """The browser keeps the new session back from a page that another site led to, until our own page is loaded."""
    browser.open(f"{provider.url}/another-site")

    browser.run(f"setTimeout(() => {{ location.href = '{home}/api/v1/oidc/login' }}); done()")

    assert browser.wait_for_text("You are logged in as") == "You are logged in as etl."
    assert browser.url() == f"{home}/login"


def test_a_page_of_another_site_cannot_use_the_session(browser: Browser, home: str, provider: Provider) -> None:
    log_in(browser, home)

    browser.open(f"{provider.url}/another-site")
    logout = f"{home}/api/v1/auth/logout"
    browser.run(f"fetch({logout!r}, {{method: 'POST', mode: 'no-cors', credentials: 'include'}}).then(done, done)")

    browser.open(f"{home}/login")
    assert browser.wait_for_text("You are logged in as") == "You are logged in as etl."


def test_a_page_of_the_server_can_ask_with_the_session_and_not_read_it(browser: Browser, home: str) -> None:
    log_in(browser, home)
    browser.open(f"{home}/")  # The page of a login allows no requests.

    user = browser.run("fetch('/api/v1/user').then(answer => answer.json()).then(done, done)")
    seen = browser.run("done(document.cookie)")
    browser.run("fetch('/api/v1/auth/logout', {method: 'POST'}).then(done, done)")

    assert user["user"]["id"] == "etl"
    assert seen == ""
    browser.open(f"{home}/login")
    assert "You are not logged in" in browser.wait_for_text("You are not logged in")


def test_a_login_that_the_provider_refuses_begins_no_session(browser: Browser, home: str, provider: Provider) -> None:
    provider.answers = {"error": "access_denied"}
    try:
        browser.open(f"{home}/login")
        browser.click("Log in with your organisation")
        shown = browser.wait_for_text("access_denied")
    finally:
        provider.answers = {}

    assert "begin again at" in shown
    assert SESSION not in browser.cookies()
