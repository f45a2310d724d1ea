"""Conditions of a write, and whether an entry that meets one in a later round is the write's own.

A write sets its cell again in each token that it meets. Its condition counts in each round, and its own earlier cell is
no obstacle. Equal content is not enough to take an entry for our own: another conditional writer may have put the same.

1. A staged entry is ours if it lies in a token in which we set it, or in a frozen token that stands for that one.
2. An entry of a fresh address is ours wherever it lies: no other write names that address first.
3. A committed entry is ours if the commit that took our token has our content at the path. The commit may have kept
   an older entry of the same content, under another address.

A cell can come into a sealed token after another conditional writer looked there, and before the commit reads it. Where
both have equal content, a commit takes the later cell for no change. Its writer was acknowledged: the first one looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakebed.base import CommitId, Etags, MetarangeId, NotFound, OutcomeUnknown, Row, StagingToken, from_row
from lakebed.versions import keys
from lakebed.versions.cells import CONDITIONAL, TOMBSTONE_ROW, decode_cell
from lakebed.versions.context import Context
from lakebed.versions.errors import AnotherObject, PathExists, PreconditionFailed
from lakebed.versions.records import BranchRecord, ClaimReason, ClaimRecord


@dataclass(frozen=True, slots=True)
class Condition:
    """Name the entry that a write requires at its path: nothing, an entry of these checksums, or of this address.

    `or_nothing`: a delete has nothing to do where nothing is. Its own tombstone of an earlier round is no obstacle.
    """

    if_none_match: bool = False
    if_match: Etags | None = None
    if_address: str | None = None
    or_nothing: bool = False

    def check(self, visible: Row | None) -> None:
        """
        Raises:
            PathExists: something is there.
            PreconditionFailed: nothing, or something else, is there.
            AnotherObject: the same, by its address.
        """
        if self.if_none_match and visible is not None:
            raise PathExists("path already exists")
        if self.or_nothing and visible is None:
            return
        if self.if_match is not None and (visible is None or not self.if_match.match(visible[5])):
            raise PreconditionFailed("the object at this path is not the one named in If-Match")
        if self.if_address is not None and (visible is None or from_row(visible).address != self.if_address):
            raise AnotherObject("another object is at this path by now")


ANY = Condition()


@dataclass(frozen=True, slots=True)
class OwnCell:
    """A cell that the write set, or may have set, in an earlier round. `head`: the branch's commit in that round."""

    token: StagingToken
    head: CommitId
    row: Row
    # The address was made for this write alone. A copy names the address of its source.
    is_fresh: bool


