"""One repository of the source server: its refs, its commits, and the changes of each commit, by the contract."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from lakebed.base import LakebedError, NotFound
from lakebed.client import Client, Missing, Retries, Unreachable
from lakebed.hooks import FOLDER
from lakebed.wire import Commit, GarbageCollectionRules, ObjectStats, Ref, Repository

T = TypeVar("T")

PAGE: Final = 1_000
DENSE: Final = 4
"""Read a listing if at least one of this many rows is wanted; else request each object by itself."""
TOGETHER: Final = 8
"""Concurrent requests for single objects."""

Changed: TypeAlias = tuple[str, ObjectStats | None]
"""A path, and the object that the commit has there; None if the commit removed it."""


class SourceRepository:
    """Reads one repository. Every call may raise the errors of `lakebed.client`."""

    def __init__(self, client: Client, record: Repository) -> None:
        self._client = client
        self.record = record
        self.name = record.id
        self.server = client.endpoint

    def branches(self) -> list[Ref]:
        return [*self._client.branches.list(self.name)]

    def tags(self) -> list[Ref]:
        return [*self._client.tags.list(self.name)]

    def protected(self) -> Sequence[str]:
        return self._client.repositories.protected_branches(self.name)[0]

    def metadata(self) -> dict[str, str]:
        return self._client.repositories.metadata(self.name)

    def is_dirty(self, branch: str) -> bool:
        return any(True for _ in self._client.history.uncommitted(self.name, branch, limit=1))

    def retention_rules(self) -> GarbageCollectionRules | None:
        try:
            return self._client.repositories.retention_rules(self.name)
        except Missing:
            return None

    def count_pulls(self) -> int:
        return sum(1 for _ in self._client.pulls.list(self.name))

    def action_files(self, ref: str) -> Iterator[ObjectStats]:
        return self._client.objects.list(self.name, ref, prefix=FOLDER)

    def read(self, ref: str, path: str) -> bytes:
        return self._client.objects.read(self.name, ref, path)

    def commits(self, heads: Sequence[str], known: Mapping[str, str]) -> list[Commit]:
        """Return each commit that the heads reach and that is not `known`: parents first, first parents in a row."""
        found: dict[str, Commit] = {}
        for head in heads:
            if head not in known and head not in found:
                self._collect(head, found, known)
        ordered: dict[str, Commit] = {}
        for head in heads:
            waiting = [head]
            while waiting:
                commit = found.get(waiting[-1])
                if commit is None or commit.id in ordered:
                    waiting.pop()
                elif missing := [one for one in commit.parents if one in found and one not in ordered]:
                    waiting.append(missing[-1])  # the first parent last, so that the commit follows on it
                else:
                    ordered[waiting.pop()] = commit
        return [*ordered.values()]

    def _collect(self, head: str, found: dict[str, Commit], known: Mapping[str, str]) -> None:
        open_ends = {head}
        for commit in self._client.history.log(self.name, head):
            open_ends.discard(commit.id)
            if commit.id not in known:
                found[commit.id] = commit
                open_ends.update(one for one in commit.parents if one not in found and one not in known)
            if not open_ends:
                return

    def changes(self, commit: Commit) -> Iterator[list[Changed]]:
        """Yield the changes of a commit against its first parent, by ascending path, in pages."""
        if not commit.parents:
            for page in in_pages(self.listing(commit.id)):
                yield [(stats.path, stats) for stats in page]
            return
        diff = self._client.history.diff(self.name, commit.parents[0], commit.id, two_dot=True)
        for rows in in_pages(diff):
            wanted = [row.path for row in rows if row.type != "removed"]
            stats = self._stats(commit.id, wanted)
            yield [(row.path, stats.get(row.path)) for row in rows]

    def listing(self, ref: str) -> Iterator[ObjectStats]:
        """List all objects of a ref, by ascending path."""
        return self._client.objects.list(self.name, ref)

    def _stats(self, ref: str, paths: Sequence[str]) -> dict[str, ObjectStats]:
        """Return the facts of the objects at these ascending paths: by listings if the paths are close together."""
        found: dict[str, ObjectStats] = {}
        one = partial(self._client.objects.stat, self.name, ref)
        with ThreadPoolExecutor(TOGETHER) as pool:
            while paths:
                first, rest = paths[0], paths[1:]
                found[first] = one(first)
                if not rest:
                    break
                page = [*self._client.objects.list(self.name, ref, after=first, limit=min(PAGE, DENSE * len(rest)))]
                wanted = set(rest)
                hits = {stats.path: stats for stats in page if stats.path in wanted}
                found.update(hits)
                paths = [path for path in rest if path not in hits]
                if page and len(hits) * DENSE < len(page):
                    found.update(zip(paths[:PAGE], pool.map(one, paths[:PAGE]), strict=True))
                    paths = paths[PAGE:]
        return found


def find_sources(client: Client, names: Sequence[str]) -> list[SourceRepository]:
    """Return the repositories of these names, or all.

    Raises:
        NotFound: the server lacks one of these names.
    """
    if not names:
        return [SourceRepository(client, record) for record in client.repositories.list()]
    try:
        return [SourceRepository(client, client.repositories.get(name)) for name in names]
    except Missing as error:
        raise NotFound(f"{client.endpoint} has not all of these repositories: {', '.join(names)}") from error


def answers(server: str) -> bool:
    """Return whether a server answers at this address, with any answer."""
    with Client(server, retries=Retries(attempts=1), timeout_s=10) as client:
        try:
            client.setup_state()
        except Unreachable:
            return False
        except LakebedError:
            return True
        return True


def in_pages(rows: Iterable[T]) -> Iterator[list[T]]:
    """Split rows into lists of at most PAGE."""
    left = iter(rows)
    while page := [*islice(left, PAGE)]:
        yield page
