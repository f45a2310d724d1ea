"""The pages, a file for each noun. This module joins the `PAGES` of all files."""

from typing import Final

from lakebed.server.web.visit import Page

from . import (
    changes,
    collections,
    commits,
    compare,
    entering,
    erasures,
    hooks,
    keeping,
    lifecycle,
    objects,
    people,
    quotas,
    refs,
    repositories,
)

_NOUNS: Final = (
    entering,
    repositories,
    objects,
    changes,
    commits,
    refs,
    quotas,
    compare,
    collections,
    erasures,
    keeping,
    lifecycle,
    hooks,
    people,
)
PAGES: Final[tuple[Page, ...]] = tuple(page for noun in _NOUNS for page in noun.PAGES)
