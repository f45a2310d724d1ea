"""The pages, a file for each noun. `PAGES` are those of all files."""

from types import ModuleType
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

_NOUNS: Final = [noun for noun in [*vars().values()] if isinstance(noun, ModuleType)]
PAGES: Final = tuple(page for noun in _NOUNS for page in vars(noun).values() if isinstance(page, Page))
