"""The pages, a file for each noun. Each file has its `PAGES`; here they are all together."""

from typing import Final

from lakebed.server.web.visit import Page

from . import changes, commits, compare, entering, objects, people, refs, repositories

PAGES: Final[tuple[Page, ...]] = tuple(
    page for noun in (entering, repositories, objects, changes, commits, refs, compare, people) for page in noun.PAGES
)
