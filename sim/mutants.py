"""Planted bugs: each takes one guard of docs/design/protocols.md out of the real classes, while a `with` lasts.

A simulation that does not catch every one of them proves nothing. Production code knows nothing of this: a mutant puts
a changed method on `Versions`, over the inherited one, and takes it away again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import OutcomeUnknown
from lakebed.kv import Held, PredicateFailed
from lakebed.versions import CommitOvertaken, NoChanges, Sealed, Versions, encode_record, keys
from lakebed.versions.committing import Built, find_mine
from lakebed.versions.repo import Seen

from .lineages import LINEAGE_MUTANTS
from .mutants_addresses import ADDRESS_MUTANTS
from .mutants_committed import COMMITTED_MUTANTS
from .mutants_metadata import METADATA_MUTANTS
from .mutants_moves import MOVE_MUTANTS
from .mutants_runs import RUN_MUTANTS
from .mutants_sweeps import SWEEP_MUTANTS
from .optimised import OPTIMISED_MUTANTS
from .planting import Mutant
from .restoring import RESTORE_MUTANTS

Repo: TypeAlias = Any
"""A `Versions`, seen from inside: its flows are private to its package, and this is surgery on them."""


# The writer and the reader


async def _write_without_second_look(
    self: Repo, branch: str, key: bytes, flags: int, row: Any, *, before: Any = None, condition: Any = None
) -> None:
    seen = await self._cached(branch)
    if before is not None:
        await before(seen.record)
    await self._set_cell(seen.record, key, flags, row, condition or _ANY)


async def _write_with_second_look_in_the_cache(
    self: Repo, branch: str, key: bytes, flags: int, row: Any, *, before: Any = None, condition: Any = None
) -> None:
    seen = await self._cached(branch)
    while True:
        if before is not None:
            await before(seen.record)
        await self._set_cell(seen.record, key, flags, row, condition or _ANY)
        again = await self._cached(branch)
        if again.record.staging_token == seen.record.staging_token:
            return
        seen = again


async def _write_satisfied_with_sealed(
    self: Repo, branch: str, key: bytes, flags: int, row: Any, *, before: Any = None, condition: Any = None
) -> None:
    seen = await self._cached(branch)
    while True:
        if before is not None:
            await before(seen.record)
        await self._set_cell(seen.record, key, flags, row, condition or _ANY)
        again = await self._fresh(branch)
        if seen.record.staging_token in again.record.tokens():
            return
        seen = again


class _Any:
    is_any = True


_ANY: Final = _Any()


async def _read_without_second_look(self: Repo, branch: str, look: Callable[[Any], Any]) -> Any:
    return await look((await self._cached(branch)).record)


async def _read_that_compares_tokens_only(self: Repo, branch: str, look: Callable[[Any], Any]) -> Any:
    seen = await self._cached(branch)
    while True:
        result = await look(seen.record)
        again = await self._fresh(branch)
        if again.record.staging_token == seen.record.staging_token:
            return result
        seen = again


async def _read_the_commit_first(self: Repo, view: Any, key: bytes) -> Any:
    row = await self.trees.lookup(await self._metarange(view.commit_id), key)
    if row is not None:
        return row
    staged = await self._look_up_staged(view.tokens, key)
    return None if staged is None or staged[0] & 5 else staged[1]


# The committer


def _seal_at_the_old_end(self: Repo, record: Any) -> Any:
    return replace(record, staging_token=self._fresh_token(), sealed=(*record.sealed, Sealed(record.staging_token)))


async def _seal_without_predicate(self: Repo, branch: str) -> Any:
    seen = await self._fresh(branch)
    try:
        return seen.record.staging_token, await _set_anyway(self, branch, self._sealed(seen.record), seen)
    except OutcomeUnknown:
        return await _seal_without_predicate(self, branch)


async def _set_anyway(self: Repo, branch: str, record: Any, _: Seen) -> Seen:
    value = encode_record(record)
    self._branches.pop(branch, None)
    await self.store.set(self.partition, keys.BRANCH + branch.encode(), value)
    return Seen(record, Held(value, value))


async def _publish_without_predicate(self: Repo, branch: str, record: Any, seen: Seen) -> Any:
    if len(record.sealed) < len(seen.record.sealed):
        return await _set_anyway(self, branch, record, seen)
    return await _real_set_branch(self, branch, record, seen)


async def _publish_deaf_to_lost_answers(self: Repo, branch: str, record: Any, seen: Seen) -> Any:
    try:
        return await _real_set_branch(self, branch, record, seen)
    except OutcomeUnknown:
        if len(record.sealed) >= len(seen.record.sealed):
            raise
        return seen


_real_set_branch: Any = Versions._set_branch  # noqa: SLF001  # the real one, to call from the changed one


async def _publish_then_claim(self: Repo, branch: str, mine: Any, seen: Seen, note: Any, *, allow_empty: bool) -> Any:
    operation, attempt, built = self.ports.ids.fresh(), 0, None
    while True:
        place = find_mine(seen.record.sealed, mine)
        if place is None:
            raise CommitOvertaken("overtaken")
        left = seen.record.sealed[place:]
        if built is None or not built.is_from(seen.record, left):
            built = await self._build(branch, seen.record, left, note, allow_empty=allow_empty)
        attempt += 1
        published = replace(seen.record, commit_id=built.commit_id, sealed=seen.record.sealed[:place])
        try:
            await self._set_branch(branch, published, seen)
            tokens = [sealed.token for sealed in left]
            await self._claim(operation, attempt, branch, tokens, built.commit_id if built.commit else None)
            return await self._done(built)
        except (PredicateFailed, OutcomeUnknown):
            seen = await self._fresh(branch)
        if built.commit and await self._is_in_chain(built.commit_id, built.commit.generation, seen.record.commit_id):
            return await self._done(built)


async def _build_with_the_old_metarange(
    self: Repo, branch: str, record: Any, left: Sequence[Sealed], note: Any, *, allow_empty: bool
) -> Built:
    kept = self.__dict__.setdefault("_kept", {})
    if kept.get(note.message) is None:
        built: Built = await _real_build(self, branch, record, left, note, allow_empty=allow_empty)
        kept[note.message] = built.commit
        return built
    commit = await self._new_commit(branch, kept[note.message].metarange_id, (record.commit_id,), note)
    return Built(commit, await self._write_commit(commit), record.commit_id, tuple(left), record.touched)


_real_build: Any = Versions._build  # noqa: SLF001  # the real one, to call from the changed one


def _is_from_the_same_head(self: Built, record: Any, left: Sequence[Sealed]) -> Any:
    del left  # the guard that is missing
    return self.head == record.commit_id and self.touched == record.touched


def _is_from_the_same_tokens(self: Built, record: Any, left: Sequence[Sealed]) -> Any:
    return self.left == tuple(left) and self.touched == record.touched


async def _changes_oldest_on_top(self: Repo, tokens: Sequence[Any]) -> Any:
    return await _real_changes(self, list(reversed(tokens)))


_real_changes: Any = Versions._changes  # noqa: SLF001  # the real one, to call from the changed one


async def _never_in_the_chain(_: Repo, *__: Any) -> bool:
    return False


async def _build_that_leaves_tokens(
    self: Repo, branch: str, record: Any, left: Sequence[Sealed], note: Any, *, allow_empty: bool
) -> Built:
    built: Built = await _real_build(self, branch, record, left, note, allow_empty=allow_empty)
    if built.commit is None:
        raise NoChanges("commit: no changes", branch=branch)
    return built


async def _build_from_newer_tokens_too(
    self: Repo, branch: str, record: Any, left: Sequence[Sealed], note: Any, *, allow_empty: bool
) -> Built:
    built: Built = await _real_build(self, branch, record, record.sealed, note, allow_empty=allow_empty)
    return Built(built.commit, built.commit_id, built.head, tuple(left), built.touched)


# The cleaner


async def _held_by_nobody(_: Repo, __: str) -> frozenset[Any]:
    return frozenset()


async def _clean_branch_first(self: Repo) -> tuple[int, int]:
    held = {name: frozenset(record.tokens()) for name, record in await self.branch_records()}

    async def as_it_was(branch: str) -> frozenset[Any]:
        return held.get(branch, frozenset())

    self._tokens_of = as_it_was
    try:
        return await _real_clean_claims(self)  # type: ignore[no-any-return]  # surgery
    finally:
        self.__dict__.pop("_tokens_of", None)


_real_clean_claims: Any = Versions._clean_claims  # noqa: SLF001  # the real one, to call from the changed one


# What others met


async def _write_to_the_token_once_read(
    self: Repo, branch: str, key: bytes, flags: int, row: Any, *, before: Any = None, condition: Any = None
) -> None:
    seen = await self._fresh(branch)
    if before is not None:
        await before(seen.record)
    await self._set_cell(seen.record, key, flags, row, condition or _ANY)


async def _publish_mine_alone(self: Repo, branch: str, mine: Any, seen: Seen, note: Any, *, allow_empty: bool) -> Any:
    operation, attempt = self.ports.ids.fresh(), 0
    while True:
        place = find_mine(seen.record.sealed, mine)
        if place is None:
            raise CommitOvertaken("overtaken")
        left, attempt = seen.record.sealed[place : place + 1], attempt + 1
        built = await self._build(branch, seen.record, left, note, allow_empty=allow_empty)
        await self._claim(operation, attempt, branch, [mine], built.commit_id if built.commit else None)
        others = (*seen.record.sealed[:place], *seen.record.sealed[place + 1 :])
        try:
            await self._set_branch(branch, replace(seen.record, commit_id=built.commit_id, sealed=others), seen)
            return await self._done(built)
        except (PredicateFailed, OutcomeUnknown):
            seen = await self._fresh(branch)
        if built.commit and await self._is_in_chain(built.commit_id, built.commit.generation, seen.record.commit_id):
            return await self._done(built)


async def _publish_after_the_others(self: Repo, branch: str, mine: Any, seen: Seen, note: Any, **of: Any) -> Any:
    """Wait until those who sealed before me are through: one that died makes all wait."""
    while seen.record.sealed and seen.record.sealed[-1].token != mine and mine in seen.record.tokens():
        await self.ports.clock.sleep(0)
        seen = await self._fresh(branch)
    return await _real_publish_sealed(self, branch, mine, seen, note, **of)


_real_publish_sealed: Any = Versions._publish_sealed  # noqa: SLF001  # the real one, to call from the changed one


def _mutant(name: str, guard: str, **methods: Callable[..., Any]) -> Mutant:
    return Mutant(name, guard, tuple((Versions, method, changed) for method, changed in methods.items()))


MUTANTS: Final = (
    _mutant("write-once", "the writer's second look at the branch", _write=_write_without_second_look),
    _mutant("write-cached", "the second look never from the cache", _write=_write_with_second_look_in_the_cache),
    _mutant("write-sealed", "repeat even if our token is still sealed", _write=_write_satisfied_with_sealed),
    Mutant(
        "read-once",
        "the reader's second look at the branch",
        ((Versions, "_consistent", _read_without_second_look),),
        ("committer that cleans, reader",),
    ),
    Mutant(
        "read-tokens",
        "start again if anything changed",
        ((Versions, "_consistent", _read_that_compares_tokens_only),),
        ("committer that cleans, reader",),
    ),
    Mutant(
        "read-upwards",
        "tokens before the commit",
        ((Versions, "_look_up", _read_the_commit_first),),
        ("deleter, committer, reader",),
    ),
    _mutant("seal-old-end", "the new token in front of the sealed ones", _sealed=_seal_at_the_old_end),
    _mutant("seal-blind", "seal by set_if", _seal=_seal_without_predicate),
    _mutant("publish-blind", "publish by set_if", _set_branch=_publish_without_predicate),
    _mutant("publish-deaf", "a lost answer is no success", _set_branch=_publish_deaf_to_lost_answers),
    _mutant("claim-late", "the claim before the set_if", _publish_sealed=_publish_then_claim),
    _mutant("metarange-kept", "build again on another head", _build=_build_with_the_old_metarange),
    Mutant(
        "head-only",
        "the same commit only if left is the same",
        ((Built, "is_from", _is_from_the_same_head),),
        ("writer of the same, two committers",),
    ),
    Mutant("tokens-only", "the same only if the head is the same", ((Built, "is_from", _is_from_the_same_tokens),)),
    _mutant("overlay-upside-down", "overlay newest first", _changes=_changes_oldest_on_top),
    _mutant("history-unread", "a commit in the history is done", _is_in_chain=_never_in_the_chain),
    _mutant("idle-grows", "tokens are taken without a change too", _build=_build_that_leaves_tokens),
    Mutant(
        "left-too-much",
        "left begins at mine",
        ((Versions, "_build", _build_from_newer_tokens_too),),
        ("committer, writer that commits, toucher",),
    ),
    _mutant("clean-held", "the cleaner leaves tokens that a branch holds", _tokens_of=_held_by_nobody),
    Mutant(
        "clean-branch-first",
        "the claims are read before the branch",
        ((Versions, "_clean_claims", _clean_branch_first),),
        ("committer of two commits, cleaner",),
    ),
    _mutant("lakefs-2405", "the token is read again after a write", _write=_write_to_the_token_once_read),
    _mutant("lakefs-10466", "what a dead commit sealed is taken too", _publish_sealed=_publish_mine_alone),
    Mutant(
        "commit-waits",
        "nobody waits for another's claim",
        ((Versions, "_publish_sealed", _publish_after_the_others),),
        ("writer, two committers",),
    ),
    *ADDRESS_MUTANTS,
    *RUN_MUTANTS,
    *COMMITTED_MUTANTS,
    *METADATA_MUTANTS,
    *LINEAGE_MUTANTS,
    *OPTIMISED_MUTANTS,
    *MOVE_MUTANTS,
    *SWEEP_MUTANTS,
    *RESTORE_MUTANTS,
)
