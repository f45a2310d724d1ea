"""Judge what the collection of a deleted repository takes: the specification of the planner, pure Python.

    Of a deleted repository goes what lies in a slice of which it has a record, under the name of an address, and every
    file of its trees and of its runs; but nothing that another repository names.

Neither commits, branches nor rules count: no request can name an object through the repository any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from lakebed.base import parse_address, slice_name

from .committed import Namespace


def judge_deleted(
    keys: Collection[str], *, namespace: Namespace, is_own_file: Callable[[str], bool], named: Collection[str] = ()
) -> frozenset[str]:
    """Return which of the namespace's keys go.

    `closed` slices of the namespace are those with a record. `named` are the full URIs that other repositories have.
    `is_own_file` knows files of trees and runs by their form.
    """
    kept = namespace.keys_of(named)

    def is_in_slice(key: str) -> bool:
        place = parse_address(key)
        return place is not None and slice_name(place[0]) in namespace.closed

    return frozenset(key for key in keys if key not in kept and (is_in_slice(key) or is_own_file(key)))
