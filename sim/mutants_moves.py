"""Planted bugs in what moves branches and refs: seals, merges, resets, deletions, tags, holds; and in shared reads.

Each names the scenes of `worlds.py` and `hazards.py` that it is hunted in: they are the smallest in which its guard has
work to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import OutcomeUnknown
from lakebed.gc.service.commits import Snapshot, read_snapshot
from lakebed.kv import Held, PredicateFailed
from lakebed.versions import (
    BranchRecord,
    ClaimRecord,
    HoldRecord,
    RefState,
    Versions,
    decode_record,
    encode_record,
    keys,
)
from lakebed.versions.amortized import AmortizedReads, _Read
from lakebed.versions.committing import find_mine
from lakebed.versions.repo import Seen

from .collecting import SimCollector
from .planting import mutant, patches

Repo: TypeAlias = Any
"""A `Versions`, seen from inside."""

_real_set_branch: Any = Versions._set_branch  # noqa: SLF001  # the real one, to call from the changed one


async def _set_anyway(self: Repo, branch: str, record: BranchRecord) -> Seen:
    value = encode_record(record)
    self._branches.pop(branch, None)
    await self.store.set(self.partition, keys.BRANCH + branch.encode(), value)
    return Seen(record, Held(value, value))


def _blindly(is_meant: Callable[[BranchRecord, BranchRecord], bool]) -> Any:
    """Moves of this kind are made without a predicate."""

    async def set_branch(self: Repo, branch: str, record: BranchRecord, seen: Seen) -> Any:
        if is_meant(seen.record, record):
            return await _set_anyway(self, branch, record)
        return await _real_set_branch(self, branch, record, seen)

    return set_branch


def _is_merge(before: BranchRecord, after: BranchRecord) -> bool:
    return after.commit_id != before.commit_id and after.tokens() == before.tokens()


def _is_reset(before: BranchRecord, after: BranchRecord) -> bool:
    return after.staging_token != before.staging_token and not after.sealed


def _is_freeze(before: BranchRecord, after: BranchRecord) -> bool:
    return after.sealed != before.sealed and any(one.stands_for for one in after.sealed[:1])


def _is_touch(before: BranchRecord, after: BranchRecord) -> bool:
    return after.touched != before.touched


# Committers


async def _seal_deaf_to_lost_answers(self: Repo, branch: str) -> Any:
    while True:
        seen = await self._fresh(branch)
        record = self._sealed(seen.record)
        try:
            return seen.record.staging_token, await self._set_branch(branch, record, seen)
        except PredicateFailed:
            continue
        except OutcomeUnknown:
            return seen.record.staging_token, Seen(record, Held(encode_record(record), encode_record(record)))


async def _publish_until_taken(self: Repo, branch: str, mine: Any, seen: Seen, note: Any, *, allow_empty: bool) -> Any:
    """Whoever finds his token gone takes it for his own success."""
    operation, attempt, built = self.ports.ids.fresh(), 0, None
    while True:
        place = find_mine(seen.record.sealed, mine)
        if place is None and built is not None:
            return await self._done(built)
        left = seen.record.sealed[place:]
        if built is None or not built.is_from(seen.record, left):
            built = await self._build(branch, seen.record, left, note, allow_empty=allow_empty)
        attempt += 1
        await self._claim(operation, attempt, branch, [one.token for one in left], built.commit and built.commit_id)
        try:
            after = replace(seen.record, commit_id=built.commit_id, sealed=seen.record.sealed[:place])
            await self._set_branch(branch, after, seen)
            return await self._done(built)
        except (PredicateFailed, OutcomeUnknown):
            seen = await self._fresh(branch)


async def _new_commit_without_nonce(self: Repo, *of: Any) -> Any:
    return replace(await _real_new_commit(self, *of), nonce="")


_real_new_commit: Any = Versions._new_commit  # noqa: SLF001  # the real one, to call from the changed one


async def _get_from_whoever_reads(self: Any, key: bytes) -> Any:
    """Join a read that began before the call did."""
    running = self._running.get(key)
    if running is None:
        return await self._lead(key, _Read())
    await running.wait(self._tasks)
    return running.held


async def _no_layers(self: Repo, tokens: Any, start: bytes, limit: int) -> Any:
    """A listing knows the newest token and the commit, and nothing between."""
    return await _real_staged_span(self, tokens[:1], start, limit)


_real_staged_span: Any = Versions._staged_span  # noqa: SLF001  # the real one, to call from the changed one


# Merges, resets, deletions


async def _advance_checked_early(self: Repo, branch: str, plan: Any) -> Any:
    while True:
        seen = await self._fresh(branch)
        planned = await plan(seen.record.commit_id)
        await self.check_not_condemned(planned.used)
        commit_id = await self._write_commit(planned.commit)
        try:
            await self._set_branch(branch, replace(seen.record, commit_id=commit_id), seen)
        except PredicateFailed:
            continue
        await self._note_published(commit_id, planned.commit)
        return planned.commit


async def _drop_staged_unclaimed(
    self: Repo, branch: str, _: str, __: int, *, seen: Seen, commit_id: Any = None
) -> bool:
    head = seen.record.commit_id if commit_id is None else commit_id
    fresh = replace(seen.record, staging_token=self._fresh_token(), sealed=(), commit_id=head)
    try:
        await self._set_branch(branch, fresh, seen)
    except PredicateFailed:
        return False
    return True


async def _delete_branch_blindly(self: Repo, name: str) -> None:
    seen = await self._fresh(name)
    await self._claim(self.ports.ids.fresh(), 1, name, seen.record.tokens())
    self._branches.pop(name, None)
    await self.store.delete(self.partition, keys.BRANCH + name.encode())


async def _drop_claims_unclean(self: Repo) -> tuple[int, int]:
    """What was written since the last cleaning stays."""
    now = self.ports.clock.now_ms()
    async for key, claim in self._records(ClaimRecord, keys.CLAIM):
        if now - claim.created_ms >= self.options.claim_age_ms_max:
            await self.store.delete(self.partition, key)
            continue
        held = await self._tokens_of(claim.branch)
        for token in claim.tokens if not claim.building else ():
            if token not in held:
                await self._wipe(token)
    return 0, 0


# Refs and holds


async def _look_past_tags(self: SimCollector) -> Snapshot:
    found = await read_snapshot(self.repo)
    return Snapshot(refs=[ref for ref in found.refs if ref[0] != "tag"], commits=found.commits, swept=found.swept)


async def _remove_dead_ref_blindly(self: Repo, key: bytes, kind: Any) -> bool:
    held = await self.store.get(self.partition, key)
    if held is None:
        return True
    record = decode_record(kind, held.value)
    age_ms = self.ports.clock.now_ms() - record.created_ms
    if record.state is not RefState.CREATING or age_ms < self.options.creating_age_ms_max:
        return False
    await self.store.delete(self.partition, key)
    return True


async def _set_active_blindly(self: Repo, key: bytes, _: Any, value: bytes) -> None:
    await self.store.set(self.partition, key, value)


async def _drop_hold_untouched(self: Repo, key: bytes) -> None:
    held = await self.store.get(self.partition, key)
    if held is not None and decode_record(HoldRecord, held.value):
        await self.store.delete(self.partition, key)


_REFS: Final = ("brancher, impatient cleaner of refs, committed run",)
_OLD: Final = ("merger of an old commit, committed run", "picker of an old commit, committed run")


MOVE_MUTANTS: Final = (
    mutant(
        "seal-deaf",
        "a seal whose answer was lost is made again",
        ("writer, committer",),
        patches(Versions, _seal=_seal_deaf_to_lost_answers),
    ),
    mutant(
        "overtaken-done",
        "who was overtaken never answers success",
        ("committer, resetter",),
        patches(Versions, _publish_sealed=_publish_until_taken),
    ),
    mutant(
        "nonce-none",
        "two commits equal in all else are two",
        ("two committers of equal words",),
        patches(Versions, _new_commit=_new_commit_without_nonce),
    ),
    mutant(
        "look-shared",
        "a shared read began after the call did",
        ("server of two writers with late answers, committer",),
        patches(AmortizedReads, get=_get_from_whoever_reads),
    ),
    mutant(
        "list-newest",
        "a listing looks through every token",
        ("writer, committer, lister", "deleter, committer, lister"),
        patches(Versions, _staged_span=_no_layers),
    ),
    mutant(
        "merge-blind",
        "a merge is one set_if",
        ("committer, merger",),
        patches(Versions, _set_branch=_blindly(_is_merge)),
    ),
    mutant(
        "used-early",
        "a merge's commit record before the check",
        _OLD,
        patches(Versions, _advance=_advance_checked_early),
    ),
    mutant(
        "reset-blind",
        "a reset is one set_if",
        ("committer, resetter", "writer, committer, resetter"),
        patches(Versions, _set_branch=_blindly(_is_reset)),
    ),
    mutant(
        "reset-unclaimed",
        "a reset claims what it takes",
        ("committer, resetter",),
        patches(Versions, _drop_staged=_drop_staged_unclaimed),
    ),
    mutant(
        "delete-blind",
        "a branch is deleted as it was read",
        ("writer, committer, deleter that creates again",),
        patches(Versions, delete_branch=_delete_branch_blindly),
    ),
    mutant(
        "freeze-blind",
        "a freeze ends in a set_if",
        ("freezer that cleans, run", "writer, committer, freezer"),
        patches(Versions, _set_branch=_blindly(_is_freeze)),
    ),
    mutant(
        "touch-blind",
        "a touch is one set_if",
        ("committer, run",),
        patches(Versions, _set_branch=_blindly(_is_touch)),
    ),
    mutant(
        "claim-dropped",
        "tokens are cleaned once more before a claim goes",
        ("writer, resetter, cleaner",),
        patches(Versions, _clean_claims=_drop_claims_unclean),
    ),
    mutant(
        "tag-unseen", "a tag is a root", ("tagger, committed run",), patches(SimCollector, look_again=_look_past_tags)
    ),
    mutant(
        "ref-removed-blind",
        "a dead ref is removed as it was read",
        _REFS,
        patches(Versions, _remove_dead_ref=_remove_dead_ref_blindly),
    ),
    mutant("activate-blind", "creating → active by set_if", _REFS, patches(Versions, _set_active=_set_active_blindly)),
    mutant(
        "hold-dropped",
        "a dead hold's branch is touched first",
        ("hard resetter, impatient cleaner, committed run",),
        patches(Versions, give_up_hold=_drop_hold_untouched),
    ),
)
