"""Match the branches that a rule is for: a name, or a glob with `*` (any characters, also none) and `?` (exactly one).

The most specific pattern that matches a branch wins. The order is total, so the order in a file never matters:

1. an exact name before every glob;
2. the longer literal beginning, the characters before the first `*` or `?`;
3. more literal characters altogether;
4. fewer `*`, then more `?`;
5. the text itself, by code point, which only breaks ties between patterns alike in all else.

So a pattern whose branches are a part of another pattern's branches wins over it.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from typing import Final

from lakebed.base import Invalid

__all__ = ["InvalidPattern", "check_pattern", "deleted_name", "matches", "plain_name", "specificity"]

PATTERN_MAX: Final = 256
_ALLOWED: Final = re.compile(r"[A-Za-z0-9_*?-]+")
_WILD_RUN: Final = re.compile(r"[*?]+")

_DELETED: Final = "@{deleted "

Specificity = tuple[bool, int, int, int, int, str]


class InvalidPattern(Invalid):
    """The text is not a pattern for names of branches."""


def check_pattern(text: str) -> str:
    """Return the pattern if it is valid.

    Raises:
        InvalidPattern: the pattern is empty, too long, not canonical, or has a character that no branch can have.
    """
    if not text:
        raise InvalidPattern("a rule for a branch without a name", pattern=text)
    if len(text) > PATTERN_MAX:
        raise InvalidPattern(f"a pattern of {len(text)} characters, at most {PATTERN_MAX}", pattern=text[:PATTERN_MAX])
    if not _ALLOWED.fullmatch(text):
        raise InvalidPattern(
            f"{text!r} matches no branch: letters, digits, underscores, dashes, * and ? are allowed", pattern=text
        )
    # A run of wildcards has one spelling: `?` first, then at most one `*`. So no two patterns match the same texts.
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
    """Return the name of a deleted branch or tag as a ref, while it can be restored. Rules treat it as `name`."""
    return f"{name}{_DELETED}{deletion}}}"


def plain_name(name: str) -> str:
    """Return a ref's name, or its name before its deletion. No name of a branch or tag contains `@{`."""
    return name.partition(_DELETED)[0]


def matches(pattern: str, branch: str) -> bool:
    """Run in O(len(name) x stars). No pattern causes exponential backtracking."""
    return _compiled(pattern).match(plain_name(branch)) is not None


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    # Patterns have no `[`, so `fnmatch` sees only `*` and `?`.
    return re.compile(fnmatch.translate(pattern))


def specificity(pattern: str) -> Specificity:
    """Return a sort key: most specific first. Exact names sort by text, as each branch matches at most one."""
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
    """Explain in words why the first of two matching patterns is more specific."""
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
