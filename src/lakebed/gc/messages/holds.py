"""Legal holds as they travel (docs/guide/holds.md)."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from lakebed.gc.rules import Hold

NAMES_MAX: Final = 1_000
"""Of a kind, in one hold."""
_Names: TypeAlias = Annotated[tuple[str, ...], msgspec.Meta(max_length=NAMES_MAX)]


class NewHold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold what `globs` match, `commits` have and `tags` name. `why` is for people, and must say something."""

    name: str
    globs: _Names = ()
    commits: _Names = ()
    tags: _Names = ()
    why: str
    keeps_uncommitted: bool = True


class HoldsVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The holds of a version, and who made it: `changed_by` is a user's id."""

    version: int
    holds: tuple[Hold, ...]
    changed_ms: int
    changed_by: str
    what: str = ""


class HoldsHistory(msgspec.Struct, frozen=True, kw_only=True):
    versions: tuple[HoldsVersion, ...]
    has_more: bool


class HoldsWritten(msgspec.Struct, frozen=True, kw_only=True):
    """`counts_after` are runs that had begun to take commits or objects: what they deleted before is gone, and what is
    left stays.
    """

    version: int
    counts_after: tuple[str, ...] = ()
