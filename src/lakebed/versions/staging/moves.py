"""Moves that move no bytes: a shallow copy to its end, then a tombstone where the source is still the row that was
copied (docs/design/0007-hard-delete.md, "Move"):

    look     at the path, past tombstones of this move; another row: the move ends as a copy
    set_if   in the current token, exactly over the cell there, a tombstone like no other
    look     at the branch again; the same record: done; another: from the start

A tombstone that does not take the place of the source itself names the version that it hides, for a merge may bring
another, and the mover may die. Such a move ends in two steps more, or a later commit would bring its source back:

    set_if   exactly over that tombstone one that hides whatever is beneath, as a delete does
    look     at the branch; the same token: done; another: from the start
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from lakebed.base import Entry, OutcomeUnknown, Row, StagingToken, to_row
from lakebed.kv import Held, PredicateFailed
from lakebed.versions.cells import (
    REPEATED,
    TOMBSTONE,
    decode_cell,
    encode_cell,
    hides_one,
    is_gone,
    tombstone_of,
    version_digest,
)
from lakebed.versions.context import Context, Retry, Seen
from lakebed.versions.errors import MovedAsCopy
from lakebed.versions.records import BranchRecord, Sealed

from .conditions import Condition
from .copies import Copies


@dataclass(frozen=True, slots=True)
class Source:
    """Say where the source lies that a move may take away: in a token, or (None) in the head."""

    token: StagingToken | None


@dataclass(slots=True)
class Moved:
    """A move whose copy is done. `name` is in its tombstones, and in no others."""

    branch: str
    key: bytes
    row: Row
    target: Entry
    name: str
    # The tokens that may hold one, and in which token the cell that was moved lay then; None: in the head.
    put: dict[StagingToken, StagingToken | None] = field(default_factory=dict)

    def tombstone(self, *, hides_all: bool) -> bytes:
        """Make the cell that takes the source away: this one version of it, or whatever is beneath."""
        row = tombstone_of(self.row, self.name)
        return encode_cell(TOMBSTONE | REPEATED if self.put else TOMBSTONE, (0, *row[1:]) if hides_all else row)

    def is_mine(self, held: Held) -> bool:
        """Answer whether a cell is a tombstone of this move."""
        flags, row = decode_cell(held.value)
        return is_gone(flags) and row[1:] == tombstone_of(self.row, self.name)[1:]

    def covers(self, sealed: Sealed) -> bool:
        """Answer whether a tombstone there took the place of the cell that was moved: all beneath is older."""
        tokens = (sealed.token, *sealed.stands_for)
        return any(self.put.get(token) in tokens for token in tokens)


class Moves:
    def __init__(self, context: Context, copies: Copies) -> None:
        self._context = context
        self._copies = copies

    async def move(
        self, source_branch: str, source_key: bytes, branch: str, key: bytes, *, if_none_match: bool = False
    ) -> Entry:
        """Move the entry at a path of one branch to a path of this or another branch.

        Costs a shallow copy and a delete, and for a committed entry one more write and read. Onto itself: no change.

        Raises:
            BranchNotFound, PathNotFound: there is no such source.
            PathExists: `if_none_match`, and something is at the target.
            MovedAsCopy: the source was replaced or removed meanwhile. The target stays.
        """
        moved = await self.copy_out(source_branch, source_key, branch, key, if_none_match=if_none_match)
        if (source_branch, source_key) != (branch, key):
            await self.take_away(moved)
        return moved.target

    async def copy_out(
        self, source_branch: str, source_key: bytes, branch: str, key: bytes, *, if_none_match: bool = False
    ) -> Moved:
        """The first half: the target names the object, too."""
        await self._context.branches.cached(source_branch)  # A commit or a tag has no path that could be taken away.
        copied: list[Entry] = []

        def noted(entry: Entry) -> Entry:
            copied.append(entry)
            return entry

        target = await self._copies.copy(
            source_branch, source_key, branch, key, alter=noted, shallow=True, condition=Condition(if_none_match)
        )
        row, name = to_row(source_key, copied[-1]), self._context.ports.ids.fresh()
        return Moved(branch=source_branch, key=source_key, row=row, target=target, name=name)

    async def take_away(self, moved: Moved) -> None:
        """The second half: the source is gone.

        Raises:
            MovedAsCopy: another row is there, or none. It stays.
        """
        branches, store, retry = self._context.branches, self._context.store, Retry()
        seen = await branches.fresh(moved.branch)
        while True:
            token = seen.record.staging_token
            partition = self._context.token_partition(token)
            held = await store.get(partition, moved.key)
            source = await self._find(moved, seen.record, held)
            if source is None:
                await self._give_way(moved, seen, held)
                raise MovedAsCopy("the source changed meanwhile: it stays, and the target is a copy", key=moved.key)
            if held is None or not moved.is_mine(held):
                # Also where one is in a token that was sealed since: a commit may have read that before.
                # In place of the source itself it hides all that is older. A source in a sealed token may be published
                # meanwhile, and a merge may then replace it.
                value = moved.tombstone(hides_all=source.token == token)
                try:
                    predicate = await store.set_if(partition, moved.key, value, held.predicate if held else None)
                except PredicateFailed:
                    continue
                except OutcomeUnknown as error:
                    moved.put[token] = source.token
                    retry.lost(error)
                    continue
                moved.put[token] = source.token
                held = Held(value, predicate)
            again = await branches.used(moved.branch)
            # The whole record: a merge moves the head alone, and may bring another version of the path.
            if again.is_same(seen):
                # Without a digest it hides whatever is beneath.
                if decode_cell(held.value)[1][0] == 0:
                    return
                # Only from here on: the mover never had to spare an entry that a merge brings later.
                with suppress(PredicateFailed):  # A later write or delete, or a cleaner after a commit: see below.
                    try:
                        await store.set_if(partition, moved.key, moved.tombstone(hides_all=True), held.predicate)
                    except OutcomeUnknown as error:
                        retry.lost(error)
                        continue
                again = await branches.fresh(moved.branch)
                if again.record.staging_token == token:
                    return
                # A commit may have read the first one, and spared the entry of a merge.
            seen = again

    async def _find(self, moved: Moved, record: BranchRecord, held: Held | None) -> Source | None:
        """Find the row that was moved where its path leads now, past this move's own tombstones. None, if another
        version came meanwhile. `held`: the current token's cell.
        """
        for number, sealed in enumerate((Sealed(record.staging_token), *record.sealed)):
            cell = held if number == 0 else await self._context.store.get(self._partition(sealed.token), moved.key)
            if cell is not None:
                flags, row = decode_cell(cell.value)
                if not moved.is_mine(cell):
                    # Of another move, whose mover died: it hides another version than the one that was moved.
                    if hides_one((flags, row)) and row[0] != version_digest(moved.row):
                        continue
                    return Source(sealed.token) if not is_gone(flags) and row[1:] == moved.row[1:] else None
                if moved.covers(sealed):
                    return Source(sealed.token)
        head = await self._context.commits.metarange(record.commit_id)
        committed = await self._context.trees.lookup(head, moved.key)
        if committed is None:
            # A commit took a tombstone, which buried this version alone, or another client's deletion: as good.
            return Source(None) if moved.put else None
        return Source(None) if committed[1:] == moved.row[1:] else None

    def _partition(self, token: StagingToken) -> bytes:
        return self._context.token_partition(token)

    async def _give_way(self, moved: Moved, seen: Seen, held: Held | None) -> None:
        """Take the tombstone back that hides another version. A commit that has it already left that version."""
        partition, store, retry = self._partition(seen.record.staging_token), self._context.store, Retry()
        # Another's cell in its place is of a later write or delete, and stays.
        while held is not None and moved.is_mine(held):
            try:
                await store.delete_if(partition, moved.key, held.predicate)
            except PredicateFailed:
                # It may be this move's own, whose answer was lost and which came late.
                held = await store.get(partition, moved.key)
                continue
            except OutcomeUnknown as error:
                retry.lost(error)
                held = await self._context.after_lost(store.get(partition, moved.key))
                continue
            break
