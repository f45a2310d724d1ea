"""Patterns over actions and resources: `*` is any characters, also none and also slashes; all else is itself.

Matching takes time in proportion to the text however many stars a pattern has: pieces between stars are looked for from
left to right, each at its first place. No regular expression: those of many stars can take for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

Matcher: TypeAlias = Callable[[str], bool]


def compile_glob(pattern: str) -> Matcher:
    return compile_pieces(pattern.split("*"))


def compile_pieces(literals: Sequence[str]) -> Matcher:
    """Of what lies between the stars: of `a*b`, these are `a` and `b`; of `a` it is `a` alone."""
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
