"""Which paths a rule is for: a plain prefix of the path's bytes, or a glob over the whole path.

In a glob `*` stands for any characters but a slash, `**` for any characters, and `**/` for any folders, also none. Of
all patterns that match a path the most specific wins (`specificity`). The order is total, so the order in which rules
were written never matters.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

WILDCARDS_MAX: Final = 8
"""More would take long to match, and no one reads them."""

_WILD: Final = re.compile(r"\*\*/|\*\*|\*")
_WRONG: Final = {
    "?": "? is no wildcard in paths: write *",
    "[": "[ is no wildcard in paths: write *",
    "***": "three stars in a row mean nothing",
}
_REGEX: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}

Specificity = tuple[int, int, int, str]


class PathPattern(msgspec.Struct, frozen=True, order=True):
    """`is_prefix`: the text is a plain prefix, and its stars are stars."""

    text: str
    is_prefix: bool

    def literal_beginning(self) -> bytes:
        """Return what each path that matches begins with."""
        return (self.text if self.is_prefix else _WILD.split(self.text, maxsplit=1)[0]).encode()

    def regex(self) -> str:
        """Return the regular expression (of RE2 and `re`, in one-line mode) that whole paths match."""
        if self.is_prefix:
            return f"(?s)^{re.escape(self.text)}"
        literals = [re.escape(piece) for piece in _WILD.split(self.text)]
        wild = [_REGEX[found] for found in _WILD.findall(self.text)]
        return "(?s)^" + "".join(map("".join, zip(literals, [*wild, r"\z"], strict=True)))

    def matches(self, path: str) -> bool:
        return re.search(self.regex().replace(r"\z", r"\Z"), path) is not None

    def specificity(self) -> Specificity:
        """Sort the most specific first: the longer literal beginning, then more literals, then fewer wildcards."""
        if self.is_prefix:
            return -len(self.text), -len(self.text), 1, self.text
        literals = sum(map(len, _WILD.split(self.text)))
        beginning = len(_WILD.split(self.text, maxsplit=1)[0])
        # A path without a wildcard is more specific than the prefix of the same text.
        return -beginning, -literals, len(_WILD.findall(self.text)), self.text


def wrong_in_glob(text: str) -> str | None:
    """Return what is wrong with a glob for paths, or None."""
    for found, message in _WRONG.items():
        if found in text:
            return message
    if len(_WILD.findall(text)) > WILDCARDS_MAX:
        return f"more than {WILDCARDS_MAX} wildcards"
    return None
