"""Branches and tags: creation, lists, deletion. Expressions that name their commits: expressions.py.

A ref is made in two steps (docs/design/protocols.md, "Naming a commit…"): first `creating`, which cannot be used and
yet every collector honours as a root; then, if no run expired its commit, `active`. Between the two its maker looks for
a ref of the other kind with the same name. Both write first and look then, so one of two sees the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from lakebed.base import (
    BranchName,
    CommitId,
    Conflict,
    LakebedError,
    OutcomeUnknown,
    TagName,
    Unavailable,
    check_branch,
    check_tag,
    each_item,
    is_commit_id,
)
from lakebed.kv import Held, PredicateFailed, scan_pages
from lakebed.versions import keys
from lakebed.versions.context import Context, Seen, branch_of
from lakebed.versions.errors import (
    BranchExists,
    BranchNotFound,
    DeletedRefNotFound,
    NameTaken,
    TagExists,
    TagNotFound,
)
from lakebed.versions.records import (
    BranchRecord,
    ClaimReason,
    DeletedRefRecord,
    MoveRecord,
    RefKind,
    RefState,
    TagRecord,
    decode_record,
    decode_records,
    encode_record,
)
from lakebed.versions.retired import Retired

from .expressions import Expressions
from .reflog import Reflog

R = TypeVar("R", BranchRecord, TagRecord)


class Branch(msgspec.Struct, frozen=True):
    """`expires_ms`: it was made to last until then; 0: for ever."""

    name: BranchName
    commit_id: CommitId
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class Tag:
    name: TagName
    commit_id: CommitId


@dataclass(slots=True, kw_only=True)
class _Deletion:
    """A branch's deletion and the key of its note, if it makes one. `attempts` began so far."""

    operation: str
    deleted_ms: int
    by: str
    kept: bytes | None
    is_hidden: bool = False
    attempts: int = 0


