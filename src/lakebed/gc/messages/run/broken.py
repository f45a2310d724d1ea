"""Iceberg tables that a plan would break: a file that their metadata reaches is among its objects."""

from __future__ import annotations

import msgspec

from lakebed.base import RunKind

from .tables import Manifest

__all__ = ["NAMED_MAX", "BrokenTable", "BrokenTables", "FindTables"]

NAMED_MAX = 100
"""The number of refs, and of snapshots, that are named of a table. All are counted."""


class FindTables(msgspec.Struct, frozen=True, kw_only=True):
    """`files`: the table `table_files` of a plan."""

    kind: RunKind
    files: Manifest


class BrokenTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of some branches or tags, and its files that the plan takes.

    `refs`, `snapshots`: some of `refs_count` and `snapshots_count`.
    """

    table: str
    uuid: str
    refs: tuple[str, ...]
    refs_count: int
    files: int
    snapshots: tuple[int, ...] = ()
    snapshots_count: int = 0
    # The current snapshot, or the metadata itself, is among those that cannot be read any more.
    is_current: bool = False
    # False where the metadata cannot be read, or the server has no catalog of tables; then the snapshots are not known.
    is_known: bool = True


class BrokenTables(msgspec.Struct, frozen=True, kw_only=True):
    tables: tuple[BrokenTable, ...]
