"""The legal moves of a branch record: step checkers, which see every change as it is made.

A commit changes only paths that the tokens it takes name. Tokens leave a branch only from the old end of the sealed
list, and with a claim that names exactly them; a head moves only to a commit whose first parent it is, unless by hand:
then an intent names the commit.
So the history of a branch is a chain in every state, not just at the end, and an actor that dies anywhere leaves a
claim.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer.actors import Violation
from explorer.disk import Disk
from lakebed.base import StagingToken
from lakebed.versions import BranchRecord, RefState, decode_record, keys

from .views import PARTITION, View


def branch_moves_are_legal(disk: Disk, partition: bytes, key: bytes, old: bytes | None, new: bytes | None) -> None:
    """Check that each change of a branch record is one that a flow may make."""
    _branch_moves(disk, partition, key, old, new, check_cells=True)


def _branch_moves(
    disk: Disk, partition: bytes, key: bytes, old: bytes | None, new: bytes | None, *, check_cells: bool
) -> None:
    if partition != PARTITION or not key.startswith(keys.BRANCH):
        return
    before = None if old is None else decode_record(BranchRecord, old)
    after = None if new is None else decode_record(BranchRecord, new)
    if before is None:
        if after is not None and (after.state is not RefState.CREATING or after.sealed):
            raise Violation("a branch appears that is not being made")
        return
    if after is not None:
        _check_move(disk, before, after, check_cells=check_cells)


def branch_moves_are_legal_beside_removals(
    disk: Disk, partition: bytes, key: bytes, old: bytes | None, new: bytes | None
) -> None:
    """The same where single objects are reset: a cell that a committer has read may be gone when he publishes."""
    _branch_moves(disk, partition, key, old, new, check_cells=False)


def tokens_leave_with_a_claim(disk: Disk, partition: bytes, key: bytes, old: bytes | None, new: bytes | None) -> None:
    """Check that an actor that takes tokens off a branch has written a claim that names exactly them.

    By it a cleaner finds them."""
    if partition != PARTITION or not key.startswith(keys.BRANCH) or old is None:
        return
    before = decode_record(BranchRecord, old)
    if before.state is RefState.CREATING:
        return  # No actor can have written to it yet.
    left = () if new is None else decode_record(BranchRecord, new).tokens()
    frozen = () if new is None else decode_record(BranchRecord, new).sealed
    stood_for = {token for item in frozen for token in item.stands_for}
    gone = tuple(token for token in before.tokens() if token not in left and token not in stood_for)
    if gone and not any(claim.tokens == gone for claim in View(disk).claims()):
        raise Violation(f"{gone} left the branch without a claim")


def _check_move(disk: Disk, before: BranchRecord, after: BranchRecord, *, check_cells: bool) -> None:
    view = View(disk)
    if after.commit_id != before.commit_id:
        commit = view.commit(after.commit_id)
        view.contents(commit.metarange_id)
    sealed, was = after.sealed, before.sealed
    if after.staging_token == before.staging_token and _is_freeze(before, after):
        return
    if after.staging_token == before.staging_token:
        dropped = was[len(sealed) :]
        if sealed != was[: len(sealed)]:
            raise Violation("sealed tokens were taken from the young end, or changed")
        if after.commit_id == before.commit_id or (dropped and after.commit_id in view.held()):
            return
        if check_cells and dropped:
            _check_changes(view, before, after, [item.token for item in dropped])
        if view.commit(after.commit_id).parents[:1] != (before.commit_id,):
            raise Violation("the head moves to a commit that was not made from it")
    elif not sealed:
        return
    elif len(sealed) == len(was) + 1:
        if sealed[0].token != before.staging_token or sealed[1:] != was or after.commit_id != before.commit_id:
            raise Violation("a seal pushes the token in front of the others, and does no more")
    elif not any(item.stands_for for item in sealed):
        raise Violation(f"{len(was)} sealed tokens became {len(sealed)}")


def _is_freeze(before: BranchRecord, after: BranchRecord) -> bool:
    """Return whether one frozen token stands for all that were sealed, and the head stays."""
    stood_for = {token for item in before.sealed for token in (item.token, *item.stands_for)}
    frozen = after.sealed[0] if len(after.sealed) == 1 else None
    return frozen is not None and set(frozen.stands_for) == stood_for and after.commit_id == before.commit_id


def _check_changes(view: View, before: BranchRecord, after: BranchRecord, dropped: Sequence[StagingToken]) -> None:
    """Check that the commit changes only paths with a cell in the tokens it takes: no cleaner removed these."""
    old = view.contents(view.commit(before.commit_id).metarange_id)
    new = view.contents(view.commit(after.commit_id).metarange_id)
    named = {key for token in dropped for key in view.cells(token)}
    changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    if strange := sorted(changed - named):
        raise Violation(f"a commit changes {strange}, which the tokens it takes do not name")
