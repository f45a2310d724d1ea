"""Branches and tags, which name commits, and pull requests, which ask to merge a branch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from lakebed import wire
from lakebed.operations import deleted, history, repositories
from lakebed.wire import PullRequest, PullRequestBasic, PullRequestCreation

from .connection import Noun
from .paging import listing


class Branches(Noun):
    """The operations on branches. Got from `Client.branches`."""

    def create(self, repository: str, name: str, *, source: str, hidden: bool = False, ttl: str = "") -> str:
        """Name the commit that `source` (any ref expression) stands for, and return its id. Copies no data.

        `hidden`: listings leave it out. `ttl`: a duration (`7d`), after which a sweep of branches may delete it.

        Raises:
            Taken: there is such a branch.
            Missing: no such repository or source.
        """
        body = wire.BranchCreation(name=name, source=source, hidden=hidden, ttl=ttl or None)
        return self._connection.do(history.CREATE_BRANCH, repository, body=body)

    def get(self, repository: str, name: str) -> wire.Ref:
        return self._connection.do(history.GET_BRANCH, repository, name)

    def list(
        self, repository: str, *, prefix: str = "", limit: int | None = None, details: bool = False
    ) -> Iterator[wire.Ref]:
        """By name, ascending. `details`: with date and message of the commit, and whether there are uncommitted
        changes, where the caller may read commits."""
        query = {"prefix": prefix or None, "details": "true" if details else None}
        return listing(self._connection, history.LIST_BRANCHES, repository, query=query, limit=limit)

    def delete(self, repository: str, name: str) -> None:
        """Delete a branch and its uncommitted changes; its commits stay until retention takes them."""
        self._connection.do(history.DELETE_BRANCH, repository, name)

    def list_deleted(
        self, repository: str, *, prefix: str = "", show_hidden: bool = False, limit: int | None = None
    ) -> Iterator[wire.DeletedRef]:
        """List deleted branches that can come back, by name, the newest of a name first."""
        query = {"prefix": prefix or None, "show_hidden": "true" if show_hidden else None}
        found = listing(self._connection, deleted.LIST_DELETED_BRANCHES, repository, query=query, limit=limit)
        return islice(found, limit)

    def undelete(self, repository: str, name: str) -> wire.Ref:
        """Make a deleted branch again at the commit that it named, without its uncommitted changes.

        Raises:
            Missing: no such branch is kept.
            Taken: there is one.
        """
        return self._connection.do(deleted.UNDELETE_BRANCH, repository, name)

    def forget(self, repository: str, name: str) -> None:
        """Give up the way back to a deleted branch: retention may expire its commits by the rules alone.

        Raises:
            Missing: no such branch is kept.
        """
        self._connection.do(deleted.FORGET_BRANCH, repository, name)

    def moves(self, repository: str, name: str, *, limit: int | None = None) -> Iterator[wire.RefMove]:
        """List where the branch was before, the newest move first."""
        return listing(self._connection, deleted.LIST_BRANCH_MOVES, repository, name, query={}, limit=limit)

    def reset(self, repository: str, name: str, *, path: str = "", prefix: str = "") -> None:
        """Forget uncommitted changes: of one path, of a prefix, or all of them."""
        if path:
            body = wire.ResetCreation(type="object", path=path)
        elif prefix:
            body = wire.ResetCreation(type="common_prefix", path=prefix)
        else:
            body = wire.ResetCreation(type="reset")
        self._connection.do(history.RESET_BRANCH, repository, name, body=body)

    def hard_reset(self, repository: str, name: str, *, ref: str, refuse_expired: bool = False) -> None:
        """Let the branch name the commit of `ref`, wherever that is in history. Uncommitted changes are lost.

        Raises:
            Clash: it would bring objects that lifecycle runs took, and `refuse_expired`. So with the next two.
        """
        query = {"ref": ref, "refuse_expired": refuse_expired or None}
        self._connection.do(history.HARD_RESET_BRANCH, repository, name, query=query)

    def revert(
        self,
        repository: str,
        name: str,
        *,
        ref: str,
        parent_number: int = 0,
        allow_empty: bool = False,
        refuse_expired: bool = False,
    ) -> None:
        """Commit the opposite of the changes of `ref` against its parent of this number (1: the first; merges need it).

        Raises:
            Clash: later changes rest on the undone ones.
        """
        body = wire.RevertCreation(
            ref=ref, parent_number=parent_number, allow_empty=allow_empty, refuse_expired=refuse_expired
        )
        self._connection.do(history.REVERT_BRANCH, repository, name, body=body)

    def cherry_pick(
        self, repository: str, name: str, *, ref: str, parent_number: int = 0, refuse_expired: bool = False
    ) -> wire.Commit:
        """Commit the changes of `ref` against its parent of this number on the branch."""
        body = wire.CherryPickCreation(ref=ref, parent_number=parent_number, refuse_expired=refuse_expired)
        return self._connection.do(history.CHERRY_PICK, repository, name, body=body)


class Tags(Noun):
    """The operations on tags. Got from `Client.tags`."""

    def create(self, repository: str, name: str, *, ref: str) -> wire.Ref:
        """
        Raises:
            Taken: there is such a tag. A tag never moves.
        """
        return self._connection.do(history.CREATE_TAG, repository, body=wire.TagCreation(id=name, ref=ref))

    def get(self, repository: str, name: str) -> wire.Ref:
        return self._connection.do(history.GET_TAG, repository, name)

    def list(self, repository: str, *, prefix: str = "", limit: int | None = None) -> Iterator[wire.Ref]:
        """By name, ascending."""
        return listing(self._connection, history.LIST_TAGS, repository, query={"prefix": prefix or None}, limit=limit)

    def delete(self, repository: str, name: str) -> None:
        self._connection.do(history.DELETE_TAG, repository, name)

    def list_deleted(self, repository: str, *, prefix: str = "", limit: int | None = None) -> Iterator[wire.DeletedRef]:
        """List deleted tags that can come back, by name, the newest of a name first."""
        query = {"prefix": prefix or None}
        found = listing(self._connection, deleted.LIST_DELETED_TAGS, repository, query=query, limit=limit)
        return islice(found, limit)

    def undelete(self, repository: str, name: str) -> wire.Ref:
        """
        Raises:
            Missing: no such tag is kept.
            Taken: there is one.
        """
        return self._connection.do(deleted.UNDELETE_TAG, repository, name)

    def forget(self, repository: str, name: str) -> None:
        """Give up the way back to a deleted tag: retention may expire its commits by the rules alone.

        Raises:
            Missing: no such tag is kept.
        """
        self._connection.do(deleted.FORGET_TAG, repository, name)

    def moves(self, repository: str, name: str, *, limit: int | None = None) -> Iterator[wire.RefMove]:
        """List when the tag was made, deleted and made again, the newest first; of a deleted tag too."""
        return listing(self._connection, deleted.LIST_TAG_MOVES, repository, name, query={}, limit=limit)


class Pulls(Noun):
    """Open, list, change and merge pull requests. Got from `Client.pulls`."""

    def list(self, repository: str, *, status: str = "open", limit: int | None = None) -> Iterator[PullRequest]:
        """List pull requests, the newest first. `status` is open, closed (merged ones too) or all."""
        query = {"status": status}
        return listing(self._connection, repositories.LIST_PULL_REQUESTS, repository, query=query, limit=limit)

    def get(self, repository: str, pull: str) -> PullRequest:
        return self._connection.do(repositories.GET_PULL_REQUEST, repository, pull)

    def create(self, repository: str, source: str, destination: str, *, title: str, description: str = "") -> str:
        """Open one, and return its id."""
        body = PullRequestCreation(
            title=title, source_branch=source, destination_branch=destination, description=description
        )
        return self._connection.do(repositories.CREATE_PULL_REQUEST, repository, body=body).id

    def update(
        self,
        repository: str,
        pull: str,
        *,
        title: str | None = None,
        description: str | None = None,
        status: str | None = None,
    ) -> None:
        """Change its texts, or close it (`closed`) and open it again (`open`). Fields that are None stay.

        Raises:
            Clash: it was merged.
        """
        body = PullRequestBasic(title=title, description=description, status=status)
        self._connection.do(repositories.UPDATE_PULL_REQUEST, repository, pull, body=body)

    def merge(self, repository: str, pull: str) -> str:
        """Merge its source into its destination, and return the id of the commit.

        Raises:
            Clash: both sides changed a path, or it is not open.
        """
        return self._connection.do(repositories.MERGE_PULL_REQUEST, repository, pull).reference
