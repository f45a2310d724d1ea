"""Match the paths that a rule is for: a plain prefix of the path's bytes, or a glob over the whole path.

In a glob `*` matches any characters but a slash, `**` any characters, and `**/` any folders, also none. The most
specific pattern that matches a path wins (`specificity`). The order is total, so the order in a file never matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

__all__ = ["PathPattern"]

WILDCARDS_MAX: Final = 8
"""More wildcards would match slowly, and would be hard to read."""

_WILD: Final = re.compile(r"\*\*/|\*\*|\*")
_WRONG: Final = {
    "?": "? is no wildcard in paths: write *",
    "[": "[ is no wildcard in paths: write *",
    "***": "three stars in a row mean nothing",
}
_REGEX: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}

Specificity = tuple[int, int, int, str]


class PathPattern(msgspec.Struct, frozen=True, order=True):
    """`is_prefix`: the text is a plain prefix, in which a star is a plain character."""

    text: str
    is_prefix: bool

    def literal_beginning(self) -> bytes:
        """Return the start of every path that matches."""
        return (self.text if self.is_prefix else _WILD.split(self.text, maxsplit=1)[0]).encode()

    def regex(self) -> str:
        """Return the regular expression (of RE2, in one-line mode) that whole paths match.

        RE2 takes linear time. `re` backtracks without bound over several wildcards, so `matches` does not use it.
        """
        if self.is_prefix:
            return f"(?s)^{re.escape(self.text)}"
        literals = [re.escape(piece) for piece in _WILD.split(self.text)]
        wild = [_REGEX[found] for found in _WILD.findall(self.text)]
        return "(?s)^" + "".join(map("".join, zip(literals, [*wild, r"\z"], strict=True)))

    def matches(self, path: str) -> bool:
        if self.is_prefix:
            return path.startswith(self.text)
        literals, wild = _WILD.split(self.text), _WILD.findall(self.text)
        # `ends`: where in the path the pattern up to here may end. A step costs at most the length of the path.
        ends: Iterable[int] = (0,)
        for literal, wildcard in zip(literals, wild, strict=False):
            found = [end + len(literal) for end in ends if path.startswith(literal, end)]
            if not found:
                return False
            ends = _ends_of(wildcard, path, found)
        return any(path.endswith(literals[-1]) and end == len(path) - len(literals[-1]) for end in ends)

    def specificity(self) -> Specificity:
        """Sort the most specific first: the longer literal beginning, then more literals, then fewer wildcards."""
        if self.is_prefix:
            return -len(self.text), -len(self.text), 1, self.text
        literals = sum(map(len, _WILD.split(self.text)))
        beginning = len(_WILD.split(self.text, maxsplit=1)[0])
        # A path without a wildcard is more specific than the prefix of the same text.
        return -beginning, -literals, len(_WILD.findall(self.text)), self.text


def _ends_of(wildcard: str, path: str, starts: list[int]) -> Iterable[int]:
    """Return where a wildcard may end that begins at any of `starts`, which ascend."""
    if wildcard == "**":
        return range(starts[0], len(path) + 1)
    if wildcard == "**/":
        folders = {at for at in range(starts[0] + 1, len(path) + 1) if path[at - 1] == "/"}
        return sorted(folders | set(starts))
    ends: list[int] = []
    for start in starts:
        slash = path.find("/", start)
        # Skip nodes that an earlier start reaches, or long runs would be walked once for each start.
        ends += range(max(start, ends[-1] + 1 if ends else 0), (len(path) if slash < 0 else slash) + 1)
    return ends


def wrong_in_glob(text: str) -> str | None:
    """Return the mistake in a glob for paths, or None."""
    for found, message in _WRONG.items():
        if found in text:
            return message
    if len(_WILD.findall(text)) > WILDCARDS_MAX:
        return f"more than {WILDCARDS_MAX} wildcards"
    return None
