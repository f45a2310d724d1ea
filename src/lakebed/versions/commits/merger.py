"""Moves of a branch's head that take no token: merge, revert, cherry-pick, and changes that were never staged.

Each is one `set_if` of the head (docs/design/protocols.md, "Merge, revert, cherry-pick"): read the branch, write the
commit record, check that no commit whose entries were used is expiring, replace the record that was read; if that
fails, from the start. Staged changes of the branch stay staged, on top of the new head. An answer that was lost and
that the history does not prove is `OutcomeUnknown`, never repeated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import pyarrow as pa
from msgspec.structs import replace

from lakebed.base import CommitId, Conflict, MetarangeId, OutcomeUnknown, Row
from lakebed.kv import PredicateFailed
from lakebed.ranges import Choices, changes_from_rows
from lakebed.versions.context import Context, Retry
from lakebed.versions.errors import BadRef, MergeConflict, NoChanges
from lakebed.versions.history.history import History
from lakebed.versions.records import Commit
from lakebed.versions.refs.reflog import Reflog
from lakebed.versions.refs.refs import Refs
from lakebed.versions.retired import Retired, says_who_took
from lakebed.versions.taken import Taken

from .committer import LOOKED_UP_TOGETHER, Committer, Note

Strategy: TypeAlias = Literal["none", "source-wins", "dest-wins"]
STRATEGY_KEY: Final = ".lakefs.merge.strategy"


@dataclass(frozen=True, slots=True)
class Plan:
    """A commit to publish, and the commits whose entries went into it.

    The base of a three-way merge gives none: its data may be gone, and its tree stays for this (gc/rules/history.py).
    """

    commit: Commit
    used: tuple[CommitId, ...]
    check: Callable[[], Awaitable[None]] | None = None
    """To be asked once the commit record is written. What it raises ends the flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How a merge goes on after a conflict, by changes in order of keys (CHANGES_SCHEMA).

    `source` is laid over the source's tree, so that it conflicts no more, and `merged` over the merged tree. `check` is
    asked as that of `Plan`.
    """

    source: pa.Table
    merged: pa.Table
    check: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The commits of a three-way merge."""

    base: CommitId
    source: CommitId
    head: CommitId


Settle: TypeAlias = Callable[[Sides, MergeConflict], Awaitable[Settlement]]
"""Settle a conflict, anew for each other move of the branch. It raises the conflict if it cannot."""


