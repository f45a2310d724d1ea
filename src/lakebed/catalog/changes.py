"""Changes of branches and tags, with the guards and the queue in front of them.

Commits, merges, reverts and cherry-picks of one branch take turns (`queue.py`). A commit that waits behind others may
find that one of them took its data along. If the branch moved since it arrived, it then makes a commit without changes.
The tree of that commit holds every write acknowledged before it began, and history shows the request.

Between processes there is no queue. The cached head, and cells that were set again, show that another process took the
data along. A committer that finds another one's sealed tokens waits a little before it seals
its own. If both built at once, one of them would have to build twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from lakebed.base import CommitId, Ports
from lakebed.versions import (
    BranchNotFound,
    BranchRecord,
    Commit,
    CommitOvertaken,
    NoChanges,
    Note,
    RefKind,
    Strategy,
    UncommittedChanges,
    Versions,
)

from .errors import DefaultBranchKept, DeleteProtected
from .guards import Guards
from .hooks import Event, EventType, Hooks
from .queue import BranchQueue
from .records import RepositoryRecord
from .settings import Settings, find_match

T = TypeVar("T")

PICKED_KEY: Final = "cherry-pick-origin"
PICKED_COMMITTER_KEY: Final = "cherry-pick-committer"
ATTEMPTS_MAX: Final = 5
"""Start a commit again at most this often, after another process or a reset took the tokens that it had sealed."""
POLITE_STEPS: Final = 20
POLITE_STEP_S: Final = 0.02
"""Wait at most 0.4 s: a committer that died leaves sealed tokens, and the next commit must not take long."""


class Changes:
    def __init__(
        self,
        versions: Versions,
        record: RepositoryRecord,
        settings: Settings,
        guards: Guards,
        queue: BranchQueue,
        ports: Ports,
        hooks: Hooks,
    ) -> None:
        self._hooks = hooks
        self._versions = versions
        self._default_branch = record.default_branch
        self._delete_protected = record.protected_branches
        self._settings = settings
        self._guards = guards
        self._queue = queue
        self._ports = ports

    # Commits

    async def commit(
        self,
        branch: str,
        note: Note,
        *,
        tree: str = "",
        allow_empty: bool = False,
        force: bool = False,
    ) -> Commit:
        """Commit what is staged on a branch, after every commit that arrived earlier.

        With `tree`, commit the tree of another commit, as it is, in the place of the branch's.

        Raises:
            NoChanges: nothing was staged, and no other commit took it meanwhile.
            HookRefused: a hook did.
            CommitQueueTimeout: the branch stayed busy.
            CommitOvertaken: other processes committed first, again and again.
            UncommittedChanges: the branch has some, and is to have `tree`.
            TreeNotFound, CommitExpired: see `Recorder.commit_tree`.
        """
        await self._guards.check_branch_writable(branch, force=force, verb="commit")
        event = _event(EventType.PRE_COMMIT, branch, note)
        if tree:
            make = partial(self._versions.recorder.commit_tree, branch, tree, note, allow_empty=allow_empty)
            return await self._on_clean(event, make)
        # The cached head: that of the caller's last write. Another process may have committed the write since.
        head = (await self._versions.context.branches.cached(branch)).record.commit_id
        attempt = partial(self._versions.commits.commit, branch, note)

        async def make_commit() -> Commit:
            is_owed = allow_empty
            for _ in range(ATTEMPTS_MAX - 1):
                await self._be_polite(branch)
                try:
                    return await attempt(allow_empty=is_owed)
                except (CommitOvertaken, NoChanges) as error:
                    is_taken = bool(error.facts.get("is_taken"))
                    is_owed = is_owed or is_taken or (await self._versions.refs.get_branch(branch)).commit_id != head
                    if isinstance(error, NoChanges) and not is_owed:
                        raise
            return await attempt(allow_empty=is_owed)

        return await self._watched(event, make_commit)

    async def record_commit(self, commit_id: str, commit: Commit, *, force: bool = False) -> None:
        """Write the record of a commit that no branch has: see `Recorder.record`.

        Raises:
            ReadOnly: the repository is, and not `force`.
            InvalidNote: the date is out of bounds, or the words are too many.
        """
        self._guards.check_writable(force=force)
        Note(
            message=commit.message,
            committer=commit.committer,
            metadata=commit.metadata,
            created_ms=commit.created_ms,
        )
        await self._guards.confirm()
        await self._versions.recorder.record(commit_id, commit)

    async def merge(
        self,
        source: str,
        branch: str,
        note: Note,
        *,
        strategy: Strategy = "none",
        allow_empty: bool = False,
        squash: bool = False,
        force: bool = False,
        refuse_expired: bool = False,
    ) -> Commit:
        """Merge a ref into a branch. A protected branch takes merges.

        Raises:
            UncommittedChanges: the branch has some.
            HookRefused: a hook did.
        """
        self._guards.check_writable(force=force)
        # Merge what the hooks looked at, and no commit that comes to the source after it.
        source_id = await self._versions.refs.resolve_commit(source)
        note = replace(note, message=note.message or f"Merge '{source}' into '{branch}'")
        return await self._on_clean(
            replace(
                _event(EventType.PRE_MERGE, branch, note),
                source_ref=source_id,
                source_is_commit=True,
                merge_source=source,
                commit_id=source_id,
            ),
            lambda: self._versions.merges.merge(
                source,
                branch,
                note,
                strategy=strategy,
                allow_empty=allow_empty,
                squash=squash,
                refuse_expired=refuse_expired,
                source_id=source_id,
            ),
        )

    async def revert(
        self,
        branch: str,
        ref: str,
        note: Note,
        *,
        parent_number: int = 0,
        allow_empty: bool = False,
        force: bool = False,
        refuse_expired: bool = False,
    ) -> Commit:
        """Commit on a branch the opposite of another commit. A protected branch takes reverts."""
        self._guards.check_writable(force=force)
        note = replace(note, message=note.message or f"Revert {ref}")
        return await self._on_clean(
            _event(EventType.PRE_REVERT, branch, note),
            lambda: self._versions.merges.revert(
                branch,
                ref,
                note,
                parent_number=parent_number,
                allow_empty=allow_empty,
                refuse_expired=refuse_expired,
            ),
        )

    async def cherry_pick(
        self,
        branch: str,
        ref: str,
        note: Note,
        *,
        parent_number: int = 0,
        force: bool = False,
        refuse_expired: bool = False,
    ) -> Commit:
        """Commit on a branch what another commit changed, and name that commit in the metadata.

        Raises:
            UncommittedChanges: the branch has some.
        """
        self._guards.check_writable(force=force)
        picked = await self._versions.history.get_commit(await self._versions.refs.resolve_commit(ref))
        origin = {PICKED_KEY: picked.id, PICKED_COMMITTER_KEY: picked.committer}
        metadata = {**picked.metadata, **note.metadata, **origin}
        note = replace(note, message=note.message or picked.message, metadata=metadata)
        return await self._on_clean(
            _event(EventType.PRE_CHERRY_PICK, branch, note),
            lambda: self._versions.merges.cherry_pick(
                branch, ref, note, parent_number=parent_number, refuse_expired=refuse_expired
            ),
        )

    # Resets

    async def reset(self, branch: str, *, force: bool = False) -> None:
        """Drop everything that is staged."""
        await self._guards.check_branch_writable(branch, force=force)
        await self._versions.resets.reset(branch)

    async def reset_prefix(self, branch: str, prefix: str, *, force: bool = False) -> None:
        await self._guards.check_branch_writable(branch, force=force)
        await self._versions.resets.reset_prefix(branch, prefix.encode())

    async def reset_object(self, branch: str, key: bytes, *, force: bool = False) -> None:
        await self._guards.check_branch_writable(branch, force=force)
        await self._versions.resets.reset_object(branch, key)

    async def hard_reset(
        self, branch: str, ref: str, *, force: bool = False, refuse_expired: bool = False, by: str = ""
    ) -> None:
        await self._guards.check_branch_writable(branch, force=force)

        async def move() -> None:
            await self._versions.resets.hard_reset(branch, ref, force=force, refuse_expired=refuse_expired, by=by)

        await self._in_turn(branch, move)

    # Branches and tags

    async def create_branch(
        self,
        name: str,
        source: str,
        *,
        hidden: bool = False,
        force: bool = False,
        work_of: str = "",
        by: str = "",
        lasts_ms: int = 0,
        sandbox: str = "",
    ) -> CommitId:
        """Create a branch. `lasts_ms` and `sandbox`: see `Refs`.

        `work_of` is a flow of this package that makes the branch for itself, under a fresh name. No hook sees it.

        Raises:
            BranchExists, RefNotFound, ReadOnly, HookRefused.
        """
        self._guards.check_writable(force=force)

        async def make() -> CommitId:
            commit_id = await self._versions.refs.create_branch(name, source, by=by, lasts_ms=lasts_ms, sandbox=sandbox)
            if hidden:
                await self._settings.hide_branch(name)
            return commit_id

        if work_of:
            # Before it is there: a branch without this mark is a user's.
            await self._settings.hide_branch(name, work_of=work_of)
            return await make()
        event = Event(type=EventType.PRE_CREATE_BRANCH, source_ref=source, branch=name, committer=by)
        return await self._make_ref(event, make)

    async def delete_branch(
        self,
        name: str,
        *,
        force: bool = False,
        is_ours: bool = False,
        by: str = "",
        may_go: Callable[[BranchRecord], Awaitable[bool]] | None = None,
        sandbox: str | None = None,
    ) -> bool:
        """Delete a branch, which can come back for a while. `is_ours`: made with `work_of`; such a one does not.
        With `sandbox` it goes only if it was made for that sandbox.

        With `may_go` it goes only if that allows it and no one uses it meanwhile (`Refs.delete_unused_branch`). Return
        whether it is gone.

        Raises:
            DefaultBranchKept, DeleteProtected, ReadOnly, BranchNotFound, HookRefused.
        """
        self._guards.check_writable(force=force)
        if name == self._default_branch:
            raise DefaultBranchKept("cannot delete repository default branch", branch=name)
        if not is_ours and (pattern := await find_match(self._ports.tasks, self._delete_protected, name)) is not None:
            raise DeleteProtected(f"branch {name} is protected against deletion by {pattern}", branch=name)
        if is_ours:
            try:
                await self._versions.refs.delete_branch(name, by=by, is_kept=False)
            except BranchNotFound:
                await self._settings.unhide_branch(name)
                raise
            await self._settings.unhide_branch(name)
            return True
        head = (await self._versions.refs.get_branch(name)).commit_id
        event = Event(type=EventType.PRE_DELETE_BRANCH, source_ref=name, branch=name, commit_id=head, committer=by)
        run = await self._hooks.before(event)
        if may_go is None:
            is_hidden = await self._settings.is_hidden(name)
            await self._versions.refs.delete_branch(name, by=by, is_kept=True, is_hidden=is_hidden, sandbox=sandbox)
        elif not await self._versions.refs.delete_unused_branch(name, may_go=may_go, by=by):
            return False
        await self._settings.unhide_branch(name)
        # The branch is gone: its actions are those of its last commit.
        after = replace(event, type=event.type.after, source_ref=head, source_is_commit=True, pre_run=run)
        await self._hooks.after(after)
        return True

    async def create_tag(self, name: str, source: str, *, force: bool = False, by: str = "") -> CommitId:
        self._guards.check_writable(force=force)
        event = Event(type=EventType.PRE_CREATE_TAG, source_ref=source, tag=name, committer=by)
        return await self._make_ref(event, lambda: self._versions.refs.create_tag(name, source, by=by))

    async def delete_tag(self, name: str, *, force: bool = False, by: str = "") -> None:
        self._guards.check_writable(force=force)
        commit_id = await self._versions.refs.get_tag(name)
        event = Event(
            type=EventType.PRE_DELETE_TAG,
            source_ref=commit_id,
            source_is_commit=True,
            tag=name,
            commit_id=commit_id,
            committer=by,
        )
        run = await self._hooks.before(event)
        await self._versions.refs.delete_tag(name, by=by)
        await self._hooks.after(replace(event, type=event.type.after, pre_run=run))

    async def forget_deleted(self, kind: RefKind, name: str) -> None:
        """Give up the way back to a deleted branch or tag: retention may expire its commits at once.

        Raises:
            DeletedRefNotFound, ReadOnly.
        """
        self._guards.check_writable()
        await self._versions.refs.forget_deleted(kind, name)

    async def undelete_branch(self, name: str, *, by: str = "") -> CommitId:
        """Make a deleted branch again where it was, without what was staged on it. Hooks take it for a new branch.

        Raises:
            DeletedRefNotFound, BranchExists, NameTaken, CommitExpired, ReadOnly, HookRefused.
        """
        self._guards.check_writable()
        source = (await self._versions.refs.find_deleted(RefKind.BRANCH, name)).commit_id
        event = Event(type=EventType.PRE_CREATE_BRANCH, source_ref=source, branch=name, committer=by)
        return await self._make_ref(event, lambda: self._versions.refs.undelete_branch(name, by=by))

    async def undelete_tag(self, name: str, *, by: str = "") -> CommitId:
        """Make a deleted tag again. Hooks take it for a new one.

        Raises:
            DeletedRefNotFound, TagExists, NameTaken, CommitExpired, ReadOnly, HookRefused.
        """
        self._guards.check_writable()
        source = (await self._versions.refs.find_deleted(RefKind.TAG, name)).commit_id
        event = Event(type=EventType.PRE_CREATE_TAG, source_ref=source, tag=name, committer=by)
        return await self._make_ref(event, lambda: self._versions.refs.undelete_tag(name, by=by))

    async def _make_ref(self, event: Event, make: Callable[[], Awaitable[CommitId]]) -> CommitId:
        """Let hooks look at a new branch or tag, make it, and tell them."""
        run = await self._hooks.before(event)
        commit_id = await make()
        # A branch is named by its name, and a tag's actions are those of its commit.
        source, is_commit = event.branch or commit_id, not event.branch
        after = replace(event, type=event.type.after, source_ref=source, source_is_commit=is_commit, pre_run=run)
        await self._hooks.after(replace(after, commit_id=commit_id))
        return commit_id

    async def check_clean(self, branch: str) -> None:
        """
        Raises:
            UncommittedChanges: the branch has some.
        """
        changes, _ = await self._versions.history.diff_branch(branch, limit=1)
        if changes:
            raise UncommittedChanges("uncommitted changes (dirty branch)", branch=branch)

    async def _on_clean(self, event: Event, work: Callable[[], Awaitable[Commit]]) -> Commit:
        """Do the work in turn, on a branch without uncommitted changes, if its hooks allow it.

        A write that arrives after the check stays staged on top of what the work publishes: nothing is lost.
        """

        return await self._watched(event, work, before=partial(self.check_clean, event.branch))

    async def _watched(
        self, event: Event, work: Callable[[], Awaitable[Commit]], before: Callable[[], Awaitable[None]] | None = None
    ) -> Commit:
        """Do the work in turn if its hooks allow it, and begin those that come after it."""
        run = ""

        async def in_turn() -> Commit:
            nonlocal run
            if before is not None:
                await before()
            if event.type is EventType.PRE_COMMIT:
                await self._hooks.before(replace(event, type=EventType.PREPARE_COMMIT))
            run = await self._hooks.before(event)
            return await work()

        commit = await self._queue.run(event.branch, in_turn)
        after = replace(event, type=event.type.after, source_ref=commit.id, source_is_commit=True, pre_run=run)
        await self._hooks.after(replace(after, commit_id=commit.id, message=commit.message, metadata=commit.metadata))
        return commit

    async def _in_turn(self, branch: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self._queue.run(branch, work)

    async def _be_polite(self, branch: str) -> None:
        for _ in range(POLITE_STEPS):
            if not await self._versions.refs.is_committing(branch):
                return
            await self._ports.clock.sleep(POLITE_STEP_S)


def _event(type_: EventType, branch: str, note: Note) -> Event:
    """Return what hooks learn of a commit that is asked for."""
    return Event(
        type=type_,
        source_ref=branch,
        branch=branch,
        message=note.message,
        committer=note.committer,
        metadata=note.metadata,
        created_ms=note.created_ms,
    )
