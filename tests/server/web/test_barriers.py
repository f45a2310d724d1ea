"""No page keeps a person out: axe finds nothing on any page, light and dark, at a desk and on a telephone.

The pages are those that links lead to from the first page, so a page without a way to it fails here, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from tests.kv.servers import npm_package
from tests.server.web.chromium import NARROW, WIDE, Chromium, is_installed, log_in
from tests.server.web.lakes import make_everything, make_repository, serving, set_up
from tests.server.web.walking import READABLE, WITHOUT_LINKS, walk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="no Chromium with its driver is installed"),
]

AXE: Final = "axe-core@4.14.1"
SHA256: Final = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
LOOKS: Final = ((WIDE, False), (NARROW, True))
"""Every rule looks at each width and at each scheme. No colour depends on the width."""
AT_NOTHING: Final = ((NARROW, False),)
"""How pages of an empty repository are looked at: they have the colours and parts of the others."""
FORMS: Final = ("/search?repository=lake&text=si", "/repositories/lake/rules/try?rules=" + quote('{"default":"30d"}'))
"""Forms lead to these."""
_RUN: Final = """
const words = (node) => [...node.any, ...node.all, ...node.none].map((check) => check.message).join("; ");
// The page is drawn in its new size first: only then do its scripts know which boxes scroll.
const drawn = new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
const found = drawn.then(() => axe.run(document, {resultTypes: ["violations"]}));
return found.then(({violations}) => violations.flatMap((each) =>
  each.nodes.map((node) => `${each.id}: ${node.html.slice(0, 200)}: ${words(node)}`)));
"""


@pytest.fixture(scope="module")
def axe() -> str:
    script = (npm_package(AXE) / "axe.min.js").read_bytes()
    assert hashlib.sha256(script).hexdigest() == SHA256
    return script.decode()


def barriers(browser: Chromium, looks: Sequence[tuple[int, bool]] = LOOKS) -> dict[str, list[str]]:
    """Return what axe says of the open page, by how the page is looked at."""
    messages = {}
    for width, is_dark in looks:
        browser.become(width, is_dark=is_dark)
        if violations := browser.run(_RUN):
            messages[f"{browser.path} at {width}, {'dark' if is_dark else 'light'}"] = violations
    return messages


def test_axe_finds_nothing_on_any_page(blank: Chromium, axe: str, tmp_path: Path) -> None:
    browser = blank
    with serving(tmp_path) as browser.home:

        def links_of(address: str) -> list[str]:
            browser.open(address)
            assert "The server made a mistake" not in browser.text(), address
            return browser.links()

        added = browser.command("Page.addScriptToEvaluateOnNewDocument", {"source": axe})
        try:
            browser.open("/")
            messages = barriers(browser)
            server = set_up(browser.home)
            browser.open("/login")
            messages |= barriers(browser)
            log_in(browser, server.key, server.secret)
            seen = set()
            for _, page in walk(["/", make_everything(server, "lake"), *FORMS], links_of):
                seen.add(page)
                messages |= barriers(browser)
            for _, page in walk([make_repository(server, "nothing")], links_of):
                if page.startswith("/repositories/"):
                    messages |= barriers(browser, AT_NOTHING)
            browser.open("/no-such-page")
            messages |= barriers(browser)
        finally:
            browser.command("Page.removeScriptToEvaluateOnNewDocument", added)

    assert messages == {}
    assert seen | WITHOUT_LINKS == READABLE
