"""Pull requests: a request to merge one branch into another, with a title and a state.

`pull/<id>` in the repository's partition; ids sort the newest first. The record holds its changes, for their events.
It is not part of the merge. After a crash between the two, the request is open although its merge was made. Merging it
again finds no changes; close it then.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from lakebed.base import CommitId, Conflict, Invalid, NotFound, OutcomeUnknown, newest_first
from lakebed.kv import Held, PredicateFailed
from lakebed.versions import Change, Note, Record, Versions, encode_record, keys

from .changes import Changes

TEXT_CHARACTERS_MAX: Final = 64 << 10
CHANGES_MAX: Final = 200
"""A record holds all changes, for their events. The merge is always possible."""


class PullState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    MERGED = "merged"


class PullRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    state: PullState = PullState.OPEN
    title: str
    description: str = ""
    author: str
    source: str
    destination: str
    created_ms: int
    closed_ms: int = 0
    commit_id: CommitId | None = None
    changes: tuple[Change, ...] = ()


class Pulls:
    def __init__(self, versions: Versions, changes: Changes) -> None:
        self._versions = versions
        self._changes = changes
        self._context = versions.context

    async def create(self, *, source: str, destination: str, title: str, description: str, author: str) -> str:
        """Open a pull request, and return its id.

        Raises:
            Invalid, BranchNotFound: see those classes.
        """
        _check(title, description)
        if source == destination:
            raise Invalid("source and destination are the same branch")
        for branch in (source, destination):
            await self._versions.refs.get_branch(branch)
        pull_id = newest_first(self._context.ports.ids.fresh())
        record = PullRecord(
            title=title,
            description=description,
            author=author,
            source=source,
            destination=destination,
            created_ms=self._context.ports.clock.now_ms(),
            changes=(self._change("create", author),),
        )
        await self._context.set(keys.PULL + pull_id.encode(), record)
        return pull_id

    async def get(self, pull_id: str) -> PullRecord:
        """Return a pull request.

        Raises:
            NotFound: the repository has no such pull request.
        """
        return (await self._find(pull_id))[0]

    async def change(
        self,
        pull_id: str,
        *,
        title: str | None = None,
        description: str | None = None,
        state: str | None = None,
        by: str = "",
    ) -> None:
        """Change the texts, close a request, or reopen a closed one.

        Raises:
            NotFound, Invalid: see those classes. Invalid also after CHANGES_MAX changes.
            Conflict: it was merged.
        """
        while True:
            record, held = await self._find(pull_id)
            changed = replace(
                record,
                title=record.title if title is None else title,
                description=record.description if description is None else description,
            )
            _check(changed.title, changed.description)
            operations = [] if changed == record else ["change"]
            if state is not None and state != record.state:
                if record.state is PullState.MERGED:
                    raise Conflict("the pull request was merged", pull=pull_id)
                if state not in (PullState.OPEN, PullState.CLOSED):
                    raise Invalid(f"a pull request becomes open or closed, not {state}")
                closed_ms = self._context.ports.clock.now_ms() if state == PullState.CLOSED else 0
                changed = replace(changed, state=PullState(state), closed_ms=closed_ms)
                operations.append("close" if state == PullState.CLOSED else "reopen")
            if not operations:
                return
            changes = (*record.changes, *(self._change(operation, by) for operation in operations))
            # It can always be closed. Opening it again is a change that counts.
            if len(changes) > CHANGES_MAX and operations != ["close"]:
                raise Invalid(f"a pull request can be changed {CHANGES_MAX - 1} times")
            changed = replace(changed, changes=changes)
            if await self._replaced(pull_id, changed, held):
                return

    async def merge(self, pull_id: str, *, committer: str) -> CommitId:
        """Merge the source into the destination, and record the commit.

        Raises:
            NotFound: the repository has no such pull request.
            Conflict: it was merged or closed.
            MergeConflict, UncommittedChanges, HookRefused, NoChanges: of the merge. The request remains open.
        """
        record, _ = await self._find(pull_id)
        if record.state is not PullState.OPEN:
            raise Conflict(f"the pull request is {record.state}", pull=pull_id)
        commit = await self._changes.merge(
            record.source,
            record.destination,
            Note(message=record.title, committer=committer, metadata={"pull_request": pull_id}),
        )
        while True:
            record, held = await self._find(pull_id)
            if record.state is PullState.MERGED:  # The answer to the write was lost, or another request noted a merge.
                return commit.id
            merged = replace(
                record,
                state=PullState.MERGED,
                commit_id=commit.id,
                closed_ms=self._context.ports.clock.now_ms(),
                changes=(*record.changes, self._change("merge", committer, after=commit.id)),
            )
            if await self._replaced(pull_id, merged, held):
                return commit.id

    def _change(self, operation: str, by: str, *, after: str = "") -> Change:
        return Change(operation=operation, at_ms=self._context.ports.clock.now_ms(), by=by, after=after)

    async def _find(self, pull_id: str) -> tuple[PullRecord, Held]:
        found = await self._context.read(PullRecord, keys.PULL + pull_id.encode()) if pull_id.isalnum() else None
        if found is None:
            raise NotFound(f"pull request {pull_id} not found", pull=pull_id)
        return found

    async def _replaced(self, pull_id: str, record: PullRecord, held: Held) -> bool:
        """Replace exactly the record that was read. Return False if another request was faster, or the answer was
        lost.
        """
        try:
            await self._context.set_if(keys.PULL + pull_id.encode(), encode_record(record), held.predicate)
        except (PredicateFailed, OutcomeUnknown):
            return False
        return True

    # Defined last, because its name hides the type in later definitions.

    async def list(
        self, *, state: str = "", prefix: str = "", after: str = "", limit: int = 100
    ) -> tuple[Sequence[tuple[str, PullRecord]], bool]:
        """List requests that are open, or closed and merged, the newest first, and whether more follow."""
        found: list[tuple[str, PullRecord]] = []
        start = keys.PULL + after.encode() + b"\x00" if after else b""
        async for key, record in self._context.records(PullRecord, keys.PULL + prefix.encode(), start=start):
            if state and (state == PullState.OPEN) != (record.state is PullState.OPEN):
                continue
            if len(found) == limit:
                return found, True
            found.append((key[len(keys.PULL) :].decode(), record))
        return found, False


def _check(title: str, description: str) -> None:
    if not title.strip() or len(title) + len(description) > TEXT_CHARACTERS_MAX:
        raise Invalid(f"a pull request needs a title, and at most {TEXT_CHARACTERS_MAX} characters")
