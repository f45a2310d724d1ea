"""Legal holds as they travel (docs/guide/holds.md)."""

from __future__ import annotations

import msgspec

from lakebed.gc.rules import Hold


class NewHold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold what `globs` match, `commits` have and `tags` name. `why` is for people, and must say something."""

    name: str
    globs: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
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
