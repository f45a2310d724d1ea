"""Commit records that nobody can ever publish, because files of theirs were given up and deleted.

A committer that sleeps between its files and its commit record may find that a collection of metadata took the files:
it cannot publish then, for its branch was touched, and it builds again. But the record is there, or is written as the
last thing before a crash, and every collector reads every commit record. Such a commit is *void*: it keeps nothing, and
nothing of it is read.

It is told by a file that it names, that was given up, and that is not there. That is a proof: of a commit that is or
will be published no file that was given up is ever deleted (docs/design/protocols.md, "A collection of metadata"). A
file that is missing and was never given up is damage, and stops whoever reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lakebed.base import CommitId, MetarangeId, RangeId
from lakebed.blocks import BlockNotFound
from lakebed.ranges import MetarangeCorrupt, metarange_key, range_key
from lakebed.versions import Commit, Versions


async def find_void(
    versions: Versions, commits: Sequence[tuple[CommitId, Commit]], *, heads: Iterable[CommitId]
) -> frozenset[CommitId]:
    """Of these commits (none of them swept) the void ones. `heads` are all that anything names.

    Costs nothing where every commit is noted as published; else a look or two and a metarange for each tree that only
    others have.
    """
    noted = {commit.metarange_id for _, commit in commits if commit.published}
    suspects = sorted({commit.metarange_id for _, commit in commits} - noted - {MetarangeId("")})
    if not suspects:
        return frozenset()
    broken = set()
    for tree, taken_by in zip(suspects, await versions.given_up(suspects), strict=True):
        # A tree that is there may still lack a range: its writer slept between the two, and put it after the deletes.
        is_gone = bool(taken_by) and await _is_missing(versions, metarange_key(tree))
        if is_gone or await _lacks_ranges(versions, tree):
            broken.add(tree)
    void = {id_ for id_, commit in commits if commit.metarange_id in broken and not commit.published}
    # One that something names is damaged instead: it stays, for its readers to stop.
    return frozenset(void - _reachable(heads, dict(commits)) if void else void)


async def _lacks_ranges(versions: Versions, tree: MetarangeId) -> bool:
    try:
        ranges = [info.id for info in await versions.trees.ranges(tree)]
    except MetarangeCorrupt:
        return False
    taken = [range_ for range_, by in zip(ranges, await versions.given_up(ranges), strict=True) if by]
    for range_ in taken:
        if await _is_missing(versions, range_key(RangeId(range_))):
            return True
    return False


async def _is_missing(versions: Versions, key: str) -> bool:
    try:
        await versions.blocks.stat(key)
    except BlockNotFound:
        return True
    return False


def _reachable(heads: Iterable[CommitId], commits: Mapping[CommitId, Commit]) -> set[CommitId]:
    found: set[CommitId] = set()
    waiting = list(heads)
    while waiting:
        commit_id = waiting.pop()
        if commit_id not in found:
            found.add(commit_id)
            commit = commits.get(commit_id)
            waiting += commit.parents if commit else ()
    return found
