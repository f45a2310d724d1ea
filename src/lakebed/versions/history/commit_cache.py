"""The commit records that were read last. They never change once written (but for a note), so no time bounds them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from lakebed.base import CommitId
from lakebed.versions.records import Commit

COMMITS_MAX: Final = 50_000
BYTES_MAX: Final = 64 << 20
RECORD_BYTES: Final = 800
"""The bytes of a commit in memory besides its message and metadata, which may have 250,000."""


class CommitCache:
    """The least recently used go first, by count and by size."""

    __slots__ = ("_commits", "_size_bytes")

    def __init__(self) -> None:
        self._commits: OrderedDict[CommitId, Commit] = OrderedDict()
        self._size_bytes = 0

    def get(self, commit_id: CommitId) -> Commit | None:
        commit = self._commits.get(commit_id)
        if commit is not None:
            self._commits.move_to_end(commit_id)
        return commit

    def keep(self, commit_id: CommitId, commit: Commit) -> Commit:
        """Keep the commit in place of an earlier one of its id, and return it."""
        former = self._commits.pop(commit_id, None)
        self._size_bytes += _size(commit) - (0 if former is None else _size(former))
        self._commits[commit_id] = commit
        while len(self._commits) > COMMITS_MAX or self._size_bytes > BYTES_MAX:
            self._size_bytes -= _size(self._commits.popitem(last=False)[1])
        return commit


def _size(commit: Commit) -> int:
    size = RECORD_BYTES + len(commit.message)
    for key, value in commit.metadata.items():
        size += len(key) + len(value)
    return size
