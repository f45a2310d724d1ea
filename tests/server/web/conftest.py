"""One browser and one server for all tests of the page in a real browser: to start either costs seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.web.chromium import Chromium, driving, log_in
from tests.server.web.lakes import Server, serving, set_up


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with driving() as driver:
        browser = Chromium(driver, "", tmp_path_factory.mktemp("chromium"))
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with an administrator, esti, and the lakes that the stories make."""
    with serving(tmp_path_factory.mktemp("server")) as home:
        yield set_up(home)


@pytest.fixture
def blank(chromium: Chromium) -> Iterator[Chromium]:
    """A browser in which no user is logged in. The test says at which server it looks."""
    chromium.forget()
    yield chromium
    assert chromium.errors() == []


@pytest.fixture
def browser(blank: Chromium, server: Server) -> Chromium:
    """A browser in which esti is logged in."""
    blank.home = server.home
    log_in(blank, server.key, server.secret)
    return blank
