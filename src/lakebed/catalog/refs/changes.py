"""Changes of branches and tags, with the guards and the queue in front of them.

Commits, merges, reverts and cherry-picks of one branch take turns (`queue.py`). An earlier commit in the queue may
include the data of a later one. If the branch moved since the later one arrived, it then makes a commit without
changes. The tree of that commit has every write acknowledged before it began, and history shows the request.

Processes share no queue. The cached head and rewritten cells show that another process committed the data.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar, cast

from lakebed.base import TABLE_RECORD, CommitId, Denied, Ports
from lakebed.catalog.errors import DeleteProtected
from lakebed.catalog.guards import Guards
from lakebed.catalog.records import RepositoryRecord
from lakebed.catalog.settings import Settings, find_match
from lakebed.ranges import Choices
from lakebed.versions import (
    BranchNotFound,
    BranchRecord,
    Commit,
    CommitOvertaken,
    MergeConflict,
    NoChanges,
    Note,
    RefKind,
    Settle,
    Strategy,
    UncommittedChanges,
    Versions,
)

from .hooks import Event, EventType, Hooks
from .queue import BranchQueue

T = TypeVar("T")

PICKED_KEY: Final = "cherry-pick-origin"
PICKED_COMMITTER_KEY: Final = "cherry-pick-committer"
ATTEMPTS_MAX: Final = 5
"""The most attempts of a commit whose sealed tokens another process or a reset took."""
POLITE_STEPS: Final = 20
POLITE_STEP_S: Final = 0.02
"""A committer that finds sealed tokens of another one waits in such steps before it seals its own: if both built at
once, one would have to build twice. It waits at most 0.4 s, because the tokens may belong to a dead committer.
"""


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
        """Commit the staged changes of a branch, after every commit that arrived earlier.

        With `tree`, commit the unchanged tree of another commit instead of the branch's.

        Raises:
            NoChanges: nothing was staged, and no other commit took the caller's changes meanwhile.
            HookRefused: a hook refused the commit.
            Unavailable: the branch was busy for too long.
            CommitOvertaken: other processes committed first in every attempt.
            UncommittedChanges: `tree` is given, and the branch has uncommitted changes.
            NotFound, CommitExpired: see `Recorder.commit_tree`.
        """
        await self._guards.check_branch_writable(branch, force=force, verb="commit")
        event = _event(EventType.PRE_COMMIT, branch, note)
        if tree:
            make = partial(self._versions.recorder.commit_tree, branch, tree, note, allow_empty=allow_empty)
            return await self._on_clean(event, make)
        # Use the cached head of the caller's last write: another process may have committed that write since.
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

    async def commit_composed(self, branch: str, note: Note, work: Callable[[], Awaitable[Commit]]) -> Commit:
        """Run a flow that commits without staging, in turn, with the hooks of a commit.

        Raises:
            ReadOnly, ProtectedBranch, HookRefused, Unavailable: as for `commit`.
        """
        await self._guards.check_branch_writable(branch, verb="commit")
        return await self._watched(_event(EventType.PRE_COMMIT, branch, note), work)

    async def record_commit(self, commit_id: str, commit: Commit, *, force: bool = False) -> None:
        """Write the record of a commit that no branch has: see `Recorder.record`.

        Raises:
            ReadOnly: the repository is read-only, and `force` is not set.
            InvalidNote: the date is out of bounds, or the message is too long.
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
        choices: Choices | None = None,
        allow_empty: bool = False,
        squash: bool = False,
        force: bool = False,
        refuse_expired: bool = False,
        settle: Settle | None = None,
    ) -> Commit:
        """Merge a ref into a branch. Protected branches allow merges. `settle`: see `Merger.merge`.

        Raises:
            UncommittedChanges: the branch has uncommitted changes.
            HookRefused: a hook refused the merge.
        """
        self._guards.check_writable(force=force)
        # Merge the commit that the hooks checked, not a later one of the source.
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
            lambda: _naming_tables(
                self._versions.merges.merge(
                    source,
                    branch,
                    note,
                    strategy=strategy,
                    choices=choices,
                    allow_empty=allow_empty,
                    squash=squash,
                    refuse_expired=refuse_expired,
                    source_id=source_id,
                    settle=settle,
                )
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
        """Commit the opposite of another commit on a branch. Protected branches allow reverts."""
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
        """Commit the changes of another commit on a branch, and name that commit in the metadata.

        Raises:
            UncommittedChanges: the branch has uncommitted changes.
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
        """Discard all uncommitted changes of a branch."""
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

        await self._queue.run(branch, move)

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

        `work_of` names a flow of this package that makes the branch for its own work, under a fresh name. No hook
        runs.

        Raises:
            BranchExists, RefNotFound, ReadOnly, HookRefused: the branch cannot be created.
        """
        self._guards.check_writable(force=force)

        async def make() -> CommitId:
            commit_id = await self._versions.refs.create_branch(name, source, by=by, lasts_ms=lasts_ms, sandbox=sandbox)
            if hidden:
                await self._settings.hide_branch(name)
            return commit_id

        if work_of:
            # Set the mark before creating the branch: a branch without it is treated as a user's.
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
        """Delete a branch, and keep the record for an undelete. Branches made with `work_of` (`is_ours`) cannot be
        undeleted. With `sandbox`, delete the branch only if it was made for that sandbox.

        With `may_go`, delete it only if `may_go` allows it and the branch is not used meanwhile
        (`Refs.delete_unused_branch`). Return whether the branch is deleted.

        Raises:
            Denied, DeleteProtected, ReadOnly, BranchNotFound, HookRefused: the branch cannot be deleted.
        """
        self._guards.check_writable(force=force)
        await self._guards.check_no_tables(name)
        if name == self._default_branch:
            raise Denied("cannot delete repository default branch", branch=name)
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
        # The branch is deleted, so read the actions from its last commit.
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
        """Remove the record of a deleted branch or tag. It cannot be undeleted, and retention may expire its commits
        at once.

        Raises:
            DeletedRefNotFound, ReadOnly: the record is missing, or the repository is read-only.
        """
        self._guards.check_writable()
        await self._versions.refs.forget_deleted(kind, name)

    async def undelete_branch(self, name: str, *, by: str = "") -> CommitId:
        """Restore a deleted branch at its last commit, without its staged changes. Hooks see a new branch.

        Raises:
            DeletedRefNotFound, BranchExists, NameTaken, CommitExpired, ReadOnly, HookRefused: the branch cannot be
            restored.
        """
        self._guards.check_writable()
        source = (await self._versions.refs.find_deleted(RefKind.BRANCH, name)).commit_id
        event = Event(type=EventType.PRE_CREATE_BRANCH, source_ref=source, branch=name, committer=by)
        return await self._make_ref(event, lambda: self._versions.refs.undelete_branch(name, by=by))

    async def undelete_tag(self, name: str, *, by: str = "") -> CommitId:
        """Restore a deleted tag. Hooks see a new tag.

        Raises:
            DeletedRefNotFound, TagExists, NameTaken, CommitExpired, ReadOnly, HookRefused: the tag cannot be restored.
        """
        self._guards.check_writable()
        source = (await self._versions.refs.find_deleted(RefKind.TAG, name)).commit_id
        event = Event(type=EventType.PRE_CREATE_TAG, source_ref=source, tag=name, committer=by)
        return await self._make_ref(event, lambda: self._versions.refs.undelete_tag(name, by=by))

    async def _make_ref(self, event: Event, make: Callable[[], Awaitable[CommitId]]) -> CommitId:
        """Run the hooks before a new branch or tag, make it, and begin the hooks after it."""
        run = await self._hooks.before(event)
        commit_id = await make()
        after = replace(
            event,
            type=event.type.after,
            source_ref=event.branch or commit_id,
            source_is_commit=not event.branch,
            commit_id=commit_id,
            pre_run=run,
        )
        await self._hooks.after(after)
        return commit_id

    async def check_clean(self, branch: str) -> None:
        """Check that a branch has no uncommitted changes.

        Raises:
            UncommittedChanges: the branch has uncommitted changes.
        """
        changes, _ = await self._versions.history.diff_branch(branch, limit=1)
        if changes:
            kind = " on a protected branch" if await self._settings.is_protected(branch) else ""
            raise UncommittedChanges(f"uncommitted changes (dirty branch){kind}: {branch}", branch=branch)

    async def _on_clean(self, event: Event, work: Callable[[], Awaitable[Commit]]) -> Commit:
        """Run the work in turn, on a branch without uncommitted changes, if its hooks allow it.

        A write that arrives after the check remains staged on top of the published commit, so no write is lost.
        """

        return await self._watched(event, work, before=partial(self.check_clean, event.branch))

    async def _watched(
        self, event: Event, work: Callable[[], Awaitable[Commit]], before: Callable[[], Awaitable[None]] | None = None
    ) -> Commit:
        """Run the work in turn if its hooks allow it, and begin the hooks after it."""
        await self._guards.check_no_tables(event.branch)
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

    async def _be_polite(self, branch: str) -> None:
        for _ in range(POLITE_STEPS):
            if not await self._versions.refs.is_committing(branch):
                return
            await self._ports.clock.sleep(POLITE_STEP_S)


async def _naming_tables(merge: Awaitable[Commit]) -> Commit:
    """Say which tables are in conflict: both sides changed the entry of their metadata (catalog/tables).

    Raises:
        MergeConflict: the merge's, with the fact `tables`.
    """
    try:
        return await merge
    except MergeConflict as error:
        keys = cast("Sequence[bytes]", error.facts["conflicts"])
        names = [
            key.removesuffix(TABLE_RECORD).decode().replace("/", ".") for key in keys if key.endswith(TABLE_RECORD)
        ]
        if not names:
            raise
        what = f"{error}: both sides changed table {', '.join(names[:10])}, and no strategy or choice settles that"
        raise MergeConflict(what, **{**error.facts, "tables": names}) from error


def _event(type_: EventType, branch: str, note: Note) -> Event:
    """Return the hooks' description of a requested commit."""
    return Event(
        type=type_,
        source_ref=branch,
        branch=branch,
        message=note.message,
        committer=note.committer,
        metadata=note.metadata,
        created_ms=note.created_ms,
    )
