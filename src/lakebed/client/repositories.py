"""Repositories and their settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from lakebed import wire
from lakebed.operations import deleted, repositories
from lakebed.operations.gc import collections

from .connection import Noun, decode
from .paging import listing


class Repositories(Noun):
    """The operations on repositories. Got from `Client.repositories`."""

    def create(
        self,
        name: str,
        storage_namespace: str,
        *,
        default_branch: str = "main",
        read_only: bool = False,
        sample_data: bool = False,
        reuse: bool = False,
        bare: bool = False,
    ) -> wire.Repository:
        """Make a repository over an unused namespace, with a first commit and a default branch.

        `sample_data`: and a second commit, of a few small files. `reuse`: the namespace may also be that of a deleted
        repository whose objects were all collected. `bare`: without commit and branch, for `restore_refs`; its
        namespace may be one that another installation used, or a copy.

        Raises:
            Taken: the name is taken.
            BadRequest: a bad name, or a namespace that is in use.
        """
        body = wire.RepositoryCreation(
            name=name,
            storage_namespace=storage_namespace,
            default_branch=default_branch,
            read_only=read_only,
            sample_data=sample_data,
        )
        return self._connection.do(
            repositories.CREATE_REPOSITORY, body=body, query={"reuse": reuse or None, "bare": bare or None}
        )

    def dump_refs(self, name: str) -> wire.RefsDump:
        """Write branches, tags and commits to the namespace, and name the files."""
        return self._connection.do(repositories.DUMP_REFS, name)

    def submit_dump(self, name: str) -> str:
        """Begin a dump, and return the id of the task."""
        return self._connection.do(repositories.DUMP_SUBMIT, name).id

    def dump_status(self, name: str, task: str) -> wire.RepositoryDumpStatus:
        return self._connection.do(repositories.DUMP_STATUS, name, query={"task_id": task})

    def restore_refs(self, name: str, dump: wire.RefsDump, *, force: bool = False, check_objects: bool = False) -> None:
        """Make the refs of a dump in a bare repository. `force`: even where it is read-only.

        `check_objects`: only if each object of its commits is there.

        Raises:
            Missing: a file of the dump is not there.
            BadRequest: the dump contradicts itself, or the namespace lacks files of its trees, or objects.
            Clash: the repository is not bare.
        """
        body = _restoring(dump, force=force, check_objects=check_objects)
        self._connection.do(repositories.RESTORE_REFS, name, body=body)

    def submit_restore(
        self, name: str, dump: wire.RefsDump, *, force: bool = False, check_objects: bool = False
    ) -> str:
        """Begin a restore, as `restore_refs`, and return the id of the task."""
        body = _restoring(dump, force=force, check_objects=check_objects)
        return self._connection.do(repositories.RESTORE_SUBMIT, name, body=body).id

    def restore_status(self, name: str, task: str) -> wire.RepositoryRestoreStatus:
        return self._connection.do(repositories.RESTORE_STATUS, name, query={"task_id": task})

    def get(self, name: str) -> wire.Repository:
        return self._connection.do(repositories.GET_REPOSITORY, name)

    def list(self, *, prefix: str = "", limit: int | None = None) -> Iterator[wire.Repository]:
        """List repositories by name, ascending."""
        return listing(self._connection, repositories.LIST_REPOSITORIES, query={"prefix": prefix or None}, limit=limit)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a repository, which can be undeleted for a while. `force`: even where it is read-only."""
        self._connection.do(repositories.DELETE_REPOSITORY, name, query={"force": force or None})

    def list_deleted(self, *, prefix: str = "", limit: int | None = None) -> Iterator[wire.DeletedRepository]:
        """By name, the newest of a name first."""
        query = {"prefix": prefix or None}
        # A page has all of a name, so it may be longer than asked.
        found = listing(self._connection, deleted.LIST_DELETED_REPOSITORIES, query=query, limit=limit)
        return islice(found, limit)

    def undelete(self, name: str, *, uid: str = "", new_name: str = "") -> wire.Repository:
        """Bring a deleted repository back with all that it had, under its name or a new one.

        Raises:
            Missing: no such repository is kept.
            Clash: the name is taken, or several had it and no `uid` says which.
        """
        body = wire.RepositoryUndeletion(uid=uid, name=new_name or None)
        return self._connection.do(deleted.UNDELETE_REPOSITORY, name, body=body)

    def forget(self, name: str, *, uid: str = "") -> None:
        """Remove the records of a deleted repository for good. Its objects stay.

        Raises:
            Missing, Clash: as for `undelete`.
        """
        self._connection.do(deleted.FORGET_REPOSITORY, name, query={"uid": uid or None})

    def delete_protection(self, name: str) -> tuple[wire.DeleteProtection, str]:
        """Return the protection against being deleted, and its version."""
        with self._connection.open(deleted.GET_DELETE_PROTECTION, name) as response:
            response.read()
            return decode(response, deleted.GET_DELETE_PROTECTION.answer), response.headers.get("ETag", "")

    def protect_deletion(self, name: str, *, repository: bool, branches: Sequence[str], version: str) -> None:
        """Protect the repository, and branches by pattern, against being deleted, if that is still of this version.

        Raises:
            Clash: another writer changed it.
        """
        body = wire.DeleteProtection(repository=repository, branches=list(branches))
        self._connection.do(deleted.SET_DELETE_PROTECTION, name, body=body, headers={"If-Match": version})

    def retention_rules(self, name: str) -> wire.GarbageCollectionRules:
        """
        Raises:
            Missing: there are none.
        """
        return self._connection.do(collections.GET_GC_RULES, name)

    def metadata(self, name: str) -> dict[str, str]:
        return self._connection.do(repositories.GET_REPOSITORY_METADATA, name)

    def set_retention_rules(self, name: str, rules: wire.GarbageCollectionRules) -> None:
        """Replace all rules."""
        self._connection.do(collections.SET_GC_RULES, name, body=rules)

    def protected_branches(self, name: str) -> tuple[Sequence[str], str]:
        """Return the patterns of protected branches, and the version of the setting."""
        with self._connection.open(repositories.GET_BRANCH_PROTECTION_RULES, name) as response:
            response.read()
            rules = decode(response, repositories.GET_BRANCH_PROTECTION_RULES.answer)
            return [rule.pattern for rule in rules], response.headers.get("ETag", "")

    def protect_branches(self, name: str, patterns: Sequence[str], *, version: str) -> None:
        """Replace all patterns, if the setting is still of this version.

        Raises:
            Clash: another writer changed it.
        """
        self._connection.do(
            repositories.SET_BRANCH_PROTECTION_RULES,
            name,
            body=[wire.BranchProtectionRule(pattern=pattern) for pattern in patterns],
            headers={"If-Match": version},
        )


def _restoring(dump: wire.RefsDump, *, force: bool, check_objects: bool) -> wire.RefsRestore:
    return wire.RefsRestore(
        branches_meta_range_id=dump.branches_meta_range_id,
        tags_meta_range_id=dump.tags_meta_range_id,
        commits_meta_range_id=dump.commits_meta_range_id,
        force=force,
        check_objects=check_objects,
    )
