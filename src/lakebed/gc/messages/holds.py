"""Declare the messages of legal holds (docs/guide/holds.md)."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from lakebed.gc.rules import Hold

__all__ = ["HoldsHistory", "HoldsVersion", "HoldsWritten", "NewHold"]

NAMES_MAX: Final = 1_000
"""The limit for each kind of name in one hold."""
_Names: TypeAlias = Annotated[tuple[str, ...], msgspec.Meta(max_length=NAMES_MAX)]


class NewHold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold the objects at paths that match `globs`, in `commits`, or at `tags`. `why`: a text for people, not empty."""

    name: str
    globs: _Names = ()
    commits: _Names = ()
    tags: _Names = ()
    why: str
    keeps_uncommitted: bool = True


class HoldsVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The holds of a version. `changed_by`: the id of the user who made it."""

    version: int
    holds: tuple[Hold, ...]
    changed_ms: int
    changed_by: str
    what: str = ""


class HoldsHistory(msgspec.Struct, frozen=True, kw_only=True):
    versions: tuple[HoldsVersion, ...]
    has_more: bool


class HoldsWritten(msgspec.Struct, frozen=True, kw_only=True):
    """`counts_after`: runs that had begun to take commits or objects. Objects deleted before are lost."""

    version: int
    counts_after: tuple[str, ...] = ()
