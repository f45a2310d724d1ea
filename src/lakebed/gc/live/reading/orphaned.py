"""Commit records that can never be published, because files of theirs were retired and deleted.

A committer that sleeps between its files and its commit record may find that a collection of metadata took the files:
it cannot publish then, for its branch was bumped, and it builds again. But the record is there, or is written as the
last thing before a crash, and every collector reads every commit record. Such a commit is *orphaned*: it keeps
nothing, and nothing of it is read.

It is known by a file that it names, that was retired, and that is not there. That is a proof: of a commit that is or
will be published no file that was retired is ever deleted (docs/design/protocols.md, "A collection of metadata"). A
file that is missing and was never retired is damage, and stops every reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import CommitId, MetarangeId, RangeId, SublistId
from lakebed.objectstore import ObjectMissing
from lakebed.ranges import MetarangeCorrupt, metarange_key, range_key, sublist_key
from lakebed.versions import Versions

from .commit_columns import CommitColumns, packed, texts

Id = TypeVar("Id", RangeId, SublistId)


async def find_orphaned(
    versions: Versions, commits: CommitColumns, there: pa.Array, *, heads: Iterable[CommitId]
) -> frozenset[CommitId]:
    """Return the orphaned ones of the commits that are `there` (a flag for each: it was not swept).

    `heads` are all commits that anything names.

    Costs nothing where every commit is noted as published; else a look or two and a metarange for each tree that only
    others have.
    """
    loose, suspects = await versions.ports.tasks.apart(partial(_find_suspects, commits, there))
    if not suspects:
        return frozenset()
    broken = set()
    for tree, taken_by in zip(suspects, await versions.retired.retired_by(suspects), strict=True):
        # A tree that is there may lack what it lists: its writer slept between the two, and put it after the deletes.
        is_gone = bool(taken_by) and await is_missing(versions, metarange_key(MetarangeId(tree)))
        if is_gone or await _lacks_files(versions, MetarangeId(tree)):
            broken.add(tree)
    is_orphaned = pc.is_in(loose["metarange_id"].combine_chunks(), value_set=packed(sorted(broken)))
    orphaned = frozenset(map(CommitId, texts(loose["id"].combine_chunks().filter(is_orphaned)).to_pylist()))
    # One that something names is damaged instead: it stays, for its readers to stop.
    return orphaned - _reachable(heads, commits, orphaned) if orphaned else orphaned


def _find_suspects(commits: CommitColumns, there: pa.Array) -> tuple[pa.Table, list[str]]:
    """Return the commits that are there and not noted as published; and the trees that only such commits have."""
    is_noted = commits.column("published")
    loose = commits.table.filter(pc.and_(there, pc.invert(is_noted))).select(["id", "metarange_id"])
    if not loose.num_rows:
        return loose, []
    trees = pc.unique(loose["metarange_id"].combine_chunks())
    noted = commits.column("metarange_id").filter(pc.and_(there, is_noted))
    noted = pc.unique(noted.filter(pc.is_in(noted, value_set=trees)))
    return loose, sorted(set(texts(trees).to_pylist()) - set(texts(noted).to_pylist()) - {""})


async def _lacks_files(versions: Versions, tree: MetarangeId) -> bool:
    try:
        sublists = [info.id for info in await versions.trees.sublists(tree)]
        # First: without one of these the ranges cannot be read.
        if sublists and await _lacks_retired(versions, sublists, sublist_key):
            return True
        ranges = [info.id for info in await versions.trees.ranges(tree)]
    except MetarangeCorrupt:
        return False
    return await _lacks_retired(versions, ranges, range_key)


async def _lacks_retired(versions: Versions, ids: Sequence[Id], key_of: Callable[[Id], str]) -> bool:
    taken = [id_ for id_, by in zip(ids, await versions.retired.retired_by(ids), strict=True) if by]
    for id_ in taken:
        if await is_missing(versions, key_of(id_)):
            return True
    return False


async def is_missing(versions: Versions, key: str) -> bool:
    try:
        await versions.objectstore.stat(key)
    except ObjectMissing:
        return True
    return False


def _reachable(heads: Iterable[CommitId], commits: CommitColumns, wanted: frozenset[CommitId]) -> set[CommitId]:
    """Return which of the wanted commits these heads lead to."""
    ids, parents = commits.column("id"), commits.column("parents")
    ends = parents.offsets.to_numpy()
    above = _rows(ids, parents.values)
    is_found = bytearray(len(ids))
    waiting = [row for row in _rows(ids, packed(list(heads))).tolist() if row >= 0]
    while waiting:
        row = waiting.pop()
        if not is_found[row]:
            is_found[row] = 1
            waiting += [parent for parent in above[ends[row] : ends[row + 1]].tolist() if parent >= 0]
    rows = zip(sorted(wanted), _rows(ids, packed(sorted(wanted))).tolist(), strict=True)
    return {id_ for id_, row in rows if row >= 0 and is_found[row]}


def _rows(ids: pa.Array, names: pa.Array) -> npt.NDArray[np.int64]:
    """Return where each of these commits is; -1: nowhere."""
    return np.asarray(pc.fill_null(pc.index_in(names, value_set=ids), -1).to_numpy()).astype(np.int64)
