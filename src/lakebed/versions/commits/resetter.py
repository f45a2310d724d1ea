"""Drop staged changes: a whole branch, a prefix, one object; and move a branch's head by hand.

A reset claims the token and the sealed tokens, then replaces the record by one with a fresh token and none sealed: a
commit that was about to take them finds itself overtaken. A hard reset also names a commit. So it first writes an
intent where collections look, then checks that the commit is not expiring (docs/design/protocols.md, "Hard reset").
The reset of one object may have to name the entry of the branch's commit there: a copy (staging/copies.py), tracked
like any other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from lakebed.base import (
    CommitId,
    Conflict,
    LakebedError,
    OutcomeUnknown,
    StagingToken,
    Unavailable,
    from_row,
    key_inside,
)
from lakebed.kv import PredicateFailed
from lakebed.versions import keys
from lakebed.versions.cells import TOMBSTONE, TOMBSTONE_ROW, Cell, decode_cell, is_gone
from lakebed.versions.context import Context, Retry, Seen
from lakebed.versions.errors import CommitExpired, UncommittedChanges, UploadRefused
from lakebed.versions.hard_delete import HardDelete, LetGoBy
from lakebed.versions.records import BranchRecord, ClaimReason, CopyState, IntentRecord, encode_record
from lakebed.versions.refs.reflog import Reflog
from lakebed.versions.refs.refs import Refs
from lakebed.versions.retired import Retired, says_who_took
from lakebed.versions.staging.conditions import ANY
from lakebed.versions.staging.copies import Copies
from lakebed.versions.staging.entries import Staging
from lakebed.versions.staging.layers import Layers
from lakebed.versions.taken import Taken

from .committer import Committer, find_mine


class Resetter:
    def __init__(
        self,
        context: Context,
        *,
        retired: Retired,
        taken: Taken,
        refs: Refs,
        reflog: Reflog,
        layers: Layers,
        staging: Staging,
        copies: Copies,
        committer: Committer,
        hard_delete: HardDelete,
    ) -> None:
        self._context = context
        self._retired = retired
        self._taken = taken
        self._refs = refs
        self._reflog = reflog
        self._layers = layers
        self._staging = staging
        self._copies = copies
        self._committer = committer
        self._hard_delete = hard_delete

    async def reset(self, branch: str) -> None:
        """Drop all staged changes, except for writes that come meanwhile.

        Raises:
            OutcomeUnknown: the answer was lost and the record proves nothing.
        """
        operation = self._context.ports.ids.fresh()
        attempt = 0
        while True:
            attempt += 1
            if await self._drop_staged(branch, operation, attempt, seen=await self._context.branches.fresh(branch)):
                return

    async def _drop_staged(
        self, branch: str, operation: str, attempt: int, *, seen: Seen, commit_id: CommitId | None = None, by: str = ""
    ) -> bool:
        """Try once; False: the branch moved. With `commit_id` move the head there, too."""
        fresh = replace(seen.record, staging_token=self._context.fresh_token(), sealed=())
        also: Sequence[tuple[bytes, bytes]] = ()
        if commit_id is not None:
            fresh, also = self._moved(branch, seen, replace(fresh, commit_id=commit_id), by)
        await self._context.claim(operation, attempt, branch, seen.record.tokens(), why=ClaimReason.RESET, also=also)
        try:
            await self._context.branches.set(branch, fresh, seen)
        except PredicateFailed:
            return False
        except OutcomeUnknown:
            # Its token was never another operation's: if it is there, current or sealed since, the reset was done.
            now = await self._context.after_lost(self._context.branches.fresh(branch))
            if fresh.staging_token not in now.record.tokens():
                raise
        return True

    def _moved(
        self, branch: str, seen: Seen, after: BranchRecord, by: str
    ) -> tuple[BranchRecord, Sequence[tuple[bytes, bytes]]]:
        after = self._reflog.move(seen.record, after, operation="hard-reset", by=by)
        return after, self._reflog.to_log(branch, seen.record)

    async def reset_object(self, branch: str, key: bytes) -> None:
        """Drop the staged change at this path; no error if there is none.

        Raises:
            CommitExpired: a commit has sealed the path, and a collection is about to take the branch's commit.
        """
        removed_from: set[StagingToken] = set()
        taken: list[tuple[StagingToken, Cell]] = []
        retry = Retry()
        while True:
            seen = await self._context.branches.fresh(branch)
            if await self._may_be_committing(seen.record, key, removed_from):
                # A commit under way may or may not take the path. So stage the entry of the branch's commit on top: it
                # changes nothing if the commit fails, and undoes this path if it succeeds.
                try:
                    cell = await self._stage_head(branch, seen.record, key)
                except UploadRefused:
                    continue
                except CommitExpired:
                    # The branch may have left that commit meanwhile: then look at its new one.
                    if (await self._context.branches.fresh(branch)).is_same(seen):
                        raise
                    continue
            else:
                removed_from.add(seen.record.staging_token)
                try:
                    cell = await self._remove_cell(seen.record.staging_token, key)
                except PredicateFailed:
                    continue
                except OutcomeUnknown as error:
                    retry.lost(error)
                    continue
            if cell is not None:
                taken.append((seen.record.staging_token, cell))
            # The reset rests on the whole record: any change of it means to start again.
            if (await self._context.branches.fresh(branch)).is_same(seen):
                for token, one in taken:
                    if token == seen.record.staging_token:
                        self._hard_delete.let_go(one, key, LetGoBy.RESET)
                return

    @says_who_took
    async def _stage_head(self, branch: str, record: BranchRecord, key: bytes) -> Cell | None:
        """Set the cell to the entry of the branch's commit at `key`, and return the replaced one.

        Raises:
            CommitExpired: a collection takes that commit.
            Conflict: a lifecycle run may be about to take the object.
            PathExpired: a lifecycle run took it.
            UploadRefused: the copy took too long and was given up.
        """
        row = await self._context.trees.lookup(await self._context.commits.metarange(record.commit_id), key)
        if row is None:
            return await self._staging.set_cell(record, key, TOMBSTONE, TOMBSTONE_ROW, ANY)
        address = from_row(row).address
        if key_inside(address, self._context.objectstore.uri) is None:
            return await self._staging.set_cell(record, key, 0, row, ANY)
        # A tracked copy like any other: before the cell is there the branch may leave that commit, and a collection
        # may take it.
        copy_key, pending, held = await self._copies.begin(address, branch)
        try:
            await self._retired.check_not_expiring([record.commit_id])
        except CommitExpired:
            # Where that fails the cleaner does it.
            with suppress(PredicateFailed, Unavailable, OutcomeUnknown):
                await self._context.delete_if(copy_key, held.predicate)
            raise
        if not await self._copies.stays(from_row(row), copy_key, held):
            raise Conflict("a lifecycle run deletes objects that commits name: reset again once it has ended")
        replaced = await self._staging.set_cell(record, key, 0, row, ANY)
        await self._copies.finish(copy_key, replace(pending, state=CopyState.DONE), held)
        return replaced

    async def _may_be_committing(self, record: BranchRecord, key: bytes, removed_from: Set[StagingToken]) -> bool:
        """Return whether a sealed token has this path, or had it until we took it away: its
        committer may have read it.
        """
        sealed = [item.token for item in record.sealed]
        stood_for = {token for item in record.sealed for token in (item.token, *item.stands_for)}
        return not stood_for.isdisjoint(removed_from) or await self._layers.look_up_staged(sealed, key) is not None

    async def _remove_cell(self, token: StagingToken, key: bytes) -> Cell | None:
        """Take away exactly the cell that is there now, and return it.

        Raises:
            PredicateFailed: it was replaced meanwhile.
            OutcomeUnknown: the answer was lost. It may be gone, and another's to let go.
        """
        partition = self._context.token_partition(token)
        held = await self._context.store.get(partition, key)
        if held is None:
            return None
        await self._context.store.delete_if(partition, key, held.predicate)
        return decode_cell(held.value)

    async def reset_prefix(self, branch: str, prefix: bytes) -> int:
        """Give up everything staged under a prefix; returns how many paths that was. Not atomic."""
        count = 0
        start: bytes | None = prefix
        while start is not None:
            seen = await self._context.branches.fresh(branch)
            span = await self._layers.staged_span(seen.record.tokens(), start, self._context.options.scan_page)
            inside = [key for key in span.keys if key.startswith(prefix)]
            await self._context.ports.tasks.gather([self.reset_object(branch, key) for key in inside])
            count += len(inside)
            start = span.next_start if len(inside) == len(span.keys) else None
        return count

    async def hard_reset(
        self, branch: str, ref: str, *, force: bool = False, refuse_expired: bool = False, by: str = ""
    ) -> CommitId:
        """Move the branch's head to a commit and, with `force`, give up staged changes.

        Without, the token is sealed first, then looked at: later writes stay staged on the new head.
        A staged entry equal to that of the branch's commit, as a reset of one object may leave it, is no change.

        Raises:
            UncommittedChanges: something else is staged, and not `force`.
            Conflict: the branch would get objects that lifecycle runs took, and `refuse_expired`.
            CommitExpired: a collection takes that commit.
            OutcomeUnknown: the answer was lost and the record proves nothing.
        """
        commit_id = await self._refs.resolve_commit(ref)
        if refuse_expired:
            head = (await self._context.branches.fresh(branch)).record.commit_id
            trees = [await self._context.commits.metarange(one) for one in (head, commit_id)]
            await self._taken.check_brought(trees[0], trees[1])
        operation = self._context.ports.ids.fresh()
        attempt = 0
        while force:
            attempt += 1
            # The branch is read before the intent is written. A cleaner that takes us for dead bumps the branch and
            # only then removes the intent, so that our writes on this reading fail.
            seen = await self._context.branches.fresh(branch)
            drop = partial(self._drop_staged, seen=seen, by=by)
            if await self._with_intent(branch, operation, attempt, commit_id, drop):
                return commit_id
        while True:
            record = (await self._context.branches.fresh(branch)).record
            await self._check_unused(branch, record.commit_id, record.tokens())
            mine, seen = await self._committer.seal(branch)
            while (place := find_mine(seen.record.sealed, mine)) is not None:
                attempt += 1
                left = [sealed.token for sealed in seen.record.sealed[place:]]
                await self._check_unused(branch, seen.record.commit_id, left)
                move = partial(self._drop_unused, seen=seen, mine=mine, place=place, by=by)
                if await self._with_intent(branch, operation, attempt, commit_id, move):
                    return commit_id
                seen = await self._context.branches.fresh(branch)

    @says_who_took
    async def _check_unused(self, branch: str, head: CommitId, tokens: Sequence[StagingToken]) -> None:
        """
        Raises:
            UncommittedChanges: their cells, the newest of each path, say anything else than the commit.
        """
        start: bytes | None = b""
        limit = 1  # Mostly there is none, or the first is a change.
        while start is not None:
            span = await self._layers.staged_span(tokens, start, limit)
            for key, (flags, row) in zip(span.keys, span.cells, strict=True):
                committed = await self._context.trees.lookup(await self._context.commits.metarange(head), key)
                # By digest: the same content at another address is no change, for the commit holds an equal entry.
                if (None if is_gone(flags) else row[0]) != (committed[0] if committed else None):
                    raise UncommittedChanges("uncommitted changes on the branch (use force)", branch=branch)
            start, limit = span.next_start, self._context.options.scan_page

    async def _drop_unused(
        self,
        branch: str,
        operation: str,
        attempt: int,
        *,
        seen: Seen,
        mine: StagingToken,
        place: int,
        by: str,
        commit_id: CommitId,
    ) -> bool:
        """Try once to take the sealed tokens from `mine` on, as a commit does; False: the branch moved."""
        # No writer was acknowledged for a cell that comes into them later: its second look at the branch shows another
        # token, and it writes there.
        left = [sealed.token for sealed in seen.record.sealed[place:]]
        after = replace(seen.record, commit_id=commit_id, sealed=seen.record.sealed[:place])
        after, also = self._moved(branch, seen, after, by)
        await self._context.claim(operation, attempt, branch, left, why=ClaimReason.RESET, also=also)
        try:
            await self._context.branches.set(branch, after, seen)
        except PredicateFailed:
            return False
        except OutcomeUnknown:
            # The head is there and our token is gone: if another did that, it is no different from our having done it.
            now = await self._context.after_lost(self._context.branches.fresh(branch))
            if now.record.commit_id != commit_id or find_mine(now.record.sealed, mine) is not None:
                raise
        return True

    async def _with_intent(
        self, branch: str, operation: str, attempt: int, commit_id: CommitId, move: Callable[..., Awaitable[bool]]
    ) -> bool:
        """Move the branch's head while an intent stands where collections look."""
        intent = keys.INTENT + f"{operation}-{attempt:04d}".encode()
        record = IntentRecord(commit_id=commit_id, branch=branch, created_ms=self._context.ports.clock.now_ms())
        # One that comes late keeps the commit until the cleaner has bumped the branch.
        await self._context.set_own([(intent, encode_record(record))])
        try:
            await self._retired.check_not_expiring([commit_id])
            done = await move(branch, operation, attempt, commit_id=commit_id)
        except OutcomeUnknown:
            raise  # It may yet land: the intent stays until a cleaner has bumped the branch.
        except LakebedError:
            await self._drop_intent(intent)
            raise
        await self._drop_intent(intent)
        return done

    async def _drop_intent(self, intent: bytes) -> None:
        """Try to remove the intent."""
        # A failure here is no failure of the reset. The cleaner removes the intent then.
        with suppress(Unavailable, OutcomeUnknown):
            await self._context.delete(intent)
