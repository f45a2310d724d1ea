"""Commits of trees that are there: on a branch, or as a record that no branch has yet.

A tree is taken from a commit of this repository that is whole. So the objects are named already, and the new commit
holds them as a merge does: write its record, then check that no run takes the commit that the tree is from
(docs/design/protocols.md, "Naming a commit while a collection of committed data runs"). A file that no commit names
proves nothing: its objects may be gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec.structs import replace

from lakebed.base import EMPTY_METARANGE, CommitId, Invalid, MetarangeId, NotFound
from lakebed.versions.context import Context, Inventory
from lakebed.versions.errors import CommitExpired
from lakebed.versions.records import Commit
from lakebed.versions.retired import Retired

from .committer import Note
from .merger import Merger

T = TypeVar("T")


class Recorder:
    def __init__(self, context: Context, *, retired: Retired, inventory: Inventory, merger: Merger) -> None:
        self._context = context
        self._retired = retired
        self._inventory = inventory
        self._merger = merger

    async def commit_tree(self, branch: str, tree: str, note: Note, *, allow_empty: bool = False) -> Commit:
        """Commit a tree as it is: afterwards the branch's head has exactly its entries. Reads every commit record.

        Raises:
            NotFound: no commit has it.
            CommitExpired: only commits have it that a collection took, or takes.
            NoChanges: the head has it, and not `allow_empty`.
        """

        async def publish(source: CommitId) -> Commit:
            return await self._merger.commit_tree(branch, MetarangeId(tree), source, note, allow_empty=allow_empty)

        return await self._from(tree, publish)

    async def record(self, commit_id: str, commit: Commit) -> None:
        """Write the record of a commit that no branch has. A branch or tag can be made at it. Twice is the same.

        Raises:
            Invalid: the id is not that of these contents, the generation is not that of these parents, or a
                parent is repeated.
            CommitNotFound: a parent is not there.
            NotFound, CommitExpired: as for `commit_tree`.
        """
        if commit.id != commit_id:
            raise Invalid(f"commit id {commit_id}: these contents have the id {commit.id}", id=commit.id)
        if len(set(commit.parents)) < len(commit.parents):
            raise Invalid("a parent of the commit is repeated")
        parents = [await self._context.commits.read_published(parent) for parent in commit.parents]
        generation = 1 + max([parent.generation for parent in parents], default=0)
        if commit.generation != generation:
            raise Invalid(f"the generation is {commit.generation}, and that of these parents {generation}")
        now_ms = self._context.ports.clock.now_ms()
        # Retention counts from now, whatever the commit's date: else a run could take it before a branch or tag names
        # it.
        commit = replace(commit, written_ms=now_ms, counted_ms=now_ms, published=False)
        commit = await self._context.commits.ancestors.placed(commit)

        async def write(source: CommitId) -> None:
            # First: a refused record would stay, and name what was deleted long before.
            await self._retired.check_not_expiring([source])
            [present] = await self._inventory.commits([commit.id])
            if present is None:
                await self._context.commits.write(commit)
            await self._retired.check_not_expiring([source, commit.id])
            if present is None or not present.published:
                await self._context.commits.write(replace(commit, published=True))

        await self._from(commit.metarange_id, write)

    async def _from(self, tree: str, work: Callable[[CommitId], Awaitable[T]]) -> T:
        """Do the work with a commit that has this tree; with the next one where a collection takes that."""
        if tree == EMPTY_METARANGE:
            return await work(CommitId(""))
        having = [CommitId(id_) async for id_, commit in self._inventory.every(Commit) if commit.metarange_id == tree]
        sources = [id_ for id_ in having if await self._context.commits.is_published(id_)]
        error: Exception = NotFound(f"no commit has the metarange {tree}", metarange=tree)
        for source in sources:
            try:
                return await work(source)
            except CommitExpired as expired:
                error = expired
        raise error
