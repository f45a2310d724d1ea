"""Decide which objects an erasure deletes: the specification that the planner must agree with. Pure Python.

    Delete an object if a selected entry of a commit names it and no other entry of a commit does. An erasure of shared
    objects ignores the other entries.

Dates, branches, tags, rules and policies have no influence. The planner adds selected staged objects. Unselected
records outside of commits, and legal holds (holds.py), keep their objects, too. A plan lists the selected objects that
are kept, with reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from lakebed.base import MetarangeId

from .committed import Namespace
from .history import History
from .lifecycle.due import Entry
from .selection import Selection

__all__ = ["Stands", "judge_erasure"]


class Stands(StrEnum):
    """Name the reason why a selected object stays."""

    SHARED = "entries that are not selected name it"
    OUTSIDE = "it lies outside of the repository's storage namespace, or is not Lakebed's to delete"


class ErasureVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`goes`: objects to delete, by key. `stands`: selected objects that stay, by key, or by address outside."""

    goes: frozenset[str]
    stands: dict[str, Stands]


def judge_erasure(
    history: History,
    contents: Mapping[MetarangeId, Sequence[Entry]],
    selection: Selection,
    *,
    namespace: Namespace,
    takes_shared: bool = False,
) -> ErasureVerdict:
    """Apply the law of the module. Entries have no checksums here, so no digest selects an entry."""
    chosen: set[str] = set()
    others: set[str] = set()
    for commit in history.commits.values():
        # A swept commit names nothing, and a commit without a metarange has no entries.
        if commit.swept or not commit.metarange_id:
            continue
        for entry in contents[commit.metarange_id]:
            is_chosen = selection.matches(entry.path, "", entry.metadata)
            (chosen if is_chosen else others).add(entry.address)
    shared = namespace.keys_of(others)
    goes: set[str] = set()
    stands: dict[str, Stands] = {}
    for address in chosen:
        key = namespace.key_of(address)
        # An object outside belongs to another program, and an open slice may get a new cell for its object.
        if key is None or not namespace.may_take(key):
            stands[key or address] = Stands.OUTSIDE
        elif key in shared and not takes_shared:
            stands[key] = Stands.SHARED
        else:
            goes.add(key)
    return ErasureVerdict(goes=frozenset(goes), stands=stands)
