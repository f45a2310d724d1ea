"""Commits: making them, merging them, looking back at them, comparing them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from lakebed import wire
from lakebed.operations import history, objects

from .connection import Noun
from .paging import listing

Strategy = Literal["source-wins", "dest-wins"]


class History(Noun):
    """The operations on commits. Got from `Client.history`."""

    def commit(
        self,
        repository: str,
        branch: str,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        date_s: int | None = None,
        allow_empty: bool = False,
    ) -> wire.Commit:
        """Commit the uncommitted changes of the branch. `date_s`: the Unix time of the commit instead of now.

        Sent once. When the answer is lost, compare the branch's head and its uncommitted changes before you repeat it.

        Raises:
            BadRequest: nothing to commit, unless `allow_empty`.
        """
        body = wire.CommitCreation(message=message, metadata=dict(metadata or {}), date=date_s, allow_empty=allow_empty)
        return self._connection.do(history.COMMIT, repository, branch, body=body)

    def get(self, repository: str, commit_id: str) -> wire.Commit:
        return self._connection.do(history.GET_COMMIT, repository, commit_id)

    def log(
        self,
        repository: str,
        ref: str,
        *,
        limit: int | None = None,
        first_parent: bool = False,
        objects: list[str] | None = None,
        prefixes: list[str] | None = None,
        committer: str = "",
        since: str = "",
        stop_at: str = "",
    ) -> Iterator[wire.Commit]:
        """List commits, newest first. `objects` and `prefixes`: only commits that changed one of them.
        `committer`: only commits of this user.

        It ends before the first commit older than `since` (ISO 8601), and after the commit that `stop_at` names.
        """
        query = {
            "first_parent": first_parent or None,
            "objects": objects or None,
            "prefixes": prefixes or None,
            "committer": committer or None,
            "since": since or None,
            "stop_at": stop_at or None,
        }
        return listing(self._connection, history.LOG_COMMITS, repository, ref, query=query, limit=limit)

    def merge(
        self,
        repository: str,
        source: str,
        destination: str,
        *,
        message: str = "",
        metadata: Mapping[str, str] | None = None,
        strategy: Strategy | None = None,
        choices: Mapping[str, Strategy] | None = None,
        squash: bool = False,
        allow_empty: bool = False,
        refuse_expired: bool = False,
        append_tables: bool = False,
    ) -> str:
        """Bring the changes of `source` (a ref) into `destination` (a branch), and return the id of the new commit.

        `append_tables`: an Iceberg table to which both only appended gets the rows of both.

        Raises:
            Clash: both changed the same paths, and neither `choices` (by path) nor a strategy says who wins. Or the
                source brings objects that lifecycle runs took, and `refuse_expired`.
            BadRequest: nothing to merge.
        """
        body = wire.Merge(
            message=message or None,
            metadata=dict(metadata or {}),
            strategy=strategy,
            choices=dict(choices) if choices else None,
            squash_merge=squash,
            allow_empty=allow_empty,
            refuse_expired=refuse_expired,
            tables="append" if append_tables else None,
        )
        return self._connection.do(history.MERGE_INTO_BRANCH, repository, source, destination, body=body).reference

    def count_expired(self, repository: str, left: str, right: str) -> int:
        """Count entries of `right`, unlike `left`, whose objects lifecycle runs took."""
        return self._connection.do(history.COUNT_EXPIRED, repository, left, right).objects

    def ahead(self, repository: str, left: str, right: str) -> wire.AheadCount:
        """Count the commits that only `left` reaches (ahead), and those that only `right` reaches (behind)."""
        return self._connection.do(history.COUNT_AHEAD, repository, left, right)

    def start_import(
        self,
        repository: str,
        branch: str,
        locations: Sequence[wire.ImportLocation],
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> str:
        """Begin to commit objects that lie elsewhere in the storage, without copying them; the id of the import.

        Raises:
            BadRequest: a location cannot be imported, or the branch has uncommitted changes.
        """
        commit = wire.CommitCreation(message=message, metadata=dict(metadata or {}))
        body = wire.ImportCreation(paths=[*locations], commit=commit, force=force)
        return self._connection.do(objects.IMPORT_START, repository, branch, body=body).id

    def import_status(self, repository: str, branch: str, import_id: str) -> wire.ImportStatus:
        return self._connection.do(objects.IMPORT_STATUS, repository, branch, query={"id": import_id})

    def cancel_import(self, repository: str, branch: str, import_id: str) -> None:
        """
        Raises:
            Clash: it has ended.
        """
        self._connection.do(objects.IMPORT_CANCEL, repository, branch, query={"id": import_id})

    def merge_base(self, repository: str, source: str, destination: str) -> wire.FindMergeBaseResult:
        return self._connection.do(history.FIND_MERGE_BASE, repository, source, destination)

    def uncommitted(
        self, repository: str, branch: str, *, prefix: str = "", delimiter: str = "", limit: int | None = None
    ) -> Iterator[wire.Diff]:
        """List the uncommitted changes of a branch by path."""
        query = {"prefix": prefix or None, "delimiter": delimiter or None}
        return listing(self._connection, history.DIFF_BRANCH, repository, branch, query=query, limit=limit)

    def diff(
        self,
        repository: str,
        left: str,
        right: str,
        *,
        two_dot: bool = False,
        prefix: str = "",
        delimiter: str = "",
        limit: int | None = None,
    ) -> Iterator[wire.Diff]:
        """List changes of `right` since it parted from `left`, by path; or, `two_dot`, all differences."""
        query = {
            "type": "two_dot" if two_dot else "three_dot",
            "prefix": prefix or None,
            "delimiter": delimiter or None,
        }
        return listing(self._connection, history.DIFF_REFS, repository, left, right, query=query, limit=limit)
