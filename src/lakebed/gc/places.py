"""One object, one place: the many ways to write an address, brought to the one that is compared. Pure.

The same object can be named `data/<slice>/<sequence>` and `local://lake/data/<slice>/<sequence>`; compared as text the
two differ, and a collector that took the first for garbage would delete what the second names. So every address is
brought to a *place* before anything is compared: a slice and a sequence, or a key inside the namespace, or outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from lakebed.base import is_absolute, key_inside, parse_address
from lakebed.handoff import is_special

Place: TypeAlias = tuple[int, int] | str | None
"""Slice and sequence; or a key inside the namespace; or None: outside, and so none of our business."""

_ALIASES: Final = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb"}
"""Schemes under which other tools write addresses of the same store."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A storage namespace. `uri` may end with a slash or not."""

    uri: str

    def place_of(self, address: str) -> Place:
        key = key_inside(_canonical(address), _canonical(self.uri).rstrip("/"))
        return None if key is None else parse_address(key) or key


def _canonical(uri: str) -> str:
    """A key is left as it is."""
    if not is_absolute(uri):
        return uri
    scheme, _, rest = uri.partition("://")
    scheme = scheme.lower()
    return f"{_ALIASES.get(scheme, scheme)}://{rest}"


def may_be_deleted(key: str) -> bool:
    """Whether a collector may ever delete this key: users' bytes, and a path without tricks.

    `data/../_lakefs/x` begins with `data/` and means something else; such a key is nobody's, and is kept.
    """
    is_plain = all(segment not in {"", ".", ".."} for segment in key.split("/")) and "\0" not in key
    return is_plain and not is_special(key)
