"""The port to hooks for changes of branches and tags: before a change, which hooks may refuse, and after it.

The catalog describes the change. The implementation of the port selects and runs the hooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from lakebed.base import Conflict


class EventType(StrEnum):
    PREPARE_COMMIT = "prepare-commit"
    """Before `pre-commit`: a hook may still write to the branch, and the commit includes the write."""
    PRE_COMMIT = "pre-commit"
    POST_COMMIT = "post-commit"
    PRE_MERGE = "pre-merge"
    POST_MERGE = "post-merge"
    PRE_REVERT = "pre-revert"
    POST_REVERT = "post-revert"
    PRE_CHERRY_PICK = "pre-cherry-pick"
    POST_CHERRY_PICK = "post-cherry-pick"
    PRE_CREATE_BRANCH = "pre-create-branch"
    POST_CREATE_BRANCH = "post-create-branch"
    PRE_DELETE_BRANCH = "pre-delete-branch"
    POST_DELETE_BRANCH = "post-delete-branch"
    PRE_CREATE_TAG = "pre-create-tag"
    POST_CREATE_TAG = "post-create-tag"
    PRE_DELETE_TAG = "pre-delete-tag"
    POST_DELETE_TAG = "post-delete-tag"

    @property
    def after(self) -> EventType:
        """Return the event after the change."""
        return EventType("post-" + self.partition("-")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of one repository. `source_ref` is the ref of its action files: an expression, or a commit's id.

    `branch` is the branch that changes, empty for tags. `commit_id` is the new commit. Before the change it is the
    merged commit, or the commit of a branch or tag to delete. `pre_run` is the run of the event before it.
    """

    type: EventType
    source_ref: str
    source_is_commit: bool = False
    branch: str = ""
    tag: str = ""
    commit_id: str = ""
    merge_source: str = ""
    message: str = ""
    committer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_ms: int | None = None
    """The requested date of the commit."""
    pre_run: str = ""


class HookRefused(Conflict):
    """A hook refused the change, or could not be run. Facts: `run`."""


class Hooks(Protocol):
    async def before(self, event: Event) -> str:
        """Run the hooks of a change, and return the run's id, or an empty text if no hook ran.

        Raises:
            HookRefused: the change must not be made.
        """
        ...

    async def after(self, event: Event) -> None:
        """Begin the hooks after a change. They run beside the request, and their failures do not affect it."""
        ...


class NoHooks:
    """Repositories without hooks."""

    async def before(self, event: Event) -> str:  # noqa: ARG002  # the port's signature
        return ""

    async def after(self, event: Event) -> None:
        pass
