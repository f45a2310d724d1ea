"""A browser with a server to look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.web.chromium import Chromium, driving, log_in
from tests.server.web.lakes import Server, serving, set_up


@pytest.fixture(scope="module")
def driver() -> Iterator[str]:
    with driving() as driver:
        yield driver


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with an administrator, esti, and a lake that the stories look at."""
    with serving(tmp_path_factory.mktemp("server")) as home:
        yield set_up(home)


@pytest.fixture
def browser(driver: str, server: Server, tmp_path: Path) -> Iterator[Chromium]:
    """A browser in which esti is logged in."""
    browser = Chromium(driver, server.home, tmp_path)
    try:
        log_in(browser, server.key, server.secret)
        yield browser
        assert browser.errors() == []
    finally:
        browser.close()
