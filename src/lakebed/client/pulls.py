"""Pull requests: wishes to merge one branch into another, with a title, a text and a state."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.operations import repositories
from lakebed.wire import PullRequest, PullRequestBasic, PullRequestCreation

from .connection import Connection
from .paging import listing


class Pulls:
    """Open, list, change and merge pull requests. Got from `Client.pulls`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
