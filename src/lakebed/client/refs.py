"""Branches and tags: names for commits."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.wire import (
    BranchCreation,
    CherryPickCreation,
    Commit,
    Ref,
    RefList,
    ResetCreation,
    RevertCreation,
    TagCreation,
)

from .connection import Connection, api_path, decode
from .paging import listing


class Branches:
    """What can be done with branches. Got from `Client.branches`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, repository: str, name: str, *, source: str) -> str:
        """Name the commit that `source` (any ref expression) stands for, and return its id. Copies no data.

        Raises:
            Taken: there is such a branch.
            Missing: no such repository or source.
        """
        path = api_path("repositories", repository, "branches")
        body = BranchCreation(name=name, source=source)
        return self._connection.request("POST", path, json=body, creates=True).text.strip()

    def get(self, repository: str, name: str) -> Ref:
        return decode(self._connection.request("GET", _branch(repository, name)), Ref)

    def list(self, repository: str, *, prefix: str = "", limit: int | None = None) -> Iterator[Ref]:
        """By name, ascending."""
        path = api_path("repositories", repository, "branches")
        return listing(self._connection, path, RefList, {"prefix": prefix or None}, limit=limit)

    def delete(self, repository: str, name: str) -> None:
        """The name goes, and what is uncommitted on it; its commits stay until retention lets them go."""
        self._connection.request("DELETE", _branch(repository, name))

    def reset(self, repository: str, name: str, *, path: str = "", prefix: str = "") -> None:
        """Forget uncommitted changes: of one path, of a prefix, or all of them."""
        if path:
            body = ResetCreation(type="object", path=path)
        elif prefix:
            body = ResetCreation(type="common_prefix", path=prefix)
        else:
            body = ResetCreation(type="reset")
        self._connection.request("PUT", _branch(repository, name), json=body, repeatable=False)

    def hard_reset(self, repository: str, name: str, *, ref: str) -> None:
        """Let the branch name the commit of `ref`, wherever that is in history. Uncommitted changes are lost."""
        path = _branch(repository, name, "hard_reset")
        self._connection.request("PUT", path, query={"ref": ref}, repeatable=False)

    def revert(
        self, repository: str, name: str, *, ref: str, parent_number: int = 0, allow_empty: bool = False
    ) -> None:
        """Commit the opposite of what `ref` changed against its parent of this number (1 is the first; merges need it).

        Raises:
            Clash: later changes stand on what would be undone.
        """
        body = RevertCreation(ref=ref, parent_number=parent_number, allow_empty=allow_empty)
        self._connection.request("POST", _branch(repository, name, "revert"), json=body)

    def cherry_pick(self, repository: str, name: str, *, ref: str, parent_number: int = 0) -> Commit:
        """Commit here what `ref` changed against its parent of this number."""
        body = CherryPickCreation(ref=ref, parent_number=parent_number)
        return decode(self._connection.request("POST", _branch(repository, name, "cherry-pick"), json=body), Commit)


class Tags:
    """What can be done with tags. Got from `Client.tags`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, repository: str, name: str, *, ref: str) -> Ref:
        """
        Raises:
            Taken: there is such a tag. A tag never moves.
        """
        path = api_path("repositories", repository, "tags")
        return decode(self._connection.request("POST", path, json=TagCreation(id=name, ref=ref), creates=True), Ref)

    def get(self, repository: str, name: str) -> Ref:
        return decode(self._connection.request("GET", api_path("repositories", repository, "tags", name)), Ref)

    def list(self, repository: str, *, prefix: str = "", limit: int | None = None) -> Iterator[Ref]:
        """By name, ascending."""
        path = api_path("repositories", repository, "tags")
        return listing(self._connection, path, RefList, {"prefix": prefix or None}, limit=limit)

    def delete(self, repository: str, name: str) -> None:
        self._connection.request("DELETE", api_path("repositories", repository, "tags", name))


def _branch(repository: str, name: str, *more: str) -> str:
    return api_path("repositories", repository, "branches", name, *more)
