"""The legal moves of a branch record: a step checker, which sees every change as it is made.

Tokens leave a branch only from the old end of the sealed list and only with a claim that names exactly them; a head
moves only to a commit whose first parent it is, unless by hand. So the history of a branch is a chain in every state,
not just at the end, and whoever dies anywhere leaves a claim behind.
"""

from __future__ import annotations

from lakebed.versions import BranchRecord, RefState, decode_record, keys

from .actors import Violation
from .disk import Disk
from .views import PARTITION, View


def branch_moves_are_legal(disk: Disk, partition: bytes, key: bytes, old: bytes | None, new: bytes | None) -> None:
    """
    Raises:
        Violation: the branch record was changed in a way that no flow may.
    """
    if partition != PARTITION or not key.startswith(keys.BRANCH):
        return
    before = None if old is None else decode_record(BranchRecord, old)
    after = None if new is None else decode_record(BranchRecord, new)
    if before is None:
        if after is not None and (after.state is not RefState.CREATING or after.sealed):
            raise Violation("a branch appears that is not being made")
        return
    if after is None:
        if before.state is RefState.ACTIVE:
            _check_claimed(disk, before, before.tokens(), "deleted with")
        return
    _check_move(disk, before, after)


def _check_move(disk: Disk, before: BranchRecord, after: BranchRecord) -> None:
    view = View(disk)
    if after.commit_id != before.commit_id:
        commit = view.commit(after.commit_id)
        view.contents(commit.metarange_id)
    sealed, was = after.sealed, before.sealed
    if after.staging_token == before.staging_token:
        dropped = was[len(sealed) :]
        if sealed != was[: len(sealed)]:
            raise Violation("sealed tokens were taken from the young end, or changed")
        if dropped:
            _check_claimed(disk, before, tuple(item.token for item in dropped), "published without")
        if after.commit_id != before.commit_id and view.commit(after.commit_id).parents[:1] != (before.commit_id,):
            raise Violation("the head moves to a commit that was not made from it")
    elif not sealed:
        _check_claimed(disk, before, before.tokens(), "reset without")
    elif len(sealed) == len(was) + 1:
        if sealed[0].token != before.staging_token or sealed[1:] != was or after.commit_id != before.commit_id:
            raise Violation("a seal pushes the token in front of the others, and does no more")
    elif not any(item.stands_for for item in sealed):
        raise Violation(f"{len(was)} sealed tokens became {len(sealed)}")


def _check_claimed(disk: Disk, before: BranchRecord, tokens: tuple[str, ...], what: str) -> None:
    if not any(claim.tokens == tokens for claim in View(disk).claims()):
        raise Violation(f"{what} a claim on {tokens} of {before.tokens()}")
