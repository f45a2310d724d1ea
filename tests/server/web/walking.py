"""Find every page by links, as a person does: each kind of page once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from lakebed.base import LakebedError
from lakebed.server.http.routing import Router
from lakebed.server.web.pages import PAGES

READABLE: Final = frozenset(page.path for page in PAGES if page.method == "GET")
WITHOUT_LINKS: Final = frozenset({"/setup", "/login"})
"""The server sends a browser to these."""


def walk(first: Sequence[str], links_of: Callable[[str], Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Open these addresses, and each page that links lead to, once for each set of names in its query, less `ref`.

    `links_of` opens an address, and returns the addresses that it links to. Yield the address and its path in `PAGES`.
    """
    router = Router(PAGES)
    waiting, kinds = [*first], set()
    while waiting:
        address = waiting.pop(0)
        parts = urlsplit(address)
        try:
            page, _ = router.find("GET", parts.path[1:].encode())
        except LakebedError:  # a download, or a static file
            continue
        kind = page.path, tuple(sorted(name for name, value in parse_qsl(parts.query) if value and name != "ref"))
        if kind not in kinds:
            kinds.add(kind)
            links = links_of(address)
            yield address, page.path
            waiting += links
