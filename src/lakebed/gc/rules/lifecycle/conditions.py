"""Read and write the `when` of a rule: conditions on entries as one text. Pure.

    metadata.class == "pii" and metadata["data owner"] == 'ann' and size >= 1048576

A condition is another spelling of the fields `metadata` and `min_size`. So the language has neither `or` nor `not`: use
two rules for `or`. The most specific of overlapping rules applies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_TEXT: Final = r"""(?P<{}>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_KEY: Final = re.compile(r"metadata\s*(?:\.\s*(?P<name>[A-Za-z0-9_-]+)|\[\s*" + _TEXT.format("quoted") + r"\s*\])\s*")
_PLAIN: Final = re.compile("[A-Za-z0-9_-]+")
_EQUALS: Final = re.compile(r"==\s*")
_VALUE: Final = re.compile(_TEXT.format("value") + r"\s*", re.DOTALL)
_SIZE: Final = re.compile(r"size\s*")
_LEAST: Final = re.compile(r">=\s*")
_BYTES: Final = re.compile(r"(?P<bytes>[0-9]{1,18})\b\s*")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_AND: Final = re.compile(r"(?:and\b|&&)\s*")


class InvalidCondition(ValueError):
    """The text is not a condition. The message gives the character, counted from 1, and the expected text."""


class Condition(NamedTuple):
    """Describe the matching entries: they have these metadata and at least `min_size` bytes."""

    metadata: dict[str, str]
    min_size: int = 0


def parse_condition(text: str) -> Condition:
    """Read a condition, or raise InvalidCondition."""
    reader = _Reader(text)
    found: dict[str, str] = {}
    min_size: int | None = None
    while True:
        start = reader.at
        if reader.takes(_SIZE):
            reader.take(_LEAST, ">= after size")
            number = int(reader.take(_BYTES, "a number of bytes, such as 1048576")["bytes"])
            if min_size is not None:
                raise reader.error("size is given twice", start)
            min_size = number
        else:
            key = reader.take(_KEY, 'metadata.NAME, metadata["NAME"] or size')
            name = key["name"] if key["quoted"] is None else reader.unquoted(key["quoted"], key.start("quoted"))
            reader.take(_EQUALS, "== after the name")
            at = reader.at
            value = reader.take(_VALUE, 'a text in quotes, such as "pii"')["value"]
            if name in found:
                raise reader.error(f"{_key_text(name)} is given twice", start)
            found[name] = reader.unquoted(value, at)
        if reader.is_at_end:
            return Condition(found, min_size or 0)
        reader.take(_AND, "and, or the end")


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = len(text) - len(text.lstrip())

    @property
    def is_at_end(self) -> bool:
        return self.at == len(self._text)

    def takes(self, token: re.Pattern[str]) -> re.Match[str] | None:
        found = token.match(self._text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def take(self, token: re.Pattern[str], expected: str) -> re.Match[str]:
        found = self.takes(token)
        if found is None:
            raise self.error(f"expected {expected}", self.at)
        return found

    def unquoted(self, text: str, at: int) -> str:
        """Return the text inside quotes. Text in double quotes is JSON. In single quotes a backslash escapes only a
        quote or a backslash: `\\n` is an error.
        """
        if text[0] == "'":
            for escape in _ESCAPE.finditer(text):
                if escape[1] not in "'\"\\":
                    place = at + escape.start()
                    raise self.error("in single quotes a backslash stands before a quote or a backslash", place)
            return _ESCAPE.sub(r"\1", text[1:-1])
        try:
            # Not strict: a text may contain control characters.
            return str(json.loads(text, strict=False))
        except ValueError:
            raise self.error("the text in quotes has an escape that JSON does not know", at) from None

    def error(self, what: str, at: int) -> InvalidCondition:
        return InvalidCondition(f"at character {at + 1}: {what}")


def condition_text(metadata: Mapping[str, str], min_size: int) -> str:
    """Return the condition in the language of `when`, on one printable line; empty without conditions."""
    texts = [f"{_key_text(name)} == {_quoted(value)}" for name, value in sorted(metadata.items())]
    return " and ".join([*texts, *([f"size >= {min_size}"] if min_size else [])])


def _key_text(name: str) -> str:
    return f"metadata.{name}" if _PLAIN.fullmatch(name) else f"metadata[{_quoted(name)}]"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable()).replace("\x7f", "\\u007f")
