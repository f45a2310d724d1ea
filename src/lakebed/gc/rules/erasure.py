"""Decide which objects an erasure takes, in plain Python: the specification that the planner must agree with. Pure.

    An object goes when a selected entry of a commit names it, and no other entry of a commit does (unless shared
    objects go too).

Neither dates nor branches, tags, rules or policies count. What is staged and selected is added to this. What is in no
commit and not selected, and legal holds (holds.py), keep their objects besides. A plan lists what stays, and why.
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


class Stands(StrEnum):
    """Say why a selected object stays."""

    SHARED = "entries that are not selected name it"
    OUTSIDE = "it lies outside of the repository's storage namespace, or is not Lakebed's to delete"


class ErasureVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`goes` are objects by key. `stands` are selected ones that stay, by key, or by address where they lie outside."""

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
    """Apply the law. Entries have no checksums here, so none is selected by its digest."""
    chosen: set[str] = set()
    others: set[str] = set()
    for commit in history.commits.values():
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
        if key is None or not namespace.may_take(key):
            stands[key or address] = Stands.OUTSIDE
        elif key in shared and not takes_shared:
            stands[key] = Stands.SHARED
        else:
            goes.add(key)
    return ErasureVerdict(goes=frozenset(goes), stands=stands)
