"""Write where the bugs of each guard are caught into docs/design/guards.md: `python -m sim guards`.

A person writes the guard and the names of its bugs. The last column comes from the `in` and `by` lines of the bugs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .planting import Mutant

PAGE: Final = Path(__file__).parents[2] / "docs" / "design" / "guards.md"
_FIRST_TABLE: Final = "\n## Write\n"
_ROW: Final = re.compile(r"\| (?!guard |---)(?P<guard>.+?) \| (?P<bugs>.*?) \| .*\|")


def filled_in(page: str, mutants: Iterable[Mutant]) -> str:
    """Return the page with the last column of each guard written anew.

    Raises:
        ValueError: a bug has no row, has two, or does not exist; or a guard has no bug.
    """
    by_name = {mutant.name: mutant for mutant in mutants}
    head, tables = page.split(_FIRST_TABLE)
    named = [bug for row in _ROW.finditer(tables) for bug in _names(row)]
    if wrong := {*named} ^ {*by_name} or {bug for bug in named if named.count(bug) > 1}:
        raise ValueError(f"{PAGE.name} needs one row for each of these bugs, if it exists: {', '.join(sorted(wrong))}")

    if empty := [row["guard"] for row in _ROW.finditer(tables) if not _names(row)]:
        raise ValueError(f"{PAGE.name} names no planted bug for: {', '.join(empty)}")

    def row(match: re.Match[str]) -> str:
        caught_in = dict.fromkeys(place for bug in _names(match) for place in _caught_in(by_name[bug]))
        return f"| {match['guard']} | {match['bugs']} | {'; '.join(caught_in)} |"

    return head + _FIRST_TABLE + _ROW.sub(row, tables)


def _names(row: re.Match[str]) -> list[str]:
    return re.findall(r"`([a-z0-9-]+)`", row["bugs"])


def _caught_in(bug: Mutant) -> list[str]:
    places = [*(f'"{name}"' for name in bug.scenes), *(f"`{test}`" for test in bug.tests)]
    return places or ["seeds, or any quick world"]
