"""Decide which objects the collection of a deleted repository deletes: the specification of the planner. Pure Python.

    The run deletes each object at an address in a recorded slice of the repository, and every file of its trees and
    runs. It keeps every object that another repository names.

Commits, branches and rules have no influence: no request can name an object through the repository any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from lakebed.base import parse_address, slice_name

from .committed import Namespace


def judge_deleted(
    keys: Collection[str], *, namespace: Namespace, is_own_file: Callable[[str], bool], named: Collection[str] = ()
) -> frozenset[str]:
    """Return the keys of the namespace whose objects are deleted.

    The closed slices of the namespace are those with a record. `named` are the full URIs that other repositories name.
    `is_own_file` recognises files of trees and runs by their form.
    """
    # Another repository may have imported objects of this namespace.
    kept = namespace.keys_of(named)

    def is_in_slice(key: str) -> bool:
        place = parse_address(key)
        return place is not None and slice_name(place[0]) in namespace.closed

    return frozenset(key for key in keys if key not in kept and (is_in_slice(key) or is_own_file(key)))
