"""Repositories and their settings."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence

from lakebed.wire import BranchProtectionRule, GarbageCollectionRules, Repository, RepositoryCreation, RepositoryList

from .connection import Connection, api_path, decode
from .paging import listing


class Repositories:
    """What can be done with repositories. Got from `Client.repositories`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self, name: str, storage_namespace: str, *, default_branch: str = "main", read_only: bool = False
    ) -> Repository:
        """Make a repository over a namespace that nobody uses; with a first commit, and its default branch there.

        Raises:
            Taken: the name is taken.
            BadRequest: a bad name, or a namespace that is in use.
        """
        body = RepositoryCreation(
            name=name, storage_namespace=storage_namespace, default_branch=default_branch, read_only=read_only
        )
        answer = self._connection.request("POST", api_path("repositories"), json=body, creates=True)
        return decode(answer, Repository)

    def get(self, name: str) -> Repository:
        return decode(self._connection.request("GET", api_path("repositories", name)), Repository)

    def list(self, *, prefix: str = "", limit: int | None = None) -> Iterator[Repository]:
        """By name, ascending."""
        query = {"prefix": prefix or None}
        return listing(self._connection, api_path("repositories"), RepositoryList, query, limit=limit)

    def delete(self, name: str, *, force: bool = False) -> None:
        """The records go, the objects stay in the storage namespace. `force`: even where it is read-only."""
        self._connection.request("DELETE", api_path("repositories", name), query={"force": force or None})

    def set_retention_rules(self, name: str, rules: GarbageCollectionRules) -> None:
        """Replace all rules."""
        path = api_path("repositories", name, "settings", "gc_rules")
        self._connection.request("PUT", path, json=rules)

    def protected_branches(self, name: str) -> tuple[Sequence[str], str]:
        """Patterns of the branches that take merges only, and the version of the setting that has them."""
        answer = self._connection.request("GET", api_path("repositories", name, "settings", "branch_protection"))
        rules = decode(answer, builtins.list[BranchProtectionRule])
        return [rule.pattern for rule in rules], answer.headers.get("ETag", "")

    def protect_branches(self, name: str, patterns: Sequence[str], *, version: str) -> None:
        """Replace all patterns, if the setting is still of this version.

        Raises:
            Clash: somebody else changed it.
        """
        self._connection.request(
            "PUT",
            api_path("repositories", name, "settings", "branch_protection"),
            json=[BranchProtectionRule(pattern=pattern) for pattern in patterns],
            headers={"If-Match": version},
            repeatable=False,  # The first of two would make the version of the second an old one.
        )