class Merger:
    def __init__(
        self,
        context: Context,
        *,
        retired: Retired,
        taken: Taken,
        refs: Refs,
        reflog: Reflog,
        history: History,
        committer: Committer,
    ) -> None:
        self._context = context
        self._reflog = reflog
        self._retired = retired
        self._taken = taken
        self._refs = refs
        self._history = history
        self._committer = committer

    async def merge(
        self,
        source: str,
        branch: str,
        note: Note,
        *,
        strategy: Strategy = "none",
        choices: Choices | None = None,
        allow_empty: bool = False,
        squash: bool = False,
        refuse_expired: bool = False,
        source_id: CommitId | None = None,
        settle: Settle | None = None,
    ) -> Commit:
        """Bring the changes of `source` since the merge base into the branch. `squash`: without the source as parent.

        `source_id` is the commit that `source` named when the caller looked; None: look now. `settle` is asked about
        the conflicts that neither `choices` nor the strategy decides.

        Raises:
            Conflict: it has objects that lifecycle runs took, and `refuse_expired`.
            MergeConflict: both changed a path, and neither `choices` nor the strategy says who wins.
            NoChanges: the branch has every commit of the source, and not `allow_empty`. Commits that change nothing
            together are merged, so that the branch has them; `squash` would not give it these, and is refused.
        """
        source_id = source_id or await self._refs.resolve_commit(source)
        metadata = {**note.metadata, STRATEGY_KEY: "default" if strategy == "none" else strategy}
        note = dataclasses.replace(note, message=note.message or f"Merge '{source}' into '{branch}'", metadata=metadata)

        async def plan(head: CommitId) -> Plan:
            base = await self._history.common_ancestor(source_id, head)
            changes = base.id != source_id
            # A squash leaves the source's commits out, so only a difference of the trees is a change.
            if squash:
                changes = base.metarange_id != await self._context.commits.metarange(source_id)
            if not changes and not allow_empty:
                raise NoChanges(f"update branch {branch}: no changes", branch=branch)
            sides, check = Sides(base=base.id, source=source_id, head=head), None
            try:
                merged = await self._three_way(base.id, source_id, head, strategy, choices)
            except MergeConflict as conflict:
                if settle is None:
                    raise
                settled = await settle(sides, conflict)
                tree = await self._applied(await self._context.commits.metarange(source_id), settled.source)
                merged = await self._three_way(base.id, source_id, head, strategy, choices, tree=tree)
                merged, check = await self._applied(merged, settled.merged), settled.check
            parents = (head,) if squash else (head, source_id)
            return Plan(await self._committer.new_commit(branch, merged, parents, note), (source_id, head), check)

        return await self._advance(branch, plan, "merge", refuse_expired=refuse_expired)

    async def revert(
        self,
        branch: str,
        ref: str,
        note: Note,
        *,
        parent_number: int = 0,
        allow_empty: bool = False,
        refuse_expired: bool = False,
    ) -> Commit:
        """Undo on the branch the changes of the commit against its parent (1-based; needed only for merge commits)."""
        commit = await self._history.get_commit(await self._refs.resolve_commit(ref))
        parent = _pick_parent(commit, parent_number, "reverting")
        note = dataclasses.replace(note, message=note.message or f"Revert {ref}")

        async def plan(head: CommitId) -> Plan:
            # A merge with base and source exchanged: from the commit back to its parent.
            tree = await self._three_way(commit.id, parent, head, "none")
            if tree == await self._context.commits.metarange(head) and not allow_empty:
                raise NoChanges(f"update branch {branch}: no changes", branch=branch)
            return Plan(await self._committer.new_commit(branch, tree, (head,), note), (parent, head))

        return await self._advance(branch, plan, "revert", refuse_expired=refuse_expired)

    async def cherry_pick(
        self,
        branch: str,
        ref: str,
        note: Note,
        *,
        parent_number: int = 0,
        refuse_expired: bool = False,
    ) -> Commit:
        """Apply to the branch the changes of the commit against its parent (1-based; needed only for merge commits)."""
        commit = await self._history.get_commit(await self._refs.resolve_commit(ref))
        parent = _pick_parent(commit, parent_number, "cherry-picking")
        note = dataclasses.replace(
            note, message=note.message or commit.message, metadata={**commit.metadata, **note.metadata}
        )

        async def plan(head: CommitId) -> Plan:
            # The parent in place of a merge base: only the commit's own changes come over.
            tree = await self._three_way(parent, commit.id, head, "none")
            if tree == await self._context.commits.metarange(head):
                raise NoChanges(f"update branch {branch}: no changes", branch=branch)
            return Plan(await self._committer.new_commit(branch, tree, (head,), note), (commit.id, head))

        return await self._advance(branch, plan, "cherry-pick", refuse_expired=refuse_expired)

    async def apply(self, branch: str, changes: pa.Table, note: Note) -> Commit:
        """Commit these changes (CHANGES_SCHEMA; ascending, each key once) without staging them.

        Raises:
            NoChanges: the branch has it all.
        """

        async def unchanged(_: CommitId) -> pa.Table:
            return changes

        return await self.compose(branch, unchanged, note, operation="import")

    async def compose(
        self,
        branch: str,
        changes: Callable[[CommitId], Awaitable[pa.Table]],
        note: Note,
        *,
        check: Callable[[], Awaitable[None]] | None = None,
        operation: str = "commit",
    ) -> Commit:
        """Commit the changes (CHANGES_SCHEMA) that are made for the head, anew for each other move of the branch.

        Raises:
            NoChanges: the branch has it all.
        """

        async def plan(head: CommitId) -> Plan:
            before = await self._context.commits.metarange(head)
            tree = await self._applied(before, await changes(head))
            if tree == before:
                raise NoChanges(f"update branch {branch}: no changes", branch=branch)
            # `check` runs after the commit record is there. So a run that begins later finds the commit's objects.
            return Plan(await self._committer.new_commit(branch, tree, (head,), note), (head,), check)

        return await self._advance(branch, plan, operation)

    async def replay(
        self,
        branch: str,
        changes: Callable[[], AsyncIterator[pa.Table]],
        note: Note,
        *,
        merged: tuple[CommitId, ...] = (),
    ) -> Commit:
        """Commit the changes of another installation's commit: as `apply`, in parts, and also where nothing changes.

        `changes` yields the parts in order; it is called again for every other move of the branch. `merged` are the
        commit's further parents.
        """

        async def plan(head: CommitId) -> Plan:
            tree = await self._context.commits.metarange(head)
            async for part in changes():
                tree = await self._applied(tree, part)
            return Plan(await self._committer.new_commit(branch, tree, (head, *merged), note), (head, *merged))

        return await self._advance(branch, plan, "migrate")

    async def commit_tree(
        self, branch: str, tree: MetarangeId, source: CommitId, note: Note, *, allow_empty: bool
    ) -> Commit:
        """Commit the tree of `source`, as it is, in the place of the head's."""

        async def plan(head: CommitId) -> Plan:
            if tree == await self._context.commits.metarange(head) and not allow_empty:
                raise NoChanges("commit: no changes", branch=branch)
            return Plan(await self._committer.new_commit(branch, tree, (head,), note), (source, head))

        return await self._advance(branch, plan, "commit")

    @says_who_took
    async def _applied(self, tree: MetarangeId, changes: pa.Table) -> MetarangeId:
        return await self._committer.applied(tree, changes)

    @says_who_took
    async def _three_way(
        self,
        base: CommitId,
        source: CommitId,
        head: CommitId,
        strategy: Strategy,
        choices: Choices | None = None,
        *,
        tree: MetarangeId | None = None,
    ) -> MetarangeId:
        """Return the merged tree. `tree` takes the place of the source's."""
        of_base, of_source, of_head = [await self._context.commits.metarange(id_) for id_ in (base, source, head)]
        if tree is not None:
            of_source = tree
        merged = await self._context.trees.merge(
            base=of_base,
            source=of_source,
            destination=of_head,
            strategy=strategy,
            choices=choices,
            retired_by=self._retired.retired_by,
        )
        if merged.conflicts:
            raise MergeConflict("update branch: conflict found", conflicts=merged.conflicts)
        return await self._readable(merged.metarange_id, of_base, of_source, of_head)

    async def _readable(
        self, merged: MetarangeId, base: MetarangeId, source: MetarangeId, head: MetarangeId
    ) -> MetarangeId:
        """Return the merged tree, where equal content of a side takes the place of entries whose objects runs took.

        Equal content is no change to a merge, so either side's entry may have stayed. Looks where the source changed
        something. Costs one `get_many` where no policy was ever set and nothing erased, else what a diff does.
        """
        if not await self._taken.is_ever_used():
            return merged
        trees, tree = self._context.trees, merged
        async for batch in trees.rows_unlike(base, source):
            live: dict[bytes, Row] = {}
            for start in range(0, len(batch), LOOKED_UP_TOGETHER):
                of_source = dict(batch[start : start + LOOKED_UP_TOGETHER])
                keys = [*of_source]
                now = dict(zip(keys, await trees.lookup_many(merged, keys), strict=True))
                gone, _ = await self._taken_and_live(now)
                of_head = dict(zip(gone, await trees.lookup_many(head, [*gone]), strict=True))
                for side in (of_head, of_source):
                    equal = {key: row for key, was in gone.items() if (row := side[key]) and row[0] == was[0]}
                    live |= (await self._taken_and_live(equal))[1]
                await self._context.ports.clock.sleep(0)  # Lookups in the cache let no other task have a turn.
            if live:
                changes = changes_from_rows(*zip(*sorted(live.items()), strict=True))
                tree = await self._committer.replaced(tree, changes, sorted(live))
        return tree

    async def _taken_and_live(self, rows: Mapping[bytes, Row | None]) -> tuple[dict[bytes, Row], dict[bytes, Row]]:
        """Return the rows whose objects runs took, and the others."""
        there = {key: row for key, row in rows.items() if row is not None}
        by = dict(zip(there, await self._taken.find_rows([*there.values()]), strict=True))
        return (
            {key: row for key, row in there.items() if by[key] is not None},
            {key: row for key, row in there.items() if by[key] is None},
        )

    async def _advance(
        self, branch: str, plan: Callable[[CommitId], Awaitable[Plan]], operation: str, *, refuse_expired: bool = False
    ) -> Commit:
        """Publish the result of `plan` on the head; again from the start for every other move of the branch."""
        retry = Retry()
        while True:
            seen = await self._context.branches.fresh(branch)
            planned = await plan(seen.record.commit_id)
            if refuse_expired:
                head = await self._context.commits.metarange(seen.record.commit_id)
                await self._taken.check_brought(head, planned.commit.metarange_id)
            also = self._reflog.to_log(branch, seen.record)
            try:
                commit_id = await self._context.commits.write(planned.commit, also=also)
            except OutcomeUnknown as error:
                retry.lost(error)
                continue  # With another nonce: this record may come late, and must not replace a published one.
            if planned.check is not None:
                await planned.check()
            await self._retired.check_not_expiring(planned.used)
            moved = replace(seen.record, commit_id=commit_id)
            moved = self._reflog.move(seen.record, moved, operation=operation, by=planned.commit.committer)
            try:
                await self._context.branches.set(branch, moved, seen)
            except PredicateFailed:
                continue
            except OutcomeUnknown:
                now = await self._context.after_lost(self._context.branches.fresh(branch))
                if not await self._context.commits.is_in_chain(
                    commit_id, planned.commit.generation, now.record.commit_id
                ):
                    raise
            await self._context.commits.note_published(commit_id, self._committer.counted(planned.commit))
            return planned.commit


def _pick_parent(commit: Commit, number: int, doing: str) -> CommitId:
    if number == 0 and len(commit.parents) > 1:
        raise Conflict(f"must specify 1-based parent number for {doing} merge commit", commit=commit.id)
    if not commit.parents or number > len(commit.parents):
        raise BadRef(f"the commit has {len(commit.parents)} parents, not {max(number, 1)}", commit=commit.id)
    return commit.parents[max(number, 1) - 1]
