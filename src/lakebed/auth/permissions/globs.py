"""Patterns over actions and resources: `*` matches any characters, including none and slashes.

The matcher finds the pieces between stars from left to right, each at its first occurrence. So the time depends on the
text alone, not on the number of stars. Regular expressions could backtrack exponentially.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

Matcher: TypeAlias = Callable[[str], bool]


def compile_glob(pattern: str) -> Matcher:
    return compile_pieces(pattern.split("*"))


def compile_pieces(literals: Sequence[str]) -> Matcher:
    """Return a matcher for the pieces between stars: `a` and `b` for `a*b`, and `a` alone for `a`."""
    first, *pieces = literals
    if not pieces:
        return first.__eq__
    if pieces == [""]:
        return lambda text: text.startswith(first)
    *middle, last = pieces

    def matches(text: str) -> bool:
        if not text.startswith(first) or not text.endswith(last):
            return False
        position, end = len(first), len(text) - len(last)
        for piece in middle:
            found = text.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return position <= end

    return matches
