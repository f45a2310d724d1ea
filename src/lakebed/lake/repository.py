"""One repository: its branches, tags and commits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from lakebed import wire
from lakebed.base import AlreadyExists
from lakebed.client import Client

from .refs import Branch, Ref


class Repository:
    """Branches and tags by name. Made by `Lake.repository` or `Lake.create_repository`."""

    def __init__(self, client: Client, record: wire.Repository) -> None:
        self._client = client
        self.name = record.id
        self.default_branch = record.default_branch
        self.storage = record.storage_namespace

    def __repr__(self) -> str:
        return f"Repository({self.name!r})"

    def ref(self, expression: str) -> Ref:
        """Return the ref of a tag, a commit id, or an expression such as `main~2`. Sends no request."""
        return Ref(self._client, self.name, expression)

    def branch(self, name: str = "") -> Branch:
        """Return a branch; without a name, the default branch. Sends no request."""
        return Branch(self._client, self.name, name or self.default_branch)

    def branches(self, *, prefix: str = "") -> Iterator[Branch]:
        """Yield branches by name, ascending."""
        for found in self._client.branches.list(self.name, prefix=prefix):
            yield self.branch(found.id)

    def create_branch(
        self, name: str, source: str | Ref = "", *, exist_ok: bool = False, ttl: str | timedelta = ""
    ) -> Branch:
        """Make a branch at the commit of `source`, by default the head of the default branch. Copies no data.

        `ttl`: a duration (`7d`) or a `timedelta` of whole hours, after which a sweep of branches may delete the branch.

        Raises:
            AlreadyExists: the name is taken, and `exist_ok` is False.
            NotFound: the source does not exist.
            TypeError: `ttl` is neither a text nor a `timedelta`.
            ValueError: `ttl` is a `timedelta` of less than an hour, or not of whole hours.
        """
        lasts = _duration_of(ttl)
        try:
            self._client.branches.create(self.name, name, source=str(source) or self.default_branch, ttl=lasts)
        except AlreadyExists:
            if not exist_ok:
                raise
        return self.branch(name)

    def tags(self, *, prefix: str = "") -> Iterator[Ref]:
        """Yield tags by name, ascending."""
        for found in self._client.tags.list(self.name, prefix=prefix):
            yield self.ref(found.id)

    def create_tag(self, name: str, ref: str | Ref = "") -> Ref:
        """Name the commit of `ref`, by default the head of the default branch. A tag never moves.

        Raises:
            AlreadyExists: the name is taken.
        """
        self._client.tags.create(self.name, name, ref=str(ref) or self.default_branch)
        return self.ref(name)

    def delete_tag(self, name: str) -> None:
        self._client.tags.delete(self.name, name)

    def delete(self, *, force: bool = False) -> None:
        """Delete the repository, which can be undeleted for a while. `force`: even where it is read-only."""
        self._client.repositories.delete(self.name, force=force)


def _duration_of(ttl: str | timedelta) -> str:
    """Return a duration as the server reads it, such as `36h`."""
    if isinstance(ttl, str):
        return ttl
    if not isinstance(ttl, timedelta):
        raise TypeError(f'ttl is {ttl!r}: give a text such as "7d", or a timedelta')
    hours, rest = divmod(ttl, timedelta(hours=1))
    if hours < 1 or rest:
        raise ValueError(f"ttl is {ttl}: a timedelta here is of whole hours, and at least one")
    return f"{hours}h"
