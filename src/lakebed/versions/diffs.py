"""Differences: between two refs, and between what is staged on a branch and its commit; and the log of a path.

Everything streams in key order. Two entries are the same when their row digests are: no field is compared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lakebed.base import MetarangeId, Row

from .cells import is_gone
from .errors import Condemned
from .listing import resume
from .records import BranchRecord, Commit
from .resetting import Resetting
from .runs import says_who_took

Kind: TypeAlias = Literal["added", "removed", "changed", "conflict", "prefix_changed"]


@dataclass(frozen=True, slots=True)
class Difference:
    """`row` is the entry on the right side, or, where it was removed, the one on the left; None for a prefix."""

    kind: Kind
    key: bytes
    row: Row | None


class Diffs(Resetting):
    @says_who_took
    async def diff_refs(
        self,
        left: str,
        right: str,
        *,
        prefix: bytes = b"",
        after: bytes = b"",
        delimiter: bytes = b"",
        limit: int = 1000,
        three_dot: bool = True,
    ) -> tuple[list[Difference], bool]:
        """What `right` has changed, and whether there is more: since the two parted (`three_dot`, as a merge of right
        into left would bring; paths that both changed differently are `conflict`), or against left as it stands.
        """
        left_id, right_id = await self.resolve_commit(left), await self.resolve_commit(right)
        left_tree, right_tree = await self._metarange(left_id), await self._metarange(right_id)
        start = resume(prefix, after, delimiter)
        changes = self._between(left_tree, right_tree, prefix, start)
        if three_dot:
            base = (await self._merge_base(left_id, right_id)).metarange_id
            theirs = self._between(base, right_tree, prefix, start)
            changes = self._mark_conflicts(theirs, base, left_tree) if base != left_tree else theirs
        page = await _page(changes, prefix, delimiter, limit)
        await self.check_contents([left_id, right_id])
        return page

    async def _between(
        self, left: MetarangeId, right: MetarangeId, prefix: bytes, start: bytes
    ) -> AsyncIterator[Difference]:
        async for batch in self.trees.diff(left, right, start=start, prefix=prefix):
            for found in batch:
                yield Difference(found.kind, found.key, found.right if found.right is not None else found.left)

    async def _mark_conflicts(
        self, theirs: AsyncIterator[Difference], base: MetarangeId, ours: MetarangeId
    ) -> AsyncIterator[Difference]:
        """A path that ours changed too, to something else, is a conflict; to the same, no difference at all."""
        async for change in theirs:
            now, before = await self.trees.lookup(ours, change.key), await self.trees.lookup(base, change.key)
            if _digest(now) == _digest(before):
                yield change
            elif _digest(now) != (None if change.kind == "removed" else _digest(change.row)):
                yield Difference("conflict", change.key, change.row)

    async def diff_branch(
        self, branch: str, *, prefix: bytes = b"", after: bytes = b"", delimiter: bytes = b"", limit: int = 1000
    ) -> tuple[list[Difference], bool]:
        """What is staged on the branch against its commit, and whether there is more. One state of the branch."""
        start = resume(prefix, after, delimiter)
        return await self._consistent(
            branch, lambda record: _page(self._staged_changes(record, prefix, start), prefix, delimiter, limit)
        )

    async def _staged_changes(self, record: BranchRecord, prefix: bytes, start: bytes) -> AsyncIterator[Difference]:
        metarange = await self._metarange(record.commit_id)
        position: bytes | None = max(start, prefix)
        while position is not None:
            span = await self._staged_span(record.tokens(), position, 1000)
            below = await self.trees.lookup_many(metarange, span.keys)
            for key, (flags, row), old in zip(span.keys, span.cells, below, strict=True):
                if not key.startswith(prefix):
                    return
                if is_gone(flags):
                    if old is not None:
                        yield Difference("removed", key, old)
                elif old is None or old[0] != row[0]:
                    yield Difference("added" if old is None else "changed", key, row)
            position = span.next_start

    async def log(
        self,
        ref: str,
        *,
        after: str = "",
        limit: int = 100,
        first_parent: bool = False,
        since_ms: int | None = None,
        stop_at: str | None = None,
        objects: Sequence[bytes] = (),
        prefixes: Sequence[bytes] = (),
    ) -> tuple[list[Commit], bool]:
        """Commits reachable from a ref, children before parents, and whether there are more.

        `after` is the id of the last commit of the page before; `stop_at` is the last commit shown. With `objects` or
        `prefixes`: only commits that changed one of them against their first parent, as far as that can still be told.
        """

        async def touching(commit: Commit) -> bool:
            try:
                return await self._touches(commit, objects, prefixes)
            except Condemned:
                return False  # What it changed, nobody can tell any more.

        return await self._log(
            ref,
            after=after,
            limit=limit,
            first_parent=first_parent,
            since_ms=since_ms,
            stop_at=stop_at,
            touching=touching if objects or prefixes else None,
        )

    @says_who_took
    async def _touches(self, commit: Commit, objects: Sequence[bytes], prefixes: Sequence[bytes]) -> bool:
        before = await self._metarange(commit.parents[0]) if commit.parents else MetarangeId("")
        for key in objects:
            old, new = await self.trees.lookup(before, key), await self.trees.lookup(commit.metarange_id, key)
            if _digest(old) != _digest(new):
                return True
        for prefix in prefixes:
            async for batch in self.trees.diff(before, commit.metarange_id, start=prefix, prefix=prefix):
                if batch:
                    return True
        return False


def _digest(row: Row | None) -> int | None:
    return None if row is None else row[0]


async def _page(
    found: AsyncIterator[Difference], prefix: bytes, delimiter: bytes, limit: int
) -> tuple[list[Difference], bool]:
    page: list[Difference] = []
    async for difference in found:
        if delimiter:
            cut = difference.key.find(delimiter, len(prefix))
            if cut >= 0:
                common = difference.key[: cut + len(delimiter)]
                if page and page[-1].key == common:
                    continue
                difference = Difference("prefix_changed", common, None)  # noqa: PLW2901  # the folded one replaces it
        if len(page) == limit:
            return page, True
        page.append(difference)
    return page, False