class Refs:
    def __init__(self, context: Context, retired: Retired, reflog: Reflog) -> None:
        self._context = context
        self._expressions = expressions = Expressions(context, reflog)
        self.resolve, self.resolve_commit = expressions.resolve, expressions.resolve_commit
        self._reflog = reflog
        self._retired = retired

    def knows_branch(self, name: str) -> bool:
        """Return whether a read of this expression now would resolve it through the cached head of a branch."""
        return not is_commit_id(name) and self._context.branches.known(name) is not None

    async def kind_of(self, name: str) -> RefKind | None:
        """Return whether a plain name is read as a branch or as a tag. None: as a commit, or it names nothing."""
        if is_commit_id(name):
            return None
        if await self._expressions.branch_or_none(name) is not None:
            return RefKind.BRANCH
        return None if await self._expressions.tag_or_none(name) is None else RefKind.TAG

    # Branches

    async def get_branch(self, name: str) -> Branch:
        """
        Raises:
            BranchNotFound: there is none.
        """
        record = (await self._context.branches.fresh(name)).record
        return Branch(BranchName(name), record.commit_id, record.expires_ms)

    async def sandboxes_of(self, names: Sequence[str]) -> list[str]:
        """Return for each branch the sandbox that made it: "" where none did, or where there is no such branch."""
        branches = await self._context.get_many([keys.BRANCH + name.encode() for name in names])
        records = [None if branch is None else decode_record(BranchRecord, branch.value) for branch in branches]
        return [record.sandbox if record and record.state is RefState.ACTIVE else "" for record in records]

    async def is_work_of(self, name: str, flow: str) -> bool:
        """Return whether there is such a branch and this flow made it. No mark beside the branch decides that: a crash
        or a race could leave the mark at a branch of a user."""
        record = await self._expressions.branch_or_none(name)
        return record is not None and record.work_of == flow

    async def is_committing(self, name: str) -> bool:
        """Return whether a commit of this branch is under way, or was when its committer died."""
        return bool((await self._context.branches.fresh(name)).record.sealed)

    async def list_branches(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> tuple[list[Branch], bool]:
        """At most `limit` branches after the name `after`, in order, and whether there are more."""
        branches: list[Branch] = []
        start = keys.BRANCH + after.encode() + b"\0" if after else b""
        context = self._context
        async for names, values in scan_pages(
            context.store, context.partition, keys.BRANCH + prefix.encode(), start=start, first=limit + 1
        ):
            records = decode_records(BranchRecord, values)
            branches += [
                Branch(branch_of(key), record.commit_id, record.expires_ms)
                for key, record in zip(names, records, strict=True)
                if record.state is RefState.ACTIVE
            ]
            if len(branches) > limit:
                return branches[:limit], True
        return branches, False

    def every_branch(self, prefix: str = "") -> AsyncIterator[Branch]:
        """Yield every branch in use with this prefix, by name."""
        return each_item(lambda after: self.list_branches(prefix=prefix, after=after), attrgetter("name"), "")

    async def create_branch(
        self, name: str, source: str, *, by: str = "", lasts_ms: int = 0, sandbox: str = "", work_of: str = ""
    ) -> CommitId:
        """Make a branch at the commit that `source` names; staged changes of a source branch stay there.

        `lasts_ms`: a sweep of branches may delete it when it is so old. 0: its age is no reason. `sandbox` marks the
        branch as made for this sandbox, and `work_of` as that of a flow of this package.

        Raises:
            BranchExists, NameTaken: a branch or a tag has this name, or it is a commit id.
            CommitExpired: a collection takes this commit.
        """
        check_branch(name)
        commit_id = await self.resolve_commit(source)
        record = replace(self._new_branch(commit_id, lasts_ms=lasts_ms), sandbox=sandbox, work_of=work_of)
        return await self._make_branch(name, record, operation="create", by=by)

    def first_branch(self, name: str, commit_id: CommitId) -> tuple[bytes, bytes]:
        """Return the key and the record of the branch of a repository that no one sees yet. It is usable at once.

        Raises:
            NameTaken: the name is a commit id.
        """
        check_no_commit(name)
        # No one can make a tag of its name, or begin a run that takes its commit: so skip `creating`. No branch of this
        # name was there before, so it needs no condition, and has no log.
        record = replace(self._new_branch(commit_id), state=RefState.ACTIVE)
        record = self._reflog.very_first_move(record, operation="create", by="")
        return keys.BRANCH + name.encode(), encode_record(record)

    async def _make_branch(self, name: str, record: BranchRecord, *, operation: str, by: str) -> CommitId:
        check_no_commit(name)
        held = await self._make_ref(
            keys.BRANCH + name.encode(), record, BranchExists("branch already exists", branch=name)
        )
        await self._activate(name, held, replace(record, state=RefState.ACTIVE), operation=operation, by=by)
        return record.commit_id

    def _new_branch(self, commit_id: CommitId, *, lasts_ms: int = 0) -> BranchRecord:
        now_ms = self._context.ports.clock.now_ms()
        return BranchRecord(
            state=RefState.CREATING,
            commit_id=commit_id,
            staging_token=self._context.fresh_token(),
            created_ms=now_ms,
            expires_ms=now_ms + lasts_ms if lasts_ms else 0,
        )

    async def delete_branch(
        self, name: str, *, by: str = "", is_kept: bool = True, is_hidden: bool = False, sandbox: str | None = None
    ) -> None:
        """Delete the branch and its staged changes. With `is_kept` its head counts as named for a while, so that
        `undelete_branch` finds it whole. `is_hidden` is noted with it. With `sandbox`, delete only the branch that
        was made for that sandbox.

        Raises:
            BranchNotFound: there is none, or it was not made for this sandbox.
            OutcomeUnknown: the answer was lost and the record proves nothing.
        """
        deletion = self._deletion(name, by=by, is_kept=is_kept)
        deletion.is_hidden = is_hidden
        while True:
            try:
                seen = await self._context.branches.fresh(name)
                _check_made_for(sandbox, name, seen.record)
            except BranchNotFound:
                await self._take_back(deletion)  # Another deletion was faster, and noted its own.
                raise
            if await self._delete_seen(name, seen, deletion):
                return

    async def delete_unused_branch(
        self, name: str, *, may_go: Callable[[BranchRecord], Awaitable[bool]], by: str = ""
    ) -> bool:
        """Delete a branch, as `delete_branch` does, if no one uses it meanwhile. Return whether it is gone.

        `may_go` is asked once. In doubt the branch stays.

        Raises:
            BranchNotFound: there is none.
            OutcomeUnknown: as `delete_branch`.
        """
        seen = await self._context.branches.fresh(name)
        marked = replace(seen.record, leaving=self._context.ports.ids.fresh())
        try:
            # Mark first: then `may_go` finds all writes that were acknowledged before. A writer that acknowledges later
            # takes the mark off first (`BranchRecords.used`), and a flow that moves the branch changes the record. In
            # both cases it stays. A mark that is left over harms nothing.
            seen = await self._context.branches.set(name, marked, seen)
        except PredicateFailed:
            return False
        try:
            goes = await may_go(seen.record)
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                await self._unmark(name, seen)
            raise
        if not goes:
            await self._unmark(name, seen)
            return False
        deletion = self._deletion(name, by=by, is_kept=True)
        if not await self._delete_seen(name, seen, deletion):
            await self._take_back(deletion)
            return False
        return True

    async def _unmark(self, name: str, seen: Seen) -> None:
        with suppress(LakebedError):
            await self._context.branches.set(name, replace(seen.record, leaving=""), seen)

    def _deletion(self, name: str, *, by: str, is_kept: bool) -> _Deletion:
        operation = self._context.ports.ids.fresh()
        deleted_ms = self._context.ports.clock.now_ms()
        kept = keys.deleted_ref(RefKind.BRANCH, name, deleted_ms, operation) if is_kept else None
        return _Deletion(operation=operation, deleted_ms=deleted_ms, by=by, kept=kept)

    async def _delete_seen(self, name: str, seen: Seen, deletion: _Deletion) -> bool:
        """Delete the branch as it was seen. False: it is another by now, or gone.

        Raises:
            OutcomeUnknown: the answer was lost and the record proves nothing.
        """
        deletion.attempts += 1
        await self._context.commits.note_head(seen.record.commit_id)
        # Before the branch goes, so that collectors, which read branches first, find the one or the other.
        also = self._reflog.to_log(name, seen.record)
        if deletion.kept is not None:
            kept = self._deleted(
                RefKind.BRANCH, name, seen.record, deletion.deleted_ms, deletion.by, is_hidden=deletion.is_hidden
            )
            also.append((deletion.kept, kept))
        tokens, operation = seen.record.tokens(), deletion.operation
        await self._context.claim(operation, deletion.attempts, name, tokens, why=ClaimReason.DELETE, also=also)
        self._context.branches.forget(name)
        try:
            await self._context.delete_if(keys.BRANCH + name.encode(), seen.held.predicate)
        except PredicateFailed:
            return False
        except OutcomeUnknown:
            if await self._context.after_lost(self._context.get(keys.BRANCH + name.encode())) is not None:
                raise
        with suppress(Unavailable, OutcomeUnknown):
            await self._reflog.note_deleted(name, seen.record, by=deletion.by)
        return True

    async def _take_back(self, deletion: _Deletion) -> None:
        """Remove the note of a deletion that did not take place."""
        if deletion.attempts and deletion.kept is not None:
            await self._context.delete(deletion.kept)

    async def undelete_branch(self, name: str, *, by: str = "") -> CommitId:
        """Make a deleted branch again where it was. Staged changes do not come back.

        Raises:
            DeletedRefNotFound: none of this name is kept.
            BranchExists, NameTaken, CommitExpired: as for `create_branch`.
        """
        found = await self.find_deleted(RefKind.BRANCH, name)
        return await self._make_branch(name, self._new_branch(found.commit_id), operation="undelete", by=by)

    async def moves(
        self, kind: RefKind, name: str, *, before_ms: int | None = None, limit: int = 100
    ) -> tuple[Sequence[MoveRecord], bool]:
        """Return the moves of a branch or tag, the newest first, and whether there are more; of a deleted one too.

        Raises:
            BranchNotFound, TagNotFound: there is none, and no log of one.
        """
        is_branch = kind is RefKind.BRANCH
        record = await (self._expressions.branch_or_none(name) if is_branch else self._expressions.tag_or_none(name))
        moves, has_more = await self._reflog.list(kind, name, record, before_ms=before_ms, limit=limit)
        if record is None and not moves and before_ms is None:
            if is_branch:
                raise BranchNotFound(f"branch {name} not found", branch=name)
            raise TagNotFound(f"tag {name} not found", tag=name)
        return moves, has_more

    # Deleted refs

    async def list_deleted(self, kind: RefKind) -> Sequence[DeletedRefRecord]:
        """Return the deleted branches or tags that can come back, by name: of a name that is free the newest."""
        now_ms = self._context.ports.clock.now_ms()
        newest: dict[str, DeletedRefRecord] = {}
        async for _, record in self._context.records(DeletedRefRecord, keys.deleted_refs(kind)):
            newest.setdefault(record.name, record)
        if newest:
            prefix = keys.BRANCH if kind is RefKind.BRANCH else keys.TAG
            async for key, _ in self._context.scan(prefix):
                newest.pop(key[len(prefix) :].decode(), None)
        return [record for record in newest.values() if now_ms < record.kept_until_ms]

    async def clean_deleted(self) -> int:
        """Remove the notes of refs that are kept no more."""
        now_ms = self._context.ports.clock.now_ms()
        records = self._context.records(DeletedRefRecord, keys.DELETED)
        over = [key async for key, record in records if record.kept_until_ms < now_ms]
        if over:
            await self._context.store.delete_many(self._context.partition, over)
        return len(over)

    async def forget_deleted(self, kind: RefKind, name: str) -> None:
        """Remove the notes of all deletions of this name: their commits count as named no more, and none comes back.

        An undelete that read a note before is a ref that is being made, and safe as such.

        Raises:
            DeletedRefNotFound: none of this name is kept.
        """
        records = self._context.records(DeletedRefRecord, keys.deleted_refs(kind, name))
        notes = [key async for key, deletion in records if deletion.name == name]
        if not notes:
            raise DeletedRefNotFound(f"no deleted {kind} {name} is kept any more", name=name)
        await self._context.store.delete_many(self._context.partition, notes)

    def _deleted(
        self,
        kind: RefKind,
        name: str,
        record: BranchRecord | TagRecord,
        deleted_ms: int,
        by: str,
        *,
        is_hidden: bool = False,
    ) -> bytes:
        return encode_record(
            DeletedRefRecord(
                kind=kind,
                name=name,
                commit_id=record.commit_id,
                deleted_ms=deleted_ms,
                deleted_by=by,
                kept_until_ms=deleted_ms + self._context.options.deleted_refs_ms,
                is_hidden=is_hidden,
            )
        )

    async def find_deleted(self, kind: RefKind, name: str) -> DeletedRefRecord:
        """Return the newest deletion of this name.

        Raises:
            BranchExists, TagExists, DeletedRefNotFound: none of this name is kept. The first two: it was not deleted.
        """
        async for _, record in self._context.records(DeletedRefRecord, keys.deleted_refs(kind, name)):
            if record.name == name:
                if self._context.ports.clock.now_ms() >= record.kept_until_ms:
                    break
                return record
        is_branch = kind is RefKind.BRANCH
        if await (self._expressions.branch_or_none(name) if is_branch else self._expressions.tag_or_none(name)):
            raise (BranchExists if is_branch else TagExists)(f"{kind} {name} exists: it was not deleted", name=name)
        raise DeletedRefNotFound(f"no deleted {kind} {name} is kept any more", name=name)

    # Tags

    async def get_tag(self, name: str) -> CommitId:
        """
        Raises:
            TagNotFound: there is none.
        """
        found = await self._expressions.tag_or_none(name)
        if found is None:
            raise TagNotFound(f"tag {name} not found", tag=name)
        return found.commit_id

    async def list_tags(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> tuple[list[Tag], bool]:
        """At most `limit` tags after the name `after`, in order, and whether there are more."""
        tags: list[Tag] = []
        start = keys.TAG + after.encode() + b"\0" if after else b""
        async for key, record in self._context.records(TagRecord, keys.TAG + prefix.encode(), start=start):
            if record.state is RefState.ACTIVE:
                tags.append(Tag(TagName(key[len(keys.TAG) :].decode()), record.commit_id))
            if len(tags) > limit:
                return tags[:limit], True
        return tags, False

    def every_tag(self) -> AsyncIterator[Tag]:
        """Yield every tag in use, by name."""
        return each_item(lambda after: self.list_tags(after=after), attrgetter("name"), "")

    async def create_tag(self, name: str, source: str, *, by: str = "") -> CommitId:
        """
        Raises:
            TagExists, NameTaken: a tag or a branch has this name, or it is a commit id.
            CommitExpired: a collection takes this commit.
        """
        check_tag(name)
        return await self._make_tag(name, await self.resolve_commit(source), operation="create", by=by)

    async def _make_tag(self, name: str, commit_id: CommitId, *, operation: str, by: str) -> CommitId:
        check_no_commit(name)
        record = TagRecord(state=RefState.CREATING, commit_id=commit_id, created_ms=self._context.ports.clock.now_ms())
        held = await self._make_ref(keys.TAG + name.encode(), record, TagExists("tag already exists", tag=name))
        await self._activate(name, held, replace(record, state=RefState.ACTIVE), operation=operation, by=by)
        return commit_id

    async def delete_tag(self, name: str, *, by: str = "") -> None:
        """Delete the tag. Its commit counts as named for a while, so that `undelete_tag` finds it whole.

        Raises:
            TagNotFound: there is none.
        """
        deleted_ms = self._context.ports.clock.now_ms()
        kept = keys.deleted_ref(RefKind.TAG, name, deleted_ms, self._context.ports.ids.fresh())
        is_noted = False
        while True:
            found = await self._context.read(TagRecord, keys.TAG + name.encode())
            if found is None or found[0].state is not RefState.ACTIVE:
                if is_noted:
                    await self._context.delete(kept)
                raise TagNotFound(f"tag {name} not found", tag=name)
            noted = (kept, self._deleted(RefKind.TAG, name, found[0], deleted_ms, by))
            await self._context.set_all([noted, *self._reflog.to_log(name, found[0])])
            is_noted = True
            try:
                await self._context.delete_if(keys.TAG + name.encode(), found[1].predicate)
            except PredicateFailed:
                continue
            with suppress(Unavailable, OutcomeUnknown):
                await self._reflog.note_deleted(name, found[0], by=by)
            return

    async def undelete_tag(self, name: str, *, by: str = "") -> CommitId:
        """
        Raises:
            DeletedRefNotFound: none of this name is kept.
            TagExists, NameTaken, CommitExpired: as for `create_tag`.
        """
        found = await self.find_deleted(RefKind.TAG, name)
        return await self._make_tag(name, found.commit_id, operation="undelete", by=by)

    # Making a ref

    async def _make_ref(self, key: bytes, record: BranchRecord | TagRecord, exists: Exception) -> Held:
        """Step 1: the ref as `creating`. A dead attempt of another maker is removed first."""
        value = encode_record(record)
        for _ in range(2):
            try:
                return await self._context.set_if(key, value, None)
            except PredicateFailed:
                if not await self.remove_dead(key, type(record)):
                    raise exists from None
            except OutcomeUnknown:
                held = await self._context.after_lost(self._context.get(key))
                if held is None:
                    raise
                if held.value == value:
                    return held
                raise exists from None
        raise exists

    async def remove_dead(self, key: bytes, kind: type[BranchRecord] | type[TagRecord]) -> bool:
        """Remove a ref that has been `creating` for too long. Its maker, should it wake up, finds it gone and fails."""
        held = await self._context.get(key)
        if held is None:
            return True
        record = decode_record(kind, held.value)
        age_ms = self._context.ports.clock.now_ms() - record.created_ms
        if record.state is not RefState.CREATING or age_ms < self._context.options.creating_age_ms_max:
            return False
        try:
            await self._context.delete_if(key, held.predicate)
        except (PredicateFailed, OutcomeUnknown):
            return False
        return True

    async def _activate(self, name: str, held: Held, active: R, *, operation: str, by: str) -> None:
        """Steps 2 and 3: check that the name is free and the commit not expiring, then make the ref usable.

        If a check fails, remove the ref.
        """
        key = (keys.BRANCH if isinstance(active, BranchRecord) else keys.TAG) + name.encode()
        try:
            if isinstance(active, BranchRecord):
                await self._check_no_tag(name)
            else:
                await self._check_no_branch(name)
            await self._retired.check_not_expiring([active.commit_id])
            # Only now: while the name is ours, no other ref of it moves. Else one that came and went meanwhile could
            # have logged moves later than this first one, and readers of the log would miss it.
            active = await self._reflog.first_move(name, active, operation=operation, by=by)
            await self._set_active(key, held, encode_record(active))
        except BaseException as error:
            # Also when we are cancelled, or no one could make this ref until it counts as dead. A ref that became
            # active in spite of the error is no longer the record that was read, and stays.
            if not isinstance(error, GeneratorExit):
                with suppress(LakebedError):
                    await self._context.delete_if(key, held.predicate)
            raise

    async def _check_no_tag(self, name: str) -> None:
        """A tag that is being made gives way to the branch: else both could refuse.

        Raises:
            NameTaken: a tag has this name.
        """
        key = keys.TAG + name.encode()
        held = await self._context.get(key)
        if held is None:
            return
        if decode_record(TagRecord, held.value).state is RefState.CREATING:
            # Exactly the record that was read, so its maker finds it gone and fails, or has made it active.
            with suppress(PredicateFailed, OutcomeUnknown):
                await self._context.delete_if(key, held.predicate)
                return
        raise NameTaken(f"tag ID {name}: conflict found", name=name)

    async def _check_no_branch(self, name: str) -> None:
        """
        Raises:
            NameTaken: a branch has this name, or is being made.
        """
        if not await self.remove_dead(keys.BRANCH + name.encode(), BranchRecord):
            raise NameTaken(f"branch name {name}: conflict found", name=name)

    async def _set_active(self, key: bytes, held: Held, value: bytes) -> None:
        try:
            await self._context.set_if(key, value, held.predicate)
        except PredicateFailed:
            raise Conflict("it was removed while it was being made; try again") from None
        except OutcomeUnknown:
            now = await self._context.after_lost(self._context.get(key))
            if now is None or now.value != value:
                raise


def _check_made_for(sandbox: str | None, name: str, record: BranchRecord) -> None:
    """
    Raises:
        BranchNotFound: the branch is not the one that this sandbox made. None: it need not be.
    """
    if sandbox is not None and record.sandbox != sandbox:
        raise BranchNotFound(f"branch {name} is not of sandbox {sandbox}", branch=name)


def check_no_commit(name: str) -> None:
    """Refuse a whole commit id as the name of a branch or tag, whether there is such a commit or not.

    A commit with this id could still come, by a migration or from a dump.

    Raises:
        NameTaken: the name has the form of a commit id.
    """
    if is_commit_id(name):
        raise NameTaken(f"commit ID {name}: conflict found", name=name)
