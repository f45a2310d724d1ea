"""The log, the merge base, and differences: between two refs, and between a branch's staging and its commit.

Everything streams. Two entries are the same when their row digests are: no field is compared.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Final, Literal, TypeAlias

import msgspec

from lakebed.base import CommitId, MetarangeId, Row, common_prefix
from lakebed.kv import prefix_end
from lakebed.ranges import FileCorrupt
from lakebed.versions.cells import hides_one, is_gone
from lakebed.versions.context import Context
from lakebed.versions.errors import CommitExpired, CommitNotFound
from lakebed.versions.records import BranchRecord, Commit
from lakebed.versions.refs.refs import Refs
from lakebed.versions.retired import Retired, says_who_took
from lakebed.versions.staging.layers import LISTING_PAGE, Layers, View, resume
from lakebed.versions.taken import Taken

from .walking import FIRST_READ, TURN, TURN_OF_READS, Apart, Distance, Meeting, Walk

Kind: TypeAlias = Literal["added", "removed", "changed", "conflict", "prefix_changed"]
TOGETHER: Final = 500
"""Look this many changes up in other trees at once."""
LOOKED_AT_MAX: Final = 1_000
SEARCHED_MAX: Final = 2_000
"""Look at this many commits for one page of a log that a filter makes thin: some 15 ms. An empty page takes a client
long to pass, so it may cost more."""
COMPARED_AS_ONE: Final = 20
"""Comparing this many rows of trees costs as much as looking at a commit."""
LOOKED_UP_AS: Final = 2_000
"""The number of rows for which a look below a prefix counts."""
SOUGHT_IN_MAX: Final = 500
"""Look at this many commits for the last one of each path of a listing: a page must not take seconds."""
APART_STEPS: Final = 1_000
"""Count with at most this many commits and stretches how far two refs are apart: some 20 ms."""
POSITION_SIGN: Final = "-"
_COMMIT_ID: Final = re.compile(r"[0-9a-f]{64}")
OTHERS_MAX: Final = 16
"""Name at most this many commits in a position, for it travels in a URL."""


class Difference(msgspec.Struct, frozen=True):
    """`row` is the entry on the right side, or, where it was removed, the one on the left; None for a prefix."""

    kind: Kind
    key: bytes
    row: Row | None


class Sought:
    """Objects, and prefixes with all below them, as stretches of keys: disjoint and ascending."""

    __slots__ = ("behinds", "starts")

    def __init__(self, objects: Sequence[bytes], prefixes: Sequence[bytes]) -> None:
        self.starts: list[bytes] = []
        self.behinds: list[bytes] = []
        pairs = [(prefix, prefix_end(prefix) or b"\xff") for prefix in prefixes]
        pairs += [(key, key + b"\0") for key in objects]
        for start, behind in sorted(pairs, key=itemgetter(0)):
            # Else it lies below a prefix that is sought.
            if not self.behinds or start >= self.behinds[-1]:
                self.starts.append(start)
                self.behinds.append(behind)

    def __len__(self) -> int:
        return len(self.starts)

    def remove(self, start: bytes) -> None:
        row = self.starts.index(start)
        del self.starts[row], self.behinds[row]


class History:
    def __init__(self, context: Context, *, retired: Retired, taken: Taken, refs: Refs, layers: Layers) -> None:
        self._context = context
        self._retired = retired
        self._taken = taken
        self._refs = refs
        self._layers = layers

    async def get_commit(self, commit_id: CommitId) -> Commit:
        """
        Raises:
            CommitNotFound: there is none, or no branch ever took it.
        """
        return await self._context.commits.read_published(commit_id)

    # Walking

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
        committer: str = "",
        looks_on: bool = True,
    ) -> tuple[list[Commit], str]:
        """Return commits reachable from a ref, children before parents, and the position behind them; empty: no more.

        `after` is such a position, or the id of the last commit of the page before; `stop_at` is the last commit shown.
        The log ends before the first commit that is older than `since_ms`. With `objects` or `prefixes`: only commits
        that changed one of them against their first parent, where both trees are still there. `committer`: only theirs.

        A page with such a filter may end early: after LOOKED_AT_MAX commits if it has any, else after SEARCHED_MAX.
        Trees that have to be compared for it count as commits, too.
        With `looks_on` it looks for one commit more than `limit`, so that no empty page follows a full one.
        """
        stop = await self._refs.resolve_commit(stop_at) if stop_at else None
        is_filtered = bool(objects or prefixes or committer)
        walk = Walk(self._context, first_parent=first_parent, turn=TURN if is_filtered else TURN_OF_READS)
        if not await self._go_to(walk, await self._refs.resolve_commit(ref), after):
            return [], ""
        # One commit more than the page shows. Without `after` the head is the first of them.
        walk.expect(FIRST_READ if is_filtered else limit + bool(after))
        sought = Sought(objects, prefixes)
        found: list[Commit] = []
        position = ""
        looked_at = 0
        while (following := await walk.peek()) is not None:
            id_, commit = following
            if since_ms is not None and commit.created_ms < since_ms:
                break
            if len(found) == limit and not (is_filtered and looks_on):
                return found, position
            if looked_at >= (LOOKED_AT_MAX if found else SEARCHED_MAX) and is_filtered:
                return found, position
            is_theirs = not committer or commit.committer == committer
            met, compared = await self._met(commit, sought) if is_theirs and sought else ([], 0)
            if is_theirs and (met or not sought):
                if len(found) == limit:
                    return found, position
                found.append(commit)
            walk.pass_it()
            looked_at += compared // COMPARED_AS_ONE
            looked_at += 1
            if len(found) == limit or is_filtered:
                position = _position(id_, walk.others())
            if id_ == stop:
                break
        return found, ""

    async def _go_to(self, walk: Walk, head: CommitId, after: str) -> bool:
        """Begin the walk behind a position. Return whether there is such a position."""
        names = after.split(POSITION_SIGN) if after else []
        if len(names) > 1 + OTHERS_MAX or not all(map(_COMMIT_ID.fullmatch, names)):
            return False
        try:
            places = [(CommitId(name), await self.get_commit(CommitId(name))) for name in names]
        except CommitNotFound:
            return False
        # A position that names others has all that the rest of the log follows from. Else the way to it begins here.
        await walk.begin([id_ for id_, _ in places] if len(places) > 1 else [head])
        return not places or await walk.skip_to(places[0])

    async def last_commits(
        self, head: CommitId, *, objects: Sequence[bytes], prefixes: Sequence[bytes], looked_at_max: int = SOUGHT_IN_MAX
    ) -> tuple[dict[bytes, Commit], bool]:
        """Return for each path the newest commit that left it as it is at `head`, and for each prefix the newest that
        changed a path below; and whether all are there.

        Merges do not count: another commit wrote the entries that they bring. A commit costs a comparison of two trees,
        or 10 µs where these were compared before.
        """
        trees = self._context.trees
        rows = await trees.lookup_many(await self._context.commits.metarange(head), objects)
        digests = {key: row[0] for key, row in zip(objects, rows, strict=True) if row is not None}
        sought = Sought([*digests], prefixes)
        found: dict[bytes, Commit] = {}
        walk = Walk(self._context)
        walk.expect(FIRST_READ)
        await walk.begin([head])
        for _ in range(min(looked_at_max, SOUGHT_IN_MAX)):
            following = await walk.next() if sought else None
            if following is None:
                break
            commit = following[1]
            if len(commit.parents) > 1:
                continue
            try:
                names = await self._left_by(commit, sought, digests)
            except CommitExpired:
                continue  # A collection took its tree.
            for name in names:
                found[name] = commit
                sought.remove(name)
        return found, not sought

    @says_who_took
    async def _left_by(self, commit: Commit, sought: Sought, digests: Mapping[bytes, int]) -> list[bytes]:
        """Return what this commit changed, without objects that it left unlike these digests.

        The entry of such an object comes from another line of the history.
        """
        met, _ = await self._changed(commit, sought)
        names = [sought.starts[row] for row in met]
        keys = [name for name in names if name in digests]
        rows = await self._context.trees.lookup_many(commit.metarange_id, keys) if keys else []
        unlike = {key for key, row in zip(keys, rows, strict=True) if _digest(row) != digests[key]}
        return [name for name in names if name not in unlike]

    async def _met(self, commit: Commit, sought: Sought) -> tuple[list[int], int]:
        try:
            return await self._changed(commit, sought)
        except CommitExpired:
            return [], 0  # A collection took its tree.

    @says_who_took
    async def _changed(self, commit: Commit, sought: Sought) -> tuple[list[int], int]:
        """Return the rows of `sought` that this commit changed against its first parent, and how many rows of trees
        had to be compared to know it.
        """
        trees = self._context.trees
        pair = (
            await self._context.commits.metarange(commit.parents[0] if commit.parents else CommitId("")),
            commit.metarange_id,
        )
        met, compared, is_exact = [*range(len(sought.starts))], 0, False
        # A file that is damaged stops only what may lie in it: then look at what is sought alone.
        with suppress(FileCorrupt):
            apart, compared = await trees.apart(*pair)
            met = apart.meets(sought.starts, sought.behinds)
            if met and not apart.is_final:
                apart, also = await trees.apart(*pair, exactly=True)
                met, compared = apart.meets(sought.starts, sought.behinds), compared + also
            is_exact = apart.is_exact
        if is_exact:
            return met, compared
        # Too many keys changed to keep them: look only at what is sought.
        changed = [row for row in met if await self._differs(*pair, sought.starts[row], sought.behinds[row])]
        return changed, compared + LOOKED_UP_AS * len(met)

    async def _differs(self, left: MetarangeId, right: MetarangeId, start: bytes, behind: bytes) -> bool:
        """Return whether two trees differ at an object or below a prefix, a stretch of `Sought`."""
        trees = self._context.trees
        if behind == start + b"\0":
            old, new = [await trees.lookup(id_, start) for id_ in (left, right)]
            return _digest(old) != _digest(new)
        async for _ in trees.diff(left, right, start=start, prefix=start):
            return True
        return False

    async def ancestry(self, heads: Iterable[CommitId], *, first_parent: bool = False) -> AsyncIterator[Commit]:
        """Every commit reachable from the heads, the heads too, each once, by falling generation."""
        walk = Walk(self._context, first_parent=first_parent)
        walk.expect(FIRST_READ)
        await walk.begin(heads)
        while (place := await walk.next()) is not None:
            yield place[1]

    async def merge_base(self, left: str, right: str) -> Commit:
        """The best common ancestor: of those with the highest generation, the youngest.

        Raises:
            NotFound: the two have no common ancestor.
        """
        return await self.common_ancestor(await self._refs.resolve_commit(left), await self._refs.resolve_commit(right))

    async def common_ancestor(self, left: CommitId, right: CommitId) -> Commit:
        """Do the same for two commits."""
        return (await Meeting(self._context).of(left, right))[1]

    async def distance(self, left: str, right: str, *, steps_max: int = APART_STEPS) -> Distance:
        """Count the commits that only one of two refs reaches, and stop after `steps_max` steps."""
        heads = [await self._refs.resolve_commit(ref) for ref in (left, right)]
        return await Apart(self._context, steps_max=steps_max).of(*heads)

    # Differences

    @says_who_took
    async def count_expired(self, left: str, right: str) -> int:
        """Count the entries of `right`, unlike `left`, whose objects lifecycle runs took."""
        ids = [await self._refs.resolve_commit(ref) for ref in (left, right)]
        found = await self._taken.count_brought(*[await self._context.commits.metarange(id_) for id_ in ids])
        await self._retired.check_contents(ids)
        return found

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
        """Return the changes of `right`, and whether there are more. With `three_dot`: since the two parted, as a
        merge of right into left would bring it; paths that both changed differently are `conflict`. Else: against left
        as it stands.
        """
        left_id, right_id = await self._refs.resolve_commit(left), await self._refs.resolve_commit(right)
        left_tree, right_tree = (
            await self._context.commits.metarange(left_id),
            await self._context.commits.metarange(right_id),
        )
        start = resume(prefix, after, delimiter)
        base = (await self.common_ancestor(left_id, right_id)).metarange_id if three_dot else left_tree

        def changes(position: bytes) -> AsyncGenerator[list[Difference], None]:
            theirs = self._between(base, right_tree, prefix, position)
            return theirs if base == left_tree else self._mark_conflicts(theirs, base, left_tree)

        page = await _page(_past_prefixes(changes, prefix, start, delimiter), prefix, delimiter, limit)
        await self._retired.check_contents([left_id, right_id])
        return page

    async def _between(
        self, left: MetarangeId, right: MetarangeId, prefix: bytes, start: bytes
    ) -> AsyncGenerator[list[Difference], None]:
        async for batch in self._context.trees.diff(left, right, start=start, prefix=prefix):
            yield [
                Difference(found.kind, found.key, found.right if found.right is not None else found.left)
                for found in batch
            ]

    async def _mark_conflicts(
        self, theirs: AsyncIterator[list[Difference]], base: MetarangeId, ours: MetarangeId
    ) -> AsyncGenerator[list[Difference], None]:
        """Mark paths that ours changed, too, to something else. Leave out paths that both changed to the same."""
        async for batch in theirs:
            for first in range(0, len(batch), TOGETHER):
                part = batch[first : first + TOGETHER]
                keys = [change.key for change in part]
                now, before = [await self._context.trees.lookup_many(tree, keys) for tree in (ours, base)]
                marked: list[Difference] = []
                for change, our_row, old in zip(part, now, before, strict=True):
                    if _digest(our_row) == _digest(old):
                        marked.append(change)
                    elif _digest(our_row) != (None if change.kind == "removed" else _digest(change.row)):
                        marked.append(Difference("conflict", change.key, change.row))
                yield marked

    async def diff_branch(
        self, branch: str, *, prefix: bytes = b"", after: bytes = b"", delimiter: bytes = b"", limit: int = 1000
    ) -> tuple[list[Difference], bool]:
        """Return the staged changes of the branch against its commit, and whether there are more. One
        state of the branch.
        """
        start = resume(prefix, after, delimiter)

        async def look(record: BranchRecord) -> tuple[list[Difference], bool]:
            def changes(position: bytes) -> AsyncGenerator[list[Difference], None]:
                return self._staged_changes(record, prefix, position, limit)

            return await _page(_past_prefixes(changes, prefix, start, delimiter), prefix, delimiter, limit)

        return await self._context.branches.consistent(branch, look)

    async def _staged_changes(
        self, record: BranchRecord, prefix: bytes, start: bytes, limit: int
    ) -> AsyncGenerator[list[Difference], None]:
        """Yield them in batches, the first from as many cells as `limit` asks for, then more."""
        metarange = await self._context.commits.metarange(record.commit_id)
        position: bytes | None = max(start, prefix)
        cells = min(limit + 1, LISTING_PAGE)
        while position is not None:
            span = await self._layers.staged_span(record.tokens(), position, cells)
            below = await self._context.trees.lookup_many(metarange, span.keys)
            batch: list[Difference] = []
            for key, (flags, row), old in zip(span.keys, span.cells, below, strict=True):
                if not key.startswith(prefix):
                    break
                shown = None if is_gone(flags) else row
                if hides_one((flags, row)):
                    shown = await self._layers.look_up(View.of(record), key)
                if shown is None:
                    if old is not None:
                        batch.append(Difference("removed", key, old))
                elif old is None or old[0] != shown[0]:
                    batch.append(Difference("added" if old is None else "changed", key, shown))
            yield batch
            position = None if span.keys and not span.keys[-1].startswith(prefix) else span.next_start
            cells = min(2 * cells, LISTING_PAGE)


def _digest(row: Row | None) -> int | None:
    return None if row is None else row[0]


def _position(last: CommitId, others: Sequence[CommitId]) -> str:
    """Return the position in a log behind its commit `last`: the id, and the commits from which the log goes on beside
    its parents. Where these are too many, the id alone: the next page has to look for them.
    """
    return POSITION_SIGN.join([last, *others] if len(others) <= OTHERS_MAX else [last])


async def _past_prefixes(
    changes: Callable[[bytes], AsyncGenerator[list[Difference], None]], prefix: bytes, start: bytes, delimiter: bytes
) -> AsyncIterator[list[Difference]]:
    """Yield the changes from `start` on, in batches. Read no batch more below a common prefix that has a change."""
    position: bytes | None = start
    while position is not None:
        at, position = position, None
        batches = changes(at)
        async for batch in batches:
            yield batch
            if batch and (folder := common_prefix(batch[-1].key, prefix, delimiter)):
                # A folder may have a million changes, and the page shows one row for them.
                position = resume(prefix, folder, delimiter)
                # Left early and not closed, a generator costs a task of the loop.
                await batches.aclose()
                break


async def _page(
    found: AsyncIterator[list[Difference]], prefix: bytes, delimiter: bytes, limit: int
) -> tuple[list[Difference], bool]:
    page: list[Difference] = []
    async for batch in found:
        page += _folded(batch, page[-1:], prefix, delimiter)[: limit + 1 - len(page)]
        if len(page) > limit:
            return page[:limit], True
    return page, False


def _folded(batch: list[Difference], before: Sequence[Difference], prefix: bytes, delimiter: bytes) -> list[Difference]:
    """Return one difference for each common prefix in place of those that have it. `before` is what the last batch
    ended with.
    """
    if not delimiter:
        return batch
    folded = [*before]
    for difference in batch:
        common = common_prefix(difference.key, prefix, delimiter)
        if not common:
            folded.append(difference)
        elif not folded or folded[-1].key != common:
            folded.append(Difference("prefix_changed", common, None))
    return folded[len(before) :]
