"""Deleted repositories: keep them for a window, restore, collect or forget them. Any process may continue a flow.

Deleting removes only the name. 1 `set_if` active → deleting, so new requests do not find it; 2 suspend each branch, so
older requests fail; 3 write the DeletedRecord as `kept`; 4 `delete_if` the repository's record, which frees the name.
Restoring: 1 `set_if` kept → restoring; 2 `set_if` absent → the repository's record, unusable as yet; 3 make each
branch active, with a new epoch; 4 `set_if` restoring → restored; 5 `set_if` the repository's record → active.
Collecting (gc/kinds/deleted/plan.py): 1 `set_if` kept → collecting after the window, from then on a restore is
refused; 2 `set_if` collecting → collected, when no object is left; 3 an hour later the upkeep purges the records;
4 `set_if` purging → gone. Then the namespace may be used again.
Forgetting: `set_if` kept → purging. The records are removed, and the objects remain without limit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from lakebed.base import (
    AT_ONCE,
    Conflict,
    OutcomeUnknown,
    Ports,
    RepositoryId,
    RepositoryUid,
    RunId,
    StagingToken,
    check_repository,
    in_waves,
)
from lakebed.kv import Held, Page, PredicateFailed, Store, scan_pages, scan_prefix
from lakebed.versions import BranchRecord, ClaimRecord, RefState, decode_record, encode_record, keys

from .errors import DeletedNotFound, DeleteProtected, RepositoryExists, WindowNotOver
from .namespaces import Places
from .records import (
    DELETED_REPOSITORIES,
    DeletedRecord,
    DeletedState,
    HoldNamesRecord,
    RepositoryRecord,
    RepositoryState,
    deleted_partition,
)

DELETED_DAYS: Final = 7
"""Days for which a deleted repository is kept by default."""
DAY_MS: Final = 86_400_000
DELETED_AGE_MS: Final = 3_600_000
SIGNED_MS_MAX: Final = DAY_MS
"""The longest validity of an address or URL that was issued for an upload."""
_KEPT: Final = frozenset({DeletedState.KEPT})
_FORGETTABLE: Final = frozenset({DeletedState.KEPT, DeletedState.GONE})
_COLLECTABLE: Final = frozenset({DeletedState.KEPT, DeletedState.COLLECTING})
_PURGE_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class DeletedRepository:
    """A deleted repository as users see it."""

    uid: RepositoryUid
    record: DeletedRecord


def namespaces_of(deleted: Iterable[DeletedRepository], *, reused: str | None = None) -> Sequence[str]:
    """Return the namespaces that contain their objects, or contained them and are not used again.

    Include restored repositories: a reader may have missed their other record. `reused`: exclude this namespace if it
    may be used again.
    """
    return [
        one.record.repository.namespace_uri
        for one in deleted
        if one.record.repository is not None
        and not (one.record.state is DeletedState.GONE and one.record.repository.namespace_uri == reused)
    ]


class DeletedRepositories:
    def __init__(self, store: Store, ports: Ports, places: Places, *, kept_days: int) -> None:
        self._store = store
        self._ports = ports
        self._places = places
        self._kept_ms = kept_days * DAY_MS

    async def list(self, *, prefix: str = "") -> Sequence[DeletedRepository]:
        """List the deleted repositories that users see, by name, the newest of a name first."""
        found = [one async for one in self._every() if one.record.is_shown and one.record.name.startswith(prefix)]
        return sorted(found, key=lambda one: (one.record.name, -one.record.deleted_ms, one.uid))

    async def every(self) -> Sequence[DeletedRepository]:
        """Return every record, including those of failed attempts and of restored repositories."""
        return [one async for one in self._every()]

    async def restorable(self) -> Sequence[DeletedRepository]:
        """Return the repositories that may be restored or in use again. Objects that their records name are kept."""
        states = {DeletedState.KEPT, DeletedState.RESTORING, DeletedState.RESTORED}
        return [one async for one in self._every() if one.record.state in states]

    # Deleting

    def began(self, record: RepositoryRecord, *, by: str) -> RepositoryRecord:
        """Return the record of step 1. Its fresh `attempt` stops a process that slept through an undeletion."""
        return replace(
            record,
            state=RepositoryState.DELETING,
            attempt=self._ports.ids.fresh(),
            deleted_ms=self._ports.clock.now_ms(),
            deleted_by=by,
        )

    async def finish(self, name: RepositoryId, record: RepositoryRecord, held: Held) -> None:
        """Run steps 2 to 4. Stop when the record is no longer `deleting`, as in `held`: another process finished."""
        await self._suspend(name, record.uid, held)
        await self._keep(name, record, held)
        with suppress(PredicateFailed):
            await self._store.delete_if(keys.REPOSITORIES, name.encode(), held.predicate)

    async def _suspend(self, name: RepositoryId, uid: RepositoryUid, held: Held) -> None:
        partition = keys.repository_partition(uid)

        async def suspend(key: bytes) -> None:
            while (found := await self._store.get(partition, key)) is not None:
                branch = decode_record(BranchRecord, found.value)
                if branch.state is RefState.SUSPENDED:
                    return
                # Check after reading the branch: if this process sleeps here until the repository is restored, the
                # branch has another epoch, and the write fails.
                if not await self._is_still(name, held):
                    return
                with suppress(PredicateFailed):
                    if branch.state is RefState.CREATING:
                        await self._store.delete_if(partition, key, found.predicate)
                    else:
                        suspended = encode_record(replace(branch, state=RefState.SUSPENDED))
                        await self._store.set_if(partition, key, suspended, found.predicate)

        await self._each_branch(uid, suspend)

    async def _each_branch(self, uid: RepositoryUid, act: Callable[[bytes], Awaitable[None]]) -> None:
        """Call `act` with the key of each branch, several at once."""
        partition = keys.repository_partition(uid)
        async for branches, _ in scan_pages(self._store, partition, keys.BRANCH, first=AT_ONCE):
            await in_waves(self._ports.tasks, branches, act)

    async def _keep(self, name: RepositoryId, record: RepositoryRecord, held: Held) -> None:
        before = await self._store.get(DELETED_REPOSITORIES, record.uid.encode())
        if before is not None and decode_record(DeletedRecord, before.value).state is not DeletedState.RESTORED:
            return
        # Check after the read: a process that slept through a restore must not record the repository as deleted again.
        if not await self._is_still(name, held):
            return
        kept = DeletedRecord(
            state=DeletedState.KEPT,
            move=self._ports.ids.fresh(),
            name=name,
            repository=replace(record, state=RepositoryState.ACTIVE, attempt="", deleted_ms=0, deleted_by=""),
            deleted_ms=record.deleted_ms,
            deleted_by=record.deleted_by,
            kept_until_ms=record.deleted_ms + self._kept_ms,
        )
        predicate = before.predicate if before else None
        with suppress(PredicateFailed):
            await self._store.set_if(DELETED_REPOSITORIES, record.uid.encode(), encode_record(kept), predicate)

    async def _is_still(self, name: RepositoryId, held: Held) -> bool:
        now = await self._store.get(keys.REPOSITORIES, name.encode())
        return now is not None and now.value == held.value

    # Bringing back

    async def undelete(self, name: str, *, uid: str = "", new_name: str = "") -> RepositoryId:
        """Restore a repository with all of its data, under its name or another.

        Raises:
            DeletedNotFound: no repository of this name is kept, or it is being forgotten.
            Conflict: several are kept, and `uid` is not given.
            RepositoryExists: the name is taken.
        """
        found, held = await self._find_kept(name, uid)
        wanted = check_repository(new_name or name)
        restoring = replace(
            found.record, state=DeletedState.RESTORING, move=self._ports.ids.fresh(), restoring_as=wanted
        )
        return await self._restore(found.uid, *await self._move(found.uid, restoring, held))

    async def _find_kept(
        self, name: str, uid: str, states: Collection[DeletedState] = _KEPT
    ) -> tuple[DeletedRepository, Held]:
        every = await self.list(prefix=name)
        found = [one for one in every if one.record.name == name and uid in ("", one.uid)]
        kept = [one for one in found if one.record.state in states]
        if len(kept) > 1:
            uids = ", ".join(one.uid for one in kept)
            raise Conflict(f"{len(kept)} deleted repositories had the name {name}: choose one of {uids}")
        if kept:
            held = await self._store.get(DELETED_REPOSITORIES, kept[0].uid.encode())
            if held is not None and decode_record(DeletedRecord, held.value) == kept[0].record:
                return kept[0], held
        state = f": it is {found[0].record.state_shown}" if found else ""
        deed = "brought back or forgotten" if states is _KEPT else "collected or forgotten"
        raise DeletedNotFound(f"no deleted repository {name} can be {deed}{state}", repository=name)

    async def _move(self, uid: RepositoryUid, record: DeletedRecord, held: Held) -> tuple[DeletedRecord, Held]:
        """Replace the record by another with a fresh `move`, so that no other process writes the same bytes.

        Raises:
            DeletedNotFound: another process replaced the record meanwhile.
            OutcomeUnknown: the answer was lost, and the record does not show the outcome.
        """
        value = encode_record(record)
        try:
            predicate = await self._store.set_if(DELETED_REPOSITORIES, uid.encode(), value, held.predicate)
        except (PredicateFailed, OutcomeUnknown) as error:
            # If an answer was lost, or a driver repeated the write, the stored record may be ours.
            now = await self._store.get(DELETED_REPOSITORIES, uid.encode())
            if now is not None and now.value == value:
                return record, now
            if isinstance(error, OutcomeUnknown):
                raise
            message = f"the deleted repository {record.name} was brought back, collected or forgotten meanwhile"
            raise DeletedNotFound(message, repository=record.name) from error
        return record, Held(value, predicate)

    async def _restore(self, uid: RepositoryUid, restoring: DeletedRecord, held: Held) -> RepositoryId:
        """Run steps 2 to 5. Any number of processes may run them at once."""
        assert restoring.repository is not None
        name = RepositoryId(restoring.restoring_as)
        attempt = f"{restoring.move}/{self._ports.ids.fresh()}"
        coming = replace(restoring.repository, state=RepositoryState.RESTORING, attempt=attempt)
        value = encode_record(coming)
        try:
            claimed = Held(value, await self._store.set_if(keys.REPOSITORIES, name.encode(), value, None))
        except PredicateFailed:
            other = await self._store.get(keys.REPOSITORIES, name.encode())
            theirs = None if other is None else decode_record(RepositoryRecord, other.value)
            if other is None or theirs is None or not theirs.attempt.startswith(f"{restoring.move}/"):
                kept = replace(restoring, state=DeletedState.KEPT, move=self._ports.ids.fresh(), restoring_as="")
                with suppress(DeletedNotFound):
                    await self._move(uid, kept, held)
                return await self._restored(uid, name)
            coming, claimed = theirs, other
        await self._resume(uid, held)
        restored = replace(
            restoring, state=DeletedState.RESTORED, move=self._ports.ids.fresh(), restored_by=coming.attempt
        )
        with suppress(DeletedNotFound):
            await self._move(uid, restored, held)
        await self.settle(name, coming, claimed)
        return await self._restored(uid, name)

    async def _restored(self, uid: RepositoryUid, name: RepositoryId) -> RepositoryId:
        """Return the name of a repository that another process restored.

        Raises:
            RepositoryExists: the name was taken, and the repository remains deleted.
        """
        now = await self._store.get(DELETED_REPOSITORIES, uid.encode())
        if now is None or decode_record(DeletedRecord, now.value).state is not DeletedState.RESTORED:
            raise RepositoryExists("repository exists", repository=name)
        return name

    async def _resume(self, uid: RepositoryUid, held: Held) -> None:
        partition = keys.repository_partition(uid)

        async def resume(key: bytes) -> None:
            while (found := await self._store.get(partition, key)) is not None:
                branch = decode_record(BranchRecord, found.value)
                if branch.state is not RefState.SUSPENDED:
                    return
                now = await self._store.get(DELETED_REPOSITORIES, uid.encode())
                if now is None or now.value != held.value:
                    return
                active = replace(branch, state=RefState.ACTIVE, epoch=branch.epoch + 1)
                with suppress(PredicateFailed):
                    await self._store.set_if(partition, key, encode_record(active), found.predicate)

        await self._each_branch(uid, resume)

    async def settle(self, name: RepositoryId, record: RepositoryRecord, held: Held) -> None:
        """Run step 5 for a repository that is `restoring`, or remove the claim of a process that was too late."""
        deleted = await self._store.get(DELETED_REPOSITORIES, record.uid.encode())
        now = None if deleted is None else decode_record(DeletedRecord, deleted.value)
        if now is not None and now.state is DeletedState.RESTORING and record.attempt.startswith(f"{now.move}/"):
            return  # Step 4 is not done: `clean` goes on with it.
        with suppress(PredicateFailed):
            if now is not None and now.state is DeletedState.RESTORED and now.restored_by == record.attempt:
                active = encode_record(replace(record, state=RepositoryState.ACTIVE, attempt=""))
                await self._store.set_if(keys.REPOSITORIES, name.encode(), active, held.predicate)
            else:
                await self._store.delete_if(keys.REPOSITORIES, name.encode(), held.predicate)

    # Collecting

    async def find(self, name: str, *, uid: str = "") -> DeletedRepository:
        """Return a repository that can be collected, is being collected, or was just collected.

        Raises:
            DeletedNotFound, Conflict: as for `undelete`.
        """
        return (await self._find_kept(name, uid, _COLLECTABLE | {DeletedState.COLLECTED}))[0]

    async def check_collectable(self, uid: RepositoryUid) -> int:
        """Return the instant (Unix ms) after which collections delete. Their plans must be made after it as well.

        Raises:
            DeletedNotFound: it was restored, forgotten or collected.
        """
        return _collectable_ms((await self._read_as(uid, _COLLECTABLE))[0])

    async def delete_from_ms(self, uid: RepositoryUid) -> int:
        """Return the instant of `check_collectable`, also for a repository that was collected.

        Raises:
            DeletedNotFound: it was restored or forgotten, or its records were purged.
        """
        return _collectable_ms((await self._read_as(uid, _COLLECTABLE | {DeletedState.COLLECTED}))[0])

    async def begin_collecting(self, uid: RepositoryUid, *, planned_ms: int, store_ms: int) -> None:
        """Allow collections to delete, and refuse a restore from now on. Repeated calls change nothing.

        The window must be over by the server's clock and the object store's (`store_ms`), and the plan made after
        that. Uploads that were under way at the deletion have ended by then, so the plan's listing has their bytes.

        Raises:
            DeletedNotFound: it was restored or forgotten, or is being so now.
            WindowNotOver: the window is not over, or was not when the collection was planned.
            DeleteProtected: legal holds are in force.
        """
        record, held = await self._read_as(uid, _COLLECTABLE)
        over_ms = _collectable_ms(record)
        if min(self._ports.clock.now_ms(), store_ms) < over_ms:
            raise WindowNotOver(
                f"the deleted repository {record.name} can be brought back still: nothing of it is deleted before"
                f" {_utc(over_ms)}. Plan again then",
                repository=record.name,
                until_ms=over_ms,
            )
        if planned_ms < over_ms:
            raise WindowNotOver(
                f"this was planned while the deleted repository {record.name} could be brought back, which ended"
                f" {_utc(over_ms)}: plan again",
                repository=record.name,
                until_ms=over_ms,
            )
        if record.state is DeletedState.KEPT:
            await self.check_holds(record.name, uid)
            await self._move(uid, self._moved(record, DeletedState.COLLECTING), held)

    async def note_named(self, uid: RepositoryUid, run: RunId, named: int) -> None:
        """Record, before the deletes, how many names of its objects a collection found in other repositories.

        Raises:
            DeletedNotFound: it is not being collected, or another collection recorded its number at this moment.
        """
        record, held = await self._read_as(uid, {DeletedState.COLLECTING})
        await self._move(uid, replace(record, move=self._ports.ids.fresh(), run=run, named=named), held)

    async def end_collecting(self, uid: RepositoryUid, run: RunId) -> None:
        """Record that the collection deleted every planned object. No object is left, unless other repositories name
        some.

        If another collection searched for names after this one, its result decides.
        """
        record, held = await self._read_as(uid, {DeletedState.COLLECTING, DeletedState.COLLECTED})
        if record.state is DeletedState.COLLECTING and record.run == run and not record.named:
            collected = replace(self._moved(record, DeletedState.COLLECTED), collected_ms=self._ports.clock.now_ms())
            await self._move(uid, collected, held)

    def _moved(self, record: DeletedRecord, state: DeletedState) -> DeletedRecord:
        return replace(record, state=state, move=self._ports.ids.fresh())

    async def _read_as(self, uid: RepositoryUid, states: Collection[DeletedState]) -> tuple[DeletedRecord, Held]:
        held = await self._store.get(DELETED_REPOSITORIES, uid.encode())
        record = None if held is None else decode_record(DeletedRecord, held.value)
        if held is None or record is None or record.state not in states:
            now = "gone" if record is None else record.state.value
            raise DeletedNotFound(f"the deleted repository {uid} is {now}: no collection takes it", uid=uid)
        return record, held

    async def free_marker(self, uri: str) -> str | None:
        """Return the content of the marker of a namespace that may be used again, or None if it may not."""
        every = [one.record async for one in self._every()]
        mine = [one for one in every if one.repository is not None and one.repository.namespace_uri == uri]
        free = [one for one in mine if one.state is DeletedState.GONE]
        return free[0].repository.marker if free and len(free) == len(mine) and free[0].repository else None

    async def use_again(self, uri: str) -> None:
        """Remove the records that the namespace is free, because it is in use again."""
        async for one in self._every():
            record = one.record
            if record.state is DeletedState.GONE and record.repository and record.repository.namespace_uri == uri:
                held = await self._store.get(DELETED_REPOSITORIES, one.uid.encode())
                if held is not None and decode_record(DeletedRecord, held.value) == record:
                    await self._forget_place(one)
                    with suppress(PredicateFailed):
                        await self._store.delete_if(DELETED_REPOSITORIES, one.uid.encode(), held.predicate)

    # Forgetting

    async def forget(self, name: str, *, uid: str = "") -> RepositoryUid:
        """Remove every record of a deleted repository permanently. Objects that were not collected remain.

        Raises:
            DeletedNotFound, Conflict: as for `undelete`.
            DeleteProtected: legal holds are in force.
        """
        found, held = await self._find_kept(name, uid, _FORGETTABLE)
        if found.record.state is DeletedState.GONE:
            await self._forget_place(found)
            with suppress(PredicateFailed):
                await self._store.delete_if(DELETED_REPOSITORIES, found.uid.encode(), held.predicate)
            return found.uid
        # Requests do not find a deleted repository, so no hold can be added after this check.
        await self.check_holds(found.record.name, found.uid)
        purging = replace(found.record, state=DeletedState.PURGING, move=self._ports.ids.fresh(), purged_ms=0)
        await self._move(found.uid, purging, held)
        await self.purge(found.uid)
        return found.uid

    async def check_holds(self, name: str, uid: RepositoryUid) -> None:
        """Check that no legal hold is in force.

        Raises:
            DeleteProtected: legal holds keep data of the repository.
        """
        found = await self._store.get(keys.repository_partition(uid), keys.LEGAL_HOLDS)
        holds = () if found is None else decode_record(HoldNamesRecord, found.value).holds
        if holds:
            names = ", ".join(hold.name for hold in holds)
            raise DeleteProtected(
                f"legal holds keep data of repository {name}: release {names} first", repository=name, holds=names
            )

    async def clean(self) -> None:
        """Continue steps that a crash interrupted, and purge once more after older requests ended."""
        async for one in self._every():
            match one.record.state:
                case DeletedState.RESTORING:
                    held = await self._store.get(DELETED_REPOSITORIES, one.uid.encode())
                    if held is not None and decode_record(DeletedRecord, held.value) == one.record:
                        with suppress(RepositoryExists):
                            await self._restore(one.uid, one.record, held)
                case DeletedState.COLLECTED:
                    await self._purge_collected(one)
                case DeletedState.PURGING:
                    await self._purge_again(one)
                case _:
                    pass

    async def _purge_again(self, one: DeletedRepository) -> None:
        """Purge if no purge began yet. Purge for the last time once older requests must be over: they may still
        write.
        """
        if self._ports.clock.now_ms() - one.record.purged_ms < DELETED_AGE_MS:
            return
        await self.purge(one.uid)
        if not one.record.purged_ms:
            return
        await self._purge_partition(deleted_partition(one.uid))
        if not one.record.collected_ms:
            await self._forget_place(one)
            await self._store.delete(DELETED_REPOSITORIES, one.uid.encode())
            return
        # Use `set_if`: a process that slept here until the namespace was used again must not mark it free.
        with suppress(DeletedNotFound):
            record, held = await self._read_as(one.uid, {DeletedState.PURGING})
            await self._move(one.uid, self._moved(record, DeletedState.GONE), held)

    async def _purge_collected(self, one: DeletedRepository) -> None:
        """Purge the records of a collected repository, after an hour for its collection to report."""
        if self._ports.clock.now_ms() - one.record.collected_ms < DELETED_AGE_MS:
            return
        with suppress(DeletedNotFound):
            record, held = await self._read_as(one.uid, {DeletedState.COLLECTED})
            await self._move(one.uid, replace(self._moved(record, DeletedState.PURGING), purged_ms=0), held)
            await self.purge(one.uid)

    async def purge(self, uid: RepositoryUid) -> None:
        """Note the tokens of a permanently unusable repository, remove its records, and then the tokens' cells."""
        partition = keys.repository_partition(uid)
        noted = {StagingToken(key.decode()) async for key, _ in scan_prefix(self._store, deleted_partition(uid), b"")}
        await self._note(uid, (), noted)
        async for runs, _ in scan_pages(self._store, partition, keys.RUN, first=AT_ONCE):
            published = [keys.expiring_partition(uid, RunId(run[len(keys.RUN) :].decode())) for run in runs]
            await in_waves(self._ports.tasks, published, self._purge_partition)
        await self._purge_partition(keys.retired_partition(uid))
        await self._purge_partition(keys.garbage_partition(uid))
        await self._purge_partition(keys.taken_partition(uid))
        await self._purge_partition(keys.events_partition(uid))
        while (page := await self._store.scan(partition, b"", _PURGE_PAGE)).keys:
            await self._note(uid, _tokens(page), noted)
            branches = {key for key in page.keys if key.startswith(keys.BRANCH)}
            await self._store.delete_many(partition, [key for key in page.keys if key not in branches])
            await in_waves(self._ports.tasks, sorted(branches), lambda key: self._remove_branch(uid, key, noted))
        tokens = [keys.token_partition(uid, token) for token in sorted(noted)]
        await in_waves(self._ports.tasks, tokens, self._purge_partition)

    async def _remove_branch(self, uid: RepositoryUid, key: bytes, noted: set[StagingToken]) -> None:
        """Remove a branch only if it did not change since its tokens were noted.

        A commit under way makes a new token. Removing that branch unnoted would leave cells that no record names.
        """
        partition = keys.repository_partition(uid)
        while (held := await self._store.get(partition, key)) is not None:
            await self._note(uid, decode_record(BranchRecord, held.value).tokens(), noted)
            with suppress(PredicateFailed):
                await self._store.delete_if(partition, key, held.predicate)

    async def _note(self, uid: RepositoryUid, tokens: Iterable[StagingToken], noted: set[StagingToken]) -> None:
        """Record tokens, whose cells are removed now and once more later, and add them to `noted`."""
        fresh = sorted(set(tokens) - noted)
        while fresh or not noted:
            held = await self._store.get(DELETED_REPOSITORIES, uid.encode())
            known = DeletedRecord() if held is None else decode_record(DeletedRecord, held.value)
            if known.state is not DeletedState.PURGING or not (fresh or not known.purged_ms):
                break
            # Write the record before the list, because the list is found through it.
            noting = encode_record(replace(known, purged_ms=max(self._ports.clock.now_ms(), 1)))
            with suppress(PredicateFailed):
                predicate = None if held is None else held.predicate
                await self._store.set_if(DELETED_REPOSITORIES, uid.encode(), noting, predicate)
                break
        for at in range(0, len(fresh), _PURGE_PAGE):
            items = [(token.encode(), b"") for token in fresh[at : at + _PURGE_PAGE]]
            await self._store.set_many(deleted_partition(uid), items)
        noted.update(fresh)

    async def _forget_place(self, one: DeletedRepository) -> None:
        """Remove the place note right before the record: a note that a crash leaves behind would never be removed."""
        if one.record.repository is not None:
            await self._places.forget(one.record.repository.namespace_uri, one.uid)

    async def _purge_partition(self, partition: bytes) -> None:
        while (page := await self._store.scan(partition, b"", _PURGE_PAGE)).keys:
            await self._store.delete_many(partition, page.keys)

    async def _every(self) -> AsyncIterator[DeletedRepository]:
        async for key, value in scan_prefix(self._store, DELETED_REPOSITORIES, b""):
            yield DeletedRepository(RepositoryUid(key.decode()), decode_record(DeletedRecord, value))


def _tokens(page: Page) -> set[StagingToken]:
    """Return every token that a branch or a claim among these records owns."""
    tokens: set[StagingToken] = set()
    for key, value in zip(page.keys, page.values, strict=True):
        if key.startswith(keys.BRANCH):
            tokens.update(decode_record(BranchRecord, value).tokens())
        elif key.startswith(keys.CLAIM):
            tokens.update(decode_record(ClaimRecord, value).tokens)
    return tokens


def _collectable_ms(record: DeletedRecord) -> int:
    """Return the end of the window, and of the day in which uploads under way may still write bytes."""
    return max(record.kept_until_ms, record.deleted_ms + SIGNED_MS_MAX)


def _utc(unix_ms: int) -> str:
    # Round up, so that the window is over at the named second.
    return datetime.fromtimestamp(-(-unix_ms // 1000), UTC).strftime("%Y-%m-%d %H:%M:%SZ")
