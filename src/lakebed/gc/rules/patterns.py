"""Match the branches that a rule is for: a name, or a glob with `*` (any characters, also none) and `?` (exactly one).

Of all patterns that match a branch, the most specific wins. The order is total, so the order in which rules were
written never matters:

1. an exact name before every glob;
2. the longer literal beginning, the characters before the first `*` or `?`;
3. more literal characters altogether;
4. fewer `*`;
5. more `?`;
6. the text itself, by code point. Only patterns that are alike in all else come here, so this closes ties and says
   nothing.

So a pattern that matches only a part of what another one matches wins over it. Two patterns that match the same texts
are one pattern spelled twice: a run of wildcards is written with its `?` first and one `*` at most, and no other way.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from typing import Final

from lakebed.base import Invalid

PATTERN_MAX: Final = 256
_ALLOWED: Final = re.compile(r"[A-Za-z0-9_*?-]+")
_WILD_RUN: Final = re.compile(r"[*?]+")

_DELETED: Final = "@{deleted "

Specificity = tuple[bool, int, int, int, int, str]


class InvalidPattern(Invalid):
    """Not a pattern for names of branches."""


def check_pattern(text: str) -> str:
    """
    Raises:
        InvalidPattern: empty, too long, a character that no branch can have, or not spelled the one way.
    """
    if not text:
        raise InvalidPattern("a rule for a branch without a name", pattern=text)
    if len(text) > PATTERN_MAX:
        raise InvalidPattern(f"a pattern of {len(text)} characters, at most {PATTERN_MAX}", pattern=text[:PATTERN_MAX])
    if not _ALLOWED.fullmatch(text):
        raise InvalidPattern(
            f"{text!r} matches no branch: letters, digits, underscores, dashes, * and ? are allowed", pattern=text
        )
    if "**" in text or "*?" in text:
        canonical = _WILD_RUN.sub(_canonical_run, text)
        raise InvalidPattern(f"{text!r} is spelled {canonical!r}", pattern=text)
    return text


def _canonical_run(found: re.Match[str]) -> str:
    run = found[0]
    return "?" * run.count("?") + "*" * ("*" in run)


def is_glob(pattern: str) -> bool:
    return _WILD_RUN.search(pattern) is not None


def deleted_name(name: str, deletion: str) -> str:
    """Return the name by which a deleted branch or tag is a ref while it is kept. Rules take it for `name`."""
    return f"{name}{_DELETED}{deletion}}}"


def plain_name(name: str) -> str:
    """Return the name that a ref has, or had when it was deleted. No branch or tag has `@{` in its name."""
    return name.partition(_DELETED)[0]


def matches(pattern: str, branch: str) -> bool:
    """Run in O(len(name) x stars). No pattern causes exponential backtracking."""
    return _compiled(pattern).match(plain_name(branch)) is not None


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))


def specificity(pattern: str) -> Specificity:
    """Sorts the most specific first. Exact names, of which one branch has one, are in order of their text."""
    if not is_glob(pattern):
        return False, 0, 0, 0, 0, pattern
    literals = len(pattern) - pattern.count("*") - pattern.count("?")
    return (
        True,
        -len(literal_beginning(pattern)),
        -literals,
        pattern.count("*"),
        -pattern.count("?"),
        pattern,
    )


def literal_beginning(pattern: str) -> str:
    return _WILD_RUN.split(pattern, maxsplit=1)[0]


def why_before(winner: str, loser: str) -> str:
    """Explain in words why the first of two patterns that both match is the more specific one."""
    ours, theirs = specificity(winner), specificity(loser)
    if ours[0] != theirs[0]:
        return f"an exact name goes before the glob {loser}"
    if ours[1] != theirs[1]:
        return f"its literal beginning has {-ours[1]} characters, that of {loser} has {-theirs[1]}"
    if ours[2] != theirs[2]:
        return f"it has {-ours[2]} literal characters, {loser} has {-theirs[2]}"
    if ours[3] != theirs[3]:
        return f"it has {ours[3]} times *, {loser} has {theirs[3]}"
    if ours[4] != theirs[4]:
        return f"it has {-ours[4]} times ?, {loser} has {-theirs[4]}"
    return f"it is as specific as {loser}, and comes first by its text"