class Owning:
    """Answer whether an entry is a write's own. Only a condition that fails asks, in a second or later round."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def _claims(self) -> list[ClaimRecord]:
        return [claim async for _, claim in self._context.records(ClaimRecord, keys.CLAIM)]

    async def is_own(self, record: BranchRecord, key: bytes, visible: Row, own: Sequence[OwnCell]) -> bool:
        """
        Raises:
            OutcomeUnknown: the claims of the write's token are cleaned away, and with them what would show it.
        """
        stands_for = {sealed.token: sealed.stands_for for sealed in record.sealed}
        for token in record.tokens():
            held = await self._context.store.get(self._context.token_partition(token), key)
            if held is not None:
                _, row = decode_cell(held.value)
                known = (token, *stands_for.get(token, ()))
                return any(mine.row == row and (mine.is_fresh or mine.token in known) for mine in own)
        every = await self._claims() if own else []
        for mine in own:
            claims = [claim for claim in every if mine.token in claim.tokens]
            is_same = mine.is_fresh and mine.row[1:4] == visible[1:4]
            if is_same or (mine.row[0] == visible[0] and await self._was_taken(record.commit_id, key, mine, claims)):
                if not claims or any(claim.is_over for claim in claims):
                    raise _unproven()
                branches = {claim.branch for claim in claims}
                return not await self._met_another(key, own, [claim for claim in every if claim.branch in branches])
        return False

    async def may_count(self, branch: str, key: bytes, own: Sequence[OwnCell]) -> bool:
        """Answer whether a commit or a freeze took one of these cells, or may yet: doubt is yes. Else a write that is
        refused in a later round may say so."""
        record = (await self._context.branches.fresh(branch)).record
        frozen = {token: sealed.token for sealed in record.sealed for token in sealed.stands_for}
        every = await self._claims()
        for mine in own:
            if mine.token in frozen:
                held = await self._context.store.get(self._context.token_partition(frozen[mine.token]), key)
                if held is not None and decode_cell(held.value)[1] == mine.row:
                    return True
                continue
            claims = [claim for claim in every if mine.token in claim.tokens]
            made = [await self._took(claim, record.commit_id) for claim in claims]
            # No commit yet, or one that the branch left: another one may come.
            if not any(made) or any(claim.is_over for claim in claims):
                return True
            for metarange in filter(None, made):
                row = await self._context.trees.lookup(metarange, key)
                if row == mine.row or (row is None and mine.row == TOMBSTONE_ROW):
                    return True
        return False

    async def _took(self, claim: ClaimRecord, head: CommitId) -> MetarangeId | None:
        """Return the tree of the claim's commit, if that is in the history of this head."""
        id_ = claim.commit_id
        if id_ is None or not (generation := await self._generation(id_)):
            return None
        is_there = await self._context.commits.is_in_chain(id_, generation, head)
        return await self._context.commits.metarange(id_) if is_there else None

    async def _was_taken(self, head: CommitId, key: bytes, mine: OwnCell, claims: Sequence[ClaimRecord]) -> bool:
        """Answer whether a published commit took our token, and has our content at the path. Doubt is no."""
        if any(claim.why is not ClaimReason.COMMIT for claim in claims):
            return False
        for commit_id in {claim.commit_id: None for claim in claims if claim.commit_id is not None}:
            generation = await self._generation(commit_id)
            if generation and await self._context.commits.is_in_chain(commit_id, generation, head):
                return await self._has(commit_id, key, mine)
        # The token was taken for no change. Then the head of that time had our content, and we had covered it.
        return bool(claims) and await self._has(mine.head, key, mine)

    async def _met_another(self, key: bytes, own: Sequence[OwnCell], claims: Sequence[ClaimRecord]) -> bool:
        """Answer whether a later token had the same content of another write, which its commit took for no change.

        A cleaner leaves such cells for as long as a write may be under way.

        Raises:
            OutcomeUnknown: claims are over, and cells may have gone with them.
        """
        # Our cell came into a sealed token after that writer had looked there. It was acknowledged, and so we lost.
        tokens, since = {mine.token for mine in own}, await self._generation(own[0].head)
        empty: set[StagingToken] = set()
        for claim in claims:
            if claim.commit_id is not None and await self._generation(claim.commit_id) <= since:
                continue
            for token in claim.tokens:
                held = await self._context.store.get(self._context.token_partition(token), key)
                if held is None:
                    empty.add(token)
                    continue
                flags, row = decode_cell(held.value)
                # In a token of ours, too: an answer that was lost may have been a refusal.
                is_rival = token not in tokens or flags & CONDITIONAL
                if is_rival and row[0] == own[0].row[0] and row not in [mine.row for mine in own]:
                    return True
        # A cleaner notes the end of a claim before it removes what other writers may look for.
        left = await self._claims() if empty else []
        over = {token for claim in left if claim.is_over for token in claim.tokens}
        if empty & over or empty - {token for claim in left for token in claim.tokens}:
            raise _unproven()
        return False

    async def _generation(self, commit_id: CommitId) -> int:
        """Return the commit's generation. 0: its attempt failed, and it was cleaned."""
        try:
            return (await self._context.commits.read(commit_id)).generation
        except NotFound:
            return 0

    async def _has(self, commit_id: CommitId, key: bytes, mine: OwnCell) -> bool:
        row = await self._context.trees.lookup(await self._context.commits.metarange(commit_id), key)
        return row is not None and row[0] == mine.row[0]


def _unproven() -> OutcomeUnknown:
    return OutcomeUnknown("this write took so long that another one of the same content may have been first")
